"""`mechassay circuits draw`: a circuit, or what two circuits share, as an SVG or an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from mechassay.circuits.scores import By

SCORES = "(.safetensors; .json or .pt of EAP-IG or MIB)"


def draw(
    scores: Annotated[Path, typer.Argument(help=f"Scores to cut a circuit from {SCORES}.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Drawing to write: .svg, or .html with tables.")
    ],
    scores2: Annotated[
        Path | None, typer.Argument(help="Scores of a second circuit, to compare the two.")
    ] = None,
    edges: Annotated[
        int | None,
        typer.Option(
            help=(
                "Best edges to cut, before pruning. If not given: as many as leave at most 60"
                " connected."
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
) -> None:
    """Draw the circuit of a score file's best edges, or compare those of two files."""
    from mechassay.runs.draw import check_output, cut_circuit, write_drawing

    check_output(output)
    # An unknown ranking is refused by `cut_circuit`.
    cuts = [
        cut_circuit(path, edges, by=cast("By", by), greedy=greedy)
        for path in (scores, scores2)
        if path is not None
    ]
    write_drawing(output, cuts)
    for cut in cuts:
        typer.echo(f"{cut.name}: {len(cut.circuit):,} edges ({cut.how})")
        if edges and not len(cut.circuit):
            typer.echo(
                f"{cut.name}: none of them is on a path from input to logits; ask for more, or"
                " --greedy",
                err=True,
            )
    typer.echo(f"Written: {output}")
