"""What the divergences of one circuit say,
as plain values that go into a record and from there into the report.

A table of the distribution (`summary`), shares of pairs above thresholds, histograms as in figures
1 to 6 of Uit de Bos and Garriga-Alonso (2024) and on a logarithmic scale, and for the fields of the
prompts, appendix D: which labels are worse (`groups`), and heat maps of two fields. Fields that
group the prompts alike are one field with several names. The template of a prompt, its text without
its parts, is a field too.

Labels are compared within strata of prompts that are built alike (`strata`). p values are adjusted
for the labels of a field (`worse_labels`) and, by Bonferroni, for the number of fields. How much
worse a label is stands beside them, in nats and as a share of the same number of the empty circuit;
a label is called worse only if that share is `LEAST_EFFECT` or more.

A population, all pairs that there are, has no intervals and needs no bounds: they are left
undefined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.pools import Pool
from mechassay.adversarial.strata import REPEATS, TEMPLATE, skeleton, strata_of
from mechassay.stats.design import Design
from mechassay.stats.groups import Field, by_fields
from mechassay.stats.label_effects import label_effects
from mechassay.stats.label_tests import HighPercentile, worse_labels
from mechassay.stats.partial_grid import PartialGrid
from mechassay.stats.summary import PERCENTILES, summarise

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BINS = 100
FIELD_PERCENTILES = (0.99, 0.999)
TESTED = 0.99
"""The percentile whose difference between labels is tested."""
ALPHA = 0.05
LEAST_EFFECT = 0.05
"""Least difference of the tested percentile that is called worse,
as a share of the empty circuit's.
"""
MAX_LABELS = 150


@dataclass(frozen=True)
class Statistics:
    """How values are summarised.

    Attributes:
        design: grid, matched or independent.
        population: the pairs are all there are.
        percentiles: of the table.
        above: thresholds in nats whose exceedance is asked for.
        n_resamples, n_permutations: of the bootstrap of a grid, and of the tests of labels.
        least_effect: what a label must be worse by, see `LEAST_EFFECT`.
        part: which pairs of a grid there are, where not all are.
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
        found = summarise(
            values, self.drawn(values), rng, self.percentiles, n_resamples=self.n_resamples
        )
        rows = [asdict(row) for row in found.rows]
        return [{**row, **_UNKNOWN} for row in rows] if self.population else rows

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
            bound = math.nan if self.population else design.exceedance_bound(values, threshold)
            rows.append(
                {
                    **row,
                    **(_UNKNOWN if self.population else {"low": low, "high": high, "bound": bound}),
                }
            )
        return rows

    def groups(
        self,
        values: Float[np.ndarray, "*pairs"],
        empty: Float[np.ndarray, "*pairs"],
        fields: Sequence[Field],
        rng: np.random.Generator,
    ) -> list[dict[str, Any]]:
        """A table for each field: its labels, how many inputs have them, maximum,
        percentiles, and the test of each label.

        Beside `inputs`, how many inputs were `compared` with others of their strata. `tested` and
        `rest` are the tested percentile of these and of what they are compared with, `effect` is
        their difference, `share` that of the empty circuit's percentile, `worse` whether both p and
        share say so. `mean_effect` is the difference of means, with an interval.
        """
        beyond, middle = float(np.nanquantile(empty, TESTED)), float(np.nanmean(empty))
        rows: list[dict[str, Any]] = []
        for field in fields:
            table = by_fields(values, [field], FIELD_PERCENTILES)
            test = worse_labels(values, field, HighPercentile(TESTED), rng, self.n_permutations)
            means = label_effects(values, field)
            p = np.minimum(1.0, test.adjusted * len(fields))
            effect = test.value - test.rest
            share = effect / beyond if beyond > 0 else np.full(len(p), math.nan)
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
                        f"{100 * p:g}%": table.percentiles[:, place].tolist()
                        for place, p in enumerate(FIELD_PERCENTILES)
                    },
                    "tested": test.value.tolist(),
                    "rest": test.rest.tolist(),
                    "effect": effect.tolist(),
                    "share": share.tolist(),
                    "mean_effect": means.difference.tolist(),
                    "mean_low": [math.nan] * len(p) if self.population else means.low.tolist(),
                    "mean_high": [math.nan] * len(p) if self.population else means.high.tolist(),
                    "mean_share": (means.difference / middle).tolist()
                    if middle > 0
                    else [math.nan] * len(p),
                    "p": p.tolist(),
                    "worse": ((p <= ALPHA) & (np.nan_to_num(share) >= self.least_effect)).tolist(),
                }
            )
        return rows


