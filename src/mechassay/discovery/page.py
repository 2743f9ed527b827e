"""The page on methods that find circuits: the conclusion, curves, areas, ranks, and all measures.

The first sentences are those of `discovery.conclusion`.

Methods are ranked as far as differences between them are resolved (`ranked`). A rank "2–4" says
that one method is better, and that two of those from the second on cannot be told apart from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.circuits.drawing import signed
from mechassay.circuits.evaluation.chance import against_chance, n_methods
from mechassay.circuits.evaluation.differences import AreaName, Differences, differences_of
from mechassay.circuits.evaluation.selection import SELECTION
from mechassay.circuits.methods.method import CANDIDATES
from mechassay.circuits.methods.stability import STABILITY
from mechassay.discovery.conclusion import conclude
from mechassay.discovery.stability_section import READING as STABILITY_READING
from mechassay.discovery.stability_section import (
    resamples_sections,
    stability_sections,
)
from mechassay.errors import one_of
from mechassay.results.curves import (
    control_kinds,
    control_name,
    is_random,
    labels,
    random_curves,
)
from mechassay.results.page import (
    NOTHING,
    Block,
    Column,
    Figure,
    Heading,
    Page,
    Report,
    Row,
    Section,
    Text,
    TextTable,
)
from mechassay.results.plots import colours, draw_areas, draw_faithfulness, draw_ranking
from mechassay.results.records import Failure, Measure, PairTokens, Record
from mechassay.results.sections import (
    better_direction_note,
    facts_section,
    failure_row,
    framed,
    meanings,
    measure_column,
    measured,
    seconds_text,
    shown_measures,
    svg_parts,
    values_section,
    warnings_notice,
)
from mechassay.results.text import (
    areas_text,
    faithfulness_text,
    kept_at,
    objective,
    plain_number,
    setting_name,
    settings,
)
from mechassay.results.verdict import Conclusion
from mechassay.utils.display import interval, number, share


def baseline_text(record: Record) -> str:
    """m(N), m(0) and their difference in words; empty where the record does not have them."""
    full, empty = (record.measure("objective", f"control:{end}") for end in ("full", "empty"))
    between = record.measure("denominator", "control:full")
    if full is None or empty is None or between is None:
        return ""
    low, high = between.low, between.high
    return (
        f"The mean of {_whose(record)} is m(N) = {number(full.value, low, high)} for the whole"
        f" model and m(0) = {number(empty.value, low, high)} for the empty circuit; m(N) − m(0) ="
        f" {interval(full.value - empty.value, low, high)}."
    )


def ability_text(record: Record) -> str:
    """Sentence on the model's accuracy, next to guessing and the accuracy with exchanged prompts.

    Empty if the record lacks one of the three.
    """
    right, guess, other = (
        record.measure(name, "model") for name in ("accuracy", "chance", "exchanged")
    )
    if right is None or guess is None or other is None:
        return ""
    compared = f"guessing is right on {number(guess.value)}"
    if not math.isnan(other.value):
        compared += f", and exchanged prompts on {number(other.value)}"
    name = record.model.name or "The model"
    accuracy = interval(right.value, right.low, right.high)
    return f"{name} is right on {accuracy} of {right.n:,} pairs; {compared}."


def _whose(record: Record) -> str:
    whose = f"{record.model.name}'s" if record.model.name else "the"
    return f"{whose} {objective(record)}"


def comparable(records: Sequence[Record]) -> bool:
    """Whether records are of one evaluation and hold each example's value at every size."""
    if len(records) < 2 or not all(map(_held, records)):
        return False
    return len({tuple(record.values.ids) for record in records if record.values}) == 1


def _held(record: Record) -> bool:
    """Whether the values of all circuits of a record are in it."""
    if record.values is None or not record.has_table("curve"):
        return False
    points = record.table("curve").where(of="result").rows()
    keys = [f"{row['ranking']}@{float(str(row['fraction'])):g}" for row in points]
    return bool(keys) and {"clean", "empty", *keys} <= set(record.values.columns)


