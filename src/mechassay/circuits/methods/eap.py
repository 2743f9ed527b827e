"""Attribution patching: scores of edges, neurons and nodes by gradients at one or several runs.

A method takes the gradient of the objective m at readers (edges) or at writers' outputs (nodes
and neurons), and multiplies it with what a writer changes from the clean to the counterfactual
run (`circuits.methods.attribution`). Scores are means over examples, each chunk of which is
differentiated at once. The variants differ in where the gradient is taken:

    eap                  at the clean input
    eap-ig-inputs        averaged along the input, from counterfactual to clean
    conductance          averaged likewise, each step's for what writers change in that step
    eap-ig-activations   averaged along each sublayer's output, from counterfactual to clean
    clean-corrupted      at the clean and at the counterfactual input
    nap, nap-ig          as eap and eap-ig-inputs, for neurons or nodes instead of edges

In post-norm models (Gemma) a head's change is taken through the post-norm's Jacobian, which
MIB's code leaves out. Each class has its formula, its source, and its deviations from MIB's
code.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from torch import Tensor

from mechassay.circuits.methods import inner_method
from mechassay.circuits.methods.attribution import (
    ReaderGradients,
    Taps,
    WriterGradients,
    add_products,
    between,
    contract,
    objective_total,
    tapped_forward,
)
from mechassay.circuits.methods.differentiation import (
    Quadrature,
    differentiate,
    resumes_at_clean_run,
)
from mechassay.circuits.methods.method import (
    Method,
    ScoreInputs,
    ScoresT,
    check_gradients,
    provenance_of,
    resumable_sum,
)
from mechassay.circuits.scores import EdgeScores, NeuronScores, NodeScores
from mechassay.errors import BadUsage, one_of
from mechassay.models.decoder import Decoder, NormStatistics
from mechassay.models.forward import Contrast, constants_of, trace
from mechassay.models.gradients import BACKWARD, backward_model
from mechassay.models.graph import Graph
from mechassay.models.memory import (
    GradientShare,
    changed_share,
    gradient_bytes,
    gradient_share,
    token_budget,
)
from mechassay.models.model import Model
from mechassay.models.objectives import Objective
from mechassay.prompts.batch import Batch
from mechassay.utils.checkpoint import key_of
from mechassay.utils.settings import Within, checked_settings

AUTO = "auto"
Points = Literal["left", "right", "midpoint", "gauss-legendre", "random"]


def quadrature(points: str, steps: int) -> Quadrature:
    """The points and weights of an integration rule; of "random" those of the middle of each step.

    Raises:
        UnknownName: no such rule. BadUsage: fewer than one step.
    """
    one_of("integration rule", points, get_args(Points))
    if steps < 1:
        raise BadUsage(f"Integrated gradients need at least 1 step; got {steps}.")
    if points == "gauss-legendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return tuple(((nodes + 1) / 2).tolist()), tuple((weights / 2).tolist())
    shift = {"left": 0.0, "right": 1.0, "midpoint": 0.5, "random": 0.5}[points]
    return tuple((k + shift) / steps for k in range(steps)), (1 / steps,) * steps


@checked_settings
class GradientMethod(Method[ScoresT]):
    """A frozen dataclass with a field `backward`: "plain", or rules by name (`models.gradients`).

    With "auto" a run of circuits tries all of them, and takes the one whose circuits have the
    lowest CMD on validation pairs: none is best on every task.

    `instead` names the method for divergences from the clean run, which have no gradient there.
    """

    instead: ClassVar[str] = ""
    mean_of_pairs: ClassVar[bool] = True
    in_spans: ClassVar[bool] = True
    """Whether long examples may be differentiated some columns at a time."""
    backward: str

    def __post_init__(self) -> None:
        one_of("backward rules", self.backward, (*BACKWARD, AUTO))

    def candidates(self) -> tuple[Self, ...]:
        """What validation pairs decide between; none but for "auto"."""
        if self.backward != AUTO:
            return ()
        own: Any = self  # A dataclass, which the type does not say.
        return tuple(replace(own, backward=rules) for rules in BACKWARD)

    @abstractmethod
    def add(
        self,
        model: Model,
        chunk: Batch,
        objective: Objective,
        into: Tensor,
        share: GradientShare,
    ) -> None:
        """Add the summed scores of some examples to `into`."""

    @abstractmethod
    def shape(self, model: Model) -> tuple[int, int]:
        """That of `into`."""

    @abstractmethod
    def scores(self, graph: Graph, mean: Tensor, provenance: dict[str, Any]) -> ScoresT:
        """Scores of the mean over all examples."""

    @property
    def path(self) -> Quadrature | None:
        """Where gradients are taken, from counterfactual (0) to clean (1); None: the clean run."""
        return None

    def path_of(self, chunk: Batch) -> Quadrature | None:
        """The path of some examples."""
        return self.path

    @property
    def copies(self) -> int:
        """Forward passes with gradients that are alive at once for one example."""
        return 1 if self.path is None else len(self.path[0])

    def token_bytes(self, decoder: Decoder, width: int) -> int:
        return gradient_bytes(decoder, self.copies, width)

    def passes(self, graph: Graph) -> float:
        """Of one pair: two runs, and a forward and a backward pass for each copy."""
        return 3.0 if self.instead else 2.0 + 2.0 * self.copies

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return the forward passes; of "auto" all rules, and the chosen ones again in parts."""
        times = len(BACKWARD) + 1 if self.backward == AUTO else 1
        return times * self.passes(graph) * n_pairs

    def find_scores(self, inputs: ScoreInputs) -> ScoresT:
        """Find the scores of the mean over all examples.

        Raises:
            BadUsage: `backward` is "auto"; the objective is not differentiable; or the method takes
                gradients at the clean run, where a divergence (kl, js) is smallest and has none.
        """
        if self.backward == AUTO:
            raise BadUsage(
                f"{self.name}: backward=auto is chosen on validation pairs by a run of circuits;"
                " in Python score each of candidates(), or name the rules."
            )
        model, batch = backward_model(inputs.model, self.backward), inputs.batch
        chosen = inputs.objective
        if self.instead and chosen.needs_clean:
            raise BadUsage(
                f"{self.name} takes gradients at the clean run, where {chosen.name!r} has none; use"
                f" {self.instead}."
            )
        if not chosen.differentiable:
            raise BadUsage(f"{self.name} needs a differentiable objective; {chosen.name!r} is not.")
        check_gradients(self.name, model)
        zeros = torch.zeros(self.shape(model), dtype=model.accumulator, device=model.device)
        share = self._share(model, batch)
        about = provenance_of(self, inputs)
        sums = resumable_sum(
            self.name,
            key_of({**about, "budget": share, "graph": model.graph.fingerprint}),
            {"total": zeros},
            ((len(rows), part) for rows, part in share.chunks(batch)),
            lambda chunk, into: self.add(model, chunk, chosen, into["total"], share),
            n_units=len(batch),
            progress=inputs.progress,
            checkpoint=inputs.checkpoint,
        )
        return self.scores(model.graph, sums["total"] / len(batch), about)

    def _share(self, model: Model, batch: Batch) -> GradientShare:
        """How much is differentiated at once."""
        decoder, longest = model.decoder, batch.n_tokens
        if not self.in_spans:
            per_token = self.token_bytes(decoder, longest)
            return GradientShare(token_budget(per_token, longest, model.device), self.copies)
        share = gradient_share(decoder, self.copies, longest, model.device)
        if self.path is None:
            resumes = resumes_at_clean_run(batch)
        else:
            resumes = constants_of(batch) is None
        changed = changed_share(decoder, share.copies, longest) if resumes else 0.0
        return share._replace(changed=changed)


