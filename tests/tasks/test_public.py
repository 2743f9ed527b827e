"""Public data from the hub's own layout, from folders of every file kind, and what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from mechassay.errors import BadFile, BadUsage, MissingExtra
from mechassay.pairs import content_hash
from mechassay.tasks import load_task
from mechassay.tasks.ioi import IOI
from mechassay.tasks.public import PublicData, public_rows, read_rows

OWN = IOI()


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return OWN.rows("test", limit=6)


@pytest.fixture
def quiet_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Data sets are prepared in a folder of the test, without a bar and without looking for a network."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_a_folder_of_files_gives_the_pairs_that_were_written(rows: list[dict[str, Any]], tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"test{suffix}", rows)
    read = IOI(source=str(tmp_path))
    assert content_hash(read.pairs("test", limit=6)) == content_hash(OWN.pairs("test", limit=6))
    with pytest.raises(BadFile, match="no train.jsonl"):
        read.pairs("train", limit=1)


@pytest.mark.usefixtures("quiet_cache")
def test_a_data_set_in_the_layout_of_the_hub(rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hub serves is a folder of parquet files; `datasets` reads one here the same way."""
    write(tmp_path / "repo/data/test-00000-of-00001.parquet", rows)
    write(tmp_path / "repo_private_test/data/test-00000-of-00001.parquet", rows[::-1])
    monkeypatch.setattr(IOI, "public", PublicData(str(tmp_path / "repo")))
    hub = IOI(source="hub")
    assert content_hash(hub.pairs("test", limit=6)) == content_hash(OWN.pairs("test", limit=6))
    assert [p.clean for p in hub.pairs("private", limit=6, private_seed=0)] == [p.clean for p in OWN.pairs("test", limit=6)][::-1]
    with pytest.raises(BadFile, match="train"):
        hub.pairs("train", limit=1)


@pytest.mark.usefixtures("quiet_cache")
def test_a_hub_that_cannot_be_reached_is_one_line() -> None:
    with pytest.raises(BadFile, match=r"^mech-assay/no-such-data \(part\), split 'val': .*\.$") as caught:
        list(public_rows("hub", PublicData("mech-assay/no-such-data", "part", {"validation": "val"}), "validation"))
    assert "\n" not in str(caught.value)


def test_rows_of_another_schema_are_named(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", [rows[0], {"prompt": "x"}])
    with pytest.raises(BadFile, match=r"Row 2 of .* is not a row of mib-bench/ioi: KeyError"):
        IOI(source=str(tmp_path)).examples("test", limit=2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": 1}\n{"prompt": \n', "line 2: not JSON"),
        ("a.jsonl", b"[1]\n", "line 1: a row is a JSON object; got list"),
        ("a.jsonl", b"\xff\xfe{}", "can't decode"),
        ("a.json", b"{", "Expecting property name"),
        ("a.json", b"5", "a list of objects; got int"),
        ("a.json", b"{}", "a list of objects; got dict"),
        ("a.parquet", b"PAR1 but not really PAR1", "arquet"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=message) as caught:
        list(read_rows(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_empty_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}\r\n')
    assert [row["a"] for row in read_rows(tmp_path / "a.jsonl")] == [1, 2]


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadUsage, match='"own", "hub" or a folder'):
        load_task("ioi", source=str(tmp_path / "nothing")).pairs("test", limit=1)
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"mechassay\[hub\]"):
        load_task("ioi:source=hub").pairs("test", limit=1)
