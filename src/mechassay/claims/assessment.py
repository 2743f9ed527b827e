"""From a document to judgments: flags, requests to a judge in steps, its answers as judgments.

    one                    one request: the claims, and all criteria of each
    claims-then-criteria   one for the claims, then one for each claim
    per-criterion          one for the claims, then one for each criterion of each claim

Fewer requests cost less; smaller ones fit into a shorter context, and the judge looks at one thing
at a time. Where claims are given, they are judged and none are asked for; `one` is then a request
for each claim. What a judge says is taken as it is: whether its quotes are in the document is asked
when the judgments are scored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel

from mechassay.claims.answers import Step, answer_form, claims_in, judgments_in, read_answer
from mechassay.claims.asking import TRIES, ask
from mechassay.claims.claim import Claim, ClaimFile
from mechassay.claims.documents import PagedDocument
from mechassay.claims.exchange import Exchange, JudgeRequest
from mechassay.claims.flags import DocumentFlag, find_flags
from mechassay.claims.judge import Judge
from mechassay.claims.judgments import JudgedClaim, Judgment, Judgments, Rater, ordered
from mechassay.claims.prompt import (
    JudgePrompt,
    claims_question,
    criteria_question,
    document_text,
    judge_prompt,
    one_question,
    system_text,
)
from mechassay.claims.rubric import RUBRIC, Rubric, load_rubric
from mechassay.display import OneLine
from mechassay.errors import BadUsage, NoAnswer, one_of
from mechassay.progress import SILENT, Progress

Steps = Literal["one", "claims-then-criteria", "per-criterion"]
MOST_TOKENS = 16_384
LONGEST = 1200
"""Characters of a reason, a quote or a statement."""


@dataclass(frozen=True, repr=False)
class Assessment(OneLine):
    """What a judge said of a document, and what it took.

    Attributes:
        flags: what rules found in the document.
        exchanges: all requests with their answers, in order.
    """

    judgments: Judgments
    flags: tuple[DocumentFlag, ...]
    exchanges: tuple[Exchange, ...]

    def spent(self) -> dict[str, float]:
        """Requests, what failed of them, tokens of all answers and their cost in US dollars.

        The cost is NaN if that of an answer is not known; `without_price` counts these.
        """
        tried = [each for exchange in self.exchanges for each in exchange.tried]
        answers = [each.answer for each in (*tried, *self.exchanges) if each.answer is not None]
        unpriced = sum(math.isnan(answer.cost) for answer in answers)
        return {
            "requests": float(len(self.exchanges)),
            "faults": float(sum(each.kind == "fault" for each in tried)),
            "invalid_answers": float(sum(each.kind == "invalid" for each in tried)),
            "input_tokens": float(sum(answer.input_tokens for answer in answers)),
            "cached_tokens": float(sum(answer.cached_tokens for answer in answers)),
            "output_tokens": float(sum(answer.output_tokens for answer in answers)),
            "cost": math.nan if unpriced else math.fsum(answer.cost for answer in answers),
            "without_price": float(unpriced),
        }


@dataclass(frozen=True)
class _Asked:
    """What all requests of a run share."""

    judge: Judge
    rubric: Rubric
    codes: tuple[str, ...]
    document: PagedDocument
    prompt: JudgePrompt
    told: str
    run: int
    most_tokens: int
    longest: int
    kept: Path | None
    tries: int
    sleep: Callable[[float], object]

    def ask(
        self,
        step: Step,
        question: str,
        codes: Sequence[str] = (),
        claim: str = "",
        read: Callable[[dict[str, Any]], object] = lambda answer: answer,
    ) -> tuple[dict[str, Any], Exchange]:
        """A valid answer; `read` refuses one that is of the form and yet wrong."""
        form = answer_form(step, self.rubric, codes, self.longest)

        def checked(text: str) -> dict[str, Any]:
            answer = read_answer(form, text)
            read(answer)
            return answer

        request = self._request(step, question, codes, claim, form)
        return ask(self.judge, request, checked, kept=self.kept, tries=self.tries, sleep=self.sleep)

    def _request(
        self, step: Step, question: str, codes: Sequence[str], claim: str, form: type[BaseModel]
    ) -> JudgeRequest:
        return JudgeRequest(
            step=step,
            claim=claim,
            codes=tuple(codes),
            system=system_text(self.prompt),
            user=f"{self.told}\n\n{question}",
            form=form.model_json_schema(),
            most_tokens=self.most_tokens,
            run=self.run,
        )


def assess(
    document: PagedDocument,
    judge: Judge,
    *,
    steps: Steps = "claims-then-criteria",
    claims: ClaimFile | None = None,
    criteria: Sequence[str] = (),
    rubric: str = RUBRIC,
    run: int = 0,
    most_tokens: int = MOST_TOKENS,
    longest: int = LONGEST,
    tries: int = TRIES,
    kept: Path | None = None,
    progress: Progress = SILENT,
    sleep: Callable[[float], object] = time.sleep,
) -> Assessment:
    """Have a document judged.

    Args:
        claims: to judge; those that the judge finds if none are given.
        criteria: codes; all of the rubric if none are named. Others are NOT TESTED.
        run: from 0; several runs of one judge are several requests.
        most_tokens: of an answer.
        longest: characters of a reason or a quote.
        tries, sleep: see `claims.asking.ask`.
        kept: folder of answers, from which a run that was stopped goes on.

    Raises:
        UnknownName: no such steps, rubric or criterion. BadUsage: claims of another rubric.
        NoAnswer: the judge gave none, or finds no claim in the document.
    """
    one_of("steps of a judge", steps, get_args(Steps))
    own = load_rubric(claims.rubric if claims else rubric)
    if claims is not None and own.key != load_rubric(rubric).key:
        raise BadUsage(f"The claims are for {own.key}, not for {rubric}.")
    prompt, flags = judge_prompt(), find_flags(document)
    asked = _Asked(
        judge,
        own,
        codes=check_codes(own, criteria),
        document=document,
        prompt=prompt,
        told=document_text(prompt, document, flags),
        run=run,
        most_tokens=most_tokens,
        longest=longest,
        kept=kept,
        tries=tries,
        sleep=sleep,
    )
    if claims is None and steps == "one":
        judged, exchanges = _all_at_once(asked)
    else:
        judged, exchanges = _claim_by_claim(asked, steps, claims, progress)
    found = Judgments(
        rubric=own.key,
        rater=Rater(kind="language model", id=judge.id),
        documents=(document.source,),
        claims=tuple(judged),
    )
    return Assessment(found, flags, tuple(exchanges))


def check_codes(rubric: Rubric, criteria: Sequence[str]) -> tuple[str, ...]:
    """The criteria that are asked for, in the order of the rubric; all if none are named.

    Raises:
        UnknownName: the rubric has none of that code.
    """
    for code in criteria:
        rubric.criterion(code)
    return tuple(code for code in rubric.codes if not criteria or code in criteria)


def _all_at_once(asked: _Asked) -> tuple[list[JudgedClaim], list[Exchange]]:
    question = one_question(asked.prompt, asked.rubric, asked.codes)
    answer, exchange = asked.ask(
        "one", question, asked.codes, read=lambda found: claims_in(found, asked.rubric)
    )
    claims = claims_in(answer, asked.rubric)
    _check_any(asked, claims)
    judged = [
        _judged(asked, claim, judgments_in(own["criteria"], asked.document.sha256))
        for claim, own in zip(claims, answer["claims"], strict=True)
    ]
    return judged, [exchange]


def _claim_by_claim(
    asked: _Asked, steps: Steps, given: ClaimFile | None, progress: Progress
) -> tuple[list[JudgedClaim], list[Exchange]]:
    exchanges: list[Exchange] = []
    if given is None:
        answer, exchange = asked.ask(
            "claims",
            claims_question(asked.prompt),
            read=lambda found: claims_in(found, asked.rubric),
        )
        claims = claims_in(answer, asked.rubric)
        exchanges.append(exchange)
    else:
        claims = given.claims
    _check_any(asked, claims)
    codes = asked.codes
    groups = [(code,) for code in codes] if steps == "per-criterion" else [codes]
    judged: list[JudgedClaim] = []
    with progress.track(f"run {asked.run + 1}", len(claims) * len(groups)) as advance:
        for claim in claims:
            found: dict[str, Judgment] = {}
            for group in groups:
                question = criteria_question(asked.prompt, asked.rubric, group, claim)
                answer, exchange = asked.ask("criteria", question, group, claim.id)
                found |= judgments_in(answer["criteria"], asked.document.sha256)
                exchanges.append(exchange)
                advance(1)
            judged.append(_judged(asked, claim, found))
    return judged, exchanges


def _check_any(asked: _Asked, claims: Sequence[Claim]) -> None:
    if not claims:
        raise NoAnswer(
            f"{asked.judge.id} finds no mechanism claim in {asked.document.name}: there is nothing"
            " to judge. --claims names claims to judge."
        )


def _judged(asked: _Asked, claim: Claim, found: dict[str, Judgment]) -> JudgedClaim:
    return JudgedClaim(claim=claim, criteria=ordered(asked.rubric, found))
