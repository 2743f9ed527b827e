"""`mechassay adversarial paper`: the evaluation of a paper, run again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.options import (
    DeviceOption,
    DtypeOption,
    ModelOption,
    OutputOption,
    SeedOption,
    load,
)

if TYPE_CHECKING:
    from mechassay.records import Record
    from mechassay.report.tables import Table

CircuitOption = Annotated[
    list[str],
    typer.Option(
        "--circuit",
        "-c",
        help=(
            "canonical:NAME, truth, full, empty, random@SIZE, random-paths@SIZE, METHOD@SIZE (found"
            " on the train split), FILE.safetensors@SIZE, FILE.json or FILE.pt. SIZE: edges (500)"
            " or a share of them (0.01); then :greedy to grow it from the logits. Repeat for"
            " several."
        ),
    ),
]
CleanOption = Annotated[int, typer.Option("--n-clean", help="Clean prompts.")]
WorstOption = Annotated[
    int,
    typer.Option("--worst", help="How many of the worst pairs to show, each run again by itself."),
]


def paper(
    model: ModelOption,
    output: OutputOption = Path("runs/adversarial-paper"),
    docstring_model: Annotated[
        str | None,
        typer.Option(
            "--docstring-model",
            help="attn-only-4l (folder with its checkpoint); docstring is left out without it.",
        ),
    ] = None,
    n_clean: CleanOption = 1000,
    n_corrupted: Annotated[
        int, typer.Option("--n-corrupted", help="Corrupted prompts of the grids.")
    ] = 1000,
    n_matched: Annotated[
        int,
        typer.Option(
            "--n-matched",
            help="Matched pairs; of greater-than, which has fewer than the paper's million, all.",
        ),
    ] = 1_000_000,
    worst: WorstOption = 10,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
) -> None:
    """Run the evaluation of Uit de Bos and Garriga-Alonso (2024) again:
    IOI, greater-than and docstring, unmatched and matched pairs.
    """
    from mechassay.runs.adversarial_paper import (
        TITLES,
        PaperRun,
        paper_grid,
        run_paper,
        verdict_text,
    )

    plan = PaperRun(
        model=model,
        docstring_model=docstring_model,
        n_clean=n_clean,
        n_corrupted=n_corrupted,
        n_matched=n_matched,
        dtype=dtype,
        seed=seed,
        worst=worst,
    )
    result = run_paper(plan, output, lambda name, bos: load(name, dtype, device, bos))
    if docstring_model is None:
        typer.echo("Skipped: docstring needs attn-only-4l, --docstring-model.", err=True)
    for failure in result.failures:
        typer.echo(f"mechassay: {failure.cell['run']}: {failure.message}", err=True)
    grids = [grid for pairs in TITLES if (grid := paper_grid(result.records, pairs)).columns[1:]]
    said = "\n".join(verdict_text(task, found) for task, found in result.verdicts.items())
    _finish(grids, output / "report.html", list(result.records.values()), said)
    if result.failures:
        raise typer.Exit(1)


def _finish(grids: Sequence[Table], page: Path, records: Sequence[Record], said: str = "") -> None:
    """What was found, and a sentence on it; controls that fail come first, and are exit code 1."""
    from rich.console import Console

    from mechassay.report.sections import broken
    from mechassay.report.tables import print_tables

    wrong = [(record, text) for record in records for text in broken(record)]
    for record, text in wrong:
        typer.echo(f"mechassay: controls fail: {record.method.name}: {text}", err=True)
    console = Console()
    print_tables(grids, console)
    if said:
        console.print(said, soft_wrap=True, markup=False, highlight=False)
    console.print(f"Report: {page}", soft_wrap=True)
    if wrong:
        raise typer.Exit(1)
