"""What a circuit is asked to preserve: one number per example, from the logits at the last token.

    logit_diff      mean logit of the answers - mean logit of the foils     (MIB, eq. 1's m)
    prob_diff       probability of the answers - probability of the foils
    cross_entropy   -log probability of the answers                          (lower is better)
    kl              KL(P_clean || P), summed over the vocabulary, in nats    (lower is better)
    js              Jensen-Shannon divergence of P_clean and P, in nats      (lower is better)
    accuracy        1 where the best answer beats every foil, else 0         (not differentiable)

`kl` and `js` compare with the clean run; MIB's code averages them over the vocabulary. A "drop" of
an objective is always in the direction of worse: `signed` turns lower-is-better ones around.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.models.decoder import Readout
from mechassay.prompts.batch import NO_TOKEN, Batch
from mechassay.utils.registry import Registry

Direction = Literal["up", "down"]
Values = Float[Tensor, "batch"]


class Objective(Protocol):
    """One number per example. Differentiable ones can drive attribution."""

    name: ClassVar[str]
    direction: ClassVar[Direction]
    needs_clean: ClassVar[bool]
    differentiable: ClassVar[bool]

    def __call__(self, readout: Readout, batch: Batch, clean: Readout | None = None) -> Values:
        """Values for a batch, given its logits and, where `needs_clean`, those of the clean run."""
        ...


ObjectiveLike = str | Objective | Callable[[Tensor, Batch], Tensor]
"""An objective as it is given: by name, as itself, or as a plain function."""


def signed(
    objective: Objective, readout: Readout, batch: Batch, clean: Readout | None = None
) -> Values:
    """The objective with higher always better."""
    values = objective(readout, batch, clean)
    return values if objective.direction == "up" else -values


class _Defaults:
    """Higher is better, of one run alone, and differentiable."""

    direction: ClassVar[Direction] = "up"
    needs_clean: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True


@dataclass(frozen=True)
class LogitDiff(_Defaults):
    """Mean logit of the answers minus mean logit of the foils; only those rows of W_U are read."""

    name: ClassVar[str] = "logit_diff"

    def __call__(self, readout: Readout, batch: Batch, clean: Readout | None = None) -> Values:
        tokens = torch.cat((batch.answers, batch.foils), dim=1)
        logits = readout.at(tokens.clamp(min=0))
        right, wrong = logits.split([batch.answers.shape[1], batch.foils.shape[1]], dim=1)
        return _mean(right, batch.answers) - _mean(wrong, batch.foils)


@dataclass(frozen=True)
class ProbDiff(_Defaults):
    """Total probability of the answers minus total probability of the foils."""

    name: ClassVar[str] = "prob_diff"

    def __call__(self, readout: Readout, batch: Batch, clean: Readout | None = None) -> Values:
        probabilities = readout.all().softmax(dim=-1)
        return _total(probabilities, batch.answers) - _total(probabilities, batch.foils)


@dataclass(frozen=True)
class CrossEntropy(_Defaults):
    """Minus the log of the answers' total probability, in nats."""

    name: ClassVar[str] = "cross_entropy"
    direction: ClassVar[Direction] = "down"

    def __call__(self, readout: Readout, batch: Batch, clean: Readout | None = None) -> Values:
        logits = readout.all()
        answers = _real(logits.gather(1, batch.answers.clamp(min=0)), batch.answers)
        return logits.logsumexp(dim=-1) - answers.logsumexp(dim=-1)


@dataclass(frozen=True)
class Kl(_Defaults):
    """KL(P_clean || P) at the last token, in nats."""

    name: ClassVar[str] = "kl"
    direction: ClassVar[Direction] = "down"
    needs_clean: ClassVar[bool] = True

    def __call__(self, readout: Readout, batch: Batch, clean: Readout | None = None) -> Values:
        assert clean is not None
        reference = clean.all().log_softmax(dim=-1)
        return (reference.exp() * (reference - readout.all().log_softmax(dim=-1))).sum(dim=-1)


