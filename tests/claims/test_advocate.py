"""The devil's advocate: two calibrations, what they follow, and that nothing is ever raised."""

from __future__ import annotations

import numpy as np
import pytest

from judge_runs import CIRCUIT, MOVERS, claim, drawn, run
from judgments_made import CODES
from mechassay.claims.advocate import CALIBRATIONS, Calibration, challenge
from mechassay.claims.judgments import Judgments, rank
from mechassay.claims.leak_audit import audit
from mechassay.errors import BadUsage, UnknownName

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
    told = after.claim("m").criteria["I2"].told
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
