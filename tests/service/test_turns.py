from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from mechassay.errors import BadUsage
from mechassay.service.checks import checked, claim_check
from mechassay.service.database import Database
from mechassay.service.queue import claim, finish, receive, withdraw
from mechassay.service.settings import ServiceLimits
from mechassay.service.tables import Evaluation
from mechassay.service.work import PlannedEvaluation
from queue_seen import DONE, LEASE, OVER
from submissions_made import MANY, queued, submitter, upload


def test_500_cells_of_one_do_not_stand_before_2_of_another(db: Database) -> None:
    large = queued(db, submitter(db, "ann"), "1", 500)
    begun = [claim(db, "w", LEASE) for _ in range(10)]
    assert {each and each.submission_id for each in begun} == {large.id}
    small = queued(db, submitter(db, "bob"), "2", 2)
    following = [claim(db, "w", LEASE) for _ in range(3)]
    assert [each and each.submission_id for each in following] == [small.id, small.id, large.id]


def test_submissions_of_one_submitter_take_turns(db: Database) -> None:
    ann = submitter(db)
    large, small = queued(db, ann, "1", 100), queued(db, ann, "2", 2)
    order = [claim(db, "w", LEASE) for _ in range(5)]
    names = {large.id: "L", small.id: "s"}
    assert "".join(names[each.submission_id] for each in order if each) == "LsLsL"


def test_many_submissions_of_one_count_as_one_submitter(db: Database) -> None:
    ann, bob = submitter(db, "ann"), submitter(db, "bob")
    for digest in "12345":
        queued(db, ann, digest, 4)
    of_bob = queued(db, bob, "6", 4).id
    order = [claim(db, "w", LEASE) for _ in range(8)]
    assert [bool(each and each.submission_id == of_bob) for each in order] == [False, True] * 4


def test_work_of_yesterday_is_forgiven(db: Database) -> None:
    ann, bob = submitter(db, "ann"), submitter(db, "bob")
    queued(db, ann, "1", 5)
    while (held := claim(db, "w", LEASE)) is not None:
        finish(db, held, "w", DONE)

    def age(session: Session) -> None:
        for row in session.query(Evaluation):
            assert row.started is not None
            row.started -= timedelta(days=1, hours=1)

    db.write(age)
    of_ann = queued(db, ann, "2", 1).id
    queued(db, bob, "3", 1)
    first = claim(db, "w", LEASE)
    assert first is not None and first.submission_id == of_ann


def test_what_is_withdrawn_and_received_anew_is_counted_each_time(db: Database) -> None:
    ann, bob, limits = submitter(db), submitter(db, "bob"), ServiceLimits(a_day=3, at_once=5)
    for _ in range(3):
        made, new = receive(db, ann, upload(), limits)
        assert new
        check = claim_check(db, "w", LEASE)
        assert check is not None and checked(db, check, "w", [], [PlannedEvaluation(0, "a")])
        assert claim(db, "w", LEASE) is not None
        withdraw(db, made.id, ann)
    with pytest.raises(BadUsage, match="ann: 3 submissions in 24 hours; 3 are allowed"):
        receive(db, ann, upload(), limits)
    # Nor are begun cells forgotten with their rows: three of Ann's stand against one of Bob's.
    again = queued(db, ann, cells=4).id
    of_bob = queued(db, bob, "2", 5).id
    order = [claim(db, "w", LEASE) for _ in range(5)]
    assert [each and each.submission_id for each in order] == [of_bob] * 3 + [again, of_bob]


def test_a_cell_that_kills_its_worker_waits_behind_the_others(db: Database) -> None:
    queued(db, submitter(db), cells=3)
    killed = claim(db, "w", OVER)
    later = [claim(db, "w", LEASE) for _ in range(3)]
    assert killed is not None
    assert [each and each.cell for each in later] == ["cell 1", "cell 2", "cell 0"]


def test_what_a_worker_passes_over_others_may_take(db: Database) -> None:
    ann = submitter(db)
    first, second = queued(db, ann, "1", 1), queued(db, ann, "2", 1)
    held = claim(db, "w", LEASE, without={first.id})
    assert held is not None and held.submission_id == second.id
    assert claim(db, "w", LEASE, without=[first.id]) is None
    held = claim(db, "other", LEASE)
    assert held is not None and held.submission_id == first.id
    third, fourth = (receive(db, ann, upload(digest), MANY)[0] for digest in "34")
    check = claim_check(db, "w", LEASE, without={third.id})
    assert check is not None and check.id == fourth.id
    assert claim_check(db, "w", LEASE, without={third.id}) is None
    check = claim_check(db, "other", LEASE)
    assert check is not None and check.id == third.id
