"""Situations of public bug reports in which texts, files and folders are read rightly, or refused.

Each is right by plain Hugging Face, or by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import mechassay as ma
from helpers.pairs import as_csv, everything, jsonl, refused, row, write
from helpers.plain_hf import after, greedy
from helpers.texts import word_corpus
from helpers.tiny_models import with_words
from mechassay.circuits import Circuit, evaluate
from mechassay.errors import BadFile, BadUsage
from mechassay.models.model import Model
from mechassay.prompts.tokenization import part_tokens
from mechassay.saes import StoreSettings, load_sae, store_activations
from mechassay.testing.tiny import GROUPED, build, random_model
from mechassay.utils.display import SILENT

# Texts.


BOS = 1
IDS = {word: i for i, word in enumerate(["[UNK]", "<s>", *"abcdefgh", "Paris", "Rome"])}


def reader(*, begins: bool, prepend_bos: bool = False) -> Model:
    """A model in fp64 with a tokenizer of words, which begins texts with BOS or does not."""
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", BOS)]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", bos_token="<s>")
    config = transformers.LlamaConfig(**{**GROUPED, "vocab_size": len(IDS)})
    hf = random_model(config, torch.float64)
    hf.generation_config.eos_token_id = None  # pyright: ignore[reportOptionalMemberAccess]
    return ma.load_model(hf, tokenizer=fast, prepend_bos=prepend_bos)


def ids(text: str, *, bos: bool = False) -> list[int]:
    return [BOS] * bos + [IDS[word] for word in text.split()]


# TransformerLens #1772, #153, #1629
@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("prepend_bos", [True, False])
def test_asking_for_bos_gives_one_where_the_tokenizer_adds_it_already(
    begins: bool, prepend_bos: bool
) -> None:
    model = reader(begins=begins, prepend_bos=prepend_bos)
    tokens = ids("a b c", bos=begins or prepend_bos)
    pair = ma.Pair("p", "a b c", "a d c", (" Paris",), (" Rome",))
    full = Circuit.full(model.graph)
    (ours,) = evaluate(model, full, [pair], progress=SILENT)
    logits = after(model.hf, tokens)
    assert ours == pytest.approx(float(logits[IDS["Paris"]] - logits[IDS["Rome"]]), abs=1e-5)
    assert ma.generate(model, "a b c", n=4, progress=SILENT).tokens[0] == greedy(
        model.hf, tokens, 4
    )
    other = after(model.hf, ids("a b c", bos=not (begins or prepend_bos)))
    assert not torch.allclose(other, logits, atol=0.1), "BOS makes a difference"


# inseq #190
def test_an_empty_prompt_is_bos_alone_and_refused_where_there_is_none() -> None:
    model = reader(begins=True)
    assert ma.generate(model, "", n=5, progress=SILENT).tokens[0] == greedy(model.hf, [BOS], 5)
    with pytest.raises(BadUsage, match="row 0 has none") as error:
        ma.generate(reader(begins=False), "", n=5, progress=SILENT)
    assert "\n" not in str(error.value)


# datasets #4258; deepsparse #1141
@pytest.mark.parametrize("begins", [True, False])
def test_perplexity_counts_the_first_word_where_bos_stands_before_it(begins: bool) -> None:
    model, texts = reader(begins=begins), ["a b c d e f", "h g a"]
    losses: list[tuple[float, int]] = []
    for text in texts:
        tokens: Any = torch.tensor([ids(text, bos=begins)])
        with torch.no_grad():
            loss = model.hf(tokens, labels=tokens).loss
        losses.append((float(loss), tokens.shape[1] - 1))
    mean = sum(loss * n for loss, n in losses) / sum(n for _, n in losses)
    value = ma.perplexity(model, texts, progress=SILENT).base_value
    assert value == pytest.approx(float(torch.tensor(mean).exp()), rel=1e-5)


TEXTS = (
    "The 🦊 fox met 🦊🦊 near Zoë’s naïve café.",
    "Ne\u0301e Müller 東京都 went to 北京 with Ань",
    "नमस्ते दुनिया x\u200bzero\u200bwidth",
    "The 👨‍👩‍👧 family and 🇫🇷 flag  a\tb ½ ﬁn ＡＢＣ",
)


# tokenizers #156; transformers #33675
@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("size", [260, 330, 600])
def test_words_with_emoji_and_marks_are_at_the_tokens_that_hold_their_bytes(
    ignore_merges: bool, size: int
) -> None:
    """Every letter of a byte-level token is one byte of the text; words and rare letters are parts.
    The fewer tokens there are, the more letters are cut in two.
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    for text in TEXTS:
        words = [match.span() for match in re.finditer(r"\S+", text)]
        letters = [(at, at + 1) for at, letter in enumerate(text) if ord(letter) > 127]
        spans = {f"{begin}-{end}": (begin, end) for begin, end in words + letters}
        tokens = fast.convert_ids_to_tokens(fast(text)["input_ids"])
        owner = [number for number, token in enumerate(tokens) for _ in token]
        assert len(owner) == len(text.encode())
        right = {}
        for name, (begin, end) in spans.items():
            first, stop = len(text[:begin].encode()), len(text[:end].encode())
            right[name] = owner[first], owner[stop - 1]
        assert part_tokens([text], [spans], fast) == [right]


