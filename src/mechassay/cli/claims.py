"""`mechassay claims` and `mechassay assay`: claims judged by readers, by models and by records.

`claims` has commands for texts of papers, forms, judges, scores, raters compared, records and
votes; `assay` goes from a claim to a verdict in one command.
"""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechassay.cli.command import HOW, DeviceOption, DtypeOption, command, seed_option
from mechassay.judges.options import AssessOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from mechassay.claims.document import PagedDocument
    from mechassay.claims.judgments import Judgments
    from mechassay.judges.objections import Objections
    from mechassay.results.records import Record


app = typer.Typer(help="Judge claims about mechanisms.", no_args_is_help=True)
app.command("assess")(command(AssessOptions, arguments=("source",)))

PAPER = "an arXiv or OpenReview id, an address, or a file (.pdf, .html, .md, .txt)"
DocumentsOption = Annotated[
    list[str] | None,
    typer.Option("--document", "-d", help=f"Document that quotes are from: {PAPER}."),
]
PagesOption = Annotated[
    int | None, typer.Option("--pages", min=1, help="Pages of a PDF to read; all by default.")
]
ExtractorOption = Annotated[
    str, typer.Option("--extractor", help="What reads PDFs: pdfium, or paper (pypdf, 50 pages).")
]
TitleOption = Annotated[
    str, typer.Option("--title", help="Title that the paper should have, against wrong ids.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Go on with another title.")]
LocalOption = Annotated[
    bool, typer.Option("--local", help="Allow addresses of this machine and its network.")
]
AgainOption = Annotated[bool, typer.Option("--again", help="Download what is in the cache again.")]


def read_paper(named: str, **options: Any) -> PagedDocument:
    """A document; what is to be known of it goes to standard error."""
    from mechassay.documents.download import Web
    from mechassay.documents.reading import check_title, read_document

    force = options.pop("force", False)
    web = Web(local=options.pop("local", False), again=options.pop("again", False))
    document = read_document(named, options.pop("pages", None), web=web, **options)
    if not force:
        check_title(document)
    for warning in document.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return document


@app.command("text")
def text(
    source: Annotated[str, typer.Argument(help=f"A paper: {PAPER}.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, .json.")
    ] = None,
    quote: Annotated[
        list[str] | None, typer.Option("--quote", help="Words to look for in it.")
    ] = None,
    pages: PagesOption = None,
    extractor: ExtractorOption = "pdfium",
    title: TitleOption = "",
    force: ForceOption = False,
    local: LocalOption = False,
    again: AgainOption = False,
) -> None:
    """Show what a judge reads of a paper, what was cut from it, and where quotes are."""
    from mechassay.claims.evidence import find_quote, nearest_passage
    from mechassay.utils.files import check_ending, write_text

    file = None if output is None else check_ending(output, ".json")
    document = read_paper(
        source,
        pages=pages,
        extractor=extractor,
        title=title,
        force=force,
        local=local,
        again=again,
    )
    for words in quote or ():
        passage = find_quote(document, words)
        where = f"{passage.match}, page {passage.page}" + ", in an order" * passage.flagged
        if passage.match == "none":
            near = nearest_passage(document, words)
            nearest = (
                near and f"nearest, page {near.page}, {near.likeness:.0f} % alike: {near.text}"
            )
            where = f"not found; {nearest}" if nearest else "not found"
        typer.echo(f"{words!r}: {where}")
    if file is not None:
        plain = dumps(document.to_json(), indent=1, ensure_ascii=False)
        typer.echo(f"Written: {write_text(file, plain + chr(10))}")
    elif not quote:
        for number, page in enumerate(document.pages, start=1):
            typer.echo(f"[page {number} of {document.n_pages}]\n{page}\n")


