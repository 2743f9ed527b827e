"""Tokens of features: how far two rankings agree beyond what any two features share.

Feature i has scores of tokens by its weights, w_i, and measured ones, a_i, of which those above
0 count. With m_j = min(k, tokens with a_j > 0):

    o_ij   |top m_j by w_i and top m_j by a_j| / m_j
    gain   o_jj - mean over i != j of o_ij        what only this feature's weights say

Two lists of k tokens can share few of them because a feature has fewer than k tokens, and many
because all features have the same frequent tokens: m_j mends the one, mismatched features the
other. Rank-biased overlap (Webber, Moffat and Zobel 2010) is the share of common tokens at depth
d, averaged with weights p^d and extrapolated beyond m_j: it is 1 for equal lists, and mostly
about their first tokens.

Metrics of dictionaries also share the values that are coded: those of a store with their tokens
(`TokenSample`), and held-out values with their codes (`CodedValues`). Features are taken a block
at a time, so that their scores of all distinct tokens fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.measurement.catalogue import Quantity, quantity
from mechassay.measurement.metric import GaugeInputs
from mechassay.models.decoder import Decoder
from mechassay.saes.activations import ActivationStore, Split
from mechassay.saes.feature_matching import random_sae, unit_rows
from mechassay.saes.quality import check_dictionary
from mechassay.stats.intervals import student_interval

Scores = Float[np.ndarray, "features tokens"]
PERSISTENCE = 0.9
"""The p of rank-biased overlap: the first ten tokens have 86 % of the weight."""


@dataclass(frozen=True, eq=False)
class Described:
    """Features described twice.

    Attributes:
        by_weights: scores of tokens by weights.
        measured: by what happens; 0 or less: not among the feature's tokens.
    """

    by_weights: Scores
    measured: Scores


@dataclass(frozen=True, eq=False)
class TokenAgreement:
    """How far descriptions agree, a number a feature; NaN where a feature has no tokens.

    Attributes:
        matched: overlap of a feature's own descriptions.
        mismatched: mean overlap of its tokens with those by the weights of all other features.
        rbo: rank-biased overlap of its own.
    """

    matched: Float[np.ndarray, "features"]
    mismatched: Float[np.ndarray, "features"]
    rbo: Float[np.ndarray, "features"]

    @property
    def gain(self) -> Float[np.ndarray, "known"]:
        """Matched less mismatched, of features that have both."""
        both = self.matched - self.mismatched
        return both[~np.isnan(both)]


def top_tokens(scores: Scores, k: int) -> Int[np.ndarray, "features k"]:
    """The k tokens with the largest scores, largest first; of ties the first."""
    k = min(k, scores.shape[1])
    some = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def jaccard(
    a: Int[np.ndarray, "features k"], b: Int[np.ndarray, "features l"]
) -> Float[np.ndarray, "features"]:
    """|a and b| / |a or b| of lists without repeats, a row each, filled up with -1.

    Two empty lists have none: NaN.
    """
    common = ((a[:, :, None] == b[:, None, :]) & (a >= 0)[:, :, None]).sum(axis=(1, 2))
    union = (a >= 0).sum(axis=1) + (b >= 0).sum(axis=1) - common
    return np.divide(common, union, out=np.full(len(a), np.nan), where=union > 0)


def token_agreement(of: Described, k: int) -> TokenAgreement:
    """How far two descriptions of the same features agree on their first k tokens."""
    n, n_tokens = of.measured.shape
    lists = top_tokens(of.measured, k)
    depth = np.arange(lists.shape[1])
    sizes = np.minimum(lists.shape[1], (of.measured > 0).sum(axis=1))
    ranks = np.full((n, n_tokens), n_tokens)
    np.put_along_axis(ranks, top_tokens(of.by_weights, k), depth[None], axis=1)
    counted = depth < sizes[:, None]
    # [by whose weights, whose tokens, k]
    hits = ((ranks[:, lists] < sizes[:, None]) & counted).sum(axis=2)
    nothing = np.full((n, n), np.nan)
    overlaps = np.divide(hits, sizes, out=nothing, where=np.broadcast_to(sizes > 0, hits.shape))
    matched = np.diagonal(overlaps).copy()
    others = (overlaps.sum(axis=0) - matched) / (n - 1) if n > 1 else np.full(n, np.nan)
    own = np.take_along_axis(ranks, lists, axis=1)
    return TokenAgreement(matched, others, _rank_biased(own, sizes))


def _rank_biased(
    ranks: Int[np.ndarray, "features k"], sizes: Int[np.ndarray, "features"]
) -> Float[np.ndarray, "features"]:
    """Rank-biased overlap, extrapolated, given the other ranks of a list's tokens in order."""
    depth = np.arange(1, ranks.shape[1] + 1)
    inside = depth <= sizes[:, None]
    # A token is common at depth d if both lists have it among their first d.
    since = np.where(inside, np.maximum(depth, ranks + 1), np.iinfo(ranks.dtype).max)
    common = (since[:, :, None] <= depth).sum(axis=1)
    share = common / depth
    p = PERSISTENCE
    series = (1 - p) / p * np.where(inside, share * p**depth, 0).sum(axis=1)
    last = share[np.arange(len(ranks)), np.maximum(sizes, 1) - 1]
    return np.where(sizes > 0, series + last * p**sizes, np.nan)


