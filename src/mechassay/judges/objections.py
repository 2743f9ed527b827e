"""A language model that objects to judgments: an auditor of leaks, or a devil's advocate.

Both look at the five criteria of the leak audit (`mechassay.judges.leak_audit`) where a claim
has YES or PARTIAL, one request a claim, and neither sees the document (Tower 2026, sections 3.5
and 3.8). What they answer becomes judgments, which `audit` and `challenge` follow or reject as
they do those of a person.

    auditor     says whose evidence it is; "whole" is NO, "part" and "unclear" are nothing
    advocate    states the experiment that would meet the criterion, and compares the evidence:

                                 conservative      aggressive
                    direct       nothing           nothing
                    indirect     nothing           one status lower
                    other        NO                NO

An auditor leaves alone the claims that `audit` spares; a conservative advocate spares the system
claim. The paper prints neither prompt: the words are ours (`judges/data/objections.yaml`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from mechassay.claims.judgments import JudgedClaim, Judgment, Judgments, Rater, now, ordered, rank
from mechassay.claims.rubric import JUDGED, Status
from mechassay.errors import BadUsage
from mechassay.judges.judge import Judge, ask
from mechassay.judges.leak_audit import SPARES, Spare, claim_for_auditor, leaking, spared_claims
from mechassay.judges.options import LONGEST, MOST_TOKENS, TRIES, Calibration
from mechassay.judges.requests import Exchange, JudgeRequest, answer_form, read_answer
from mechassay.results.records import Stored
from mechassay.utils.display import SILENT, OneLine, Progress

Objector = Literal["audit", "advocate"]


class ObjectorWords(Stored):
    """What one of the two is told, and an advocate by its calibration."""

    role: str
    rules: tuple[str, ...]
    conservative: tuple[str, ...] = ()
    aggressive: tuple[str, ...] = ()


class ObjectionWords(Stored):
    """What both are told; see `judges/data/objections.yaml`."""

    version: int
    common: tuple[str, ...]
    audit: ObjectorWords
    advocate: ObjectorWords


@cache
def objection_words() -> ObjectionWords:
    """The words of this version."""
    text = files("mechassay.judges").joinpath("data", "objections.yaml").read_text("utf-8")
    return ObjectionWords.model_validate(yaml.safe_load(text))


@dataclass(frozen=True, repr=False)
class Objections(OneLine):
    """What an objector said, and its requests with their answers."""

    judgments: Judgments
    exchanges: tuple[Exchange, ...]

    @property
    def n_objections(self) -> int:
        """Criteria of all claims that it wants lower."""
        statuses = (status for own in self.judgments.claims for status in own.statuses.values())
        return sum(status != "NOT TESTED" for status in statuses)


def ask_auditor(
    judgments: Judgments, judge: Judge, spare: Spare = "system", **how: Any
) -> Objections:
    """Have a language model look for evidence of the whole in claims about parts.

    Args:
        spare: see `mechassay.judges.leak_audit.spared_claims`.
        how: see `_ask_all`.

    Raises:
        NoAnswer: the judge gave none of the form.
    """
    spared = spared_claims([judged.claim for judged in judgments.claims], spare)

    def status(answer: dict[str, Any], before: Status) -> Status:
        return "NO" if answer["origin"] == "whole" else "NOT TESTED"

    return _ask_all(judgments, judge, "audit", objection_words().audit.rules, spared, status, **how)


def ask_advocate(
    judgments: Judgments, judge: Judge, calibration: Calibration = "conservative", **how: Any
) -> Objections:
    """Have a language model argue against judgments.

    Args:
        how: see `_ask_all`.

    Raises:
        NoAnswer: the judge gave none of the form.
    """
    mild, words = calibration == "conservative", objection_words().advocate
    spared = spared_claims([judged.claim for judged in judgments.claims], SPARES[0]) if mild else ()

    def status(answer: dict[str, Any], before: Status) -> Status:
        if answer["evidence"] == "other":
            return "NO"
        if answer["evidence"] == "indirect" and not mild:
            return JUDGED[rank(before) - 2]
        return "NOT TESTED"

    rules = (*words.rules, *(words.conservative if mild else words.aggressive))
    return _ask_all(judgments, judge, "advocate", rules, spared, status, **how)


def _ask_all(
    judgments: Judgments,
    judge: Judge,
    objector: Objector,
    rules: Sequence[str],
    spared: Sequence[str],
    status: Callable[[dict[str, Any], Status], Status],
    *,
    most_tokens: int = MOST_TOKENS,
    longest: int = LONGEST,
    tries: int = TRIES,
    kept: Path | None = None,
    progress: Progress = SILENT,
    sleep: Callable[[float], object] = time.sleep,
) -> Objections:
    """One request for each claim that has something to object to.

    Args:
        status: what an answer makes of a status; NOT TESTED is no objection.
        most_tokens, longest, tries, kept, sleep: see `mechassay.judges.assess`.
    """
    if not judgments.claims:
        raise BadUsage("There are no claims to object to.")
    words = objection_words()
    role = words.audit.role if objector == "audit" else words.advocate.role
    system = "\n".join((role, *(f"- {rule}" for rule in (*rules, *words.common))))
    rubric, exchanges, claims = judgments.criteria, list[Exchange](), list[JudgedClaim]()
    with progress.track(objector, len(judgments.claims)) as advance:
        for judged in judgments.claims:
            codes = tuple(
                code
                for code in leaking(rubric)
                if rank(judged.statuses[code]) > 1 and judged.claim.id not in spared
            )
            objected: dict[str, Judgment] = {}
            if codes:
                form = answer_form(objector, rubric, codes, longest)
                request = JudgeRequest(
                    step=objector,
                    claim=judged.claim.id,
                    codes=codes,
                    system=system,
                    user=_question(judgments, judged, codes, spared),
                    form=form.model_json_schema(),
                    most_tokens=most_tokens,
                )

                def read(text: str, form: Any = form) -> dict[str, Any]:
                    return read_answer(form, text)

                answer, exchange = ask(judge, request, read, kept=kept, tries=tries, sleep=sleep)
                exchanges.append(exchange)
                for code in codes:
                    own = answer["criteria"][code]
                    wanted = status(own, judged.statuses[code])
                    if wanted != "NOT TESTED":
                        objected[code] = Judgment(status=wanted, reason=own["reason"])
            claims.append(JudgedClaim(claim=judged.claim, criteria=ordered(rubric, objected)))
            advance(1)
    rater = Rater(kind="language model", id=f"{judge.id} as {_ROLES[objector]}")
    objections = Judgments(rubric=rubric.key, rater=rater, created=now(), claims=tuple(claims))
    return Objections(objections, tuple(exchanges))


_ROLES = {"audit": "auditor", "advocate": "devil's advocate"}


def _question(
    judgments: Judgments, judged: JudgedClaim, codes: Sequence[str], spared: Sequence[str]
) -> str:
    """A claim with its evidence, and that of the whole system, as data."""
    rubric = judgments.criteria
    whole = [
        claim_for_auditor(own, codes)
        for own in judgments.claims
        if own.claim.id in spared and own.claim.id != judged.claim.id
    ]
    facts = {
        "criteria": {code: rubric.criterion(code).asks for code in codes},
        **({"system": whole} if whole else {}),
        "claim": claim_for_auditor(judged, codes),
    }
    # Words that chat templates use to tell who speaks; a text has no right to them.
    text = json.dumps(facts, indent=1, ensure_ascii=False).replace("<|", "< |")
    return f"{text}\n\n# Your task\nAnswer for {', '.join(codes)} of the claim {judged.claim.id}."
