"""Robust discovery: a circuit for pairs drawn anew, where pairs it fails on count for more.

Uit de Bos and Garriga-Alonso (2024), section 5, leave open whether adversarial evaluation helps to
find circuits. Two ways are tried, by kind of method; both take a `Tail` (`tails`).

Re-scoring, for a method that scores edges by a mean over pairs (attribution, exact patching):

    S = mean of the scores of the pairs of a first draw
    for r = 1 .. rounds:
        C   = the circuit of S at `n_edges`
        L_i = KL(M || C) on each pair i of a fresh draw,  w = the tail's weights of L
        T_r = sum_i w_i (scores of pair i),     S = (T_1 + ... + T_r) / r

A pair's scores estimate how its loss changes with each edge, and w is the gradient of the tail by
the losses, so T_r does for the tail what plain scores do for the mean. Rounds are averaged because
T_r alone follows the last circuit's failures and forgets the others'. If no pair fails, T_r is the
mean. With the tail `mean` no circuit is run.

Training, for a method that trains a mask (edge-pruning, subnetwork-probing, ugs): each step draws
pairs anew, and its loss is the tail of theirs. `rounds`, `n_edges` and `cut` are not used.

Nothing here shows that a circuit is robust: evaluate it on prompts of another split.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.mask_learning import (
    EdgePruning,
    SubnetworkProbing,
    UniformGradientSampling,
)
from mechassay.circuits.methods.method import (
    AnyMethod,
    ScoreInputs,
    check_pairing,
    paired,
    provenance_of,
    settings,
)
from mechassay.circuits.scores import By, EdgeScores
from mechassay.errors import BadPairs, BadUsage, UnknownName, one_of
from mechassay.models.forward import constants_of
from mechassay.models.model import Model
from mechassay.models.objectives import Objective, ObjectiveLike, load_objective
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Pair, Prompt
from mechassay.tasks.task import Task
from mechassay.utils.display import BAR, SILENT, OneLine, Progress
from studies.robust.tails import MEAN, Mean, Tail, Weights, even

CutKind = Literal["top", "greedy"]
CUT_KINDS: tuple[CutKind, ...] = get_args(CutKind)
TRAINED = (EdgePruning, SubnetworkProbing, UniformGradientSampling)
"""Methods that train a mask, and take examples and a tail."""
ROUNDING = 1e-5
"""Nats. In fp32 a divergence up to this is rounding (`divergence`): the pair has not failed."""
Known = MutableMapping[bytes, Tensor]
"""Scores of single pairs, by their tokens."""


@dataclass(frozen=True, eq=False, repr=False)
class Redrawn(OneLine):
    """Pairs whose corrupted prompts are drawn anew each time; matched pairs stay as they are.

    Attributes:
        batch: the task's own pairs.
        pairing: which corrupted prompts a clean one may get, see `circuits.methods.method`.
        templates: of each pair; needed for "same-template".
        group_names, groups: what worst-group weighs, and the number of each pair's group.
    """

    batch: Batch
    pairing: str
    templates: tuple[str | None, ...]
    group_names: tuple[str, ...]
    groups: Int[Tensor, "n"]

    @staticmethod
    def of(
        batch: Batch,
        pairing: str,
        templates: Sequence[str | None] = (),
        groups: Sequence[str] | None = None,
    ) -> Redrawn:
        """From a group label for each pair; without groups all are in one.

        Raises:
            UnknownName: no such pairing.
            BadUsage: constants in place of corrupted prompts, or not one group a pair.
        """
        check_pairing(pairing)
        if constants_of(batch) is not None:
            raise BadUsage(
                "Corrupted prompts are drawn anew; these pairs carry constants in their place."
            )
        labels = [""] * len(batch) if groups is None else list(groups)
        if len(labels) != len(batch):
            raise BadUsage(
                f"Every pair needs a group; got {len(labels)} groups of {len(batch)} pairs."
            )
        names, member = np.unique(np.asarray(labels), return_inverse=True)
        groups_of = torch.from_numpy(member.reshape(-1))
        return Redrawn(batch, pairing, tuple(templates), tuple(names.tolist()), groups_of)

    def draw(self, rng: np.random.Generator) -> tuple[Batch, Int[Tensor, "kept"]]:
        """Pairs drawn anew, and the number of each one's group.

        A pair for which no other example has a fitting prompt is left out.

        Raises:
            BadUsage: "same-template" without a template for every pair.
            BadPairs: no pair has another example to take a prompt from.
        """
        drawn = paired(self.batch, self.pairing, rng, self.templates)
        return drawn.batch, self.groups[list(drawn.rows)]


def labels_of(pairs: Sequence[Pair], field: str) -> list[str]:
    """The value of a field in every clean prompt: a tag, or a part of the prompt.

    Raises:
        UnknownName: a pair lacks it.
    """
    labels: list[str] = []
    for pair in pairs:
        parts = {name: pair.clean[slice(*span)] for name, span in pair.spans.items()}
        known = {**parts, **pair.tags}
        if field not in known:
            raise UnknownName("field of prompts", field, known)
        labels.append(known[field])
    return labels


def check_divergence(objective: Objective) -> None:
    """Refuse (BadUsage) an objective that does not compare with the clean run."""
    if not objective.needs_clean:
        raise BadUsage(
            "A circuit fails on a pair where it departs from the model: robust discovery needs an"
            f" objective that compares with the clean run (kl, js); got {objective.name!r}."
        )


@dataclass(frozen=True)
class Robust:
    """A method that scores edges, and the tail of its pairs' losses.

    Attributes:
        n_edges: size of the circuit whose losses are taken: a number, or a share (a float) of the
            graph's edges.
        rounds: how often pairs are drawn and weighed.
        cut: "top", the best edges, or "greedy", grown from the logits.
        by: "magnitude" or "value".
    """

    method: AnyMethod
    tail: Tail = MEAN
    n_edges: int | float = 0.02
    rounds: int = 3
    cut: CutKind = "top"
    by: By = "magnitude"
    name: ClassVar[str] = "robust"
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise BadUsage(f"Robust discovery needs at least 1 round; got {self.rounds}.")
        one_of("cut", self.cut, CUT_KINDS)

    def score(
        self,
        model: Model,
        pairs: Redrawn,
        objective: ObjectiveLike = "kl",
        *,
        seed: int = 0,
        known: Known | None = None,
        progress: Progress = BAR,
    ) -> EdgeScores:
        """Scores after the last round, or of the trained mask.

        `provenance["rounds"]` says what each round's circuit did on its fresh pairs.

        Args:
            seed: of the pairs drawn.
            known: scores of single pairs by this method, objective and model, each as large as the
                graph; missing ones are added. So several tails score a pair once.

        Raises:
            BadUsage: an objective that does not compare with the clean run, or a method that does
                not score edges.
            BadPairs: nothing to draw.
        """
        chosen = load_objective(objective)
        check_divergence(chosen)
        if isinstance(self.method, TRAINED):
            steps = _RedrawnSteps(pairs, self.method.batch_size, self.tail)
            weigh = None if isinstance(self.tail, Mean) else steps.weigh
            inputs = ScoreInputs(model, pairs.batch, chosen, progress)
            scores = self.method.find_scores(inputs, examples=steps.draw, weigh=weigh)
            assert isinstance(scores, EdgeScores)
            return self._finished(scores, pairs, seed, {"n_examples": len(pairs.batch)})
        scores, more = _Rounds(
            self, model, pairs, chosen, {} if known is None else known, progress
        ).score(seed)
        return self._finished(scores, pairs, seed, more)

    def circuit(self, scores: EdgeScores) -> Circuit:
        """The circuit whose losses are taken."""
        cut = scores.greedy if self.cut == "greedy" else scores.top
        return cut(self.n_edges, by=self.by)

    def _finished(
        self, scores: EdgeScores, pairs: Redrawn, seed: int, more: dict[str, Any]
    ) -> EdgeScores:
        """Scores with the provenance of the whole procedure."""
        own = {
            **{name: getattr(self, name) for name in ("n_edges", "rounds", "cut", "by")},
            "seed": seed,
            "tail": {"name": self.tail.name, **settings(self.tail)},
            "pairing": pairs.pairing,
            "method": {
                "name": self.method.name,
                "version": self.method.version,
                **settings(self.method),
            },
        }
        about = {
            **scores.provenance,
            "method": self.name,
            "method_version": self.version,
            "settings": own,
            "data_hash": pairs.batch.content,
        }
        return EdgeScores(scores.graph, scores.values, {**about, **more})


class _RedrawnSteps:
    """Examples of a training: each step has some of the pairs, drawn anew, weighed by a tail."""

    def __init__(self, pairs: Redrawn, size: int, tail: Tail) -> None:
        self.pairs, self.size, self.tail = pairs, size, tail
        self.groups = torch.zeros(0, dtype=torch.long)
        self.standing = even(len(pairs.group_names), torch.zeros((), dtype=torch.float64))

    def draw(self, generator: torch.Generator) -> Batch:
        """The examples of a step; `weigh` is asked about them."""
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        batch, groups = self.pairs.draw(rng)
        rows = torch.randperm(len(batch), generator=generator)[: self.size]
        self.groups = groups[rows]
        return batch.select(rows.tolist())

    def weigh(self, losses: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        """The weights of the examples that were drawn last."""
        weights, self.standing = self.tail.weights(losses, self.groups, self.standing)
        return weights


@dataclass(frozen=True, eq=False)
class _Rounds:
    """The loop of re-scoring."""

    robust: Robust
    model: Model
    pairs: Redrawn
    objective: Objective
    known: Known
    progress: Progress

    def score(self, seed: int) -> tuple[EdgeScores, dict[str, Any]]:
        """The scores, and what their provenance says of the rounds."""
        robust, rng = self.robust, np.random.default_rng(seed)
        plain = isinstance(robust.tail, Mean)
        standing = even(len(self.pairs.group_names), torch.zeros((), dtype=torch.float64))
        first, _ = self.pairs.draw(rng)
        scores = None if plain else self._mean(first, _even_weights(first))
        total, history, n_counted = torch.zeros(()), list[dict[str, Any]](), 0
        for number in range(1, robust.rounds + 1):
            batch, groups = self.pairs.draw(rng)
            weights = _even_weights(batch)
            if scores is not None:
                circuit = robust.circuit(EdgeScores(self.model.graph, scores))
                losses = torch.from_numpy(
                    evaluate(self.model, circuit, batch, self.objective, progress=self.progress)
                )
                losses = torch.where(losses > ROUNDING, losses, 0.0)
                update = robust.tail.weights(losses, groups, standing)
                weights, standing = update
                history.append(self._entry(number, circuit, losses, update))
            n_counted += int((weights > 0).sum())
            total = total + self._mean(batch, weights)
            scores = None if plain else total / number
        inputs = ScoreInputs(self.model, self.pairs.batch, self.objective)
        about = provenance_of(robust.method, inputs)
        more = {"rounds": history, "n_examples": n_counted}
        return EdgeScores(self.model.graph, total / robust.rounds, about), more

    def _mean(self, batch: Batch, weights: Float[Tensor, "n"]) -> Float[Tensor, "writers readers"]:
        """The weighted mean of the pairs' scores; pairs of weight 0 are not scored."""
        total = torch.zeros(())
        label = f"scoring pairs by {self.robust.method.name}"
        with self.progress.track(label, len(batch)) as advance:
            for row, weight in enumerate(weights.tolist()):
                if weight:
                    total = total + weight * self._single(batch.select([row]))
                advance(1)
        return total

    def _single(self, pair: Batch) -> Float[Tensor, "writers readers"]:
        key = pair.clean.cpu().numpy().tobytes() + pair.counterfactual.cpu().numpy().tobytes()
        if key not in self.known:
            scores = self.robust.method.score(self.model, pair, self.objective, progress=SILENT)
            if not isinstance(scores, EdgeScores):
                raise BadUsage(
                    f"Robust discovery needs a method that scores edges; {self.robust.method.name}"
                    " scores nodes or neurons."
                )
            self.known[key] = scores.values
        return self.known[key]

    def _entry(
        self, number: int, circuit: Circuit, losses: Float[Tensor, "n"], update: Weights
    ) -> dict[str, Any]:
        """The losses and weights of a round, as plain values."""
        return {
            "round": number,
            "edges": len(circuit),
            "edges_on_a_path": len(circuit.pruned()),
            "pairs": len(losses),
            "counted": int((update.losses > 0).sum()),
            "mean": float(losses.mean()),
            "tail": float(update.losses @ losses),
            "max": float(losses.max()),
            "groups": dict(zip(self.pairs.group_names, update.groups.tolist(), strict=True)),
        }


