from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from mechassay.errors import BadUsage, UnknownName
from mechassay.service.changes import ATTEMPTS, LOST
from mechassay.service.checks import checked, claim_check, give_back_check
from mechassay.service.database import Database
from mechassay.service.queue import beat, claim, counts, finish, give_back, receive, withdraw
from mechassay.service.settings import ServiceLimits
from mechassay.service.tables import Receipt
from mechassay.service.work import Outcome, PlannedEvaluation
from mechassay.submissions import Problem
from queue_seen import DONE, LEASE, OVER, Forgetful, at_once, evaluations, now_of
from submissions_made import queued, submitter, upload


def test_a_submission_from_its_upload_to_its_end(db: Database) -> None:
    ann = submitter(db)
    made, new = receive(db, ann, upload())
    assert (made.state, new, made.declaration) == ("received", True, {"method": "eap"})
    held = claim_check(db, "w", LEASE)
    assert held is not None and (held.id, held.state, held.attempts) == (made.id, "checking", 1)
    assert claim_check(db, "other", LEASE) is None
    warned = [Problem("a.json", "odd", warning=True)]
    plan = [PlannedEvaluation(0, "a"), PlannedEvaluation(1, "a", "private")]
    assert checked(db, held, "w", warned, plan, kind="circuits", name="mine")
    found = now_of(db, made)
    assert (found.state, found.kind, found.name, found.finished) == (
        "queued",
        "circuits",
        "mine",
        None,
    )
    assert found.report == [{"path": "a.json", "message": "odd", "warning": True}]
    first = claim(db, "w", LEASE)
    assert first is not None and (first.job, first.split, first.state) == (0, "test", "running")
    assert counts(db, made.id).of == {"running": 1, "waiting": 1}
    assert beat(db, first, "w", LEASE) and finish(db, first, "w", DONE)
    second = claim(db, "w", LEASE)
    assert second is not None and (second.job, second.split) == (1, "private")
    assert finish(db, second, "w", Outcome("failed", message="no memory"))
    assert claim(db, "w", LEASE) is None
    found, (one, two) = now_of(db, made), evaluations(db)
    assert found.state == "done" and found.finished is not None
    assert (one.record, one.seconds, one.message) == ("records/1", 2.5, None)
    assert (two.state, two.message, two.record) == ("failed", "no memory", None)
    ended = counts(db, made.id)
    assert (ended["done"], ended["failed"], ended["waiting"], ended.total) == (1, 1, 0, 2)


def test_the_same_file_twice_is_one_submission(db: Database) -> None:
    ann, bob = submitter(db), submitter(db, "bob")
    first, new = receive(db, ann, upload())
    again, anew = receive(db, ann, upload())
    assert new and not anew and again.id == first.id
    other, new = receive(db, bob, upload())
    assert new and other.id != first.id


def test_many_uploads_of_one_file_at_once_are_one_submission(db: Database) -> None:
    ann, found = submitter(db), []
    at_once(8, lambda _: found.append(receive(db, ann, upload())))
    assert len({made.id for made, _ in found}) == 1
    assert sum(new for _, new in found) == 1


def test_what_was_refused_or_withdrawn_can_be_handed_in_again(db: Database) -> None:
    ann = submitter(db)
    made = queued(db, ann)
    withdraw(db, made.id, ann)
    again, new = receive(db, ann, upload())
    assert new and again.id == made.id
    assert (again.state, again.finished, again.report) == ("received", None, [])
    assert evaluations(db) == [] and claim(db, "w", LEASE) is None
    held = claim_check(db, "w", LEASE)
    assert held is not None and held.attempts == 1
    assert checked(db, held, "w", [], [PlannedEvaluation(0, "cell 0")])
    assert claim(db, "w", LEASE) is not None


