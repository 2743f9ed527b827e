"""Mask learning: masks over all edges are trained; a score is the probability to keep the edge.

    edge-pruning          hard concrete masks at a target sparsity (Bhaskar et al. 2024)
    subnetwork-probing    hard concrete masks at a price for every edge (Cao et al. 2021)
    ugs                   uniform gradient sampling of edge probabilities (Li and Janson 2024)

A step draws some examples and some random masks m of real numbers, evaluates the masked model
(`models.gradients`) and descends

    fidelity(m) + penalty,    fidelity = mean over examples and masks of KL(P_clean || P_masked)

at the last token, or of minus the objective where `loss` is "objective". A method draws masks
from trainable parameters and sets the penalty (`Masks`), and may have losses of its own. A
caller may draw each step's examples itself (`DrawExamples`), and weigh them by their losses,
each a mean over its masks (`WeighExamples`).

Where ablated edges carry constants, edges of a drawn mask that are on no path of nonzero edges
from `input` to `logits` are zeroed, as when a circuit is evaluated. Where they carry a run of
the model such edges change nothing, and have no gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.methods.method import (
    Method,
    ScoreInputs,
    check_gradients,
    provenance_of,
    seeded,
)
from mechassay.circuits.scores import EdgeScores, NodeScores
from mechassay.errors import BadUsage, NonFinite
from mechassay.models.computing import bucket
from mechassay.models.decoder import Decoder, Readout
from mechassay.models.forward import Contrast, constants_of
from mechassay.models.gradients import KeptContrasts, masked_readout
from mechassay.models.graph import Graph
from mechassay.models.memory import (
    kept_run_bytes,
    masked_bytes,
    may_be_kept,
    out_of_memory_is_an_error,
    token_budget,
)
from mechassay.models.model import Model
from mechassay.models.objectives import Kl, Objective, Values, signed
from mechassay.prompts.batch import Batch
from mechassay.utils.checkpoint import Order, descend, key_of
from mechassay.utils.settings import Within, checked_settings

Loss = Literal["kl", "objective"]
LossT = TypeVar("LossT", bound=str)
MIN_STEPS = 3
"""Losses are reported by thirds of the training."""

# Hard concrete masks (Louizos et al. 2018), as in subnetwork probing and edge pruning.
BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1


DrawExamples = Callable[[torch.Generator], Batch]
"""The examples of the next step."""
WeighExamples = Callable[[Tensor], Tensor]
"""The weights of a step's examples, by their losses in fp64; both have an entry an example."""
ContrastOf = Callable[[list[int], Batch], Contrast]
"""The two runs of some rows of a step's examples, and of the batch that these rows are."""


class Masks(ABC):
    """Random masks with trainable parameters."""

    @abstractmethod
    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        """Masks, differentiable by the parameters; any value at places without an edge."""

    @abstractmethod
    def penalty(self, step: int) -> Float[Tensor, ""]:
        """What is added to the loss at a step, counted from 0."""

    @abstractmethod
    def probabilities(self) -> Float[Tensor, "writers *readers"]:
        """The score of every edge, or node: how probable it is that the mask keeps it."""

    def reached(self) -> dict[str, Any]:
        """What else the provenance says of the end of the training."""
        return {}


