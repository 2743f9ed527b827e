"""Tests of docs/coverage.md: its rows are well formed, and its commands run as they stand."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from pathlib import Path

import pytest

from helpers.experiments import COVERAGE
from mechassay.cli.main import main
from mechassay.models.weight_files import is_fetched

PAGE = Path(__file__).parents[2] / "docs/coverage.md"
HUB = re.compile(r"-m (?:gpt2|[\w.-]+/[\w.-]+) |openai:")
REAL_MODEL = "smollm2-135m"
EXPECTED = {"claims assess": 1}
"""Exit codes other than 0. Here the judge's script has a quote that is not in the paper."""


def papers() -> dict[str, list[str]]:
    """The commands in the cells of each paper's section, each once, in their order."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    cells = {text.split(" (")[0]: re.findall(r"`(mechassay [^`]+)`", text) for text in sections}
    return {
        paper: list(dict.fromkeys(cell.replace(r"\|", "|") for cell in own))
        for paper, own in cells.items()
    }


def test_the_page_has_commands_and_says_what_is_left_out() -> None:
    assert len(papers()) == 5 and all(len(commands) > 5 for commands in papers().values())
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    bare = [row for row in rows if row.count(" | ") != 1]
    assert not bare, "a row is an item and what answers it"


@pytest.mark.guard
@pytest.mark.real
@pytest.mark.charts
@pytest.mark.skipif(not is_fetched(REAL_MODEL), reason=f"{REAL_MODEL} is not fetched")
@pytest.mark.parametrize("paper", papers())
def test_every_command_that_needs_no_hub_ends_well(
    tmp_path: Path, paper: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of a paper run one after another in one folder, because some read what earlier
    ones wrote. They run in this process, because imports take most of the time of a small command.
    The folder is a copy of examples/coverage, which has the files that the page names: two papers,
    the script of a judge and a suite. `pytest -m guard -rP` prints the CPU seconds of each command.
    """
    shutil.copytree(COVERAGE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    for line in papers()[paper]:
        if HUB.search(f"{line} "):
            continue
        words = shlex.split(line)[1:]
        before = time.process_time()
        with pytest.raises(SystemExit) as ended:
            main(words)
        seconds[line] = time.process_time() - before
        message = capsys.readouterr().err
        if (ended.value.code or 0) != EXPECTED.get(" ".join(words[:2]), 0):
            failed[line] = message.strip().splitlines()[-1]
    print(f"{sum(seconds.values()):.1f} CPU seconds: {paper}")
    for line, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"{spent:8.1f}  {line}")
    assert not failed
