"""Odds that one method finds in a model, of every item, layer and region of a gym task.

    odds          original labels                                    (eq. 10)
    control       control labels, dog and give
    selectivity   odds - control of every layer and region; only then regions are chosen
                  and layers averaged (section 5.2)

Intervals are bootstraps over groups of items (a pair and its swap) and over seeds, where a method
has several. Few seeds say little of their spread: the interval is then too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from mechassay.display import OneLine
from mechassay.features.fit import Fit
from mechassay.gym.choice_of_regions import VALIDATION, Odds, best_mean, chosen_regions
from mechassay.stats.intervals import Estimate, Resamples, percentile_interval

ORIGINAL, CONTROL, SELECTIVITY = "odds", "control", "selectivity"
OF = (ORIGINAL, CONTROL, SELECTIVITY)


@dataclass(frozen=True, eq=False, repr=False)
class MethodOdds(OneLine):
    """Odds of one method.

    Attributes:
        setting: what tells the chosen candidate from others; "" where nothing does.
        candidates: of each candidate the overall odds on validation items, by its setting.
        validation, test: of original and of control labels.
        fits: of each seed, found for original and for control labels: the same where labels play no
            part.
        lacking: why nothing was found, by site; odds are 0 there.
        others: the candidates that were not chosen, by their settings.
        offered: whether a region of a layer may be chosen; all of them if not given.
    """

    method: str
    setting: str
    candidates: Mapping[str, float]
    validation: Mapping[str, Odds]
    test: Mapping[str, Odds]
    fits: Mapping[str, tuple[Fit, ...]] = field(repr=False)
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])
    others: Mapping[str, MethodOdds] = field(default_factory=lambda: {}, repr=False)
    offered: Bool[np.ndarray, "layers regions"] | None = field(default=None, repr=False)

    @property
    def seeds(self) -> int:
        """How many seeds it was run with."""
        return len(self.test[ORIGINAL])

    def odds(self, of: str, split: str = "test") -> Odds:
        """Odds of items: original, control, or the first less the second. Those of validation
        items, by which regions are chosen, are minus infinity where none may be.
        """
        found = self.test if split == "test" else self.validation
        made = found[ORIGINAL] - found[CONTROL] if of == SELECTIVITY else found[of]
        return made if split == "test" else self._offered(made)

    def regions(self, of: str, rule: str = VALIDATION) -> Int[np.ndarray, "seeds layers"]:
        """The number of the region of every layer, for every seed, among those that may be chosen.

        Raises:
            UnknownName: no such rule.
        """
        return chosen_regions(self.odds(of, "validation"), self._offered(self.odds(of)), rule)

    def _offered(self, odds: Odds) -> Odds:
        return odds if self.offered is None else np.where(self.offered, odds, -np.inf)

    def shown(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "setting": self.setting,
            "seeds": self.seeds,
            "validation": best_mean(self.validation[ORIGINAL]),
        }


def mean_of(values: Float[np.ndarray, "seeds n"], groups: tuple[str, ...], seed: int) -> Estimate:
    """The mean over seeds and items, with its 95 % interval over seeds and groups."""
    return means_of(values[..., None], groups, seed)[0]


def means_of(
    values: Float[np.ndarray, "seeds n k"], groups: tuple[str, ...], seed: int
) -> list[Estimate]:
    """The mean of each of k columns over seeds and items, with its 95 % interval.

    Groups and seeds are drawn anew, independently of each other; a single seed is what it is.
    """
    n_seeds, n, k = values.shape
    rng = np.random.default_rng(seed)
    rows = values.transpose(0, 2, 1).reshape(-1, n)
    resamples = Resamples(groups, rng)
    draws = resamples.means(rows).reshape(-1, n_seeds, k)
    shares = rng.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=len(draws)) / n_seeds
    mixed = np.einsum("bsk,bs->bk", draws, shares)
    means = values.mean(axis=(0, 1))
    ends = [percentile_interval(each, n_groups=resamples.n_groups)[:2] for each in mixed.T]
    return [Estimate(float(x), *end) for x, end in zip(means, ends, strict=True)]
