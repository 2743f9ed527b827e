"""Reference labels: the tier that a paper should have, and the statuses of its claims.

    name: mine
    papers:
      - {paper: ioi, tier: Mechanistically Supported, source: Registry}

`paper` is the name of the file of judgments, without its ending. A paper may have judged `claims`
as judgments have them; they are the reference of the criteria, and of the tier if it is not named.
A file of judgments is a reference of one paper. `tower-2026` names table 2 of Tower (2026).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from mechassay.claims.claim import check_claims, system_claim
from mechassay.claims.explain import fault, read_plain
from mechassay.claims.judgments import JudgedClaim, judgments_of
from mechassay.claims.rubric import RUBRIC, Rubric, load_rubric
from mechassay.claims.scoring import check_statuses, claim_score
from mechassay.errors import BadFile, BadUsage, UnknownName, one_of
from mechassay.records import Stored

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

    def tier(self, paper: str) -> str:
        """The tier of a paper: its label, or that of its system claim.

        Raises:
            UnknownName: it has no label.
        """
        own = {each.paper: each for each in self.papers}
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
        found = ReferenceLabels.model_validate(plain)
        _check(found)
    except ValidationError as error:
        raise BadFile(f"{name}: {fault(error, ReferenceLabels)}") from None
    except BadUsage as error:
        raise BadFile(f"{name}: {error}") from None
    return found


def _check(labels: ReferenceLabels) -> None:
    rubric = labels.criteria
    names = [each.paper for each in labels.papers]
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
    text = files("mechassay.claims").joinpath("data", f"{PUBLISHED}.yaml").read_text("utf-8")
    return yaml.safe_load(text)
