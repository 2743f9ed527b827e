"""The folder of a run: whose it is, and what is damaged in it as one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mechassay.errors import BadFile, BadUsage
from mechassay.results.records import Failure
from mechassay.runs.folder import RunFolder
from mechassay.utils.files import write_text


def test_a_folder_with_nothing_but_plans_is_free(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, {"split": "tset", "methods": ["epa"]}, growing=("methods",))
    RunFolder.open(tmp_path / "found", {"split": "tset"}).save_data("train", {"hash": "1"})
    RunFolder(tmp_path).save_data("circuits", {"hash": "1"})
    folder = RunFolder.open(tmp_path, {"split": "test", "methods": ["eap"]}, growing=("methods",))
    assert folder.plan() == {"split": "test", "methods": ["eap"]}
    folder.save_data("circuits", {"hash": "2"})
    assert RunFolder(tmp_path / "found").data() == {"train": {"hash": "1"}}


@pytest.mark.parametrize(
    "result", ["records/a.json", "found/scores/a.safetensors", "values.parquet", "values/0.f32"]
)
def test_a_folder_with_anything_found_is_not(tmp_path: Path, result: str) -> None:
    RunFolder.open(tmp_path, {"split": "tset"})
    write_text(tmp_path / result, "")
    with pytest.raises(BadUsage, match="holds a run with split = 'tset'; this one has 'test'"):
        RunFolder.open(tmp_path, {"split": "test"})
    assert RunFolder(tmp_path).plan() == {"split": "tset"}


def test_one_edge_is_not_all_edges(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, {"sizes": (1,)})
    write_text(tmp_path / "result.json", "")
    with pytest.raises(BadUsage, match="sizes"):
        RunFolder.open(tmp_path, {"sizes": (1.0,)})
    RunFolder.open(tmp_path, {"sizes": (1,)})


@pytest.mark.parametrize(
    "text", ['{"circuits": {"ha', "[]", '{"circuits": 3}', '{"circuits": {}}', ""]
)
def test_damaged_data_is_one_line(tmp_path: Path, text: str) -> None:
    folder = RunFolder.open(tmp_path, {})
    folder.data_file().write_text(text)
    with pytest.raises(BadFile, match="data.json: not a readable choice of pairs") as raised:
        folder.save_data("circuits", {"hash": "1"})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ['{"cell"', "{}", '{"cell": 3}', "[4]"])
def test_damaged_failures_are_one_line(tmp_path: Path, text: str) -> None:
    folder = RunFolder.open(tmp_path, {})
    failure = Failure(cell={"method": "eap"}, error="NonFinite", message="NaN")
    folder.save_failure("group/eap", failure)
    assert folder.failure("group/eap") == failure and folder.failure("group/other") is None
    folder.failure_file("group/eap").write_text(text)
    with pytest.raises(BadFile, match="eap.json: not a failure") as raised:
        folder.failure("group/eap")
    assert "\n" not in str(raised.value)
    folder.save_failure("group/eap", None)
    assert folder.failure("group/eap") is None


def test_a_folder_with_nothing_but_failures_is_free(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, {"dtype": "float31"})
    folder.save_failure("g/eap", Failure(cell={}, error="BadUsage", message="no such dtype"))
    RunFolder.open(tmp_path, {"dtype": "float32"})
    assert folder.failure("g/eap") is None and folder.plan() == {"dtype": "float32"}


def test_free_settings_may_change_and_the_last_is_stored(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, {"seed": 1, "max_minutes": 1})
    write_text(tmp_path / "records/a.json", "")
    folder = RunFolder.open(tmp_path, {"seed": 1, "max_minutes": 2}, free=("max_minutes",))
    assert folder.plan() == {"seed": 1, "max_minutes": 2}
    with pytest.raises(BadUsage, match="max_minutes"):
        RunFolder.open(tmp_path, {"seed": 1, "max_minutes": 3})


def test_results_of_another_version_are_not_gone_on_with(tmp_path: Path) -> None:
    def opened(**versions: int) -> RunFolder:
        plan = {"methods": list(versions), "definitions": versions}
        return RunFolder.open(tmp_path, plan, growing=("methods",))

    opened(eap=1)
    assert opened(eap=2).plan()["definitions"] == {"eap": 2}, "nothing was found yet"
    write_text(tmp_path / "records/a.json", "")
    opened(ifr=1)
    assert opened(eap=2).plan()["definitions"] == {"eap": 2, "ifr": 1}
    said = "holds results of version 2 of the eap; it has version 3 now"
    with pytest.raises(BadUsage, match=said):
        opened(ifr=1, eap=3)
    assert RunFolder(tmp_path).plan()["definitions"] == {"eap": 2, "ifr": 1}


def test_versions_that_are_no_object_are_one_line(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, {"definitions": [3]})
    with pytest.raises(BadFile, match=r"plan\.json: definitions must be a JSON object"):
        RunFolder.open(tmp_path, {"definitions": {"eap": 7}})


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff", json.dumps({"a": 1}).encode() + b"x"])
def test_a_damaged_plan_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(BadFile, match="plan.json: not a readable plan") as raised:
        RunFolder.open(tmp_path, {})
    assert "\n" not in str(raised.value)