class EdgeGradientMethod(GradientMethod[EdgeScores]):
    """A gradient method that scores edges."""

    def add(
        self,
        model: Model,
        chunk: Batch,
        objective: Objective,
        into: Tensor,
        share: GradientShare,
    ) -> None:
        def add(contrast: Contrast, gradients: ReaderGradients) -> None:
            contract(model, contrast, gradients, into)

        path = self.path_of(chunk)
        differentiate(model, chunk, objective, path, share, ReaderGradients.of, add)

    def shape(self, model: Model) -> tuple[int, int]:
        return model.graph.n_writers, model.graph.n_readers

    def scores(self, graph: Graph, mean: Tensor, provenance: dict[str, Any]) -> EdgeScores:
        return EdgeScores.of(graph, mean, provenance)


def edge_estimate(who: str, name: str) -> EdgeGradientMethod:
    """The method that estimates every edge's effect for another one, by name and settings.

    Raises:
        UnknownName, BadUsage: as `inner_method`; one whose scores are no such estimate.
    """
    method = inner_method(who, name)
    if not isinstance(method, EdgeGradientMethod):
        raise BadUsage(
            f"{who}: {name} does not estimate the effect of an edge; name a method such as eap or"
            " eap-ig-inputs."
        )
    return method


class IntegratedMethod(GradientMethod[ScoresT]):
    """A gradient method with fields `steps` and `points`: gradients averaged along a path.

    With "random" each example has a point of its own in each of the steps, all at the same place
    within it, which is drawn by a hash of its clean prompt and answers. With one step that is the
    estimate of expected gradients (Erion et al. 2021), at the cost of one backward.
    """

    steps: int
    points: Points

    def __post_init__(self) -> None:
        super().__post_init__()
        quadrature(self.points, self.steps)

    @property
    def path(self) -> Quadrature:
        return quadrature(self.points, self.steps)

    def path_of(self, chunk: Batch) -> Quadrature:
        alphas, weights = self.path
        if self.points != "random":
            return alphas, weights
        drawn = [int(digits[:8], 16) / 16**8 for digits in chunk.prompt_hashes()]
        within = torch.tensor(drawn, dtype=torch.float64).to(chunk.clean.device)[:, None, None]
        return tuple((k + within) / self.steps for k in range(self.steps)), weights