# Files of pairs.


# inspect_ai #5353, #301
@pytest.mark.parametrize("name", ["my.jsonl", "my.csv"])
def test_line_separators_and_nul_within_a_text_do_not_end_its_row(
    name: str, tmp_path: Path
) -> None:
    texts = {"clean": "Ann \u2028gave\x85the\x0bring\0to", "counterfactual": "Bob \u2029gave to"}
    rows = [row(1, **texts), row(2)]
    lines = [json.dumps(one, ensure_ascii=False) for one in rows]
    content = as_csv(rows) if name == "my.csv" else jsonl(lines)
    first, second = everything(write(tmp_path, content, name))
    assert {"clean": first.clean, "counterfactual": first.counterfactual} == texts
    assert second.clean == row(2)["clean"]


# inspect_ai #5353, #301
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.encode("utf-16"), "my: line 1 is not UTF-8"),
        (
            lambda text: "sep=,\n" + text,
            "my: rows 2 and 3: another number of cells than the header",
        ),
        (lambda text: text.replace("\n", "\r"), "my: row 1 is not CSV"),
    ],
    ids=["unicode text", "separator line", "old line ends"],
)
def test_other_exports_of_a_spreadsheet_are_refused_with_the_line(
    change: Callable[[str], str | bytes], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, change(as_csv([row(1)])), "my.csv")
    assert refused(path, BadFile).startswith(message)


