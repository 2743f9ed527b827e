"""What ablated edges carry: the counterfactual run, constants, or the run of another example.

    counterfactual     the run of each pair's counterfactual prompt               (MIB's default)
    zero               nothing
    mean               each writer's mean over all real positions of the examples
    positional-mean    each writer's mean at each position, counted from the first token
    resample           the run of another example's clean prompt, of equal length
    optimal            learned constants (Li and Janson 2024), see `OptimalAblation`

An ablation is a property of the batch: `ablate` returns a batch that attribution and evaluation
use alike. Constants are those of the examples that they are computed on, `data`.

MIB's code for means takes the last token only, divides by the prompt's length, and averages over
writers: one vector for all of them, close to zero. Here a mean is that of its own writer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.methods.method import check_gradients, seeded
from mechassay.errors import BadPairs, BadUsage, NonFinite, one_of
from mechassay.models.decoder import Context, Decoder, at_least_fp32
from mechassay.models.forward import ConstantBatch, Constants, Place, counterfactual_batch, forward
from mechassay.models.graph import Graph
from mechassay.models.memory import (
    constants_bytes,
    out_of_memory_is_an_error,
    token_budget,
    trace_bytes,
)
from mechassay.models.model import Model
from mechassay.models.objectives import CrossEntropy
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.utils.arguments import checked
from mechassay.utils.checkpoint import Order, descend, header_in, key_of
from mechassay.utils.display import BAR, Advance, Progress
from mechassay.utils.files import read_tensors, write_tensors
from mechassay.utils.settings import Within, checked_settings

Loss = Literal["answers", "language-model"]
Ablation = Literal["counterfactual", "zero", "mean", "positional-mean", "resample", "optimal"]
ABLATIONS: tuple[str, ...] = get_args(Ablation)


@checked
def ablate(
    model: Model,
    pairs: PairsLike,
    ablation: str | Constants,
    *,
    data: PairsLike | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> Batch:
    """The pairs as a batch whose ablated edges carry something else than the counterfactual run.

    Args:
        pairs: pairs to score or evaluate on.
        ablation: one of `ABLATIONS`, or constants that are there already.
        data: examples that means are computed on; `pairs` if not given.
        seed: of "resample".

    Raises:
        UnknownName: no such ablation.
        BadUsage: "optimal" by name: its constants have to be learned first.
        BadPairs: "resample" where an example is the only one of its length.
    """
    batch = counterfactual_batch(model.batch(pairs))
    if isinstance(ablation, Constants):
        return ConstantBatch.of(batch, ablation)
    one_of("ablation", ablation, ABLATIONS)
    if ablation == "counterfactual":
        return batch
    if ablation == "resample":
        return _resampled(batch, np.random.default_rng(seed))
    if ablation == "optimal":
        raise BadUsage(
            "Optimal ablation needs learned constants: pass those of OptimalAblation().learn(model,"
            " pairs)."
        )
    values = ablated_values(model, batch if data is None else data, ablation, progress=progress)
    return ablate(model, batch, values)


def ablated_values(
    model: Model, data: PairsLike, ablation: str, *, progress: Progress = BAR
) -> Constants:
    """The constants of an ablation by zeros or means of clean runs.

    Raises:
        UnknownName: not "zero", "mean" or "positional-mean".
    """
    one_of("ablation by constants", ablation, ("zero", "mean", "positional-mean"))
    batch = model.batch(data)
    sums = _Sums(model, batch.n_tokens if ablation == "positional-mean" else 1)
    if ablation == "zero":
        return sums.values("zero")
    budget = token_budget(trace_bytes(model.decoder), batch.n_tokens, model.device)
    with (
        progress.track("means of clean runs", len(batch)) as advance,
        out_of_memory_is_an_error("Means of clean runs"),
    ):
        for rows, chunk in batch.chunks(budget):
            sums.add(chunk)
            advance(len(rows))
    return sums.values(ablation)


def save_ablated(values: Constants, path: Path) -> None:
    """Keep constants in a safetensors file."""
    tensors = {"embed": values.embed, "z": values.z}
    if values.mlp is not None:
        tensors["mlp"] = values.mlp
    write_tensors(path, tensors, {"kind": "ablated values", "name": values.name})


def load_ablated(path: Path) -> Constants:
    """Constants written by `save_ablated`.

    Raises:
        BadFile: truncated or foreign.
    """
    tensors, header = read_tensors(path, "ablated values")
    return Constants(header["name"], tensors["embed"], tensors["z"], tensors.get("mlp"))


class _Sums:
    """Sums of what every writer wrote, by known position, in fp32 at least."""

    def __init__(self, model: Model, known: int) -> None:
        decoder, graph = model.decoder, model.graph
        self.model, self.known = model, known
        zeros = torch.zeros((), dtype=model.accumulator, device=model.device).new_zeros
        d_head = decoder.layers[0].attention.out.shape[1]
        self.embed = zeros(known, decoder.d_model)
        self.z = zeros(graph.n_layers, graph.n_heads, known, d_head)
        self.mlp = zeros(graph.n_layers, known, decoder.d_model) if graph.mlp else None
        self.count = zeros(known)

    def add(self, chunk: Batch) -> None:
        taken, ctx = self.model.run(chunk)
        positions = ctx.position_ids.clamp(max=self.known - 1)
        # [known, batch * pos]: which real tokens belong to which position.
        known = torch.arange(self.known, device=positions.device)
        member = (positions.flatten() == known[:, None]) & chunk.mask.flatten()
        weights = member.to(self.count.dtype)
        self.count += weights.sum(1)
        self.embed += weights @ self._flat(taken.embed)
        for index, layer in enumerate(taken.layers):
            self.z[index] += weights @ self._flat(layer.z.transpose(0, 1))
            if layer.mlp is not None and self.mlp is not None:
                self.mlp[index] += weights @ self._flat(layer.mlp)

    def _flat(self, x: Tensor) -> Tensor:
        return at_least_fp32(x).flatten(-3, -2)

    def values(self, name: str) -> Constants:
        n, dtype = self.count.clamp(min=1)[:, None], self.model.dtype
        mlp = None if self.mlp is None else (self.mlp / n).to(dtype)
        return Constants(name, (self.embed / n).to(dtype), (self.z / n).to(dtype), mlp)


def _resampled(batch: Batch, rng: np.random.Generator) -> Batch:
    """Every counterfactual replaced by another example's clean prompt of equal length."""
    lengths = batch.lengths.cpu().numpy()
    other = np.empty(len(batch), dtype=int)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        if len(rows) < 2:
            raise BadPairs(
                f"Pair {batch.ids[rows[0]]} is the only one of {length} tokens: there is no other"
                " example to resample from."
            )
        # A shift of a random order by at least one: no example gets itself.
        order = rng.permutation(rows)
        other[order] = np.roll(order, int(rng.integers(1, len(rows))))
    drawn = batch.clean[torch.from_numpy(other).to(batch.clean.device)]
    digest = hashlib.sha256(other.tobytes()).hexdigest()[:16]
    return replace(batch, counterfactual=drawn, content=f"{batch.content}-{digest}")


