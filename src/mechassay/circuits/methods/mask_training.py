"""Training a mask over all edges by gradient descent:
what UGS, subnetwork probing and edge pruning share.

A step draws some examples and some random masks m of real numbers, evaluates the masked model
(`models.masked_forward`) and descends

    fidelity(m) + penalty,      fidelity = mean over examples and masks of KL(P_clean || P_masked)

at the last token, or of minus the objective where `loss` is "objective". How masks are drawn from
trainable parameters, and what the penalty is, is the method's (`Masks`). The model's own parameters
never get gradients. Another `Tail` than the mean weighs a step's examples by their losses, each a
mean over its masks; examples may come with other counterfactuals each step (`Examples`).

Where ablated edges carry constants, edges of a drawn mask that are on no path of nonzero edges from
`input` to `logits` are zeroed, as when a circuit is evaluated: a circuit that is not connected is
the empty one. Where they carry a run of the model such edges change nothing, and have no gradient.

Losses are recorded in the provenance: of the first and the last step, and means over thirds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.circuits.methods.method import Method, check_gradients, describe, seeded
from mechassay.circuits.scores import EdgeScores
from mechassay.circuits.tail import MEAN, Mean, Tail, even
from mechassay.errors import BadUsage, NonFinite, UnknownName
from mechassay.graph import Graph
from mechassay.models.constants import constants_of
from mechassay.models.decoder import Readout
from mechassay.models.masked_forward import masked_readout
from mechassay.models.memory import masked_bytes, out_of_memory_is_an_error, token_budget
from mechassay.models.model import Model
from mechassay.models.trace import Contrast
from mechassay.objectives import Kl, Objective, load_objective, signed
from mechassay.pairs import Batch, Pair
from mechassay.progress import Progress

LOSSES = ("kl", "objective")
MIN_STEPS = 3
"""Losses are reported by thirds of the training."""

# Hard concrete masks (Louizos et al. 2018), as in subnetwork probing and edge pruning.
BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1


class Examples(Protocol):
    """What the steps of a training are on."""

    @property
    def n_groups(self) -> int:
        """How many groups the examples are in."""
        ...

    def draw(self, generator: torch.Generator) -> tuple[Batch, Int[Tensor, "n"]]:
        """The examples of the next step, and the number of each one's group."""
        ...


class Masks(Protocol):
    """Random masks with trainable parameters."""

    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        """Masks that are differentiable by the parameters.
        Values at places without an edge do not matter.
        """
        ...

    def penalty(self, step: int) -> Float[Tensor, ""]:
        """What is added to the loss at a step, counted from 0."""
        ...


@dataclass(frozen=True)
class Training:
    """How long and on what to train.

    Attributes:
        steps: updates of the parameters.
        batch_size: examples a step; all of them if there are fewer.
        samples: masks drawn a step, for each example if `per_example`, else for all of them.
        seed: of the order of examples and of the masks.
        loss: "kl" or "objective".
        clip: largest norm of a step's gradient, of each of the optimiser's groups of parameters.
    """

    steps: int
    batch_size: int
    samples: int
    seed: int
    loss: str = "kl"
    per_example: bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.steps < MIN_STEPS:
            raise BadUsage(
                f"Training a mask needs at least {MIN_STEPS} steps; got steps={self.steps}."
            )
        for name in ("batch_size", "samples"):
            if getattr(self, name) < 1:
                raise BadUsage(
                    f"Training a mask needs {name} of at least 1; got {getattr(self, name)}."
                )
        if self.loss not in LOSSES:
            raise UnknownName("loss", self.loss, LOSSES)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """About how many forward passes of one example the training takes;
        see `Method.forwards`.
        """
        return (
            self.steps
            * min(self.batch_size, n_pairs)
            * (2.0 + self.samples * masked_forwards(graph))
        )

    def objective(self, method: Method, objective: str | Objective) -> Objective:
        """What is trained on.

        Raises:
            BadUsage: an objective without a gradient.
        """
        chosen = load_objective(objective)
        if self.loss == "kl":
            return Kl()
        if not chosen.differentiable:
            raise BadUsage(
                f"{method.name} needs a differentiable objective; {chosen.name!r} is not."
            )
        return chosen


class StepLoss(NamedTuple):
    """The two parts of the loss at one step."""

    fidelity: float
    penalty: float


