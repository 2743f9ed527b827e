"""A judge: something that answers a request in the form that it asks for.

    scripted:FILE       what a file of judgments says; for tests and demonstrations
    replay:FOLDER       answers that were recorded, by the hash of their requests
    openai:MODEL[@URL]  a language model behind an OpenAI-compatible server (`ServedJudge`)

In Python a script may be any function of a request.

A judge is asked until its answer is valid, and every answer that was paid for is kept (`ask`).
An answer that was cut off or has another form is asked for anew, and never repaired.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from mechassay.claims.judgments import JudgedClaim, Judgments, read_judgments
from mechassay.claims.rubric import load_rubric
from mechassay.errors import (
    BadFile,
    BadUsage,
    InvalidAnswer,
    JudgeFault,
    MissingExtra,
    NoAnswer,
    first_line,
    one_of,
)
from mechassay.judges.options import TRIES, Effort
from mechassay.judges.requests import (
    BYTES_PER_TOKEN,
    UNCLEAR,
    Exchange,
    FailedTry,
    JudgeAnswer,
    JudgeRequest,
    exchange_file,
    read_exchange,
)
from mechassay.utils.display import OneLine

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
        return ScriptedJudge(lambda request: _as_answer(judgments, request), name)

    def answer(self, request: JudgeRequest, seed: int) -> JudgeAnswer:
        """Return what `reply` says. Tokens are estimated; an answer costs nothing."""
        reply = self.reply(request)
        if isinstance(reply, JudgeAnswer):
            return reply
        text = reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False)
        return JudgeAnswer(
            text=text,
            model=self.id,
            input_tokens=request.n_tokens,
            output_tokens=math.ceil(len(text.encode()) / BYTES_PER_TOKEN),
            cost=0.0,
        )


def _as_answer(judgments: Judgments, request: JudgeRequest) -> dict[str, Any]:
    if request.step == "criteria":
        return {"criteria": _criteria(judgments.claim(request.claim), request)}
    if request.step in ("audit", "advocate"):
        return {"criteria": _objections(judgments.claim(request.claim), request)}
    whole = request.step == "one"
    return {
        "claims": [
            {
                "id": judged.claim.id,
                "statement": judged.claim.statement,
                "system": judged.claim.system,
                "description_mode": judged.claim.description_mode or UNCLEAR,
                "families": list(judged.claim.families),
                "components": list(judged.claim.components),
                **({"criteria": _criteria(judged, request)} if whole else {}),
            }
            for judged in judgments.claims
        ]
    }


ANSWERS = ("YES", "PARTIAL", "NO")
"""Statuses that a judge may answer."""


def _criteria(judged: JudgedClaim, request: JudgeRequest) -> dict[str, Any]:
    """Return what the script answers; NO for a criterion that the script does not judge."""
    answers: dict[str, Any] = {}
    for code in request.codes:
        own = judged.criteria[code]
        nothing = "No reason was given." if own.status in ANSWERS else f"The script: {own.status}."
        answers[code] = {
            "reason": own.reason or nothing,
            "quotes": [quote.quote.exact for quote in own.evidence if quote.quote],
            "status": own.status if own.status in ANSWERS else "NO",
        }
    return answers


def _objections(judged: JudgedClaim, request: JudgeRequest) -> dict[str, Any]:
    """What a script says of judgments that are not its own: NO objects, PARTIAL is in doubt."""
    origins = {"NO": "whole", "YES": "part"}
    evidence = {"NO": "other", "PARTIAL": "indirect"}
    answers: dict[str, Any] = {}
    for code in request.codes:
        own = judged.criteria[code]
        reason = {"reason": own.reason or "No reason was given."}
        answers[code] = (
            {**reason, "origin": origins.get(own.status, "unclear")}
            if request.step == "audit"
            else {
                "experiment": "None was named.",
                **reason,
                "evidence": evidence.get(own.status, "direct"),
            }
        )
    return answers


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
            names_text = f"those of {', '.join(sorted(names))}" if names else "none"
            raise BadFile(
                f"{folder}: recorded answers are those of one judge; it holds {names_text}."
            )
        return ReplayJudge(Path(folder), names.pop())

    def answer(self, request: JudgeRequest, seed: int) -> JudgeAnswer:
        """Return the recorded answer to the request.

        Raises:
            NoAnswer: nothing was recorded for the request.
        """
        file = exchange_file(self.folder, request)
        answer = read_exchange(file).answer if file.is_file() else None
        if answer is None:
            raise NoAnswer(
                f"{self.folder}: no answer to this request was recorded ({file.name}); the"
                " document, the rubric, the criteria, the steps or the run are others."
            )
        return answer


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
        known = load_rubric(judgments.rubric).statuses
        if not any(status in known for own in judgments.claims for status in own.statuses.values()):
            raise BadUsage(
                f"{rest}: a script has criteria that are {', '.join(known)}; it has none."
            )
        return ScriptedJudge.of(judgments)
    if kind == "replay":
        return ReplayJudge.of(rest)

    return ServedJudge.of(rest, **settings)


OPENAI = "https://api.openai.com/v1"
KEY, OPENAI_KEY = "MECHASSAY_JUDGE_KEY", "OPENAI_API_KEY"
HEADERS, OF_OPENAI = "OPENAI_CUSTOM_HEADERS", ("OpenAI-Organization", "OpenAI-Project")
PER = 1_000_000
"""Tokens that prices are for."""
_WINDOWS = ("n_ctx", "max_model_len", "context_length", "max_context_length")
"""What servers call the tokens of a context, in what they say of a model."""

_SERVED = re.compile(r"(?P<model>.+?)@(?P<url>https?://.+)")

T = TypeVar("T")


@dataclass(frozen=True)
class ServedJudge:
    """A language model by its name at an OpenAI-compatible server.

    Requests go through pydantic-ai (`pip install 'mechassay[judge]'`) with native structured
    output: the server is given the JSON schema and makes the model keep to it. Each call is one
    request. Tries are made by `ask`, so that all of them are counted.

    The key is MECHASSAY_JUDGE_KEY; for OpenAI's own server OPENAI_API_KEY stands for it. That
    one goes to no other server. No key is ever stored.

    Attributes:
        url: of the server, up to the version: "http://127.0.0.1:8080/v1".
        temperature: 0, as in Tower (2026); a run repeats an answer only if the server does.
        timeout: seconds of a request.
        context: tokens of a request and its answer; None if the server is to say it.
        prices: US dollars for a million tokens of input and of output; known ones if not given.
        effort: of reasoning, as `reasoning_effort` of the request; "" leaves it to the server.
    """

    model: str
    url: str = OPENAI
    temperature: float = 0.0
    timeout: float = 600.0
    context: int | None = None
    prices: tuple[float, float] | None = None
    effort: Effort = ""

    @staticmethod
    def of(text: str, **settings: Any) -> ServedJudge:
        """A judge as it is typed: MODEL, or MODEL@URL.

        Raises:
            BadUsage: the address is none of a web server, or has a password in it.
            MissingExtra: pydantic-ai is not installed.
        """
        # A name may have an "@", an address begins with its scheme: nothing that was meant for one
        # server goes to another.
        served = _SERVED.fullmatch(text)
        named, address = (served["model"], served["url"]) if served else (text, OPENAI)
        parts = urlsplit(address)
        if (not served and "://" in text) or not parts.hostname or not named:
            raise BadUsage(f"A served judge is written openai:MODEL@URL; got openai:{text!r}.")
        if parts.username or parts.password or parts.query:
            raise BadUsage(f"A server's key is read from {KEY}, not from its address.")
        if find_spec("pydantic_ai") is None or find_spec("openai") is None:
            raise MissingExtra("A judge behind a server", "pydantic-ai-slim", "judge")
        return ServedJudge(named, address.rstrip("/"), **settings)

    @property
    def id(self) -> str:
        """The model's name, and its effort: the same model is one rater, wherever it runs."""
        return f"{self.model}, effort {self.effort}" if self.effort else self.model

    @property
    def window(self) -> int | None:
        """Tokens of a context: what was given, else what the server says of the model."""
        return self.context or self._stated

    @cached_property
    def _stated(self) -> int | None:
        try:
            models = _run(self._models())
        except (import_module("openai").OpenAIError, ValueError):
            # Not every server lists its models; one that is down says so at the first request.
            return None
        named = [model for model in models if model.get("id") == self.model]
        for served in named or models[:1]:
            facts = {**served, **(served.get("meta") or {})}
            for name in _WINDOWS:
                if isinstance(facts.get(name), int):
                    return facts[name]
        return None

    async def _models(self) -> list[dict[str, Any]]:
        async with self._client() as client:
            page = await client.models.list()
            return [served.model_dump() for served in page.data]

    def _client(self) -> Any:
        key = os.environ.get(KEY) or (os.environ.get(OPENAI_KEY) if self.url == OPENAI else None)
        if not key and self.url == OPENAI:
            raise NoAnswer(f"{self.url} needs a key: set {KEY} or {OPENAI_KEY}.")
        openai = import_module("openai")
        # Headers that the environment names for OpenAI are no other server's to see.
        lines = [*OF_OPENAI, *os.environ.get(HEADERS, "").splitlines()]
        names = [] if self.url == OPENAI else [line.partition(":")[0].strip() for line in lines]
        # Tries are counted by who asks, so the client makes none.
        return openai.AsyncOpenAI(
            base_url=self.url,
            api_key=key or "none",
            timeout=self.timeout,
            max_retries=0,
            default_headers={name: openai.Omit() for name in names if name},
        )

    def answer(self, request: JudgeRequest, seed: int) -> JudgeAnswer:
        """Return the server's answer to the request.

        Raises:
            JudgeFault: it is busy, down, too slow, or its response is not whole.
            NoAnswer: it refuses the request, as one that is too long or without a key.
        """
        errors = import_module("pydantic_ai.exceptions")
        refused = (errors.ModelRequestRejectedError, errors.ModelQuotaExceededError)
        try:
            return self._answer_of(_run(self._ask(request, seed)))
        except refused as error:
            raise NoAnswer(f"{self.id} refuses the request: {first_line(error)}") from None
        except errors.ModelAPIError as error:
            wait = float(error.retry_after or 0.0)
            raise JudgeFault(f"{self.id}: {first_line(error)}", wait) from None
        except errors.UnexpectedModelBehavior as error:
            raise JudgeFault(f"{self.id}: {first_line(error)}") from None

    async def _ask(self, request: JudgeRequest, seed: int) -> Any:
        ai = import_module("pydantic_ai")
        chat = import_module("pydantic_ai.models.openai").OpenAIChatModel
        own = self.url == OPENAI
        async with self._client() as client:
            provider = (
                import_module("pydantic_ai.providers.openai").OpenAIProvider(openai_client=client)
                if own
                else import_module(
                    "pydantic_ai.providers.openai_compatible"
                ).OpenAICompatibleProvider("judge", openai_client=client)
            )
            return await import_module("pydantic_ai.direct").model_request(
                chat(self.model, provider=provider),
                [
                    ai.ModelRequest(
                        parts=[
                            ai.SystemPromptPart(content=request.system),
                            ai.UserPromptPart(content=request.user),
                        ]
                    )
                ],
                model_settings={
                    "max_tokens": request.most_tokens,
                    "temperature": self.temperature,
                    "seed": seed,
                    "timeout": self.timeout,
                    "max_retries": 0,
                    **({"openai_reasoning_effort": self.effort} if self.effort else {}),
                },
                model_request_parameters=self._form(request, strict=own),
            )

    def _form(self, request: JudgeRequest, *, strict: bool) -> Any:
        """Native structured output. OpenAI keeps to a form that is strict; others do to any."""
        output = import_module("pydantic_ai.output").OutputObjectDefinition(
            json_schema=request.form, name="answer", strict=True if strict else None
        )
        return import_module("pydantic_ai.models").ModelRequestParameters(
            output_mode="native", output_object=output
        )

    def _answer_of(self, response: Any) -> JudgeAnswer:
        """What a response says, and what it took."""
        parts = import_module("pydantic_ai.messages")
        text = "".join(part.content for part in response.parts if isinstance(part, parts.TextPart))
        used = response.usage
        return JudgeAnswer(
            text=text,
            finish=response.finish_reason or "stop",
            model=response.model_name or "",
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cached_tokens=used.cache_read_tokens,
            cost=self._cost(response),
        )

    def _cost(self, response: Any) -> float:
        used = response.usage
        if self.prices is not None:
            prices = self.prices
            return (used.input_tokens * prices[0] + used.output_tokens * prices[1]) / PER
        if self.url != OPENAI:
            return math.nan  # A model of the same name costs what its server says.
        try:
            return float(response.cost().total_price)
        except (LookupError, ValueError):
            return math.nan


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, in a notebook too, whose thread runs a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


