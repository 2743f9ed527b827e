"""Distributed alignment search (DAS) and Boundless DAS: directions that are trained on labels.

    DAS            k directions; exchanging them makes the model say the label
    BoundlessDAS   a whole rotation, and how many of its first directions count

Both train all sites in one training, on interchanges: each is a base, a source, and the label
that the model should say after the exchange. `TrainedFinder` has what all trained finders share:
the optimiser, its schedule, the loss, and the order of the rows.

Batches are walked in the order of the rows, so that results do not depend on a generator.
`shuffle` asks for another order each epoch, as MIB's code and pyvene's examples have it. Rows
that come sorted, by kind of counterfactual or by label, need it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.features.featurizer import (
    Directions,
    Featurizer,
    check_basis,
    check_k,
    orthonormal,
    random_basis,
)
from mechassay.features.finder import Fit, Init, Sites, init_of, load_sites, provenance_of
from mechassay.features.training import (
    BundleValues,
    Loss,
    Optimizer,
    Trainable,
    TrainingData,
    TrainingPlan,
    digest_of,
    joint_gradients,
    train,
)
from mechassay.interventions.intervene import check_gradients_allowed
from mechassay.interventions.site import Site
from mechassay.models.decoder import at_least_fp32
from mechassay.models.memory import out_of_memory_is_an_error
from mechassay.models.model import Model
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import InterchangeBatch, InterchangesLike
from mechassay.utils.arguments import checked
from mechassay.utils.checkpoint import key_of
from mechassay.utils.display import BAR, Progress
from mechassay.utils.settings import Within, checked_settings

DEFAULT_STEPS = 100
Schedule = Literal["constant", "linear"]


@dataclass(frozen=True, kw_only=True)
@checked_settings
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
            and the label, or its "squared-error"; see `features.training`.
        shuffle: another order of rows each epoch, drawn from `seed`; else the order of the rows.
        seed: of what the training begins with, and of the order.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    profiles: ClassVar[dict[str, dict[str, Any]]] = {}

    lr: Annotated[float, Within(above=0)] = 1e-2
    steps: Annotated[int | None, Within(1)] = None
    epochs: Annotated[int | None, Within(1)] = None
    batch_size: Annotated[int, Within(1)] = 32
    optimizer: Optimizer = "adam"
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    warmup: Annotated[float, Within(0, below=1)] = 0.0
    loss: Loss = "cross-entropy"
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise BadUsage(f"{self.name} takes steps or epochs; got both.")

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

    @checked
    def fit(
        self,
        model: Model,
        pairs: InterchangesLike,
        sites: Sites,
        *,
        init: Init | None = None,
        together: bool = False,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> Fit:
        """Train the features of all sites at once, with the result of one training each, or of
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
        chosen, batch = load_sites(model, sites), model.interchanges(pairs)
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
            start = [t for trainable in trainables for t, _ in trainable.parameters()]
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
        stored = {
            str(chosen[number]): warning
            for bundle, trainable in zip(data.bundles, trainables, strict=True)
            for place, number in enumerate(bundle)
            if (warning := trainable.warning(place, plan.progress(plan.steps - 1)))
        }
        if stored:
            about["warnings"] = stored
        tensors = {
            number: trainable.learned(place)
            for bundle, trainable in zip(data.bundles, trainables, strict=True)
            for place, number in enumerate(bundle)
        }
        masks = {s: tensors[i][1] for i, s in enumerate(chosen)}
        return Fit(
            MappingProxyType({site: tensors[i][0] for i, site in enumerate(chosen)}),
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


_ADDITION = {
    "k": 16,
    "lr": 1e-2,
    "epochs": 1,
    "batch_size": 256,
    "optimizer": "adamw",
    "shuffle": True,
}
_IOI = {**_ADDITION, "k": 32, "lr": 1.0, "loss": "squared-error"}


@dataclass(frozen=True)
class DAS(TrainedFinder):
    """Distributed alignment search with k directions; for other settings see `TrainedFinder`.

        new = b + (s - b) Q Q'            Q [d, k] orthonormal, see `orthonormal`

    minimises the loss of the labels over interchanges (Geiger et al. 2024; one direction: Arora
    et al. 2024, eq. 12). Q begins as k columns of an orthonormal basis. The basis is random and
    the same at all sites of one width, unless `init` has one [d, d] for a site. A training
    walks the same path as one with pyvene's LowRankRotatedSpaceIntervention from that basis.

    Profiles:

        causalgym-2024   k 1, Adam 5e-3, 100 steps of 4, up over 10 % of them, then down to 0
        mib-2025         k 16, AdamW 1e-2, one epoch of shuffled batches of 256: MIB's code on
                         addition
        mib-2025-ioi     k 32, AdamW 1, two epochs of shuffled batches of 256, squared error
        paper, paper-ioi Mueller et al. (2025), G.4: the same, but one epoch on IOI
    """

    name: ClassVar[str] = "das"
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "causalgym-2024": {
            "k": 1,
            "lr": 5e-3,
            "steps": 100,
            "batch_size": 4,
            "schedule": "linear",
            "warmup": 0.1,
        },
        "mib-2025": _ADDITION,
        "mib-2025-ioi": {**_IOI, "epochs": 2},
        "paper": _ADDITION,
        "paper-ioi": _IOI,
    }

    k: int = 1

    def start(
        self,
        model: Model,
        sites: Sequence[Site],
        width: int,
        init: dict[Site, Tensor | Featurizer],
        generator: torch.Generator,
    ) -> Trainable:
        for site in sites:
            check_k(f"{self.name} at {site}", self.k, width)
        basis = bases(self.name, model, sites, width, init, generator)
        return Rotation(basis, len(sites), self.k)


