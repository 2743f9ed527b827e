"""Documents and quotes: which words are found, and which are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from judgments_made import TEXT
from mechassay.claims.documents import PagedDocument, find_quote, read_document
from mechassay.errors import BadFile, BadUsage, MissingExtra


@pytest.fixture
def document(tmp_path: Path) -> PagedDocument:
    (tmp_path / "paper.txt").write_text(TEXT)
    return read_document(tmp_path / "paper.txt")


@pytest.mark.parametrize(
    ("quote", "match", "page"),
    [
        ("Heads 9.9 and 9.6 copy", "exact", 2),
        ("The circuit recovers 87%", "normalised", 1),
        ("87% of the logit difference", "normalised", 1),
        ("87% of the logit dif-ference", "normalised", 1),
        ("well-known tasks", "exact", 1),
        ("copy the first name", "normalised", 2),
        ("the circuit, recovers 87 %", "loose", 1),
        ("other well known tasks", "loose", 1),
        # Across the end of a page.
        ("tasks. Heads 9.9", "normalised", 0),
        # Another digit, another number of the same digits, a negation more or less.
        ("recovers 97% of the logit", "none", 0),
        ("with probability 15", "none", 0),
        ("It was tested on other", "none", 0),
        ("It was not tested on no other", "none", 0),
        # Two sentences joined.
        ("The circuit copy the first name", "none", 0),
        ("", "none", 0),
        ("...", "none", 0),
        ("\n", "none", 0),
    ],
)
def test_quotes(document: PagedDocument, quote: str, match: str, page: int) -> None:
    found = find_quote(document, quote)
    assert (found.match, found.page) == (match, page)


def test_a_negation_inside_a_word_is_none(tmp_path: Path) -> None:
    """The letters of "can not" are those of "cannot", the words are not; "note" is no "not"."""
    (tmp_path / "a.txt").write_text("We can not say. We note e5 here.")
    document = read_document(tmp_path / "a.txt")
    assert find_quote(document, "we cannot say").match == "none"
    assert find_quote(document, "we not e e5").match == "none"


def test_pages_and_hash(document: PagedDocument) -> None:
    assert (len(document.pages), document.n_pages) == (2, 2)
    assert len(document.sha256) == 64 and document.source.n_pages == 2


def test_documents_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        read_document(tmp_path / "none.txt")
    with pytest.raises(BadUsage, match=r"\.pdf or \.txt or \.md"):
        read_document(tmp_path / "a.docx")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadFile, match="UTF-8"):
        read_document(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text(" \n")
    with pytest.raises(BadFile, match="has no text"):
        read_document(tmp_path / "b.txt")


def small_pdf(*lines: str) -> bytes:
    """A PDF with one line on each page."""
    count = len(lines)
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Count {count} /Kids [{kids}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for n, line in enumerate(lines):
        stream = f"BT /F1 12 Tf 72 700 Td ({line}) Tj ET"
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792]"
            f" /Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * n} 0 R >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    text, places = "%PDF-1.4\n", []
    for n, body in enumerate(objects, start=1):
        places.append(len(text))
        text += f"{n} 0 obj\n{body}\nendobj\n"
    begin = len(text)
    rows = "".join(f"{place:010d} 00000 n \n" for place in places)
    text += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{rows}"
    text += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{begin}\n%%EOF\n"
    return text.encode("latin-1")


def test_a_pdf_is_read_page_by_page(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    (tmp_path / "a.pdf").write_bytes(small_pdf("Heads copy the name.", "Recovery is 87%.", "End."))
    document = read_document(tmp_path / "a.pdf", most=2)
    assert (len(document.pages), document.n_pages) == (2, 3)
    assert find_quote(document, "Recovery is 87%").page == 2
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4 nothing")
    with pytest.raises(BadFile, match="is no PDF"):
        read_document(tmp_path / "b.pdf")


def test_without_pypdf_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pdf").write_bytes(small_pdf("Text."))
    monkeypatch.setitem(__import__("sys").modules, "pypdf", None)
    with pytest.raises(MissingExtra, match=r"mechassay\[pdf\]"):
        read_document(tmp_path / "a.pdf")
