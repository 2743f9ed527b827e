"""Pages on judges: a judged document, what became of several runs, and a judge's evaluation.

    a judged document   every run with its scores and cost. With one run of the judge the page is
                        that of its claims. With several it says how far they are apart, and each
                        has a page of its own beside it.
    several runs        scores, what votes and audits changed, and all that led to it
    an evaluation       first the shares, their n and how wide their intervals are; then charts,
                        papers, baselines, boundaries, and criteria where labels have them. Of a
                        published evaluation, which printed numbers follow from its tables.

The charts show what figures of Tower (2026) show:

    `draw_scores`       a row a paper: its score on the scale of tiers, the range of the label's
                        tier as a band, the range of single runs as a line (figures 2 and 4)
    `draw_dimensions`   levels of the system claim, and means of the others (figure 3)
    `draw_confusion`    labels in rows, tiers in columns (figure 5)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from mechassay.claims import pages
from mechassay.claims.rubric import Rubric
from mechassay.judges.debiasing import SINGLE
from mechassay.judges.voting import AGGREGATES
from mechassay.results import page
from mechassay.results.page import (
    NOTHING,
    Block,
    Column,
    Fold,
    Page,
    Report,
    Row,
    Section,
    Terms,
    Text,
    TextTable,
)
from mechassay.results.plots import (
    GREY,
    INK,
    PALETTE,
    SETTINGS,
    SIZE,
    Picture,
    figure_of,
    plain_axes,
)
from mechassay.results.records import Record, Scalar
from mechassay.results.sections import failures_table, failures_text, framed, meanings, stored_table
from mechassay.results.text import number_or_dash, plain_number
from mechassay.utils.display import interval, share, shortened

READING = {
    "Runs of the judge": (
        "The judge was asked anew each time. One run shows what it said once; how far runs are"
        " apart is how far it can be relied on."
    ),
    "Quote exists": pages.READING["Quote exists"],
    "Supported": pages.READING["Supported"],
    "Unsupported": (
        "Criteria of all claims that were judged YES or PARTIAL, and that no quote supports."
    ),
    "Tried again": "Requests that failed on the way, and answers that were cut off or malformed.",
}

RUNS = "Runs of the judge"
FINAL_RUN = "final"
"""What is left after a vote, an audit and an advocate."""


class AssessmentsPage(Page):
    """Runs of a judge on a document."""

    def title(self, report: Report) -> str:
        names = dict.fromkeys(record.specs["document"].name for record in report.records)
        judges = dict.fromkeys(record.specs["judge"].name for record in report.records)
        if not report.records:
            names = dict.fromkeys(failure.cell.get("source", "") for failure in report.failures)
            judges = dict.fromkeys(failure.cell.get("judge", "") for failure in report.failures)
        return f"{', '.join(names)}, judged by {', '.join(judges)}"

    def tables(self, report: Report) -> list[TextTable]:
        runs = _runs(report.records)
        first = runs[:1] if len(runs) == 1 or (runs and _is_final(runs[0])) else []
        tables = [table for own in first for table in pages.ClaimsPage().tables(Report(own))]
        failed = failures_table(report.failures, "run")
        return [*tables, *([_runs_table(runs)] if runs else []), *failed]

    def sections(self, report: Report) -> list[Section]:
        """The verdict, what failed, every run of the judge, and the claims of a single one."""
        records = report.records
        runs = _runs(records)
        failed = [*failures_text(report.failures), *failures_table(report.failures, "run")]
        if not runs:
            return [Section("", (Text("Nothing was judged.", "verdict"), *failed))]
        table = Section(RUNS, (_runs_table(runs),))
        reading = Fold("How to read the runs", (Terms(READING),))
        if len(runs) == 1:
            first, *others, more = pages.ClaimsPage().sections(Report(records))
            more = replace(more, blocks=(reading, *more.blocks))
            return [Section("", (*first.blocks, *failed)), table, *others, more]
        systems = [own[0] for own in runs]
        single = [system for system in systems if system.cell["run"] != FINAL_RUN]
        verdicts = [Text(_apart(single), "verdict")] if len(single) > 1 else []
        if _is_final(runs[0]):
            steps = systems[0].specs["judge"].args["followed_by"]
            verdict = pages.verdict_line(systems[0])
            lead = f"{systems[0].cell['claim']}, after {steps}:"
            verdicts = [Text(verdict, "verdict", lead), *verdicts]
            link = 'What they changed: <a href="steps.html">steps.html</a>.'
            verdicts.append(Text(Markup(link), "soft"))
        return framed(
            Report(systems),
            [*verdicts, *failed],
            [table],
            wrong=[*pages.lost_quotes(records), *pages.denied(records)],
            reading=READING,
            values=[],
        )


def _runs(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each run, that of its system claim first."""
    by_paper: dict[str, list[Record]] = {}
    for record in records:
        by_paper.setdefault(record.cell["run"], []).append(record)
    return list(by_paper.values())