class MaskMethod(Method[EdgeScores | NodeScores], Generic[LossT]):
    """A method that trains masks: a frozen dataclass whose fields are those below and its own.

    Attributes:
        steps: updates of the parameters.
        batch_size: examples a step; all of them if there are fewer.
        samples: masks drawn a step, for each example if `per_example`, else for all of them.
        loss: "kl" or "objective".
        seed: of the order of examples and of the masks.
        clip: largest norm of a step's gradient, of each of the optimiser's groups of parameters.
    """

    per_example: ClassVar[bool] = False
    clip: ClassVar[float | None] = None
    steps: int
    batch_size: int
    samples: int
    loss: LossT
    seed: int

    @abstractmethod
    def start(self, inputs: ScoreInputs) -> tuple[Masks, torch.optim.Optimizer]:
        """The masks before the first step, and the optimiser of their parameters."""

    def losses(
        self, value: Values, ends: Callable[[], tuple[Values, Values]], sample: int
    ) -> Values:
        """The loss of each example under the mask of a sample.

        Args:
            value: the objective under the mask, higher being better.
            ends: gives that of the full and of the empty circuit.
        """
        return -value

    def find_scores(
        self,
        inputs: ScoreInputs,
        *,
        examples: DrawExamples | None = None,
        weigh: WeighExamples | None = None,
    ) -> EdgeScores | NodeScores:
        """Train the masks; scores are in [0, 1]. Under the loss "kl" the objective has no part.

        Args:
            examples: what each step is on; `batch_size` of the pairs if not given.
            weigh: how much each of them counts; all alike if not given. If either is given, the
                checkpoint is not used: a killed run starts again.
        """
        self._check()
        model = inputs.model
        check_gradients(self.name, model)
        if self.loss == "kl":
            inputs = replace(inputs, objective=Kl())
        elif not inputs.objective.differentiable:
            raise BadUsage(
                f"{self.name} needs a differentiable objective; {inputs.objective.name!r} is not."
            )
        if examples is not None or weigh is not None:
            inputs = replace(inputs, checkpoint=None)
        masks, optimiser = self.start(inputs)
        about = provenance_of(self, inputs)
        losses = train(inputs, masks, optimiser, self, about=about, examples=examples, weigh=weigh)
        about |= {"losses": summary(losses), **masks.reached()}
        values = masks.probabilities().detach()
        kind = NodeScores if values.dim() == 1 else EdgeScores
        return kind.of(model.graph, values, about)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return the forward passes of the training."""
        self._check()
        runs = 2.0 + self.samples * masked_forwards(graph)
        return self.steps * min(self.batch_size, n_pairs) * runs

    def token_bytes(self, decoder: Decoder, width: int) -> int:
        return masked_bytes(decoder)

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


class StepLoss(NamedTuple):
    """The two parts of the loss at one step."""

    fidelity: float
    penalty: float


def train(
    inputs: ScoreInputs,
    masks: Masks,
    optimiser: torch.optim.Optimizer,
    method: MaskMethod[Any],
    *,
    about: Mapping[str, Any],
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
    model, batch, objective = inputs.model, inputs.batch, inputs.objective
    generator, order = seeded(method.seed), Order(len(batch), method.batch_size)
    budget = token_budget(
        method.token_bytes(model.decoder, batch.n_tokens), batch.n_tokens, model.device
    )
    kept: KeptContrasts | None = None
    run_bytes = batch.clean.numel() * kept_run_bytes(model.decoder)
    if examples is None and may_be_kept(run_bytes, model.device):
        kept = KeptContrasts(model.decoder, batch, bucket)
    losses = torch.zeros(method.steps, len(StepLoss._fields), dtype=torch.float64)

    def differentiate(step: int) -> None:
        rows = order.draw(generator) if examples is None else []
        part = batch.select(rows) if examples is None else examples(generator)

        def contrast_of(chosen: list[int], chunk: Batch) -> Contrast:
            if kept is None:
                return Contrast.run(model.decoder, chunk, bucket)
            return kept.of([rows[row] for row in chosen], chunk)

        drawn = masks.draw(method.samples * (len(part) if method.per_example else 1), generator)
        weights = None
        if weigh is not None:
            weights = weigh(
                losses_of(model, part, objective, drawn.detach(), method, budget, contrast_of)
            )
        fidelity, gradient = fidelity_and_gradient(
            model, part, objective, drawn.detach(), method, budget, weights, contrast_of
        )
        penalty = masks.penalty(step)
        loss = StepLoss(fidelity, float(penalty.detach()))
        if not bool(torch.isfinite(gradient).all()) or not all(map(math.isfinite, loss)):
            raise NonFinite(
                f"{method.name}: the loss or its gradient is not finite at step {step + 1} of"
                f" {method.steps}: {loss}."
            )
        losses[step] = torch.tensor(loss, dtype=torch.float64)
        drawn.backward(gradient.to(drawn))
        if penalty.requires_grad:
            penalty.backward()

    with (
        torch.enable_grad(),
        inputs.progress.track(method.name, method.steps) as advance,
        out_of_memory_is_an_error(method.name),
    ):
        key = {**about, "budget": budget, "graph": model.graph.fingerprint}
        descend(
            differentiate,
            optimiser,
            method.steps,
            advance=advance,
            key=key_of(key),
            checkpoint=inputs.checkpoint,
            generator=generator,
            also={**order.kept, "losses": losses},
            clip=method.clip,
        )
    return losses


def masked_forwards(graph: Graph) -> float:
    """About how many plain forward passes a masked run and its gradient by the mask take.

    Mixing the streams of a layer's readers takes .4 a thousand edges of a layer.
    """
    return 3 + 4e-4 * graph.n_edges / graph.n_layers


def fidelity_and_gradient(
    model: Model,
    batch: Batch,
    objective: Objective,
    drawn: Float[Tensor, "masks writers readers"],
    method: MaskMethod[Any],
    budget: int,
    weights: Float[Tensor, "n"] | None = None,
    contrast_of: ContrastOf | None = None,
) -> tuple[float, Float[Tensor, "masks writers readers"]]:
    """The mean loss of masked runs, by `weights` of the examples if given, and its gradient."""
    gradient, total, share = torch.zeros_like(drawn), 0.0, weights
    if share is None:
        share = torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)
    wanted = share.nonzero()[:, 0].tolist()
    runs = _masked_runs(model, batch, wanted, objective, drawn, method, budget, contrast_of)
    for rows, places, mask, run in runs:
        mask.requires_grad_()
        losses = run(mask)
        loss = (losses * share[rows].to(losses)).sum() / method.samples
        (by_mask,) = torch.autograd.grad(loss, mask)
        gradient[places] += by_mask * (mask != 0) if constants_of(batch) is not None else by_mask
        total += float(loss.detach())
        # Else two chunks' graphs and runs would be held while the next ones are made.
        del losses, loss, run
    return total, gradient


@torch.no_grad()
def losses_of(
    model: Model,
    batch: Batch,
    objective: Objective,
    drawn: Float[Tensor, "masks writers readers"],
    method: MaskMethod[Any],
    budget: int,
    contrast_of: ContrastOf | None = None,
) -> Float[Tensor, "n"]:
    """The loss of each example, a mean over its masks, in fp64."""
    losses = torch.zeros(len(batch), dtype=torch.float64)
    everything = list(range(len(batch)))
    runs = _masked_runs(model, batch, everything, objective, drawn, method, budget, contrast_of)
    for rows, _, mask, run in runs:
        losses[rows] += run(mask).double().cpu() / method.samples
    return losses


def _masked_runs(
    model: Model,
    batch: Batch,
    wanted: list[int],
    objective: Objective,
    drawn: Float[Tensor, "masks writers readers"],
    method: MaskMethod[Any],
    budget: int,
    contrast_of: ContrastOf | None,
) -> Iterator[tuple[list[int], list[int], Tensor, Callable[[Tensor], Tensor]]]:
    """Rows of examples, places and values of one mask each, and a mask's loss per example."""
    decoder = model.decoder
    for chosen, chunk in batch.select(wanted).chunks(budget, bucket):
        rows = [wanted[row] for row in chosen]
        if contrast_of is None:
            contrast = Contrast.run(decoder, chunk, bucket)
        else:
            contrast = contrast_of(rows, chunk)
        examples = _MaskedExamples(decoder, objective, chunk, contrast)
        for sample in range(method.samples):
            places = [sample * len(batch) + row for row in rows] if method.per_example else [sample]
            mask = drawn[places]
            if constants_of(batch) is not None:
                mask = mask * connected(model.graph, mask)
            yield rows, places, mask, partial(examples.losses, method, sample)
        # The next chunk's runs are made without these.
        del contrast, examples


