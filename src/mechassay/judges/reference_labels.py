"""Reference labels of papers, and judgments compared with them.

    name: mine
    papers:
      - {paper: ioi, tier: Mechanistically Supported, source: Registry}

A label is the tier that a paper should have. `paper` is the name of the file of judgments,
without its ending. A paper may have judged `claims` as judgments have them; they are the
reference of the criteria, and of the tier if it is not named. A file of judgments is a reference
of one paper. `tower-2026` names table 2 of Tower (2026).

A paper is judged by the score of its system claim (`evaluate`). Where its label has judged
claims, claims are matched (`match_claims`), and criteria are compared as raters are (`compare`),
over the matched claims of all papers. Agreement on matched claims says nothing of the others. So
two shares stand beside it: how many of the reference's claims were found (recall), and how many
of the judge's are in the reference (precision). Judgments that were voted on also give the range
of their single runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from mechassay.claims.claim import check_claims, fault, read_plain, system_claim
from mechassay.claims.comparison import compare
from mechassay.claims.judgments import JudgedClaim, Judgments, Rater, judgments_of
from mechassay.claims.rubric import RUBRIC, Rubric, check_statuses, claim_score, load_rubric
from mechassay.errors import BadFile, BadUsage, UnknownName, one_of
from mechassay.judges.debiasing import single_scores
from mechassay.judges.evaluation import (
    SHIFT,
    DimensionLevels,
    JudgedPaper,
    JudgeEvaluation,
    MatchedCriteria,
    Proportion,
)
from mechassay.judges.voting import LIKE, match_claims
from mechassay.results.records import Stored
from mechassay.utils.arguments import checked

PUBLISHED = "tower-2026"


class PaperLabel(Stored):
    """What a paper should get.

    Attributes:
        paper: its short name.
        tier: "" if its claims say it.
        source: who says so, or how it came about.
        identifier: where the paper is, such as "arXiv:2211.00593".
    """

    paper: str = Field(min_length=1)
    tier: str = ""
    source: str = ""
    title: str = ""
    identifier: str = ""
    claims: tuple[JudgedClaim, ...] = ()


class ReferenceLabels(Stored):
    """Labels of papers, by one rubric."""

    format: Literal[1] = 1
    rubric: str = RUBRIC
    name: str = "reference"
    source: str = ""
    papers: tuple[PaperLabel, ...] = Field(min_length=1)

    @property
    def criteria(self) -> Rubric:
        """The rubric.

        Raises:
            UnknownName: there is none of that name.
        """
        return load_rubric(self.rubric)

    @checked
    def tier(self, paper: str) -> str:
        """The tier of a paper: its label, or that of its system claim.

        Raises:
            UnknownName: it has no label.
        """
        own = {labelled.paper: labelled for labelled in self.papers}
        if paper not in own:
            raise UnknownName("paper with a label", paper, own)
        return own[paper].tier or _tier(self.criteria, own[paper])


def read_labels(source: str | Path) -> ReferenceLabels:
    """Labels of a JSON or YAML file, of a file of judgments, or those that `tower-2026` names.

    Raises:
        BadFile: not readable, or not of this form; the message names the field and the nearest.
    """
    if str(source) == PUBLISHED:
        return published_labels()
    path = Path(source)
    plain = read_plain(path)
    if isinstance(plain, dict) and "rater" in plain:
        own = judgments_of(plain, str(path))
        paper = PaperLabel(paper=path.stem, source=own.rater.id, claims=own.claims)
        return ReferenceLabels(rubric=own.rubric, name=own.rater.id, papers=(paper,))
    return labels_of(plain, str(path))


def labels_of(plain: Any, name: str = "labels") -> ReferenceLabels:
    """The labels that plain values hold.

    Raises:
        BadFile: they are not of this form.
    """
    try:
        labels = ReferenceLabels.model_validate(plain)
        _check(labels)
    except ValidationError as error:
        raise BadFile(f"{name}: {fault(error, ReferenceLabels)}") from None
    except BadUsage as error:
        raise BadFile(f"{name}: {error}") from None
    return labels


def _check(labels: ReferenceLabels) -> None:
    rubric = labels.criteria
    names = [labelled.paper for labelled in labels.papers]
    for paper in labels.papers:
        if names.count(paper.paper) > 1:
            raise BadUsage(f"Two labels are of {paper.paper!r}.")
        if paper.tier:
            one_of(f"tier of {paper.paper}", paper.tier, [tier.name for tier in rubric.tiers])
        check_claims(labels.rubric, [judged.claim for judged in paper.claims])
        for judged in paper.claims:
            check_statuses(rubric, judged.statuses)
        if not paper.tier and not _tier(rubric, paper):
            raise BadUsage(f"{paper.paper} has neither a tier nor judged claims that have a score.")


def _tier(rubric: Rubric, paper: PaperLabel) -> str:
    if not paper.claims:
        return ""
    system, _ = system_claim([judged.claim for judged in paper.claims])
    own = next(judged for judged in paper.claims if judged.claim.id == system)
    return claim_score(rubric, own.statuses).tier


@cache
def published_labels() -> ReferenceLabels:
    """Table 2 of Tower (2026): nine papers."""
    plain = published_data()
    papers = [
        PaperLabel(
            paper=name,
            tier=row["tier"],
            source=row["source"],
            title=f"{row['title']} ({row['cited']})",
            identifier=f"arXiv:{row['arxiv']}",
        )
        for name, row in plain["labels"].items()
    ]
    return ReferenceLabels(
        rubric=plain["rubric"], name=PUBLISHED, source=plain["source"], papers=tuple(papers)
    )


@cache
def published_data() -> dict[str, Any]:
    """What Tower (2026) prints of its evaluation, as it stands in `claims/data`."""
    text = files("mechassay.judges").joinpath("data", f"{PUBLISHED}.yaml").read_text("utf-8")
    return yaml.safe_load(text)


REFERENCE, JUDGE = "reference", "judge"


@checked
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
    known = {paper.paper: paper for paper in labels.papers}
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
    name, _ = system_claim([claim.claim for claim in judgments.claims])
    return judgments.claim(name)


def _paper(labels: ReferenceLabels, label: PaperLabel, system: JudgedClaim) -> JudgedPaper:
    score = claim_score(labels.criteria, system.statuses)
    return JudgedPaper(label.paper, score.cvs, score.tier, labels.tier(label.paper), label.source)


def _levels(name: str, judgments: Judgments) -> DimensionLevels:
    rubric, system = judgments.criteria, _system(judgments)
    own = claim_score(rubric, system.statuses).dimensions
    others = [
        claim_score(rubric, claim.statuses).dimensions
        for claim in judgments.claims
        if claim.claim.id != system.claim.id
    ]
    means = {code: fmean(own_label[code] for own_label in others) for code in own} if others else {}
    return DimensionLevels(name, own, means, len(others))


def _matched(
    judged: Mapping[str, Judgments], labels: Sequence[PaperLabel], rubric: str, like: float
) -> MatchedCriteria | None:
    """Compare criteria over the claims of all papers whose label has claims."""
    pairs: tuple[list[JudgedClaim], list[JudgedClaim]] = ([], [])
    n_reference = n_judged = 0
    for label in (label_set for label_set in labels if label_set.claims):
        own = judged[label.paper]
        given = {labelled.claim.id: labelled for labelled in label.claims}
        n_reference, n_judged = n_reference + len(given), n_judged + len(own.claims)
        for group in match_claims([own], [labelled.claim for labelled in label.claims], like):
            reference = given.get(group.lead.id)
            # What is left over leads itself, and may share an id with a claim of the reference.
            if reference is None or reference.claim is not group.lead:
                continue
            claim = group.lead.model_copy(
                update={"id": f"{label.paper}: {group.lead.id}", "system": False}
            )
            for side, own_claim in zip(pairs, (reference, group.members[0]), strict=True):
                side.append(JudgedClaim(claim=claim, criteria=own_claim.criteria))
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
