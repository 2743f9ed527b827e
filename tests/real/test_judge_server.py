"""The whole pipeline over HTTP: a real language model in llama.cpp's server, through faults.

The model is far too small to judge anything: what is tested is the way there and back.
"""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.experiments import COVERAGE
from helpers.judge_server import FaultProxy, port_of, served
from helpers.llama_server import CONTEXT, running
from mechassay.claims.judgments import read_judgments
from mechassay.judges.experiment import AssessExperiment, judgments_file
from mechassay.judges.judge import ServedJudge
from mechassay.judges.requests import read_exchange
from mechassay.models.weight_files import gguf_file
from mechassay.runs.run import run
from mechassay.utils.display import SILENT

pytestmark = [pytest.mark.real, pytest.mark.slow]
MODEL = "smollm2-135m"
PAPER = COVERAGE / "paper.md"


@pytest.fixture(scope="module")
def gguf() -> Path:
    pytest.importorskip("xllamacpp", reason="needs pip install xllamacpp")
    pytest.importorskip("pydantic_ai", reason="needs pip install 'mechassay[judge]'")
    file = gguf_file(MODEL)
    if not file.is_file():
        pytest.skip(f"there is no GGUF file: mechassay models fetch {MODEL} --gguf")
    return file


def experiment_at(url: str) -> AssessExperiment:
    return AssessExperiment(
        str(PAPER),
        f"openai:{MODEL}@{url}",
        steps="per-criterion",
        criteria=("I2",),
        most_tokens=600,
        longest=40,
        tries=4,
    )


def test_a_server_that_was_killed_and_faults_on_the_way_change_no_byte(
    gguf: Path, tmp_path: Path
) -> None:
    with running(gguf) as (url, process):
        port = port_of(url)
        assert ServedJudge(MODEL, url).window == CONTEXT, "the server says its context"
        run(experiment_at(url), tmp_path / "plain", progress=SILENT)
        with served(FaultProxy(port, seed=62, share=0.65, slow=1.0)) as faulty:
            experiment = experiment_at(faulty)
            answers = tmp_path / "killed" / "answers"
            threading.Thread(target=kill_after_an_answer, args=(answers, process)).start()
            left = run(experiment, tmp_path / "killed", progress=SILENT)
            [failure] = left.failures
            assert failure.error == "NoAnswer" and "tries failed" in failure.message
            process.wait()
            [kept] = [file for file in answers.iterdir() if read_exchange(file).answer]
            before = kept.read_bytes()
            with running(gguf, port):
                results = run(experiment, tmp_path / "killed", progress=SILENT)
    assert not results.failures and kept.read_bytes() == before
    plain, killed = (judgments_file(tmp_path / name, 1) for name in ("plain", "killed"))
    assert plain.read_bytes() == killed.read_bytes()
    found = read_judgments(killed)
    assert found.rater.id == MODEL and len(found.claims) >= 1
    for judged in found.claims:
        assert judged.statuses["I2"] in ("YES", "PARTIAL", "NO")
        assert judged.statuses["I1"] == "NOT TESTED"
    for file in answers.iterdir():
        exchange = read_exchange(file)
        assert exchange.answer is not None
        # What is refused for its length is counted from above.
        assert 0 < exchange.answer.input_tokens <= exchange.request.n_tokens


def kill_after_an_answer(answers: Path, process: subprocess.Popen[str]) -> None:
    """Kill the server as soon as one answer is kept."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if any(read_exchange(file).answer for file in answers.glob("*.json")):
            process.kill()
            return
        time.sleep(0.01)


def test_what_is_too_long_is_refused_before_it_is_sent_or_by_the_server(
    gguf: Path, tmp_path: Path
) -> None:
    long = tmp_path / "long.md"
    long.write_text("The circuit recovers 87 % of the logit difference. " * 2000)
    with running(gguf) as (url, _):
        experiment = replace(experiment_at(url), source=str(long))
        results = run(experiment, tmp_path / "ours", progress=SILENT)
        assert "in a context of 8,192; nothing was sent" in results.failures[0].message
        experiment = replace(experiment, context=200_000)
        results = run(experiment, tmp_path / "theirs", progress=SILENT)
        assert "refuses the request" in results.failures[0].message
        assert "context" in results.failures[0].message
