"""A service with submissions that are done, made without workers: records are put in its store."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mechassay as ma
from mechassay.progress import SILENT
from mechassay.records import Record, read_record
from mechassay.service.checks import checked, claim_check
from mechassay.service.client import ServerRefused, ServiceClient
from mechassay.service.database import Database
from mechassay.service.queue import claim, finish, receive
from mechassay.service.settings import ServiceLimits, ServiceSettings
from mechassay.service.store import Store
from mechassay.service.tables import Submission, Submitter
from mechassay.service.tokens import new_token, submitter_of
from mechassay.service.work import Outcome, PlannedEvaluation, Upload

TRACK = """
boards: [circuits]
limit: 8
models:
  truth-ioi: {tasks: [truth-ioi]}
  truth-induction: {tasks: [truth-induction]}
upload: {megabytes: 2, files: 100}
"""
MANY = ServiceLimits(a_day=10**6, at_once=10**6)
WORKER = "a test"


@cache
def made_records() -> dict[str, Record]:
    """Records of two methods on two ground truths, by `MODEL METHOD`."""
    job = ma.CircuitsJob(
        models=("truth-ioi", "truth-induction"),
        methods=("eap", "random"),
        train_limit=6,
        test_limit=8,
    )
    with TemporaryDirectory() as folder:
        ma.run(job, Path(folder) / "run", progress=SILENT)
        files = sorted((Path(folder) / "run" / "records").rglob("*.json"))
        found = [read_record(file) for file in files]
    return {f"{each.model.name} {each.method.name}": each for each in found}


@dataclass
class MadeService:
    """A service in a folder, with a submitter and the token."""

    settings: ServiceSettings
    db: Database
    store: Store
    token: str
    by: Submitter
    n: int = field(default=0)

    @staticmethod
    def at(folder: Path, url: str = "", limits: ServiceLimits = MANY) -> MadeService:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "track.yaml").write_text(TRACK)
        settings = ServiceSettings(folder, url, track=folder / "track.yaml", limits=limits)
        db = Database(settings.database)
        db.upgrade()
        token = new_token(db, "ann")
        store = Store.of(settings.store)
        return MadeService(settings, db, store, token, submitter_of(db, token))

    def received(self, name: str, content: bytes = b"PK") -> Submission:
        """A submission that waits to be checked."""
        self.n += 1
        digest = f"{self.n:064x}"
        self.store.put(f"uploads/{digest}", content)
        upload = Upload(digest, f"uploads/{digest}", len(content), name, {"name": name})
        return receive(self.db, self.by, upload, MANY)[0]

    def queued(self, name: str, cells: list[str]) -> Submission:
        """A submission whose evaluations wait."""
        found = self.received(name)
        held = claim_check(self.db, WORKER, 60.0)
        assert held is not None and held.id == found.id
        plan = [PlannedEvaluation(n, cell) for n, cell in enumerate(cells)]
        assert checked(self.db, held, WORKER, [], plan, kind="circuits")
        return held

    def work(self, texts: dict[str, str]) -> None:
        """End all evaluations that wait: with the text of a record by cell, or as failed."""
        while (each := claim(self.db, WORKER, 60.0)) is not None:
            outcome = Outcome("failed", "It took more than 1 s.", None, 1.0)
            if each.cell in texts:
                key = f"records/{each.submission_id}/{each.id}.json"
                self.store.put(key, texts[each.cell].encode())
                outcome = Outcome("done", None, key, 1.0)
            assert finish(self.db, each, WORKER, outcome)

    def done(self, name: str, method: str = "eap", models: tuple[str, ...] = ("truth-ioi",)) -> str:
        """The id of a submission that is done."""
        found = self.queued(name, list(models))
        records = made_records()
        self.work({model: records[f"{model} {method}"].stored_text() for model in models})
        return found.id


class Asked(ServiceClient):
    """A client of a server in this process."""

    def use(self, client: Any) -> Asked:
        object.__setattr__(self, "_client", client)
        return self

    def _answer(self, send: Any) -> Any:
        client: Any = self.__dict__["_client"]
        client.headers = {"Authorization": f"Bearer {self.token}"}
        answer = send(client)
        if answer.status_code >= 300:
            raise ServerRefused(answer.json()["error"])
        return answer


def edges_json() -> bytes:
    """Scores in MIB's layout, as one file of data."""
    return json.dumps({"edges": {}}).encode()
