"""Robust discovery: find a circuit, look for the pairs it fails on, find it again with these pairs among the others.

Uit de Bos and Garriga-Alonso (2024), section 5, leave open whether adversarial evaluation helps to find circuits. The loop
here is the plainest way to try it, around any method that scores edges:

    S_0 = the method's scores on the base pairs B
    for r = 0 .. rounds - 1:
        C_r = the circuit of S_r at `n_edges`
        V   = KL(M(x) || C_r(x, x~)) for every x and x~ of a discovery grid
        W  += the worst pairs of V, no two of them with a prompt in common, none that is in W already
        S_{r+1} = the method's scores on B and W

Pairs of a grid have neither answers nor foils, so the objective compares with the clean run (`kl`, `js`); EAP, which takes
its gradients at the clean run, refuses those. Worst pairs share no prompt within a round, or one bad prompt would
stand for all. B and W are one set of pairs, so that a mean over examples weighs every pair alike; or, with a `weight`,

    S_{r+1} = (1 - weight) S(B) + weight S(W),

which for methods whose scores are means over examples (attribution, exact patching) is the score under that mixture of
the two sets, and for others (searches, trained masks) a mean of two rankings.

The loop ends early where no pair fails: a circuit that does all the model does on the grid has no worst pairs.

Nothing here is evidence that a circuit is robust: the discovery grid has been looked at, and what its history says about later
rounds is a training error. Evaluate on prompts of another split, beside a ranking found on as many pairs of the grid
drawn at random (`Robust.score_random`): grid pairs differ from a task's own whichever are taken. Prompts that
training pairs and discovery grid share are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool
from mechassay.circuits.methods.method import Method, settings
from mechassay.circuits.objectives import Objective, load_objective
from mechassay.circuits.scores import By, Circuit, EdgeScores
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.models.model import Model
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress

Cut = Literal["top", "greedy"]
CUTS: tuple[Cut, ...] = ("top", "greedy")
ROUNDING = 1e-5
"""Nats. In fp32 a divergence up to this is rounding (`divergence`): there a pair has not failed, whichever is the largest."""
Place = tuple[int, int]
"""A pair of a grid: its clean prompt's row and its corrupted prompt's column."""


@dataclass(frozen=True)
class Robust:
    """A method, and how its circuit's worst pairs are fed back to it.

    Attributes:
        method: what scores edges.
        n_edges: size of the circuit whose worst pairs are looked for: a number, or a share (a float) of the graph's edges.
        rounds: how often pairs are added.
        worst: pairs a round: so many, or, as a float, of the pairs in that share of the grid as many as have no prompt in common.
        cut: "top", the best edges, or "greedy", grown from the logits.
        by: "magnitude" or "value".
        weight: of all added pairs together, between 0 and 1; None: every pair counts alike.
    """

    method: Method
    n_edges: int | float = 0.02
    rounds: int = 3
    worst: int | float = 10
    cut: Cut = "top"
    by: By = "magnitude"
    weight: float | None = None
    name: ClassVar[str] = "robust"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise BadUsage(f"Robust discovery needs at least 1 round; got {self.rounds}.")
        if self.worst <= 0 or (isinstance(self.worst, float) and self.worst >= 1):
            raise BadUsage(f"The worst pairs of a round are 1 or more, or a share between 0 and 1 as a float; got {self.worst}.")
        cut_named(self.cut)
        if self.weight is not None and not 0 < self.weight < 1:
            raise BadUsage(f"The weight of the added pairs must be between 0 and 1; got {self.weight}.")

    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        clean: Pool,
        corrupted: Pool,
        objective: str | Objective = "kl",
        *,
        progress: Progress = BAR,
    ) -> EdgeScores:
        """Scores after the last round; `provenance["rounds"]` says what every round's circuit did on the grid, and what was added.

        The last entry is about the circuit of the scores returned, and adds nothing. Nothing is random but what the method is.

        Args:
            pairs: the base pairs.
            clean, corrupted: the discovery grid; none of its prompts is a base pair's.

        Raises:
            BadUsage: an objective that needs answers, base pairs with constants in place of counterfactuals, a
                method that does not score edges, or more pairs a round than the grid has prompts.
            BadPairs: the base pairs and the grid share a prompt.
        """
        data = _Data(self, model, model.batch(pairs), clean, corrupted, load_objective(objective), progress)
        data.check()
        scores, added, history = data.score([]), [], []
        for number in range(self.rounds + 1):
            circuit = self.circuit(scores)
            values = evaluate_pairs(model, [circuit], clean, corrupted, progress=progress).circuits[0]
            new = worst_pairs(values, self.worst, added, above=ROUNDING) if number < self.rounds else []
            added += new
            history.append(_entry(number, circuit, values, new, clean, corrupted))
            if not new:
                break
            scores = data.score(added)
        return data.finished(scores, {"rounds": history, "n_added": len(added)})

    def score_random(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        clean: Pool,
        corrupted: Pool,
        n_added: int,
        rng: np.random.Generator,
        objective: str | Objective = "kl",
        *,
        progress: Progress = BAR,
    ) -> EdgeScores:
        """The control: scores with `n_added` pairs of the same grid drawn at random, weighed alike; no circuit is evaluated.

        As in rounds, no two of as many pairs as the grid allows have a prompt in common. Arguments and errors are those of `score`.
        """
        data = _Data(self, model, model.batch(pairs), clean, corrupted, load_objective(objective), progress)
        data.check()
        added: list[Place] = []
        while len(added) < n_added:
            n = min(n_added - len(added), len(clean), len(corrupted))
            added += worst_pairs(rng.random((len(clean), len(corrupted))), n, added)
        return data.finished(data.score(added), {"n_added": len(added), "added": "at random"})

    def circuit(self, scores: EdgeScores) -> Circuit:
        """The circuit whose worst pairs are looked for."""
        cut = scores.greedy if self.cut == "greedy" else scores.top
        return cut(self.n_edges, by=self.by)


def cut_named(name: str) -> Cut:
    """A way to cut by name.

    Raises:
        UnknownName: there is none of that name.
    """
    for each in CUTS:
        if each == name:
            return each
    raise UnknownName("cut", name, CUTS)


def worst_pairs(
    values: Float[np.ndarray, "clean corrupted"], worst: int | float, without: Sequence[Place] = (), *, above: float = -np.inf
) -> list[Place]:
    """The pairs of the largest values, from the worst on, each of which shares no prompt with a worse one taken.

    Args:
        worst: how many; or, as a float, the share of the grid's pairs that they are chosen from.
        without: pairs that are not taken again.
        above: pairs of values up to this one are not taken; there may then be fewer than asked for, or none.

    Raises:
        BadUsage: more pairs than the grid has clean or corrupted prompts.
    """
    if not isinstance(worst, float) and worst > min(values.shape):
        raise BadUsage(f"A grid of {values.shape[0]} x {values.shape[1]} prompts has no {worst} pairs without a prompt in common.")
    free = np.where(values > above, values.astype(float), -np.inf)
    if isinstance(worst, float):
        n = max(1, int(worst * values.size + 1e-9))
        free[values < np.partition(values, values.size - n, axis=None)[values.size - n]] = -np.inf
    for place in without:
        free[place] = -np.inf
    limit = min(values.shape) if isinstance(worst, float) else worst
    taken: list[Place] = []
    while len(taken) < limit:
        row, column = divmod(int(free.argmax()), values.shape[1])
        if free[row, column] == -np.inf:
            break
        taken.append((row, column))
        free[row] = free[:, column] = -np.inf
    return taken


def check_apart(first: str, some: Batch | Sequence[Pool], second: str, others: Batch | Sequence[Pool]) -> None:
    """Refuse two sets of prompts, clean or corrupted, that have one in common.

    Raises:
        BadPairs: they do; the message has their names and how many.
    """
    shared = _prompts(some) & _prompts(others)
    if shared:
        raise BadPairs(f"The {first} and the {second} share {len(shared)} prompts; take them from different splits.")


def _prompts(data: Batch | Sequence[Pool]) -> set[tuple[int, ...]]:
    if isinstance(data, Batch):
        return {tuple(row) for tokens in (data.clean, data.counterfactual) for row in _rows(tokens, data.mask)}
    return {tuple(row) for pool in data for row in pool.tokens.tolist()}


def _rows(tokens: Tensor, mask: Tensor) -> list[list[int]]:
    """Prompts without their padding."""
    return [row[keep].tolist() for row, keep in zip(tokens.cpu(), mask.cpu(), strict=True)]


@dataclass(frozen=True, eq=False)
class _Data:
    """What scores are computed from."""

    robust: Robust
    model: Model
    base: Batch
    clean: Pool
    corrupted: Pool
    objective: Objective
    progress: Progress

    def check(self) -> None:
        """Refuse what no round could use, before anything is run."""
        if not self.objective.needs_clean:
            raise BadUsage(
                f"Pairs of a grid have no answers: robust discovery needs an objective that compares with the clean run (kl, js); "
                f"got {self.objective.name!r}."
            )
        if self.base.ablated is not None:
            raise BadUsage("Robust discovery ablates with corrupted prompts; the base pairs carry constants in their place.")
        check_apart("base pairs", self.base, "discovery grid", [self.clean, self.corrupted])

    def score(self, added: Sequence[Place]) -> EdgeScores:
        """The method's scores on the base pairs and some of the grid."""
        weight = self.robust.weight
        if not added:
            return self.of_base
        if weight is None:
            return self._score(self._joined(added))
        base, worst = self.of_base, self._score(self._grid_pairs(added))
        return EdgeScores(base.graph, (1 - weight) * base.values + weight * worst.values, worst.provenance)

    @cached_property
    def of_base(self) -> EdgeScores:
        """The method's scores on the base pairs alone."""
        return self._score(self.base)

    def finished(self, scores: EdgeScores, more: dict[str, Any]) -> EdgeScores:
        """Scores whose provenance is the whole procedure's; `scored` is that of the method's last run."""
        robust = self.robust
        own = {name: getattr(robust, name) for name in ("n_edges", "rounds", "worst", "cut", "by", "weight")}
        about = {
            **scores.provenance,
            "method": robust.name,
            "method_version": robust.version,
            "settings": {**own, "method": {"name": robust.method.name, "version": robust.method.version, **settings(robust.method)}},
            "n_base": len(self.base),
            "n_discovery": [len(self.clean), len(self.corrupted)],
            "n_examples": len(self.base) + more["n_added"],
            "scored": {key: scores.provenance.get(key) for key in ("n_examples", "data_hash")},
        }
        return EdgeScores(scores.graph, scores.values, {**about, **more})

    def _score(self, batch: Batch) -> EdgeScores:
        scores = self.robust.method.score(self.model, batch, self.objective, progress=self.progress)
        if not isinstance(scores, EdgeScores):
            raise BadUsage(f"Robust discovery needs a method that scores edges; {self.robust.method.name} scores nodes or neurons.")
        return scores

    def _grid_pairs(self, places: Sequence[Place]) -> Batch:
        rows, columns = (torch.tensor(side) for side in zip(*places, strict=True))
        return _without_answers(self.clean.tokens[rows].tolist(), self.corrupted.tokens[columns].tolist())

    def _joined(self, places: Sequence[Place]) -> Batch:
        grid, base = self._grid_pairs(places), self.base
        return _without_answers(
            _rows(base.clean, base.mask) + grid.clean.tolist(), _rows(base.counterfactual, base.mask) + grid.counterfactual.tolist()
        )


def _without_answers(clean: list[list[int]], corrupted: list[list[int]]) -> Batch:
    nothing: list[list[int]] = [[]] * len(clean)
    return Batch.from_tokens(clean, corrupted, nothing, nothing)


def _entry(
    number: int, circuit: Circuit, values: Float[np.ndarray, "clean corrupted"], new: Sequence[Place], clean: Pool, corrupted: Pool
) -> dict[str, Any]:
    """What a round saw and added, as plain values."""
    return {
        "round": number,
        "edges": len(circuit),
        "edges_on_a_path": len(circuit.pruned()),
        "mean": float(values.mean(dtype=float)),
        "p99": float(np.quantile(values, 0.99)),
        "max": float(values.max()),
        "added": [
            {"clean": clean.prompts[row].text, "corrupted": corrupted.prompts[column].text, "kl": float(values[row, column])}
            for row, column in new
        ],
    }
