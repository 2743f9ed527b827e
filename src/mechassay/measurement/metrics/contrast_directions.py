"""Directions of a contrast at all layers: how many dimensions they span, and are they there?

A contrast has pairs of prompts of one form that differ in one attribute. Of pair i at layer l,
d_il is what its texts differ in, and v_l = mean over i of d_il. With s the singular values of
the v_l as rows and p = s^2 / sum s^2,

    SVE = -sum p ln p,

which is 0 if all layers have one direction, and ln min(L, d) if no two share any. Pairs have
topics: what is found on some is tested on others. All of it is linear in the signs of topics, by
which labels are shuffled.

A file of contrasts is data: for each its two classes, and its pairs of texts by topic. M14
compares the one called "safety" with the one called "control".

    safety:
      first: harmful
      second: harmless
      pairs:
        theft:
          - ["How do I sell a stolen phone?", "How do I sell a used phone?"]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jaxtyping import Bool, Float, Int

from mechassay.errors import BadFile, first_line
from mechassay.stats.intervals import BootstrapEstimate, example_weights
from mechassay.utils.display import OneLine

RANK_SHARE = 0.9
BLOCK = 2**22
"""Numbers of resampled directions held at once."""
EXACT = 12
"""Topics up to which all ways to shuffle their labels are gone through."""
Values = Float[np.ndarray, "pairs layers d"]
Rows = Float[np.ndarray, "*lead layers d"]


def shares(rows: Rows) -> Float[np.ndarray, "*lead layers"]:
    """The share of each singular value's square, descending; NaN where all rows are 0."""
    squares = np.linalg.eigvalsh(rows @ np.swapaxes(rows, -1, -2))[..., ::-1].clip(min=0)
    total = squares.sum(axis=-1, keepdims=True)
    return np.divide(squares, total, out=np.full(squares.shape, np.nan), where=total > 0)


def entropy(rows: Rows) -> Float[np.ndarray, "*lead"]:
    """SVE of rows, in nats; NaN where all of them are 0."""
    p = shares(rows)
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1))


def effective_rank(rows: Float[np.ndarray, "layers d"]) -> int | None:
    """How many singular values hold 90 % of the squares; None where all rows are 0."""
    p = shares(rows)
    # Ten equal values hold 90 % in nine, whatever rounding says.
    return None if np.isnan(p).any() else int((p.cumsum() < RANK_SHARE - 1e-9).sum()) + 1


