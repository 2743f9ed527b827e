"""`mechassay circuits`: find circuits, measure how faithful they are, or both in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechassay.cli.command import command
from mechassay.cli.draw import draw
from mechassay.cli.listing import JsonOption
from mechassay.cli.problems import tell
from mechassay.runs.circuits import CircuitsJob, score_files

app = typer.Typer(
    help="Find circuits, measure how faithful they are, and compare methods.", no_args_is_help=True
)
app.command("draw")(draw)

METHODS = ("eap", "eap-ig-inputs", "random")
TO_MEASURE = (
    *("test_split", "test_limit", "profile", "metrics", "curve"),
    *("max_minutes", "even_at_chance"),
)
TO_FIND = ("train_split", "pairing", "max_minutes", "even_at_chance")


app.command("run")(
    command(
        CircuitsJob,
        output="runs/circuits",
        help="Find circuits with every method and measure them: scores, records, one HTML report."
        " Several models and tasks make one table. On a ground truth it also says how well the"
        " known circuit is found.",
        without=("scores", "stage"),
        defaults={"methods": METHODS},
    )
)
app.command("localize")(
    command(
        CircuitsJob,
        output="runs/circuits",
        help="Score edges, nodes or neurons with every method; `evaluate` then takes the folder.",
        without=("scores", "stage", *TO_MEASURE),
        defaults={"methods": METHODS, "stage": "localize"},
    )
)


def _files(typed: dict[str, Any]) -> dict[str, Any]:
    return {**typed, "scores": score_files([Path(name) for name in typed["scores"]])}


app.command("evaluate")(
    command(
        CircuitsJob,
        output="runs/evaluation",
        help="Measure the faithfulness of circuits cut from score files, or from those in the"
        " folder of `circuits localize`.",
        without=("methods", "stage", *TO_FIND),
        arguments=("scores",),
        change=_files,
    )
)


@app.command("convert")
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help=(
                "Scores or circuit of EAP-IG or MIB (.json, .pt), or scores of ours (.safetensors)."
            )
        ),
    ],
    target: Annotated[Path, typer.Argument(help="File to write, in the form of its ending.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Model that the file has to fit; needed to write from .safetensors.",
        ),
    ] = None,
) -> None:
    """Translate edge scores and circuits between our files and those of EAP-IG and MIB."""
    from mechassay.circuits.formats import read_graph_file as read
    from mechassay.circuits.formats import write_graph_file
    from mechassay.circuits.graph_file import ENDINGS
    from mechassay.circuits.scores import EdgeScores
    from mechassay.errors import BadFile, BadUsage, GraphMismatch, UnknownName
    from mechassay.models.model import load_model

    known = (".safetensors", *ENDINGS)
    for path in (source, target):
        if path.suffix not in known:
            raise UnknownName(
                "ending of files of scores and circuits", path.suffix or path.name, known
            )
    loaded = load_model(model) if model else None
    graph = None if loaded is None else loaded.graph
    if source.suffix == ".safetensors":
        if loaded is None:
            raise BadUsage(
                f"{source}: their files say how wide the model is, ours do not: name it with"
                " --model."
            )
        write_graph_file(target, EdgeScores.load(source, graph), d_model=loaded.decoder.d_model)
    elif target.suffix == ".safetensors":
        scores = read(source, graph).scores
        if scores is None:
            raise BadFile(f"{source}: has no edge scores.")
        scores.save(target)
    else:
        file = read(source, graph)
        if loaded is not None and file.d_model != loaded.decoder.d_model:
            raise GraphMismatch(
                f"{source}: is about a model {file.d_model} wide; {loaded.name} is"
                f" {loaded.decoder.d_model} wide."
            )
        file.write(target)
    typer.echo(f"Written: {target}")


@app.command("validate")
def validate(
    folder: Annotated[Path, typer.Argument(help="Folder of a submission to MIB's circuit track.")],
    json: JsonOption = False,
) -> None:
    """List every problem of a submission; nothing in it is executed."""
    from mechassay.circuits.submission import validate_submission

    tell(folder, validate_submission(folder), json)
