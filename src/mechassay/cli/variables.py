"""`mechassay variables`: where causal variables live in models."""

from __future__ import annotations

import typer

from mechassay.cli.command import command
from mechassay.runs.variables import VariablesJob

app = typer.Typer(help="Causal variables: where a model keeps them.", no_args_is_help=True)
app.command("run")(command(VariablesJob, output="runs/variables"))
