"""Tokenizers, arrays, default types and prompts as people have them: right numbers, or one line.

The tokenizer is made of bytes, adds BOS by itself as Llama's, and may append EOS. Right answers are
those of the Hugging Face model on token ids that are written out.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import mechassay as ma
from helpers.plain_hf import after, greedy
from mechassay.circuits import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate, faithfulness_curve
from mechassay.circuits.methods import METHODS
from mechassay.cli.main import main
from mechassay.errors import BadPairs, BadUsage, UnsupportedModel
from mechassay.interventions.steering import generate
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.prompts.tokenization import encode, part_tokens
from mechassay.saes.activations import Corpus, Document, StoreSettings, cut_windows
from mechassay.tasks.accuracy import score_prompts
from mechassay.tasks.load import check_pairs
from mechassay.tasks.task import Task
from mechassay.testing.tiny import GROUPED, build, random_model, token_pairs
from mechassay.utils.display import SILENT

SPECIAL = ["<s>", "</s>", "<|user|>", "<|end|>"]
TEXT = "When Mary and John went to the store, John gave a ring to Mary. 27 + 61 = 88 "
ADDED: dict[str, str] = {"nothing": "$A", "bos": "<s> $A", "eos": "$A </s>", "both": "<s> $A </s>"}


@cache
def tokenizer_that_adds(what: str) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of bytes and frequent words that puts special tokens around a text."""
    inner: Any = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([TEXT * 30], trainer)
    inner.post_processor = processors.TemplateProcessing(
        single=ADDED[what], special_tokens=[(x, inner.token_to_id(x)) for x in SPECIAL[:2]]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=SPECIAL[2:],
        clean_up_tokenization_spaces=False,
    )


