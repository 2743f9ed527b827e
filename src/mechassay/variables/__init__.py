"""Causal variables: how a task may be solved, and what an interchange should then change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.causal_models.causal_model import CausalModel, Undecided, Variable
    from mechassay.causal_models.hypothesis import Distinction, Hypothesis, distinguish, hypotheses
    from mechassay.causal_models.ioi import (
        FLIPS,
        LogitDifference,
        fit_logit_difference,
        ioi_signals,
    )
    from mechassay.causal_models.labels import (
        ExpectedLabels,
        expected_labels,
    )
    from mechassay.causal_models.task_models import (
        load_causal_model,
        with_other_years,
        with_shifts,
    )
    from mechassay.causal_models.true_sites import (
        VerifiedSites,
        true_sites,
        verified_sites,
    )
    from mechassay.variables.alignment import VariableAlignment
    from mechassay.variables.data import VariablePairs, answered_examples, variable_pairs
    from mechassay.variables.featurizers import FeaturizerSettings, fit_featurizer
    from mechassay.variables.interchange_accuracy import InterchangeAccuracy, accuracy
    from mechassay.variables.ioi_heads import (
        HeadSubsets,
        head_subsets,
    )
    from mechassay.variables.localization import Localization, localize
    from mechassay.variables.logit_difference import (
        HeadEffects,
        SquaredError,
        inhibition_heads,
        linear_difference,
        squared_error,
    )
    from mechassay.variables.mib_submission import read_mib_folder, validate, write_mib_folder

__all__ = [
    "FLIPS",
    "CausalModel",
    "Distinction",
    "ExpectedLabels",
    "FeaturizerSettings",
    "HeadEffects",
    "HeadSubsets",
    "Hypothesis",
    "InterchangeAccuracy",
    "Localization",
    "LogitDifference",
    "SquaredError",
    "Undecided",
    "Variable",
    "VariableAlignment",
    "VariablePairs",
    "VerifiedSites",
    "accuracy",
    "answered_examples",
    "distinguish",
    "expected_labels",
    "fit_featurizer",
    "fit_logit_difference",
    "head_subsets",
    "hypotheses",
    "inhibition_heads",
    "ioi_signals",
    "linear_difference",
    "load_causal_model",
    "localize",
    "read_mib_folder",
    "squared_error",
    "true_sites",
    "validate",
    "variable_pairs",
    "verified_sites",
    "with_other_years",
    "with_shifts",
    "write_mib_folder",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "alignment": "VariableAlignment",
        "data": "VariablePairs answered_examples variable_pairs",
        "featurizers": "FeaturizerSettings fit_featurizer",
        "interchange_accuracy": "InterchangeAccuracy accuracy",
        "ioi_heads": "HeadSubsets head_subsets",
        "localization": "Localization localize",
        "logit_difference": "HeadEffects SquaredError inhibition_heads linear_difference"
        " squared_error",
        "mechassay.causal_models.causal_model": "CausalModel Undecided Variable",
        "mechassay.causal_models.hypothesis": "Distinction Hypothesis distinguish hypotheses",
        "mechassay.causal_models.ioi": "FLIPS LogitDifference fit_logit_difference ioi_signals",
        "mechassay.causal_models.labels": "ExpectedLabels expected_labels",
        "mechassay.causal_models.task_models": "load_causal_model with_other_years with_shifts",
        "mechassay.causal_models.true_sites": "VerifiedSites true_sites verified_sites",
        "mib_submission": "read_mib_folder validate write_mib_folder",
    },
)
