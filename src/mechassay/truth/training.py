"""Strict interchange intervention training:
a small transformer learns a task with the circuit that it is told.

    loss = mean (logits under an intervention - LOGIT on the right answers, 0 elsewhere)^2

A step draws fresh pairs of prompts x, x' and an intervention for each, a choice of edges that are
cut and what they carry instead. All are one masked forward (`mechassay.models.gradients`), and
the loss follows gradients through both runs. What is right is what the causal model says
(`mechassay.truth.tasks`):

    behaviour       no edge is cut: the task's answers
    interchange     all edges out of a variable's node carry x': the answers if that variable has
                    its value in x'
    strict          any edges outside the circuit are cut, from one to all of them: nothing changes

Strict terms stand beside an interchange in the same example as often as not, and cut edges carry
x', zeros, or the means of the batch. Strict training of nodes is that of Gupta et al. (2024,
InterpBench). Here it is of edges, so that inside the circuit too a head reads nothing but what it
is to read, and the target is logits, not answers: cross-entropy is content with any large logit,
and a circuit is only clear if what is outside moves none. Nodes are not told what to write, only
what must follow from it.

The model is a Llama: RMSNorm, rotary positions, gated MLPs, so that positions are in no writer.
Adam, the rate falling by a cosine. Parameters are those of the Hugging Face model, trained in
place. Everything is drawn from one seed; the same seed gives the same model on the same machine and
number of threads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadFile, BadUsage, MechassayError, NonFinite, first_line, one_of
from mechassay.models.decoder import Decoder
from mechassay.models.families import decode
from mechassay.models.forward import Constants, Contrast, Trace, constant_trace, trace
from mechassay.models.gradients import masked_readout
from mechassay.models.graph import Graph
from mechassay.models.model import Model, load_model
from mechassay.models.sources import MADE_TRUTHS, made_truth_folder
from mechassay.models.weight_files import is_model_folder
from mechassay.prompts.batch import Batch
from mechassay.truth.tasks import CAUSAL, Causal, Tokens, words_of
from mechassay.truth.text_ioi import TrainingStage
from mechassay.truth.verification import (
    ABLATIONS,
    LEAST_SHARE,
    MARGIN,
    SURVIVES,
    Verification,
    verify,
    write_model,
    write_truth,
)
from mechassay.utils.arguments import checked
from mechassay.utils.checkpoint import descend, key_of
from mechassay.utils.display import BAR, Progress
from mechassay.utils.files import read_tensors
from mechassay.utils.settings import Within, checked_settings

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


WEIGHTS = "model.safetensors"
CLIP = 1.0
SPLIT, SEED = "test", 0
KINDS = ("counterfactual", "zero", "mean")
"""What cut edges carry."""
NONE = np.array([-1])
PRIMARY_AGAIN = 3
"""How many times more than others a primary head is interchanged, if it has a backup."""
CUT_SHARES = (0.0, 0.05, 0.5, 1.0)
"""Of the edges outside the circuit, how many are cut: one of these shares an example."""


@dataclass(frozen=True)
@checked_settings("Truth training")
class Training:
    """How long and how fast.

    Attributes:
        steps: optimiser steps.
        batch_size: pairs a step.
        pool: prompts that pairs are drawn from.
        rate, last_rate: learning rates of the first and the last step.
        seed: of the first weights, the prompts and the interventions.
        constant: share of the examples whose cut edges carry zeros or means, half each.
        paired: share of the examples whose other prompt is the default counterfactual of their own;
            that of the rest is any prompt.
        quiet: factor of the first weights by which heads and MLPs outside the circuit write.
    """

    steps: Annotated[int, Within(1)] = 5000
    batch_size: Annotated[int, Within(len(KINDS))] = 192
    pool: Annotated[int, Within(2)] = 20_000
    rate: Annotated[float, Within(above=0)] = 3e-3
    last_rate: Annotated[float, Within(above=0)] = 3e-5
    seed: int = 0
    constant: Annotated[float, Within(0, 1)] = 0.4
    paired: Annotated[float, Within(0, 1)] = 0.0
    quiet: Annotated[float, Within(0, 1)] = 1.0

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        fall = (1 + math.cos(math.pi * step / self.steps)) / 2
        return self.last_rate + (self.rate - self.last_rate) * fall


def train(
    causal: Causal,
    training: Training,
    *,
    progress: Progress = BAR,
    checkpoint: Path | None = None,
    keep: bool = False,
    start: Path | None = None,
) -> tuple[LlamaForCausalLM, Float[Tensor, "steps"]]:
    """A model that computes the causal model by its circuit, and the loss of every step.

    Args:
        checkpoint: a file that keeps what is done, so that a killed training goes on and ends the
            same.
        keep: leave the file there at the end, with all steps done.
        start: a folder with a model of the same causal model, whose weights are trained further;
            random ones if not given.

    Raises:
        BadFile, BadUsage: no such model in `start`, or one of another shape.
        NonFinite: the loss is NaN or infinite; nothing can be made of such a model.
    """
    model = untrained(causal, training.seed, training.quiet)
    if start is not None:
        _begin_with(model, start)
    decoder = decode(model)
    parameters = trainable(decoder)
    optimiser = torch.optim.Adam(parameters, betas=(0.9, 0.98))
    prompts = Prompts(causal, training)
    losses = torch.zeros(training.steps, dtype=torch.float64)

    def differentiate(step: int) -> None:
        loss = prompts.loss(decoder, training.batch_size, step)
        losses[step] = loss.detach()
        if not math.isfinite(losses[step]):
            raise NonFinite(
                f"Training {causal.task.name}: the loss of step {step} is {losses[step]:g}. Try"
                " a lower rate."
            )
        loss.backward()

    with progress.track(f"training {causal.task.name}", training.steps) as advance:
        descend(
            differentiate,
            optimiser,
            training.steps,
            advance=advance,
            key=_key(causal, training, start),
            checkpoint=checkpoint,
            keep=keep,
            also={"losses": losses},
            clip=CLIP,
            schedule=training.rate_at,
        )
    for parameter in parameters:
        parameter.requires_grad_(False)
    return model, losses


def _key(causal: Causal, training: Training, start: Path | None) -> str:
    what: dict[str, Any] = {"task": causal.task.name, "circuit": causal.edges}
    if start is not None:
        what["start"] = _weights_hash(start)
    return key_of({**what, **dataclasses.asdict(training)})


def _weights_hash(folder: Path) -> str:
    """The SHA-256 of the weights of a model's folder."""
    try:
        return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    except OSError as error:
        raise BadFile(f"{folder} holds no trained model: {first_line(error)}.") from error