def model_with(what: str) -> Model:
    """A tiny Llama with that tokenizer; its weights are the same for all."""
    tokenizer = tokenizer_that_adds(what)
    sizes = {**GROUPED, "vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 1}
    return ma.load_model(random_model(transformers.LlamaConfig(**sizes)), tokenizer=tokenizer)


def own_task(folder: Path, rows: list[dict[str, Any]], name: str = "own.jsonl") -> Task:
    file = folder / name
    file.write_text("\n".join(json.dumps({"split": "test", **row}) for row in rows))
    return ma.load_task(str(file))


def plain(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


# --- special tokens that tokenizers add


@pytest.mark.parametrize("what", ADDED)
def test_what_a_tokenizer_appends_is_no_part_of_a_prompt(what: str) -> None:
    tokenizer = tokenizer_that_adds(what)
    begin = [0] if ADDED[what].startswith("<s>") else []
    for text in (TEXT, "", "<|user|>Who?<|end|>", "a </s>", "a</s></s>"):
        assert encode(tokenizer, [text]) == [[*begin, *plain(tokenizer, text)]]


@pytest.mark.parametrize("what", ["bos", "both"])
def test_a_prompt_with_bos_written_out_gets_no_second_one(what: str, tmp_path: Path) -> None:
    model, text = model_with(what), "<s><|user|>Who gave Mary a ring?<|end|>"
    assert model.tokenizer is not None
    ids = plain(model.tokenizer, text)
    assert ids[0] == 0 and ids.count(0) == 1
    row = {"clean": text, "counterfactual": text.replace("Mary", "John")}
    task = own_task(tmp_path, [{**row, "answer": " John", "foil": " Mary"}])
    pairs = task.pairs("test", model)
    batch = model.batch(pairs)
    assert batch.clean.tolist() == [ids]
    logits = after(model.hf, ids)
    difference = logits[batch.answers[0, 0]] - logits[batch.foils[0, 0]]
    value = evaluate(model, Circuit.full(model.graph), batch, progress=SILENT)[0]
    assert float(value) == pytest.approx(float(difference), abs=1e-4)
    assert "not added again" in pairs.notes["special"]
    checked = check_pairs(str(tmp_path / "own.jsonl"), model, progress=SILENT)
    assert "special" in checked.total.notes


def test_parts_of_a_prompt_are_at_the_same_tokens_with_and_without_bos_in_the_text() -> None:
    model = model_with("both")
    text = "When Mary went"
    spans = {"name": (5, 9)}
    shifted = {"name": (8, 12)}
    assert model.tokenizer is not None
    first = part_tokens([text], [spans], model.tokenizer)
    again = part_tokens(["<s>" + text], [shifted], model.tokenizer)
    assert first == again
    begin, end = first[0]["name"]
    ids = encode(model.tokenizer, [text])[0]
    assert "Mary" in str(model.tokenizer.decode(ids[begin : end + 1]))


@pytest.mark.parametrize("what", ["bos", "both"])
def test_greedy_accuracy_and_writing_do_not_depend_on_an_appended_eos(
    what: str, tmp_path: Path
) -> None:
    model = model_with(what)
    assert model.tokenizer is not None
    asked: list[ma.Prompt] = []
    for n in range(40):
        text = f"{n} When Mary"
        ids = [0, *plain(model.tokenizer, text)]
        (best,) = greedy(model.hf, ids, 1)
        answer = str(model.tokenizer.decode([best]))
        # Of bytes that are no character, and of tokens that join the prompt, there is no text.
        if [0, *plain(model.tokenizer, text + answer)] == [*ids, best]:
            asked.append(ma.Prompt(text, (answer,), ()))
    assert len(asked) > 5
    assert score_prompts(model, asked).greedy.tolist() == [1.0] * len(asked)
    prompts = [prompt.text for prompt in asked[:3]]
    written = generate(model, prompts, n=4, progress=SILENT)
    for text, tokens in zip(prompts, written.tokens, strict=True):
        theirs = greedy(model.hf, [0, *plain(model.tokenizer, text)], 4)
        kept = theirs[: theirs.index(1)] if 1 in theirs else theirs
        assert tokens == kept


def test_labels_of_interchanges_have_no_eos() -> None:
    model = model_with("both")
    assert model.tokenizer is not None
    pair = ma.Pair("a", "When Mary went", "When John went", (" to",), (" and",))
    batch = model.interchanges([pair])
    base, whole = (plain(model.tokenizer, text) for text in (pair.clean, pair.clean + " and"))
    assert whole[: len(base)] == base and batch.labels[0].tolist() == whole[len(base) :]


def test_the_beginning_of_windows_of_text_has_no_eos() -> None:
    model = model_with("both")
    corpus = Corpus("own", tuple(Document(str(n), TEXT * 3) for n in range(3)))
    windows = cut_windows(model, corpus, StoreSettings(window=12))[0]
    assert windows[:, 0].tolist() == [0] * len(windows) and not bool((windows[:, 1] == 1).any())


# --- texts that give other token ids


def test_ids_stand_beside_a_written_text_that_does_not_give_them() -> None:
    model = model_with("bos")
    assert model.tokenizer is not None
    whole = plain(model.tokenizer, "When Mary went")
    made = generate(model, [[0, *whole], [0, *whole, 130]], n=3, progress=SILENT)
    columns = made.columns()
    for row, (prompt, text, tokens) in enumerate(
        zip(made.prompts, made.texts, made.tokens, strict=True)
    ):
        true = [0, *whole, *([130] if row else []), *tokens]
        again = encode(model.tokenizer, [prompt + text])[0]
        ids = made.ids[row]
        assert (ids == ()) == (again == true)
        assert ids in ((), tuple(true))
    assert "token ids" in columns and "token ids" in made._repr_html_()


def test_bos_is_found_in_a_vocabulary_that_knows_no_word_of_a_short_text() -> None:
    inner: Any = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "X": 2}, []))
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    )
    assert tokenizer(["a"])["input_ids"] == [[0, 1]]
    assert encode(tokenizer, ["X", "<s>X"]) == [[0, 2], [0, 2]]


def test_prompts_that_are_cut_or_written_on_are_noted(tmp_path: Path) -> None:
    model = model_with("bos")
    cut = {"clean": "John gave a ring to ", "counterfactual": "Mary gave a ring to "}
    pairs = own_task(tmp_path, [{**cut, "answer": "Mary", "foil": "John"}]).pairs("test", model)
    assert pairs.notes["cut"].startswith("in 1 of 1 pairs") and "special" not in pairs.notes
    sums = {"clean": "35 + 24 =", "counterfactual": "35 + 23 =", "answer": " 59", "foil": " 58"}
    pairs = own_task(tmp_path, [sums]).pairs("test", model)
    assert "1 of 1 pairs" in pairs.notes["forced"] and "tokens" in pairs._repr_html_()
    both = own_task(tmp_path, [{**cut, "answer": "Mary", "foil": "John"}, sums])
    assert both.pairs("test", model).dropped == {"merges with the end of the prompt": 1}