@app.command("form")
def form(
    source: Annotated[
        str,
        typer.Argument(
            help=f"Claims (.yaml, .json), judgments to go on with (.json), or a paper: {PAPER}."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Form to write, .html.")],
    document: DocumentsOption = None,
    pages: PagesOption = None,
    extractor: ExtractorOption = "pdfium",
    title: TitleOption = "",
    force: ForceOption = False,
    local: LocalOption = False,
) -> None:
    """Write a form for judging claims: one page that works without a server."""
    from mechassay.claims.claim import ENDINGS, claims_of, read_plain
    from mechassay.claims.judgments import judgments_of
    from mechassay.claims.pages import write_form
    from mechassay.utils.files import check_ending

    page = check_ending(output, ".html")
    paper = Path(source).suffix not in ENDINGS
    names = [*([source] if paper else []), *(document or ())]
    plain = None if paper else read_plain(Path(source))
    judged = isinstance(plain, dict) and "rater" in plain
    claims = None if paper or judged else claims_of(plain, source)
    initial = judgments_of(plain, source) if judged else None
    # A title is that of the paper, or of the only document.
    titles = {names[0]: title} if names and (paper or len(names) == 1) else {}
    documents = [
        read_paper(
            name,
            pages=pages,
            extractor=extractor,
            title=titles.get(name, ""),
            force=force,
            local=local,
        )
        for name in names
    ]
    typer.echo(f"Written: {write_form(page, claims, documents, initial)}")


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
    local: LocalOption = False,
) -> None:
    """Score judgments: as they are, with quotes that exist, and with what they support."""
    from mechassay.claims.evidence import score_judgments
    from mechassay.claims.judgments import read_judgments
    from mechassay.results.page import Report
    from mechassay.results.report import print_report, write_page
    from mechassay.utils.files import check_ending

    page = None if output is None else check_ending(output, ".html")
    file = None if json is None else check_ending(json, ".json")
    documents = [read_paper(name, force=True, local=local) for name in document or ()]
    score = score_judgments(read_judgments(judgments), documents, runs)
    records = score.records()
    run = Report(records)
    print_report(run)
    source = score.source
    typer.echo(
        f"Score of the paper: {_score_text(source.cvs, source.gated_tier)}, of {source.system}"
        f" ({source.why}); highest {_score_text(source.highest)},"
        f" median {_score_text(source.median)}"
    )
    exists, supported = score.source_quote_exists, score.source_supported
    typer.echo(f"Supported: {_score_text(supported.cvs, supported.gated_tier)}")
    typer.echo(
        f"Quotes exist for: {_score_text(exists.cvs, exists.gated_tier)}, whatever they are about"
    )
    for warning in dict.fromkeys(text for record in records for text in record.warnings):
        typer.echo(f"warning: {warning}", err=True)
    if page is not None:
        typer.echo(f"Written: {write_page(page, run)}")
    if file is not None:
        typer.echo(f"Written: {records[0].save(file)}")


def _score_text(value: float, tier: str = "") -> str:
    text = "none" if value != value else f"{value:.1f}"
    return f"{text}, {tier}" if tier else text


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
    from mechassay.results.page import Report
    from mechassay.results.report import print_report, write_page
    from mechassay.utils.files import check_ending

    page = None if output is None else check_ending(output, ".html")
    file = None if json is None else check_ending(json, ".json")
    settle = None if adjudicate is None else check_ending(adjudicate, ".json")
    read = [read_judgments(path) for path in judgments]
    comparison = compared(read)
    record = comparison.record()
    run = Report([record])
    print_report(run)
    for warning in record.warnings:
        typer.echo(warning)
    if page is not None:
        typer.echo(f"Written: {write_page(page, run)}")
    if file is not None:
        typer.echo(f"Written: {record.save(file)}")
    if settle is not None:
        n = len(comparison.disagreements())
        typer.echo(f"Written: {comparison.adjudication(read).save(settle)}, {n} criteria to settle")


PageOption = Annotated[Path | None, typer.Option("--page", help="Page to write, .html.")]
AuditorOption = Annotated[
    Path | None,
    typer.Option("--auditor", help="Judgments that object, NO with a reason, instead of the rule."),
]
AdvocateOption = Annotated[
    Path | None, typer.Option("--advocate", help="Judgments that argue against these.")
]
CalibrationOption = Annotated[
    str,
    typer.Option(
        "--calibration",
        help="What is followed of an advocate: conservative (NO, not on the system claim),"
        " aggressive (all).",
    ),
]
SpareOption = Annotated[
    str,
    typer.Option(
        "--spare",
        help="Claims that the audit leaves alone: the system claim, or those that the paper does"
        " (system, paper).",
    ),
]
JudgeOption = Annotated[
    str,
    typer.Option("--judge", help="Who objects: scripted:FILE, replay:FOLDER, openai:MODEL@URL."),
]
AnswersOption = Annotated[
    Path | None,
    typer.Option("--answers", help="Folder that keeps answers; `answers` beside the output."),
]
LikeOption = Annotated[
    float, typer.Option("--like", help="Least similarity of claims that are one, 0 to 1.")
]


@app.command("vote")
def vote(
    runs: Annotated[list[Path], typer.Argument(help="Judgments of two runs or more, one source.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Judgments to write, .json.")],
    claims: Annotated[
        Path | None, typer.Option("--claims", help="Claims that lead the matching, .yaml or .json.")
    ] = None,
    like: LikeOption = 0.6,
    support: Annotated[
        int, typer.Option("--support", min=1, help="Runs that have to make a claim.")
    ] = 1,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="What several statuses make: minimum; mean, median or majority for a consensus.",
        ),
    ] = "minimum",
    audited: Annotated[
        bool, typer.Option("--audit/--no-audit", help="Whether a leak audit follows.")
    ] = True,
    auditor: AuditorOption = None,
    spare: SpareOption = "system",
    advocate: AdvocateOption = None,
    calibration: CalibrationOption = "conservative",
    page: PageOption = None,
) -> None:
    """Make one file of several runs: match claims, take the least status, audit, then score."""
    from mechassay.claims.claim import read_claims
    from mechassay.claims.judgments import read_judgments
    from mechassay.errors import one_of
    from mechassay.judges.debiasing import CALIBRATIONS, debias
    from mechassay.judges.leak_audit import SPARES
    from mechassay.judges.voting import AGGREGATES
    from mechassay.utils.files import check_ending

    file = check_ending(output, ".json")
    html = None if page is None else check_ending(page, ".html")
    debiased = debias(
        [read_judgments(path) for path in runs],
        None if claims is None else read_claims(claims),
        like=like,
        support=support,
        by=one_of("aggregate", by, AGGREGATES),
        audited=audited,
        auditor=None if auditor is None else read_judgments(auditor),
        spare=one_of("choice of claims to spare", spare, SPARES),
        advocate=None if advocate is None else read_judgments(advocate),
        calibration=one_of("calibration of an advocate", calibration, CALIBRATIONS),
    )
    _tell_steps(debiased, file, html)


