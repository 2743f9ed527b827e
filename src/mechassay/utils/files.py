"""Files that appear whole or not at all, and folders of others, which are read as data.

Files of ours are text, or safetensors with a JSON header. The header is one JSON object under
the key `mechassay` of the file's metadata; `FORMAT` in it rises when the meaning of a field
changes, and a reader refuses numbers it does not know.

In a folder that others hand in, only regular files inside it are opened, no link that leads out
of it, and nothing in a file is executed. What is wrong with it is told all at once (`Problems`).
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError, safe_open

from mechassay.errors import BadFile, BadUsage, DiskFull, MechassayError, first_line
from mechassay.utils.display import shortened

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")
FORMAT = 1
SHA256 = re.compile(r"[0-9a-f]{64}")
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that is full, or of which a user has no more."""


FORMULA = ("=", "+", "-", "@", "\t", "\n")
"""How a text begins that a spreadsheet may take for a formula."""


def is_full(error: object) -> bool:
    """Whether an error says that there is no room left on a disk."""
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in FULL)


def partial_of(path: Path) -> Path:
    """A file beside `path`, of a new name, that is written before it becomes `path`."""
    return path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")


def _settle(path: Path) -> None:
    """Have the disk hold a file, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole(path: Path, size: int | None = None) -> Generator[Path]:
    """What to write instead of `path`, a file or a folder; it becomes `path` if the block ends
    without an error.

    A reader never sees half a file, even if the power fails. The folders above it are made.

    Args:
        size: bytes of the file, where they are known beforehand; an error names them.

    Raises:
        BadUsage: a folder is in the place of the file, or a file in the place of a folder.
        DiskFull: there is no room for it.
    """
    partial = partial_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        for file in filter(Path.is_file, partial.rglob("*") if partial.is_dir() else [partial]):
            _settle(file)
        os.replace(partial, path)
        with suppress(OSError):  # Not every system opens folders.
            _settle(path.parent)
    except IsADirectoryError:
        raise BadUsage(f"{path} is a folder; give the path of the file to write.") from None
    except (NotADirectoryError, FileExistsError):
        raise BadUsage(f"{path} cannot be written: a file, not a folder, is above it.") from None
    except OSError as error:
        if not is_full(error):
            raise
        raise _full(path, partial, size) from error
    finally:
        with suppress(OSError):  # There may be no folder: the error is the one that is on its way.
            partial.unlink(missing_ok=True)


def _full(path: Path, partial: Path, size: int | None) -> DiskFull:
    written = partial.stat().st_size if partial.exists() else 0
    partial.unlink(missing_ok=True)
    there = next((folder for folder in path.parents if folder.is_dir()), Path())
    free = shutil.disk_usage(there).free
    return DiskFull.of(path, written if size is None else size, free, at_least=size is None)


def check_ending(path: str | Path, *endings: str) -> Path:
    """The path, whose ending says what is written there.

    Raises:
        BadUsage: it has another ending.
    """
    path = Path(path)
    if path.suffix not in endings:
        raise BadUsage(f"{path}: a file to write ends in {' or '.join(endings)}.")
    return path


def file_hash(path: Path) -> str:
    """The SHA-256 of a file.

    Raises:
        BadFile: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({first_line(error)}).") from None


def folder_hash(folder: Path) -> str:
    """The SHA-256 of a folder: of what `sha256sum` writes of its files, sorted by their paths.

    Links are left out.

    Raises:
        BadFile: a file cannot be read.
    """
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    named = sorted((path.relative_to(folder).as_posix(), path) for path in files)
    lines = "".join(f"{file_hash(path)}  {name}\n" for name, path in named)
    return hashlib.sha256(lines.encode()).hexdigest()


def path_hash(path: Path) -> str:
    """The SHA-256 of a file or of a folder; see `file_hash` and `folder_hash`."""
    return folder_hash(path) if path.is_dir() else file_hash(path)


