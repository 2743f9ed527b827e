"""The site: what its builder does not check, pages made from code, and that it builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.web import ROOT, pages
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.runs.options import options_of

pytestmark = pytest.mark.charts

DOCS = ROOT / "docs"
WRITTEN = [page for page in sorted(DOCS.rglob("*.md")) if "generated" not in page.parts]
CODE = [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
NAME = r"(?:[Uu]it )?(?:[Dd]e )?[A-Z][\w'-]+"
CITATION = re.compile(rf"({NAME}(?: et al\.|(?:, {NAME})* and {NAME}))?,? \(?((?:19|20)\d\d)\b")


def config() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def in_nav(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for inner in part.values() if isinstance(part, dict) else part:
            yield from in_nav(inner)


def test_every_page_stands_once_in_the_navigation() -> None:
    made = [f"generated/api/{name}.md" for name in pages.modules()]
    made += [f"generated/{path.stem}.md" for path in pages.NOTEBOOKS.glob("*.ipynb")]
    made += ["generated/cli.md", "generated/changelog.md"]
    written = [page.relative_to(DOCS).as_posix() for page in WRITTEN]
    assert sorted(in_nav(config()["nav"])) == sorted(written + made)


def test_the_navigation_has_four_sections() -> None:
    assert [*(name for part in config()["nav"] for name in part)] == [
        "Learn",
        "How-to",
        "Reference",
        "Background",
    ]


def test_pictures_are_there() -> None:
    targets = [
        page.parent / target
        for page in WRITTEN
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text("utf-8"))
    ]
    assert targets and not [target for target in targets if not target.is_file()]


# --- pages made from code


def test_every_public_module_has_its_reference() -> None:
    shown = "\n".join(pages.api_page(name, paths) for name, paths in pages.modules().items())
    for path in (ROOT / "src" / "mechassay").rglob("*.py"):
        name = pages.dotted(path)
        aside = pages.ASIDE & set(name.split(".")) or path.stem == "__init__"
        assert aside or f"::: {name}\n" in shown, name


def test_the_command_line_page_has_every_command_and_option() -> None:
    page = pages.command_page()
    for name in ("report", "models fetch", "tasks check", "circuits draw", "truth verify"):
        assert f" mechassay {name}\n" in page
    score, run = (
        page.split(f"### mechassay {name}\n")[1].split("\n##")[0]
        for name in ("tasks score", "circuits run")
    )
    for field, option in options_of(AccuracyExperiment).items():
        for flag in option.flags or (f"--{field.replace('_', '-')}",):
            assert f"`{flag}`" in score, flag
    assert "| required |" in run and "| `eap-ig-inputs` |" in run


def test_every_option_says_what_it_means() -> None:
    empty = [line for line in pages.command_page().splitlines() if re.search(r"\|\s+\|$", line)]
    assert empty == []


# --- the bibliography


def cited(text: str) -> set[str]:
    """Works as they are cited: "Mueller et al. 2025"."""
    one_line = " ".join(text.split())
    return {f"{name} {year}" for name, year in CITATION.findall(one_line) if name}


def test_every_work_that_is_cited_is_in_the_bibliography() -> None:
    listed = re.findall(r"^\| (.+?\d{4}) \|", (DOCS / "bibliography.md").read_text("utf-8"), re.M)
    texts = {path: path.read_text("utf-8") for path in [*WRITTEN, *CODE, ROOT / "README.md"]}
    for path, text in texts.items():
        if path.name != "bibliography.md":
            unknown = {work for work in cited(text) if work not in listed}
            assert not unknown, (path.name, unknown)
    everything = " ".join(" ".join(text.split()) for text in texts.values())
    for work in listed:
        name, year = work.rsplit(" ", 1)
        assert re.search(rf"{re.escape(name)},? \(?{year}", everything, re.I), f"{work}: not cited"


def test_citations_are_found() -> None:
    text = "as Mueller et al. (2025), Li and\nJanson 2024 and Uit de Bos and Garriga-Alonso (2024)"
    expected = {
        "Mueller et al. 2025",
        "Li and Janson 2024",
        "Uit de Bos and Garriga-Alonso 2024",
    }
    assert cited(text) == expected


# --- the README


def test_the_readme_says_what_the_demo_says_that_it_needs() -> None:
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    makefile = (ROOT / "Makefile").read_text("utf-8")
    said = re.findall(r'echo "(This installs|The demo downloads)(.*?)"', makefile)
    assert len(said) == 2
    sizes = re.findall(r"[\d.]+ (?:GB|MB|minutes)", " ".join(text for _, text in said))
    assert len(sizes) == 5 and all(size in readme for size in sizes)


@pytest.mark.parametrize("name", ["README.md", "AGENTS.md", "SECURITY.md", "llms.txt"])
def test_files_that_the_front_pages_link_are_there(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text)]
    own = [target for target in targets if not target.startswith("https://")]
    assert own and not [target for target in own if not (ROOT / target).is_file()]


def test_actions_of_workflows_are_named_by_commits() -> None:
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (\S+)", file.read_text("utf-8"))
        moving = [each for each in used if not re.search(r"@[0-9a-f]{40}$", each)]
        # The newest commit of this action could not be read when the others were pinned.
        assert set(moving) <= {"pypa/gh-action-pypi-publish@release/v1"}, file.name


# --- the build


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for name in ("benchmarks", "docs", "examples", "src", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    for words in (("tools/pages.py",), ("-m", "zensical", "build", "--clean", "--strict")):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "griffe" not in done.stdout + done.stderr
    site = tmp_path / "site"
    # The figure stands in the page, in whose colours it is drawn.
    notebook = (site / "generated" / "first-circuit" / "index.html").read_text("utf-8")
    drawn = re.search(r'<svg role="img" aria-label="[^"]+".*?</svg>', notebook, re.DOTALL)
    assert drawn and "faithfulness f" in drawn[0] and "currentColor" in drawn[0]
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?https?:", text) == []
        assert (
            re.findall(r"<link\b[^>]*\brel=[\"']?(?:stylesheet|preconnect)[^>]*https?:", text) == []
        )
