"""Circuit localization: score edges, cut circuits, measure how faithful they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.circuits.circuit import Circuit, Overlap, overlap_of
    from mechassay.circuits.evaluation.ablation import OptimalAblation, ablate
    from mechassay.circuits.evaluation.curve import Controls, FaithfulnessCurve, SmallestCircuit
    from mechassay.circuits.evaluation.differences import Differences, differences_of
    from mechassay.circuits.evaluation.faithfulness import (
        Completeness,
        Minimality,
        complement,
        completeness,
        evaluate,
        faithfulness_curve,
        minimality,
        run_controls,
        smallest_circuit,
    )
    from mechassay.circuits.evaluation.metrics import Recovery, recovery_of
    from mechassay.circuits.evaluation.selection import FaithfulSelection, faithful_circuits
    from mechassay.circuits.methods import METHODS
    from mechassay.circuits.methods.acdc import ACDC, ACDCTop
    from mechassay.circuits.methods.eap import (
        EAP,
        NAP,
        NAPIG,
        CleanCorrupted,
        Conductance,
        EAPIGActivations,
        EAPIGInputs,
    )
    from mechassay.circuits.methods.ensemble import Ensemble
    from mechassay.circuits.methods.exact_patching import (
        ExactNodePatching,
        ExactPatching,
        ExactTop,
    )
    from mechassay.circuits.methods.ifr import InformationFlowRoutes
    from mechassay.circuits.methods.mask_learning import (
        EdgePruning,
        SubnetworkProbing,
        UniformGradientSampling,
    )
    from mechassay.circuits.methods.matryoshka import Matryoshka
    from mechassay.circuits.methods.random import Random, RandomPaths
    from mechassay.circuits.methods.stability import (
        PartScores,
        Stability,
        resampled,
        score_in_parts,
        seed_stability,
    )
    from mechassay.circuits.scores import EdgeScores, NeuronScores, NodeScores
    from mechassay.circuits.series import agreement

__all__ = [
    "ACDC",
    "EAP",
    "METHODS",
    "NAP",
    "NAPIG",
    "ACDCTop",
    "Circuit",
    "CleanCorrupted",
    "Completeness",
    "Conductance",
    "Controls",
    "Differences",
    "EAPIGActivations",
    "EAPIGInputs",
    "EdgePruning",
    "EdgeScores",
    "Ensemble",
    "ExactNodePatching",
    "ExactPatching",
    "ExactTop",
    "FaithfulSelection",
    "FaithfulnessCurve",
    "InformationFlowRoutes",
    "Matryoshka",
    "Minimality",
    "NeuronScores",
    "NodeScores",
    "OptimalAblation",
    "Overlap",
    "PartScores",
    "Random",
    "RandomPaths",
    "Recovery",
    "SmallestCircuit",
    "Stability",
    "SubnetworkProbing",
    "UniformGradientSampling",
    "ablate",
    "agreement",
    "complement",
    "completeness",
    "differences_of",
    "evaluate",
    "faithful_circuits",
    "faithfulness_curve",
    "minimality",
    "overlap_of",
    "recovery_of",
    "resampled",
    "run_controls",
    "score_in_parts",
    "seed_stability",
    "smallest_circuit",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "circuit": "Circuit Overlap overlap_of",
        "evaluation.ablation": "OptimalAblation ablate",
        "evaluation.curve": "Controls FaithfulnessCurve SmallestCircuit",
        "evaluation.differences": "Differences differences_of",
        "evaluation.faithfulness": "Completeness Minimality complement completeness evaluate"
        " faithfulness_curve minimality run_controls smallest_circuit",
        "evaluation.metrics": "Recovery recovery_of",
        "evaluation.selection": "FaithfulSelection faithful_circuits",
        "methods": "METHODS",
        "methods.acdc": "ACDC ACDCTop",
        "methods.eap": "CleanCorrupted Conductance EAP EAPIGActivations EAPIGInputs NAP NAPIG",
        "methods.ensemble": "Ensemble",
        "methods.exact_patching": "ExactNodePatching ExactPatching ExactTop",
        "methods.ifr": "InformationFlowRoutes",
        "methods.matryoshka": "Matryoshka",
        "methods.mask_learning": "EdgePruning SubnetworkProbing UniformGradientSampling",
        "methods.random": "Random RandomPaths",
        "scores": "EdgeScores NeuronScores NodeScores",
        "series": "agreement",
        "methods.stability": "PartScores Stability resampled score_in_parts seed_stability",
    },
)