class _MaskedExamples(NamedTuple):
    """Some examples that masks are run on."""

    decoder: Decoder
    objective: Objective
    batch: Batch
    contrast: Contrast

    def losses(self, method: MaskMethod[Any], sample: int, mask: Tensor) -> Values:
        """What a method makes of the values under a mask, by example."""
        value = self._value(masked_readout(self.decoder, self.contrast, mask))
        return method.losses(value, self._ends, sample)

    @torch.no_grad()
    def _ends(self) -> tuple[Values, Values]:
        full, empty = (
            self._value(run.readout(self.decoder))
            for run in (self.contrast.clean, self.contrast.other)
        )
        return full, empty

    def _value(self, readout: Readout) -> Values:
        clean = self.contrast.clean.readout(self.decoder) if self.objective.needs_clean else None
        return signed(self.objective, readout, self.batch, clean)


def connected(
    graph: Graph, masks: Float[Tensor, "masks writers readers"]
) -> Float[Tensor, "masks writers readers"]:
    """One where an edge is on a path of nonzero edges from `input` to `logits`, else zero."""
    nonzero = (masks.detach() != 0).cpu() & graph.legal
    return torch.stack([graph.on_paths(edges) & edges for edges in nonzero]).to(masks)


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
        u = torch.rand((n, *self.log_alpha.shape), generator=generator, dtype=torch.float32)
        u = u.clamp(1e-6, 1 - 1e-6).to(self.log_alpha)
        s = torch.sigmoid((torch.logit(u) + self.log_alpha) / BETA)
        return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1) * self.legal

    def probabilities(self) -> Float[Tensor, "writers readers"]:
        """P(m > 0) of every edge."""
        return torch.sigmoid(self.log_alpha - BETA * math.log(-GAMMA / ZETA))

    def mean_kept(self) -> Float[Tensor, ""]:
        """The mean of P(m > 0) over all edges."""
        return self.probabilities()[self.legal].mean()


