"""The leak audit: the paper's example, what it never does, an auditor's answer, what is refused."""

from __future__ import annotations

import json

import pytest

from helpers.judges import CIRCUIT, CODES, MOVERS, claim, run
from mechassay.claims.judgments import Judgments
from mechassay.errors import BadUsage, UnknownName
from mechassay.judges.leak_audit import LEAKED, audit, audit_request, leaking, spared_claims
from mechassay.judges.voting import vote

WHOLE = "The circuit of 26 heads has 87% faithfulness."
CURVE = "Performance falls gradually as heads are ablated."
OWN = "Ablating 9.9 alone lowers the logit difference."
FIVE = ("I2", "I3", "I5", "E2", "E5")
QUOTES = {"I1": [OWN], "I2": [WHOLE], "E2": [CURVE], "M3": [WHOLE]}


def judged(**part: str) -> Judgments:
    """The whole circuit, and a claim on its name movers."""
    statuses = {"I1": "YES", "I2": "PARTIAL", "E2": "YES", "M3": "YES", **part}
    heads = [f"{n}.{n}" for n in range(9)]
    return run(
        claim("circuit", CIRCUIT, "YES", components=heads, evidence={"I2": [WHOLE], "E2": [CURVE]}),
        claim(
            "movers",
            MOVERS,
            statuses,
            components=["9.9 (Name Mover)", "9.6", "10.0"],
            evidence=QUOTES,
        ),
    )


def changed(before: Judgments, after: Judgments) -> dict[tuple[str, str], str]:
    return {
        (one.claim.id, code): after.claim(one.claim.id).statuses[code]
        for one in before.claims
        for code in CODES
        if one.statuses[code] != after.claim(one.claim.id).statuses[code]
    }


def objecting(name: str = "movers", by: str = "auditor", **said: tuple[str, str]) -> Judgments:
    """An auditor who says something of some criteria, with a reason."""
    row = {code: said[code][0] if code in said else "NOT TESTED" for code in CODES}
    reasons = {code: why for code, (_, why) in said.items()}
    return run(claim(name, MOVERS, row, reasons=reasons), by=by)


def test_the_example_of_the_paper() -> None:
    # I2 is YES, YES and PARTIAL in three runs: the vote makes it PARTIAL, the audit NO.
    runs = [judged(I2=status) for status in ("YES", "YES", "PARTIAL")]
    voted = vote(runs)
    assert voted.claim("movers").statuses["I2"] == "PARTIAL"
    after = audit(voted)
    assert changed(voted, after) == {("movers", "I2"): "NO", ("movers", "E2"): "NO"}
    told = after.claim("movers").criteria["I2"].full_reason
    assert told == f"[LEAK: PARTIAL→NO: {LEAKED}] [MIN-VOTE: YES→PARTIAL across 3 runs]"
    assert [step.step for step in after.steps] == ["vote", "audit"]
    assert after.steps[1].spared == ("circuit",) and after.steps[1].inputs[0].name == "rule"


def test_the_criteria_are_those_of_the_paper() -> None:
    assert leaking(judged().criteria) == FIVE


def test_evidence_of_its_own_stands() -> None:
    for evidence in ([OWN], [WHOLE, OWN], ["The Name Mover heads have 87% faithfulness."]):
        system = [*evidence, WHOLE]
        found = run(
            claim("circuit", CIRCUIT, "YES", system=True, evidence={"I2": system}),
            claim(
                "movers",
                MOVERS,
                {"I2": "YES"},
                components=["9.9 (Name Mover)"],
                evidence={"I2": evidence},
            ),
        )
        assert changed(found, audit(found)) == {}


def test_a_component_is_named_in_any_spelling() -> None:
    for text in ("Head L9H9 alone suffices.", "a9.h9 is enough", "9.9 does it"):
        found = run(
            claim("circuit", CIRCUIT, "YES", system=True, evidence={"I2": [text]}),
            claim("m", MOVERS, {"I2": "YES"}, components=["9.9"], evidence={"I2": [text]}),
        )
        assert changed(found, audit(found)) == {}


def test_spaces_and_ligatures_hide_no_leak_and_other_words_do() -> None:
    for text, leaks in (("87%  faith-\nfulness ﬁrst", True), ("88% faithfulness first", False)):
        found = run(
            claim("c", CIRCUIT, "YES", system=True, evidence={"I2": ["87% faith-\nfulness first"]}),
            claim("m", MOVERS, {"I2": "YES"}, evidence={"I2": [text]}),
        )
        assert bool(changed(found, audit(found))) == leaks


def test_without_evidence_the_reason_decides_and_nothing_decides_nothing() -> None:
    for reason, leaks in (("87% faithfulness", True), ("", False), ("patched alone", False)):
        found = run(
            claim("c", CIRCUIT, "YES", system=True, reasons={"I2": "87% faithfulness"}),
            claim("m", MOVERS, {"I2": "YES"}, reasons={"I2": reason}),
        )
        assert bool(changed(found, audit(found))) == leaks


