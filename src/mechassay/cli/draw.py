"""`mechassay circuits draw`: a circuit, or what two circuits share, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from mechassay.text import counted

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
            "--output", "-o", help="Drawing to write: .svg, .png, .pdf, or .html with tables."
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
    from mechassay.runs.draw import check_output, cut_circuits, write_drawing

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
