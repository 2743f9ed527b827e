"""Equal content under two names is measured once.

If the models and files of a cell have equal content to those of a measured cell, the cell gets a
copy of the record and of the files of the measured cell. Only paths count (two folders, two files
of pairs), because the results of a packaged model depend on its name: a ground truth has a known
circuit. Revisions and file names have to be equal, because records hold both.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from mechassay.models.sources import is_own, split_revision
from mechassay.results.records import Record
from mechassay.runs.cells import Cell
from mechassay.runs.identities import MODEL, TASK, Digests, Source, is_same
from mechassay.runs.names import is_task_file
from mechassay.runs.worker import Worker

NOT_COPIED = ("failures", "records")


def equal_record(experiment: Any, cell: Cell, worker: Worker) -> Record | None:
    """Return the record of a measured cell with equal content, and copy the files of the measured
    cell for this cell; None if no measured cell has equal content.

    Args:
        worker: loads the model of this cell if its digests are not cached.
    """
    others = [x for x in worker.cells or experiment.cells() if _may_be_equal(x, cell)]
    measured = [x for x in others if worker.folder.record_file(x.name).is_file()]
    if not measured:
        return None
    stored = worker.folder.identities.stored()
    own = experiment.sources(cell)
    digests = {role: worker.identify(source, experiment) for role, source in own.items()}
    for other in measured:
        sources = experiment.sources(other)
        if sources.keys() == own.keys() and _are_equal(sources, digests, stored):
            record = worker.folder.record_of(other, recompute=False)
            return record and _copied(record, other, cell, worker)
    return None


def _may_be_equal(other: Cell, cell: Cell) -> bool:
    """Return whether two cells differ only in the paths of models and tasks."""
    if other.name == cell.name or other.labels.keys() != cell.labels.keys():
        return False
    for axis in cell.labels:
        names = cell[axis], other[axis]
        if names[0] == names[1]:
            continue
        if axis == MODEL:
            same = split_revision(names[0])[1] == split_revision(names[1])[1]
            same = same and all(map(is_own, names))
        elif axis == TASK:
            same = PurePath(names[0]).name == PurePath(names[1]).name
            same = same and all(map(is_task_file, names))
        else:
            same = False
        if not same:
            return False
    return True


def _are_equal(
    sources: Mapping[str, Source],
    digests: Mapping[str, Digests | None],
    stored: Mapping[str, Digests],
) -> bool:
    """Return whether the sources of a measured cell have these digests."""
    for role, source in sources.items():
        own, other = digests[role], stored.get(source.key)
        if own is None or other is None or not is_same(own, other):
            return False
        if own.get("dtype") != other.get("dtype"):
            return False
    return True


def _copied(record: Record, other: Cell, cell: Cell, worker: Worker) -> Record:
    """Copy the files of a cell and of its inputs under the names of another cell, and return its
    record with the new names of files.
    """
    root = worker.folder.path
    names = {other.name: cell.name}
    if other.name.startswith(f"{other.inputs}/"):  # The inputs have files of their own.
        names[other.inputs] = cell.inputs

    def renamed(path: str) -> str:
        folder, slash, rest = path.partition("/")
        for text, head in ((path, ""), (rest, f"{folder}{slash}")):
            for before, after in names.items():
                if _is_file_of(text, before):
                    return f"{head}{after}{text[len(before) :]}"
        return path

    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        new = root / renamed(path)
        if file.is_file() and path.partition("/")[0] not in NOT_COPIED and not new.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, new)
    values = record.values
    if values is None or not values.file:
        return record
    return record.changed(values=values.model_copy(update={"file": renamed(values.file)}))


def _is_file_of(path: str, name: str) -> bool:
    """Return whether a path, within one of a run's folders, is of a cell or of inputs of this name:
    below a folder of the name, or a file of the name with an ending.
    """
    rest = path.removeprefix(name)
    return rest != path and (rest.startswith("/") or re.fullmatch(r"\.\w+", rest) is not None)
