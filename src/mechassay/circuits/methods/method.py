"""What every circuit localization method is, what all share, and the pairs that methods are given.

A pairing says which corrupted prompt each clean prompt has where a circuit is looked for:

    matched          its own                                       (as the task made the pair)
    random           that of another example, of as many tokens
    same-template    that of another example, of as many tokens and built the same way
                     (`Task.template`)

A circuit found on matched pairs has only seen corruptions that leave most of the prompt as it
was; an adversarial grid has every clean prompt with every corrupted one, which is `random`.

The corrupted prompts are those of the pairs, each used once: within every group of prompts that
may be exchanged they are rotated by one in a random order. A pair that is alone in its group is
left out and counted. Answers and foils stay those of the clean prompt.
"""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from mechassay.circuits.scores import Scores
from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.models.decoder import Decoder
from mechassay.models.graph import Graph
from mechassay.models.memory import out_of_memory_is_an_error, trace_bytes
from mechassay.models.model import Model
from mechassay.models.objectives import Objective, ObjectiveLike, load_objective
from mechassay.models.origin import origin_of
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.utils.arguments import checked
from mechassay.utils.checkpoint import checkpointed
from mechassay.utils.display import BAR, Progress

Part = TypeVar("Part")
ScoresT = TypeVar("ScoresT", bound=Scores, covariant=True)
CANDIDATES = "candidates"
"""The table of a record with what validation pairs decided between, and the CMD of each there."""


@dataclass(frozen=True)
class ScoreInputs:
    """Everything that a method finds scores from.

    Attributes:
        batch: the pairs, aligned, on the model's device.
        objective: what a score is a drop of.
        progress: where the method shows how far it is.
        checkpoint: the file that keeps finished work of a killed run; None keeps nothing.
    """

    model: Model
    batch: Batch
    objective: Objective
    progress: Progress = BAR
    checkpoint: Path | None = None


class AnyMethod(Protocol):
    """What runs use of a method: a frozen dataclass, with or without the base `Method`.

    Runs also use these members if a method has them:

        candidates()                 methods between which validation pairs decide
        inner()                      methods that it uses; their versions are a part of its own
        mean_of_pairs                whether scores of pairs are the mean over single pairs, so that
                                     how they vary costs no second run
        token_bytes(decoder, width)  bytes that one token needs in the chunks that it runs
    """

    name: ClassVar[str]
    version: ClassVar[int]

    def score(
        self,
        model: Model,
        pairs: PairsLike,
        objective: ObjectiveLike = ...,
        *,
        progress: Progress = ...,
        checkpoint: Path | None = ...,
    ) -> Scores: ...

    def forwards(self, graph: Graph, n_pairs: int) -> float: ...


class Method(ABC, Generic[ScoresT]):
    """A method that scores every edge, node or neuron of a model's graph on a task.

    A method is a frozen dataclass. Its author writes `name`, `find_scores` and `forwards`.

    Attributes:
        default_objective: name of the objective of `score` if none is given.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    default_objective: ClassVar[str] = "logit_diff"

    @checked
    def score(
        self,
        model: Model,
        pairs: PairsLike,
        objective: ObjectiveLike | None = None,
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> ScoresT:
        """Return the mean drop of the objective when an edge (node, neuron) is ablated.

        A positive score means that the edge helps.

        Args:
            objective: objective whose drop is the score; `default_objective` if None.
            checkpoint: file of finished batches, from which a killed run resumes.

        Raises:
            BadPairs, NonFinite, OutOfMemory: see `circuits.evaluate`.
            BadUsage: an objective that the method cannot use.
        """
        chosen = load_objective(self.default_objective if objective is None else objective)
        inputs = ScoreInputs(model, model.batch(pairs), chosen, progress, checkpoint)
        return self.find_scores(inputs)

    @abstractmethod
    def find_scores(self, inputs: ScoreInputs) -> ScoresT:
        """Find the scores that `score` returns."""

    @abstractmethod
    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """About how many forward passes of one example `score` takes, or the least it can take."""


def settings(method: Any) -> dict[str, Any]:
    """A method's configuration: its dataclass fields."""
    return dataclasses.asdict(method)


