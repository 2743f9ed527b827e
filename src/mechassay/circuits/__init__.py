"""Circuit localization: score edges, cut circuits, measure how faithful they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.circuits.methods import METHODS
from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.circuits.ablation import ablate
    from mechassay.circuits.circuit import Circuit
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
    from mechassay.circuits.scores import EdgeScores

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

# A module may have several methods.
_METHODS: dict[str, str] = {}
for _target in METHODS.built_in.values():
    _part, _, _name = _target.removeprefix(f"{__name__}.").partition(":")
    _METHODS[_part] = f"{_METHODS.get(_part, '')} {_name}"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ablation": "ablate",
        "circuit": "Circuit",
        "differences": "Differences differences_of",
        "faithfulness": "Controls FaithfulnessCurve evaluate faithfulness_curve run_controls",
        "necessity": "Completeness Minimality complement completeness minimality",
        "node_scores": "NeuronScores NodeScores",
        "optimal_ablation": "OptimalAblation",
        "overlap": "Overlap overlap_of",
        "recovery": "Recovery recovery_of",
        "scores": "EdgeScores",
        **_METHODS,
    },
)
