"""`mechassay plan`, and the line that a run begins with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from helpers.jobs import SMALL_GYM_TASK, SMALL_JOBS
from mechassay.cli import execution
from mechassay.cli.main import main
from mechassay.cli.plan import COMMANDS, would_fit
from mechassay.errors import BadUsage
from mechassay.models import memory
from mechassay.models.graph import Graph
from mechassay.runs import COSTS, costs
from mechassay.runs.costs import Cost, CostStep, ModelCost, ModelSize


def called(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


@pytest.fixture
def bare(tmp_path: Path) -> str:
    LlamaConfig(
        vocab_size=50,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=3,
    ).save_pretrained(tmp_path / "bare")
    return str(tmp_path / "bare")


def test_the_first_sentence_answers(bare: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["circuits", "run", "-m", bare, "-t", "ioi", "-M", "eap"]
    code, out, _ = called(["plan", *words], capsys)
    assert code == 0
    assert out.startswith("Fits: needs ")
    for part in ("weights", "scores", "eap", "controls", "Not counted"):
        assert part in out
    code, out, _ = called(["plan", "--json", *words], capsys)
    read = json.loads(out)
    assert read["fits"]
    assert read["gb"] < read["free_gb"]
    assert {row["what"] for row in read["rows"]} >= {"libraries", "weights", "eap: curves"}


def test_a_plan_runs_and_writes_nothing(
    bare: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["circuits", "run", "-m", bare, "-t", "ioi", "-M", "eap", "-o", str(folder)]
    assert called(["plan", *words], capsys)[0] == 0
    assert not folder.exists()


def test_what_does_not_fit_is_told_what_would(
    bare: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "circuits", "run", "-m", bare, "-t", "ioi", "-M", "eap"]
    monkeypatch.setattr(costs, "available_bytes", lambda _: 0)
    code, out, err = called(words, capsys)
    assert code == 1
    assert out.startswith("Does not fit: needs ")
    assert "What would: " in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["saes", "train"], ["circuits", "draw"], ["models", "fetch", "smollm2-135m"]]
)
def test_commands_that_are_not_planned_are_refused_and_not_run(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = called(["plan", *words], capsys)
    assert code == 2
    assert err.count("\n") == 1
    assert all(command in err for command in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ["patch", "run", "-m", "truth-ioi", "-t", "truth-ioi"],
        ["variables", "run", "-m", "truth-ioi-trained"],
        ["gym", "run", "-m", "truth-ioi", "-t", SMALL_GYM_TASK],
        ["adversarial", "run", "-m", "truth-ioi", "-t", "truth-ioi", "-c", "truth"],
        ["tasks", "score", "-m", "truth-ioi", "-t", "truth-ioi"],
    ],
)
def test_every_long_command_is_planned(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = called(["plan", *words], capsys)
    assert code == 0
    assert out.startswith("Fits: needs ")
    assert "Not counted" in out


def test_every_cost_has_a_small_job_and_says_its_own_kind() -> None:
    for kind in COSTS.built_in.keys() - {"reproduction"}:
        job = SMALL_JOBS[kind]
        cost = COSTS.load(kind)(job, job.cells(), "cpu")
        assert cost.minutes > 0
        assert all(step.held >= 0 for part in cost.models for step in part.steps)


def _cost_of(weights: float, body: float, free: float, device: str = "cpu") -> Cost:
    size = ModelSize(int(weights), int(body), 10, Graph(10, 2), 10, 2)
    return Cost((ModelCost("m", size, 0, (CostStep("eap", 1e8),)),), device, 0.0, int(free))


def test_layers_on_disk_are_named_where_that_is_enough() -> None:
    # 20 GB of weights, 18 of them in ten layers: 3.8 stay, beside .23 of the rest.
    text = would_fit(_cost_of(10e9, 9e9, 6e9), "bfloat16")
    assert "--device-map with the layers on disk" in text
    assert "one is held at a time: 4.0 GB" in text
    assert "--device-map" not in would_fit(_cost_of(10e9, 9e9, 3.5e9), "bfloat16")
    # Where embeddings are nearly all of it, layers elsewhere do not help.
    assert "--device-map" not in would_fit(_cost_of(10e9, 1e9, 6e9), "bfloat16")


def test_layers_are_held_by_the_cpu_where_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, place in ((10**11, "in the CPU's memory"), (10**9, "on disk")):
        monkeypatch.setattr(memory, "available_bytes", lambda _, free=free: free)
        assert f"layers {place}" in would_fit(_cost_of(10e9, 9e9, 6e9, "cuda"), "bfloat16")


def test_each_process_has_its_own_model() -> None:
    one = _cost_of(1e9, 1e9, 1e10)
    three = replace(one, processes=3)
    assert three.gigabytes == pytest.approx(3 * one.gigabytes)
    assert three.fits and "in 3 processes, " in three.line and "processes" not in one.line
    assert not replace(one, processes=5).fits
    # GPUs are their own.
    on_gpu = _cost_of(1e9, 1e9, 1e10, "cuda")
    assert replace(on_gpu, processes=3).gigabytes == on_gpu.gigabytes


def test_a_run_begins_with_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["circuits", "run", "-m", "truth-ioi", "-M", "random", "--train-limit", "4"]
    words += ["--limit", "4", "--random-rankings", "5", "-o", str(tmp_path / "run")]
    _, _, err = called(words, capsys)
    assert err.startswith("plan: fits: needs ")
    # What is done has no plan.
    _, _, err = called(words, capsys)
    assert "plan:" not in err


def test_an_estimate_that_fails_stops_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Registered:
        def __contains__(self, kind: str) -> bool:
            return True

        def load(self, kind: str) -> Any:
            def refused(*_: Any) -> None:
                raise BadUsage("its config says too little.")

            return refused

    class Job:
        kind = "circuits"

    class Bench:
        folder, device = None, "cpu"

    monkeypatch.setattr(execution, "COSTS", Registered())
    monkeypatch.setattr(execution, "batches_of", lambda *_: [["cell"]])
    bench: Any = Bench()
    execution.say_cost(Job(), bench)
    assert capsys.readouterr().err == (
        "plan: not known before it is run: its config says too little.\n"
    )
