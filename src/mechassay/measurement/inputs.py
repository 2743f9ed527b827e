"""What metrics of measurement are given: a model, prompts, circuits, and what some need beside.

Anything may be a function without arguments that makes it: it is called once, when a metric first
asks. A metric names what it needs (`NEEDS`); what is missing is an error that says how to give it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.errors import BadUsage, one_of
from mechassay.features.featurizer import Featurizer
from mechassay.interventions.site import Site, SiteLike, load_site
from mechassay.models.model import Model
from mechassay.objectives import Objective, ObjectiveLike, load_objective
from mechassay.pairs import Batch, PairsLike
from mechassay.progress import SILENT, Progress
from mechassay.records import Record

NEEDS: Mapping[str, str] = {
    "model": "a model (--model)",
    "pairs": "pairs of prompts (--task)",
    "train": "pairs to find things on (--task)",
    "circuit": "a circuit (--circuit)",
    "ranking": "edges ranked by a method (--method)",
    "rankings": "edges ranked by two methods or more (--method, twice)",
    "other task": "a second behaviour (--other-task)",
    "labels": "a field of the prompts that groups them (--by)",
    "sae": "a sparse autoencoder and its site (--sae, --site)",
    "other sae": "a second sparse autoencoder (--other-sae)",
    "site": "a site (--site)",
    "names": "a model with a tokenizer that knows English names (--model)",
    "texts": "texts (--texts)",
    "trainer": "a trainer of dictionaries",
    "records": "the folder of a run of circuits on several tasks (--records)",
}
"""Inputs, and how they are given."""
Given = Any
"""A value, or a function without arguments that makes it."""


class Inputs:
    """What a metric of measurement may ask for.

    Args:
        pairs: to measure on.
        train: to find means and probes on; never measured on.
        circuit: the circuit in question.
        rankings: scores of edges by the name of the method that found them.
        other_rankings: the same of another behaviour.
        labels: a label for each pair, in their order: groups that are compared.
        sae: a featurizer of the values at `site`.
        records: of several tasks, methods and baselines.
        more: other inputs by name; see `get`.
        seed: of everything that is drawn.

    Raises:
        BadUsage: a site that cannot be read.
    """

    def __init__(
        self,
        model: Model | Callable[[], Model] | None = None,
        *,
        pairs: PairsLike | Callable[[], Batch] | None = None,
        train: PairsLike | Callable[[], Batch] | None = None,
        circuit: Circuit | Callable[[], Circuit] | None = None,
        rankings: Given = None,
        other_rankings: Given = None,
        labels: Given = None,
        sae: Given = None,
        site: SiteLike | None = None,
        records: Given = None,
        more: Mapping[str, Given] | None = None,
        objective: ObjectiveLike = "logit_diff",
        seed: int = 0,
        progress: Progress = SILENT,
    ) -> None:
        given: dict[str, Any] = {
            "model": model,
            "pairs": pairs,
            "train": train,
            "circuit": circuit,
            "ranking": rankings,
            "rankings": rankings,
            "other task": other_rankings,
            "labels": labels,
            "sae": sae,
            "records": records,
            "site": None if site is None else load_site(site),
            "names": model,
            **(more or {}),
        }
        self._given = {name: value for name, value in given.items() if value is not None}
        self._made: dict[str, Any] = {}
        self.objective: Objective = load_objective(objective)
        self.seed, self.progress = seed, progress

    def has(self, need: str) -> bool:
        """Whether there is an input; "a|b" is either."""
        return any(name in self._given for name in need.split("|"))

    def missing(self, needs: Sequence[str]) -> list[str]:
        """Those of some inputs that are not there, in words."""
        return missing_inputs(needs, tuple(self._given))

    def get(self, name: str) -> Any:
        """An input by its name.

        Raises:
            BadUsage: it was not given.
        """
        if name not in self._given:
            raise BadUsage(f"This metric needs {NEEDS.get(name, name)}, which is missing.")
        if name not in self._made:
            value: Any = self._given[name]
            self._made[name] = value() if inspect.isroutine(value) else value
        return self._made[name]

    @property
    def model(self) -> Model:
        return self.get("model")

    @property
    def site(self) -> Site:
        return self.get("site")

    @property
    def circuit(self) -> Circuit:
        return self.get("circuit")

    @property
    def sae(self) -> Featurizer:
        return self.get("sae")

    @property
    def batch(self) -> Batch:
        """The pairs to measure on."""
        return self._batch("pairs")

    @property
    def train(self) -> Batch:
        """The pairs to find things on; those to measure on if there are no others."""
        return self._batch("train" if self.has("train") else "pairs")

    @property
    def ranking(self) -> tuple[str, EdgeScores]:
        """The first method, and its scores of edges."""
        found: dict[str, EdgeScores] = dict(self.get("ranking"))
        return next(iter(found.items()))

    @property
    def rankings(self) -> dict[str, EdgeScores]:
        """Scores of edges by method; two or more.

        Raises:
            BadUsage: fewer than two.
        """
        return _several(self.get("rankings"))

    @property
    def other_rankings(self) -> dict[str, EdgeScores]:
        """Scores of another behaviour, by the same methods."""
        return _several(self.get("other task"))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.get("labels"))

    @property
    def records(self) -> list[Record]:
        return list(self.get("records"))

    def _batch(self, name: str) -> Batch:
        pairs = self.get(name)
        batch = self.model.batch(pairs)
        self._made[name] = batch
        return batch


def _several(rankings: Mapping[str, EdgeScores]) -> dict[str, EdgeScores]:
    if len(rankings) < 2:
        raise BadUsage(
            f"Agreement needs rankings by two methods or more; got {', '.join(rankings) or 'none'}."
        )
    return dict(rankings)


def missing_inputs(needs: Sequence[str], given: Sequence[str]) -> list[str]:
    """The needs that none of the given inputs meets, in words.

    Raises:
        UnknownName: a need that is no input.
    """
    out: list[str] = []
    for need in needs:
        names = [one_of("input", name, NEEDS) for name in need.split("|")]
        if not set(names) & set(given):
            out.append(" or ".join(NEEDS[name] for name in names))
    return out
