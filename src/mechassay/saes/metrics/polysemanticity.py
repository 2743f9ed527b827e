"""M10, PRISM: on how many kinds of contexts is a feature active?

A context has an embedding: the mean of a site's values over its tokens. A feature has those of
the contexts of test documents on which it is most active.

`page`      contexts are whole windows. Agglomerative clustering by cosine distance (average
            linkage; the page names none) with a threshold; polysemantic if there is more than
            one cluster. Values of a model share a large common part, so that unrelated contexts
            have cosines above .9 and one cluster; and a single odd context makes two.
`repaired`  contexts are tokens around the largest activation, one context a document: those of
            one document are alike for other reasons. Embeddings less their mean over the text
            and its first main axes (Mu and Viswanath 2018), of length 1. On the first main axis
            of a feature's contexts, the best cut in two parts with a tenth of the contexts or
            more (Boley 1998) has the share b of the variance between its parts. Contexts of one
            kind are simulated as normal with the same spectrum (Liu et al. 2008); polysemantic
            if at most 5 % of these have as large a b. Contexts of two features together are a
            control: the share that is found is the power here.

PRISM itself (Kopf et al. 2025) embeds texts by another model and has its clusters labelled by a
language model. Another embedding than the model's own may be given: `more={"embedding": lambda:
embed}`, a function of token ids [contexts, tokens] to arrays [contexts, numbers].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
    flag,
    page_metric,
    quantity,
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
from mechassay.results.records import Table
from mechassay.saes.metrics.feature_tokens import (
    SPLIT_ROWS,
    TokenSample,
    drawn_features,
    feature_counts,
    feature_values,
    given_dictionary,
)
from mechassay.stats.intervals import clopper_pearson
from mechassay.utils.settings import Within, checked_settings

ID = "M10"
DISTANCE = 0.5
LEAST = 8
"""Contexts from which it is decided whether they are of one kind."""
PART = 0.1
"""The smallest share of the contexts that is a kind."""
LEVEL = 0.05
N_SURROGATES = 99
BLIND = 0.5
"""A power below which a low rate says nothing."""
Embeddings = Float[np.ndarray, "contexts d"]


@dataclass(frozen=True, eq=False)
class FeatureContexts:
    """Embeddings of the contexts on which a feature is most active.

    Attributes:
        whole: of the page: means over the whole prompt.
        near: of the repaired variant: of tokens near the activation, from other documents each,
            without what all contexts share.
    """

    name: str
    whole: Embeddings
    near: Float[np.ndarray, "_ e"]


def page_clusters(whole: Embeddings, threshold: float = DISTANCE) -> int:
    """Clusters of contexts by cosine distance; a context of zeros has no direction, and none."""
    there = whole[np.linalg.norm(whole, axis=1) > 0]
    if len(there) < 2:
        return len(there)
    settings: Any = {"n_clusters": None, "distance_threshold": threshold}
    clustering: Any = AgglomerativeClustering(metric="cosine", linkage="average", **settings)
    return int(clustering.fit(there).n_clusters_)


def common_axes(
    background: Embeddings, n_axes: int | None = None
) -> tuple[Float[np.ndarray, "d"], Float[np.ndarray, "d axes"]]:
    """The mean of embeddings of any contexts, and their first main axes: one in a hundred numbers
    of an embedding, one at least (Mu and Viswanath 2018).
    """
    mean = background.mean(axis=0)
    centred = background - mean
    wanted = max(1, background.shape[1] // 100) if n_axes is None else n_axes
    _, axes = np.linalg.eigh(centred.T @ centred)
    return mean, axes[:, ::-1][:, :wanted]


def without_common(
    x: Embeddings, mean: Float[np.ndarray, "d"], axes: Float[np.ndarray, "d axes"]
) -> Embeddings:
    """Embeddings without what all have in common, of length 1."""
    rest = x - mean
    rest = rest - rest @ axes @ axes.T
    return rest / np.linalg.norm(rest, axis=1, keepdims=True).clip(1e-12)


def best_cut(scores: Float[np.ndarray, "*lead n"], part: float = PART) -> Float[np.ndarray, "*"]:
    """The largest share of the variance of numbers that is between two parts of them.

    Both parts have `part` of the numbers or more, and two at least. NaN where they do not vary.
    """
    n = scores.shape[-1]
    least = max(2, math.ceil(part * n))  # One number is no part.
    x = np.sort(scores - scores.mean(axis=-1, keepdims=True), axis=-1)
    sizes = np.arange(1, n)
    # With a mean of 0, parts of m and n - m numbers have sums s and -s.
    between = np.cumsum(x, axis=-1)[..., :-1] ** 2 * (1 / sizes + 1 / (n - sizes))
    allowed = (sizes >= least) & (n - sizes >= least)
    total = (x**2).sum(axis=-1)
    best = np.where(allowed, between, 0).max(axis=-1)
    return np.divide(best, total, out=np.full(total.shape, np.nan), where=total > 1e-20)


def first_scores(x: Float[np.ndarray, "*lead n d"]) -> Float[np.ndarray, "*lead n"]:
    """Where rows lie on the first main axis of their own."""
    centred = x - x.mean(axis=-2, keepdims=True)
    values, vectors = np.linalg.eigh(centred @ np.swapaxes(centred, -1, -2))
    return vectors[..., -1] * np.sqrt(values[..., -1:].clip(0))


def one_kind(
    near: Embeddings, rng: np.random.Generator, n_surrogates: int = N_SURROGATES
) -> tuple[float, float]:
    """The best cut of contexts, and its probability if they are of one kind; NaN where they are
    fewer than `LEAST`, or all the same.

    Surrogates are normal with the spectrum of the contexts; p = (1 + those with as large a cut) /
    (1 + surrogates).
    """
    n = len(near)
    if n < LEAST:
        return math.nan, math.nan
    cut = float(best_cut(first_scores(near)))
    if math.isnan(cut):
        return math.nan, math.nan
    spectrum = np.linalg.svd(near - near.mean(axis=0), compute_uv=False) / math.sqrt(n - 1)
    drawn = rng.standard_normal((n_surrogates, n, len(spectrum))) * spectrum
    beyond = best_cut(first_scores(drawn)) >= cut
    return cut, (1 + int(beyond.sum())) / (1 + n_surrogates)


def polysemanticity(
    features: Sequence[FeatureContexts],
    *,
    n_dead: int = 0,
    n_features: int | None = None,
    threshold: float = DISTANCE,
    seed: int = 0,
    flags: Iterable[Flag] = (),
) -> Measurement:
    """M10 of sampled features that are alive.

    Args:
        n_dead: features of the dictionary that are not.
        n_features: all of the dictionary; if not given, all that are alive are among `features`.
    """
    n_all = len(features) + n_dead if n_features is None else n_features
    rng = np.random.default_rng(seed)
    clusters = [page_clusters(feature.whole, threshold) for feature in features]
    decided = [one_kind(feature.near, rng) for feature in features]
    p = np.array([decision[1] for decision in decided])
    known = p[~np.isnan(p)]
    pairs = _pairs_found(features, rng)
    notes = [*flags, *_flags(features, known, pairs, n_dead, n_all)]
    n = len(features)
    page = {
        "polysemanticity_rate": quantity(
            float(np.mean([x > 1 for x in clusters])) if n else None, n=n
        ),
        "n_dead": quantity(float(n_dead), n=n_all),
        "dead_share": quantity(n_dead / n_all if n_all else None, n=n_all),
    }
    repaired = {
        "polysemanticity_rate": _rate(known <= LEVEL),
        "power": _rate(pairs <= LEVEL),
        "n_undecided": quantity(float(n - len(known)), n=n),
    }
    rows = (
        {
            "feature": feature.name,
            "page_clusters": count,
            "contexts": len(feature.near),
            "cut": cut,
            "p": value,
        }
        for feature, count, (cut, value) in zip(features, clusters, decided, strict=True)
    )
    sizes = [len(feature.near) for feature in features]
    return Measurement.of(
        ID,
        page,
        repaired,
        flags=notes,
        null=null(int(np.median(sizes)) if sizes and np.median(sizes) >= LEAST else 20),
        tables=[Table.of("features", ("feature",), rows)],
        words={"least": LEAST, "level": LEVEL},
    )


def _pairs_found(
    features: Sequence[FeatureContexts], rng: np.random.Generator
) -> Float[np.ndarray, "pairs"]:
    """Of each feature and the next, half of the contexts each: the probability of one kind."""
    enough = [feature.near for feature in features if len(feature.near) >= LEAST]
    if len(enough) < 2:
        return np.empty(0)
    rates = [
        one_kind(np.concatenate((a[: (len(a) + 1) // 2], b[: (len(b) + 1) // 2])), rng)[1]
        for a, b in zip(enough, [*enough[1:], enough[0]], strict=True)
    ]
    return np.array([x for x in rates if not math.isnan(x)])


def _rate(values: np.ndarray) -> Quantity:
    n = len(values)
    return quantity(
        float(values.mean()) if n else None,
        interval=clopper_pearson(float(values.sum()), float(n)) if n else None,
        n=n,
    )


def _flags(
    features: Sequence[FeatureContexts],
    known: np.ndarray,
    pairs: np.ndarray,
    n_dead: int,
    n_all: int,
) -> Iterable[Flag]:
    if n_dead:
        yield flag("dead_features", dead=n_dead, n=n_all, share=n_dead / n_all)
    if len(known) < len(features):
        n = len(features)
        yield flag("undecided", undecided=n - len(known), n=n, least=LEAST)
    several = [feature.whole for feature in features if len(feature.whole) > 1]
    if several and (cosine := float(np.mean([_cosine(x) for x in several]))) > 1 - DISTANCE:
        yield flag("all_alike", cosine=cosine)
    if len(pairs) and (power := float((pairs <= LEVEL).mean())) < BLIND:
        yield flag("blind", power=power)


def _cosine(x: Embeddings) -> float:
    """The mean cosine of two different rows."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12)
    n = len(x)
    return float((np.square(unit.sum(axis=0)).sum() - n) / (n * (n - 1)))


