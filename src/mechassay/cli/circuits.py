"""`mechassay circuits`: find circuits, measure how faithful they are, draw and compare them.

The group also translates files of EAP-IG and MIB, and lists the problems of a submission.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mechassay.circuits.methods import RECOMMENDED
from mechassay.cli.command import command
from mechassay.cli.output import JsonOption, tell
from mechassay.discovery.options import CircuitsOptions
from mechassay.utils.display import counted

if TYPE_CHECKING:
    from mechassay.circuits.scores import By


def draw(
    circuit: Annotated[
        str,
        typer.Argument(
            help=(
                "Circuit to draw: a file of scores (.safetensors; .json or .pt of EAP-IG or MIB),"
                " with a size if wanted (eap.safetensors@150, @0.01, @150:greedy), canonical:ioi;"
                " beside another circuit also full, random@150 or random-paths@150."
            )
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Drawing to write: .svg, .png, .pdf, .html with tables, or .json (an attribution"
            " graph for circuit-tracer and Neuronpedia).",
        ),
    ],
    circuit2: Annotated[
        str | None, typer.Argument(help="A second circuit, to compare the two.")
    ] = None,
    edges: Annotated[
        int | None,
        typer.Option(
            help=(
                "Best edges to cut from files without a size, before pruning. If not given: as many"
                " as leave at most 60 connected."
            )
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(help="value (edges that help first) or magnitude.")
    ] = "magnitude",
    greedy: Annotated[
        bool,
        typer.Option(
            "--greedy", help="Grow the edges from the logits, so that every edge leads somewhere."
        ),
    ] = False,
    least: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Edges of one circuit are left out whose |score| is a smaller share of the"
            " largest; 0 draws all.",
        ),
    ] = 0.01,
) -> None:
    """Draw a circuit, or compare two."""
    from mechassay.discovery.draw import check_output, cut_circuits, write_drawing

    check_output(output)
    texts = [circuit] if circuit2 is None else [circuit, circuit2]
    # An unknown ranking is refused by `cut_circuits`.
    cuts = cut_circuits(texts, edges, by=cast("By", by), greedy=greedy)
    write_drawing(output, cuts, least=least)
    for cut in cuts:
        typer.echo(f"{cut.name}: {counted(len(cut.circuit), 'edge')} ({cut.how})")
        if edges and not len(cut.circuit):
            typer.echo(
                f"{cut.name}: none of them is on a path from input to logits; ask for more, or"
                " --greedy",
                err=True,
            )
    typer.echo(f"Written: {output}")


app = typer.Typer(
    help="Find circuits, measure how faithful they are, and compare methods.", no_args_is_help=True
)
app.command("draw")(draw)

TO_MEASURE = (
    *("split", "limit", "profile", "metrics", "curve"),
    *("max_minutes", "even_at_chance"),
)
TO_FIND = ("train_split", "pairing", "max_minutes", "even_at_chance")


app.command("run")(
    command(
        CircuitsOptions,
        help="Find circuits with one or more methods, evaluate them, and write an HTML report."
        " Several models and tasks are compared in one table. For models whose circuit is known,"
        " the report also shows how well each method recovers it.",
        without=("scores", "stage"),
        defaults={"methods": (RECOMMENDED,)},
    )
)
app.command("localize")(
    command(
        CircuitsOptions,
        help="Score edges, nodes or neurons with every method; `evaluate` then takes the folder.",
        without=("scores", "stage", *TO_MEASURE),
        defaults={"methods": (RECOMMENDED,), "stage": "localize"},
    )
)


def _files(typed: dict[str, Any]) -> dict[str, Any]:
    from mechassay.discovery.experiment import score_files

    return {**typed, "scores": score_files([Path(name) for name in typed["scores"]])}


app.command("evaluate")(
    command(
        CircuitsOptions,
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
    from mechassay.circuits.graph_files import ENDINGS, write_graph_file
    from mechassay.circuits.graph_files import read_graph_file as read
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
    from mechassay.circuits.mib_submission import validate_submission

    tell(folder, validate_submission(folder), json)
