from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORDS = "leaderboard", "worker", "--once", "--folder"


def test_a_worker_of_an_empty_queue_makes_the_tables_and_ends(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    done = run(*WORDS, tmp_path / "new")
    assert (done.code, done.out) == (0, "0 pieces of work done\n")
    assert (tmp_path / "new" / "board.sqlite").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "procesess"), "Unknown engine 'procesess'"),
        (("--database", "mysql://host/board"), "Unknown database 'mysql'"),
        (("--track", "nowhere.yaml"), "nowhere.yaml: not a readable track"),
        (("--private-seed-file", "nowhere"), "nowhere: cannot be read"),
        (("--device", "tpu"), "tpu"),
        # Private cells are run here, whatever the engine.
        (("--engine", "ray", "--device", "tpu", "--private-seed-file", "nowhere"), "tpu"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: tuple[str, ...], said: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    done = run(*WORDS, tmp_path / "new", *words)
    assert done.code == 2 and said in done.line
