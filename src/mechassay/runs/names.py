"""What the tables of runs call a model, and how their records came about."""

from __future__ import annotations

from pathlib import Path

from mechassay.models.model import Model
from mechassay.models.revisions import AT, UNTRAINED, split_revision
from mechassay.records import Provenance, provenance


def shown_model(name: str) -> str:
    """What tables call a model: folders and files by their own names, and with their revisions."""
    if name.startswith(UNTRAINED):
        return UNTRAINED + shown_model(name.removeprefix(UNTRAINED))
    model, revision = split_revision(name)
    path = Path(model)
    shown = path.name if path.exists() else model
    return f"{shown}{AT}{revision}" if revision else shown


def made_by(model: Model, seed: int, data_hash: str) -> Provenance:
    """How a record of a model came about."""
    device, dtype = str(model.device), str(model.dtype).removeprefix("torch.")
    return provenance(device=device, dtype=dtype, seed=seed, data_hash=data_hash)
