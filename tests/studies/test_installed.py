"""The package of studies, installed: its commands and pages, and a metric of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.plugins import ROOT, install, mechassay, python

pytestmark = pytest.mark.slow
SMALL = ["--truth", "truth-ioi", "--draw", "0", "--n-prompts", "6", "--train-limit", "6"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    install(ROOT / "studies", folder)
    return folder


def test_a_study_is_a_command_and_its_page_is_made_again(folder: Path, tmp_path: Path) -> None:
    words = ("measure-trial", "run", "-M", "EX1", *SMALL, "-o", str(tmp_path))
    assert "random edges" in mechassay(folder, *words)
    (tmp_path / "report.html").unlink()
    assert "random edges" in mechassay(folder, "report", str(tmp_path))
    assert "Do metrics tell right from wrong?" in (tmp_path / "report.html").read_text("utf-8")


def test_the_table_of_gym_neox_can_be_written_from_the_installed_study(folder: Path) -> None:
    """Its file of sentences is installed too."""
    code = "from studies.gym_neox.corpus import corpus_tasks; print(len(corpus_tasks()))"
    assert python(folder, "-c", code).strip() == "45"
