"""`mechassay assay`: from a claim to a verdict in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.claims import DocumentsOption, read_paper
from mechassay.cli.command import HOW, DeviceOption, DtypeOption, seed_option

MODEL_HELP = "Model to run, if not the claims' own; the judgments are then of another model."


def assay(
    claims: Annotated[Path, typer.Argument(help="Claims, .yaml or .json.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for results; the same command again goes on there."
        ),
    ] = Path("runs/assay"),
    limit: Annotated[int, typer.Option("--limit", min=2, help="Pairs to measure on.")] = 100,
    train_limit: Annotated[
        int,
        typer.Option(
            "--train-limit", min=2, rich_help_panel=HOW, help="Pairs to find circuits on."
        ),
    ] = 100,
    grid: Annotated[
        int,
        typer.Option(
            "--grid", min=2, rich_help_panel=HOW, help="Clean prompts of the adversarial grid."
        ),
    ] = 50,
    left_out: Annotated[
        int,
        typer.Option(
            "--left-out",
            min=2,
            rich_help_panel=HOW,
            help="Edges to leave out in turn; a sample of more.",
        ),
    ] = 60,
    other_method: Annotated[
        str,
        typer.Option(
            "--other-method",
            rich_help_panel=HOW,
            help="Method of another family, to see whether the two agree (C5).",
        ),
    ] = "",
    judgments: Annotated[
        Path | None,
        typer.Option(
            "--judgments",
            rich_help_panel=HOW,
            help="A reader's judgments, for what no record decides.",
        ),
    ] = None,
    document: DocumentsOption = None,
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = "",
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: Annotated[int, seed_option("the examples and of the bootstrap")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be run and what it costs.")
    ] = False,
) -> None:
    """Run what the criteria of claims ask for, judge the claims by the records, and write a page.

    What has records is not run again. What no record decides is left to the form beside the page.
    """
    from mechassay.claims.claim import read_claims
    from mechassay.claims.judgments import read_judgments
    from mechassay.models.model import check_device
    from mechassay.report.reports import print_report
    from mechassay.runs.assay import Assay
    from mechassay.runs.assay_steps import AssaySettings

    read = None if judgments is None else read_judgments(judgments)
    check_device(device)
    settings = AssaySettings(limit, train_limit, grid, left_out, other_method, dtype, seed)
    plan = Assay(read_claims(claims), output, settings, model=model, device=device)
    if dry_run:
        _show_plan(plan)
        return
    documents = [read_paper(name, force=True) for name in document or ()]
    found = plan.run(read, say=lambda text: typer.echo(text, err=True), documents=documents)
    print_report(list(found.records))
    for name, predicted in found.predictions.items():
        for each in predicted:
            measured = f" ({each.found})" if each.found else ""
            where = f", in {model}" if found.scope == "other model" else ""
            typer.echo(f"{name} predicts {each.prediction}{where}: {each.outcome}{measured}")
    source = found.scored.source_verified
    told = "none" if source.cvs != source.cvs else f"{source.cvs:.1f}, {source.gated_tier}"
    typer.echo(f"Verdict: {'REFUTED by its own prediction; ' if found.refuted else ''}CVS {told}")
    for path in (output / "judgments.json", output / "score.json", found.page, found.form):
        typer.echo(f"Written: {path}")
    for folder, reason in found.failed.items():
        typer.echo(f"mechassay: {folder}: {reason}", err=True)
    if found.failed:
        raise typer.Exit(1)


def _show_plan(plan: object) -> None:
    from mechassay.report.console import print_tables, standard_output
    from mechassay.report.tables import TextTable
    from mechassay.runs.assay import Assay

    assert isinstance(plan, Assay)
    each = plan.seconds_per_forward()
    rows = [
        (
            step.name,
            " ".join(step.criteria),
            "done" if step.is_done else f"{step.forwards:,.0f}",
            "" if step.is_done else f"{step.forwards * each / 60:.1f}",
        )
        for step in plan.steps
    ]
    headings = ("step", "evidence for", "runs of a pair", "minutes, about")
    print_tables([TextTable.of("Plan", headings, rows, words=True)], standard_output())
    left = sum(step.forwards for step in plan.steps if not step.is_done)
    for step in plan.steps:
        typer.echo(f"{step.name}: {step.command}")
    typer.echo(f"About {left:,.0f} runs of a pair, {left * each / 60:.0f} minutes here.")
