"""Metrics of measurement: what each says, and whether that can be trusted.

The first sentence of a metric has its verdict, and how often simulated inputs of the same size pass
that are worth nothing, and how often sound ones do. A pass is trusted if the 95 % interval of every
worthless kind ends by `MOST_FALSE`; a failure if that of every sound kind begins at `LEAST_POWER`.
Both need sound inputs to pass more often than worthless ones: what passes all, or nothing, tells
nothing apart.

The first table has a row a metric, by the repaired definition and as published. Each metric's
quantities, conditions, the reading of the published table and details are folded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.measurement.figures import ABOUT, draw_measurement
from mechassay.measurement.gauges import metric_of
from mechassay.measurement.measurement import ALL, NAMES, PASSED, PassRate
from mechassay.results.curves import labels
from mechassay.results.page import (
    Block,
    Column,
    Figure,
    Fold,
    Page,
    Report,
    Row,
    Section,
    Text,
    TextTable,
)
from mechassay.results.plots import draw_points
from mechassay.results.records import Measure, Record, Scalar, Table
from mechassay.results.sections import failure_row, framed, meanings, stored_table
from mechassay.results.text import plain_number
from mechassay.stats.intervals import Estimate
from mechassay.utils.display import UNDEFINED, interval, share

VARIANTS = {"repaired": "result", "page": "page"}
"""Variants, and what their measures are of."""
SPREADS = ("_se", "_sd", "_sem", "standard_error", "minimum_difference", "relative_error")
"""What names of quantities end with that are themselves about how far numbers may be off."""
OWN = ("verdicts", "conditions", "readings", "flags", "rates", "responses")
MOST_FALSE, LEAST_POWER, LEAST_TRUSTED = 0.1, 0.8, 0.5
READING = {
    "Repaired, as published": (
        "The repaired definition is what counts. The published one is beside it to the letter, with"
        " its defaults and all conditions of its text."
    ),
    "Trusted": (
        f"A pass can be trusted if at most {share(MOST_FALSE)} of simulated worthless inputs of the"
        f" same size pass too, of the worst kind; a failure if at least {share(LEAST_POWER)} of"
        " sound ones pass. By the end of the 95 % interval over simulations; and only where sound"
        " inputs pass more often than worthless ones."
    ),
    "No verdict": "The metric only reports, or a quantity that decides is undefined.",
    "False alarm, power": (
        "Shares of simulated inputs that meet the condition: inputs that are worth nothing, and"
        " inputs of a known worth; of several kinds the worst. The table of rates says which they"
        " are. Real inputs may differ."
    ),
    "Reading": (
        "What the published table says of the published value. On an edge two bands meet; in a gap"
        " the table says nothing."
    ),
    "Evidence for": "The criterion of the rubric that the repaired numbers speak about.",
}


class MeasurePage(Page):
    """Metrics of measurement."""

    def title(self, report: Report) -> str:
        names = ", ".join(dict.fromkeys(record.model.name for record in report.records))
        return f"Measurement: {names}" if names else "Measurement"

    def tables(self, report: Report) -> list[TextTable]:
        """A row a metric; the conditions of all; what each establishes, and what not."""
        conditions = [_conditions(record) for record in report.records]
        about = TextTable.of(
            "What metrics establish",
            ("metric", "establishes", "does not establish"),
            [
                (metric.id, metric.establishes, metric.does_not)
                for name in dict.fromkeys(record.method.name for record in report.records)
                if (metric := metric_of(name)) is not None
            ],
            words=True,
        )
        return [_verdicts(report), *conditions, *([about] if about.rows else [])]

    def sections(self, report: Report) -> list[Section]:
        """What each metric says and whether to trust it; a table of all; each folded."""
        records = report.records
        named = list(zip(records, labels(records), strict=True))
        return framed(
            report,
            [Text(_verdict(record), "verdict") for record in records],
            [Section("Metrics", (_verdicts(report),))],
            figure=_rates_figure(named),
            folded=[Section(name, tuple(_blocks(record))) for record, name in named],
            reading={**READING, **meanings(records)},
        )

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure | None:
        """The figure of a metric, if it has one."""
        return draw_measurement(record, ax)


@dataclass(frozen=True)
class _Rates:
    """How often inputs of a known worth pass a variant: of several kinds the worst.

    Attributes:
        worthless, sound: shares with their intervals; NaN where none was simulated.
        n: the size of the simulated inputs.
        n_simulations: of each kind; 0 where none was simulated.
    """

    worthless: Estimate
    sound: Estimate
    n: int
    n_simulations: int

    @staticmethod
    def of(record: Record, variant: str) -> _Rates:
        table = record.table("rates") if record.has_table("rates") else None
        rows = [] if table is None else table.where(variant=variant, condition=ALL).rows()
        by_kind: dict[str, list[Estimate]] = {"false alarm": [], "power": []}
        for row in rows:
            ends = (plain_number(row[name]) for name in ("share", "low", "high"))
            by_kind[str(row["rate"])].append(Estimate(*ends))
        nothing = Estimate(math.nan)
        return _Rates(
            max(by_kind["false alarm"], key=lambda rate: rate.high, default=nothing),
            min(by_kind["power"], key=lambda rate: rate.low, default=nothing),
            int(rows[0]["n"] or 0) if rows else 0,
            int(rows[0]["simulations"] or 0) if rows else 0,
        )


def _rates_figure(named: Sequence[tuple[Record, str]]) -> list[Block]:
    """How often worthless and sound inputs pass each metric, by both definitions."""
    rates = {v: [_Rates.of(record, v) for record, _ in named] for v in NAMES}
    if not any(rate.n_simulations for rate in chain.from_iterable(rates.values())):
        return []
    points = {
        f"{kind}, {NAMES[v]}": [getattr(rate, kind) for rate in rates[v]]
        for v in NAMES
        for kind in ("worthless", "sound")
    }
    drawn = draw_points(points, [name for _, name in named], "share of simulated inputs that pass")
    about = (
        "How often simulated inputs of the same size pass: those that are worth nothing, and sound"
        " ones; of several kinds the worst."
    )
    return [Figure(drawn, caption=about, name="How often metrics err", about=about)]


def _of(record: Record, column: str) -> dict[str, str]:
    """A column of the verdicts by variant."""
    rows = record.table("verdicts").rows() if record.has_table("verdicts") else []
    return {str(row["variant"]): str(row[column]) for row in rows}


def _verdict(record: Record) -> str:
    """What a metric says of its subject, and whether that can be trusted."""
    title = _of(record, "title").get("repaired", "")
    roles = [role for role in ("model", "task", "corpus") if role in record.specs]
    subject = ", ".join(dict.fromkeys(record.specs[role].name for role in roles))
    passes = _of(record, "verdict")
    verdict, published = passes.get("repaired", UNDEFINED), passes.get("page", UNDEFINED)
    has_published = any(measure.of == VARIANTS["page"] for measure in record.measures)
    rates = _Rates.of(record, "repaired")
    text = f"{record.method.name} ({title}) {IN_WORDS.get(verdict, verdict)} on {subject}"
    if not has_published:
        return f"{text}{_trust(verdict, rates)}"
    beside = f"By the published definition it {IN_WORDS.get(published, published)}"
    false = _Rates.of(record, "page").worthless
    if false.value > 0:
        beside += f"; a share of {interval(false.value, false.low, false.high)} of worthless inputs"
        beside += " passes that"
    return f"{text}{_trust(verdict, rates)} {beside}."


IN_WORDS = {"no verdict": "gives no verdict"}


def _trust(verdict: str, rates: _Rates) -> str:
    """Whether a verdict can be trusted, by how often inputs of a known worth pass."""
    if verdict not in (PASSED[True], PASSED[False]):
        return "."
    if not rates.n_simulations:
        return "; how often it errs was not simulated."
    worthless, sound = (
        interval(estimate.value, estimate.low, estimate.high)
        for estimate in (rates.worthless, rates.sound)
    )
    of = f"{rates.n_simulations:,} simulated inputs of this size ({rates.n:,})"
    shares = (
        f"of {of} that are worth nothing, a share of {worthless} passes, of sound ones {sound}."
    )
    tells_apart = rates.sound.low > rates.worthless.high
    if verdict == PASSED[True]:
        powerful = rates.sound.value >= LEAST_TRUSTED
        trusted = rates.worthless.high <= MOST_FALSE and powerful
        otherwise = "cannot be trusted" if powerful else "says little, as few sound inputs pass"
    else:
        trusted, otherwise = rates.sound.low >= LEAST_POWER, "says little"
    return f", which {'can be trusted' if trusted and tells_apart else otherwise}: {shares}"


def _verdicts(report: Report) -> TextTable:
    rows: list[Row] = []
    for record, name in zip(report.records, labels(report.records), strict=True):
        verdicts = _of(record, "verdict")
        # The criterion in words: "Specificity (M4)".
        code, _, criterion = _of(record, "criterion").get("repaired", "").partition(" ")
        rows.append(
            Row(
                (
                    name,
                    verdicts.get("repaired", ""),
                    verdicts.get("page", ""),
                    _headline(record, "repaired"),
                    _headline(record, "page"),
                    f"{criterion} ({code.rpartition(':')[2]})" if criterion else code,
                    f"{record.n:,}",
                )
            )
        )
    rows += [failure_row(failure, "metric") for failure in report.failures]
    headings = ("metric", "repaired", "as published", "value", "value as published")
    columns = tuple(Column(name, numeric=False) for name in headings)
    about = Column("evidence for", numeric=False, optional=1)
    return TextTable("Metrics", (*columns, about, Column("n")), tuple(rows))


def _headline(record: Record, variant: str) -> str:
    """The quantity of the first condition, or the first one."""
    decided = [
        str(row["condition"]).split()[0]
        for row in record.table("conditions").rows()
        if row["variant"] == variant
    ]
    own = [m for m in record.measures if m.of == VARIANTS[variant]]
    first = [m for m in own if m.name in decided] or own
    return f"{first[0].heading} {_value(first[0])}" if first else ""


def _value(measure: Measure) -> str:
    """A number with its interval, in as many digits as a small one needs."""
    if math.isnan(measure.value):
        return UNDEFINED
    if math.isfinite(measure.low) and measure.high > measure.low:
        return interval(measure.value, measure.low, measure.high)
    return f"{measure.value:.4g}"


def _number_and_interval(measure: Measure) -> tuple[str, str]:
    """A number and its interval, or why it has none."""
    value, _, ends = _value(measure).partition(" ")
    return value, ends or f"none: {_why_none(measure)}"


def _why_none(measure: Measure) -> str:
    if math.isnan(measure.value):
        return UNDEFINED
    if math.isfinite(measure.low):
        return "both of its ends are the value"
    if measure.of == VARIANTS["page"]:
        return "the published definition has none"
    if measure.name.endswith(("_low", "_high")):
        return "it is an end of an interval"
    if measure.name.endswith(SPREADS):
        return "it is a spread or an error itself"
    return "the definition computes none"


def _blocks(record: Record) -> list[Block]:
    metric = metric_of(record.method.name)
    first: list[Block] = []
    if metric is not None:
        says = f"Establishes {metric.establishes}. Does not establish {metric.does_not}."
        first.append(Text(says))
    drawn = draw_measurement(record)
    if drawn is not None:
        about = ABOUT[record.method.name]
        first.append(Figure(drawn, caption=about, name=record.method.name, about=about))
    quantities = [
        (name, m.heading, *_number_and_interval(m), f"{m.n:,}" if m.n else "not said")
        for name, of in zip(NAMES.values(), VARIANTS.values(), strict=True)
        for m in record.measures
        if m.of == of
    ]
    blocks: list[Block] = [
        *first,
        TextTable.of(
            "Quantities",
            ("definition", "quantity", "value", "95 % interval", "n"),
            quantities,
            words=True,
        ),
        _conditions(record),
    ]
    readings = record.table("readings")
    if len(readings):
        blocks.append(stored_table(readings, "What the published table of readings says"))
    blocks += [
        Fold(f"{record.method.name}: {table.name}", (stored_table(table),))
        for table in record.tables
        if len(table) and (table.name not in OWN or table.name == "rates")
    ]
    return blocks


def _conditions(record: Record) -> TextTable:
    """Conditions with how often they err."""
    table: Table = record.table("conditions")
    rows = [
        (
            NAMES["repaired" if row["variant"] == "repaired" else "page"],
            str(row["condition"]),
            _decided(record, row),
            str(row["holds"]),
            _share(row["false_alarm"]),
            _share(row["power"]),
        )
        for row in table.rows()
    ]
    headings = ("definition", "condition", "value", "holds", "false alarm", "power")
    caption = (
        f"n: {record.n:,}. Values without an interval, and how sure the shares are: see the tables"
        " of quantities and of rates."
        if rows
        else "The metric only reports: it has no threshold."
    )
    return TextTable.of(
        f"Conditions, {record.method.name}", headings, rows, words=True, caption=caption
    )


def _decided(record: Record, row: Mapping[str, Scalar]) -> str:
    """The value that a condition is about, with its interval if it has one."""
    name, of = str(row["condition"]).split()[0], VARIANTS[str(row["variant"])]
    measure = record.measure(name, of)
    if measure is not None:
        return _value(measure)
    return UNDEFINED if row["value"] is None else f"{float(row['value']):.4g}"


def rates_table(rates: Sequence[PassRate]) -> TextTable:
    """How often thresholds err: a row a condition and scenario."""
    rows = [
        (
            NAMES[rate.variant],
            rate.condition,
            rate.scenario,
            "false alarm" if rate.worthless else "power",
            interval(rate.rate, rate.low, rate.high),
        )
        for rate in rates
    ]
    about = f"{rates[0].n_simulations:,} simulations of size {rates[0].n:,}." if rates else ""
    columns = (
        Column("definition", numeric=False),
        Column("condition", numeric=False),
        Column("simulated inputs", numeric=False, optional=1),
        Column("rate of", numeric=False),
        Column("share that passes"),
    )
    caption = f"{about} Brackets: 95 % interval over simulations." if rates else "No threshold."
    return TextTable("How often thresholds err", columns, tuple(map(Row, rows)), caption)


def _share(value: Scalar) -> str:
    return "not known" if value is None else f"{float(value):.3f}"
