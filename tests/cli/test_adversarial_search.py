"""`mechassay adversarial search`: a lower bound as text and JSON, and what is wrong as one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mechassay.adversarial import search
from mechassay.adversarial.evaluation import evaluate_pairs

Run = Callable[..., Any]
WORDS = ("adversarial", "search", "-m", "truth-ioi", "-t", "truth-ioi", "-c", "eap@4", "--n-clean", "12", "--n-corrupted", "12")
FEW = ("--train-limit", "5", "--starts", "2", "--restarts", "1")


def test_a_lower_bound_and_the_pair_that_has_it(run: Run, tmp_path: Path) -> None:
    done = run(*WORDS, *FEW, "--budget", "150", "-o", tmp_path / "found.json")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    best = found["climbs"][0]
    assert f"Lower bound on the maximum: {found['lower_bound']:.6g} nats, after {found['evaluations']} pairs (random sampling: " in done.out
    assert f"clean      {best['clean']}\ncorrupted  {best['corrupted']}" in done.out
    assert found["lower_bound"] == best["kl"] == best["steps"][-1]["kl"] > 0.1 and best["steps"][0]["change"] == ""
    assert found["random"]["pairs"] == min(found["evaluations"], 144) and found["finished"]
    assert (found["circuit"], found["budget"], found["seed"]) == ("eap@4", 150, 0)
    assert run(*WORDS, *FEW, "--budget", "150").out == done.out


def test_an_interrupt_is_said_and_is_exit_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]

    def evaluated(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return evaluate_pairs(*args, **options)

    monkeypatch.setattr(search, "evaluate_pairs", evaluated)
    done = run(*WORDS, *FEW, "--no-compare")
    assert done.code == 130 and "; interrupted" in done.out and "random sampling" not in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--circuit", "eap"), "A circuit is one of"),
        (("--budget", "0"), "A search needs a budget and starts of 1 or more; got 0"),
        (("--split", "tset"), "Did you mean 'test'"),
        (("--counterfactual", "none"), "Unknown counterfactual 'none'"),
        (("--n-clean", "0"), "got 0 clean and 12 corrupted"),
        (("--task", "ioi2"), "Unknown task"),
    ],
)
def test_bad_input_is_one_line(run: Run, words: tuple[str, ...], message: str) -> None:
    done = run(*WORDS, *FEW, *words)
    assert done.code == 2 and message in done.line
