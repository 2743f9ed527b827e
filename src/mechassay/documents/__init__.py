"""Documents: papers and pages as text, with what they hide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.documents.download import Web as Web
    from mechassay.documents.reading import read_document as read_document

Extractor = Literal["pdfium", "paper"]
"""What reads PDFs."""
EXTRACTORS: tuple[Extractor, ...] = get_args(Extractor)

__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__, "Extractor")
