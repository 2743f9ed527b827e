"""Digests of files and folders by their content, and a cache that asks the file system alone.

A digest is cached with the state of every file that it was made of: resolved path, device, inode,
size, and the times of modification and of change in nanoseconds. While no state differs, the digest
is looked up, and no file is read. Two writes within the resolution of a file's times can leave
equal states, so a digest is cached only if every file last changed two seconds before hashing
began. The time of change decides, because `cp -p` and `touch` set the time of modification.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mechassay.errors import MechassayError
from mechassay.utils.files import file_hash, write_text

FileState = tuple[str, int, int, int, int, int]
"""Resolved path, device, inode, size, and times of modification and of change in nanoseconds."""
Likeness = Literal["same", "same but for rounding", "different", "not known"]
FORMAT = 1
SETTLED_NS = 2_000_000_000
"""Nanoseconds after which another write of a file changes the file's times on every file system."""
CHANGED = -1 if os.name == "posix" else -2
"""The position of the time of change in a state; on Windows that time is the file's creation."""
DIGITS = 16
CHUNK = 1 << 20
"""Bytes that are read at once."""
DATA_ENDINGS = frozenset(
    ".csv .json .jsonl .npz .parquet .pt .pth .safetensors .tsv .txt .yaml .yml".split()  # noqa: SIM905
)
"""The endings of the files that count in a folder; pages are made from these files."""
WORKING_FOLDERS = frozenset(("activations", "data", "failures", "kept", "pages", "training"))
SETTINGS_FILES = ("cfg.json", "config.json", "hyperparams.json")
"""The settings that are read with a file of a dictionary in the same folder."""
DICTIONARIES, LOSSES = "saes", "training.safetensors"
WORKING_FILES = frozenset(("plan.json", "identities.json", "differences.json"))
"""The parts of a run's folder that commands read again only to resume the run."""


# Content


def content_digest(path: Path) -> str:
    """Return the digest of a file or of a folder's data files.

    Of a safetensors file the tensors count, with their names, types and shapes, and the metadata
    but the provenance.

    Raises:
        BadFile: a file cannot be read.
    """
    root = path if path.is_dir() else path.parent
    lines = [f"{_file_digest(file)}  {file.relative_to(root)}" for file in data_files(path)]
    if len(lines) == 1 and root != path:  # A single file has the same digest under another name.
        lines = [lines[0].partition("  ")[0]]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGITS]


