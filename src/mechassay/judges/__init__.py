"""Judges: language models as raters of claims, and what shows whether they can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.judges.assessment import Assessment, DocumentFlag, assess, find_flags
    from mechassay.judges.debiasing import challenge
    from mechassay.judges.evaluation import JudgeEvaluation
    from mechassay.judges.judge import Judge, ScriptedJudge
    from mechassay.judges.leak_audit import audit
    from mechassay.judges.published import published_evaluation
    from mechassay.judges.reference_labels import PaperLabel, ReferenceLabels, evaluate
    from mechassay.judges.requests import JudgeAnswer, JudgeRequest
    from mechassay.judges.voting import vote

__all__ = [
    "Assessment",
    "DocumentFlag",
    "Judge",
    "JudgeAnswer",
    "JudgeEvaluation",
    "JudgeRequest",
    "PaperLabel",
    "ReferenceLabels",
    "ScriptedJudge",
    "assess",
    "audit",
    "challenge",
    "evaluate",
    "find_flags",
    "published_evaluation",
    "vote",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "assessment": "Assessment DocumentFlag assess find_flags",
        "debiasing": "challenge",
        "evaluation": "JudgeEvaluation",
        "judge": "Judge ScriptedJudge",
        "leak_audit": "audit",
        "published": "published_evaluation",
        "reference_labels": "PaperLabel ReferenceLabels evaluate",
        "requests": "JudgeAnswer JudgeRequest",
        "voting": "vote",
    },
)
