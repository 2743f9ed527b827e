from __future__ import annotations

import threading

import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.service.changes import ATTEMPTS, LOST
from mechassay.service.checks import checked, claim_check, give_back_check, unread
from mechassay.service.database import Database
from mechassay.service.queue import claim, finish, receive, withdraw
from mechassay.service.retry import retry
from mechassay.service.settings import ServiceLimits
from mechassay.service.tables import Receipt, Submission
from mechassay.service.work import Outcome, PlannedEvaluation, Retried
from mechassay.submissions import Problem
from queue_seen import DONE, LEASE, OVER, Forgetful, at_once, evaluations, now_of
from submissions_made import MANY, queued, submitter, upload

FAILED, SKIPPED = Outcome("failed", message="no memory", seconds=3.0), Outcome("skipped", "no")


def ended(db: Database, *outcomes: Outcome, digest: str = "1", who: str = "ann") -> Submission:
    """A submission that is done, whose cells have ended so."""
    made = queued(db, submitter(db, who), digest, len(outcomes))
    for outcome in outcomes:
        held = claim(db, "w", LEASE)
        assert held is not None and finish(db, held, "w", outcome)
    assert now_of(db, made).state == "done"
    return made


def unread_one(db: Database) -> Submission:
    """A submission whose check took too long."""
    made = receive(db, submitter(db), upload())[0]
    for _ in range(ATTEMPTS - 1):
        held = claim_check(db, "w", LEASE)
        assert held is not None and give_back_check(db, held, "w", died=True)
    held = claim_check(db, "w", LEASE)
    assert held is not None and checked(db, held, "w", [unread("took longer than 900 s")], [])
    return made


def test_failed_and_skipped_cells_wait_again_and_done_ones_keep_their_records(
    db: Database,
) -> None:
    made = ended(db, DONE, FAILED, SKIPPED)
    before = evaluations(db)[0]
    assert retry(db, made.id) == Retried("queued", False, 2)
    found, (done, *again) = now_of(db, made), evaluations(db)
    assert (found.state, found.finished) == ("queued", None)
    assert (done.state, done.record, done.finished) == ("done", "records/1", before.finished)
    for each in again:
        assert (each.state, each.attempts, each.deaths, each.worker) == ("waiting", 0, 0, None)
        assert (each.message, each.seconds, each.finished) == (None, None, None)
    for attempt in (1, 1):
        held = claim(db, "w", LEASE)
        assert held is not None and held.attempts == attempt and finish(db, held, "w", DONE)
    found = now_of(db, made)
    assert found.state == "done" and found.finished is not None
    assert [each.state for each in evaluations(db)] == ["done"] * 3


def test_only_the_cells_that_are_named_wait_again(db: Database) -> None:
    made = ended(db, FAILED, FAILED, DONE)
    assert retry(db, made.id, ["cell 1"]) == Retried("queued", False, 1)
    assert [each.state for each in evaluations(db)] == ["failed", "waiting", "done"]
    with pytest.raises(UnknownName, match="cell of the submission 'cell 3'. Did you mean"):
        retry(db, made.id, ["cell 0", "cell 3"])
    assert [each.state for each in evaluations(db)] == ["failed", "waiting", "done"]
    # It is queued already.
    assert retry(db, made.id, ["cell 0", "cell 2"]) == Retried("queued", False, 1)


def test_where_nothing_failed_nothing_changes(db: Database) -> None:
    made = ended(db, DONE)
    before = now_of(db, made)
    assert retry(db, made.id) == retry(db, made.id, ["cell 0"]) == Retried("done", False, 0)
    assert now_of(db, made).finished == before.finished
    fresh = receive(db, submitter(db, "bob"), upload("2"))[0]
    assert retry(db, fresh.id) == Retried("received", False, 0)
    assert claim_check(db, "w", LEASE) is not None
    assert retry(db, fresh.id) == Retried("checking", False, 0)


def test_a_check_that_came_to_no_end_is_received_again(db: Database) -> None:
    made = unread_one(db)
    found = now_of(db, made)
    assert (found.state, found.attempts, found.deaths) == ("refused", 1 + 2, 2)
    assert retry(db, made.id) == Retried("received", True, 0)
    found = now_of(db, made)
    assert (found.state, found.report, found.finished) == ("received", [], None)
    assert (found.attempts, found.deaths, found.worker) == (0, 0, None)
    held = claim_check(db, "w", LEASE)
    assert held is not None and (held.id, held.attempts) == (made.id, 1)
    assert checked(db, held, "w", [], [PlannedEvaluation(0, "a")])
    assert now_of(db, made).state == "queued"


def test_a_check_whose_workers_all_died_is_received_again(db: Database) -> None:
    made = receive(db, submitter(db), upload())[0]
    for _ in range(LOST):
        assert claim_check(db, "w", OVER) is not None
    assert claim_check(db, "w", LEASE) is None
    assert retry(db, made.id) == Retried("received", True, 0)


def test_what_was_refused_for_what_it_is_stays_refused(db: Database) -> None:
    made = receive(db, submitter(db), upload())[0]
    held = claim_check(db, "w", LEASE)
    assert held is not None and checked(db, held, "w", [Problem("a.json", "NaN")], [])
    assert retry(db, made.id) == Retried("refused", False, 0)
    assert now_of(db, made).report[0]["message"] == "NaN"