def _begin_with(model: LlamaForCausalLM, folder: Path) -> None:
    """Take the weights of a folder."""
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise BadFile(f"{folder} holds no trained model: {first_line(error)}.") from error
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    if {name: value.shape for name, value in tensors.items()} != shapes:
        raise BadUsage(f"The model in {folder} has other weights than the one that is trained.")
    model.load_state_dict(tensors)


def copy_from(
    source: LlamaForCausalLM, model: LlamaForCausalLM, copies: Mapping[str, tuple[str, float]]
) -> None:
    """Take over another model's words, and some of its heads with a factor of what they write.

    A copy reads the same queries, keys and values of the stream, whatever the gains of the layers'
    norms are. Both models have the same width, and heads of the same width.

    Args:
        copies: by head of `model`, one of `source` and the factor.
    """
    old: Any = source.model
    new: Any = model.model
    new.embed_tokens.weight.copy_(old.embed_tokens.weight)
    new.norm.weight.copy_(old.norm.weight)
    model.lm_head.weight.copy_(source.lm_head.weight)
    config: Any = source.config
    for head, (other, factor) in copies.items():
        (into, to_rows), (layer, rows) = (_place(name, config.head_dim) for name in (head, other))
        into, layer = new.layers[into], old.layers[layer]
        gains = layer.input_layernorm.weight / into.input_layernorm.weight
        for part in ("q_proj", "k_proj", "v_proj"):
            read = getattr(layer.self_attn, part).weight[rows] * gains
            getattr(into.self_attn, part).weight[to_rows] = read
        written = factor * layer.self_attn.o_proj.weight[:, rows]
        into.self_attn.o_proj.weight[:, to_rows] = written


def _place(head: str, width: int) -> tuple[int, slice]:
    """The layer of a head, and its rows there."""
    layer, number = (int(part) for part in head[1:].split(".h"))
    return layer, slice(number * width, (number + 1) * width)


