"""Causal variables: how a task may be solved, and what an interchange should then change."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechassay.variables.causal_model import CausalModel, Undecided, Variable
    from mechassay.variables.data import VariablePairs, answered_examples, variable_pairs
    from mechassay.variables.distinction import Distinction, distinguish
    from mechassay.variables.featurizers import FEATURIZERS, FeaturizerSettings, fit_featurizer
    from mechassay.variables.interchange_accuracy import InterchangeAccuracy, accuracy
    from mechassay.variables.labels import ExpectedLabels, expected_labels
    from mechassay.variables.load import CAUSAL_MODELS, load_causal_model
    from mechassay.variables.localization import Localization
    from mechassay.variables.mib_folder import read_mib_folder, write_mib_folder
    from mechassay.variables.models.docstring import with_shifts
    from mechassay.variables.models.ioi import (
        LogitDifference,
        fit_logit_difference,
        ioi_signals,
    )
    from mechassay.variables.search import localize
    from mechassay.variables.validation import validate
    from mechassay.variables.variable_alignment import VariableAlignment

__all__ = [
    "CAUSAL_MODELS",
    "FEATURIZERS",
    "CausalModel",
    "Distinction",
    "ExpectedLabels",
    "FeaturizerSettings",
    "InterchangeAccuracy",
    "Localization",
    "LogitDifference",
    "Undecided",
    "Variable",
    "VariableAlignment",
    "VariablePairs",
    "accuracy",
    "answered_examples",
    "distinguish",
    "expected_labels",
    "fit_featurizer",
    "fit_logit_difference",
    "ioi_signals",
    "load_causal_model",
    "localize",
    "read_mib_folder",
    "validate",
    "variable_pairs",
    "with_shifts",
    "write_mib_folder",
]

_NAMES = {
    "interchange_accuracy": "InterchangeAccuracy accuracy",
    "causal_model": "CausalModel Undecided Variable",
    "distinction": "Distinction distinguish",
    "search": "localize",
    "localization": "Localization",
    "featurizers": "FEATURIZERS FeaturizerSettings fit_featurizer",
    "data": "VariablePairs answered_examples variable_pairs",
    "labels": "ExpectedLabels expected_labels",
    "load": "CAUSAL_MODELS load_causal_model",
    "mib_folder": "read_mib_folder write_mib_folder",
    "models.docstring": "with_shifts",
    "models.ioi": "LogitDifference fit_logit_difference ioi_signals",
    "validation": "validate",
    "variable_alignment": "VariableAlignment",
}
_LAZY = {name: f"{__name__}.{part}" for part, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mechassay.variables' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
