"""Reference labels: files, judgments as a reference, the published ones, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from judge_runs import CIRCUIT, MOVERS, claim, run
from mechassay.claims.labels import PUBLISHED, labels_of, read_labels
from mechassay.errors import BadFile, UnknownName

IOI = {"paper": "ioi", "tier": "Mechanistically Supported", "source": "Registry"}


def test_labels_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "labels.yaml").write_text(
        "name: mine\npapers:\n  - {paper: ioi, tier: Proposed, source: Ann}\n"
    )
    found = read_labels(tmp_path / "labels.yaml")
    assert found.name == "mine" and found.tier("ioi") == "Proposed"
    with pytest.raises(UnknownName, match="Did you mean 'ioi'"):
        found.tier("iol")
    assert read_labels(PUBLISHED).tier("othello") == "Causally Suggestive"


def test_judged_claims_say_the_tier_where_it_is_not_named() -> None:
    claims = [claim("a", CIRCUIT, "YES", system=True), claim("b", MOVERS, "NO")]
    assert labels_of({"papers": [{"paper": "x", "claims": claims}]}).tier("x") == "Validated"
    both = {"paper": "x", "claims": claims, "tier": "Proposed"}
    assert labels_of({"papers": [both]}).tier("x") == "Proposed"


def test_judgments_are_a_reference_of_one_paper(tmp_path: Path) -> None:
    path = run(claim("a", CIRCUIT, "YES"), by="Ann").save(tmp_path / "ioi.json")
    found = read_labels(path)
    assert (found.name, found.papers[0].paper, found.tier("ioi")) == ("Ann", "ioi", "Validated")


@pytest.mark.parametrize(
    ("papers", "said"),
    [
        ([{**IOI, "tier": "Mechanistic"}], "Did you mean 'Mechanistically Supported'"),
        ([IOI, IOI], "Two labels are of 'ioi'"),
        ([{"paper": "ioi"}], "neither a tier nor judged claims"),
        ([{"paper": "x", "claims": [claim("a", CIRCUIT, "NOT TESTED")]}], "neither a tier"),
        ([{**IOI, "tire": "x"}], "Did you mean 'tier'"),
        ([], "at least 1 item"),
    ],
)
def test_what_no_labels_are(papers: list[Any], said: str) -> None:
    with pytest.raises(BadFile, match=said):
        labels_of({"papers": papers})
