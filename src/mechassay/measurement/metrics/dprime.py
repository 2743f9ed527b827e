"""EX1, d-prime: does a circuit's presence tell right from wrong (Green and Swets 1966)?

With H the share of prompts that are right in the full model and F the share that stay right when
the circuit is ablated, right being a logit difference above 0,

    d' = Z(H) - Z(F)        c = -(Z(H) + Z(F)) / 2        beta = exp((Z(F)^2 - Z(H)^2) / 2)

and the AUC is that of the logit differences of the two arms, ties counting half.

`page`      rates as they are, so that a rate of 0 or 1 leaves d' undefined; what it calls beta
            is the criterion c. The circuit's heads are ablated by means.
`repaired`  the log-linear rates (k + 1/2) / (n + 1) of Macmillan and Creelman (2005), with the
            largest d' that n prompts can show (`ceiling`); intervals by resampling prompts, both
            arms together; and a second d', of the circuit alone against the empty circuit. The
            circuit's edges are ablated by the counterfactual run, as all circuits here are.

Both arms have the same prompts: F is no false alarm of a detector, and d' is that of ablation. A
backup mechanism makes it small although the circuit is used, but not the second d'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from scipy.stats import norm, rankdata

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import complement
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
from mechassay.measurement.metrics.circuit_runs import (
    by_counterfactual,
    by_means,
    heads_of,
    without_heads,
)
from mechassay.results.records import Table, Values
from mechassay.stats.intervals import (
    Interval,
    example_weights,
    percentile_interval,
    resolved_difference,
    weighted_means,
    widening,
)

ID = "EX1"
REPAIRED = (Condition("dprime_low", ">", 0.0),)
RESAMPLES_OF_A_SIMULATION = 200
FLAT = 1000.0
"""Ratio of spreads from which one arm counts as constant."""
Differences = Float[np.ndarray, "n"]
"""Logit differences, one a prompt."""


def z(p: Any) -> Any:
    """The inverse of the normal distribution function."""
    return norm.ppf(p)


def log_linear(hits: Any, n: int) -> Any:
    """The rate (k + 1/2) / (n + 1), which is never 0 or 1."""
    return (hits + 0.5) / (n + 1)


def ceiling(n: int) -> float:
    """The largest d' of log-linear rates: all right in one arm, none in the other."""
    return float(2 * z(log_linear(n, n)))


def auc(signal: Differences, noise: Float[np.ndarray, "m"]) -> float:
    """The probability that a signal exceeds a noise, ties counting half (Mann and Whitney)."""
    ranks = rankdata(np.concatenate((signal, noise)))[: len(signal)]
    n, m = len(signal), len(noise)
    return float((ranks.sum() - n * (n + 1) / 2) / (n * m))


def dprime(
    full: Differences,
    ablated: Differences,
    *,
    circuit_only: Differences | None = None,
    empty: Differences | None = None,
    page_full: Differences | None = None,
    page_ablated: Differences | None = None,
    ids: Sequence[str] = (),
    groups: Sequence[str] = (),
    seed: int = 0,
    flags: Sequence[Flag] = (),
) -> Measurement:
    """EX1 of logit differences of the same prompts.

    Args:
        full, ablated: of the model, and of the model without the circuit.
        circuit_only, empty: of the circuit alone, and with everything ablated.
        page_full, page_ablated: where the page ablates something else (whole heads, by means).
        groups: of prompts that are resampled together; each prompt its own by default.
        seed: of the resampling.
    """
    n = len(full)
    units = list(groups) or [str(row) for row in range(n)]
    weights, n_groups = example_weights(units, np.random.default_rng(seed))
    repaired = _arms(full, ablated, weights, n_groups)
    notes = list(flags)
    if circuit_only is not None and empty is not None:
        other = _arms(circuit_only, empty, weights, n_groups)
        repaired |= {f"{name}_circuit_only": other[name] for name in ("dprime", "auc")}
    first = full if page_full is None else page_full
    second = ablated if page_ablated is None else page_ablated
    rates = {"hit": float(np.mean(first > 0)), "false alarm": float(np.mean(second > 0))}
    extreme = [name for name, rate in rates.items() if rate in (0.0, 1.0)]
    if extreme:
        notes.append(flag("rate_of_0_or_1", rates=" and the ".join(extreme)))
    if float(np.mean(full > 0)) < 0.6:
        notes.append(flag("model_near_chance"))
    if np.array_equal(full, ablated):
        notes.append(flag("arms_equal"))
    arms = {"full": full, "circuit ablated": ablated}
    arms |= {} if circuit_only is None else {"circuit only": circuit_only}
    arms |= {} if empty is None else {"empty": empty}
    return Measurement.of(
        ID,
        _page(first, second),
        repaired,
        REPAIRED,
        flags=notes,
        null=null(n),
        tables=[_table(arms)],
        values=Values(
            unit="prompt",
            ids=list(ids) or [str(row) for row in range(n)],
            groups=units,
            columns={name: values.tolist() for name, values in arms.items()},
        ),
    )


def _page(full: Differences, ablated: Differences) -> dict[str, Quantity]:
    n = len(full)
    hit, false = float(np.mean(full > 0)), float(np.mean(ablated > 0))
    known = min(hit, false) > 0 and max(hit, false) < 1
    difference, sum_ = (z(hit) - z(false), z(hit) + z(false)) if known else (None, None)
    return {
        "hit_rate": quantity(hit, n=n),
        "false_alarm_rate": quantity(false, n=n),
        "dprime": quantity(difference, n=n),
        "beta": quantity(None if sum_ is None else -0.5 * sum_, n=n),
        "auc": quantity(auc(full, ablated), n=n),
    }


