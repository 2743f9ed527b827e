from __future__ import annotations

from mechassay.service.changes import LOST
from mechassay.service.checks import beat_check, checked, claim_check
from mechassay.service.database import Database
from mechassay.service.queue import claim, receive, withdraw
from mechassay.service.work import PlannedEvaluation
from mechassay.submissions import Problem
from queue_seen import LEASE, OVER, at_once, evaluations, now_of
from submissions_made import MANY, submitter, upload


def test_what_a_check_refuses_is_not_evaluated(db: Database) -> None:
    made, _ = receive(db, submitter(db), upload())
    held = claim_check(db, "w", LEASE)
    assert held is not None
    wrong = [Problem("a", "odd", warning=True), Problem("b", "NaN")]
    assert checked(db, held, "w", wrong, [PlannedEvaluation(0, "a")])
    found = now_of(db, made)
    assert found.state == "refused" and found.finished is not None and len(found.report) == 2
    assert evaluations(db) == [] and claim(db, "w", LEASE) is None


def test_a_submission_of_nothing_is_refused_not_done(db: Database) -> None:
    made, _ = receive(db, submitter(db), upload())
    held = claim_check(db, "w", LEASE)
    assert held is not None and checked(db, held, "w", [], [])
    found = now_of(db, made)
    assert found.state == "refused" and "nothing" in found.report[0]["message"]


def test_many_checks_at_once_take_each_submission_once(db: Database) -> None:
    ann = submitter(db)
    made = {receive(db, ann, upload(str(i)), MANY)[0].id for i in range(12)}
    seen: list[str] = []

    def run(index: int) -> None:
        while (held := claim_check(db, f"w{index}", LEASE)) is not None:
            seen.append(held.id)

    at_once(6, run)
    assert sorted(seen) == sorted(made)


def test_a_check_whose_workers_died_that_often_is_refused(db: Database) -> None:
    made, _ = receive(db, submitter(db), upload())
    for attempt in range(1, LOST + 1):
        held = claim_check(db, "w", OVER)
        assert held is not None and held.attempts == attempt
    assert claim_check(db, "w", LEASE) is None
    found = now_of(db, made)
    assert found.state == "refused" and f"died {LOST} times" in found.report[0]["message"]
    assert not checked(db, held, "w", [], [PlannedEvaluation(0, "a")])


def test_checks_begin_with_who_handed_in_least(db: Database) -> None:
    ann, bob = submitter(db), submitter(db, "bob")
    for digest in "12":
        receive(db, ann, upload(digest))
    of_bob = receive(db, bob, upload("3"))[0].id
    first = claim_check(db, "w", LEASE)
    assert first is not None and first.id == of_bob


def test_a_check_that_was_taken_away_counts_no_more(db: Database) -> None:
    made, _ = receive(db, submitter(db), upload())
    slow, fast = claim_check(db, "slow", OVER), claim_check(db, "fast", LEASE)
    assert slow is not None and fast is not None and slow.id == fast.id == made.id
    assert not beat_check(db, slow, "slow", LEASE) and beat_check(db, fast, "fast", LEASE)
    assert not checked(db, slow, "slow", [Problem("", "late")], [])
    assert checked(db, fast, "fast", [], [PlannedEvaluation(0, "a")])
    assert now_of(db, made).state == "queued"


def test_a_submission_that_kills_its_checks_waits_behind_the_others(db: Database) -> None:
    ann = submitter(db)
    bad = receive(db, ann, upload("1"))[0]
    assert claim_check(db, "w", OVER) is not None
    good = receive(db, ann, upload("2"))[0]
    order = [claim_check(db, "w", LEASE), claim_check(db, "w", LEASE)]
    assert [each and each.id for each in order] == [good.id, bad.id]


def test_withdrawn_while_it_is_checked(db: Database) -> None:
    ann = submitter(db)
    made, _ = receive(db, ann, upload())
    held = claim_check(db, "w", LEASE)
    assert held is not None
    withdraw(db, made.id, ann)
    assert not beat_check(db, held, "w", LEASE)
    assert not checked(db, held, "w", [], [PlannedEvaluation(0, "a")])
    assert evaluations(db) == [] and now_of(db, made).state == "withdrawn"
