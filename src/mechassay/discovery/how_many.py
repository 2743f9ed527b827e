"""How many circuits a task needs, as a run, and the page on it.

A cell is one method in one model. The pairs of a kind come from one split, as templates of tasks
differ between splits: its first groups find circuits, later ones measure them. Kinds without enough
pairs are left out and counted. What is measured is `circuits.evaluation.how_many`. The scores of
every kind stay in the folder, two files each, so that a run that was stopped goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, get_args

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.circuits.evaluation.curve import preference_of
from mechassay.circuits.evaluation.how_many import (
    LEAST_OWN,
    MOST_KINDS,
    OTHER_SAMPLE,
    SLACK,
    CrossAgreement,
    by_tag,
    cross_agreement,
)
from mechassay.circuits.graph_files import load_scores
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import method_name, settings, versions_of
from mechassay.circuits.scores import Scores
from mechassay.discovery.plan import HowManyPlan
from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.models.model import Model, check_dtype
from mechassay.models.objectives import load_objective
from mechassay.prompts.pairs import Pair, Pairs
from mechassay.results.curves import labels
from mechassay.results.page import Block, Column, Figure, Page, Row, Section, Text, TextTable
from mechassay.results.records import Failure, Record, Spec
from mechassay.results.sections import failures_table, framed
from mechassay.runs.job import Bench, Cell, Job, cell_name, made_by, shown_model
from mechassay.tasks import Keep
from mechassay.tasks.task import Task, settings_of
from mechassay.utils.display import counted, interval, number

TEMPLATE, TASK = "template", "task"
SHORT = 16
"""Letters of a name that stands at the side of a figure; longer ones are numbers there."""


@dataclass(frozen=True)
class _Kinds:
    """Pairs by kind, to find circuits on and to measure them, and what a reader has to know."""

    train: Mapping[str, Sequence[Pair]]
    test: Mapping[str, Sequence[Pair]]
    warnings: Sequence[str]


@dataclass(frozen=True)
class HowManyJob(HowManyPlan, Job):
    """A cell is one method in one model; see `HowManyPlan` for the fields."""

    command: ClassVar[tuple[str, ...]] = ("circuits", "how-many")
    grows: ClassVar[tuple[str, ...]] = ("models", "methods")

    def definitions(self) -> dict[str, int]:
        """See `Job.definitions`: of methods."""
        made = [METHODS.make(text) for text in self.methods]
        return {f"method {name}": version for own in made for name, version in versions_of(own)}

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        one_of("choice of pairs to keep", self.keep, get_args(Keep))
        check_dtype(self.dtype)
        names = [method_name(METHODS.make(text)) for text in self.methods]
        for what, typed in (("method", names), ("task", self.tasks)):
            if repeated := [name for name in typed if typed.count(name) > 1]:
                raise BadUsage(f"The {what} {repeated[0]} is named twice.")
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
        tasks = [bench.task(name) for name in self.tasks]
        objectives = dict.fromkeys(task.objective for task in tasks)
        if self.objective is None and len(objectives) > 1:
            raise BadUsage(
                f"The tasks have other objectives, {', '.join(objectives)}: name one for all with"
                " --objective."
            )
        load_objective(self.objective or next(iter(objectives)))

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        return [
            Cell(
                f"{group}/{cell_name(name)}",
                {"method": name, "task": ", ".join(self.tasks), "model": shown_model(model)},
                group,
                {"method": text, "model": model},
            )
            for model in self.models
            for group in [cell_name(model)]
            for text in self.methods
            for name in [method_name(METHODS.make(text))]
        ]

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        begin = time.perf_counter()
        model = bench.model(cell.typed["model"], dtype=self.dtype, prepend_bos=self.prepend_bos)
        kinds = bench.shared("kinds", lambda: self._kinds(model, bench, cell.shares))
        method, tasks = METHODS.make(cell.typed["method"]), list(map(bench.task, self.tasks))

        def kept(name: str, make: Callable[[], Scores]) -> Scores:
            file = f"scores/{cell.name}/{name}.safetensors"
            return bench.kept(
                file, make, partial(load_scores, graph=model.graph), lambda own, to: own.save(to)
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
            progress=bench.progress,
            kept=kept,
        )
        data = bench.folder.selections(cell.shares)
        about: dict[str, Any] = {
            "split": self.split,
            "train_limit": self.train_limit,
            "limit": self.test_limit,
        }
        about |= settings_of(tasks[0]) if len(tasks) == 1 else {}
        return cross.record(
            {
                "model": model.spec(n_edges=model.graph.n_edges),
                "method": Spec(
                    name=cell.of["method"], version=method.version, args=settings(method)
                ),
                "task": Spec(
                    name=", ".join(task.name for task in tasks),
                    version=tasks[0].version,
                    args=about,
                ),
            },
            made_by(model, self.seed, next(iter(data.values())).hash),
            cell=dict(cell.of),
            spent={"seconds": round(time.perf_counter() - begin, 3)},
            data=data,
            warnings=kinds.warnings,
        )

    @property
    def _noun(self) -> str:
        return TASK if len(self.tasks) > 1 else self.over or TEMPLATE

    def _kinds(self, model: Model, bench: Bench, group: str) -> _Kinds:
        """The pairs of every kind; what was chosen is kept in the folder.

        Raises:
            BadUsage: fewer than two kinds have enough pairs; the folder has results on others.
        """
        train: dict[str, list[Pair]] = {}
        test: dict[str, list[Pair]] = {}
        warnings: list[str] = []
        several = len(self.tasks) > 1
        for name in self.tasks:
            pairs, kinds, n_short = self._sorted(bench.task(name), name, model)
            if n_short:
                warnings.append(
                    f"{counted(n_short, self._noun)} of {name} with fewer than"
                    f" {self.train_limit + self.test_limit} pairs left out."
                )
            train |= {kind: both[0] for kind, both in kinds.items()}
            test |= {kind: both[1] for kind, both in kinds.items()}
            for place, role in enumerate(("train", "test")):
                chosen = [pair for both in kinds.values() for pair in both[place]]
                own = Pairs(chosen, source=pairs.source, dropped=pairs.dropped)
                role = f"{role}, {name}" if several else role
                bench.folder.save_data(role, own.selection(), group)
        for kind, own in test.items():
            warnings += [
                f"{kind}: {text}" for text in preference_of(model, model.batch(own)).warnings()
            ]
        return _Kinds(train, test, warnings)

    def _sorted(
        self, task: Task, name: str, model: Model
    ) -> tuple[Pairs, dict[str, tuple[list[Pair], list[Pair]]], int]:
        """Pairs of a task, those of each kind that has enough, and how many kinds do not."""
        of_one = len(self.tasks) == 1
        wanted, needed = self.most_kinds if of_one else 1, self.train_limit + self.test_limit
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
                f"{needed:,} pairs ({self.train_limit:,} to find circuits, {self.test_limit:,} of"
                f" other groups to measure them) are needed of {least}; {name} has in its split"
                f" {self.split} {has}{counted(most, 'pair')}."
            )
        enough.sort(key=lambda kind: -len(sorted_pairs[kind]))
        chosen = set(enough[:wanted])
        kept = {kind: two for kind, two in both.items() if two is not None and kind in chosen}
        n_short = len(both) - len(enough) if len(enough) < wanted else 0
        return pairs, kept, n_short

    def _pairs(self, task: Task, model: Model, n: int) -> tuple[Pairs, bool]:
        """The first n pairs of the split, or all there are and that they are all."""
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
                pass  # There are fewer; what is wrong with them, if anything, is said below.
        return drawn(), True

    def _two(self, pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]] | None:
        """Pairs to find circuits on and pairs to measure them, of other groups; None of too few."""
        two: tuple[list[Pair], list[Pair]] = ([], [])
        limits = (self.train_limit, self.test_limit)
        side: dict[str, int] = {}
        for pair in pairs:
            to = side.setdefault(pair.group or pair.id, int(len(two[0]) == limits[0]))
            if len(two[to]) < limits[to]:
                two[to].append(pair)
        return two if tuple(map(len, two)) == limits else None


READING = {
    "Kind": "What pairs have in common: their template, another tag, or their task.",
    "Loss": (
        "Of what ablation changes, how much less a circuit keeps on pairs of a kind than the kind's"
        " own circuit, pair by pair (agreement). It may be negative. Brackets are intervals over"
        " groups of test pairs, which hold for all losses of the page's table at once with 95 %."
    ),
    "Serves, fails": (
        f"A circuit serves a kind if the upper end of its loss is at most {SLACK}, and fails it if"
        " the lower end is above. Between the two it is open: it counts as served in the least"
        " number of circuits, and as failed in the most."
    ),
    "Another sample": (
        "The circuit of other training pairs of the same kind, on the same test pairs: what a"
        " circuit loses by its pairs alone. Kinds whose losses are no larger share a circuit that"
        " was found with noise."
    ),
    "Has a circuit": (
        f"Its own circuit keeps {LEAST_OWN:.0%} or more of what ablation changes on its test pairs,"
        " and that of another sample does not fail them. Others are counted apart: a larger size,"
        " or more pairs, may give them one."
    ),
    "Size": "In a circuit with room for two behaviours kinds may agree; small sizes tell more.",
}


class HowManyPage(Page):
    """Circuits of kinds of prompts on prompts of the other kinds."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        names = dict.fromkeys(f"{record.task.name}, {record.model.name}" for record in records)
        return f"How many circuits: {'; '.join(names)}" if names else "How many circuits"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """The losses of every record, and its kinds."""
        named = zip(records, labels(records), strict=True)
        tables = [table for record, label in named for table in _tables(record, label)]
        return [*tables, *failures_table(failures, "method")]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """How many circuits, the matrix as a figure, its numbers, and kinds by their names."""
        named = list(zip(records, labels(records), strict=True))
        several = len(records) > 1
        answer: list[Block] = [
            Text(CrossAgreement.of_record(record).verdict(), "verdict", f"{label}." * several)
            for record, label in named
        ]
        figures = [
            Figure(
                self.draw(record),
                title=label if several else "",
                name=f"Agreement, {label}",
                about="Agreement of the circuit of each kind, and of another sample of the same"
                " kind, on test pairs of each kind; the table has the losses.",
            )
            for record, label in named
        ]
        own = [Section(label, tuple(_tables(record, ""))) for record, label in named]
        lost = [Section(table.title, (table,)) for table in failures_table(failures, "method")]
        return framed(
            records, answer, [*own, *lost], figure=figures, failures=failures, reading=READING
        )

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """The agreement as a heat map, circuits by pairs; below it that of other samples."""
        cross = CrossAgreement.of_record(record)
        figure = MatplotlibFigure(layout="constrained") if ax is None else ax.get_figure(root=True)
        assert isinstance(figure, MatplotlibFigure)
        axes = figure.add_subplot() if ax is None else ax
        same = cross.agreement.diagonal() - cross.other_sample
        image = axes.imshow([*cross.agreement, same], vmin=0, vmax=1, cmap="viridis")
        names = _short(cross)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes.set_yticks(range(len(names) + 1), [*names, OTHER_SAMPLE])
        axes.axhline(len(names) - 0.5, color="white", linewidth=3)
        axes.set_xlabel(f"test pairs of {cross.noun}")
        axes.set_ylabel(f"circuit of {cross.noun}")
        figure.colorbar(image, ax=axes, label="agreement")
        return figure


