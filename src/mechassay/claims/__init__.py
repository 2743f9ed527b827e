"""Claims about mechanisms: a rubric, judgments of any rater, scores, and records as evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.claims.advocate import challenge
    from mechassay.claims.assessment import Assessment, assess
    from mechassay.claims.claim import Claim, ClaimFile, read_claims
    from mechassay.claims.comparison import RaterComparison, compare
    from mechassay.claims.debiasing import debias, debiasing_record
    from mechassay.claims.documents import PagedDocument, check_title, read_document
    from mechassay.claims.dossier import link
    from mechassay.claims.download import Web
    from mechassay.claims.evaluated import evaluate, published_evaluation
    from mechassay.claims.evidence import EvidenceChecks, check_evidence
    from mechassay.claims.exchange import JudgeAnswer, JudgeRequest
    from mechassay.claims.flags import DocumentFlag, find_flags
    from mechassay.claims.judge import Judge, ReplayJudge, ScriptedJudge, load_judge
    from mechassay.claims.judge_evaluation import JudgeEvaluation
    from mechassay.claims.judgments import Judgment, Judgments, Rater, read_judgments
    from mechassay.claims.labels import PaperLabel, ReferenceLabels, read_labels
    from mechassay.claims.leak_audit import audit, audit_request
    from mechassay.claims.minimum_vote import vote
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
    from mechassay.claims.served_judge import ServedJudge

__all__ = [
    "Assessment",
    "Claim",
    "ClaimFile",
    "ClaimScore",
    "DocumentFlag",
    "EvidenceChecks",
    "Judge",
    "JudgeAnswer",
    "JudgeEvaluation",
    "JudgeRequest",
    "Judgment",
    "Judgments",
    "NearestPassage",
    "PagedDocument",
    "PaperLabel",
    "PaperScore",
    "QuoteMatch",
    "Rater",
    "RaterComparison",
    "ReferenceLabels",
    "ReplayJudge",
    "Revision",
    "Rubric",
    "ScoredJudgments",
    "ScriptedJudge",
    "ServedJudge",
    "Web",
    "assess",
    "attainable",
    "audit",
    "audit_request",
    "challenge",
    "check_evidence",
    "check_title",
    "claim_score",
    "compare",
    "debias",
    "debiasing_record",
    "evaluate",
    "find_flags",
    "find_quote",
    "ladder_tier",
    "link",
    "load_judge",
    "load_revision",
    "load_rubric",
    "nearest_passage",
    "paper_score",
    "published_evaluation",
    "read_claims",
    "read_document",
    "read_judgments",
    "read_labels",
    "score_judgments",
    "vote",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "advocate": "challenge",
        "assessment": "Assessment assess",
        "claim": "Claim ClaimFile read_claims",
        "comparison": "RaterComparison compare",
        "debiasing": "debias debiasing_record",
        "documents": "PagedDocument check_title read_document",
        "dossier": "link",
        "download": "Web",
        "evaluated": "evaluate published_evaluation",
        "evidence": "EvidenceChecks check_evidence",
        "exchange": "JudgeAnswer JudgeRequest",
        "flags": "DocumentFlag find_flags",
        "judge": "Judge ReplayJudge ScriptedJudge load_judge",
        "judge_evaluation": "JudgeEvaluation",
        "judgments": "Judgment Judgments Rater read_judgments",
        "labels": "PaperLabel ReferenceLabels read_labels",
        "leak_audit": "audit audit_request",
        "minimum_vote": "vote",
        "quotes": "NearestPassage QuoteMatch find_quote nearest_passage",
        "rubric": "Revision Rubric load_revision load_rubric",
        "scored": "ScoredJudgments score_judgments",
        "scoring": "ClaimScore PaperScore attainable claim_score ladder_tier paper_score",
        "served_judge": "ServedJudge",
    },
)
