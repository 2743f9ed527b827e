"""Claims that are one: similarity by hand, one to one, merged and missing ones, any order."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from judge_runs import CIRCUIT, DUPLICATE, INHIBITION, MOVERS, claim, run
from mechassay.claims.claim import Claim
from mechassay.claims.judgments import Judgments
from mechassay.claims.matching import (
    ClaimGroup,
    content_words,
    match_claims,
    similarities,
    similarity,
)
from mechassay.errors import BadUsage


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
