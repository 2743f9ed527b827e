"""`mechassay plan`, and the line that a run begins with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from helpers.experiments import SMALL_GYM_TASK
from mechassay.cli import execution
from mechassay.cli.main import main
from mechassay.cli.plan import COMMANDS, would_fit
from mechassay.errors import BadUsage
from mechassay.models import memory
from mechassay.models.graph import Graph
from mechassay.runs import costs
from mechassay.runs.costs import Cost, ModelSize, Work


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
    assert out.count("\n") == 1
    code, out, _ = called(["plan", "--json", *words], capsys)
    read = json.loads(out)
    assert read["fits"]
    assert read["weights_gb"] < read["gb"] < read["free_gb"]
    low, high = read["minutes"]
    assert 0 < low < high <= 4 * low


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


def _cost_of(weights: float, body: float, free: float, device: str = "cpu") -> Cost:
    size = ModelSize(int(weights), int(body), 10, Graph(10, 2), 10, 2)
    return Cost((Work("m", size, 0.0, 1e8),), device, 0.0, int(free))


def test_shorter_prompts_are_named_only_if_they_help() -> None:
    """A chunk of .54 GB is held whatever the prompts are; 4 GB of longer prompts are not."""
    cost = _cost_of(1e9, 1e9, 5e9)
    (work,) = cost.works
    chunk = costs.CHUNK * memory.CPU_BUDGET
    long = replace(cost, works=(replace(work, held=chunk + 4e9),))
    assert "save up to 4.0 GB" in would_fit(long)
    small = replace(cost, works=(replace(work, held=chunk),), free=int(2.5e9))
    assert not small.fits
    assert "shorter prompts" not in would_fit(small)


def test_layers_on_disk_are_named_where_that_is_enough() -> None:
    # 20 GB of weights, 18 of them in ten layers: 3.8 stay, beside .23 of the rest.
    text = would_fit(_cost_of(10e9, 9e9, 6e9))
    assert "--device-map with the layers on disk" in text
    assert "one is held at a time: 4.0 GB" in text
    assert "--device-map" not in would_fit(_cost_of(10e9, 9e9, 3.5e9))
    # Where embeddings are nearly all of it, layers elsewhere do not help.
    assert "--device-map" not in would_fit(_cost_of(10e9, 1e9, 6e9))


def test_layers_are_held_by_the_cpu_where_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, place in ((10**11, "in the CPU memory"), (10**9, "on disk")):
        monkeypatch.setattr(memory, "available_bytes", lambda _, free=free: free)
        assert f"layers {place}" in would_fit(_cost_of(10e9, 9e9, 6e9, "cuda"))


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
    assert "other cell" not in err
    # What is done has no plan.
    _, _, err = called(words, capsys)
    assert "plan:" not in err


class Registered:
    """Costs of any kind of run, all by one function."""

    def __init__(self, cost_of: Callable[..., Cost]) -> None:
        self.cost_of = cost_of

    def __contains__(self, kind: str) -> bool:
        return True

    def load(self, kind: str) -> Any:
        return self.cost_of


class Experiment:
    kind = "circuits"


class Worker:
    folder, device = None, "cpu"


def test_the_first_cell_corrects_the_estimate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three cells that were taken for equal, the first took 60 s: the others take about 120."""

    def cost_of(experiment: Experiment, cells: list[str], worker: Worker) -> Cost:
        return replace(_cost_of(0, 0, 1e10), works=_cost_of(0, 0, 1e10).works * len(cells))

    monkeypatch.setattr(execution, "COSTS", Registered(cost_of))
    experiment: Any = Experiment()
    worker: Any = Worker()
    measured: Any = execution.print_cost(experiment, ["a", "b", "c"], worker)
    assert capsys.readouterr().err == "plan: fits: needs 0.2 GB of 10.0 GB free, 5.5 to 22 s\n"
    measured("a", 60.0)
    measured("b", 60.0)
    assert capsys.readouterr().err == "plan: 2 other cells: 80 to 180 s\n"


def test_a_cell_without_a_cost_corrects_no_estimate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cells of a reproduction that are calculated, not run, have no works."""

    def cost_of(experiment: Experiment, cells: list[str], worker: Worker) -> Cost:
        run = [cell for cell in cells if cell != "calculated"]
        return replace(_cost_of(0, 0, 1e10), works=_cost_of(0, 0, 1e10).works * len(run))

    monkeypatch.setattr(execution, "COSTS", Registered(cost_of))
    experiment: Any = Experiment()
    worker: Any = Worker()
    measured: Any = execution.print_cost(experiment, ["calculated", "a", "b"], worker)
    capsys.readouterr()
    measured("calculated", 1.0)
    assert capsys.readouterr().err == ""
    measured("a", 60.0)
    assert capsys.readouterr().err == "plan: 2 other cells: 40 to 90 s\n"


def test_an_estimate_that_fails_stops_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> Cost:
        raise BadUsage("its config says too little.")

    monkeypatch.setattr(execution, "COSTS", Registered(refused))
    experiment: Any = Experiment()
    worker: Any = Worker()
    execution.print_cost(experiment, ["cell"], worker)
    assert capsys.readouterr().err == (
        "plan: not known before it is run: its config says too little.\n"
    )