@dataclass(frozen=True)
class Js(_Defaults):
    """Jensen-Shannon divergence of the clean run's and this distribution, in nats; at most ln 2."""

    name: ClassVar[str] = "js"
    direction: ClassVar[Direction] = "down"
    needs_clean: ClassVar[bool] = True

    def __call__(self, readout: Readout, batch: Batch, clean: Readout | None = None) -> Values:
        assert clean is not None
        p, q = clean.all().log_softmax(dim=-1), readout.all().log_softmax(dim=-1)
        middle = torch.logaddexp(p, q) - math.log(2)
        return 0.5 * ((p.exp() * (p - middle)).sum(dim=-1) + (q.exp() * (q - middle)).sum(dim=-1))


@dataclass(frozen=True)
class Accuracy(_Defaults):
    """1 where the best answer's logit exceeds every foil's, else 0."""

    name: ClassVar[str] = "accuracy"
    differentiable: ClassVar[bool] = False

    def __call__(self, readout: Readout, batch: Batch, clean: Readout | None = None) -> Values:
        right = _real(readout.at(batch.answers.clamp(min=0)), batch.answers)
        wrong = _real(readout.at(batch.foils.clamp(min=0)), batch.foils)
        return (right.amax(dim=1) > wrong.amax(dim=1)).to(right.dtype)


@dataclass(frozen=True)
class OfFunction(_Defaults):
    """A plain function of the logits at the last token, [n, vocabulary], and the batch; higher is
    better.
    """

    function: Callable[[Tensor, Batch], Tensor]

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, readout: Readout, batch: Batch, clean: Readout | None = None) -> Values:
        values: Any = self.function(readout.all(), batch)
        shape = getattr(values, "shape", None)
        if shape != (len(batch),):
            got = type(values).__name__ if shape is None else f"shape {tuple(shape)}"
            raise BadUsage(
                f"The objective {self.name} must return a tensor with one number per example,"
                f" here ({len(batch)},); got {got}."
            )
        return values


OBJECTIVES = Registry(
    "objective",
    {
        cls.name: f"{__name__}:{cls.__name__}"
        for cls in (LogitDiff, ProbDiff, CrossEntropy, Kl, Js, Accuracy)
    },
)


def least_size(name: str) -> float:
    """The size of the terms that an objective of that name sums up, where its values may be far
    smaller; else 0. Divergences are sums of p log p and near 0 where two runs agree.
    """
    return 1.0 if name in (Kl.name, Js.name) else 0.0


def load_objective(objective: ObjectiveLike) -> Objective:
    """An objective by name; an objective passes through, and a plain function becomes one.

    Args:
        objective: a name, an objective, or a function of the logits at the last token [n,
            vocabulary] and the batch, which returns one number per example, higher being better.

    Raises:
        UnknownName: no such objective. BadUsage: none of these.
    """
    given: Any = objective
    if isinstance(given, str):
        return OBJECTIVES.load(given)()
    if not callable(given):
        raise BadUsage(
            f"An objective is a name ({', '.join(OBJECTIVES.names())}) or a function of logits and"
            f" batch; got {type(given).__name__}."
        )
    if isinstance(given, type):
        return load_objective(given())
    made: Any = given if hasattr(given, "needs_clean") else OfFunction(cast(Any, given))
    return made


def _real(logits: Tensor, tokens: Tensor) -> Tensor:
    """Minus infinity where there is no token."""
    return logits.masked_fill(tokens == NO_TOKEN, float("-inf"))


def _mean(logits: Tensor, tokens: Tensor) -> Tensor:
    real = (tokens != NO_TOKEN).to(logits.dtype)
    return (logits * real).sum(dim=1) / real.sum(dim=1)


def _total(probabilities: Tensor, tokens: Tensor) -> Tensor:
    return (probabilities.gather(1, tokens.clamp(min=0)) * (tokens != NO_TOKEN)).sum(dim=1)
