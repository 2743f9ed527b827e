"""Judgments of papers against reference labels, as a record.

A paper is judged by the score of its system claim. Where the label has judged claims of its own,
claims are matched (see `claims.matching`) and criteria compared as raters are (see
`claims.comparison`), over the matched claims of all papers; how many of the reference's claims were
found (recall), and how many of the judge's are in the reference (precision), stand beside it, as
agreement on matched claims says nothing of the others.

Judgments that were voted on also give the range of their single runs. The published evaluation of
Tower (2026) is shown in the same form (`published_evaluation`), with the checks of its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from mechassay.claims.claim import system_claim
from mechassay.claims.comparison import compare
from mechassay.claims.debiasing import single_scores
from mechassay.claims.evaluation import SHIFT, JudgedPaper, Proportion
from mechassay.claims.judge_evaluation import DimensionLevels, JudgeEvaluation, MatchedCriteria
from mechassay.claims.judgments import JudgedClaim, Judgments, Rater
from mechassay.claims.labels import PaperLabel, ReferenceLabels
from mechassay.claims.matching import LIKE, match_claims
from mechassay.claims.published import printed_scores, published_checks
from mechassay.claims.scoring import claim_score
from mechassay.errors import BadUsage

REFERENCE, JUDGE = "reference", "judge"


def evaluate(
    judged: Mapping[str, Judgments],
    labels: ReferenceLabels,
    *,
    like: float = LIKE,
    shift: float = SHIFT,
) -> JudgeEvaluation:
    """Evaluate judgments of papers against labels.

    Args:
        judged: judgments by the short names of papers.
        like: the least similarity of claims that are one.
        shift: by how much boundaries of tiers are moved.

    Raises:
        BadUsage: judgments by another rubric than the labels, or no paper that has both.
    """
    for name, own in judged.items():
        if own.rubric != labels.rubric:
            raise BadUsage(
                f"The judgments of {name} are by {own.rubric}, the labels by {labels.rubric}."
            )
    known = {each.paper: each for each in labels.papers}
    both = [name for name in judged if name in known]
    if not both:
        raise BadUsage(
            f"No paper is both judged and labelled: judged are {', '.join(judged) or 'none'},"
            f" labelled {', '.join(known)}. A paper has the name of its file of judgments."
        )
    raters = list(dict.fromkeys(judged[name].rater.id for name in both))
    systems = {name: _system(judged[name]) for name in both}
    runs = {
        name: tuple(single_scores(labels.criteria, system).values())
        for name, system in systems.items()
        if system.runs
    }
    return JudgeEvaluation(
        rubric=labels.criteria,
        judge=raters[0] if len(raters) == 1 else f"{len(raters)} raters",
        labels=labels.name,
        papers=tuple(_paper(labels, known[name], systems[name]) for name in both),
        unlabelled=tuple(name for name in judged if name not in known),
        unjudged=tuple(name for name in known if name not in judged),
        runs=runs,
        dimensions=tuple(_levels(name, judged[name]) for name in both),
        criteria=_matched(judged, [known[name] for name in both], labels.rubric, like),
        shift=shift,
    )


def _system(judgments: Judgments) -> JudgedClaim:
    name, _ = system_claim([each.claim for each in judgments.claims])
    return judgments.claim(name)


def _paper(labels: ReferenceLabels, label: PaperLabel, system: JudgedClaim) -> JudgedPaper:
    score = claim_score(labels.criteria, system.statuses)
    return JudgedPaper(label.paper, score.cvs, score.tier, labels.tier(label.paper), label.source)


def _levels(name: str, judgments: Judgments) -> DimensionLevels:
    rubric, system = judgments.criteria, _system(judgments)
    own = claim_score(rubric, system.statuses).dimensions
    others = [
        claim_score(rubric, each.statuses).dimensions
        for each in judgments.claims
        if each.claim.id != system.claim.id
    ]
    means = {code: fmean(each[code] for each in others) for code in own} if others else {}
    return DimensionLevels(name, own, means, len(others))


def _matched(
    judged: Mapping[str, Judgments], labels: Sequence[PaperLabel], rubric: str, like: float
) -> MatchedCriteria | None:
    """Compare criteria over the claims of all papers whose label has claims."""
    pairs: tuple[list[JudgedClaim], list[JudgedClaim]] = ([], [])
    n_reference = n_judged = 0
    for label in (each for each in labels if each.claims):
        own = judged[label.paper]
        given = {each.claim.id: each for each in label.claims}
        n_reference, n_judged = n_reference + len(given), n_judged + len(own.claims)
        for group in match_claims([own], [each.claim for each in label.claims], like):
            reference = given.get(group.lead.id)
            # What is left over leads itself, and may share an id with a claim of the reference.
            if reference is None or reference.claim is not group.lead:
                continue
            claim = group.lead.model_copy(
                update={"id": f"{label.paper}: {group.lead.id}", "system": False}
            )
            for side, each in zip(pairs, (reference, group.members[0]), strict=True):
                side.append(JudgedClaim(claim=claim, criteria=each.criteria))
    if not n_reference:
        return None
    n = len(pairs[0])
    shares = Proportion(n, n_reference), Proportion(n, n_judged)
    if not n:
        return MatchedCriteria(None, *shares)
    reference, judge = (
        Judgments(rubric=rubric, rater=Rater(kind="human", id=name), claims=tuple(claims))
        for name, claims in zip((REFERENCE, JUDGE), pairs, strict=True)
    )
    return MatchedCriteria(compare([reference, judge]), *shares)


def published_evaluation(single: str = "") -> JudgeEvaluation:
    """The evaluation that Tower (2026) prints: the vote of table 3, or single runs of table 4.

    Args:
        single: "lowest" or "highest" for single runs.

    Raises:
        BadUsage: it is neither, nor empty.
    """
    printed = printed_scores()
    ends = {"lowest": 0, "highest": 1}
    if single and single not in ends:
        raise BadUsage(f"Single runs are the lowest or the highest; got {single!r}.")
    name = "DeepSeek V4 Pro"
    judge = f"{name}, {single} single run" if single else f"{name}, minimum of 3 runs"
    return JudgeEvaluation(
        rubric=printed.rubric,
        judge=judge,
        labels="Tower (2026), table 2",
        papers=tuple(printed.single(ends[single]) if single else printed.voted()),
        runs={
            paper: tuple(printed.score(each) for each in dict.fromkeys(row["cvs"]))
            for paper, row in printed.plain["single"].items()
        },
        checks=() if single else published_checks(),
    )
