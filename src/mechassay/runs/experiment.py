"""Jobs: an experiment is a plan, its cells are the pieces of work, and each cell ends in one file.

An experiment is a frozen dataclass. Its fields are the options of a command, and what plan.json holds:

    planned   (default) the folder holds results of these values alone
    growing   named in `grows`: lists of what to do, to which a later run of the folder may add
    free      stored, but another value is no other plan: limits
    secret    never stored: private seeds

A `Cell` is plain values, so that any worker can do it. It ends in a record or in a failure: it
was skipped for a reason, or it raised an error. Cells that share something expensive, such as a
model and its controls, have one key. One worker does them in order. A `Worker` is what a worker
holds.

An experiment can be written as the command that makes it (`command_line`). `Experiment.words` says the words of
the command, and the fields are its options. Options that have the command's default are left
out, but lists of what to do always stand there. Secret fields are never written. Typed as it
stands, the command gives an equal experiment, but for what is secret.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from rich.console import Console

from mechassay.errors import BadFile, BadUsage, MechassayError
from mechassay.models.computing import chosen
from mechassay.models.model import Model, load_model
from mechassay.models.replicas import Replicas
from mechassay.models.sources import AT, UNTRAINED, split_revision
from mechassay.results.page import RunContents
from mechassay.results.records import Failure, Provenance, Record, failure_of, page_of, provenance
from mechassay.results.report import print_report, write_page, write_tables
from mechassay.runs import EXPERIMENTS
from mechassay.runs.folder import DEFINITIONS, RunFolder
from mechassay.runs.options import Option, options_of
from mechassay.tasks import load_task
from mechassay.tasks.task import Task
from mechassay.utils.display import (
    BAR,
    OneLine,
    Progress,
    Tabular,
    html_facts,
    html_table,
    interval,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PROGRAM = "mechassay"


def command_line(experiment: Any, output: Path | None = None) -> str:
    """The command of an experiment in one line, quoted for a shell; "" where no command makes it.

    Args:
        output: the folder that it writes to; the command's default if not given.
    """
    words = command_words(experiment)
    if words is None:
        return ""
    return shlex.join([PROGRAM, *words, *(["-o", str(output)] if output else [])])


def command_words(experiment: Any) -> list[str] | None:
    """The words of `command_line`; None where no command makes the experiment."""
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
    """An option and its value, once for each of several; None for what cannot be typed."""
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


T = TypeVar("T")
LONGEST = 80
"""Characters of a name of a file, from its end; the hash of all stands behind them."""


@dataclass(frozen=True)
class Cell:
    """One piece of work.

    Attributes:
        name: of its file, unique in the experiment; "group/name" puts it into a folder.
        of: what tables call it: model, task, method ...
        shares: cells with one key are done by one worker, in order.
        typed: of `of`, what was typed where that is longer: the path of a model.
    """

    name: str
    of: Mapping[str, str]
    shares: str = ""
    typed: Mapping[str, str] = field(default_factory=dict)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a cell that cannot go on where it was; the message says what was kept."""

    code: ClassVar[int] = 130


class Experiment(Protocol):
    """What can be run: `mechassay.run(experiment, folder)`, or a command made of its fields.

    A class that names it as its base has all but `kind`, `cells` and `run`. `markdown` is the file
    of the page's words and tables, if there is to be one. `command` are the words of its command
    (its kind and "run" if there are none), `typed` that command's defaults where they are others
    than those of the fields. `for_boards`: boards read its records, and run such plans of others.
    """

    kind: ClassVar[str]
    grows: ClassVar[tuple[str, ...]] = ()
    markdown: ClassVar[str] = "tables.md"
    command: ClassVar[tuple[str, ...]] = ()
    typed: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    for_boards: ClassVar[bool] = False

    def words(self) -> tuple[Sequence[str], Sequence[str]]:
        """The words of its command before the options, none where no command makes it; and the
        fields that these words say.
        """
        return self.command or (self.kind, "run"), ()

    def versions(self, worker: Worker) -> Mapping[str, Any]:
        """What else is part of the plan: settings of definitions, hashes of files."""
        return {}

    def definitions(self) -> Mapping[str, int]:
        """Versions of what it names, {"method eap": 1}; a folder of others is not gone on with."""
        return {}

    def check(self, worker: Worker) -> None:
        """Refuse everything that is wrong with what was typed, before a folder or model is touched.

        Raises:
            BadUsage, UnknownName: something is.
        """

    def notes(self) -> Sequence[str]:
        """What to say of what was typed before anything is run, where it is not wrong."""
        return ()

    def cells(self) -> Sequence[Cell]:
        """The cells of the plan; nothing is loaded."""
        ...

    def skip(self, cell: Cell, worker: Worker) -> tuple[str, str] | None:
        """The kind of the reason and the reason not to run a cell; None if it is to be run."""
        return None

    def run(self, cell: Cell, worker: Worker) -> Record:
        """The result of a cell."""
        ...

    def show(self, results: Results, console: Console) -> None:
        """Print the tables of all that there is."""
        print_report(results.contents, console, self.kind)

    def report(self, results: Results) -> Path:
        """Write the pages and tables of all that there is; the path of the first page."""
        folder, contents = results.folder.path, results.contents
        if self.markdown:
            write_tables(folder / self.markdown, contents, self.kind)
        command = command_line(self, Path(folder.name))
        return write_page(folder / "report.html", contents, kind=self.kind, command=command)


