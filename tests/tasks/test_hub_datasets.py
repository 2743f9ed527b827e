"""Public data from the hub's own layout, from folders of every file kind,
and what cannot be read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from mechassay.errors import BadFile, BadUsage, MissingExtra
from mechassay.prompts.pairs import content_hash
from mechassay.prompts.rows import read_rows
from mechassay.tasks import hub_datasets as hub
from mechassay.tasks import load_task
from mechassay.tasks.hub_datasets import DEADLINE, PublicData, public_rows
from mechassay.tasks.ioi import IOI
from mechassay.tasks.load import check_pairs
from mechassay.tasks.task import SPLITS

OWN = IOI()


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return OWN.rows("test", limit=6)


@pytest.fixture
def quiet_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Data sets are prepared in a folder of the test,
    without a bar and without looking for a network.
    """
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
def test_a_folder_of_files_gives_the_pairs_that_were_written(
    rows: list[dict[str, Any]], tmp_path: Path, suffix: str
) -> None:
    write(tmp_path / f"test{suffix}", rows)
    read = IOI(source=str(tmp_path))
    assert content_hash(read.pairs("test", limit=6)) == content_hash(OWN.pairs("test", limit=6))
    with pytest.raises(BadFile, match="no train.jsonl"):
        read.pairs("train", limit=1)


@pytest.mark.usefixtures("quiet_cache")
def test_a_data_set_in_the_layout_of_the_hub(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the hub serves is a folder of parquet files; `datasets` reads one here the same way."""
    write(tmp_path / "repo/data/test-00000-of-00001.parquet", rows)
    write(tmp_path / "repo_private_test/data/test-00000-of-00001.parquet", rows[::-1])
    monkeypatch.setattr(IOI, "public", PublicData(str(tmp_path / "repo")))
    hub = IOI(source="hub")
    assert content_hash(hub.pairs("test", limit=6)) == content_hash(OWN.pairs("test", limit=6))
    assert [p.clean for p in hub.pairs("private", limit=6, private_seed=0)] == [
        p.clean for p in OWN.pairs("test", limit=6)
    ][::-1]
    with pytest.raises(BadFile, match="train"):
        hub.pairs("train", limit=1)


@pytest.mark.usefixtures("quiet_cache")
def test_a_hub_that_cannot_be_reached_is_one_line() -> None:
    with pytest.raises(
        BadFile, match=r"^mech-assay/no-such-data \(part\), split 'val': .*\.$"
    ) as caught:
        list(
            public_rows(
                "hub",
                PublicData("mech-assay/no-such-data", "part", {"validation": "val"}),
                "validation",
            )
        )
    assert "\n" not in str(caught.value)


def test_rows_of_another_schema_are_named(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    for split in SPLITS:
        write(tmp_path / f"{split}.jsonl", [rows[0], {"prompt": "x"}, rows[1], {"prompt": "y"}])
    task = IOI(source=str(tmp_path))
    assert task.pairs("test").dropped == {"a row without 'metadata'": 2}
    assert [example.id for example in task.examples("test")] == [
        "ioi-test-000000",
        "ioi-test-000002",
    ]
    assert task.examples("test").dropped == {"a row without 'metadata'": 2}
    assert not task.examples("test", limit=1).dropped, "rows after the last one taken do not count"
    found = check_pairs(task).splits["test"]
    assert (found.rows, found.usable, found.dropped["a row without 'metadata'"].ids) == (
        4,
        2,
        ("ioi-test-000001", "ioi-test-000003"),
    )
    for split in SPLITS:
        write(tmp_path / f"{split}.jsonl", [{"prompt": "x"}, {"prompt": "y", "metadata": {}}])
    said = (
        r"none of 2 rows is one of mib-worker/ioi: 1 a row without 'metadata', 1 .* \(row 1: no"
        r" 'metadata'\)\.$"
    )
    for use in (
        lambda: task.pairs("test"),
        lambda: task.examples("test"),
        lambda: check_pairs(task),
    ):
        with pytest.raises(BadFile, match=said):
            use()


@pytest.mark.parametrize("name", ["val", "dev", "valid"])
def test_a_split_under_its_usual_names(
    rows: list[dict[str, Any]], tmp_path: Path, name: str
) -> None:
    write(tmp_path / f"{name}.jsonl", rows)
    assert len(IOI(source=str(tmp_path)).pairs("validation")) == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "http://mechassay-no-such-host.invalid"]
)
def test_no_network_is_one_line_at_once(endpoint: str) -> None:
    """In a process of its own, as the hub's clients read their settings once."""
    call = "ma.load_task('ioi:source=hub').pairs('test', limit=1)"
    code = (
        f"import mechassay as ma\ntry:\n    {call}\nexcept ma.MechassayError as error:\n   "
        " print(error)"
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and "OFFLINE" not in name
    }
    environment |= {
        "HF_ENDPOINT": endpoint,
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stderr == "" and done.stdout.count("\n") == 1
    assert (
        done.stdout.startswith(f"mib-worker/ioi: the hub cannot be reached at {endpoint} (")
        and "HF_HUB_OFFLINE=1" in done.stdout
    )


def test_asking_the_hub_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Event()
    monkeypatch.setattr(hub, "_asked", lambda endpoint: ended.wait() and "")
    monkeypatch.setattr(hub, "DEADLINE", 0.2)
    with pytest.raises(
        BadFile, match=r"a/b: the hub cannot be reached at http://x \(no answer within 0.2 s\)"
    ):
        hub.reachable("a/b", "http://x")
    # An answer that never comes is not waited for: only here may it come.
    ended.set()
    assert DEADLINE <= 2.5, "together with loading, an offline machine waits three seconds"


class Quiet(BaseHTTPRequestHandler):
    """Knows no method, and says nothing about it."""

    def log_message(self, format: str, *args: object) -> None: ...


def test_any_answer_of_the_hub_will_do() -> None:
    """Here 501, as the server knows no HEAD: what it means is for the client to say."""
    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        Thread(target=server.handle_request, daemon=True).start()
        hub.reachable("a/b", f"http://127.0.0.1:{server.server_port}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": 1}\n{"prompt": \n', "row 2: not JSON"),
        ("a.jsonl", b"[1]\n", r"row 1: a row is a JSON object \(got \[1\]\)"),
        ("a.jsonl", b"\xff\xfe{}", "line 1 is not UTF-8"),
        ("a.json", b"{", "Expecting property name"),
        ("a.json", b"5", "a list of objects; got 5"),
        ("a.json", b"{}", "a list of objects; got {}"),
        ("a.parquet", b"PAR1 but not really PAR1", "arquet"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=message) as caught:
        read_rows(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_empty_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}\r\n')
    assert read_rows(tmp_path / "a.jsonl") == [(1, {"a": 1}), (3, {"a": 2})]


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadUsage, match='"own", "hub" or a folder'):
        load_task("ioi", source=str(tmp_path / "nothing")).pairs("test", limit=1)
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"mechassay\[hub\]"):
        load_task("ioi:source=hub").pairs("test", limit=1)
