"""Experiments. An experiment has cells; a cell takes inputs and ends in a record.

A kind of run is a frozen dataclass that names `Experiment` as its base. Its fields are the options
of a command, and plan.json stores them:

    planned   (default) all records of a folder have the same value
    growing   named in `grows`: lists, such as models, to which a later run of the folder may add
    free      stored, but may change from run to run: limits
    secret    never stored: private seeds

A subclass names its `kind` and `axes`, and defines `measure`. `inputs` loads the model, the task
and the pairs, which the cells of one model and one task share. `preconditions` states why a cell
cannot be measured. Nothing here imports torch, so that a command line reads the fields at once.

An experiment is also a command (`command_line`): the command makes an equal experiment, but for
secret fields. Options with the command's default are omitted, but growing lists are always written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from mechassay.errors import BadUsage
from mechassay.runs import CIRCUITS, EXPERIMENTS, FILES_IN
from mechassay.runs.cells import LONGEST, Cell, Inputs, cell_name
from mechassay.runs.identities import MODEL, TASK, Source, digest_of_seed
from mechassay.runs.names import model_labels, names_of, task_labels
from mechassay.runs.options import DEFINITIONS, Option, options_of
from mechassay.utils.arguments import check_fields

if TYPE_CHECKING:
    from rich.console import Console

    from mechassay.models.model import Model
    from mechassay.results.page import Report
    from mechassay.results.records import Record
    from mechassay.results.result import RecordContents, Result
    from mechassay.runs.worker import Worker
    from mechassay.tasks.task import Task

PROGRAM = "mechassay"
NAMED = ("models", "tasks", "gym tasks", CIRCUITS)
"""What options name by paths that are made relative, see `Option.complete`."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a cell that starts again on resuming; the message names the kept files."""

    code: ClassVar[int] = 130


