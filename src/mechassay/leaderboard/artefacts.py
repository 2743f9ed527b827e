"""Files that cells of a static board are computed again from: `artefacts/SHA256.gz`.

They are packed with gzip, and named by the hash of what they hold, which is compared whenever one
is unpacked. Links out of the board are not followed.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import zlib
from pathlib import Path
from typing import IO, cast

from mechassay.errors import BadFile, first_line
from mechassay.files import file_hash, whole
from mechassay.submissions import leads_out

ARTEFACTS = "artefacts"
CHUNK = 2**20
LARGEST = 4 * 10**9
"""Bytes that an artefact, or all files of a plan together, unpack to at most."""
SHA256 = re.compile(r"[0-9a-f]{64}")


def artefact_file(board: Path, sha256: str) -> Path:
    """Where an artefact is, by its hash."""
    return board / ARTEFACTS / f"{sha256}.gz"


def keep_artefact(path: Path, board: Path) -> str:
    """Pack a file into the board; its hash."""
    sha256 = file_hash(path)
    packed = artefact_file(board, sha256)
    if not packed.is_file():
        with (
            whole(packed) as partial,
            path.open("rb") as source,
            partial.open("wb") as stream,
            # Without time and name: the same file is packed to the same bytes.
            gzip.GzipFile("", "wb", 9, stream, mtime=0) as target,
        ):
            shutil.copyfileobj(source, cast("IO[bytes]", target), CHUNK)
    return sha256


def unpack_artefact(board: Path, sha256: str, path: Path, most: int | None = None) -> Path:
    """Write an artefact to a file.

    Args:
        most: bytes that it may have; `LARGEST` if not given.

    Raises:
        BadFile: it is not there, not what its hash says, or has more bytes.
    """
    file = inside(board, artefact_file(board, sha256))
    with whole(path) as partial, partial.open("wb") as stream:
        _check_hash(file, sha256, stream, LARGEST if most is None else most)
    return path


def inside(board: Path, file: Path) -> Path:
    """A file of a board, which is no link out of it.

    Raises:
        BadFile: it is one.
    """
    if leads_out(file, board):
        raise BadFile(f"{file}: a link that leads out of the board; it was not followed.")
    return file


def _check_hash(file: Path, sha256: str, target: IO[bytes] | None, most: int) -> None:
    """Unpack a file, to a stream if there is one, and compare the hash of what comes out.

    Raises:
        BadFile: it is not there, not readable, too large, or something else.
    """
    if not file.is_file():
        raise BadFile(f"{file}: is not there; the board lacks an artefact.")
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with gzip.open(file, "rb") as stream:
            while chunk := stream.read(CHUNK):
                n_bytes += len(chunk)
                if n_bytes > most:
                    raise BadFile(f"{file}: holds more than the {most:,} bytes that it may have.")
                digest.update(chunk)
                if target is not None:
                    target.write(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadFile(f"{file}: cannot be unpacked ({first_line(error)}).") from None
    if digest.hexdigest() != sha256:
        raise BadFile(f"{file}: is not what its name says; it was changed since.")
