"""`mechassay suite`: `circuits run` with other defaults, for many methods, tasks and models."""

from __future__ import annotations

import typer

from mechassay.cli.command import command
from mechassay.runs.circuits import CircuitsJob

app = typer.Typer(help="Run methods on tasks and models, and compare them.", no_args_is_help=True)

METHODS = ("eap", "eap-ig-inputs", "eap-ig-activations", "nap", "nap-ig", "ifr")

app.command("run")(
    command(
        CircuitsJob,
        output="runs/suite",
        help="`circuits run` for many methods, tasks and models: skips what a model does not do or"
        " what takes too long. The same folder may be run again with more of each.",
        without=("scores", "stage"),
        defaults={"methods": METHODS, "max_minutes": 30.0, "even_at_chance": False},
    )
)
