"""Causal variables: how a task may be solved, and what an interchange should then change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.causal_models.causal_model import CausalModel as CausalModel
    from mechassay.causal_models.causal_model import Undecided as Undecided
    from mechassay.causal_models.causal_model import Variable as Variable
    from mechassay.causal_models.hypothesis import Distinction as Distinction
    from mechassay.causal_models.hypothesis import Hypothesis as Hypothesis
    from mechassay.causal_models.hypothesis import distinguish as distinguish
    from mechassay.causal_models.hypothesis import hypotheses as hypotheses
    from mechassay.causal_models.ioi import FLIPS as FLIPS
    from mechassay.causal_models.ioi import LogitDifference as LogitDifference
    from mechassay.causal_models.ioi import fit_logit_difference as fit_logit_difference
    from mechassay.causal_models.ioi import ioi_signals as ioi_signals
    from mechassay.causal_models.labels import ExpectedLabels as ExpectedLabels
    from mechassay.causal_models.labels import expected_labels as expected_labels
    from mechassay.causal_models.task_models import load_causal_model as load_causal_model
    from mechassay.causal_models.task_models import with_other_years as with_other_years
    from mechassay.causal_models.task_models import with_shifts as with_shifts
    from mechassay.causal_models.true_sites import VerifiedSites as VerifiedSites
    from mechassay.causal_models.true_sites import true_sites as true_sites
    from mechassay.causal_models.true_sites import verified_sites as verified_sites
    from mechassay.variables.alignment import VariableAlignment as VariableAlignment
    from mechassay.variables.data import VariablePairs as VariablePairs
    from mechassay.variables.data import answered_examples as answered_examples
    from mechassay.variables.data import variable_pairs as variable_pairs
    from mechassay.variables.featurizers import FeaturizerSettings as FeaturizerSettings
    from mechassay.variables.featurizers import fit_featurizer as fit_featurizer
    from mechassay.variables.interchange_accuracy import InterchangeAccuracy as InterchangeAccuracy
    from mechassay.variables.interchange_accuracy import accuracy as accuracy
    from mechassay.variables.ioi_heads import HeadSubsets as HeadSubsets
    from mechassay.variables.ioi_heads import head_subsets as head_subsets
    from mechassay.variables.localization import Localization as Localization
    from mechassay.variables.localization import localize as localize
    from mechassay.variables.logit_difference import HeadEffects as HeadEffects
    from mechassay.variables.logit_difference import SquaredError as SquaredError
    from mechassay.variables.logit_difference import inhibition_heads as inhibition_heads
    from mechassay.variables.logit_difference import linear_difference as linear_difference
    from mechassay.variables.logit_difference import squared_error as squared_error
    from mechassay.variables.mib_submission import read_mib_folder as read_mib_folder
    from mechassay.variables.mib_submission import validate as validate
    from mechassay.variables.mib_submission import write_mib_folder as write_mib_folder


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