# --- answers of several tokens


def command(folder: Path, *words: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*words, "-o", str(folder)])
    assert not stopped.value.code


KINDS = {
    "patch run": ("--limit", "20"),
    "circuits run": ("-M", "eap", "--limit", "20", "--train-limit", "20"),
    "measure run": ("EX25", "-M", "eap", "--n-prompts", "6", "--train-limit", "6"),
    "adversarial run": ("-c", "eap@20", "--n-clean", "6", "--controls", "2", "--train-limit", "6"),
}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and pairs whose answers have two tokens each."""
    folder = tmp_path_factory.mktemp("several")
    model = model_with("bos")
    model.hf.save_pretrained(folder / "mine")
    assert model.tokenizer is not None
    model.tokenizer.save_pretrained(folder / "mine")
    names = ["Mary", "John"]
    with (folder / "two.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["clean", "counterfactual", "answer", "foil", "name", "split"])
        for n in range(90):
            one, other = names if n % 2 else names[::-1]
            start, split = f"{n % 10} {n // 10} When ", ("train", "test", "validation")[n % 3]
            texts = (f"{start}{name} went to the store," for name in (one, other))
            table.writerow([*texts, f" {one} ring", f" {other} ring", one, split])
    return folder


@pytest.mark.parametrize(
    "kind", [*list(KINDS)[:2], *(pytest.param(k, marks=pytest.mark.slow) for k in list(KINDS)[2:])]
)
def test_every_page_and_table_that_compares_first_tokens_says_so(
    kind: str, several: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("-m", str(several / "mine"), "-t", str(several / "two.csv"))
    command(tmp_path / "out", *kind.split(), *KINDS[kind], *at)
    says = "nswers and foils are compared by their first token; in "
    assert says in capsys.readouterr().err
    pages = [tmp_path / "out" / file for file in ("report.html", "tables.md")]
    assert pages[0].is_file()
    for page in filter(Path.is_file, pages):
        assert says in page.read_text()


# --- arrays and default types


def padded(rows: list[list[int]], side: str) -> torch.Tensor:
    width = max(map(len, rows))
    left = side == "left"
    return torch.tensor(
        [([0] * (width - len(r)) * left) + r + [0] * (width - len(r)) * (not left) for r in rows]
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_pairs_of_unequal_lengths_are_refused_as_lists_are(side: str) -> None:
    clean, longer = [[5, 6, 7, 8], [1, 2, 3, 4, 5]], [[5, 6, 9, 8, 3], [1, 2, 9, 4, 5]]
    shorter = [[5, 6, 7], [1, 2, 9, 4, 5]]
    for other in (longer, shorter):
        with pytest.raises(BadPairs, match="must be equally long"):
            Batch.from_tokens(clean, other, [10, 11], [12, 13])
        tensors = padded(clean, side), padded(other, side)
        with pytest.raises(BadPairs, match="Pair 0.*must be equally long"):
            Batch.from_tokens(*tensors, [10, 11], [12, 13], mask=tensors[0] != 0)
        masks = {"mask": tensors[0] != 0, "counterfactual_mask": tensors[1] != 0}
        with pytest.raises(BadPairs, match=r"Pair 0: clean has 4 tokens, counterfactual has [35]"):
            Batch.from_tokens(*tensors, [10, 11], [12, 13], **masks)
    same = [[5, 6, 9, 8], [1, 2, 9, 4, 5]]
    tensors = padded(clean, side), padded(same, side)
    batch = Batch.from_tokens(*tensors, [10, 11], [12, 13], mask=tensors[0] != 0)
    lists = Batch.from_tokens(clean, same, [10, 11], [12, 13])
    assert batch.clean.tolist() == lists.clean.tolist()
    assert batch.counterfactual.tolist() == lists.counterfactual.tolist()


def test_masks_of_arrays_are_those_of_tensors_and_masks_of_lists_are_refused() -> None:
    clean, other = [[0, 6, 7, 8], [2, 3, 4, 5]], [[0, 9, 7, 8], [2, 9, 4, 5]]
    tensors = [torch.tensor(rows) for rows in (clean, other)]
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    batch = Batch.from_tokens(*tensors, [10, 11], [12, 13], mask=mask)
    arrays = Batch.from_tokens(
        np.array(clean), np.array(other), [10, 11], [12, 13], mask=mask.numpy()
    )
    assert batch.lengths.tolist() == arrays.lengths.tolist() == [3, 4]
    assert torch.equal(batch.clean, arrays.clean) and torch.equal(batch.mask, arrays.mask)
    wrong: list[tuple[Any, Any, str]] = [
        (clean, mask, r"mask must be a tensor or array.*got \(2, 4\) for tokens of lists"),
        (tensors[0], mask.tolist(), r"a ndarray, a Tensor or None as mask; got \[\[0, 1.*\]\]\.$"),
    ]
    for tokens, given, message in wrong:
        with pytest.raises(BadUsage, match=message):
            Batch.from_tokens(tokens, other, [10, 11], [12, 13], mask=given)


@pytest.mark.parametrize("make", [np.array, torch.tensor, lambda rows: list(map(np.array, rows))])
def test_several_answers_as_an_array_are_read_as_lists_are(make: Callable[[Any], Any]) -> None:
    prompts = [[1, 2, 3], [4, 5, 6]], [[1, 7, 3], [4, 8, 6]]
    right, wrong = [[9, 10], [11, 12]], [[13, 14], [15, 16]]
    batch = Batch.from_tokens(*prompts, make(right), make(wrong))
    assert batch.answers.tolist() == right and batch.foils.tolist() == wrong


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_methods_give_the_same_under_any_default_type(kind: torch.dtype) -> None:
    model, batch = ma.load_model(build("llama")), token_pairs(6)

    def scores() -> dict[str, Any]:
        by_method: dict[str, Any] = {}
        for name in METHODS.names():
            method = METHODS.make(name)
            if hasattr(method, "steps") and name not in ("eap-ig-inputs", "eap-ig-activations"):
                method = METHODS.make(name, steps=3)
            by_method[name] = method.score(model, batch, progress=SILENT).values
        by_method["curve"] = faithfulness_curve(
            model, by_method_scores(model, batch), batch, progress=SILENT
        ).cma
        return by_method

    expected = scores()
    torch.set_default_dtype(kind)
    try:
        under = scores()
    finally:
        torch.set_default_dtype(torch.float32)
    for name, values in expected.items():
        same = (
            torch.equal(values.nan_to_num(), under[name].nan_to_num())
            if isinstance(values, torch.Tensor)
            else values == under[name]
        )
        assert same, name


def by_method_scores(model: Model, batch: Batch) -> Any:
    return METHODS.make("eap").score(model, batch, progress=SILENT)


def test_a_stablelm_of_an_odd_rotary_width_names_it() -> None:
    sizes = {**GROUPED, "hidden_size": 24}
    hf = random_model(transformers.StableLmConfig(**sizes))  # a quarter of 6 dimensions
    with pytest.raises(UnsupportedModel, match="rotate 1 of the 6 dimensions of a head"):
        ma.load_model(hf)


# --- prompts that are longer than the model's positions


@pytest.mark.parametrize("family", ["gpt2", "opt", "gptj"])
def test_pairs_beyond_the_positions_are_dropped_in_a_task_and_refused_in_a_list(
    family: str, tmp_path: Path
) -> None:
    tokenizer = tokenizer_that_adds("bos")
    config = build(family).config
    config.vocab_size = len(tokenizer)
    model = ma.load_model(random_model(config), tokenizer=tokenizer)
    rows = [
        {"clean": "When Mary went" + " the" * n, "counterfactual": "When John went" + " the" * n}
        | {"answer": " to", "foil": " and"}
        for n in (1, 2, 80, 3)
    ]
    task = own_task(tmp_path, rows)
    pairs = task.pairs("test", model)
    assert len(pairs) == 3
    assert dict(pairs.dropped) == {"longer than the model's 64 positions": 1}
    checked = check_pairs(task, model)
    assert checked.total.usable == 3
    assert checked.total.dropped["longer than the model's 64 positions"].count == 1
    assert check_pairs(task, tokenizer).total.usable == 4
    long = task.pairs("test", tokenizer)
    assert len(long) == 4
    for use in (
        lambda: model.batch(long),
        lambda: ma.patch(model, long),
        lambda: model.interchanges(long),
        lambda: score_prompts(model, [ma.Prompt(rows[2]["clean"], (" to",), (" to", " and"))]),
        lambda: ma.perplexity(model, [rows[2]["clean"]], progress=SILENT),
    ):
        with pytest.raises(BadPairs, match=r"has \d+ tokens; .* has 64 positions"):
            use()
