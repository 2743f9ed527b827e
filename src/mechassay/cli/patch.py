"""`mechassay patch`: activation patching, as heat maps."""

from __future__ import annotations

import typer

from mechassay.cli.command import command
from mechassay.interventions.options import PatchOptions

app = typer.Typer(help="Activation patching: what single activations carry.", no_args_is_help=True)
app.command("run")(command(PatchOptions))