@dataclass(frozen=True)
class EAP(EdgeGradientMethod):
    """Edge attribution patching: one linear estimate at the clean input.

        S[u, v] = - mean_examples <a'_u - a_u, dm/dx_v at the clean run>

    Syed et al. 2024; Mueller et al. 2025, eq. 3. Two forwards and one backward for all edges.
    `backward` as in `GradientMethod`.
    """

    backward: str = "plain"
    name: ClassVar[str] = "eap"
    instead: ClassVar[str] = "eap-ig-inputs"


@dataclass(frozen=True)
class EAPIGInputs(IntegratedMethod[EdgeScores], EdgeGradientMethod):
    """Edge attribution patching with gradients integrated along the inputs.

        S[u, v] = - mean_examples <a'_u - a_u, sum_k w_k dm/dx_v at the input x_k>
        x_k = a'_input + alpha_k (a_input - a'_input)

    Hanna et al. 2024; Mueller et al. 2025, eq. 4 and appendix E.2. Only the token embeddings
    are interpolated, from counterfactual (alpha 0) to clean (alpha 1). The rule for the points
    alpha_k is a field: MIB's code uses `left` (k/Z for k = 0..Z-1); `gauss-legendre` is the
    most accurate.
    """

    steps: int = 5
    points: Points = "left"
    backward: str = "plain"
    name: ClassVar[str] = "eap-ig-inputs"


@dataclass(frozen=True)
class Conductance(EdgeGradientMethod):
    """Conductance of edges: gradients along the inputs, each for the change of its own step.

        S[u, v] = - mean_examples sum_k <a_u(x_k) - a_u(x_k+1), dm/dx_v at (x_k + x_k+1) / 2>
        x_k = a'_input + k / steps (a_input - a'_input)

    Dhamdhere et al. 2019 for units; here a unit is what one writer adds to one reader's stream.
    EAP-IG-inputs multiplies the mean gradient with the whole change a'_u - a_u instead, as if a
    writer changed evenly along the path. Scores of all edges into the logits sum to
    m(clean) - m(counterfactual), up to the rule's error, which falls as 1 / steps^2.

    The path is one of runs of the model, so ablations by constants are refused.
    """

    steps: Annotated[int, Within(1)] = 5
    backward: str = "plain"
    name: ClassVar[str] = "conductance"
    in_spans: ClassVar[bool] = False

    @torch.no_grad()
    def add(
        self,
        model: Model,
        chunk: Batch,
        objective: Objective,
        into: Tensor,
        share: GradientShare,
    ) -> None:
        if constants_of(chunk) is not None:
            raise BadUsage(f"{self.name} needs the counterfactual run; constants have none.")
        decoder, contrast = model.decoder, Contrast.run(model.decoder, chunk)
        ctx, start, past = contrast.ctx, contrast.start, contrast.clean
        other = contrast.other.embed
        change = contrast.clean.embed[:, start:] - other
        before = contrast.other
        for k in range(self.steps):
            embeds = other + (k + 1) / self.steps * change
            after = trace(decoder, embeds, ctx, past=past, start=start)
            with torch.enable_grad():
                middle = (other + (k + 0.5) / self.steps * change).requires_grad_()
                x = decoder.add_positions(middle, ctx, start)
                taps = tapped_forward(decoder, x, ctx, start=start, past=past)
                total = objective_total(decoder, objective, taps.readout, contrast, (1.0,))
                gradients = ReaderGradients.of(
                    decoder, taps, total, times=1, columns=other.shape[1]
                )
            contract(model, replace(contrast, clean=after, other=before), gradients, into)
            before = after

    def passes(self, graph: Graph) -> float:
        """Of one pair: two runs, and a run and one that is differentiated for each step."""
        return 2.0 + 3.0 * self.steps


