"""Which records are about a claim, and which of their measures a part of a rule asks for.

A record answers if it is of the claim's model and circuit, and where the part does not say
otherwise of its task, with the settings that the claim gives it, and ablation. A file of scores is
known by its hash where a record has that. A claim may name a model by a folder, a task by a file
and a method with its settings: records have names of their own, which are made here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import method_name
from mechassay.circuits.scores import SCORES_SHA256
from mechassay.claims.claim import Claim
from mechassay.claims.rubric import RecordTest
from mechassay.claims.stored import StoredRecord
from mechassay.files import file_hash
from mechassay.models.revisions import UNTRAINED
from mechassay.records import Measure
from mechassay.rows import FILES
from mechassay.tasks.load import TASKS, load_task
from mechassay.tasks.task import settings_of

SIZED = ("circuit", "complement", "unneeded")
"""Measures whose name ends with the size of the circuit."""
TRUTH = "truth-"
FAITHFULNESS, ONE_SIZE = "faithfulness", "one-size"


def _of_circuit(stored: StoredRecord, claim: Claim) -> bool:
    if not _of_file(stored, claim):
        return False
    names = (claim.ranking, spelled(claim.ranking))
    if stored.ranking in (*names, claim.circuit):
        return True
    name, at, size = stored.ranking.rpartition("@")
    stem = Path(name).stem if name.endswith(".safetensors") else name
    return bool(at) and size == claim.size and stem in names


def _of_file(stored: StoredRecord, claim: Claim) -> bool:
    """Whether a record is of the claim's file of scores, as far as both are known by their hash."""
    method = stored.record.specs.get("method")
    digest = method.args.get(SCORES_SHA256) if method else None
    if not digest or not claim.scores or not Path(claim.scores).is_file():
        return True
    return digest == file_hash(Path(claim.scores))


@cache
def spelled(ranking: str) -> str:
    """What records call a method that a claim names, with its settings; others as they are."""
    if ranking.partition(":")[0] not in METHODS.names():
        return ranking
    return method_name(METHODS.make(ranking))


def record_name(model: str) -> str:
    """What records call a model that a claim names: a folder or a file by its own name."""
    if model.startswith(UNTRAINED):
        return UNTRAINED + record_name(model.removeprefix(UNTRAINED))
    path = Path(model).expanduser()
    if path.suffix.lower() == ".gguf":
        return path.stem
    return path.name if path.is_dir() else model


def task_name(task: str) -> str:
    """What records call a task that a claim names: without settings, a file by its own name."""
    return Path(task).stem if task.lower().endswith(FILES) else task.partition(":")[0]


@cache
def _settings(task: str) -> dict[str, str]:
    """The settings of a task that a claim names, as records state them."""
    if task.partition(":")[0] not in TASKS.names():
        return {}
    return {key: _plain(value) for key, value in settings_of(load_task(task)).items()}


def _plain(value: Any) -> str:
    return json.dumps(value, default=str, sort_keys=True)


def _of_task(stored: StoredRecord, claim: Claim, where: str) -> bool:
    """Whether a record is of the claim's task with its settings, or of another task.

    A task with other settings is neither.
    """
    named = stored.record.task.name in (claim.task, task_name(claim.task))
    if where == "other task":
        return not named
    asked, args = _settings(claim.task), stored.record.task.args
    return named and all(_plain(args[key]) == asked[key] for key in asked if key in args)


def _of_model(stored: StoredRecord, claim: Claim, where: str, families: set[str]) -> bool:
    name, family = stored.record.model.name, stored.family
    if where == "truth":
        # A ranking that no method made says nothing of a method, whatever its file is called.
        by_method = not claim.scores and claim.ranking.partition(":")[0] in METHODS.names()
        return by_method and name.startswith(TRUTH)
    if where == "other family":
        strange = name.startswith((TRUTH, UNTRAINED))
        return bool(families) and bool(family) and family not in families and not strange
    model = claim.untrained_copy if where == "untrained" else claim.model
    return bool(model) and name in (model, record_name(model))


def kind_of(stored: StoredRecord) -> str:
    """The kind that rules name: one size is measured in the same way with a curve and without."""
    return FAITHFULNESS if stored.record.kind == ONE_SIZE else stored.record.kind


def answering(
    part: RecordTest, claim: Claim, records: Iterable[StoredRecord], *, where: str = "own"
) -> list[StoredRecord]:
    """The records that a part is about.

    Args:
        where: "own", "other task", "held out", "truth", "other family" or "untrained".
    """
    rows = list(records)
    own = {each.family for each in rows if _of_model(each, claim, "own", set())} - {""}
    found: list[StoredRecord] = []
    for stored in rows:
        if kind_of(stored) != part.kind or not _of_circuit(stored, claim):
            continue
        if not _of_model(stored, claim, where, own):
            continue
        if where != "truth" and not _of_task(stored, claim, where):
            continue
        if part.test != "conditions" and stored.setting("ablation") not in ("", claim.ablation):
            continue
        if where == "held out" and not _held_out(stored):
            continue
        found.append(stored)
    return found


def _held_out(stored: StoredRecord) -> bool:
    """Whether the circuit was found on another split; a record that does not say it is not."""
    tried, found = stored.setting("split"), stored.setting("train_split")
    return bool(tried) and bool(found) and tried != found


def measured(
    part: RecordTest, claim: Claim, found: Iterable[StoredRecord], of: str = "result"
) -> list[tuple[StoredRecord, Measure]]:
    """The measure of each record that has it, defined or not."""
    sized = part.measure in SIZED and claim.size
    name = f"{part.measure}@{claim.size}" if sized else part.measure
    rows = [(stored, stored.record.measure(name, of)) for stored in found]
    return [(stored, measure) for stored, measure in rows if measure is not None]