def parsed_json(path: str | Path, read: Callable[[Any], T]) -> T:
    """What `read` makes of the data in a JSON file.

    Raises:
        BadFile: no such file, not JSON, or what `read` objects to.
    """
    try:
        return read(json.loads(Path(path).read_text("utf-8")))
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or type(error).__name__}.") from error
    except MechassayError as error:
        raise BadFile(f"{path}: {first_line(error).rstrip('.')}.") from error
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}: is not JSON ({first_line(error)}).") from error


def csv_text(head: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV, by the names of columns; what a row lacks, and NaN, is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_csv_cell(row.get(name)) for name in head] for row in rows)
    return out.getvalue()


def _csv_cell(value: Any) -> str:
    """A value as text; an apostrophe stands before what a spreadsheet would take for a formula."""
    if value is None or isinstance(value, float):
        return "" if value is None or math.isnan(value) else repr(value)
    # Not every reader takes a lone carriage return for a part of a field.
    text = str(value).replace("\r\n", "\n").replace("\r", "\n")
    is_formula = text.startswith(FORMULA) and not isinstance(value, int)
    return f"'{text}" if is_formula else text


def write_text(path: Path, text: str) -> Path:
    """Write a text file whole, and the folders above it; the same bytes on every platform."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file whole, and the folders above it."""
    with whole(path, len(content)) as partial:
        partial.write_bytes(content)
    return path


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a header; a reader never sees half a file."""
    from safetensors.torch import save

    meta = {"mechassay": json.dumps({"format": FORMAT, **header}, sort_keys=True)}
    stored = {name: tensor.contiguous() for name, tensor in tensors.items()}
    # Not save_file: its files can be read by their owner alone.
    write_bytes(path, save(stored, metadata=meta))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file written by `write_tensors`.

    Raises:
        BadFile: missing, truncated, not ours, of another kind, or of an unknown format.
    """
    if not path.is_file():
        raise BadFile(f"{path}: there is no such file.")
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        header = json.loads(meta["mechassay"])
    except (SafetensorError, OSError, ValueError) as error:
        raise BadFile(f"{path}: not a readable safetensors file ({first_line(error)}).") from None
    except KeyError:
        raise BadFile(
            f"{path}: a safetensors file that mechassay did not write (no mechassay header)."
        ) from None
    if not isinstance(header, dict):
        raise BadFile(f"{path}: its mechassay header is no JSON object.")
    if header.get("kind") != kind:
        raise BadFile(f"{path}: holds {header.get('kind')!r}; expected {kind!r}.")
    if header.get("format") != FORMAT:
        raise BadFile(
            f"{path}: format {header.get('format')!r}; this version reads format {FORMAT}."
        )
    return tensors, header


def kind_of(path: Path) -> str:
    """The kind of content a file says it has; "" if it does not say."""
    if not path.is_file():
        return ""
    try:
        with safe_open(path, framework="pt") as file:
            return str(json.loads((file.metadata() or {}).get("mechassay", "{}")).get("kind", ""))
    except (SafetensorError, OSError, ValueError, AttributeError):
        # Whoever reads the file says what is wrong with it.
        return ""


BESIDE = frozenset({"README.md", "LICENSE", ".gitattributes", ".gitignore", ".git", ".cache"})
"""What else belongs to a repository on the Hugging Face hub."""
LEADS_OUT = "a link that leads out of the submission; it was not followed. Copy the file here."
CODE = (
    "code, which is never run: a folder holds data alone. A featurizer is declared as layers"
    " (featurizer.json), a position as a rule (--position-rule)."
)
MOST_PROBLEMS, LONGEST = 200, 500
"""Problems of a report, and letters of one."""
LARGEST_JSON = 10**7
"""Bytes of a JSON file from which on it is not opened."""

FoundT = TypeVar("FoundT")


@dataclass(frozen=True)
class Problem:
    """What is wrong with a part of a submission; `path` is relative to its folder.

    Attributes:
        warning: the submission is valid, but a board may skip the file or read it otherwise.
    """

    path: str
    message: str
    warning: bool = False