Reading = Literal["paper", "mib-2025"]


@dataclass(frozen=True)
class EAPIGActivations(IntegratedMethod[EdgeScores], EdgeGradientMethod):
    """Edge attribution patching with gradients integrated along each sublayer's output.

    Instead of the input, the output of one sublayer s (the embedding, a layer's attention, an
    MLP) is set to a'_s + alpha_k (a_s - a'_s), everything before it being clean; gradients are
    taken in the network that follows. There are 2L + 1 sublayers times Z points. `reading` says
    which runs an edge averages over; other fields as in `IntegratedMethod`. Two readings of
    "averaged over the points":

    `paper`     Marks et al. 2025; Mueller et al. 2025, eq. 4: a writer's edges use the
                gradients of the runs in which its own sublayer was interpolated. A layer's
                heads move together: O(Z L).
    `mib-2025`  their code: every edge averages over the runs of ALL sublayers,
                1 / (Z (2L + 1)). With two exceptions. Under means it interpolates towards zero
                and multiplies with the difference from the mean; here both are the mean. With
                rotary positions it leaves the runs of the input out of edges from the input
                into the first layer's heads (its gradient hooks are blind to the interpolated
                input); here they are in all edges.

    The forward pass resumes at the interpolated sublayer. In the second reading, readers before
    the sublayer also receive gradients, through the skip connection alone: the cotangents of
    all runs are put into ONE clean pass, each where its sublayer writes, and differentiated
    once.

    MIB's code takes k/Z for k = 1..Z (`points="right"`).
    """

    steps: int = 5
    reading: Reading = "paper"
    points: Points = "right"
    backward: str = "plain"
    name: ClassVar[str] = "eap-ig-activations"
    in_spans: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("reading", self.reading, get_args(Reading))

    def add(
        self,
        model: Model,
        chunk: Batch,
        objective: Objective,
        into: Tensor,
        share: GradientShare,
    ) -> None:
        contrast = Contrast.run(model.decoder, chunk)
        add_runs = _own_runs if self.reading == "paper" else _all_runs
        add_runs(model, contrast, objective, *self.path_of(chunk), into)

    def passes(self, graph: Graph) -> float:
        """Of one pair: two runs; a step at a sublayer resumes half a network on average."""
        return 2.0 + 1.5 * self.steps * len(graph.stages())


class Sublayer(NamedTuple):
    """An interpolated output: clean and counterfactual values, and the stream without it."""

    kind: Literal["input", "heads", "mlp"]
    layer: int
    writers: slice
    clean: Tensor
    other: Tensor
    rest: Tensor


def _sublayers(model: Model, contrast: Contrast) -> Iterator[Sublayer]:
    decoder, graph, start = model.decoder, model.graph, contrast.start
    embed = contrast.clean.embed[:, start:]
    yield Sublayer(
        "input", 0, slice(0, 1), embed, contrast.other.embed, torch.zeros((), dtype=torch.float32)
    )
    for layer in range(graph.n_layers):
        clean, other = contrast.clean.layers[layer], contrast.other.layers[layer]
        before, z = clean.before[:, start:], clean.z[:, :, start:]
        heads, other_heads = decoder.attention_sum(layer, z), decoder.attention_sum(layer, other.z)
        mlp = None if clean.mlp is None else clean.mlp[:, start:]
        beside = before + mlp if decoder.parallel and mlp is not None else before
        yield Sublayer("heads", layer, graph.heads(layer), heads, other_heads, beside)
        if mlp is not None and other.mlp is not None:
            post = decoder.layers[layer].attention.post_norm
            row = graph.mlp_writer(layer)
            rest = before + (heads if post is None else post(heads))
            yield Sublayer("mlp", layer, slice(row, row + 1), mlp, other.mlp, rest)


