from __future__ import annotations

from mechassay.service.postponed import FIRST, LONGEST, PostponedWork


def test_a_submission_is_passed_over_for_twice_as_long_each_time() -> None:
    time = [100.0]
    postponed = PostponedWork(lambda: time[0])
    assert postponed.now() == frozenset()
    waits = [postponed.add("large") for _ in range(8)]
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    assert (waits[0], waits[-1]) == (FIRST, LONGEST)
    time[0] += LONGEST - 1
    assert postponed.add("other") == FIRST
    assert postponed.now() == {"large", "other"}
    time[0] += 1
    assert postponed.now() == {"other"}


def test_what_went_well_begins_anew() -> None:
    time = [0.0]
    postponed = PostponedWork(lambda: time[0])
    postponed.add("a")
    postponed.add("a")
    postponed.remove("a")
    postponed.remove("b")
    assert postponed.now() == frozenset()
    assert postponed.add("a") == FIRST


def test_what_is_resumed_is_not_passed_over_and_waits_twice_as_long_the_next_time() -> None:
    time = [0.0]
    postponed = PostponedWork(lambda: time[0])
    postponed.add("a")
    postponed.add("b")
    postponed.resume(["a"])
    assert postponed.now() == {"b"}
    assert postponed.add("a") == 2 * FIRST and postponed.now() == {"a", "b"}
