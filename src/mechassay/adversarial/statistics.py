"""Statistics of one circuit's divergences, as plain values for its record and report.

The distribution (`summary`), shares of pairs above thresholds, histograms, for each field of the
prompts the labels that are worse (`stats.permutation_tests`), and heat maps of two fields, as in
the figures of Uit de Bos and Garriga-Alonso (2024). p values are adjusted for the labels of a field
and, by Bonferroni, for the number of fields; a label is called worse only if the difference is
`LEAST_EFFECT` of the empty circuit's number or more. A heat map tests nothing. A population (all
pairs that exist) has no intervals and needs no bounds: they are undefined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.options import LEAST_EFFECT
from mechassay.errors import BadUsage
from mechassay.stats.bounds import PartialGrid
from mechassay.stats.distribution import GROUP_PERCENTILES as MAP_PERCENTILES
from mechassay.stats.distribution import PERCENTILES, Design, Field, by_fields, summarise
from mechassay.stats.intervals import resolved_difference
from mechassay.stats.permutation_tests import HighPercentile, label_effects, worse_labels

BINS = 100
FIELD_PERCENTILES = (0.99, 0.999)
ENDS = ("value", "low", "high")
"""Columns of a number and the bounds of its interval."""
TESTED = 0.99
"""The percentile whose difference between labels is tested."""
ALPHA = 0.05
LABELS = 30
FIELD_LABELS, MAPS = 100, 3
"""Most labels of a field that is drawn unasked, and most maps drawn unasked."""
MAP_NAMES = (*(f"{100 * p:g}%" for p in MAP_PERCENTILES), "max")
_UNKNOWN = {"low": math.nan, "high": math.nan, "bound": math.nan}


@dataclass(frozen=True)
class Statistics:
    """How values are summarised.

    Attributes:
        design: grid, matched or independent.
        population: the pairs are all that exist.
        percentiles: of the table.
        above: thresholds in nats whose exceedance is asked for.
        n_resamples, n_permutations: of the bootstrap of a grid, and of the tests of labels.
        least_effect: what a label must be worse by, see `LEAST_EFFECT`.
        part: the pairs of a restricted grid.
    """

    design: str
    population: bool = False
    percentiles: tuple[float, ...] = PERCENTILES
    above: tuple[float, ...] = ()
    n_resamples: int = 1000
    n_permutations: int = 2000
    least_effect: float = LEAST_EFFECT
    part: PartialGrid | None = None

    def drawn(self, values: Float[np.ndarray, "*pairs"]) -> Design:
        """How these values were drawn."""
        return Design(self.design, values.shape, self.part)

    def table(
        self, values: Float[np.ndarray, "*pairs"], rng: np.random.Generator
    ) -> list[dict[str, Any]]:
        """The rows of `summarise`."""
        summary = summarise(
            values, self.drawn(values), rng, self.percentiles, n_resamples=self.n_resamples
        )
        unknown = _UNKNOWN if self.population else {}
        return [{**asdict(row), **unknown} for row in summary.rows]

    def exceedance(
        self, values: Float[np.ndarray, "*pairs"], rng: np.random.Generator
    ) -> list[dict[str, Any]]:
        """For each threshold the share of pairs above it, its interval and upper bound."""
        design = self.drawn(values)
        intervals = design.intervals(
            values, rng, (), self.above, n_resamples=self.n_resamples
        ).exceedance
        rows: list[dict[str, Any]] = []
        for threshold, (low, high, _) in zip(self.above, intervals, strict=True):
            row = {"above": threshold, "value": float((values > threshold).sum()) / design.n_values}
            if self.population:
                rows.append({**row, **_UNKNOWN})
            else:
                bound = design.exceedance_bound(values, threshold)
                rows.append({**row, "low": low, "high": high, "bound": bound})
        return rows

    def groups(
        self,
        values: Float[np.ndarray, "*pairs"],
        empty: Float[np.ndarray, "*pairs"],
        fields: Sequence[Field],
        rng: np.random.Generator,
    ) -> list[dict[str, Any]]:
        """A table for each field: its labels, inputs, maximum, percentiles, and the label test.

        `compared` is the number of inputs compared with others of their strata. `tested` and `rest`
        are the tested percentile of these and of the others, `effect` is their difference, `share`
        the effect over the empty circuit's percentile; `worse` needs a small p and a large share.
        `mean_effect` is the difference of means, with an interval.
        """
        reference = np.array([np.nanquantile(empty, TESTED), np.nanmean(empty)], dtype=float)
        # Divergences are sums of terms of about a nat, in the type of their array.
        empty_high, empty_mean = resolved_difference(
            reference, 0.0, reference, least=1.0, dtype=empty.dtype
        ).tolist()
        rows: list[dict[str, Any]] = []
        for field in fields:
            table = by_fields(values, [field], FIELD_PERCENTILES)
            test = worse_labels(values, field, HighPercentile(TESTED), rng, self.n_permutations)
            means = label_effects(values, field)
            p = np.minimum(1.0, test.adjusted * len(fields))
            effect = test.value - test.rest
            undefined = np.full(len(p), math.nan)
            share = effect / empty_high if empty_high > 0 else undefined
            mean_share = means.difference / empty_mean if empty_mean > 0 else undefined
            low, high = (undefined,) * 2 if self.population else (means.low, means.high)
            rows.append(
                {
                    "name": field.name,
                    "side": field.side,
                    "labels": list(test.labels),
                    "inputs": test.inputs.tolist(),
                    "compared": test.compared.tolist(),
                    "strata": test.n_strata,
                    "strata used": test.n_used,
                    "max": table.max.tolist(),
                    **{
                        f"{100 * q:g}%": column.tolist()
                        for q, column in zip(FIELD_PERCENTILES, table.percentiles.T, strict=True)
                    },
                    "tested": test.value.tolist(),
                    "rest": test.rest.tolist(),
                    "effect": effect.tolist(),
                    "share": share.tolist(),
                    "mean_effect": means.difference.tolist(),
                    "mean_low": low.tolist(),
                    "mean_high": high.tolist(),
                    "mean_share": mean_share.tolist(),
                    "p": p.tolist(),
                    "worse": ((p <= ALPHA) & (np.nan_to_num(share) >= self.least_effect)).tolist(),
                }
            )
        return rows


def histogram(
    values: Float[np.ndarray, "*pairs"],
    corrupted: Float[np.ndarray, "*pairs"],
    random: Float[np.ndarray, "*part"],
    largest: float,
) -> dict[str, list[Any]]:
    """Counts of the circuit's, the empty circuit's and a random one's values in equal bins.

    Bins go from 0 to `largest`. Values below 0 are rounding and count as 0; NaN is in no bin.

    Args:
        random: on a part of the pairs; its counts are scaled to all of them.
    """
    edges = np.linspace(0.0, largest if largest > 0 else 1.0, BINS + 1)
    all_values = {"circuit": values, "corrupted": corrupted, "random_paths": random}
    counts = {
        name: np.histogram(np.maximum(own[~np.isnan(own)], 0), edges)[0]
        for name, own in all_values.items()
    }
    scaled = counts["random_paths"] * float((~np.isnan(values)).sum() / (~np.isnan(random)).sum())
    return {
        "edges": edges.tolist(),
        **{name: count.tolist() for name, count in counts.items()},
        "random_paths": scaled.tolist(),
    }


def parse_map(text: str) -> tuple[str, str]:
    """The names of two fields, as they are typed: "place,object".

    Raises:
        BadUsage: not two different names.
    """
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise BadUsage(f"A heat map is of two different fields, as in place,object; got {text!r}.")
    return names[0], names[1]


def chosen_maps(
    fields: Sequence[Field],
    groups: Sequence[Mapping[str, Any]],
    axes: int,
    asked: Sequence[tuple[Field, Field]] = (),
) -> list[tuple[Field, Field]]:
    """The maps asked for, and those of the fields whose labels differ most (the least p values).

    Maps drawn unasked of two fields of the same inputs have at least as many inputs as cells.
    """
    least = [min(group["p"]) for group in groups]
    pairs = [
        (first, second)
        for first, second in combinations(range(len(fields)), 2)
        if _fits((fields[first], fields[second]), axes)
    ]
    best = sorted(pairs, key=lambda pair: (least[pair[0]] + least[pair[1]], pair))[:MAPS]
    taken = {_map_key(two) for two in asked}
    unasked = [(fields[first], fields[second]) for first, second in best]
    return [*asked, *(two for two in unasked if _map_key(two) not in taken)]


def _map_key(two: tuple[Field, Field]) -> frozenset[tuple[str, tuple[str, ...]]]:
    """Equal for maps that show the same cells."""
    return frozenset((field.side, tuple(field.labels)) for field in two)


def _fits(two: tuple[Field, Field], axes: int) -> bool:
    """Whether a heat map of two fields is small enough, and has something in most cells."""
    sizes = [len(set(field.labels)) for field in two]
    same_inputs = axes == 1 or two[0].side == two[1].side
    dense = not same_inputs or math.prod(sizes) <= len(two[0].labels)
    return max(sizes) <= FIELD_LABELS and dense


def heat_map(
    values: Float[np.ndarray, "*pairs"],
    empty: Float[np.ndarray, "*pairs"],
    two: tuple[Field, Field],
) -> dict[str, Any]:
    """Percentiles and maximum by two fields, and the empty circuit's over all pairs.

    `left_out` and `largest_left_out` are, for each field, the number of labels that are not shown
    and the largest value among their pairs.
    """
    tables = [by_fields(values, [field]) for field in two]
    order = [
        np.argsort(-np.nan_to_num(table.percentiles[:, 0], nan=-math.inf), kind="stable")
        for table in tables
    ]
    shown_labels, rest = (
        [labels[:LABELS] for labels in order],
        [labels[LABELS:] for labels in order],
    )
    table, place = by_fields(values, two), np.ix_(*shown_labels)
    cells = [*np.moveaxis(table.percentiles, -1, 0), table.max]
    of_empty = np.nanquantile(empty, (*MAP_PERCENTILES, 1.0)).tolist()
    return {
        "fields": [field.name for field in two],
        "labels": [
            [own.labels[0][label] for label in kept]
            for own, kept in zip(tables, shown_labels, strict=True)
        ],
        "left_out": [len(labels) for labels in rest],
        "largest_left_out": [
            float(np.nanmax(own.max[labels])) if len(labels) else math.nan
            for own, labels in zip(tables, rest, strict=True)
        ],
        "empty": {
            **dict(zip(MAP_NAMES, of_empty, strict=True)),
            "mean": float(np.nanmean(empty)),
        },
        **{name: own[place].tolist() for name, own in zip(MAP_NAMES, cells, strict=True)},
    }
