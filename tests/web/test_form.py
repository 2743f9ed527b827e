"""The form for claims in a browser: with keys alone, at three widths, for whoever cannot see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.judges import CODES, TEXT, made_judgments, quoted
from helpers.web import web_module
from mechassay.claims.claim import claims_of
from mechassay.claims.comparison import compare
from mechassay.claims.document import PagedDocument
from mechassay.claims.evidence import score_judgments
from mechassay.claims.judgments import read_judgments
from mechassay.claims.pages import form_page, write_form
from mechassay.documents.reading import read_document
from mechassay.results.page import Report, render
from mechassay.results.records import page_of

chromium, keys = web_module("chromium"), web_module("keyboard")
pages = web_module("test_pages")
PROGRAM = chromium.executable()
FLAGS = tuple(flag for flag in chromium.FLAGS if "virtual-time" not in flag)
pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium; see `make test-web`"),
]
CLAIMS = claims_of({"id": "ioi", "statement": "Heads copy the name.", "model": "gpt2"})


@pytest.fixture
def document(tmp_path: Path) -> PagedDocument:
    (tmp_path / "paper.txt").write_text(TEXT)
    return read_document(tmp_path / "paper.txt")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    assert PROGRAM is not None
    with keys.keyboard(PROGRAM, FLAGS, tmp_path) as browser:
        yield browser


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Any]:
    """Evaluates a script in a page."""
    assert PROGRAM is not None
    return chromium.Browser(PROGRAM, tmp_path).evaluate


def downloaded(folder: Path) -> Path:
    """The file that the form wrote, which is there before its text is."""
    file = folder / "downloads" / "judgments.json"
    end = time.monotonic() + 20
    while not file.is_file() or not file.stat().st_size:
        assert time.monotonic() < end, "nothing was downloaded"
        time.sleep(0.05)
    return file


def test_a_claim_is_judged_with_the_keyboard_alone(
    tmp_path: Path, page: Any, document: PagedDocument
) -> None:
    form = write_form(tmp_path / "form.html", CLAIMS, [document])
    page.open(form)
    # Without a name nothing is downloaded: the focus goes to its field.
    page.tab_to("#download")
    page.press("Enter")
    assert page.value("document.activeElement.id") == "rater"
    page.write("Ann")
    page.tab_to("input[name=C1]")
    page.press(" ")
    assert page.value("document.querySelector('input[name=C1]:checked').value") == "YES"
    assert page.value("document.getElementById('C1-need').hidden") is False
    page.press("ArrowRight")
    assert page.value("document.querySelector('input[name=C1]:checked').value") == "PARTIAL"
    page.press("Tab")
    page.write("A threshold lacks")
    page.tab_to("[data-quote=C1]")
    page.press("Enter")
    assert page.value("document.activeElement.id") == "find"
    page.write("87%")
    page.press("Tab")
    assert "p. 1: The circuit recovers 87%" in page.value("document.activeElement.textContent")
    page.press("Enter")
    assert page.value("document.activeElement.name") == "C1"
    assert page.value("document.getElementById('C1-need').hidden") is True
    # A quote that is written, not found: said, and kept.
    page.tab_to("input[name=C2]")
    page.press(" ")
    page.tab_to("[data-quote=C2]")
    page.press("Enter")
    page.tab_to("#paste")
    page.write("recovers 97%")
    page.tab_to("#use")
    page.press("Enter")
    assert "not found in the document" in page.value("document.getElementById('said').textContent")
    # What was typed is there after the page is opened again.
    page.open(form)
    assert page.value("document.getElementById('rater').value") == "Ann"
    assert page.value("document.getElementById('count').textContent") == "2 of 27 judged"
    page.tab_to("#download")
    page.press("Enter")
    judgments = read_judgments(downloaded(tmp_path))
    assert (judgments.rater.kind, judgments.rater.id) == ("human", "Ann")
    own = judgments.claims[0].criteria
    assert (own["C1"].status, own["C1"].reason) == ("PARTIAL", "A threshold lacks")
    assert own["C2"].status == "YES" and own["C3"].status == "NOT TESTED"
    found = score_judgments(judgments, [document])
    assert found.evidence.missing["ioi"] == ("C2",)
    assert [row.state for row in found.evidence.rows] == ["normalised", "not found"]


def test_a_claim_is_added_and_evidence_removed_with_the_keyboard(
    tmp_path: Path, page: Any, document: PagedDocument
) -> None:
    page.open(write_form(tmp_path / "form.html", None, [document]))
    page.tab_to("#rater")
    page.write("Bob")
    page.tab_to("summary")
    page.press("Enter")
    page.tab_to("#new-id")
    page.write("heads")
    page.press("Tab")
    page.write("Heads copy.")
    page.press("Tab")
    page.write("9.9, 9.6")
    page.tab_to("#add")
    page.press("Enter")
    page.tab_to("input[name=C1]")
    page.press(" ")
    page.tab_to("[data-quote=C1]")
    page.press("Enter")
    page.write("copy")
    page.press("Tab")
    page.press("Enter")
    page.tab_to("#C1-quotes button")
    page.press("Enter")
    assert page.value("document.activeElement.dataset.quote") == "C1"
    page.tab_to("#download", shift=True)
    page.press("Enter")
    judgments = read_judgments(downloaded(tmp_path))
    assert [judged.claim.id for judged in judgments.claims] == ["heads"]
    assert judgments.claims[0].claim.components == ("9.9", "9.6")
    assert judgments.claims[0].criteria["C1"].evidence == ()


def test_the_form_goes_on_with_judgments(tmp_path: Path, page: Any) -> None:
    initial = made_judgments(statuses=dict.fromkeys(CODES, "YES"))
    page.open(write_form(tmp_path / "form.html", initial=initial))
    assert page.value("document.getElementById('count').textContent") == "27 of 27 judged"
    page.tab_to("#download")
    page.press("Enter")
    found = read_judgments(downloaded(tmp_path))
    assert found.claims[0].statuses == initial.claims[0].statuses


def test_hostile_text_is_text(tmp_path: Path, page: Any) -> None:
    bad = "</script><img src=x onerror=document.title='bad'><script>document.title='bad'</script>"
    claims = claims_of({"id": "a", "statement": bad})
    (tmp_path / "bad.txt").write_text(bad)
    page.open(write_form(tmp_path / "form.html", claims, [read_document(tmp_path / "bad.txt")]))
    assert page.value("document.title") == "Judge a"
    assert page.value("document.getElementById('statement').textContent") == bad
    assert page.value("document.images.length") == 0


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_nothing_of_the_form_is_cut(
    look: Callable[..., Any], document: PagedDocument, width: int
) -> None:
    found = look(form_page(CLAIMS, [document]), pages.CUT, width=width)
    assert found["page"] <= width and found["loose"] == [] and found["uncued"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_form(
    look: Callable[..., Any], document: PagedDocument, scheme: str
) -> None:
    found = look(form_page(CLAIMS, [document]), pages.axe_script(), scheme=scheme)
    assert found["said"] == [] and found["passed"] > 10


@pytest.mark.parametrize("name", ["score", "compare"])
def test_pages_of_judgments_can_be_read(
    look: Callable[..., Any], document: PagedDocument, name: str
) -> None:
    statuses = {**dict.fromkeys(CODES, "YES"), "C1": "NOT TESTED"}
    evidence = {
        "C2": quoted("recovers 87% of the logit"),
        "C3": quoted("recovers 97% of the logit"),
    }
    ann = made_judgments(statuses=statuses, evidence=evidence)
    bob = made_judgments(statuses=dict.fromkeys(CODES, "NO"), rater={"kind": "human", "id": "Bob"})
    score = score_judgments(ann, [document]).records()
    records = score if name == "score" else [compare([ann, bob]).record()]
    kind = page_of(records[0].kind)
    page = render(kind.title(Report(records)), kind.sections(Report(records)))
    found = look(page, pages.CUT, width=390)
    assert found["page"] <= 390 and found["loose"] == [] and found["uncued"] == []
    assert look(page, pages.axe_script())["said"] == []