def train(
    model: Model,
    batch: Batch,
    objective: Objective,
    masks: Masks,
    optimiser: torch.optim.Optimizer,
    training: Training,
    *,
    label: str,
    progress: Progress,
    examples: Examples | None = None,
    tail: Tail = MEAN,
) -> list[StepLoss]:
    """Train the parameters of `masks`, which `optimiser` holds, in place; losses of all steps.

    Args:
        examples: what each step is on; `batch_size` examples of the batch if not given.

    Raises:
        NonFinite: the loss or its gradient is infinite or NaN; the message has the step.
        OutOfMemory: one example does not fit.
    """
    generator = seeded(training.seed)
    budget = token_budget(masked_bytes(model.decoder), batch.n_tokens, model.device)
    source = Minibatches(batch, training.batch_size) if examples is None else examples
    standing = even(source.n_groups, torch.zeros((), dtype=torch.float64))
    losses: list[StepLoss] = []
    with (
        torch.enable_grad(),
        progress.track(label, training.steps) as advance,
        out_of_memory_is_an_error(label),
    ):
        for step in range(training.steps):
            part, groups = source.draw(generator)
            drawn = masks.draw(
                training.samples * (len(part) if training.per_example else 1), generator
            )
            weights = None
            if not isinstance(tail, Mean):
                found = losses_of(model, part, objective, drawn.detach(), training, budget)
                weights, standing = tail.weights(found, groups, standing)
            fidelity, gradient = fidelity_and_slope(
                model, part, objective, drawn.detach(), training, budget, weights
            )
            penalty = masks.penalty(step)
            loss = StepLoss(fidelity, float(penalty.detach()))
            if not bool(torch.isfinite(gradient).all()) or not all(
                -float("inf") < value < float("inf") for value in loss
            ):
                raise NonFinite(
                    f"{label}: the loss or its gradient is not finite at step {step + 1} of"
                    f" {training.steps}: {loss}."
                )
            optimiser.zero_grad()
            torch.autograd.backward(
                [drawn, penalty], [gradient.to(drawn), torch.ones_like(penalty)]
            )
            if training.clip is not None:
                for group in optimiser.param_groups:
                    torch.nn.utils.clip_grad_norm_(group["params"], training.clip)
            optimiser.step()
            losses.append(loss)
            advance(1)
    return losses


def masked_forwards(graph: Graph) -> float:
    """About how many plain forward passes a masked run and its slope by the mask take.

    A forward and a backward pass of twice its work are 3. Where a layer's readers see many writers,
    mixing their streams takes most of the time: 3 a thousand edges of a layer. Measured for shapes
    of GPT-2 with 6 and 12 layers (1,265 and 2,708 edges a layer): 3.1 and 8.2; of SmolLM2 with 15
    and 30 (2,007 and 4,107): 5.1 and 12.6.
    """
    return max(3.0, 3e-3 * graph.n_edges / graph.n_layers)


def minibatches(n: int, size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Row numbers of `size` of `n` examples, without end:
    one random order after another, each cut into batches.
    """
    size = min(size, n)
    while True:
        order = torch.randperm(n, generator=generator).tolist()
        for begin in range(0, n - size + 1, size):
            yield order[begin : begin + size]


@dataclass(eq=False)
class Minibatches:
    """Some of a batch's examples a step, all in one group."""

    batch: Batch
    size: int
    order: Iterator[list[int]] | None = None
    n_groups: int = 1

    def draw(self, generator: torch.Generator) -> tuple[Batch, Int[Tensor, "n"]]:
        """See `Examples.draw`; the order is the first generator's."""
        self.order = (
            minibatches(len(self.batch), self.size, generator) if self.order is None else self.order
        )
        part = self.batch.select(next(self.order))
        return part, torch.zeros(len(part), dtype=torch.long)


def fidelity_and_slope(
    model: Model,
    batch: Batch,
    objective: Objective,
    drawn: Float[Tensor, "masks writers readers"],
    training: Training,
    budget: int,
    weights: Float[Tensor, "n"] | None = None,
) -> tuple[float, Float[Tensor, "masks writers readers"]]:
    """The mean loss of masked runs and its gradient by the masks:
    some examples and one mask each at a time.

    Args:
        weights: of the examples in the mean, all alike if not given; those of weight 0 are not run.
    """
    gradient, total = torch.zeros_like(drawn), 0.0
    share = (
        torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)
        if weights is None
        else weights
    )
    wanted = share.nonzero()[:, 0].tolist()
    for rows, places, mask, run in _masked_runs(
        model, batch, wanted, objective, drawn, training, budget
    ):
        mask.requires_grad_()
        losses = run(mask)
        loss = (losses * share[rows].to(losses)).sum() / training.samples
        (slope,) = torch.autograd.grad(loss, mask)
        gradient[places] += slope * (mask != 0) if constants_of(batch) is not None else slope
        total += float(loss.detach())
    return total, gradient


