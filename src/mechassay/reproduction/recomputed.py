"""What follows from a paper's own numbers or formulas, computed again without any model.

    mib          the column Arithmetic of tables 2 and 14 is the mean of the operators of table 17,
                 the whole vector of table 3 on IOI the best of table 18
    adversarial  table 1: sample sizes; section 2: confidences; tables 3 and 7: z-scores
    causalgym    the averages of tables 3 to 20 over their rows; table 1 of these averages
    validity     every statement of the text that follows from its tables (`judges.published`)

What is averaged is rounded to two digits, so an average is known to half a digit: its interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from mechassay.judges.published import NOT_PRINTED, published_checks
from mechassay.reproduction.comparison import PaperComparison
from mechassay.reproduction.published import AVERAGE, Paper, Published, published
from mechassay.reproduction.status import Ours, rounding
from mechassay.stats.bounds import KINDS, confidence, required_n

BOUNDS_PAGE = "docs/adversarial-statistics.md"
VALIDITY_PAGE = "docs/claims-evaluation.md"


@dataclass(frozen=True)
class Calculation:
    """Some published numbers that need no model.

    Attributes:
        tables: the numbers of the tables that they stand in.
    """

    name: str
    tables: tuple[str, ...]
    run: Callable[[], Iterator[PaperComparison]]


def exactly(value: float, slack: float = 0.0) -> Ours:
    """A number that was calculated, of inputs that are rounded by so much."""
    return Ours(value, value - slack, value + slack)


def cell(value: Published, ours: Ours, explained: str = "") -> PaperComparison:
    """A calculated number beside a published one."""
    return PaperComparison(
        value.table,
        value.row,
        value.column,
        value.measure,
        value.printed,
        ours=ours,
        span=value.span,
        explained=explained,
    )


# MIB

OPERATORS = ("arithmetic-addition/llama3.1", "arithmetic-subtraction/llama3.1")
BOTH = "arithmetic/llama3.1"
EXCHANGED = (
    "table 17 prints .25 .25 .75 .75 in the row Random, under CPR, CMD, CPR, CMD: the two in the"
    " middle are exchanged"
)


def arithmetic_means() -> Iterator[PaperComparison]:
    """Tables 2 and 14 from table 17, by method."""
    values = [value for table in published("mib").tables for value in table.values]
    by_operator = {
        (value.measure, value.method, value.column): value
        for value in values
        if value.table == "17"
    }
    for value in values:
        keys = [(value.measure, value.method, column) for column in OPERATORS]
        if value.column != BOTH or value.table == "17" or not all(k in by_operator for k in keys):
            continue
        if value.table not in ("2", "14"):
            continue
        parts = [by_operator[key].value for key in keys]
        random = EXCHANGED if value.method == "random" else ""
        yield cell(value, exactly(fmean(parts), rounding(value.printed)), random)


BEST_TOKEN_HEAD = (
    "the paper takes head 8.10, with 2.82; head 7.9 alone is better (docs/variables.md)"
)


def best_heads() -> Iterator[PaperComparison]:
    """The whole vector in table 3: the best subset of heads of table 18."""
    subsets = _values("mib", "18")
    for value in _values("mib", "3"):
        if (value.measure, value.row) != ("mse", "Full Vector"):
            continue
        least = min(own.value for own in subsets if own.column == value.column)
        yield cell(value, exactly(least), "" if least == value.value else BEST_TOKEN_HEAD)


# Adversarial circuit evaluation


def _doubled_and_bisected(p: float, delta: float, epsilon: float) -> int:
    """The paper's search: n is doubled until the statement holds, then bisected. As the confidence
    is no monotone function of n, it ends at one n that holds and whose predecessor does not.
    """
    high = 1
    while confidence(high, p, epsilon) < delta:
        high *= 2
    low = high // 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if confidence(middle, p, epsilon) >= delta else (middle, high)
    return high


def sample_sizes() -> Iterator[PaperComparison]:
    """Table 1: the least n by each of the three formulas."""
    for value in _values("adversarial", "1"):
        p, delta, epsilon = map(float, value.row.split("/"))
        kind = value.column
        smallest = required_n(p, delta, epsilon, kind).smallest
        why = ""
        if kind == KINDS[0] and smallest != value.value:
            theirs = _doubled_and_bisected(p, delta, epsilon)
            if theirs == value.value:
                why = (
                    f"{smallest:,} is the smallest; bisection, which a confidence that is not"
                    f" monotone does not allow, gives {theirs:,} ({BOUNDS_PAGE})"
                )
        yield cell(value, exactly(smallest), why)


def confidences() -> Iterator[PaperComparison]:
    """Section 2: delta for n, p and epsilon."""
    for value in _values("adversarial", "Section 2"):
        n, p, epsilon = value.row.split("/")
        yield cell(value, exactly(confidence(int(n), float(p), float(epsilon))))


MOMENTS = ("mean", "std")


def z_scores() -> Iterator[PaperComparison]:
    """Tables 3 and 7: (value - mean) / std, of rounded numbers."""
    for table in ("3", "7"):
        values = list(_values("adversarial", table))
        kl = {(v.row, v.column): v for v in values if v.measure == "kl"}
        for value in values:
            if value.measure != "z":
                continue
            x, mean, std = (kl[row, value.column] for row in (value.row, *MOMENTS))
            ends = [
                (x.value + a * rounding(x.printed) - mean.value - b * rounding(mean.printed))
                / (std.value + c * rounding(std.printed))
                for a, b, c in product((-1, 1), repeat=3)
            ]
            z = (x.value - mean.value) / std.value
            yield cell(value, Ours(z, min(ends), max(ends)))


# CausalGym

BEST_PROBE = "probe"


def averages() -> Iterator[PaperComparison]:
    """Tables 3 to 20: the mean of every column over the 29 tasks."""
    for table in published("causalgym").tables:
        columns: dict[str, list[Published]] = {}
        for value in table.values:
            columns.setdefault(value.row, []).append(value)
        for values in columns.values():
            average = values[-1]
            if not average.column.startswith(AVERAGE):
                continue
            rows = [value.value for value in values[:-1]]
            unread = sum(map(math.isnan, rows))
            ours = (
                Ours(why_not=f"{unread} of the rows not legible")
                if unread
                else exactly(fmean(rows), rounding(average.printed))
            )
            yield cell(average, ours)


def means_over_tasks() -> Iterator[PaperComparison]:
    """Table 1: the averages of tables 3 to 20, of two probes that of the better one."""
    averaged: dict[tuple[str, str, str], list[float]] = {}
    for table in published("causalgym").tables:
        for value in table.values:
            if value.column.startswith(AVERAGE):
                method = BEST_PROBE if value.row.startswith(BEST_PROBE) else value.row
                model = value.column.partition("/")[2]
                averaged.setdefault((model, value.measure, method), []).append(value.value)
    for value in _values("causalgym", "1"):
        method = value.column.rpartition(" ")[2]
        yield cell(value, exactly(max(averaged[value.row, value.measure, method])))


# Validity


def statements() -> Iterator[PaperComparison]:
    """Every statement of the paper that its own tables give or refute."""
    for check in published_checks():
        if check.holds is None or check.printed == NOT_PRINTED:
            continue
        yield PaperComparison(
            table=check.where,
            row=check.about,
            column=check.where,
            measure="statement",
            printed=check.printed,
            ours=Ours(),
            explained=VALIDITY_PAGE,
            statement=check.recomputed,
            agrees=bool(check.holds),
        )


def _values(paper: Paper, table: str) -> Sequence[Published]:
    return [v for own in published(paper).tables if own.table == table for v in own.values]


CALCULATIONS: Mapping[Paper, Sequence[Calculation]] = {
    "mib": (
        Calculation("arithmetic means", ("2", "14", "17"), arithmetic_means),
        Calculation("best heads", ("3", "18"), best_heads),
    ),
    "adversarial": (
        Calculation("sample sizes", ("1",), sample_sizes),
        Calculation("confidences", ("Section 2",), confidences),
        Calculation("z-scores", ("3", "7"), z_scores),
    ),
    "causalgym": (
        Calculation("averages", tuple(map(str, range(3, 21))), averages),
        Calculation("means over tasks", ("1",), means_over_tasks),
    ),
    "measurement": (),
    "validity": (Calculation("statements", (), statements),),
}
"""What is computed again, by paper."""
