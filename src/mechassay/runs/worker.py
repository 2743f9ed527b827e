"""Workers: a worker has the folder, the last model, and the inputs of its cells.

A worker is this process, one of several, or an actor of a cluster. Cells with the
same inputs stand together, so that one worker loads them once and drops them after the last cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from mechassay.errors import BadFile, MechassayError, OtherContent
from mechassay.models.computing import chosen
from mechassay.models.model import Model, load_model
from mechassay.models.replicas import Replicas
from mechassay.models.sources import known_digests
from mechassay.results.records import Provenance, Record, Values, provenance
from mechassay.results.result import Result
from mechassay.runs.cells import Cell, Inputs
from mechassay.runs.folder import RunFolder
from mechassay.runs.identities import (
    MODEL,
    SOURCE,
    TASK,
    Digests,
    Source,
    digests_of_path,
    digests_of_task,
    file_states,
)
from mechassay.runs.names import stored_name
from mechassay.tasks import load_task
from mechassay.tasks.task import Task
from mechassay.utils.digests import states_of
from mechassay.utils.display import BAR, Progress
from mechassay.utils.files import file_hash

T = TypeVar("T")
What = Literal["pairs", "examples"]
SAMPLE, MOST_DRAWN = 64, 1_000
"""Pairs of a split that tell how long its prompts are; pairs up to which all are drawn for that."""


class Worker:
    """The folder of a run, the last model, and the inputs that cells share.

    `cells` are the cells of the run, in the process that opened the folder. `notes` are notes on
    the folder, which are printed before anything is measured. `binds` says whether the models that
    are loaded are bound to the folder, which is not so while a folder is looked for.

    Args:
        device_map: where modules of models are placed, instead of `device`.
        models, tasks: objects that stand for names of the experiment, in this process alone.
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
        self.holds_objects, self.notes, self.binds = bool(models or tasks), list[str](), True
        self._models, self._tasks = dict(models or {}), dict(tasks or {})
        self._objects = frozenset(self._tasks)
        self._last: tuple[tuple[Any, ...], Model | MechassayError] | None = None
        self._inputs, self._shared = "", dict[str, Any]()
        self.cells: tuple[Cell, ...] = ()
        self._given, self._bound = dict[str, Digests](), dict[str, Digests]()
        self._drawn = dict[tuple[Any, ...], Any]()

    def turn_to(self, cell: Cell) -> None:
        """Drop the inputs of other cells."""
        if cell.inputs != self._inputs:
            self._inputs, self._shared = cell.inputs, {}

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return a value that is made once for all cells with the same inputs."""
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]

    def inputs(self, experiment: Any, cell: Cell) -> Any:
        """Return the inputs of a cell, loaded once for all cells that share them.

        Raises:
            BadUsage: the folder holds records of other pairs.
        """

        def loaded() -> Any:
            inputs = experiment.inputs(cell, self)
            if isinstance(inputs, Inputs):
                for role, pairs in inputs.pairs.items():
                    self.folder.save_data(role, pairs.selection(), cell.inputs)
            return inputs

        return self.shared("inputs", loaded)

    def identify(self, source: Source, loading: Any = None) -> Digests | None:
        """Return the current digests of a source; None if the digests are not known.

        Args:
            loading: an experiment; a model without cached digests is loaded for the experiment.
        """
        name = source.name
        if source.digest:
            return {"content": source.digest}
        if source.what == TASK:
            return digests_of_task(self.task(name))
        if source.what != MODEL:
            return digests_of_path(name)
        if name in self._models:
            if name not in self._given:
                self._given[name] = self._models[name].identity.as_dict()
            return self._given[name]
        # The cells say what is wrong with a model that cannot be loaded.
        with suppress(MechassayError):
            known = known_digests(name, source.dtype)
            if known is None and loading is not None:
                about = {"prepend_bos": getattr(loading, "prepend_bos", False)}
                loaded = self.model(name, dtype=source.dtype, **about).loaded
                known = loaded and loaded.as_dict()
            return known
        return None

    def begin(self, sources: Iterable[Source]) -> dict[str, Any]:
        """Bind the identities of a cell's sources to the folder, and return the states of the
        sources' files. A model without known digests is bound when the model is loaded.

        Raises:
            OtherContent: the folder holds results of other content.
        """
        sources = list(sources)
        states = self._states(sources)
        known = {source.key: self.identify(source) for source in sources}
        self._bind({key: own for key, own in known.items() if own is not None})
        return states

    def _bind(self, digests: Mapping[str, Digests]) -> None:
        self.folder.identities.bind(digests)
        self._bound |= digests

    def end(self, sources: Mapping[str, Source], states: Mapping[str, Any]) -> dict[str, Any]:
        """Return the identities of a cell's sources, by role, for its record.

        Raises:
            BadFile: the content of a source changed while the cell was measured.
            OtherContent: the folder binds other content since then.
        """
        last = self._last
        files = last[1].files if last and isinstance(last[1], Model) and MODEL in sources else None
        changed = ""
        if last and files is not None and files.changed():
            # A model in memory follows its file: the weights are read again.
            (name, dtype, prepend), self._last = last[0], None
            try:
                self.model(name, dtype=dtype, prepend_bos=prepend)
            except OtherContent:
                changed = name
        if states != self._states(sources.values()):
            own = (x.name for x in sources.values() if self._differs(x))
            changed = changed or next(own, "")
        if changed:
            raise BadFile(f"{changed} changed while the cell was measured. Give the command again.")
        used = {role: x for role, x in sources.items() if x.key in self._bound}
        self._bind({source.key: self._bound[source.key] for source in used.values()})
        return {
            role: {SOURCE: source.digest_of_key, **self._bound[source.key]}
            for role, source in used.items()
        }

    def _differs(self, source: Source) -> bool:
        """Return whether the content of a source, read anew, differs from the bound content."""
        name = source.name
        if source.what == MODEL:
            given = self._models.get(name)
            return given is not None and given.identity.as_dict() != self._bound[source.key]
        if source.what == TASK and not source.digest:
            task = self._tasks[name] if name in self._objects else load_task(name)
            return digests_of_task(task) != self._bound[source.key]
        return self.identify(source) != self._bound[source.key]

    def _states(self, sources: Iterable[Source]) -> dict[str, Any]:
        sources = list(sources)
        given = [self._models[x.name].files for x in sources if x.name in self._models]
        of_models = [file for files in given if files for file in map(Path, files.states)]
        return file_states(sources) | states_of(of_models)

    def record(self, experiment: Any, cell: Cell, inputs: Inputs) -> Record:
        """Measure a cell, and add model, task, pairs and provenance to its record."""
        data, specs = inputs.data(), inputs.specs()
        result = experiment.measure(cell, inputs)
        chosen_pairs = next(iter(data.values()), None)
        data_hash = "" if chosen_pairs is None else chosen_pairs.hash
        made = made_by(inputs.model, getattr(experiment, "seed", 0), data_hash)
        about: dict[str, Any] = {"cell": dict(cell.labels), "data": data}
        if experiment.keeps and isinstance(result, Result):
            root = self.folder.path
            file = result.save(kept_file(root, experiment, cell.name))
            values = result.contents().get("values") or Values(unit="")
            kept = {"file": str(file.relative_to(root)), "sha256": file_hash(file)}
            about["values"] = values.model_copy(update=kept)
        if isinstance(result, Result):
            return result.record(specs, made, **about)
        about |= {**result, "specs": {**specs, **result.get("specs", {})}}
        return Record(kind=experiment.kind, provenance=made, **about)

    def model(self, name: str, *, dtype: str = "float32", prepend_bos: bool = False) -> Model:
        """Return a model by name. The last one is kept, and so is the error if there is none.

        Raises:
            MechassayError: it cannot be loaded; see `load_model`.
            BadUsage: the folder holds results of other weights.
        """
        if name in self._models:
            return self._models[name]
        key = (name, dtype, prepend_bos)
        if self._last is None or self._last[0] != key:
            self._last = None  # The old model goes before the new one comes.
            load = partial(load_model, name, dtype=dtype, prepend_bos=prepend_bos)
            try:
                model = load(device=self.device, device_map=self.device_map or None)
                if model.is_own:  # Messages and results name it as records do.
                    model = replace(model, name=stored_name(name))
                if len(self.devices) > 1:
                    model = replace(model, replicas=Replicas(self.devices, load))
                self._last = key, model
            except MechassayError as error:
                self._last = key, error
        model = self._last[1]
        if isinstance(model, MechassayError):
            raise model
        if self.binds and self.folder.identities.exist:
            assert model.loaded is not None, "a model that was loaded by name"
            self._bind({Source(MODEL, name).key: model.loaded.as_dict()})
        return model

    def close(self) -> None:
        """End the processes of the last model's replicas; it can be used again.

        A process waits for its child processes before it ends, so it has to end them.
        """
        model = None if self._last is None else self._last[1]
        if isinstance(model, Model) and model.replicas is not None:
            model.replicas.close()

    def task(self, name: str) -> Task:
        """Return a task by name, loaded once; see `load_task` for errors."""
        if name not in self._tasks:
            self._tasks[name] = load_task(name)
        return self._tasks[name]

    def drawn(self, what: What, of: tuple[str, str], model: Model, split: str, **about: Any) -> Any:
        """Return pairs or examples of a task. They are drawn once, for the estimate of costs and
        for the inputs. A limit beyond all examples of a split returns all.

        Args:
            of: the names of the model and the task.
            about: see `Task.pairs`, also for errors.
        """
        task, key = self._asked(what, of, split, about)
        return self._drawn.pop(key, None) or draw(task, what, split, model, **about)

    def sample(
        self, what: What, of: tuple[str, str], model: Model, split: str, n: int, **about: Any
    ) -> Sequence[Any]:
        """Return the first of n pairs or examples of a task, which tell how long prompts are. If n
        is small, all are drawn, and the next call of `pairs` or `examples` returns them.

        Args:
            of: the names of the model and the task.
            model: its outline is enough.
            about: see `Task.pairs`, also for errors.
        """
        whole = n <= MOST_DRAWN and model.tokenizer is not None
        whole = whole and about.pop("keep", "all") == "all"
        about["limit"] = n if whole else min(n, SAMPLE)
        task, key = self._asked(what, of, split, about)
        if key in self._drawn:
            return self._drawn[key][:SAMPLE]
        drawn = draw(task, what, split, model if whole else model.tokenizer, **about)
        self._drawn |= {key: drawn} if whole else {}
        return drawn[:SAMPLE]

    def _asked(
        self, what: What, of: tuple[str, str], split: str, about: dict[str, Any]
    ) -> tuple[Task, tuple[Any, ...]]:
        """Return a task and a key of the choice; a limit beyond all examples becomes None."""
        task = self.task(of[1])
        if what == "examples" and (about["limit"] or 0) >= task.sizes.get(split, 0) > 0:
            about["limit"] = None
        usual = {"counterfactual": None, "keep": "all"} if what == "pairs" else {}
        usual |= {"private_seed": None, "seed": 0}
        return task, (what, *of, split, *sorted({**usual, **about}.items()))

    def kept(
        self,
        name: str,
        make: Callable[[], T],
        load: Callable[[Path], T],
        save: Callable[[T, Path], object],
    ) -> T:
        """Return a value that stays in the folder: read from its file, or made and written."""
        path = self.folder.path / name
        if not path.is_file():
            made = make()
            path.parent.mkdir(parents=True, exist_ok=True)
            save(made, path)
        return load(path)


def kept_file(folder: Path, experiment: Any, cell: str) -> Path:
    """Return the file of a cell's result, beside its record."""
    return folder / experiment.keeps / f"{cell}.safetensors"


def made_by(model: Model, seed: int, data_hash: str) -> Provenance:
    """Return the provenance of a record of a model."""
    device, dtype = str(model.device), str(model.dtype).removeprefix("torch.")
    about = {"device": device, "dtype": dtype, "tf32": chosen().tf32}
    return provenance(**about, seed=seed, data_hash=data_hash)


def draw(task: Task, what: What, split: str, model: Any, **about: Any) -> Any:
    """Draw the pairs or examples of a task. A file of pairs that has fewer than the limit gives all
    pairs, with a note.
    """
    from mechassay.tasks.load import FileTask

    more = {"fewer": True} if isinstance(task, FileTask) else {}
    return getattr(task, what)(split, model, **about, **more)