def plan_of(experiment: Any, worker: Worker) -> dict[str, Any]:
    """What plan.json holds of an experiment: its kind, its fields but secret ones, and versions."""
    fields = [name for name, about in options_of(experiment).items() if about.role != "secret"]
    plan = {name: getattr(experiment, name) for name in fields}
    versions = {DEFINITIONS: dict(named)} if (named := experiment.definitions()) else {}
    return {"kind": experiment.kind, **plan, **experiment.versions(worker), **versions}


def free_fields(experiment: Any) -> tuple[str, ...]:
    """The names of the fields that may change from run to run."""
    return tuple(name for name, about in options_of(experiment).items() if about.role == "free")


def default_folder(experiment: Any) -> Path:
    """Where an experiment's results go if nobody says: runs/KIND-MODEL-TASK-HASH, with the first model and
    task of several, and a hash of all that the results depend on. Two plans never share one, and
    the same goes on.
    """
    planned = {
        name: getattr(experiment, name)
        for name, about in options_of(experiment).items()
        if about.role not in ("secret", "free")
    }
    text = json.dumps({"kind": experiment.kind, **planned}, sort_keys=True, default=str)
    parts = [experiment.kind]
    for what in ("model", "task"):
        named = getattr(experiment, f"{what}s", ()) or (getattr(experiment, what, ""),)
        first = shown_model(named[0]) if what == "model" else Path(named[0]).stem
        more = f"+{len(named) - 1}" if len(named) > 1 else ""
        parts += [f"{first}{more}"] if first else []
    name = re.sub(r"[^\w.+@-]+", "_", "-".join(parts)).lstrip(".")[-LONGEST:]
    return Path("runs") / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def experiment_of(plan: Mapping[str, Any], **changes: Any) -> Any:
    """The experiment of a stored plan.

    Args:
        changes: of its fields; secret ones are in no plan.

    Raises:
        UnknownName: no such kind of run. BadUsage: it has no such field.
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
    return kind(**{**stored, **changes})


@dataclass(frozen=True, repr=False)
class Results(OneLine, Tabular):
    """Everything that the folder holds of an experiment, in the order of its cells.

    Attributes:
        done: cells with their records.
        left: cells that were skipped or failed, with the reasons.
    """

    folder: RunFolder
    done: tuple[tuple[Cell, Record], ...]
    left: tuple[tuple[Cell, Failure], ...]

    @staticmethod
    def stored(experiment: Any, folder: RunFolder) -> Results:
        """Read what is there. A record that is refused, as one that was edited, is a failure."""
        done: list[tuple[Cell, Record]] = []
        left: list[tuple[Cell, Failure]] = []
        for cell in experiment.cells():
            try:
                record = folder.record(cell.name)
                failure = folder.failure(cell.name) if record is None else None
            except BadFile as error:
                record, failure = None, failure_of(dict(cell.labels), error)
            if record is not None:
                done.append((cell, record))
            elif failure is not None:
                left.append((cell, failure))
        return Results(folder, tuple(done), tuple(left))

    def repr_fields(self) -> dict[str, Any]:
        kinds = tuple(dict.fromkeys(record.kind for record in self.records))
        count = {"records": len(self.done), "left": len(self.left)}
        return {"folder": str(self.folder.path), "kinds": kinds, **count}

    @property
    def says(self) -> list[str]:
        """The sentences that the page begins with; none where nothing was done."""
        kinds = dict.fromkeys(record.kind for record in self.records)
        return [
            sentence
            for kind in kinds
            for sentence in page_of(kind).answers([r for r in self.records if r.kind == kind])
        ]

    def __str__(self) -> str:
        """The first of these sentences, or why there is none, and where the page is."""
        reasons = [f"{failure.status}: {failure.message}" for failure in self.failures]
        first = (self.says or reasons)[:1]
        return "\n".join((*first, f"Report: {self.folder.path / 'report.html'}"))

    def open(self) -> None:
        """Open the page in a browser."""
        webbrowser.open((self.folder.path / "report.html").resolve().as_uri())

    def _repr_html_(self) -> str:
        roles = self._roles()
        rows = [
            (*(cell.labels.get(x, "") for x in roles), _measures_text(record))
            for cell, record in self.done
        ]
        rows += [
            (*(cell.labels.get(x, "") for x in roles), f"{failure.status}: {failure.message}")
            for cell, failure in self.left
        ]
        table = html_table((*roles, "result"), rows)
        return html_facts(f"Results in {self.folder.path}", {}, table)

    def _roles(self) -> list[str]:
        """What cells are called by: model, task, method."""
        return list(
            dict.fromkeys(name for cell, _ in (*self.done, *self.left) for name in cell.labels)
        )

    def columns(self) -> dict[str, list[Any]]:
        """Every measure of every record as columns, beside the names of its cell."""
        columns: dict[str, list[Any]] = {name: [] for name in self._roles()}
        for cell, record in self.done:
            for role, names in list(columns.items()):
                if role in self._roles():
                    names += [cell.labels.get(role, "")] * len(record.measures)
            for name, values in record.columns().items():
                columns.setdefault(name, []).extend(values)
        return columns

    def plot(self) -> Figure:
        """The figure of all records, if the page of their kind has one; of a single record its own.

        Raises:
            BadUsage: there is nothing to draw.
        """
        kinds = {record.kind for record in self.records}
        figure = page_of(kinds.pop()).draw_all(self.records) if len(kinds) == 1 else None
        if figure is None:
            raise BadUsage(
                f"{self.folder.path} has no records that one figure draws; see records[0].plot()."
            )
        return figure

    @property
    def records(self) -> list[Record]:
        return [record for _, record in self.done]

    @property
    def failures(self) -> list[Failure]:
        """Cells without a result: skipped, or failed."""
        return [failure for _, failure in self.left]

    @property
    def contents(self) -> RunContents:
        """The records and failures for a page."""
        return RunContents(self.records, self.failures)

    @property
    def groups(self) -> list[str]:
        """The keys of the cells, in their order."""
        return list(dict.fromkeys(cell.inputs for cell, _ in (*self.done, *self.left)))

    def of(self, shares: str) -> Results:
        """The part of the cells of one key."""
        done = tuple((cell, record) for cell, record in self.done if cell.inputs == shares)
        left = tuple((cell, failure) for cell, failure in self.left if cell.inputs == shares)
        return Results(self.folder, done, left)


def _measures_text(record: Record) -> str:
    """The measures of a result in words."""
    own = [m for m in record.measures if m.of == "result"]
    return ", ".join(f"{m.heading} {interval(m.value, m.low, m.high)}" for m in own)


class Worker:
    """What a worker holds: the folder, the last model, and what the cells of one key share.

    Args:
        device_map: where modules of models are placed, in place of `device`.
        models, tasks: objects that stand for names of the plan, in this process alone.
        devices: of the replicas of each model, in processes that do a share of its pairs.
    """

    def __init__(
        self,
        folder: RunFolder,
        device: str = "cpu",
        progress: Progress = BAR,
        *,
        device_map: str = "",
        models: Mapping[str, Model] | None = None,
        tasks: Mapping[str, Task] | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self.folder, self.device, self.progress = folder, device, progress
        self.device_map, self.devices = device_map, tuple(devices)
        self._models, self._tasks = dict(models or {}), dict(tasks or {})
        self._last: tuple[tuple[Any, ...], Model | MechassayError] | None = None
        self._shares, self._shared = "", dict[str, Any]()

    @property
    def holds_objects(self) -> bool:
        """Whether it was given models or tasks as objects, which no other process has."""
        return bool(self._models or self._tasks)

    def turn_to(self, cell: Cell) -> None:
        """Forget what the cells of another key shared."""
        if cell.inputs != self._shares:
            self._shares, self._shared = cell.inputs, {}

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Something that is made once for all cells of one key, and held in memory."""
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]

    def model(self, name: str, *, dtype: str = "float32", prepend_bos: bool = False) -> Model:
        """A model by name. The last one is kept, and so is the error where there is none.

        Raises:
            MechassayError: it cannot be loaded; see `load_model`.
        """
        if name in self._models:
            return self._models[name]
        key = (name, dtype, prepend_bos)
        if self._last is None or self._last[0] != key:
            self._last = None  # The old model goes before the new one comes.
            load = partial(load_model, name, dtype=dtype, prepend_bos=prepend_bos)
            try:
                model = load(device=self.device, device_map=self.device_map or None)
                if len(self.devices) > 1:
                    model = replace(model, replicas=Replicas(self.devices, load))
                self._last = key, model
            except MechassayError as error:
                self._last = key, error
        model = self._last[1]
        if isinstance(model, MechassayError):
            raise model
        return model

    def close(self) -> None:
        """End the processes of the last model's replicas; it can be used again.

        A process waits for those that it began before it ends, so it has to end them itself.
        """
        model = None if self._last is None else self._last[1]
        if isinstance(model, Model) and model.replicas is not None:
            model.replicas.close()

    def task(self, name: str) -> Task:
        """A task by name; see `load_task` for errors."""
        return self._tasks[name] if name in self._tasks else load_task(name)

    def kept(
        self,
        name: str,
        make: Callable[[], T],
        load: Callable[[Path], T],
        save: Callable[[T, Path], object],
    ) -> T:
        """Something that stays in the folder: read if it is there, else made and written whole."""
        path = self.folder.path / name
        if not path.is_file():
            made = make()
            path.parent.mkdir(parents=True, exist_ok=True)
            save(made, path)
        return load(path)


