"""`mechassay variables`: where a language model keeps the variables of a causal model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechassay.cli.command import command
from mechassay.cli.output import JsonOption, show, tell
from mechassay.variables.options import AlignmentsOptions, VariablesOptions

app = typer.Typer(help="Locate causal variables in features of a model.", no_args_is_help=True)
app.command("run")(command(VariablesOptions))
app.command("evaluate")(command(AlignmentsOptions, arguments=("alignments",)))


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


@app.command("draw")
def draw(
    folder: Annotated[Path, typer.Argument(help="An alignment's folder, as of a run.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Packaged name, hub id or folder.")],
    example: Annotated[int, typer.Option(help="Which answered test example, from 0.", min=0)] = 0,
    kind: Annotated[str, typer.Option(help="Of the counterfactual; one that tells.")] = "",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The figure: .svg, .png or .pdf.")
    ] = Path("interchange.svg"),
) -> None:
    """Draw one interchange on the causal model and on the language model."""
    from mechassay.models.model import load_model
    from mechassay.tasks import load_task
    from mechassay.truth.ground_truth import is_truth
    from mechassay.variables.alignment import VariableAlignment
    from mechassay.variables.data import answered_examples
    from mechassay.variables.interchange_figure import draw_interchange

    loaded = load_model(model)
    alignment = VariableAlignment.load(folder).on(loaded)
    task = load_task(model if is_truth(model) else alignment.task)
    examples = answered_examples(loaded, task, "test", example + 1)
    figure = draw_interchange(alignment, examples[-1], kind)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output)
    typer.echo(f"{output}: {alignment.variable} of {examples[-1].id}")
