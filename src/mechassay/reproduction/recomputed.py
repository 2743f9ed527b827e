"""What follows from a paper's own numbers or formulas, computed again without any model.

    mib          the column Arithmetic of tables 2 and 14 is the mean of the operators of table 17
    adversarial  table 1: sample sizes; section 2: confidences; tables 3 and 7: z-scores
    causalgym    the averages of tables 3 to 20 over their rows; table 1 of these averages
    validity     every statement of the text that follows from its tables (`judges.published`)

What is averaged is rounded to two digits, so an average is known to half a digit: its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from mechassay.judges.published import NOT_PRINTED, published_checks
from mechassay.reproduction.comparison import Comparison
from mechassay.reproduction.published import Paper, Published, published
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
    run: Callable[[], Iterator[Comparison]]


def exactly(value: float, slack: float = 0.0) -> Ours:
    """A number that was calculated, of inputs that are rounded by so much."""
    return Ours(value, value - slack, value + slack)


def cell(value: Published, ours: Ours, explained: str = "") -> Comparison:
    """A calculated number beside a published one."""
    return Comparison(
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


def arithmetic_means() -> Iterator[Comparison]:
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


def sample_sizes() -> Iterator[Comparison]:
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


def confidences() -> Iterator[Comparison]:
    """Section 2: delta for n, p and epsilon."""
    for value in _values("adversarial", "Section 2"):
        n, p, epsilon = value.row.split("/")
        yield cell(value, exactly(confidence(int(n), float(p), float(epsilon))))


MOMENTS = ("mean", "std")


def z_scores() -> Iterator[Comparison]:
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

# Validity


def statements() -> Iterator[Comparison]:
    """Every statement of the paper that its own tables give or refute."""
    for check in published_checks():
        if check.holds is None or check.printed == NOT_PRINTED:
            continue
        yield Comparison(
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
    "mib": (Calculation("arithmetic means", ("2", "14", "17"), arithmetic_means),),
    "adversarial": (
        Calculation("sample sizes", ("1",), sample_sizes),
        Calculation("confidences", ("Section 2",), confidences),
        Calculation("z-scores", ("3", "7"), z_scores),
    ),
    "causalgym": (),
    "measurement": (),
    "validity": (Calculation("statements", (), statements),),
}
"""What is computed again, by paper."""
