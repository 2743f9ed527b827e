"""Claims that are one: similarity by hand, one to one, merged and missing ones, any order.

The minimum of runs: by hand, monotone, worthless judges, provenance, and what is refused.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from helpers.judges import CIRCUIT, CODES, DUPLICATE, INHIBITION, MOVERS, claim, drawn, run
from mechassay.claims.claim import Claim, claims_of
from mechassay.claims.judgments import Judgments, judgments_of, rank, read_judgments
from mechassay.claims.rubric import JUDGED, STATUSES, claim_score
from mechassay.errors import BadUsage, UnknownName
from mechassay.judges.voting import (
    AGGREGATES,
    ClaimGroup,
    aggregated,
    content_words,
    match_claims,
    similarities,
    similarity,
    vote,
)


def made(statement: str, *components: str) -> Claim:
    return Claim(id="c", statement=statement, components=components)


def told(groups: list[ClaimGroup]) -> set[frozenset[str]]:
    """Groups as sets of statements."""
    return {
        frozenset(judged.claim.statement for judged in group.members.values()) for group in groups
    }


def test_similarity_worked_by_hand() -> None:
    assert content_words("The heads of L9H9 copy all names") == {"head", "a9.h9", "copy", "name"}
    # Of 3 and 3 words two are common; of two components one of three.
    a, b = made("Heads copy names", "9.9", "9.6"), made("The heads copy tokens", "a9.h9", "L10H0")
    assert similarity(a, b) == pytest.approx((4 / 6 + 1 / 3) / 2)
    assert similarity(a, made("The heads copy tokens")) == pytest.approx(4 / 6)
    assert similarity(a, b) == similarity(b, a) and similarity(a, a) == 1
    assert similarity(made("the of"), made("the of")) == 0
    assert similarity(made("Name movers copy"), made("Backup layers add")) == 0


def test_paraphrases_are_one_claim_and_others_are_not() -> None:
    first = run(claim("a", CIRCUIT), claim("b", MOVERS), claim("c", INHIBITION))
    second = run(
        claim("x", "S-inhibition heads remove the subject from the attention of later heads."),
        claim("y", "A circuit of 26 heads moves the name of the indirect object to the end."),
        claim("z", "Name mover heads copy names to the last position."),
    )
    groups = match_claims([first, second])
    found = {group.members[0].claim.id: group.members[1].claim.id for group in groups}
    assert found == {"a": "y", "b": "z", "c": "x"}
    # Neither does a claim on a part become one on the whole where its own is missing.
    assert len(match_claims([run(claim("a", CIRCUIT)), run(claim("b", MOVERS))])) == 2


def test_missing_and_merged_claims_are_matched_to_one_at_most() -> None:
    merged = "Name mover heads copy the name and S-inhibition heads remove the repeated subject."
    first = run(claim("b", MOVERS), claim("c", INHIBITION), claim("d", DUPLICATE))
    groups = match_claims([first, run(claim("m", merged))])
    sizes = {group.lead.id: len(group.members) for group in groups}
    assert sorted(sizes.values()) == [1, 1, 2] and sizes["d"] == 1


def test_what_is_left_of_runs_that_do_not_lead_is_matched_too() -> None:
    lead = run(claim("a", CIRCUIT), claim("b", MOVERS), claim("c", INHIBITION))
    others = [run(claim("q", DUPLICATE)), run(claim("r", DUPLICATE))]
    groups = match_claims([lead, *others])
    assert [sorted(group.members) for group in groups] == [[0], [0], [0], [1, 2]]


def test_the_assignment_is_the_best_and_not_the_first() -> None:
    # The first claim is most like "both", which is all that the second one can have.
    given = [made("heads copy names late"), made("heads copy names early tokens")]
    given = [each.model_copy(update={"id": name}) for each, name in zip(given, "ab", strict=True)]
    other = run(claim("both", "heads copy names"), claim("only a", "heads copy late outputs"))
    found = similarities(given, [judged.claim for judged in other.claims])
    assert found.ravel() == pytest.approx([6 / 7, 6 / 8, 6 / 8, 4 / 9])
    groups = match_claims([other], given)
    assert {group.lead.id: group.members[0].claim.id for group in groups} == {
        "a": "only a",
        "b": "both",
    }
    chosen = sum(group.similarity[0] for group in groups)
    every = [sum(found[row, column] for row, column in enumerate(o)) for o in permutations((0, 1))]
    assert chosen == pytest.approx(max(every))


def shuffled(judgments: Judgments, rng: np.random.Generator) -> Judgments:
    claims = [judgments.claims[place] for place in rng.permutation(len(judgments.claims))]
    return judgments.model_copy(update={"claims": tuple(claims)})


def test_neither_the_order_of_runs_nor_of_claims_matters() -> None:
    rng = np.random.default_rng(0)
    words = ["heads", "copy", "names", "tokens", "late", "early", "layers", "subject", "last"]
    for _ in range(20):
        runs = [
            run(
                *(
                    claim(f"c{place}", " ".join(rng.choice(words, 4)))
                    for place in range(int(rng.integers(1, 5)))
                )
            )
            for _ in range(3)
        ]
        before = told(match_claims(runs))
        again = [shuffled(each, rng) for each in runs]
        assert told(match_claims([again[place] for place in rng.permutation(3)])) == before


def test_every_claim_is_in_one_group() -> None:
    runs = [run(claim("a", CIRCUIT), claim("b", CIRCUIT)), run(claim("a", CIRCUIT))]
    groups = match_claims(runs)
    assert sorted((r, j.claim.id) for g in groups for r, j in g.members.items()) == [
        (0, "a"),
        (0, "b"),
        (1, "a"),
    ]


def test_given_claims_lead_and_another_run_changes_no_match() -> None:
    given = [made(CIRCUIT).model_copy(update={"id": "own"})]
    runs = [run(claim("a", CIRCUIT)), run(claim("x", CIRCUIT), claim("y", MOVERS))]
    groups = match_claims(runs, given)
    assert [group.lead.id for group in groups] == ["own", "y"]
    more = match_claims([*runs, run(*(claim(f"z{n}", f"word{n}") for n in range(5)))], given)
    assert {run: judged.claim.id for run, judged in more[0].members.items()} == {0: "a", 1: "x"}
    assert match_claims([run(claim("a", MOVERS))], given)[0].lead.id == "a"


@pytest.mark.parametrize("like", [0.0, -1.0, 1.5, float("nan")])
def test_a_threshold_outside_of_its_range_is_refused(like: float) -> None:
    with pytest.raises(BadUsage, match="above 0 and at most 1"):
        match_claims([run(claim("a", CIRCUIT))], (), like)


def statuses(judgments: Judgments) -> dict[str, dict[str, str]]:
    """Statuses by the statement of the claim."""
    return {judged.claim.statement: judged.statuses for judged in judgments.claims}


def three(*given: str) -> Judgments:
    return vote([run(claim("a", CIRCUIT, {"I2": status})) for status in given])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("YES YES PARTIAL", "PARTIAL YES YES YES"),
        ("YES YES YES", "YES YES YES YES"),
        ("NO YES YES", "NO PARTIAL YES YES"),
        ("NO PARTIAL YES", "NO PARTIAL PARTIAL PARTIAL"),
        ("NO YES", "NO PARTIAL NO NO"),
        ("PARTIAL YES", "PARTIAL PARTIAL PARTIAL PARTIAL"),
        ("NO NO YES", "NO PARTIAL NO NO"),
        ("YES NOT_TESTED", "NOT_TESTED YES YES YES"),
        ("NO NOT_TESTED YES", "NO PARTIAL NO NO"),
        ("NA NOT_TESTED", "NOT_TESTED NOT_TESTED NOT_TESTED NOT_TESTED"),
        ("NA NA", "NA NA NA NA"),
    ],
)
def test_aggregates_worked_by_hand(given: str, found: str) -> None:
    rows = [[word.replace("_", " ") for word in text.split()] for text in (given, found)]
    assert [aggregated(rows[0], how) for how in AGGREGATES] == rows[1]


def test_aggregates_do_not_depend_on_order_and_the_minimum_is_lowest() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        row = list(map(str, rng.choice(STATUSES, int(rng.integers(1, 6)))))
        for how in AGGREGATES:
            found = aggregated(row, how)
            assert found == aggregated([row[n] for n in rng.permutation(len(row))], how)
            assert rank(aggregated(row)) <= rank(found)
            if set(row) <= set(JUDGED):
                assert min(map(rank, row)) <= rank(found) <= max(map(rank, row))
    with pytest.raises(BadUsage):
        aggregated([])
    with pytest.raises(UnknownName):
        aggregated(["YES"], "maximum")  # pyright: ignore[reportArgumentType]


def test_the_note_is_that_of_the_paper() -> None:
    voted = three("YES", "YES", "PARTIAL").claims[0].criteria["I2"]
    assert voted.status == "PARTIAL"
    assert voted.full_reason == "[MIN-VOTE: YES→PARTIAL across 3 runs]"
    assert voted.steps[0].given == {"judge 1": "YES", "judge 2": "YES", "judge 3": "PARTIAL"}
    assert three("YES", "YES", "YES").claims[0].criteria["I2"].full_reason == ""


def test_equal_runs_are_their_own_vote() -> None:
    rng = np.random.default_rng(2)
    row = drawn(rng)
    one = run(claim("a", CIRCUIT, row), claim("b", MOVERS, drawn(rng)))
    voted = vote([one, one, one])
    assert statuses(voted) == statuses(one)
    assert len({each.sha256 for each in voted.steps[0].inputs}) == 1


def test_a_run_more_never_raises_a_status_or_a_score() -> None:
    rng = np.random.default_rng(3)
    rubric = run(claim("a", CIRCUIT)).criteria
    for _ in range(10):
        runs = [
            run(claim("a", CIRCUIT, drawn(rng)), claim("b", MOVERS, drawn(rng))) for _ in range(4)
        ]
        lower = vote(runs)
        for n in (2, 3):
            before = vote(runs[:n])
            for judged in before.claims:
                after = lower.claim(judged.claim.id)
                assert all(
                    rank(after.statuses[code]) <= rank(judged.statuses[code]) for code in CODES
                )
                assert (
                    claim_score(rubric, after.statuses).cvs
                    <= claim_score(rubric, judged.statuses).cvs
                )
        for one in runs:
            for judged in one.claims:
                own = claim_score(rubric, judged.statuses).cvs
                assert claim_score(rubric, lower.claim(judged.claim.id).statuses).cvs <= own


def test_silence_of_one_run_never_raises_a_score_either() -> None:
    rubric = run(claim("a", CIRCUIT)).criteria
    rng = np.random.default_rng(4)
    for _ in range(20):
        rows = [
            {code: str(rng.choice(["YES", "PARTIAL", "NO", "NA", "NOT TESTED"])) for code in CODES}
            for _ in range(2)
        ]
        voted = vote([run(claim("a", CIRCUIT, row)) for row in rows]).claims[0].statuses
        score = claim_score(rubric, voted).cvs
        if score == score:
            assert score <= min(claim_score(rubric, row).cvs for row in rows)


def test_orders_of_runs_and_claims_change_nothing() -> None:
    rng = np.random.default_rng(5)
    texts = (CIRCUIT, MOVERS, INHIBITION, DUPLICATE)
    runs = [
        run(
            *(claim(f"{n}{k}", texts[n], drawn(rng), reasons={"I2": f"{k}"}) for n in range(2 + k)),
            by=f"judge {k}",
        )
        for k in range(3)
    ]
    expected = vote(runs)
    for _ in range(5):
        order = rng.permutation(3)
        again = [
            runs[k].model_copy(
                update={
                    "claims": tuple(runs[k].claims[n] for n in rng.permutation(len(runs[k].claims)))
                }
            )
            for k in order
        ]
        found = vote(again)
        assert statuses(found) == statuses(expected)
        criteria = {j.claim.statement: (j.criteria["I2"].reason, j.claim.id) for j in found.claims}
        assert criteria == {
            j.claim.statement: (j.criteria["I2"].reason, j.claim.id) for j in expected.claims
        }


def test_worthless_judges_have_known_votes() -> None:
    rng = np.random.default_rng(6)
    n_claims, n_runs, p = 30, 3, 0.8
    names = [f"word{n} thing{n} place{n}" for n in range(n_claims)]
    runs = [
        run(*(claim(f"c{n}", names[n], drawn(rng, (1 - p, 0.0, p))) for n in range(n_claims)))
        for _ in range(n_runs)
    ]
    voted = [status for judged in vote(runs).claims for status in judged.statuses.values()]
    # YES of all three runs: p³ = .512 of 810 statuses, with a standard error of .018.
    assert voted.count("YES") / len(voted) == pytest.approx(p**n_runs, abs=0.06)
    constant = run(*(claim(f"c{n}", names[n], "YES") for n in range(n_claims)))
    assert statuses(vote([constant, runs[0]])) == statuses(runs[0])
    strict = run(*(claim(f"c{n}", names[n], "NO") for n in range(n_claims)))
    assert statuses(vote([strict, runs[0]])) == statuses(strict)


def test_a_claim_that_some_runs_miss_keeps_its_support() -> None:
    runs = [
        run(claim("a", CIRCUIT, "YES"), claim("b", MOVERS, "YES")),
        run(claim("x", CIRCUIT, "PARTIAL")),
        run(claim("p", CIRCUIT, "YES"), claim("q", MOVERS, "NO"), claim("r", INHIBITION, "YES")),
    ]
    voted = vote(runs)
    support = {judged.claim.statement: len(judged.runs) for judged in voted.claims}
    assert support == {CIRCUIT: 3, MOVERS: 2, INHIBITION: 1}
    assert statuses(voted)[CIRCUIT]["I2"] == "PARTIAL" and statuses(voted)[MOVERS]["I2"] == "NO"
    assert statuses(voted)[INHIBITION]["I2"] == "YES"
    assert set(statuses(vote(runs, support=2))) == {CIRCUIT, MOVERS}
    with pytest.raises(BadUsage, match="No claim is made by 4 of 3 runs"):
        vote(runs, support=4)


def test_the_system_claim_is_that_of_most_runs() -> None:
    runs = [
        run(claim("a", CIRCUIT, system=True), claim("b", MOVERS)),
        run(claim("a", CIRCUIT, system=True), claim("b", MOVERS)),
        run(claim("a", CIRCUIT), claim("b", MOVERS, system=True)),
    ]
    assert [judged.claim.system for judged in vote(runs).claims] == [True, False]
    assert [judged.claim.system for judged in vote(runs[1:]).claims] == [True, False]
    alone = run(claim("q", DUPLICATE, system=True), claim("a", CIRCUIT), claim("b", MOVERS))
    # What one run alone claims is not the paper's, whatever that run says.
    voted = vote([alone, run(claim("a", CIRCUIT)), run(claim("a", CIRCUIT))])
    assert next(j.claim.statement for j in voted.claims if j.claim.system) == CIRCUIT


def test_provenance_is_complete(tmp_path: object) -> None:
    rng = np.random.default_rng(7)
    runs = [
        run(claim("a", CIRCUIT, drawn(rng)), claim("b", MOVERS, drawn(rng)), by=by)
        for by in ("Ann", "Bob", "Ann")
    ]
    voted = vote(runs)
    step = voted.steps[0]
    assert [each.name for each in step.inputs] == ["Ann 1", "Bob", "Ann 2"]
    assert all(len(each.sha256) == 64 and each.n_claims == 2 for each in step.inputs)
    by_name = dict(zip(["Ann 1", "Bob", "Ann 2"], runs, strict=True))
    for judged in voted.claims:
        assert {each.run for each in judged.runs} == set(by_name)
        for match in judged.runs:
            own = by_name[match.run].claim(match.claim)
            assert own.claim.statement == match.statement
            for code, judgment in judged.criteria.items():
                assert judgment.steps[0].given[match.run] == own.criteria[code].status
    assert voted.rater.kind == "vote"


def test_votes_are_files_of_judgments(tmp_path: object) -> None:
    voted = three("YES", "NO", "PARTIAL")
    path = voted.save(f"{tmp_path}/voted.json")
    assert read_judgments(path) == voted


def test_reason_and_evidence_are_of_a_run_that_gives_the_status() -> None:
    quotes = {"I2": ["87% faithfulness"]}
    runs = [
        run(claim("a", CIRCUIT, {"I2": "YES"}, reasons={"I2": "all of it"})),
        run(claim("a", CIRCUIT, {"I2": "PARTIAL"}, reasons={"I2": "bare"})),
        run(claim("a", CIRCUIT, {"I2": "PARTIAL"}, reasons={"I2": "shown"}, evidence=quotes)),
    ]
    voted = vote(runs).claims[0].criteria["I2"]
    assert (voted.reason, len(voted.evidence)) == ("shown", 1)


def test_claims_that_were_given_lead() -> None:
    given = claims_of({"claims": [{"id": "own", "statement": CIRCUIT}]})
    voted = vote([run(claim("a", CIRCUIT)), run(claim("x", CIRCUIT), claim("y", MOVERS))], given)
    assert [judged.claim.id for judged in voted.claims] == ["own", "y"]
    assert voted.claims[0].claim.system


def test_ids_that_two_claims_share_are_told_apart() -> None:
    runs = [run(claim("c1", CIRCUIT), claim("c2", INHIBITION)), run(claim("c1", DUPLICATE))]
    assert [judged.claim.id for judged in vote(runs).claims] == ["c1", "c2", "c1-2"]


def test_what_no_vote_is_of() -> None:
    one = run(claim("a", CIRCUIT))
    with pytest.raises(BadUsage, match="at least two runs"):
        vote([one])
    with pytest.raises(BadUsage, match="went through vote already"):
        vote([vote([one, one]), one])
    read = [run(claim("a", CIRCUIT), documents=[{"sha256": x * 64}]) for x in "ab"]
    with pytest.raises(BadUsage, match="no document in common"):
        vote(read)
    other = judgments_of({**one.model_dump(mode="json"), "scope": "other model"})
    with pytest.raises(BadUsage, match="one scope"):
        vote([one, other])
