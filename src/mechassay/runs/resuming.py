"""The folder in which an experiment resumes.

A folder that the user names is resumed if it binds the same identities (`runs.identities`), and
refused otherwise. Without a named folder an experiment has a default folder NAME, and NAME-2,
NAME-3 and so on for other content: other weights of a model, an edited file. The newest folder that
binds the same identities is resumed. If there is none, a new folder takes over the cells whose
sources did not change: their records, scores and stored data are copied. Nothing is overwritten.

The new folder is made under another name and renamed, so that commands that run at once agree.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from mechassay.errors import BadFile, BadUsage, OtherContent
from mechassay.runs.cells import Cell
from mechassay.runs.experiment import command_line, default_folder, free_fields, plan_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.identities import SINCE, Digests, Source, changes_of, day
from mechassay.runs.worker import Worker
from mechassay.utils.display import counted

NOT_COPIED = ("failures", "records")
"""Folders that are not copied as they are: records are checked one by one."""


@dataclass(frozen=True)
class Current:
    """The sources of an experiment's cells, and their identities now.

    Attributes:
        sources: of each cell, by its name.
        digests: of each source whose digests are known, by its key.
    """

    sources: Mapping[str, Sequence[Source]]
    digests: Mapping[str, Digests]

    @staticmethod
    def of(
        experiment: Any, worker: Worker, bound: Collection[str], *, load: bool = True
    ) -> Current:
        """Look up the identities. A bound model is loaded if its digests are not cached.

        Args:
            bound: keys of sources that a folder binds.
            load: whether models may be loaded.
        """
        sources = {cell.name: list(experiment.sources(cell).values()) for cell in worker.cells}
        every = {source.key: source for own in sources.values() for source in own}
        digests: dict[str, Digests] = {}
        with worker.progress.track("identities", len(every)) as advance:
            for key, source in every.items():
                loading = experiment if load and key in bound else None
                known = worker.identify(source, loading)
                digests |= {} if known is None else {key: known}
                advance(1)
        return Current(sources, digests)

    def n_bound(self, stored: Mapping[str, Mapping[str, str]]) -> int:
        """Return the number of cells all of whose sources a folder binds."""
        return sum(all(x.key in stored for x in own) for own in self.sources.values())

    def unknown(self, stored: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Return a condition for each bound source without known digests: "if mine has the weights
        of 28 Nov".
        """
        keys = dict.fromkeys(x.key for own in self.sources.values() for x in own)
        return [
            f"if {key.partition(' ')[2]} has the weights of {day(stored[key][SINCE])}"
            for key in keys
            if key in stored and key not in self.digests
        ]


def open_folder(experiment: Any, worker: Worker, named: Path | None, *, load: bool = True) -> None:
    """Choose the folder of an experiment, check the results in the folder, and give the folder to
    the worker.

    Args:
        named: the folder that the user names; None for a default folder.
        load: whether models whose digests are not cached may be loaded.

    Raises:
        OtherContent: the named folder holds results of other content.
        BadUsage: the named folder holds another run, or results without identities.
    """
    worker.binds = False
    plan, free = plan_of(experiment, worker), free_fields(experiment)
    if named is None:
        current = _choose_default(experiment, worker, plan, free, load)
    else:
        worker.folder = RunFolder(named)
        current = _check_named(experiment, worker, plan, free, load)
    folder = RunFolder.open(worker.folder.path, plan, growing=experiment.grows, free=free)
    if not folder.identities.exist:
        folder.identities.bind({})
    elif folder.holds_nothing() and changes_of(folder.identities.stored(), current.digests):
        folder.forget()
        folder.identities.reset()
    folder.identities.bind(current.digests)
    unknown = current.unknown(folder.identities.stored())
    if unknown and not folder.holds_nothing():
        worker.notes.append(f"{folder.path} is resumed {' and '.join(unknown)}.")
    worker.binds = True


