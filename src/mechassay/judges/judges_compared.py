"""Several judges, prompts or efforts on one paper, and papers beside each other.

A row is a folder of `claims assess`: what it ends with, after its vote, audit and advocate. The
columns are those of tables 5 and 6 of Tower (2026):

    claims, CVS, tier    of the system claim, the tier by the paper's cuts
    supported            the same where quotes have to support a YES or PARTIAL
    others               the lowest and highest score of the other claims, with their tiers
    off by               tiers above the reference, where there is one
    tokens, US dollars   of all its answers, those of invalid ones too

Judges of one paper have a consensus: of each claim and criterion the status that `vote` makes of
what each judge ends with. It knows no more than its judges do: if all are generous, so is it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechassay.claims.evidence import score_judgments
from mechassay.claims.judgments import Judgments, read_judgments
from mechassay.claims.pages import rubric_of
from mechassay.claims.rubric import Rubric, load_rubric, tier_of
from mechassay.errors import BadUsage, UnknownName
from mechassay.judges.experiment import AssessExperiment, judgments_file, records_of
from mechassay.judges.pages import FINAL_RUN, draw_scores, score_or_dash
from mechassay.judges.reference_labels import ReferenceLabels
from mechassay.judges.voting import Aggregate, vote
from mechassay.results import page
from mechassay.results.measures import measure_texts
from mechassay.results.page import (
    NOTHING,
    Block,
    Column,
    Page,
    Report,
    Row,
    Section,
    Text,
    TextTable,
)
from mechassay.results.records import Record, Spec, Table
from mechassay.results.result import RecordContents, Result
from mechassay.results.sections import framed
from mechassay.results.text import plain_number
from mechassay.runs.experiment import experiment_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import read_report
from mechassay.utils.display import counted

SPENT = ("requests", "input_tokens", "output_tokens", "cost", "seconds")
CONSENSUS = "consensus"


@dataclass(frozen=True, eq=False)
class JudgedRun:
    """What one judge ends with on one paper.

    Attributes:
        paper: the document's name without its ending.
        judge, effort, prompt: who judged, and by which words.
        steps: what followed the runs: vote, audit, advocate.
        judgments: after these; None if no run gave any, `why` says why.
        scores, supported: of the claims by name; the system claim's first.
        runs: scores of the system claim in single runs.
        spent: requests, tokens, US dollars and seconds of all of it.
    """

    paper: str
    judge: str
    effort: str = ""
    prompt: str = ""
    steps: str = ""
    judgments: Judgments | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    supported: Mapping[str, float] = field(default_factory=dict)
    runs: tuple[float, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)
    why: str = ""

    @property
    def cvs(self) -> float:
        """The score of the system claim; NaN without one."""
        return next(iter(self.scores.values()), math.nan)


def read_judged_run(folder: Path) -> JudgedRun:
    """What a folder of `claims assess` ends with; one without judgments says why.

    Raises:
        BadUsage: the folder is of another kind of run. BadFile: it holds no run.
    """
    stored = RunFolder.existing(folder)
    experiment = experiment_of(stored.plan())
    if not isinstance(experiment, AssessExperiment):
        raise BadUsage(f"{folder} holds a run of the kind {experiment.kind}, not of claims assess.")
    report = read_report(stored, experiment.cells())
    paper, records = Path(experiment.source).stem, records_of(report)
    if not records:
        why = "; ".join(failure.message for failure in report.failures) or "nothing was run"
        return JudgedRun(paper, experiment.judge.partition(":")[2], experiment.effort, why=why)
    last = records[0].cell["run"]
    own = [record for record in records if record.cell["run"] == last]
    judge, prompt = records[0].specs["judge"], records[0].specs["prompt"]
    systems = report.records
    name = next(name for name, record in report.by_name.items() if record.cell["run"] == last)
    return JudgedRun(
        paper,
        judge.name,
        experiment.effort,
        f"{prompt.name}@{prompt.version}",
        str(judge.args["followed_by"]),
        read_judgments(judgments_file(folder, name)),
        {record.cell["claim"]: record.value("cvs") for record in own},
        {record.cell["claim"]: record.value("cvs supported") for record in own},
        tuple(record.value("cvs") for record in systems if record.cell["run"] != FINAL_RUN),
        {what: math.fsum(record.spent[what] for record in systems) for what in SPENT},
        "; ".join(failure.message for failure in report.failures),
    )


def consensus_of(judged: Sequence[JudgedRun], by: Aggregate = "majority") -> JudgedRun:
    """What the judges of one paper have in common.

    Raises:
        BadUsage: fewer than two have judgments, or they are of several papers.
    """
    known = [own.judgments for own in judged if own.judgments is not None]
    papers = {own.paper for own in judged}
    if len(known) < 2 or len(papers) > 1:
        raise BadUsage(
            f"A consensus is of two judges or more of one paper; got judgments of"
            f" {counted(len(known), 'judge')} on {', '.join(sorted(papers)) or 'no paper'}."
        )
    together = vote(known, by=by, finished=True)
    scored = score_judgments(together)
    names = [scored.source.system, *(name for name in scored.paper if name != scored.source.system)]
    return JudgedRun(
        papers.pop(),
        CONSENSUS,
        steps=f"{by} of {len(known)} judges",
        judgments=together,
        scores={name: scored.paper[name].cvs for name in names},
    )


@dataclass(frozen=True, eq=False, repr=False)
class JudgesCompared(Result, kind="claims-judges"):
    """Judged runs, with the consensus of each paper that has several judges.

    Attributes:
        expected: the tier that each paper should have, where one is known.
    """

    rubric: str
    judged: tuple[JudgedRun, ...]
    expected: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        judged: Sequence[JudgedRun],
        reference: ReferenceLabels | str = "",
        by: Aggregate = "majority",
    ) -> JudgesCompared:
        """Rows in the order of their error, then as given; each paper's consensus behind them.

        Args:
            reference: labels, or the tier that all papers should have.

        Raises:
            UnknownName: no such tier. BadUsage: judgments by several rubrics.
        """
        rubrics = {own.judgments.rubric for own in judged if own.judgments is not None}
        if len(rubrics) != 1:
            raise BadUsage(
                f"Judges are compared by one rubric; these are by {sorted(rubrics) or 'none'}."
            )
        [name] = rubrics
        papers = dict.fromkeys(own.paper for own in judged)
        expected = _expected(load_rubric(name), list(papers), reference)
        rows: list[JudgedRun] = []
        for paper in papers:
            own = [run for run in judged if run.paper == paper]
            errors = {id(run): _error(load_rubric(name), run.cvs, expected[paper]) for run in own}
            own.sort(key=lambda run: math.inf if math.isnan(e := errors[id(run)]) else abs(e))
            rows += own
            if sum(run.judgments is not None for run in own) > 1:
                rows.append(consensus_of(own, by))
        return JudgesCompared(name, tuple(rows), expected)

    def contents(self) -> RecordContents:
        rubric = load_rubric(self.rubric)
        rows = [self._row(rubric, own) for own in self.judged]
        errors = [row["error"] for row in rows if row["expected"] and row["judge"] != CONSENSUS]
        known = [error for error in errors if not math.isnan(error)]
        measures = [
            measure_texts("claims-judges").measure(
                "mean error",
                math.fsum(known) / len(known) if known else math.nan,
                n=len(errors),
                n_undefined=len(errors) - len(known),
            )
        ]
        papers = {own.paper for own in self.judged}
        return {
            "cell": {"papers": ", ".join(sorted(papers))},
            "specs": {
                "method": Spec(name="judges compared"),
                "rubric": Spec(name=rubric.id, version=rubric.version),
            },
            "measures": measures if errors else [],
            "tables": [Table.of("judges", ("number",), rows)],
            "warnings": [
                f"{own.judge} on {own.paper}: {own.why}" for own in self.judged if own.why
            ],
        }

    def _row(self, rubric: Rubric, own: JudgedRun) -> dict[str, Any]:
        others = [score for score in list(own.scores.values())[1:] if not math.isnan(score)]
        low, high = min(others, default=math.nan), max(others, default=math.nan)
        known = [score for score in own.runs if not math.isnan(score)]
        supported = next(iter(own.supported.values()), math.nan)
        expected = self.expected.get(own.paper, "")
        return {
            "number": self.judged.index(own) + 1,
            "paper": own.paper,
            "judge": own.judge,
            "effort": own.effort,
            "prompt": own.prompt,
            "n_runs": len(own.runs),
            "steps": own.steps,
            "n_claims": len(own.scores),
            "cvs": own.cvs,
            "tier": tier_of(rubric, own.cvs),
            "supported": supported,
            "supported_tier": tier_of(rubric, supported),
            "others_low": low,
            "others_high": high,
            "others_tiers": " to ".join(
                dict.fromkeys((tier_of(rubric, low), tier_of(rubric, high)))
            ),
            "lowest": min(known, default=math.nan),
            "highest": max(known, default=math.nan),
            "expected": expected,
            "error": _error(rubric, own.cvs, expected),
            **{what: own.spent.get(what, math.nan) for what in SPENT},
        }


def _expected(
    rubric: Rubric, papers: Sequence[str], reference: ReferenceLabels | str
) -> dict[str, str]:
    tiers = [tier.name for tier in rubric.tiers]
    if isinstance(reference, str):
        if reference and reference not in tiers:
            raise UnknownName("tier", reference, tiers)
        return dict.fromkeys(papers, reference)
    labelled = {label.paper for label in reference.papers}
    return {paper: reference.tier(paper) if paper in labelled else "" for paper in papers}


def _error(rubric: Rubric, cvs: float, expected: str) -> float:
    """Tiers above the expected one; NaN without a score or a reference."""
    tiers, tier = [tier.name for tier in rubric.tiers], tier_of(rubric, cvs)
    return float(tiers.index(tier) - tiers.index(expected)) if tier and expected else math.nan


READING = {
    "CVS, tier": "Of the system claim, after all steps; the tier by the paper's cuts.",
    "Supported": "The score if a YES or PARTIAL that no quote supports is NO.",
    "Others": "The lowest and highest score of the other claims.",
    "Off by": "Tiers above the reference; below 0 the judge is stricter.",
    "Consensus": "The status that the judges make together, claim by claim; see `claims vote`.",
}


class JudgesPage(Page):
    """Judges beside each other."""

    def title(self, report: Report) -> str:
        return f"Judges of {', '.join(record.cell['papers'] for record in report.records)}"

    def tables(self, report: Report) -> list[TextTable]:
        return [_judges(record) for record in report.records]

    def sections(self, report: Report) -> list[Section]:
        """How far judges are apart, their scores as a figure, and a row each."""
        figures: list[Block] = [
            page.Figure(
                self.draw(record),
                title="Scores of judges",
                name="Judges",
                about="Scores on the scale of tiers; the table has the numbers.",
            )
            for record in report.records
        ]
        return framed(
            report,
            [Text(_verdict(record), "verdict") for record in report.records],
            [Section("Judges", tuple(map(_judges, report.records)))],
            figure=figures,
            reading=READING,
            values=[],
        )

    def draw(self, record: Record, ax: Axes | None = None) -> Figure:
        """Scores of judges on the scale of tiers."""
        rows = [
            {**row, "paper": f"{row['judge']} {row['effort']}".strip()}
            for row in record.table("judges").rows()
        ]
        drawn = record.model_copy(update={"tables": [Table.of("papers", ("number",), rows)]})
        return draw_scores(drawn, rubric_of(record), ax)


def _verdict(record: Record) -> str:
    rows = [row for row in record.table("judges").rows() if row["judge"] != CONSENSUS]
    scores = [score for row in rows if not math.isnan(score := plain_number(row["cvs"]))]
    if not scores:
        return f"None of {counted(len(rows), 'judge')} gave a score."
    tiers = list(dict.fromkeys(str(row["tier"]) for row in rows if row["tier"]))
    named = f"all {tiers[0]}" if len(tiers) == 1 else ", ".join(tiers)
    span = f"CVS {_span(min(scores), max(scores))}"
    exact = sum(plain_number(row["error"]) == 0 for row in rows)
    with_label = sum(bool(row["expected"]) for row in rows)
    hits = f" {exact} of {with_label} have the tier of the reference." if with_label else ""
    silent = f" {len(rows) - len(scores)} gave no score." if len(scores) < len(rows) else ""
    return (
        f"{counted(len(rows), 'run of a judge', 'runs of judges')}: {span}, {named}.{hits}{silent}"
    )


def _span(low: float, high: float) -> str:
    return f"{low:.1f} to {high:.1f}" if high > low else score_or_dash(low)


def _judges(record: Record) -> TextTable:
    rows: list[Row] = []
    for row in record.table("judges").rows():
        low, high = plain_number(row["others_low"]), plain_number(row["others_high"])
        cost, error = plain_number(row["cost"]), plain_number(row["error"])
        tokens = [plain_number(row[key]) for key in ("input_tokens", "output_tokens")]
        price = "not known" if math.isnan(cost) else f"{cost:.4f}"
        cells = (
            str(row["paper"]),
            str(row["judge"]),
            str(row["effort"]) or NOTHING,
            str(row["prompt"]) or NOTHING,
            f"{row['n_runs']}" if row["n_runs"] else NOTHING,
            str(row["steps"]) or NOTHING,
            str(row["n_claims"]),
            score_or_dash(plain_number(row["cvs"])),
            str(row["tier"]) or "no score",
            score_or_dash(plain_number(row["supported"])),
            _span(low, high),
            str(row["others_tiers"]) or NOTHING,
            NOTHING if math.isnan(error) else f"{error:+.0f}" if error else "0",
            *(NOTHING if math.isnan(own) else f"{own:,.0f}" for own in tokens),
            NOTHING if math.isnan(tokens[0]) else price,
        )
        rows.append(Row(cells))
    columns = (
        Column("paper", numeric=False),
        Column("judge", numeric=False),
        Column("effort", numeric=False, optional=2),
        Column("prompt", numeric=False, optional=1),
        Column("runs", optional=1),
        Column("followed by", numeric=False, optional=2),
        Column("claims"),
        Column("CVS"),
        Column("tier", numeric=False),
        Column("supported"),
        Column("others"),
        Column("tiers of others", numeric=False, optional=2),
        Column("off by"),
        Column("tokens in", optional=1),
        Column("tokens out", optional=1),
        Column("US dollars"),
    )
    return TextTable("Judges", columns, tuple(rows), "CVS of the system claim.")
