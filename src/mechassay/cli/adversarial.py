"""`mechassay adversarial`: how badly a circuit can fail, and what a sample says about it."""

from __future__ import annotations

from typing import Annotated

import typer

from mechassay.adversarial.options import (
    AdversarialOptions,
    PaperOptions,
    SearchOptions,
    ShiftOptions,
)
from mechassay.cli.command import command

app = typer.Typer(
    help="The worst inputs of circuits, and bounds of how bad they are.", no_args_is_help=True
)
app.command("run")(command(AdversarialOptions))
app.command("paper")(command(PaperOptions))
app.command("search")(command(SearchOptions))
app.command("shift")(command(ShiftOptions))


@app.command("bound")
def bound(
    p: Annotated[
        list[float],
        typer.Option("--p", help="The percentile, as a share: .99. Repeat for several."),
    ],
    epsilon: Annotated[
        list[float],
        typer.Option(
            "--epsilon",
            help="Margin: the bound is the value at the share p + epsilon of the sample. Repeat.",
        ),
    ],
    delta: Annotated[
        list[float] | None,
        typer.Option(
            "--delta",
            help="Confidence that the bound is at least the percentile; .95 if none. Repeat.",
        ),
    ] = None,
    n: Annotated[int | None, typer.Option("--n", help="Also: what n pairs say.")] = None,
) -> None:
    """How many independent pairs it takes for an upper bound of a percentile;
    with --n, what that many say. Several values make a table.
    """
    from itertools import product

    from mechassay.errors import BadUsage, MechassayError, first_line
    from mechassay.results.console import print_tables, standard_output
    from mechassay.results.page import NOTHING, Column, Row, TextTable
    from mechassay.stats.bounds import KINDS, confidence, margin_rank, required_n, smallest_rank

    every = list(product(p, epsilon, delta or [0.95]))
    rows: list[Row] = []
    lacking, impossible = False, dict[str, MechassayError]()
    for share, margin, sure in every:
        try:
            sizes = {kind: required_n(share, sure, margin, kind) for kind in KINDS}
        except BadUsage as error:
            impossible[f"--p {share:g} --epsilon {margin:g} --delta {sure:g}"] = error
            continue
        for kind, needed in sizes.items():
            cells = [f"{100 * share:g}", f"{margin:g}", f"{sure:g}", kind]
            cells += [f"{needed.smallest:,}", f"{needed.always:,}"]
            if n is not None:
                rank = smallest_rank(n, share, sure, kind)
                lacking = lacking or rank is None
                cells += [f"{confidence(n, share, margin, kind):.6g}"]
                cells += [f"{margin_rank(n, share, margin):,}", f"{rank:,}" if rank else NOTHING]
            rows.append(Row(tuple(cells)))
    if not rows:
        raise next(iter(impossible.values()))
    headings = ["percentile", "epsilon", "confidence", "bound", "smallest n", "from which n on"]
    if n is not None:
        headings += [f"confidence with {n:,}", "at rank", "smallest rank"]
    columns = tuple(Column(name, numeric=name != "bound") for name in headings)
    print_tables(
        [TextTable("Independent pairs for an upper bound", columns, tuple(rows))], standard_output()
    )
    if impossible:
        reasons = "; ".join(f"{words}: {first_line(error)}" for words, error in impossible.items())
        typer.echo(f"No row for {reasons}", err=True)
    if lacking:
        typer.echo(
            f"{NOTHING}: too few pairs; not even the largest value is known to be a bound with this"
            " confidence."
        )