def _even_weights(batch: Batch) -> Float[Tensor, "n"]:
    return torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Stratified(OneLine):
    """Pairs of one length, each with its template, its group and its stratum."""

    batch: Batch
    templates: tuple[str | None, ...]
    groups: tuple[str, ...]
    strata: tuple[str, ...]

    def select(self, rows: Sequence[int]) -> Stratified:
        """The pairs at `rows`, in that order."""
        groups, strata = (tuple(each[row] for row in rows) for each in (self.groups, self.strata))
        templates = tuple(self.templates[row] for row in rows)
        return Stratified(self.batch.select(rows), templates, groups, strata)


def draw_stratified(
    task: Task,
    model: Model,
    split: str,
    n: int,
    *,
    pairing: str,
    group: str = "",
    counterfactual: str | None = None,
    seed: int = 0,
) -> Stratified:
    """The first pairs of a split that have as many tokens as most.

    Args:
        pairing: with "random" all pairs are of one stratum, else those of one template.
        group: a field of the clean prompts whose values are the groups; the templates if empty.

    Raises:
        BadUsage: the task has no templates, and the pairing needs them.
        UnknownName: a pair has no such field.
    """
    asked, rows, pairs, batch = n, list[int](), (), None
    while batch is None or len(rows) < n:
        pairs = task.pairs(split, model, limit=asked, counterfactual=counterfactual, seed=seed)
        batch = model.batch(pairs)
        rows = (batch.lengths == batch.lengths.mode().values).nonzero()[:n, 0].tolist()
        asked *= 2
    chosen = [pairs[row] for row in rows]
    templates = tuple(task.template(pair.tags) for pair in chosen)
    if pairing != "random" and None in templates:
        raise BadUsage(
            f"{task.name} does not say which template its prompts have: take the pairing random."
        )
    names = tuple(template or "" for template in templates)
    groups = tuple(labels_of(chosen, group)) if group else names
    strata = names if pairing != "random" else ("",) * n
    return Stratified(batch.select(rows), templates, groups, strata)


