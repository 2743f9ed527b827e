"""What a running server holds: database, store, track, boards, and the caches of its pages.

One task looks for newer boards; between two looks it rests at least ten times as long as the last
one took, so that making pages takes a tenth of a core at most. The pages that everybody asks for
are made with the boards, before these replace the old ones.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from mechassay.errors import MechassayError
from mechassay.leaderboard.pages import BoardPages
from mechassay.leaderboard.stored import StoredBoards
from mechassay.service.answers import TooMany
from mechassay.service.boards import BoardsSnapshot, ServedBoards
from mechassay.service.database import Database
from mechassay.service.page_cache import CachedPage, PageCache
from mechassay.service.settings import ServiceSettings
from mechassay.service.store import Store
from mechassay.service.track import ServiceTrack

LOG = logging.getLogger("mechassay.service.app")
PATIENCE = 5.0
"""Seconds that a request waits for a database that does not answer."""
LOOK_SECONDS = 1.0
REST = 10
MOST_UPLOADS = 32
"""Uploads at once, of all submitters."""
KINDS = {"json": "application/json", "csv": "text/csv; charset=utf-8"}
HTML = "text/html; charset=utf-8"
INDEX = ("index",)


class ServiceParts:
    """The parts of a server.

    Args:
        address: at which others reach it, for the commands on its pages.

    Raises:
        BadUsage: an address of the database or of the store that is none.
        BadFile: the track or the static board cannot be read.
    """

    def __init__(self, settings: ServiceSettings, address: str = "") -> None:
        self.settings, self.address = settings, address
        self.db = Database(settings.database, patience=PATIENCE)
        self.store = Store.of(settings.store)
        self.track = ServiceTrack.read(settings.track)
        folder = settings.folder / "records"
        beside = StoredBoards.read(settings.board) if settings.board else None
        self.boards = ServedBoards(self.db, self.store, folder, self.track, address, beside)
        self.brief = PageCache(seconds=1.0)
        self._pages = PageCache()
        self._uploads: dict[int, int] = {}

    def public_track(self) -> dict[str, Any]:
        """The track as anybody may see it."""
        told = self.track.model_dump(mode="json")
        for about in told["models"].values():
            if Path(about["load"]).is_absolute():
                about["load"] = ""  # Where files of this machine are concerns nobody.
        return told

    async def board_page(
        self, key: Hashable, make: Callable[[BoardPages], str], media: str = HTML
    ) -> CachedPage:
        """A page of the boards as they are now."""
        pages = self.boards.snapshot.pages
        return await self._pages.get(key, lambda: CachedPage.of(make(pages), media))

    async def brief_page(
        self, key: Hashable, make: Callable[[], str], media: str = HTML
    ) -> CachedPage:
        """A page of what changes often: at most a second old."""
        return await self.brief.get(key, lambda: CachedPage.of(make(), media))

    async def look(self) -> float:
        """Put newer boards in place, if there are any; the seconds that it took."""
        begin = time.monotonic()
        found = await run_in_threadpool(self._newer)
        if found is not None:
            snapshot, ready = found
            cache = PageCache()
            for key, page in ready.items():
                cache.put(key, page)
            self.boards.snapshot, self._pages = snapshot, cache
        return time.monotonic() - begin

    async def keep_looking(self) -> None:
        """Look for newer boards until the task is cancelled."""
        while True:
            spent = 0.0
            try:
                spent = await self.look()
            except MechassayError as error:
                LOG.warning("The boards stay as they are: %s", error)
            except Exception:
                LOG.exception("The boards stay as they are")
            await asyncio.sleep(max(LOOK_SECONDS, REST * spent))

    @contextmanager
    def uploading(self, submitter: int) -> Iterator[None]:
        """One upload of a submitter, by its id.

        Raises:
            TooMany: the submitter has one under way, or there are too many in all.
        """
        if self._uploads.get(submitter) or sum(self._uploads.values()) >= MOST_UPLOADS:
            raise TooMany("One upload at a time: another one is under way.")
        self._uploads[submitter] = 1
        try:
            yield
        finally:
            self._uploads.pop(submitter, None)

    def _newer(self) -> tuple[BoardsSnapshot, dict[Hashable, CachedPage]] | None:
        snapshot = self.boards.newer()
        if snapshot is None:
            return None
        pages = snapshot.pages
        ready: dict[Hashable, CachedPage] = {INDEX: CachedPage.of(pages.index())}
        for name in pages.boards:
            ready["board", name, None] = CachedPage.of(pages.board(name))
        return snapshot, ready
