"""Requests to a judge and its answers: what is asked, the form of an answer, and how both are kept.

A request is all that a judge sees: its words, the form of the answer, the most tokens that it
may have, and the number of the run, so that several runs of one judge are several requests. Its
hash is the name under which its answer is kept.

    claims      {"claims": [claim]}
    one         {"claims": [claim with "criteria"]}
    criteria    {"criteria": {"C1": judgment, ...}}

    audit       {"criteria": {"I2": {reason, origin}, ...}}
    advocate    {"criteria": {"I2": {experiment, reason, evidence}, ...}}

    claim       id, statement, system, description_mode, families, components
    judgment    reason, quotes, status

A form names every criterion, each of them required, so that an answer cannot leave one out;
nothing else may stand in it. A reason stands before its status, as a model writes in that order.
An answer that is cut off, not JSON, or of another form is invalid and is never repaired.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from mechassay.claims.claim import Claim, check_claims, component_name
from mechassay.claims.judgments import Evidence, Judgment, Quote
from mechassay.claims.rubric import Rubric
from mechassay.errors import BadFile, BadUsage, InvalidAnswer, first_line
from mechassay.results.records import Number, Stored, first_mistake
from mechassay.utils.files import write_text

Step = Literal["claims", "one", "criteria", "audit", "advocate"]
"""What one request asks for."""
MOST_CLAIMS = 20
MOST_QUOTES = 3
UNCLEAR = "unclear"
"""Stands for a mode of description that the document does not show."""
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


def answer_form(step: Step, rubric: Rubric, codes: Sequence[str], longest: int) -> type[BaseModel]:
    """The form of an answer.

    Args:
        codes: of the criteria that are asked for.
        longest: characters of a reason, a quote or a statement.
    """
    if step == "claims":
        return _form("ClaimsAnswer", claims=_several(_claim(rubric, longest)))
    judgment = {"audit": _origin, "advocate": _experiment}.get(step, _judgment)(rubric, longest)
    own = _form("CriteriaAnswer", **dict.fromkeys(codes, judgment))
    if step in ("criteria", "audit", "advocate"):
        return _form("JudgmentsAnswer", criteria=own)
    judged = create_model("JudgedAnswer", __base__=_claim(rubric, longest), criteria=(own, ...))
    return _form("ClaimsAnswer", claims=_several(judged))


def _form(name: str, **fields: Any) -> type[BaseModel]:
    required: Any = {key: (kind, ...) for key, kind in fields.items()}
    return create_model(name, __config__=_STRICT, **required)


def _several(kind: Any) -> Any:
    return Annotated[list[kind], Field(max_length=MOST_CLAIMS)]


def _text(longest: int) -> Any:
    return Annotated[str, Field(min_length=1, max_length=longest)]


def _judgment(rubric: Rubric, longest: int) -> type[BaseModel]:
    text = _text(longest)
    return _form(
        "JudgmentAnswer",
        reason=text,
        quotes=Annotated[list[text], Field(max_length=MOST_QUOTES)],
        status=_word(*rubric.statuses),
    )


def _origin(rubric: Rubric, longest: int) -> type[BaseModel]:
    return _form("AuditAnswer", reason=_text(longest), origin=_word("part", "whole", "unclear"))


def _experiment(rubric: Rubric, longest: int) -> type[BaseModel]:
    text = _text(longest)
    evidence = _word("direct", "indirect", "other")
    return _form("AdvocateAnswer", experiment=text, reason=text, evidence=evidence)


def _claim(rubric: Rubric, longest: int) -> type[BaseModel]:
    return _form(
        "ClaimAnswer",
        id=Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")],
        statement=_text(longest),
        system=bool,
        description_mode=_word(*rubric.modes, UNCLEAR),
        families=Annotated[list[_word(*rubric.families)], Field(max_length=len(rubric.families))],
        components=Annotated[list[_text(80)], Field(max_length=60)],
    )


def _word(*words: str) -> Any:
    return Literal[words]


def read_answer(form: type[BaseModel], text: str) -> dict[str, Any]:
    """The plain values of an answer.

    Raises:
        InvalidAnswer: not JSON, a key twice, or not of the form.
    """
    try:
        json.loads(text, object_pairs_hook=_once)
        return form.model_validate_json(text).model_dump()
    except ValidationError as error:
        raise InvalidAnswer(
            f"not of the form that was asked for ({first_mistake(error)})"
        ) from None
    except ValueError as error:
        raise InvalidAnswer(f"not JSON ({first_line(error)})") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object none of whose keys stands twice."""
    keys = dict(pairs)
    if len(keys) < len(pairs):
        raise ValueError("a key stands twice")
    return keys