def _is_final(records: Sequence[Record]) -> bool:
    return records[0].cell["run"] == FINAL_RUN


def _apart(systems: Sequence[Record]) -> str:
    """How far the scores of the runs are apart."""
    texts: list[str] = []
    ways = {"cvs": "as judged", "cvs quote exists": "with quotes that exist"}
    for name, how in {**ways, "cvs supported": "supported"}.items():
        known = [system.value(name) for system in systems if not math.isnan(system.value(name))]
        span = f"{min(known):.1f} to {max(known):.1f}" if known else "undefined"
        texts.append(f"{span} {how}")
    return f"{len(systems)} runs of the judge: CVS {', '.join(texts)}."


def _runs_table(runs: Sequence[Sequence[Record]]) -> TextTable:
    columns = (
        Column("run", numeric=False),
        Column("claims"),
        Column("CVS"),
        Column("quote exists"),
        Column("supported"),
        Column("supported tier", numeric=False, optional=2),
        Column("unsupported"),
        Column("requests", optional=3),
        Column("tried again", optional=3),
        Column("tokens in", optional=1),
        Column("tokens out", optional=1),
        Column("US dollars"),
    )
    rows = tuple(_row(own, linked=len(runs) > 1) for own in runs)
    return TextTable(RUNS, columns, rows, "CVS of the system claim.")


def _row(own: Sequence[Record], *, linked: bool) -> Row:
    system = own[0]
    number, spent = system.cell["run"], system.spent
    name = Markup('<a href="run-{0}.html">{0}</a>').format(number) if linked else number
    lost = sum(
        row["status"] != row["supported"]
        for record in own
        for row in record.table("criteria").rows()
    )
    cost = spent.get("cost", math.nan)
    again = spent.get("faults", 0) + spent.get("invalid_answers", 0)
    return Row(
        (
            name,
            str(len(own)),
            score_or_dash(system.value("cvs")),
            score_or_dash(system.value("cvs quote exists")),
            score_or_dash(system.value("cvs supported")),
            pages.supported_tier(system) or NOTHING,
            str(lost),
            f"{spent.get('requests', 0):,.0f}",
            f"{again:,.0f}",
            f"{spent.get('input_tokens', 0):,.0f}",
            f"{spent.get('output_tokens', 0):,.0f}",
            "not known" if math.isnan(cost) else f"{cost:.4f}",
        )
    )


def score_or_dash(value: float) -> str:
    """Return a score with one decimal, or a dash if it is undefined."""
    return NOTHING if math.isnan(value) else f"{value:.1f}"


FINAL = "after all steps"
VOTE_READING = {
    "Minimum": (
        "The least status of all runs (Tower 2026). It falls with every run, so scores by it are"
        " low on purpose."
    ),
    "Mean, median, majority": "Other ways to make one status of those of the runs; ties go down.",
    "Support": "How many runs make the claim. A minimum of fewer runs is less strict.",
    "Similarity": "Of a run's claim to that of the run that leads, by words and components.",
    "Audit": "Takes a status to NO whose evidence is that of the system claim.",
    "Alpha": "Krippendorff's, of ordinal data: 0 is chance, 1 is perfect.",
}


