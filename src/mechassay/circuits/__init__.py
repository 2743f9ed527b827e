"""Circuit localization: score the edges of a model's graph,
cut circuits, measure how faithful they are.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechassay.circuits.ablation import ablate
    from mechassay.circuits.differences import Differences, differences_of
    from mechassay.circuits.faithfulness import (
        Controls,
        FaithfulnessCurve,
        evaluate,
        faithfulness_curve,
        run_controls,
    )
    from mechassay.circuits.methods.acdc import ACDC
    from mechassay.circuits.methods.clean_corrupted import CleanCorrupted
    from mechassay.circuits.methods.eap import EAP
    from mechassay.circuits.methods.eap_ig_activations import EAPIGActivations
    from mechassay.circuits.methods.eap_ig_inputs import EAPIGInputs
    from mechassay.circuits.methods.edge_pruning import EdgePruning
    from mechassay.circuits.methods.exact import ExactPatching
    from mechassay.circuits.methods.exact_nodes import ExactNodePatching
    from mechassay.circuits.methods.ifr import InformationFlowRoutes
    from mechassay.circuits.methods.nap import NAP, NAPIG
    from mechassay.circuits.methods.random import Random
    from mechassay.circuits.methods.random_paths import RandomPaths
    from mechassay.circuits.methods.subnetwork_probing import SubnetworkProbing
    from mechassay.circuits.methods.ugs import UniformGradientSampling
    from mechassay.circuits.necessity import (
        Completeness,
        Minimality,
        complement,
        completeness,
        minimality,
    )
    from mechassay.circuits.node_scores import NeuronScores, NodeScores
    from mechassay.circuits.optimal_ablation import OptimalAblation
    from mechassay.circuits.overlap import Overlap, overlap_of
    from mechassay.circuits.recovery import Recovery, recovery_of
    from mechassay.circuits.scores import Circuit, EdgeScores

__all__ = [
    "ACDC",
    "EAP",
    "NAP",
    "NAPIG",
    "Circuit",
    "CleanCorrupted",
    "Completeness",
    "Controls",
    "Differences",
    "EAPIGActivations",
    "EAPIGInputs",
    "EdgePruning",
    "EdgeScores",
    "ExactNodePatching",
    "ExactPatching",
    "FaithfulnessCurve",
    "InformationFlowRoutes",
    "Minimality",
    "NeuronScores",
    "NodeScores",
    "OptimalAblation",
    "Overlap",
    "Random",
    "RandomPaths",
    "Recovery",
    "SubnetworkProbing",
    "UniformGradientSampling",
    "ablate",
    "complement",
    "completeness",
    "differences_of",
    "evaluate",
    "faithfulness_curve",
    "minimality",
    "overlap_of",
    "recovery_of",
    "run_controls",
]

_LAZY = {
    "ACDC": "methods.acdc",
    "EAP": "methods.eap",
    "Circuit": "scores",
    "CleanCorrupted": "methods.clean_corrupted",
    "Controls": "faithfulness",
    "Differences": "differences",
    "differences_of": "differences",
    "EAPIGActivations": "methods.eap_ig_activations",
    "EAPIGInputs": "methods.eap_ig_inputs",
    "EdgePruning": "methods.edge_pruning",
    "EdgeScores": "scores",
    "ExactNodePatching": "methods.exact_nodes",
    "ExactPatching": "methods.exact",
    "FaithfulnessCurve": "faithfulness",
    "InformationFlowRoutes": "methods.ifr",
    "NAP": "methods.nap",
    "NAPIG": "methods.nap",
    "NeuronScores": "node_scores",
    "NodeScores": "node_scores",
    "OptimalAblation": "optimal_ablation",
    "SubnetworkProbing": "methods.subnetwork_probing",
    "UniformGradientSampling": "methods.ugs",
    "Random": "methods.random",
    "RandomPaths": "methods.random_paths",
    "Completeness": "necessity",
    "Minimality": "necessity",
    "ablate": "ablation",
    "complement": "necessity",
    "completeness": "necessity",
    "minimality": "necessity",
    "Overlap": "overlap",
    "overlap_of": "overlap",
    "Recovery": "recovery",
    "evaluate": "faithfulness",
    "faithfulness_curve": "faithfulness",
    "recovery_of": "recovery",
    "run_controls": "faithfulness",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mechassay.circuits' has no attribute {name!r}")
    return getattr(import_module(f"mechassay.circuits.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__
