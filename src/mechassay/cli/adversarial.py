"""`mechassay adversarial`: how badly a circuit can fail, and what a sample says about it."""

from __future__ import annotations

from typing import Annotated

import typer

from mechassay.adversarial.plan import AdversarialPlan, PaperPlan, SearchPlan
from mechassay.cli.command import command

app = typer.Typer(
    help="The worst inputs of circuits, and bounds of how bad they are.", no_args_is_help=True
)
app.command("run")(command(AdversarialPlan))
app.command("paper")(command(PaperPlan))
app.command("search")(command(SearchPlan))


@app.command("bound")
def bound(
    p: Annotated[float, typer.Option("--p", help="The percentile, as a share: .99.")],
    epsilon: Annotated[
        float,
        typer.Option(
            "--epsilon",
            help="Margin: the bound is the value at the share p + epsilon of the sample.",
        ),
    ],
    delta: Annotated[
        float, typer.Option("--delta", help="Confidence that the bound is at least the percentile.")
    ] = 0.95,
    n: Annotated[int | None, typer.Option("--n", help="Also: what n pairs say.")] = None,
) -> None:
    """How many independent pairs it takes for an upper bound of a percentile;
    with --n, what that many say.
    """
    from mechassay.results.console import print_tables, standard_output
    from mechassay.results.page import NOTHING, TextTable
    from mechassay.stats.bounds import KINDS, confidence, margin_rank, required_n, smallest_rank

    needed = {kind: required_n(p, delta, epsilon, kind) for kind in KINDS}
    rows = tuple((kind, f"{size.smallest:,}", f"{size.always:,}") for kind, size in needed.items())
    grids = [
        TextTable.of("Independent pairs needed", ("bound", "smallest n", "from which n on"), rows)
    ]
    ranks = {} if n is None else {kind: smallest_rank(n, p, delta, kind) for kind in KINDS}
    if n is not None:
        at = f"confidence at rank {margin_rank(n, p, epsilon):,}"
        sentences = [
            (kind, f"{confidence(n, p, epsilon, kind):.6g}", f"{rank:,}" if rank else NOTHING)
            for kind, rank in ranks.items()
        ]
        grids.append(
            TextTable.of(
                f"With {n:,} pairs", ("bound", at, f"smallest rank for {delta:g}"), tuple(sentences)
            )
        )
    typer.echo(f"Upper bound of percentile {100 * p:g}, confidence {delta:g}, epsilon {epsilon:g}")
    print_tables(grids, standard_output())
    if None in ranks.values():
        typer.echo(
            f"{NOTHING}: too few pairs; not even the largest value is known to be a bound with this"
            " confidence."
        )
