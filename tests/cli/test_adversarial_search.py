"""`mechassay adversarial search`: a lower bound as text and JSON, and what is wrong as one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mechassay.adversarial import search
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.cli import adversarial_search

Run = Callable[..., Any]
WORDS = (
    "adversarial",
    "search",
    "-m",
    "truth-ioi",
    "-t",
    "truth-ioi",
    "-c",
    "eap@4",
    "--n-clean",
    "12",
    "--n-corrupted",
    "12",
)
FEW = ("--train-limit", "5", "--starts", "2", "--restarts", "1")


def test_a_lower_bound_and_the_pair_that_has_it(run: Run, tmp_path: Path) -> None:
    done = run(*WORDS, *FEW, "--budget", "150", "-o", tmp_path / "found.json")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    best = found["climbs"][0]
    assert (
        f"Lower bound on the maximum: {found['lower_bound']:.6g} nats, after {found['evaluations']}"
        " pairs (random sampling: " in done.out
    )
    assert f"clean      {best['clean']}\ncorrupted  {best['corrupted']}" in done.out
    assert (
        found["lower_bound"] == best["kl"] == best["steps"][-1]["kl"] > 0.1
        and best["steps"][0]["change"] == ""
    )
    assert found["random"]["pairs"] == min(found["evaluations"], 144) and found["finished"]
    assert (found["circuit"], found["budget"], found["seed"]) == ("eap@4", 150, 0)
    assert run(*WORDS, *FEW, "--budget", "150").out == done.out


def test_an_interrupt_is_said_and_is_exit_code_130(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]

    def evaluated(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return evaluate_pairs(*args, **options)

    monkeypatch.setattr(search, "evaluate_pairs", evaluated)
    done = run(*WORDS, *FEW, "--no-compare", "-o", tmp_path / "found.json")
    assert done.code == 130 and "; interrupted" in done.out and "random sampling" not in done.out
    found = f"above and in {tmp_path / 'found.json'}"
    assert (
        done.line
        == f"mechassay: interrupted; what was found so far is {found}. The same command begins"
        " anew."
    )
    assert not json.loads((tmp_path / "found.json").read_text("utf-8"))["finished"]


def test_an_interrupt_before_anything_was_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "evaluate_pairs", stopped)
    done = run(*WORDS, *FEW)
    assert (
        done.code == 130
        and done.line
        == "mechassay: interrupted; nothing was found yet. The same command begins anew."
    )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (".", "is no file"),
        ("/dev/null", "is no file"),
        ("/proc/x.json", "cannot be written"),
        ("file/x.json", "cannot be written"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_begun(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, message: str
) -> None:
    def loaded(*args: Any) -> Any:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(adversarial_search, "load", loaded)
    (tmp_path / "file").write_text("mine")
    done = run(*WORDS, *FEW, "-o", tmp_path / place)
    assert done.code == 2 and message in done.line
    with pytest.raises(AssertionError, match="was loaded"):
        adversarial_search.search(
            "truth-ioi", "truth-ioi", "eap@4", output=tmp_path / "new" / "x.json"
        )
    assert [path.name for path in (tmp_path / "new").iterdir()] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--circuit", "eap"), "needs a size: eap@500"),
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
