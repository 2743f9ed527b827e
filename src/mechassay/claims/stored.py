"""Records of runs as evidence: read with their hashes, refused if they were edited."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mechassay.errors import BadFile
from mechassay.files import file_hash
from mechassay.measurement.measurement import KIND as MEASURE
from mechassay.records import Record, check_unedited, read_record


@dataclass(frozen=True)
class StoredRecord:
    """A record, and the file it was read from."""

    file: str
    sha256: str
    record: Record

    @property
    def ranking(self) -> str:
        """What ranked the edges of its circuits; of measurement the circuit itself."""
        if self.record.kind == MEASURE:
            circuit = self.record.specs.get("circuit")
            return circuit.name if circuit else ""
        return self.record.cell.get("method", self.record.method.name)

    @property
    def family(self) -> str:
        """The family of its model."""
        return str(self.record.model.args.get("family", ""))

    def setting(self, name: str) -> str:
        """How it was run."""
        return str(self.record.task.args.get(name, ""))


def records_below(runs: Path) -> list[StoredRecord]:
    """All records of the runs in a folder and below it.

    Raises:
        BadFile: there is no such folder; a record cannot be read, or is not as it was written; or
            the values that it speaks of are not those of the file beside it.
    """
    if not runs.is_dir():
        raise BadFile(f"{runs}: there is no such folder of runs.")
    found: list[StoredRecord] = []
    for file in sorted(runs.rglob("*.json")):
        parts = file.relative_to(runs).parts
        if "records" not in (runs.name, *parts[:-1]):
            continue
        record = read_record(file)
        check_unedited(file)
        _check_values(file, record)
        found.append(StoredRecord(file.relative_to(runs).as_posix(), file_hash(file), record))
    return found


def _check_values(file: Path, record: Record) -> None:
    if record.values is None or not record.values.file or not record.values.sha256:
        return
    folder = next((each for each in file.parents if (each / "plan.json").is_file()), file.parent)
    beside = folder / record.values.file
    if beside.is_file() and file_hash(beside) != record.values.sha256:
        raise BadFile(f"{beside}: was edited after {file.name} was made of it.")
