"""Ranks as text, and which records can be ranked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mechassay.records import Record, Values
from mechassay.report.kinds.circuits import results_table
from mechassay.report.kinds.suite import SuitePage, suite_differences
from mechassay.report.ranks import comparable, rank_text, ranked, resolved_text

Make = Callable[..., Record]
FRACTIONS = (0.01, 0.1, 0.2, 1.0)


def with_values(record: Record, f: tuple[float, ...], seed: int) -> Record:
    """Twelve examples whose faithfulness is f on average, by both rankings."""
    rng = np.random.default_rng(seed)
    ids = [f"pair-{i}" for i in range(12)]
    values = {
        f"{by}@{p:g}": (each + 0.02 * rng.normal(size=12)).tolist()
        for by in ("value", "magnitude")
        for p, each in zip(FRACTIONS, f, strict=True)
    }
    ends = {"clean": [1.0] * 12, "empty": [0.0] * 12}
    return record.changed(
        values=Values(unit="pair", ids=ids, groups=ids, columns={**ends, **values})
    )


@pytest.fixture
def records(make_record: Make) -> list[Record]:
    """Two that are alike and one that is worse."""
    f = {"a": (0.9, 0.95, 1.0, 1.0), "b": (0.9, 0.95, 1.0, 1.0), "c": (0.1, 0.2, 0.3, 1.0)}
    return [
        with_values(make_record(name), each, seed) for seed, (name, each) in enumerate(f.items())
    ]


@pytest.mark.parametrize(("rank", "text"), [(None, "–"), ((1, 1), "1"), ((2, 4), "2–4")])
def test_text(rank: tuple[int, int] | None, text: str) -> None:
    assert rank_text(rank) == text


def test_ranks_stand_in_the_table(records: list[Record]) -> None:
    table = results_table(records)
    for area in ("CMD", "CPR"):
        place = table.headings.index(f"rank by {area}")
        assert [row.cells[place] for row in table.rows[:3]] == ["1–2", "1–2", "3"]
    # The worthless case: a method alone, or records of other examples, have no rank.
    assert "rank by CMD" not in results_table(records[:1]).headings
    values = records[1].values
    assert values is not None
    ids = [f"x-{i}" for i in range(12)]
    other = records[1].changed(values=values.model_copy(update={"ids": ids}))
    assert not comparable([records[0], other]) and ranked([records[0], other], "cmd") is None


def test_ranks_and_counts_stand_in_the_suite(records: list[Record]) -> None:
    (grid,) = (
        grid for grid in SuitePage().tables(records, []) if grid.title.startswith("Rank by CMD")
    )
    assert grid.texts == (
        ("a", "1–2"),
        ("b", "1–2"),
        ("c", "3"),
        ("differences resolved", "2 of 3"),
    )
    found = ranked(records, "cmd")
    assert found is not None and resolved_text(found) == "2 of 3"
    rows = suite_differences(records)
    assert len(rows) == 6 and sum(row["resolved"] for row in rows) == 4