INITIAL_LOG_ALPHA, INITIAL_SPREAD = 10.0, 0.01


@dataclass(frozen=True)
@checked_settings
class EdgePruning(MaskMethod[Loss]):
    """Edge pruning: hard concrete masks trained to a target sparsity by Lagrange multipliers.

    Bhaskar et al. 2024. With s the sparsity 1 - mean_edges P(m > 0) and s* its target,

        loss = mean KL + lambda_1 (s* - s) + lambda_2 (s* - s)^2,

    masks descend and the two multipliers, 0 at first, ascend. The target rises linearly from 0
    over the warm-up, the first 2,500 of 3,000 steps. Log alphas begin at N(10, .01): the full
    model. One mask is drawn for all examples of a step. AdamW, learning rate .8 for masks and
    multipliers, no decay. The score is P(m > 0).

    Log alphas are kept within [-10, 10]: beyond it neither part of the loss has a gradient, and
    masks would stay as they are while the multipliers grow without end.

    Other deviations: masks are on MIB's edges, one writer for tokens and positions, and none
    for nodes; the sparsity is its expectation, not that of the drawn mask; both learning rates
    are constant.

    Other fields as in `MaskMethod`.

    Attributes:
        lr, multiplier_lr: of the masks and of the Lagrange multipliers.
        target: the share of edges that are to go.
        warmup: the share of the steps in which the target rises from 0.
    """

    steps: int = 3000
    batch_size: int = 32
    samples: int = 1
    lr: Annotated[float, Within(above=0)] = 0.8
    multiplier_lr: Annotated[float, Within(above=0)] = 0.8
    target: Annotated[float, Within(above=0, below=1)] = 0.95
    warmup: Annotated[float, Within(0, 1)] = 5 / 6
    loss: Loss = "kl"
    seed: int = 0
    name: ClassVar[str] = "edge-pruning"

    def start(self, inputs: ScoreInputs) -> tuple[Masks, torch.optim.Optimizer]:
        model = inputs.model
        # Another stream than that of the training, which has the seed itself.
        generator = seeded(self.seed + 2**32)
        noise = (
            torch.randn(model.graph.legal.shape, generator=generator, dtype=torch.float32)
            * INITIAL_SPREAD
        )
        log_alpha = (INITIAL_LOG_ALPHA + noise).to(model.device, model.accumulator)
        masks = _Targeted(model.graph, log_alpha, self)
        groups = [
            {"params": [masks.log_alpha], "lr": self.lr},
            {"params": [masks.multipliers], "lr": self.multiplier_lr, "maximize": True},
        ]
        return masks, torch.optim.AdamW(groups, weight_decay=0.0)


class _Targeted(HardConcrete):
    def __init__(
        self, graph: Graph, log_alpha: Float[Tensor, "writers readers"], settings: EdgePruning
    ) -> None:
        super().__init__(graph, log_alpha)
        self.settings = settings
        self.multipliers = log_alpha.new_zeros(2).requires_grad_()

    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        with torch.no_grad():
            self.log_alpha.clamp_(-INITIAL_LOG_ALPHA, INITIAL_LOG_ALPHA)
        return super().draw(n, generator)

    def penalty(self, step: int) -> Float[Tensor, ""]:
        gap = self.target(step) - (1 - self.mean_kept())
        return self.multipliers[0] * gap + self.multipliers[1] * gap.square()

    def reached(self) -> dict[str, Any]:
        return {"sparsity": 1 - float(self.mean_kept().detach())}

    def target(self, step: int) -> float:
        """The sparsity asked for at a step: a line from 0, reached at the end of the warm-up."""
        rising = self.settings.warmup * self.settings.steps
        return self.settings.target * (min(1.0, (step + 1) / rising) if rising else 1.0)


INITIAL_MASK = 0.9