LONGEST_WAIT = 120.0
"""Seconds between two tries at most."""


def ask(
    judge: Judge,
    request: JudgeRequest,
    read: Callable[[str], T],
    *,
    kept: Path | None = None,
    tries: int = TRIES,
    sleep: Callable[[float], object] = time.sleep,
) -> tuple[T, Exchange]:
    """What a judge's first valid answer says, and the exchange.

    A request that is longer than the judge's context is refused before it is sent. A fault on
    the way (busy, down, cut off, too slow) is tried again after 1, 2, 4 ... seconds, or as long
    as the server asks for. An answer that was cut off or has another form is asked for anew,
    with another seed, and never repaired. After `tries` faults in a row, or `tries` invalid
    answers, there is an error.

    What was tried is kept after every try, under the hash of the request. Whoever asks again
    gets the valid answer that is there, or goes on with the next seed. So a run that was killed
    ends as one that was not, and no answer is paid for twice.

    Args:
        read: what an answer's text says; raises InvalidAnswer.
        kept: the folder of answers.
        tries: faults in a row, and invalid answers, after which asking ends.
        sleep: waits so many seconds.

    Raises:
        NoAnswer: the request is too long, the judge refuses it, or all tries failed.
        BadFile: an answer that was kept is not readable, or no longer valid; or another judge
            gave it.
    """
    exchange = Exchange(judge=judge.id, request=request)
    if kept is not None and (file := exchange_file(kept, request)).is_file():
        exchange = read_exchange(file)
        if exchange.judge != judge.id:
            raise BadFile(
                f"{file}: {exchange.judge} gave this answer, not {judge.id}; keep the answers of"
                " each judge in a folder of its own."
            )
        if exchange.answer is not None:
            return _kept(exchange.answer, read, file), exchange
    check_length(judge, request)
    faults = invalid = 0
    while True:
        seed = sum(attempt.kind == "invalid" for attempt in exchange.tried)
        try:
            answer = judge.answer(request, seed)
        except JudgeFault as fault:
            faults += 1
            exchange = _failed(exchange, FailedTry(kind="fault", says=str(fault)), kept)
            if faults == tries:
                raise NoAnswer(f"{tries} tries failed, the last: {fault}") from None
            sleep(_wait(request, faults, fault.wait))
            continue
        faults = 0
        try:
            parsed = read(whole_text(answer))
        except InvalidAnswer as error:
            invalid += 1
            failed = FailedTry(kind="invalid", says=str(error), answer=answer)
            exchange = _failed(exchange, failed, kept)
            if invalid == tries:
                raise NoAnswer(
                    f"{judge.id}: {tries} answers to one request were invalid, the last: {error}."
                ) from None
            continue
        exchange = exchange.model_copy(update={"answer": answer})
        if kept is not None:
            exchange.save(kept)
        return parsed, exchange


