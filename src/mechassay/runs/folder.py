"""The folder of a run: its plan, and one file per finished cell.

`plan.json` says what is run. A second run with the same plan takes up what is there. Lists of what
to do may grow: then `plan.json` has all that was ever asked for. Any other plan in the same folder
is refused, with the first setting that differs. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mechassay.errors import BadFile, BadUsage
from mechassay.records import Failure, Record


def write_text(path: Path, text: str) -> None:
    """Write a file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run."""

    path: Path

    @staticmethod
    def open(path: Path, plan: Mapping[str, Any], *, growing: Sequence[str] = ()) -> RunFolder:
        """A new folder for a plan, or the one that holds it already.

        Args:
            growing: settings that list what to do, to which another run may add, and of which it may ask for less.

        Raises:
            BadUsage: the folder holds another plan, or files that are no run.
        """
        folder = RunFolder(path)
        wanted: dict[str, Any] = json.loads(json.dumps(plan))
        if folder.plan_file.is_file():
            stored = folder.plan()
            for name in growing:
                if isinstance(stored.get(name), list):
                    wanted[name] = list(dict.fromkeys([*stored[name], *wanted[name]]))
            for name in sorted((set(stored) | set(wanted)) - set(growing)):
                if stored.get(name) != wanted.get(name):
                    raise BadUsage(
                        f"{path} holds a run with {name} = {stored.get(name)!r}; this one has {wanted.get(name)!r}. "
                        "Name another --output, or remove the folder."
                    )
            if wanted == stored:
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

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    def plan(self) -> dict[str, Any]:
        """What is run here.

        Raises:
            BadFile: plan.json is not readable.
        """
        try:
            return dict(json.loads(self.plan_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise BadFile(f"{self.plan_file}: not a readable plan ({str(error).splitlines()[0]}).") from None

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
        if not file.is_file():
            return None
        try:
            return Record.model_validate_json(file.read_text(encoding="utf-8"))
        except ValidationError as error:
            first = error.errors()[0]
            raise BadFile(f"{file}: not a record ({'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}).") from None

    @property
    def data_file(self) -> Path:
        return self.path / "data.json"

    def data(self) -> dict[str, Any]:
        """What was chosen so far, by role: the train pairs and the test pairs."""
        return json.loads(self.data_file.read_text(encoding="utf-8")) if self.data_file.is_file() else {}

    def save_data(self, role: str, selection: Mapping[str, Any]) -> None:
        """Keep what was chosen for a role, "train" or "test".

        Raises:
            BadUsage: the folder holds results on other pairs, as when a file of pairs has changed.
        """
        stored = self.data()
        if role in stored and stored[role]["hash"] != selection["hash"]:
            raise BadUsage(f"{self.path} holds a run on other {role} pairs than these. Name another --output, or remove the folder.")
        write_text(self.data_file, json.dumps({**stored, role: selection}, indent=1, ensure_ascii=False))

    def save_failures(self, failures: list[Failure]) -> None:
        """Keep which cells failed or were skipped; an empty list removes the file."""
        file = self.path / "failures.json"
        if failures:
            write_text(file, json.dumps([failure.model_dump() for failure in failures], indent=1))
        else:
            file.unlink(missing_ok=True)

    def failures(self) -> list[Failure]:
        """Cells that failed or were skipped last time."""
        file = self.path / "failures.json"
        return [Failure.model_validate(row) for row in json.loads(file.read_text(encoding="utf-8"))] if file.is_file() else []
