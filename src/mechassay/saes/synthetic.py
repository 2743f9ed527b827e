"""Planted dictionaries: values made of known features, and dictionaries of known worth.

    h = sum_j f_j d_j + noise        d_j unit rows, f_j >= 0 and mostly 0

A feature is active with its frequency, and then uniform in [1, 2]. There may be more features than
numbers of a value (superposition), and two kinds of structure:

    split       a feature comes in `children` kinds, one of which is active where it is; each has a
                direction of its own, at the cosine `child_cosine` to the feature's
    parent      a feature has `children` that are active only where it is, beside it (hierarchy)

A narrow dictionary (`coarse`) has one row for a split feature and none for children; a wide one has
a row for each kind and each child. Dictionaries of known worth:

    true        the rows, and an encoder that finds their codes; in another order with `seed`
    noisy       rows at a cosine to the true ones, which an encoder of its own reads
    merged      polysemantic: pairs of features on one row each
    split       every feature on two rows, which are active together
    permuted    the true encoder, its decoder rows in another order (`saes.feature_matching`)
    random      random rows, with as many active features (`saes.feature_matching`)

The encoder is the pseudo-inverse of the rows, which is exact for up to d of them, with a threshold
of half the smallest code; beyond d rows it is their transpose, and errs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage, one_of
from mechassay.features.sae import SAE
from mechassay.interventions.site import Site
from mechassay.models.identity import ModelIdentity
from mechassay.saes.activations import SHARD, ActivationStore, StoreSettings
from mechassay.saes.feature_matching import matched_rows, permuted_sae, random_sae, unit_rows
from mechassay.saes.training import TrainedSAE
from mechassay.utils.arguments import checked
from mechassay.utils.checkpoint import key_of
from mechassay.utils.display import OneLine

Worth = Literal["true", "noisy", "merged", "split", "permuted", "random"]
WORTHS: tuple[Worth, ...] = get_args(Worth)
SMALLEST, LARGEST = 1.0, 2.0
"""Codes of active features."""
SITE = Site(0, "all")


@dataclass(frozen=True)
class PlantedSettings:
    """What is planted.

    Attributes:
        d: numbers of a value.
        n_features: features before splitting, and without children.
        active: how many of them are active in a value, on average; all are equally frequent.
        frequencies: of each of them, instead.
        orthogonal: whether their directions are; else they are drawn at random.
        splits: how many of them are split, the first ones.
        parents: how many have children, those after them.
        children: kinds of a split feature, and children of a parent.
        child_cosine: of the direction of a kind with that of its feature.
        child_share: how often a parent has each of its children beside it.
        noise: standard deviation of what is added to every number of a value.
        documents, window: how many values there are; a quarter of the documents is for testing.
    """

    d: int = 32
    n_features: int = 24
    active: float = 3.0
    frequencies: tuple[float, ...] = ()
    orthogonal: bool = False
    splits: int = 0
    parents: int = 0
    children: int = 3
    child_cosine: float = 0.8
    child_share: float = 0.3
    noise: float = 0.02
    documents: int = 48
    window: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        shares = self.frequencies or (self.active / self.n_features,)
        if self.frequencies and len(self.frequencies) != self.n_features:
            raise BadUsage(
                f"{self.n_features} features have as many frequencies; got {len(self.frequencies)}."
            )
        if not all(0 < share <= 1 for share in shares):
            raise BadUsage(f"Frequencies of features are above 0, at most 1; got {shares}.")
        if self.splits + self.parents > self.n_features or self.children < 2:
            raise BadUsage(
                f"Of {self.n_features} features some are split and others are parents, each with"
                f" two children or more; got splits={self.splits}, parents={self.parents},"
                f" children={self.children}."
            )
        if self.orthogonal and self.n_features + self.parents * self.children > self.d:
            raise BadUsage(f"At most {self.d} directions of {self.d} numbers are orthogonal.")
        if self.documents < 2 or self.window < 2 or not 0 < self.child_cosine <= 1:
            raise BadUsage(
                "There are two documents of two values or more, and a child's cosine is above 0, at"
                f" most 1; got {self.documents}, {self.window} and {self.child_cosine}."
            )


@dataclass(frozen=True, eq=False, repr=False)
class PlantedFeatures(OneLine):
    """Features that are known, and values made of them.

    Attributes:
        coarse: directions of features before splitting, without children.
        directions: of all: the kinds of split features, the other features, and children.
        feature_of: which row of `coarse` each is a kind of; -1 of children.
        parent_of: which row of `coarse` each is a child of; -1 of the others.
        codes: of all, how much of each is in every value.
    """

    settings: PlantedSettings
    coarse: Float[Tensor, "m d"]
    directions: Float[Tensor, "n d"]
    feature_of: Int[Tensor, "n"]
    parent_of: Int[Tensor, "n"]
    codes: Float[Tensor, "documents window n"]
    values: Float[Tensor, "documents window d"]

    def repr_fields(self) -> dict[str, Any]:
        documents, window, n = self.codes.shape
        about = {"d": self.settings.d, "features": n, "coarse": len(self.coarse)}
        return {**about, "documents": documents, "window": window}

    @cached_property
    def coarse_codes(self) -> Float[Tensor, "documents window m"]:
        """How much of each coarse feature is in every value, whatever its kind."""
        own = self.feature_of >= 0
        out = torch.zeros(*self.codes.shape[:2], len(self.coarse), dtype=torch.float32)
        return out.index_add(2, self.feature_of[own], self.codes[:, :, own])

    @checked
    def sae(
        self, worth: Worth = "true", *, wide: bool = False, cosine: float = 0.5, seed: int = 0
    ) -> SAE:
        """A dictionary of known worth.

        Args:
            wide: of all features; else of the coarse ones.
            cosine: of "noisy".
            seed: of what is drawn, and of the order of features; 0 leaves them in theirs.

        Raises:
            UnknownName: no such worth. BadUsage: a cosine that is not between 0 and 1.
        """
        one_of("worth of a dictionary", worth, WORTHS)
        if not 0 <= cosine <= 1:
            raise BadUsage(f"A cosine is between 0 and 1; got {cosine}.")
        drawn = torch.Generator().manual_seed(seed)
        rows = self.directions if wide else self.coarse
        if seed:
            rows = rows[torch.randperm(len(rows), generator=drawn)]
        match worth:
            case "noisy":
                return reading(at_cosine(rows, cosine, drawn))
            case "merged":
                return _merged(reading(rows))
            case "split":
                sae = reading(rows)
                return replace(
                    sae,
                    w_enc=sae.w_enc.repeat(1, 2),
                    w_dec=sae.w_dec.repeat(2, 1) / 2,
                    b_enc=sae.b_enc.repeat(2),
                    threshold=None if sae.threshold is None else sae.threshold.repeat(2),
                )
            case "permuted":
                return permuted_sae(reading(rows), seed=seed)
            case "random":
                codes = self.codes if wide else self.coarse_codes
                k = max(1, round(float((codes > 0).sum(-1).float().mean())))
                mean = self.values.flatten(0, 1).mean(0)
                return random_sae(rows.shape[1], len(rows), k, mean, seed=seed)
            case _:
                return reading(rows)

    def store(self) -> PlantedStore:
        """The values as a store; the token of a position is its largest feature, n without any."""
        n = self.codes.shape[2]
        largest = self.codes.max(dim=2)
        tokens = torch.where(largest.values > 0, largest.indices, torch.full_like(largest[1], n))
        return PlantedStore.of(self.settings, self.values, tokens)


@dataclass(frozen=True, eq=False, repr=False)
class PlantedStore(ActivationStore):
    """A store of values that are held in memory; a document is one window."""

    held: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    @staticmethod
    def of(
        settings: PlantedSettings,
        values: Float[Tensor, "documents window d"],
        tokens: Int[Tensor, "documents window"],
    ) -> PlantedStore:
        """Of values, a quarter of whose documents, the last ones, is for testing."""
        documents, window = values.shape[:2]
        key = key_of({"planted": repr(settings), "sum": float(values.double().sum())})[:16]
        about = StoreSettings(window=window, drop=0, test=0.25, dtype="float32")
        n_test = max(1, round(about.test * documents))
        split = (torch.arange(documents) >= documents - n_test).long()
        held = {"tokens": tokens, "document": torch.arange(documents), "split": split}
        names = tuple(f"planted-{number}" for number in range(documents))
        held["values"] = values
        # Planted values are of no model.
        none = ModelIdentity(weights=key, rounded=key, dtype="float32", config="", tokenizer="")
        return PlantedStore(
            Path(key), "planted", none, SITE, "planted", key, about, names, held=held
        )

    @cached_property
    def _windows(self) -> dict[str, Tensor]:
        return {name: x for name, x in self.held.items() if name != "values"}

    def _shards(self, split: str, limit: int | None) -> list[tuple[int, Tensor]]:
        mine = self.held["values"][self.held["split"] == int(split == "test")]
        return [
            (i, mine[i * SHARD : (i + 1) * SHARD].flatten(0, 1))
            for i in self.shards(split, limit)  # pyright: ignore[reportArgumentType]
        ]


@dataclass(frozen=True)
class PlantedTrainer:
    """A trainer whose dictionaries are of known worth, drawn anew with each seed; nothing is fit.

    Attributes:
        worth, cosine: of each dictionary, see `PlantedFeatures.sae`.
    """

    planted: PlantedFeatures
    worth: Worth = "noisy"
    cosine: float = 0.95

    def train(
        self,
        *,
        seed: int = 0,
        encoder: Float[Tensor, "d m"] | None = None,
        decoder: Float[Tensor, "m d"] | None = None,
        b_enc: Float[Tensor, "m"] | None = None,
        **changes: Any,
    ) -> TrainedSAE:
        """What a training with this seed would end with.

        Args:
            encoder: columns of W_enc that the first features keep: the features of the new
                dictionary that read what they read stand first.
            decoder, b_enc: rows of W_dec and biases that they keep too.
            changes: of settings of a training, which there is none of.
        """
        sae = self.planted.sae(self.worth, cosine=self.cosine, seed=seed + 1)
        if encoder is not None:
            # The features that read most like the given columns come first, and get them.
            m = encoder.shape[1]
            _, given, mine = matched_rows(unit_rows(encoder.mT), unit_rows(sae.w_enc.mT))
            rest = sorted(set(range(sae.n_features)) - set(mine.tolist()))
            order = torch.cat((mine[given.argsort()], torch.tensor(rest, dtype=torch.long)))
            w_enc = torch.cat((encoder, sae.w_enc[:, order[m:]]), dim=1)
            w_dec, biases, at = sae.w_dec[order], sae.b_enc[order], sae.threshold
            sae = replace(
                sae,
                w_enc=w_enc,
                w_dec=w_dec if decoder is None else torch.cat((decoder, w_dec[m:])),
                b_enc=biases if b_enc is None else torch.cat((b_enc, biases[m:])),
                threshold=None if at is None else at[order],
            )
        nothing = torch.zeros(1, dtype=torch.float32)
        return TrainedSAE(sae, sae.w_dec, nothing, nothing)


@checked
def plant(settings: PlantedSettings | None = None, **changes: Any) -> PlantedFeatures:
    """Draw features and values of them.

    Args:
        changes: of the settings.
    """
    chosen = replace(settings or PlantedSettings(), **changes)
    # Seeds of trainings and controls are small: none of them may begin at the answer.
    drawn = torch.Generator().manual_seed(chosen.seed + 1_000_003)
    m, d, k = chosen.n_features, chosen.d, chosen.children
    rows = torch.randn(m + chosen.parents * k, d, generator=drawn, dtype=torch.float32)
    rows = torch.linalg.qr(rows.mT).Q.mT if chosen.orthogonal else unit_rows(rows)
    coarse, own = rows[:m], rows[m:]
    kinds = at_cosine(coarse[: chosen.splits].repeat_interleave(k, 0), chosen.child_cosine, drawn)
    directions = torch.cat((kinds, coarse[chosen.splits :], own))
    nothing = torch.full((len(own),), -1)
    owners = torch.arange(chosen.splits, chosen.splits + chosen.parents)
    split_of = torch.arange(chosen.splits).repeat_interleave(k)
    feature_of = torch.cat((split_of, torch.arange(chosen.splits, m), nothing))
    plain = torch.full((len(directions) - len(own),), -1)
    parent_of = torch.cat((plain, owners.repeat_interleave(k)))

    shape = (chosen.documents, chosen.window)
    shares = torch.tensor(chosen.frequencies or (chosen.active / m,) * m, dtype=torch.float32)
    on = torch.rand(*shape, m, generator=drawn, dtype=torch.float32) < shares
    which = torch.randint(k, (*shape, chosen.splits), generator=drawn)
    kind_on = torch.nn.functional.one_hot(which, k).bool() & on[:, :, : chosen.splits, None]
    beside = torch.rand(*shape, len(own), generator=drawn, dtype=torch.float32) < chosen.child_share
    active = torch.cat(
        (
            kind_on.flatten(2),
            on[:, :, chosen.splits :],
            on[:, :, owners.repeat_interleave(k)] & beside,
        ),
        dim=2,
    )
    sizes = SMALLEST + (LARGEST - SMALLEST) * torch.rand(
        active.shape, generator=drawn, dtype=torch.float32
    )
    codes = sizes * active
    noise = chosen.noise * torch.randn(*shape, d, generator=drawn, dtype=torch.float32)
    values = codes @ directions + noise
    return PlantedFeatures(chosen, coarse, directions, feature_of, parent_of, codes, values)


def at_cosine(
    rows: Float[Tensor, "n d"], cosine: float, drawn: torch.Generator
) -> Float[Tensor, "n d"]:
    """Unit rows that have this cosine to unit rows, in a random direction beside it."""
    beside = torch.randn(rows.shape, generator=drawn, dtype=torch.float32)
    beside = unit_rows(beside - (beside * rows).sum(1, keepdim=True) * rows)
    return cosine * rows + (1 - cosine**2) ** 0.5 * beside


def reading(rows: Float[Tensor, "n d"]) -> SAE:
    """An SAE with these decoder rows, whose encoder finds their codes in sums of them."""
    n, d = rows.shape
    w_enc = torch.linalg.pinv(rows) if n <= d else rows.mT.contiguous()
    threshold = torch.full((n,), SMALLEST / 2, dtype=torch.float32)
    zeros = torch.zeros(n, dtype=torch.float32)
    return SAE(
        w_enc,
        rows,
        zeros,
        torch.zeros(d, dtype=torch.float32),
        "jumprelu",
        threshold,
        hook="resid.0",
    )


def _merged(sae: SAE) -> SAE:
    """Features 0 and 1 on one row, 2 and 3 on the next; the last of an odd number is left alone."""
    n = sae.n_features
    groups = torch.arange(n) // 2
    w_dec = torch.zeros(int(groups[-1]) + 1, sae.d_in, dtype=torch.float32).index_add(
        0, groups, sae.w_dec
    )
    w_enc = torch.zeros(sae.d_in, len(w_dec), dtype=torch.float32).index_add(1, groups, sae.w_enc)
    threshold = torch.full((len(w_dec),), SMALLEST / 2, dtype=torch.float32)
    return replace(
        sae,
        w_enc=w_enc,
        w_dec=unit_rows(w_dec),
        b_enc=torch.zeros(len(w_dec), dtype=torch.float32),
        threshold=threshold,
    )
