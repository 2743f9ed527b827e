"""Circuit localization: score the edges of a model's graph, cut circuits, measure how faithful they are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechassay.circuits.ablation import ablate
    from mechassay.circuits.faithfulness import Controls, FaithfulnessCurve, evaluate, faithfulness_curve, run_controls
    from mechassay.circuits.methods.clean_corrupted import CleanCorrupted
    from mechassay.circuits.methods.eap import EAP
    from mechassay.circuits.methods.eap_ig_activations import EAPIGActivations
    from mechassay.circuits.methods.eap_ig_inputs import EAPIGInputs
    from mechassay.circuits.methods.exact import ExactPatching
    from mechassay.circuits.methods.random import Random
    from mechassay.circuits.scores import Circuit, EdgeScores

__all__ = [
    "EAP",
    "Circuit",
    "CleanCorrupted",
    "Controls",
    "EAPIGActivations",
    "EAPIGInputs",
    "EdgeScores",
    "ExactPatching",
    "FaithfulnessCurve",
    "Random",
    "ablate",
    "evaluate",
    "faithfulness_curve",
    "run_controls",
]

_LAZY = {
    "EAP": "methods.eap",
    "Circuit": "scores",
    "CleanCorrupted": "methods.clean_corrupted",
    "Controls": "faithfulness",
    "EAPIGActivations": "methods.eap_ig_activations",
    "EAPIGInputs": "methods.eap_ig_inputs",
    "EdgeScores": "scores",
    "ExactPatching": "methods.exact",
    "FaithfulnessCurve": "faithfulness",
    "Random": "methods.random",
    "ablate": "ablation",
    "evaluate": "faithfulness",
    "faithfulness_curve": "faithfulness",
    "run_controls": "faithfulness",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mechassay.circuits' has no attribute {name!r}")
    return getattr(import_module(f"mechassay.circuits.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__
