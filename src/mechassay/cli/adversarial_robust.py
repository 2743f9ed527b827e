"""`mechassay adversarial robust`: does feeding a circuit's worst pairs back
to the method make its circuits more robust?
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.options import (
    BosOption,
    CounterfactualOption,
    DeviceOption,
    DtypeOption,
    ModelOption,
    OutputOption,
    SeedOption,
    TaskOption,
    load,
)

SIZES = ["0.01", "0.02", "0.05"]
TAILS = ["cvar", "mixture", "worst-group"]


def robust(
    model: ModelOption,
    task: TaskOption,
    method: Annotated[
        str,
        typer.Option(
            "--method", "-M", help="Method that scores edges and can use kl, or trains a mask."
        ),
    ] = "eap-ig-inputs",
    tail: Annotated[
        list[str],
        typer.Option(
            help=(
                "How losses become one: cvar, mixture:weight=0.5,alpha=0.2, worst-group; repeat for"
                " several."
            )
        ),
    ] = TAILS,
    pairing: Annotated[
        str, typer.Option(help="Of training and held-out pairs: same-template, or random.")
    ] = "same-template",
    group: Annotated[
        str,
        typer.Option(
            help="Field whose values are the groups of worst-group; the templates if not given."
        ),
    ] = "",
    objective: Annotated[
        str,
        typer.Option(
            help="What circuits are found by: kl or js. Held-out pairs are measured by kl."
        ),
    ] = "kl",
    edges: Annotated[
        str,
        typer.Option(
            help=(
                "Size of the circuit whose losses are looked at: edges (500) or a share of them"
                " (0.01)."
            )
        ),
    ] = "0.02",
    size: Annotated[
        list[str],
        typer.Option(help="Size at which rankings are compared, like --edges; repeat for several."),
    ] = SIZES,
    rounds: Annotated[
        int,
        typer.Option(
            help="How often pairs are drawn and weighed; a method that trains a mask has its steps."
        ),
    ] = 3,
    cut: Annotated[str, typer.Option(help="top, or greedy (grown from the logits).")] = "top",
    base: Annotated[
        int, typer.Option(help="Pairs that circuits are found on, of the split train.")
    ] = 100,
    held_out: Annotated[
        int,
        typer.Option(
            help="Held-out matched pairs, of the split test; the grid takes as many again."
        ),
    ] = 100,
    counterfactual: CounterfactualOption = None,
    repeats: Annotated[
        int,
        typer.Option(
            help="Times all is done, with other prompts; from two on, intervals are over repeats."
        ),
    ] = 1,
    output: OutputOption = Path("runs/robust"),
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    prepend_bos: BosOption = False,
) -> None:
    """Compare a method's circuits with those it finds on pairs drawn anew,
    where pairs that fail count for more, on held-out pairs.
    """
    from rich.console import Console

    from mechassay.adversarial.robust import CUT_KINDS
    from mechassay.circuits.spec import number_or_share
    from mechassay.errors import one_of
    from mechassay.report.tables import print_tables
    from mechassay.runs.names import task_named
    from mechassay.runs.robust import RobustRun, robust_grids, run_robust, write_robust

    run = RobustRun(
        model=model,
        task=task,
        method=method,
        tails=tuple(tail),
        pairing=pairing,
        group=group,
        objective=objective,
        edges=number_or_share(edges),
        sizes=tuple(map(number_or_share, size)),
        rounds=rounds,
        cut=one_of("cut", cut, CUT_KINDS),
        n_base=base,
        n_held_out=held_out,
        counterfactual=counterfactual or "",
        repeats=repeats,
        dtype=dtype,
        prepend_bos=prepend_bos,
        seed=seed,
    )
    found = run_robust(run, output, load(model, dtype, device, prepend_bos), task_named(task))
    console = Console()
    print_tables(robust_grids(run, found), console)
    console.print(f"Report: {write_robust(run, output, found)}", soft_wrap=True)
