"""Accuracy of several models on several tasks: an experiment.

A cell is one model on one task. Its record has greedy and ranked-choice accuracy of the original
prompts and of each kind of counterfactual, with intervals. An example that has no counterfactual
of a kind, or whose prompt has no right answer, is undefined there and counted. The table
`preconditions.ABILITY` has what the conclusion needs: the score of each original prompt next to
what the same choices reach after other prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from mechassay.runs import options
from mechassay.runs.cells import Inputs
from mechassay.runs.experiment import Experiment
from mechassay.runs.options import option
from mechassay.tasks import TASKS

if TYPE_CHECKING:
    from rich.console import Console

    from mechassay.prompts.pairs import Examples
    from mechassay.results.page import Report
    from mechassay.results.records import Selection
    from mechassay.results.result import RecordContents
    from mechassay.runs.cells import Cell
    from mechassay.runs.worker import Worker

AccuracyScoring = Literal["exact", "mib-2025"]
GROUPS = "groups of prompts"
"""The table of independent groups by kind of counterfactual, if they are not those of the original
prompts."""


@dataclass(frozen=True)
class AccuracyInputs(Inputs):
    """A model, a task and its examples with all their counterfactuals.

    Attributes:
        chosen: the examples as a record has them.
    """

    examples: Examples
    chosen: Selection

    def data(self) -> dict[str, Selection]:
        return {"test": self.chosen}


@dataclass(frozen=True)
class AccuracyExperiment(Experiment):
    """Greedy and ranked-choice accuracy of models on tasks, for original prompts and every
    counterfactual.

    Attributes:
        tasks: all tasks if empty.
        scoring: "mib-2025" is MIB's scoring beside the exact one, in the tasks that MIB has.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.TASKS_OR_ALL] = ()
    split: Annotated[str, options.UNFITTED_SPLIT] = ""
    limit: Annotated[
        int | None,
        options.limit("Examples of each task, or `all` of the split.", none="all", first=True),
    ] = None
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None
    scoring: Annotated[
        AccuracyScoring, option("With mib-2025, MIB's laxer scoring of what is written is beside.")
    ] = "exact"

    kind: ClassVar[str] = "accuracy"
    markdown: ClassVar[str] = "accuracy.md"
    command: ClassVar[tuple[str, ...]] = ("tasks", "score")
    typed: ClassVar[Mapping[str, Any]] = MappingProxyType({"limit": 200})

    def __post_init__(self) -> None:
        super().__post_init__()
        tasks = self.tasks or tuple(TASKS.names())
        object.__setattr__(self, "tasks", TASKS.full_names(tasks))

    def definitions(self) -> dict[str, int]:
        """Return the version of accuracy: since 2, ties count by the part that is right."""
        return {"metric accuracy": 2}

    def inputs(self, cell: Cell, worker: Worker) -> AccuracyInputs:
        """Load as many examples as asked for, or all of a split that has fewer.

        Raises:
            BadUsage: no such split.
        """
        from mechassay.prompts.independence import PROMPTS
        from mechassay.prompts.pairs import content_hash
        from mechassay.prompts.tokenization import Aligned, compared
        from mechassay.results.records import Selection
        from mechassay.tasks.accuracy import token_ids
        from mechassay.tasks.task import COMPARED, FEWER, PRIVATE, aligned, fewer_text

        model, task = self.loaded(cell, worker)
        of, about = (cell["model"], cell["task"]), {"seed": self.seed}
        about |= {"limit": self.limit, "private_seed": self.private_seed}
        split = self.split or task.unfitted_split
        examples = worker.drawn("examples", of, model, split, **about)
        notes = dict(task.notes(split, model.tokenizer))
        if self.limit is not None and len(examples) < self.limit:
            notes[FEWER] = fewer_text(split, len(examples), "example", self.limit)
        first = next(iter(aligned(examples[:1], task.counterfactuals[0], model.tokenizer)), None)
        if split != PRIVATE and isinstance(first, Aligned):
            notes[COMPARED] = compared(first, model.tokenizer)
        texts = [example.prompt.text for example in examples]
        tokens = token_ids(model, texts)
        # Dropped is only what cannot be read; what an example lacks of a kind is undefined there.
        chosen = Selection(
            task=task.name,
            split=split,
            kept=len(examples),
            dropped=dict(examples.dropped),
            notes={name: text for name, text in notes.items() if text},
            counts={PROMPTS: len(set(tokens))},
            hash=content_hash(
                [example.pair(kind) for example in examples for kind in example.counterfactuals]
            ),
        )
        asked = {"split": split}
        return AccuracyInputs(model, task, {}, asked, worker.progress, examples, chosen)

    def measure(self, cell: Cell, inputs: AccuracyInputs) -> RecordContents:
        from mechassay.results.records import Scalar, Spec, Table, Values
        from mechassay.tasks.accuracy import ORIGINAL, accuracy_measure, task_accuracy
        from mechassay.tasks.hub_datasets import PublicTask

        examples, task = inputs.examples, inputs.task
        public = task if isinstance(task, PublicTask) and self.scoring != "exact" else None
        rules, kinds = public and public.mib_scoring, (ORIGINAL, *task.counterfactuals)
        scored = task_accuracy(inputs.model, examples, kinds, rules, inputs.progress)
        columns, ids = scored.columns, [own.id for own in examples]
        kept = {x: own.tolist() for x, own in columns.items() if not x.startswith("chance")}
        groups = list(scored.groups[ORIGINAL])
        # Prompts of another kind may repeat where the original prompts do not.
        others = {k: list[Scalar](x) for k, x in scored.groups.items() if list(x) != groups}
        tables = [scored.ability.table()] if scored.ability else []
        if others:
            by_kind = {"example": list[Scalar](ids), **others}
            tables.append(Table(name=GROUPS, keys=("example",), columns=by_kind))
        return {
            "specs": {"method": Spec(name="behaviour"), "metric": Spec(name="accuracy")},
            "measures": [
                accuracy_measure(name, own, scored.groups[name.partition("@")[2]])
                for name, own in columns.items()
            ],
            "values": Values(unit="example", ids=ids, groups=groups, columns=kept),
            "tables": tables,
            "warnings": [
                f"Examples that could not be read and are left out: {count:,} ({reason})."
                for reason, count in sorted(examples.dropped.items())
            ],
        }

    def show(self, report: Report, console: Console) -> None:
        """Print whether each model does each task, and the table of all tasks."""
        from mechassay.results.console import print_text

        for answer in report.answers:
            print_text(answer, console)
        console.print()
        super().show(report, console)
        print_text(f"Tables: {report.folder / self.markdown}", console)
