"""The folder of a run: the experiment, and one file per finished cell.

    plan.json              the experiment
    identities.json        what its models, tasks and files contained, see `runs.identities`
    data/<inputs>.json     the pairs or prompts of the cells with these inputs
    records/<cell>.json    the record of a cell
    failures/<cell>.json   why a cell has no record

A cell is done if its record is there. Workers share nothing else, so any worker may be killed;
files appear whole or not at all. The same experiment resumes. Growing lists may differ:
`plan.json` has all values that were ever asked for. Any other experiment is refused, with the
first option that differs, unless the folder has no records. A newer version of a method or metric
is refused, too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mechassay.errors import BadFile, BadUsage, first_line
from mechassay.results.reading import read_record
from mechassay.results.records import Failure, Record, Selection, first_mistake
from mechassay.runs.cells import Cell
from mechassay.runs.identities import FILE, LOCK, SOURCE, Identities, is_same, key_digest
from mechassay.runs.options import DEFINITIONS
from mechassay.utils.files import write_text

CHOSEN = ("plan.json", "data.json", "prompts.json", "differences.json", FILE, LOCK)
"""The files that a run writes without a result."""
PAGES = (".csv", ".html", ".md")
"""The endings of pages and tables."""
_Kind = TypeVar("_Kind", dict[str, Any], list[Any])


def read_run_file(path: Path, what: str, kind: type[_Kind]) -> _Kind:
    """Read a JSON file of a run.

    Raises:
        BadFile: not readable, truncated, or of another kind.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: not a readable {what} ({first_line(error)}).") from None
    if not isinstance(stored, kind):
        raise BadFile(
            f"{path}: not a readable {what} (no JSON {'object' if kind is dict else 'list'})."
        )
    return stored


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run."""

    path: Path

    @staticmethod
    def open(
        path: Path,
        plan: Mapping[str, Any],
        *,
        growing: Sequence[str] = (),
        free: Sequence[str] = (),
    ) -> RunFolder:
        """Make a folder for a plan, or open the folder that has it.

        Args:
            growing: options that are lists, to which another run may add, and of which it may ask
                for fewer values.
            free: options that may have another value in each run; the last value is stored.

        Raises:
            BadUsage: the folder has records of another plan, or files that are not a run's.
        """
        folder = RunFolder(path)
        wanted: dict[str, Any] = json.loads(json.dumps(plan))
        if folder.has_plan:
            stored = folder.plan()
            for name in growing:
                if isinstance(stored.get(name), list):
                    wanted[name] = list(dict.fromkeys([*stored[name], *wanted[name]]))
            reason = folder.refusal(wanted, {*growing, *free})
            before, now = (described.get(DEFINITIONS, {}) for described in (stored, wanted))
            if before or now:
                wanted[DEFINITIONS] = {**before, **now}
            if reason and folder.holds_nothing():
                wanted = json.loads(json.dumps(plan))
                folder.forget()
                if folder.identities.exist:
                    folder.identities.reset()  # They were bound for the earlier plan.
            elif reason:
                raise BadUsage(
                    f"{path} holds {reason}. Name another --output, or remove the folder."
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
        if not path.exists():
            raise BadFile(f"{path}: there is no such folder.")
        if not folder.plan_file.is_file():
            raise BadFile(f"{path}: not the folder of a run (no plan.json).")
        return folder

    def refusal(self, plan: Mapping[str, Any], differing: Collection[str] = ()) -> str:
        """Return why the folder's plan differs from a plan; "" if the plans agree.

        Args:
            differing: options that may differ.

        Raises:
            BadFile: plan.json is not readable.
        """
        stored = self.plan()
        for name in sorted((set(stored) | set(plan)) - {*differing, DEFINITIONS}):
            if not _same(stored, plan, name):
                other = f"{name} = {stored.get(name)!r}; this one has {plan.get(name)!r}"
                return f"a run with {other}"
        before = stored.get(DEFINITIONS, {})
        if not isinstance(before, dict):
            raise BadFile(f"{self.plan_file}: {DEFINITIONS} must be a JSON object.")
        for name, version in plan.get(DEFINITIONS, {}).items():
            if before.get(name, version) != version:
                return (
                    f"results of version {before[name]} of the {name}; it has version {version} now"
                )
        return ""

    def holds_nothing(self) -> bool:
        """Return whether the folder has no results: only plans, chosen pairs, failures, and pages
        of no results.
        """
        return all(
            file.name in CHOSEN
            or file.relative_to(self.path).parts[0] in ("data", "failures", "pages")
            or (file.parent == self.path and file.suffix in PAGES)
            for file in self.path.rglob("*")
            if not file.is_dir()
        )

    def forget(self) -> None:
        """Remove the chosen pairs and the failures of a folder without results."""
        below = [file for name in ("data", "failures") for file in (self.path / name).rglob("*")]
        for file in (self.data_file(), self.path / "prompts.json", *below):
            if not file.is_dir():
                file.unlink(missing_ok=True)

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan.json."""
        return self.plan_file.is_file()

    @property
    def identities(self) -> Identities:
        """What the models, tasks and files of the folder contained."""
        return Identities(self.path)

    @property
    def kind(self) -> str:
        """The kind of run; "" before there is a plan."""
        return self._kind if self.has_plan else ""

    @cached_property
    def _kind(self) -> str:
        return str(self.plan().get("kind", ""))

    def plan(self) -> dict[str, Any]:
        """Read plan.json.

        Raises:
            BadFile: plan.json is not readable.
        """
        return read_run_file(self.plan_file, "plan", dict)

    def scores_file(self, cell: str) -> Path:
        return self.path / "scores" / f"{cell}.safetensors"

    def record_file(self, cell: str) -> Path:
        return self.path / "records" / f"{cell}.json"

    def save_record(self, cell: str, record: Record) -> None:
        write_text(self.record_file(cell), record.stored_text())

    def record(self, cell: str, *, recompute: bool = True) -> Record | None:
        """Read the record of a cell by the cell's name; None if there is none.

        Args:
            recompute: see `read_record`.

        Raises:
            BadFile: the file is truncated or foreign, or was edited after it was written.
        """
        file = self.record_file(cell)
        return read_record(file, recompute=recompute) if file.is_file() else None

    def record_of(self, cell: Cell, *, recompute: bool = True) -> Record | None:
        """Read the record of a cell; None if there is none.

        Raises:
            BadFile: see `record`; or the record belongs to another cell or kind of run, or to other
                content than the folder's other results.
        """
        record = self.record(cell.name, recompute=recompute)
        if record is None:
            return None
        wrong = ""
        has_names = cell.stored.items() <= record.cell.items()
        if record.cell_digest != cell.digest and not has_names:
            own, other = (", ".join(at.values()) for at in (cell.stored, record.cell))
            wrong = f"is the record of another cell ({other}, not {own})"
        elif self.kind not in ("", record.kind):
            wrong = f"is a record of the kind {record.kind} in a run of the kind {self.kind}"
        elif self.identities.exist:
            wrong = self._other_identity(cell, record)
        if wrong:
            file = self.record_file(cell.name)
            raise BadFile(f"{file}: {wrong}; remove it, and run its cell again.")
        return record

    def _other_identity(self, cell: Cell, record: Record) -> str:
        """Return how a record's identities differ from the cell and the folder; "" if the record
        belongs to both.
        """
        if not record.cell_digest:
            return "is a record without identities: it is not known what it measured"
        if record.cell_digest != cell.digest:
            return "is the record of another cell of this name"
        bound = [(key_digest(key), own) for key, own in self.identities.stored().items()]
        for role, own in record.identities.items():
            source = own.get(SOURCE)
            if not any(source == digest and is_same(own, one) for digest, one in bound):
                other = "other settings" if role == "settings" else f"another {role}"
                return f"is a record of {other} than the folder's other results"
        return ""

    def cells_left(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells without a record.

        Raises:
            BadFile: see `record_of`.
        """
        return [cell for cell in cells if self.record_of(cell, recompute=False) is None]

    def cells_with_records(self) -> set[str]:
        """Return the names of the cells that have a record, readable or not."""
        root = self.path / "records"
        files = root.rglob("*.json")
        return {file.relative_to(root).with_suffix("").as_posix() for file in files}

    def set_aside(self, cell: str) -> Path | None:
        """Rename a record that was cut off (empty, or half a JSON text), so that its cell is
        measured again. Return the new path; None if the record is whole or missing.
        """
        file = self.record_file(cell)
        if not file.is_file():
            return None
        try:
            json.loads(file.read_bytes())
        except ValueError:
            return file.replace(file.with_suffix(f".cut-off-{secrets.token_hex(2)}"))
        return None

    def data_file(self, group: str = "") -> Path:
        return self.path / "data" / f"{group}.json" if group else self.path / "data.json"

    def data(self, group: str = "") -> dict[str, Any]:
        """Read the choices of pairs by role, such as train and test.

        Args:
            group: the name of the inputs.

        Raises:
            BadFile: the file is not readable.
        """
        file = self.data_file(group)
        if not file.is_file():
            return {}
        chosen = read_run_file(file, "choice of pairs", dict)
        for role, selection in chosen.items():
            if not isinstance(selection, dict) or "hash" not in selection:
                raise BadFile(f"{file}: not a readable choice of pairs ({role} has no hash).")
        return chosen

    def selections(self, group: str = "") -> dict[str, Selection]:
        """Return `data` as a record has it."""
        return {role: Selection.of(chosen) for role, chosen in self.data(group).items()}

    def save_data(self, role: str, selection: Mapping[str, Any], group: str = "") -> None:
        """Store the choice of pairs for a role.

        Raises:
            BadUsage: the folder has records on other pairs, as if a file of pairs changed.
            BadFile: the file is not readable.
        """
        stored = self.data(group)
        if role in stored and stored[role]["hash"] != selection["hash"]:
            raise BadUsage(
                f"{self.path} holds a run on other {role} pairs than these. Name another --output,"
                " or remove the folder."
            )
        text = json.dumps({**stored, role: selection}, indent=1, ensure_ascii=False)
        write_text(self.data_file(group), text)

    def failure_file(self, cell: str) -> Path:
        return self.path / "failures" / f"{cell}.json"

    def save_failure(self, cell: str, failure: Failure | None) -> None:
        """Store why a cell has no record; None removes the file."""
        if failure is None:
            self.failure_file(cell).unlink(missing_ok=True)
        else:
            write_text(self.failure_file(cell), failure.model_dump_json(indent=1))

    def failure(self, cell: str) -> Failure | None:
        """Read why a cell had no record last time; None if there is no failure.

        Raises:
            BadFile: the file is truncated or foreign.
        """
        file = self.failure_file(cell)
        try:
            return Failure.model_validate_json(file.read_bytes()) if file.is_file() else None
        except ValidationError as error:
            raise BadFile(f"{file}: not a failure ({first_mistake(error)}).") from None


def _same(stored: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> bool:
    """Return whether an option is the same as text: 1 is one edge, 1.0 all edges."""
    first, second = (json.dumps(plan.get(name), sort_keys=True) for plan in (stored, wanted))
    return first == second
