"""Claims of several runs that are one claim: matched one to one, by their words and components.

    words        2 |A ∩ B| / (|A| + |B|) of the sets of content words        (Dice 1945)
    components   |A ∩ B| / |A ∪ B| of their names
    similarity   the mean of both; that of words where one of the claims names no component

The run with most claims leads. The claims of each other run are assigned to its claims such that
the summed similarity is largest (Kuhn 1955); less than `LIKE` is no match. Then the run with most
claims that are left leads, until none is left. Who leads among equals is decided by what the runs
say, never by their order. Each run is matched to the leading one alone: another run changes no
match, unless it leads. With claims that are given beforehand those lead, and none ever does.

Similarity is that of words, not of meaning: a paraphrase without a common word is another claim,
and a claim that merges two is matched to one of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from mechassay.claims.claim import Claim, component_name
from mechassay.claims.judgments import JudgedClaim, Judgments
from mechassay.display import OneLine
from mechassay.errors import BadUsage

LIKE = 0.6
"""The similarity from which two claims are one; claims on parts of one circuit reach about .5."""
_FUNCTION_WORDS = (
    "a all also an and are as at be been between but by can do does for from had has have how if"
    " in into is it its no not of on only onto or over so such than that the their them then there"
    " these they this those through to up via was were what when where which while who whose will"
    " with within"
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
_WORD = re.compile(r"[al]?\d+[.h]h?\d+|\w\w+|\d")


@dataclass(frozen=True, repr=False)
class ClaimGroup(OneLine):
    """The claims of several runs that are taken for one.

    Attributes:
        lead: the claim that the others were matched to.
        members: of each run that has it, its claim.
        similarity: of each member to the lead.
    """

    lead: Claim
    members: dict[int, JudgedClaim]
    similarity: dict[int, float]


def similarity(a: Claim, b: Claim) -> float:
    """How like two claims are, from 0 to 1; 0 where neither has a content word or component."""
    words = content_words(a.statement), content_words(b.statement)
    sizes = len(words[0]) + len(words[1])
    alike = 2 * len(words[0] & words[1]) / sizes if sizes else 0.0
    parts = [{component_name(each) for each in claim.components} for claim in (a, b)]
    if not all(parts):
        return alike
    return (alike + len(parts[0] & parts[1]) / len(parts[0] | parts[1])) / 2


def content_words(text: str) -> frozenset[str]:
    """Its words without function words, endings of plurals, and ways to write a head."""
    found = (component_name(word) for word in _WORD.findall(text.casefold()))
    return frozenset(_singular(word) for word in found if word not in FUNCTION_WORDS)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] not in "su" else word


def match_claims(
    runs: Sequence[Judgments], given: Sequence[Claim] = (), like: float = LIKE
) -> list[ClaimGroup]:
    """Groups of claims that are one, of which every claim of every run is in exactly one.

    Args:
        given: claims that lead; one that no run makes has no group.
        like: the least similarity of a match, above 0 and at most 1.

    Returns:
        The groups in the order of the claims that lead.

    Raises:
        BadUsage: `like` outside of its range.
    """
    if not 0 < like <= 1:
        raise BadUsage(f"The least similarity of a match is above 0 and at most 1; got {like}.")
    # In an order of their content, so that equals are matched alike in whatever order they come.
    left = [sorted(run.claims, key=_content) for run in runs]
    groups = _matched(list(given), left, like) if given else []
    while any(left):
        leader = _leader(left)
        order = {judged.claim.id: place for place, judged in enumerate(runs[leader].claims)}
        lead = sorted(left[leader], key=lambda judged: order[judged.claim.id])
        groups += _matched([judged.claim for judged in lead], left, like, lead, leader)
    return groups


def _matched(
    claims: Sequence[Claim],
    left: list[list[JudgedClaim]],
    like: float,
    own: Sequence[JudgedClaim] = (),
    leader: int = -1,
) -> list[ClaimGroup]:
    """Take what matches the leading claims out of what is left."""
    groups = [ClaimGroup(claim, {}, {}) for claim in claims]
    for place, judged in enumerate(own):
        groups[place].members[leader] = judged
        groups[place].similarity[leader] = 1.0
    order = sorted(range(len(claims)), key=lambda place: claims[place].model_dump_json())
    for run, others in enumerate(left):
        if run == leader:
            left[run] = []
            continue
        found = similarities([claims[place] for place in order], [each.claim for each in others])
        found = np.where(found >= like, found, 0.0)
        taken: set[int] = set()
        for row, column in zip(*linear_sum_assignment(found, maximize=True), strict=True):
            if found[row, column] > 0:
                group = groups[order[row]]
                group.members[run] = others[column]
                group.similarity[run] = float(found[row, column])
                taken.add(int(column))
        left[run] = [each for place, each in enumerate(others) if place not in taken]
    return [group for group in groups if group.members]


def similarities(a: Sequence[Claim], b: Sequence[Claim]) -> Float[np.ndarray, "a b"]:
    """The similarity of each claim to each other one."""
    return np.array([[similarity(one, other) for other in b] for one in a]).reshape(len(a), len(b))


def _leader(left: Sequence[Sequence[JudgedClaim]]) -> int:
    """The run with most claims; among equals the one most like the others, then by content."""
    most = max(map(len, left))
    tied = [run for run, claims in enumerate(left) if len(claims) == most]
    if len(tied) == 1:
        return tied[0]
    alike = np.zeros((len(left),) * 2)
    for a, b in combinations(range(len(left)), 2):
        found = similarities([each.claim for each in left[a]], [each.claim for each in left[b]])
        alike[a, b] = alike[b, a] = round(float(found.sum()), 9)
    return min(
        tied, key=lambda run: (-round(float(alike[run].sum()), 6), [*map(_content, left[run])])
    )


def _content(judged: JudgedClaim) -> tuple[str, str]:
    return judged.claim.statement, judged.model_dump_json()
