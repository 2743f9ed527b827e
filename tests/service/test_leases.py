from __future__ import annotations

import logging
import threading
import time

import pytest

from mechassay.service.database import DatabaseAway
from mechassay.service.leases import held


def test_what_is_taken_away_is_not_wanted_any_longer() -> None:
    answers = iter([True, True, False])
    begin = time.monotonic()
    with held(lambda: next(answers), threading.Event(), lease=0.4) as lost:
        assert lost.wait(20)
    assert time.monotonic() - begin >= 0.25


def test_a_worker_that_has_to_end_wants_nothing_any_longer() -> None:
    stop = threading.Event()
    stop.set()
    with held(lambda: True, stop) as wanted:
        assert wanted.wait(20)
    assert not any(thread.name.startswith("beat") for thread in threading.enumerate())


def test_a_lease_counts_from_before_the_beat_that_renewed_it() -> None:
    times: list[float] = []

    def beat() -> bool:
        times.append(time.monotonic())
        if len(times) == 1:
            time.sleep(0.9)  # Renewed at once; only the answer is slow.
            return True
        raise DatabaseAway("it does not answer")

    with held(beat, threading.Event(), lease=1.0) as lost:
        assert lost.wait(20)
    # At the first beat that failed a whole lease after it was renewed, and no later.
    late = [each - times[0] >= 1.0 for each in times]
    assert late.index(True) == len(times) - 1


def test_a_database_that_is_away_loses_nothing_until_the_lease_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times: list[float] = []

    def beat() -> bool:
        times.append(time.monotonic())
        if len(times) == 2:
            return True
        raise DatabaseAway("it does not answer")

    begin = time.monotonic()
    with (
        caplog.at_level(logging.WARNING),
        held(beat, threading.Event(), lease=1.0, worker="w") as lost,
    ):
        assert lost.wait(20)
    # It was renewed after the first beat that failed, and lost a whole lease later.
    assert time.monotonic() - times[1] >= 1.0 and time.monotonic() - begin >= 1.25
    assert "w: it does not answer" in caplog.text