def rank_text(rank: tuple[int, int] | None) -> str:
    """A range of ranks: "1", "2–4"; a dash where there is none."""
    if rank is None:
        return NOTHING
    first, last = rank
    return f"{first}" if first == last else f"{first}–{last}"


def ranked(
    records: Sequence[Record], area: AreaName, names: Sequence[str] | None = None
) -> Differences | None:
    """The differences of an area between records; None where they are not comparable."""
    return differences_of(records, area, names=names) if comparable(records) else None


def resolved_text(differences: Differences) -> str:
    """How many differences are resolved: "60 of 91"."""
    return f"{differences.n_resolved:,} of {differences.n_pairs:,}"


UNKNOWN = ("undefined", "few rankings", "few groups")
"""Verdicts that say nothing of a method."""
STRONGEST = 10
"""Rows of a table of edges."""
RANKED: tuple[AreaName, ...] = ("cpr", "cmd")
SUPPORTING = {"cma": 0, "cmd": 1, "cpr": 7, "log_cpr": 8, "log_cmd": 8}
"""What a narrow console leaves out first: what says again what others say."""
PUBLISHED = {"cpr": 0, "cmd": 0, "cma": 5}
"""The same in the profile mib-2025: CPR and CMD are the published measures."""
BY = {
    **dict.fromkeys(("cpr", "log_cpr"), " (by value)"),
    **dict.fromkeys(("cmd", "log_cmd", "cma"), " (by magnitude)"),
}
"""By which ranking the circuits of a measure are cut."""

READING = {
    "Faithfulness f": (
        "A circuit's edges carry the clean prompt's activations, all others those of its"
        " counterfactual. f is the objective that the circuit keeps, on a scale on which the empty"
        " circuit is 0 and the whole model is 1. It exceeds 1 where edges are left out that work"
        " against the answer."
    ),
    "Agreement A": (
        "The share of what ablation changes that a circuit keeps, pair by pair: with d what"
        " ablating everything changes of a pair's objective, and e what is wrong with the"
        " circuit's, the sum of |d| - |e|, where that is above 0, over the sum of |d|. 1 is the"
        " model in every pair."
        " Overshoot earns nothing, and errors of two pairs do not cancel."
    ),
    "CMA": (
        "The area under A over circuit size, edges taken by magnitude. Higher is better; at most 1."
    ),
    "CPR": (
        "The area under f over circuit size, edges taken by value, best first. Circuits that"
        " matched the whole model at every size would have about 1; more is overshoot."
    ),
    "CMD": (
        "The area between f and 1, edges taken by magnitude. Lower is better; 0 means the model's"
        " own behaviour at every size. Where f is near 1, noise alone makes the distance larger"
        " than 0, and more so with fewer examples. The interval accounts for this: it includes 0"
        " where the circuits may be perfect."
    ),
    "Rank": (
        "1 is best. 2–4: one method is better, and which of the second to the fourth it is cannot"
        " be told. The differences of all pairs of methods are taken over the same examples, and"
        " their intervals hold together, with 95 %. Two intervals may overlap while the difference"
        " is resolved."
    ),
    "log CPR, log CMD": (
        "The same over the logarithm of circuit size: small circuits count. In the linear areas,"
        " circuits of at least 20 % of the edges have 80 % of the weight."
    ),
    "Random edges, random paths": (
        "Random rankings, cut and pruned to the same sizes: of edges drawn one by one, few of"
        " which are on a path from input to logits in a small circuit, and of paths, all of whose"
        " edges are. They say what the sizes alone are worth. A method is better than random"
        " rankings if it is beyond what the best of as many random ones may reach as methods were"
        " tried, with an error of at most 5 %."
    ),
    "Intervals": (
        "Bootstrap over the evaluated examples, whole groups at a time. They do not cover the"
        " choice of the examples that the scores were found on: how much that changes is in the"
        " section on how circuits vary with the pairs."
    ),
}
PROFILES = {
    "strict": (
        "The areas are means over circuit size, of the largest measured circuit that is not"
        " larger: each counts from the size it has after pruning to that of the next one. Circuits"
        " that do nothing have CPR 0 and CMD 1, those with f = 1 at every size CPR 1 and CMD 0."
        " What has no score is in the full circuit alone. Where the interval of the full minus the"
        " empty circuit contains 0, everything is undefined."
    ),
    "mib-2025": (
        "The arithmetic of Mueller et al. (2025): a circuit stands at the size asked for, not the"
        " size left after pruning, and a difference between the full and the empty circuit that"
        " may be 0 is divided by all the same."
    ),
}