def whole_text(answer: JudgeAnswer) -> str:
    """The text of an answer that was not cut off.

    Raises:
        InvalidAnswer: it was, or the judge stopped for another reason.
    """
    if answer.finish != "stop":
        reason = "it reached the most tokens of an answer" if answer.finish == "length" else ""
        raise InvalidAnswer(f"cut off ({reason or answer.finish})")
    return answer.text


def check_length(judge: Judge, request: JudgeRequest) -> None:
    """Refuse a request that does not fit into the judge's context.

    Raises:
        NoAnswer: with its answer it has more tokens.
    """
    window, needed = judge.window, request.n_tokens + request.most_tokens
    if window is not None and needed > window:
        raise NoAnswer(
            f"The request is too long for {judge.id}: about {request.n_tokens:,} tokens, and"
            f" {request.most_tokens:,} for the answer, in a context of {window:,}; nothing was"
            " sent. Take a judge with a longer context, steps with smaller requests"
            " (per-criterion), fewer tokens for an answer, or a shorter document."
        )


def _kept(answer: JudgeAnswer, read: Callable[[str], T], file: Path) -> T:
    try:
        return read(whole_text(answer))
    except InvalidAnswer as error:
        raise BadFile(f"{file}: the answer that was kept is not valid: {error}.") from None


def _failed(exchange: Exchange, failed: FailedTry, kept: Path | None) -> Exchange:
    exchange = exchange.model_copy(update={"tried": (*exchange.tried, failed)})
    if kept is not None:
        exchange.save(kept)
    return exchange


def _wait(request: JudgeRequest, faults: int, asked: float) -> float:
    """Seconds until the next try: twice as long each time, and not all workers at once."""
    spread = random.Random(f"{request.hash}{faults}").uniform(0.5, 1.0)
    return min(LONGEST_WAIT, max(asked, spread * 2.0 ** (faults - 1)))
