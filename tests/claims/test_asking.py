"""Tries: faults on the way, invalid answers, requests that are refused, and what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mechassay.claims.asking import LONGEST_WAIT, ask
from mechassay.claims.exchange import JudgeAnswer, JudgeRequest, read_exchange
from mechassay.errors import BadFile, InvalidAnswer, JudgeFault, NoAnswer

REQUEST = JudgeRequest(step="claims", system="s", user="u" * 300, form={}, most_tokens=50)
BUSY = JudgeFault("busy")


def answered(text: str, finish: str = "stop") -> JudgeAnswer:
    return JudgeAnswer(text=text, finish=finish, input_tokens=10, output_tokens=2, cost=0.25)


def read(text: str) -> str:
    if not text.startswith("good"):
        raise InvalidAnswer("not JSON")
    return text


@dataclass
class Programme:
    """A judge that goes through a list, and notes the seeds that it was given."""

    says: Sequence[JudgeAnswer | BaseException]
    window: int | None = None
    id: str = "programme"
    seeds: list[int] = field(default_factory=list)

    def answer(self, request: JudgeRequest, seed: int) -> JudgeAnswer:
        self.seeds.append(seed)
        said = self.says[len(self.seeds) - 1]
        if isinstance(said, BaseException):
            raise said
        return said


def test_faults_are_waited_for_and_invalid_answers_asked_for_with_another_seed() -> None:
    judge = Programme(
        [
            BUSY,
            answered("good", "length"),
            JudgeFault("busy", 7.0),
            answered("bad"),
            answered("good"),
        ]
    )
    waits: list[float] = []
    found, exchange = ask(judge, REQUEST, read, sleep=waits.append)
    assert found == "good" and exchange.answer == answered("good")
    # A fault says nothing of the answer: it is asked for as before.
    assert judge.seeds == [0, 0, 1, 1, 2]
    assert [each.kind for each in exchange.tried] == ["fault", "invalid", "fault", "invalid"]
    assert "most tokens" in exchange.tried[1].says
    assert 0.5 <= waits[0] <= 1 and waits[1] == 7.0


def test_an_answer_of_another_judge_is_not_taken(tmp_path: Path) -> None:
    ask(Programme([answered("good")], id="first"), REQUEST, read, kept=tmp_path)
    again, _ = ask(Programme([], id="first"), REQUEST, read, kept=tmp_path)
    assert again == "good"
    with pytest.raises(BadFile, match="first gave this answer, not second"):
        ask(Programme([answered("good")], id="second"), REQUEST, read, kept=tmp_path)


def test_waits_grow_and_end() -> None:
    judge, waits = Programme([BUSY] * 12), list[float]()
    with pytest.raises(NoAnswer, match="12 tries failed, the last: busy"):
        ask(judge, REQUEST, read, tries=12, sleep=waits.append)
    assert len(waits) == 11 and max(waits) == LONGEST_WAIT
    assert all(
        0.5 * 2**n <= min(wait, 2**n) or wait == LONGEST_WAIT for n, wait in enumerate(waits)
    )


def test_after_so_many_invalid_answers_it_ends() -> None:
    judge = Programme([answered("bad")] * 3)
    with pytest.raises(NoAnswer, match="3 answers to one request were invalid, the last: not JSON"):
        ask(judge, REQUEST, read, tries=3)
    assert judge.seeds == [0, 1, 2]


def test_a_refusal_is_not_tried_again() -> None:
    judge = Programme([NoAnswer("no key"), answered("good")])
    with pytest.raises(NoAnswer, match="no key"):
        ask(judge, REQUEST, read)
    assert len(judge.seeds) == 1


def test_a_request_that_is_too_long_is_not_sent() -> None:
    needed = REQUEST.n_tokens + REQUEST.most_tokens
    short, enough = Programme([answered("good")], needed - 1), Programme([answered("good")], needed)
    with pytest.raises(NoAnswer, match=f"in a context of {needed - 1}; nothing was"):
        ask(short, REQUEST, read)
    assert short.seeds == []
    assert ask(enough, REQUEST, read)[0] == "good"


def test_what_was_tried_is_kept_and_not_paid_for_again(tmp_path: Path) -> None:
    killed = Programme([answered("bad"), BUSY, KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        ask(killed, REQUEST, read, kept=tmp_path, sleep=lambda seconds: None)
    [file] = tmp_path.iterdir()
    assert [each.kind for each in read_exchange(file).tried] == ["invalid", "fault"]
    resumed = Programme([answered("good")])
    _, exchange = ask(resumed, REQUEST, read, kept=tmp_path)
    assert resumed.seeds == [1], "it goes on with the seed that comes next"
    again = Programme([])
    assert ask(again, REQUEST, read, kept=tmp_path) == ("good", exchange)
    assert again.seeds == []


def test_a_kept_answer_that_was_edited_is_refused(tmp_path: Path) -> None:
    ask(Programme([answered("good")]), REQUEST, read, kept=tmp_path)
    [file] = tmp_path.iterdir()
    file.write_text(file.read_text().replace('"good"', '"better"'))
    with pytest.raises(BadFile, match="the answer that was kept is not valid"):
        ask(Programme([]), REQUEST, read, kept=tmp_path)
