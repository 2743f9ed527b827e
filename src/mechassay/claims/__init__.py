"""Claims about mechanisms: a rubric, judgments of any rater, scores, and records as evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.claims.claim import Claim, ClaimFile
    from mechassay.claims.comparison import RaterComparison, compare
    from mechassay.claims.document import PagedDocument
    from mechassay.claims.dossier import link
    from mechassay.claims.evidence import (
        EvidenceChecks,
        QuoteMatch,
        ScoredJudgments,
        find_quote,
        score_judgments,
    )
    from mechassay.claims.judgments import Judgments, Rater
    from mechassay.claims.rubric import (
        ClaimScore,
        PaperScore,
        Rubric,
        attainable,
        load_rubric,
    )

__all__ = [
    "Claim",
    "ClaimFile",
    "ClaimScore",
    "EvidenceChecks",
    "Judgments",
    "PagedDocument",
    "PaperScore",
    "QuoteMatch",
    "Rater",
    "RaterComparison",
    "Rubric",
    "ScoredJudgments",
    "attainable",
    "compare",
    "find_quote",
    "link",
    "load_rubric",
    "score_judgments",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "claim": "Claim ClaimFile",
        "comparison": "RaterComparison compare",
        "document": "PagedDocument",
        "dossier": "link",
        "evidence": "EvidenceChecks QuoteMatch ScoredJudgments find_quote score_judgments",
        "judgments": "Judgments Rater",
        "rubric": "ClaimScore PaperScore Rubric attainable load_rubric",
    },
)
