"""Submitters and submissions in a service's database, made without a file."""

from __future__ import annotations

from mechassay.service.checks import checked, claim_check
from mechassay.service.database import Database
from mechassay.service.queue import receive
from mechassay.service.settings import ServiceLimits
from mechassay.service.tables import Submission, Submitter
from mechassay.service.tokens import new_token, submitter_of
from mechassay.service.work import PlannedEvaluation, Upload

MANY = ServiceLimits(a_day=10**6, at_once=10**6)


def submitter(db: Database, name: str = "ann", *, admin: bool = False) -> Submitter:
    return submitter_of(db, new_token(db, name, admin=admin))


def upload(digest: str = "1") -> Upload:
    return Upload(digest.zfill(64), f"uploads/{digest}", 3, f"circuits {digest}", {"method": "eap"})


def queued(db: Database, who: Submitter, digest: str = "1", cells: int = 2) -> Submission:
    """A submission whose evaluations wait."""
    made, _ = receive(db, who, upload(digest), MANY)
    held = claim_check(db, "checker", 60.0)
    assert held is not None and held.id == made.id
    plan = [PlannedEvaluation(0, f"cell {i}") for i in range(cells)]
    assert checked(db, held, "checker", [], plan)
    return made
