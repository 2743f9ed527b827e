"""Verification of a claimed circuit: the effect of every edge in every pair, by intervention.

    effect[u, v] = |m(full circuit) - m(full circuit without (u, v))|, of each pair

Each edge is ablated alone, and its largest effect counts, not the mean: an edge that matters in
few prompts is part of the mechanism. Truth differs between ablations: what is the same in every
prompt is invisible to counterfactuals. Learned positions belong to no node. A claim holds if

    found    it is the edges above the widest gap: the largest ratio of neighbours among the
             sorted largest effects, where those below `FLOOR` of the largest count as the floor
    margin   the smallest largest effect of a claimed edge is `MARGIN` times that of any other
             edge
    joint    and so of `together`, the largest effect of ablating all other edges at once: of two
             edges that do the same work, each enough, neither has an effect alone
    shares   in a share of `LEAST_SHARE` of the pairs or more, each claimed edge has a larger
             effect than any other edge has in any pair

Maxima grow with the pairs, and a small sample can miss the few that show a rare edge; shares
leave no room for that luck. InterpBench (Gupta et al. 2024) derives its ground truth from how
its models were trained and does not intervene on edges.

A backup head is silent while its primary head works, so that its edges have no effect alone. Where
one is claimed every effect is the largest of three: that in the model, without the primary head,
and without the backup, which hides a part of what the primary head does (contingencies, Halpern
and Pearl 2005). The claim must also hold as one of heads, see `Backup`.

A ground truth is a folder: a model and tokenizer that load like any others, and truth.json
(`write_truth`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.ablation import ablate
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.models.objectives import ObjectiveLike
from mechassay.models.weight_files import quiet
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.truth.summary import FILE, FORMAT, ratio
from mechassay.truth.tasks import UNKNOWN
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


ABLATIONS = ("counterfactual", "mean", "zero")
MARGIN = 10.0
LEAST_SHARE = 0.25
FLOOR = 1e-4
SURVIVES = 0.95
"""Least share of pairs whose answer outlasts the primary head, and not the backup too."""
CIRCUITS_AT_A_TIME = 64


@dataclass(frozen=True, eq=False, repr=False)
class Backup(OneLine):
    """What follows where a primary head, its backup, or both are ablated whole.

    Attributes:
        head, primary: the backup, and the head that it stands in for.
        values: the objective with nothing ablated, the primary, the backup, and both.
    """

    head: str
    primary: str
    values: Float[np.ndarray, "4 pairs"]

    @property
    def survives(self) -> float:
        """The share of pairs whose answer is ahead without the primary head."""
        return float((self.values[1] > 0).mean())

    @property
    def lost(self) -> float:
        """The share of pairs whose answer is not ahead without both."""
        return float((self.values[3] <= 0).mean())

    @property
    def heard(self) -> float:
        """The largest change without the backup alone: 0 if it is silent."""
        return float(np.abs(self.values[2] - self.values[0]).max())


@dataclass(frozen=True, eq=False, repr=False)
class Verification(OneLine):
    """What interventions say about a claimed circuit.

    Attributes:
        ablation: what ablated edges carried.
        claimed: the circuit as claimed.
        by_pair: the absolute effect of each edge in each pair; NaN where the graph has no edge.
            With backups the largest of that in the model and those without a primary head or one
            of them.
        together: the largest absolute effect of ablating everything outside the claim at once.
        backups: the backups that are claimed.
        alone: the effects in the whole model; None if there is no backup, as these are `by_pair`.
    """

    ablation: str
    claimed: Circuit
    by_pair: Float[Tensor, "pairs writers readers"]
    together: float
    backups: tuple[Backup, ...] = ()
    alone: Float[Tensor, "pairs writers readers"] | None = None

    @property
    def n_pairs(self) -> int:
        """Over how many pairs effects are the largest."""
        return len(self.by_pair)

    @property
    def effects(self) -> Float[Tensor, "writers readers"]:
        """The largest effect of each edge; NaN where the graph has no edge."""
        return self.by_pair.amax(dim=0)

    @property
    def smallest_inside(self) -> float:
        """The smallest effect of a claimed edge; NaN if none is claimed."""
        inside = self.effects[self.claimed.edges]
        return float(inside.min()) if len(inside) else float("nan")

    @property
    def largest_outside(self) -> float:
        """The largest effect of an edge that is not claimed; NaN if all are."""
        outside = self.effects[self.claimed.graph.legal & ~self.claimed.edges]
        return float(outside.max()) if len(outside) else float("nan")

    @property
    def margin(self) -> float:
        """`smallest_inside` / `largest_outside`."""
        return ratio(self.smallest_inside, self.largest_outside)

    @property
    def joint_margin(self) -> float:
        """`smallest_inside` / `together`."""
        return ratio(self.smallest_inside, self.together)

    @property
    def shares(self) -> Float[Tensor, "writers readers"]:
        """Of each edge, the share of pairs in which its effect exceeds `largest_outside`."""
        return self._share_above(torch.tensor(self.largest_outside, dtype=torch.float64))

    @property
    def shares_in_pair(self) -> Float[Tensor, "writers readers"]:
        """Of each edge, the share of pairs in which its effect exceeds those of edges outside."""
        outside = self.by_pair[:, self.claimed.graph.legal & ~self.claimed.edges]
        return self._share_above(
            outside.amax(dim=1)[:, None, None] if outside.shape[1] else torch.tensor(float("nan"))
        )

    def _share_above(self, bound: Tensor) -> Float[Tensor, "writers readers"]:
        defined = ~(self.by_pair.isnan() | bound.isnan())
        return torch.where(defined, (self.by_pair > bound).double(), float("nan")).mean(dim=0)

    @property
    def least_share(self) -> float:
        """The least of the claimed edges' `shares`; NaN if none or all edges are claimed."""
        inside = self.shares[self.claimed.edges]
        return float(inside.min()) if len(inside) else float("nan")

    @property
    def recovered(self) -> Circuit:
        """The edges above the widest gap between effects; none if no edge has an effect."""
        return above_the_gap(self.claimed.graph, self.effects)

    @property
    def contingent(self) -> tuple[str, ...]:
        """The claimed edges that show only without a head: their effects in the whole model are not
        `MARGIN` times the largest outside, or exceed it in less than `LEAST_SHARE` of the pairs.
        """
        if self.alone is None:
            return ()
        largest, often = self.alone.amax(dim=0), self.alone > self.largest_outside
        clear = largest >= MARGIN * self.largest_outside
        clear &= often.double().mean(dim=0) >= LEAST_SHARE
        return tuple(Circuit(self.claimed.graph, self.claimed.edges & ~clear).names())

    @property
    def holds(self) -> bool:
        """Whether the claim is found, above the rest by `MARGIN`, in enough of the pairs; and each
        backup saves the answer (`SURVIVES`) and is silent, by the same margin.
        """
        clear = self.margin >= MARGIN and self.joint_margin >= MARGIN
        backed_up = all(
            min(backup.survives, backup.lost) >= SURVIVES
            and backup.heard * MARGIN <= self.smallest_inside
            for backup in self.backups
        )
        shared = self.least_share >= LEAST_SHARE
        return clear and shared and backed_up and self.recovered == self.claimed


