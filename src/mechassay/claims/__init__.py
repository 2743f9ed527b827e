"""Claims about mechanisms: a rubric, judgments of any rater, scores, and records as evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.claims.claim import Claim as Claim
    from mechassay.claims.claim import ClaimFile as ClaimFile
    from mechassay.claims.comparison import RaterComparison as RaterComparison
    from mechassay.claims.comparison import compare as compare
    from mechassay.claims.document import PagedDocument as PagedDocument
    from mechassay.claims.dossier import link as link
    from mechassay.claims.evidence import EvidenceChecks as EvidenceChecks
    from mechassay.claims.evidence import QuoteMatch as QuoteMatch
    from mechassay.claims.evidence import ScoredJudgments as ScoredJudgments
    from mechassay.claims.evidence import find_quote as find_quote
    from mechassay.claims.evidence import score_judgments as score_judgments
    from mechassay.claims.judgments import Judgments as Judgments
    from mechassay.claims.judgments import Rater as Rater
    from mechassay.claims.rubric import ClaimScore as ClaimScore
    from mechassay.claims.rubric import PaperScore as PaperScore
    from mechassay.claims.rubric import Rubric as Rubric
    from mechassay.claims.rubric import attainable as attainable
    from mechassay.claims.rubric import load_rubric as load_rubric


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
