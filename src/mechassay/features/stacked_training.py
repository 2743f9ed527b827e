"""One training for many sites: every site has its own parameters, and all walk the same batches.

A step of the parameters p_i of sites i = 1..S, on the rows of one batch:

    new_i  = change(base_i, source_i; p_i)              batched over the sites of a bundle
    L_i    = mean over rows of the loss after the base's value at site i became new_i
    p_i    <- one step of Adam(W) along the gradient of L_i + penalty_i

The sum of L_i is differentiated. L_i does not depend on p_j and Adam works number by number, so a
stack is what trainings of single sites are, in any order and number. (What mixes sites, such as the
norm of all gradients, is not used.) Only columns and layers behind a site are run, and stacks are
cut over sites where memory asks for it: the gradients at `new` are collected stack by stack, and
go through `change` once.

The loss of a row is -log p(label | base after the interchange), the sum over the label's tokens,
each after the tokens before it (teacher forcing); only columns that predict a token are unembedded.
MIB's code takes the mean over a batch's tokens instead: the same where labels have one token.
With D = logit(base's own label) - logit(label), of their first tokens, "logit-difference" is D, and
"squared-error" (D - value)^2, with the value that is expected of the row.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import NonFinite
from mechassay.features.featurizer import Featurizer
from mechassay.features.training_data import BundleValues, StepData, TrainingData
from mechassay.interventions.base_run import STACK_TOKENS, BaseRun, Branch, Change
from mechassay.models.decoder import Decoder
from mechassay.models.memory import byte_budget, suffix_bytes
from mechassay.pairs import NO_TOKEN
from mechassay.progress import Advance
from mechassay.training import descend

Loss = Literal["cross-entropy", "logit-difference", "squared-error"]
Optimizer = Literal["adam", "adamw"]
READOUT_COPIES = 3
"""Logits that are held of a predicted token: themselves, their log-softmax and its gradient."""


class Trainable(ABC):
    """Parameters of a bundle's sites, stacked along the first axis."""

    @abstractmethod
    def parameters(self) -> Sequence[tuple[Tensor, float]]:
        """Tensors that require gradients, each with the factor of its learning rate."""

    @abstractmethod
    def new(self, values: BundleValues, progress: float) -> Float[Tensor, "sites m d"]:
        """New values, in fp32 at least, differentiable by the parameters.

        Args:
            progress: how far the training is: 0 at the first step, 1 at the last.
        """

    def penalty(self, progress: float) -> Float[Tensor, "sites"] | None:
        """What is added to each site's loss."""
        return None

    @abstractmethod
    def found(self, number: int) -> tuple[Featurizer, Bool[Tensor, "k"] | None]:
        """The features of a site after the training, and which are meant."""


