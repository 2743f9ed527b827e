"""`mechassay suite`: many methods on many tasks and models, as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.options import DeviceOption, DtypeOption, OutputOption, SeedOption, load

app = typer.Typer(help="Run methods on tasks and models, and compare them.", no_args_is_help=True)

METHODS = ["eap", "eap-ig-inputs", "eap-ig-activations", "nap", "nap-ig", "ifr"]


@app.command("run")
def run(
    model: Annotated[list[str], typer.Option("--model", "-m", help="Model; repeat for several.")],
    task: Annotated[list[str], typer.Option("--task", "-t", help="Task; repeat for several.")],
    method: Annotated[list[str], typer.Option("--method", "-M", help="Method, with settings if wanted; repeat for several.")] = METHODS,
    train_limit: Annotated[int, typer.Option(help="Pairs to find circuits on.")] = 100,
    limit: Annotated[int, typer.Option(help="Pairs to evaluate circuits on.")] = 100,
    profile: Annotated[str, typer.Option(help="strict, or mib-2025 (exactly the benchmark's code).")] = "strict",
    ablation: Annotated[str, typer.Option(help="counterfactual, zero, mean, positional-mean or resample.")] = "counterfactual",
    keep: Annotated[
        str, typer.Option(help="all; or base, counterfactual, both: only pairs whose prompts the model answers right.")
    ] = "all",
    output: OutputOption = Path("runs/suite"),
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
) -> None:
    """Run every method on every task and model: CMD and CPR with intervals, seconds and memory, failures as cells."""
    from rich.console import Console

    from mechassay.circuits.faithfulness import PROFILES
    from mechassay.errors import UnknownName
    from mechassay.report.suite import print_suite
    from mechassay.runs.folder import RunFolder
    from mechassay.runs.suite import SuiteRun, run_suite, write_report
    from mechassay.tasks.task import keep_named

    if profile not in PROFILES:
        raise UnknownName("profile", profile, PROFILES)
    plan = SuiteRun(
        models=tuple(model),
        tasks=tuple(task),
        methods=tuple(method),
        train_limit=train_limit,
        test_limit=limit,
        profile="strict" if profile == "strict" else "mib-2025",
        ablation=ablation,
        keep=keep_named(keep),
        dtype=dtype,
        seed=seed,
    )
    records, failures = run_suite(plan, output, lambda name: load(name, dtype, device))
    console = Console()
    print_suite(records, failures, console)
    console.print(f"Report: {write_report(RunFolder(output), records, failures)}", soft_wrap=True)
    console.print(f"Tables: {output / 'tables.md'}", soft_wrap=True)
    for failure in failures:
        typer.echo(f"mechassay: {', '.join(failure.cell.values())}: {failure.message}", err=True)
    if failures:
        raise typer.Exit(1)
