"""One number of a method: of every layer the odds at one region, and the mean over layers.

    overall = mean over layers of the mean odds at the layer's region          (eq. 19)

    validation        the region with the highest mean on validation items (the default)
    causalgym-2024    the region with the highest mean on the test items themselves, as published

The maximum of noisy means is above the largest mean, so the published rule gives more than 0 even
to directions that do nothing; random directions under the same rule say how much.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from mechassay.errors import one_of
from mechassay.gym.index_mix_up import CAUSALGYM_2024

VALIDATION = "validation"
RULES = (VALIDATION, CAUSALGYM_2024)

Odds = Float[np.ndarray, "seeds n layers regions"]
"""Log odds-ratios of n items, in nats."""


def chosen_regions(
    validation: Float[np.ndarray, "seeds m layers regions"],
    test: Odds,
    rule: str = VALIDATION,
) -> Int[np.ndarray, "seeds layers"]:
    """The number of the region of every layer, for every seed; the first of several. There may
    be other numbers of validation and of test items. Regions that may not be chosen have odds of
    minus infinity.

    Raises:
        UnknownName: no such rule.
    """
    one_of("rule for regions", rule, RULES)
    looked_at = validation if rule == VALIDATION else test
    return looked_at.mean(axis=1).argmax(axis=2)


def by_item(odds: Odds, regions: Int[np.ndarray, "seeds layers"]) -> Float[np.ndarray, "seeds n"]:
    """Of every item the mean over layers of its odds at their regions."""
    picked = np.take_along_axis(odds, regions[:, None, :, None], axis=3)
    return picked[..., 0].mean(axis=2)


def best_mean(odds: Odds) -> float:
    """The overall odds of the items that regions are chosen on; what candidates are compared by."""
    return float(odds.mean(axis=1).max(axis=2).mean())
