"""One training for many sites, each with its own parameters: each site alone, or all in one run.

    alone      L_i = mean over rows of the loss after the base's value at site i became new_i
    together   L   = mean over rows of the loss at the end of a run in which all sites change

A step of the parameters p_i of site i is one step of Adam(W) along the gradient of its loss plus
its penalty, on the rows of one batch. All sites walk the same batches. `train` has the algorithm
for sites alone, `joint_gradients` that for sites together (as in pyvene and in MIB's code), and
`TrainingData` what a step works on.

The loss of a row is -log p(label | base after the interchange), the sum over the label's tokens,
each after the tokens before it (teacher forcing). Only columns that predict a token are
unembedded. MIB's code takes the mean over a batch's tokens instead, which is the same where
labels have one token. With D = logit(base's own label) - logit(label), of their first tokens,

    "logit-difference"   D
    "squared-error"      (D - value)^2, with the value that is expected of the row
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit
from torch import Tensor

from mechassay.errors import NonFinite
from mechassay.features.featurizer import Featurizer
from mechassay.interventions.intervene import STACK_TOKENS, BaseRun, Branch, Change, site_values
from mechassay.interventions.intervention import Interchange, place_together, tokens_of
from mechassay.interventions.site import ALL, Site
from mechassay.models.decoder import Decoder
from mechassay.models.memory import byte_budget, kept_run_bytes, may_be_kept, suffix_bytes
from mechassay.models.model import Model
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.stats.intervals import Estimate
from mechassay.utils.checkpoint import descend
from mechassay.utils.display import Advance


@dataclass(frozen=True, eq=False)
class SiteTokens:
    """A site's tokens, in the order of their rows, of base and source beside each other."""

    row: Int[Tensor, "m"]
    base: Int[Tensor, "m"]
    source: Int[Tensor, "m"]

    @staticmethod
    def of(batch: InterchangeBatch, site: Site) -> SiteTokens:
        """The tokens of a site in a batch; see `placed.tokens_of`, whose errors it raises."""
        row, base, source = tokens_of(batch, site)
        assert source is not None
        return SiteTokens(row, base, source)

    @staticmethod
    def together(batch: InterchangeBatch, sites: Sequence[Site]) -> list[SiteTokens]:
        """The tokens of sites that are changed in one run; those that stay as they are left out."""
        tokens: list[SiteTokens] = []
        for placed in place_together(batch, dict.fromkeys(sites, Interchange())):
            assert placed.source is not None
            tokens.append(SiteTokens(placed.row, placed.base, placed.source))
        return tokens

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def one_a_row(self) -> bool:
        """Whether token i is that of row i."""
        return torch.equal(self.row, torch.arange(len(self.row), device=self.row.device))


@dataclass(frozen=True, eq=False)
class BundleValues:
    """Values of a bundle's sites at the tokens of some rows, as the model has them."""

    base: Float[Tensor, "sites m d"]
    source: Float[Tensor, "sites m d"]


@dataclass(frozen=True, eq=False)
class StepData:
    """Some rows of a batch.

    Attributes:
        run: a run of their bases, and maybe of others.
        prompts: which of the run's prompts they are.
        targets: tokens that the last columns predict; NO_TOKEN where they predict none.
        own: the same for the labels of the bases' own run, at the last column of the prompt alone.
        expected: what is expected of the logit difference; see `InterchangeBatch.values`.
        tokens: of each site, as rows of the step and columns of the run.
        values: of each bundle.
    """

    run: BaseRun
    prompts: Int[Tensor, "n"]
    targets: Int[Tensor, "n m"]
    own: Int[Tensor, "n"] | None
    expected: Float[Tensor, "n"] | None
    tokens: tuple[SiteTokens, ...]
    values: tuple[BundleValues, ...]


