"""Every notebook runs from its first cell to its last, is stored without outputs, and is short."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from helpers.web import ROOT, pages
from mechassay.models.weight_files import is_fetched, packaged_folder
from mechassay.truth.ground_truth import load_truth

pytestmark = pytest.mark.charts

OF_THE_SITE = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
"""Run for the site. The other one is on a model of the hub."""
GPT2 = ROOT / "examples" / "notebooks" / "gpt2.ipynb"
NOTEBOOKS = [*OF_THE_SITE, GPT2]
MOST_LINES = 24


def cells(path: Path) -> list[dict[str, Any]]:
    return [
        cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_few_lines_of_code(path: Path) -> None:
    lines = [line.strip() for cell in cells(path) for line in "".join(cell["source"]).splitlines()]
    assert sum(bool(line) and not line.startswith("#") for line in lines) <= MOST_LINES


FIRST = "first-circuit"
"""The others run with --all."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(path, marks=pytest.mark.guard if path.stem == FIRST else pytest.mark.slow)
        for path in OF_THE_SITE
    ],
    ids=[path.stem for path in OF_THE_SITE],
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


@pytest.mark.slow
@pytest.mark.real
def test_the_notebook_on_gpt2_runs_on_a_model_of_its_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if not is_fetched("smollm2-135m"):
        pytest.skip("smollm2-135m is not fetched: mechassay models fetch smollm2-135m")
    tokenizer = AutoTokenizer.from_pretrained(packaged_folder("smollm2-135m"))
    torch.manual_seed(0)
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_embd=48, n_layer=12, n_head=12)
    ).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    notebook = pages.run_notebook(GPT2, f"MODEL = {str(tmp_path / 'gpt2')!r}")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [output["data"].get("text/html", "") for output in outputs if "data" in output]
    assert sum("<svg" in picture for picture in pictures) == 2
    printed = "".join(output.get("text", "") for output in outputs)
    assert re.search(r"^0\.\d\d \[0\.\d\d, 0\.\d\d\]$", printed, re.M)
