"""Pages of judged claims and of raters compared, and the form for judging claims.

The page of judged claims has scores, tiers, every criterion with its evidence, and what would
lift the score. It states the score as judged, and beside it the one that is supported and the one
for which quotes exist. It names the criteria that no rule of the score uses, and that a score is a
triage, not a verdict.

The page of raters compared has disagreements first, then the statistics of agreement, then every
table.

The form is one static page with criteria, guidance, pages and a quote picker. It runs one script
of ours, by its hash, and loads nothing. It keeps what is typed in the browser and writes
`judgments.json`, which `claims score` and `claims compare` read.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from markupsafe import Markup

from mechassay.claims.claim import ClaimFile
from mechassay.claims.document import PagedDocument
from mechassay.claims.judgments import Judgments
from mechassay.claims.rubric import (
    RUBRIC,
    STATUSES,
    ClaimScore,
    Rubric,
    Status,
    claim_score,
    load_rubric,
    tier_of,
    without_reader,
)
from mechassay.errors import BadUsage
from mechassay.results.page import (
    NOTHING,
    Block,
    Column,
    Fold,
    Notice,
    Page,
    Report,
    Row,
    Section,
    Text,
    TextTable,
    templates,
)
from mechassay.results.records import Record, Scalar
from mechassay.results.sections import framed, meanings
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.utils.display import interval, number, share, shortened
from mechassay.utils.files import check_ending, write_text

MOST_QUOTED = 120
"""Letters of a statement that a headline quotes."""
READING = {
    "CVS": "Claim Validity Score (Tower 2026), from 0 to 10: dimensions of 0 to 3, weighted.",
    "Tier, gated tier": (
        "The name of the score's range; and the highest that caps allow if a dimension is 0 or 1."
        " Caps are this package's, not the paper's."
    ),
    "Quote exists": (
        "A YES or PARTIAL counts as NO if no quote of it is in the document, and no record is as it"
        " was. That says nothing of what the quote is about."
    ),
    "Supported": (
        "A YES or PARTIAL counts as NO, too, if no quote of it can be about the criterion, if the"
        " passage is counted for another criterion, or if the document says the contrary. Rules"
        " look for words; whether a quote shows what it is quoted for is a reader's to say."
    ),
    "Highest": "The score if everything that was not tested were YES.",
}


class ClaimsPage(Page):
    """Claims as one rater judged them."""

    def title(self, report: Report) -> str:
        names = dict.fromkeys(record.cell.get("rater", "") for record in report.records)
        n = len(report.records)
        return f"{n} {'claim' if n == 1 else 'claims'}, judged by {', '.join(names) or 'nobody'}"

    def tables(self, report: Report) -> list[TextTable]:
        single = len(report.records) == 1
        return [_scores(report.records), *([_criteria(report.records[0])] if single else [])]

    def sections(self, report: Report) -> list[Section]:
        """The verdict, all scores, and every claim with its criteria."""
        records = report.records
        if not records:
            return framed(report, [], [])
        blocks: list[Block] = [
            *(
                Text(verdict_line(record), "verdict", f"{record.cell['claim']}:")
                for record in records
            ),
            *_beside(records),
            *_beyond(records),
            Text(
                "A score is a triage, not a verdict: read the criteria. No rule of the score uses"
                f" {', '.join(rubric_of(records[0]).unused)}.",
                "soft",
            ),
        ]
        known = {"CVS", "CVS, quote exists", "CVS, supported", "CVS, lenient", "CVS, highest"}
        asks = {name: text for name, text in meanings(records).items() if name not in known}
        return framed(
            report,
            blocks,
            [
                Section("Scores", (_scores(records), *_of_one_tier(records))),
                *(_claim(record) for record in records),
            ],
            wrong=[*lost_quotes(records), *denied(records)],
            reading={**READING, **asks},
            values=[],
        )


def lost_quotes(records: Sequence[Record]) -> list[Block]:
    """Quotes that are not in their document, or only where it gives a reader orders."""
    titles = {
        "not found": "These quotes are not in their document; what rests on them alone is"
        " unsupported.",
        "flagged": "These quotes are from passages that give a reader orders; what rests on them"
        " alone is unsupported.",
        "too short": "These quotes are too short to show anything; what rests on them alone is"
        " unsupported.",
    }
    blocks: list[Block] = []
    for state, title in titles.items():
        lines = [
            (f"{record.cell['claim']}, {row['criterion']}: “{row['text']}”", "")
            for record in records
            for row in record.table("evidence").rows()
            if row["state"] == state
        ]
        blocks += [Notice(title, tuple(lines), "broken")] if lines else []
    return blocks


def denied(records: Sequence[Record]) -> list[Block]:
    """Statuses that a sentence of the document contradicts."""
    lines = [
        (f"{record.cell['claim']}, {code} {statuses_of(record)[code]}: “{row['text']}”", "")
        for record in records
        if record.has_table("limitations")
        for row in record.table("limitations").rows()
        for code in filter(None, str(row["contradicts"]).split(", "))
    ]
    title = "The document denies what was judged of these; its quotes do not support that."
    return [Notice(title, tuple(lines), "broken")] if lines else []


def rubric_of(record: Record) -> Rubric:
    """The rubric that a claim was judged by."""
    spec = record.specs["rubric"]
    return load_rubric(f"{spec.name}@{spec.version}")


def statuses_of(record: Record, column: str = "status") -> dict[str, Status]:
    """The status of each criterion: as judged, "quote_exists", or "supported"."""
    criteria = record.table("criteria").columns
    pairs = zip(criteria["criterion"], criteria[column], strict=True)
    return {str(code): cast("Status", status) for code, status in pairs}


def supported_tier(record: Record) -> str:
    """The gated tier of what is supported of a claim; "" without a score."""
    return _score(record, "supported").gated_tier


def _score(record: Record, column: str = "status") -> ClaimScore:
    return claim_score(rubric_of(record), statuses_of(record, column))


def verdict_line(record: Record) -> str:
    """What is said of a claim in one line: predictions, what fails, the score and its range."""
    rubric, score = rubric_of(record), _score(record)
    whole = record.specs["method"].args.get("is_whole")
    lead = f"{'The circuit is the whole model. ' if whole else ''}{_predicted(record)}"
    if not score.n_judged:
        return f"{lead}Nothing else of it was judged: it has no score."
    statuses = statuses_of(record)
    failed = [
        rubric.criterion(code).name.lower() for code, status in statuses.items() if status == "NO"
    ]
    sentence = f"NO on {len(failed) or 'none'} of {len(statuses)}"
    sentence += f": {', '.join(failed)}" if failed else ""
    open_ones = score.counts["NOT TESTED"] + score.counts["NA"]
    sentence += f"; {open_ones} not tested." if open_ones else "."
    parts = (sentence, _scored(record)) if is_executed(record) else (_scored(record), sentence)
    return f"{lead}{' '.join(parts)}"


def _predicted(record: Record) -> str:
    """What became of the predictions; "" where the claim was not assayed."""
    if not record.has_table("predictions"):
        return ""
    rows = record.table("predictions").rows()
    failed = [
        f"{row['prediction']} (measured {row['found']})"
        for row in rows
        if row["outcome"] == "fails"
    ]
    if failed:
        return f"REFUTED by its own prediction: {'; '.join(failed)}. "
    if not rows:
        return "It predicts nothing. "
    held = sum(row["outcome"] == "holds" for row in rows)
    idle = sum(row["could_fail"] is False for row in rows)
    chance = f", {idle} of them for random circuits too" if idle else ""
    if held == len(rows):
        which = {1: "Its prediction holds", 2: "Both predictions hold"}
        return f"{which.get(held, f'All {held} predictions hold')}{chance}. "
    return f"{held} of {len(rows)} predictions hold, none fails{chance}. "


def _scored(record: Record) -> str:
    """The score, its range, the tier, and what was not read."""
    rubric, score = rubric_of(record), _score(record)
    ends = [claim_score(rubric, statuses_of(record, column)) for column in ("at_worst", "at_best")]
    low, high = (f"{end.cvs:.1f}" for end in ends)
    within = f" ({low} to {high})" if low != high else ""
    groups = record.measure("groups")
    if groups is not None and groups.value < FEW_GROUPS:
        tier = (
            f"no tier, as {groups.value:.0f} independent groups of pairs are fewer than"
            f" {FEW_GROUPS}"
        )
    elif unable := str(record.specs["method"].args.get("unable", "")):
        tier = f"no tier. {unable.rstrip('.')}"
    else:
        cuts = f" (by the paper's cuts {score.tier})" if score.tier != score.gated_tier else ""
        held = f"{cuts}, held there as {'; '.join(score.because)}" if score.because else cuts
        tiers = list(dict.fromkeys(end.gated_tier for end in ends))
        crosses = f" (the range crosses from {' to '.join(tiers)})" if len(tiers) > 1 else ""
        tier = f"{score.gated_tier}{held}{crosses}"
    if is_executed(record):
        statement = shortened(str(record.specs["method"].args["statement"]), MOST_QUOTED)
        unread = (
            f"; at most {without_reader(rubric):.1f} without a reader. Whether “{statement}” says"
            " what was tested was not checked."
            if statuses_of(record).get("V5", "") == "NOT TESTED"
            else "."
        )
        head = f"Score of the test {score.cvs:.1f}{within}: {tier}{unread}"
    else:
        head = (
            f"As judged: {score.cvs:.1f}{within}; whether a quote states a result of this paper was"
            " not checked."
        )
    exists, supported = _score(record, "quote_exists"), _score(record, "supported")
    if supported.cvs == score.cvs:
        return head
    given, left = (
        sum(own.counts[status] for status in ("YES", "PARTIAL")) for own in (score, supported)
    )
    lost = f": of {given} YES and PARTIAL, quotes support {left}" if left < given else ""
    sentence = f"{head} Supported: {_one(supported.cvs)}{lost}."
    if exists.cvs != supported.cvs:
        sentence += f" Quotes exist for {_one(exists.cvs)}, whatever they are about."
    return sentence


def is_executed(record: Record) -> bool:
    """Whether statuses follow from measurements, and not from a reader or a judge."""
    return record.specs["rater"].args.get("kind") == "execution"


def _of_one_tier(records: Sequence[Record]) -> list[Block]:
    """Which criteria tell claims apart that end in one tier."""
    tiers: dict[str, list[Record]] = {}
    for record in records:
        if _score(record).n_judged:
            tiers.setdefault(_score(record).gated_tier, []).append(record)
    blocks: list[Block] = []
    for tier, group in tiers.items():
        if len(group) < 2:
            continue
        names, statuses = [record.cell["claim"] for record in group], list(map(statuses_of, group))
        rubric = rubric_of(group[0])
        rows = [
            (
                f"{criterion.name} ({criterion.code})",
                *(status[criterion.code] for status in statuses),
            )
            for criterion in rubric.criteria
            if len({status[criterion.code] for status in statuses}) > 1
        ]
        if rows:
            title = f"Claims that end as {tier}: the criteria that differ"
            blocks.append(TextTable.of(title, ("criterion", *names), rows, words=True))
        else:
            blocks.append(
                Text(
                    f"{', '.join(names)} end as {tier}, and no criterion differs: nothing that was"
                    " run tells them apart."
                )
            )
    return blocks


def _beside(records: Sequence[Record]) -> list[Block]:
    """What each claim's circuit does beside the alternative that it names."""
    return [
        Text(str(row["says"]), lead=f"{record.cell['claim']}, beside its alternative:")
        for record in records
        if record.has_table("alternative")
        for row in record.table("alternative").rows()
    ]


