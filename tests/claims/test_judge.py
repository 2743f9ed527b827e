"""Judges by what is typed; requests and their hashes; scripts and recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from judgments_made import CODES, made_judgments, quoted
from mechassay.claims.exchange import Exchange, JudgeAnswer, JudgeRequest, read_exchange
from mechassay.claims.judge import ReplayJudge, ScriptedJudge, load_judge
from mechassay.errors import BadFile, BadUsage, NoAnswer, UnknownName


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