def untrained(causal: Causal, seed: int, quiet: float = 1.0) -> LlamaForCausalLM:
    """A model with random weights for a causal model's task; see `Training.quiet`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(causal.task.vocabulary),
        hidden_size=causal.width,
        intermediate_size=causal.d_mlp,
        num_hidden_layers=causal.n_layers,
        num_attention_heads=causal.n_heads,
        head_dim=causal.d_head,
        max_position_embeddings=causal.context,
        rope_parameters={"rope_type": "default", "rope_theta": causal.rope_theta},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        model: Any = LlamaForCausalLM(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            # Rows of length 1 for tokens; what is written is of that size too.
            scale = 1 / math.sqrt(causal.width) if "embed" not in name else 1.0
            parameter.copy_(
                scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            )
    width, inside = causal.d_head, set(causal.nodes.values())
    for n, layer in enumerate(model.model.layers):
        for head in range(causal.n_heads):
            if f"a{n}.h{head}" not in inside:
                layer.self_attn.o_proj.weight[:, head * width : (head + 1) * width] *= quiet
        if f"m{n}" not in inside:
            layer.mlp.down_proj.weight *= quiet
    return model


def trainable(decoder: Decoder) -> list[Tensor]:
    """The decoder's tensors, views of the model's parameters, made ready for gradients."""
    tensors: list[Tensor] = []

    def visit(value: object) -> None:
        if isinstance(value, Tensor):
            tensors.append(value.requires_grad_(True))
        elif isinstance(value, tuple):
            for part in value:  # pyright: ignore[reportUnknownVariableType] - a tuple of layers
                visit(part)  # pyright: ignore[reportUnknownArgumentType]
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                visit(getattr(value, field.name))

    visit(decoder)
    return tensors


@checked
def make_truth(
    causal: Causal,
    training: Training,
    folder: Path,
    *,
    limit: int = 500,
    progress: Progress = BAR,
    start: Path | None = None,
) -> tuple[Float[Tensor, "steps"], dict[str, Verification]]:
    """Train a model, verify its circuit by intervention, and write a folder that `load_truth`
    reads.

    Args:
        folder: gets the model, and truth.json with the circuits of those ablations for which they
            hold, if that of counterfactuals does; keeps an interrupted training.
        limit: pairs of the split "test" to verify on.
        start: a folder with a model to train further, see `train`.

    Returns:
        The loss of every step, and what was verified, by ablation.

    Raises:
        BadUsage: the folder holds anything but this training, interrupted; no pairs to verify on.
    """
    checkpoint = folder / "training.safetensors"
    if limit < 1:
        raise BadUsage(f"limit must be 1 or more; got {limit}.")
    _check_folder(folder, checkpoint, _key(causal, training, start))
    folder.mkdir(parents=True, exist_ok=True)
    hf, losses = train(
        causal, training, progress=progress, checkpoint=checkpoint, keep=True, start=start
    )
    write_model(hf, causal.task.vocabulary, folder)
    verifications = verified(
        load_model(str(folder)),
        causal,
        limit,
        ablations=ABLATIONS if training.constant else ABLATIONS[:1],
        progress=progress,
    )
    holding = {
        ablation: verification
        for ablation, verification in verifications.items()
        if verification.holds
    }
    if "counterfactual" in holding:
        about = {**dataclasses.asdict(training), "last_loss": float(losses[-100:].mean())}
        if start is not None:
            about["start"] = _weights_hash(start)
        write_truth(folder, causal.task.name, holding, split=SPLIT, seed=SEED, training=about)
    checkpoint.unlink()
    return losses, verifications


MADE_ON = 100
"""Pairs that a ground truth which is made here is verified on."""


def make_from_recipe(name: str, *, progress: Progress = BAR) -> Path:
    """Make a ground truth of InterpBench's size in its stages, unless that was done before.

    A stage that was done is not done again, and its training goes on where it was stopped. The
    model is kept in the cache only if its circuit of counterfactuals holds here: other machines
    round otherwise.

    Returns:
        The folder of the model.

    Raises:
        UnknownName: no such ground truth is made.
        MechassayError: its circuit does not hold on this machine, with what it lacks.
    """
    target = made_truth_folder(one_of("ground truth that is made", name, MADE_TRUTHS))
    if is_model_folder(target):
        return target
    *before, last = CAUSAL.make(name).stages(name)
    source: LlamaForCausalLM | None = None
    for stage in before:
        folder = target.with_name(stage.name)
        if not is_model_folder(folder):
            folder.mkdir(parents=True, exist_ok=True)
            start, training = _started(stage, source, folder), Training(**stage.training)
            source, _ = train(
                stage.causal,
                training,
                progress=progress,
                checkpoint=folder / "training.safetensors",
                start=start,
            )
            write_model(source, stage.causal.task.vocabulary, folder)
        source = untrained(stage.causal, 0)
        _begin_with(source, folder)
    folder = target.with_name(last.name)
    if is_model_folder(folder):
        shutil.rmtree(folder)  # One whose circuit did not hold.
    _, done = make_truth(
        last.causal,
        Training(**last.training),
        folder,
        limit=MADE_ON,
        progress=progress,
        start=_started(last, source, folder),
    )
    own = done["counterfactual"]
    if not own.holds:
        backups = "".join(
            f", backup {backup.head}: survives {backup.survives:.2f}, lost {backup.lost:.2f} (each"
            f" {SURVIVES:g}), heard {backup.heard:.2g}"
            for backup in own.backups
        )
        raise MechassayError(
            f"{name}: the circuit does not hold on this machine: margin {own.margin:.3g}, over all"
            f" outside at once {own.joint_margin:.3g} (each has to be {MARGIN:g}), least share"
            f" {own.least_share:.2f} (of {LEAST_SHARE:g}){backups}. Its weights are in {folder}."
        )
    folder.rename(target)
    for rest in target.parent.glob(f"{name}.*"):
        if rest.name != before[0].name:  # With which the others begin too.
            shutil.rmtree(rest)
    return target


def _started(stage: TrainingStage, source: LlamaForCausalLM | None, folder: Path) -> Path | None:
    """The folder beside that of a stage, with the model that its training begins with: the heads of
    the stage before, among others with random weights.
    """
    if source is None:
        return None
    seed, quiet = int(stage.training["seed"]), float(stage.training["quiet"])
    model = untrained(stage.causal, seed, quiet)
    copy_from(source.requires_grad_(False), model, stage.copies)
    start = folder.with_name(f"{folder.name}.start")
    write_model(model, stage.causal.task.vocabulary, start)
    return start


def _check_folder(folder: Path, checkpoint: Path, key: str) -> None:
    """Refuse to write over anything but what the same training left when it was interrupted."""
    if checkpoint.is_file():
        if read_tensors(checkpoint, "checkpoint")[1].get("key") != key:
            raise BadUsage(
                f"{folder} holds an interrupted training with other settings. Name another folder,"
                " or remove it."
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadUsage(f"{folder} exists and holds no interrupted training. Name another folder.")


def verified(
    model: Model,
    causal: Causal,
    limit: int,
    *,
    ablations: Sequence[str] = ABLATIONS,
    progress: Progress = BAR,
) -> dict[str, Verification]:
    """The circuit of a trained model, by ablation; see `mechassay.truth.verification`."""
    pairs = causal.task.pairs(SPLIT, model, limit=limit, seed=SEED)
    circuit = Circuit.from_names(model.graph, list(causal.edges))
    free, also = (
        Circuit.from_names(model.graph, [*causal.free_edges, *more])
        for more in ((), causal.constant_edges)
    )
    return {
        ablation: verify(
            model,
            pairs,
            circuit,
            ablation,
            optional=free if ablation == "counterfactual" else also,
            backups=causal.backups,
            progress=progress,
        )
        for ablation in ablations
    }


class Prompts:
    """A pool of prompts of the train split, and the interventions of one step after another."""

    def __init__(self, causal: Causal, training: Training) -> None:
        self.causal, self.training = causal, training
        self.graph = Graph(causal.n_layers, causal.n_heads)
        self.tokens = pool(causal, training)
        circuit = torch.zeros(self.graph.n_writers, self.graph.n_readers, dtype=torch.bool)
        constant = circuit.clone()
        for name in (*causal.edges, *causal.free_edges):
            circuit[self.graph.index(name)] = True
        for name in causal.constant_edges:
            constant[self.graph.index(name)] = True
        self.outside = {
            "counterfactual": self.graph.legal & ~circuit,
            "constant": self.graph.legal & ~circuit & ~constant,
        }
        self.nodes = [self.graph.writer(name) for name in causal.nodes.values()]
        # What a backup does shows only where its primary head is interchanged.
        self.drawn = (*causal.nodes, *PRIMARY_AGAIN * tuple(causal.backups.values()))

    def loss(self, decoder: Decoder, size: int, step: int) -> Float[Tensor, ""]:
        """The mean squared error of logits over a step's interventions; number and seed decide."""
        rng, constant = np.random.default_rng([self.training.seed, step]), self.training.constant
        ends = np.cumsum([1 - constant, constant / 2, constant / 2]) * size
        sizes = np.diff([0, *np.rint(ends).astype(int).tolist()])
        errors = [
            self._errors(decoder, carried, int(n), rng)
            for carried, n in zip(KINDS, sizes, strict=True)
            if n
        ]
        return torch.cat(errors).mean()

    def _errors(
        self, decoder: Decoder, carried: str, size: int, rng: np.random.Generator
    ) -> Float[Tensor, "batch vocab"]:
        """Squared errors of logits where cut edges carry one kind of thing."""
        drawn, others = (rng.integers(len(self.tokens), size=size) for _ in range(2))
        own, other = self.tokens[drawn, 0], self.tokens[others, 0]
        if self.training.paired:
            paired = rng.random(size) < self.training.paired
            other = np.where(paired[:, None], self.tokens[drawn, 1], other)
        wanted, node = (
            self._interchanges(own, other, rng)
            if carried == "counterfactual"
            else (self.causal.logits(own, other, None), NONE.repeat(size))
        )
        batch = Batch.from_tokens(
            torch.from_numpy(own), torch.from_numpy(other), [1] * size, [2] * size
        )
        ctx = decoder.context(batch.mask)
        clean = trace(decoder, decoder.embed(batch.clean), ctx)
        reference = (
            trace(decoder, decoder.embed(batch.counterfactual), ctx)
            if carried == "counterfactual"
            else constant_trace(decoder, constants(decoder, clean, carried), ctx)
        )
        mask = self._masks(node, carried, rng).to(decoder.embedding)
        logits = masked_readout(decoder, Contrast(batch, ctx, 0, clean, reference), mask).all()
        target = torch.zeros_like(logits)
        target[:, 1 : 1 + wanted.shape[1]] = torch.from_numpy(wanted).to(logits)
        return (logits - target).square()

    def _interchanges(
        self, own: Tokens, other: Tokens, rng: np.random.Generator
    ) -> tuple[Float[np.ndarray, "prompts words"], Int[np.ndarray, "prompts"]]:
        """Logits of the words, and which variable has the other prompt's value: -1 for none."""
        logits, node = self.causal.logits(own, other, None), NONE.repeat(len(own))
        # One more than there are to draw from: in that share nothing is interchanged.
        drawn = rng.integers(len(self.drawn) + 1, size=len(own))
        for number, variable in enumerate(self.causal.nodes):
            moved = self.causal.logits(own, other, variable)
            places = [place for place, name in enumerate(self.drawn) if name == variable]
            rows = np.isin(drawn, places) & ~np.isnan(moved).any(axis=1)
            logits, node = np.where(rows[:, None], moved, logits), np.where(rows, number, node)
        return logits, node

    def _masks(
        self, node: Int[np.ndarray, "prompts"], carried: str, rng: np.random.Generator
    ) -> Float[Tensor, "batch writers readers"]:
        """1 at edges that are kept."""
        outside = self.outside["counterfactual" if carried == "counterfactual" else "constant"]
        shares = rng.choice(CUT_SHARES, size=len(node))
        draws = torch.from_numpy(rng.random((len(node), *outside.shape), dtype=np.float32))
        cut = outside & (draws < torch.from_numpy(shares)[:, None, None])
        writers = torch.tensor([*self.nodes, -1])[torch.from_numpy(node)]
        cut |= (torch.arange(outside.shape[0]) == writers[:, None])[:, :, None]
        return (~cut).float()


