"""`mechassay claims`: forms, scores of judgments, how raters differ, what records say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Judge claims about mechanisms.", no_args_is_help=True)

DocumentsOption = Annotated[
    list[Path] | None,
    typer.Option("--document", "-d", help="Document that quotes are from: .pdf, .md or .txt."),
]


@app.command("form")
def form(
    source: Annotated[
        Path,
        typer.Argument(
            help="Claims (.yaml, .json), a paper (.pdf, .md, .txt), or judgments to go on with."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Form to write, .html.")],
    document: DocumentsOption = None,
    pages: Annotated[int, typer.Option("--pages", min=1, help="Pages of a PDF to show.")] = 50,
) -> None:
    """Write a form for judging claims: one page that works without a server."""
    from mechassay.claims.claim import claims_of
    from mechassay.claims.documents import PDF, TEXT, read_document
    from mechassay.claims.explain import read_plain
    from mechassay.claims.judgments import judgments_of
    from mechassay.files import check_ending
    from mechassay.report.claim_form import write_form

    page = check_ending(output, ".html")
    paper = source.suffix in (PDF, *TEXT)
    names = [*([source] if paper else []), *(document or ())]
    plain = None if paper else read_plain(source)
    judged = isinstance(plain, dict) and "rater" in plain
    claims = None if paper or judged else claims_of(plain, str(source))
    initial = judgments_of(plain, str(source)) if judged else None
    documents = [read_document(path, pages) for path in names]
    typer.echo(f"Written: {write_form(page, claims, documents, initial)}")
    for each in documents:
        if each.n_pages > len(each.pages):
            typer.echo(
                f"warning: {each.name}: {len(each.pages)} of {each.n_pages} pages; --pages takes"
                " more",
                err=True,
            )


@app.command("score")
def score(
    judgments: Annotated[Path, typer.Argument(help="Judgments, .json or .yaml.")],
    document: DocumentsOption = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Folder of the records that are evidence.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Page to write, .html.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Record of the system claim to write, .json.")
    ] = None,
) -> None:
    """Score judgments: as they are, and with the evidence that holds alone."""
    from mechassay.claims.documents import read_document
    from mechassay.claims.judgments import read_judgments
    from mechassay.claims.scored import score_judgments
    from mechassay.files import check_ending
    from mechassay.report.reports import print_report, write_page

    page = None if output is None else check_ending(output, ".html")
    file = None if json is None else check_ending(json, ".json")
    documents = [read_document(path) for path in document or ()]
    found = score_judgments(read_judgments(judgments), documents, runs)
    records = found.records()
    print_report(records)
    source = found.source
    typer.echo(
        f"Score of the paper: {_told(source.cvs, source.gated_tier)}, of {source.system}"
        f" ({source.why}); highest {_told(source.highest)}, median {_told(source.median)}"
    )
    verified = found.source_verified
    typer.echo(f"With evidence that holds alone: {_told(verified.cvs, verified.gated_tier)}")
    for warning in dict.fromkeys(text for record in records for text in record.warnings):
        typer.echo(f"warning: {warning}", err=True)
    if page is not None:
        typer.echo(f"Written: {write_page(page, records)}")
    if file is not None:
        typer.echo(f"Written: {records[0].save(file)}")


def _told(value: float, tier: str = "") -> str:
    told = "none" if value != value else f"{value:.1f}"
    return f"{told}, {tier}" if tier else told


@app.command("compare")
def compare(
    judgments: Annotated[list[Path], typer.Argument(help="Judgments of two raters or more.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Page to write, .html.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Record to write, .json.")] = None,
    adjudicate: Annotated[
        Path | None,
        typer.Option("--adjudicate", help="Judgments to settle, .json: what differs is open."),
    ] = None,
) -> None:
    """Compare raters: where they disagree, and how much they agree."""
    from mechassay.claims.comparison import compare as compared
    from mechassay.claims.judgments import read_judgments
    from mechassay.files import check_ending
    from mechassay.report.reports import print_report, write_page

    page = None if output is None else check_ending(output, ".html")
    file = None if json is None else check_ending(json, ".json")
    settle = None if adjudicate is None else check_ending(adjudicate, ".json")
    read = [read_judgments(path) for path in judgments]
    found = compared(read)
    record = found.record()
    print_report([record])
    for warning in record.warnings:
        typer.echo(warning)
    if page is not None:
        typer.echo(f"Written: {write_page(page, [record])}")
    if file is not None:
        typer.echo(f"Written: {record.save(file)}")
    if settle is not None:
        n = len(found.disagreements())
        typer.echo(f"Written: {found.adjudication(read).save(settle)}, {n} criteria to settle")


@app.command("link")
def link(
    claims: Annotated[Path, typer.Argument(help="Claims, .yaml or .json.")],
    runs: Annotated[Path, typer.Option("--runs", help="Folder of runs, with their records.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Judgments to write, .json.")
    ] = Path("judgments.json"),
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Model of the records, if the claim is about another.",
        ),
    ] = "",
) -> None:
    """Judge claims by the records of runs: statuses by rules, and what is not tested yet."""
    from mechassay.claims.claim import read_claims
    from mechassay.claims.dossier import link as linked
    from mechassay.claims.judgments import read_judgments
    from mechassay.claims.scored import score_judgments
    from mechassay.files import check_ending
    from mechassay.report.reports import print_report

    file = check_ending(output, ".json")
    before = read_judgments(file) if file.is_file() else None
    found = linked(read_claims(claims), runs, model=model, before=before)
    print_report(score_judgments(found, runs=runs).records())
    typer.echo(f"Written: {found.save(file)}")
