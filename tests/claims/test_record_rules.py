"""The records that are about the model of a claim."""

from __future__ import annotations

from pathlib import Path

import pytest

import mechassay as ma
from helpers.tiny_models import with_words
from mechassay.claims.claim import claims_of
from mechassay.claims.record_rules import StoredRecord, answering
from mechassay.claims.rubric import RecordTest
from mechassay.results.records import Measure, Record, Spec, provenance

PART = RecordTest(test="interval", measure="circuit")


def stored(model: str, weights: str = "") -> StoredRecord:
    record = Record(
        kind="circuits",
        specs={
            "model": Spec(name=model),
            "task": Spec(name="t", args={"ablation": "counterfactual"}),
            "method": Spec(name="eap"),
        },
        measures=[Measure(name="circuit@9", value=0.5)],
        identities={"model": {"weights": weights}} if weights else {},
        provenance=provenance(device="cpu", dtype="float32", seed=0),
    )
    return StoredRecord("x", "x", record)


def test_the_records_of_a_claims_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name where the record was made, or by its weights where the name is another one."""
    folder = tmp_path / "seed0" / "final"
    hf, tokenizer = with_words(seed=0)
    for part in (hf, tokenizer):
        part.save_pretrained(folder)
    monkeypatch.setattr("mechassay.utils.digests.SETTLED_NS", 0)  # Else new files are not cached.
    weights = ma.load_model(str(folder)).identity.weights
    plain = {"id": "a", "statement": "s", "model": str(folder), "task": "t", "circuit": "eap@9"}
    claim = claims_of(plain).claims[0]
    cases = {
        "seed0/final": stored("seed0/final"),
        "of another folder": stored("elsewhere/final", weights),
        "other weights": stored("elsewhere/final", "0" * 16),
        "same last name": stored("seed1/final"),
        "last name alone": stored("final"),
    }
    for place, names in ((tmp_path, {"seed0/final"}), (tmp_path / "seed0", {"last name alone"})):
        monkeypatch.chdir(place)
        taken = {name for name, own in cases.items() if answering(PART, claim, [own])}
        assert taken == names | {"of another folder"}
