"""Localize and evaluate circuits with several methods on one task and model, cell by cell.

A cell is one method. Its scores, then its record, are written when they are done; running the same
plan again, or one with more methods, goes on with what is missing. A method that fails becomes a
failed row and does not stop the others. The controls are run once and shared, and so are constants
that ablated edges carry: means and learned ones are those of the train pairs, for the test pairs
too. On a ground truth's own task records also say how well the known circuit is found
(`runs.names`).
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mechassay.circuits.ablation import (
    ABLATIONS,
    ablate,
    ablated_values,
    load_ablated,
    save_ablated,
)
from mechassay.circuits.areas import VERSIONS
from mechassay.circuits.behaviour import Preference, preference_of
from mechassay.circuits.faithfulness import Controls, Profile, faithfulness_curve, run_controls
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import Method, settings
from mechassay.circuits.node_scores import NodeScores, Scores, load_scores
from mechassay.circuits.optimal_ablation import OptimalAblation
from mechassay.circuits.pairing import check_pairing, paired
from mechassay.circuits.scores import By, Circuit, EdgeScores
from mechassay.errors import BadUsage, UnknownName
from mechassay.models.constants import Constants
from mechassay.models.model import Model
from mechassay.objectives import load_objective
from mechassay.pairs import Batch
from mechassay.progress import BAR, Progress
from mechassay.records import Failure, Record, Spec, failure_of
from mechassay.report.drawing import draw_circuit
from mechassay.report.reports import write_page
from mechassay.runs.folder import RunFolder
from mechassay.runs.names import is_truth, task_named, with_recovery
from mechassay.tasks.task import Keep, Task, settings_of

T = TypeVar("T")
DRAWN_EDGES = 60
KIND = "faithfulness"


def method_name(method: Method) -> str:
    """What a method is called in files and tables:
    its name, and the settings that are not the default.
    """
    changed = [
        f"{field.name}={getattr(method, field.name)}"
        for field in dataclasses.fields(method)  # pyright: ignore[reportArgumentType] - methods are dataclasses by contract
        if getattr(method, field.name) != field.default
    ]
    return " ".join([method.name, *([",".join(changed)] if changed else [])])


@dataclass(frozen=True)
class CircuitRun:
    """What to run. The fields are the plan that is stored with the results.

    Attributes:
        pairing: which corrupted prompts the train pairs have, see `circuits.pairing`.
    """

    model: str
    task: str
    methods: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    counterfactual: str | None = None
    objective: str | None = None
    keep: Keep = "all"
    ablation: str = "counterfactual"
    train_split: str = "train"
    train_limit: int = 100
    test_split: str = "test"
    test_limit: int = 100
    profile: Profile = "strict"
    dtype: str = "float32"
    prepend_bos: bool = False
    seed: int = 0
    private_seed: int | None = None
    pairing: str = "matched"

    def plan(self) -> dict[str, Any]:
        """The plan as plain values; the private seed is never stored."""
        plain = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in dataclasses.asdict(self).items()
        }
        del plain["private_seed"]
        return {**plain, "profile_version": VERSIONS[self.profile]}


class CircuitJob:
    """A plan, its folder, its model, and the cells that are to be done.

    Args:
        task: the task that the plan names, where it has no name that can be loaded.
    """

    def __init__(
        self,
        run: CircuitRun,
        output: Path,
        load: Callable[[], Model],
        *,
        task: Task | None = None,
        progress: Progress = BAR,
    ) -> None:
        # Everything that can be wrong with what was typed is found before the model is loaded.
        self.run, self.progress = run, progress
        self.methods = {
            method_name(method): method for method in (METHODS.make(text) for text in run.methods)
        }
        self.task = task_named(run.task) if task is None else task
        self.objective = load_objective(run.objective or self.task.objective)
        if run.ablation not in ABLATIONS:
            raise UnknownName("ablation", run.ablation, ABLATIONS)
        check_pairing(run.pairing)
        if run.pairing != "matched" and run.ablation != "counterfactual":
            raise BadUsage(
                f"Only counterfactual ablation pairs prompts; got the pairing {run.pairing} with"
                f" {run.ablation} ablation."
            )
        self.folder = RunFolder.open(output, run.plan(), growing=("methods",))
        self.model = load()
        self.failures: list[Failure] = []

    def pairs(self, role: str, split: str, limit: int) -> Batch:
        """Pairs of a split as a batch;
        what was chosen is kept in the folder under `role`, "train" or "test".

        Raises:
            BadUsage: the folder holds results on other pairs.
        """
        run = self.run
        pairs = self.task.pairs(
            split,
            self.model,
            limit=limit,
            counterfactual=run.counterfactual,
            keep=run.keep,
            seed=run.seed,
            private_seed=run.private_seed,
        )
        batch = self.model.batch(pairs)
        about = {**pairs.selection(), "alignment": dict(batch.alignment)}
        if role == "train" and run.pairing != "matched":
            templates = [self.task.template(pair.tags) for pair in pairs]
            batch, _, n_alone = paired(
                batch, run.pairing, np.random.default_rng(run.seed), templates
            )
            about |= {"pairing": run.pairing, "kept": len(batch), "alone": n_alone}
        self.folder.save_data(role, about)
        return batch

    @cached_property
    def train(self) -> Batch:
        """The pairs to find circuits on, with their counterfactuals."""
        return self.pairs("train", self.run.train_split, self.run.train_limit)

    @cached_property
    def test(self) -> Batch:
        """The pairs to measure circuits on, with their counterfactuals."""
        return self.pairs("test", self.run.test_split, self.run.test_limit)

    @cached_property
    def preference(self) -> Preference:
        """Whether the model does the task on the test pairs."""
        return preference_of(self.model, self.test)

    def ablated(self, batch: Batch) -> Batch:
        """The batch with the run's ablation;
        constants are those of the train pairs, for the test pairs too.
        """
        run = self.run
        if run.ablation == "counterfactual":
            return batch
        if run.ablation == "resample":
            return ablate(self.model, batch, run.ablation, seed=run.seed)
        if not self.ablated_file.is_file():
            save_ablated(self._constants(), self.ablated_file)
        return ablate(self.model, batch, load_ablated(self.ablated_file))

    @property
    def ablated_file(self) -> Path:
        """Where constants are kept."""
        return self.folder.path / "ablated.safetensors"

    def _constants(self) -> Constants:
        run = self.run
        if run.ablation == "optimal":
            return OptimalAblation(seed=run.seed).learn(
                self.model, self.train, progress=self.progress
            )
        return ablated_values(self.model, self.train, run.ablation, progress=self.progress)

    def missing(self) -> list[str]:
        """The methods that have no record yet."""
        return [name for name in self.methods if self.folder.record(name) is None]

    def skip(self, name: str, kind: str, reason: str) -> None:
        """Leave a method out, with the reason as a row."""
        del self.methods[name]
        self.failures.append(
            Failure(cell=self._cell_name(name), error=kind, message=reason, status="skipped")
        )

    def localize(self) -> dict[str, Scores]:
        """Scores of all methods; those already in the folder are read."""
        found: dict[str, Scores] = {}
        missing = [name for name in self.methods if not self.folder.scores_file(name).is_file()]
        train = self.ablated(self.train) if missing else None
        for name, method in self.methods.items():
            file = self.folder.scores_file(name)
            if train is None or name not in missing:
                found[name] = load_scores(file, self.model.graph)
                continue
            scores = self._cell(
                name, lambda method=method, name=name: self._score(method, name, train)
            )
            if scores is not None:
                scores.save(file)
                found[name] = scores
        self.folder.save_failures(self.failures)
        return found

    def _score(self, method: Method, name: str, train: Batch) -> Scores:
        begin = time.perf_counter()
        scores = method.score(
            self.model,
            train,
            self.objective,
            progress=self.progress,
            checkpoint=self.folder.checkpoint_file(name),
        )
        about = {
            **scores.provenance,
            "seconds": round(time.perf_counter() - begin, 3),
            "task": self.run.task,
            "split": self.run.train_split,
            **(
                {"pairing": self.run.pairing, "left out": self.folder.data()["train"]["alone"]}
                if self.run.pairing != "matched"
                else {}
            ),
        }
        return dataclasses.replace(scores, provenance=about)

    def evaluate(self, scores: Mapping[str, Scores]) -> list[Record]:
        """Records of all scores; those already in the folder are read."""
        found = {name: self.folder.record(name) for name in scores}
        missing = [name for name, record in found.items() if record is None]
        if missing:
            test = self.ablated(self.test)
            controls = self._controls(test)
            for name in missing:
                found[name] = self._cell(
                    name, lambda name=name: self._record(name, scores[name], test, controls)
                )
        self.folder.save_failures(self.failures)
        return [record for record in found.values() if record is not None]

    def _controls(self, test: Batch) -> Controls:
        file = self.folder.path / "controls.safetensors"
        if file.is_file():
            stored = Controls.load(file)
            if stored.ids == test.ids:
                return stored
        controls = run_controls(self.model, test, self.objective, progress=self.progress)
        controls.save(file)
        return controls

    def _record(self, name: str, scores: Scores, test: Batch, controls: Controls) -> Record:
        begin, run = time.perf_counter(), self.run
        curve = faithfulness_curve(
            self.model,
            scores,
            test,
            self.objective,
            profile=run.profile,
            controls=controls,
            label=name,
            seed=run.seed,
            progress=self.progress,
        )
        realised = {
            "localize_seconds": float(scores.provenance.get("seconds", float("nan"))),
            "evaluate_seconds": round(time.perf_counter() - begin, 3),
            "peak_memory_gb": round(_peak_memory() / 2**30, 3),
        }
        method = self.methods.get(name)
        data = self.folder.selections()
        record = curve.record(
            cell=self._cell_name(name),
            model=Spec(name=self.model.name, args={"family": self.model.family}),
            task=self._task_spec(),
            method=Spec(name=name)
            if method is None
            else Spec(name=name, version=method.version, args=settings(method)),
            device=str(self.model.device),
            dtype=str(self.model.dtype).removeprefix("torch."),
            seed=run.seed,
            data_hash=data["test"].hash,
            realised=realised,
            data=data,
            preference=self.preference,
        )
        if is_truth(run.model) and self.task == task_named(run.model):
            record = with_recovery(record, scores, run.model, run.ablation)
        # What a task says of its data, as that rows repeat each other.
        notes = dict.fromkeys(note for chosen in data.values() for note in chosen.notes.values())
        record = record.changed(warnings=[*record.warnings, *notes])
        self.folder.save_record(name, record)
        return record

    def _task_spec(self) -> Spec:
        """The task as it was run."""
        run = self.run
        about = {
            "counterfactual": (
                run.counterfactual or self.task.counterfactual_for(self.model.tokenizer)
            ),
            "split": run.test_split,
            "limit": run.test_limit,
            "train_split": run.train_split,
            "train_limit": run.train_limit,
            "keep": run.keep,
            "ablation": run.ablation,
            **settings_of(self.task),
        }
        return Spec(name=self.task.name, version=self.task.version, args=about)

    def _cell(self, name: str, work: Callable[[], T]) -> T | None:
        """One cell; whatever goes wrong in it is kept as a failed row, and others go on."""
        try:
            return work()
        except Exception as error:
            self.failures.append(failure_of(self._cell_name(name), error))
            return None

    def _cell_name(self, name: str) -> dict[str, str]:
        return {"method": name, "task": self.run.task, "model": self.model.name}


def legible(
    scores: EdgeScores | NodeScores, n_edges: int = DRAWN_EDGES, by: By = "magnitude"
) -> Circuit:
    """The largest circuit of top edges, or of top nodes,
    that has at most `n_edges` left after pruning.

    Where the first connected one is already larger, and where scores say that their circuits grow
    from the logits, edges are grown; of nodes there is then none.
    """
    if isinstance(scores, EdgeScores) and scores.grows:
        return scores.greedy(min(n_edges, scores.graph.n_edges), by=by).pruned()
    low, high = 0, min(len(scores.ranking(by)), scores.graph.n_edges)
    while low < high:
        middle = (low + high + 1) // 2
        if len(scores.top(middle, by=by).pruned()) <= n_edges:
            low = middle
        else:
            high = middle - 1
    found = scores.top(low, by=by).pruned()
    if len(found) or not isinstance(scores, EdgeScores):
        return found
    return scores.greedy(min(n_edges, scores.graph.n_edges), by=by).pruned()


def write_report(
    folder: RunFolder, records: Sequence[Record], scores: Mapping[str, Scores]
) -> Path:
    """The run's report: one HTML file."""
    drawings = [
        draw_circuit(each, legible(each), title=f"{name}: the strongest connected edges")
        for name, each in scores.items()
        if isinstance(each, EdgeScores) and not name.startswith("random")
    ]
    page, failures = folder.path / "report.html", folder.failures()
    return write_page(page, records, drawings, failures, kind=KIND)


def _peak_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
