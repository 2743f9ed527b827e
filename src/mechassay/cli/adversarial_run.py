"""`mechassay adversarial run` and `paper`:
the divergence of every pair, and what follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.options import (
    BosOption,
    CounterfactualOption,
    DeviceOption,
    DtypeOption,
    ModelOption,
    ObjectiveOption,
    OutputOption,
    PairAblationOption,
    PairingOption,
    SeedOption,
    TaskOption,
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
NO_MAPS: list[str] = []
PERCENTILES = [0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 0.9999]
ABOVE = [0.01, 0.1, 1.0, 5.0]


def run(
    model: ModelOption,
    task: TaskOption,
    circuit: CircuitOption,
    output: OutputOption = Path("runs/adversarial"),
    design: Annotated[
        str | None,
        typer.Option(
            help=(
                "grid (each clean with each corrupted prompt), matched (each with its own) or"
                " independent (pairs drawn anew); "
                "grid if not given, matched with --enumerate."
            )
        ),
    ] = None,
    n_clean: CleanOption = 1000,
    n_corrupted: Annotated[
        int | None,
        typer.Option(
            "--n-corrupted", help="Corrupted prompts of a grid; as many as clean ones if not given."
        ),
    ] = None,
    same: Annotated[
        str,
        typer.Option(
            "--same",
            help=(
                "Only pairs of a grid whose prompts agree in these fields: template, or"
                " template,object."
            ),
        ),
    ] = "",
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            help="Only prompts with this value of a field: FIELD=VALUE. Repeat for several fields.",
        ),
    ] = None,
    enumerate_all: Annotated[
        bool,
        typer.Option(
            "--enumerate",
            help="All matched pairs of the split, where a task has finitely many (greater-than).",
        ),
    ] = False,
    split: Annotated[
        str, typer.Option("--split", help="Split to evaluate on: train, validation or test.")
    ] = "test",
    counterfactual: CounterfactualOption = None,
    ablation: PairAblationOption = "counterfactual",
    train_limit: Annotated[
        int, typer.Option("--train-limit", help="Pairs that methods find circuits on.")
    ] = 100,
    objective: ObjectiveOption = None,
    pairing: PairingOption = "matched",
    percentile: Annotated[
        list[float],
        typer.Option("--percentile", help="Percentile of the tables, as a share. Repeat."),
    ] = PERCENTILES,
    above: Annotated[
        list[float],
        typer.Option("--above", help="Threshold in nats: how often it is exceeded. Repeat."),
    ] = ABOVE,
    worst: WorstOption = 10,
    controls: Annotated[
        int,
        typer.Option(
            "--controls",
            help=(
                "Prompts of each pool that controls are run on; of single pairs as many as its"
                " square."
            ),
        ),
    ] = 64,
    resamples: Annotated[
        int, typer.Option("--resamples", help="Of the bootstrap of a grid.")
    ] = 1000,
    permutations: Annotated[
        int, typer.Option("--permutations", help="Of the tests of labels.")
    ] = 2000,
    heat_map: Annotated[
        list[str],
        typer.Option(
            "--heat-map",
            help="Two fields to draw a heat map of: place,object or noun,'corrupted noun'. Repeat.",
        ),
    ] = NO_MAPS,
    least_effect: Annotated[
        float,
        typer.Option(
            "--least-effect",
            help="Share of the empty circuit's 99th percentile that a label must be worse by.",
        ),
    ] = 0.05,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    prepend_bos: BosOption = False,
) -> None:
    """How far circuits are from the model on every pair of prompts:
    percentiles with bounds, worst pairs, which prompts are worse.
    """
    from mechassay.adversarial.fields import parse_same
    from mechassay.report.kinds.adversarial import tables
    from mechassay.report.kinds.adversarial_templates import template_text
    from mechassay.runs.adversarial import AdversarialJob, AdversarialRun, write_report

    plan = AdversarialRun(
        model=model,
        task=task,
        circuits=tuple(circuit),
        design=design or ("matched" if enumerate_all else "grid"),
        n_clean=n_clean,
        n_corrupted=n_clean if n_corrupted is None else n_corrupted,
        same=parse_same(same),
        where=tuple(where or ()),
        enumerate_all=enumerate_all,
        split=split,
        counterfactual=counterfactual,
        ablation=ablation,
        train_limit=train_limit,
        objective=objective,
        pairing=pairing,
        dtype=dtype,
        prepend_bos=prepend_bos,
        seed=seed,
        percentiles=tuple(percentile),
        above=tuple(above),
        worst=worst,
        controls=controls,
        n_resamples=resamples,
        n_permutations=permutations,
        heat_maps=tuple(heat_map),
        least_effect=least_effect,
    )
    job = AdversarialJob(plan, output, lambda: load(model, dtype, device, prepend_bos))
    records = job.records()
    page = write_report(job.folder, records)
    _finish(tables(records), page, records, template_text(records))


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
