"""The identities of the models, tasks and files that a run measures.

A cell has sources (`Experiment.sources`): a model, a task, and each file that the cell reads. The
identity of a source is a set of digests of the source's content, independent of its name. A run
folder binds the identity of a source when a cell first reads the source:

    identities.json   {"model mine": {"since": "2026-11-28T09:30:00+00:00", "weights": ...}}

A folder binds one identity of each source. A cell counts as done only if every source still has the
bound identity, and if the record of the cell has the same identities. The digests of a model come
from the cache of digests, and no weights are read. If the cache lacks the digests, the model is
loaded. This module imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from mechassay.errors import BadFile, OtherContent, first_line
from mechassay.models.sources import digest_cache
from mechassay.utils.digests import compare_weights, content_digest, data_files, states_of
from mechassay.utils.files import write_text

FILE, LOCK = "identities.json", ".identities.lock"
SINCE, SOURCE = "since", "source"
MODEL_DIGESTS = ("weights", "rounded", "dtype", "config", "tokenizer")
MODEL, TASK = "model", "task"
CHANGES = {
    "weights": "other weights",
    "config": "another configuration",
    "tokenizer": "another tokenizer",
}
"""What a differing digest of a model means, most important first."""
Digests = Mapping[str, str]


@dataclass(frozen=True)
class Source:
    """Something that a cell reads.

    Attributes:
        what: a noun: "model", "task", "file" and so on.
        name: as it was typed.
        dtype: of the weights of a model in memory.
        digest: of the content, if the experiment knows it; else it is that of the model, the task
            or the file of this name.
    """

    what: str
    name: str
    dtype: str = ""
    digest: str = ""

    @property
    def key(self) -> str:
        """The key of its identity in a run's folder."""
        return f"{self.what} {self.name}"

    @property
    def digest_of_key(self) -> str:
        """The digest by which a record names the source, without a path of this machine."""
        return key_digest(self.key)


def key_digest(key: str) -> str:
    """Return the digest of the key of a source. Files count by their own names, because folders
    with files may be renamed.
    """
    what, _, name = key.partition(" ")
    text = key if what in (MODEL, TASK) else f"{what} {Path(name).name}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Identities:
    """The identities that a run's folder binds.

    Attributes:
        folder: of the run.
    """

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / FILE

    @property
    def exist(self) -> bool:
        """Whether the folder binds identities; folders of versions before 0.1.0 do not."""
        return self.file.is_file()

    def stored(self) -> dict[str, dict[str, str]]:
        """Return the digests of each source, and since when they are bound.

        Raises:
            BadFile: the file is damaged.
        """
        try:
            entries = json.loads(self.file.read_text("utf-8"))
            stored = {
                str(key): {str(name): str(value) for name, value in entry.items()}
                for key, entry in entries.items()
            }
            for key, entry in stored.items():
                datetime.fromisoformat(entry[SINCE])
                for name in MODEL_DIGESTS if key.startswith(f"{MODEL} ") else ("content",):
                    entry[name]
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, KeyError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else first_line(error)
            raise BadFile(f"{self.file}: not readable identities ({reason}).") from None
        return stored

    def write(self, entries: Mapping[str, Mapping[str, str]]) -> None:
        """Bind these identities, and no others."""
        write_text(self.file, json.dumps(entries, indent=1, sort_keys=True))

    def reset(self) -> None:
        """Bind nothing."""
        with FileLock(self.folder / LOCK):
            self.write({})

    def bind(self, digests: Mapping[str, Digests]) -> None:
        """Bind the identities of sources that the folder does not bind yet. Several processes may
        do so at once.

        Raises:
            OtherContent: the folder binds another identity of a source.
        """
        stored = self.stored()
        if digests.keys() - stored.keys() or not self.exist:
            with FileLock(self.folder / LOCK):
                stored = self.stored()
                now = {SINCE: datetime.now(UTC).isoformat(timespec="seconds")}
                new = {key: {**now, **own} for key, own in digests.items() if key not in stored}
                if new or not self.exist:
                    stored |= new
                    self.write(stored)
        changes = changes_of(stored, digests)
        if changes:
            raise OtherContent(
                changes,
                f"{'; '.join(changes)}: {self.folder} holds results of the earlier content. Give"
                " the command again.",
            )


def changes_of(
    stored: Mapping[str, Mapping[str, str]], current: Mapping[str, Digests]
) -> list[str]:
    """Return a phrase for each source whose identity changed: "mine has other weights than on 28
    Nov". Sources that are not bound, or whose digests are not known, did not change.
    """
    phrases: list[str] = []
    for key, now in current.items():
        before = stored.get(key)
        if before is None or is_same(before, now):
            continue
        what, _, name = key.partition(" ")
        parts = [text for part, text in CHANGES.items() if before.get(part) != now.get(part)]
        if what != MODEL:
            parts = [
                {"secret": "another value", "settings": "other settings"}.get(what, "other content")
            ]
        elif compare_weights(before, now) == "same but for rounding":
            parts[0] += " (the same but for rounding)"
        phrases.append(f"{name} has {' and '.join(parts)} than on {day(before[SINCE])}")
    return phrases


COMPARED = ("weights", "config", "tokenizer", "content")
"""The digests that two identities are compared by; `rounded` follows from the weights."""


def is_same(one: Digests, other: Digests) -> bool:
    """Return whether two identities are equal."""
    return all(one.get(part, "") == other.get(part, "") for part in COMPARED)


def day(when: str) -> str:
    """Return a date as "28 Nov"; of another year as "28 Nov 2025"."""
    at = datetime.fromisoformat(when).astimezone()
    year = "" if at.year == datetime.now(UTC).astimezone().year else f" {at.year}"
    return f"{at.day} {at:%b}{year}"


@cache
def digest_of_seed(seed: int) -> str:
    """Return the digest of a private seed: slow to compute, so that seeds cannot be tried out."""
    return hashlib.scrypt(str(seed).encode(), salt=b"private seed", n=2**14, r=8, p=1).hex()[:16]


def digests_of_path(name: str) -> dict[str, str]:
    """Return the digest of a file or a folder, from the cache if no file changed.

    Raises:
        BadFile: a file cannot be read.
    """
    path = Path(name)
    states = states_of(data_files(path))
    return digest_cache().of(path, states, lambda: {"content": content_digest(path)}, about="path")


def digests_of_task(task: Any) -> dict[str, str]:
    """Return the digest of a task: of its rows if it is a file, else of its name, version and
    settings.
    """
    from mechassay.tasks.load import FileTask
    from mechassay.tasks.task import settings_of

    if isinstance(task, FileTask):
        path = Path(task.path)
        # The bytes that the task was loaded from decide, if the file changed since.
        about = f"rows {task.split_column} {task.sha256}"
        return digest_cache().of(
            path, states_of([path]), lambda: {"content": task.rows_digest()}, about=about
        )
    text = json.dumps([task.name, task.version, settings_of(task)], sort_keys=True, default=str)
    return {"content": hashlib.sha256(text.encode()).hexdigest()[:16]}


def file_states(sources: Iterable[Source]) -> dict[str, Any]:
    """Return the states of the files that sources other than models name."""
    paths = (Path(source.name) for source in sources if source.what != MODEL)
    return states_of(file for path in paths if path.exists() for file in data_files(path))
