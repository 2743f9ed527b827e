"""Answers that are made once for all who ask."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from types import SimpleNamespace

import pytest

from mechassay.service import page_cache
from mechassay.service.page_cache import CachedPage, PageCache


def test_an_answer_is_made_once_for_all_who_ask() -> None:
    made: list[str] = []

    def make() -> CachedPage:
        made.append(threading.current_thread().name)
        time.sleep(0.05)
        return CachedPage.of("x")

    async def ask() -> list[CachedPage]:
        cache = PageCache()
        return await asyncio.gather(*(cache.get("key", make) for _ in range(20)))

    found = asyncio.run(ask())
    assert len(made) == 1 and made[0] != threading.main_thread().name
    assert {page.body for page in found} == {b"x"}


def test_errors_are_not_kept() -> None:
    answers = [RuntimeError("first"), CachedPage.of("x")]

    def make() -> CachedPage:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def ask() -> CachedPage:
        cache = PageCache()
        with pytest.raises(RuntimeError):
            await cache.get("key", make)
        return await cache.get("key", make)

    assert asyncio.run(ask()).body == b"x"


def test_one_who_goes_away_takes_nothing_from_the_others() -> None:
    def make() -> CachedPage:
        time.sleep(0.1)
        return CachedPage.of("x")

    async def ask() -> CachedPage:
        cache = PageCache()
        first = asyncio.create_task(cache.get("key", make))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(cache.get("key", make))
        await asyncio.sleep(0.01)
        first.cancel()
        return await second

    assert asyncio.run(ask()).body == b"x"


def test_a_slow_answer_is_made_once_at_a_time_and_is_young_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    clock = [0.0]
    going = threading.Event()
    monkeypatch.setattr(page_cache, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def make() -> CachedPage:
        made.append(1)
        assert going.wait(20)
        return CachedPage.of("x")

    async def ask() -> None:
        cache = PageCache(seconds=1.0)
        first = asyncio.create_task(cache.get("key", make))
        await asyncio.sleep(0.01)
        clock[0] = 10.0
        second = asyncio.create_task(cache.get("key", make))
        await asyncio.sleep(0.01)
        going.set()
        await asyncio.gather(first, second)
        await cache.get("key", make)
        assert len(made) == 1
        clock[0] = 12.0
        await cache.get("key", make)
        assert len(made) == 2

    asyncio.run(ask())


def test_the_longest_unasked_goes_and_answers_grow_old() -> None:
    async def ask() -> None:
        cache = PageCache(most=2)
        for key in ("a", "b", "a", "c"):
            await cache.get(key, lambda key=key: CachedPage.of(key))
        assert len(cache) == 2
        assert (await cache.get("a", lambda: CachedPage.of("new"))).body == b"a"
        assert (await cache.get("b", lambda: CachedPage.of("new"))).body == b"new"
        old = PageCache(seconds=0.0)
        for body in (b"1", b"2"):
            assert (await old.get("a", lambda body=body: CachedPage.of(body.decode()))).body == body

    asyncio.run(ask())


def test_equal_texts_have_equal_bytes_and_tags() -> None:
    text = "a page " * 1000
    first, second = CachedPage.of(text), CachedPage.of(text)
    assert first == second and first.zipped is not None
    assert gzip.decompress(first.zipped).decode() == text
    assert CachedPage.of("short").zipped is None
    assert CachedPage.of("other").etag != CachedPage.of("short").etag
