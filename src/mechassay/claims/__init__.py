"""Claims about mechanisms: a rubric, judgments of any rater, scores, and records as evidence."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechassay.claims.claim import Claim, ClaimFile, read_claims
    from mechassay.claims.comparison import RaterComparison, compare
    from mechassay.claims.documents import PagedDocument, check_title, read_document
    from mechassay.claims.dossier import link
    from mechassay.claims.download import Web
    from mechassay.claims.evidence import EvidenceChecks, check_evidence
    from mechassay.claims.judgments import Judgment, Judgments, Rater, read_judgments
    from mechassay.claims.quotes import NearestPassage, QuoteMatch, find_quote, nearest_passage
    from mechassay.claims.rubric import Revision, Rubric, load_revision, load_rubric
    from mechassay.claims.scored import ScoredJudgments, score_judgments
    from mechassay.claims.scoring import (
        ClaimScore,
        PaperScore,
        attainable,
        claim_score,
        ladder_tier,
        paper_score,
    )

__all__ = [
    "Claim",
    "ClaimFile",
    "ClaimScore",
    "EvidenceChecks",
    "Judgment",
    "Judgments",
    "NearestPassage",
    "PagedDocument",
    "PaperScore",
    "QuoteMatch",
    "Rater",
    "RaterComparison",
    "Revision",
    "Rubric",
    "ScoredJudgments",
    "Web",
    "attainable",
    "check_evidence",
    "check_title",
    "claim_score",
    "compare",
    "find_quote",
    "ladder_tier",
    "link",
    "load_revision",
    "load_rubric",
    "nearest_passage",
    "paper_score",
    "read_claims",
    "read_document",
    "read_judgments",
    "score_judgments",
]

_NAMES = {
    "claim": "Claim ClaimFile read_claims",
    "comparison": "RaterComparison compare",
    "documents": "PagedDocument check_title read_document",
    "dossier": "link",
    "download": "Web",
    "evidence": "EvidenceChecks check_evidence",
    "judgments": "Judgment Judgments Rater read_judgments",
    "quotes": "NearestPassage QuoteMatch find_quote nearest_passage",
    "rubric": "Revision Rubric load_revision load_rubric",
    "scored": "ScoredJudgments score_judgments",
    "scoring": "ClaimScore PaperScore attainable claim_score ladder_tier paper_score",
}
_LAZY = {name: f"{__name__}.{part}" for part, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mechassay.claims' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
