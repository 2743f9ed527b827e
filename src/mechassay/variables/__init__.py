"""Causal variables: how a task may be solved, and what an interchange should then change."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechassay.variables.causal_model import CausalModel, Undecided, Variable
    from mechassay.variables.difference_error import SquaredError, squared_error
    from mechassay.variables.distinction import Distinction, distinguish
    from mechassay.variables.head_effects import (
        HeadEffects,
        inhibition_heads,
        linear_difference,
    )
    from mechassay.variables.interchange_accuracy import InterchangeAccuracy, accuracy
    from mechassay.variables.labels import ExpectedLabels, expected_labels
    from mechassay.variables.load import CAUSAL_MODELS, load_causal_model
    from mechassay.variables.models.docstring import with_shifts
    from mechassay.variables.models.ioi import (
        FLIPS,
        LogitDifference,
        fit_logit_difference,
        ioi_signals,
    )
    from mechassay.variables.subsets_of_heads import HeadSubsets, head_subsets

__all__ = [
    "CAUSAL_MODELS",
    "FLIPS",
    "CausalModel",
    "Distinction",
    "ExpectedLabels",
    "HeadEffects",
    "HeadSubsets",
    "InterchangeAccuracy",
    "LogitDifference",
    "SquaredError",
    "Undecided",
    "Variable",
    "accuracy",
    "distinguish",
    "expected_labels",
    "fit_logit_difference",
    "head_subsets",
    "inhibition_heads",
    "ioi_signals",
    "linear_difference",
    "load_causal_model",
    "squared_error",
    "with_shifts",
]

_NAMES = {
    "interchange_accuracy": "InterchangeAccuracy accuracy",
    "causal_model": "CausalModel Undecided Variable",
    "distinction": "Distinction distinguish",
    "subsets_of_heads": "HeadSubsets head_subsets",
    "head_effects": "HeadEffects inhibition_heads linear_difference",
    "difference_error": "SquaredError squared_error",
    "labels": "ExpectedLabels expected_labels",
    "load": "CAUSAL_MODELS load_causal_model",
    "models.docstring": "with_shifts",
    "models.ioi": "FLIPS LogitDifference fit_logit_difference ioi_signals",
}
_LAZY = {name: f"{__name__}.{part}" for part, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mechassay.variables' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