@checked
def verify(
    model: Model,
    pairs: PairsLike,
    claimed: Circuit,
    ablation: str = "counterfactual",
    objective: ObjectiveLike = "logit_diff",
    *,
    optional: Circuit | None = None,
    data: PairsLike | None = None,
    backups: Mapping[str, str] = MappingProxyType({}),
    progress: Progress = BAR,
) -> Verification:
    """Ablate every edge alone in every pair, and compare the effects with a claimed circuit.

    One run an edge and pair: for tiny models. Twice more for each backup.

    Args:
        ablation: any that `mechassay.circuits.ablate` knows by name.
        backups: the primary head of each backup head.
        optional: edges that belong to the claim if they are found, and only then.
        data: pairs that means are computed on; `pairs` if not given. Effects change with the means,
            so that a circuit is best judged with those that it was verified with.

    Raises:
        GraphMismatch: the circuit belongs to another graph than the model's.
        UnknownName, BadPairs: see `ablate`.
    """
    for kind, circuit in (("claimed", claimed), ("optional", optional)):
        if circuit is not None and circuit.graph != model.graph:
            raise GraphMismatch(
                f"The {kind} circuit belongs to {circuit.graph}; the model's graph is"
                f" {model.graph}."
            )
    batch = ablate(model, pairs, ablation, data=data, progress=progress)
    full = Circuit.full(model.graph)
    present = [full, *(without(full, head) for pair in backups.items() for head in pair)]
    each_present = [
        effects_by_pair(model, batch, objective, present=one, progress=progress) for one in present
    ]
    by_pair = reduce(torch.fmax, each_present)
    if optional is not None:
        separated = above_the_gap(model.graph, by_pair.amax(dim=0))
        claimed = Circuit(model.graph, claimed.edges | (separated.edges & optional.edges))
    only = [Circuit(model.graph, one.edges & claimed.edges) for one in present]
    values = evaluate(model, [*present, *only], batch, objective, progress=progress)
    together = float(np.abs(values[: len(present)] - values[len(present) :]).max())
    if not backups:
        return Verification(ablation, claimed, by_pair, together)
    tried: list[Backup] = []
    for head, primary in backups.items():
        ablated = ((), (primary,), (head,), (primary, head))
        circuits = [without(full, *heads) for heads in ablated]
        answers = evaluate(model, circuits, batch, objective, progress=progress)
        tried.append(Backup(head, primary, answers))
    return Verification(ablation, claimed, by_pair, together, tuple(tried), each_present[0])