def claims_in(answer: dict[str, Any], rubric: Rubric) -> tuple[Claim, ...]:
    """The claims of an answer to "claims" or "one".

    Raises:
        InvalidAnswer: two have one id, or two are marked as the system.
    """
    claims = tuple(
        Claim(
            id=answered["id"],
            statement=answered["statement"],
            system=answered["system"],
            description_mode=_mode(answered["description_mode"]),
            families=tuple(dict.fromkeys(answered["families"])),
            components=tuple(dict.fromkeys(map(component_name, answered["components"]))),
        )
        for answered in answer["claims"]
    )
    try:
        check_claims(rubric.key, claims)
    except BadUsage as error:
        raise InvalidAnswer(str(error)) from None
    return claims


def _mode(named: str) -> str:
    return "" if named == UNCLEAR else named


def judgments_in(criteria: dict[str, Any], document: str) -> dict[str, Judgment]:
    """The judgments of an answer, with its quotes as evidence.

    Args:
        document: SHA-256 of the document that was judged.
    """
    return {
        code: Judgment(
            status=criterion["status"],
            reason=criterion["reason"],
            evidence=tuple(
                Evidence(quote=Quote(exact=quote, document=document))
                for quote in dict.fromkeys(criterion["quotes"])
            ),
        )
        for code, criterion in criteria.items()
    }


BYTES_PER_TOKEN = 3
"""English has more bytes a token in every common vocabulary, so that lengths are not estimated too
short."""


class JudgeRequest(Stored):
    """What a judge is asked.

    Attributes:
        step: what for.
        claim: the id of the claim that is judged; "" where claims are asked for.
        codes: of the criteria that are asked for.
        system, user: the words.
        form: JSON schema of the answer.
        most_tokens: of the answer.
        run: from 0.
    """

    step: Step
    claim: str = ""
    codes: tuple[str, ...] = ()
    system: str
    user: str
    form: dict[str, Any]
    most_tokens: int
    run: int = 0

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all of it."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def n_tokens(self) -> int:
        """Tokens of its words, estimated from above."""
        form = len(json.dumps(self.form))
        return math.ceil((len(f"{self.system}{self.user}".encode()) + form) / BYTES_PER_TOKEN)


class JudgeAnswer(Stored):
    """What a judge answered, as it came.

    Attributes:
        finish: "stop" of a whole answer; "length" of one that was cut off, or another reason.
        model: as the server names it.
        cached_tokens: of the input, those that the server had read before.
        cost: in US dollars; NaN if no price is known.
    """

    text: str
    finish: str = "stop"
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: Number = math.nan


class FailedTry(Stored):
    """A request that did not bring a valid answer: a fault on the way, or an invalid answer."""

    kind: Literal["fault", "invalid"]
    says: str
    answer: JudgeAnswer | None = None


class Exchange(Stored):
    """A request and what came of it, as it is kept.

    Attributes:
        tried: what failed, in order.
        answer: the valid answer; None while there is none.
    """

    format: Literal[1] = 1
    judge: str = Field(min_length=1)
    request: JudgeRequest
    tried: tuple[FailedTry, ...] = ()
    answer: JudgeAnswer | None = None

    def save(self, folder: Path) -> Path:
        """Write it under the hash of its request."""
        return write_text(
            exchange_file(folder, self.request), self.model_dump_json(indent=1) + "\n"
        )


def spent_on(exchanges: Sequence[Exchange]) -> dict[str, float]:
    """Requests, what failed of them, tokens of all answers and their cost in US dollars.

    The cost is NaN if that of an answer is not known; `without_price` counts these.
    """
    tried = [attempt for exchange in exchanges for attempt in exchange.tried]
    answers = [step.answer for step in (*tried, *exchanges) if step.answer is not None]
    unpriced = sum(math.isnan(answer.cost) for answer in answers)
    return {
        "requests": float(len(exchanges)),
        "faults": float(sum(attempt.kind == "fault" for attempt in tried)),
        "invalid_answers": float(sum(attempt.kind == "invalid" for attempt in tried)),
        "input_tokens": float(sum(answer.input_tokens for answer in answers)),
        "cached_tokens": float(sum(answer.cached_tokens for answer in answers)),
        "output_tokens": float(sum(answer.output_tokens for answer in answers)),
        "cost": math.nan if unpriced else math.fsum(answer.cost for answer in answers),
        "without_price": float(unpriced),
    }


def exchange_file(folder: Path, request: JudgeRequest) -> Path:
    """Where the exchange of a request is kept."""
    return folder / f"{request.hash}.json"


def read_exchange(path: Path) -> Exchange:
    """An exchange that was kept.

    Raises:
        BadFile: not readable, not an exchange, or that of another request than its name says.
    """
    try:
        exchange = Exchange.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadFile(f"{path}: not an answer that was kept ({first_mistake(error)}).") from None
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({first_line(error)}).") from None
    if exchange.request.hash != path.stem:
        raise BadFile(f"{path}: its request was edited; its name is the hash of another.")
    return exchange
