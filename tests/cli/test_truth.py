"""`mechassay truth`: what it lists, verifies and recovers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mechassay.truth.models import truth_names

Run = Callable[..., Any]


def test_list_names_models_circuits_and_folders(run: Run) -> None:
    out = run("truth", "list").out
    for name in truth_names():
        assert name in out
    assert out.count("margin") == 3 * len(truth_names()) and "11 of 262 edges" in out


def test_verify_holds_on_fresh_pairs(run: Run) -> None:
    done = run("truth", "verify", "truth-induction", "--ablation", "zero", "--limit", "20")
    assert done.code == 0 and done.out.startswith("zero: holds; smallest effect inside")
    assert "Did you mean 'mean'?" in run("truth", "verify", "truth-induction", "--ablation", "means").line
    assert "Did you mean 'truth-ioi'?" in run("truth", "verify", "truth-oi").line


def test_recover_ranks_methods(run: Run) -> None:
    done = run("truth", "recover", "-n", "truth-induction", "--method", "eap-ig-inputs", "--method", "random", "--limit", "20")
    assert done.code == 0, done.err
    line = next(line for line in done.out.splitlines() if "eap-ig-inputs" in line)
    assert "1.00" in line
    assert "does not score edges" in run("truth", "recover", "-n", "truth-induction", "--method", "nap", "--limit", "4").line
