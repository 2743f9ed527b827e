"""The text of a PDF, page by page.

`pdfium` (the default) reads with pypdfium2. What a reader cannot see is cut (`pdf_page`), columns
are ordered (`page_order`), and a hyphen at a line's end stays, with the line's end.

`paper` reads as Tower (2026) does: pypdf, the first 50 pages, nothing hidden cut.
"""

from __future__ import annotations

from io import BytesIO
from typing import Literal

from mechassay.claims.file_text import NO_TEXT, FileText, needed
from mechassay.claims.hidden_text import HiddenText, merged, without_shapeless
from mechassay.claims.normal_text import normalised, skeleton
from mechassay.claims.page_order import page_text, title_of
from mechassay.claims.pdf_page import PdfPage
from mechassay.errors import BadFile, first_line

Extractor = Literal["pdfium", "paper"]
EXTRACTORS: tuple[Extractor, ...] = ("pdfium", "paper")
PAPER_PAGES = 50
"""Pages that the extractor `paper` reads."""
SCANNED = f"{NO_TEXT}; a scanned document needs its characters recognised"


def pdf_text(
    content: bytes, name: str, most: int | None = None, extractor: Extractor = "pdfium"
) -> FileText:
    """The text of a PDF.

    Args:
        name: for messages.
        most: pages that are read; all, or 50 of the extractor `paper`, if not given.

    Raises:
        BadFile: it is no PDF, needs a password, or has no text that can be seen.
        MissingExtra: what reads it is not installed.
    """
    if b"%PDF-" not in content[:1024]:
        raise BadFile(f"{name}: is no PDF; it begins with {content[:16]!r}.")
    read = _by_pypdf if extractor == "paper" else _by_pdfium
    return read(content, name, most)


# The extractor of the paper


def _by_pypdf(content: bytes, name: str, most: int | None) -> FileText:
    pypdf = needed("pypdf", name, "pdf")
    most = PAPER_PAGES if most is None else most
    try:
        reader = pypdf.PdfReader(BytesIO(content))
        # An empty password opens what is only protected against changes.
        if reader.is_encrypted and not reader.decrypt(""):
            raise _locked(name)
        pages = tuple(page.extract_text() for page in reader.pages[:most])
        title = str((reader.metadata or {}).get("/Title") or "")
        n_pages = len(reader.pages)
    except (pypdf.errors.PyPdfError, ValueError, KeyError, OSError, RecursionError) as error:
        raise BadFile(f"{name}: is no PDF that can be read ({first_line(error)}).") from None
    if not any(page.strip() for page in pages):
        raise BadFile(f"{name}: {SCANNED}.")
    if skeleton(normalised(title)) not in skeleton(normalised(pages[0])):
        title = ""  # No reader sees it.
    told = f"pypdf {pypdf.__version__}, first {most} pages" + " (Tower 2026)" * (most == 50)
    return FileText(pages, n_pages, title, told)


# pypdfium2


def _by_pdfium(content: bytes, name: str, most: int | None) -> FileText:
    pdfium = needed("pypdfium2", name, "pdf")
    try:
        document = pdfium.PdfDocument(content)
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower():
            raise _locked(name) from None
        raise BadFile(f"{name}: is no PDF that can be read ({first_line(error)}).") from None
    pages, cut, title = list[str](), list[HiddenText](), ""
    try:
        n_pages = len(document)
        for number in range(1, n_pages + 1 if most is None else min(n_pages, most) + 1):
            page = PdfPage(document[number - 1], number, needed("pypdfium2.raw", name, "pdf"))
            lines = page.visible_lines()
            text, shapeless = without_shapeless(page_text(lines), number)
            pages.append(text)
            cut += [*page.cut, *shapeless]
            title = title_of(lines) if number == 1 else title
            page.page.close()
    except pdfium.PdfiumError as error:
        at = len(pages) + 1
        raise BadFile(f"{name}: page {at} cannot be read ({first_line(error)}).") from None
    finally:
        document.close()
    if not any(page.strip() for page in pages):
        raise BadFile(f"{name}: {_nothing_visible(cut)}.")
    version = needed("pypdfium2.version", name, "pdf").PYPDFIUM_INFO
    return FileText(tuple(pages), n_pages, title, f"pypdfium2 {version}", merged(cut))


def _nothing_visible(cut: list[HiddenText]) -> str:
    n = sum(each.n for each in cut)
    if not n:
        return SCANNED
    return (
        f"has no text that can be seen; {n:,} characters lie hidden on its pages, as those of a"
        " scanned document do whose characters were recognised"
    )


def _locked(name: str) -> BadFile:
    return BadFile(f"{name}: is encrypted and needs a password; save it without one.")
