"""M10, PRISM: the contexts of test documents on which features are most active.

The page's contexts are whole windows. Those of the repaired variant are tokens around the largest
activation, one context a document: contexts of one document are alike for other reasons. Another
embedding than the model's own may be given: `more={"embedding": lambda: embed}`, a function of
token ids [contexts, tokens] to arrays [contexts, numbers].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.measurement.formulas import polysemanticity as formula
from mechassay.measurement.formulas.polysemanticity import FeatureContexts
from mechassay.measurement.gauges.sae_tokens import (
    ROWS,
    TokenSample,
    drawn_features,
    feature_counts,
    feature_values,
    given_dictionary,
)
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag

Embed = Callable[[Int[Tensor, "contexts tokens"]], "np.ndarray | Tensor"]
BACKGROUND = 5000
"""Contexts that say what all have in common."""
AT_ONCE = 32
"""Features that are encoded for all values at once."""


@dataclass(frozen=True)
class Polysemanticity:
    """On how many kinds of contexts is a feature active?

    Attributes:
        n_features: of those alive, drawn at random.
        cluster_threshold: of the page, a cosine distance.
        n_contexts: of a feature, at most; the page's script takes 20.
        radius: tokens before and behind the activation that are part of a context.
        rows: about how many values are taken.
    """

    n_features: int = 100
    cluster_threshold: float = formula.DISTANCE
    n_contexts: int = 20
    radius: int = 8
    rows: int = ROWS

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "sae", "texts")

    def __post_init__(self) -> None:
        if min(self.n_features, self.n_contexts, self.rows) < 1 or self.radius < 0:
            raise BadUsage(
                "Features, contexts and values are counted from 1, and a radius from 0; got"
                f" {self.n_features}, {self.n_contexts}, {self.rows} and {self.radius}."
            )
        if not 0 < self.cluster_threshold < 2:
            raise BadUsage(f"A cosine distance is between 0 and 2; got {self.cluster_threshold}.")

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        sae, store = given_dictionary(inputs)
        sample = TokenSample.of(store, "test", self.rows)
        alive = feature_counts(sae, sample.values) > 0
        rng = np.random.default_rng(inputs.seed)
        chosen = drawn_features(alive, self.n_features, rng)
        embed: Embed | None = inputs.get("embedding") if inputs.has("embedding") else None
        near = _Near.of(sample, self.radius, embed, rng)
        whole = sample.values.view(len(sample.windows), sample.length, -1).mean(dim=1)
        features: list[FeatureContexts] = []
        for some in chosen.split(AT_ONCE):
            active = feature_values(sae, sample.values, some)
            for number, own in zip(some.tolist(), active.mT, strict=True):
                features.append(self._contexts(str(number), own, sample, whole, near))
        return formula.polysemanticity(
            features,
            n_dead=int((~alive).sum()),
            n_features=sae.n_features,
            threshold=self.cluster_threshold,
            seed=inputs.seed,
            flags=_flags(sample.document.unique().numel()),
        )

    def _contexts(
        self,
        name: str,
        active: Float[Tensor, "n"],
        sample: TokenSample,
        whole: Float[Tensor, "windows d"],
        near: _Near,
    ) -> FeatureContexts:
        windows = _strongest(active, torch.arange(len(active)) // sample.length)
        places = _strongest(active, sample.document)[: self.n_contexts]
        prompts = windows[: self.n_contexts] // sample.length
        return FeatureContexts(name, whole[prompts].double().numpy(), near.at(places))

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS // 8, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is contexts."""
        n = self.n_contexts if n is None else n
        return formula.null(n, n_simulations=n_simulations, seed=seed)


def _flags(n_documents: int) -> Iterator[Flag]:
    if n_documents < formula.LEAST:
        yield Flag(
            "few_documents",
            f"The values are of {n_documents:,} documents, and a feature has one context of each:"
            f" {formula.LEAST} are needed. Take more tokens, or texts of shorter documents.",
        )


def _strongest(active: Float[Tensor, "n"], group: Int[Tensor, "n"]) -> Int[Tensor, "groups"]:
    """Where each group's largest activation is, of groups that have one; largest first."""
    best = torch.zeros(int(group.max()) + 1).scatter_reduce_(0, group, active.float(), "amax")
    tops = ((active > 0) & (active >= best[group])).nonzero().flatten()
    # Of equal activations, the first of a group.
    _, first = np.unique(group[tops].numpy(), return_index=True)
    tops = tops[torch.from_numpy(first)]
    return tops[active[tops].argsort(descending=True, stable=True)]


@dataclass(frozen=True, eq=False)
class _Near:
    """Embeddings of tokens around places, without what all have in common."""

    sample: TokenSample
    radius: int
    embed: Embed | None
    pooled: Float[Tensor, "n d"] | None
    mean: np.ndarray
    axes: np.ndarray

    @staticmethod
    def of(
        sample: TokenSample, radius: int, embed: Embed | None, rng: np.random.Generator
    ) -> _Near:
        pooled = None if embed is not None else _pooled(sample, radius)
        bare = _Near(sample, radius, embed, pooled, np.empty(0), np.empty(0))
        n = len(sample.values)
        some = torch.from_numpy(rng.choice(n, min(n, BACKGROUND), replace=False))
        mean, axes = formula.common_axes(bare.raw(some))
        return _Near(sample, radius, embed, pooled, mean, axes)

    def at(self, places: Int[Tensor, "some"]) -> np.ndarray:
        """Embeddings of the contexts of values, by their numbers."""
        return formula.without_common(self.raw(places), self.mean, self.axes)

    def raw(self, places: Int[Tensor, "some"]) -> np.ndarray:
        """The same, with what all have in common."""
        if self.pooled is not None:
            return self.pooled[places].double().numpy()
        assert self.embed is not None
        sample, length = self.sample, self.sample.windows.shape[1]
        width = min(length, 2 * self.radius + 1)
        column = places % sample.length + sample.drop
        begin = (column - self.radius).clamp(0, length - width)
        columns = begin[:, None] + torch.arange(width)
        found = self.embed(
            sample.windows[places // sample.length][:, None].gather(2, columns[:, None])[:, 0]
        )
        return np.asarray(found, dtype=float)


def _pooled(sample: TokenSample, radius: int) -> Float[Tensor, "n d"]:
    """Means of values up to `radius` before and behind each, within its window."""
    by_window = sample.values.view(len(sample.windows), sample.length, -1).mT
    return F.avg_pool1d(by_window, 2 * radius + 1, 1, radius, count_include_pad=False).mT.flatten(
        0, 1
    )