def _short(cross: CrossAgreement) -> list[str]:
    """Names that fit beside a figure: numbers, if any is long."""
    if max(map(len, cross.kinds)) <= SHORT:
        return list(cross.kinds)
    return [str(place) for place in range(1, len(cross.kinds) + 1)]


def _tables(record: Record, label: str) -> list[TextTable]:
    """The losses, circuits by kinds; and of each kind its circuit, pairs and other sample."""
    cross = CrossAgreement.of_record(record)
    names, n = _short(cross), len(cross.kinds)
    losses = [
        Row(
            (
                names[g],
                *(number(0.0) if g == h else _loss(cross, g, h) for h in range(n)),
            )
        )
        for g in range(n)
    ]
    control = (_of_sample(cross, h) for h in range(n))
    rows = (*losses, Row((OTHER_SAMPLE, *control), "control"))
    columns = (Column(f"circuit of {cross.noun}", numeric=False), *map(Column, names))
    title = f"{label}: loss" if label else "Loss"
    caption = "Share of what ablation changes; columns are the test pairs. Lower is better."
    own = [
        Row(
            (
                names[h],
                *((cross.kinds[h],) if names[h] != cross.kinds[h] else ()),
                f"{cross.n_edges[h]:,}",
                number(float(cross.agreement[h, h])),
                _of_sample(cross, h),
                "yes" if cross.has_circuit[h] else "no",
                f"{cross.n_train[h]:,}",
                f"{cross.n_test[h]:,}",
                f"{cross.n_groups[h]:,}",
            )
        )
        for h in range(n)
    ]
    full = (Column("name", numeric=False),) if names != list(cross.kinds) else ()
    headings = (
        *(Column(cross.noun, numeric=False), *full, Column("edges", optional=2)),
        *(Column("agreement"), Column("another sample loses"), Column("has a circuit", False)),
        *(Column("train pairs", optional=2), Column("test pairs", optional=1), Column("groups")),
    )
    kinds = TextTable(f"{label}: kinds" if label else "Kinds", headings, tuple(own))
    return [TextTable(title, columns, rows, caption), kinds]


def _loss(cross: CrossAgreement, g: int, h: int) -> str:
    return interval(*(float(x[g, h]) for x in (cross.loss, cross.low, cross.high)))


def _of_sample(cross: CrossAgreement, h: int) -> str:
    return interval(*(float(x[h]) for x in (cross.other_sample, cross.other_low, cross.other_high)))
