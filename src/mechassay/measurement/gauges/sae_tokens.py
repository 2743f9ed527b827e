"""What metrics of dictionaries share: values of a store with their tokens, and what features do
at tokens.

Features are taken a block at a time, so that their scores of all distinct tokens fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.measurement.gauges.dictionaries import given_texts
from mechassay.measurement.inputs import Inputs
from mechassay.models.decoder import Decoder
from mechassay.saes.activations import ActivationStore, Split
from mechassay.saes.agreement import unit_rows
from mechassay.saes.controls import random_sae
from mechassay.saes.quality import check_dictionary

STEP = 4096
"""Values that are encoded at once."""
SCORES = 2**27
"""Numbers of a block of features' scores."""
ROWS = 50_000
"""Values of each split that metrics take."""


def given_dictionary(inputs: Inputs) -> tuple[SAE, ActivationStore]:
    """The SAE and the texts' activations.

    Raises:
        BadUsage: another featurizer than an SAE; activations of another model, site or width.
    """
    sae, store = inputs.dictionary, given_texts(inputs)
    check_dictionary(inputs.model, sae, store)
    return sae, store


def residual_dictionary(inputs: Inputs) -> tuple[SAE, ActivationStore]:
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
    found = torch.zeros(len(features) * n_tokens)
    reduce = "amax" if how == "largest" else "sum"
    for begin, f in active_parts(sae, sample.values):
        some = f[:, features]
        rows, columns = some.nonzero(as_tuple=True)
        where = columns * n_tokens + sample.index[begin + rows]
        found.scatter_reduce_(0, where, some[rows, columns].float(), reduce)
    found = found.view(len(features), n_tokens)
    return found if how == "largest" else found / sample.counts


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
    found = torch.where(top.values > 0, top.indices, -1)
    rest = torch.full((len(found), k - found.shape[1]), -1, dtype=found.dtype)
    return torch.cat([found, rest], dim=1)


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
    found = torch.full((len(scores), count), -torch.inf)
    found.scatter_reduce_(1, words.expand(len(scores), -1), scores.float().cpu(), "amax")
    return found.numpy()


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