class ClaimsVotePage(Page):
    """A vote over runs of a judge."""

    def title(self, report: Report) -> str:
        name = report.records[0].cell["rater"] if report.records else "runs of a judge"
        return f"{name[:1].upper()}{name[1:]}"

    def tables(self, report: Report) -> list[TextTable]:
        """What a console shows: claims, and what other steps than the vote changed."""
        return [
            table
            for record in report.records
            for table in (_claims(record), _changes(record, voted=False))
            if table.rows
        ]

    def sections(self, report: Report) -> list[Section]:
        """Scores by every way, changes, what was rejected, matches, all statuses of all runs."""
        records = report.records
        first: list[Block] = [Text(_vote_verdict(record), "verdict") for record in records]
        return framed(
            report,
            first,
            [
                Section("Claims", tuple(map(_claims, records))),
                Section("Changes", tuple(_changes(record) for record in records)),
            ],
            folded=[
                *_stored(records, "rejected", "Objections that were rejected"),
                *_stored(records, "matches", "Claims that were taken for one"),
                *_stored(records, "scores", "Scores"),
                *_stored(records, "statuses", "Statuses of every run"),
                *_stored(records, "steps", "Steps"),
            ],
            reading=VOTE_READING,
            values=[],
        )


def _vote_verdict(record: Record) -> str:
    final = record.value("cvs")
    system = next(str(row["claim"]) for row in record.table("claims").rows() if row["system"])
    own = {str(row["of"]): row for row in record.table("scores").where(claim=system).rows()}
    single = [plain_number(row["cvs"]) for name, row in own.items() if name.startswith(SINGLE)]
    known = [score for score in single if score == score]
    n = len(record.table("changes"))
    score_text = "none" if final != final else f"{final:.1f}, {own[FINAL]['tier']}"
    ranged = f" Its {len(known)} runs give {min(known):.1f} to {max(known):.1f}." if known else ""
    return f"{system}: CVS {score_text}.{ranged} {n} {'status' if n == 1 else 'statuses'} changed."


def _claims(record: Record) -> TextTable:
    """A row a claim: support, the range of single runs, and the score by every way."""
    voted = any(row["n_runs"] for row in record.table("claims").rows())
    ways = (*AGGREGATES, FINAL) if voted else (FINAL,)
    columns = [Column("claim", numeric=False), Column("tier", numeric=False)]
    columns += [Column("support"), Column("single runs", optional=1)] if voted else []
    columns += [Column(way, optional=2 if way in AGGREGATES[1:] else 0) for way in ways]
    rows: list[Row] = []
    for row in record.table("claims").rows():
        by_claim = {
            str(score["of"]): score
            for score in record.table("scores").where(claim=row["claim"]).rows()
        }
        single = [plain_number(e["cvs"]) for name, e in by_claim.items() if name.startswith(SINGLE)]
        known = [score for score in single if score == score]
        ranged = f"{min(known):.1f} to {max(known):.1f}" if known else NOTHING
        cells = [f"{row['claim']}{' (system)' if row['system'] else ''}"]
        cells.append(str(by_claim[FINAL]["tier"]) or NOTHING)
        cells += [f"{row['support']} of {row['n_runs']}", ranged] if voted else []
        cells += [score_or_dash(plain_number(by_claim[way]["cvs"])) for way in ways]
        rows.append(Row(tuple(cells)))
    return TextTable("Claims", tuple(columns), tuple(rows))


def _changes(record: Record, voted: bool = True) -> TextTable:
    rows = [
        tuple(
            str(row[key] or "") for key in ("claim", "criterion", "step", "before", "after", "why")
        )
        for row in record.table("changes").rows()
        if voted or row["step"] != "vote"
    ]
    headings = ("claim", "criterion", "step", "before", "after", "why")
    return TextTable.of("Changes", headings, rows, words=True)


def _stored(records: Sequence[Record], name: str, title: str) -> list[Section]:
    """A table of the records as it is, folded; nothing if it is empty."""
    blocks = [
        Fold(f"{len(record.table(name)):,} rows", (stored_table(record.table(name), title),))
        for record in records
        if len(record.table(name))
    ]
    return [Section(title, tuple(blocks))] if blocks else []


