"""Submissions as one file: a zip or tar archive, or a single file of data, unpacked with distrust.

What the file is is told by its first bytes, not by its name. A member is written only if it is a
regular file with a plain relative path; absolute paths, `..`, links, devices, encrypted members,
names that occur twice (small and capital letters are the same) and names with other signs than
letters, digits and " .,:;+=@()[]-_" are problems, all of them told at once. Members of tar also
have to pass tarfile's data filter (PEP 706).

Bytes are counted while they come out, whatever a header says: the first byte above the limits ends
it, and what was written is removed again.

    limit       bytes and files that come out in all
    ratio       how many times larger they may be than the archive, from `FREE` bytes on: a circuit
                of a large model is nearly all zeros
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal, NoReturn

from mechassay.errors import BadFile, BadUsage, DiskFull, first_line
from mechassay.leaderboard.track import UploadLimits
from mechassay.utils.files import FULL, LEADS_OUT, Problems, leads_out, whole

Sort = Literal["zip", "tar", "tar.gz", ".json", ".pt", ".safetensors"]
FREE = 100 * 10**6
"""Bytes that may come out of any archive, however small it is."""
CHUNK = 2**20
LARGEST_HEADER, LARGEST_DIRECTORY = 2**20, 2**24
"""Bytes between two members of a tar archive, and of the directory of a zip archive."""
MEMBERS = 4
"""How many members an archive may have for each file that is allowed: folders are members too."""
LONGEST_NAME = 200
DEEPEST = 10
IGNORED = ("__MACOSX", ".DS_Store", ".git", ".cache")
"""What file managers and clones put beside the files that are meant."""
_NAME = re.compile(r"[\w .,:;+=@()\[\]-]+")
_UNREADABLE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
)


def unpack(file: str | Path, folder: str | Path, limits: UploadLimits, name: str = "") -> Problems:
    """Write what a file holds into an empty folder; members that are not written are problems.

    Args:
        name: what a single file of data is called, by default as `file` is.

    Raises:
        BadFile: it cannot be read as an archive or a file of data, or is too much; nothing is left
            of it.
        BadUsage: the folder is not empty.
        DiskFull: there is no room.
    """
    file, folder = Path(file), Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise BadUsage(f"{folder}: there is something already; an archive needs an empty folder.")
    target = _Unpacked(folder, file, limits)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sort = sort_of(file)
        if sort == "zip":
            _unzip(file, target)
        elif sort in ("tar", "tar.gz"):
            _untar(file, target, packed=sort == "tar.gz")
        else:
            given = Path(name or file.name)
            known = given.suffix == sort
            with file.open("rb") as source:
                target.write(
                    given.name if known else f"{given.name or 'submission'}{sort}", source.read
                )
    except BaseException as error:
        _empty(folder)
        if isinstance(error, OSError) and error.errno in FULL:
            free = shutil.disk_usage(folder).free
            raise DiskFull.of(folder, target.n_bytes, free, at_least=True) from None
        if isinstance(error, (OSError, *_UNREADABLE)):
            raise BadFile(f"{file.name}: cannot be unpacked ({first_line(error)[:160]}).") from None
        raise
    return target.problems


def sort_of(file: Path) -> Sort:
    """What a file is, by its content.

    Raises:
        BadFile: nothing that a submission can be, such as a bare pickle.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(512)
    except OSError as error:
        raise BadFile(f"{file.name}: cannot be read ({first_line(error)}).") from None
    if head[:2] == b"\x1f\x8b":
        return "tar.gz"
    if head[:2] == b"PK":
        return ".pt" if _is_torch(file) else "zip"
    if head[257:262] == b"ustar":
        return "tar"
    # A length of 8 bytes stands before the header; text in its place would be far too large.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= file.stat().st_size:
        return ".safetensors"
    if head.lstrip()[:1] == b"{":
        return ".json"
    raise BadFile(
        f"{file.name}: is no archive (.zip, .tar, .tar.gz) and no file of data (.json, .pt,"
        " .safetensors); bare pickles are refused, and nothing was run."
    )


def _is_torch(file: Path) -> bool:
    """Whether a zip file is one that PyTorch wrote."""
    try:
        with _zip_file(file) as archive:
            return any(PurePosixPath(name).name == "data.pkl" for name in archive.namelist())
    except (OSError, BadFile, *_UNREADABLE):
        return False  # Whoever unpacks it says what is wrong with it.


