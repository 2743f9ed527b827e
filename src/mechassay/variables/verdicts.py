"""What is said of a variable, by its controls and by how far its features were trained.

    isolated               found, and the result is above as many random directions
    found, not isolated    the gain is above a half, and the result above no intervention, the
                           random variable and the untrained model
    not trained            otherwise, where the loss still falls (`features.training.still_falling`)
    not found              otherwise
    not judged             fewer than `FEW_GROUPS` independent groups of test pairs

Each time the 95 % interval must say so, of differences pair by pair. In heads the result is a
squared error, which must be below those of no intervention and of the best constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from mechassay.features.finder import Fit
from mechassay.features.training import fall_of, still_falling
from mechassay.results.measures import measure_texts
from mechassay.results.records import Measure, Record
from mechassay.stats.intervals import FEW_GROUPS, Estimate
from mechassay.variables.interchange_accuracy import FULL, NOTHING, RANDOM
from mechassay.variables.logit_difference import CONSTANT

RANDOM_VARIABLE, UNTRAINED = "random variable", "untrained model"
KINDS_TABLE = "kinds"
"""Name of the table of numbers by kind of counterfactual."""
CONTROLS = (NOTHING, FULL, RANDOM, RANDOM_VARIABLE, UNTRAINED)
MUST_EXCEED = (NOTHING, RANDOM_VARIABLE, UNTRAINED)
ISOLATED, FOUND, NOT_FOUND = "isolated", "found, not isolated", "not found"
NOT_TRAINED, TOO_FEW = "not trained", "not judged"
LEAST_GAIN = 0.5
"""A variable that is there makes more pairs right than it leaves wrong."""
IIA, MSE = "iia", "mse"
MUST_STAY_BELOW = (NOTHING, CONSTANT)
FALLS = "still_falling"
"""Setting of a record's method: whether its training was cut short."""


def verdict(n_groups: int, exceeds: bool, isolated: bool, falls: bool) -> str:
    """One of `ISOLATED`, `FOUND`, `NOT_FOUND`, `NOT_TRAINED` and `TOO_FEW`; see the module.

    Args:
        n_groups: of independent test pairs.
        falls: whether the training had not levelled off.
    """
    if n_groups < FEW_GROUPS:
        return TOO_FEW
    if exceeds:
        return ISOLATED if isolated else FOUND
    return NOT_TRAINED if falls else NOT_FOUND


def training_args(fit: Fit) -> dict[str, Any]:
    """How long and at what rate features were trained, and whether the loss at the first site still
    falls; nothing where they were not.
    """
    if not len(fit.losses):
        return {}
    steps, lr = len(fit.losses), fit.provenance["settings"]["lr"]
    return {"steps": steps, "lr": lr, FALLS: training_falls(fit)}


def _losses(fit: Fit) -> tuple[Float[np.ndarray, "steps"], int]:
    """Those of the first site of a fit, and how many steps are an epoch."""
    n_rows, size = fit.provenance["n_examples"], fit.provenance["settings"]["batch_size"]
    return fit.losses[:, 0].double().numpy(), -(-n_rows // size)


def training_falls(fit: Fit) -> bool:
    """Whether the training at the first site of a fit was cut short
    (`features.training.still_falling`); False where nothing was trained.
    """
    return bool(len(fit.losses)) and still_falling(*_losses(fit))


def training_measures(fit: Fit) -> Iterator[Measure]:
    """The last loss at the first site of a fit, and how much it still falls."""
    steps = len(fit.losses)
    if not steps:
        return
    fall = fall_of(*_losses(fit))
    last = fit.losses[-max(1, steps // 10) :, 0]
    loss = Estimate(float(last.mean()))
    texts = measure_texts("variables")
    yield texts.measure("training_loss", loss, n=len(last))
    yield texts.measure("training_fall", fall, n=steps, level=0.9)


# Of records


def measure_of(record: Record) -> str:
    """What a record is measured by."""
    return MSE if record.measure(MSE) is not None else IIA


def verdict_of(record: Record) -> str:
    """What is said of a variable, by the controls that there are (`verdict`)."""
    measure = measure_of(record)
    must_differ = MUST_STAY_BELOW if measure == MSE else MUST_EXCEED
    differences = [record.measure(measure, f"difference:{control}") for control in must_differ]
    exceeds = all(_better(difference) for difference in differences if difference is not None)
    if measure == IIA:
        gain = record.measure("gain")
        exceeds = exceeds and gain is not None and gain.low > LEAST_GAIN
    random = record.measure(measure, "difference:random")
    isolated = exceeds and random is not None and _better(random)
    return verdict(record.n_groups, exceeds, isolated, bool(record.method.args.get(FALLS)))


def _better(difference: Measure) -> bool:
    """Whether the whole interval of a difference from a control is on the good side of 0."""
    return difference.high < 0 if difference.better == "down" else difference.low > 0
