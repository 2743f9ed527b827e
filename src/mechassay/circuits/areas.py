"""CPR and CMD: how faithful circuits of all sizes are, in one number
(Mueller et al. 2025, section 3.1).

f_1 ... f_K is the faithfulness of the circuits cut at the shares p_1 < ... < p_K = 1 of the edges,
s_k the share that is left after pruning; the empty circuit has s_0 = f_0 = 0. With weights w of a
profile

    CPR = sum_k w_k f_k           (edges by value)        CMD = sum_k w_k |1 - f_k|   (by magnitude)

`strict`    (default) w_k is the length of [s_k, s_k+1) within [p_1, 1], over 1 - p_1, with s_K+1 =
            1: the mean over sizes x from p_1 to 1 of the largest measured circuit that has at most
            x of the edges. Circuits that do nothing have CPR 0 and CMD 1; f = 1 at all sizes gives
            1 and 0. The full circuit has no weight. Over log size: the same in log x. Where the
            interval of m(N) - m(0) contains 0, f and its areas are undefined (NaN).
`mib-2025`  the benchmark's arithmetic: the trapezoidal rule over nominal sizes p_k, not normalised.
            f = 1 at all sizes gives CPR .999, circuits that do nothing .25.

In both, a difference m(N) - m(0) that rounding alone may have made is 0 (`stats.rounding`).
Intervals are those of `stats.intervals`; CMD also has a value without the bias that |1 - f| has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from mechassay.circuits.scores import By
from mechassay.display import OneLine
from mechassay.errors import BadUsage, one_of
from mechassay.objectives import least_size
from mechassay.stats.intervals import (
    BootstrapEstimate,
    Interval,
    Resamples,
    folded_sum,
    linear_sum,
    percentile_interval,
)
from mechassay.stats.rounding import resolved_difference

FRACTIONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
Profile = Literal["strict", "mib-2025"]
VERSIONS: Mapping[str, int] = {"strict": 2, "mib-2025": 1}
"""Profiles and the versions of their definitions."""
PROFILES = tuple(VERSIONS)


def check_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    """Sizes to measure, checked: at least two, rising, above 0, the last 1.

    Raises:
        BadUsage: they are not.
    """
    sizes = tuple(map(float, fractions))
    rising = all(a < b for a, b in zip((0.0, *sizes), sizes, strict=False))
    if len(sizes) < 2 or not rising or sizes[-1] != 1:
        shown = ", ".join(f"{size:g}" for size in sizes) or "none"
        raise BadUsage(
            f"fractions must be at least two sizes, rising from above 0 to 1; got {shown}."
        )
    return sizes


def step_weights(
    sizes: Sequence[float], first: float, *, log: bool = False
) -> Float[np.ndarray, "weights"]:
    """How much of [first, 1] belongs to the empty circuit and to each circuit: up to the next size.

    Args:
        sizes: shares of the edges, not falling.
        log: measure lengths in log x.
    """
    ends = np.clip([0.0, *sizes, 1.0], first, 1.0)
    if log:
        ends = np.log(ends)
    return np.diff(ends) / (ends[-1] - ends[0])


def trapezoid_weights(x: Sequence[float]) -> Float[np.ndarray, "sizes"]:
    """The weight of each value in the area under them by the trapezoidal rule."""
    widths = np.diff(np.asarray(x, dtype=float))
    return (np.append(widths, 0.0) + np.insert(widths, 0, 0.0)) / 2


@dataclass(frozen=True, repr=False)
class Sweep(OneLine):
    """One ranking's circuits at all sizes: edges asked for and kept, objectives [sizes, n], areas.

    `log_cpr` and `log_cmd` are None in the profile `mib-2025`.
    """

    by: By
    asked: tuple[int, ...]
    kept: tuple[int, ...]
    per_example: Float[np.ndarray, "sizes n"]
    faithfulness: Float[np.ndarray, "sizes"]
    intervals: tuple[Interval, ...]
    cpr: BootstrapEstimate
    cmd: BootstrapEstimate
    log_cpr: BootstrapEstimate | None
    log_cmd: BootstrapEstimate | None


class AreaRule:
    """A profile's arithmetic: from per-example values to f and its areas, with intervals.

    `empty` and `full` are the objective of these circuits, and `objective` is its name; `groups` is
    the unit that is resampled.
    """

    def __init__(
        self,
        profile: Profile,
        fractions: Sequence[float],
        n_edges: int,
        empty: Float[np.ndarray, "n"],
        full: Float[np.ndarray, "n"],
        groups: Sequence[str],
        seed: int = 0,
        *,
        objective: str = "",
    ) -> None:
        one_of("profile", profile, PROFILES)
        self.profile: Profile = profile
        self.fractions = check_fractions(fractions)
        self.n_edges = n_edges
        self.groups, self.seed = tuple(groups), seed
        self._resamples = Resamples(groups, np.random.default_rng(seed))
        self.n_groups = self._resamples.n_groups
        self.ends, self.least = np.stack((empty, full)), least_size(objective)
        gaps = self._gap(np.vstack((self.ends.mean(axis=1), self._resamples.means(self.ends))))
        self.denominator = percentile_interval(gaps[1:], n_groups=self.n_groups)
        self.defined = not self.denominator.contains(0.0) and bool(gaps[0] != 0)

    def _gap(self, rows: Float[np.ndarray, "rows k"]) -> Float[np.ndarray, "rows"]:
        """m(N) - m(0), of means or resamples whose first two columns are m(0) and m(N)."""
        return resolved_difference(rows[:, 1], rows[:, 0], self.ends, least=self.least)

    def sweep(
        self,
        by: By,
        asked: tuple[int, ...],
        kept: tuple[int, ...],
        values: Float[np.ndarray, "sizes n"],
    ) -> Sweep:
        """f at all sizes and its areas, from the objective of each size's circuit."""
        f, draws = self._faithfulness(values)
        log_cpr = log_cmd = None
        if self.profile == "strict":
            sizes = [size / self.n_edges for size in kept]
            weights = step_weights(sizes, self.fractions[0])
            log_weights = step_weights(sizes, self.fractions[0], log=True)
            log_cpr, log_cmd = self._areas(f, draws, log_weights)
        else:
            weights = np.insert(trapezoid_weights(self.fractions), 0, 0.0)
        cpr, cmd = self._areas(f, draws, weights)
        intervals = tuple(percentile_interval(column, n_groups=self.n_groups) for column in draws.T)
        return Sweep(by, asked, kept, values, f, intervals, cpr, cmd, log_cpr, log_cmd)

    def _faithfulness(
        self, values: Float[np.ndarray, "sizes n"]
    ) -> tuple[Float[np.ndarray, "sizes"], Float[np.ndarray, "resamples sizes"]]:
        together = np.concatenate((self.ends, values))
        rows = np.vstack((together.mean(axis=1), self._resamples.means(together)))
        gaps = self._gap(rows)
        f = (rows[:, 2:] - rows[:, :1]) / np.where(gaps == 0, math.nan, gaps)[:, None]
        if self.profile == "strict" and not self.defined:
            f[:] = math.nan
        return f[0], f[1:]

    def _areas(
        self,
        f: Float[np.ndarray, "sizes"],
        draws: Float[np.ndarray, "resamples sizes"],
        weights: Float[np.ndarray, "weights"],
    ) -> tuple[BootstrapEstimate, BootstrapEstimate]:
        """CPR and CMD; the first weight is that of the empty circuit."""
        n, empty = self.n_groups, math.nan if np.isnan(f).any() else 0.0
        f, draws = np.insert(f, 0, empty), np.insert(draws, 0, empty, axis=1)
        return linear_sum(f, draws, weights, n), folded_sum(1 - f, 1 - draws, weights, n)
