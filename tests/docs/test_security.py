"""The page on security names tests that there are, and all bad input that was asked for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)))
BAD_INPUT = (
    "a pickle",
    "a zip bomb",
    "a path out of the folder",
    "a million edges",
    "NaN",
    "a graph of another model",
    "a duplicate",
    "a name with markup in it",
    "a cell that takes too long",
    "a change of the track",
    "a private number to climb by",
)


def test_tests_that_the_page_names_are_there() -> None:
    texts = {file: (ROOT / "tests" / "leaderboard" / file).read_text("utf-8") for file, _ in NAMED}
    assert NAMED
    assert not [name for file, name in NAMED if f"\ndef {name}(" not in texts[file]]


def test_each_bad_input_has_an_answer_and_a_test() -> None:
    for what in BAD_INPUT:
        [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {what}")]
        _, _, happens, tests, _ = row.split("|")
        assert happens.strip() and re.search(r"`test_\w+\.py(::test_\w+)?`", tests), what
