"""Documents: papers and pages as text, with what they hide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.documents.download import Web
    from mechassay.documents.reading import read_document

__all__ = [
    "Extractor",
    "Web",
    "read_document",
]

Extractor = Literal["pdfium", "paper"]
"""What reads PDFs."""
EXTRACTORS: tuple[Extractor, ...] = get_args(Extractor)

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "download": "Web",
        "reading": "read_document",
    },
)