def agreement_quantities(
    name: str, agreement: TokenAgreement, control: TokenAgreement | None = None
) -> dict[str, Quantity]:
    """Return the quantities `name`_agreement, _gain, _gain_low, _rbo and _random_gain.

    Args:
        control: agreement of a random dictionary; None: `name`_random_gain is undefined.
    """
    gain = agreement.gain
    ends = student_interval(gain)
    random = np.empty(0) if control is None else control.gain
    return {
        f"{name}_agreement": mean_quantity(agreement.matched),
        f"{name}_gain": quantity(
            mean_of(gain) if len(gain) > 1 else None, interval=ends, n=len(gain)
        ),
        f"{name}_gain_low": quantity(ends.low, n=len(gain)),
        f"{name}_rbo": mean_quantity(agreement.rbo),
        f"{name}_random_gain": quantity(
            mean_of(random) if len(random) > 1 else None,
            interval=student_interval(random),
            n=len(random),
            reason="no_control" if control is None else "",
        ),
    }


def mean_of(values: Float[np.ndarray, "n"]) -> float:
    """The mean of values that are no NaN; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def mean_quantity(values: Float[np.ndarray, "n"]) -> Quantity:
    """The mean of values that are no NaN, with Student's interval."""
    known = values[~np.isnan(values)]
    return quantity(mean_of(known), interval=student_interval(known), n=len(known))


def popular(
    rng: np.random.Generator, shape: tuple[int, int], popularity: float
) -> Callable[[], Scores]:
    """Draws of random scores in which some tokens are high for all features (of simulations)."""
    common = popularity * rng.standard_normal(shape[1])
    return lambda: common + rng.standard_normal(shape)


Values = Float[Tensor, "values d"]
HELD_OUT_ROWS = 8192
"""Held-out values that metrics look at."""


@dataclass(frozen=True, eq=False)
class CodedValues:
    """A dictionary, and its codes of values."""

    sae: SAE
    codes: Float[Tensor, "values n"]

    @property
    def l0(self) -> float:
        """Mean number of active features."""
        return float((self.codes > 0).float().sum(1).mean())

    @property
    def encoder(self) -> Float[Tensor, "n d"]:
        """Columns of W_enc."""
        return self.sae.w_enc.mT.float().cpu()

    @property
    def decoder(self) -> Float[Tensor, "n d"]:
        return self.sae.w_dec.float().cpu()


def given_texts(inputs: GaugeInputs) -> ActivationStore:
    """The texts' activations.

    Raises:
        BadUsage: something else, or activations of another site.
    """
    store = inputs.get("texts")
    if not isinstance(store, ActivationStore):
        raise BadUsage(
            "This metric needs stored activations of texts, see `store_activations`; got"
            f" {type(store).__name__}."
        )
    if inputs.has("site") and inputs.site.place != store.site.place:
        raise BadUsage(f"The activations are of {store.site}; got the site {inputs.site}.")
    return store


