"""The line of a bar: everything is on it in 80 columns, and rates are read at a glance."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mechassay.progress import drawn, rate


@pytest.mark.parametrize(
    ("speed", "text"),
    [
        (29330.4, "29,330"),
        (1234567.0, "1,234,567"),
        (293.34, "293"),
        (29.334, "29.3"),
        (2.9334, "2.93"),
        (0.12345, "0.123"),
        (0.0000012345, "0.00000123"),
        (0.0, "0"),
    ],
)
def test_rates(speed: float, text: str) -> None:
    assert rate(speed) == text


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("running 12 circuits on pairs", "running 12 circuits on pairs"),
        ("x" * 60, "x" * 27 + "…"),
        ("a[b]", "a[b]"),
    ],
)
def test_a_line_fits_into_80_columns(label: str, shown: str) -> None:
    out = io.StringIO()
    now = [0.0]
    bar = drawn(
        Console(width=80, file=out, force_terminal=True, color_system=None, legacy_windows=False)
    )
    bar.get_time = lambda: now[0]
    task = bar.add_task(label, total=1_000_000)
    for _ in range(10):
        now[0] += 1
        bar.advance(task, 29330)
    bar.console.print(bar.make_tasks_table(bar.tasks))
    (line,) = out.getvalue().splitlines()
    words = line.removeprefix(shown).split()
    assert line.startswith(shown) and len(line.rstrip()) <= 80
    assert words[1:] == ["293300/1000000", "29,330/s", "0:00:10", "left", "0:00:25"]
    assert set(words[0]) <= set("━╸")  # without colours the part that is not done is blank
    assert line.index("293300") - len(shown) >= 7