@torch.no_grad()
def losses_of(
    model: Model,
    batch: Batch,
    objective: Objective,
    drawn: Float[Tensor, "masks writers readers"],
    training: Training,
    budget: int,
) -> Float[Tensor, "n"]:
    """The loss of each example, a mean over its masks, in fp64."""
    found = torch.zeros(len(batch), dtype=torch.float64)
    for rows, _, mask, run in _masked_runs(
        model, batch, list(range(len(batch))), objective, drawn, training, budget
    ):
        found[rows] += run(mask).double().cpu() / training.samples
    return found


def _masked_runs(
    model: Model,
    batch: Batch,
    wanted: list[int],
    objective: Objective,
    drawn: Float[Tensor, "masks writers readers"],
    training: Training,
    budget: int,
) -> Iterator[tuple[list[int], list[int], Tensor, Callable[[Tensor], Tensor]]]:
    """Chunks of the wanted examples with one mask each: their rows, the masks' places,
    the masks, and their losses by the masks.
    """
    decoder = model.decoder
    for chosen, chunk in batch.select(wanted).chunks(budget):
        rows = [wanted[row] for row in chosen]
        contrast = Contrast.run(decoder, chunk)
        clean = contrast.clean.readout(decoder) if objective.needs_clean else None

        def run(
            mask: Tensor,
            chunk: Batch = chunk,
            contrast: Contrast = contrast,
            clean: Readout | None = clean,
        ) -> Tensor:
            return -signed(objective, masked_readout(decoder, contrast, mask), chunk, clean)

        for sample in range(training.samples):
            places = (
                [sample * len(batch) + row for row in rows] if training.per_example else [sample]
            )
            mask = drawn[places]
            yield (
                rows,
                places,
                mask * connected(model.graph, mask) if constants_of(batch) is not None else mask,
                run,
            )


def connected(
    graph: Graph, masks: Float[Tensor, "masks writers readers"]
) -> Float[Tensor, "masks writers readers"]:
    """One where an edge is on a path of nonzero edges from `input` to `logits`, else zero."""
    edges = (masks.detach() != 0).cpu() & graph.legal
    return torch.stack([graph.on_paths(each) & each for each in edges]).to(masks)


def trained_scores(
    method: Method,
    model: Model,
    batch: Batch,
    objective: Objective,
    values: Tensor,
    losses: Sequence[StepLoss],
) -> EdgeScores:
    """Scores with how the training went."""
    about = describe(method, model, batch, objective)
    return EdgeScores.of(model.graph, values, {**about, "losses": summary(losses)})


def summary(losses: Sequence[StepLoss]) -> dict[str, Any]:
    """First, last and means over thirds of each part of the loss."""
    table = torch.tensor(losses, dtype=torch.float64)
    columns = {"fidelity": table[:, 0], "penalty": table[:, 1], "loss": table.sum(dim=1)}
    return {
        name: {
            "first": float(column[0]),
            "last": float(column[-1]),
            "thirds": [float(part.mean()) for part in column.tensor_split(3)],
        }
        for name, column in columns.items()
    }


class HardConcrete:
    """One hard concrete variable an edge: m = clamp(s (zeta - gamma) + gamma, 0,
    1), s = sigmoid((logit u + log alpha) / beta).

    The mean number of nonzero edges is the sum of P(m > 0) = sigmoid(log alpha - beta log(-gamma /
    zeta)).
    """

    def __init__(self, graph: Graph, log_alpha: Float[Tensor, "writers readers"]) -> None:
        self.legal = graph.legal.to(log_alpha.device)
        self.log_alpha = log_alpha.requires_grad_()

    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        u = (
            torch.rand((n, *self.log_alpha.shape), generator=generator)
            .clamp(1e-6, 1 - 1e-6)
            .to(self.log_alpha)
        )
        s = torch.sigmoid((torch.logit(u) + self.log_alpha) / BETA)
        return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1) * self.legal

    def kept(self) -> Float[Tensor, "writers readers"]:
        """P(m > 0) of every edge."""
        return torch.sigmoid(self.log_alpha - BETA * math.log(-GAMMA / ZETA))

    def mean_kept(self) -> Float[Tensor, ""]:
        """The mean of P(m > 0) over all edges."""
        return self.kept()[self.legal].mean()


def prepared(
    method: Method,
    training: Training,
    model: Model,
    pairs: Sequence[Pair] | Batch,
    objective: str | Objective,
) -> tuple[Batch, Objective]:
    """The batch and what to train on, with everything refused that cannot work,
    before anything is run.
    """
    check_gradients(method.name, model)
    return model.batch(pairs), training.objective(method, objective)