# How often a feature is called polysemantic


@cache
def null(n: int = 20, n_simulations: int = N_SIMULATIONS // 8, seed: int = 0) -> NullTable:
    """How often features of one and of two kinds of contexts count as polysemantic.

    The metric has no pass condition: the errors are those of the decision for one feature with `n`
    contexts, embedded by 16 numbers that all share a large part.
    """
    limits: Any = {name: (Condition("n_clusters", ">", 1.0),) for name in ("page", "repaired")}
    width = 16

    def draw(
        rng: np.random.Generator, size: int, kinds: int, *, common: float = 0.0, odd: bool = False
    ) -> Drawn:
        page, repaired = np.empty(size), np.empty(size)
        for row in range(size):
            topics = rng.standard_normal((8, width))
            topics *= 1 / np.linalg.norm(topics, axis=1, keepdims=True)
            shared = np.zeros(width)
            shared[0] = common

            def some(which: np.ndarray, topics: Any = topics, shared: Any = shared) -> Embeddings:
                noise = 0.4 / math.sqrt(width) * rng.standard_normal((len(which), width))
                return shared + topics[which] + noise

            which = np.where(np.arange(n) % 2 < kinds - 1, 1, 0)
            if odd:
                which[0] = 2
            x = some(which)
            axes = common_axes(some(rng.integers(8, size=100)), 1)
            page[row] = page_clusters(x)
            p = one_kind(without_common(x, *axes), rng, 39)[1]
            repaired[row] = np.nan if math.isnan(p) else 1 + (p <= LEVEL)
        return {"page": {"n_clusters": page}, "repaired": {"n_clusters": repaired}}

    scenarios = (
        Scenario("contexts of one kind", True, lambda rng, size: draw(rng, size, 1)),
        Scenario(
            "contexts of one kind, and one odd one",
            True,
            lambda rng, size: draw(rng, size, 1, odd=True),
        ),
        Scenario("contexts of two kinds", False, lambda rng, size: draw(rng, size, 2)),
        Scenario(
            "contexts of two kinds that share a large part",
            False,
            lambda rng, size: draw(rng, size, 2, common=5.0),
        ),
    )
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


Embed = Callable[[Int[Tensor, "contexts tokens"]], "np.ndarray | Tensor"]
BACKGROUND = 5000
"""Contexts that say what all have in common."""
AT_ONCE = 32
"""Features that are encoded for all values at once."""


@dataclass(frozen=True)
@checked_settings
class Polysemanticity(Gauge):
    """On how many kinds of contexts is a feature active?

    Attributes:
        n_features: of those alive, drawn at random.
        cluster_threshold: of the page, a cosine distance.
        n_contexts: of a feature, at most; the page's script takes 20.
        radius: tokens before and behind the activation that are part of a context.
        rows: about how many values are taken.
    """

    n_features: Annotated[int, Within(1)] = 100
    cluster_threshold: Annotated[float, Within(above=0, below=2)] = DISTANCE
    n_contexts: Annotated[int, Within(1)] = 20
    radius: Annotated[int, Within(0)] = 8
    rows: Annotated[int, Within(1)] = SPLIT_ROWS

    about: ClassVar[PageMetric] = page_metric(ID)

    def measure(self, inputs: GaugeInputs) -> Measurement:
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
                windows = _strongest(own, torch.arange(len(own)) // sample.length)
                prompts = windows[: self.n_contexts] // sample.length
                places = _strongest(own, sample.document)[: self.n_contexts]
                means = whole[prompts].double().numpy()
                features.append(FeatureContexts(str(number), means, near.at(places)))
        return polysemanticity(
            features,
            n_dead=int((~alive).sum()),
            n_features=sae.n_features,
            threshold=self.cluster_threshold,
            seed=inputs.seed,
            flags=_few_documents(sample.document.unique().numel()),
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS // 8, seed: int = 0
    ) -> NullTable:
        """Return the rates for a feature with `n` contexts; None: with `n_contexts`."""
        return super().null(self.n_contexts if n is None else n, n_simulations, seed)

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for a feature with `n` contexts."""
        return null(n, n_simulations, seed)


def _few_documents(n_documents: int) -> Iterator[Flag]:
    if n_documents < LEAST:
        yield flag("few_documents", n=n_documents, least=LEAST)


def _strongest(active: Float[Tensor, "n"], group: Int[Tensor, "n"]) -> Int[Tensor, "groups"]:
    """Where each group's largest activation is, of groups that have one; largest first."""
    best = torch.zeros(int(group.max()) + 1, dtype=torch.float32).scatter_reduce_(
        0, group, active.float(), "amax"
    )
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
        pooled = None
        if embed is None:
            # Means of values up to `radius` before and behind each, within its window.
            by_window = sample.values.view(len(sample.windows), sample.length, -1).mT
            means = F.avg_pool1d(by_window, 2 * radius + 1, 1, radius, count_include_pad=False)
            pooled = means.mT.flatten(0, 1)
        bare = _Near(sample, radius, embed, pooled, np.empty(0), np.empty(0))
        n = len(sample.values)
        some = torch.from_numpy(rng.choice(n, min(n, BACKGROUND), replace=False))
        mean, axes = common_axes(bare.raw(some))
        return _Near(sample, radius, embed, pooled, mean, axes)

    def at(self, places: Int[Tensor, "some"]) -> np.ndarray:
        """Embeddings of the contexts of values, by their numbers."""
        return without_common(self.raw(places), self.mean, self.axes)

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
        embedded = self.embed(
            sample.windows[places // sample.length][:, None].gather(2, columns[:, None])[:, 0]
        )
        return np.asarray(embedded, dtype=float)
