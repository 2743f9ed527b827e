"""Causal models by name: those of our tasks, and of other packages.

Other packages add theirs under the entry point group `mechassay.causal_models`; each is a function
that returns a `CausalModel`, whose parameters are its settings.
"""

from __future__ import annotations

import inspect
from typing import Any

from mechassay.errors import UnknownName
from mechassay.registry import Registry
from mechassay.variables.causal_model import CausalModel

_TRUTHS = "mechassay.variables.models.truths"

CAUSAL_MODELS = Registry(
    "causal model",
    {
        "arc-challenge": "mechassay.variables.models.multiple_choice:arc_model",
        "arc-easy": "mechassay.variables.models.multiple_choice:arc_model",
        "arithmetic-addition": "mechassay.variables.models.addition:addition_model",
        "docstring": "mechassay.variables.models.docstring:docstring_model",
        "greater-than": "mechassay.variables.models.greater_than:greater_than_model",
        "ioi": "mechassay.variables.models.ioi:ioi_model",
        "mcqa": "mechassay.variables.models.multiple_choice:mcqa_model",
        "ravel": "mechassay.variables.models.ravel:ravel_model",
        "truth-addition": f"{_TRUTHS}:added_tens_model",
        "truth-fraction": f"{_TRUTHS}:share_model",
        "truth-greater-than": f"{_TRUTHS}:larger_model",
        "truth-induction": f"{_TRUTHS}:following_word_model",
        "truth-ioi": f"{_TRUTHS}:repeated_name_model",
        "truth-mcqa": f"{_TRUTHS}:choices_model",
        "truth-previous-token": f"{_TRUTHS}:previous_word_model",
    },
    plural="causal_models",
)
"""By the name of the task."""


def load_causal_model(name: str, **settings: Any) -> CausalModel:
    """The causal model of a task.

    Args:
        name: of the task.
        settings: the model's own, such as `n_choices` of mcqa or the coefficients of ioi.

    Raises:
        UnknownName: no such causal model, or setting of it.
        BadUsage: a setting outside of its range.
    """
    make = CAUSAL_MODELS.load(name)
    known = inspect.signature(make).parameters
    for setting in settings:
        if setting not in known:
            raise UnknownName(f"setting of the causal model {name!r}", setting, known)
    return make(**settings)