@dataclass(frozen=True)
class TrainingPlan:
    """Which rows every step takes, and its share of the learning rate.

    Attributes:
        size: rows of a batch; the last batch of an epoch has what is left.
        shuffle: a seed of the order of each epoch; None: the order of the rows.
    """

    n: int
    size: int
    steps: int
    shuffle: int | None = None
    linear: bool = False
    warmup: float = 0.0

    @property
    def batches(self) -> int:
        """Steps of an epoch."""
        return -(-self.n // self.size)

    def rows(self) -> Iterator[Int[Tensor, "_"]]:
        """The rows of each step."""
        generator = None if self.shuffle is None else torch.Generator().manual_seed(self.shuffle)
        order = torch.arange(self.n)
        for step in range(self.steps):
            number = step % self.batches
            if number == 0 and generator is not None:
                order = torch.randperm(self.n, generator=generator)
            yield order[number * self.size : (number + 1) * self.size]

    def factor(self, step: int) -> float:
        """The share of the learning rate at a step: up from 0 over the first `warmup` of the steps,
        then 1, or down to 0 after the last one.
        """
        rising = self.warmup * self.steps
        if step < rising:
            return step / max(1.0, rising)
        return (self.steps - step) / max(1.0, self.steps - rising) if self.linear else 1.0

    def progress(self, step: int) -> float:
        """0 at the first step, 1 at the last."""
        return step / max(1, self.steps - 1)


def train(
    data: TrainingData,
    trainables: Sequence[Trainable],
    plan: TrainingPlan,
    *,
    lr: float,
    optimizer: Optimizer,
    weight_decay: float,
    loss: Loss,
    advance: Advance,
    gradients: Gradients | None = None,
    key: str = "",
    checkpoint: Path | None = None,
) -> Float[Tensor, "steps sites"]:
    """Train the parameters of every bundle in place; the loss of every site before each step.

    Penalties are no part of the losses.

    Args:
        trainables: of each bundle of the data.
        gradients: what leaves the gradients of a step; by default each site's of its own loss.

    Raises:
        NonFinite: a loss is NaN or infinite.
    """
    losses = torch.zeros(plan.steps, len(data.sites), dtype=torch.float64)
    groups = [
        {"params": [tensor], "lr": lr * factor, "whole": lr * factor}
        for trainable in trainables
        for tensor, factor in trainable.parameters()
    ]
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.AdamW
    optimiser = kind(groups, lr=lr, weight_decay=weight_decay)
    rows = list(plan.rows())
    leave = step_gradients if gradients is None else gradients

    def differentiate(step: int) -> None:
        for group in optimiser.param_groups:
            group["lr"] = group["whole"] * plan.factor(step)
        with torch.enable_grad():
            found = leave(data, trainables, data.step(rows[step]), plan.progress(step), loss)
        losses[step] = found
        strange = (~torch.isfinite(found)).nonzero()
        if len(strange):
            site = data.sites[int(strange[0])]
            raise NonFinite(f"The loss at {site} is NaN or infinite in step {step}.")

    descend(
        differentiate,
        optimiser,
        plan.steps,
        advance=advance,
        key=key,
        checkpoint=checkpoint,
        also={"losses": losses},
    )
    return losses


Gradients = Callable[
    [TrainingData, Sequence[Trainable], StepData, float, Loss], Float[Tensor, "sites"]
]
"""What leaves the gradients of a step on parameters, and gives the losses without penalties."""


def step_gradients(
    data: TrainingData, trainables: Sequence[Trainable], step: StepData, progress: float, loss: Loss
) -> Float[Tensor, "sites"]:
    """Leave the gradients of all sites on their parameters; the losses, without penalties."""
    new = [
        trainable.new(values, progress)
        for trainable, values in zip(trainables, step.values, strict=True)
    ]
    # A site's new values are a leaf of its own: gradients of views of one would each be as large as
    # all of them together.
    leaves: list[Tensor] = [torch.empty(0)] * len(data.sites)
    for bundle, values in zip(data.bundles, new, strict=True):
        for number, part in zip(bundle, values.detach().unbind(), strict=True):
            leaves[number] = part.requires_grad_()
    branches = [
        Branch(step.prompts, (Change(site, at.row, at.base, _given(leaf)),))
        for site, at, leaf in zip(data.sites, step.tokens, leaves, strict=True)
    ]
    losses = torch.zeros(len(branches), dtype=torch.float64)
    weights, read = data.model.decoder, step.targets.shape[1]
    if data.unread:
        base = step.run.final(read)[step.prompts][None]
        losses[list(data.unread)] = row_losses(weights, base, step, loss).mean().double().cpu()
    seen = [i for i in range(len(branches)) if i not in data.unread]
    held = logits_held(weights, step.targets, loss)
    for part in _stacks(step.run, [branches[i] for i in seen], held):
        some = [seen[i] for i in part]
        finals = step.run.run([branches[i] for i in some], read=read)
        each = row_losses(weights, torch.stack(finals), step, loss).mean(dim=1)
        losses[some] = each.detach().double().cpu()
        if each.requires_grad:
            each.sum().backward()
    roots, gradients = list[Tensor](), list[Tensor]()
    for bundle, values in zip(data.bundles, new, strict=True):
        # A site that nothing is read behind has no gradient.
        found = [leaves[i].grad for i in bundle]
        roots.append(values)
        gradients.append(
            torch.stack([torch.zeros_like(leaves[bundle[0]]) if x is None else x for x in found])
        )
    for trainable in trainables:
        penalty = trainable.penalty(progress)
        if penalty is not None:
            roots.append(penalty)
            gradients.append(torch.ones_like(penalty))
    torch.autograd.backward(roots, gradients)
    return losses


def _given(leaf: Float[Tensor, "m d"]) -> Callable[[Tensor], Tensor]:
    return lambda values: leaf.to(values.dtype)


def logits_held(decoder: Decoder, targets: Int[Tensor, "n m"], loss: Loss) -> int:
    """Numbers held of the predicted tokens of some rows."""
    if loss != "cross-entropy":
        return 0
    return READOUT_COPIES * int((targets != NO_TOKEN).sum()) * decoder.unembedding.shape[0]


def row_losses(
    decoder: Decoder, finals: Float[Tensor, "runs n m d"], step: StepData, loss: Loss
) -> Float[Tensor, "runs n"]:
    """The losses of the rows of a step in some runs of them."""
    runs, n = finals.shape[:2]
    read = step.targets != NO_TOKEN
    if loss == "cross-entropy":
        targets = step.targets[read].repeat(runs)
        logits = decoder.readout(finals[:, read].flatten(0, 1)).all()
        each = F.cross_entropy(logits, targets, reduction="none").unflatten(0, (runs, -1))
        return each.new_zeros(runs, n).index_add(1, read.nonzero()[:, 0], each)
    assert step.own is not None
    # The first token of a label is predicted in the last column of its prompt.
    first = step.targets.shape[1] - read.sum(dim=1)
    rows = torch.arange(n, device=first.device)
    tokens = torch.stack((step.targets[rows, first], step.own), dim=1)
    logits = decoder.readout(finals[:, rows, first].flatten(0, 1)).at(tokens.repeat(runs, 1))
    difference = (logits[:, 1] - logits[:, 0]).unflatten(0, (runs, n))
    if loss == "logit-difference":
        return difference
    assert step.expected is not None
    return (difference - step.expected.to(difference.dtype)) ** 2


def _stacks(run: BaseRun, branches: Sequence[Branch], logits: int) -> Iterator[list[int]]:
    """Cells that are differentiated together, by number: as many as memory allows, at least one.

    Args:
        logits: numbers held of a branch's predicted tokens.
    """
    device, columns = run.model.device, run.n_columns
    token, row = suffix_bytes(run.model.decoder, columns, gradients=True)
    budget = byte_budget(token + row // columns, columns, device)
    read = logits * max(4, run.model.decoder.embedding.element_size())
    order = sorted(range(len(branches)), key=lambda i: branches[i].depth)
    some, used, tokens = list[int](), 0, 0
    for i in order:
        n_tokens = branches[i].n_tokens(columns)
        cost = n_tokens * token + len(branches[i].prompts) * row + read
        full = used + cost > budget or (device.type == "cpu" and tokens + n_tokens > STACK_TOKENS)
        if some and full:
            yield some
            some, used, tokens = [], 0, 0
        some.append(i)
        used, tokens = used + cost, tokens + n_tokens
    if some:
        yield some


def digest_of(tensors: Sequence[Tensor]) -> str:
    """A digest of what a training begins with."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().double().numpy().tobytes())
    return digest.hexdigest()
