"""Ensembles: the scores that several methods give an edge, as one.

    mean    the mean of the scores, each method's divided by the largest magnitude that it gives
    rank    the mean of signed ranks: of each method the share of edges with at most this magnitude
            (their mean rank where several have the same), with the sign of the score
    least   the smallest magnitude of the same quotients, with their sign if all agree in it, else
            0: an edge counts for as much as every method says

Estimates that err in different places agree on what is there. A mean bears a member that does not
see an edge at all; the other two do not. Ensembles were an entry for circuits
in the shared task on MIB's track (Mondorf et al. 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

from mechassay.circuits.methods import inner_method
from mechassay.circuits.methods.method import AnyMethod, Method, ScoreInputs, provenance_of
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage
from mechassay.models.graph import Graph
from mechassay.utils.settings import checked_settings


@dataclass(frozen=True)
@checked_settings
class Ensemble(Method[EdgeScores]):
    """Several methods' scores of each edge as one; see the module.

    Attributes:
        members: names of two or more methods that score edges, with `+` between.
        how: how their scores are combined.
    """

    members: str = "eap-ig-inputs+eap-ig-inputs:backward=gim"
    how: Literal["mean", "rank", "least"] = "mean"
    name: ClassVar[str] = "ensemble"

    def __post_init__(self) -> None:
        if len(set(self.members.split("+"))) < 2:
            raise BadUsage(
                "ensemble: members names two or more methods with + between, such as"
                f" eap-ig-inputs+ifr; got {self.members!r}."
            )
        self.inner()

    def find_scores(self, inputs: ScoreInputs) -> EdgeScores:
        """Combine the members' scores; the last member alone keeps a checkpoint.

        Raises:
            BadUsage: a member that does not score edges.
        """
        model, methods = inputs.model, self.inner()
        rows: list[Tensor] = []
        for method in methods:
            kept = inputs.checkpoint if method is methods[-1] else None
            scores = method.score(
                model, inputs.batch, inputs.objective, progress=inputs.progress, checkpoint=kept
            )
            if not isinstance(scores, EdgeScores):
                raise BadUsage(
                    f"ensemble: {method.name} scores {scores.unit}s; members score edges."
                )
            # An edge that a method does not score is the last of its ranking.
            rows.append(scores.values[model.graph.legal].double().nan_to_num())
        values = torch.full(model.graph.legal.shape, torch.nan, dtype=torch.float64)
        values[model.graph.legal] = combined(torch.stack(rows), self.how)
        return EdgeScores.of(model.graph, values, provenance_of(self, inputs))

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return the forward passes of all members."""
        return sum(method.forwards(graph, n_pairs) for method in self.inner())

    def inner(self) -> list[AnyMethod]:
        """The members."""
        return [inner_method(self.name, name) for name in self.members.split("+")]


def combined(scores: Float[Tensor, "methods edges"], how: str) -> Float[Tensor, "edges"]:
    """One score an edge; see the module."""
    if how == "rank":
        ranks = torch.from_numpy(rankdata(scores.abs().numpy(), axis=1))
        return (ranks / scores.shape[1] * scores.sign()).mean(dim=0)
    largest = scores.abs().amax(dim=1, keepdim=True)
    shares = scores / largest.clamp(min=torch.finfo(scores.dtype).tiny)
    if how == "mean":
        return shares.mean(dim=0)
    agree = (scores.sign() == scores[0].sign()).all(dim=0)
    return torch.where(agree, scores[0].sign() * shares.abs().amin(dim=0), 0.0)