def _arms(
    signal: Differences,
    noise: Differences,
    weights: Float[np.ndarray, "resamples n"],
    n_groups: int,
) -> dict[str, Quantity]:
    n = len(signal)
    right = [(arm > 0).astype(float) for arm in (signal, noise)]
    rates = [log_linear(arm.sum(), n) for arm in right]
    drawn = [log_linear(n * weighted_means(weights, arm), n) for arm in right]
    d, draws = float(z(rates[0]) - z(rates[1])), z(drawn[0]) - z(drawn[1])
    ends = percentile_interval(draws, n_groups=n_groups)
    sum_ = float(z(rates[0]) + z(rates[1]))
    spread = float(resolved_difference(np.std(signal, ddof=1), 0.0, signal)) if n > 1 else 0.0
    slope = float(np.std(noise, ddof=1)) / spread if spread > 0 else float("nan")
    # One arm that is the same in all prompts has no ROC to speak of.
    slope = slope if 1 / FLAT < slope < FLAT else float("nan")
    beta = float(np.exp((z(rates[1]) ** 2 - z(rates[0]) ** 2) / 2))
    auc_ends = _auc_interval(signal, noise, weights, n_groups)
    return {
        "dprime": quantity(d, interval=ends, n=n),
        "dprime_low": quantity(ends.low, n=n),
        "ceiling": quantity(ceiling(n), n=n),
        "criterion_c": quantity(-0.5 * sum_, n=n),
        "likelihood_ratio_beta": quantity(beta, n=n),
        "auc": quantity(auc(signal, noise), interval=auc_ends, n=n),
        "zroc_slope": quantity(slope, n=n),
    }


def _auc_interval(
    signal: Differences,
    noise: Differences,
    weights: Float[np.ndarray, "resamples n"],
    n_groups: int,
) -> Interval:
    """Prompts are resampled in both arms together."""
    exceeds = (signal[:, None] > noise) + 0.5 * (signal[:, None] == noise)
    draws = ((weights @ exceeds) * weights).sum(axis=1) / weights.sum(axis=1) ** 2
    return percentile_interval(draws, n_groups=n_groups)


def _table(arms: dict[str, Differences]) -> Table:
    rows = (
        {"arm": name, "right": float(np.mean(x > 0)), "mean": float(x.mean()), "n": len(x)}
        for name, x in arms.items()
    )
    return Table.of("arms", ("arm",), rows)


# How often the thresholds err


@cache
def null(n: int = 40, n_simulations: int = N_SIMULATIONS, seed: int = 0) -> NullTable:
    """Rates of the conditions for `n` prompts."""
    scenarios = (
        Scenario(
            "accuracy .95 with and without the circuit, independent noise",
            True,
            lambda rng, size: _drawn(rng, size, n, 0.95, 0.95),
        ),
        Scenario(
            "accuracy falls from .95 to .75",
            False,
            lambda rng, size: _drawn(rng, size, n, 0.95, 0.75),
        ),
    )
    return simulate(scenarios, thresholds(ID, REPAIRED), n, n_simulations=n_simulations, seed=seed)


def _drawn(rng: np.random.Generator, size: int, n: int, with_: float, without: float) -> Drawn:
    """Normal logit differences of variance 1 that are above 0 with these probabilities."""
    signal = rng.standard_normal((size, n)) + z(with_)
    noise = rng.standard_normal((size, n)) + z(without)
    right, still = signal > 0, noise > 0
    exceeds = (signal[:, :, None] > noise[:, None, :]).mean(axis=(1, 2))
    page = z(right.mean(axis=1)) - z(still.mean(axis=1))
    both = np.stack([right & still, right & ~still, ~right & still, ~right & ~still]).sum(axis=2)
    shares = (both / n).T[:, None, :]
    counts = rng.multinomial(n, shares, size=(size, RESAMPLES_OF_A_SIMULATION))
    draws = z(log_linear(counts[..., 0] + counts[..., 1], n)) - z(
        log_linear(counts[..., 0] + counts[..., 2], n)
    )
    low = np.quantile(draws, norm.cdf(norm.ppf(0.025) * widening(n)), axis=1)
    return {
        "page": {"dprime": np.where(np.isfinite(page), page, np.nan), "auc": exceeds},
        "repaired": {"dprime_low": low},
    }


@dataclass(frozen=True)
class DPrime(Gauge):
    """Do prompts stay right without the circuit: d', criterion, AUC."""

    about: ClassVar[PageMetric] = page_metric(ID)

    def measure(self, inputs: GaugeInputs) -> Measurement:
        circuit, graph, batch = inputs.circuit, inputs.model.graph, inputs.batch
        heads = heads_of(circuit)
        flags: list[Flag] = []
        if not bool(heads.any()):
            flags.append(flag("no_heads"))
        full = Circuit.full(graph)
        page = by_means(inputs, [full, without_heads(graph, heads)])
        arms = [full, complement(circuit), circuit, Circuit.empty(graph)]
        values = by_counterfactual(inputs, arms)
        return dprime(
            values[0],
            values[1],
            circuit_only=values[2],
            empty=values[3],
            page_full=page[0],
            page_ablated=page[1],
            ids=batch.ids,
            groups=batch.groups,
            seed=inputs.seed,
            flags=flags,
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` prompts."""
        return null(n, n_simulations, seed)