def relative_name(path: str | Path) -> str:
    """Return a path relative to the working directory, without "." and "..".

    Links below the working directory keep their names, so that a folder that moves and leaves a
    link behind keeps its name. Of other paths the links to folders are resolved.
    """
    here, path = os.getcwd(), os.path.abspath(Path(path).expanduser())
    with suppress(ValueError):  # On another drive there is no relative path.
        if not Path(path).is_relative_to(here):
            folder, name = os.path.split(path)
            path = os.path.join(os.path.realpath(folder), name)
        path = os.path.relpath(path, here)
    return Path(path).as_posix()


def no_folder(path: str | Path) -> str:
    """Why a path cannot be read as a folder."""
    return "this is a file, not a folder" if Path(path).exists() else "there is no such folder"


class Problems(list[Problem]):
    """Problems, collected while the rest is read."""

    def note(self, path: str, message: str, *, warning: bool = False) -> None:
        """Add one."""
        self.append(Problem(path, message, warning))

    def tried(
        self, path: str, read: Callable[[], FoundT], file: Path | None = None
    ) -> FoundT | None:
        """What `read` returns; None, with one problem more, if it refuses.

        Args:
            file: what the message need not name again.
        """
        try:
            return read()
        except MechassayError as error:
            self.note(path, str(error).removeprefix(f"{file}: "))
            return None

    @property
    def errors(self) -> list[Problem]:
        """Those that are no warnings."""
        return [problem for problem in self if not problem.warning]

    def short(self) -> Problems:
        """As a report has them: at most `MOST_PROBLEMS`, mistakes first then, none of them long."""
        many = len(self) > MOST_PROBLEMS
        ordered = sorted(self, key=lambda problem: problem.warning) if many else self
        report = Problems(
            Problem(
                shortened(problem.path, LONGEST),
                shortened(problem.message, LONGEST),
                problem.warning,
            )
            for problem in ordered[:MOST_PROBLEMS]
        )
        if left := ordered[MOST_PROBLEMS:]:
            wrong = sum(not problem.warning for problem in left)
            rest = f"and {len(left):,} more, {wrong:,} of them mistakes."
            report.note(".", rest, warning=not wrong)
        return report

    def refuse(self, folder: Path, lists: str = "mechassay variables validate") -> None:
        """Refuse the folder if there are errors.

        Args:
            lists: the command that lists all of them.

        Raises:
            BadFile: the first of them, and how many more there are.
        """
        errors = self.errors
        if errors:
            first, more = errors[0], len(errors) - 1
            also = f" ({more} more: `{lists}` lists all.)" if more else ""
            raise BadFile(f"{folder / first.path}: {first.message}{also}")


def leads_out(path: Path, root: Path) -> bool:
    """Whether a path is a link out of a folder; judged without opening what it leads to."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def load_yaml(text: str) -> Any:
    """Return the plain values of a YAML text. Nothing in the text is executed.

    Raises:
        yaml.YAMLError: the text is not YAML.
    """
    import yaml

    # The loader in C is ten times as fast; a build of PyYAML may be without it.
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read_json(path: Path, largest: int | None = None) -> dict[str, Any]:
    """The object that a JSON file of others holds.

    Args:
        largest: bytes that it may have; `LARGEST_JSON` where None.

    Raises:
        BadFile: missing, too large, no JSON, or no object.
    """
    plain = read_small_json(path, largest)
    if not isinstance(plain, dict):
        raise BadFile(f"{path}: holds a JSON {type(plain).__name__}; expected an object.")
    return plain


def read_small_json(path: Path, largest: int | None = None) -> Any:
    """What a JSON file of others holds.

    Args:
        largest: bytes that it may have; `LARGEST_JSON` where None.

    Raises:
        BadFile: missing, too large, or no JSON.
    """
    if not path.is_file():
        raise BadFile(f"{path}: there is no such file.")
    largest = LARGEST_JSON if largest is None else largest
    if path.stat().st_size > largest:
        raise BadFile(f"{path}: has more than {largest // 10**6} MB; it was not opened.")
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{path}: not readable as JSON ({first_line(error)}).") from None
