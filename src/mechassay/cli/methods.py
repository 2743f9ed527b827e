"""`mechassay methods`: discovery methods, and what each does."""

from __future__ import annotations

from typing import Annotated

import typer

from mechassay.cli.output import JsonOption, show
from mechassay.utils.display import first_sentence

app = typer.Typer(help="List discovery methods and show what each does.", no_args_is_help=True)


@app.command("list")
def list_methods(json: JsonOption = False) -> None:
    """Methods with what they score and their settings."""
    from mechassay.circuits.methods import METHODS

    outlines = {name: METHODS.outline(name) for name in METHODS.names()}
    rows = [
        {
            "name": name,
            "about": first_sentence(about),
            "settings": settings,
            "other names": METHODS.other_names(name),
        }
        for name, (about, settings) in outlines.items()
    ]
    show(rows, json)


@app.command("show")
def show_method(
    name: Annotated[str, typer.Argument(help="Method, see `mechassay methods list`.")],
) -> None:
    """What a method computes, its source, and its settings with their defaults."""
    import inspect
    import sys

    from mechassay.circuits.methods import METHODS

    module = inspect.getdoc(sys.modules[METHODS.load(name).__module__]) or ""
    name = METHODS.full_name(name)
    settings = METHODS.settings(name)
    typer.echo(f"{name}\n\n{METHODS.about(name)}")
    if module and module != METHODS.about(name):
        typer.echo(f"\n{module}")
    written = ",".join(f"{key}={value}" for key, value in settings.items())
    typer.echo(f"\nSettings and defaults: {name}:{written}" if written else "\nIt has no settings.")