@dataclass(frozen=True)
@checked_settings("Optimal ablation")
class OptimalAblation:
    """Learned constants for ablation: those that hurt least in place of what components write.

    Li and Janson 2024; MIB (Mueller et al. 2025, appendix E.2, eq. 6). Every component (the
    input, each head, each MLP) gets a vector that does not depend on the prompt. Vectors begin
    at the component's mean over all real positions and descend, by Adam,

        L(a) = mean over examples of -log P(answers) at the last token, or ("language-model")
               mean over the tokens of the prompts and the answers that follow them of -log P,
               with the component set to a at all positions.

    Alone (MIB's form): each vector is learned with only its component ablated. The components
    of a layer are separate problems in one stack of runs, which begins at that layer. Together
    (`joint`, after Li and Janson): all vectors are learned at once, each example having a
    random subset of components ablated, each with probability `share`.

    The loss on validation examples is checked every `check_every` steps; a vector that has not
    improved for `patience` checks is done, and the best one is kept, the mean included. A
    head's constant is its mix of values, d_head wide.

    MIB's own settings are `loss="language-model", check_every=50`. Deviations: the default loss
    is that of the answers, the only tokens that the task asks for, and is checked every 10
    steps, as the public code does on the training loss; that code's loss of the language model
    includes padding.

    Attributes:
        loss: "answers", or "language-model" for that of all tokens.
        steps: updates at most, of each layer's components if they are learned alone.
        lr: of Adam.
        batch_size: examples a step.
        joint: learn all components together, random subsets of them ablated.
        share: the probability that a component is ablated, where `joint`.
        check_every: steps between two checks of the validation loss.
        patience: checks without improvement after which a component is done.
        seed: of the examples and subsets drawn.
    """

    loss: Loss = "answers"
    steps: Annotated[int, Within(1)] = 1000
    lr: Annotated[float, Within(above=0)] = 1e-3
    batch_size: Annotated[int, Within(1)] = 20
    joint: bool = False
    share: Annotated[float, Within(above=0, most=1)] = 0.5
    check_every: Annotated[int, Within(1)] = 10
    patience: Annotated[int, Within(1)] = 3
    seed: int = 0
    name: ClassVar[str] = "optimal"
    version: ClassVar[int] = 1

    def learn(
        self,
        model: Model,
        pairs: PairsLike,
        validation: PairsLike | None = None,
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> Constants:
        """The constants, for `ablate(model, pairs, constants)`.

        Args:
            pairs: what is trained on; only clean prompts and answers matter.
            validation: what decides when to stop and what to keep; `pairs` if not given.
            checkpoint: a file that keeps what is done, so that a killed run can go on.

        Raises:
            NonFinite: a loss is infinite or NaN; the message has the step.
            OutOfMemory: one example does not fit.
        """
        check_gradients("Optimal ablation", model)
        train = counterfactual_batch(model.batch(pairs))
        held_out = train if validation is None else counterfactual_batch(model.batch(validation))
        constants = _Vectors.of(ablated_values(model, train, "mean", progress=progress), model)
        graph = model.graph
        groups = [_UnitGroup(layer, _components(graph, layer)) for layer in range(graph.n_layers)]
        if self.joint:
            groups = [_UnitGroup(0, [list(range(graph.n_writers))])]
        about = {
            "constants": self.name,
            "version": self.version,
            "settings": asdict(self),
            "model": model.name,
            "dtype": str(model.dtype),
            "data": [train.content, held_out.content],
            "graph": graph.fingerprint,
        }
        keys = [key_of({**about, "group": number}) for number in range(len(groups))]
        # The file of a group also has the constants of those before it.
        stored = header_in(checkpoint).get("key")
        first = keys.index(stored) if stored in keys else 0
        with (
            torch.enable_grad(),
            progress.track(f"{self.name} constants", len(groups) * self.steps) as advance,
            out_of_memory_is_an_error(self.name),
        ):
            advance(first * self.steps)
            for number in range(first, len(groups)):
                # Each group has its own generator: early stopping in one does not change the next.
                generator = seeded(self.seed * (graph.n_layers + 1) + number)
                group = groups[number]
                search = _GroupSearch(self, model, train, held_out, constants, group, generator)
                search.run(advance, checkpoint, keys[number])
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
        return constants.values(self.name, model.dtype)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """The least that learning takes, in forward passes of one example.

        A component stops after `patience` checks at best. A step takes a run, and for each
        component a forward and a backward pass of the layers that follow, half of them on average.
        """
        steps = min(self.steps, self.check_every * self.patience)
        runs = 3.0 if self.joint else graph.n_layers * (1.0 + 1.5 * graph.writers_per_layer)
        return steps * min(self.batch_size, n_pairs) * runs


@dataclass(frozen=True)
class _UnitGroup:
    """Vectors learned in one stack of runs from `layer` on; each of `units` stops as a whole."""

    layer: int
    units: list[list[int]]


def _components(graph: Graph, layer: int) -> list[list[int]]:
    """Each writer of a layer on its own; the input goes with layer 0."""
    first = 0 if layer == 0 else graph.head(layer, 0)
    return [[writer] for writer in range(first, graph.head(layer + 1, 0))]


@dataclass(frozen=True, eq=False)
class _Vectors:
    """The vectors being learned, in fp32 at least: the input's, and each layer's."""

    embed: Float[Tensor, "d_model"]
    z: list[Tensor]
    mlp: list[Tensor]
    n_heads: int

    @staticmethod
    def of(values: Constants, model: Model) -> _Vectors:
        dtype = model.accumulator
        mlp = [] if values.mlp is None else [layer[0].to(dtype) for layer in values.mlp]
        z = [layer[:, 0].to(dtype) for layer in values.z]
        return _Vectors(values.embed[0].to(dtype), z, mlp, model.graph.n_heads)

    def leaves(self) -> _Vectors:
        """A copy to be differentiated."""
        embed, *rest = (x.clone().requires_grad_() for x in (self.embed, *self.z, *self.mlp))
        return _Vectors(embed, rest[: len(self.z)], rest[len(self.z) :], self.n_heads)

    def tensors(self) -> dict[str, Tensor]:
        """All vectors, by name."""
        mlps = {f"mlp.{layer}": tensor for layer, tensor in enumerate(self.mlp)}
        heads = {f"z.{layer}": tensor for layer, tensor in enumerate(self.z)}
        return {"embed": self.embed, **heads, **mlps}

    def used(self, writers: Sequence[int]) -> list[Tensor]:
        """The tensors that hold some writers' vectors."""
        tensors = (self._at(writer)[0] for writer in writers)
        return list({id(tensor): tensor for tensor in tensors}.values())

    @torch.no_grad()
    def take(self, other: _Vectors, writers: Sequence[int]) -> None:
        """Set some writers' vectors to those of `other`."""
        for writer in writers:
            (mine, row), (theirs, _) = self._at(writer), other._at(writer)
            mine[row] = theirs[row]

    def _at(self, writer: int) -> tuple[Tensor, int | slice]:
        layer, place = divmod(writer - 1, self.n_heads + bool(self.mlp))
        if writer == 0:
            return self.embed, slice(None)
        return (self.mlp[layer], slice(None)) if place == self.n_heads else (self.z[layer], place)

    def values(self, name: str, dtype: torch.dtype) -> Constants:
        mlp = torch.stack(self.mlp)[:, None].to(dtype) if self.mlp else None
        z = torch.stack(self.z)[:, :, None].to(dtype)
        return Constants(name, self.embed[None].to(dtype), z, mlp)


class _GroupSearch:
    """Gradient descent for one group, with early stopping of each of its units."""

    def __init__(
        self,
        settings: OptimalAblation,
        model: Model,
        train: Batch,
        held_out: Batch,
        constants: _Vectors,
        group: _UnitGroup,
        generator: torch.Generator,
    ) -> None:
        self.settings, self.model, self.train, self.held_out = settings, model, train, held_out
        self.best, self.group, self.generator = constants, group, generator
        self.now = constants.leaves()
        self.tensors = self.now.used([writer for unit in group.units for writer in unit])
        # What is ablated in the validation runs stays the same from check to check.
        self.held_out_dropped = self._dropped(list(range(len(group.units))), len(held_out))
        self.order = Order(len(train), settings.batch_size)
        # The best loss of each unit, and how many checks it has waited for a better one.
        self.losses = torch.zeros(len(group.units), dtype=torch.float64)
        self.waited = torch.zeros(len(group.units), dtype=torch.long)

    def run(self, advance: Advance, checkpoint: Path | None, key: str) -> None:
        """Learn, leaving the best vectors in the constants that were given."""
        settings = self.settings
        self.losses.copy_(self._validate(self.active, 0))
        kept = {f"order.{name}": tensor for name, tensor in self.order.kept.items()}
        kept |= {f"best.{name}": tensor for name, tensor in self.best.tensors().items()}
        descend(
            self._differentiate,
            torch.optim.Adam(self.tensors, lr=settings.lr),
            settings.steps,
            advance=advance,
            key=key,
            checkpoint=checkpoint,
            keep=True,
            generator=self.generator,
            also={**kept, "losses": self.losses, "waited": self.waited},
            stop=self._look,
        )

    @property
    def active(self) -> list[int]:
        """The units that are not done."""
        return (self.waited < self.settings.patience).nonzero()[:, 0].tolist()

    def _differentiate(self, step: int) -> None:
        part = self.train.select(self.order.draw(self.generator))
        losses, gradients = self._losses(
            part, self._dropped(self.active, len(part)), gradients=True
        )
        self._check(losses, step + 1)
        for tensor, gradient in zip(self.tensors, gradients, strict=True):
            tensor.grad = gradient

    def _look(self, step: int) -> bool:
        """Keep what is better than before, every few steps; whether all units are done."""
        done, settings, active = step + 1, self.settings, self.active
        if done % settings.check_every and done != settings.steps:
            return False
        for unit, loss in zip(active, self._validate(active, done), strict=True):
            self.waited[unit] += 1
            if loss < self.losses[unit]:
                self.losses[unit], self.waited[unit] = loss, 0
                self.best.take(self.now, self.group.units[unit])
        return not self.active

    def _validate(self, active: list[int], step: int) -> Float[Tensor, "units"]:
        with torch.no_grad():
            losses, _ = self._losses(self.held_out, self.held_out_dropped[active], gradients=False)
        self._check(losses, step)
        return losses.double().cpu()

    def _check(self, losses: Tensor, step: int) -> None:
        if not bool(torch.isfinite(losses).all()):
            raise NonFinite(
                f"Optimal ablation: the loss is not finite at step {step} of layer"
                f" {self.group.layer}'s components."
            )

    def _dropped(self, active: Sequence[int], n: int) -> Bool[Tensor, "units batch writers"]:
        """What is ablated in the runs of each active unit."""
        n_writers, device = self.model.graph.n_writers, self.model.device
        if self.settings.joint:
            draws = torch.rand(1, n, n_writers, generator=self.generator, dtype=torch.float32)
            return (draws < self.settings.share).to(device)
        dropped = torch.zeros(len(active), n, n_writers, dtype=torch.bool)
        for row, unit in enumerate(active):
            dropped[row][:, self.group.units[unit]] = True
        return dropped.to(device)

    def _losses(
        self, batch: Batch, dropped: Bool[Tensor, "units batch writers"], *, gradients: bool
    ) -> tuple[Float[Tensor, "units"], list[Tensor]]:
        """Each unit's mean loss, and the gradients of their sum: no vector is in two units."""
        model, times, layer = self.model, len(dropped), self.group.layer
        total = torch.zeros(times, dtype=model.accumulator, device=model.device)
        sums = [torch.zeros_like(tensor) for tensor in self.tensors]
        all_tokens = self.settings.loss == "language-model"
        n_terms = int(batch.mask.sum()) if all_tokens else len(batch)
        per_token = constants_bytes(model.decoder) * times
        if all_tokens:  # Logits at every position, with their gradient, in fp32.
            per_token += 3 * 4 * times * len(model.decoder.embedding)
        for rows, chunk in batch.chunks(token_budget(per_token, batch.n_tokens, model.device)):
            trace, ctx = model.run(chunk)
            start = trace.embed if layer == 0 else trace.layers[layer].before
            stack, chosen = start.repeat(times, 1, 1), dropped[:, rows].flatten(0, 1)
            stream = _ablated_stream(
                model.decoder, stack, ctx.repeat(times), self.now, chosen, layer
            )
            repeated = chunk.repeat(times)
            losses = CrossEntropy()(model.decoder.readout(stream[:, -1]), repeated)
            if all_tokens:
                losses = losses + _prompt_losses(model.decoder, stream, repeated)
            losses = losses.unflatten(0, (times, -1)).sum(dim=1) / n_terms
            if gradients:
                parts = torch.autograd.grad(losses.sum(), self.tensors)
                for into, gradient in zip(sums, parts, strict=True):
                    into += gradient
            total += losses.detach().to(total)
        return total, sums


def _prompt_losses(
    decoder: Decoder, stream: Float[Tensor, "stack pos d_model"], batch: Batch
) -> Float[Tensor, "stack"]:
    """The sum over each prompt's tokens but the first of -log P(token)."""
    known = batch.mask[:, :-1] & batch.mask[:, 1:]
    logits = decoder.readout(stream[:, :-1][known]).all()
    losses = logits.logsumexp(dim=-1) - logits.gather(1, batch.clean[:, 1:][known][:, None])[:, 0]
    rows = known.nonzero()[:, 0]
    return losses.new_zeros(len(stream)).index_add(0, rows, losses)


def _ablated_stream(
    decoder: Decoder,
    x: Float[Tensor, "stack pos d_model"],
    ctx: Context,
    constants: _Vectors,
    dropped: Bool[Tensor, "stack writers"],
    first: int,
) -> Float[Tensor, "stack pos d_model"]:
    """The stream after the last layer, of runs from layer `first` on; some writers are constants.

    Args:
        x: the stream entering `first`; for layer 0 what the input writes.
    """
    n_heads, per_layer = constants.n_heads, constants.n_heads + bool(constants.mlp)
    if first == 0:
        x = decoder.add_positions(torch.where(dropped[:, :1, None], constants.embed.to(x), x), ctx)

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        out = dropped[:, 1 + layer * per_layer : 1 + (layer + 1) * per_layer, None, None]
        if place == "z":
            return torch.where(out[:, :n_heads], constants.z[layer].to(value)[:, None], value)
        if place == "mlp":
            return torch.where(out[:, n_heads], constants.mlp[layer].to(value), value)
        return value

    return forward(decoder, x, ctx, layer=first, edit=edit)
