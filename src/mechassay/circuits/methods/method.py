"""What every circuit localization method is, and the loop over examples they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from mechassay.checkpoint import checkpointed, key_of
from mechassay.circuits.node_scores import Scores
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.memory import gradient_bytes, out_of_memory_is_an_error, token_budget
from mechassay.models.model import Model
from mechassay.objectives import Objective, load_objective
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress


class Method(Protocol):
    """Scores every edge, node or neuron of a model's graph on a task.
    Implementations are frozen dataclasses.
    """

    name: ClassVar[str]
    version: ClassVar[int]

    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> Scores:
        """Mean drop of the objective when an edge (node, neuron) is ablated, for each:
        positive = it helps.

        Args:
            checkpoint: a file that keeps what is done, so that a killed job can go on.

        Raises:
            BadPairs, NonFinite, OutOfMemory; BadUsage for an objective the method cannot use.
        """
        ...

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """About how many forward passes of one example `score` takes on so many pairs,
        or the least it can take.
        """
        ...


def settings(method: Any) -> dict[str, Any]:
    """A method's configuration: its dataclass fields."""
    return dataclasses.asdict(method)


def describe(method: Method, model: Model, batch: Batch, objective: Objective) -> dict[str, Any]:
    """Provenance of scores."""
    return {
        "method": method.name,
        "method_version": method.version,
        "settings": settings(method),
        "model": model.name,
        "objective": objective.name,
        "n_examples": len(batch),
        "data_hash": batch.content,
        "prompts": list(batch.prompt_hashes()),
        "dtype": str(model.dtype).removeprefix("torch."),
    }


def mean_over_examples(
    method: Method,
    model: Model,
    pairs: Sequence[Pair] | Batch,
    objective: str | Objective,
    add: Callable[[Batch, Objective, Tensor], None],
    *,
    copies: int,
    progress: Progress,
    checkpoint: Path | None = None,
) -> EdgeScores:
    """Sum `add(chunk, objective, into)` over chunks of examples and divide by their number.

    Args:
        copies: forward passes with gradients that are alive at once for one example.
    """
    graph = model.graph
    shape = (graph.n_writers, graph.n_readers)
    mean, about = mean_of_shape(
        method,
        model,
        pairs,
        objective,
        add,
        shape,
        copies=copies,
        progress=progress,
        checkpoint=checkpoint,
    )
    return EdgeScores.of(graph, mean, about)


def mean_of_shape(
    method: Method,
    model: Model,
    pairs: Sequence[Pair] | Batch,
    objective: str | Objective,
    add: Callable[[Batch, Objective, Tensor], None],
    shape: tuple[int, int],
    *,
    copies: int,
    progress: Progress,
    checkpoint: Path | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """What `mean_over_examples` does, for sums of any shape:
    the mean and the provenance of the scores.
    """
    chosen, batch = load_objective(objective), model.batch(pairs)
    if not chosen.differentiable:
        raise BadUsage(f"{method.name} needs a differentiable objective; {chosen.name!r} is not.")
    check_gradients(method.name, model)
    zeros = torch.zeros(shape, dtype=model.accumulator, device=model.device)
    budget = token_budget(gradient_bytes(model.decoder, copies), batch.n_tokens, model.device)
    about = describe(method, model, batch, chosen)
    key = key_of({**about, "budget": budget, "graph": model.graph.fingerprint})
    with (
        progress.track(method.name, len(batch)) as advance,
        out_of_memory_is_an_error(method.name),
        checkpointed(checkpoint, key, {"total": zeros}) as state,
    ):
        done = state.cursor
        for number, (rows, chunk) in enumerate(batch.chunks(budget)):
            if number >= done:
                part = torch.zeros_like(zeros)
                add(chunk, chosen, part)
                state.add(number + 1, total=part)
            advance(len(rows))
    return state.tensors["total"] / len(batch), about


def check_gradients(who: str, model: Model) -> None:
    """Refuse what cannot have gradients. Under torch.no_grad() methods switch them on again;
    inference mode is for good.

    Raises:
        BadUsage: under torch.inference_mode(), or a model whose weights were made there.
    """
    if torch.is_inference_mode_enabled():
        raise BadUsage(
            f"{who} needs gradients, which torch.inference_mode() forbids; call it outside, or"
            " under torch.no_grad()."
        )
    if model.decoder.embedding.is_inference():
        raise BadUsage(
            f"{who} needs gradients, which {model.name} cannot have: it was loaded under"
            " torch.inference_mode()."
        )


def seeded(seed: int) -> torch.Generator:
    """Random numbers of a seed.

    Raises:
        BadUsage: no whole number, or one of more than 62 bits.
    """
    if not isinstance(seed, int) or abs(seed) >= 2**62:  # pyright: ignore[reportUnnecessaryIsInstance] - of users' Python
        raise BadUsage(f"A seed must be a whole number smaller than 2^62; got {seed!r}.")
    return torch.Generator().manual_seed(seed)
