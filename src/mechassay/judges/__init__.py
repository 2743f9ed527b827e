"""Judges: language models as raters of claims, and what shows whether they can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.judges.assessment import Assessment as Assessment
    from mechassay.judges.assessment import DocumentFlag as DocumentFlag
    from mechassay.judges.assessment import assess as assess
    from mechassay.judges.assessment import find_flags as find_flags
    from mechassay.judges.debiasing import challenge as challenge
    from mechassay.judges.evaluation import JudgeEvaluation as JudgeEvaluation
    from mechassay.judges.judge import Judge as Judge
    from mechassay.judges.judge import ScriptedJudge as ScriptedJudge
    from mechassay.judges.leak_audit import audit as audit
    from mechassay.judges.published import published_evaluation as published_evaluation
    from mechassay.judges.reference_labels import PaperLabel as PaperLabel
    from mechassay.judges.reference_labels import ReferenceLabels as ReferenceLabels
    from mechassay.judges.reference_labels import evaluate as evaluate
    from mechassay.judges.requests import JudgeAnswer as JudgeAnswer
    from mechassay.judges.requests import JudgeRequest as JudgeRequest
    from mechassay.judges.voting import vote as vote


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
