"""Robust discovery: rankings and their differences at every size, then the rounds of each tail.

A record is one repeat. Numbers are means over repeats, with Student's interval where there are two
or more, and a repeat's own bootstrap interval where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mechassay.results.page import Page, Report, Section, Text, TextTable
from mechassay.results.records import Record, Scalar
from mechassay.results.sections import failures_table, framed
from mechassay.stats.intervals import LEVEL, Estimate, student_interval
from mechassay.utils.display import interval, number, share

EMPTY = "no edges"
OWN = "matched pairs: mean"
STATISTICS = (OWN, "mean", "worst 10%", "99%", "max")
ROUND_HEADS = ("ranking", "round", "mean", "tail", "max", "pairs counted", "heaviest group")
READING = {
    "KL": (
        "KL(M(x) || C(x, x~)) in nats at the last token. All columns but one are about the held-out"
        " grid: clean prompts x with corrupted prompts x~ of other examples, of one template where"
        " the pairing is same-template."
    ),
    OWN: "The mean over held-out pairs as the task makes them.",
    "worst 10 %": "The mean of the tenth of the pairs with the largest KL.",
    "Rankings": (
        "matched: scored on the task's own pairs. random, same-template: on the same clean prompts,"
        " each with corrupted prompts of other examples. The others: on such pairs, where those"
        " that the circuit fails on count for more."
    ),
    "Intervals": (
        "95 %. Of one repeat: bootstraps over the held-out prompts, rankings given; differences are"
        " of the same resampled prompts. Of several: Student's over repeats, each with pairs of its"
        " own. Where an interval of a difference holds 0, nothing was shown. They are not adjusted"
        " for the number of comparisons."
    ),
    "Rounds": (
        "What the circuit of each round did on its fresh pairs. Their clean prompts are those that"
        " the circuit was found on. The heaviest group is the one that worst-group lets count most,"
        " and its share."
    ),
    "Edges on a path": (
        "Those of the edges asked for that are on a path from input to logits; the others do"
        " nothing."
    ),
}


class RobustPage(Page):
    """Circuits that were made robust."""

    def title(self, report: Report) -> str:
        """What the page is called."""
        cell = (*report.records, *report.failures)[0].cell
        return f"Robust discovery: {cell.get('task', '')}, {cell.get('model', '')}"

    def tables(self, report: Report) -> list[TextTable]:
        """At every size the rankings and their differences; then the rounds; then what failed."""
        records = report.records
        made: list[TextTable] = []
        heads = tuple(name.replace("%", " %") for name in STATISTICS)
        for size in _keys(records, "circuits", "size"):
            at = f"{share(size)} of the edges" if isinstance(size, float) else f"{size:,} edges"
            empty = _texts(records, "rankings", ranking=EMPTY)
            rows: list[tuple[str, ...]] = [(f"{EMPTY} (corrupted run)", "0", "0", *empty)]
            for ranking in _keys(records, "circuits", "ranking"):
                of = {"ranking": ranking, "size": size}
                about = (
                    _mean(records, "circuits", name, of) for name in ("pairs", "edges on a path")
                )
                rows.append((str(ranking), *about, *_texts(records, "rankings", **of)))
            made.append(
                TextTable.of(
                    f"KL, {at}",
                    ("ranking", "pairs", "edges on a path", *heads),
                    rows,
                    leave_out=("edges on a path", "pairs", "99 %", "max"),
                )
            )
            rows = [
                (
                    f"{of} minus {minus}",
                    *_texts(records, "differences", **key),
                    _lower(records, key),
                )
                for of, minus in _differences(records)
                for key in [{"of": of, "minus": minus, "size": size}]
            ]
            columns = ("difference", *heads, "mean is lower in")
            about_them = f"Differences of KL, {at}"
            last = ("mean is lower in", "99 %", "max")
            made.append(TextTable.of(about_them, columns, rows, leave_out=last))
        rounds = list(_rounds(records))
        if rounds:
            head = "KL of each round's circuit on its fresh pairs, mean over repeats"
            made.append(TextTable.of(head, ROUND_HEADS, rounds))
        return [*made, *failures_table(report.failures, "repeat")]

    def sections(self, report: Report) -> list[Section]:
        """How far robust circuits lie from others, a section a table; the rest is folded."""
        return framed(
            report,
            [Text(_verdict(report.records), "verdict")] if report.records else [],
            [Section(table.title, (table,)) for table in self.tables(report)],
            reading=READING,
        )


def _verdict(records: Sequence[Record]) -> str:
    """Which differences of the worst tenth of pairs are of one sign, at every size."""
    worst = STATISTICS[2]
    parts: list[str] = []
    for size in _keys(records, "circuits", "size"):
        signs: dict[str, list[str]] = {"lower": [], "higher": [], "not told apart": []}
        for of, minus in _differences(records):
            difference = _over_records(
                records, "differences", worst, {"of": of, "minus": minus, "size": size}
            )
            sign = "lower" if difference.high < 0 else "higher" if difference.low > 0 else None
            signs[sign or "not told apart"].append(f"{of} than {minus}")
        at = f"{share(size)} of the edges" if isinstance(size, float) else f"{size:,} edges"
        parts += [f"at {at} {sign}: {', '.join(names)}" for sign, names in signs.items() if names]
    counted = "one repeat" if len(records) == 1 else f"{len(records)} repeats"
    return f"The KL of the worst tenth of pairs, {counted}: {'; '.join(parts)}."


def _keys(records: Sequence[Record], table: str, column: str) -> list[Scalar]:
    """The values of a column, each once, in the order of the first record."""
    return list(dict.fromkeys(records[0].table(table).columns[column])) if records else []


def _differences(records: Sequence[Record]) -> list[tuple[Scalar, Scalar]]:
    columns = records[0].table("differences").columns
    return list(dict.fromkeys(zip(columns["of"], columns["minus"], strict=True)))


def _texts(records: Sequence[Record], table: str, **of: Scalar) -> Iterator[str]:
    """Each statistic over the repeats, as text."""
    for statistic in STATISTICS:
        mean = _over_records(records, table, statistic, of)
        yield interval(mean.value, mean.low, mean.high)


def _over_records(
    records: Sequence[Record], table: str, statistic: str, of: Mapping[str, Scalar]
) -> Estimate:
    """A statistic over the repeats."""
    rows = [record.table(table).where(**of, statistic=statistic) for record in records]
    ends = [[row.numbers(end)[0] for end in ("value", "low", "high")] for row in rows]
    return over_repeats([Estimate(*map(float, end)) for end in ends])


def over_repeats(estimates: Sequence[Estimate], level: float = LEVEL) -> Estimate:
    """The mean over independent repeats with Student's interval; of one repeat, its own."""
    if len(estimates) == 1:
        return estimates[0]
    values = np.array([estimate.value for estimate in estimates])
    ends = student_interval(values[~np.isnan(values)], level)
    return Estimate(float(values.mean()), ends.low, ends.high)