def _beyond(records: Sequence[Record]) -> list[Block]:
    """Words of the statements that nothing here supports."""
    lines = [
        (f"{record.cell['claim']}: “{row['words']}”: {row['why']}", "")
        for record in records
        if record.has_table("beyond")
        for row in record.table("beyond").rows()
    ]
    return [Notice("Nothing here supports these words.", tuple(lines))] if lines else []


def _scores(records: Sequence[Record]) -> TextTable:
    rubric = rubric_of(records[0])
    headings = [Column("claim", numeric=False), Column("CVS")]
    headings += [Column("quote exists"), Column("supported")]
    headings += [Column("lenient", optional=2), Column("highest", optional=3)]
    headings += [Column("tier", numeric=False), Column("gated tier", numeric=False)]
    headings += [Column("supported tier", numeric=False)]
    headings += [Column(dimension.code, optional=4) for dimension in rubric.dimensions]
    headings += [Column("not tested", optional=1)]
    rows: list[Row] = []
    for record in records:
        score = _score(record)
        rows.append(
            Row(
                (
                    record.cell["claim"],
                    *(_one(record.value(key)) for key in CVS),
                    tier_of(rubric, score.cvs) or NOTHING,
                    score.gated_tier or NOTHING,
                    supported_tier(record) or NOTHING,
                    *(str(score.dimensions[dimension.code]) for dimension in rubric.dimensions),
                    str(score.counts["NOT TESTED"] + score.counts["NA"]),
                )
            )
        )
    dimensions = ", ".join(
        f"{dimension.code} {dimension.name.lower()}" for dimension in rubric.dimensions
    )
    caption = f"Dimensions from 0 to 3: {dimensions}. The paper's score is that of the first claim."
    return TextTable("Scores", tuple(headings), tuple(rows), caption)


