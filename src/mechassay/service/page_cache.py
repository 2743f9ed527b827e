"""Answers that are made once and given to many: bytes, plain and zipped, by key.

Of those who ask for what is not there, one makes it, in a thread, and the others wait for it. An
answer grows old from when it is made, so that a slow one is made once at a time too. The event loop
never makes anything.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

LEAST_ZIPPED = 1000
"""Bytes below which nothing is gained by zipping."""


@dataclass(frozen=True)
class CachedPage:
    """An answer.

    Attributes:
        zipped: None where it is not shorter.
        etag: of the content, in quotes.
    """

    body: bytes
    zipped: bytes | None
    etag: str
    media: str

    @staticmethod
    def of(text: str, media: str = "text/html; charset=utf-8") -> CachedPage:
        """The answer of a text."""
        body = text.encode()
        # Without its time, equal texts have equal bytes.
        zipped = gzip.compress(body, 5, mtime=0) if len(body) >= LEAST_ZIPPED else None
        return CachedPage(body, zipped, f'"{hashlib.sha256(body).hexdigest()[:32]}"', media)


@dataclass
class PageCache:
    """Answers by key.

    Attributes:
        most: answers that are kept; the one that was not asked for longest goes first.
        seconds: how long an answer is good; as long as the cache if not given.
    """

    most: int = 512
    seconds: float | None = None
    _held: OrderedDict[Hashable, tuple[float, asyncio.Future[CachedPage]]] = field(
        default_factory=OrderedDict[Hashable, "tuple[float, asyncio.Future[CachedPage]]"]
    )

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Forget all answers."""
        self._held.clear()

    def put(self, key: Hashable, page: CachedPage) -> None:
        """Hold an answer that is made already."""
        made: asyncio.Future[CachedPage] = asyncio.get_running_loop().create_future()
        made.set_result(page)
        self._held[key] = time.monotonic(), made

    async def get(self, key: Hashable, make: Callable[[], CachedPage]) -> CachedPage:
        """An answer; `make` runs in a thread, once for all who ask; errors are not kept."""
        held = self._held.get(key)
        now = time.monotonic()
        if held is not None and not held[1].done():
            self._held.move_to_end(key)
            # Whoever goes away takes nothing from the others.
            return await asyncio.shield(held[1])
        if held is not None and (self.seconds is None or now - held[0] < self.seconds):
            self._held.move_to_end(key)
            return held[1].result()
        task = asyncio.ensure_future(run_in_threadpool(make))
        self._held[key] = now, task
        self._held.move_to_end(key)
        task.add_done_callback(lambda done: self._made(key, done))
        while len(self._held) > self.most:
            self._held.popitem(last=False)
        return await asyncio.shield(task)

    def _made(self, key: Hashable, done: asyncio.Future[CachedPage]) -> None:
        """Begin an answer's age; forget an error."""
        held = self._held.get(key)
        if held is None or held[1] is not done:
            return
        if done.cancelled() or done.exception() is not None:
            del self._held[key]
        else:
            self._held[key] = time.monotonic(), done