def held_out(inputs: GaugeInputs, saes: Iterable[SAE] = (), rows: int = HELD_OUT_ROWS) -> Values:
    """Test values, spread evenly over all test documents where there are more.

    Args:
        saes: that are to read them.

    Raises:
        BadUsage: activations of another site or, where there is a model, of another model; an SAE
            of other values.
    """
    store = given_texts(inputs)
    if inputs.has("model"):
        for sae in saes:
            check_dictionary(inputs.model, sae, store)
    # Shards are too few to be spread: all values are read, and some of them are taken.
    values = store.values("test")
    if len(values) > rows:
        values = values[
            torch.linspace(0, len(values) - 1, rows, dtype=torch.float32).round().long()
        ]
    return values.float()


@torch.no_grad()
def coded(sae: SAE, values: Float[Tensor, "values d"]) -> CodedValues:
    """What a dictionary makes of values.

    Raises:
        BadUsage: values of another width.
    """
    codes = torch.cat([sae.encode(part) for part in values.to(sae.w_enc.device).split(1024)])
    return CodedValues(sae, codes.float().cpu())


STEP = 4096
"""Values that are encoded at once."""
SCORES = 2**27
"""Numbers of a block of features' scores."""
SPLIT_ROWS = 50_000
"""Values of each split that metrics take."""


def given_dictionary(inputs: GaugeInputs) -> tuple[SAE, ActivationStore]:
    """The SAE and the texts' activations.

    Raises:
        BadUsage: another featurizer than an SAE; activations of another model, site or width.
    """
    sae, store = inputs.dictionary, given_texts(inputs)
    check_dictionary(inputs.model, sae, store)
    return sae, store


def residual_dictionary(inputs: GaugeInputs) -> tuple[SAE, ActivationStore]:
    """The same, of a residual stream: what the embedding writes and the unembedding reads.

    Raises:
        BadUsage: a site that is no residual stream.
    """
    sae, store = given_dictionary(inputs)
    if store.site.part != "resid":
        raise BadUsage(
            f"Decoder rows are read by the unembedding in a residual stream; got {store.site}."
        )
    return sae, store


@dataclass(frozen=True, eq=False)
class TokenSample:
    """Values of a split, and where they stand.

    Attributes:
        windows: token ids.
        drop: how many first tokens of a window have no value.
        tokens: the distinct ones that values stand at.
        index: which of these each value stands at.
        document: of each value.
    """

    values: Float[Tensor, "n d"]
    windows: Int[Tensor, "windows length"]
    drop: int
    tokens: Int[Tensor, "distinct"]
    index: Int[Tensor, "n"]
    document: Int[Tensor, "n"]

    @staticmethod
    def of(store: ActivationStore, split: Split, limit: int | None) -> TokenSample:
        """About `limit` values of a split, of shards spread evenly over it."""
        drop, kept = store.settings.drop, store.kept(split, limit)
        ids = kept.tokens[:, drop:].flatten()
        tokens, index = ids.unique(return_inverse=True)
        values = store.values(split, limit).float()
        return TokenSample(values, kept.tokens, drop, tokens, index, store.rows(split, limit))

    @property
    def length(self) -> int:
        """Values of a window."""
        return self.windows.shape[1] - self.drop

    @property
    def counts(self) -> Int[Tensor, "distinct"]:
        """How many values stand at each distinct token."""
        return self.index.bincount(minlength=len(self.tokens))

    def next_tokens(self) -> Int[Tensor, "n"]:
        """The token that follows each value's; -1 at a window's end."""
        after = self.windows[:, self.drop + 1 :]
        return torch.cat([after, torch.full_like(after[:, :1], -1)], dim=1).flatten()


def active_parts(
    sae: SAE, values: Float[Tensor, "n d"]
) -> Iterator[tuple[int, Float[Tensor, "part k"]]]:
    """Features of values, a part at a time, with the number of its first value."""
    for begin in range(0, len(values), STEP):
        yield begin, sae.encode(values[begin : begin + STEP])


@torch.no_grad()
def feature_counts(sae: SAE, values: Float[Tensor, "n d"]) -> Int[Tensor, "k"]:
    """How many values activate each feature."""
    counts = torch.zeros(sae.n_features, dtype=torch.long)
    for _, f in active_parts(sae, values):
        counts += (f != 0).sum(dim=0)
    return counts


@torch.no_grad()
def feature_values(
    sae: SAE, values: Float[Tensor, "n d"], features: Int[Tensor, "some"]
) -> Float[Tensor, "n some"]:
    """Activations of some features."""
    return torch.cat([f[:, features] for _, f in active_parts(sae, values)])


