"""A search for pairs that are worse than those of a sample,
from a task and a circuit as they are typed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.adversarial.search import SearchResult, search
from mechassay.circuits.methods import METHODS
from mechassay.circuits.node_scores import Scores
from mechassay.circuits.pairing import check_pairing, paired
from mechassay.circuits.spec import CircuitSpec
from mechassay.models.model import Model
from mechassay.objectives import load_objective
from mechassay.progress import BAR, Progress
from mechassay.runs.names import task_named, truth_circuit
from mechassay.tasks.task import Task, settings_of


@dataclass(frozen=True)
class SearchRun:
    """What to search.

    Attributes:
        task: by a name that commands take, or the task itself.
        circuit: as it is typed, see `circuits.spec`.
        n_clean, n_corrupted: prompts that the search begins with.
        budget: pairs to evaluate at the most. starts, restarts, compare: see `adversarial.search`.
        objective, pairing: what a method looks for the circuit by, and on which pairs; the task's
        own
            objective if None.
    """

    model: str
    task: str | Task
    circuit: str
    n_clean: int = 500
    n_corrupted: int = 500
    split: str = "test"
    counterfactual: str | None = None
    budget: int = 20_000
    starts: int = 8
    restarts: int = 8
    compare: bool = True
    train_limit: int = 100
    objective: str | None = None
    pairing: str = "matched"
    seed: int = 0

    def load_task(self) -> Task:
        """The task itself; see `task_named` for errors."""
        return task_named(self.task) if isinstance(self.task, str) else self.task

    def about(self) -> dict[str, Any]:
        """What was searched, as plain values."""
        task = self.load_task()
        named = {
            "model": self.model,
            "task": task.name,
            "settings": settings_of(task),
            "circuit": self.circuit,
            "split": self.split,
        }
        return {
            **named,
            "objective": self.objective or task.objective,
            "pairing": self.pairing,
            "seed": self.seed,
            "budget": self.budget,
        }


@dataclass(frozen=True, eq=False)
class SearchJob:
    """A search, its task and its circuit.

    Raises:
        BadUsage, UnknownName: something that was typed is wrong; told before the model is loaded.
    """

    run: SearchRun
    load: Callable[[], Model]
    progress: Progress = BAR

    def __post_init__(self) -> None:
        self.run.load_task()
        CircuitSpec.parse(self.run.circuit)
        check_pairing(self.run.pairing)
        if self.run.objective is not None:
            load_objective(self.run.objective)

    def search(self) -> tuple[SearchResult, str]:
        """The result, and in one line that there are no fields to change, if there are none.

        Raises:
            KeyboardInterrupt: nothing was evaluated before it. BadPairs, GraphMismatch, NonFinite,
            BadFile: see `draw_pools`, `CircuitSpec.find`, `adversarial.search`.
        """
        run, model, task = self.run, self.load(), self.run.load_task()

        spec, scores = CircuitSpec.parse(run.circuit), dict[str, Scores]()
        if spec.kind == "method":
            pairs = task.pairs(
                "train",
                model,
                limit=run.train_limit,
                counterfactual=run.counterfactual,
                seed=run.seed,
            )
            templates = [task.template(pair.tags) for pair in pairs]
            batch = paired(
                model.batch(pairs), run.pairing, np.random.default_rng(run.seed), templates
            ).batch
            objective = load_objective(run.objective or task.objective)
            method = METHODS.make(spec.name)
            scores[spec.name] = method.score(model, batch, objective, progress=self.progress)
        truth = partial(truth_circuit, run.model, "counterfactual")
        found = spec.find(model.graph, seed=run.seed, scores=scores, truth=truth)
        pools = draw_pools(
            task,
            model,
            run.n_clean,
            run.n_corrupted,
            split=run.split,
            counterfactual=run.counterfactual,
            seed=run.seed,
        )
        result = search(
            model,
            found.circuit,
            *pools,
            budget=run.budget,
            starts=run.starts,
            restarts=run.restarts,
            compare=run.compare,
            seed=run.seed,
            progress=self.progress,
        )
        return result, without_fields(task, pools)


def without_fields(task: Task, pools: Sequence[Pool]) -> str:
    """That no prompt has a field to change, in a line; nothing if one has."""
    if any(pool.fields for pool in pools):
        return ""
    return (
        f"The prompts of {task.name} have no fields, so nothing was changed: the search compared"
        " pairs of the prompts as they are."
    )
