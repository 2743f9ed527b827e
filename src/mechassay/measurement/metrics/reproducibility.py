"""EX25, reproducibility: is a number the same when it is computed again?

A base metric is run again and again (`run_base`). With x_r the value of run r and m their mean,

    deviation rate  share of pairs of runs with |x_r - x_s| / |m| > .08
    max deviation   largest |x_r - m| / |m|
    coherence       mean over pairs of runs of the rank correlation of prompts that both have

`page`      runs differ by seeds that draw a subsample of the prompts and their order: what they
            differ by is sampling error, whatever the metric. The page does not say how large a
            subsample is, nor by how much two runs may differ: .08 is its other threshold.
`repaired`  runs are the same prompts again, in another order and other batches: the noise of
            measuring alone, with the intraclass correlation ICC(2,1) of prompts over runs and
            the smallest difference that is more than noise, 1.96 sqrt(2) sd. The error of
            sampling prompts stands beside it, by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata

from mechassay.errors import one_of
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
    flag,
    page_metric,
    quantity,
    thresholds,
)
from mechassay.measurement.measurement import (
    N_SIMULATIONS,
    Drawn,
    Measurement,
    NullTable,
    Scenario,
    simulate,
)
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.measurement.metrics.circuit_runs import BASE_NAMES, run_base
from mechassay.results.records import Table, Values
from mechassay.stats.intervals import (
    Interval,
    example_weights,
    percentile_interval,
    resolved_difference,
)
from mechassay.utils.settings import Within, checked_settings

ID = "EX25"
DIFFERS = 0.08
"""Relative difference from which two runs count as different."""
LEAST_SHARED = 3
REPAIRED = (
    Condition("deviation_rate", "<", 0.05),
    Condition("max_deviation", "<", 0.08),
    Condition("coherence_score", ">", 0.9),
)
Items = Float[np.ndarray, "runs n"]
"""A score of every prompt in every run; NaN where a run does not have it."""


def deviation_rate(values: Float[np.ndarray, "runs"]) -> float:
    """The share of pairs of runs that differ by more than a share of the mean; NaN where that is 0
    or there is one run.
    """
    mean = abs(float(resolved_difference(values.mean(), 0.0, values)))
    if mean == 0 or len(values) < 2:
        return math.nan
    gaps = [abs(a - b) / mean for a, b in combinations(values.tolist(), 2)]
    return float(np.mean(np.asarray(gaps) > DIFFERS))


def max_deviation(values: Float[np.ndarray, "runs"]) -> float:
    """The largest deviation from the mean, as a share of it."""
    mean = float(resolved_difference(values.mean(), 0.0, values))
    return float(np.abs(values - mean).max() / abs(mean)) if mean != 0 else math.nan


def coherence(items: Items) -> float:
    """The mean rank correlation of pairs of runs over the prompts that both have; NaN where a pair
    shares fewer than three, or all its prompts tie.
    """
    scores: list[float] = []
    for a, b in combinations(items, 2):
        shared = ~np.isnan(a) & ~np.isnan(b)
        if shared.sum() < LEAST_SHARED:
            return math.nan
        x, y = rankdata(a[shared]), rankdata(b[shared])
        if x.std() == 0 or y.std() == 0:
            return math.nan
        scores.append(float(np.corrcoef(x, y)[0, 1]))
    return float(np.mean(scores)) if scores else math.nan


def icc(items: Items) -> float:
    """ICC(2,1): the share of the variance of single scores that is between prompts, runs being
    drawn at random (Shrout and Fleiss 1979). NaN where nothing varies.
    """
    runs, n = items.shape
    if runs < 2 or n < 2:
        return math.nan
    grand = items.mean()
    rows = runs * ((items.mean(axis=0) - grand) ** 2).sum() / (n - 1)
    columns = n * ((items.mean(axis=1) - grand) ** 2).sum() / (runs - 1)
    rest = items - items.mean(axis=0) - items.mean(axis=1)[:, None] + grand
    error = (rest**2).sum() / ((n - 1) * (runs - 1))
    below = rows + (runs - 1) * error + runs * (columns - error) / n
    spread = resolved_difference(math.sqrt(max(below, 0.0)), 0.0, items)
    return float((rows - error) / below) if spread > 0 else math.nan


def reproducibility(
    subsampled: Float[np.ndarray, "runs"],
    subsampled_items: Items,
    again: Float[np.ndarray, "runs2"],
    again_items: Float[np.ndarray, "runs2 n"],
    sampling_se: float,
    *,
    ids: Sequence[str] = (),
    groups: Sequence[str] = (),
    share: Annotated[float, Within(above=0, below=1)] = 0.75,
    metric: str = "",
    flags: Iterable[Flag] = (),
    seed: int = 0,
) -> Measurement:
    """EX25 of two sets of runs of one metric on the same n prompts.

    Args:
        subsampled: values of runs on subsamples; `subsampled_items` has NaN where a prompt is not
            in one.
        again: values of runs on all prompts.
        sampling_se: standard error of the value over prompts.
        share: of the prompts that a subsample has.
        metric: whose runs these are.
        seed: of the resamples of groups of prompts that give the correlation its interval.
    """
    n, value = subsampled_items.shape[1], float(again.mean())
    notes = [*flags, flag("sampling_not_reproducibility", share=share)]
    page = _quantities(subsampled, subsampled_items)
    repaired = _quantities(again, again_items)
    if abs(value) < 1.96 * sampling_se:
        notes.append(flag("mean_near_zero"))
        none = quantity(None, n=len(again), reason="near_zero")
        repaired |= {"deviation_rate": none, "max_deviation": none}
    sd = float(again.std(ddof=1)) if len(again) > 1 else math.nan
    within = float(np.sqrt(again_items.var(axis=0, ddof=1).mean())) if len(again) > 1 else math.nan
    units = groups or [str(row) for row in range(n)]
    ends = Interval(value - 1.96 * sampling_se, value + 1.96 * sampling_se, 0.95)
    correlation_ends = _icc_interval(again_items, units, seed)
    repaired |= {
        "value": quantity(value, interval=ends, n=n),
        "measurement_sd": quantity(sd, n=len(again)),
        "minimum_difference": quantity(1.96 * math.sqrt(2) * sd, n=len(again)),
        "prompt_sem": quantity(within, n=len(again)),
        "icc": quantity(icc(again_items), interval=correlation_ends, n=n),
        "sampling_se": quantity(sampling_se, n=n),
    }
    rows = [{"kind": "subsample", "run": i, "value": float(x)} for i, x in enumerate(subsampled)]
    rows += [{"kind": "again", "run": i, "value": float(x)} for i, x in enumerate(again)]
    return Measurement.of(
        ID,
        page,
        repaired,
        REPAIRED,
        flags=notes,
        null=null(n, len(again)),
        tables=[Table.of(f"runs of {metric}" if metric else "runs", ("kind", "run"), rows)],
        values=Values(
            unit="prompt",
            ids=list(ids) or [str(row) for row in range(n)],
            groups=list(units),
            columns={"mean over runs": again_items.mean(axis=0).tolist()},
        ),
        words={"differs": f"{DIFFERS:g}".removeprefix("0")},
    )


def _icc_interval(items: Items, groups: Sequence[str], seed: int) -> Interval:
    """Of the correlation, over groups of prompts; runs are taken as they are."""
    weights, n_groups = example_weights(groups, np.random.default_rng(seed))
    rows = np.arange(items.shape[1])
    drawn = [icc(items[:, np.repeat(rows, counts)]) for counts in weights.astype(int)]
    return percentile_interval(np.array(drawn), n_groups=n_groups)


def _quantities(values: Float[np.ndarray, "runs"], items: Items) -> dict[str, Quantity]:
    n = len(values)
    return {
        "deviation_rate": quantity(deviation_rate(values), n=n),
        "max_deviation": quantity(max_deviation(values), n=n),
        "coherence_score": quantity(coherence(items), n=n),
    }


# How often the thresholds err


@cache
def null(
    n: int = 50, runs: int = 10, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
) -> NullTable:
    """Rates of the conditions for `runs` runs on `n` prompts."""
    scenarios = (
        Scenario(
            "every run gives every prompt another score, 3 with spread 1.5",
            True,
            lambda rng, size: _drawn(rng, size, n, runs, 1.5),
        ),
        Scenario(
            "a deterministic metric, prompts 3 with spread 1.5",
            False,
            lambda rng, size: _drawn(rng, size, n, runs, 0.0),
        ),
    )
    return simulate(scenarios, thresholds(ID, REPAIRED), n, n_simulations=n_simulations, seed=seed)


def _drawn(rng: np.random.Generator, size: int, n: int, runs: int, noise: float) -> Drawn:
    by_variant: dict[str, list[list[float]]] = {"page": [], "repaired": []}
    for _ in range(size):
        own = 3 + (1.5 if noise == 0 else 0.0) * rng.standard_normal(n)
        items = own + noise * rng.standard_normal((runs, n))
        some = np.where(rng.random((runs, n)).argsort(axis=1) < round(0.75 * n), items, np.nan)
        for name, held in (("page", some), ("repaired", items)):
            values = np.nanmean(held, axis=1)
            by_variant[name].append(
                [deviation_rate(values), max_deviation(values), coherence(held)]
            )
    keys = ("deviation_rate", "max_deviation", "coherence_score")
    columns = {name: np.array(rows) for name, rows in by_variant.items()}
    return {
        "page": dict(zip(keys, columns["page"].T, strict=True)),
        "repaired": dict(zip(keys, columns["repaired"].T, strict=True)),
    }


@dataclass(frozen=True)
@checked_settings
class Reproducibility(Gauge):
    """Is a number the same when it is computed again: noise of measuring apart from sampling.

    Attributes:
        metric: logit-diff, probe-accuracy or ablation-recovery.
        n_runs: of each kind.
        share: of the prompts that a run of the page has, and of a probe's train prompts.
    """

    metric: str = "logit-diff"
    n_runs: Annotated[int, Within(2)] = 10
    share: Annotated[float, Within(above=0, below=1)] = 0.75

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = 50
    uses: ClassVar[tuple[str, ...]] = ("circuit",)
    tried_as: ClassVar[str] = "metric=ablation-recovery"

    def __post_init__(self) -> None:
        one_of("base metric", self.metric, BASE_NAMES)

    def measure(self, inputs: GaugeInputs) -> Measurement:
        batch, n = inputs.batch, len(inputs.batch)
        size = max(2, round(self.share * n))
        items = np.full((2, self.n_runs, n), np.nan)
        values = np.empty((2, self.n_runs))
        for run in range(self.n_runs):
            for kind, kept in enumerate((size, n)):
                rng = np.random.default_rng((inputs.seed, kind, run))
                rows = rng.permutation(n)[:kept]
                share = self.share if kind == 0 else 1.0
                scores = run_base(self.metric, inputs, rows, rng, train_share=share)
                values[kind, run] = scores.value()
                items[kind, run, rows] = scores.ranking
        rng = np.random.default_rng(inputs.seed)
        se = run_base(self.metric, inputs, np.arange(n), rng).sampling_se(rng)
        return reproducibility(
            values[0],
            items[0],
            values[1],
            items[1],
            se,
            ids=batch.ids,
            groups=batch.groups,
            share=self.share,
            metric=self.metric,
            seed=inputs.seed,
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for runs on `n` prompts."""
        return null(n, self.n_runs, n_simulations, seed)
