"""The form as a page: all criteria, one script by its hash, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from helpers.judges import CODES, TEXT, made_judgments
from mechassay.claims.claim import claims_of
from mechassay.claims.evidence import score_judgments
from mechassay.claims.judgments import judgments_of
from mechassay.claims.pages import form_page, verdict_line
from mechassay.claims.rubric import load_rubric
from mechassay.cli.main import main
from mechassay.documents.reading import read_document
from mechassay.errors import BadUsage

CLAIMS = claims_of({"id": "ioi", "statement": "Heads copy the name."})


def test_every_criterion_has_its_question_statuses_and_pitfalls() -> None:
    page = form_page(CLAIMS)
    for criterion in load_rubric().criteria:
        assert f'id="{criterion.code}"' in page
        assert page.count(f'name="{criterion.code}"') == 5
    assert page.count("Without an intervention it says nothing about cause.") == 2


def test_the_page_allows_one_script_and_loads_nothing() -> None:
    page = form_page(CLAIMS)
    script = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page
    assert re.findall(r"(?:src|href)=[\"']?https?:", page) == []
    assert re.search(r"\bfetch\(|XMLHttpRequest|eval\(|innerHTML", script[0]) is None


def test_the_data_is_what_was_given(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    document = read_document(tmp_path / "a.txt")
    page = form_page(None, [document], made_judgments())
    text = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[0]
    data = json.loads(text)
    assert data["codes"] == list(CODES) and data["documents"][0]["pages"] == list(document.pages)
    assert data["initial"]["rater"]["id"] == "Ann"


def test_nothing_makes_no_form() -> None:
    with pytest.raises(BadUsage, match="claims, a document, or judgments"):
        form_page()


@pytest.mark.parametrize("source", ["claim.yaml", "paper.txt", "judgments.json"])
def test_the_command(tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "claim.yaml").write_text("{id: a, statement: b}")
    (tmp_path / "paper.txt").write_text(TEXT)
    made_judgments().save(tmp_path / "judgments.json")
    with pytest.raises(SystemExit) as done:
        main(["claims", "form", str(tmp_path / source), "-o", str(tmp_path / "form.html")])
    assert done.value.code == 0 and "Written" in capsys.readouterr().out
    assert "Status of V5" in (tmp_path / "form.html").read_text("utf-8")


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "claim.yaml").write_text("{id: a, statment: b}")
    with pytest.raises(SystemExit) as done:
        main(["claims", "form", str(tmp_path / "claim.yaml"), "-o", str(tmp_path / "form.html")])
    said = capsys.readouterr().err
    assert done.value.code == 2 and "Did you mean 'statement'" in said and said.count("\n") == 1


def line_of(criteria: dict[str, dict[str, object]], kind: str = "human", **about: object) -> str:
    """The verdict of judgments of one claim; what is not given is NOT TESTED."""
    every = {code: {"status": "NOT TESTED"} for code in CODES} | criteria
    claim = {"claim": {"id": "a", "statement": "s"}, "criteria": every, **about}
    judged = judgments_of({"rater": {"kind": kind, "id": "x"}, "claims": [claim]})
    return verdict_line(score_judgments(judged).records()[0])


def test_statuses_without_evidence_do_not_make_the_headline() -> None:
    """A judge that says YES to everything, and shows nothing."""
    said = line_of({code: {"status": "YES"} for code in CODES}, "language model")
    assert said == (
        "As judged: 10.0; whether a quote states a result of this paper was not checked. Supported:"
        " 0.0: of 27 YES and PARTIAL, quotes support 0. NO on none of 27."
    )


def test_the_range_takes_open_criteria_at_both_ends() -> None:
    """I1 YES and I2 open make I 1 or 2, of weight 1.5: .8 or 1.7 of 10; both are Proposed."""
    open_one = {"status": "PARTIAL", "ends": ["NO", "YES"]}
    criteria = {"I1": {"status": "YES"}, "I2": open_one, "C4": {"status": "NO"}}
    said = line_of(criteria, "execution", n_groups=20)
    assert said.startswith("NO on 1 of 27: minimality; 24 not tested. ")
    assert "Score of the test 0.8 (0.8 to 1.7): Proposed; at most 6.9 without a reader." in said
    assert "Whether “s” says what was tested was not checked." in said
    unable = line_of(criteria, "execution", n_groups=20, unable="m does not do t.")
    assert ": no tier. m does not do t; at most" in unable and "Proposed" not in unable
    few = line_of(criteria, "execution", n_groups=19)
    assert "no tier, as 19 independent groups of pairs are fewer than 20" in few
    # With C 1 as well, 1.7 and 2.5 lie on both sides of the first cut.
    crossing = line_of({**criteria, "C1": {"status": "YES"}}, "execution")
    assert "1.7 (1.7 to 2.5): Proposed (the range crosses from Proposed to Causally" in crossing


def test_nothing_that_was_judged_has_no_score() -> None:
    assert line_of({}) == "Nothing else of it was judged: it has no score."