def _check_named(
    experiment: Any, worker: Worker, plan: Mapping[str, Any], free: Sequence[str], load: bool
) -> Current:
    """Refuse a named folder whose results have no identities, or other identities."""
    folder = worker.folder
    is_new = not folder.has_plan or folder.holds_nothing()
    if is_new or folder.refusal(plan, {*experiment.grows, *free}):
        # The plan is refused when the folder is opened.
        return Current.of(experiment, worker, folder.identities.stored(), load=load)
    if not folder.identities.exist:
        raise BadUsage(
            f"{folder.path} holds results of an earlier version, without the identities of models"
            f" and files. `mechassay report {folder.path}` shows them; name another --output."
        )
    stored = folder.identities.stored()
    current = Current.of(experiment, worker, stored, load=load)
    if changes := changes_of(stored, current.digests):
        others = (numbered(folder.path, number) for number in count(2))
        other = next(path for path in others if not path.exists())
        command = command_line(experiment, other) or f"--output {other}"
        raise OtherContent(
            changes, f"{folder.path}: {'; '.join(changes)}. For a new folder: {command}"
        )
    return current


def _choose_default(
    experiment: Any, worker: Worker, plan: Mapping[str, Any], free: Sequence[str], load: bool
) -> Current:
    """Give the worker the newest default folder that binds the same identities, or a new folder."""
    base = default_folder(experiment)
    while True:
        every = _existing(base)
        folders = [x for x in every if _is_of(x, plan, free, experiment.grows)]
        stored = {folder: folder.identities.stored() for folder in folders}
        bound = {key for own in stored.values() for key in own}
        current = Current.of(experiment, worker, bound, load=load)
        changes = {x: changes_of(own, current.digests) for x, own in stored.items()}
        if same := [folder for folder in folders if not changes[folder]]:
            # Of several folders the newest that binds the content of most cells.
            worker.folder = max(reversed(same), key=lambda x: current.n_bound(stored[x]))
            return current
        results = [folder for folder in folders if not folder.holds_nothing()]
        last = int(every[-1].path.name.removeprefix(base.name)[1:] or 1) if every else 0
        new = RunFolder(numbered(base, last + 1))
        worker.folder = new if results or not folders else folders[-1]
        if not results:
            if other := _refusal(every, plan, free, experiment.grows):
                worker.notes.append(f"{other}: the results are in {worker.folder.path} now.")
            return current
        takeovers = [Takeover(x, current) for x in reversed(results)]
        takeovers.sort(key=lambda own: -len(own.same(worker.cells)))
        taken = take_over(new.path, takeovers, worker.cells)
        if taken is None:
            continue  # Another command made a folder of this name meanwhile.
        n, old = sum(taken.values()), takeovers[0].old
        left = f"{counted(len(worker.cells) - n, 'cell')} to compute in {new.path}"
        places = ", ".join(str(path) for path, own in taken.items() if own)
        note = f"{counted(n, 'cell')} taken over from {places}, {left}"
        if not n:
            note = f"{left}; {old.path} keeps the earlier results"
        worker.notes.append(f"{'; '.join(changes[old])}: {note}.")
        return current


def _existing(base: Path) -> list[RunFolder]:
    """Return those of NAME, NAME-2, NAME-3 and so on that exist, in the order of the numbers."""
    pattern = re.compile(rf"{re.escape(base.name)}(?:-(\d+))?")
    matches = [(pattern.fullmatch(path.name), path) for path in base.parent.glob(f"{base.name}*")]
    return [
        RunFolder(path)
        for _, path in sorted((int(match[1] or 1), path) for match, path in matches if match)
    ]


def numbered(base: Path, number: int) -> Path:
    """Return NAME, NAME-2, NAME-3 and so on."""
    return base if number == 1 else base.with_name(f"{base.name}-{number}")


def _is_of(
    folder: RunFolder, plan: Mapping[str, Any], free: Sequence[str], grows: Sequence[str]
) -> bool:
    """Return whether a default folder is of a plan: with the same lists, and with identities."""
    if not folder.has_plan or not _has_lists(folder, plan, grows):
        return False
    bound = folder.identities.exist or folder.holds_nothing()
    return bound and not folder.refusal(plan, {*grows, *free})


def _has_lists(folder: RunFolder, plan: Mapping[str, Any], grows: Sequence[str]) -> bool:
    stored = folder.plan()
    return all(set(stored.get(name) or ()) == set(plan.get(name) or ()) for name in grows)


