"""Judges: language models as raters of claims, and what shows whether they can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.judges.assessment import Assessment, DocumentFlag, assess, find_flags
    from mechassay.judges.debiasing import challenge, debias, debiasing_record
    from mechassay.judges.evaluation import JudgeEvaluation
    from mechassay.judges.judge import Judge, ReplayJudge, ScriptedJudge, ServedJudge, load_judge
    from mechassay.judges.leak_audit import audit, audit_request
    from mechassay.judges.published import published_evaluation
    from mechassay.judges.reference_labels import PaperLabel, ReferenceLabels, evaluate, read_labels
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
    "ReplayJudge",
    "ScriptedJudge",
    "ServedJudge",
    "assess",
    "audit",
    "audit_request",
    "challenge",
    "debias",
    "debiasing_record",
    "evaluate",
    "find_flags",
    "load_judge",
    "published_evaluation",
    "read_labels",
    "vote",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "assessment": "Assessment DocumentFlag assess find_flags",
        "debiasing": "challenge debias debiasing_record",
        "evaluation": "JudgeEvaluation",
        "judge": "Judge ReplayJudge ScriptedJudge ServedJudge load_judge",
        "leak_audit": "audit audit_request",
        "published": "published_evaluation",
        "reference_labels": "PaperLabel ReferenceLabels evaluate read_labels",
        "requests": "JudgeAnswer JudgeRequest",
        "voting": "vote",
    },
)
