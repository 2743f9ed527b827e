"""What every circuit localization method is, and what all kinds of methods share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from mechassay.checkpoint import checkpointed
from mechassay.circuits.node_scores import Scores
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.memory import out_of_memory_is_an_error
from mechassay.models.model import Model
from mechassay.objectives import Objective, ObjectiveLike
from mechassay.pairs import Batch, PairsLike
from mechassay.progress import BAR, Progress

Part = TypeVar("Part")


class Method(Protocol):
    """Scores every edge, node or neuron of a model's graph on a task; a frozen dataclass."""

    name: ClassVar[str]
    version: ClassVar[int]

    def score(
        self,
        model: Model,
        pairs: PairsLike,
        objective: ObjectiveLike = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> Scores:
        """Mean drop of the objective when an edge (node, neuron) is ablated: positive = it helps.

        Args:
            checkpoint: a file that keeps what is done, so that a killed job can go on.

        Raises:
            BadPairs, NonFinite, OutOfMemory: see `circuits.evaluate`.
            BadUsage: an objective that the method cannot use.
        """
        ...

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """About how many forward passes of one example `score` takes, or the least it can take."""
        ...


def settings(method: Any) -> dict[str, Any]:
    """A method's configuration: its dataclass fields."""
    return dataclasses.asdict(method)


def method_name(method: Method) -> str:
    """A method in files and tables: its name, and the settings that are not the default."""
    by_contract: Any = method  # A dataclass, which no protocol can say.
    fields = dataclasses.fields(by_contract)
    changed = [
        f"{field.name}={getattr(method, field.name)}"
        for field in fields
        if getattr(method, field.name) != field.default
    ]
    return " ".join([method.name, *([",".join(changed)] if changed else [])])


def provenance_of(
    method: Method, model: Model, batch: Batch, objective: Objective
) -> dict[str, Any]:
    """How scores came about."""
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


def resumable_sum(
    label: str,
    key: str,
    zeros: Mapping[str, Tensor],
    parts: Iterable[tuple[int, Part]],
    add: Callable[[Part, Mapping[str, Tensor]], None],
    *,
    n_units: int,
    progress: Progress,
    checkpoint: Path | None,
) -> Mapping[str, Tensor]:
    """The sums of what `add(part, into)` adds for every part, one part after another.

    Args:
        key: of what is computed; only a checkpoint with the same key is taken up.
        zeros: what the sums begin with; `into` has tensors like them.
        parts: each with its number of units, of which there are `n_units`, on the bar.
        checkpoint: a file that keeps what is done, so that a killed job can go on.
    """
    with (
        progress.track(label, n_units) as advance,
        out_of_memory_is_an_error(label),
        checkpointed(checkpoint, key, zeros) as state,
    ):
        for number, (units, part) in enumerate(parts):
            if number >= state.cursor:
                into = {name: torch.zeros_like(tensor) for name, tensor in zeros.items()}
                add(part, into)
                state.add(number + 1, **into)
            advance(units)
    return state.tensors


def check_gradients(who: str, model: Model) -> None:
    """Refuse what cannot have gradients; methods switch them on again under torch.no_grad().

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
    # Users' Python may give anything.
    is_whole = isinstance(seed, int)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_whole or abs(seed) >= 2**62:
        raise BadUsage(f"A seed must be a whole number smaller than 2^62; got {seed!r}.")
    return torch.Generator().manual_seed(seed)
