"""Every notebook runs from its first cell to its last, is stored without outputs, and is short."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.web import ROOT, pages
from mechassay.truth.ground_truth import load_truth

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MOST_LINES = 20


def cells(path: Path) -> list[dict[str, Any]]:
    return [
        cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_few_lines_of_code(path: Path) -> None:
    lines = [line.strip() for cell in cells(path) for line in cell["source"].splitlines()]
    assert sum(bool(line) and not line.startswith("#") for line in lines) <= MOST_LINES


FIRST = "first-circuit"
"""The others run with --all."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(path, marks=pytest.mark.guard if path.stem == FIRST else pytest.mark.slow)
        for path in NOTEBOOKS
    ],
    ids=[path.stem for path in NOTEBOOKS],
)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A notebook's page, made by running it."""
    target = tmp_path_factory.mktemp("pages") / f"{request.param.stem}.md"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        patch.setenv("OMP_NUM_THREADS", "1")
        target.write_text(pages.notebook_page(request.param, target), "utf-8")
    return target


@pytest.mark.slow
def test_a_notebook_runs_and_draws(page: Path) -> None:
    text = page.read_text("utf-8")
    # Figures stand in the page itself, so that they take the colour of its text.
    assert "<svg" in text and "<progress" not in text


def test_the_first_circuit_is_the_one_that_was_built_in(page: Path) -> None:
    if page.stem != FIRST:
        return
    known = load_truth("truth-ioi").verified["counterfactual"].circuit.names()
    shown = re.findall(r"'(\S+->\S+)'", page.read_text("utf-8"))
    assert len(shown) == 5 and set(shown) <= set(known)