def test_the_limit_at_once_counts_what_is_not_evaluated(db: Database) -> None:
    ann, limits = submitter(db), ServiceLimits(a_day=10, at_once=2)
    first = receive(db, ann, upload("1"), limits)[0]
    receive(db, ann, upload("2"), limits)
    with pytest.raises(BadUsage, match="ann: 2 submissions wait for their evaluation; 2 may at"):
        receive(db, ann, upload("3"), limits)
    assert not receive(db, ann, upload("2"), limits)[1]
    receive(db, submitter(db, "bob"), upload("3"), limits)
    withdraw(db, first.id, ann)
    assert receive(db, ann, upload("3"), limits)[1]


def test_the_limit_a_day_counts_withdrawn_ones_and_ends_with_the_day(db: Database) -> None:
    ann, limits = submitter(db), ServiceLimits(a_day=2, at_once=10)
    for digest in "12":
        withdraw(db, receive(db, ann, upload(digest), limits)[0].id, ann)
    with pytest.raises(BadUsage, match="ann: 2 submissions in 24 hours; 2 are allowed"):
        receive(db, ann, upload("3"), limits)

    def age(session: Session) -> None:
        for row in session.query(Receipt):
            row.created -= timedelta(days=1)

    db.write(age)
    assert receive(db, ann, upload("3"), limits)[1]


def test_limits_hold_for_uploads_at_once_and_not_for_administrators(db: Database) -> None:
    ann, limits, refused = submitter(db), ServiceLimits(a_day=3, at_once=3), []

    def hand_in(index: int) -> None:
        try:
            receive(db, ann, upload(str(index)), limits)
        except BadUsage:
            refused.append(index)

    at_once(8, hand_in)
    assert len(refused) == 5
    boss = submitter(db, "boss", admin=True)
    assert all(receive(db, boss, upload(str(i)), limits)[1] for i in range(8))


def test_many_claims_at_once_double_and_lose_nothing(db: Database) -> None:
    who = [submitter(db, name) for name in ("ann", "bob")]
    made = [queued(db, who[i % 2], str(i), 10) for i in range(4)]
    seen: list[int] = []

    def run(index: int) -> None:
        while (held := claim(db, f"w{index}", LEASE)) is not None:
            seen.append(held.id)
            assert finish(db, held, f"w{index}", Outcome("done", record=f"records/{held.id}"))

    at_once(8, run)
    assert Counter(seen) == Counter(row.id for row in evaluations(db))
    assert len(seen) == 40
    assert all(row.state == "done" and row.attempts == 1 for row in evaluations(db))
    assert all(row.record == f"records/{row.id}" for row in evaluations(db))
    assert {now_of(db, each).state for each in made} == {"done"}


def test_the_last_two_of_a_submission_end_it_at_once(db: Database) -> None:
    ann = submitter(db)
    for trial in range(6):
        made = queued(db, ann, str(trial), 2)
        held = [claim(db, f"w{i}", LEASE) for i in range(2)]

        def end(index: int, held: list[Any] = held) -> None:
            assert finish(db, held[index], f"w{index}", DONE)

        at_once(2, end)
        assert now_of(db, made).state == "done"


def test_an_expired_lease_is_taken_by_another_and_the_first_counts_no_more(db: Database) -> None:
    made = queued(db, submitter(db), cells=1)
    slow = claim(db, "slow", OVER)
    fast = claim(db, "fast", LEASE)
    assert slow is not None and fast is not None
    assert (fast.id, fast.attempts) == (slow.id, 2)
    assert not beat(db, slow, "slow", LEASE)
    assert not finish(db, slow, "slow", Outcome("failed", message="late"))
    assert finish(db, fast, "fast", DONE)
    (row,) = evaluations(db)
    assert (row.state, row.worker, row.message) == ("done", "fast", None)
    assert now_of(db, made).state == "done"


def test_a_worker_that_takes_back_what_it_lost_holds_the_new_claim_alone(db: Database) -> None:
    queued(db, submitter(db), cells=1)
    old = claim(db, "w", OVER)
    new = claim(db, "w", LEASE)
    assert old is not None and new is not None and new.id == old.id
    assert not beat(db, old, "w", LEASE) and not finish(db, old, "w", DONE)
    assert beat(db, new, "w", LEASE) and finish(db, new, "w", DONE)