def unit_rows(rows: Rows) -> Rows:
    """Rows of length 1; those of length 0 stay."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def normalised_entropy(rows: Rows) -> Float[np.ndarray, "*lead"]:
    """SVE of unit rows over ln min(L, d), L the rows that are not 0; NaN where that is 0."""
    lengths = np.linalg.norm(rows, axis=-1)
    most = np.log(np.minimum((lengths > 0).sum(axis=-1), rows.shape[-1]).clip(min=1))
    entropies = entropy(unit_rows(rows))
    return np.divide(entropies, most, out=np.full(most.shape, np.nan), where=most > 0)


def explained(
    space: Float[np.ndarray, "layers d"], rows: Float[np.ndarray, "rows d"], rank: int
) -> float:
    """The mean share of unit rows in the space of the `rank` largest singular values; NaN if all
    rows are 0.
    """
    axes = np.linalg.svd(unit_rows(space), full_matrices=False)[2][:rank]
    wanted = unit_rows(rows)
    known = wanted.any(axis=-1)
    return float(((wanted[known] @ axes.T) ** 2).sum(axis=-1).mean()) if known.any() else math.nan


# A contrast: what pairs differ in


@dataclass(frozen=True, eq=False)
class LayerContrast:
    """What the first text of each pair has more than the second at each layer.

    Attributes:
        groups: the topic of each pair.
    """

    differences: Values
    groups: tuple[str, ...]

    @cached_property
    def topic_of(self) -> Int[np.ndarray, "pairs"]:
        """The number of each pair's topic."""
        return np.unique(np.asarray(self.groups), return_inverse=True)[1]

    def shuffles(self, k: int, rng: np.random.Generator) -> Float[np.ndarray, "k pairs"]:
        """Which topics have their labels exchanged: 1 or -1 with equal odds, one for all pairs of a
        topic.
        """
        return rng.choice((-1.0, 1.0), size=(k, int(self.topic_of.max()) + 1))[:, self.topic_of]

    @property
    def directions(self) -> Float[np.ndarray, "layers d"]:
        """The differences of class means."""
        return self.differences.mean(axis=0)

    def weighted(self, weights: Float[np.ndarray, "k pairs"]) -> Iterator[Rows]:
        """Weighted sums of the pairs' differences, some at a time."""
        flat = self.differences.reshape(len(self.differences), -1)
        step = max(1, BLOCK // flat.shape[1])
        for begin in range(0, len(weights), step):
            some = weights[begin : begin + step] @ flat
            yield some.reshape(len(some), *self.differences.shape[1:])

    def entropies(self, weights: Float[np.ndarray, "k pairs"]) -> Float[np.ndarray, "k"]:
        """Normalised SVE of weighted sums."""
        return np.concatenate([normalised_entropy(rows) for rows in self.weighted(weights)])

    @cached_property
    def _cosines(self) -> Float[np.ndarray, "pairs pairs"]:
        """The cosine of what two pairs of different topics differ in, its mean over layers, over
        the number of such pairs; NaN if there are none, or no differences.
        """
        units = unit_rows(self.differences)
        flat = units.reshape(len(units), -1)
        names = np.asarray(self.groups)
        apart = names[:, None] != names
        if not apart.any() or not units.any():
            return np.full(apart.shape, np.nan)
        return (flat @ flat.T) / units.shape[1] * apart / apart.sum()

    def agreement(self, signs: Float[np.ndarray, "k pairs"]) -> Float[np.ndarray, "k"]:
        """The mean cosine of pairs of two topics, where pairs have these signs."""
        return ((signs @ self._cosines) * signs).sum(axis=1)

    def held_out_accuracy(self) -> Float[np.ndarray, "pairs layers"]:
        """Whether a pair's texts are in the right order along the direction of other topics: 1, 0,
        or 1/2 where there is no difference.
        """
        member = self.topic_of
        sums = np.zeros((member.max() + 1, *self.differences.shape[1:]))
        np.add.at(sums, member, self.differences)
        others = self.differences.sum(axis=0) - sums
        along = (self.differences * others[member]).sum(axis=-1)
        return (np.sign(along) + 1) / 2

    def halves(
        self, n: int, rng: np.random.Generator
    ) -> Iterator[tuple[Bool[np.ndarray, "pairs"], Bool[np.ndarray, "pairs"]]]:
        """Pairs of two random halves of the topics; none if there is one topic."""
        n_topics = int(self.topic_of.max()) + 1
        for _ in range(n if n_topics > 1 else 0):
            order = rng.permutation(n_topics)
            first = np.isin(self.topic_of, order[: n_topics // 2])
            yield first, ~first


def shuffle_test(
    contrast: LayerContrast, n_shuffles: int, rng: np.random.Generator
) -> tuple[float, float]:
    """The agreement of pairs, and how often shuffled labels have as much.

    Labels are exchanged in all pairs of a topic at once: pairs of a topic may differ in what other
    topics do not, so that single pairs are not exchangeable. That is exact where the two classes of
    a topic are. Up to `EXACT` topics all ways to exchange them are gone through, half of which
    suffice: agreement is the same if all are exchanged. Of ten topics the smallest p is 1 / 512.
    Otherwise they are drawn, and the labels as they are count as one shuffle.
    """
    own = float(contrast.agreement(np.ones((1, len(contrast.differences))))[0])
    if math.isnan(own):
        return own, math.nan
    n_topics = len(set(contrast.groups))
    if n_topics <= EXACT:
        signs = np.array(list(product((1.0, -1.0), repeat=n_topics - 1)))
        signs = np.concatenate((np.ones((len(signs), 1)), signs), axis=1)
        agreements = contrast.agreement(signs[:, contrast.topic_of])
        return own, float((agreements >= own - 1e-12).mean())
    agreements = contrast.agreement(contrast.shuffles(n_shuffles, rng))
    return own, (1 + int((agreements >= own - 1e-12).sum())) / (1 + n_shuffles)


def stability(contrast: LayerContrast, n_halves: int, rng: np.random.Generator) -> float:
    """The mean cosine of the directions of two halves of the topics, over layers and halvings."""
    accuracies: list[float] = []
    for halves in contrast.halves(n_halves, rng):
        first, second = (unit_rows(contrast.differences[half].mean(axis=0)) for half in halves)
        known = first.any(axis=-1) & second.any(axis=-1)
        if known.any():
            accuracies.append(float((first * second).sum(axis=-1)[known].mean()))
    return float(np.mean(accuracies)) if accuracies else math.nan


def above_control(
    contrast: LayerContrast,
    control: LayerContrast,
    n_resamples: int,
    rng: np.random.Generator,
) -> BootstrapEstimate:
    """Normalised SVE of a contrast less that of another one; topics of both are resampled."""
    gap, errors, n_groups = 0.0, np.zeros(n_resamples), []
    for sign, one_contrast in ((1, contrast), (-1, control)):
        value = float(normalised_entropy(one_contrast.directions))
        weights, n = example_weights(one_contrast.groups, rng, n_resamples)
        gap += sign * value
        errors = errors + sign * (one_contrast.entropies(weights) - value)
        n_groups.append(n)
    return BootstrapEstimate(gap, errors, min(n_groups))


SAFETY, CONTROL = "safety", "control"
LONGER = 1
"""By how many words the texts of a pair may differ in length."""


@dataclass(frozen=True, repr=False)
class PromptContrast(OneLine):
    """Pairs of texts whose first is of one class and whose second of another.

    Attributes:
        classes: what the first and the second texts are.
        topics: of each pair.
    """

    name: str
    classes: tuple[str, str]
    first: tuple[str, ...]
    second: tuple[str, ...]
    topics: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.first)

    def repr_fields(self) -> dict[str, Any]:
        what = " against ".join(self.classes)
        return {"name": self.name, "pairs": len(self), "of": what, "topics": len(set(self.topics))}


def load_contrasts(path: str | Path | None = None) -> Mapping[str, PromptContrast]:
    """The contrasts of a YAML file, by name; those of the package by default.

    Raises:
        BadFile: no such file; a contrast that lacks a class or its pairs; a text that is there
            twice; a pair whose texts differ by more than a word in length.
    """
    if path is None:
        return _packaged()
    file = Path(path)
    try:
        return _parse(str(file), file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{file}: {first_line(error)}.") from None


@cache
def _packaged() -> Mapping[str, PromptContrast]:
    text = files("mechassay.measurement").joinpath("data", "contrasts.yaml").read_text("utf-8")
    return _parse("contrasts.yaml", text)


def _parse(who: str, text: str) -> Mapping[str, PromptContrast]:
    try:
        plain = yaml.safe_load(text)
        return {str(name): _contrast(who, str(name), row) for name, row in plain.items()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadFile(
            f"{who}: a contrast has `first`, `second`, and `pairs` of two texts by topic"
            f" ({type(error).__name__}: {first_line(error)})."
        ) from None


def _contrast(who: str, name: str, row: Mapping[str, Any]) -> PromptContrast:
    pairs = [
        (str(topic), str(first).strip(), str(second).strip())
        for topic, some in row["pairs"].items()
        for first, second in some
    ]
    counts = Counter(text for _, *both in pairs for text in both)
    twice = [text for text, n in counts.items() if n > 1]
    if twice:
        raise BadFile(f"{who}: {name} has the text {twice[0]!r} twice.")
    for _, first, second in pairs:
        if abs(len(first.split()) - len(second.split())) > LONGER:
            raise BadFile(
                f"{who}: the texts of a pair of {name} differ by more than {LONGER} word in length:"
                f" {first!r} and {second!r}."
            )
    topics, firsts, seconds = zip(*pairs, strict=True)
    return PromptContrast(name, (str(row["first"]), str(row["second"])), firsts, seconds, topics)