ORDER = ("NO", "PARTIAL", "YES", "NOT TESTED", "NA")
"""Of criteria on a page: what fails first."""
CVS = ("cvs", "cvs quote exists", "cvs supported", "cvs lenient", "cvs highest")


def _one(value: float) -> str:
    """A score as the paper prints it."""
    return number(value) if value != value else f"{value:.1f}"


def _claim(record: Record) -> Section:
    lifted = [str(code) for code in record.table("upgrades").columns.get("criterion", [])]
    statement = str(record.specs["method"].args["statement"])
    failing, others = _criteria(record, ["NO"]), _criteria(record, ORDER[1:])
    blocks: list[Block] = [Text(statement), *_predictions(record)]
    blocks += [replace(failing, title="Criteria that fail", caption="")] if failing.rows else []
    title = f"The other {len(others.rows)} criteria" if failing.rows else "All criteria"
    blocks.append(Fold(title, (replace(others, title=""),), in_markdown=True))
    if lifted and _score(record).n_judged:
        blocks.append(Text(f"{', '.join(lifted)}.", lead="YES for one of these raises the score:"))
    evidence = _evidence(record)
    if evidence.rows:
        blocks.append(Fold(f"Evidence: {len(evidence.rows)}", (evidence,)))
    blocks += [*_limitations(record), *_steps(record)]
    return Section(f"Claim {record.cell['claim']}", tuple(blocks))