@torch.no_grad()
def _runs(
    model: Model,
    contrast: Contrast,
    objective: Objective,
    alphas: Sequence[float | Tensor],
    weights: Sequence[float],
) -> Iterator[tuple[Sublayer, ReaderGradients]]:
    """The runs of each sublayer, stacked over the points."""
    decoder = model.decoder
    times, columns = len(alphas), contrast.other.embed.shape[1]
    ctx = contrast.ctx.repeat(times)
    for sublayer in _sublayers(model, contrast):
        clean, other = sublayer.clean, sublayer.other
        points = torch.cat([between(other, clean, alpha) for alpha in alphas])
        post, of_heads = None, sublayer.kind == "heads"
        if of_heads:
            post = decoder.layers[sublayer.layer].attention.post_norm
        at_mlp = of_heads and not decoder.parallel and model.graph.mlp
        layer = sublayer.layer + (sublayer.kind != "input" and not at_mlp)
        with torch.enable_grad():
            if sublayer.kind == "input":
                entry = points.requires_grad_()
                x = decoder.add_positions(entry, ctx, contrast.start)
            else:
                rest = sublayer.rest.repeat(times, 1, 1)
                entry = x = (rest + (points if post is None else post(points))).requires_grad_()
            taps = tapped_forward(
                decoder,
                x,
                ctx,
                start=contrast.start,
                past=contrast.clean,
                layer=layer,
                at_mlp=at_mlp,
            )
            total = objective_total(decoder, objective, taps.readout, contrast, weights)
            gradients = ReaderGradients.of(
                decoder, taps, total, times=times, columns=columns, entry=entry
            )
        at = None if post is None else post.statistics(points)
        _add_post_norms(decoder, contrast, taps, times, sublayer.layer, at)
        yield sublayer, gradients


def _add_post_norms(
    decoder: Decoder,
    contrast: Contrast,
    taps: Taps,
    times: int,
    layer: int,
    at: NormStatistics | None,
) -> None:
    """Post-norms of layers that were not run: clean, except the interpolated one's own (`at`)."""
    for index, (part, tapped) in enumerate(zip(decoder.layers, taps.layers, strict=True)):
        norm, attended = part.attention.post_norm, contrast.clean.layers[index].attended
        if norm is None or attended is None or tapped.post is not None:
            continue
        if index == layer and at is not None:
            tapped.post = at
        else:
            clean = norm.statistics(attended[:, contrast.start :])
            tapped.post = NormStatistics(
                *(part.repeat(times, *[1] * (part.ndim - 1)) for part in clean)
            )


def _own_runs(
    model: Model,
    contrast: Contrast,
    objective: Objective,
    alphas: Sequence[float | Tensor],
    weights: Sequence[float],
    into: Tensor,
) -> None:
    for sublayer, gradients in _runs(model, contrast, objective, alphas, weights):
        contract(model, contrast, gradients, into, writers=sublayer.writers)


def _all_runs(
    model: Model,
    contrast: Contrast,
    objective: Objective,
    alphas: Sequence[float | Tensor],
    weights: Sequence[float],
    into: Tensor,
) -> None:
    decoder = model.decoder
    share = 1 / (1 + model.graph.n_layers * (1 + model.graph.mlp))
    columns = contrast.other.embed.shape[1]
    cotangents: list[tuple[Sublayer, Tensor]] = []
    shares = [weight * share for weight in weights]
    for sublayer, gradients in _runs(model, contrast, objective, alphas, shares):
        contract(model, contrast, gradients, into)
        if sublayer.kind != "input":
            assert gradients.entry is not None
            cotangents.append((sublayer, gradients.entry.unflatten(0, (len(alphas), -1)).sum(0)))
    with torch.enable_grad():
        embeds = contrast.clean.embed[:, contrast.start :].detach().requires_grad_()
        x = decoder.add_positions(embeds, contrast.ctx, contrast.start)
        taps = tapped_forward(decoder, x, contrast.ctx, start=contrast.start, past=contrast.clean)
        products: list[Tensor] = []
        for sublayer, cotangent in cotangents:
            around = _around(decoder, taps, sublayer)
            # The last layer has its last column alone: cotangents are zero elsewhere.
            n = min(around.shape[1], cotangent.shape[1])
            products.append((around[:, -n:] * cotangent[:, -n:]).sum())
        total = torch.stack(products).sum()
        gradients = ReaderGradients.of(decoder, taps, total, times=1, columns=columns)
    contract(model, contrast, gradients, into)


