"""Commands of the page on coverage: spelled right; and, slow, each ends well as it stands."""

from __future__ import annotations

import json
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


def test_the_page_has_commands_and_says_what_is_left_out() -> None:
    assert len(papers()) == 5 and all(len(commands) > 5 for commands in papers().values())
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    bare = [row for row in rows if row.count(" | ") != 1]
    assert not bare, "a row is an item and what answers it"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(not is_fetched(REAL_MODEL), reason=f"{REAL_MODEL} is not fetched")
@pytest.mark.parametrize("paper", papers())
def test_every_command_that_needs_no_hub_ends_well(tmp_path: Path, paper: str) -> None:
    """One after another in one folder, as some of a paper read what others wrote; beside two papers
    with the script of a judge, and a suite.
    """
    for name, source in {"paper.md": "names_paper.md", "judged.yaml": "names_judged.yaml"}.items():
        shutil.copyfile(DATA / source, tmp_path / name)
    (tmp_path / "other.md").write_text(f"{(DATA / 'names_paper.md').read_text('utf-8')}\nMore.\n")
    (tmp_path / "suite.json").write_text(json.dumps(number_suite()))
    failed: dict[str, str] = {}
    for line in papers()[paper]:
        if HUB.search(f"{line} "):
            continue
        program = [sys.executable, "-m", "mechassay", *shlex.split(line)[1:]]
        ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
        if ended.returncode != EXPECTED.get(" ".join(shlex.split(line)[1:3]), 0):
            failed[line] = ended.stderr.strip().splitlines()[-1]
    assert not failed