@dataclass(frozen=True)
@checked_settings
class SubnetworkProbing(MaskMethod[Loss]):
    """Subnetwork probing on edges: hard concrete masks and a price for every edge kept.

    Cao et al. 2021, in the form that Conmy et al. 2023 compare with ACDC, with a mask on every
    edge:

        loss = mean KL + lambda mean_edges P(m > 0),

    masks being hard concrete (Louizos et al. 2018) with beta 2/3, gamma -0.1, zeta 1.1. At
    first sigmoid(log alpha), stretched to (gamma, zeta), is 0.9. One mask is drawn for all
    examples of a step. The score is P(m > 0). Lambda 100 and learning rate .01 are those of
    edge-level runs in the literature; on a graph of n edges each costs lambda / n.

    `lr` is of Adam; `sparsity` is lambda, the price of keeping all edges. Other fields as in
    `MaskMethod`.
    """

    steps: int = 3000
    batch_size: int = 32
    samples: int = 1
    lr: Annotated[float, Within(above=0)] = 0.01
    sparsity: Annotated[float, Within(0)] = 100.0
    loss: Loss = "kl"
    seed: int = 0
    name: ClassVar[str] = "subnetwork-probing"

    def start(self, inputs: ScoreInputs) -> tuple[Masks, torch.optim.Optimizer]:
        model, share = inputs.model, (INITIAL_MASK - GAMMA) / (ZETA - GAMMA)
        initial, like = math.log(share / (1 - share)), model.decoder.embedding
        log_alpha = like.new_full(model.graph.legal.shape, initial, dtype=model.accumulator)
        masks = _Priced(model.graph, log_alpha, self.sparsity)
        return masks, torch.optim.Adam([masks.log_alpha], lr=self.lr)


class _Priced(HardConcrete):
    def __init__(
        self, graph: Graph, log_alpha: Float[Tensor, "writers readers"], price: float
    ) -> None:
        super().__init__(graph, log_alpha)
        self.price = price

    def penalty(self, step: int) -> Float[Tensor, ""]:
        return self.price * self.mean_kept()


INITIAL_THETA = 1.0
BETAS = (0.9, 0.995)
CLIP = 5.0
SPARSITIES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
"""Prices of an edge that MIB searched (appendix E.2)."""
EDGE = 1e-3
"""Samples nearer to 0 or 1 than this have a gradient, but are not counted as inside."""


@dataclass(frozen=True)
@checked_settings
class UniformGradientSampling(MaskMethod[Loss]):
    """Uniform gradient sampling: a probability for every edge, learned from masks between 0 and 1.

    Li and Janson 2024; run by MIB (Mueller et al. 2025, appendix E.2). Every edge has a
    parameter theta and a probability p = sigmoid(theta), at first sigmoid(1). A mask is drawn
    for each example:

        w = p (1 - p) (held constant),  alpha = 1 - clamp((u - p) / w + 1/2, 0, 1),  u ~ U(0, 1)

    so alpha is uniform in (0, 1) with probability w, 1 with probability p - w/2 and else 0. For
    a loss L then dE[L]/dp = L(1) - L(0) = E[dL/dalpha | alpha inside], estimated by the sum of
    dL/dalpha over the step's samples with alpha in (0, 1), divided by how many lie inside,
    `EDGE` from 0 and from 1; 0 if none does. A straight-through alpha has that gradient, times
    samples / samples inside.

        loss = mean KL + lambda sum_edges p
               + min(lambda / 2, node_penalty) sum_heads (L H / 2) tanh(2 n / (L H)),

    n being the sum of p over a head's in- and out-edges. AdamW with betas .9, .995 and no
    decay. Gradients are clipped at norm 5 in each of four groups: edges from a head or not,
    into a head or not. The score is p.

    Settings are those of the public code for lambda = 1e-3 and counterfactual ablation, which
    makes one pass over 9,500 IOI pairs, 1,900 steps; here steps are counted, and pairs repeat.
    Deviations: dangling edges are zeroed only under constants, and count as samples; there is
    no special case for the first token.

    Other fields as in `MaskMethod`.

    Attributes:
        lr: of AdamW.
        sparsity: lambda, what an edge costs.
        node_penalty: what a head costs at most; 0 leaves the term out.
        search: choose `sparsity` among `SPARSITIES` on validation pairs, by the lowest CMD, as a
            run of circuits does with `candidates`.
    """

    steps: int = 2000
    batch_size: int = 5
    samples: int = 12
    lr: Annotated[float, Within(above=0)] = 0.01
    sparsity: Annotated[float, Within(0)] = 1e-3
    node_penalty: Annotated[float, Within(0)] = 2e-4
    search: bool = False
    loss: Loss = "kl"
    seed: int = 0
    name: ClassVar[str] = "ugs"
    version: ClassVar[int] = 2
    per_example: ClassVar[bool] = True
    clip: ClassVar[float | None] = CLIP

    def candidates(self) -> tuple[UniformGradientSampling, ...]:
        """What validation pairs decide between; none without `search`."""
        if not self.search:
            return ()
        return tuple(replace(self, sparsity=price, search=False) for price in SPARSITIES)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        once = super().forwards(graph, n_pairs)
        return len(SPARSITIES) * once if self.search else once

    def start(self, inputs: ScoreInputs) -> tuple[Masks, torch.optim.Optimizer]:
        if self.search:
            raise BadUsage(
                "ugs: search=True needs validation pairs, which a run of circuits has; in Python"
                " score each of candidates(), or give sparsity."
            )
        model = inputs.model
        masks = _Uniform(model.graph, self, model.device, model.accumulator)
        groups = [{"params": [theta]} for theta in masks.thetas]
        return masks, torch.optim.AdamW(groups, lr=self.lr, betas=BETAS, weight_decay=0.0)


