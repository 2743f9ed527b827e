"""Other packages add a method, a metric, a kind of run and its page, each one file: they are
installed, and used through the command line, in worker processes, and on the page.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.experiments import held
from helpers.plugins import ROOT, install, mechassay, python
from mechassay.circuits.graph_files import load_scores
from mechassay.results.reading import read_record
from mechassay.results.records import Record

METHOD = ROOT / "examples" / "method"
MOST_LINES = 60


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    for package in (METHOD, ROOT / "tests" / "plugin_package"):
        install(package, folder)
    return folder


@pytest.mark.guard
def test_a_method_and_a_metric_of_one_file_each(installed: Path, tmp_path: Path) -> None:
    lines = (METHOD / "src" / "my_method" / "eap_corrupted.py").read_text().count("\n")
    assert lines <= MOST_LINES
    words = ["circuits", "run", "-m", "truth-previous-token", "-M", "eap-corrupted", "-M", "eap"]
    limits = ["--train-limit", "6", "--limit", "6", "--metric", "density:size=0.2"]
    said = mechassay(installed, *words, *limits, "-o", str(tmp_path / "out"))
    assert "eap-corrupted" in said and "live edges" in said
    found, other = (
        read_record(held(tmp_path / "out", "records", f"{name}.json"))
        for name in ("eap-corrupted", "eap")
    )
    assert 0 < found.value("density") <= 0.2 and found.method.name != other.method.name
    scores = load_scores(held(tmp_path / "out", "scores", "eap-corrupted.safetensors"))
    assert scores.values.isfinite().any()
    assert "live edges" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.guard
def test_a_kind_of_run_of_one_file(installed: Path, tmp_path: Path) -> None:
    names = ("truth-induction", "truth-previous-token")
    chosen = [word for name in names for word in ("-m", name, "-t", name)]
    words = ["lens", "run", *chosen, "--limit", "6"]
    said = mechassay(installed, *words, "-o", str(tmp_path / "here"))
    assert "logit_diff halfway" in said and "truth-induction" in said
    mechassay(installed, *words, "-o", str(tmp_path / "there"), "--workers", "2")
    files = sorted((tmp_path / "here" / "records").glob("*.json"))
    assert len(files) == 4
    for file in files:
        mine, theirs = read_record(file), read_record(tmp_path / "there" / "records" / file.name)
        assert numbers(mine) == numbers(theirs)
    (tmp_path / "here" / "report.html").unlink()
    mechassay(installed, "report", str(tmp_path / "here"))
    page = (tmp_path / "here" / "report.html").read_text()
    assert "halfway" in page and "<title>Logit lenses</title>" in page
    assert "<h2>By layer" in page
    assert "logit lens" in (tmp_path / "here" / "tables.md").read_text()
    code = f"import mechassay; mechassay.read_record({str(files[0])!r}).plot()"
    python(installed, "-c", code)


def numbers(record: Record) -> str:
    return record.model_copy(update={"provenance": None, "spent": {}}).model_dump_json(
        warnings=False
    )