def method_name(method: AnyMethod) -> str:
    """A method in files and tables: its name, and the settings that are not the default."""
    by_contract: Any = method  # A dataclass, which the type does not say.
    fields = dataclasses.fields(by_contract)
    changed = [
        f"{field.name}={getattr(method, field.name)}"
        for field in fields
        if getattr(method, field.name) != field.default
    ]
    return " ".join([method.name, *([",".join(changed)] if changed else [])])


def versions_of(method: AnyMethod) -> list[tuple[str, int]]:
    """Name and version of a method, and of those that it uses."""
    inner: Sequence[AnyMethod] = getattr(method, "inner", tuple)()
    return [(method.name, method.version), *(own for part in inner for own in versions_of(part))]


def token_bytes(method: AnyMethod, decoder: Decoder, width: int) -> int:
    """Bytes that one token needs, about, in a method's chunks: of itself and of those it uses.

    Args:
        width: tokens of the longest prompt.
    """
    own: Callable[[Decoder, int], int] | None = getattr(method, "token_bytes", None)
    inner: Sequence[AnyMethod] = getattr(method, "inner", tuple)()
    needed = trace_bytes(decoder) if own is None else own(decoder, width)
    return max([needed, *(token_bytes(part, decoder, width) for part in inner)])


def provenance_of(method: AnyMethod, inputs: ScoreInputs) -> dict[str, Any]:
    """How scores came about."""
    model, batch = inputs.model, inputs.batch
    return {
        "method": method.name,
        "method_version": method.version,
        **({"inner_versions": inner} if (inner := versions_of(method)[1:]) else {}),
        "settings": settings(method),
        **origin_of(model),
        "objective": inputs.objective.name,
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
        checkpoint: a file that keeps what is done, so that a killed run can go on.
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


Pairing = Literal["matched", "random", "same-template"]
PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)


class Paired(NamedTuple):
    """Pairs made anew.

    Attributes:
        rows: which of the given pairs the clean prompts are, rising.
        n_alone: pairs left out, because no other example's prompt could be theirs.
    """

    batch: Batch
    rows: tuple[int, ...]
    n_alone: int


def check_pairing(pairing: str) -> None:
    """Refuse what is no pairing.

    Raises:
        UnknownName: it is none of `PAIRINGS`.
    """
    one_of("pairing", pairing, PAIRINGS)


def paired(
    batch: Batch, pairing: str, rng: np.random.Generator, templates: Sequence[str | None] = ()
) -> Paired:
    """The pairs with the corrupted prompts that a pairing gives them.

    Args:
        templates: of each pair, for "same-template"; None where the task does not say.

    Raises:
        UnknownName: no such pairing.
        BadUsage: "same-template" without a template for every pair.
        BadPairs: no pair has another example to take a prompt from.
    """
    check_pairing(pairing)
    n = len(batch)
    if pairing == "matched":
        return Paired(batch, tuple(range(n)), 0)
    kinds: list[str] = [""] * n
    if pairing == "same-template":
        kinds = [template for template in templates if template is not None]
        if len(kinds) != n:
            raise BadUsage(
                f"same-template needs the template of every pair; {len(kinds)} of {n} are known."
                " Take another pairing."
            )
    groups = np.unique(np.asarray(kinds), return_inverse=True)[1].reshape(-1)
    other = _partners(batch.lengths.cpu().numpy(), groups, rng)
    rows = np.flatnonzero(other >= 0)
    if not rows.size:
        built = " and of its template" if pairing == "same-template" else ""
        raise BadPairs(
            f"{pairing}: none of {n} pairs has another example of as many tokens{built}."
        )
    index = torch.from_numpy(np.where(other >= 0, other, 0))
    drawn = batch.counterfactual[index.to(batch.counterfactual.device)]
    digest = hashlib.sha256(other.tobytes()).hexdigest()[:16]
    made = replace(batch, counterfactual=drawn, content=f"{batch.content}-{digest}")
    kept = made if len(rows) == n else made.select(rows.tolist())
    return Paired(kept, tuple(rows.tolist()), n - len(rows))


def _partners(lengths: np.ndarray, kinds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each pair the place of the example whose corrupted prompt it takes; -1 if alone."""
    other = np.full(len(lengths), -1, dtype=np.int64)
    groups = np.unique(np.stack([lengths, kinds]), axis=1, return_inverse=True)[1].reshape(-1)
    for group in range(int(groups.max()) + 1):
        rows = rng.permutation(np.flatnonzero(groups == group))
        if len(rows) > 1:
            other[rows] = np.roll(rows, 1)
    return other