def cell_name(*parts: str) -> str:
    """A name for files, of names that may be paths; what is changed gets a hash behind it."""
    name = "--".join(parts)
    plain = re.sub(r"[^\w.=,@ -]+", "_", name).lstrip(".")
    if plain == name and len(plain) <= 2 * LONGEST:
        return name
    return f"{plain[-LONGEST:]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def shown_model(name: str) -> str:
    """What tables call a model: folders and files by their own names, and with their revisions."""
    if name.startswith(UNTRAINED):
        return UNTRAINED + shown_model(name.removeprefix(UNTRAINED))
    model, revision = split_revision(name)
    path = Path(model)
    shown_as = path.name if path.exists() else model
    return f"{shown_as}{AT}{revision}" if revision else shown_as


def made_by(model: Model, seed: int, data_hash: str) -> Provenance:
    """How a record of a model came about."""
    device, dtype = str(model.device), str(model.dtype).removeprefix("torch.")
    about = {"device": device, "dtype": dtype, "tf32": chosen().tf32}
    return provenance(**about, seed=seed, data_hash=data_hash)


MANY = 1_000
"""Layers, before a model is known."""


def layers_of(text: str, n_layers: int) -> tuple[int, ...] | None:
    """Layers as they are typed: all (None), numbers, or a slice of all as in Python.

    Raises:
        BadUsage: neither, or none of the model's layers.
    """
    if text == "all":
        return None
    try:
        if ":" in text:
            parts = [int(x) if x.strip() else None for x in text.split(":")]
            numbers = tuple(range(n_layers))[slice(*parts)]
        else:
            numbers = tuple(int(x) for x in text.split(","))
    except (ValueError, TypeError):
        raise BadUsage(
            f"Layers are all, numbers such as 0,3,6, or a slice such as ::3; got {text!r}."
        ) from None
    if not numbers:
        raise BadUsage(f"Layers {text} are none of the model's, 0 to {n_layers - 1}.")
    return numbers
