"""Alignments of causal variables in a submission: ours, in folders of any name, and MIB's.

MIB's causal track has folders TASK_MODELCLASS_VARIABLE, one for each variable
(`variables.mib_folder`); ours have a header (`variables.variable_alignment`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from mechassay.errors import BadUsage, MechassayError
from mechassay.service.bundle_part import BundlePart, PartReader
from mechassay.submissions import CODE, Problems, leads_out
from mechassay.variables.mib_board import MIB_BOARD
from mechassay.variables.mib_folder import PARAMETERS, mib_problems
from mechassay.variables.variable_alignment import HEADER, read_alignment


class AlignmentParts(PartReader):
    """The alignments of a submission."""

    def headers(self, root: Path) -> list[Path]:
        """The headers of our alignments, up to two folders deep."""
        return [
            path
            for depth in ("", "*/", "*/*/")
            for path in sorted(root.glob(depth + HEADER))
            if not leads_out(path, self.folder)
        ]

    def in_root(self, root: Path) -> list[BundlePart] | None:
        """All alignments below a folder; None where it has none, and is of something else."""
        headers, entries = self.headers(root), self.entries(root)
        mib = any(is_mib(path.name) or path.name == PARAMETERS for path in entries)
        if not (headers or mib):
            return None
        found = [*self.read(headers), *(self.read_mib(root) if mib else ())]
        if not found and not self.problems.errors:
            self.problems.note(".", "holds no alignment.")
        inside = {path.parent for path in headers}
        for path in entries:
            if not mib and not _around(path, inside):
                said = CODE if path.suffix == ".py" else "belongs to no alignment and is not read."
                self.problems.note(self.name_of(path), said, warning=path.suffix != ".py")
        return found

    def read(self, headers: Iterable[Path]) -> Iterator[BundlePart]:
        """Our alignments, by their headers."""
        for header in headers:
            folder, inner = header.parent, Problems()
            read = read_alignment(folder, inner)
            self.take(folder, inner)
            if read is None:
                continue
            at = self.name_of(header)
            model = self.problems.tried(at, partial(self.track.public_name, read.model))
            if model is None:
                continue
            task = self.problems.tried(at, partial(self._task, model, read.task, read.shape))
            if task is not None:
                yield BundlePart(model, task, self.name_of(folder), "alignment", read.variable)

    def _task(self, model: str, task: str, shape: object) -> str:
        task = self.track.public_task(model, task)
        expected = self.track.shape(model)
        if shape not in (None, expected):
            raise BadUsage(f"is about a model of {shape}; {model} has {expected}.")
        return task

    def read_mib(self, root: Path) -> Iterator[BundlePart]:
        """The folders of MIB's causal track in a folder."""
        board = self.problems.tried(self.name_of(root), self.track.causal_board)
        if board is None:
            return
        if not board.models:
            self.problems.note(".", "this track names no models of MIB's causal track.")
            return
        self.take(root, mib_problems(root, board=board))
        for folder in self.entries(root):
            try:
                task, kind, variable = board.parsed(folder.name)
            except MechassayError:
                continue  # Said already.
            name = self.name_of(folder)
            ours = board.tasks[task]
            variable = ours.variables[variable]
            model = board.models[kind].name
            yield BundlePart(model, ours.name, name, "mib-alignment", variable)


def is_mib(name: str) -> bool:
    """Whether a folder's name is one of MIB's causal track, whether or not a track has it."""
    return any(f"_{kind}_" in name for kind in MIB_BOARD.models) and any(
        name.startswith(f"{task}_") for task in MIB_BOARD.tasks
    )


def _around(path: Path, folders: Iterable[Path]) -> bool:
    """Whether a path is one of some folders, or stands around or inside one."""
    return any(each == path or path in each.parents or each in path.parents for each in folders)
