from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import s3_server
from mechassay.errors import BadFile, BadUsage, DiskFull, MissingExtra
from mechassay.service.store import CHUNK, Store, StoreAway

LARGE = bytes(range(256)) * (45 * 2**12)
"""45 MB, which a bucket gets in parts."""


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    if reason := s3_server.missing():
        pytest.skip(reason)
    with s3_server.s3_server("board") as address:
        yield address


def reach(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Say in the environment where S3 is."""
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hidden-word",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.web)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "folder":
        return Store.of(tmp_path / "store")
    reach(monkeypatch, request.getfixturevalue("s3"))
    # Each test has a prefix of its own.
    return Store.of(f"s3://board/{tmp_path.name}")


def test_what_was_put_is_there(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"123")
    store.put_file("uploads/a.zip", file)
    store.put("records/b.json", b"{}")
    assert store.read("uploads/a.zip") == b"123" and store.read("records/b.json") == b"{}"
    assert store.exists("records/b.json") and not store.exists("records/c.json")
    assert store.keys() == ["records/b.json", "uploads/a.zip"]
    assert store.keys("records") == ["records/b.json"] and store.keys("none") == []
    store.delete("records/b.json")
    store.delete("records/b.json")
    assert store.keys() == ["uploads/a.zip"]


def test_a_large_file_goes_and_comes_in_parts(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(LARGE)
    assert len(LARGE) > 40 * CHUNK
    store.put_file("uploads/large", file)
    got = store.get_file("uploads/large", tmp_path / "deep" / "got")
    assert got.read_bytes() == LARGE
    assert [path.name for path in got.parent.iterdir()] == ["got"]


def test_an_empty_file_is_a_file(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store.put_file("a", tmp_path / "file")
    assert store.read("a") == b"" and store.get_file("a", tmp_path / "got").read_bytes() == b""


def test_a_key_that_is_put_again_holds_the_new_content(store: Store) -> None:
    store.put("a", b"old and long")
    store.put("a", b"new")
    assert store.read("a") == b"new"


def test_what_is_not_there_is_one_line_and_leaves_no_file(store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="has no records/none"):
        store.read("records/none")
    with pytest.raises(BadFile, match="has no records/none"):
        store.get_file("records/none", tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_many_puts_of_one_key_at_once_leave_one_of_them(store: Store) -> None:
    contents = [bytes([i]) * 100_000 for i in range(6)]
    threads = [threading.Thread(target=store.put, args=("a", content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read("a") in contents and store.keys() == ["a"]


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "../a", "a/../b", "a//b", "a\\b", ".a", "a b", "a/\0", "ü", "a\n"]
)
def test_keys_that_the_service_does_not_make_are_refused(tmp_path: Path, key: str) -> None:
    store = Store.of(tmp_path)
    with pytest.raises(ValueError, match="is no key"):
        store.put(key, b"")
    with pytest.raises(ValueError, match="is no key"):
        store.read(key)
    assert list(tmp_path.rglob("*")) == []


def test_half_a_file_of_a_folder_is_no_key(tmp_path: Path) -> None:
    code = f"""
import os, threading, time
from pathlib import Path
from mechassay.service.store import Store
store = Store.of({str(tmp_path / "store")!r})
os.mkfifo({str(tmp_path / "pipe")!r})
def feed():
    with open({str(tmp_path / "pipe")!r}, "wb") as pipe:
        pipe.write(b"x" * 10**6); pipe.flush(); time.sleep(0.5); os._exit(9)
threading.Thread(target=feed, daemon=True).start()
with open({str(tmp_path / "pipe")!r}, "rb") as pipe:
    import obstore
    obstore.put(store._inner, "uploads/half", pipe, use_multipart=True, chunk_size=10**5)
"""
    ended = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert ended.returncode == 9
    store = Store.of(tmp_path / "store")
    assert store.keys() == [] and not store.exists("uploads/half")
    store.put("uploads/half", b"whole")
    assert store.keys() == ["uploads/half"] and store.read("uploads/half") == b"whole"


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="only root mounts a disk"
)
def test_a_full_disk_is_one_line_and_leaves_no_key(tmp_path: Path) -> None:
    disk, file = tmp_path / "disk", tmp_path / "file"
    disk.mkdir()
    file.write_bytes(bytes(4 * 10**6))
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        store = Store.of(disk)
        store.put("a", b"before")
        with pytest.raises(DiskFull, match="the disk is full"):
            store.put_file("b", file)
        assert store.keys() == ["a"] and store.read("a") == b"before"
        store.put("b", bytes(10**6))
    finally:
        gc.collect()
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize(
    "url", ["http://host/a", "s3://", "s3://key:word@bucket", "s3://bucket?x=1", "gs://bucket"]
)
def test_other_addresses_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadUsage, match="a folder or s3://BUCKET") as caught:
        Store.of(url)
    assert "word" not in str(caught.value)


def test_the_library_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mechassay\[server\]'"):
        Store.of(tmp_path)


def test_a_bucket_that_does_not_answer_is_one_line_without_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reach(monkeypatch, "http://127.0.0.1:9")
    store = Store.of("s3://board/x")
    with pytest.raises(StoreAway, match="s3://board/x: cannot be used") as caught:
        store.read("a")
    assert "hidden-word" not in str(caught.value) and "\n" not in str(caught.value)
    assert "hidden-word" not in repr(store)


@pytest.mark.web
def test_a_bucket_that_is_not_there(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reach(monkeypatch, s3)
    with pytest.raises(StoreAway, match="s3://none: cannot be used"):
        Store.of("s3://none").put("a", b"")


@pytest.mark.web
def test_prefixes_of_a_bucket_are_apart(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reach(monkeypatch, s3)
    one, two = Store.of("s3://board/one"), Store.of("s3://board/two/")
    one.put("a", b"1")
    two.put("a", b"2")
    assert one.read("a") == b"1" and two.keys() == ["a"]
    assert Store.of("s3://board").read("two/a") == b"2"