def bases(
    who: str,
    model: Model,
    sites: Sequence[Site],
    width: int,
    init: dict[Site, Tensor | Featurizer],
    generator: torch.Generator,
) -> Float[Tensor, "some d d"]:
    """The basis of each site, or one that all share where none is given.

    Raises:
        BadUsage: one of another shape, or not orthonormal.
    """
    dtype, device = parameter_dtype(model), model.device
    shared = random_basis(width, generator, dtype).to(device)
    if not any(site in init for site in sites):
        return shared[None]
    tensors: list[Tensor] = []
    for site in sites:
        start = init.get(site, shared)
        if isinstance(start, Directions):
            start = start.vectors
        if not isinstance(start, Tensor):
            raise BadUsage(
                f"{who} begins with a basis [{width}, {width}]; init at {site} is a"
                f" {type(start).__name__}."
            )
        tensors.append(check_basis(f"{who} at {site}", start, width).to(device, dtype))
    return torch.stack(tensors)


class Rotation(Trainable):
    """k directions of every site.

    Attributes:
        turns_are_free: whether losses depend on the space of the directions alone.
    """

    turns_are_free: ClassVar[bool] = True

    def __init__(self, basis: Float[Tensor, "some d d"], n_sites: int, k: int) -> None:
        self.basis = basis
        self.raw = basis.new_zeros(n_sites, basis.shape[1], k).requires_grad_()
        self.begun = False
        self.raw.register_hook(self._without_rounding)

    def _without_rounding(self, gradient: Tensor) -> Tensor:
        """Where all parameters are 0, what turns the directions within their own space changes no
        loss; of its gradient, which is 0, only rounding would be left, and Adam, which divides by
        its size, would make steps of that.
        """
        # A step may come in several parts, so it is the parameters that say whether it was made.
        self.begun = self.begun or not self.turns_are_free or bool(self.raw.any())
        if self.begun:
            return gradient
        gradient = gradient.clone()
        gradient[:, : gradient.shape[2]] = 0
        return gradient

    def parameters(self) -> Sequence[tuple[Tensor, float]]:
        return [(self.raw, 1.0)]

    def directions(self) -> Float[Tensor, "sites d k"]:
        """The directions of all sites."""
        return orthonormal(self.raw, self.basis)

    def new(self, values: BundleValues, progress: float) -> Float[Tensor, "sites m d"]:
        base, source = at_least_fp32(values.base), at_least_fp32(values.source)
        q = self.directions()
        return torch.baddbmm(base, (source - base) @ q, q.mT)

    def learned(self, number: int) -> tuple[Featurizer, Bool[Tensor, "k"] | None]:
        # One site's own computation: the result is the same whatever else is in the stack.
        some = slice(number, number + 1)
        basis = self.basis if len(self.basis) == 1 else self.basis[some]
        return Directions(orthonormal(self.raw[some].detach(), basis)[0].cpu()), None


def mask_warning(gates: Float[Tensor, "some"], kept: int, k: int) -> str:
    """What a trained mask did not decide.

    Args:
        gates: how much of the features that were trained was exchanged at the last step.
        kept: how many of k features are meant.
    """
    if kept == k > 1:
        return f"all {k:,} features are kept, so that this is the full vector"
    between = int(((gates > UNSHARP) & (gates < 1 - UNSHARP)).sum())
    if between <= max(1.0, UNSHARP * k):
        return ""
    return (
        f"the mask never became sharp: {between:,} of {k:,} features were exchanged by"
        f" {UNSHARP:.0%} to {1 - UNSHARP:.0%} at the last step"
    )


UNSHARP = 0.05
LEAST, BEGIN = 1e-3, 0.5
HOT, COLD, PUBLISHED_WIDTH = 50.0, 0.1, 4096
"""Temperatures that were published, of values of so many numbers."""