TOP = 10.0
EXACT, HIGH, LOW = PALETTE[0], PALETTE[1], PALETTE[2]
LEVELS = 3
PANELS = 3
"""Papers beside each other in the chart of dimensions."""
LETTERS = 26


def draw_scores(record: Record, rubric: Rubric, ax: Axes | None = None) -> Figure:
    """Scores on the scale of tiers, with labels and single runs; papers as in the record."""
    rows = record.table("papers").rows()
    least = [tier.least for tier in rubric.tiers]
    names = [tier.name for tier in rubric.tiers]
    with rc_context(SETTINGS):
        if ax is None:
            size = (9.2, 1.5 + 0.36 * max(len(rows), 1))
            ax = Picture(figsize=size, layout="constrained").subplots()
        for boundary in least[1:]:
            ax.axvline(boundary, color=INK, lw=0.8, alpha=0.35, zorder=1)
        ends = [*least[1:], TOP]
        for y, row in enumerate(rows):
            if row["expected"]:
                place = names.index(str(row["expected"]))
                band: dict[str, Any] = {"color": GREY, "alpha": 0.28, "lw": 0, "zorder": 0}
                ax.barh(y, ends[place] - least[place], left=least[place], height=0.72, **band)
            low, high = plain_number(row["lowest"]), plain_number(row["highest"])
            if high > low:
                ax.plot([low, high], [y, y], color=INK, lw=2.2, alpha=0.55, zorder=2)
            score, error = plain_number(row["cvs"]), plain_number(row["error"])
            if math.isnan(score):
                look: dict[str, Any] = {"color": INK, "va": "center", "fontsize": SIZE - 1.5}
                ax.text(0.1, y, "no score", **look)
            else:
                colour, marker = _look(error)
                ax.plot([score], [y], marker=marker, color=colour, ms=8.5, zorder=3)
        _scores_axis(ax, rows, names, least)
        return figure_of(ax)


def _scores_axis(
    ax: Axes, rows: Sequence[dict[str, Scalar]], names: Sequence[str], least: Sequence[float]
) -> None:
    ax.set_xlim(0, TOP)
    ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [f" {shortened(str(r['paper']), LETTERS)}" for r in rows])
    for tick in ax.get_yticklabels():
        tick.set_parse_math(False)
    ax.set_xlabel("Claim Validity Score", color=INK)
    above = ax.secondary_xaxis("top")
    middles = [(a + b) / 2 for a, b in zip(least, [*least[1:], TOP], strict=True)]
    above.set_xticks(middles, [name.replace(" ", "\n", 1) for name in names], fontsize=SIZE - 1.5)
    above.tick_params(length=0, colors=INK)
    above.spines[:].set_visible(False)
    plain_axes(ax)
    marks: list[Any] = [_mark(EXACT, "o", "score")]
    if any(row["expected"] for row in rows):
        marks = [
            _mark(EXACT, "o", "tier of the label"),
            _mark(HIGH, "^", "above it"),
            _mark(LOW, "v", "below it"),
            Patch(color=GREY, alpha=0.28, lw=0, label="range of the label's tier"),
        ]
    marks.append(Line2D([], [], color=INK, lw=2.2, alpha=0.55, label="single runs"))
    look: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": SIZE - 1.5}
    figure_of(ax).legend(handles=marks, loc="outside lower center", ncols=5, **look)


def _look(error: float) -> tuple[str, str]:
    return (
        (EXACT, "o")
        if error == 0 or math.isnan(error)
        else (HIGH, "^")
        if error > 0
        else (LOW, "v")
    )


def _mark(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, ls="", ms=7, label=label)


