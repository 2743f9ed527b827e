"""Which evidence holds for which criterion: quotes, records, and what a claim says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from judgments_made import TEXT, made_judgments, quoted
from mechassay.claims.documents import read_document
from mechassay.claims.evidence import State, check_evidence
from mechassay.claims.quotes import is_short
from mechassay.claims.rubric import load_rubric
from mechassay.errors import BadFile
from mechassay.files import file_hash
from mechassay.records import Measure, Record, Spec, provenance

EXECUTION = {"kind": "execution", "id": "mechassay"}
MODE = {"description_mode": "implementational-topographic"}
"""It asks for necessity (I1) alone."""


def states(criterion: str, evidence: dict[str, Any], runs: Path | None = None, **more: Any) -> str:
    judged = made_judgments(
        statuses={criterion: "YES"}, evidence={criterion: [evidence]}, **{"claim": MODE, **more}
    )
    found = check_evidence(judged, runs=runs)
    (row,) = found.rows
    assert bool(found.unsupported["ioi"]) == (row.state not in ("record", "declared"))
    return row.state


@pytest.mark.parametrize(
    ("criterion", "field", "rater", "state"),
    [
        ("V1", "description_mode", EXECUTION, "declared"),
        # Nobody looked: a reader has to quote.
        ("V1", "description_mode", {"kind": "human", "id": "Ann"}, "other rule"),
        ("V1", "description_mode", {"kind": "language model", "id": "m"}, "other rule"),
        # What the claim says of itself is no evidence of an experiment.
        ("I2", "statement", EXECUTION, "other rule"),
        ("I2", "description_mode", EXECUTION, "other rule"),
        ("V3", "statement", EXECUTION, "other rule"),
        ("V5", "model", EXECUTION, "not found"),
        ("C1", "__class__", EXECUTION, "other rule"),
    ],
)
def test_declared_evidence_holds_where_the_rule_reads_it(
    criterion: str, field: str, rater: dict[str, str], state: State
) -> None:
    assert states(criterion, {"declared": field}, rater=rater) == state


def a_record(folder: Path) -> dict[str, str]:
    made = Record(
        kind="faithfulness",
        specs={name: Spec(name="x") for name in ("model", "task", "method")},
        measures=[Measure(name="circuit", value=0.9, n=1)],
        provenance=provenance(device="cpu", dtype="float32", seed=0),
    )
    file = made.save(folder / "a.json")
    return {"file": "a.json", "sha256": file_hash(file)}


@pytest.mark.parametrize(
    ("criterion", "rule", "state"),
    [
        ("I1", "mv-27@1:I1", "record"),
        ("I1", "mv-27@1:I2", "other rule"),
        ("I1", "x", "other rule"),
        # No rule reads records for it.
        ("V3", "mv-27@1:V3", "other rule"),
        # It takes the evidence of the criteria that its mode asks for.
        ("V2", "mv-27@1:I1", "record"),
        ("V2", "mv-27@1:I2", "other rule"),
    ],
)
def test_a_record_is_evidence_for_the_criterion_whose_rule_read_it(
    tmp_path: Path, criterion: str, rule: str, state: State
) -> None:
    held = {"record": {**a_record(tmp_path), "rule": rule}}
    assert states(criterion, held, tmp_path) == state


def test_a_file_that_is_no_record_with_its_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("{}")
    held = {"file": "b.json", "sha256": file_hash(tmp_path / "b.json"), "rule": "mv-27@1:I1"}
    with pytest.raises(BadFile, match="no hash of its content"):
        states("I1", {"record": held}, tmp_path)


@pytest.mark.parametrize(
    ("quote", "short"),
    [
        ("the", True),
        ("recovers 87%", True),
        ("of the logit", True),
        ("- of - the - logit", True),
        ("recovers 87% of the", False),
        ("implementational-topographic", False),
        ("", True),
    ],
)
def test_quotes_that_are_too_short(quote: str, short: bool) -> None:
    assert is_short(quote) == short


def test_one_common_word_supports_nothing(tmp_path: Path) -> None:
    (tmp_path / "paper.txt").write_text(TEXT)
    codes = load_rubric().codes
    judged = made_judgments(
        statuses=dict.fromkeys(codes, "YES"), evidence=dict.fromkeys(codes, quoted("the"))
    )
    found = check_evidence(judged, [read_document(tmp_path / "paper.txt")])
    assert found.count("too short") == len(codes) and found.unsupported["ioi"] == codes
    missing = made_judgments(statuses={"C1": "YES"}, evidence={"C1": quoted("Paris")})
    rows = check_evidence(missing, [read_document(tmp_path / "paper.txt")]).rows
    assert [row.state for row in rows] == ["not found"]