def strata_grid(
    model: Model,
    circuits: Sequence[Circuit],
    clean: Batch,
    corrupted: Batch,
    strata: tuple[Sequence[str], Sequence[str]],
    progress: Progress = BAR,
) -> Float[np.ndarray, "circuits_and_empty clean corrupted"]:
    """KL of each circuit, and last of no edges, for every pair of prompts of one stratum, else NaN.

    Args:
        clean, corrupted: batches whose clean, and whose corrupted, prompts are taken.
        strata: of each, in their order.

    Raises:
        BadPairs: no two prompts are of one stratum.
    """
    grid = np.full((len(circuits) + 1, len(clean), len(corrupted)), np.nan, dtype=np.float32)
    for shared in sorted(set(strata[0]) & set(strata[1])):
        rows, columns = (
            [place for place, stratum in enumerate(side) if stratum == shared] for side in strata
        )
        pools = [
            Pool((Prompt(""),) * len(tokens), tokens)
            for tokens in (clean.select(rows).clean, corrupted.select(columns).counterfactual)
        ]
        values = evaluate_pairs(model, circuits, *pools, progress=progress)
        grid[(slice(None), *np.ix_(rows, columns))] = np.concatenate(
            (values.circuits, values.corrupted[None])
        )
    if np.isnan(grid).all():
        raise BadPairs(
            "No held-out clean prompt has the template of a corrupted one: there is no grid."
        )
    return grid


def check_apart(first: str, some: Batch, second: str, others: Batch) -> None:
    """Refuse two sets of pairs that have a prompt, clean or corrupted, in common.

    Raises:
        BadPairs: they do; the message has their names and how many.
    """
    shared = _prompts(some) & _prompts(others)
    if shared:
        raise BadPairs(
            f"The {first} and the {second} share {len(shared)} prompts; take them from different"
            " splits."
        )


def _prompts(batch: Batch) -> set[tuple[int, ...]]:
    """Prompts without their padding."""
    mask = batch.mask.cpu()
    return {
        tuple(row[kept].tolist())
        for tokens in (batch.clean, batch.counterfactual)
        for row, kept in zip(tokens.cpu(), mask, strict=True)
    }