def _criteria(record: Record, statuses: Sequence[str] = ORDER) -> TextTable:
    """The criteria of some statuses, in the order of these."""
    rubric = rubric_of(record)
    held = [row for row in record.table("criteria").rows() if row["status"] in statuses]
    rows: list[Row] = []
    for row in sorted(held, key=lambda row: statuses.index(str(row["status"]))):
        status, lost = str(row["status"]), str(row["unsupported"] or "")
        status_text = f"{status} (unsupported)" if lost else status
        reason = " ".join(filter(None, [str(row["reason"] or ""), f"[{lost}]" if lost else ""]))
        name = f"{row['name']} ({row['criterion']})"
        cells = (name, status_text, reason, str(row["n_evidence"] or ""))
        rows.append(Row(cells, "more" if status in ("NOT TESTED", "NA") else ""))
    columns = (
        Column("criterion", numeric=False),
        Column("status", numeric=False),
        Column("reason", numeric=False),
        Column("evidence", optional=1),
    )
    return TextTable("Criteria", columns, tuple(rows), f"Rubric {rubric.key}.")


def _predictions(record: Record) -> list[Block]:
    """What became of the claim's predictions, where it was assayed and has some."""
    if not record.has_table("predictions") or not len(record.table("predictions")):
        return []
    rows = [
        (str(row["prediction"]), str(row["outcome"]), str(row["found"] or ""))
        for row in record.table("predictions").rows()
    ]
    headings = ("prediction", "outcome", "measured")
    return [TextTable.of("Predictions", headings, rows, words=True)]