def _mean(records: Sequence[Record], table: str, column: str, of: Mapping[str, Scalar]) -> str:
    values = [record.table(table).where(**of).numbers(column)[0] for record in records]
    return f"{np.mean(values):,.4g}"


def _lower(records: Sequence[Record], of: Mapping[str, Scalar]) -> str:
    """In how many repeats the mean is lower."""
    rows = [record.table("differences").where(**of, statistic="mean") for record in records]
    n_lower = sum(bool(row.numbers("value")[0] < 0) for row in rows)
    return f"{n_lower} of {len(records)} repeats"


def _rounds(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    """A row for every round of every ranking that has rounds."""
    if not records:
        return
    for row in records[0].table("rounds").rows():
        of = {name: row[name] for name in ("ranking", "round")}
        entries = [record.table("rounds").where(**of) for record in records]
        means = (
            number(float(np.mean([entry.numbers(name)[0] for entry in entries])))
            for name in ("mean", "tail", "max")
        )
        counted = _mean(records, "rounds", "counted", of)
        heaviest = _heaviest([record.table("groups").where(**of).rows() for record in records])
        yield (str(row["ranking"]), str(row["round"]), *means, counted, heaviest)


def _heaviest(repeats: Sequence[Sequence[Mapping[str, Scalar]]]) -> str:
    """The share of the group that counts most, and its name if it is one in all repeats;
    nothing where all groups count alike.
    """
    if all(len({group["weight"] for group in groups}) < 2 for groups in repeats):
        return ""
    tops = [max(groups, key=lambda group: float(str(group["weight"]))) for groups in repeats]
    names = {str(group["group"]) for group in tops}
    label = f" ({names.pop()})" if len(names) == 1 else ""
    return f"{share(float(np.mean([float(str(group['weight'])) for group in tops])))}{label}"
