"""The line of a bar: everything is on it in 80 columns, and rates are read at a glance."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mechassay import progress
from mechassay.progress import Bar, drawn, line, rate


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


def test_a_line_for_a_log() -> None:
    assert (
        line("eap", 120, 1000, 40.0) == "eap: 120 of 1,000, 3.00/s, 0:00:40 elapsed, 0:04:53 left"
    )
    assert line("eap", 1000, 1000, 40.0) == "eap: 1,000 of 1,000, 25.0/s, 0:00:40 elapsed"
    assert line("eap", 0, 10, 0.0) == "eap: 0 of 10, 0/s, 0:00:00 elapsed"


def test_without_a_terminal_a_line_is_written_every_30_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Bar().track("eap", 50) as advance:
        for _ in range(7):
            now[0] += 10
            advance(5)
    lines = capsys.readouterr().err.splitlines()
    assert [each.partition(",")[0] for each in lines] == [
        "eap: 15 of 50",
        "eap: 30 of 50",
        "eap: 35 of 50",
    ]


def test_what_takes_less_leaves_a_log_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar().track("eap", 3) as advance:
        advance(3)
    assert capsys.readouterr().err == ""


def test_a_notebook_has_a_bar() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    code = """
import time
from mechassay.progress import BAR
with BAR.track("eap", 4) as advance:
    for _ in range(4):
        time.sleep(0.2)
        advance(1)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (shown,) = notebook.cells[0].outputs
    assert shown["output_type"] == "display_data"
    assert "eap: 4 of 4" in shown["data"]["text/plain"]
    assert '<progress value="4" max="4"' in shown["data"]["text/html"]
