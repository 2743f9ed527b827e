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
import warnings
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
from mechassay.errors import BadFile, BadUsage, NonFinite, first_line
from mechassay.models.decoder import Decoder
from mechassay.models.families import decode
from mechassay.models.forward import Constants, Contrast, Trace, constant_trace, trace
from mechassay.models.gradients import masked_readout
from mechassay.models.graph import Graph
from mechassay.models.model import Model, load_model
from mechassay.prompts.batch import Batch
from mechassay.truth.tasks import Causal, Right, Tokens
from mechassay.truth.verification import ABLATIONS, Verification, verify, write_model, write_truth
from mechassay.utils.checkpoint import descend, key_of
from mechassay.utils.display import BAR, Progress
from mechassay.utils.files import read_tensors
from mechassay.utils.settings import Within, check_settings

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


WIDTH, N_HEADS = 48, 4
ROPE_THETA = 100.0
CONTEXT = 16
LOGIT = 8.0
WEIGHTS = "model.safetensors"
CLIP = 1.0
SPLIT, SEED = "test", 0
CARRIED = (("counterfactual", 0.6), ("zero", 0.2), ("mean", 0.2))
"""What cut edges carry, and in which share of the examples."""
NONE = np.array([-1])
CUT_SHARES = (0.0, 0.05, 0.5, 1.0)
"""Of the edges outside the circuit, how many are cut: one of these shares an example."""


@dataclass(frozen=True)
class Training:
    """How long and how fast.

    Attributes:
        steps: optimiser steps.
        batch_size: pairs a step.
        pool: prompts that pairs are drawn from.
        rate, last_rate: learning rates of the first and the last step.
        seed: of the first weights, the prompts and the interventions.
    """

    steps: Annotated[int, Within(1)] = 5000
    batch_size: Annotated[int, Within(len(CARRIED))] = 192
    pool: Annotated[int, Within(2)] = 20_000
    rate: Annotated[float, Within(above=0)] = 3e-3
    last_rate: Annotated[float, Within(above=0)] = 3e-5
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, "Truth training")

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
    model = untrained(causal, training.seed)
    if start is not None:
        _begin_with(model, start)
    decoder = decode(model)
    parameters = trainable(decoder)
    optimiser = torch.optim.Adam(parameters, betas=(0.9, 0.98))
    prompts = Prompts(causal, training.seed, training.pool)
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


def untrained(causal: Causal, seed: int) -> LlamaForCausalLM:
    """A model with random weights for a causal model's task."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(causal.task.vocabulary),
        hidden_size=WIDTH,
        intermediate_size=causal.d_mlp,
        num_hidden_layers=causal.n_layers,
        num_attention_heads=N_HEADS,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
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
            scale = 1 / math.sqrt(WIDTH) if "embed" not in name else 1.0
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
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
    verifications = verified(load_model(str(folder)), causal, limit, progress=progress)
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
    model: Model, causal: Causal, limit: int, *, progress: Progress = BAR
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
            progress=progress,
        )
        for ablation in ABLATIONS
    }


class Prompts:
    """A pool of prompts of the train split, and the interventions of one step after another."""

    def __init__(self, causal: Causal, seed: int, size: int) -> None:
        self.causal = causal
        self.graph = Graph(causal.n_layers, N_HEADS)
        self.seed = seed
        self.tokens = pool(causal, size, seed)
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

    def loss(self, decoder: Decoder, size: int, step: int) -> Float[Tensor, ""]:
        """The mean squared error of logits over a step's interventions; number and seed decide."""
        rng = np.random.default_rng([self.seed, step])
        sizes = np.diff(
            [0, *np.rint(np.cumsum([share for _, share in CARRIED]) * size).astype(int).tolist()]
        )
        errors = [
            self._errors(decoder, carried, int(n), rng)
            for (carried, _), n in zip(CARRIED, sizes, strict=True)
        ]
        return torch.cat(errors).mean()

    def _errors(
        self, decoder: Decoder, carried: str, size: int, rng: np.random.Generator
    ) -> Float[Tensor, "batch vocab"]:
        """Squared errors of logits where cut edges carry one kind of thing."""
        own, other = (self.tokens[rng.integers(len(self.tokens), size=size)] for _ in range(2))
        right, node = (
            self._interchanges(own, other, rng)
            if carried == "counterfactual"
            else (self.causal.answers(own, other, None), NONE.repeat(size))
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
        target[:, 1 : 1 + right.shape[1]] = LOGIT * torch.from_numpy(right).to(logits)
        return (logits - target).square()

    def _interchanges(
        self, own: Tokens, other: Tokens, rng: np.random.Generator
    ) -> tuple[Right, Int[np.ndarray, "prompts"]]:
        """Right answers, and which variable has the other prompt's value: -1 for none."""
        right, node = self.causal.answers(own, other, None), NONE.repeat(len(own))
        # One more than there are variables: in that share nothing is interchanged.
        wanted = rng.integers(len(self.nodes) + 1, size=len(own))
        for number, variable in enumerate(self.causal.nodes):
            moved = self.causal.answers(own, other, variable)
            rows = (wanted == number) & moved.any(axis=1)
            right, node = np.where(rows[:, None], moved, right), np.where(rows, number, node)
        return right, node

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


def pool(causal: Causal, size: int, seed: int) -> Tokens:
    """Prompts of the train split as token ids."""
    number = {word: place for place, word in enumerate(causal.task.vocabulary)}
    rng = np.random.default_rng(seed)
    prompts = (causal.task.draw_from("train", rng)[0] for _ in range(size))
    return np.array([[number[word] for word in prompt.text.split()] for prompt in prompts])


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