def test_a_beat_holds_what_a_lease_would_have_lost(db: Database) -> None:
    queued(db, submitter(db), cells=1)
    held = claim(db, "w", OVER)
    assert held is not None and beat(db, held, "w", LEASE)
    assert claim(db, "other", LEASE) is None
    assert finish(db, held, "w", DONE)


def test_a_cell_outlives_ten_workers_and_more_and_ends_all_the_same(db: Database) -> None:
    made = queued(db, submitter(db), cells=1)
    assert LOST > 10
    for attempt in range(1, LOST + 1):
        held = claim(db, "w", OVER)
        assert held is not None and held.attempts == attempt
        assert now_of(db, made).state == "queued"
    assert claim(db, "w", LEASE) is None
    (row,) = evaluations(db)
    assert (row.state, row.message) == ("failed", f"its worker died {LOST} times.")
    assert now_of(db, made).state == "done"


def test_what_was_given_back_was_not_tried(db: Database) -> None:
    queued(db, submitter(db), cells=1)
    for _ in range(ATTEMPTS + 2):
        held = claim(db, "w", LEASE)
        assert held is not None and held.attempts == 1
        assert give_back(db, held, "w")
    assert not give_back(db, held, "w") and not beat(db, held, "w", LEASE)
    (row,) = evaluations(db)
    assert (row.state, row.attempts, row.started, row.worker) == ("waiting", 0, None, None)


def test_what_is_given_back_counts_only_where_a_child_died(db: Database) -> None:
    made, _ = receive(db, submitter(db), upload())
    for died, attempts, deaths in ((False, 1, 0), (True, 1, 0), (True, 2, 1), (False, 3, 2)):
        check = claim_check(db, "w", LEASE)
        assert check is not None and (check.attempts, check.deaths) == (attempts, deaths)
        assert not give_back_check(db, check, "other") and give_back_check(
            db, check, "w", died=died
        )
    assert not give_back_check(db, check, "w")
    found = now_of(db, made)
    assert (found.state, found.attempts, found.deaths) == ("received", 2, 2)
    check = claim_check(db, "w", LEASE)
    assert check is not None and checked(db, check, "w", [], [PlannedEvaluation(0, "a")])
    held = claim(db, "w", LEASE)
    assert held is not None and give_back(db, held, "w", died=True)
    (row,) = evaluations(db)
    assert (row.state, row.attempts, row.deaths) == ("waiting", 1, 1)


def test_a_cell_that_runs_while_its_submission_is_received_anew_does_not_count(
    db: Database,
) -> None:
    ann = submitter(db)
    made = queued(db, ann, cells=1)
    old = claim(db, "w", LEASE)
    assert old is not None
    withdraw(db, made.id, ann)
    receive(db, ann, upload())
    assert not finish(db, old, "w", DONE) and not give_back(db, old, "w")
    check = claim_check(db, "w", LEASE)
    assert check is not None and checked(db, check, "w", [], [PlannedEvaluation(0, "cell 0")])
    new = claim(db, "w", LEASE)
    assert new is not None and not finish(db, old, "w", DONE)
    assert finish(db, new, "w", DONE) and now_of(db, made).state == "done"


def test_withdrawn_while_running(db: Database) -> None:
    ann = submitter(db)
    made = queued(db, ann, cells=3)
    done, running = claim(db, "w", LEASE), claim(db, "w", LEASE)
    assert done is not None and running is not None and finish(db, done, "w", DONE)
    assert withdraw(db, made.id, ann).state == "withdrawn"
    assert withdraw(db, made.id, ann).state == "withdrawn"
    assert not beat(db, running, "w", LEASE)
    assert not finish(db, running, "w", DONE)
    assert claim(db, "w", LEASE) is None
    assert counts(db, made.id).of == {"done": 1, "withdrawn": 2}
    assert now_of(db, made).state == "withdrawn"


