"""Causal variables: how a task may be solved, and what an interchange should then change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.variables.arbitrary_labels import with_arbitrary_labels
    from mechassay.variables.causal_model import CausalModel, Undecided, Variable
    from mechassay.variables.data import VariablePairs, answered_examples, variable_pairs
    from mechassay.variables.difference_error import SquaredError, squared_error
    from mechassay.variables.distinction import Distinction, distinguish
    from mechassay.variables.featurizers import FEATURIZERS, FeaturizerSettings, fit_featurizer
    from mechassay.variables.head_effects import HeadEffects, inhibition_heads, linear_difference
    from mechassay.variables.head_localization import (
        HeadLocalization,
        localize_in_heads,
        measure_features_in_heads,
    )
    from mechassay.variables.homes import (
        HOMES,
        Home,
        VerifiedHomes,
        homes_of,
        known_homes,
        true_sites,
        verify_homes,
    )
    from mechassay.variables.hypothesis import Hypothesis, hypotheses
    from mechassay.variables.interchange_accuracy import InterchangeAccuracy, accuracy
    from mechassay.variables.labels import ExpectedLabels, expected_labels
    from mechassay.variables.load import CAUSAL_MODELS, load_causal_model
    from mechassay.variables.localization import Localization
    from mechassay.variables.mib_folder import read_mib_folder
    from mechassay.variables.mib_submission import write_mib_folder
    from mechassay.variables.models.docstring import with_shifts
    from mechassay.variables.models.greater_than import with_other_years
    from mechassay.variables.models.ioi import (
        FLIPS,
        LogitDifference,
        fit_logit_difference,
        ioi_signals,
    )
    from mechassay.variables.search import localize, measure_features
    from mechassay.variables.subsets_of_heads import HeadSubsets, head_subsets
    from mechassay.variables.validation import validate
    from mechassay.variables.variable_alignment import VariableAlignment

__all__ = [
    "CAUSAL_MODELS",
    "FEATURIZERS",
    "FLIPS",
    "HOMES",
    "CausalModel",
    "Distinction",
    "ExpectedLabels",
    "FeaturizerSettings",
    "HeadEffects",
    "HeadLocalization",
    "HeadSubsets",
    "Home",
    "Hypothesis",
    "InterchangeAccuracy",
    "Localization",
    "LogitDifference",
    "SquaredError",
    "Undecided",
    "Variable",
    "VariableAlignment",
    "VariablePairs",
    "VerifiedHomes",
    "accuracy",
    "answered_examples",
    "distinguish",
    "expected_labels",
    "fit_featurizer",
    "fit_logit_difference",
    "head_subsets",
    "homes_of",
    "hypotheses",
    "inhibition_heads",
    "ioi_signals",
    "known_homes",
    "linear_difference",
    "load_causal_model",
    "localize",
    "localize_in_heads",
    "measure_features",
    "measure_features_in_heads",
    "read_mib_folder",
    "squared_error",
    "true_sites",
    "validate",
    "variable_pairs",
    "verify_homes",
    "with_arbitrary_labels",
    "with_other_years",
    "with_shifts",
    "write_mib_folder",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "arbitrary_labels": "with_arbitrary_labels",
        "causal_model": "CausalModel Undecided Variable",
        "data": "VariablePairs answered_examples variable_pairs",
        "difference_error": "SquaredError squared_error",
        "distinction": "Distinction distinguish",
        "featurizers": "FEATURIZERS FeaturizerSettings fit_featurizer",
        "head_effects": "HeadEffects inhibition_heads linear_difference",
        "head_localization": "HeadLocalization localize_in_heads measure_features_in_heads",
        "homes": "HOMES Home VerifiedHomes homes_of known_homes true_sites verify_homes",
        "hypothesis": "Hypothesis hypotheses",
        "interchange_accuracy": "InterchangeAccuracy accuracy",
        "labels": "ExpectedLabels expected_labels",
        "load": "CAUSAL_MODELS load_causal_model",
        "localization": "Localization",
        "mib_folder": "read_mib_folder",
        "mib_submission": "write_mib_folder",
        "models.docstring": "with_shifts",
        "models.greater_than": "with_other_years",
        "models.ioi": "FLIPS LogitDifference fit_logit_difference ioi_signals",
        "search": "localize measure_features",
        "subsets_of_heads": "HeadSubsets head_subsets",
        "validation": "validate",
        "variable_alignment": "VariableAlignment",
    },
)