# inspect_ai #5353, #301
@pytest.mark.parametrize("folder", ["x:with, commas=2", "run@step8", "C:\\data", "Añé 東京"])
def test_pairs_are_read_from_paths_with_marks_that_names_use(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    path = write(tmp_path / folder, as_csv([row(1, split="test")]), "my pairs:é,k=1@2.csv")
    task = ma.load_task(path)
    assert task.name == "my pairs:é,k=1@2"
    assert [pair.clean for pair in task.pairs("test")] == [row(1)["clean"]]


# Dictionaries and stores.


# SAELens #553
def test_a_topk_dictionary_in_an_old_file_that_says_standard_is_no_relu(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    d, n, k = 6, 15, 4
    shapes = {"W_enc": (d, n), "W_dec": (n, d), "b_enc": (n,), "b_dec": (d,)}
    held = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    x = torch.randn(50, d, generator=generator)
    old = {"d_in": d, "d_sae": n, "architecture": "standard", "activation_fn_str": "topk"}

    def saved(name: str, **more: Any) -> Path:
        (tmp_path / name).mkdir()
        save_file(held, tmp_path / name / "sae_weights.safetensors")
        (tmp_path / name / "cfg.json").write_text(json.dumps({**old, **more}))
        return tmp_path / name

    sae = load_sae(saved("whole", activation_fn_kwargs={"k": k}))
    active = ((x - held["b_dec"]) @ held["W_enc"] + held["b_enc"]).relu()
    least = active.sort(dim=1, descending=True).values[:, k - 1 : k]
    right = torch.where(active >= least, active, 0.0)
    assert bool(((active > 0).sum(1) > k).any()), "a ReLU would keep more"
    torch.testing.assert_close(sae.encode(x), right, rtol=0, atol=1e-5)
    wanted = right @ held["W_dec"] + held["b_dec"]
    torch.testing.assert_close(sae.reconstruct(x), wanted, rtol=0, atol=1e-4)
    with pytest.raises(BadFile, match="k is None") as error:
        load_sae(saved("lacking"))
    assert "\n" not in str(error.value)


# lm-evaluation-harness #4063, #2715
def test_two_models_of_one_name_share_a_folder_of_activations(tmp_path: Path) -> None:
    settings = StoreSettings(window=10, test=0.3, dtype="float32")
    for seed in (0, 1, 0):
        hf, tokenizer = with_words(seed)
        model = ma.load_model(hf, tokenizer=tokenizer)
        assert model.name == "LlamaForCausalLM"
        store = store_activations(
            model, "resid.0", word_corpus(4, 40), tmp_path, settings, progress=SILENT
        )
        for split in ("train", "test"):
            with torch.no_grad():
                streams = hf(store.windows(split).tokens, output_hidden_states=True).hidden_states
            right = streams[1][:, 1:].flatten(0, 1)
            torch.testing.assert_close(store.values(split), right, rtol=1e-4, atol=1e-4)
    assert len([*tmp_path.iterdir()]) == 2


# inspect_ai #2959, #3014, #3269
def test_a_run_with_another_limit_or_seed_is_not_answered_from_the_same_folder(
    tmp_path: Path,
) -> None:
    hf, tokenizer = with_words()
    hf.save_pretrained(tmp_path / "mine")
    tokenizer.save_pretrained(tmp_path / "mine")
    experiment = ma.AccuracyExperiment(models=(str(tmp_path / "mine"),), tasks=("ioi",), limit=4)
    ma.run(experiment, tmp_path / "run", progress=SILENT)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for change, message in (
        ({"limit": 5}, "holds a run with limit = 4; this one has 5"),
        ({"seed": 7}, "holds a run with seed = 0; this one has 7"),
    ):
        with pytest.raises(BadUsage, match=message):
            ma.run(replace(experiment, **change), tmp_path / "run", progress=SILENT)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


# Folders of models, as transformers and its cache write them.


PROMPT = [5, 8, 13, 21]


def sharded(folder: Path) -> torch.Tensor:
    """Write a model in many files of weights; its logits after a prompt."""
    hf = build("qwen3")
    hf.save_pretrained(folder, max_shard_size="20KB")
    assert len([*folder.glob("*.safetensors")]) > 4
    return after(hf, PROMPT)


def read(folder: Path) -> torch.Tensor:
    """The logits after the prompt of the model in a folder, by its own decoder."""
    model = ma.load_model(str(folder))
    batch = ma.Batch.from_tokens([PROMPT], [PROMPT], [1], [2])
    return model.run(batch)[0].readout(model.decoder).all()[0].double()


def test_a_model_in_many_files_of_weights_is_the_one_that_was_saved(tmp_path: Path) -> None:
    torch.testing.assert_close(sharded(tmp_path), read(tmp_path), rtol=0, atol=1e-4)


def test_a_snapshot_of_links_is_the_model_that_they_lead_to(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1f2e3d"
    logits = sharded(blobs)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(blobs.iterdir())):
        held = file.rename(blobs / f"{number:064x}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / held.name)
    torch.testing.assert_close(logits, read(snapshot), rtol=0, atol=1e-4)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), "No such file or directory: .*model-00003-of"),
        (lambda file: file.write_bytes(file.read_bytes()[:-100]), "not fully covered"),
        (lambda file: file.write_text(POINTER), "header"),
    ],
    ids=["missing", "cut", "pointer"],
)
def test_a_model_one_of_whose_files_is_missing_cut_or_a_pointer_is_refused(
    damage: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    sharded(tmp_path)
    damage(sorted(tmp_path.glob("*.safetensors"))[2])
    with pytest.raises(BadFile, match=f"cannot be loaded: .*{message}") as error:
        ma.load_model(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_model_saved_without_its_unembedding_is_refused(tmp_path: Path) -> None:
    build("qwen3").model.save_pretrained(tmp_path)
    with pytest.raises(
        BadFile, match=r"lack 1 of the model's tensors, for example lm_head\.weight"
    ):
        ma.load_model(str(tmp_path))
