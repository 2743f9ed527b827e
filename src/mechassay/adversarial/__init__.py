"""Adversarial evaluation of circuits: high percentiles of a divergence, and what a sample shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.adversarial.evaluation import Divergences as Divergences
    from mechassay.adversarial.evaluation import evaluate_pairs as evaluate_pairs
    from mechassay.adversarial.experiments import AdversarialExperiment as AdversarialExperiment
    from mechassay.adversarial.experiments import SearchExperiment as SearchExperiment
    from mechassay.adversarial.hill_climbing import Climb as Climb
    from mechassay.adversarial.hill_climbing import SearchResult as SearchResult
    from mechassay.adversarial.hill_climbing import field_values as field_values
    from mechassay.adversarial.hill_climbing import search as search
    from mechassay.adversarial.hill_climbing import single_field_edits as single_field_edits
    from mechassay.adversarial.paper import PaperExperiment as PaperExperiment
    from mechassay.adversarial.pools import Pool as Pool
    from mechassay.adversarial.pools import draw_pools as draw_pools
    from mechassay.adversarial.pools import enumerate_pools as enumerate_pools
    from mechassay.adversarial.shift import ShiftExperiment as ShiftExperiment
    from mechassay.stats.bounds import PartialGrid as PartialGrid


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
