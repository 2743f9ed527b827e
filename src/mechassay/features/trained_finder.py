"""Finders that are trained: their settings, and one training for all sites.

Batches are walked in the order of the rows unless `shuffle` asks for another order each epoch: the
published settings walk in order, and results do not hang on a generator. Rows that come sorted (by
kind of counterfactual, by label) should be shuffled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.checkpoint import key_of
from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.features.featurizer import Featurizer
from mechassay.features.finder import Init, Sites, init_of, load_sites, provenance_of
from mechassay.features.fit import Fit
from mechassay.features.joint_training import joint_gradients
from mechassay.features.stacked_training import (
    Loss,
    Optimizer,
    Trainable,
    TrainingPlan,
    digest_of,
    train,
)
from mechassay.features.training_data import TrainingData
from mechassay.interchange import InterchangeBatch, InterchangesLike
from mechassay.interventions.base_run import check_gradients_allowed
from mechassay.interventions.site import Site
from mechassay.models.decoder import at_least_fp32
from mechassay.models.memory import out_of_memory_is_an_error
from mechassay.models.model import Model
from mechassay.pairs import NO_TOKEN
from mechassay.progress import BAR, Progress
from mechassay.registry import check_settings

DEFAULT_STEPS = 100
SCHEDULES = ("constant", "linear")


@dataclass(frozen=True, kw_only=True)
class TrainedFinder(ABC):
    """A finder that is trained on labels.

    Attributes:
        lr: the learning rate.
        steps, epochs: how long; one of them, 100 steps if neither is given.
        batch_size: rows a step; the last batch of an epoch has what is left.
        optimizer: "adam" or "adamw", with torch's other defaults.
        schedule: "constant", or "linear" down to 0 after the last step.
        warmup: the share of steps over which the rate rises from 0 first.
        loss: "cross-entropy" of the label's tokens, the "logit-difference" of the base's own label
            and the label, or its "squared-error"; see `features.stacked_training`.
        shuffle: another order of rows each epoch, drawn from `seed`; else the order of the rows.
        seed: of what the training begins with, and of the order.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    profiles: ClassVar[dict[str, dict[str, Any]]] = {}

    lr: float = 1e-2
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 32
    optimizer: str = "adam"
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup: float = 0.0
    loss: str = "cross-entropy"
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        one_of("optimizer", self.optimizer, get_args(Optimizer))
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("loss of a finder", self.loss, get_args(Loss))
        if self.steps is not None and self.epochs is not None:
            raise BadUsage(f"{self.name} takes steps or epochs; got both.")
        for setting in ("steps", "epochs", "batch_size"):
            value = getattr(self, setting)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadUsage(f"{self.name} needs {setting} of at least 1; got {value!r}.")
        if not self.lr > 0:
            raise BadUsage(f"{self.name} needs a learning rate above 0; got {self.lr}.")
        if not 0 <= self.warmup < 1:
            raise BadUsage(f"{self.name} warms up over a share below 1; got {self.warmup}.")

    @classmethod
    def profile(cls, name: str, **settings: Any) -> Self:
        """The finder with the settings of a paper or its code.

        Args:
            settings: over those of the profile.

        Raises:
            UnknownName: no such profile.
        """
        return cls(
            **{**cls.profiles[one_of(f"profile of {cls.name}", name, cls.profiles)], **settings}
        )

    @abstractmethod
    def start(
        self,
        model: Model,
        sites: Sequence[Site],
        width: int,
        init: dict[Site, Tensor | Featurizer],
        generator: torch.Generator,
    ) -> Trainable:
        """The parameters of some sites of one width before the first step.

        Args:
            init: what some sites begin with.
            generator: a fresh one of the seed.

        Raises:
            BadUsage: settings that do not fit the width; what a site cannot begin with.
        """

    def fit(
        self,
        model: Model,
        interchanges: InterchangesLike,
        sites: Sites,
        *,
        init: Init | None = None,
        together: bool = False,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> Fit:
        """See `Finder.fit`: all sites in one training, with the result of one training each, or of
        sites that are changed together.

        Args:
            together: change all sites in every run; losses are then the same for every site.
            checkpoint: a file that keeps what is done, so that a killed training goes on.

        Raises:
            BadPairs: a label of a base, or an expected value, that the loss lacks.
            NonFinite: a loss is NaN or infinite.
            BadUsage: also under `torch.inference_mode()`.
        """
        check_gradients_allowed(self.name)
        chosen, batch = load_sites(model, sites), model.interchanges(interchanges)
        _check_labels(self.name, batch, self.loss)
        begin = init_of(init, chosen)
        with out_of_memory_is_an_error(self.name):
            data = TrainingData(model, batch, chosen, together=together)
            trainables = [
                self.start(model, [chosen[i] for i in bundle], width, begin, self._generator())
                for bundle, width in zip(data.bundles, data.widths, strict=True)
            ]
            plan = self.plan(len(batch))
            about = provenance_of(self, model, batch, chosen) | {"steps": plan.steps}
            if together:
                about["together"] = True
            start = [t for each in trainables for t, _ in each.parameters()]
            description = {**about, "sites": list(map(str, chosen)), "init": digest_of(start)}
            with progress.track(self.name, plan.steps) as advance:
                losses = train(
                    data,
                    trainables,
                    plan,
                    lr=self.lr,
                    optimizer=one_of("optimizer", self.optimizer, get_args(Optimizer)),
                    weight_decay=self.weight_decay,
                    loss=one_of("loss of a finder", self.loss, get_args(Loss)),
                    advance=advance,
                    gradients=joint_gradients if together else None,
                    key=key_of(description),
                    checkpoint=checkpoint,
                )
        found = {
            number: trainable.found(place)
            for bundle, trainable in zip(data.bundles, trainables, strict=True)
            for place, number in enumerate(bundle)
        }
        masks = {s: found[i][1] for i, s in enumerate(chosen)}
        return Fit(
            MappingProxyType({site: found[i][0] for i, site in enumerate(chosen)}),
            MappingProxyType({site: mask for site, mask in masks.items() if mask is not None}),
            losses,
            MappingProxyType(about),
            model,
            together,
        )

    def plan(self, n: int) -> TrainingPlan:
        """The steps of a training on n rows."""
        size = min(self.batch_size, n)
        steps = self.steps or (
            DEFAULT_STEPS if self.epochs is None else self.epochs * -(-n // size)
        )
        shuffle = self.seed if self.shuffle else None
        return TrainingPlan(n, size, steps, shuffle, self.schedule == "linear", self.warmup)

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def parameter_dtype(model: Model) -> torch.dtype:
    """The dtype of parameters: the model's, or fp32 where that is narrower."""
    return at_least_fp32(model.decoder.embedding[:1]).dtype


def check_cooling(who: str, hot: float, cold: float) -> None:
    """Refuse temperatures that a training cannot go through, from its first step to its last.

    Raises:
        BadUsage: the last is above the first, or not above 0.
    """
    if not hot >= cold > 0:
        raise BadUsage(f"{who} cools from hot to cold, above 0; got {hot} and {cold}.")


def _check_labels(who: str, batch: InterchangeBatch, loss: str) -> None:
    wanted = [("label", batch.labels)]
    if loss != "cross-entropy":
        if batch.base_labels is None:
            raise BadPairs(f"{who} with the loss {loss!r} needs base_labels; there are none.")
        wanted.append(("base label", batch.base_labels))
    for what, labels in wanted:
        empty = (labels == NO_TOKEN).all(dim=1)
        if bool(empty.any()):
            row = int(empty.int().argmax())
            raise BadPairs(
                f"{who} needs the label of every row; pair {batch.ids[row]} has no {what}."
            )
    if loss == "squared-error":
        check_values(who, batch)


def check_values(who: str, batch: InterchangeBatch) -> Float[Tensor, "n"]:
    """What is expected of the logit difference of every row.

    Raises:
        BadPairs: a row of which nothing is.
    """
    nothing = None if batch.values is None else ~torch.isfinite(batch.values)
    if batch.values is None or nothing is None or bool(nothing.any()):
        row = 0 if nothing is None else int(nothing.int().argmax())
        raise BadPairs(
            f"{who} needs what is expected of the logit difference (value) of every row; pair"
            f" {batch.ids[row]} has nothing."
        )
    return batch.values
