"""A small GPT-NeoX that is trained on the sentences of gym tasks, with checkpoints.

    The artists that feared the child are

A row of the corpus is a sentence of a task, drawn like the sentences of its pairs, followed by a
label of its type. Each task has the same number of rows. The corpus contains only sentences of the
train split, so no validation or test sentence is in it. Because tasks share words, such a sentence
may still be the beginning of a longer sentence of another task. Its label rarely follows there
("... has" of "... has never"). Tokens are words and punctuation marks, including the words of the
control labels.

    loss = mean over all tokens of a sentence but the first of -log p(token | tokens before it)

Each step takes the next sentences of a random order of the corpus. The optimiser is AdamW. The
learning rate rises linearly over the first steps and then falls by a cosine. Gradients are clipped
to a norm of 1. The architecture is that of Pythia: parallel blocks, LayerNorm, partly rotary
positions, separate embeddings for input and output.

The folder contains a checkpoint `step0`, `step64`, ... for each requested number of updates, with
weights in fp16. `load_model("FOLDER@step64")` loads a checkpoint, `load_model("FOLDER")` the last
one. `training.json` lists the settings. An interrupted training resumes and ends with the same
weights, bit for bit, because one seed determines every random number. Another number of threads
may round sums differently.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage, NonFinite
from mechassay.gym.gym_task import GymTask
from mechassay.gym.interchanges import DOG_GIVE
from mechassay.tasks.task import split_rng
from mechassay.truth.tasks import UNKNOWN
from mechassay.truth.verification import write_tokenizer, write_weights
from mechassay.utils.checkpoint import Order, descend, key_of
from mechassay.utils.display import BAR, OneLine, Progress
from mechassay.utils.settings import Within, checked_settings

if TYPE_CHECKING:
    from transformers import GPTNeoXForCausalLM


SPLIT = "train"
PAD = -1
_WORD = re.compile(r"\w+|[^\w\s]+")
"""The split of a text into words, as in `truth.verification.word_tokenizer`."""


def words_of(tasks: Iterable[GymTask]) -> list[str]:
    """Return the token for unknown words, then all words of the tasks' sentences, labels and
    control labels in alphabetical order.
    """
    texts = set(DOG_GIVE)
    for task in tasks:
        texts |= {label for labels in task.labels.values() for label in labels}
        for choice in task.choices:
            texts |= {text for rows in choice.rows.values() for row in rows for text in row}
    return [UNKNOWN, *sorted({word for text in texts for word in _WORD.findall(text)})]


@dataclass(frozen=True, eq=False, repr=False)
class GymCorpus(OneLine):
    """Sentences as token ids, one sentence per row.

    Attributes:
        words: word of each token id.
        ids: token ids of the sentences with their labels; `PAD` after the end.
        tasks: names of the tasks, in the order of their rows. Each has the same number of rows.
    """

    words: tuple[str, ...]
    ids: Int[Tensor, "rows longest"]
    tasks: tuple[str, ...]

    @classmethod
    def of(cls, tasks: Sequence[GymTask], size: int, seed: int) -> GymCorpus:
        """Draw sentences of the train split.

        Args:
            size: number of sentences of each task. Sentences repeat if a task has few.
            seed: seed of the sentences.

        Raises:
            BadUsage: `tasks` is empty, or `size` is below 1.
        """
        if not tasks or size < 1:
            raise BadUsage(f"A corpus has tasks and sentences; got {len(tasks)} and {size}.")
        words = words_of(tasks)
        id_of = {word: number for number, word in enumerate(words)}
        rng = split_rng(SPLIT, seed)
        rows = [
            [id_of[word] for word in _WORD.findall(drawn.sentence + drawn.label)]
            for task in tasks
            for drawn in islice(task.sentences(SPLIT, rng), size)
        ]
        ids = np.full((len(rows), max(map(len, rows))), PAD)
        for row, tokens in zip(ids, rows, strict=True):
            row[: len(tokens)] = tokens
        return cls(tuple(words), torch.from_numpy(ids), tuple(task.name for task in tasks))

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self) -> list[str]:
        """Return the rows as words with spaces between them."""
        return [
            " ".join(self.words[token] for token in row if token != PAD)
            for row in self.ids.tolist()
        ]

    def repr_fields(self) -> dict[str, object]:
        """Return the numbers of tasks, rows, tokens and words."""
        tokens = int((self.ids != PAD).sum())
        return {
            "tasks": len(self.tasks),
            "n": len(self),
            "tokens": tokens,
            "words": len(self.words),
        }


FILE = "training.json"
STATE = "training.safetensors"
CONTEXT = 64
CLIP = 1.0
CHUNKS = 4
"""Number of parts of a batch, sorted by length so that the parts contain little padding."""
TAIL = 100
"""Maximum number of steps whose mean loss is the last loss. The number is a tenth of all steps."""


@dataclass(frozen=True)
@checked_settings("Gym training")
class GymTraining:
    """The settings of a training.

    Attributes:
        layers, width, heads: size of the model. Its MLPs have four times the width.
        sentences: number of sentences of each task in the corpus.
        steps: number of optimiser steps.
        checkpoints: numbers of steps after which weights are stored. The last step is always
            stored.
        batch_size: number of sentences per step.
        rate, last_rate: highest learning rate, and learning rate of the last step.
        warmup: number of steps over which the learning rate rises.
        decay: weight decay.
        seed: seed of the corpus, of its order, and of the initial weights.
    """

    layers: Annotated[int, Within(1)] = 4
    width: Annotated[int, Within(1)] = 48
    heads: Annotated[int, Within(1)] = 4
    sentences: Annotated[int, Within(1)] = 3000
    steps: Annotated[int, Within(1)] = 2000
    checkpoints: tuple[int, ...] = ()
    batch_size: Annotated[int, Within(CHUNKS)] = 64
    rate: Annotated[float, Within(above=0)] = 2e-3
    last_rate: Annotated[float, Within(above=0)] = 2e-5
    warmup: Annotated[int, Within(1)] = 100
    decay: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width % (4 * self.heads):
            raise BadUsage(
                f"Heads need a width divisible by 4; got {self.heads} heads of {self.width}"
                " together."
            )
        wrong = [step for step in self.checkpoints if not 0 <= step <= self.steps]
        if wrong:
            raise BadUsage(f"Checkpoints are from 0 to {self.steps} steps; got {wrong[0]}.")

    def last_of(self, losses: Float[Tensor, "steps"]) -> float:
        """Return the mean loss of the last tenth of the steps, at most `TAIL` steps."""
        return float(losses[-min(TAIL, max(1, self.steps // 10)) :].mean())

    @property
    def kept(self) -> tuple[int, ...]:
        """The numbers of steps after which weights are stored, in order."""
        return tuple(sorted({*self.checkpoints, self.steps}))

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step. The first step is 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        fall = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.last_rate + (self.rate - self.last_rate) * (1 + math.cos(math.pi * fall)) / 2


def train_gym_model(
    folder: Path,
    training: GymTraining | None = None,
    *,
    tasks: Sequence[GymTask],
    progress: Progress = BAR,
) -> Float[Tensor, "steps"]:
    """Train a model, and write its checkpoints, a tokenizer and training.json.

    Args:
        folder: a new folder, or the folder of the same training if it was interrupted.
        training: settings; `GymTraining()` by default.
        tasks: tasks whose sentences are the corpus.

    Returns:
        The loss of every step, in nats per token.

    Raises:
        BadUsage: The folder contains other files, or the training is finished.
        NonFinite: The loss is NaN or infinite.
    """
    training = training or GymTraining()
    corpus = GymCorpus.of(tasks, training.sentences, training.seed)
    about = {**asdict(training), "tasks": {task.name: task.sha256 for task in tasks}}
    _begin(folder, about)
    model = untrained_neox(training, len(corpus.words))
    optimiser = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), weight_decay=training.decay
    )
    order, losses = Order(len(corpus), training.batch_size), torch.zeros(training.steps).double()
    generator = torch.Generator().manual_seed(training.seed)
    write_tokenizer(corpus.words, CONTEXT, folder)

    def differentiate(step: int) -> None:
        if step in training.kept:
            write_checkpoint(model, step, folder)
        losses[step] = accumulate(model, corpus.ids[order.draw(generator)])
        if not math.isfinite(losses[step]):
            raise NonFinite(
                f"Training {folder.name}: the loss of step {step} is {losses[step]:g}. Try a lower"
                " rate."
            )

    with progress.track("training a GPT-NeoX", training.steps) as advance:
        descend(
            differentiate,
            optimiser,
            training.steps,
            advance=advance,
            key=key_of(about),
            checkpoint=folder / STATE,
            keep=True,
            generator=generator,
            also={"losses": losses, **order.kept},
            clip=CLIP,
            schedule=training.rate_at,
        )
    write_checkpoint(model, training.steps, folder)
    _write(folder, {**about, "last_loss": training.last_of(losses)})
    (folder / STATE).unlink()
    return losses


def untrained_neox(training: GymTraining, n_words: int) -> GPTNeoXForCausalLM:
    """Return the model before the first step, with random weights."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=n_words,
        hidden_size=training.width,
        num_hidden_layers=training.layers,
        num_attention_heads=training.heads,
        intermediate_size=4 * training.width,
        max_position_embeddings=CONTEXT,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
        },
        initializer_range=1 / math.sqrt(training.width) / 2,
        bos_token_id=0,
        eos_token_id=0,
    )
    # transformers draws weights from the global generator; `fork_rng` restores its state.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(training.seed)
        return GPTNeoXForCausalLM(config).train()


