"""A language model behind an OpenAI-compatible server, as a judge.

Requests go through pydantic-ai (`pip install 'mechassay[judge]'`) with native structured output:
the server is given the JSON schema and makes the model keep to it. Each call is one request; tries
are `claims.asking`'s, so that all of them are counted.

The key is MECHASSAY_JUDGE_KEY; for OpenAI's own server OPENAI_API_KEY stands for it. It goes to no
other server, and is never stored.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mechassay.claims.exchange import JudgeAnswer, JudgeRequest
from mechassay.errors import BadUsage, JudgeFault, MissingExtra, NoAnswer, first_line

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
    """A model by its name at a server.

    Attributes:
        url: of the server, up to the version: "http://127.0.0.1:8080/v1".
        temperature: 0, as in Tower (2026); a run repeats an answer only if the server does.
        timeout: seconds of a request.
        context: tokens of a request and its answer; None if the server is to say it.
        prices: US dollars for a million tokens of input and of output; known ones if not given.
    """

    model: str
    url: str = OPENAI
    temperature: float = 0.0
    timeout: float = 600.0
    context: int | None = None
    prices: tuple[float, float] | None = None

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
        """The model's name: the same model is one rater, wherever it runs."""
        return self.model

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
        named = [each for each in models if each.get("id") == self.model]
        for each in named or models[:1]:
            told = {**each, **(each.get("meta") or {})}
            for name in _WINDOWS:
                if isinstance(told.get(name), int):
                    return told[name]
        return None

    async def _models(self) -> list[dict[str, Any]]:
        async with self._client() as client:
            page = await client.models.list()
            return [each.model_dump() for each in page.data]

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
        """See `Judge.answer`.

        Raises:
            JudgeFault: it is busy, down, too slow, or its response is not whole.
            NoAnswer: it refuses the request, as one that is too long or without a key.
        """
        errors = import_module("pydantic_ai.exceptions")
        refused = (errors.ModelRequestRejectedError, errors.ModelQuotaExceededError)
        try:
            return self._told(_run(self._ask(request, seed)))
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

    def _told(self, response: Any) -> JudgeAnswer:
        """What a response says, and what it took."""
        parts = import_module("pydantic_ai.messages")
        text = "".join(each.content for each in response.parts if isinstance(each, parts.TextPart))
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
