"""Claims and judgments as files: what is read back, what is refused, and in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.judges import CODES, made_judgments, plain_judgments, quoted
from mechassay.claims.claim import claims_of, component_name, read_claims, system_claim
from mechassay.claims.judgments import Judgments, judgments_of, read_judgments
from mechassay.errors import BadFile, BadUsage

SCHEMA = Path(__file__).parents[2] / "docs" / "judgments.schema.json"
CLAIM = """
id: ioi-60
statement: IOI runs through 60 edges.
description_mode: implementational-connectomic
families: [causal]
model: smollm2-135m
task: ioi
circuit: eap@60
predictions: [{measure: circuit, direction: above, threshold: 0.7}]
"""


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    made = made_judgments(statuses={"C1": "YES"}, evidence={"C1": quoted("copy", page=2)})
    assert read_judgments(made.save(tmp_path / "a.json")) == made
    assert "1 claim)" in repr(made) and "Ann" in made._repr_html_()
    assert made.columns()["status"][:2] == ["YES", "NOT TESTED"]


def test_yaml_truth_values_are_statuses(tmp_path: Path) -> None:
    words = {code: "YES" if code == "C1" else "NO" for code in CODES}
    rows = "\n".join(f"      {code}: {{status: {word}}}" for code, word in words.items())
    text = f"""rater: {{kind: human, id: Ann}}
claims:
  - claim: {{id: a, statement: b}}
    criteria:
{rows}
"""
    (tmp_path / "a.yaml").write_text(text)
    found = read_judgments(tmp_path / "a.yaml").claims[0].statuses
    assert found["C1"] == "YES" and found["C2"] == "NO"


def test_the_published_schema_is_current() -> None:
    made = json.dumps(Judgments.model_json_schema(), indent=1, sort_keys=True) + "\n"
    assert SCHEMA.read_text("utf-8") == made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rubrik": "mv-27@1"}, "Did you mean 'rubric'"),
        ({"rubric": "mv-72@1"}, "Unknown rubric 'mv-72@1'"),
        ({"rater": {"kind": "humen", "id": "Ann"}}, "Did you mean 'human'"),
        ({"rater": {"kind": "human"}}, "rater.id is missing"),
        ({"rater": {"kind": "human", "id": "A", "nme": "x"}}, "Unknown field of rater 'nme'"),
        ({"statuses": {"C1": "PARTAIL"}}, "Did you mean 'PARTIAL'"),
        ({"statuses": {"C9": "YES"}}, "Unknown criterion of mv-27@1 'C9'"),
        ({"evidence": {"C1": [{}]}}, "evidence is a quote, a record"),
        ({"evidence": {"C1": [{"quote": {"exat": "x"}}]}}, "exact is missing"),
        ({"claims": []}, "claims"),
        ({"claim": {"description_mode": "algoritmic"}}, "Did you mean 'algorithmic'"),
        ({"format": 2}, "format"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_nearest_name(change: Any, said: str) -> None:
    with pytest.raises(BadFile, match=said.replace("(", r"\(")) as caught:
        judgments_of(plain_judgments(**change))
    assert "\n" not in str(caught.value)


def test_empty_judgments_are_refused_by_the_names_of_what_is_missing() -> None:
    plain = plain_judgments()
    plain["claims"][0]["criteria"] = {}
    with pytest.raises(BadFile, match="C1, C2.*NOT TESTED"):
        judgments_of(plain)
    for nothing in ({}, [], None, "text"):
        with pytest.raises(BadFile):
            judgments_of(nothing)


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "none.json"])
def test_files_that_cannot_be_read_are_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "a.yaml").write_text("a: [\n b")
    with pytest.raises(BadFile) as caught:
        read_judgments(tmp_path / name)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadUsage, match=r"\.json"):
        read_judgments(tmp_path / "a.txt")


def test_one_claim_or_several_are_read(tmp_path: Path) -> None:
    (tmp_path / "claim.yaml").write_text(CLAIM)
    found = read_claims(tmp_path / "claim.yaml")
    claim = found.claims[0]
    assert (claim.ranking, claim.size) == ("eap", "60")
    assert claim.predictions[0].threshold == 0.7
    both = claims_of({"title": "T", "claims": [{"id": n, "statement": "s"} for n in "ab"]})
    assert [each.id for each in both.claims] == ["a", "b"]


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"id": "a", "statement": "s", "modle": "m"}, "Did you mean 'model'"),
        ({"id": "a"}, "statement is missing"),
        ({"id": "a", "statement": "s", "families": ["causl"]}, "Did you mean 'causal'"),
        ({"claims": [{"id": "a", "statement": "s"}] * 2}, "Two claims have the id"),
        (
            {"claims": [{"id": n, "statement": "s", "system": True} for n in "ab"]},
            "Two claims are marked",
        ),
    ],
)
def test_what_is_wrong_with_a_claim_is_one_line(plain: Any, said: str) -> None:
    with pytest.raises(BadFile, match=said):
        claims_of(plain)


def test_the_system_claim() -> None:
    def of(*rows: tuple[str, int, bool]) -> tuple[str, str]:
        plain = [
            {"id": str(n), "statement": text, "components": ["a0.h0"] * size, "system": system}
            for n, (text, size, system) in enumerate(rows)
        ]
        return system_claim(claims_of({"claims": plain}).claims)

    assert of(("x", 0, False)) == ("0", "the only claim")
    assert of(("x", 3, False), ("y", 1, True))[0] == "1"
    assert of(("x", 1, False), ("y", 3, False)) == ("1", "most components")
    assert of(("x", 1, False), ("The circuit", 1, False))[0] == "1"
    assert of(("x", 1, False), ("y", 1, False)) == ("0", "the first claim")
    with pytest.raises(BadUsage):
        system_claim([])


def test_components_are_spelled_as_ours() -> None:
    assert component_name("9.9 (Name Mover)") == component_name("L9H9") == "a9.h9"
    assert component_name("a9.h9->logits") == "a9.h9->logits"
    assert component_name("the gate") == "the gate"


def test_a_rubric_is_stored_with_its_version() -> None:
    assert made_judgments(rubric="mv-27") == made_judgments(rubric="mv-27@1")
    assert made_judgments(rubric="mv-27").rubric == "mv-27@1"


def test_a_fault_in_a_file_whose_parts_hold_each_other_is_told_at_once() -> None:
    """Twenty levels of two aliases each would be a million words."""
    deep: list[object] = ["x"]
    for _ in range(20):
        deep = [deep, deep]
    with pytest.raises(BadFile, match="rubric") as told:
        judgments_of({**plain_judgments(), "rubric": deep})
    assert len(str(told.value)) < 300


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "form.html",
            "<html></html>",
            "is a page; judgments are read from the file that a form's button"
            ' "Download judgments" writes: judgments.json.',
        ),
        ("claim.yaml", CLAIM, "has claims, which nobody has judged; `mechassay claims form`"),
        ("claims.yaml", "claims: [{id: a, statement: b}]", "has claims, which nobody has judged"),
        ("claims.txt", "", "a file to read ends in .json or .yaml or .yml."),
    ],
)
def test_what_is_no_judgments_says_where_they_are(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises((BadUsage, BadFile)) as error:
        read_judgments(tmp_path / name)
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1


def test_a_folder_is_no_file_of_judgments(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="is a folder; a file was expected"):
        read_judgments(tmp_path)