@app.command("audit")
def audit(
    judgments: Annotated[Path, typer.Argument(help="Judgments, voted on or not, .json or .yaml.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Judgments to write, .json.")
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option("--request", help="What an auditor is shown, .json: claims and evidence."),
    ] = None,
    auditor: AuditorOption = None,
    spare: SpareOption = "system",
    advocate: AdvocateOption = None,
    calibration: CalibrationOption = "conservative",
    judge: JudgeOption = "",
    answers: AnswersOption = None,
    page: PageOption = None,
) -> None:
    """Lower what rests on evidence of the whole system; then what an advocate argues against.

    A language model audits where --judge names one, else --auditor, else a rule.
    """
    from functools import partial
    from json import dumps

    from mechassay.claims.judgments import read_judgments
    from mechassay.errors import BadUsage, one_of
    from mechassay.judges.debiasing import CALIBRATIONS, challenge
    from mechassay.judges.leak_audit import SPARES, audit_request
    from mechassay.judges.leak_audit import audit as audited
    from mechassay.judges.objections import ask_auditor
    from mechassay.utils.files import check_ending, write_text

    if output is None and request is None:
        raise BadUsage(
            "An audit writes judgments (--output), or what an auditor needs (--request)."
        )
    if judge and auditor is not None:
        raise BadUsage("An audit is by a --judge or by the judgments of an --auditor, not by both.")
    chosen = one_of("choice of claims to spare", spare, SPARES)
    how = one_of("calibration of an advocate", calibration, CALIBRATIONS)
    asked = None if request is None else check_ending(request, ".json")
    file = None if output is None else check_ending(output, ".json")
    html = None if page is None else check_ending(page, ".html")
    read = read_judgments(judgments)
    if asked is not None:
        text = dumps(audit_request(read, spare=chosen), indent=1, ensure_ascii=False) + "\n"
        typer.echo(f"Written: {write_text(asked, text)}")
    if file is not None:
        own = None if auditor is None else read_judgments(auditor)
        if judge:
            own = _objections(
                partial(ask_auditor, read, spare=chosen), judge, answers, file, "auditor"
            )
        audit = audited(read, own, spare=chosen)
        if advocate is not None:
            audit = challenge(audit, read_judgments(advocate), how)
        _tell_steps(audit, file, html)