def test_what_is_withdrawn_or_unknown_is_refused(db: Database) -> None:
    made = ended(db, FAILED)
    withdraw(db, made.id, submitter(db, "boss", admin=True))
    with pytest.raises(BadUsage, match=f"{made.id}: is withdrawn; only its submitter"):
        retry(db, made.id)
    assert now_of(db, made).state == "withdrawn" and evaluations(db)[0].state == "failed"
    with pytest.raises(UnknownName, match="submission 'nobody'"):
        retry(db, "nobody")


def test_limits_of_rate_do_not_count_a_retry_and_turns_count_what_was_begun(db: Database) -> None:
    made = ended(db, FAILED, FAILED, FAILED)
    receipts = db.read(lambda session: session.query(Receipt).count())
    retry(db, made.id)
    assert db.read(lambda session: session.query(Receipt).count()) == receipts
    # Three of Ann's were begun today: three of Bob's come first. Begun again, they count once.
    of_bob = queued(db, submitter(db, "bob"), "2", 4).id
    order = [claim(db, "w", LEASE) for _ in range(7)]
    expected = [*[of_bob] * 3, *[made.id] * 3, of_bob]
    assert [each and each.submission_id for each in order] == expected


def test_what_waits_again_is_pending(db: Database) -> None:
    ann, limits = submitter(db), ServiceLimits(a_day=10, at_once=1)
    made = receive(db, ann, upload(), limits)[0]
    held = claim_check(db, "w", LEASE)
    assert held is not None and checked(db, held, "w", [], [PlannedEvaluation(0, "a")])
    cell = claim(db, "w", LEASE)
    assert cell is not None and finish(db, cell, "w", FAILED)
    retry(db, made.id)
    with pytest.raises(BadUsage, match="1 submissions wait"):
        receive(db, ann, upload("2"), limits)


def test_an_end_of_before_does_not_count_for_a_cell_that_waits_again(db: Database) -> None:
    made = queued(db, submitter(db), cells=1)
    held = claim(db, "w", LEASE)
    assert held is not None and finish(db, held, "w", FAILED)
    retry(db, made.id)
    assert not finish(db, held, "w", FAILED) and not finish(db, held, "w", DONE)
    assert evaluations(db)[0].state == "waiting"


def test_a_retry_while_the_last_cell_ends_leaves_nothing_behind(db: Database) -> None:
    who = submitter(db)
    for trial in range(8):
        made = queued(db, who, str(trial), 2)
        first, last = claim(db, "w", LEASE), claim(db, "w", LEASE)
        assert first is not None and last is not None and finish(db, first, "w", FAILED)
        changes = [
            lambda last=last: finish(db, last, "w", DONE),
            lambda made=made: retry(db, made.id),
        ]
        found = dict[int, object]()
        at_once(2, lambda n, found=found, changes=changes: found.update({n: changes[n]()}))
        assert found == {0: True, 1: Retried("queued", False, 1)}
        assert now_of(db, made).state == "queued", "one cell waits: it is not done"
        again = claim(db, "w", LEASE)
        assert again is not None and again.id == first.id and finish(db, again, "w", DONE)
        assert now_of(db, made).state == "done"


def test_many_retries_while_workers_fail_cells_lose_nothing(db: Database) -> None:
    made = ended(db, *[FAILED] * 6)
    over = threading.Event()

    def run(index: int) -> None:
        if index < 2:
            for _ in range(5):
                retry(db, made.id)
            over.set()
            return
        while not over.is_set() or now_of(db, made).state != "done":
            held = claim(db, f"w{index}", LEASE)
            if held is not None:
                assert finish(db, held, f"w{index}", FAILED)

    at_once(4, run)
    states = {each.state for each in evaluations(db)}
    assert (now_of(db, made).state == "done") == (states == {"failed"})
    retry(db, made.id)
    while (held := claim(db, "w", LEASE)) is not None:
        assert finish(db, held, "w", DONE)
    assert now_of(db, made).state == "done"


def test_a_retry_can_run_twice(forgetful: Forgetful) -> None:
    db = forgetful
    made = ended(db, FAILED, DONE)
    db.lose = True
    assert retry(db, made.id) == Retried("queued", False, 1) and not db.lose
    assert evaluations(db)[0].state == "waiting"
    assert retry(db, made.id) == Retried("queued", False, 0)
    withdraw(db, made.id, submitter(db, "boss", admin=True))
    other = receive(db, submitter(db, "bob"), upload("2"), MANY)[0]
    held = claim_check(db, "w", LEASE)
    assert held is not None and checked(db, held, "w", [unread("died")], [])
    db.lose = True
    assert retry(db, other.id) == Retried("received", True, 0) and not db.lose
    assert retry(db, other.id) == Retried("received", False, 0)


def test_a_cell_is_named_as_status_says_it_or_as_in_its_plan(db: Database) -> None:
    made = receive(db, submitter(db), upload())[0]
    held = claim_check(db, "w", LEASE)
    assert held is not None
    plan = [PlannedEvaluation(n, f"c{n}", called=f"m/t{n}") for n in range(3)]
    assert checked(db, held, "w", [], plan, kind="circuits")
    for _ in plan:
        found = claim(db, "w", LEASE)
        assert found is not None and finish(db, found, "w", FAILED)
    assert retry(db, made.id, ["m/t0", "c2"]).cells == 2
    assert [each.state for each in evaluations(db)] == ["waiting", "failed", "waiting"]
    with pytest.raises(UnknownName, match="m/t1"):
        retry(db, made.id, ["m/t"])