@dataclass(frozen=True)
class BoundlessDAS(TrainedFinder):
    """DAS that learns its number of directions; for other settings see `TrainedFinder`.

    With coordinates i = 0..d-1 of the rotation R [d, d], a boundary b in (0, 1], and
    temperature T (Wu et al. 2023),

        m_i = sigmoid(i / T) sigmoid((b d - i) / T)          new = base + ((s - base) R * m) R'

    as in the authors' code (pyvene), whose first factor is 1/2 at i = 0. `boundary_weight`
    times b is added to the loss. T falls from `hot` to `cold` in equal steps. Afterwards the
    directions i < b d count wholly, so that what is evaluated is a plain interchange.

    The published temperatures, 50 and .1, are for values of 4,096 numbers. At 50 the mask of few
    numbers is flat: no boundary makes a difference. By default they are in proportion to d.

    Attributes:
        boundary_lr: learning rate of the boundary; `lr` is that of the rotation.
        boundary_weight: of the boundary in the loss.
        hot, cold: first and last temperature; None: 50 and .1 times d / 4096.
    """

    name: ClassVar[str] = "boundless-das"
    version: ClassVar[int] = 2
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "lr": 1e-3,
            "schedule": "linear",
            "warmup": 0.1,
            "epochs": 3,
            "batch_size": 64,
            "hot": HOT,
            "cold": COLD,
        }
    }

    lr: Annotated[float, Within(above=0)] = 1e-3
    boundary_lr: float = 1e-2
    boundary_weight: float = 1.0
    hot: float | None = None
    cold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cooling(self.name, *self.temperatures(PUBLISHED_WIDTH))

    def temperatures(self, width: int) -> tuple[float, float]:
        """The first and the last temperature for values of a width."""
        share = width / PUBLISHED_WIDTH
        return (
            HOT * share if self.hot is None else self.hot,
            COLD * share if self.cold is None else self.cold,
        )

    def start(
        self,
        model: Model,
        sites: Sequence[Site],
        width: int,
        init: dict[Site, Tensor | Featurizer],
        generator: torch.Generator,
    ) -> Trainable:
        basis = bases(self.name, model, sites, width, init, generator)
        return BoundedRotation(basis, len(sites), self)


class BoundedRotation(Rotation):
    """A whole rotation and a boundary of every site."""

    turns_are_free: ClassVar[bool] = False

    def __init__(
        self, basis: Float[Tensor, "some d d"], n_sites: int, finder: BoundlessDAS
    ) -> None:
        super().__init__(basis, n_sites, basis.shape[1])
        self.finder = finder
        self.boundary = basis.new_full((n_sites,), BEGIN).requires_grad_()
        self.places = torch.arange(basis.shape[1], device=basis.device, dtype=basis.dtype)

    def parameters(self) -> Sequence[tuple[Tensor, float]]:
        return [(self.raw, 1.0), (self.boundary, self.finder.boundary_lr / self.finder.lr)]

    def mask(self, progress: float) -> Float[Tensor, "sites d"]:
        """How much of each coordinate is exchanged."""
        hot, cold = self.finder.temperatures(len(self.places))
        temperature = hot + (cold - hot) * progress
        end = self.boundary.clamp(LEAST, 1.0)[:, None] * len(self.places)
        inside = torch.sigmoid(self.places / temperature)
        return inside * torch.sigmoid((end - self.places) / temperature)

    def new(self, values: BundleValues, progress: float) -> Float[Tensor, "sites m d"]:
        base, source = at_least_fp32(values.base), at_least_fp32(values.source)
        q = self.directions()
        moved = (source - base) @ q * self.mask(progress)[:, None]
        return torch.baddbmm(base, moved, q.mT)

    def warning(self, number: int, progress: float) -> str:
        """Return the warning of the training, without the first factor of the mask, which is 1/2 at
        the first coordinate.
        """
        cold = self.finder.temperatures(len(self.places))[1]
        end = self.boundary[number].detach().clamp(LEAST, 1.0) * len(self.places)
        kept = int((self.places < end).sum())
        return mask_warning(torch.sigmoid((end - self.places) / cold), kept, len(self.places))

    def penalty(self, progress: float) -> Float[Tensor, "sites"]:
        return self.finder.boundary_weight * self.boundary.clamp(LEAST, 1.0)

    def learned(self, number: int) -> tuple[Featurizer, Bool[Tensor, "k"] | None]:
        whole, _ = super().learned(number)
        assert isinstance(whole, Directions)
        end = float(self.boundary[number].detach().clamp(LEAST, 1.0)) * len(self.places)
        kept = int((self.places.cpu() < end).sum())
        return Directions(whole.vectors[:, :kept].clone()), None