@app.command("advocate")
def advocate(
    judgments: Annotated[Path, typer.Argument(help="Judgments, audited or not, .json or .yaml.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Judgments to write, .json.")],
    judge: JudgeOption,
    calibration: CalibrationOption = "conservative",
    answers: AnswersOption = None,
    page: PageOption = None,
) -> None:
    """Let a language model argue against judgments, as devil's advocate without the document."""
    from functools import partial

    from mechassay.claims.judgments import read_judgments
    from mechassay.errors import one_of
    from mechassay.judges.debiasing import CALIBRATIONS, challenge
    from mechassay.judges.objections import ask_advocate
    from mechassay.utils.files import check_ending

    how = one_of("calibration of an advocate", calibration, CALIBRATIONS)
    file = check_ending(output, ".json")
    html = None if page is None else check_ending(page, ".html")
    read = read_judgments(judgments)
    ask = partial(ask_advocate, read, calibration=how)
    _tell_steps(
        challenge(read, _objections(ask, judge, answers, file, "advocate"), how), file, html
    )


def _objections(
    ask: Callable[..., Objections], judge: str, answers: Path | None, file: Path, who: str
) -> Judgments:
    """What a language model objects, which is written beside the judgments."""
    from mechassay.judges.judge import load_judge
    from mechassay.utils.display import BAR, counted

    objections = ask(judge=load_judge(judge), kept=answers or file.parent / "answers", progress=BAR)
    spent = sum(exchange.answer is not None for exchange in objections.exchanges)
    typer.echo(
        f"{objections.judgments.rater.id}: {counted(objections.n_objections, 'objection')} in"
        f" {counted(spent, 'answer')}"
    )
    beside = file.with_name(f"{file.stem}-{who}.json")
    typer.echo(f"Written: {objections.judgments.save(beside)}")
    return objections.judgments


@app.command("prompt")
def prompt(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, .yaml.")
    ] = None,
) -> None:
    """Show what a judge is told, or write it to a file to change: `claims assess --prompt FILE`."""
    from mechassay.judges.assessment import prompt_text
    from mechassay.utils.files import check_ending, write_text

    if output is None:
        typer.echo(prompt_text())
    else:
        typer.echo(f"Written: {write_text(check_ending(output, '.yaml'), prompt_text())}")


@app.command("judges")
def judges(
    folders: Annotated[list[Path], typer.Argument(help="Folders of `mechassay claims assess`.")],
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            "-r",
            help="The tier that papers should have: its name, labels (.yaml, .json), tower-2026.",
        ),
    ] = "",
    by: Annotated[
        str, typer.Option("--by", help="The consensus: minimum, mean, median or majority.")
    ] = "majority",
    consensus: Annotated[
        Path | None, typer.Option("--consensus", help="Judgments of the consensus to write, .json.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Page to write, .html.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Record to write, .json.")] = None,
) -> None:
    """Put judges, efforts, prompts or papers beside each other: claims, score, tier, cost."""
    from mechassay.errors import BadUsage, one_of
    from mechassay.judges.judges_compared import (
        CONSENSUS,
        JudgesCompared,
        read_judged_run,
    )
    from mechassay.judges.reference_labels import PUBLISHED, read_labels
    from mechassay.judges.voting import AGGREGATES
    from mechassay.utils.files import check_ending

    how = one_of("aggregate", by, AGGREGATES)
    together = None if consensus is None else check_ending(consensus, ".json")
    is_file = reference == PUBLISHED or Path(reference).suffix != ""
    known = read_labels(reference) if is_file else reference
    compared = JudgesCompared.of([read_judged_run(folder) for folder in folders], known, how)
    if together is not None:
        made = [own.judgments for own in compared.judged if own.judge == CONSENSUS]
        if len(made) != 1 or made[0] is None:
            raise BadUsage(f"A consensus is of judges of one paper; got {len(made)} such papers.")
        typer.echo(f"Written: {made[0].save(together)}")
    _tell_record(compared.record(), output, json)