def _limitations(record: Record) -> list[Block]:
    """What the document says of its own limits, beside the criteria that it denies."""
    if not record.has_table("limitations") or not len(record.table("limitations")):
        return []
    statuses = statuses_of(record)

    def judged(codes: Scalar) -> str:
        return ", ".join(
            f"{code} {statuses[code]}" for code in str(codes or "").split(", ") if code
        )

    rows = [
        (str(row["page"]), str(row["text"]), judged(row["denies"]), judged(row["doubts"]))
        for row in record.table("limitations").rows()
    ]
    headings = ("page", "the document says", "denies", "casts doubt on")
    about = "Sentences that rules find, beside what was judged of the criteria that they are about."
    return [TextTable.of("Limitations", headings, rows, words=True, caption=about)]


def _steps(record: Record) -> list[Block]:
    """What was run for the claim, and how long it took, where it was assayed."""
    if not record.has_table("steps"):
        return []
    rows = [
        (
            str(row["step"]),
            str(row["criteria"]),
            str(row["records"]),
            "" if row["seconds"] is None else f"{row['seconds']:,.0f}",
            str(row["command"]),
        )
        for row in record.table("steps").rows()
    ]
    total = sum(float(row["seconds"] or 0) for row in record.table("steps").rows())
    headings = ("step", "evidence for", "records", "seconds", "command")
    table = TextTable.of("Steps", headings, rows, words=True)
    return [Fold(f"What was run: {len(rows)} steps, {total / 60:.0f} min", (table,))]


def _evidence(record: Record) -> TextTable:
    rows = [
        (
            str(row["criterion"]),
            str(row["state"]),
            "" if row["page"] is None else str(row["page"]),
            str(row["text"]),
            str(row["against"] or ""),
        )
        for row in record.table("evidence").rows()
    ]
    headings = ("criterion", "quote exists", "page", "quote or record", "supports nothing, as")
    return TextTable.of("Evidence", headings, rows, words=True)


COMPARISON_READING = {
    "Exact": "The share of criteria with the same status, among those that both raters judged.",
    "Kappa": "Cohen's, with quadratic weights: 0 is chance, 1 is perfect.",
    "Alpha": "Krippendorff's, of ordinal data, over all raters; n counts judgments.",
    "Difference": "The mean of the first rater less the second; YES less NO is 1.",
    "Distance": "The mean size of that difference.",
    "Intervals": "95 %, over claims drawn again. One claim has none.",
}
LEFT_OUT = ("claim", "criterion", "distance", "reasons")


class ClaimsComparisonPage(Page):
    """Raters of the same claims beside each other."""

    def title(self, report: Report) -> str:
        raters = [f": {record.cell['raters']}" for record in report.records[:1]]
        return f"Raters compared{''.join(raters)}"

    def tables(self, report: Report) -> list[TextTable]:
        """What a console shows: disagreements first."""
        made = (_disagreements, _agreement)
        return [make(record) for record in report.records for make in made]

    def sections(self, report: Report) -> list[Section]:
        """Disagreements, agreement, how two raters differ on each criterion, what was compared."""
        records = report.records
        first: list[Block] = [Text(_comparison_verdict(record), "verdict") for record in records]
        return framed(
            report,
            first,
            [
                Section("Disagreements", tuple(map(_disagreements, records))),
                Section("Agreement", tuple(map(_agreement, records))),
            ],
            folded=[
                Section("Statuses", tuple(chain.from_iterable(map(_confusions, records)))),
                Section("Criteria", tuple(map(_criteria_of_raters, records))),
            ],
            reading=COMPARISON_READING,
            values=[],
        )


def _comparison_verdict(record: Record) -> str:
    n = len(record.table("disagreements"))
    exact = next((m for m in record.measures if m.name.startswith("exact")), None)
    if exact is None or exact.value != exact.value:
        return f"{n} criteria differ; no criterion was judged by two raters."
    return f"{n} criteria differ; {share(exact.value)} of {exact.n} are the same ({exact.heading})."


def _disagreements(record: Record) -> TextTable:
    rubric = load_rubric(f"{record.specs['rubric'].name}@{record.specs['rubric'].version}")
    table = record.table("disagreements")
    raters = [name for name in table.columns if name not in LEFT_OUT]
    rows = [
        (
            f"{row['criterion']} {rubric.criterion(str(row['criterion'])).name}",
            str(row["claim"]),
            *(str(row[name]) for name in raters),
            str(row["reasons"] or ""),
        )
        for row in table.rows()
    ]
    headings = ("criterion", "claim", *raters, "reasons")
    return TextTable.of("Disagreements", headings, rows, words=True)