def _empty(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@dataclass
class _Unpacked:
    """The folder that is written, with what came out so far."""

    folder: Path
    file: Path
    limits: UploadLimits
    problems: Problems = field(default_factory=Problems)
    n_members: int = 0
    n_files: int = 0
    n_bytes: int = 0
    names: dict[str, bool] = field(default_factory=dict)
    """Names that there are, in small letters; True for folders."""

    def __post_init__(self) -> None:
        size = self.file.stat().st_size if self.file.is_file() else 0
        self.allowed = min(self.limits.n_bytes, max(FREE, int(self.limits.ratio * size)))

    def place(self, name: str) -> Path | None:
        """Where a member goes; None, with the problem, if it goes nowhere."""
        parts = PurePosixPath(name).parts
        if set(parts) & set(IGNORED):
            return None
        fault = _name_fault(name) or self._taken(parts)
        if fault:
            self.problems.note(shown_name(name), fault)
            return None
        return self.folder.joinpath(*parts)

    def _taken(self, parts: tuple[str, ...]) -> str:
        """Why the name is not free; and it is taken."""
        # File systems may confuse names that differ in case or in Unicode's form.
        same = [unicodedata.normalize("NFC", part).casefold() for part in parts]
        keys = ["/".join(same[: i + 1]) for i in range(len(same))]
        *above, own = keys
        if own in self.names:
            return "a name that the archive has twice."
        if any(self.names.get(key) is False for key in above):
            return "in a folder that is also a file."
        self.names |= dict.fromkeys(above, True) | {own: False}
        return ""

    def see(self) -> None:
        """Count a member, whatever it is."""
        self.n_members += 1
        if self.n_members > MEMBERS * self.limits.files:
            self._too_many()

    def _too_many(self) -> NoReturn:
        raise BadFile(
            f"{self.file.name}: more than {self.limits.files:,} files; it was not unpacked."
        )

    def write(self, name: str, read: Callable[[int], bytes]) -> None:
        """Write a member, counting what comes out."""
        place = self.place(name)
        if place is None:
            return
        self.n_files += 1
        if self.n_files > self.limits.files:
            self._too_many()
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as out:
            while chunk := read(CHUNK):
                self.count(len(chunk))
                out.write(chunk)

    def count(self, n: int) -> None:
        """Add bytes."""
        self.n_bytes += n
        if self.n_bytes > self.allowed:
            why = (
                "the largest submission"
                if self.allowed == self.limits.n_bytes
                else f"{self.limits.ratio:g} times its size"
            )
            raise BadFile(
                f"{self.file.name}: unpacks to more than {self.allowed / 10**6:,.0f} MB, {why}; it"
                " was not unpacked."
            )


def _name_fault(name: str) -> str:
    """What is wrong with the path of a member; "" if nothing is."""
    parts = PurePosixPath(name).parts
    drive = PureWindowsPath(name).drive
    if not parts or name.startswith(("/", "\\")) or drive:
        return "an absolute path; paths are relative to the submission."
    if ".." in parts:
        return "a path that leads out of the submission."
    if len(name) > LONGEST_NAME or len(parts) > DEEPEST:
        return f"a path of more than {LONGEST_NAME} characters or {DEEPEST} folders."
    if not all(_NAME.fullmatch(part) for part in parts):
        return "a name with other signs than letters, digits and .,:;+=@()[]-_"
    return ""


def shown_name(name: str) -> str:
    """A name that others chose, as a message can hold it: one line of what can be printed."""
    return "".join(x if x.isprintable() else "?" for x in name[:LONGEST_NAME]) or "(no name)"


def _unzip(file: Path, target: _Unpacked) -> None:
    with _zip_file(file) as archive:
        for member in archive.infolist():
            target.see()
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir():
                continue
            fault = ""
            if member.flag_bits & 1:
                fault = "is encrypted."
            elif kind not in (0, stat.S_IFREG):
                fault = _NO_REGULAR
            if fault:
                target.problems.note(shown_name(member.filename), fault)
                continue
            with archive.open(member) as source:
                target.write(member.filename, source.read)


@contextmanager
def _zip_file(file: Path) -> Generator[zipfile.ZipFile]:
    """An archive that is open, with its directory in memory."""
    with _ShortReads(io.FileIO(file)) as source, zipfile.ZipFile(source) as archive:
        yield archive


class _ShortReads(io.BufferedReader):
    """A file of which nothing long is read at once: zipfile reads a directory into memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        most = LARGEST_DIRECTORY + 1
        content = super().read(most if size is None or size < 0 else min(size, most))
        if len(content) == most:
            raise BadFile(f"{Path(self.name).name}: the directory of the archive is too large.")
        return content


_NO_REGULAR = "is a link or no regular file; only regular files are unpacked."


class _CountedStream:
    """A stream of which no more is read than is allowed.

    tarfile reads headers as long as they say they are, into memory.
    """

    def __init__(self, source: Any, target: _Unpacked) -> None:
        self._source, self._target = source, target
        self.left = LARGEST_HEADER

    def read(self, n: int = -1) -> bytes:
        chunk = self._source.read(n)
        self.left -= len(chunk)
        if self.left < 0:
            raise BadFile(f"{self._target.file.name}: a header of the archive is too large.")
        return chunk


def _untar(file: Path, target: _Unpacked, *, packed: bool) -> None:
    with ExitStack() as stack:
        source: Any = stack.enter_context(file.open("rb"))
        if packed:
            source = stack.enter_context(gzip.GzipFile(fileobj=source))
        counted: Any = _CountedStream(source, target)
        archive = stack.enter_context(tarfile.open(fileobj=counted, mode="r|"))
        for member in _members(archive, counted, target):
            if member.isdir():
                continue
            fault = "" if member.isreg() and not member.issparse() else _NO_REGULAR
            try:
                tarfile.data_filter(member, str(target.folder))
            except tarfile.FilterError as error:
                fault = fault or _name_fault(member.name) or f"is refused ({type(error).__name__})."
            if fault:
                target.problems.note(shown_name(member.name), fault)
                continue
            held = archive.extractfile(member)
            if held is not None:
                target.write(member.name, held.read)


def _members(
    archive: tarfile.TarFile, counted: _CountedStream, target: _Unpacked
) -> Iterator[tarfile.TarInfo]:
    """One after another; what a member says of its size is allowed to be read, up to the limit."""
    while (member := archive.next()) is not None:
        target.see()
        if member.size > target.allowed - target.n_bytes:
            target.count(target.allowed + 1)
        counted.left = member.size + LARGEST_HEADER
        yield member


# Packing


def pack(source: str | Path, file: str | Path, limits: UploadLimits | None = None) -> Path:
    """Write a folder, or one file of data, as a zip archive: the same bytes for the same content.

    Raises:
        BadFile: there is nothing, or a link that leads out of it.
        BadUsage: more files or bytes than a submission may have.
    """
    source, file, limits = Path(source), Path(file), limits or UploadLimits()
    if not source.exists():
        raise BadFile(f"{source}: there is no such file or folder.")
    paths = _to_pack(source)
    total = sum(path.stat().st_size for path in paths.values())
    if not paths:
        raise BadFile(f"{source}: the folder is empty.")
    if len(paths) > limits.files or total > limits.n_bytes:
        raise BadUsage(
            f"{source}: {len(paths):,} files, {total / 10**6:,.0f} MB; a submission has at most"
            f" {limits.files:,} files, {limits.megabytes:,.0f} MB."
        )
    with whole(file) as partial:
        _zip(paths, partial, zipfile.ZIP_DEFLATED)
        if total > max(FREE, limits.ratio * partial.stat().st_size):
            # So many zeros that it would be taken for a bomb.
            _zip(paths, partial, zipfile.ZIP_STORED)
    return file


def _to_pack(source: Path) -> dict[str, Path]:
    """The files of a folder by their paths in the archive."""
    if source.is_file():
        return {source.name: source}
    files: dict[str, Path] = {}
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if set(name.parts) & set(IGNORED):
            continue
        if leads_out(path, source):
            raise BadFile(f"{path}: {LEADS_OUT}")
        if path.is_file():
            files[name.as_posix()] = path
    return files


def _zip(paths: dict[str, Path], file: Path, method: int) -> None:
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, path in paths.items():
            info = zipfile.ZipInfo(name)  # Of 1980, whenever it is packed.
            info.compress_type = method
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            with archive.open(info, "w", force_zip64=True) as out, path.open("rb") as held:
                shutil.copyfileobj(held, out, CHUNK)