def test_the_system_claim_and_other_criteria_are_never_touched() -> None:
    found = judged(I3="NO", M3="YES")
    for after in (audit(found), audit(found, objecting("circuit", I2=("NO", "all of it")))):
        assert {name for name, _ in changed(found, after)} <= {"movers"}
        assert after.claim("movers").statuses["M3"] == "YES"
    assert changed(run(claim("a", CIRCUIT, "YES")), audit(run(claim("a", CIRCUIT, "YES")))) == {}


def test_the_paper_spares_what_calls_itself_a_mechanism() -> None:
    named = run(
        claim("circuit", CIRCUIT, "YES", components=["1.1", "2.2"], evidence={"I2": [WHOLE]}),
        claim("m", "A copying mechanism.", {"I2": "YES"}, components=["9.9"], evidence=QUOTES),
    )
    # The page's rule lets this leak stand; ours does not.
    assert changed(named, audit(named, spare="paper")) == {}
    assert changed(named, audit(named)) == {("m", "I2"): "NO"}
    claims = [each.claim for each in named.claims]
    assert spared_claims(claims) == ("circuit",)
    assert spared_claims(claims, "paper") == ("circuit", "m")
    with pytest.raises(UnknownName):
        spared_claims(claims, "all")  # pyright: ignore[reportArgumentType]


def test_five_components_are_spared_by_the_paper_alone() -> None:
    parts = run(
        claim("a", "Heads move names.", components=[f"1.{n}" for n in range(9)]),
        claim("b", "Heads copy.", components=[f"2.{n}" for n in range(5)]),
        claim("c", "Heads wait.", components=[f"3.{n}" for n in range(4)]),
    )
    claims = [each.claim for each in parts.claims]
    assert spared_claims(claims) == ("a",) and spared_claims(claims, "paper") == ("a", "b")


def test_what_an_auditor_may_say() -> None:
    found = judged(I2="YES", E5="PARTIAL", I3="NO")
    answer = objecting(
        I2=("NO", "that is the whole circuit"),
        E5=("PARTIAL", "stands"),
        E2=("PARTIAL", "half of it"),
        I3=("YES", "it was tested"),
        M3=("NO", "no baseline"),
        I5=("NA", ""),
    )
    after = audit(found, answer)
    assert changed(found, after) == {("movers", "I2"): "NO"}
    told = after.claim("movers").criteria["I2"].full_reason
    assert told == "[LEAK: YES→NO: that is the whole circuit]"
    rejected = {text.split(": ")[0].split(", ")[1]: text for text in after.steps[0].rejected}
    assert set(rejected) == {"E2", "I3", "M3", "I5"}
    assert "never raised" in rejected["I3"] and "only I2, I3, I5" in rejected["M3"]


def test_objections_without_a_reason_or_a_claim_are_rejected() -> None:
    found = judged(I2="YES")
    for answer in (
        objecting(I2=("NO", " ")),
        objecting("nobody", I2=("NO", "leaks")),
        objecting("circuit", I2=("NO", "leaks")),
    ):
        after = audit(found, answer)
        assert changed(found, after) == {} and len(after.steps[0].rejected) == 1


def test_a_silent_auditor_changes_nothing_and_is_on_file() -> None:
    found = judged()
    after = audit(found, objecting())
    assert changed(found, after) == {} and after.steps[0].inputs[0].rater.id == "auditor"


def test_judgments_are_audited_once() -> None:
    with pytest.raises(BadUsage, match="audit comes once"):
        audit(audit(judged()))


def test_what_a_claim_says_of_itself_is_a_piece_of_evidence_too() -> None:
    plain = judged().model_dump(mode="json")
    plain["claims"][1]["criteria"]["I2"]["evidence"] = [{"declared": "description_mode"}]
    declaring = Judgments.model_validate(plain)
    assert len(audit(declaring).claims) == len(declaring.claims)
    assert "the claim's description_mode" in json.dumps(audit_request(declaring))


def test_an_auditor_sees_evidence_and_nothing_of_the_paper() -> None:
    quote = {"exact": WHOLE, "document": "d" * 64, "prefix": "PREFIX", "suffix": "S", "page": 7}
    plain = judged().model_dump(mode="json")
    plain["claims"][1]["criteria"]["I2"]["evidence"] = [{"quote": quote}]
    plain["documents"] = [{"sha256": "d" * 64, "name": "paper.pdf", "title": "A title"}]
    runs = [Judgments.model_validate(plain)] * 2
    asked = audit_request(vote(runs))
    text = json.dumps(asked)
    assert WHOLE in text and MOVERS in text
    assert not [word for word in ("PREFIX", "ddd", "paper.pdf", "A title", "VOTE") if word in text]
    assert [each["id"] for each in asked["system"]] == ["circuit"]
    assert [each["id"] for each in asked["claims"]] == ["movers"]
    assert set(asked["criteria"]) == set(FIVE) == set(asked["claims"][0]["criteria"])