class _Uniform(Masks):
    """Masks of a probability for each edge; `thetas` are the parameters of each group of edges."""

    def __init__(
        self,
        graph: Graph,
        settings: UniformGradientSampling,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.settings = settings
        self.legal = graph.legal.to(device)
        self.owner = graph.reader_owner.to(device)
        self.n_heads = graph.n_layers * graph.n_heads
        self.is_head = torch.zeros(graph.n_writers, dtype=torch.bool, device=device)
        for layer in range(graph.n_layers):
            self.is_head[graph.heads(layer)] = True
        self.places = [edges.flatten().nonzero()[:, 0] for edges in self._groups() if edges.any()]
        self.thetas = [
            torch.full((len(places),), INITIAL_THETA, device=device, dtype=dtype).requires_grad_()
            for places in self.places
        ]

    def _groups(self) -> list[Bool[Tensor, "writers readers"]]:
        """Edges from a head or another writer, into a head or another reader."""
        into_head = torch.cat((self.is_head, self.is_head.new_zeros(1)))[self.owner]
        return [
            self.legal & out[:, None] & into
            for out in (self.is_head, ~self.is_head)
            for into in (into_head, ~into_head)
        ]

    def probabilities(self) -> Float[Tensor, "writers readers"]:
        """p of every edge, and 0 where there is none."""
        flat, p = self.thetas[0].new_zeros(self.legal.numel()), torch.cat(self.thetas).sigmoid()
        return flat.index_copy(0, torch.cat(self.places), p).view_as(self.legal)

    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        p = self.probabilities()
        u = torch.rand((n, *p.shape), generator=generator, dtype=torch.float32).to(p)
        return straight_through(p, u) * self.legal

    def penalty(self, step: int) -> Float[Tensor, ""]:
        p, settings, size = self.probabilities(), self.settings, self.n_heads
        cost = settings.sparsity * p.sum()
        weight = min(settings.sparsity / 2, settings.node_penalty)
        if weight:
            into = p.new_zeros(len(p) + 1).index_add(0, self.owner, p.sum(dim=0))[:-1]
            at_head = (into + p.sum(dim=1))[self.is_head]
            cost = cost + weight * size / 2 * torch.tanh(2 * at_head / size).sum()
        return cost


def straight_through(
    p: Float[Tensor, "writers readers"], u: Float[Tensor, "masks writers readers"]
) -> Float[Tensor, "masks writers readers"]:
    """Masks alpha of uniform draws u, with gradient masks / masks inside by p in (0, 1), else 0."""
    fixed = p.detach()
    width = fixed * (1 - fixed)
    alpha = 1 - ((u - fixed) / width.clamp(min=torch.finfo(p.dtype).tiny) + 0.5).clamp(0, 1)
    sloped = ((alpha > 0) & (alpha < 1)).to(p.dtype)
    inside = ((alpha > EDGE) & (alpha < 1 - EDGE)).sum(dim=0, dtype=p.dtype)
    weight = torch.where(inside > 0, len(u) / inside.clamp(min=1), 0.0)
    return alpha + sloped * weight * (p - fixed)
