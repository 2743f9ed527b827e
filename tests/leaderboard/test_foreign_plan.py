"""What a plan of others may name."""

from __future__ import annotations

from pathlib import Path

import pytest

import mechassay as ma
from mechassay.circuits.scores import Circuit
from mechassay.errors import BadFile
from mechassay.leaderboard.foreign_plan import check_plan, is_local, is_path


def test_names_of_models_that_are_paths() -> None:
    assert not is_path("owner/other") and is_path("owner/..") and is_path("a\\b")
    assert not is_local("truth-ioi") and not is_local("nobody-knows-it")


def test_circuits_of_files_that_do_not_come_along_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = ma.load_model("truth-ioi").graph
    (tmp_path / "circ").mkdir()
    Circuit.full(graph).save(tmp_path / "circ" / "a.safetensors")
    monkeypatch.chdir(tmp_path)
    plan = {"kind": "adversarial", "model": "truth-ioi", "task": "truth-ioi"}
    for text in ("circ@0.5", "circ/a.safetensors", "a.json@5", "eap:x.pt@5", "a.pt"):
        with pytest.raises(BadFile, match="none of its files"):
            check_plan({**plan, "circuits": [text]}, (), "The plan")
    kept = ["truth", "canonical:ioi", "random@5", "eap@0.5:greedy", "eap-ig-inputs:steps=10@500"]
    assert check_plan({**plan, "circuits": kept}, (), "The plan")["circuits"] == kept