def without(circuit: Circuit, *writers: str) -> Circuit:
    """The circuit less all edges of some writers."""
    kept = circuit.edges.clone()
    kept[[circuit.graph.writer(name) for name in writers]] = False
    return Circuit(circuit.graph, kept)


def effects_by_pair(
    model: Model,
    batch: Batch,
    objective: ObjectiveLike = "logit_diff",
    *,
    present: Circuit | None = None,
    progress: Progress = BAR,
) -> Float[Tensor, "pairs writers readers"]:
    """The absolute effect of ablating each edge alone in each pair, in fp64; NaN if no edge.

    Args:
        present: the circuit that an edge is taken from; all edges if not given.
    """
    present = Circuit.full(model.graph) if present is None else present
    baseline = evaluate(model, present, batch, objective, progress=progress)
    edges = present.edges.nonzero()
    effects = torch.full((len(batch), *model.graph.legal.shape), float("nan"), dtype=torch.float64)
    for some in edges.split(CIRCUITS_AT_A_TIME):
        fewer: list[Circuit] = []
        for writer, reader in some.tolist():
            kept = present.edges.clone()
            kept[writer, reader] = False
            fewer.append(Circuit(present.graph, kept))
        values = evaluate(model, fewer, batch, objective, progress=progress)
        effects[:, some[:, 0], some[:, 1]] = torch.from_numpy(np.abs(baseline - values)).double().T
    return effects


def above_the_gap(graph: Graph, effects: Float[Tensor, "writers readers"]) -> Circuit:
    """The edges above the largest ratio between neighbouring effects, of those with an effect.

    Raises:
        BadUsage: an effect is negative, infinite or NaN.
    """
    values = effects[graph.legal].double()
    if not bool((torch.isfinite(values) & (values >= 0)).all()):
        raise BadUsage(
            "The largest absolute effects must be finite and not negative, one for every edge."
        )
    largest = float(values.max())
    if largest == 0:
        return Circuit.empty(graph)
    ordered = values.clamp(min=FLOOR * largest).sort(descending=True).values
    # A last value at the floor: if all edges are far above it, all of them are found.
    ordered = torch.cat((ordered, ordered.new_tensor([FLOOR * largest])))
    last = int((ordered[:-1] / ordered[1:]).argmax())
    return Circuit(graph, graph.legal & (effects >= ordered[last]))


