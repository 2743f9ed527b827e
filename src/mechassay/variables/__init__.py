"""Causal variables: how a task may be solved, and what an interchange should then change."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechassay.variables.causal_model import CausalModel, Undecided, Variable
    from mechassay.variables.distinction import Distinction, distinguish
    from mechassay.variables.homes import (
        HOMES,
        Home,
        VerifiedHomes,
        homes_of,
        known_homes,
        true_sites,
        verify_homes,
    )
    from mechassay.variables.interchange_accuracy import InterchangeAccuracy, accuracy
    from mechassay.variables.known_hypotheses import KnownHypothesis, hypotheses
    from mechassay.variables.labels import ExpectedLabels, expected_labels
    from mechassay.variables.load import CAUSAL_MODELS, load_causal_model
    from mechassay.variables.models.docstring import with_shifts
    from mechassay.variables.models.ioi import (
        LogitDifference,
        fit_logit_difference,
        ioi_signals,
    )

__all__ = [
    "CAUSAL_MODELS",
    "HOMES",
    "CausalModel",
    "Distinction",
    "ExpectedLabels",
    "Home",
    "InterchangeAccuracy",
    "KnownHypothesis",
    "LogitDifference",
    "Undecided",
    "Variable",
    "VerifiedHomes",
    "accuracy",
    "distinguish",
    "expected_labels",
    "fit_logit_difference",
    "homes_of",
    "hypotheses",
    "ioi_signals",
    "known_homes",
    "load_causal_model",
    "true_sites",
    "verify_homes",
    "with_shifts",
]

_NAMES = {
    "interchange_accuracy": "InterchangeAccuracy accuracy",
    "causal_model": "CausalModel Undecided Variable",
    "distinction": "Distinction distinguish",
    "homes": "HOMES Home VerifiedHomes homes_of known_homes true_sites verify_homes",
    "known_hypotheses": "KnownHypothesis hypotheses",
    "labels": "ExpectedLabels expected_labels",
    "load": "CAUSAL_MODELS load_causal_model",
    "models.docstring": "with_shifts",
    "models.ioi": "LogitDifference fit_logit_difference ioi_signals",
}
_LAZY = {name: f"{__name__}.{part}" for part, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mechassay.variables' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
