"""The folder of a run: its plan, and one file per finished cell.

`plan.json` says what is run. A second run with the same plan takes up what is there. Lists of what
to do may grow: then `plan.json` has all that was ever asked for. Any other plan in the same folder
is refused, with the first setting that differs, unless nothing was found here yet: a mistake in
what was typed claims no folder. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mechassay.errors import BadFile, BadUsage
from mechassay.files import write_text
from mechassay.records import Failure, Record, Selection, first_mistake, read_record

CHOSEN = ("plan.json", "data.json", "prompts.json")
"""What a run writes before it has found anything: what is run, and on what."""

_Kind = TypeVar("_Kind", dict[str, Any], list[Any])


def check_can_write(path: Path) -> None:
    """Refuse a file that `write_text` could not write, before there is anything to write.
    Makes the folders above it.

    Raises:
        BadUsage: it is a folder or a device, or may not be written.
    """
    if path.exists() and not path.is_file():
        raise BadUsage(f"{path} is no file. Name a file to write.")
    # Permissions do not tell: some file systems refuse everybody.
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise BadUsage(f"{path} cannot be written: {error.strerror or error}.") from None


def read_json(path: Path, what: str, kind: type[_Kind]) -> _Kind:
    """What a JSON file of a run holds.

    Raises:
        BadFile: not readable, truncated, or of another kind.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: not a readable {what} ({str(error).splitlines()[0]}).") from None
    if not isinstance(found, kind):
        raise BadFile(
            f"{path}: not a readable {what} (no JSON {'object' if kind is dict else 'list'})."
        )
    return found


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run."""

    path: Path

    @staticmethod
    def open(path: Path, plan: Mapping[str, Any], *, growing: Sequence[str] = ()) -> RunFolder:
        """A new folder for a plan, or the one that holds it already.

        Args:
            growing: settings that list what to do, to which another run may add, and of which it
                may ask for less.

        Raises:
            BadUsage: the folder holds results of another plan, or files that are no run.
        """
        folder = RunFolder(path)
        wanted: dict[str, Any] = json.loads(json.dumps(plan))
        if folder.plan_file.is_file():
            stored = folder.plan()
            for name in growing:
                if isinstance(stored.get(name), list):
                    wanted[name] = list(dict.fromkeys([*stored[name], *wanted[name]]))
            differing = [
                name
                for name in sorted((set(stored) | set(wanted)) - set(growing))
                if not _same(stored, wanted, name)
            ]
            if differing and folder._holds_nothing():
                wanted = json.loads(json.dumps(plan))
                folder.data_file.unlink(missing_ok=True)
            elif differing:
                name = differing[0]
                raise BadUsage(
                    f"{path} holds a run with {name} = {stored.get(name)!r}; this one has"
                    f" {wanted.get(name)!r}. Name another --output, or remove the folder."
                )
            elif wanted == stored:
                return folder
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise BadUsage(f"{path} exists and is not the folder of a run. Name another --output.")
        write_text(folder.plan_file, json.dumps(wanted, indent=1, sort_keys=True))
        return folder

    @staticmethod
    def existing(path: Path) -> RunFolder:
        """The folder of a run that was made before.

        Raises:
            BadFile: there is none.
        """
        folder = RunFolder(path)
        if not folder.plan_file.is_file():
            raise BadFile(f"{path}: not the folder of a run (no plan.json).")
        return folder

    def _holds_nothing(self) -> bool:
        """Whether nothing was found here: a plan, or plans of parts,
        and what they chose to run on.
        """
        return all(file.name in CHOSEN for file in self.path.rglob("*") if not file.is_dir())

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    def plan(self) -> dict[str, Any]:
        """What is run here.

        Raises:
            BadFile: plan.json is not readable.
        """
        return read_json(self.plan_file, "plan", dict)

    def scores_file(self, cell: str) -> Path:
        return self.path / "scores" / f"{cell}.safetensors"

    def checkpoint_file(self, cell: str) -> Path:
        return self.path / "scores" / f"{cell}.checkpoint"

    def record_file(self, cell: str) -> Path:
        return self.path / "records" / f"{cell}.json"

    def save_record(self, cell: str, record: Record) -> None:
        write_text(self.record_file(cell), record.model_dump_json(indent=1))

    def record(self, cell: str) -> Record | None:
        """A finished cell's record, or None.

        Raises:
            BadFile: the file is truncated or foreign.
        """
        file = self.record_file(cell)
        return read_record(file) if file.is_file() else None

    @property
    def data_file(self) -> Path:
        return self.path / "data.json"

    def data(self) -> dict[str, Any]:
        """What was chosen so far, by role: the train pairs and the test pairs.

        Raises:
            BadFile: data.json is not readable.
        """
        if not self.data_file.is_file():
            return {}
        found = read_json(self.data_file, "choice of pairs", dict)
        for role, selection in found.items():
            if not isinstance(selection, dict) or "hash" not in selection:
                raise BadFile(
                    f"{self.data_file}: not a readable choice of pairs ({role} has no hash)."
                )
        return found

    def selections(self) -> dict[str, Selection]:
        """`data` as a record has it."""
        return {role: Selection.of(chosen) for role, chosen in self.data().items()}

    def save_data(self, role: str, selection: Mapping[str, Any]) -> None:
        """Keep what was chosen for a role, "train" or "test".

        Raises:
            BadUsage: the folder holds results on other pairs, as when a file of pairs has changed.
            BadFile: data.json is not readable.
        """
        stored = self.data()
        if role in stored and stored[role]["hash"] != selection["hash"]:
            raise BadUsage(
                f"{self.path} holds a run on other {role} pairs than these. Name another --output,"
                " or remove the folder."
            )
        write_text(
            self.data_file, json.dumps({**stored, role: selection}, indent=1, ensure_ascii=False)
        )

    def save_failures(self, failures: list[Failure]) -> None:
        """Keep which cells failed or were skipped; an empty list removes the file."""
        file = self.path / "failures.json"
        if failures:
            write_text(file, json.dumps([failure.model_dump() for failure in failures], indent=1))
        else:
            file.unlink(missing_ok=True)

    def failures(self) -> list[Failure]:
        """Cells that failed or were skipped last time.

        Raises:
            BadFile: failures.json is not readable.
        """
        file = self.path / "failures.json"
        try:
            return (
                [Failure.model_validate(row) for row in read_json(file, "list of failures", list)]
                if file.is_file()
                else []
            )
        except ValidationError as error:
            said = first_mistake(error)
            raise BadFile(f"{file}: not a list of failures ({said}).") from None


def _same(stored: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> bool:
    """Whether a setting is the same as text: 1 is one edge, 1.0 all of them."""
    first, second = (json.dumps(plan.get(name), sort_keys=True) for plan in (stored, wanted))
    return first == second