@app.command("registry")
def registry(
    judgments: Annotated[
        list[Path], typer.Argument(help="Judgments of papers, a file each; its name is the paper.")
    ],
    like: Annotated[
        float, typer.Option("--like", help="Least similarity of claims on one circuit, 0 to 1.")
    ] = 0.5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Page to write, .html.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Record to write, .json.")] = None,
) -> None:
    """Collect judgments by circuit over papers: agreements, and contradictions."""
    from mechassay.claims.judgments import read_judgments
    from mechassay.errors import BadUsage
    from mechassay.judges.registry import CircuitRegistry

    names = [_paper_name(path) for path in judgments]
    for name in names:
        if names.count(name) > 1:
            raise BadUsage(f"Two files of judgments are of the paper {name!r}.")
    judged = {name: read_judgments(path) for name, path in zip(names, judgments, strict=True)}
    _tell_record(CircuitRegistry.of(judged, like).record(), output, json)


def _paper_name(path: Path) -> str:
    """The name of a file of judgments; below a run's folder the folder's."""
    return path.parent.parent.name if path.parent.name == "judgments" else path.stem


def _tell_record(record: Record, output: Path | None, json: Path | None) -> None:
    """Print a record's tables, and write its page and itself."""
    from mechassay.results.page import Report
    from mechassay.results.report import print_report, write_page
    from mechassay.utils.files import check_ending

    page = None if output is None else check_ending(output, ".html")
    file = None if json is None else check_ending(json, ".json")
    run = Report([record])
    print_report(run)
    for warning in record.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if page is not None:
        typer.echo(f"Written: {write_page(page, run)}")
    if file is not None:
        typer.echo(f"Written: {record.save(file)}")


def _tell_steps(judgments: Judgments, file: Path, page: Path | None) -> None:
    """Print and write what steps made of judgments, and their score."""
    from mechassay.claims.evidence import score_judgments
    from mechassay.judges.debiasing import debiasing_record
    from mechassay.results.page import Report
    from mechassay.results.report import print_report, write_page

    record = debiasing_record(judgments)
    run = Report([record])
    print_report(run)
    for warning in record.warnings:
        typer.echo(f"warning: {warning}", err=True)
    source = score_judgments(judgments).source
    typer.echo(
        f"Score of the paper: {_score_text(source.cvs, source.gated_tier)}, of {source.system}"
        f" ({source.why}); highest {_score_text(source.highest)},"
        f" median {_score_text(source.median)}"
    )
    if page is not None:
        typer.echo(f"Written: {write_page(page, run)}")
    typer.echo(f"Written: {judgments.save(file)}")


@app.command("evaluate")
def evaluate(
    judgments: Annotated[
        list[Path] | None,
        typer.Argument(help="Judgments, a file a paper; its name is that of the paper's label."),
    ] = None,
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            "-r",
            help="Labels, .yaml or .json; judgments that are the reference; or tower-2026.",
        ),
    ] = "",
    paper: Annotated[
        bool,
        typer.Option("--paper", help="The evaluation that Tower (2026) prints, computed again."),
    ] = False,
    like: LikeOption = 0.6,
    shift: Annotated[
        float, typer.Option("--shift", help="By how much boundaries of tiers are moved.")
    ] = 0.5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Page to write, .html.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Record to write, .json.")] = None,
) -> None:
    """Evaluate judgments against reference labels, beside judges that know nothing."""
    from mechassay.claims.judgments import read_judgments
    from mechassay.errors import BadUsage
    from mechassay.judges.published import published_evaluation
    from mechassay.judges.reference_labels import evaluate as evaluated
    from mechassay.judges.reference_labels import read_labels
    from mechassay.results.page import Report
    from mechassay.results.report import print_report, write_page
    from mechassay.utils.files import check_ending

    page = None if output is None else check_ending(output, ".html")
    file = None if json is None else check_ending(json, ".json")
    if paper == bool(judgments) or paper == bool(reference):
        raise BadUsage("An evaluation takes judgments and their --reference, or --paper alone.")
    if paper:
        evaluation = published_evaluation()
    else:
        read: dict[str, Judgments] = {}
        for path in judgments or ():
            if path.stem in read:
                raise BadUsage(f"Two files of judgments are of the paper {path.stem!r}.")
            read[path.stem] = read_judgments(path)
        evaluation = evaluated(read, read_labels(reference), like=like, shift=shift)
    record = evaluation.record()
    run = Report([record])
    print_report(run)
    for warning in record.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if page is not None:
        typer.echo(f"Written: {write_page(page, run)}")
    if file is not None:
        typer.echo(f"Written: {record.save(file)}")


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
    from mechassay.claims.evidence import score_judgments
    from mechassay.claims.judgments import read_judgments
    from mechassay.results.page import Report
    from mechassay.results.report import print_report
    from mechassay.utils.files import check_ending

    file = check_ending(output, ".json")
    before = read_judgments(file) if file.is_file() else None
    links = linked(read_claims(claims), runs, model=model, before=before)
    print_report(Report(score_judgments(links, runs=runs).records()))
    typer.echo(f"Written: {links.save(file)}")


