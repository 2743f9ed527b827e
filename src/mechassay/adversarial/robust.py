"""Robust discovery: a circuit for pairs drawn anew, where those it fails on count for more.

Uit de Bos and Garriga-Alonso (2024), section 5, leave open whether adversarial evaluation helps to
find circuits. How it is tried depends on the method; both ways take a `Tail` (`circuits.tail`).

Re-scoring, for a method that scores edges by a mean over pairs (attribution, exact patching):

    S = mean of the scores of the pairs of a first draw
    for r = 1 .. rounds:
        C   = the circuit of S at `n_edges`
        L_i = KL(M || C) on each pair i of a fresh draw,  w = the tail's weights of L
        T_r = sum_i w_i (scores of pair i),     S = (T_1 + ... + T_r) / r

A pair's scores estimate how its loss moves with each edge, and w is the gradient of the tail by the
losses, so that T_r does for the tail what plain scores do for the mean. Rounds are averaged because
T_r alone follows the last circuit's failures and forgets the others'. Where no pair fails all are
alike, and T_r is their mean. With the tail `mean` no circuit is run.

Training, for a method that trains a mask (edge-pruning, subnetwork-probing, ugs): each step draws
pairs anew, and its loss is the tail of theirs. `rounds`, `n_edges` and `cut` play no part.

A pair is scored once, even where several tails ask for it (`known`). Nothing here is evidence that
a circuit is robust: evaluate it on prompts of another split.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.adversarial.redrawn import Redrawn
from mechassay.circuits.faithfulness import evaluate
from mechassay.circuits.methods.edge_pruning import EdgePruning
from mechassay.circuits.methods.method import Method, provenance_of, settings
from mechassay.circuits.methods.subnetwork_probing import SubnetworkProbing
from mechassay.circuits.methods.ugs import UniformGradientSampling
from mechassay.circuits.scores import By, Circuit, EdgeScores
from mechassay.circuits.tail import MEAN, Mean, Tail, Weights, even
from mechassay.errors import BadUsage, UnknownName
from mechassay.models.model import Model
from mechassay.objectives import Objective, load_objective
from mechassay.pairs import Batch
from mechassay.progress import BAR, SILENT, Progress

Cut = Literal["top", "greedy"]
CUTS: tuple[Cut, ...] = ("top", "greedy")
TRAINED = (EdgePruning, SubnetworkProbing, UniformGradientSampling)
"""Methods that train a mask, and take examples and a tail."""
ROUNDING = 1e-5
"""Nats. In fp32 a divergence up to this is rounding (`divergence`): there a pair has not failed."""
Known = MutableMapping[bytes, Tensor]
"""Scores of single pairs, by their tokens."""


def check_divergence(objective: Objective) -> None:
    """Refuse an objective that does not compare with the clean run.

    Raises:
        BadUsage: it does not.
    """
    if not objective.needs_clean:
        raise BadUsage(
            "A circuit fails on a pair where it departs from the model: robust discovery needs an"
            f" objective that compares with the clean run (kl, js); got {objective.name!r}."
        )


@dataclass(frozen=True)
class Robust:
    """A method, and what its pairs' losses are made into.

    Attributes:
        method: what scores edges.
        tail: how losses become one.
        n_edges: size of the circuit whose losses are looked at: a number, or a share (a float) of
            the graph's edges.
        rounds: how often pairs are drawn and weighed.
        cut: "top", the best edges, or "greedy", grown from the logits.
        by: "magnitude" or "value".
    """

    method: Method
    tail: Tail = MEAN
    n_edges: int | float = 0.02
    rounds: int = 3
    cut: Cut = "top"
    by: By = "magnitude"
    name: ClassVar[str] = "robust"
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise BadUsage(f"Robust discovery needs at least 1 round; got {self.rounds}.")
        cut_named(self.cut)

    def score(
        self,
        model: Model,
        pairs: Redrawn,
        objective: str | Objective = "kl",
        *,
        seed: int = 0,
        known: Known | None = None,
        progress: Progress = BAR,
    ) -> EdgeScores:
        """Scores after the last round, or of the trained mask.

        `provenance["rounds"]` says what each round's circuit did on its fresh pairs.

        Args:
            seed: of the pairs drawn.
            known: scores of single pairs, each as large as the graph, by this method with this
                objective on this model; those that are missing are added.

        Raises:
            BadUsage: an objective that does not compare with the clean run, or a method that does
                not score edges.
            BadPairs: nothing to draw.
        """
        chosen = load_objective(objective)
        check_divergence(chosen)
        if isinstance(self.method, TRAINED):
            examples = _Steps(pairs, self.method.batch_size)
            scores = self.method.score(
                model, pairs.batch, chosen, progress=progress, examples=examples, tail=self.tail
            )
            return self._finished(scores, pairs, seed, {"n_examples": len(pairs.batch)})
        scores, more = _Rounds(
            self, model, pairs, chosen, {} if known is None else known, progress
        ).score(seed)
        return self._finished(scores, pairs, seed, more)

    def circuit(self, scores: EdgeScores) -> Circuit:
        """The circuit whose losses are looked at."""
        cut = scores.greedy if self.cut == "greedy" else scores.top
        return cut(self.n_edges, by=self.by)

    def _finished(
        self, scores: EdgeScores, pairs: Redrawn, seed: int, more: dict[str, Any]
    ) -> EdgeScores:
        """Scores whose provenance is the whole procedure's."""
        own = {name: getattr(self, name) for name in ("n_edges", "rounds", "cut", "by")}
        tail = {"name": self.tail.name, **settings(self.tail)}
        method = {"name": self.method.name, "version": self.method.version, **settings(self.method)}
        about = {
            **scores.provenance,
            "method": self.name,
            "method_version": self.version,
            "settings": {
                **own,
                "seed": seed,
                "tail": tail,
                "pairing": pairs.pairing,
                "method": method,
            },
            "data_hash": pairs.batch.content,
        }
        return EdgeScores(scores.graph, scores.values, {**about, **more})


