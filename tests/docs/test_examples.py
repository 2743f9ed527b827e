"""The packages of examples/, which the pages "Your own ..." show: their tests pass, and their names
are found.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers.plugins import ROOT, install, mechassay, python

PAGES = ROOT / "docs" / "your-own"
EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/*/pyproject.toml"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    for package in EXAMPLES:
        install(package, folder)
    return folder


def test_every_example_has_its_page() -> None:
    assert [path.name for path in EXAMPLES] == sorted(path.stem for path in PAGES.glob("*.md"))


@pytest.mark.parametrize("package", EXAMPLES, ids=lambda path: path.name)
def test_a_page_shows_its_package_whole(package: Path) -> None:
    page = (PAGES / f"{package.name}.md").read_text("utf-8")
    shown = re.findall(r'^--8<-- "(.+)"$', page, re.M)
    files = [
        path.relative_to(ROOT).as_posix()
        for pattern in ("pyproject.toml", "src/**/*.py", "src/**/*.yaml", "tests/*.py")
        for path in package.glob(pattern)
        if path.read_text("utf-8")
    ]
    assert sorted(shown) == sorted(files)


@pytest.mark.slow
def test_the_tests_of_the_examples_pass(folder: Path) -> None:
    tests = [str(package / "tests") for package in EXAMPLES]
    assert " passed" in python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


@pytest.mark.slow
def test_what_examples_add_has_its_name(folder: Path) -> None:
    listed = """
from mechassay.circuits.evaluation import METRICS
from mechassay.circuits.methods import METHODS
from mechassay.measurement import GAUGES
from mechassay.models.families import FAMILIES
from mechassay.tasks import TASKS, load_task
for registry in (METHODS, METRICS, GAUGES, FAMILIES, TASKS):
    print(registry.names())
print(load_task("agreement:attractor=other"))
"""
    said = python(folder, "-c", listed)
    names = ("eap-corrupted", "late-edges", "SIGN", "phi", "agreement")
    assert all(f"'{name}'" in said for name in names)
    assert "Agreement(attractor='other')" in said


@pytest.mark.slow
def test_a_gauge_of_another_package_is_listed_and_run(folder: Path) -> None:
    rows = json.loads(mechassay(folder, "measure", "list", "--json"))
    assert rows[-1]["metric"] == "SIGN" and rows[-1]["title"] == "sign agreement"
    words = ("-m", "truth-ioi", "--circuit", "truth", "--n-prompts", "12", "-o", "sign")
    mechassay(folder, "measure", "run", "SIGN", *words)
    tables = (folder / "sign" / "tables.md").read_text("utf-8")
    assert "SIGN (sign agreement)" in tables and "agreement_low > 0.7" in tables
    page = (folder / "sign" / "report.html").read_text("utf-8")
    assert "Establishes that the circuit prefers the answer" in page
    assert "By the published definition" not in page


@pytest.mark.slow
def test_a_size_in_edges_may_be_typed_for_a_metric_of_another_package(folder: Path) -> None:
    words = ("-m", "truth-ioi", "-M", "random", "--train-limit", "4", "--limit", "4", "-o", "late")
    said = mechassay(folder, "circuits", "run", *words, "--metric", "late-edges:size=50")
    assert "late edges" in said
