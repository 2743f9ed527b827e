"""A judge behind a server: what is sent, what faults are, windows, keys, costs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from helpers.experiments import COVERAGE
from helpers.judge_server import (
    FAULTS,
    FaultProxy,
    JudgeServer,
    completion,
    form_of,
    port_of,
    served,
    smallest,
)
from mechassay.documents.reading import read_document
from mechassay.errors import JudgeFault, MissingExtra, NoAnswer
from mechassay.judges.assessment import assess
from mechassay.judges.judge import ServedJudge
from mechassay.judges.requests import JudgeRequest

pytest.importorskip("pydantic_ai", reason="needs pip install 'mechassay[judge]'")
pytest.importorskip("openai", reason="needs pip install 'mechassay[judge]'")
PAPER = read_document(COVERAGE / "paper.md")
FORM = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 9}},
    "required": ["word"],
    "additionalProperties": False,
}
REQUEST = JudgeRequest(step="claims", system="Be strict.", user="Judge.", form=FORM, most_tokens=20)


def test_a_request_is_sent_whole_with_the_form_of_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret of another server")
    server = JudgeServer()
    with served(server) as url:
        answer = ServedJudge("small", url, prices=(2.0, 30.0)).answer(REQUEST, 3)
    sent = json.loads(server.bodies[0])
    assert [each["content"] for each in sent["messages"]] == ["Be strict.", "Judge."]
    assert [each["role"] for each in sent["messages"]] == ["system", "user"]
    assert form_of(sent)["properties"]["word"]["maxLength"] == 9
    assert sent["response_format"]["type"] == "json_schema"
    assert sent["temperature"] == 0 and sent["seed"] == 3
    assert (sent.get("max_tokens") or sent["max_completion_tokens"]) == 20
    assert "secret" not in json.dumps(server.headers)
    assert json.loads(answer.text) == {"word": "The circuit recovers 87 %."}
    assert (answer.input_tokens, answer.output_tokens, answer.finish) == (100, 10, "stop")
    assert answer.cost == pytest.approx((100 * 2 + 10 * 30) / 1e6) and answer.model == "small"


def test_the_same_request_is_the_same_bytes() -> None:
    server = JudgeServer()
    with served(server) as url:
        for _ in range(2):
            ServedJudge("small", url).answer(REQUEST, 0)
    assert server.bodies[0] == server.bodies[1]


def test_the_key_goes_to_the_server_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHASSAY_JUDGE_KEY", "mine")
    server = JudgeServer()
    with served(server) as url:
        ServedJudge("small", url).answer(REQUEST, 0)
    assert server.headers["authorization"] == "Bearer mine"
    monkeypatch.delenv("MECHASSAY_JUDGE_KEY")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(NoAnswer, match="needs a key: set MECHASSAY_JUDGE_KEY or OPENAI_API_KEY"):
        ServedJudge("small").answer(REQUEST, 0)


def test_openai_s_own_server_is_asked_strictly_and_its_prices_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    monkeypatch.delenv("MECHASSAY_JUDGE_KEY", raising=False)
    server = JudgeServer(lambda body: completion('{"word": "a"}', "gpt-4o-2024-08-06"))
    with served(server) as url:
        monkeypatch.setattr("mechassay.judges.judge.OPENAI", url)
        answer = ServedJudge("gpt-4o", url).answer(REQUEST, 0)
    form = json.loads(server.bodies[0])["response_format"]["json_schema"]
    assert form["strict"] is True and form["schema"]["required"] == ["word"]
    assert server.headers["authorization"] == "Bearer theirs"
    assert 0 < answer.cost < 0.01


def test_what_the_environment_says_for_openai_goes_to_no_other_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Team: secret")
    server = JudgeServer()
    with served(server) as url:
        ServedJudge("small", url).answer(REQUEST, 0)
    assert "secret" not in json.dumps(server.headers)


def test_a_cost_without_a_price_is_not_known() -> None:
    with served(JudgeServer()) as url:
        assert math.isnan(ServedJudge("gpt-4o", url).answer(REQUEST, 0).cost)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("reply", "kind", "match"),
    [
        ((429, {"error": {"message": "busy"}}), JudgeFault, "429"),
        ((500, {"error": {"message": "broken"}}), JudgeFault, "500"),
        ((503, {"error": {"message": "loading"}}), JudgeFault, "503"),
        ((401, {"error": {"message": "no key"}}), NoAnswer, "refuses"),
        ((404, {"error": {"message": "no model"}}), NoAnswer, "refuses"),
        ((402, {"error": {"message": "no money"}}), NoAnswer, "refuses"),
        (
            (
                400,
                {
                    "error": {
                        "code": 400,
                        "message": "the request exceeds the available context size",
                        "type": "exceed_context_size_error",
                        "n_prompt_tokens": 900,
                        "n_ctx": 512,
                    }
                },
            ),
            NoAnswer,
            "exceeds the available context",
        ),
        ({"id": "1", "choices": []}, JudgeFault, "small"),
        ({"hello": "world"}, JudgeFault, "small"),
    ],
)
def test_what_may_pass_is_a_fault_and_what_stays_is_a_refusal(
    reply: Any, kind: type[Exception], match: str
) -> None:
    with served(JudgeServer(lambda body: reply)) as url, pytest.raises(kind, match=match) as error:
        ServedJudge("small", url).answer(REQUEST, 0)
    assert "\n" not in str(error.value)


def test_a_server_that_is_down_or_too_slow_is_a_fault() -> None:
    with pytest.raises(JudgeFault):
        ServedJudge("small", "http://127.0.0.1:9/v1", timeout=2.0).answer(REQUEST, 0)
    with (
        served(JudgeServer()) as url,
        served(FaultProxy(port_of(url), 0, share=1.0, slow=1.0)) as slow,
        pytest.raises(JudgeFault),
    ):
        ServedJudge("small", slow, timeout=0.3).answer(REQUEST, 0)


def test_an_answer_that_was_cut_off_says_so() -> None:
    cut = completion('{"word": "a', finish="length")
    with served(JudgeServer(lambda body: cut)) as url:
        assert ServedJudge("small", url).answer(REQUEST, 0).finish == "length"


def test_the_window_is_what_was_given_or_what_the_server_says() -> None:
    with served(JudgeServer(n_ctx=4096)) as url:
        assert ServedJudge("small", url).window == 4096
        assert ServedJudge("small", url, context=99).window == 99
    with served(JudgeServer()) as url:
        assert ServedJudge("small", url).window is None
    assert ServedJudge("small", "http://127.0.0.1:9/v1", timeout=1.0).window is None


def test_a_document_that_is_too_long_for_the_server_is_not_sent() -> None:
    server = JudgeServer(n_ctx=1024)
    with served(server) as url, pytest.raises(NoAnswer, match="in a context of 1,024; nothing was"):
        assess(PAPER, ServedJudge("small", url), most_tokens=100)
    assert server.bodies == []


def test_without_the_extra_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import mechassay.judges.judge as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'mechassay\[judge\]'"):
        ServedJudge.of("small@http://127.0.0.1:1/v1")


def reply(body: dict[str, Any]) -> str:
    """A different answer to every request, the same each time."""
    import hashlib

    found = smallest(form_of(body))
    digest = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()
    if "claims" in found:
        found["claims"] = [
            {**found["claims"][0], "id": name, "system": name == "a"} for name in "ab"
        ]
    else:
        for own in found["criteria"].values():
            own["reason"] = digest
    return json.dumps(found)


@pytest.mark.guard
@pytest.mark.parametrize("seed", [89, 196])
def test_through_faults_of_every_kind_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    options: dict[str, Any] = {"steps": "per-criterion", "criteria": ("I2", "E5")}
    with served(JudgeServer(reply)) as url:
        plain = assess(PAPER, ServedJudge("small", url), **options)
        proxy = FaultProxy(port_of(url), seed, share=0.65, slow=2.0)
        with served(proxy) as faulty:
            judge = ServedJudge("small", faulty, timeout=1.5)
            through = assess(
                PAPER, judge, kept=tmp_path, sleep=lambda seconds: None, tries=9, **options
            )
    assert through.judgments.model_dump_json() == plain.judgments.model_dump_json()
    assert [each.answer for each in through.exchanges] == [each.answer for each in plain.exchanges]
    assert set(proxy.made) == {"", *FAULTS}
    spent = through.spent()
    made = [fault for fault in proxy.made if fault]
    assert spent["invalid_answers"] == made.count("half an answer")
    assert spent["faults"] == len(made) - made.count("half an answer")
    assert spent["requests"] == plain.spent()["requests"] == 5 == len(list(tmp_path.iterdir()))