def word_tokenizer(vocabulary: Sequence[str], context: int) -> PreTrainedTokenizerFast:
    """A tokenizer that knows these words, one token each, separated by spaces; ids are places."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer: Any = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, model_max_length=context
    )


def write_model(model: PreTrainedModel, vocabulary: Sequence[str], folder: Path) -> None:
    """Write a model and a tokenizer of its words as a folder that loads like any model."""
    write_weights(model, folder)
    write_tokenizer(vocabulary, int(model.config.max_position_embeddings), folder)


def write_weights(model: PreTrainedModel, folder: Path) -> None:
    """Write a model's configuration and weights."""
    with quiet():
        model.save_pretrained(folder)
    # What depends on the version of transformers says nothing about the model.
    _rewrite(folder / "config.json", {"transformers_version": None})
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)


def write_tokenizer(vocabulary: Sequence[str], context: int, folder: Path) -> None:
    """Write a tokenizer of words."""
    word_tokenizer(vocabulary, context).save_pretrained(folder)
    fixed = {"backend": None, "tokenizer_class": "PreTrainedTokenizerFast"}
    _rewrite(folder / "tokenizer_config.json", fixed)


def write_truth(
    folder: Path,
    task: str,
    ablations: Mapping[str, Verification],
    *,
    split: str,
    seed: int,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write truth.json beside a model.

        {"format": 1, "task": name, "graph": fingerprint, "n_edges": ...,
         "split": ..., "seed": ..., "n_pairs": ...,
         "ablations": {ablation: {"edges": [...],
                                  "smallest_inside": ..., "largest_outside": ...,
                                  "together": ...,
                                  "shares": [...], "shares_in_pair": [...],
                                  "contingent": [...],                    with backups
                                  "backups": {head: {"primary": ..., "survives": ...,
                                                     "lost": ..., "heard": ...}}}},
         "training": {...}}                                                for a trained model

    with the verified edges, the smallest of their largest effects, the largest effect of
    another edge, and that of all others at once. `shares` are those of pairs in which each edge
    of the circuit exceeds the largest effect of the others in any pair, `shares_in_pair` in
    that same pair; `contingent` are the edges that show only without a head. All are over the
    first `n_pairs` pairs of the split, means too. Files of older versions lack `together` and both
    shares. A circuit that does not hold is never written.

    Args:
        ablations: what was verified, by ablation; all on the same pairs and all hold.
    """
    assert ablations and all(verification.holds for verification in ablations.values())
    first = next(iter(ablations.values()))
    record: dict[str, Any] = {
        "format": FORMAT,
        "task": task,
        "graph": first.claimed.graph.fingerprint,
        "n_edges": first.claimed.graph.n_edges,
        "split": split,
        "seed": seed,
        "n_pairs": first.n_pairs,
        "ablations": {name: _row(verification) for name, verification in ablations.items()},
    }
    if training is not None:
        record["training"] = dict(training)
    (folder / FILE).write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def _row(done: Verification) -> dict[str, Any]:
    inside = done.claimed.edges
    row: dict[str, Any] = {
        "edges": done.claimed.names(),
        "smallest_inside": done.smallest_inside,
        "largest_outside": done.largest_outside,
        "together": done.together,
        "shares": done.shares[inside].tolist(),
        "shares_in_pair": done.shares_in_pair[inside].tolist(),
    }
    if done.backups:
        row["contingent"] = list(done.contingent)
        row["backups"] = {
            backup.head: {
                "primary": backup.primary,
                "survives": backup.survives,
                "lost": backup.lost,
                "heard": backup.heard,
            }
            for backup in done.backups
        }
    return row


def _rewrite(file: Path, changes: Mapping[str, str | None]) -> None:
    """Change entries of a JSON file; None removes one."""
    entries = {**json.loads(file.read_text("utf-8")), **changes}
    kept = {key: value for key, value in entries.items() if changes.get(key, "") is not None}
    file.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", "utf-8")