class TrainingData:
    """A batch of interchanges and sites, given out by rows.

    Values of bases and sources at the sites are taken once, and so is the run of the bases,
    where they fit into memory. Else they are made again for the rows of a step, once for all
    sites together. Sites whose values have one shape make a *bundle*, so that they are computed
    in one batched call. Sites that are changed together in one run are a bundle each, and their
    tokens before the first difference of base and source are left out.

    Attributes:
        unread: sites, by number, of the last layer, at tokens where no label is predicted: what
            they hold changes nothing.

    Args:
        together: whether all sites are changed in one run.
        keep: whether runs and values are kept; where memory allows it by default.
    """

    def __init__(
        self,
        model: Model,
        batch: InterchangeBatch,
        sites: Sequence[Site],
        *,
        together: bool = False,
        keep: bool | None = None,
    ) -> None:
        self.model, self.batch, self.sites = model, batch.teacher_forced(), tuple(sites)
        batch = self.batch
        self.targets = batch.targets
        self.own = None if batch.base_labels is None else batch.base_labels[:, 0]
        self.expected = batch.values
        self.together = together
        self.tokens = self._tokens(batch)
        widths = [site.width(model.decoder) for site in self.sites]
        alone = tuple((number,) for number in range(len(self.sites)))
        self.bundles = alone if together else _bundles(self.sites, widths)
        self.widths = [widths[bundle[0]] for bundle in self.bundles]
        self.unread = frozenset(
            number
            for number, (site, at) in enumerate(zip(self.sites, self.tokens, strict=True))
            if site.place[1] == len(model.decoder.layers)
            and bool((at.base < batch.base.shape[1] - batch.targets.shape[1]).all())
        )
        size = model.decoder.embedding.element_size()
        numbers = sum(2 * len(at) * width for at, width in zip(self.tokens, widths, strict=True))
        run_bytes = batch.base.numel() * kept_run_bytes(model.decoder)
        fits = may_be_kept(run_bytes + numbers * size, model.device) if keep is None else keep
        self.run = BaseRun.of(model, batch.base, batch.base_mask) if fits else None
        self.values = None if self.run is None else self._values(self.run, batch, self.tokens)

    def __len__(self) -> int:
        return len(self.batch)

    def _tokens(self, batch: InterchangeBatch) -> list[SiteTokens]:
        if self.together:
            return SiteTokens.together(batch, self.sites)
        return [SiteTokens.of(batch, site) for site in self.sites]

    @torch.no_grad()
    def step(self, rows: Int[Tensor, "n"]) -> StepData:
        """The rows of a step."""
        rows = rows.to(self.model.device)
        targets, own = self.targets[rows], None if self.own is None else self.own[rows]
        expected = None if self.expected is None else self.expected[rows]
        if self.run is None or self.values is None:
            some = self.batch.select(rows)
            run = BaseRun.of(self.model, some.base, some.base_mask)
            # Labels of other rows may be longer than all of these rows' prompts with theirs.
            targets = targets[:, -run.n_columns :]
            tokens = tuple(self._tokens(some))
            values = self._values(run, some, tokens)
            places = torch.arange(len(rows), device=rows.device)
            return StepData(run, places, targets, own, expected, tokens, values)
        picked = [_picked(at, rows, len(self)) for at in self.tokens]
        tokens = tuple(
            SiteTokens(row, at.base[index], at.source[index])
            for at, (row, index) in zip(self.tokens, picked, strict=True)
        )
        values = tuple(
            BundleValues(all_.base[:, index], all_.source[:, index])
            for all_, index in zip(
                self.values, (picked[bundle[0]][1] for bundle in self.bundles), strict=True
            )
        )
        return StepData(self.run, rows, targets, own, expected, tokens, values)

    def _values(
        self, run: BaseRun, batch: InterchangeBatch, tokens: Sequence[SiteTokens]
    ) -> tuple[BundleValues, ...]:
        wanted = [(s, at.row, at.source) for s, at in zip(self.sites, tokens, strict=True)]
        sources = site_values(self.model, batch.source, batch.source_mask, wanted)
        bases = [run.values(s, at.row, at.base) for s, at in zip(self.sites, tokens, strict=True)]
        return tuple(
            BundleValues(*(torch.stack([of[i] for i in bundle]) for of in (bases, sources)))
            for bundle in self.bundles
        )