def cut_named(name: str) -> Cut:
    """A way to cut by name.

    Raises:
        UnknownName: there is none of that name.
    """
    for each in CUTS:
        if each == name:
            return each
    raise UnknownName("cut", name, CUTS)


@dataclass(frozen=True, eq=False)
class _Steps:
    """Examples of a training: each step some of all the pairs, made anew."""

    pairs: Redrawn
    size: int

    @property
    def n_groups(self) -> int:
        return len(self.pairs.group_names)

    def draw(self, generator: torch.Generator) -> tuple[Batch, Int[Tensor, "n"]]:
        """See `Examples.draw`."""
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        batch, groups = self.pairs.draw(rng)
        rows = torch.randperm(len(batch), generator=generator)[: self.size]
        return batch.select(rows.tolist()), groups[rows]


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
        """The scores, and what their provenance has to say of the rounds."""
        robust, rng, plain = (
            self.robust,
            np.random.default_rng(seed),
            isinstance(self.robust.tail, Mean),
        )
        standing = even(len(self.pairs.group_names), torch.zeros((), dtype=torch.float64))
        first, _ = self.pairs.draw(rng)
        scores = None if plain else self._mean(first, _alike(first))
        total, history, n_counted = torch.zeros(()), list[dict[str, Any]](), 0
        for number in range(1, robust.rounds + 1):
            batch, groups = self.pairs.draw(rng)
            weights = _alike(batch)
            if scores is not None:
                circuit = robust.circuit(EdgeScores(self.model.graph, scores))
                losses = torch.from_numpy(
                    evaluate(self.model, circuit, batch, self.objective, progress=self.progress)
                )
                losses = torch.where(losses > ROUNDING, losses, 0.0)
                found = robust.tail.weights(losses, groups, standing)
                weights, standing = found
                history.append(self._entry(number, circuit, losses, found))
            n_counted += int((weights > 0).sum())
            total = total + self._mean(batch, weights)
            scores = None if plain else total / number
        about = provenance_of(robust.method, self.model, self.pairs.batch, self.objective)
        return EdgeScores(self.model.graph, total / robust.rounds, about), {
            "rounds": history,
            "n_examples": n_counted,
        }

    def _mean(self, batch: Batch, weights: Float[Tensor, "n"]) -> Float[Tensor, "writers readers"]:
        """The weighted mean of the pairs' scores; those of weight 0 are not scored."""
        total = torch.zeros(())
        with self.progress.track(
            f"scoring pairs by {self.robust.method.name}", len(batch)
        ) as advance:
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
        self, number: int, circuit: Circuit, losses: Float[Tensor, "n"], found: Weights
    ) -> dict[str, Any]:
        """What a round saw, as plain values."""
        return {
            "round": number,
            "edges": len(circuit),
            "edges_on_a_path": len(circuit.pruned()),
            "pairs": len(losses),
            "counted": int((found.losses > 0).sum()),
            "mean": float(losses.mean()),
            "tail": float(found.losses @ losses),
            "max": float(losses.max()),
            "groups": dict(zip(self.pairs.group_names, found.groups.tolist(), strict=True)),
        }


def _alike(batch: Batch) -> Float[Tensor, "n"]:
    return torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)
