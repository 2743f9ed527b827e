"""`mechassay suite`: many methods on many tasks and models, as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.options import (
    AblationOption,
    DeviceOption,
    DtypeOption,
    OutputOption,
    SeedOption,
    load,
)

app = typer.Typer(help="Run methods on tasks and models, and compare them.", no_args_is_help=True)

METHODS = ["eap", "eap-ig-inputs", "eap-ig-activations", "nap", "nap-ig", "ifr"]


@app.command("run")
def run(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            help=(
                "Model; repeat for several. A ground truth runs on its own task; `truth` stands for"
                " all of them."
            ),
        ),
    ],
    task: Annotated[
        list[str],
        typer.Option(
            "--task", "-t", help="Task of the models that are no ground truth; repeat for several."
        ),
    ] = [],  # noqa: B006 - typer's way to say that a list may be left out
    method: Annotated[
        list[str],
        typer.Option("--method", "-M", help="Method, with settings if wanted; repeat for several."),
    ] = METHODS,
    train_limit: Annotated[int, typer.Option(help="Pairs to find circuits on.")] = 100,
    limit: Annotated[int, typer.Option(help="Pairs to evaluate circuits on.")] = 100,
    profile: Annotated[
        str, typer.Option(help="strict, or mib-2025 (exactly the benchmark's code).")
    ] = "strict",
    ablation: AblationOption = "counterfactual",
    keep: Annotated[
        str,
        typer.Option(
            help=(
                "all; or base, counterfactual, both: only pairs whose prompts the model answers"
                " right."
            )
        ),
    ] = "all",
    max_minutes: Annotated[
        float,
        typer.Option(
            help=(
                "Skip a cell whose circuit would take longer to find, by the forward passes that"
                " its method says it takes."
            )
        ),
    ] = 30.0,
    even_at_chance: Annotated[
        bool, typer.Option("--even-at-chance", help="Also run tasks that the model does not do.")
    ] = False,
    output: OutputOption = Path("runs/suite"),
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
) -> None:
    """Run every method on every task and model: CMD, CPR, AUROC where the circuit is known,
    seconds and memory, with intervals.

    The same folder may be run again with more models, tasks and methods. What fails or is skipped
    is a cell with its reason.
    """
    from rich.console import Console

    from mechassay.circuits.faithfulness import PROFILES
    from mechassay.errors import UnknownName
    from mechassay.report.reports import print_report
    from mechassay.runs.folder import RunFolder
    from mechassay.runs.suite import Limits, SuiteRun, models_named, run_suite, write_report
    from mechassay.tasks.task import keep_named

    if profile not in PROFILES:
        raise UnknownName("profile", profile, PROFILES)
    plan = SuiteRun(
        models=models_named(model),
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
    records, failures = run_suite(
        plan,
        output,
        lambda name: load(name, dtype, device),
        limits=Limits(max_minutes=max_minutes, even_at_chance=even_at_chance),
    )
    console = Console()
    print_report(records, failures, console, "suite")
    console.print(f"Report: {write_report(RunFolder(output), records, failures)}", soft_wrap=True)
    console.print(f"Tables: {output / 'tables.md'}", soft_wrap=True)
    failed = [failure for failure in failures if failure.status == "failed"]
    for failure in failed:
        typer.echo(f"mechassay: {', '.join(failure.cell.values())}: {failure.message}", err=True)
    if failed:
        raise typer.Exit(1)