_UNKNOWN = {"low": math.nan, "high": math.nan, "bound": math.nan}


def histogram(
    values: Float[np.ndarray, "*pairs"],
    corrupted: Float[np.ndarray, "*pairs"],
    random: Float[np.ndarray, "*part"],
    largest: float,
) -> dict[str, list[Any]]:
    """Counts of a circuit's values, of the empty circuit's and of a random one's
    in equal bins from 0 to `largest`.

    Values below 0 are rounding and count as 0; those above `largest`, and NaN, are in no bin.

    Args:
        random: on a part of the pairs; its counts are scaled to all of them.
    """
    edges = np.linspace(0.0, largest if largest > 0 else 1.0, BINS + 1)
    all_values = {"circuit": values, "corrupted": corrupted, "random_paths": random}
    counts = {
        name: np.histogram(np.maximum(found[~np.isnan(found)], 0), edges)[0]
        for name, found in all_values.items()
    }
    scaled = counts["random_paths"] * float((~np.isnan(values)).sum() / (~np.isnan(random)).sum())
    return {
        "edges": edges.tolist(),
        **{name: found.tolist() for name, found in counts.items()},
        "random_paths": scaled.tolist(),
    }


def fields_of(
    clean: Pool, corrupted: Pool | None, tokenizer: PreTrainedTokenizerBase, *, grid: bool
) -> list[Field]:
    """The fields by which pairs can be grouped:
    at least two labels, and on average two prompts a label.

    Args:
        corrupted: None where there is none to group by.
        tokenizer: counts the tokens of words, for the strata.
    """
    sides: list[tuple[Literal["clean", "corrupted"], Pool]] = [("clean", clean)]
    if corrupted is not None:
        sides.append(("corrupted", corrupted))
    names: dict[tuple[str, tuple[int, ...]], list[tuple[Literal["clean", "corrupted"], str]]] = {}
    labels_of: dict[tuple[str, tuple[int, ...]], tuple[str, ...]] = {}
    for side, pool in sides:
        for name, labels in {**pool.fields, TEMPLATE: tuple(map(skeleton, pool.prompts))}.items():
            n_labels = len(set(labels))
            if not 2 <= n_labels <= min(MAX_LABELS, len(labels) // REPEATS):
                continue
            # Fields that divide the inputs alike are one; of a grid only those of the same side
            # can.
            key = (
                side if grid else "",
                tuple(np.unique(np.asarray(labels), return_inverse=True)[1].tolist()),
            )
            names.setdefault(key, []).append((side, name))
            labels_of.setdefault(key, labels)
    found: list[Field] = []
    pools = dict(sides)
    for key, labels in labels_of.items():
        side = names[key][0][0]
        strata = strata_of(
            pools[side], [name for other, name in names[key] if other == side], tokenizer
        )
        found.append(Field(_joined([_called(*each) for each in names[key]]), labels, side, strata))
    return found


def _called(side: str, name: str) -> str:
    return name if side == "clean" else f"corrupted {name}"


def _joined(names: Sequence[str]) -> str:
    """Several names of one field; of a part that comes again (`year_2`) only the first."""
    return " = ".join(
        dict.fromkeys(
            re.sub(r"_\d+$", "", name) if re.sub(r"_\d+$", "", name) in names else name
            for name in names
        )
    )