def accumulate(model: GPTNeoXForCausalLM, ids: Int[Tensor, "rows longest"]) -> float:
    """Add the gradients of the mean loss per token to the model, and return that loss."""
    lengths = (ids != PAD).sum(1)
    total, n = 0.0, int((lengths - 1).sum())
    for rows in lengths.argsort(stable=True).tensor_split(CHUNKS):
        some = ids[rows, : int(lengths[rows].max())]
        # Padding is at the end of a row, so that no token of a sentence attends to it.
        logits = model(input_ids=some.clamp(min=0), use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), some[:, 1:].flatten(), ignore_index=PAD, reduction="sum"
        )
        (loss / n).backward()
        total += float(loss.detach())
    return total / n


def write_checkpoint(model: GPTNeoXForCausalLM, step: int, folder: Path) -> None:
    """Write the weights after `step` updates to the folder `stepN`, in fp16."""
    written: Any = copy.deepcopy(model).half()
    write_weights(written, folder / f"step{step}")


def _begin(folder: Path, about: dict[str, Any]) -> None:
    """Make the folder, or check that it contains this training, interrupted."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, about)
        return
    try:
        held = json.loads((folder / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        held = None
    if isinstance(held, dict) and "last_loss" in held:
        raise BadUsage(f"{folder} holds a training that is finished. Name another folder.")
    if held != json.loads(json.dumps(about)):
        raise BadUsage(
            f"{folder} exists, and does not hold this training, interrupted. Name another folder."
        )


def _write(folder: Path, about: dict[str, Any]) -> None:
    (folder / FILE).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
