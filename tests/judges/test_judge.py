"""Judges by what is typed; requests and their hashes; scripts and recordings.

Tries: faults on the way, invalid answers, requests that are refused, and what is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers.judges import CODES, made_judgments, quoted
from mechassay.errors import BadFile, BadUsage, InvalidAnswer, JudgeFault, NoAnswer, UnknownName
from mechassay.judges.judge import LONGEST_WAIT, ReplayJudge, ScriptedJudge, ask, load_judge
from mechassay.judges.requests import Exchange, JudgeAnswer, JudgeRequest, read_exchange


def request(**changed: Any) -> JudgeRequest:
    own = {"step": "criteria", "claim": "ioi", "codes": ("I2",), "system": "s", "user": "u"}
    return JudgeRequest.model_validate({**own, "form": {}, "most_tokens": 9, **changed})


@pytest.mark.parametrize(
    "changed",
    [{"user": "v"}, {"system": "t"}, {"run": 1}, {"codes": ("I3",)}, {"form": {"a": 1}}],
)
def test_every_part_of_a_request_is_in_its_hash(changed: dict[str, Any]) -> None:
    """The run too: or several runs of a judge would be one."""
    assert request().hash == request().hash != request(**changed).hash


def test_lengths_are_estimated_from_above() -> None:
    assert request(system="a" * 300, user="é" * 150).n_tokens == pytest.approx(200, abs=1)


def test_a_scripted_judge_says_what_judgments_say() -> None:
    given = made_judgments(
        statuses={"I2": "YES", "C1": "NO"}, evidence={"I2": quoted("recovers 87%")}
    )
    judge = ScriptedJudge.of(given)
    answer = judge.answer(request(codes=("C1", "I2")), 0)
    told = json.loads(answer.text)["criteria"]
    assert [told[code]["status"] for code in ("C1", "I2")] == ["NO", "YES"]
    assert told["I2"]["quotes"] == ["recovers 87%"] and judge.id == "script of Ann"
    claims = json.loads(judge.answer(request(step="claims"), 0).text)["claims"]
    assert [each["id"] for each in claims] == ["ioi"] and "criteria" not in claims[0]
    whole = json.loads(judge.answer(request(step="one", codes=CODES), 0).text)["claims"]
    assert list(whole[0]["criteria"]) == list(CODES)
    assert answer.cost == 0 and answer.input_tokens > 0


def test_recorded_answers_are_said_again_by_the_hash_of_their_request(tmp_path: Path) -> None:
    answer = JudgeAnswer(text="{}", input_tokens=3, cost=0.5)
    Exchange(judge="big", request=request(), answer=answer).save(tmp_path)
    judge = ReplayJudge.of(tmp_path)
    assert judge.id == "big" and judge.answer(request(), 0) == answer
    with pytest.raises(NoAnswer, match="no answer to this request was recorded"):
        judge.answer(request(user="other"), 0)
    Exchange(judge="big", request=request(run=1)).save(tmp_path)
    with pytest.raises(NoAnswer, match="no answer"):
        judge.answer(request(run=1), 0)
    Exchange(judge="small", request=request(run=2), answer=answer).save(tmp_path)
    with pytest.raises(BadFile, match="those of one judge; it holds those of big, small"):
        ReplayJudge.of(tmp_path)


def test_a_recording_that_was_edited_is_refused(tmp_path: Path) -> None:
    file = Exchange(judge="big", request=request(), answer=JudgeAnswer(text="{}")).save(tmp_path)
    file.write_text(file.read_text().replace('"user": "u"', '"user": "w"'))
    with pytest.raises(BadFile, match="its request was edited"):
        read_exchange(file)
    file.write_text("{")
    with pytest.raises(BadFile, match="not an answer that was kept"):
        read_exchange(file)


@pytest.mark.parametrize(
    ("text", "kind", "match"),
    [
        ("opena:gpt", UnknownName, "Did you mean 'openai'"),
        ("openai", BadUsage, "A judge is written"),
        ("scripted:nowhere.yaml", BadFile, "cannot be read"),
        ("replay:nowhere", BadFile, "it holds none"),
        ("openai:m@ftp://a/v1", BadUsage, "openai:MODEL@URL"),
        ("openai:m@http://me:key@a/v1", BadUsage, "MECHASSAY_JUDGE_KEY"),
        ("openai:m@http://a/v1?key=1", BadUsage, "MECHASSAY_JUDGE_KEY"),
    ],
)
def test_a_judge_that_cannot_be_is_refused_in_one_line(
    text: str, kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match) as error:
        load_judge(text)
    assert "\n" not in str(error.value)


def test_a_script_without_a_status_to_say_is_refused(tmp_path: Path) -> None:
    file = made_judgments().save(tmp_path / "empty.json")
    with pytest.raises(BadUsage, match="it has none"):
        load_judge(f"scripted:{file}")


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