@dataclass(frozen=True)
class Experiment:
    """A kind of run; see the module. `mechassay.run(experiment, folder)` runs it.

    Attributes:
        kind: its name, which plan.json and its records have.
        axes: what tells its cells apart, each with the field that lists the values.
        keeps: the folder of the files that results are saved to; "" if records are all.
        grows: the fields to which a later run may add; by default those of `axes`.
        markdown: the file of the page's words and tables; "" if there is none.
        command: the words of its command; its kind and "run" if there are none.
        typed: that command's defaults, where they differ from those of the fields.
        for_boards: whether boards read its records, and run such experiments of others.
    """

    kind: ClassVar[str]
    axes: ClassVar[Mapping[str, str]] = MappingProxyType({"model": "models", "task": "tasks"})
    keeps: ClassVar[str] = ""
    grows: ClassVar[tuple[str, ...]] = ()
    markdown: ClassVar[str] = "tables.md"
    command: ClassVar[tuple[str, ...]] = ()
    typed: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    for_boards: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "grows" not in vars(cls) and cls.cells is Experiment.cells:
            cls.grows = tuple(cls.axes.values())

    def __post_init__(self) -> None:
        """Check the fields, and put the names of models, tasks and circuits in the place of typed
        texts, each once. A subclass that defines `__post_init__` calls this one first.

        Raises:
            BadUsage: a field that its annotation does not allow, such as a `Model` among `models`.
        """
        self._refuse_objects()
        check_fields(self, " ".join(self.command or (self.kind, "run")))
        for field, about in options_of(self).items():
            if about.complete in NAMED or (about.complete == "files" and field in self.grows):
                object.__setattr__(self, field, names_of(getattr(self, field), about.complete))

    def _refuse_objects(self) -> None:
        for field in ("models", "model", "tasks", "task"):
            value = getattr(self, field, "")
            for own in value if isinstance(value, tuple | list) else (value,):
                if not isinstance(own, str) and isinstance(name := getattr(own, "name", None), str):
                    plural = f"{field.removesuffix('s')}s"
                    raise BadUsage(
                        f"{field} of {type(self).__name__} takes a name; got {own!r}. Give the name"
                        f" {name!r} here, and the object to run(experiment,"
                        f" {plural}={{{name!r}: ...}})."
                    )

    # What a kind of run defines.

    def measure(self, cell: Cell, inputs: Any) -> Result | RecordContents:
        """Return the result of a cell, or the fields of its record."""
        raise NotImplementedError

    def inputs(self, cell: Cell, worker: Worker) -> Any:
        """Load the inputs that the cells of one model and task share: by default the pairs of one
        split, selected by the fields `split`, `limit`, `counterfactual`, `keep`, `seed` and
        `private_seed`.
        """
        model, task = self.loaded(cell, worker)
        fields = ("limit", "counterfactual", "keep", "seed", "private_seed")
        about = {name: getattr(self, name) for name in fields if hasattr(self, name)}
        split = str(getattr(self, "split", "test")) or task.unfitted_split
        pairs = worker.drawn("pairs", (cell["model"], cell["task"]), model, split, **about)
        asked = {"split": split, "limit": about.get("limit")}
        return Inputs(model, task, {"test": pairs}, asked, worker.progress)

    def preconditions(self, cell: Cell, inputs: Any) -> Iterator[tuple[str, str]]:
        """Yield the preconditions that do not hold, each as a kind and a sentence. The cell is
        skipped for the first one.
        """
        yield from ()

    # What follows from that.

    def loaded(self, cell: Cell, worker: Worker) -> tuple[Model, Task]:
        """Return the model and the task of a cell."""
        about = {x: getattr(self, x) for x in ("dtype", "prepend_bos") if hasattr(self, x)}
        return worker.model(cell["model"], **about), worker.task(cell["task"])

    def dtype_of(self, model: str) -> str:
        """Return the type of a model's weights, by the model's typed name."""
        return str(getattr(self, "dtype", "float32"))

    def sources(self, cell: Cell) -> dict[str, Source]:
        """Return the sources of a cell by role: by default the model, the task, and the files that
        options name. Of the values of a growing list, only the cell's own value counts. Nothing is
        loaded.
        """
        sources: dict[str, Source] = {}
        for axis in (MODEL, TASK):
            if axis in cell.labels:
                dtype = self.dtype_of(cell[axis]) if axis == MODEL else ""
                sources[axis] = Source(axis, cell[axis], dtype)
        own = {cell[axis] for axis in cell.labels}
        for name, about in options_of(self).items():
            value = getattr(self, name)
            if about.role == "secret" and value is not None:
                digest = digest_of_seed(value)
                sources[name] = Source("secret", name.replace("_", " "), digest=digest)
            if about.complete == "tasks" and isinstance(value, str) and value not in ("", *own):
                sources[name] = Source(TASK, value)  # Such as a task to compare with.
            if about.complete not in ("files", CIRCUITS):
                continue
            values = value if isinstance(value, tuple) else (value,)
            read = [text for text in values if text and (name not in self.grows or text in own)]
            if read and about.complete == CIRCUITS:
                read = list(map(FILES_IN.load(CIRCUITS).path_in, read))
            paths = [text for text in read if text and Path(text).exists()]
            for number, path in enumerate(paths, start=1):
                sources[name if len(paths) == 1 else f"{name} {number}"] = Source("file", path)
        return sources

    def labels(self) -> dict[tuple[str, str], str]:
        """Return the label of each model and task, by axis and name."""
        labels: dict[tuple[str, str], str] = {}
        for axis, of in ((MODEL, model_labels), (TASK, task_labels)):
            own = getattr(self, f"{axis}s", None) or (getattr(self, axis, ""),)
            labels |= {(axis, name): label for name, label in of(filter(None, own)).items()}
        return labels

    def cells(self) -> list[Cell]:
        """Return the combinations of the axes' values; nothing is loaded. Cells of one model and
        task stand together.
        """
        cells: list[Cell] = []
        labels = self.labels()
        for values in product(*(getattr(self, field) for field in self.axes.values())):
            at = dict(zip(self.axes, values, strict=True))
            group = cell_name(*(at[axis] for axis in ("model", "task") if axis in at))
            rest = [value for axis, value in at.items() if axis not in ("model", "task")]
            name = f"{group}/{cell_name(*rest)}" if rest else group
            own = {axis: str(labels.get((axis, x), x)) for axis, x in at.items()}
            cells.append(Cell(name, own, group, at))
        return cells

    def check(self, worker: Worker) -> None:
        """Refuse wrong options before a folder or model is touched. By default these are unknown
        tasks, dtypes and objectives.

        Raises:
            BadUsage, UnknownName: an option is wrong.
        """
        from mechassay.models.model import check_dtype
        from mechassay.models.objectives import load_objective

        known: dict[str, Callable[[str], object]] = {"tasks": worker.task, "dtypes": check_dtype}
        known["objectives"] = load_objective
        for name, about in options_of(self).items():
            value = getattr(self, name)
            for one in value if isinstance(value, tuple) else (value,):
                if one and about.complete in known:
                    known[about.complete](one)

    def skip(self, cell: Cell, worker: Worker) -> tuple[str, str] | None:
        """Return why a cell is not measured, as a kind and a sentence; None if it is measured.
        Without preconditions nothing is loaded.
        """
        if type(self).preconditions is Experiment.preconditions:
            return None
        return next(self.preconditions(cell, worker.inputs(self, cell)), None)

    def run(self, cell: Cell, worker: Worker) -> Record:
        """Measure a cell and return its record, with a conclusion if the kind has preconditions."""
        inputs = worker.inputs(self, cell)
        return worker.record(self, cell, inputs).concluded()

    def words(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the words of its command before the options, none if no command makes it; and the
        fields that these words set.
        """
        return self.command or (self.kind, "run"), ()

    def versions(self, worker: Worker) -> Mapping[str, Any]:
        """Return further entries of plan.json: settings of definitions, hashes of files."""
        return {}

    def definitions(self) -> Mapping[str, int]:
        """Return the versions of the methods and metrics, {"method eap": 1}. A folder of other
        versions is refused.
        """
        return {}

    def notes(self) -> Sequence[str]:
        """Return notes on the options, which are printed before anything is run."""
        return ()

    def show(self, report: Report, console: Console) -> None:
        """Print the sentences that the page begins with, and its tables."""
        from mechassay.results.report import print_report

        print_report(report, console, self.kind)

    def write(self, report: Report) -> Path:
        """Write the pages and tables of a report; return the path of the first page."""
        from mechassay.results.report import write_page, write_tables

        if self.markdown:
            write_tables(report.folder / self.markdown, report, self.kind)
        command = command_line(self, Path(report.folder.name))
        return write_page(report.folder / "report.html", report, kind=self.kind, command=command)


# An experiment as a command, and as plan.json.


def command_line(experiment: Any, output: Path | None = None) -> str:
    """Return the command of an experiment in one line, quoted for a shell; "" if there is none.

    Args:
        output: the folder of the run; the command's default if not given.
    """
    words = command_words(experiment)
    if words is None:
        return ""
    return shlex.join([PROGRAM, *words, *(["-o", str(output)] if output else [])])


def command_words(experiment: Any) -> list[str] | None:
    """Return the words of `command_line`; None if no command makes the experiment."""
    head, option_words = experiment.words()
    words = list[str](head)
    if not words:
        return None
    defaults = {
        option.name: option.default if option.default_factory is dataclasses.MISSING else None
        for option in dataclasses.fields(experiment)
    } | dict(experiment.typed)
    for name, about in options_of(experiment).items():
        if name in option_words or about.role == "secret":
            continue
        value, default = getattr(experiment, name), defaults[name]
        # 1 is one edge, 1.0 all of them.
        same = type(value) is type(default) and value == default
        # A list of what to do has another default in some commands: it is always written.
        if same and not (name in experiment.grows and value):
            continue
        typed = _typed(name, about, value)
        if typed is None:
            return None
        words += typed
    return words


def _typed(name: str, about: Option, value: Any) -> list[str] | None:
    """Return an option and its value, once for each of several; None if it cannot be typed."""
    flags = about.flags or (f"--{name.replace('_', '-')}",)
    if isinstance(value, bool):
        yes, slash, no = flags[0].partition("/")
        return [yes] if value else [no] if slash else None
    if value is None and about.none:
        return [flags[0], about.none]
    if value is None or value == ():
        return None
    values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    long_flag = next((flag for flag in flags if flag.startswith("--")), flags[0])
    # A value that begins with a dash would be taken for an option.
    return [
        word
        for text in map(str, values)
        for word in ([f"{long_flag}={text}"] if text.startswith("-") else [flags[0], text])
    ]


def plan_of(experiment: Any, worker: Worker) -> dict[str, Any]:
    """Return the content of plan.json: the kind, the fields but secret ones, and versions."""
    fields = [name for name, about in options_of(experiment).items() if about.role != "secret"]
    plan = {name: getattr(experiment, name) for name in fields}
    versions = {DEFINITIONS: dict(named)} if (named := experiment.definitions()) else {}
    return {"kind": experiment.kind, **plan, **experiment.versions(worker), **versions}


def free_fields(experiment: Any) -> tuple[str, ...]:
    """Return the names of the fields that may change from run to run."""
    return tuple(name for name, about in options_of(experiment).items() if about.role == "free")


def default_folder(experiment: Any) -> Path:
    """Return the first folder for an experiment: its kind, models, tasks and settings name it.

    Models and files count by their labels, not by their paths. `runs.resuming` finds the folder
    with the same content among this folder and its numbered neighbours.
    """
    settings = {
        name: _labels(getattr(experiment, name), about.complete)
        for name, about in options_of(experiment).items()
        if about.role not in ("secret", "free")
    }
    text = json.dumps({"kind": experiment.kind, **settings}, sort_keys=True, default=str)
    parts = [experiment.kind]
    for what in ("model", "task"):
        named = getattr(experiment, f"{what}s", ()) or (getattr(experiment, what, ""),)
        label = _labels(named[:1], f"{what}s")[0]
        first = label if what == "model" else Path(label).stem
        more = f"+{len(named) - 1}" if len(named) > 1 else ""
        parts += [f"{first}{more}"] if first else []
    name = re.sub(r"[^\w.+@-]+", "_", "-".join(parts)).lstrip(".")[-LONGEST:]
    return Path("runs") / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def settings_source(experiment: Any) -> Source:
    """Return the settings that all records of a folder share, as a source of its cells: the fields
    but growing, free and secret fields, and the fields that name models, tasks and files.
    """
    settings = {
        name: _labels(getattr(experiment, name), about.complete)
        for name, about in options_of(experiment).items()
        if about.role == "planned"
        and name not in experiment.grows
        and about.complete not in ("models", "tasks", "gym tasks", "files")
    }
    text = json.dumps(settings, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Source("settings", experiment.kind, digest=digest)


def _labels(value: Any, complete: str) -> Any:
    """Return the labels of models and files, and any other value as it is."""
    if isinstance(value, str) and complete in ("models", "tasks", "gym tasks"):
        return _labels((value,), complete)[0]
    if isinstance(value, tuple) and complete in ("models", "tasks", "gym tasks"):
        return list((model_labels if complete == "models" else task_labels)(value).values())
    if isinstance(value, tuple):
        return [_labels(one, complete) for one in value]
    if complete == CIRCUITS and value:
        return FILES_IN.load(CIRCUITS).name_in_results(value)
    return Path(value).name if complete == "files" and value else value


def experiment_of(plan: Mapping[str, Any], **changes: Any) -> Any:
    """Return the experiment of a stored plan.json.

    Args:
        changes: other values of fields; secret fields are never stored.

    Raises:
        UnknownName: the kind of run is unknown. BadUsage: it does not have a field.
    """
    kind = EXPERIMENTS.load(str(plan.get("kind", "")))
    fields = {option.name for option in dataclasses.fields(kind)}
    for name in changes:
        if name not in fields:
            raise BadUsage(f"A run of the kind {plan['kind']} has no {name}.")
    stored = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in plan.items()
        if name in fields
    }
    experiment = kind(**{**stored, **changes})
    for name, about in options_of(kind).items():
        # The names of a plan hold in any working directory, whatever links are there.
        if name in stored and name not in changes and about.complete in (*NAMED, "files"):
            object.__setattr__(experiment, name, stored[name])
    return experiment
