"""`mechassay adversarial bound`: sample sizes as a table, and what is wrong as one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


def cells(text: str, name: str) -> list[list[str]]:
    """The cells of the rows with that name, of all tables."""
    lines = [
        [cell.strip() for cell in line.strip("│ ").split("│")]
        for line in text.splitlines()
        if "│" in line
    ]
    return [line[1:] for line in lines if line[0] == name]


def test_how_many_pairs_are_needed(run: Run) -> None:
    done = run("adversarial", "bound", "--p", ".99", "--delta", ".95", "--epsilon", ".005")
    assert done.code == 0, done.err
    assert cells(done.out, "exact") == [["773", "1,049"]]
    assert cells(done.out, "chernoff") == [["1,937", "1,937"]]
    assert cells(done.out, "hoeffding") == [["59,915", "59,915"]]


def test_what_that_many_say(run: Run) -> None:
    done = run("adversarial", "bound", "--p", ".99", "--epsilon", ".005", "--n", "1000")
    assert done.code == 0 and "confidence at rank 995" in done.out
    assert cells(done.out, "exact")[1] == ["0.93386", "996"]
    assert cells(done.out, "chernoff")[1] == ["0.787086", "997"]
    assert cells(done.out, "hoeffding")[1] == ["0.0487706", "–"]
    assert "too few" in done.out
    assert (
        "too few"
        not in run("adversarial", "bound", "--p", ".5", "--epsilon", ".1", "--n", "1000").out
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--p", "1.5", "--epsilon", ".1"], "p must be between 0 and 1, both excluded; got 1.5"),
        (["--p", "0", "--epsilon", ".1"], "p must be between 0 and 1"),
        (["--p", "nan", "--epsilon", ".1"], "got nan"),
        (
            ["--p", ".99", "--epsilon", ".01"],
            "epsilon must be above 0 and below 1 - p = 0.01; got 0.01",
        ),
        (["--p", ".99", "--epsilon", "-1"], "epsilon must be above 0"),
        (
            ["--p", ".99", "--epsilon", ".001", "--delta", "1"],
            "The confidence must be between 0 and 1",
        ),
        (["--p", ".99", "--epsilon", "1e-9"], "is too small for the exact search"),
        (["--p", ".99", "--epsilon", ".001", "--n", "0"], "at least 1 draw; got 0"),
    ],
)
def test_bad_input_is_one_line(run: Run, words: list[str], message: str) -> None:
    done = run("adversarial", "bound", *words)
    assert done.code == 2 and message in done.line
