"""`mechassay adversarial bound`: sample sizes as a table, and what is wrong as one line.

`mechassay adversarial search`: a lower bound as text and a record, errors as one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mechassay.adversarial import hill_climbing as search
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pages import BOUND
from mechassay.runs.folder import RunFolder

Run = Callable[..., Any]


def cells(text: str, name: str) -> list[list[str]]:
    """What the rows of that bound say, behind the bound's name."""
    lines = [
        [cell.strip() for cell in line.strip("│ ").split("│")]
        for line in text.splitlines()
        if "│" in line
    ]
    return [line[4:] for line in lines if len(line) > 4 and line[3] == name]


def test_how_many_pairs_are_needed(run: Run) -> None:
    done = run("adversarial", "bound", "--p", ".99", "--delta", ".95", "--epsilon", ".005")
    assert done.code == 0, done.err
    assert cells(done.out, "exact") == [["773", "1,049"]]
    assert cells(done.out, "chernoff") == [["1,937", "1,937"]]
    assert cells(done.out, "hoeffding") == [["59,915", "59,915"]]


def test_what_that_many_say(run: Run) -> None:
    done = run("adversarial", "bound", "--p", ".99", "--epsilon", ".005", "--n", "1000")
    assert done.code == 0 and "at rank" in done.out
    assert cells(done.out, "exact")[0][2:] == ["0.93386", "995", "996"]
    assert cells(done.out, "chernoff")[0][2:] == ["0.787086", "995", "997"]
    assert cells(done.out, "hoeffding")[0][2:] == ["0.0487706", "995", "–"]
    assert "too few" in done.out
    assert (
        "too few"
        not in run("adversarial", "bound", "--p", ".5", "--epsilon", ".1", "--n", "1000").out
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--p", "1.5", "--epsilon", ".1"], "p must be between 0 and 1, both excluded; got 1.5"),
        (["--p", "0", "--epsilon", ".1"], "p must be between 0 and 1"),
        (["--p", "nan", "--epsilon", ".1"], "got nan"),
        (
            ["--p", ".99", "--epsilon", ".01"],
            "epsilon must be above 0 and below 1 - p = 0.01; got 0.01",
        ),
        (["--p", ".99", "--epsilon", "-1"], "epsilon must be above 0"),
        (
            ["--p", ".99", "--epsilon", ".001", "--delta", "1"],
            "The confidence must be between 0 and 1",
        ),
        (["--p", ".99", "--epsilon", "1e-9"], "is too small for the exact search"),
        (["--p", ".99", "--epsilon", ".001", "--n", "0"], "at least 1 draw; got 0"),
    ],
)
def test_bad_input_is_one_line(run: Run, words: list[str], message: str) -> None:
    done = run("adversarial", "bound", *words)
    assert done.code == 2 and message in done.line


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
    words = (*WORDS, *FEW, "--budget", "150", "-o", tmp_path / "out")
    done = run(*words)
    assert done.code == 0, done.err
    record = RunFolder(tmp_path / "out").record("eap@4")
    assert record is not None
    bound, random = record.measure(BOUND), record.measure(BOUND, "control:random")
    assert bound is not None and random is not None
    assert (
        f"Lower bound on the maximum: {bound.value:.6g} nats, after {bound.n} pairs"
        f" (random sampling: {random.value:.6g} with {random.n})" in done.out
    )
    best, steps = record.table("climbs").rows()[0], record.table("steps").where(climb=1).rows()
    assert f"clean      {best['clean']}\ncorrupted  {best['corrupted']}" in done.out
    assert bound.value == best["divergence"] == steps[-1]["kl"] and bound.value > 0.1
    assert steps[0]["change"] == "" and random.n == min(bound.n, 144)
    assert run(*words).out == done.out
    assert run("report", tmp_path / "out").out == done.out
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "The worst pair of eap@4" in page and "lower bound" in page.lower()


@pytest.mark.guard
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
    done = run(*WORDS, *FEW, "--no-compare", "-o", tmp_path / "out")
    assert done.code == 130 and "random sampling" not in done.line
    file = tmp_path / "out" / "interrupted" / "eap@4.json"
    found = json.loads(file.read_text("utf-8"))
    assert not found["finished"] and (
        done.line
        == f"mechassay: interrupted; lower bound on the maximum: {found['lower_bound']:.6g}"
        f" nats, after {found['evaluations']} pairs; interrupted, see {file}. The same command"
        " begins this search anew."
    )
    assert run(*WORDS, *FEW, "--no-compare", "-o", tmp_path / "out").code == 0


def test_an_interrupt_before_anything_was_found(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "evaluate_pairs", stopped)
    done = run(*WORDS, *FEW, "-o", tmp_path / "out")
    assert done.code == 130 and done.line.startswith("mechassay: interrupted; ")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--circuit", "eap"), "needs a size: eap@500"),
        (("--circuit", "eap@4"), "different circuits; got eap@4, eap@4"),
        (("--budget", "0"), "A search needs a budget and starts of 1 or more; got 0"),
        (("--split", "tset"), "Did you mean 'test'"),
        (("--counterfactual", "none"), "Unknown counterfactual 'none'"),
        (("--n-clean", "0"), "n_clean must be between 1 and 1000000; got 0"),
        (("--task", "ioi2"), "Unknown task"),
    ],
)
def test_bad_input_is_one_line_of_adversarial_search(
    run: Run, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = run(*WORDS, *FEW, *words, "-o", tmp_path / "out")
    assert done.code == 2 and message in done.line
