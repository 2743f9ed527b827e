"""Judgments against labels: by hand, criteria of matched claims, worthless judges, the commands.

Reference labels: files, judgments as a reference, the published ones, and what is refused.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.judges import CIRCUIT, CODES, DUPLICATE, INHIBITION, MOVERS, claim, drawn, run
from mechassay.claims.judgments import Judgments
from mechassay.cli.main import main
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.judges.pages import ClaimsEvaluationPage
from mechassay.judges.published import published_evaluation
from mechassay.judges.reference_labels import (
    PUBLISHED,
    ReferenceLabels,
    evaluate,
    labels_of,
    read_labels,
)
from mechassay.judges.voting import vote
from mechassay.results.page import Report, markdown
from mechassay.results.reading import read_record
from mechassay.results.records import Record
from mechassay.testing import check_record


def labels(**papers: Any) -> ReferenceLabels:
    """Labels by papers: a tier, or judged claims."""
    plain = [
        {"paper": name, **({"tier": own} if isinstance(own, str) else {"claims": own})}
        for name, own in papers.items()
    ]
    return labels_of({"papers": plain})


def one(status: str) -> Judgments:
    return run(claim("a", CIRCUIT, status))


def test_tiers_against_labels_by_hand() -> None:
    found = evaluate(
        {"x": one("YES"), "y": one("NO"), "z": one("NOT TESTED"), "extra": one("YES")},
        labels(x="Triangulated", y="Proposed", z="Proposed", lost="Validated"),
    )
    own = found.agreement
    assert (own.exact.hits, own.exact.n, own.n, own.n_undefined) == (1, 3, 2, 1)
    assert own.signed == 0.5 and own.mae == 0.5
    assert found.unlabelled == ("extra",) and found.unjudged == ("lost",)
    record = found.record()
    check_record(record)
    said = " ".join(record.warnings)
    assert "without a label: extra" in said and "not judged: lost" in said
    assert "1 of 3 papers have no score, which is a miss." in said
    assert record.value("exact") == pytest.approx(1 / 3)
    assert "no score" in markdown(ClaimsEvaluationPage().sections(Report([record])))


def reference() -> list[dict[str, Any]]:
    return [
        claim("r1", CIRCUIT, "YES", system=True),
        claim("r2", MOVERS, {"I1": "YES", "I2": "PARTIAL"}),
        claim("r3", INHIBITION, "NO"),
    ]


def test_criteria_of_matched_claims_with_their_denominators() -> None:
    judged = run(
        claim("p", CIRCUIT, {**dict.fromkeys(CODES, "YES"), "C2": "PARTIAL"}, system=True),
        claim("q", MOVERS, {"I1": "YES", "I2": "YES"}),
        claim("s", DUPLICATE, "YES"),
        claim("t", "Layer norm scales everything.", "YES"),
    )
    found = evaluate({"ioi": judged}, labels(ioi=reference())).criteria
    assert found is not None and found.comparison is not None
    assert (found.recall.hits, found.recall.n) == (2, 3)
    assert (found.precision.hits, found.precision.n) == (2, 4)
    exact, distance = (found.comparison.measure(name) for name in ("exact", "distance"))
    assert (exact.value, exact.n) == (52 / 54, 54)
    assert distance.value == pytest.approx(1 / 54)
    # C2 is half a point lower, I2 half a point higher.
    assert found.comparison.measure("difference").value == pytest.approx(0)
    record = evaluate({"ioi": judged}, labels(ioi=reference())).record()
    check_record(record)
    rows = {row["criterion"]: row for row in record.table("criteria").rows()}
    assert (rows["I2"]["judge_higher"], rows["I2"]["judge_lower"], rows["I2"]["n"]) == (1, 0, 2)
    assert (rows["C2"]["judge_higher"], rows["C2"]["judge_lower"]) == (0, 1)
    assert rows["I2"]["mae"] == 0.25 and rows["I1"]["exact"] == 1
    constant = {row["status"]: row for row in record.table("constants").rows()}
    # The reference has 27 + 1 YES, 1 PARTIAL and 25 NO.
    assert constant["YES"]["exact"] == pytest.approx(28 / 54)
    assert constant["NO"]["exact"] == pytest.approx(25 / 54)
    assert constant["NO"]["mae"] == pytest.approx(28.5 / 54)
    assert constant["PARTIAL"]["mae"] == pytest.approx(0.5 * 53 / 54)


def test_the_orders_of_papers_and_claims_change_nothing() -> None:
    rng = np.random.default_rng(0)
    judged = {
        name: run(*(claim(f"c{n}", text, drawn(rng)) for n, text in enumerate((CIRCUIT, MOVERS))))
        for name in "xy"
    }
    given = labels(x=reference(), y=reference())
    turned = {
        name: judged[name].model_copy(update={"claims": judged[name].claims[::-1]}) for name in "yx"
    }
    before, after = (evaluate(each, given).record() for each in (judged, turned))
    for name in ("criteria exact", "criteria distance", "criteria kappa", "claims recall"):
        assert before.value(name) == pytest.approx(after.value(name))


def test_a_judge_of_no_matched_claim_has_no_agreement_but_a_recall() -> None:
    found = evaluate({"ioi": run(claim("q", DUPLICATE))}, labels(ioi=reference()))
    record = found.record()
    check_record(record)
    assert found.criteria is not None and found.criteria.comparison is None
    recall = record.measure("claims recall")
    assert recall is not None and (recall.value, recall.n) == (0, 3)
    assert record.measure("criteria exact") is None


def test_worthless_judges_are_as_good_as_their_baselines() -> None:
    rng = np.random.default_rng(1)
    papers = {f"p{n}": run(claim("a", CIRCUIT, drawn(rng))) for n in range(12)}
    given = labels(
        **{
            name: [each.model_dump(mode="json") for each in own.claims]
            for name, own in papers.items()
        }
    )
    right = evaluate(papers, given).record()
    assert right.value("exact") == right.value("criteria exact") == 1
    assert right.value("criteria kappa") == 1 and right.value("criteria distance") == 0
    constant = evaluate({name: one("YES") for name in papers}, given).record()
    same = {row["status"]: row for row in constant.table("constants").rows()}["YES"]
    assert constant.value("criteria exact") == pytest.approx(same["exact"])
    assert constant.value("criteria distance") == pytest.approx(same["mae"])
    assert constant.value("criteria kappa") == pytest.approx(0)
    row = {each["judge"]: each for each in constant.table("baselines").rows()}
    assert constant.value("exact") == row["always Validated"]["exact"]
    coins = {name: run(claim("a", CIRCUIT, drawn(rng))) for name in papers}
    assert abs(evaluate(coins, given).record().value("criteria kappa")) < 0.2


def test_voted_judgments_have_the_range_of_their_runs() -> None:
    voted = vote([one("YES"), one("PARTIAL"), one("NO")])
    found = evaluate({"x": voted}, labels(x="Proposed"))
    # PARTIAL alone is one level of Measurement and one of External: 2 of 18.
    assert sorted(found.runs["x"]) == [0.0, pytest.approx(10 / 9), 10.0]
    row = found.record().table("papers").rows()[0]
    assert (row["cvs"], row["lowest"], row["highest"], row["n_runs"]) == (0, 0, 10, 3)


def test_dimensions_of_the_system_claim_and_the_others() -> None:
    judged = run(
        claim("a", CIRCUIT, "YES", system=True),
        claim("b", MOVERS, {"I1": "YES"}),
        claim("c", INHIBITION, {"I1": "YES", "I2": "YES"}),
    )
    record = evaluate({"x": judged}, labels(x="Validated")).record()
    rows = {row["dimension"]: row for row in record.table("dimensions").rows()}
    assert (rows["I"]["system"], rows["I"]["others"], rows["I"]["n_others"]) == (3, 1.5, 2)
    alone = evaluate({"x": one("YES")}, labels(x="Validated")).record()
    assert alone.table("dimensions").rows()[0]["others"] is None
    check_record(alone)


def test_what_cannot_be_evaluated() -> None:
    with pytest.raises(BadUsage, match="judged are x, labelled y"):
        evaluate({"x": one("YES")}, labels(y="Validated"))
    with pytest.raises(BadUsage, match="the lowest or the highest"):
        published_evaluation("middle")


def test_the_published_evaluation_as_a_record() -> None:
    record = published_evaluation().record()
    check_record(record)
    text = markdown(ClaimsEvaluationPage().sections(Report([record])))
    assert text.startswith("5 of 9 (55.6\u00a0% [21.2\u00a0%, 86.3\u00a0%]) have the tier")
    assert "A judge that always says Causally Suggestive has 3 and 8 of 9." in text
    assert record.value("mae") == pytest.approx(4 / 9)
    assert record.plot() is not None
    lowest, highest = (published_evaluation(end).record() for end in ("lowest", "highest"))
    assert (lowest.value("exact"), highest.value("exact")) == pytest.approx((5 / 9, 2 / 9))
    assert not lowest.has_table("checks") or len(lowest.table("checks")) == 0


def call(*words: object) -> None:
    with pytest.raises(SystemExit) as done:
        main([str(word) for word in ("claims", "evaluate", *words)])
    assert done.value.code == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("--paper", "-o", tmp_path / "p.html", "--json", tmp_path / "p.json")
    assert isinstance(read_record(tmp_path / "p.json"), Record)
    page = (tmp_path / "p.html").read_text("utf-8")
    assert page.count("<svg") == 2 and "does not hold" in page
    said = capsys.readouterr()
    assert "Judges that know nothing" in said.out and "do not hold" in said.err
    path = one("YES").save(tmp_path / "ioi.json")
    call(path, "--reference", "tower-2026", "-o", tmp_path / "e.html")
    assert (tmp_path / "e.html").read_text("utf-8").count("<svg") == 3
    ann = run(claim("r", CIRCUIT, "PARTIAL"), by="Ann").save(tmp_path / "ann" / "ioi.json")
    call(path, "--reference", ann, "--json", tmp_path / "e.json")
    assert read_record(tmp_path / "e.json").value("criteria distance") == 0.5


@pytest.mark.parametrize(
    "words", [[], ["--paper", "{file}"], ["{file}"], ["--paper", "--reference", "tower-2026"]]
)
def test_too_much_or_too_little_is_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = one("YES").save(tmp_path / "ioi.json")
    with pytest.raises(SystemExit) as done:
        main(["claims", "evaluate", *(word.format(file=file) for word in words)])
    assert done.value.code == 2 and "or --paper alone" in capsys.readouterr().err


def test_numbers_that_are_undefined_are_none() -> None:
    record = evaluate({"x": one("NOT TESTED")}, labels(x="Proposed")).record()
    check_record(record)
    assert record.value("exact") == 0 and math.isnan(record.value("mae"))
    assert record.table("papers").rows()[0]["error"] is None


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