def test_withdrawn_while_many_claim(db: Database) -> None:
    ann = submitter(db)
    made = queued(db, ann, cells=30)

    def run(index: int) -> None:
        if index == 0:
            withdraw(db, made.id, ann)
        while (held := claim(db, f"w{index}", LEASE)) is not None:
            finish(db, held, f"w{index}", DONE)

    at_once(5, run)
    states = counts(db, made.id)
    assert set(states.of) <= {"done", "withdrawn"} and states.total == 30
    assert now_of(db, made).state in ("withdrawn", "done")


def test_only_who_submitted_it_and_administrators_withdraw(db: Database) -> None:
    ann, bob, boss = (submitter(db, n, admin=n == "boss") for n in ("ann", "bob", "boss"))
    made = queued(db, ann)
    with pytest.raises(UnknownName) as others:
        withdraw(db, made.id, bob)
    with pytest.raises(UnknownName) as nobodys:
        withdraw(db, "A" * 16, bob)
    # Bob does not learn which ids there are.
    assert str(others.value).replace(made.id, "") == str(nobodys.value).replace("A" * 16, "")
    assert now_of(db, made).state == "queued"
    assert withdraw(db, made.id, boss).state == "withdrawn"


def test_texts_that_a_database_refuses_are_kept_without_what_it_refuses(db: Database) -> None:
    odd = "a\0b\ud800c" + 3000 * "d"
    made, _ = receive(db, submitter(db), replace(upload(), name=odd))
    assert made.name.startswith("ab?cd") and len(made.name) <= 200
    held = claim_check(db, "w", LEASE)
    assert held is not None
    warned = [Problem(odd, odd, warning=True)]
    assert checked(db, held, "w", warned, [PlannedEvaluation(0, "a")], declaration={"x": odd})
    running = claim(db, "w", LEASE)
    assert running is not None and finish(db, running, "w", Outcome("failed", message=odd))
    assert str(evaluations(db)[0].message).startswith("ab?cd")
    assert now_of(db, made).declaration == {"x": odd}


def test_each_change_of_state_can_run_twice(forgetful: Forgetful) -> None:
    db = forgetful
    ann = submitter(db)

    def lost(call: Callable[[], Any]) -> Any:
        db.lose = True
        found = call()
        assert not db.lose
        return found

    made, new = lost(lambda: receive(db, ann, upload()))
    assert new
    held = lost(lambda: claim_check(db, "w", LEASE))
    assert (held.id, held.attempts) == (made.id, 1)
    plan = [PlannedEvaluation(0, name) for name in "abc"]
    assert lost(lambda: checked(db, held, "w", [], plan))
    one = lost(lambda: claim(db, "w", LEASE))
    assert one.attempts == 1 and counts(db, made.id).of == {"running": 1, "waiting": 2}
    assert lost(lambda: beat(db, one, "w", LEASE))
    assert lost(lambda: finish(db, one, "w", DONE))
    two = lost(lambda: claim(db, "w", LEASE))
    assert two.id != one.id
    assert lost(lambda: withdraw(db, made.id, ann)).state == "withdrawn"
    assert counts(db, made.id).of == {"done": 1, "withdrawn": 2}
    assert len(evaluations(db)) == 3


def test_an_end_may_be_said_again_but_no_other_one(db: Database) -> None:
    queued(db, submitter(db), cells=1)
    held = claim(db, "w", LEASE)
    assert held is not None and finish(db, held, "w", DONE)
    assert finish(db, held, "w", DONE)
    assert not finish(db, held, "other", DONE)
    assert not finish(db, held, "w", replace(DONE, record="records/2"))
    assert not finish(db, held, "w", Outcome("failed", message="no memory"))
    (row,) = evaluations(db)
    assert (row.state, row.record) == ("done", "records/1")
