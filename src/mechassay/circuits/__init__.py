"""Circuit localization: score edges, cut circuits, measure how faithful they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.circuits.circuit import Circuit as Circuit
    from mechassay.circuits.circuit import Overlap as Overlap
    from mechassay.circuits.circuit import overlap_of as overlap_of
    from mechassay.circuits.evaluation.ablation import OptimalAblation as OptimalAblation
    from mechassay.circuits.evaluation.ablation import ablate as ablate
    from mechassay.circuits.evaluation.curve import Controls as Controls
    from mechassay.circuits.evaluation.curve import FaithfulnessCurve as FaithfulnessCurve
    from mechassay.circuits.evaluation.curve import SmallestCircuit as SmallestCircuit
    from mechassay.circuits.evaluation.differences import Differences as Differences
    from mechassay.circuits.evaluation.differences import differences_of as differences_of
    from mechassay.circuits.evaluation.faithfulness import Completeness as Completeness
    from mechassay.circuits.evaluation.faithfulness import Minimality as Minimality
    from mechassay.circuits.evaluation.faithfulness import complement as complement
    from mechassay.circuits.evaluation.faithfulness import completeness as completeness
    from mechassay.circuits.evaluation.faithfulness import evaluate as evaluate
    from mechassay.circuits.evaluation.faithfulness import faithfulness_curve as faithfulness_curve
    from mechassay.circuits.evaluation.faithfulness import minimality as minimality
    from mechassay.circuits.evaluation.faithfulness import run_controls as run_controls
    from mechassay.circuits.evaluation.faithfulness import smallest_circuit as smallest_circuit
    from mechassay.circuits.evaluation.metrics import Recovery as Recovery
    from mechassay.circuits.evaluation.metrics import recovery_of as recovery_of
    from mechassay.circuits.evaluation.selection import FaithfulSelection as FaithfulSelection
    from mechassay.circuits.evaluation.selection import faithful_circuits as faithful_circuits
    from mechassay.circuits.methods import METHODS as METHODS
    from mechassay.circuits.methods.acdc import ACDC as ACDC
    from mechassay.circuits.methods.acdc import ACDCTop as ACDCTop
    from mechassay.circuits.methods.eap import EAP as EAP
    from mechassay.circuits.methods.eap import NAP as NAP
    from mechassay.circuits.methods.eap import NAPIG as NAPIG
    from mechassay.circuits.methods.eap import CleanCorrupted as CleanCorrupted
    from mechassay.circuits.methods.eap import Conductance as Conductance
    from mechassay.circuits.methods.eap import EAPIGActivations as EAPIGActivations
    from mechassay.circuits.methods.eap import EAPIGInputs as EAPIGInputs
    from mechassay.circuits.methods.ensemble import Ensemble as Ensemble
    from mechassay.circuits.methods.exact_patching import ExactNodePatching as ExactNodePatching
    from mechassay.circuits.methods.exact_patching import ExactPatching as ExactPatching
    from mechassay.circuits.methods.exact_patching import ExactTop as ExactTop
    from mechassay.circuits.methods.ifr import InformationFlowRoutes as InformationFlowRoutes
    from mechassay.circuits.methods.mask_learning import EdgePruning as EdgePruning
    from mechassay.circuits.methods.mask_learning import SubnetworkProbing as SubnetworkProbing
    from mechassay.circuits.methods.mask_learning import (
        UniformGradientSampling as UniformGradientSampling,
    )
    from mechassay.circuits.methods.matryoshka import Matryoshka as Matryoshka
    from mechassay.circuits.methods.random import Random as Random
    from mechassay.circuits.methods.random import RandomPaths as RandomPaths
    from mechassay.circuits.methods.stability import PartScores as PartScores
    from mechassay.circuits.methods.stability import Stability as Stability
    from mechassay.circuits.methods.stability import resampled as resampled
    from mechassay.circuits.methods.stability import score_in_parts as score_in_parts
    from mechassay.circuits.methods.stability import seed_stability as seed_stability
    from mechassay.circuits.scores import EdgeScores as EdgeScores
    from mechassay.circuits.scores import NeuronScores as NeuronScores
    from mechassay.circuits.scores import NodeScores as NodeScores
    from mechassay.circuits.series import agreement as agreement


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
