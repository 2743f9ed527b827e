"""Training a mask over all edges: what UGS, subnetwork probing and edge pruning share.

A step draws some examples and some random masks m of real numbers, evaluates the masked model
(`models.masked_forward`) and descends

    fidelity(m) + penalty,      fidelity = mean over examples and masks of KL(P_clean || P_masked)

at the last token, or of minus the objective where `loss` is "objective". A method (`Masks`) draws
masks from trainable parameters and sets the penalty. A caller may draw each step's examples itself
(`DrawExamples`), and weigh them by their losses, each a mean over its masks (`WeighExamples`).

Where ablated edges carry constants, edges of a drawn mask that are on no path of nonzero edges from
`input` to `logits` are zeroed, as when a circuit is evaluated. Where they carry a run of the model
such edges change nothing, and have no gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.checkpoint import key_of
from mechassay.circuits.methods.method import check_gradients, provenance_of, seeded
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage, NonFinite, one_of
from mechassay.graph import Graph
from mechassay.models.constants import constants_of
from mechassay.models.decoder import Readout
from mechassay.models.masked_forward import masked_readout
from mechassay.models.memory import masked_bytes, out_of_memory_is_an_error, token_budget
from mechassay.models.model import Model
from mechassay.models.trace import Contrast
from mechassay.objectives import Kl, Objective, ObjectiveLike, load_objective, signed
from mechassay.pairs import Batch, PairsLike
from mechassay.progress import BAR, Progress
from mechassay.training import Order, descend

Loss = Literal["kl", "objective"]
MIN_STEPS = 3
"""Losses are reported by thirds of the training."""

# Hard concrete masks (Louizos et al. 2018), as in subnetwork probing and edge pruning.
BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1


DrawExamples = Callable[[torch.Generator], Batch]
"""The examples of the next step."""
WeighExamples = Callable[[Tensor], Tensor]
"""The weights of a step's examples, by their losses in fp64; both have an entry an example."""


class Masks(ABC):
    """Random masks with trainable parameters."""

    @abstractmethod
    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        """Masks, differentiable by the parameters; any value at places without an edge."""

    @abstractmethod
    def penalty(self, step: int) -> Float[Tensor, ""]:
        """What is added to the loss at a step, counted from 0."""

    @abstractmethod
    def probabilities(self) -> Float[Tensor, "writers readers"]:
        """The score of every edge: how probable it is that the mask keeps it."""

    def reached(self) -> dict[str, Any]:
        """What else the provenance says of the end of the training."""
        return {}