MODEL_HELP = "Model to run, if not the claims' own; the judgments are then of another model."


def assay(
    claims: Annotated[Path, typer.Argument(help="Claims, .yaml or .json.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for results. Default: a folder below runs, which the same command resumes"
            " until a model, a task or a file changes.",
        ),
    ] = None,
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
    ] = 72,
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
    transfer: Annotated[
        bool,
        typer.Option(
            "--transfer",
            rich_help_panel=HOW,
            help="Assay a circuit that was found in another model; the headline names both.",
        ),
    ] = False,
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
    from mechassay.claims.assay import Assay
    from mechassay.claims.assay_steps import AssaySettings
    from mechassay.claims.claim import read_claims
    from mechassay.claims.judgments import read_judgments
    from mechassay.claims.pages import verdict_line
    from mechassay.models.model import check_device
    from mechassay.results.page import Report
    from mechassay.results.report import print_report

    read = None if judgments is None else read_judgments(judgments)
    check_device(device)
    settings = AssaySettings(
        limit, train_limit, grid, left_out, other_method, transfer, dtype, seed
    )
    asked, about = read_claims(claims), {"model": model, "device": device}
    if output is None:
        load = not dry_run
        plan, note = Assay.resumed(asked, claims.stem, settings, load=load, **about)
        notes = [*filter(None, [note]), *plan.notes]
    else:
        plan = Assay(asked, output, settings, model=model, device=device)
        changes = plan.changes(load=False) if dry_run else []
        notes = [*changes, *plan.notes]
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if dry_run:
        _show_plan(plan)
        return
    documents = [read_paper(name, force=True) for name in document or ()]
    assayed = plan.run(read, say=lambda text: typer.echo(text, err=True), documents=documents)
    report = Report(assayed.records)
    for text in report.transfers:
        typer.echo(text)
    print_report(report)
    for name, predicted in assayed.predictions.items():
        for prediction in predicted:
            measured = f" ({prediction.measured})" if prediction.measured else ""
            where = f", in {model}" if assayed.scope == "other model" else ""
            typer.echo(
                f"{name} predicts {prediction.prediction}{where}: {prediction.outcome}{measured}"
            )
    for record in assayed.records:
        typer.echo(f"{record.cell['claim']}: {verdict_line(record)}")
        if record.has_table("alternative"):
            for row in record.table("alternative").rows():
                typer.echo(f"{record.cell['claim']}, beside its alternative: {row['says']}")
    files = (plan.folder / "judgments.json", plan.folder / "score.json")
    for path in (*files, assayed.page, assayed.form):
        typer.echo(f"Written: {path}")
    for folder, reason in assayed.failed.items():
        typer.echo(f"mechassay: NOT TESTED, {folder}: {reason}", err=True)
    if assayed.failed and not assayed.records:
        raise typer.Exit(1)


def _show_plan(plan: object) -> None:
    from mechassay.claims.assay import Assay
    from mechassay.results.console import print_tables, standard_output
    from mechassay.results.page import TextTable

    assert isinstance(plan, Assay)
    forward_seconds = plan.seconds_per_forward()
    rows = [
        (
            step.name,
            " ".join(step.criteria),
            "done" if step.is_done else f"{step.forwards:,.0f}",
            "" if step.is_done else f"{step.forwards * forward_seconds / 60:.1f}",
        )
        for step in plan.steps
    ]
    headings = ("step", "evidence for", "runs of a pair", "minutes, about")
    print_tables([TextTable.of("Plan", headings, rows, words=True)], standard_output())
    left = sum(step.forwards for step in plan.steps if not step.is_done)
    for step in plan.steps:
        typer.echo(f"{step.name}: {step.command}")
    typer.echo(f"About {left:,.0f} runs of a pair, {left * forward_seconds / 60:.0f} minutes here.")
