"""Odds of directions that others found; nothing is trained.

    result      the directions as given, by the rule of regions that methods have here
    controls    the whole vector, and as many random directions, at the same sites

Of a layer that region counts which is best on validation items, among those that have directions:
with a single one, the region was declared. A layer without directions counts 0, so that the number
is a mean over the same layers for everybody. Only the directions are exchanged: a mean around which
a featurizer's axes are, and their scale, change nothing but by rounding. Selectivity needs
directions for control labels. These are taken as they are, and weak ones make it high; without them
it is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from mechassay.errors import BadUsage
from mechassay.features.featurizer import Directions, Featurizer, Identity
from mechassay.features.fit import Fit
from mechassay.features.random_directions import random_directions
from mechassay.gym.arms import Arm, ArmMeasurement
from mechassay.gym.given_directions import GivenDirections
from mechassay.gym.gym_task import GymTask
from mechassay.gym.method_odds import CONTROL, ORIGINAL
from mechassay.gym.pairs import GymPairs
from mechassay.gym.task_items import TaskItems, types_of
from mechassay.gym.task_odds import METHODS_TABLE, RANDOM_DIRECTIONS, WHOLE_VECTOR, TaskOdds
from mechassay.interventions.site import Site, blocks
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.records import Record

SPLITS = ("validation", "test")
DRAWS = 3
"""Draws of random directions."""
NOT_GIVEN = "no directions were given."
NO_CONTROL = "Selectivity is undefined: no directions for control labels were given."


def measure_directions(
    model: Model,
    task: GymTask | Mapping[str, GymPairs],
    given: GivenDirections,
    *,
    layers: Sequence[int] | int | None = None,
    control: Mapping[str, str] | Sequence[str] | None = None,
    limits: Mapping[str, int] | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> TaskOdds:
    """The odds of given directions beside controls; see the module.

    Args:
        task: a gym task, or its pairs of validation and test.
        layers: blocks; all of them by default.
        control: the control label of each type; dog and give by default.
        limits: interchanges by split, where they are not the split's.
        seed: of the pairs, of random directions and of the bootstrap.

    Raises:
        BadFile: files that cannot be read. BadUsage: no directions in these layers, a split is
            missing. BadPairs: labels that are not one token each.
    """
    pairs = (
        dict(task) if isinstance(task, Mapping) else task.splits(model, seed=seed, limits=limits)
    )
    labels = (True if control is None else control) if given.has_control else False
    items = TaskItems.of("measure_directions", model, pairs, SPLITS, types_of(task, pairs), labels)
    measured = ArmMeasurement(model, items, blocks(model, layers), seed, progress)
    every = {
        kind: [_within(fit, measured.sites) for fit in fits] for kind, fits in given.fits().items()
    }
    own = every[ORIGINAL]
    if not len(own[0]):
        raise BadUsage(f"{given.typed} has no directions in layers {measured.layers}.")
    lacking = {site: NOT_GIVEN for site in measured.sites if site not in own[0]}
    given_at = np.array([site in own[0] for site in measured.sites])
    held = given_at.reshape(len(measured.layers), len(items.regions))
    arms = [
        Arm(given.method, "", number, dict(zip(every, fits, strict=True)), lacking)
        for number, fits in enumerate(zip(*every.values(), strict=True))
    ]
    for name, fits in _controls(model, own[0], seed).items():
        arms += [
            Arm(name, "", number, dict.fromkeys((ORIGINAL, CONTROL), fit), lacking)
            for number, fit in enumerate(fits)
        ]
    # In a layer without any, each region is as good as the others: their odds are 0.
    offered = held | ~held.any(axis=1, keepdims=True)
    found = replace(measured, offered=offered).result(arms, (WHOLE_VECTOR, RANDOM_DIRECTIONS))
    return found if given.has_control else replace(found, undefined=NO_CONTROL)


def best_draw(record: Record) -> float:
    """The mean odds of the best draw of random directions; NaN if the record has none. Few draws
    say little of their spread, so directions do more than chance if their interval is above it.
    """
    if not record.has_table(METHODS_TABLE):
        return math.nan
    highest = record.table(METHODS_TABLE).where(method=RANDOM_DIRECTIONS).numbers("seed_high")
    return float(highest[0]) if len(highest) else math.nan


def _within(fit: Fit, sites: Sequence[Site]) -> Fit:
    """The directions of a fit that are at some sites."""
    here = {site: _along(fit, site) for site in sites if site in fit}
    return Fit(MappingProxyType(here), provenance=fit.provenance)


def _along(fit: Fit, site: Site) -> Featurizer:
    """The directions that are meant at a site, without mean and scale: huge ones round all that is
    exchanged away.
    """
    found = fit.featurizers[site]
    if isinstance(found, Identity) and site not in fit.chosen:
        return found  # The whole vector, exactly.
    return Directions(fit.directions(site))


def _controls(model: Model, fit: Fit, seed: int) -> dict[str, list[Fit]]:
    """What stands beside directions, at the same sites: fits of each control, a draw each."""
    width = model.decoder.d_model
    whole = Fit(MappingProxyType(dict.fromkeys(fit.sites, Identity(width))))
    drawn = [
        Fit(
            MappingProxyType(
                {
                    site: random_directions(site, width, fit.directions(site).shape[1], seed + draw)
                    for site in fit.sites
                }
            )
        )
        for draw in range(DRAWS)
    ]
    return {WHOLE_VECTOR: [whole], RANDOM_DIRECTIONS: drawn}