def _refusal(
    folders: Sequence[RunFolder], plan: Mapping[str, Any], free: Sequence[str], grows: Sequence[str]
) -> str:
    """Return why the newest default folder with the same lists is not resumed: other versions of
    methods, or results without identities; "" if there is no such folder.
    """
    for folder in reversed(folders):
        if folder.has_plan and _has_lists(folder, plan, grows) and not folder.holds_nothing():
            reason = folder.refusal(plan, {*grows, *free})
            return f"{folder.path} holds {reason or 'results without identities'}"
    return ""


@dataclass(frozen=True)
class Takeover:
    """The cells of a folder with earlier content whose sources did not change, for a new folder."""

    old: RunFolder
    current: Current

    @cached_property
    def changed(self) -> set[str]:
        """The keys of the sources that changed since the old folder bound them."""
        stored = self.old.identities.stored()
        return {key for key, own in self.current.digests.items() if changes_of(stored, {key: own})}

    def same(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells whose sources did not change."""
        return [
            cell
            for cell in cells
            if not self.changed & {source.key for source in self.current.sources[cell.name]}
        ]

    def copy(self, cells: Sequence[Cell], target: RunFolder) -> list[Cell]:
        """Copy the records and the stored data of unchanged cells that the target lacks, and return
        the cells with records.
        """
        same = self.same(cells)
        copied = [cell for cell in same if self._copy_record(cell, target)]
        for file in self._stored_data(same, [cell for cell in cells if cell not in same]):
            place = target.path / file.relative_to(self.old.path)
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, place)
        stored = self.old.identities.stored()
        bound = {key: own for key, own in stored.items() if key not in self.changed}
        target.identities.write({**bound, **target.identities.stored()})
        return copied

    def _copy_record(self, cell: Cell, target: RunFolder) -> bool:
        with suppress(BadFile):  # A damaged record is not taken over.
            if self.old.record_of(cell, recompute=False) is not None:
                file = target.record_file(cell.name)
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.old.record_file(cell.name), file)
                return True
        return False

    def _stored_data(self, same: Sequence[Cell], other: Sequence[Cell]) -> Iterator[Path]:
        """Yield the files of unchanged cells and of their inputs. The path of such a file, below
        the run's folder or below a folder within it, begins with the name of the cell or inputs.
        """
        names = {cell.name for cell in same}
        groups = {cell.inputs for cell in same if cell.inputs}
        lost = {cell.name.removesuffix(".scores") for cell in other}
        lost |= {cell.inputs for cell in other} - groups
        for file in sorted(self.old.path.rglob("*")):
            parts = file.relative_to(self.old.path).parts
            if not file.is_file() or parts[0] in NOT_COPIED:
                continue
            for path in ("/".join(parts[1:]), "/".join(parts)):
                if _begins(path, lost):
                    break
                if _begins(path, names) or _begins(path, groups):
                    yield file
                    break


def take_over(
    new: Path, takeovers: Sequence[Takeover], cells: Sequence[Cell]
) -> dict[Path, int] | None:
    """Make a new folder of the unchanged cells of several folders. Return the number of cells with
    records that each folder gave; None if another command made the new folder meanwhile.
    """
    partial = RunFolder(new.with_name(f".{new.name}.{secrets.token_hex(4)}"))
    taken: dict[Path, int] = {}
    left = list(cells)
    try:
        partial.path.mkdir(parents=True)
        shutil.copyfile(takeovers[0].old.plan_file, partial.plan_file)
        for takeover in takeovers:
            copied = takeover.copy(left, partial)
            taken[takeover.old.path] = len(copied)
            left = [cell for cell in left if cell not in copied]
        os.rename(partial.path, new)
    except OSError:
        if not new.exists():
            raise
        return None
    finally:
        shutil.rmtree(partial.path, ignore_errors=True)
    return taken


def _begins(path: str, names: Collection[str]) -> bool:
    """Return whether a path begins with a whole name: with the name of a folder or of a file."""
    return any(path.startswith((f"{name}/", f"{name}.")) for name in names)
