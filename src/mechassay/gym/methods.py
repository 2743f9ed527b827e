"""Methods that look for one direction, with their settings as published, by name.

    das             distributed alignment search: 100 steps of 4, Adam, rate up to 5e-3 and down
    das-stopped     the same, stopped in the middle of its training
    probe           linear probe with an L2 penalty, at its optimum
    probe-saga      the same, stopped as published
    mean, lda       difference of class means; linear discriminant
    pca, k-means    first principal axis; difference of two centroids: labels play no part
    pca-mean        the mean of the first principal axes
    random          one random direction
    vanilla         the whole vector exchanged
    das-shuffled, probe-shuffled, ...  found on labels that are dealt out anew: controls

The settings are those of Arora et al. (2024, section 4.2 and appendices B and C). A method is
typed with other settings where that is wanted: `das:k=4`. The penalty of probes is published by
model. Here it is taken by width: that of the published width that is nearest in ratio. Where two
penalties are published, the better on validation counts.

`SWEEPS` are the settings of table 2, as the names of methods.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, cast

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from mechassay.errors import BadUsage, one_of
from mechassay.features.das import DAS, TrainedFinder
from mechassay.features.featurizer import Directions, Featurizer
from mechassay.features.finder import Finder, Found, ValueFinder
from mechassay.features.probes import PCA, leading
from mechassay.features.training import TrainingPlan
from mechassay.gym.names import FINDERS, METHODS, SHUFFLED, SWEEPS, SWEPT
from mechassay.utils.display import OneLine
from mechassay.utils.settings import Within, checked_settings

PENALTIES: Mapping[int, tuple[float, ...]] = MappingProxyType(
    {
        128: (1e1,),
        256: (1e2,),
        512: (1e3,),
        768: (1e4, 1e5),
        1024: (1e4, 1e5),
        2048: (1e5, 1e6),
        2560: (1e5, 1e6),
        4096: (1e6, 1e7),
        5120: (1e6, 1e7),
    }
)
"""Penalties of probes (lambda) by the width of Pythia models; 5,120 is of the code alone."""


@dataclass(frozen=True, repr=False)
class GymMethod(OneLine):
    """A method on models of one width.

    Attributes:
        name: as it is typed.
        candidates: finders by what tells them apart, of which the best on validation counts.
        shuffled: whether labels are dealt out anew before it is found.
    """

    name: str
    candidates: Mapping[str, Finder]
    shuffled: bool = False

    @property
    def seeded(self) -> bool:
        """Whether a seed changes what it finds."""
        return self.shuffled or any(has_seed(candidate) for candidate in self.candidates.values())


def with_training(methods: Sequence[str], settings: Mapping[str, float | int]) -> tuple[str, ...]:
    """Methods with settings of their training, where they are trained and do not say it themselves;
    those of sweeps stay as they are.

    Args:
        settings: "lr", "steps" or "epochs".

    Raises:
        BadUsage: none of them is trained. UnknownName: no such method.
    """
    if not settings:
        return tuple(methods)
    texts: list[str] = []
    for method in methods:
        name, _, own = method.partition(":")
        kind = None if method in SWEEPS or method in SWEPT else FINDERS.load(name.strip())
        if isinstance(kind, type) and issubclass(kind, TrainedFinder):
            given = {part.partition("=")[0].strip() for part in own.split(",")}
            more = [f"{key}={value:.12g}" for key, value in settings.items() if key not in given]
            texts.append(f"{name}:{','.join([*filter(None, [own]), *more])}" if more else method)
        else:
            texts.append(method)
    if tuple(texts) == tuple(methods):
        raise BadUsage(
            f"{' and '.join(f'--{key}' for key in settings)}: for methods that are trained, such as"
            f" das, where their own settings do not say it; got {', '.join(methods)}."
        )
    return tuple(texts)


def has_seed(finder: Finder) -> bool:
    """Whether a finder has a seed among its settings, other than the published one of k-means and
    of the SAGA solver, on which little hangs.
    """
    names = [field.name for field in fields(cast(Any, finder))]
    return "seed" in names and finder.name not in ("k-means", "probe-saga")


def spelled_methods(names: Sequence[str]) -> tuple[str, ...]:
    """Methods as they are typed, a sweep written out, each once.

    Raises:
        BadUsage: none.
    """
    texts = [text for name in names for text in SWEEPS.get(name, (name,))]
    if not texts:
        raise BadUsage(f"Name a method, such as {', '.join(METHODS)}; got none.")
    return tuple(dict.fromkeys(texts))


def gym_method(text: str, width: int) -> GymMethod:
    """A method by what is typed, with the published settings for models of a width.

    Args:
        text: a name of `FINDERS`, with settings if wanted: "das:k=4", "probe:l2=100".

    Raises:
        UnknownName: no such method or setting.
        BadUsage: a setting of another type.
    """
    name, _, settings = text.partition(":")
    given = {part.partition("=")[0].strip() for part in settings.split(",")}
    candidates: dict[str, Finder] = {}
    for preset in _presets(name.strip(), width):
        other = {"steps"} if "epochs" in given else set[str]()
        rest = {key: value for key, value in preset.items() if key not in given | other}
        held = {key: value for key, value in rest.items() if key in ("l2",)}
        label = ", ".join(f"{key}={value:g}" for key, value in held.items())
        candidates[label] = FINDERS.make(text, **rest)
    return GymMethod(text, MappingProxyType(candidates), name.strip().endswith(SHUFFLED))


def _presets(name: str, width: int) -> list[dict[str, Any]]:
    """The published settings of a method, one for each candidate."""
    own = name.removesuffix(SHUFFLED)
    if own in ("das", "das-stopped"):
        return [DAS.profiles["causalgym-2024"]]
    if own in ("probe", "probe-saga"):
        nearest = min(PENALTIES, key=lambda known: abs(math.log(known / width)))
        return [{"l2": weight} for weight in PENALTIES[nearest]]
    return [{}]


@dataclass(frozen=True)
@checked_settings
class AveragedAxes(ValueFinder):
    """One direction, the mean of some principal axes, as table 2b of Arora et al. (2024) has it.

        v = (v_1 + ... + v_c) / c          v_i the axes along which the bases' values vary most

    An axis has no sign of its own: each points where its largest number is positive, as in
    scikit-learn. One component is PCA.
    """

    name: ClassVar[str] = "pca-mean"

    components: Annotated[int, Within(1)] = 2

    def find(self, values: Found) -> Featurizer:
        components: Any = PCA(k=self.components).find(values)
        axes = components.axes
        largest = axes.gather(0, axes.abs().argmax(dim=0)[None])
        return Directions.of((axes * torch.sign(largest)).mean(dim=1))


RATIOS = {"none": 0.0, "l2": 0.0, "l1": 1.0, "l1+l2": 0.5}


@dataclass(frozen=True)
@checked_settings
class SagaProbe(ValueFinder):
    """The direction of the probe as published: what the SAGA solver has left after some passes.

        minimise   sum over bases of -log p(label | w h + b)  +  penalty

    on values in fp32, with C = 1 / l2 and the generator at 0 (Arora et al. 2024, appendix C).
    scikit-learn's SAGA solver is stopped after 1,000 passes. That is before its optimum where
    values are of very different sizes: cosines of .93 to 1 with `Probe`, which solves the same
    problem. The penalties of table 2a are none, l1, l2, and half of each (the paper does not
    say how the two are mixed).

    Attributes:
        l2: the weight of the penalty, of whichever kind; scikit-learn's C is 1 / l2.
        penalty: "l2", "l1", "l1+l2" or "none".
        intercept: whether the logit has a bias.
        passes: over the data, at most.
        seed: of the order in which the solver takes examples.
    """

    name: ClassVar[str] = "probe-saga"
    needs_classes: ClassVar[bool] = True

    l2: Annotated[float, Within(above=0)] = 1.0
    penalty: str = "l2"
    intercept: bool = True
    passes: Annotated[int, Within(1)] = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("penalty of a probe", self.penalty, RATIOS)

    def find(self, values: Found) -> Featurizer:
        who = f"{self.name} at {values.site}"
        kind = cast(Any, LogisticRegression)
        probe = kind(
            solver="saga",
            C=math.inf if self.penalty == "none" else 1 / self.l2,
            l1_ratio=RATIOS[self.penalty],
            fit_intercept=self.intercept,
            max_iter=self.passes,
            random_state=self.seed,
        )
        with warnings.catch_warnings():
            # That it is stopped is what this is about.
            warnings.simplefilter("ignore", ConvergenceWarning)
            probe.fit(values.base.float().numpy(), values.classes.numpy())
        weights = torch.from_numpy(probe.coef_).double()
        if not bool(weights.any()):
            raise BadUsage(f"{who}: the penalty leaves no weight that is not 0.")
        return Directions.of(weights[0]) if len(weights) == 1 else leading(who, weights, 1)


@dataclass(frozen=True)
class StoppedPlan(TrainingPlan):
    """The first steps of a longer training.

    Attributes:
        whole: steps of the whole training.
    """

    whole: int = 0

    def factor(self, step: int) -> float:
        whole = TrainingPlan(self.n, self.size, self.whole, self.shuffle, self.linear, self.warmup)
        return whole.factor(step)


@dataclass(frozen=True, kw_only=True)
class StoppedDAS(DAS):
    """Directions of DAS after some updates, as table 2c of Arora et al. (2024) has them.

    The learning rate goes up and down as in the whole training; only the steps after `stop` are
    not made. The published step s is after s + 1 updates, the first of which has a learning
    rate of 0.

    Attributes:
        stop: how many updates are made.
    """

    name: ClassVar[str] = "das-stopped"

    stop: int = 100

    def plan(self, n: int) -> TrainingPlan:
        """The first steps of a training on n rows.

        Raises:
            BadUsage: more than the training has.
        """
        plan = super().plan(n)
        if not 1 <= self.stop <= plan.steps:
            raise BadUsage(f"{self.name} stops after 1 to {plan.steps} steps; got {self.stop}.")
        return StoppedPlan(
            plan.n,
            plan.size,
            self.stop,
            plan.shuffle,
            plan.linear,
            plan.warmup,
            whole=plan.steps,
        )