def pool(causal: Causal, training: Training) -> Int[np.ndarray, "prompts kinds pos"]:
    """Prompts of the train split as token ids, with their counterfactuals if these are needed."""
    task, rng = causal.task, np.random.default_rng(training.seed)
    number = {word: place for place, word in enumerate(task.vocabulary)}
    rows: list[list[list[int]]] = []
    for _ in range(training.pool):
        prompts = [task.draw_from("train", rng)[0]]
        if training.paired:
            others = task.others_of(prompts[0], "train", rng)
            prompts.append(others.get(task.default_counterfactual, prompts[0]))
        rows.append([[number[word] for word in words_of(prompt.text)] for prompt in prompts])
    return np.array(rows)


def constants(decoder: Decoder, clean: Trace, name: str) -> Constants:
    """Zeros for every writer, or the means of what they wrote in a run, as constants."""
    scale = {"zero": 0.0, "mean": 1.0}[name]
    mlps = [layer.mlp.detach().mean((0, 1)) for layer in clean.layers if layer.mlp is not None]
    return Constants(
        name,
        scale * clean.embed.detach().mean((0, 1))[None],
        scale * torch.stack([layer.z.detach().mean((0, 2)) for layer in clean.layers])[:, :, None],
        scale * torch.stack(mlps)[:, None],
    )