class MaskMethod(ABC):
    """A method that trains masks: a frozen dataclass whose fields are those below and its own.

    Attributes:
        steps: updates of the parameters.
        batch_size: examples a step; all of them if there are fewer.
        samples: masks drawn a step, for each example if `per_example`, else for all of them.
        loss: "kl" or "objective".
        seed: of the order of examples and of the masks.
        clip: largest norm of a step's gradient, of each of the optimiser's groups of parameters.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    per_example: ClassVar[bool] = False
    clip: ClassVar[float | None] = None
    steps: int
    batch_size: int
    samples: int
    loss: Loss
    seed: int

    @abstractmethod
    def start(self, model: Model) -> tuple[Masks, torch.optim.Optimizer]:
        """The masks before the first step, and the optimiser of their parameters."""

    def score(
        self,
        model: Model,
        pairs: PairsLike,
        objective: ObjectiveLike = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
        examples: DrawExamples | None = None,
        weigh: WeighExamples | None = None,
    ) -> EdgeScores:
        """See `Method.score`; scores are probabilities.

        The objective plays a part only if `loss` is "objective".

        Args:
            examples: what each step is on; `batch_size` of the pairs if not given.
            weigh: how much each of them counts; all alike if not given. Where either is given,
                `checkpoint` is not used: a killed job starts again.
        """
        self._check()
        check_gradients(self.name, model)
        batch, chosen = model.batch(pairs), load_objective(objective)
        if self.loss == "kl":
            chosen = Kl()
        elif not chosen.differentiable:
            raise BadUsage(f"{self.name} needs a differentiable objective; {chosen.name!r} is not.")
        masks, optimiser = self.start(model)
        about = provenance_of(self, model, batch, chosen)
        losses = train(
            model,
            batch,
            chosen,
            masks,
            optimiser,
            self,
            about=about,
            progress=progress,
            checkpoint=checkpoint if examples is None and weigh is None else None,
            examples=examples,
            weigh=weigh,
        )
        about |= {"losses": summary(losses), **masks.reached()}
        return EdgeScores.of(model.graph, masks.probabilities().detach(), about)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: the training."""
        self._check()
        runs = 2.0 + self.samples * masked_forwards(graph)
        return self.steps * min(self.batch_size, n_pairs) * runs

    def _check(self) -> None:
        if self.steps < MIN_STEPS:
            raise BadUsage(
                f"Training a mask needs at least {MIN_STEPS} steps; got steps={self.steps}."
            )
        for name in ("batch_size", "samples"):
            if getattr(self, name) < 1:
                raise BadUsage(
                    f"Training a mask needs {name} of at least 1; got {getattr(self, name)}."
                )
        one_of("loss", self.loss, get_args(Loss))


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
    method: MaskMethod,
    *,
    about: Mapping[str, Any],
    progress: Progress,
    checkpoint: Path | None = None,
    examples: DrawExamples | None = None,
    weigh: WeighExamples | None = None,
) -> Float[Tensor, "steps parts"]:
    """Train the parameters of `masks`, which `optimiser` holds, in place; the loss of every step.

    Args:
        about: what is trained; a checkpoint of anything else is not taken up.
        examples: what each step is on; `batch_size` examples of the batch if not given.
        weigh: how much each of them counts; all alike if not given.

    Raises:
        NonFinite: the loss or its gradient is infinite or NaN; the message has the step.
        OutOfMemory: one example does not fit.
    """
    generator, order = seeded(method.seed), Order(len(batch), method.batch_size)
    draw = (lambda rng: batch.select(order.draw(rng))) if examples is None else examples
    budget = token_budget(masked_bytes(model.decoder), batch.n_tokens, model.device)
    losses = torch.zeros(method.steps, len(StepLoss._fields), dtype=torch.float64)

    def differentiate(step: int) -> None:
        part = draw(generator)
        drawn = masks.draw(method.samples * (len(part) if method.per_example else 1), generator)
        weights = None
        if weigh is not None:
            weights = weigh(losses_of(model, part, objective, drawn.detach(), method, budget))
        fidelity, gradient = fidelity_and_gradient(
            model, part, objective, drawn.detach(), method, budget, weights
        )
        penalty = masks.penalty(step)
        loss = StepLoss(fidelity, float(penalty.detach()))
        if not bool(torch.isfinite(gradient).all()) or not all(map(math.isfinite, loss)):
            raise NonFinite(
                f"{method.name}: the loss or its gradient is not finite at step {step + 1} of"
                f" {method.steps}: {loss}."
            )
        losses[step] = torch.tensor(loss, dtype=torch.float64)
        torch.autograd.backward([drawn, penalty], [gradient.to(drawn), torch.ones_like(penalty)])

    with (
        torch.enable_grad(),
        progress.track(method.name, method.steps) as advance,
        out_of_memory_is_an_error(method.name),
    ):
        key = {**about, "budget": budget, "graph": model.graph.fingerprint}
        descend(
            differentiate,
            optimiser,
            method.steps,
            advance=advance,
            key=key_of(key),
            checkpoint=checkpoint,
            generator=generator,
            also={**order.kept, "losses": losses},
            clip=method.clip,
        )
    return losses


def masked_forwards(graph: Graph) -> float:
    """About how many plain forward passes a masked run and its gradient by the mask take.

    Mixing the streams of a layer's readers takes 3 a thousand edges of a layer.
    """
    return max(3.0, 3e-3 * graph.n_edges / graph.n_layers)


