"""A judge: something that answers a request in the form that it asks for.

    scripted:FILE       what a file of judgments says, whoever made it; for tests and demonstrations
    replay:FOLDER       answers that were recorded, by the hash of their requests
    openai:MODEL[@URL]  a language model behind an OpenAI-compatible server (`claims.served_judge`)

In Python a script may be any function of a request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mechassay.claims.answers import UNCLEAR
from mechassay.claims.exchange import (
    BYTES_PER_TOKEN,
    JudgeAnswer,
    JudgeRequest,
    exchange_file,
    read_exchange,
)
from mechassay.claims.judgments import JudgedClaim, Judgments, read_judgments
from mechassay.claims.rubric import load_rubric
from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage, NoAnswer, one_of

JUDGES = ("scripted", "replay", "openai")


class Judge(Protocol):
    """Answers requests.

    Attributes:
        id: who it is; judgments carry it.
        window: tokens of a request and its answer together; None if it is not known.
    """

    @property
    def id(self) -> str: ...

    @property
    def window(self) -> int | None: ...

    def answer(self, request: JudgeRequest, seed: int) -> JudgeAnswer:
        """The answer to a request.

        Args:
            seed: another one for every answer to a request that was invalid.

        Raises:
            JudgeFault: it cannot be asked now.
            NoAnswer: it refuses the request, and would again.
        """
        ...


@dataclass(frozen=True, repr=False)
class ScriptedJudge(OneLine):
    """Answers what a function says: text, values to write as JSON, or an answer as it is."""

    reply: Callable[[JudgeRequest], str | Mapping[str, Any] | JudgeAnswer]
    id: str = "scripted"
    window: int | None = None

    @staticmethod
    def of(judgments: Judgments) -> ScriptedJudge:
        """A judge that says what judgments say; its id says whose they are."""
        name = f"script of {judgments.rater.id}"
        return ScriptedJudge(lambda request: _said(judgments, request), name)

    def answer(self, request: JudgeRequest, seed: int) -> JudgeAnswer:
        """See `Judge.answer`. Tokens are estimated; it costs nothing."""
        said = self.reply(request)
        if isinstance(said, JudgeAnswer):
            return said
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        return JudgeAnswer(
            text=text,
            model=self.id,
            input_tokens=request.n_tokens,
            output_tokens=math.ceil(len(text.encode()) / BYTES_PER_TOKEN),
            cost=0.0,
        )


def _said(judgments: Judgments, request: JudgeRequest) -> dict[str, Any]:
    if request.step == "criteria":
        return {"criteria": _criteria(judgments.claim(request.claim), request)}
    whole = request.step == "one"
    return {
        "claims": [
            {**_claim(judged), **({"criteria": _criteria(judged, request)} if whole else {})}
            for judged in judgments.claims
        ]
    }


def _claim(judged: JudgedClaim) -> dict[str, Any]:
    claim = judged.claim
    return {
        "id": claim.id,
        "statement": claim.statement,
        "system": claim.system,
        "description_mode": claim.description_mode or UNCLEAR,
        "families": list(claim.families),
        "components": list(claim.components),
    }


def _criteria(judged: JudgedClaim, request: JudgeRequest) -> dict[str, Any]:
    return {
        code: {
            "reason": own.reason or "No reason was given.",
            "quotes": [each.quote.exact for each in own.evidence if each.quote],
            "status": own.status,
        }
        for code in request.codes
        for own in [judged.criteria[code]]
    }


@dataclass(frozen=True)
class ReplayJudge:
    """Answers what another judge answered, by the hash of the request.

    Attributes:
        folder: with its answers, as a run keeps them.
        id: of the judge that was recorded.
    """

    folder: Path
    id: str
    window: int | None = None

    @staticmethod
    def of(folder: str | Path) -> ReplayJudge:
        """The judge whose answers are in a folder.

        Raises:
            BadFile: it holds none, or those of several judges.
        """
        files = sorted(Path(folder).glob("*.json"))
        names = {read_exchange(file).judge for file in files}
        if len(names) != 1:
            said = f"those of {', '.join(sorted(names))}" if names else "none"
            raise BadFile(f"{folder}: recorded answers are those of one judge; it holds {said}.")
        return ReplayJudge(Path(folder), names.pop())

    def answer(self, request: JudgeRequest, seed: int) -> JudgeAnswer:
        """See `Judge.answer`.

        Raises:
            NoAnswer: nothing was recorded for the request.
        """
        file = exchange_file(self.folder, request)
        found = read_exchange(file).answer if file.is_file() else None
        if found is None:
            raise NoAnswer(
                f"{self.folder}: no answer to this request was recorded ({file.name}); the"
                " document, the rubric, the criteria, the steps or the run are others."
            )
        return found


def load_judge(text: str, **settings: Any) -> Judge:
    """A judge as it is typed, see the module.

    Args:
        settings: of `ServedJudge`; other judges have none.

    Raises:
        UnknownName: no such kind of judge. BadUsage: nothing is named behind the colon.
        BadFile: the file or folder cannot be read. MissingExtra: of openai, without its package.
    """
    kind, _, rest = text.partition(":")
    one_of("kind of judge", kind, JUDGES)
    if not rest:
        raise BadUsage(
            f"A judge is written scripted:FILE, replay:FOLDER or openai:MODEL@URL; got {text!r}."
        )
    if kind == "scripted":
        judgments = read_judgments(rest)
        _check_statuses(judgments, rest)
        return ScriptedJudge.of(judgments)
    if kind == "replay":
        return ReplayJudge.of(rest)
    from mechassay.claims.served_judge import ServedJudge

    return ServedJudge.of(rest, **settings)


def _check_statuses(judgments: Judgments, name: str) -> None:
    """Refuse a script without anything to answer.

    Raises:
        BadUsage: no criterion has a status that a judge may give.
    """
    known = load_rubric(judgments.rubric).statuses
    if not any(each in known for own in judgments.claims for each in own.statuses.values()):
        raise BadUsage(f"{name}: a script has criteria that are {', '.join(known)}; it has none.")