def _agreement(record: Record) -> TextTable:
    rows = [Row((m.heading, interval(m.value, m.low, m.high), f"{m.n:,}")) for m in record.measures]
    return TextTable.of("Agreement", ("statistic", "value", "n"), rows)


def _confusions(record: Record) -> list[TextTable]:
    """Of each two raters, a row for each status of the first, a column for each of the second."""
    table = record.table("confusion")
    made: list[TextTable] = []
    for raters in dict.fromkeys(map(str, table.columns.get("raters", []))):
        counts = {
            (row["first"], row["second"]): row["n"] for row in table.where(raters=raters).rows()
        }
        used = [status for status in STATUSES if any(status in pair for pair in counts)]
        rows = [
            Row((first, *(str(counts.get((first, second), 0)) for second in used)))
            for first in used
        ]
        columns = (Column("first, by second", numeric=False), *map(Column, used))
        made.append(TextTable(raters, columns, tuple(rows)))
    return made


def _criteria_of_raters(record: Record) -> TextTable:
    rows = [
        (
            str(row["criterion"]),
            str(row["raters"]),
            NOTHING if row["exact"] is None else share(float(row["exact"])),
            str(row["differ"]),
            str(row["how"]),
        )
        for row in record.table("criteria").rows()
    ]
    return TextTable.of("", ("criterion", "raters", "exact", "differ", "how"), rows, words=True)


SCRIPT = Path(__file__).parent / "data" / "form.js"


def form_page(
    claims: ClaimFile | None = None,
    documents: Sequence[PagedDocument] = (),
    initial: Judgments | None = None,
) -> str:
    """The form as HTML.

    Args:
        claims: to judge; without any, the first claim is to be written in the form.
        documents: whose pages it shows, and in which quotes are found.
        initial: judgments that it begins with, such as those to settle.

    Raises:
        BadUsage: neither claims, nor a document, nor judgments.
    """
    if claims is None and initial is None and not documents:
        raise BadUsage("A form takes claims, a document, or judgments; got none of them.")
    named = initial.rubric if initial else claims.rubric if claims else RUBRIC
    rubric = load_rubric(named)
    data: dict[str, Any] = {
        "rubric": rubric.key,
        "codes": rubric.codes,
        "claims": _claims(claims, documents),
        "documents": [
            {**document.source.model_dump(), "pages": list(document.pages)}
            for document in documents
        ],
        "initial": initial.model_dump(mode="json") if initial else None,
        # The claim that stands for one that is still to be written.
        "drafted": claims is None and initial is None,
    }
    key = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
    text = json.dumps({**data, "key": key}, ensure_ascii=False)
    script = SCRIPT.read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        templates("claims")
        .get_template("form.html")
        .render(
            title=_title(claims, documents, initial),
            rubric=rubric,
            statuses=STATUSES,
            documents=documents,
            # "<" could end the script that holds the data.
            data=Markup(text.replace("<", "\\u003c")),
            script=Markup(script),
            digest=digest,
        )
    )


def write_form(
    path: str | Path,
    claims: ClaimFile | None = None,
    documents: Sequence[PagedDocument] = (),
    initial: Judgments | None = None,
) -> Path:
    """Write the form; see `form_page`.

    Raises:
        BadUsage: as `form_page`, or the file does not end in .html.
    """
    return write_text(check_ending(path, ".html"), form_page(claims, documents, initial))


def _claims(claims: ClaimFile | None, documents: Sequence[PagedDocument]) -> list[dict[str, Any]]:
    if claims is not None:
        return [claim.model_dump(mode="json") for claim in claims.claims]
    about = documents[0].title or documents[0].name if documents else "the source"
    return [{"id": "claim", "statement": f"What {about} claims.", "system": True}]


def _title(
    claims: ClaimFile | None, documents: Sequence[PagedDocument], initial: Judgments | None
) -> str:
    named = claims.title if claims else ""
    if not named and claims is None and documents:
        named = documents[0].title or documents[0].name
    ids = [claim.id for claim in claims.claims] if claims else []
    ids = [judged.claim.id for judged in initial.claims] if initial else ids
    return f"Judge {named or ', '.join(ids)}"