def _bundles(sites: Sequence[Site], widths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Sites by number that have equally many values, of equally many numbers."""
    bundles: dict[tuple[int, bool], list[int]] = {}
    for number, (site, width) in enumerate(zip(sites, widths, strict=True)):
        bundles.setdefault((width, site.position == ALL), []).append(number)
    return tuple(map(tuple, bundles.values()))


def _picked(
    at: SiteTokens, rows: Int[Tensor, "n"], n_rows: int
) -> tuple[Int[Tensor, "m"], Int[Tensor, "m"]]:
    """Of the tokens of some rows: the row's place among those rows, and the token's number."""
    places = torch.arange(len(rows), device=rows.device)
    if len(at) == n_rows and at.one_a_row:
        return places, rows
    counts = torch.bincount(at.row, minlength=n_rows)
    begins = counts.cumsum(0) - counts
    row = torch.repeat_interleave(places, counts[rows])
    within = (
        torch.arange(len(row), device=rows.device) - (counts[rows].cumsum(0) - counts[rows])[row]
    )
    return row, begins[rows][row] + within


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

    def warning(self, number: int, progress: float) -> str:
        """What a reader of a site's features has to know of their training; "" if nothing."""
        return ""

    @abstractmethod
    def learned(self, number: int) -> tuple[Featurizer, Bool[Tensor, "k"] | None]:
        """The features of a site after the training, and which are meant."""


Cooling = Literal["full", "mib-2025"]
"""How temperatures fall over the steps; see `TrainingPlan.progress`."""


@dataclass(frozen=True)
class TrainingPlan:
    """Which rows every step takes, and its share of the learning rate.

    Attributes:
        size: rows of a batch; the last batch of an epoch has what is left.
        shuffle: a seed of the order of each epoch; None: the order of the rows.
        cooling: see `progress`.
    """

    n: int
    size: int
    steps: int
    shuffle: int | None = None
    linear: bool = False
    warmup: float = 0.0
    cooling: Cooling = "full"

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
        """How far temperatures have fallen at a step: 0 at the first and 1 at the last one.

        With the cooling "mib-2025", as MIB's code walks through its steps + 1 temperatures: the
        first two steps have the second one, and the last one is never reached (but in a training
        of one step).
        """
        if self.cooling == "mib-2025":
            return max(1, step) / self.steps
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

    A step of the parameters p_i of sites i = 1..S, on the rows of one batch:

        new_i  = change(base_i, source_i; p_i)              batched over the sites of a bundle
        L_i    = mean over rows of the loss after the base's value at site i became new_i
        p_i    <- one step of Adam(W) along the gradient of L_i + penalty_i

    The sum of L_i is differentiated. L_i does not depend on p_j and Adam works number by
    number, so a stack gives what trainings of single sites give, in any order and number. (What
    mixes sites, such as the norm of all gradients, is not used.) Only columns and layers behind
    a site are run. Stacks are cut over sites where memory asks for it: the gradients at `new`
    are collected stack by stack, and go through `change` once.

    Penalties are no part of the losses that are returned.

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
            leave_gradients = leave(
                data, trainables, data.step(rows[step]), plan.progress(step), loss
            )
        losses[step] = leave_gradients
        strange = (~torch.isfinite(leave_gradients)).nonzero()
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
    leaves: list[Tensor] = [torch.empty(0, dtype=torch.float32)] * len(data.sites)
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
        row_means = row_losses(weights, torch.stack(finals), step, loss).mean(dim=1)
        losses[some] = row_means.detach().double().cpu()
        if row_means.requires_grad:
            row_means.sum().backward()
    roots, gradients = list[Tensor](), list[Tensor]()
    for bundle, values in zip(data.bundles, new, strict=True):
        # A site that nothing is read behind has no gradient.
        leaf_gradients = [leaves[i].grad for i in bundle]
        roots.append(values)
        gradients.append(
            torch.stack(
                [torch.zeros_like(leaves[bundle[0]]) if x is None else x for x in leaf_gradients]
            )
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
        losses = F.cross_entropy(logits, targets, reduction="none").unflatten(0, (runs, -1))
        return losses.new_zeros(runs, n).index_add(1, read.nonzero()[:, 0], losses)
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


LEVELLED_OFF = 1 / 8
STEADY = 1 / 10
LEAST_STEPS = 8


def fall_of(losses: Float[np.ndarray, "steps"], steps_of_epoch: int) -> Estimate:
    """How much the loss of a training still falls: what the straight line through its second half
    falls by in a quarter of the training, as a share of the mean loss of the last quarter.

    With the 90 % interval of least squares, so that the upper end is a one-sided bound of 95 %.
    Losses are those of epochs where there are at least eight, as rows differ within an epoch; else
    of steps. Were the fall to go on at this rate for as many steps again, an eighth a quarter would
    be half of the loss. NaN for fewer than eight steps, of which nobody can say so.
    """
    return _fall(losses, steps_of_epoch)[0]


def _fall(losses: Float[np.ndarray, "steps"], steps_of_epoch: int) -> tuple[Estimate, float]:
    """The fall as a share of the last loss; and its lower end as a share of all that the loss has
    fallen since the first tenth, NaN where it has not.
    """
    n_epochs = len(losses) // max(1, steps_of_epoch)
    if n_epochs >= LEAST_STEPS:
        losses = losses[: n_epochs * steps_of_epoch].reshape(n_epochs, -1).mean(axis=1)
    n = len(losses)
    last = float(losses[n - n // 4 :].mean()) if n >= LEAST_STEPS else 0.0
    if last == 0:
        return Estimate(math.nan), math.nan
    half = losses[n // 2 :]
    time = np.arange(len(half)) - (len(half) - 1) / 2
    slope = float(time @ half / (time @ time))
    residuals = half - half.mean() - slope * time
    error = math.sqrt(float(residuals @ residuals) / (len(half) - 2) / float(time @ time))
    fall, wide = -slope * n / 4, float(stdtrit(len(half) - 2, 0.95)) * error * n / 4
    whole = float(losses[: max(1, n // 10)].mean()) - last
    share = (fall - wide) / whole if whole > 0 else math.nan
    level = abs(last)
    return Estimate(fall / level, (fall - wide) / level, (fall + wide) / level), share


def still_falling(losses: Float[np.ndarray, "steps"], steps_of_epoch: int) -> bool:
    """Whether a training was cut short: its last quarter still lowers the loss.

    It may by an eighth of the loss (the upper end of `fall_of`, which fewer than eight steps do not
    have), or it surely does by a tenth of all that the loss has fallen (the lower end). A loss that
    falls in a straight line, as at a small learning rate, has .3 there; one that has come to its
    end has 0.
    """
    fall, share_of_all = _fall(losses, steps_of_epoch)
    return not fall.high < LEVELLED_OFF or share_of_all > STEADY


def digest_of(tensors: Sequence[Tensor]) -> str:
    """A digest of what a training begins with."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().double().numpy().tobytes())
    return digest.hexdigest()


def joint_gradients(
    data: TrainingData, trainables: Sequence[Trainable], step: StepData, progress: float, loss: Loss
) -> Float[Tensor, "sites"]:
    """Leave the gradients of one run of all sites on their parameters; its loss, for every site,
    without penalties.

    A step of the parameters p_1..p_S, with the sites in the order of the forward pass, on the
    rows of one batch:

        run the bases; at site i the current value v_i becomes change(v_i, source_i; p_i)
        L      = mean over rows of the loss at the end of that run
        p_i    <- one step of Adam(W) along the gradient of L + the sum of penalties

    v_i is what the changes at earlier sites have left there, as in pyvene and in MIB's code,
    and gradients go back through it. source_i is the value of the source's run, in which
    nothing is changed. (Mueller et al. 2025 change four heads in two layers so, with a rotation
    a head.)

    Only columns and layers behind the first change are run. Rows in which base and source are
    the same have the base run's loss. Where memory asks for it a batch is cut over rows, and
    the gradients of its parts are added up.

    Args:
        data: of sites that are changed together.
    """
    decoder, n, read = data.model.decoder, len(step.prompts), step.targets.shape[1]
    changed = torch.zeros(n, dtype=torch.bool, device=step.targets.device)
    for at in step.tokens:
        changed[at.row] = True
    total = 0.0
    same = (~changed).nonzero()[:, 0]
    if len(same):
        some = _rows_of(step, same)
        with torch.no_grad():
            finals = step.run.final(read)[some.prompts]
            total += float(row_losses(decoder, finals[None], some, loss).double().sum()) / n
    for rows in _parts(data, step, changed.nonzero()[:, 0], loss):
        some = _rows_of(step, rows)
        changes = [
            Change(site, at.row, at.base, _new(trainable, values.source, progress))
            for site, at, trainable, values in zip(
                data.sites, some.tokens, trainables, some.values, strict=True
            )
            if len(at)
        ]
        [finals] = step.run.run([Branch(some.prompts, tuple(changes))], read=read)
        share = row_losses(decoder, finals[None], some, loss).sum() / n
        total += float(share.detach())
        # Where nothing is read behind the sites there is no gradient.
        if share.requires_grad:
            share.backward()
    for trainable in trainables:
        penalty = trainable.penalty(progress)
        if penalty is not None:
            penalty.sum().backward()
    for trainable in trainables:
        for tensor, _ in trainable.parameters():
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
    return torch.full((len(data.sites),), total, dtype=torch.float64)


def _new(
    trainable: Trainable, source: Float[Tensor, "one m d"], progress: float
) -> Callable[[Tensor], Tensor]:
    """The change of one site's current values."""

    def new(values: Tensor) -> Tensor:
        return trainable.new(BundleValues(values[None], source), progress)[0].to(values.dtype)

    return new


def _rows_of(step: StepData, rows: Int[Tensor, "some"]) -> StepData:
    """Some rows of a step, each with all of its tokens."""
    place = rows.new_full((len(step.prompts),), -1)
    place[rows] = torch.arange(len(rows), device=rows.device)
    kept = [(place[at.row] >= 0).nonzero()[:, 0] for at in step.tokens]
    return StepData(
        step.run,
        step.prompts[rows],
        step.targets[rows],
        None if step.own is None else step.own[rows],
        None if step.expected is None else step.expected[rows],
        tuple(
            SiteTokens(place[at.row[index]], at.base[index], at.source[index])
            for at, index in zip(step.tokens, kept, strict=True)
        ),
        tuple(
            BundleValues(values.base[:, index], values.source[:, index])
            for values, index in zip(step.values, kept, strict=True)
        ),
    )


def _parts(
    data: TrainingData, step: StepData, rows: Int[Tensor, "n"], loss: Loss
) -> Iterator[Int[Tensor, "some"]]:
    """Rows that are differentiated together: as many as memory allows, at least one."""
    if not len(rows):
        return
    device, columns = data.model.device, step.run.n_columns
    token, row = suffix_bytes(data.model.decoder, columns, gradients=True)
    budget = byte_budget(token + row // columns, columns, device)
    size = max(4, data.model.decoder.embedding.element_size())
    read = size * logits_held(data.model.decoder, step.targets, loss) // len(step.targets)
    # As if every row were run from its first column on.
    most = budget // (columns * token + row + read)
    if device.type == "cpu":
        most = min(most, STACK_TOKENS // columns)
    yield from rows.split(max(1, most))
