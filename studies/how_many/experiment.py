"""A run that counts the circuits of a task.

A cell is one method on one model. All pairs come from one split, because the templates of a task
differ between splits. The first groups of pairs of each kind are training pairs, later groups are
test pairs. Kinds with too few pairs are excluded and counted in a warning. `cross_agreement`
describes what a cell measures. The folder keeps the scores of each kind in two files, so that an
interrupted run resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, get_args

from mechassay.circuits.graph_files import load_scores
from mechassay.circuits.methods import METHODS, RECOMMENDED
from mechassay.circuits.methods.method import method_name, settings, versions_of
from mechassay.circuits.scores import Scores
from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.models.ability import ability_of
from mechassay.models.model import Model, check_dtype
from mechassay.models.objectives import load_objective
from mechassay.prompts.independence import apart
from mechassay.prompts.pairs import Pair, Pairs
from mechassay.results.preconditions import task_of
from mechassay.results.records import Record, Spec
from mechassay.results.verdict import Standing
from mechassay.runs import options
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment
from mechassay.runs.identities import MODEL, TASK, Source
from mechassay.runs.options import option
from mechassay.runs.worker import Worker, made_by
from mechassay.tasks import Keep
from mechassay.tasks.task import Task, settings_of
from mechassay.utils.display import counted
from studies.how_many.cross_agreement import MOST_KINDS, by_tag, cross_agreement

TEMPLATE = "template"


@dataclass(frozen=True)
class _Kinds:
    """Training pairs and test pairs by kind, with the warnings about them."""

    train: Mapping[str, Sequence[Pair]]
    test: Mapping[str, Sequence[Pair]]
    warnings: Sequence[str]


@dataclass(frozen=True)
class HowManyExperiment(Experiment):
    """Count the circuits that a task needs: find a circuit on each kind of prompts, such as each
    template, and evaluate it on all kinds. If several tasks are given, each task is a kind.

    Attributes:
        tasks: one task, whose pairs `over` sorts into kinds, or several tasks, each of which is a
            kind.
        over: tag of a pair that names its kind; "template" if empty.
        most_kinds: maximum number of kinds of one task. The most common values of the tag are
            compared.
        train_limit, limit: number of training pairs and of test pairs of each kind. Both are
            from `split`, and no group of pairs is in both.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.LOADED_TASKS]
    methods: Annotated[
        tuple[str, ...],
        option(
            "Method that scores edges, with optional settings: eap-ig-inputs:steps=10. Repeat for"
            " several methods.",
            "--method",
            "-M",
            complete="methods",
        ),
    ] = (RECOMMENDED,)
    over: Annotated[
        str, option("Tag that sorts the pairs of a task into kinds; template by default.")
    ] = ""
    size: Annotated[
        int | float,
        option(
            "Size of each circuit: number of edges (500) or fraction of all edges (0.01).",
            first=True,
        ),
    ] = 0.01
    most_kinds: Annotated[
        int,
        option(
            "Maximum number of kinds of one task, 2 to 16. The most common kinds are compared.",
            least=2,
        ),
    ] = 8
    split: Annotated[str, option("Split of the training pairs and of the test pairs.")] = "train"
    train_limit: Annotated[
        int, options.limit("Number of pairs of each kind used to find circuits.", least=2)
    ] = 20
    limit: Annotated[
        int,
        options.limit(
            "Number of pairs of each kind used to evaluate circuits.",
            "--limit",
            least=2,
            first=True,
        ),
    ] = 20
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    objective: Annotated[str | None, options.OBJECTIVE] = None
    keep: Annotated[Keep, options.KEEP] = "all"
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "how-many"
    grows: ClassVar[tuple[str, ...]] = ("models", "methods")

    def definitions(self) -> dict[str, int]:
        """Return the versions of the methods; see `Experiment.definitions`."""
        made = [METHODS.make(text) for text in self.methods]
        return {f"method {name}": version for own in made for name, version in versions_of(own)}

    def check(self, worker: Worker) -> None:
        one_of("choice of pairs to keep", self.keep, get_args(Keep))
        check_dtype(self.dtype)
        names = [method_name(METHODS.make(text)) for text in self.methods]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise BadUsage(f"The method {repeated[0]} is named twice.")
        if self.size <= 0 or (isinstance(self.size, float) and self.size > 1):
            raise BadUsage(
                "A size is a number of edges, 1 or more, or a share of them, above 0 and at most"
                f" 1.0; got {self.size}."
            )
        most = len(self.tasks) if len(self.tasks) > 1 else self.most_kinds
        if most > MOST_KINDS:
            raise BadUsage(f"Circuits are compared between {MOST_KINDS} kinds at most; got {most}.")
        if len(self.tasks) > 1 and self.over:
            raise BadUsage(
                f"Several tasks are the kinds themselves: leave out --over {self.over}, or name one"
                " task."
            )
        tasks = [worker.task(name) for name in self.tasks]
        objectives = dict.fromkeys(task.objective for task in tasks)
        if self.objective is None and len(objectives) > 1:
            raise BadUsage(
                f"The tasks have other objectives, {', '.join(objectives)}: name one for all with"
                " --objective."
            )
        load_objective(self.objective or next(iter(objectives)))

    def cells(self) -> list[Cell]:
        labels = self.labels()
        return [
            Cell(
                f"{group}/{cell_name(name)}",
                {"method": name, "task": ", ".join(self.tasks), "model": labels["model", model]},
                group,
                {"method": text, "model": model},
            )
            for model in self.models
            for group in [cell_name(model)]
            for text in self.methods
            for name in [method_name(METHODS.make(text))]
        ]

    def sources(self, cell: Cell) -> dict[str, Source]:
        """Return the model and all tasks."""
        model = Source(MODEL, cell["model"], self.dtype)
        return {MODEL: model} | {f"task {name}": Source(TASK, name) for name in self.tasks}

    def run(self, cell: Cell, worker: Worker) -> Record:
        begin = time.perf_counter()
        model = worker.model(cell["model"], dtype=self.dtype, prepend_bos=self.prepend_bos)
        kinds = worker.shared("kinds", lambda: self._kinds(model, worker, cell.inputs))
        method, tasks = METHODS.make(cell["method"]), list(map(worker.task, self.tasks))

        def kept(name: str, make: Callable[[], Scores]) -> Scores:
            file = f"scores/{cell.name}/{name}.safetensors"
            return worker.kept(
                file, make, partial(load_scores, of=model), lambda own, to: own.save(to)
            )

        cross = cross_agreement(
            method,
            model,
            kinds.train,
            kinds.test,
            self.size,
            self.objective or tasks[0].objective,
            noun=self._noun,
            seed=self.seed,
            progress=worker.progress,
            kept=kept,
        )
        data = worker.folder.selections(cell.inputs)
        about: dict[str, Any] = {
            "split": self.split,
            "train_limit": self.train_limit,
            "limit": self.limit,
        }
        about |= settings_of(tasks[0]) if len(tasks) == 1 else {}
        return cross.record(
            {
                "model": model.spec(n_edges=model.graph.n_edges),
                "method": Spec(
                    name=cell.labels["method"], version=method.version, args=settings(method)
                ),
                "task": Spec(
                    name=", ".join(task.name for task in tasks),
                    version=tasks[0].version,
                    args=about,
                ),
            },
            made_by(model, self.seed, next(iter(data.values())).hash),
            cell=dict(cell.labels),
            spent={"seconds": round(time.perf_counter() - begin, 3)},
            data=data,
            warnings=kinds.warnings,
        )

    @property
    def _noun(self) -> str:
        return TASK if len(self.tasks) > 1 else self.over or TEMPLATE

    def _kinds(self, model: Model, worker: Worker, group: str) -> _Kinds:
        """Return the pairs of every kind, and save which pairs were chosen in the folder.

        Raises:
            BadUsage: Fewer than two kinds have enough pairs, or the folder contains results on
                other pairs.
        """
        train: dict[str, list[Pair]] = {}
        test: dict[str, list[Pair]] = {}
        warnings, task_of_kind = list[str](), dict[str, str]()
        several = len(self.tasks) > 1
        for name in self.tasks:
            pairs, kinds, n_short = self._sorted(worker.task(name), name, model)
            if n_short:
                warnings.append(
                    f"{counted(n_short, self._noun)} of {name} with fewer than"
                    f" {self.train_limit + self.limit} pairs left out."
                )
            train |= {kind: both[0] for kind, both in kinds.items()}
            test |= {kind: both[1] for kind, both in kinds.items()}
            task_of_kind |= dict.fromkeys(kinds, name)
            for place, role in enumerate(("train", "test")):
                chosen = [pair for both in kinds.values() for pair in both[place]]
                own = Pairs(chosen, source=pairs.source, dropped=pairs.dropped)
                role = f"{role}, {name}" if several else role
                worker.folder.save_data(role, own.selection(), group)
        for kind, own in test.items():
            case = task_of(ability_of(model, apart(model.batch(own))[0]).table())
            if case.standing is Standing.NOT_MET:
                names = {"model": model.name, "task": task_of_kind[kind]}
                warnings.append(f"{kind}: {case.text(names)}")
        return _Kinds(train, test, warnings)

    def _sorted(
        self, task: Task, name: str, model: Model
    ) -> tuple[Pairs, dict[str, tuple[list[Pair], list[Pair]]], int]:
        """Return all pairs of a task, both sets of pairs of each kind that has enough, and the
        number of kinds that have too few.
        """
        of_one = len(self.tasks) == 1
        wanted, needed = self.most_kinds if of_one else 1, self.train_limit + self.limit
        n = 2 * wanted * needed
        while True:
            pairs, all_there_are = self._pairs(task, model, n)
            sorted_pairs = by_tag(pairs, self._noun) if of_one else {name: list(pairs)}
            both = {kind: self._two(own) for kind, own in sorted_pairs.items()}
            enough = [kind for kind, two in both.items() if two is not None]
            if all_there_are or len(enough) >= wanted:
                break
            n *= 2
        if len(enough) < min(wanted, 2):
            most = max(map(len, sorted_pairs.values()))
            least = f"two {self._noun}s or more" if of_one else "each task"
            has = f"{counted(len(sorted_pairs), self._noun)}, the most common of " * of_one
            raise BadUsage(
                f"{needed:,} pairs ({self.train_limit:,} to find circuits, {self.limit:,} of"
                f" other groups to measure them) are needed of {least}; {name} has in its split"
                f" {self.split} {has}{counted(most, 'pair')}."
            )
        enough.sort(key=lambda kind: -len(sorted_pairs[kind]))
        chosen = set(enough[:wanted])
        kept = {kind: two for kind, two in both.items() if two is not None and kind in chosen}
        n_short = len(both) - len(enough) if len(enough) < wanted else 0
        return pairs, kept, n_short

    def _pairs(self, task: Task, model: Model, n: int) -> tuple[Pairs, bool]:
        """Return the first n pairs of the split, or all pairs, and whether these are all."""
        drawn = partial(
            task.pairs,
            self.split,
            model,
            counterfactual=self.counterfactual,
            keep=self.keep,
            seed=self.seed,
        )
        if n < task.sizes.get(self.split, 0):
            try:
                return drawn(limit=n), False
            except BadPairs:
                pass  # The split has fewer than n pairs. If none is usable, the next call says why.
        return drawn(), True

    def _two(self, pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]] | None:
        """Return training pairs and test pairs that share no group; None if there are too few."""
        two: tuple[list[Pair], list[Pair]] = ([], [])
        limits = (self.train_limit, self.limit)
        side: dict[str, int] = {}
        for pair in pairs:
            to = side.setdefault(pair.group or pair.id, int(len(two[0]) == limits[0]))
            if len(two[to]) < limits[to]:
                two[to].append(pair)
        return two if tuple(map(len, two)) == limits else None
