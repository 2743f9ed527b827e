"""Files of the service by key: in a folder, or in a bucket that speaks S3.

A key appears whole or not at all: a folder's file is renamed when it is written, and a bucket's
parts are joined when all are there. Keys are made by the service, never of others' text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mechassay.errors import BadFile, BadUsage, DiskFull, MechassayError, MissingExtra, first_line
from mechassay.files import whole

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
CHUNK = 2**20
RETRIES, PATIENCE = 5, timedelta(seconds=30)
"""How often, and how long, a bucket that does not answer is asked again."""
FULL = ("No space left on device", "os error 28", "Disk quota exceeded", "os error 122")
"""How the library spells a disk that is full."""

FoundT = TypeVar("FoundT")


class StoreAway(MechassayError):
    """The store does not answer, or refuses; asking later may help."""


@dataclass(frozen=True)
class Store:
    """Blobs by key. `Store.of` makes one.

    Attributes:
        url: where it is, without secrets.
    """

    url: str
    _inner: Any

    @classmethod
    def of(cls, url: str | Path) -> Store:
        """The store at an address.

        Args:
            url: a folder, or `s3://BUCKET` or `s3://BUCKET/PREFIX`. Keys, region and endpoint of S3
                are those of the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
                `AWS_REGION`, `AWS_ENDPOINT_URL`, and `AWS_ALLOW_HTTP=true` for one without TLS.

        Raises:
            BadUsage: an address of another kind.
            MissingExtra: obstore is not installed.
        """
        try:
            stores = import_module("obstore.store")
        except ImportError:
            raise MissingExtra("The leaderboard's service", "obstore", "server") from None
        parts = urlsplit(str(url))
        if "://" not in str(url):
            folder = Path(url).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            return cls(str(folder), stores.LocalStore(prefix=folder, automatic_cleanup=True))
        if parts.scheme != "s3" or not parts.netloc or parts.username or parts.query:
            raise BadUsage(
                "A store is a folder or s3://BUCKET/PREFIX; keys are in the environment."
            )
        try:
            inner = stores.S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                retry_config={"max_retries": RETRIES, "retry_timeout": PATIENCE},
            )
        except Exception as error:  # The library's errors have a base, but not all are of it.
            raise BadUsage(f"{url}: {first_line(error)}") from None
        return cls(str(url), inner)

    def put_file(self, key: str, path: Path) -> None:
        """Store a file, in parts if it is large.

        Raises:
            DiskFull: there is no room.
            StoreAway: the store does not answer.
        """
        self._asked(key, lambda obs: obs.put(self._inner, key, path))

    def put(self, key: str, content: bytes) -> None:
        """Store bytes. It raises what `put_file` does."""
        self._asked(key, lambda obs: obs.put(self._inner, key, content))

    def get_file(self, key: str, path: Path) -> Path:
        """Write a blob to a file, which appears whole or not at all.

        Raises:
            BadFile: there is no such blob.
        """

        def work(obs: Any) -> Path:
            found = self._found(obs, key)
            with whole(path, found.meta["size"]) as partial, partial.open("wb") as stream:
                for chunk in found.stream(min_chunk_size=CHUNK):
                    stream.write(chunk)
            return path

        return self._asked(key, work)

    def read(self, key: str) -> bytes:
        """The bytes of a blob, which has to fit into memory.

        Raises:
            BadFile: there is no such blob.
        """
        return self._asked(key, lambda obs: bytes(self._found(obs, key).bytes()))

    def stream(self, key: str) -> tuple[int, Iterator[bytes]]:
        """How many bytes a blob has, and its bytes in chunks.

        Raises:
            BadFile: there is no such blob.
        """

        def work(obs: Any) -> tuple[int, Iterator[bytes]]:
            found = obs.get(self._inner, key)
            return found.meta["size"], map(bytes, found.stream(min_chunk_size=CHUNK))

        return self._asked(key, work)

    def exists(self, key: str) -> bool:
        """Whether there is such a blob."""

        def work(obs: Any) -> bool:
            try:
                obs.head(self._inner, key)
            except FileNotFoundError:
                return False
            return True

        return self._asked(key, work)

    def delete(self, key: str) -> None:
        """Remove a blob, if there is one."""

        def work(obs: Any) -> None:
            with suppress(FileNotFoundError):
                obs.delete(self._inner, key)

        self._asked(key, work)

    def keys(self, prefix: str = "", before: datetime | None = None) -> list[str]:
        """All keys in a folder of keys, sorted; the whole store's without one.

        Args:
            before: only those that were written before this time.
        """

        def work(obs: Any) -> list[str]:
            pages = obs.list(self._inner, prefix=prefix or None)
            return sorted(
                found["path"]
                for page in pages
                for found in page
                if before is None or found["last_modified"] < before
            )

        return self._asked(prefix or "all", work)

    def _found(self, obs: Any, key: str) -> Any:
        try:
            return obs.get(self._inner, key)
        except FileNotFoundError:
            raise BadFile(f"{self.url}: has no {key}.") from None

    def _asked(self, key: str, work: Callable[[Any], FoundT]) -> FoundT:
        if not KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key.")
        obs = import_module("obstore")
        away = import_module("obstore.exceptions").BaseError
        try:
            return work(obs)
        except (away, FileNotFoundError) as error:
            if any(words in str(error) for words in FULL):
                raise DiskFull(f"{self.url}: the disk is full.") from error
            raise StoreAway(f"{self.url}: cannot be used ({first_line(error)}).") from error
