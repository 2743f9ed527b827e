"""A service on one machine for tests: a track of a ground truth, submissions, workers."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import select

import mechassay as ma
from mechassay.circuits.scores import EdgeScores
from mechassay.records import Record, read_record
from mechassay.service.checks import checked, claim_check
from mechassay.service.database import Database
from mechassay.service.queue import receive
from mechassay.service.settings import ServiceSettings
from mechassay.service.store import Store
from mechassay.service.tables import Evaluation, Submission, Submitter
from mechassay.service.tokens import new_token, submitter_of
from mechassay.service.work import PlannedEvaluation, Upload

SEED = 4_611_686_018_427_388_777
"""Of private examples; the last of the epochs counts."""
OLD_SEED = 2_305_843_009_213_693_951
HERE = Path(__file__).parent
ALIGNMENT = HERE / "data" / "alignments" / "truth_ioi_answer"
TRACK = """
boards: [circuits, variables]
splits: [{splits}]
limit: 6
models:
  truth-ioi: {{tasks: [truth-ioi]}}
  truth-ioi-trained: {{tasks: [truth-ioi]}}
cell: {{seconds: {seconds}, memory_gb: {memory}}}
"""


@dataclass
class Served:
    """A service in a folder.

    Attributes:
        settings: of its parts.
        db: its database.
        submitter: whose submissions are made.
    """

    settings: ServiceSettings
    db: Database
    submitter: Submitter

    @staticmethod
    def at(
        folder: Path,
        url: str = "",
        *,
        splits: str = "test",
        seconds: float = 300,
        memory: float = 8,
    ) -> Served:
        """A new service; with private examples, where these are among the splits."""
        folder.mkdir(parents=True, exist_ok=True)
        track = folder / "track.yaml"
        track.write_text(TRACK.format(splits=splits, seconds=seconds, memory=memory))
        seeds = None
        if "private" in splits:
            seeds = folder.parent / f"{folder.name}.seeds"
            seeds.write_text(f"2026-10 {OLD_SEED}\n2026-11 {SEED}\n")
            seeds.chmod(0o600)
        settings = ServiceSettings(folder, url, track=track, private_seed_file=seeds)
        db = Database(settings.database)
        db.upgrade()
        return Served(settings, db, submitter_of(db, new_token(db, "ann")))

    @property
    def store(self) -> Store:
        return Store.of(self.settings.store)

    def submit(self, archive: Path, name: str = "mine") -> str:
        """Hand in a file; the id of the submission."""
        key = f"uploads/{hashlib.sha256(archive.read_bytes()).hexdigest()}"
        self.store.put_file(key, archive)
        told = {"name": name}
        upload = Upload(key[8:], key, archive.stat().st_size, name, told)
        submission, _ = receive(self.db, self.submitter, upload)
        return submission.id

    def submission(self, submission: str) -> Submission:
        return self.db.read(lambda session: session.get_one(Submission, submission))

    def evaluations(self, submission: str) -> list[Evaluation]:
        rows = select(Evaluation).filter_by(submission_id=submission).order_by(Evaluation.id)
        return self.db.read(lambda session: list(session.scalars(rows)))

    def records(self, submission: str, folder: Path) -> list[Record]:
        """The records of a submission, by way of a folder."""
        found: list[Record] = []
        for each in self.evaluations(submission):
            if each.record is not None:
                path = folder / f"{each.id}.json"
                self.store.get_file(each.record, path)
                found.append(read_record(path))
        return found

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """A worker as a process of its own: `service_worker_process.py`."""
        where = [str(self.settings.folder), self.settings.database]
        seeds = self.settings.private_seed_file
        return subprocess.Popen(
            [
                sys.executable,
                str(HERE / "service_worker_process.py"),
                *where,
                str(seeds or ""),
                *words,
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def circuits_archive(file: Path, seed: int = 0, name: str = "mine") -> Path:
    """Random scores of truth-ioi's edges, as a submission of circuits."""
    graph = ma.load_model("truth-ioi").graph
    values = torch.rand(graph.legal.shape, generator=torch.Generator().manual_seed(seed))
    folder = file.with_suffix("")
    EdgeScores(graph, values).save(folder / "truth-ioi_truth-ioi" / "scores.safetensors")
    return _archived(folder, file, name)


def variables_archive(file: Path, name: str = "mine") -> Path:
    """The packaged alignment of truth-ioi-trained as a submission of variables."""
    folder = file.with_suffix("")
    shutil.copytree(ALIGNMENT, folder / "answer")
    return _archived(folder, file, name)


def _archived(folder: Path, file: Path, name: str) -> Path:
    (folder / "submission.yaml").write_text(f"name: {name}\n")
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder).as_posix())
    return file


def without_times(record: Record) -> dict[str, Any]:
    """All of a record but when and how fast it was made."""
    plain = record.model_dump(mode="json")
    return {name: value for name, value in plain.items() if name not in ("provenance", "realised")}


def planned(served: Served, archive: Path, *cells: PlannedEvaluation) -> str:
    """A submission that was checked elsewhere; its id."""
    submission = served.submit(archive)
    claimed = claim_check(served.db, "other", 60.0)
    assert claimed is not None and claimed.id == submission
    assert checked(served.db, claimed, "other", [], cells)
    return submission


def junk(file: Path, content: bytes = b"PK") -> Path:
    file.write_bytes(content)
    return file


def ended(process: subprocess.Popen[str], seconds: float = 600) -> str:
    """What a worker's process has logged."""
    return process.communicate(timeout=seconds)[1]
