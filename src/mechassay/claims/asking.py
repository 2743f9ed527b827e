"""Asking a judge until its answer is valid, and keeping every answer that was paid for.

A request that is longer than the judge's context is refused before it is sent. A fault on the way
(busy, down, cut off, too slow) is tried again after 1, 2, 4 ... seconds, or as long as the server
asks for. An answer that was cut off or has another form is asked for anew, with another seed, and
never repaired. After `tries` faults in a row, or `tries` invalid answers, there is an error.

What was tried is kept after every try, under the hash of the request. Whoever asks again gets the
valid answer that is there, or goes on with the next seed: a run that was killed ends as one that
was not, and no answer is paid for twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mechassay.claims.exchange import (
    Exchange,
    FailedTry,
    JudgeAnswer,
    JudgeRequest,
    exchange_file,
    read_exchange,
)
from mechassay.claims.judge import Judge
from mechassay.errors import BadFile, InvalidAnswer, JudgeFault, NoAnswer

TRIES = 5
LONGEST_WAIT = 120.0
"""Seconds between two tries at most."""

T = TypeVar("T")


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

    Args:
        read: what an answer's text says; raises InvalidAnswer.
        kept: the folder of answers.
        tries: faults in a row, and invalid answers, after which asking ends.
        sleep: waits so many seconds.

    Raises:
        NoAnswer: the request is too long, the judge refuses it, or all tries failed.
        BadFile: an answer that was kept is not readable, or no longer valid; or another
            judge gave it.
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
        seed = sum(each.kind == "invalid" for each in exchange.tried)
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
            found = read(whole_text(answer))
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
        return found, exchange


def whole_text(answer: JudgeAnswer) -> str:
    """The text of an answer that was not cut off.

    Raises:
        InvalidAnswer: it was, or the judge stopped for another reason.
    """
    if answer.finish != "stop":
        said = "it reached the most tokens of an answer" if answer.finish == "length" else ""
        raise InvalidAnswer(f"cut off ({said or answer.finish})")
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
