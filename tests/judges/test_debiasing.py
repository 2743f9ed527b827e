"""Runs to one score: the order of steps, what the record keeps, the page and the commands.

The devil's advocate: two calibrations, what they follow, and that nothing is ever raised.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from helpers.judges import CIRCUIT, CODES, INHIBITION, MOVERS, claim, drawn, run
from mechassay.claims.evidence import score_judgments
from mechassay.claims.judgments import Judgments, judgments_of, rank, read_judgments
from mechassay.claims.rubric import claim_score
from mechassay.cli.main import main
from mechassay.errors import BadUsage, UnknownName
from mechassay.judges import debiasing
from mechassay.judges.debiasing import (
    CALIBRATIONS,
    Calibration,
    challenge,
    debias,
    debiasing_record,
    runs_of,
    single_scores,
)
from mechassay.judges.leak_audit import audit
from mechassay.judges.pages import ClaimsVotePage
from mechassay.judges.voting import vote
from mechassay.results.page import Report, markdown
from mechassay.testing import check_record

WHOLE = "87% faithfulness"
QUOTED = {"I2": [WHOLE]}


def three() -> list[Judgments]:
    """Runs on a circuit and a part of it; the part has its evidence from the whole."""
    return [
        run(
            claim("circuit", CIRCUIT, "YES", system=True, evidence=QUOTED),
            claim("movers", MOVERS, {"I1": "YES", "I2": status}, evidence=QUOTED),
        )
        for status in ("YES", "YES", "PARTIAL")
    ]


def advocate() -> Judgments:
    row = {code: "NO" if code == "I3" else "NOT TESTED" for code in CODES}
    reasons = {"I3": "no other task was run"}
    return run(claim("circuit", CIRCUIT, row, reasons=reasons), by="advocate")


def test_the_order_is_matching_vote_audit_advocate(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("vote", "audit", "challenge"):
        real = getattr(debiasing, name)

        def noted(*given: object, name: str = name, real: object = real, **more: object) -> object:
            called.append(name)
            return real(*given, **more)  # pyright: ignore[reportCallIssue]

        monkeypatch.setattr(debiasing, name, noted)
    found = debias(three(), advocate=advocate(), calibration="aggressive")
    assert called == ["vote", "audit", "challenge"]
    assert [step.step for step in found.steps] == ["vote", "audit", "advocate"]


def test_no_other_order_is_possible() -> None:
    audited = [audit(each) for each in three()]
    with pytest.raises(BadUsage, match="went through audit already; the order is matching, vote"):
        debias(audited)
    with pytest.raises(BadUsage, match="vote already"):
        vote([vote(three()), *three()])


def test_an_audit_before_the_vote_would_say_something_else() -> None:
    # In one run the part has evidence of its own: the minimum takes that of the lower status.
    own = run(
        claim("circuit", CIRCUIT, "YES", system=True, evidence=QUOTED),
        claim("movers", MOVERS, {"I2": "PARTIAL"}, evidence={"I2": ["patched alone"]}),
    )
    after = debias([three()[0], own])
    assert after.claim("movers").statuses["I2"] == "PARTIAL"
    before = [audit(each).claim("movers").statuses["I2"] for each in (three()[0], own)]
    assert before == ["NO", "PARTIAL"]


def test_the_score_is_that_of_what_is_left() -> None:
    found = debias(three())
    assert found.claim("movers").statuses["I2"] == "NO"
    scores = score_judgments(found).paper
    assert scores["movers"].dimensions["I"] == 1 and scores["circuit"].cvs == 10
    assert single_scores(found.criteria, found.claim("movers")) == {
        f"judge {n}": claim_score(found.criteria, each.claim("movers").statuses).cvs
        for n, each in enumerate(three(), start=1)
    }
    assert debias(three(), audited=False).claim("movers").statuses["I2"] == "PARTIAL"


def test_every_run_can_be_read_back_from_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [run(claim("a", CIRCUIT, drawn(rng)), claim("b", MOVERS, drawn(rng))) for _ in range(3)]
    path = debias(runs).save(tmp_path / "voted.json")
    for judged in read_judgments(path).claims:
        found = runs_of(judged)
        for number, own in enumerate(runs, start=1):
            assert found[f"judge {number}"] == own.claim(judged.claim.id).statuses


def test_the_record_shows_other_ways_and_every_change() -> None:
    runs = [*three(), run(claim("x", INHIBITION, "YES"))]
    record = debiasing_record(debias(runs, advocate=advocate(), calibration="aggressive"))
    check_record(record)
    ways = {row["of"]: row["cvs"] for row in record.table("scores").where(claim="movers").rows()}
    assert ways["minimum"] <= ways["median"] and ways["after all steps"] <= ways["minimum"]
    assert len([name for name in ways if str(name).startswith("single run")]) == 3
    changes = [
        (row["claim"], row["criterion"], row["step"], row["after"])
        for row in record.table("changes").rows()
    ]
    assert changes == [
        ("circuit", "I3", "advocate", "NO"),
        ("movers", "I2", "vote", "PARTIAL"),
        ("movers", "I2", "audit", "NO"),
    ]
    said = " ".join(record.warnings)
    assert "Not made by all 4 runs" in said and "no more than half of the runs: x" in said
    text = markdown(ClaimsVotePage().sections(Report([record])))
    assert "circuit (system)" in text and "3 of 4" in text


def test_runs_that_repeat_each_other_are_named() -> None:
    same = three()[:2]
    assert "2 runs are 1 different ones" in " ".join(debiasing_record(debias(same)).warnings)
    silent = judgments_of(
        {
            **same[0].model_dump(mode="json"),
            "claims": [claim("circuit", CIRCUIT, "NOT TESTED", system=True)],
        }
    )
    record = debiasing_record(debias([same[0], silent]))
    assert "27 statuses are NOT TESTED" in " ".join(record.warnings)
    assert math.isnan(record.value("cvs")) and math.isnan(record.value("alpha"))
    check_record(record)


def test_runs_that_agree_have_an_alpha_of_one_and_coins_about_none() -> None:
    rng = np.random.default_rng(1)
    row = drawn(rng)
    one = run(claim("a", CIRCUIT, row))
    assert debiasing_record(vote([one, one, one])).value("alpha") == 1
    names = [f"word{n} thing{n} place{n}" for n in range(10)]
    coins = [run(*(claim(name, name, drawn(rng)) for name in names)) for _ in range(3)]
    assert abs(debiasing_record(vote(coins)).value("alpha")) < 0.15


def test_what_went_through_no_step_has_no_record() -> None:
    with pytest.raises(BadUsage, match="no step"):
        debiasing_record(three()[0])
    check_record(debiasing_record(audit(three()[0])))


def call(*words: object) -> None:
    with pytest.raises(SystemExit) as done:
        main([str(word) for word in ("claims", *words)])
    assert done.value.code == 0


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [each.save(tmp_path / f"run{n}.json") for n, each in enumerate(three())]
    voted, audited = tmp_path / "voted.json", tmp_path / "audited.json"
    call("vote", *files, "-o", voted, "--no-audit", "--page", tmp_path / "vote.html")
    assert "Score of the paper: 10.0, Validated, of circuit" in capsys.readouterr().out
    call("audit", voted, "-o", audited, "--request", tmp_path / "request.json")
    assert read_judgments(audited).claim("movers").statuses["I2"] == "NO"
    assert json.loads((tmp_path / "request.json").read_text())["claims"][0]["id"] == "movers"
    together = tmp_path / "together.json"
    against = advocate().save(tmp_path / "against.json")
    call("vote", *files, "-o", together, "--advocate", against, "--calibration", "aggressive")
    assert read_judgments(together).claim("circuit").statuses["I3"] == "NO"
    call("score", audited)
    assert "movers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vote", "{run}", "-o", "{dir}/v.json"], "at least two runs"),
        (["vote", "{run}", "{run}", "-o", "{dir}/v.txt"], "ends in .json"),
        (["vote", "{run}", "{run}", "-o", "{dir}/v.json", "--spare", "al"], "Unknown choice"),
        (["audit", "{run}"], "--request"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = three()[0].save(tmp_path / "run.json")
    with pytest.raises(SystemExit) as done:
        main(["claims", *(word.format(run=path, dir=tmp_path) for word in words)])
    err = capsys.readouterr().err
    assert done.value.code == 2 and said in err and len(err.strip().splitlines()) == 1


FOUND = run(claim("c", CIRCUIT, "YES", system=True), claim("m", MOVERS, "YES"))


def against(**said: str) -> Judgments:
    """An advocate with the same words on both claims."""
    row = {code: said.get(code, "NOT TESTED") for code in CODES}
    reasons = dict.fromkeys(CODES, "needs the heads alone")
    return run(claim("c", CIRCUIT, row, reasons=reasons), claim("m", MOVERS, row, reasons=reasons))


def lowered(calibration: Calibration) -> dict[tuple[str, str], str]:
    after = challenge(FOUND, against(I2="NO", E2="PARTIAL", C1="NO"), calibration)
    return {
        (judged.claim.id, code): status
        for judged in after.claims
        for code, status in judged.statuses.items()
        if status != "YES"
    }


def test_an_aggressive_advocate_is_always_followed() -> None:
    assert lowered("aggressive") == {
        ("c", "I2"): "NO",
        ("c", "E2"): "PARTIAL",
        ("m", "I2"): "NO",
        ("m", "E2"): "PARTIAL",
    }


def test_a_conservative_one_where_it_says_no_of_a_part() -> None:
    assert lowered("conservative") == {("m", "I2"): "NO"}
    after = challenge(FOUND, against(I2="NO"))
    told = after.claim("m").criteria["I2"].full_reason
    assert told == "[CHALLENGE: YES→NO: needs the heads alone]"
    assert after.steps[0].rejected == ("c, I2: NO: the claim is about the whole system",)


def test_the_advocate_comes_after_the_audit() -> None:
    after = challenge(audit(FOUND), against(I2="NO"))
    assert [step.step for step in after.steps] == ["audit", "advocate"]
    with pytest.raises(BadUsage, match="audit comes before it"):
        audit(after)
    with pytest.raises(BadUsage, match="advocate comes once"):
        challenge(after, against())


def test_nothing_is_raised_by_any_advocate() -> None:
    rng = np.random.default_rng(0)
    found = run(claim("c", CIRCUIT, drawn(rng)), claim("m", MOVERS, drawn(rng)))
    for calibration in CALIBRATIONS:
        for _ in range(5):
            other = run(
                claim("c", CIRCUIT, drawn(rng), reasons=dict.fromkeys(CODES, "so")),
                claim("m", MOVERS, drawn(rng), reasons=dict.fromkeys(CODES, "so")),
            )
            after = challenge(found, other, calibration)
            for one, two in zip(found.claims, after.claims, strict=True):
                assert all(rank(two.statuses[c]) <= rank(one.statuses[c]) for c in CODES)
    with pytest.raises(UnknownName):
        challenge(found, found, "mild")  # pyright: ignore[reportArgumentType]