def draw_dimensions(record: Record, rubric: Rubric) -> Figure:
    """Levels of each paper's system claim, and means of its other claims; a panel a paper."""
    table = record.table("dimensions")
    papers = list(dict.fromkeys(map(str, table.columns.get("paper", []))))
    codes = [dimension.code for dimension in rubric.dimensions]
    names = [f"{dimension.name} ({dimension.weight:g})" for dimension in rubric.dimensions]
    with rc_context(SETTINGS):
        n_rows = max(1, math.ceil(len(papers) / PANELS))
        n_columns = min(PANELS, max(1, len(papers)))
        size = (3.6 if n_columns == 1 else 9.2, 0.5 + 1.9 * n_rows)
        figure = Picture(figsize=(max(size[0], 5.4), size[1]), layout="constrained")
        axes = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
        for ax, paper in zip(axes, papers, strict=False):
            rows = {row["dimension"]: row for row in table.where(paper=paper).rows()}
            for y, code in enumerate(codes):
                own, others = (plain_number(rows[code][key]) for key in ("system", "others"))
                if not math.isnan(others):
                    ax.plot([others, own], [y, y], color=GREY, lw=1.8, zorder=1)
                    ax.plot([others], [y], "s", color=HIGH, ms=6.5, zorder=2)
                ax.plot([own], [y], "o", color=EXACT, ms=7.5, zorder=3)
            ax.set_title(f" {shortened(paper, LETTERS)}", fontsize=SIZE, loc="left", color=INK)
            ax.title.set_parse_math(False)
            ax.set_xlim(-0.2, LEVELS + 0.2)
            ax.set_xticks(range(LEVELS + 1))
            ax.set_yticks(range(len(codes)), names)
            ax.set_ylim(len(codes) - 0.5, -0.5)
            ax.grid(axis="x", color=INK, alpha=0.1, lw=0.7)
            plain_axes(ax)
        for ax in axes[len(papers) :]:
            ax.set_visible(False)
        marks = [_mark(EXACT, "o", "system claim"), _mark(HIGH, "s", "mean of other claims")]
        look: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": SIZE - 1.5}
        figure.legend(handles=marks, loc="outside lower center", ncols=2, **look)
        return figure


def draw_confusion(record: Record, rubric: Rubric) -> Figure:
    """How often papers of each label (rows) were given each tier (columns)."""
    names = [tier.name for tier in rubric.tiers]
    counts = np.zeros((len(names),) * 2)
    for row in record.table("confusion").rows():
        place = names.index(str(row["expected"])), names.index(str(row["tier"]))
        counts[place] = plain_number(row["n"])
    with rc_context(SETTINGS):
        ax = Picture(figsize=(6.2, 3.9), layout="constrained").subplots()
        colours = LinearSegmentedColormap.from_list("counts", ("#ffffff", PALETTE[0]))
        ax.imshow(counts, cmap=colours, vmin=0, vmax=max(1.6 * counts.max(), 1), aspect="auto")
        for (row, column), value in np.ndenumerate(counts):
            if value or row == column:
                look: dict[str, Any] = {"ha": "center", "va": "center", "color": "#1a1a1a"}
                ax.text(column, row, f"{value:.0f}", **look)
            if row == column:
                corner = (column - 0.5, row - 0.5)
                ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=INK, lw=1.1))
        headings = [name.replace(" ", "\n", 1) for name in names]
        ax.set_xticks(range(len(names)), headings, fontsize=SIZE - 1.5)
        ax.set_yticks(range(len(names)), headings, fontsize=SIZE - 1.5)
        ax.set_xlabel("tier by the judge", color=INK)
        ax.set_ylabel("label", color=INK)
        plain_axes(ax)
        ax.tick_params(length=0)
        ax.spines[["left", "bottom"]].set_visible(False)
        return figure_of(ax)


FAILED = "does not hold"
EVALUATION_READING = {
    "Error": "Tiers above the label; below 0 the judge is stricter than the label.",
    "Baselines": (
        "Judges that know nothing of a paper: they always say one tier, or draw one. The best"
        " constant is chosen on the same labels, which flatters it."
    ),
    "Boundary": "How far the score is from the nearest boundary of tiers.",
    "Intervals": (
        "95 %: Clopper and Pearson's of shares of papers and claims; of criteria a bootstrap over"
        " claims."
    ),
    "Labels": "What people agreed on, not the truth; agreement with them is no more than that.",
}