class TaskPage(Page):
    """Methods that find circuits."""

    def title(self, report: Report) -> str:
        models = {record.model.name for record in report.records} - {""}
        tasks = {record.task.name for record in report.records} - {""}
        of = f" of {models.pop()}" if len(models) == 1 else ""
        on = f" on {tasks.pop()}" if len(tasks) == 1 else ""
        return f"Faithfulness of circuits{of}{on}"

    def tables(self, report: Report) -> list[TextTable]:
        return [results_table(report.records, report.failures)]

    def conclusions(self, records: Sequence[Record]) -> list[Conclusion]:
        """The conclusion on each setting."""
        return [conclude(group) for group in settings(records)]

    def answers(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[str]:
        return [line for conclusion in self.conclusions(records) for line in conclusion.lines]

    def sections(self, report: Report) -> list[Section]:
        """Verdicts and the faithfulness of circuits of all sizes; a table for each setting."""
        records = report.records
        groups = settings(records)
        alone = len(groups) == 1
        rows = [
            Section(
                "Methods" if alone else setting_name(group[0]),
                (
                    *([] if alone else [faithfulness_chart(group)]),
                    results_table(group, report.failures if alone else ()),
                    Text(RANKS_SAY, "soft"),
                ),
            )
            for group in groups
        ]
        if report.failures and not alone:
            rows.append(Section("Failed", (results_table((), report.failures),)))
        areas = tuple(map(areas_chart, groups))
        return framed(
            report,
            [block for group in groups for block in verdict_blocks(group, alone)],
            rows,
            figure=[faithfulness_chart(groups[0])] if alone else [],
            folded=[
                *([Section("CPR and CMD as a figure", areas)] if areas else []),
                *stability_sections(records),
                *resamples_sections(records),
                *_selection_sections(records),
                *_first_pairs(groups),
                *_drawings(report.drawings),
            ],
            reading=reading(records),
            facts=facts_section(records, _facets),
            values=_values(records),
        )

    def draw(
        self,
        record: Record,
        ax: Axes | None = None,
        *,
        ranking: Literal["value", "magnitude"] = "value",
    ) -> MatplotlibFigure | None:
        """Faithfulness at every size, with controls; on `ax` by one ranking."""
        one_of("ranking", ranking, ("value", "magnitude"))
        if not record.has_table("curve"):
            return None
        return draw_faithfulness([record]) if ax is None else draw_ranking([record], ranking, ax)

    def draw_all(self, records: Sequence[Record]) -> MatplotlibFigure | None:
        """Faithfulness at every size, a line each."""
        drawn = [record for record in records if record.has_table("curve")]
        return draw_faithfulness(drawn) if drawn else None


RANKS_SAY = (
    "Ranks are as far as paired differences are resolved: 2–4 is second to fourth. “Kept” are the"
    " edges on a path from input to logits, of those asked for."
)


def verdict_blocks(group: Sequence[Record], alone: bool) -> list[Block]:
    """The conclusion on a setting, and its m(N) and m(0)."""
    first, *more = conclude(group).lines
    return [
        Text(first, "verdict", "" if alone else f"{setting_name(group[0])}."),
        *(Text(text, "verdict") for text in more),
        *(Text(text, "soft") for text in (ability_text(group[0]), baseline_text(group[0])) if text),
    ]


def details(group: Sequence[Record]) -> list[Block]:
    """All of one setting in a fold: verdicts, warnings, figures, table and a pair."""
    blocks = (*verdict_blocks(group, alone=True), *warnings_notice(group))
    pair = first_pair(group[0])
    return [
        *blocks,
        faithfulness_chart(group),
        areas_chart(group),
        results_table(group),
        *([Heading("An example pair"), *pair] if pair else []),
    ]


def faithfulness_chart(group: Sequence[Record]) -> Figure:
    """Faithfulness over circuit size, with its description."""
    name = f"Faithfulness over circuit size: {setting_name(group[0])}"
    return Figure(partial(draw_faithfulness, group), name=name, about=faithfulness_text(group))


def areas_chart(group: Sequence[Record]) -> Figure:
    """CPR and CMD with intervals, with their description."""
    name = f"CPR and CMD: {setting_name(group[0])}"
    return Figure(partial(draw_areas, group), name=name, about=areas_text(group))


def reading(records: Sequence[Record]) -> dict[str, str]:
    """What words mean, of those that the page has."""
    if not records:
        return {}
    known = dict(READING)
    if not any(record.measure("log_cpr") for record in records):
        del known["log CPR, log CMD"]
    if any(record.has_table(STABILITY) for record in records):
        known |= STABILITY_READING
    profiles = {str(record.metric.args.get("profile")) for record in records}
    known |= {f"Profile {name}": text for name, text in PROFILES.items() if name in profiles}
    return {**known, **meanings(records)}


# The table


def results_table(records: Sequence[Record], failures: Sequence[Failure] = ()) -> TextTable:
    """A row for every record, one for every distinct random control, one for every failure."""
    measures = shown_measures(records)
    columns = [Column("method", numeric=False)]
    published = any(record.metric.args.get("profile") == "mib-2025" for record in records)
    supporting = {**SUPPORTING, **(PUBLISHED if published else {})}
    for measure in measures:
        by = BY.get(measure.name, "")
        column = measure_column(measure, supporting.get(measure.name, 2))
        columns.append(replace(column, heading=f"{column.heading}{by}"))
        if measure.name in RANKED:
            columns.append(Column(f"rank by {measure.heading}", optional=6))
    columns += [Column("n", optional=1), Column("kept at 1 %", optional=8)]
    columns.insert(-2, Column("better than random", numeric=False, optional=3))
    columns.append(Column("seconds", optional=4))
    columns.append(Column("notes", numeric=False, optional=9))
    names = dict(zip(map(id, records), labels(records), strict=True))
    drawn = dict(zip(map(id, records), colours(records), strict=True))
    rows: list[Row] = []
    for group in settings(records):
        ranks, n_tried = _ranks(group), n_methods(group)
        for place, record in enumerate(group):
            cells = _cells(record, measures, ranks[place], n_tried)
            rows.append(Row((names[id(record)], *cells), "method", drawn[id(record)]))
        rows += _control_rows(group, measures)
    full = [*rows, *(failure_row(failure) for failure in failures)]
    return _without_empty(
        TextTable("", tuple(columns), tuple(full), better_direction_note(measures))
    )


def _selection_sections(records: Sequence[Record]) -> list[Section]:
    """What share of positive edges was chosen at each size, and what every share reached."""
    named = zip(records, labels(records), strict=True)
    made = [
        (record.table(SELECTION), label) for record, label in named if record.has_table(SELECTION)
    ]
    blocks: list[Block] = []
    for table, label in made:
        rows = table.rows()
        n, n_circuits, split = (rows[0][name] for name in ("n_pairs", "n_circuits", "split"))
        n_apart = sum(not row["nested"] for row in rows)
        shares = [name for name in table.columns if name.startswith("f at ")]
        nested = f"Circuits that lack edges of the next smaller one: {n_apart} of {len(rows)}."
        blocks += [
            Text(
                f"{label}: at each size the mixture of positive and largest edges whose mean"
                f" faithfulness f is nearest to 1 on {n:,} {split} pairs; the others on those"
                f" pairs stand beside it. It took {n_circuits:,} forwards of each of these pairs."
                f" {nested if n_apart else 'Each circuit holds the smaller ones.'}"
            ),
            TextTable.of(
                "",
                ("size", "edges", "positive", "f", *shares),
                [
                    (
                        share(plain_number(row["fraction"])),
                        f"{row['edges']:,}",
                        share(plain_number(row["positive"])),
                        *(number(plain_number(row[name])) for name in ("f", *shares)),
                    )
                    for row in rows
                ],
            ),
        ]
    return [Section("Edges chosen by faithfulness", tuple(blocks))] if blocks else []


def _without_empty(table: TextTable) -> TextTable:
    """The table without columns in which no row has anything; messages need two."""
    whole = [row for row in table.rows if len(row.cells) == len(table.columns)]
    n = len(table.columns)
    places = [place for place in range(n) if place == 0 or any(row.cells[place] for row in whole)]
    if len(places) == 1:
        places.append(n - 1)
    rows = tuple(
        replace(row, cells=tuple(row.cells[place] for place in places)) if row in whole else row
        for row in table.rows
    )
    columns = tuple(table.columns[place] for place in places)
    return TextTable(table.title, columns, rows, table.caption if whole else "")


def _cells(
    record: Record, measures: Sequence[Measure], ranks: Mapping[str, str], n_tried: int
) -> list[str]:
    cells: list[str] = []
    for name in (measure.name for measure in measures):
        cells.append(measured(record.measure(name)))
        if name in RANKED:
            cells.append(ranks.get(name, ""))
    notes: list[str] = []
    if record.has_table(CANDIDATES):
        tried = record.table(CANDIDATES)
        # An undefined area is never the lowest.
        best = int(np.nan_to_num(tried.numbers("cmd"), nan=math.inf).argmin())
        name = tried.columns["candidate"][best]
        notes.append(f"{name}, of {len(tried)} by CMD on validation pairs")
    n_undefined = max((m.n_undefined for m in record.measures if m.of == "result"), default=0)
    if n_undefined:
        notes.append(f"undefined at {n_undefined} sizes")
    if record.value("cpr") > 1:
        notes.append("CPR overshoots")
    if record.warnings:
        notes.append(f"{len(record.warnings)} warning{'s' * (len(record.warnings) > 1)}")
    cells += [chance_words(record, n_tried), f"{record.n:,}", kept_at(record)]
    return [*cells, seconds_text(record), "; ".join(notes)]


def chance_words(record: Record, n_tried: int) -> str:
    """By which areas a record is better than random rankings: "CPR, CMD", "no", or why unknown."""
    if is_random(record):
        return ""
    results = [against_chance(record, area, n_tried) for area in RANKED]
    better = [result.area.upper() for result in results if result.verdict == "better"]
    unknown = [result.verdict for result in results if result.verdict in UNKNOWN]
    return ", ".join(better) or (unknown[0] if unknown else "no")


def _ranks(group: Sequence[Record]) -> list[dict[str, str]]:
    """The ranks of the methods of a setting, by both areas, as far as differences are resolved."""
    by_area = {area: ranked(group, area) for area in RANKED}
    return [
        {
            area: rank_text(differences.ranks()[place])
            for area, differences in by_area.items()
            if differences
        }
        for place in range(len(group))
    ]


def _control_rows(group: Sequence[Record], measures: Sequence[Measure]) -> list[Row]:
    """A row a kind of random rankings, shared by the records that were compared with the same."""
    rows: dict[Row, None] = {}
    for record in group:
        for kind in control_kinds(record):
            cells: list[str] = []
            for name in (measure.name for measure in measures):
                cells.append(measured(record.measure(name, f"control:{kind}")))
                cells += [""] * (name in RANKED)
            seeds = len(random_curves(record, kind))
            about = f"mean of {seeds} seed{'s' * (seeds != 1)}" if seeds else ""
            row = (control_name(kind), *cells, "", f"{record.n:,}", "", "", about)
            rows[Row(row, "control")] = None
    return list(rows)


# The rest


def _facets(record: Record) -> dict[str, str]:
    texts: list[str] = []
    for kind in control_kinds(record):
        if n := against_chance(record, "cpr").n_drawn.get(kind):
            texts.append(f"{n} rankings of {control_name(kind)}")
    if seconds := record.spent.get("shared_controls_s"):
        texts.append(f"{seconds:,.1f} s, shared by all methods")
    return {
        "objective": objective(record),
        "profile": str(record.metric.args.get("profile", "")),
        "random control": "; ".join(texts) or "none",
    }


def _drawings(drawings: Sequence[object]) -> list[Section]:
    """Each drawing, with the edges of the largest scores."""
    point = "Point at a line or a box for its name and scores."
    blocks: list[Block] = []
    for drawing in drawings:
        svg, name, about = svg_parts(drawing)
        blocks.append(Figure(svg, name, f"{about} {point}", "drawing"))
        strongest: tuple[tuple[str, float], ...] = getattr(drawing, "strongest", ())
        if strongest:
            blocks.append(_strongest(name, strongest))
    return [Section("Circuits", tuple(blocks))] if blocks else []


def _strongest(name: str, edges: Sequence[tuple[str, float]]) -> TextTable:
    strongest, largest = edges[:STRONGEST], abs(edges[0][1])
    rows = [
        (
            edge_text(edge),
            signed(score),
            share(abs(score) / largest) if largest else NOTHING,
        )
        for edge, score in strongest
    ]
    cut = len(strongest) < len(edges)
    caption = f"The {len(strongest):,} strongest of the {len(edges):,} edges drawn." if cut else ""
    columns = ("edge", "score", "|score|, of the largest")
    title = f"Strongest edges of {name.partition(':')[0]}"
    return TextTable.of(title, columns, rows, caption=caption)


def edge_text(edge: str) -> Markup:
    """The name of an edge, as code."""
    return Markup('<span class="token">{}</span>').format(edge)


def _first_pairs(groups: Sequence[Sequence[Record]]) -> list[Section]:
    """The first test pair of each setting, where the record holds it."""
    blocks: list[Block] = []
    for group in groups:
        if pair := first_pair(group[0]):
            blocks += [] if len(groups) == 1 else [Heading(setting_name(group[0]))]
            blocks += pair
    return [Section("An example pair", tuple(blocks))] if blocks else []


def first_pair(record: Record) -> list[Block]:
    """The first test pair, where the record holds it."""
    chosen = record.data.get("test")
    if chosen is None or chosen.first is None:
        return []
    return [pair_table(chosen.first, chosen.kept)]


def pair_table(pair: PairTokens, kept: int) -> TextTable:
    """A pair with its tokens; those that differ between the prompts are marked."""
    differ = [one != other for one, other in zip(pair.clean, pair.counterfactual, strict=True)]
    rows = [
        ("clean", _tokens(pair.clean, differ)),
        ("counterfactual", _tokens(pair.counterfactual, differ)),
        (f"answer{'s' * (len(pair.answers) > 1)}", _tokens(pair.answers)),
        (f"foil{'s' * (len(pair.foils) > 1)}", _tokens(pair.foils)),
    ]
    caption = (
        f"{pair.id}, the first of {kept:,} pairs. Each box is a token; those that differ between"
        " the prompts are marked. Answers and foils are compared by their first token."
    )
    return TextTable.of("", ("", "tokens"), rows, words=True, caption=caption)


def _tokens(tokens: Sequence[str], marked: Sequence[bool] = ()) -> Markup:
    """Tokens one after another, with their spaces."""
    columns = [
        Markup("<mark>{}</mark>").format(token) if differs else escape(token)
        for token, differs in zip(tokens, marked or [False] * len(tokens), strict=True)
    ]
    return Markup(" ").join(Markup("<code>{}</code>").format(token) for token in columns)


def _values(records: Sequence[Record]) -> list[Section]:
    about = (
        "The objective in the clean run (full circuit), in the empty circuit, and in the circuits"
        " of the best edges by value."
    )
    return values_section(records, about, _values_heading)


def _values_heading(column: str) -> str | None:
    by, _, fraction = column.partition("@")
    if not fraction:
        return column
    return f"value@{share(float(fraction))}" if by == "value" else None
