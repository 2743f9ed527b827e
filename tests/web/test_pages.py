"""Pages as a browser shows them: nothing is cut without a cue, and whoever cannot see can read.

`make test-web` installs Chromium and fetches axe-core where it may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from helpers.experiments import SMALL_EXPERIMENTS
from helpers.web import web_module
from mechassay.discovery.draw import cut_circuits, write_drawing
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.results.report import write_index
from mechassay.runs.run import run
from mechassay.utils.display import SILENT

chromium, axe = web_module("chromium"), web_module("axe")
PROGRAM = chromium.executable()
pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium; see `make test-web`"),
]
PAGES = ("circuits", "suite", "accuracy", "adversarial", "patch", "draw", "compare", "index")
WIDTHS = (390, 800, 1400)

OPEN = "document.querySelectorAll('details').forEach(fold => { fold.open = true; });"
# What is wider than its box, and whether that box says so; and what is wider than the page.
CUT = f"""(async () => {{
  {OPEN}
  const named = box => box.tagName + " " + (box.getAttribute("aria-label") ?? "");
  const wide = [...document.querySelectorAll("main *")].filter(
    box => box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible"
      && box.clientWidth > 0);
  const cued = box => box.matches(".scroll") && box.tabIndex === 0
    && (box.getAttribute("aria-label") ?? "") !== ""
    && getComputedStyle(box).overflowX === "auto"
    && getComputedStyle(box).backgroundImage.split("gradient").length === 5;
  return {{
    width: innerWidth,
    page: document.documentElement.scrollWidth,
    wide: wide.length,
    uncued: wide.filter(box => !cued(box)).map(named),
    loose: [...document.querySelectorAll("table, svg")]
      .filter(box => !box.closest(".scroll")).map(named),
  }};
}})()"""
DARK_OR_LIGHT = "getComputedStyle(document.body).backgroundColor"
NAMELESS = """[...document.querySelectorAll("svg")].filter(svg =>
  svg.getAttribute("role") !== "img" || !svg.getAttribute("aria-label")
    || !svg.querySelector(":scope > desc")?.textContent).length"""
HEADINGS = "[...document.querySelectorAll('h1, h2, h3, h4')].map(head => Number(head.tagName[1]))"
COUNTS = """({
  svg: document.querySelectorAll("svg").length,
  table: document.querySelectorAll("table").length,
  without: [...document.querySelectorAll("table.results")]
    .filter(table => !table.querySelector("thead th[scope=col]")
      || (table.tBodies[0].rows.length && !table.querySelector("tbody th[scope=row]"))).length,
})"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A page of each kind, of small runs on ground truths."""
    folder = tmp_path_factory.mktemp("runs")
    circuits = CircuitsExperiment(
        ("truth-ioi",),
        methods=("eap", "exact", "eap-ig-inputs:steps=3,points=midpoint", "random"),
        train_limit=4,
        limit=8,
    )
    run(circuits, folder / "circuits", progress=SILENT)
    several = replace(SMALL_EXPERIMENTS["circuits"], methods=("eap", "random"))
    run(several, folder / "suite", progress=SILENT)
    run(SMALL_EXPERIMENTS["accuracy"], folder / "accuracy", progress=SILENT)
    adversarial = replace(SMALL_EXPERIMENTS["adversarial"], n_clean=8, n_corrupted=8, worst=2)
    run(adversarial, folder / "adversarial", progress=SILENT)
    run(SMALL_EXPERIMENTS["patch"], folder / "patch", progress=SILENT)
    scores = sorted((folder / "circuits" / "scores").rglob("*.safetensors"))
    texts = [str(file) for file in scores if "exact" in file.name or file.stem == "eap"]
    write_drawing(folder / "draw.html", cut_circuits(texts[:1]))
    write_drawing(folder / "compare.html", cut_circuits(texts))
    found = {name: folder / f"{name}.html" for name in ("draw", "compare")}
    found["index"] = write_index(folder)
    names = ("circuits", "suite", "accuracy", "adversarial", "patch")
    found |= {name: folder / name / "report.html" for name in names}
    return {name: found[name].read_text("utf-8") for name in PAGES}


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Any]:
    """Evaluates a script in a page."""
    assert PROGRAM is not None
    return chromium.Browser(PROGRAM, tmp_path).evaluate


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_without_a_cue(
    pages: dict[str, str], look: Callable[..., Any], name: str, width: int
) -> None:
    found = look(pages[name], CUT, width=width)
    assert found["width"] == width
    assert found["page"] <= width, "the page itself scrolls sideways"
    assert found["uncued"] == [] and found["loose"] == []
    if name == "circuits" and width == 390:
        assert found["wide"] > 0, "the check sees what scrolls"


def test_a_table_without_a_cue_is_found(look: Callable[..., Any]) -> None:
    page = (
        "<!DOCTYPE html><main><div style='overflow-x: auto'><table><tr><td>"
        f"{'wide' * 500}</td></tr></table></div></main>"
    )
    assert look(page, CUT, width=390)["uncued"] == ["DIV "]


@pytest.mark.parametrize("name", PAGES)
def test_figures_tables_and_headings_can_be_read_out(
    pages: dict[str, str], look: Callable[..., Any], name: str
) -> None:
    found = look(pages[name], f"({{nameless: {NAMELESS}, heads: {HEADINGS}, ...{COUNTS}}})")
    assert found["nameless"] == 0 and found["without"] == 0
    assert found["svg"] > 0 or name in ("index", "suite", "accuracy")
    assert found["table"] > 0
    heads = found["heads"]
    assert heads[0] == 1 and heads.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(heads))


def axe_script() -> str:
    """What finds the violations of axe-core's rules, all folds open."""
    if not axe.FILE.is_file():
        pytest.skip(f"axe-core {axe.VERSION} is not there; see `make test-web`")
    return f"""(async () => {{
      {OPEN}
      {axe.FILE.read_text("utf-8")};
      const found = await axe.run(document, {{iframes: false, resultTypes: ["violations"]}});
      const dark = {DARK_OR_LIGHT} !== "rgb(255, 255, 255)";
      const said = found.violations.map(
        each => each.id + ": " + each.nodes.slice(0, 3).map(node => node.html.slice(0, 200)));
      return {{dark, said, passed: found.passes.length}};
    }})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(
    pages: dict[str, str], look: Callable[..., Any], name: str, scheme: str
) -> None:
    """The rules of WCAG 2.2 A and AA and good practice, contrast among them."""
    found = look(pages[name], axe_script(), scheme=scheme)
    assert found["dark"] == (scheme == "dark")
    assert found["said"] == []
    assert found["passed"] > 10


def test_axe_finds_what_is_wrong(look: Callable[..., Any]) -> None:
    page = (
        "<!DOCTYPE html><title>T</title><main><h1>T</h1><input>"
        "<p style='color: #ccc'>pale</p><svg role=img></svg></main>"
    )
    said = " ".join(look(page, axe_script())["said"])
    for rule in ("html-has-lang", "label", "color-contrast", "svg-img-alt"):
        assert rule in said
