"""Tests of docs/coverage.md: its rows are well formed, and its commands run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.jobs import DATA
from helpers.suites import number_suite
from mechassay.models.weight_files import is_fetched

PAGE = Path(__file__).parents[2] / "docs/coverage.md"
HUB = re.compile(r"-m (?:gpt2|[\w.-]+/[\w.-]+) |openai:")
REAL_MODEL = "smollm2-135m"
EXPECTED = {"claims assess": 1}
"""One of the script's quotes is not in the paper, which is what the command is to say."""


def papers() -> dict[str, list[str]]:
    """The commands in the cells of each paper's section, each once, in their order."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    cells = {text.split(" (")[0]: re.findall(r"`(mechassay [^`]+)`", text) for text in sections}
    return {
        paper: list(dict.fromkeys(cell.replace(r"\|", "|") for cell in own))
        for paper, own in cells.items()
    }


def child_cpu_seconds() -> float:
    """Return the user and system seconds of all processes that this one started and waited for."""
    used = os.times()
    return used.children_user + used.children_system


def test_the_page_has_commands_and_says_what_is_left_out() -> None:
    assert len(papers()) == 5 and all(len(commands) > 5 for commands in papers().values())
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    bare = [row for row in rows if row.count(" | ") != 1]
    assert not bare, "a row is an item and what answers it"


@pytest.mark.guard
@pytest.mark.real
@pytest.mark.skipif(not is_fetched(REAL_MODEL), reason=f"{REAL_MODEL} is not fetched")
@pytest.mark.parametrize("paper", papers())
def test_every_command_that_needs_no_hub_ends_well(tmp_path: Path, paper: str) -> None:
    """The commands of a paper run one after another in one folder, because some read what earlier
    ones wrote. The folder also has the files that the page names: two papers, the script of a
    judge and a suite. `pytest -m guard -rP` prints the CPU seconds of each command.
    """
    for name, source in {"paper.md": "names_paper.md", "judged.yaml": "names_judged.yaml"}.items():
        shutil.copyfile(DATA / source, tmp_path / name)
    (tmp_path / "other.md").write_text(f"{(DATA / 'names_paper.md').read_text('utf-8')}\nMore.\n")
    (tmp_path / "suite.json").write_text(json.dumps(number_suite()))
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    for line in papers()[paper]:
        if HUB.search(f"{line} "):
            continue
        program = [sys.executable, "-m", "mechassay", *shlex.split(line)[1:]]
        before = child_cpu_seconds()
        ended = subprocess.run(
            program, cwd=tmp_path, env=one_thread, capture_output=True, text=True
        )
        seconds[line] = child_cpu_seconds() - before
        if ended.returncode != EXPECTED.get(" ".join(shlex.split(line)[1:3]), 0):
            failed[line] = ended.stderr.strip().splitlines()[-1]
    print(f"{sum(seconds.values()):.1f} CPU seconds: {paper}")
    for line, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"{spent:8.1f}  {line}")
    assert not failed
