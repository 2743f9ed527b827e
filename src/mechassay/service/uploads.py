"""The upload of a submission: a form that is read while it comes, and its file as it is written.

Fields come first and the file last. Before the first byte of the file is written, the fields are
checked: whoever has no good token writes nothing. Bytes are counted and hashed as they come. The
file has a name of ours in a folder of its own, and goes with the block, whatever happens.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.concurrency import run_in_threadpool

from mechassay.errors import BadFile, BadUsage, DiskFull, MechassayError
from mechassay.files import file_hash
from mechassay.service.archive import pack

FIELDS, LONGEST_FIELD = 20, 100_000
BATCH = 2**20
"""Bytes that are handed to the disk at once."""
SLACK = 1_000_000
"""Bytes of a request beside its file."""
RESERVE = 100_000_000
"""Bytes of the disk that no upload takes."""
STALE = 86_400.0
"""Seconds after which a file of an upload is that of a server that was killed."""
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
_SINGLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}\.(json|pt|safetensors)")


class TooLarge(MechassayError):
    """An upload of more bytes than are allowed."""


@dataclass
class FormUpload:
    """What came of a form.

    Attributes:
        fields: texts by name.
        name: of the file, as the sender calls it.
        path: of what was written of it; None before its first byte.
        digest_packed: of the archive that a single file was made.
    """

    folder: Path
    largest: int
    ready: Callable[[Mapping[str, str]], object]
    fields: dict[str, str] = field(default_factory=dict[str, str])
    name: str = ""
    path: Path | None = None
    n_bytes: int = 0
    ended: bool = False
    digest_packed: str = ""
    _hash: Any = field(default_factory=hashlib.sha256)
    _stream: BinaryIO | None = None
    _header: bytes = b""
    _headers: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    _field: str | None = None
    _text: bytearray = field(default_factory=bytearray)

    @property
    def digest(self) -> str:
        """SHA-256 of the file's bytes."""
        return self.digest_packed or self._hash.hexdigest()

    def pack(self) -> None:
        """Make a single file of data an archive, in which it keeps its name.

        Raises:
            BadFile: a name of no kind that is read. BadUsage: too large.
        """
        name = Path(self.name.replace("\\", "/")).name
        if self.path is None or name.lower().endswith(ARCHIVES):
            return
        if not _SINGLE.fullmatch(name):
            raise BadFile(
                f"A submission is a file {', '.join(ARCHIVES)}, or TASK_MODEL.json, .pt or"
                f" .safetensors; got {name[:80]!r}."
            )
        single, plain = self.path.with_suffix(".single"), self.path
        single.mkdir()
        try:
            os.replace(plain, single / name)
            self.path = plain.with_suffix(".zip.upload")
            pack(single, self.path)
        finally:
            shutil.rmtree(single, ignore_errors=True)
        self.n_bytes, self.digest_packed = self.path.stat().st_size, file_hash(self.path)

    def parser(self, content_type: str) -> MultipartParser:
        """A parser that fills this.

        Raises:
            BadUsage: no form with a file.
        """
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise BadUsage("A submission is sent as multipart/form-data.")
        try:
            return MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": lambda: None,
                    "on_headers_finished": self._begin_content,
                    "on_part_data": self._content,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError:
            raise BadUsage("The boundary of the form is too long.") from None

    def close(self) -> None:
        """Remove what was written."""
        if self._stream is not None:
            self._stream.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _begin_part(self) -> None:
        if self.path is not None:
            raise BadUsage("The file has to be the last field of the form, and one alone.")
        self._headers, self._header, self._text = {}, b"", bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        # A name may come in parts; a value ends it.
        self._header += data[start:end].lower()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        if self._header:
            self._name_of_value, self._header = self._header, b""
        at = self._name_of_value
        self._headers[at] = self._headers.get(at, b"") + data[start:end]

    def _begin_content(self) -> None:
        said = self._headers.get(b"content-disposition", b"")
        _, options = parse_options_header(said)
        self._field = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" not in options:
            if len(self.fields) >= FIELDS:
                raise BadUsage(f"A form of more than {FIELDS} fields.")
            return
        self.ready(self.fields)
        self.name = options[b"filename"].decode("utf-8", "replace")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"{secrets.token_hex(16)}.upload"
        self._stream = self.path.open("wb")

    def _content(self, data: bytes, start: int, end: int) -> None:
        if self._stream is None:
            self._text += data[start:end]
            if len(self._text) > LONGEST_FIELD:
                raise BadUsage(f"A field of more than {LONGEST_FIELD:,} bytes.")
            return
        self.n_bytes += end - start
        if self.n_bytes > self.largest:
            raise too_large(self.largest)
        part = data[start:end]
        self._hash.update(part)
        self._stream.write(part)

    def _end_part(self) -> None:
        if self._stream is not None:
            self._stream.close()
        elif self._field:
            self.fields[self._field] = bytes(self._text).decode("utf-8", "replace").strip()

    def _end(self) -> None:
        self.ended = True


def too_large(largest: int) -> TooLarge:
    """The refusal of more bytes than are allowed."""
    return TooLarge(f"The file is too large: at most {largest / 1e6:,g} MB are taken.")


@asynccontextmanager
async def uploaded(
    chunks: AsyncIterator[bytes],
    headers: Mapping[str, str],
    folder: Path,
    largest: int,
    ready: Callable[[Mapping[str, str]], object],
) -> AsyncIterator[FormUpload]:
    """A form with a file, read to its end; the file is gone after the block.

    Args:
        chunks: the bytes of the request.
        folder: where the file is written.
        largest: bytes that the file may have.
        ready: checks the fields before the file; runs in a thread.

    Raises:
        TooLarge: of the file. BadUsage: no such form. BadFile: the form is cut off, or its file is
            empty. DiskFull: there is no room.
    """
    length = headers.get("content-length", "")
    announced = int(length) if length.isdigit() else 0
    if announced > largest + SLACK:
        raise too_large(largest)
    found = FormUpload(folder, largest, ready)
    parser = found.parser(headers.get("content-type", ""))
    try:
        await run_in_threadpool(_check_room, folder, announced)
        batch, n_bytes = bytearray(), 0
        async for chunk in chunks:
            batch += chunk
            if len(batch) >= BATCH:
                n_bytes += len(batch)
                await _written(parser, bytes(batch))
                batch.clear()
                if n_bytes > found.n_bytes + SLACK + BATCH:
                    raise BadUsage(f"A form of more than {SLACK:,} bytes beside its file.")
        await _written(parser, bytes(batch))
        if found.path is None:
            raise BadUsage("The form has no file.")
        if not found.ended:
            raise BadFile("The form is cut off.")
        if not found.n_bytes:
            raise BadFile("The file is empty.")
        await run_in_threadpool(found.pack)
        yield found
    finally:
        found.close()


async def _written(parser: MultipartParser, batch: bytes) -> None:
    try:
        await run_in_threadpool(parser.write, batch)
    except FormParserError:
        raise BadUsage("The form cannot be read.") from None


def _check_room(folder: Path, needed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed + RESERVE:
        raise DiskFull(f"There is no room for {needed / 1e6:,.1f} MB; try again later.")


def remove_stale(folder: Path) -> int:
    """Remove what servers that were killed left; how much that was."""
    before = time.time() - STALE
    old = [path for path in folder.glob("*") if path.stat().st_mtime < before]
    for path in old:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return len(old)