def data_files(path: Path) -> list[Path]:
    """Return the data files of a folder, sorted; or a file, with the settings of a dictionary that
    are read with it. In a run's folder, the files that only resume the run do not count; in a run
    that trains dictionaries, only the dictionaries count.
    """
    if not path.is_dir():
        return [path, *filter(Path.is_file, (path.with_name(name) for name in SETTINGS_FILES))]
    is_run = (path / "plan.json").is_file()
    if is_run and (path / DICTIONARIES).is_dir():
        return [file for file in data_files(path / DICTIONARIES) if file.name != LOSSES]
    return [
        file
        for file in sorted(_files_below(path))
        if file.suffix in DATA_ENDINGS
        and not (
            is_run
            and (
                file.relative_to(path).parts[0] in WORKING_FOLDERS
                or (file.parent == path and file.name in WORKING_FILES)
            )
        )
    ]


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, also behind links. The files of a run within the folder do not
    count, because the run may read the folder.
    """
    above = Path(os.path.realpath(folder))
    seen = {above, *above.parents}  # A link may lead to a folder above it.
    for root, folders, names in os.walk(folder, followlinks=True):
        inside = {name: Path(os.path.realpath(Path(root, name))) for name in folders}
        folders[:] = [
            name
            for name, place in inside.items()
            if place not in seen and not (place / "plan.json").is_file()
        ]
        seen.update(inside[name] for name in folders)
        files = (Path(root, name) for name in names if not name.startswith("."))
        yield from filter(Path.is_file, files)


def _file_digest(path: Path) -> str:
    tensors = _tensors_digest(path) if path.suffix == ".safetensors" else ""
    return tensors or file_hash(path)


def _tensors_digest(path: Path) -> str:
    """Return the digest of a safetensors file's content; "" if the file cannot be read as one."""
    digest, size = hashlib.sha256(), path.stat().st_size
    try:
        with path.open("rb") as stream:
            n_header = int.from_bytes(stream.read(8), "little")
            if not 0 < n_header < size:
                return ""
            header = json.loads(stream.read(n_header))
            digest.update(_metadata_text(header.pop("__metadata__", {})).encode())
            for name, about in sorted(header.items()):
                begin, end = (8 + n_header + offset for offset in about["data_offsets"])
                if not 8 + n_header <= begin <= end <= size:
                    return ""  # A header that names bytes beyond the file.
                digest.update(f"{name} {about['dtype']} {about['shape']}\n".encode())
                stream.seek(begin)
                for at in range(begin, end, CHUNK):
                    digest.update(stream.read(min(CHUNK, end - at)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return digest.hexdigest()


def _metadata_text(metadata: Mapping[str, str]) -> str:
    """Return the metadata that count: all but the provenance of a file of this package."""
    settings: dict[str, Any] = dict(metadata)
    if "mechassay" in settings:
        settings = json.loads(settings["mechassay"])
        settings.pop("provenance", None)
    settings.pop("format", None)
    return json.dumps(settings, sort_keys=True)


def compare_weights(one: Mapping[str, str], other: Mapping[str, str]) -> Likeness:
    """Compare the weights of two identities of models, see `models.identity`.

    float16 rounds to other values than bfloat16, so that a float16 copy of a wider model is *not
    known*.
    """
    if one["weights"] == other["weights"]:
        return "same"
    if one["rounded"] == other["rounded"]:
        return "same but for rounding"
    types = {one["dtype"], other["dtype"]}
    return "not known" if "float16" in types and len(types) > 1 else "different"


# Cache


def states_of(files: Iterable[Path]) -> dict[str, FileState]:
    """Return the state of each file that exists, by the file's path."""
    states: dict[str, FileState] = {}
    for file in files:
        with suppress(FileNotFoundError):
            about = file.stat()
            times = about.st_mtime_ns, about.st_ctime_ns
            place = os.path.realpath(file), about.st_dev, about.st_ino, about.st_size
            # A file has one key, whether its folder is named by a link, relative or absolute.
            key = Path(os.path.realpath(file.parent), file.name)
            states[str(key)] = (*place, *times)
    return states


@dataclass(frozen=True)
class DigestCache:
    """Digests in a folder of the cache: one file for each hashed folder and question.

    Attributes:
        folder: where the digests are. Digests that cannot be stored are made again.
    """

    folder: Path

    def of(
        self,
        path: Path,
        states: Mapping[str, FileState],
        make: Callable[[], dict[str, str]],
        *,
        about: str = "",
    ) -> dict[str, str]:
        """Return the digests of files: from the cache, or made.

        Args:
            path: the file or folder that the digests are called by.
            states: of the files, before the files were read.
            make: returns the digests by name.
            about: what the digests depend on as well, such as the type of loaded weights.
        """
        known = self.known(path, states, about=about)
        if known is not None:
            return known
        begin = time.time_ns()
        made = make()
        # The rule holds for the moment of hashing: later, the times of a second write look old.
        newest = max((int(state[CHANGED]) for state in states.values()), default=begin)
        if newest + SETTLED_NS < begin and states_of(map(Path, states)) == dict(states):
            entry = {"format": FORMAT, "about": about, "files": states, "digests": made}
            with suppress(OSError, MechassayError):  # Such as a full or a read-only disk.
                write_text(self._file(path, about), json.dumps(entry))
        return made

    def known(
        self, path: Path, states: Mapping[str, FileState], *, about: str = ""
    ) -> dict[str, str] | None:
        """Return the digests of files in these states; None if they are not cached."""
        try:
            entry = json.loads(self._file(path, about).read_text("utf-8"))
            files = {name: tuple(state) for name, state in entry["files"].items()}
            digests = {str(name): str(digest) for name, digest in entry["digests"].items()}
            is_current = (entry["format"], entry["about"]) == (FORMAT, about)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # A missing or damaged entry is made again.
        return digests if is_current and files and files == dict(states) else None

    def _file(self, path: Path, about: str) -> Path:
        key = hashlib.sha256(f"{os.path.realpath(path)}\n{about}".encode()).hexdigest()
        return self.folder / f"{key[: 2 * DIGITS]}.json"
