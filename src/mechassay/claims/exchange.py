"""What is said between whoever asks and a judge: requests, answers, and how both are kept.

A request is all that a judge sees: its words, the form of the answer, the most tokens that it may
have, and the number of the run, so that several runs of one judge are several requests. Its hash is
the name under which its answer is kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from mechassay.claims.answers import Step
from mechassay.errors import BadFile, first_line
from mechassay.files import write_text
from mechassay.records import Number, Stored, first_mistake

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


def exchange_file(folder: Path, request: JudgeRequest) -> Path:
    """Where the exchange of a request is kept."""
    return folder / f"{request.hash}.json"


def read_exchange(path: Path) -> Exchange:
    """An exchange that was kept.

    Raises:
        BadFile: not readable, not an exchange, or that of another request than its name says.
    """
    try:
        found = Exchange.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadFile(f"{path}: not an answer that was kept ({first_mistake(error)}).") from None
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({first_line(error)}).") from None
    if found.request.hash != path.stem:
        raise BadFile(f"{path}: its request was edited; its name is the hash of another.")
    return found