def _around(decoder: Decoder, taps: Taps, sublayer: Sublayer) -> Tensor:
    """The stream after a sublayer without what it wrote, in a pass that is being differentiated."""
    tapped = taps.layers[sublayer.layer]
    before, mlp = tapped.stream, tapped.mlp
    assert before is not None and tapped.middle is not None
    if sublayer.kind == "mlp":
        return tapped.middle
    return before[:, -mlp.shape[1] :] + mlp if decoder.parallel and mlp is not None else before


@dataclass(frozen=True)
class CleanCorrupted(EdgeGradientMethod):
    """Clean-corrupted: the mean of the gradients at the clean and at the counterfactual input.

        S[u, v] = - mean_examples <a'_u - a_u,
                                   (dm/dx_v at clean + dm/dx_v at counterfactual) / 2>

    The trapezoidal rule with one interval along the path that EAP-IG-inputs follows (Hanna et
    al. 2024). `backward` as in `GradientMethod`.
    """

    backward: str = "plain"
    name: ClassVar[str] = "clean-corrupted"

    @property
    def path(self) -> Quadrature:
        return (0.0, 1.0), (0.5, 0.5)


Level = Literal["neuron", "node"]


class _NodeGradientMethod(GradientMethod[NeuronScores | NodeScores]):
    """A gradient method that scores neurons, or nodes by the sums over their neurons."""

    level: Level

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("level", self.level, get_args(Level))

    def add(
        self,
        model: Model,
        chunk: Batch,
        objective: Objective,
        into: Tensor,
        share: GradientShare,
    ) -> None:
        def add(contrast: Contrast, gradients: WriterGradients) -> None:
            add_products(model, contrast, gradients, into)

        path = self.path_of(chunk)
        differentiate(model, chunk, objective, path, share, WriterGradients.of, add)

    def shape(self, model: Model) -> tuple[int, int]:
        return model.graph.n_writers, model.decoder.d_model

    def scores(
        self, graph: Graph, mean: Tensor, provenance: dict[str, Any]
    ) -> NeuronScores | NodeScores:
        if self.level == "neuron":
            return NeuronScores.of(graph, mean, provenance)
        return NodeScores.of(graph, mean.sum(1), provenance)


@dataclass(frozen=True)
class NAP(_NodeGradientMethod):
    """Node attribution patching: scores of neurons at the clean input; of nodes at `level` "node".

        S[u, d] = - mean_examples sum_positions (a'_u - a_u)[d] * dm/da_u[d] at the clean run

    Mueller et al. 2025, eq. 3 with dm/da_u and appendix E.2, where NAP is always reported by
    neuron: one dimension d of a node's output. `level="node"` sums over d and gives
    `NodeScores` instead of `NeuronScores`. `WriterGradients` says how, and describes the bug in
    MIB's code.
    """

    level: Level = "neuron"
    backward: str = "plain"
    name: ClassVar[str] = "nap"
    instead: ClassVar[str] = "nap-ig"


@dataclass(frozen=True)
class NAPIG(IntegratedMethod[NeuronScores | NodeScores], _NodeGradientMethod):
    """Node attribution patching with gradients integrated along the inputs.

        S[u, d] = - mean_examples sum_positions (a'_u - a_u)[d] * sum_k w_k dm/da_u[d] at x_k
        x_k = a'_input + alpha_k (a_input - a'_input)

    Mueller et al. 2025, appendix E.2. MIB's code takes the points k/Z for k = 1..Z (`right`)
    here but k = 0..Z-1 (`left`) for edges; the default here is `left`, so that node scores are
    sums of the edge scores of EAP-IG-inputs.
    """

    steps: int = 5
    points: Points = "left"
    level: Level = "neuron"
    backward: str = "plain"
    name: ClassVar[str] = "nap-ig"
