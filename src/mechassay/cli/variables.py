"""`mechassay variables`: where a language model keeps the variables of a causal model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechassay.cli.command import command
from mechassay.cli.output import JsonOption, show, tell
from mechassay.variables.plan import AlignmentsPlan, VariablesPlan

app = typer.Typer(help="Locate causal variables in features of a model.", no_args_is_help=True)
app.command("run")(command(VariablesPlan))
app.command("evaluate")(command(AlignmentsPlan, arguments=("alignments",)))


@app.command("list")
def list_hypotheses(json: JsonOption = False) -> None:
    """Causal models with their variables, and what is exchanged for them by default."""
    from mechassay.causal_models.hypothesis import defaults_of, hypotheses
    from mechassay.causal_models.task_models import CAUSAL_MODELS

    rows: list[dict[str, Any]] = []
    for task in CAUSAL_MODELS.names():
        known, defaults = hypotheses(task), defaults_of(task)
        wrong = [name for name, hypothesis in known.items() if hypothesis.right is False]
        rows.append(
            {
                "name": task,
                "variables": [name for name in known if name not in wrong],
                "wrong": wrong,
                "positions": list(defaults.positions),
                "kinds": list(defaults.kinds) or ["all"],
            }
        )
    show(rows, json, ("kinds", "positions"))


@app.command("validate")
def validate(
    folder: Annotated[
        Path,
        typer.Argument(
            help="An alignment (alignment.json), a run, or a submission to MIB's causal track."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Model that the folder has to be about: packaged name, hub id or local folder.",
        ),
    ] = None,
    ignore_code: Annotated[
        bool,
        typer.Option(
            "--ignore-code", help="Read a submission with featurizer.py or the like without them."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """List every problem of a folder; nothing in it is executed."""
    from mechassay.models.model import load_model
    from mechassay.variables.mib_submission import validate as problems_of

    loaded = None if model is None else load_model(model)
    problems = problems_of(folder, model=loaded, ignore_code=ignore_code)
    tell(folder, problems, json, what="folder")