class ClaimsEvaluationPage(Page):
    """A judge against labels."""

    def title(self, report: Report) -> str:
        names = dict.fromkeys(record.cell.get("judge", "") for record in report.records)
        names_text = ", ".join(names) or "judges"
        return f"{names_text[:1].upper()}{names_text[1:]} against labels"

    def tables(self, report: Report) -> list[TextTable]:
        made = (_agreement, _papers, _baselines, _boundaries, _failed_checks)
        tables = [make(record) for record in report.records for make in made]
        return [table for table in tables if table.rows]

    def sections(self, report: Report) -> list[Section]:
        """The verdict, charts, papers, baselines, boundaries, criteria, and printed statements."""
        records = report.records
        first: list[Block] = [Text(_evaluation_verdict(record), "verdict") for record in records]
        others: list[Section] = [section for record in records for section in _charts(record)]
        for name, make in {
            "Papers": _papers,
            "Judges that know nothing": _baselines,
            "Labels by source": _sources,
            "Boundaries of tiers": _boundaries,
            "Criteria": _criteria,
            "Printed statements": _checks,
        }.items():
            tables = [table for table in map(make, records) if table.rows]
            others += [Section(name, tuple(tables))] if tables else []
        known = {
            name: text for name, text in meanings(records).items() if name not in EVALUATION_READING
        }
        return framed(
            report,
            first,
            [Section("Agreement", tuple(map(_agreement, records)))],
            folded=others,
            reading={**EVALUATION_READING, **known},
            values=[],
        )

    def draw(self, record: Record, ax: Axes | None = None) -> Figure:
        """Scores with labels and single runs."""
        return draw_scores(record, pages.rubric_of(record), ax)


def _evaluation_verdict(record: Record) -> str:
    exact, within = record.measure("exact"), record.measure("within 1")
    if exact is None or within is None or not exact.n:
        return "No paper has both a score and a label."
    n = exact.n
    clauses = [
        f"{round(agreement.value * n)} of {n} ({share(agreement.value)} [{share(agreement.low)},"
        f" {share(agreement.high)}]) {words}"
        for agreement, words in (
            (exact, "have the tier of their label"),
            (within, "are within one"),
        )
    ]
    rows = record.table("baselines").rows()
    constants = [row for row in rows if str(row["judge"]).startswith("always")]
    best = max(
        constants, key=lambda row: (plain_number(row["exact"]), plain_number(row["within 1"]))
    )
    n_best = int(plain_number(best["n"]))
    best_exact, near = (round(plain_number(best[key]) * n_best) for key in ("exact", "within 1"))
    says = str(best["judge"]).removeprefix("always ")
    sentence = f"A judge that always says {says} has {best_exact} and {near} of {n_best}."
    return f"{', '.join(clauses)}. {sentence}"


def _charts(record: Record) -> list[Section]:
    rubric, blocks = pages.rubric_of(record), list[Block]()
    if len(record.table("papers")):
        about = "Scores of papers on the scale of tiers; the table of papers has the numbers."
        drawn = draw_scores(record, rubric)
        blocks.append(page.Figure(drawn, title="Scores and labels", name="Scores", about=about))
        about = "Counts of papers by label and tier; the table of papers has each of them."
        drawn = draw_confusion(record, rubric)
        blocks.append(page.Figure(drawn, title="Tiers against labels", name="Tiers", about=about))
    if len(record.table("dimensions")):
        about = "Levels of dimensions of system claims, and means over other claims."
        drawn = draw_dimensions(record, rubric)
        blocks.append(page.Figure(drawn, title="Dimensions", name="Dimensions", about=about))
    return [Section("Charts", tuple(blocks))] if blocks else []


def _agreement(record: Record) -> TextTable:
    rows = [
        Row((m.heading, interval(m.value, m.low, m.high), f"{m.n:,}", f"{m.n_undefined:,}"))
        for m in record.measures
    ]
    return TextTable.of("Agreement", ("statistic", "value", "n", "undefined"), rows)