def fidelity_and_gradient(
    model: Model,
    batch: Batch,
    objective: Objective,
    drawn: Float[Tensor, "masks writers readers"],
    method: MaskMethod,
    budget: int,
    weights: Float[Tensor, "n"] | None = None,
) -> tuple[float, Float[Tensor, "masks writers readers"]]:
    """The mean loss of masked runs, by `weights` of the examples if given, and its gradient."""
    gradient, total, share = torch.zeros_like(drawn), 0.0, weights
    if share is None:
        share = torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)
    wanted = share.nonzero()[:, 0].tolist()
    runs = _masked_runs(model, batch, wanted, objective, drawn, method, budget)
    for rows, places, mask, run in runs:
        mask.requires_grad_()
        losses = run(mask)
        loss = (losses * share[rows].to(losses)).sum() / method.samples
        (by_mask,) = torch.autograd.grad(loss, mask)
        gradient[places] += by_mask * (mask != 0) if constants_of(batch) is not None else by_mask
        total += float(loss.detach())
    return total, gradient


@torch.no_grad()
def losses_of(
    model: Model,
    batch: Batch,
    objective: Objective,
    drawn: Float[Tensor, "masks writers readers"],
    method: MaskMethod,
    budget: int,
) -> Float[Tensor, "n"]:
    """The loss of each example, a mean over its masks, in fp64."""
    losses = torch.zeros(len(batch), dtype=torch.float64)
    everything = list(range(len(batch)))
    runs = _masked_runs(model, batch, everything, objective, drawn, method, budget)
    for rows, _, mask, run in runs:
        losses[rows] += run(mask).double().cpu() / method.samples
    return losses


def _masked_runs(
    model: Model,
    batch: Batch,
    wanted: list[int],
    objective: Objective,
    drawn: Float[Tensor, "masks writers readers"],
    method: MaskMethod,
    budget: int,
) -> Iterator[tuple[list[int], list[int], Tensor, Callable[[Tensor], Tensor]]]:
    """Rows of examples, places and values of one mask each, and a mask's loss per example."""
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

        for sample in range(method.samples):
            places = [sample * len(batch) + row for row in rows] if method.per_example else [sample]
            mask = drawn[places]
            if constants_of(batch) is not None:
                mask = mask * connected(model.graph, mask)
            yield rows, places, mask, run


def connected(
    graph: Graph, masks: Float[Tensor, "masks writers readers"]
) -> Float[Tensor, "masks writers readers"]:
    """One where an edge is on a path of nonzero edges from `input` to `logits`, else zero."""
    edges = (masks.detach() != 0).cpu() & graph.legal
    return torch.stack([graph.on_paths(each) & each for each in edges]).to(masks)


def summary(losses: Float[Tensor, "steps parts"]) -> dict[str, Any]:
    """First, last and means over thirds of each part of the loss, and of their sum."""
    columns = dict(zip(StepLoss._fields, losses.unbind(1), strict=True)) | {"loss": losses.sum(1)}
    return {
        name: {
            "first": float(column[0]),
            "last": float(column[-1]),
            "thirds": [float(part.mean()) for part in column.tensor_split(3)],
        }
        for name, column in columns.items()
    }


class HardConcrete(Masks):
    """One hard concrete variable an edge (Louizos et al. 2018).

    m = clamp(s (zeta - gamma) + gamma, 0, 1), s = sigmoid((logit u + log alpha) / beta).
    """

    def __init__(self, graph: Graph, log_alpha: Float[Tensor, "writers readers"]) -> None:
        self.legal = graph.legal.to(log_alpha.device)
        self.log_alpha = log_alpha.requires_grad_()

    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        u = torch.rand((n, *self.log_alpha.shape), generator=generator)
        u = u.clamp(1e-6, 1 - 1e-6).to(self.log_alpha)
        s = torch.sigmoid((torch.logit(u) + self.log_alpha) / BETA)
        return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1) * self.legal

    def probabilities(self) -> Float[Tensor, "writers readers"]:
        """P(m > 0) of every edge."""
        return torch.sigmoid(self.log_alpha - BETA * math.log(-GAMMA / ZETA))

    def mean_kept(self) -> Float[Tensor, ""]:
        """The mean of P(m > 0) over all edges."""
        return self.probabilities()[self.legal].mean()
