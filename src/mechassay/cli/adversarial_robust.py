"""`mechassay adversarial robust`: does feeding a circuit's worst pairs back to the method make its circuits more robust?"""

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


def robust(
    model: ModelOption,
    task: TaskOption,
    method: Annotated[str, typer.Option("--method", "-M", help="Method that scores edges and can use kl.")] = "eap-ig-inputs",
    edges: Annotated[
        str, typer.Option(help="Size of the circuit whose worst pairs are looked for: edges (500) or a share of them (0.01).")
    ] = "0.02",
    size: Annotated[list[str], typer.Option(help="Size at which rankings are compared, like --edges; repeat for several.")] = SIZES,
    rounds: Annotated[int, typer.Option(help="How often worst pairs are added.")] = 3,
    worst: Annotated[str, typer.Option(help="Pairs a round (10), or the share of the grid that they are taken from (0.01).")] = "10",
    cut: Annotated[str, typer.Option(help="top, or greedy (grown from the logits).")] = "top",
    weight: Annotated[
        float | None, typer.Option(help="Weight of all added pairs together, between 0 and 1; every pair alike if not given.")
    ] = None,
    base: Annotated[int, typer.Option(help="Base pairs, of the split train.")] = 100,
    discovery: Annotated[int, typer.Option(help="Clean, and corrupted, prompts of the discovery grid, of the split validation.")] = 100,
    held_out: Annotated[int, typer.Option(help="Clean, and corrupted, prompts that rankings are compared on, of the split test.")] = 100,
    counterfactual: CounterfactualOption = None,
    repeats: Annotated[int, typer.Option(help="Times all is done, with other prompts; from two on, intervals are over repeats.")] = 1,
    output: OutputOption = Path("runs/robust"),
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    prepend_bos: BosOption = False,
) -> None:
    """Compare a method's circuits with those it finds when given its circuit's worst pairs, or random ones, on held-out prompts."""
    from rich.console import Console

    from mechassay.adversarial.robust import cut_named
    from mechassay.report.grids import print_grids
    from mechassay.runs.named_circuits import number_or_share
    from mechassay.runs.robust import RobustRun, robust_grids, run_robust, write_robust
    from mechassay.runs.truths import task_named

    run = RobustRun(
        model=model,
        task=task,
        method=method,
        edges=number_or_share(edges),
        sizes=tuple(map(number_or_share, size)),
        rounds=rounds,
        worst=number_or_share(worst, "pairs"),
        cut=cut_named(cut),
        weight=weight,
        n_base=base,
        n_discovery=discovery,
        n_held_out=held_out,
        counterfactual=counterfactual or "",
        repeats=repeats,
        dtype=dtype,
        prepend_bos=prepend_bos,
        seed=seed,
    )
    found = run_robust(run, output, load(model, dtype, device, prepend_bos), task_named(task))
    console = Console()
    print_grids(robust_grids(run, found), console)
    console.print(f"Report: {write_robust(run, output, found)}", soft_wrap=True)