@torch.no_grad()
def token_activations(
    sae: SAE,
    sample: TokenSample,
    features: Int[Tensor, "some"],
    how: Literal["largest", "mean"],
) -> Float[Tensor, "some distinct"]:
    """Each feature's largest or mean activation at each distinct token."""
    n_tokens = len(sample.tokens)
    sums = torch.zeros(len(features) * n_tokens, dtype=torch.float32)
    reduce = "amax" if how == "largest" else "sum"
    for begin, f in active_parts(sae, sample.values):
        some = f[:, features]
        rows, columns = some.nonzero(as_tuple=True)
        where = columns * n_tokens + sample.index[begin + rows]
        sums.scatter_reduce_(0, where, some[rows, columns].float(), reduce)
    sums = sums.view(len(features), n_tokens)
    return sums if how == "largest" else sums / sample.counts


def feature_blocks(n_features: int, n_tokens: int) -> Iterator[Int[Tensor, "block"]]:
    """All features, as many at a time as have room for a score of each token."""
    yield from torch.arange(n_features).split(max(1, SCORES // max(1, n_tokens)))


def promoted_scores(
    decoder: Decoder, rows: Float[Tensor, "some d_model"], *, folded: bool
) -> Float[Tensor, "some vocab"]:
    """W_dec W_U: how far rows of a residual stream raise each token's logit.

    Args:
        folded: with the final norm's weights, and centred where it centres; its scale is left out.
    """
    rows, norm = rows.detach().float(), decoder.final_norm
    if folded:
        rows = rows - rows.mean(dim=1, keepdim=True) if norm.centred else rows
        rows = rows * norm.weight.float()
    return rows @ decoder.unembedding.detach().float().mT


def padded_top(scores: Float[Tensor, "some n"], k: int) -> Int[Tensor, "some k"]:
    """The numbers of the k largest scores above 0, filled up with -1."""
    top = scores.topk(min(k, scores.shape[1]), dim=1)
    ids = torch.where(top.values > 0, top.indices, -1)
    rest = torch.full((len(ids), k - ids.shape[1]), -1, dtype=ids.dtype)
    return torch.cat([ids, rest], dim=1)


def words_of(tokenizer: Any, ids: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Numbers of the words that tokens are variants of: equal but for case and spaces around.

    Without a tokenizer every token is a word. A token of spaces alone is its own.
    """
    if tokenizer is None:
        return torch.arange(len(ids))
    texts = tokenizer.batch_decode([[i] for i in ids.tolist()])
    names = [text.strip().casefold() or f"token {i}" for text, i in zip(texts, ids, strict=True)]
    return torch.from_numpy(np.unique(names, return_inverse=True)[1].astype(np.int64))


def by_word(
    scores: Float[Tensor, "some n"], words: Int[Tensor, "n"]
) -> Float[np.ndarray, "some words"]:
    """The largest score of each word's variants."""
    count = int(words.max()) + 1
    top = torch.full((len(scores), count), -torch.inf, dtype=torch.float32)
    top.scatter_reduce_(1, words.expand(len(scores), -1), scores.float().cpu(), "amax")
    return top.numpy()


def drawn_features(
    alive: Bool[Tensor, "k"], n: int, rng: np.random.Generator
) -> Int[Tensor, "some"]:
    """At most n of the features that are alive, in their order."""
    those = alive.nonzero().flatten().numpy()
    some = rng.choice(those, min(n, len(those)), replace=False) if len(those) else those
    return torch.from_numpy(np.sort(some))


def random_control(sae: SAE, values: Float[Tensor, "n d"], seed: int) -> SAE:
    """A random dictionary with as many features, and as many active ones of a value."""
    mean_k = int(feature_counts(sae, values).sum()) / max(1, len(values))
    k = min(sae.n_features, max(1, round(mean_k)))
    return random_sae(sae.d_in, sae.n_features, k, values.mean(dim=0), seed=seed)


def unit_directions(sae: SAE, features: Int[Tensor, "some"]) -> Float[Tensor, "some d"]:
    """Decoder rows of some features, of length 1."""
    return unit_rows(sae.w_dec[features])
