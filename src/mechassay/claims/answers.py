"""The form of a judge's answers, and reading them: all of it is as asked for, or it is not taken.

    claims      {"claims": [claim]}
    one         {"claims": [claim with "criteria"]}
    criteria    {"criteria": {"C1": judgment, ...}}

    claim       id, statement, system, description_mode, families, components
    judgment    reason, quotes, status

A form names every criterion, each of them required, so that an answer cannot leave one out; nothing
else may stand in it. A reason stands before its status, as a model writes in that order. An answer
that is cut off, not JSON, or of another form is invalid and is never repaired.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from mechassay.claims.claim import Claim, check_claims, component_name
from mechassay.claims.judgments import Evidence, Judgment, Quote
from mechassay.claims.rubric import Rubric
from mechassay.errors import BadUsage, InvalidAnswer, first_line
from mechassay.records import first_mistake

Step = Literal["claims", "one", "criteria"]
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
    own = _form("CriteriaAnswer", **dict.fromkeys(codes, _judgment(rubric, longest)))
    if step == "criteria":
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
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def claims_in(answer: dict[str, Any], rubric: Rubric) -> tuple[Claim, ...]:
    """The claims of an answer to "claims" or "one".

    Raises:
        InvalidAnswer: two have one id, or two are marked as the system.
    """
    claims = tuple(
        Claim(
            id=each["id"],
            statement=each["statement"],
            system=each["system"],
            description_mode=_mode(each["description_mode"]),
            families=tuple(dict.fromkeys(each["families"])),
            components=tuple(dict.fromkeys(map(component_name, each["components"]))),
        )
        for each in answer["claims"]
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
            status=each["status"],
            reason=each["reason"],
            evidence=tuple(
                Evidence(quote=Quote(exact=quote, document=document))
                for quote in dict.fromkeys(each["quotes"])
            ),
        )
        for code, each in criteria.items()
    }
