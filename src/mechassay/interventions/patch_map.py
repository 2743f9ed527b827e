"""A map of activation patching: the objective after every patch, and what follows from it.

    share = (m(patched) - m(base)) / (m(source) - m(base))          means m over pairs

A share has two intervals, both over groups of pairs: of its cell alone, and with those of all
other measured cells at once. Every resample recomputes all three means.

Pairs of one template have their parts at the same tokens, so a map by token is of one template
(`PatchMap.of`). `PatchMap.whole` is one map of all pairs: its columns are the parts that all
prompts have, at their last tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import norm

from mechassay.errors import BadUsage, one_of
from mechassay.interventions.names import Direction, Part
from mechassay.interventions.patch_verdict import ALL_PROMPTS, COLUMNS, EXACT, verdict
from mechassay.models.objectives import least_size
from mechassay.results.measures import measure_texts
from mechassay.results.records import Check, Measure, Spec, Table, Values
from mechassay.results.result import RecordContents, Result
from mechassay.stats.intervals import (
    LEVEL,
    Estimate,
    Resamples,
    percentile_interval,
    resolved_difference,
    widening,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


HIDDEN = "·"
ENDS = ("share", "low", "high", "joint_low", "joint_high")


@dataclass(frozen=True, eq=False, repr=False)
class PatchMap(Result, kind="patch"):
    """The objective after each patch, for every pair: layers x tokens, or layers x heads.

    Attributes:
        values: the objective with one site patched; NaN at tokens that a pair lacks.
        base, source: the objective of the base run and of the source run.
        known: the share that is 0 or 1 by construction; NaN where it is measured.
        layers: the block of each row; -1 is the embedding.
        tokens: of each pair's clean prompt, as text, aligned at their ends.
        variants: of each pair, its template and its length where there are several.
        ids, groups: of each pair, its name and the unit that intervals respect.
        parts: by name, the column of a part of each pair's prompts, such as the subject.
        last_layer: the model's last block.
        higher_is_better: of the objective.
        seed: of the bootstrap.
        model, task: what they are called.
    """

    part: Part
    direction: Direction
    objective: str
    values: Float[np.ndarray, "pairs layers columns"]
    base: Float[np.ndarray, "pairs"]
    source: Float[np.ndarray, "pairs"]
    known: Float[np.ndarray, "pairs layers columns"]
    layers: tuple[int, ...]
    tokens: tuple[tuple[str, ...], ...]
    variants: tuple[str, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    last_layer: int = -1
    higher_is_better: bool = True
    seed: int = 0
    model: str = "model"
    task: str = "pairs"

    def repr_fields(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "direction": self.direction,
            "pairs": len(self.ids),
            "layers": len(self.layers),
            f"{COLUMNS[self.part]}s": self.values.shape[2],
            "variants": len(set(self.variants)),
        }

    @property
    def total(self) -> float:
        """m(source) - m(base): what a share is a share of; 0 where it may be rounding alone."""
        return float(self._gap(self.base.mean(), self.source.mean()))

    def _gap(self, base: Any, source: Any) -> Any:
        """The difference of means over pairs, or over resamples of them."""
        ends = np.stack((self.base, self.source))
        return resolved_difference(source, base, ends, least=least_size(self.objective))

    @cached_property
    def share(self) -> Float[np.ndarray, "layers columns"]:
        """The share of each cell, over all pairs; NaN where a pair lacks the token."""
        if self.total == 0:
            return np.full(self.values.shape[1:], np.nan)
        return (self.values.mean(0) - self.base.mean()) / self.total

    @property
    def by_construction(self) -> Bool[np.ndarray, "layers columns"]:
        """Whether the share of each cell is known of all pairs before anything is run."""
        return np.logical_not(np.isnan(self.known).any(axis=0))

    @property
    def intervals(self) -> Float[np.ndarray, "2 layers columns"]:
        """Lower and upper end of each share's 95 % interval, over groups of pairs."""
        return self._ends[:2]

    @property
    def joint_intervals(self) -> Float[np.ndarray, "2 layers columns"]:
        """Intervals that hold for all measured cells at once with 95 %, over groups of pairs.

        Each is the share less and plus its standard error times one number: the 95 % quantile,
        over resamples, of the largest error of any cell in its standard errors (max-t).
        """
        return self._ends[2:]

    @cached_property
    def _ends(self) -> Float[np.ndarray, "4 layers columns"]:
        """`intervals` and `joint_intervals`."""
        n = len(self.ids)
        flat = np.concatenate(
            (self.values.reshape(n, -1), self.base[:, None], self.source[:, None]), 1
        )
        draws = Resamples(self.groups, np.random.default_rng(self.seed)).means(flat.T)
        *cells, base, source = draws.T
        # A resample without a difference has no shares.
        gaps = self._gap(base, source)
        total = np.where(gaps == 0, np.nan, gaps)
        n_groups = len(set(self.groups))
        alone, spreads, largest = [], [], np.zeros(len(draws))
        fixed = self.by_construction.ravel()
        for cell, share, known in zip(cells, self.share.ravel(), fixed, strict=True):
            shares = (cell - base) / total
            low, high, _ = percentile_interval(shares, n_groups=n_groups)
            alone.append((low, high))
            errors = np.abs(shares - share)
            spread = 0.0 if known else float(np.sqrt(np.mean(errors**2)))
            # Few groups that agree have no interval here either.
            spread = math.nan if math.isnan(low) and not known else spread
            spreads.append(spread)
            # Rounding has a spread too, and tails of its own.
            if spread > EXACT / 10:
                largest = np.maximum(largest, errors / spread)
        reach = max(float(np.quantile(largest, LEVEL)), float(norm.ppf((1 + LEVEL) / 2)))
        half = reach * widening(n_groups) * np.array(spreads)
        joint = self.share.ravel() + np.array([[-1.0], [1.0]]) * half
        return np.concatenate((np.array(alone).T, joint)).reshape(4, *self.values.shape[1:])

    def _interval_of_mean(self, values: Float[np.ndarray, "pairs"]) -> tuple[float, float]:
        """The 95 % interval of a mean over pairs, over their groups."""
        draws = Resamples(self.groups, np.random.default_rng(self.seed)).means(values[None])[:, 0]
        low, high, _ = percentile_interval(draws, n_groups=len(set(self.groups)))
        return low, high

    def estimate(self, layer: int, column: int) -> Estimate:
        """One cell's share with its interval.

        Args:
            layer: a block of `layers`.
            column: of the map, a token from its first or a head; negative from the end.

        Raises:
            BadUsage: the map has no such layer or column.
        """
        if layer not in self.layers or not -self.values.shape[2] <= column < self.values.shape[2]:
            raise BadUsage(
                f"This map has layers {self.layers[0]} to {self.layers[-1]} and"
                f" {self.values.shape[2]} {COLUMNS[self.part]}s; got {layer} and {column}."
            )
        row = self.layers.index(layer)
        low, high = self.intervals[:, row, column]
        return Estimate(float(self.share[row, column]), float(low), float(high))

    @property
    def headings(self) -> tuple[str, ...]:
        """What the columns are: heads by number; tokens where all pairs have the same one, else
        the first pair's and "…".
        """
        if self.part == "heads":
            return tuple(str(head) for head in range(self.values.shape[2]))
        columns = zip(*self.tokens, strict=True)
        return tuple(
            texts[0] if len(set(texts)) == 1 else f"{texts[0]}…" for texts in map(tuple, columns)
        )

    @property
    def templates(self) -> tuple[str, ...]:
        """The variants of prompts, in the order of the pairs."""
        return tuple(dict.fromkeys(self.variants))

    def of(self, template: str) -> PatchMap:
        """The map of one variant of prompts, of its own tokens alone.

        Raises:
            UnknownName: no pair is of it.
        """
        one_of("template of the pairs", template, self.templates)
        rows = [row for row, variant in enumerate(self.variants) if variant == template]
        width = min(sum(text != "" for text in self.tokens[row]) for row in rows)
        start = 0 if self.part == "heads" else self.values.shape[2] - width

        def some(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[row] for row in rows)

        return replace(
            self,
            values=self.values[rows][:, :, start:],
            known=self.known[rows][:, :, start:],
            base=self.base[rows],
            source=self.source[rows],
            tokens=tuple(texts[len(texts) - width :] for texts in some(self.tokens)),
            variants=some(self.variants),
            ids=some(self.ids),
            groups=some(self.groups),
            parts={name: tuple(x - start for x in some(at)) for name, at in self.parts.items()},
        )

    def without_tokens(self) -> PatchMap:
        """The map without the prompts' words, for private pairs; templates are numbered."""
        hidden = tuple(tuple(HIDDEN if text else "" for text in row) for row in self.tokens)
        numbers = {
            name: f"template {i}" if name else "" for i, name in enumerate(self.templates, 1)
        }
        return replace(self, tokens=hidden, variants=tuple(numbers[name] for name in self.variants))

    @cached_property
    def whole(self) -> PatchMap | None:
        """The map of all pairs together, whatever their templates: of heads, or of the parts that
        all prompts have; None where there are no parts.
        """
        rows = np.arange(len(self.ids))
        everyone = (ALL_PROMPTS,) * len(rows)
        if self.part == "heads":
            return replace(self, variants=everyone)
        if not self.parts:
            return None
        # In the order of the prompts: the last token comes last.
        parts = dict(sorted(self.parts.items(), key=lambda part: (sum(part[1]), part[1])))
        places = [list(at) for at in parts.values()]
        names = tuple(f"[{name}]" for name in parts)
        return replace(
            self,
            values=np.stack([self.values[rows, :, at] for at in places], axis=2),
            known=np.stack([self.known[rows, :, at] for at in places], axis=2),
            tokens=(names,) * len(rows),
            variants=everyone,
            parts={},
        )

    @cached_property
    def maps(self) -> tuple[PatchMap, ...]:
        """The map of all pairs together, if there is one, and that of each template."""
        if self.whole is None or self.templates == (ALL_PROMPTS,):
            return tuple(map(self.of, self.templates))
        return (self.whole, *map(self.of, self.templates))

    def columns(self) -> dict[str, list[Any]]:
        """Cells as columns: template, layer, token or head, share, its interval alone and with
        all other cells, and whether it is known by construction.
        """
        rows: list[tuple[Any, ...]] = []
        for one in self.maps:
            numbers = np.concatenate((one.share[None], one.intervals, one.joint_intervals))
            rows += [
                (
                    one.variants[0],
                    layer,
                    column,
                    heading,
                    *map(float, numbers[:, row, column]),
                    bool(one.by_construction[row, column]),
                )
                for row, layer in enumerate(one.layers)
                for column, heading in enumerate(one.headings)
            ]
        names = ("template", "layer", "column", COLUMNS[self.part], *ENDS, "by_construction")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def plot(self, ax: Axes | None = None, *, template: str | None = None) -> Figure:
        """The heat map of one template; of the parts of all prompts by default, where there are
        several templates.
        """
        from mechassay.interventions.heatmap import draw_patch_map

        whole = None if template or len(self.templates) == 1 else self.whole
        one = self.of(template or self.templates[0]) if whole is None else whole
        return draw_patch_map(
            one.share, one.layers, one.headings, one.part, one.by_construction, ax=ax
        )

    @cached_property
    def verdict(self) -> str:
        """What the map says, in sentences; see `interventions.patch_verdict`."""
        return verdict((self.whole or self.of(self.templates[0])).record())

    def contents(self) -> RecordContents:
        args: dict[str, Any] = {"direction": self.direction, "last_layer": self.last_layer}
        keys = ("template", "layer", "column")
        return {
            "specs": {
                "model": Spec(name=self.model),
                "task": Spec(name=self.task),
                "method": Spec(name=self.part, args=args),
                "metric": Spec(name=self.objective),
            },
            "measures": list(self._measures()),
            "values": Values(
                unit="pair",
                ids=list(self.ids),
                groups=list(self.groups),
                columns={"base": self.base.tolist(), "source": self.source.tolist()},
            ),
            "tables": [
                Table(name="patches", keys=keys, columns=self.columns()),
                Table.of("maps", keys[:1], [one._facts() for one in self.maps]),
            ],
            "checks": self._checks(),
            "warnings": self._warnings(),
        }

    def _facts(self) -> dict[str, Any]:
        """Of how many pairs a map is, and by how much clean prompts do better in the objective."""
        better = 1.0 if (self.direction == "denoising") == self.higher_is_better else -1.0
        gaps = better * (self.source - self.base)
        low, high = self._interval_of_mean(gaps)
        numbers = {"advantage": better * self.total, "low": low, "high": high}
        counts = {"pairs": len(self.ids), "groups": len(set(self.groups))}
        return {"template": self.variants[0], **counts, **numbers}

    def _measures(self) -> Iterator[Measure]:
        # The map of all pairs together where it has one, else that of the first template.
        texts, whole, n = measure_texts("patch"), self.maps[0], len(self.ids)
        shares = np.where(whole.by_construction, np.nan, whole.share)
        if not np.isnan(shares).all():
            row, column = np.unravel_index(int(np.nanargmax(shares)), shares.shape)
            largest = whole.estimate(self.layers[row], int(column))
            yield texts.measure("largest_share", largest, n=len(whole.ids))
        for name, values in (("base", self.base), ("source", self.source)):
            mean = Estimate(float(values.mean()), *self._interval_of_mean(values))
            yield texts.measure("m_{run}", mean, of="model", n=n, run=name)

    def _checks(self) -> list[Check]:
        """Cells that carry everything by construction, such as the last block's last token."""
        carriers = (self.known == 1).all(axis=0) & np.isfinite(self.share)
        if not carriers.any():
            return []
        off = np.abs(self.share[carriers] - 1)
        return [
            Check(
                name="a stream that alone carries the difference, as the last block's last token",
                must_be="a share of 1",
                largest=float(off.max()),
                n=len(off),
                n_wrong=int((off > EXACT).sum()),
            )
        ]

    def _warnings(self) -> list[str]:
        low, high = self._interval_of_mean(self.source - self.base)
        if self.total == 0 or low <= 0 <= high:
            ends = "" if math.isnan(low) else f", between {low:.3g} and {high:.3g}"
            return [
                "Base and source hardly differ in the objective, so shares divide by about 0:"
                f" m(source) - m(base) is {self.total:.3g}{ends}."
            ]
        return []