def _papers(record: Record) -> TextTable:
    rows: list[Row] = []
    for row in record.table("papers").rows():
        low, high = plain_number(row["lowest"]), plain_number(row["highest"])
        runs = f"{low:.1f} to {high:.1f}" if not math.isnan(low) else NOTHING
        error = plain_number(row["error"])
        cells = (
            str(row["paper"]),
            score_or_dash(plain_number(row["cvs"])),
            runs,
            str(row["tier"]) or NOTHING,
            str(row["expected"]),
            NOTHING if math.isnan(error) else f"{error:+.0f}" if error else "0",
            str(row["source"]),
            number_or_dash(plain_number(row["boundary"])),
        )
        rows.append(Row(cells))
    columns = (
        Column("paper", numeric=False),
        Column("CVS"),
        Column("single runs", optional=1),
        Column("tier", numeric=False),
        Column("label", numeric=False),
        Column("error"),
        Column("source", numeric=False, optional=2),
        Column("boundary", optional=3),
    )
    return TextTable("Papers", columns, tuple(rows))


def _baselines(record: Record) -> TextTable:
    keys = ("exact", "within 1", "within 2", "mae", "signed", "weighted")
    rows = [
        (
            str(row["judge"]),
            *(number_or_dash(plain_number(row[key])) for key in keys),
            str(row["n"]),
        )
        for row in record.table("baselines").rows()
    ]
    headings = ("judge", "exact", "within 1", "within 2", "mean error", "signed", "kappa", "n")
    return TextTable.of(
        "Judges that know nothing",
        headings,
        rows,
        caption="Shares of papers, errors in tiers, kappa with quadratic weights. Of random judges"
        " the expected values.",
    )


def _sources(record: Record) -> TextTable:
    rows = [
        (
            str(row["source"]) or NOTHING,
            f"{row['hits']} of {row['n']}",
            interval(*(plain_number(row[key]) for key in ("exact", "low", "high"))),
            str(row["over"]),
            str(row["under"]),
        )
        for row in record.table("sources").rows()
    ]
    return TextTable.of("Labels by source", ("source", "exact", "share", "above", "below"), rows)


def _boundaries(record: Record) -> TextTable:
    rows = [
        (
            str(row["tier"]),
            f"{plain_number(row['least']):g} → {plain_number(row['moved']):.2f}",
            str(row["by"]),
            str(row["n_changed"]),
            str(row["changed"]) or NOTHING,
            f"{row['exact']} of {row['n']}",
        )
        for row in record.table("boundaries").rows()
    ]
    headings = ("tier above", "boundary", "by", "changed", "papers", "exact then")
    return TextTable.of("Boundaries of tiers", headings, rows, words=True)


def _criteria(record: Record) -> TextTable:
    rows = [
        (
            f"{row['criterion']} {row['name']}",
            number_or_dash(plain_number(row["exact"])),
            number_or_dash(plain_number(row["mae"])),
            str(row["judge_higher"]),
            str(row["judge_lower"]),
            str(row["n"]),
        )
        for row in record.table("criteria").rows()
    ]
    rows += [
        (
            f"always {row['status']}, all criteria",
            number_or_dash(plain_number(row["exact"])),
            number_or_dash(plain_number(row["mae"])),
            "",
            "",
            str(row["n"]),
        )
        for row in record.table("constants").rows()
    ]
    headings = ("criterion", "exact", "mean error", "judge higher", "judge lower", "n")
    return TextTable.of("Criteria of matched claims", headings, rows)


def _failed_checks(record: Record) -> TextTable:
    """The printed statements that do not hold, which a console has room for."""
    table = _checks(record)
    return replace(table, rows=tuple(row for row in table.rows if row.cells[-1] == FAILED))


def _checks(record: Record) -> TextTable:
    rows = [
        (
            str(row["where"]),
            str(row["about"]),
            str(row["printed"]),
            str(row["recomputed"]),
            NOTHING if row["holds"] is None else "holds" if row["holds"] else FAILED,
        )
        for row in record.table("checks").rows()
    ]
    headings = ("where", "statement", "printed", "recomputed", "")
    return TextTable.of("Printed statements", headings, rows, words=True)
