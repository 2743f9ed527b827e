"""The docstring task: its words, its examples, its counterfactuals,
and what a tokenizer changes.
"""

from __future__ import annotations

import json
import keyword
import re
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from helpers.tiny_models import quiet_model
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.models.model import make_model
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Example, Prompt
from mechassay.prompts.tokenization import token_position
from mechassay.tasks import load_task
from mechassay.tasks.docstring import MATCHED, RANDOM, UNMATCHED, Docstring
from mechassay.tasks.task import SPLITS

LISTS: dict[str, dict[str, list[str]]] = json.loads(
    files("mechassay.tasks").joinpath("data/docstring.json").read_text(encoding="utf-8")
)
PRIVATE = 987
FIELDS = [
    "name",
    "p1",
    "p2",
    "a",
    "b",
    "c",
    "s1",
    "w1",
    "w2",
    "w3",
    "a_2",
    "w4",
    "w5",
    "b_2",
    "w6",
    "w7",
]
NOT_WORDS = {"def", "self", "param"}


def words_of(text: str) -> list[str]:
    """Everything that was filled in, in the order of `FIELDS`."""
    return [word for word in re.findall(r"[a-z]+", text) if word not in NOT_WORDS]


def parameters(text: str) -> list[str]:
    """The parameters of the first line, without self."""
    found = re.match(r"\ndef \w+\(self, ([\w, ]+)\):\n", text)
    assert found, text
    return found[1].split(", ")


def described(text: str) -> list[str]:
    """The parameters that the docstring describes."""
    return re.findall(r":param (\w+):", text)


def solve(text: str) -> str | None:
    """The parameter after the last described one;
    None if the described ones are not in the first line, in a row.
    """
    declared, known = parameters(text), described(text)
    if not set(known) <= set(declared):
        return None
    place = declared.index(known[-1])
    assert declared[place - 1 : place + 1] == known
    return declared[place + 1]


def replaced(prompt: Prompt, new: dict[str, str]) -> str:
    """The text with other parts in place of those named."""
    text = prompt.text
    for part in sorted(new, key=lambda name: prompt.spans[name], reverse=True):
        begin, end = prompt.spans[part]
        text = text[:begin] + new[part] + text[end:]
    return text


def word_level(words: set[str]) -> PreTrainedTokenizerFast:
    """One token a word, with or without a space; words it has not are [UNK]."""
    known = ["[UNK]", *sorted(words | NOT_WORDS), "(", ",", "):", '"""', ":", "f", "x"]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """A GPT-2-like tokenizer that has half of the test split's names and words,
    and a third of these without a space.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    names, words = LISTS["test"]["names"], LISTS["test"]["words"]
    tokenizer.train_from_iterator(
        [f" {word}" for word in names[::2] + words[::2] for _ in range(9)] + words[::3] * 5, trainer
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def everything(split: str) -> set[str]:
    return set(LISTS[split]["names"]) | set(LISTS[split]["words"])


def test_lists_are_many_different_and_split() -> None:
    names = [name for split in SPLITS for name in LISTS[split]["names"]]
    words = [word for split in SPLITS for word in LISTS[split]["words"]]
    assert len(names) == 272 and len(words) == 840
    assert len({*names, *words}) == len(names) + len(words), (
        "no list shares a word with another, nor names with words"
    )
    assert {
        split: (len(LISTS[split]["names"]), len(LISTS[split]["words"])) for split in SPLITS
    } == {
        "train": (104, 336),
        "validation": (56, 168),
        "test": (56, 168),
        "private": (56, 168),
    }
    assert all(re.fullmatch(r"[a-z]{2,11}", name) for name in names) and all(
        re.fullmatch(r"[a-z]{3,7}", word) for word in words
    )
    assert not [word for word in names + words if keyword.iskeyword(word) or word in NOT_WORDS]


@settings(max_examples=25, deadline=None)
@given(split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_examples_are_right_by_their_text(split: str, seed: int) -> None:
    for example in islice(Docstring().generate(split, seed), 20):
        check(example, set(LISTS[split]["names"]), set(LISTS[split]["words"]))


def check(example: Example, names: set[str], words: set[str]) -> None:
    prompt, tags = example.prompt, example.tags
    assert (
        f" {solve(prompt.text)}" == f" {tags['c']}" == prompt.answers[0]
        and len(prompt.answers) == 1
    )
    assert (
        prompt.choices == tuple(f" {name}" for name in parameters(prompt.text))
        and len(prompt.choices) == 6
    )
    assert example.foils == tuple(f" {tags[name]}" for name in ("p1", "p2", "a", "b", "s1"))
    assert example.foils is not None and sorted((*example.foils, *prompt.answers)) == sorted(
        prompt.choices
    )
    assert words_of(prompt.text) == [tags[field.removesuffix("_2")] for field in FIELDS]
    assert len(set(tags.values())) == len(tags) == 14, "never the same word twice"
    assert set(described(prompt.text)) == {tags["a"], tags["b"]}

    matched, random, unmatched = (
        example.counterfactuals[kind] for kind in (MATCHED, RANDOM, UNMATCHED)
    )
    new = {part: random.part(part) for part in ("a", "b", "c", "a_2", "b_2")}
    assert len(set(new.values())) == 5 and set(new.values()).isdisjoint(tags.values())
    assert matched.text == replaced(prompt, {part: new[part] for part in ("a_2", "b_2")})
    assert random.text == replaced(prompt, new)
    for other in (matched, random, unmatched):
        assert solve(other.text) is None and other.answers == ()
        assert other.choices == tuple(f" {name}" for name in parameters(other.text))
        filled = words_of(other.text)
        assert len(set(filled)) == len(filled) == 16
    for each in (prompt, matched, random, unmatched):
        assert [each.part(field) for field in FIELDS] == words_of(each.text) and list(
            each.spans
        ) == FIELDS
        assert {each.part(field) for field in FIELDS if not field.startswith("w")} <= names
        assert {each.part(field) for field in FIELDS if field.startswith("w")} <= words


def test_prompts_are_those_of_the_papers() -> None:
    """The first row of table 9 of Uit de Bos and Garriga-Alonso, whose kind is random random;
    spaces are lost in print.
    """
    printed = (
        'def date(self, options, result, {}, error): """ worker round model :param {}: input sense'
        " :param {}: album second :param"
    )
    clean = printed.format("context, user, tag", "context", "user")
    other = printed.format("port, shape, new", "parent", "order")
    for example in Docstring().examples("test", limit=20):
        assert fills(clean, example.prompt) and fills(other, example.counterfactuals[RANDOM])
        assert solve("\n" + clean.replace('): """', '):\n    """')) == "tag"
    text = Docstring().examples("test", limit=1)[0].prompt.text
    pattern = (
        r'\ndef W\(self, W, W, W, W, W, W\):\n    """W W W\n\n    :param W: W W\n    :param W: W'
        r" W\n    :param".replace("W", "[a-z]+")
    )
    assert re.fullmatch(pattern, text)


def fills(printed: str, prompt: Prompt) -> bool:
    """Whether a prompt is what is printed, with its own words put in, spaces apart."""
    own = dict(zip(words_of(printed), words_of(prompt.text), strict=True))
    return [own.get(piece, piece) for piece in re.findall(r"\w+|\S", printed)] == re.findall(
        r"\w+|\S", prompt.text
    )


def test_unmatched_prompts_are_independent_of_the_clean_ones() -> None:
    pairs = Docstring().pairs("train", counterfactual=UNMATCHED, limit=2000)
    for field, n in (("name", 104), ("p1", 104), ("w2", 336)):
        same = sum(
            pair.counterfactual[slice(*pair.counterfactual_spans[field])] == pair.tags[field]
            for pair in pairs
        )
        assert same < 5 * (2000 / n) ** 0.5 + 2000 / n
    assert len({pair.counterfactual for pair in pairs}) == len(pairs)


def test_every_name_and_word_comes_everywhere() -> None:
    pairs = Docstring().pairs("test", limit=1000)
    for field in ("name", "p1", "p2", "a", "b", "c", "s1"):
        assert {pair.tags[field] for pair in pairs} == set(LISTS["test"]["names"])
    for field in ("w1", "w7"):
        assert len({pair.tags[field] for pair in pairs}) > 150


def test_clean_prompts_do_not_depend_on_the_counterfactual() -> None:
    kinds = [
        Docstring().pairs("test", limit=30, counterfactual=kind)
        for kind in (MATCHED, RANDOM, UNMATCHED)
    ]
    for row in zip(*kinds, strict=True):
        assert len({pair.counterfactual for pair in row}) == 3
        one = row[0]
        for pair in row:
            assert (pair.id, pair.clean, pair.answers, pair.foils, pair.tags, pair.spans) == (
                one.id,
                one.clean,
                one.answers,
                one.foils,
                one.tags,
                one.spans,
            )
            assert pair.counterfactual_answers == () and pair.group is None


def test_splits_share_no_prompt() -> None:
    seen: list[set[str]] = []
    for split in SPLITS:
        found = list(islice(Docstring().generate(split, 5), 400))
        prompts = {
            text
            for each in found
            for text in (each.prompt.text, *(other.text for other in each.counterfactuals.values()))
        }
        assert len(prompts) == 4 * 400
        assert {word for text in prompts for word in words_of(text)} <= everything(split)
        seen.append(prompts)
    assert len(set.union(*seen)) == sum(map(len, seen))


def test_whole_splits() -> None:
    small = {"validation": 1_000, "test": 1_000, "private": 1_000}
    assert Docstring.sizes == {"train": 10_000, **small}
    splits = {split: Docstring().pairs(split, private_seed=PRIVATE) for split in small}
    assert {split: len(pairs) for split, pairs in splits.items()} == small
    prompts = [pair.clean for pairs in splits.values() for pair in pairs]
    assert len(set(prompts)) == len(prompts)
    with pytest.raises(BadUsage, match="private_seed"):
        Docstring().pairs("private")


@settings(max_examples=25, deadline=None)
@given(
    split=st.sampled_from(SPLITS),
    seed=st.integers(0, 2**70),
    n=st.integers(1, 30),
    more=st.integers(0, 30),
    kind=st.sampled_from([MATCHED, RANDOM, UNMATCHED]),
)
def test_stream_properties(split: str, seed: int, n: int, more: int, kind: str) -> None:
    task = Docstring()
    call: dict[str, Any] = {"seed": seed, "private_seed": seed, "counterfactual": kind}
    short, long = task.pairs(split, limit=n, **call), task.pairs(split, limit=n + more, **call)
    assert (
        short == long[:n] and short.content_hash == task.pairs(split, limit=n, **call).content_hash
    )
    assert (
        len({pair.clean for pair in long})
        == len({pair.id for pair in long})
        == len(long)
        == n + more
    )
    other: dict[str, Any] = {**call, "seed": seed + 1, "private_seed": seed + 1}
    assert task.pairs(split, limit=n, **other)[0].clean != short[0].clean


def test_the_stream_is_pinned() -> None:
    """A change of these hashes changes every result on the task: raise Docstring.version."""
    assert Docstring.version == 1
    assert (
        Docstring().pairs("test").content_hash
        == "ac5dc70b8c50acbc4404a7d806b7dff6b771844b2d1ab0684ec2387d6d51b7a1"
    )
    assert (
        Docstring().pairs("test", counterfactual=UNMATCHED).content_hash
        == "4ac12ef8d17ee922c36617cb62c035d05068cb5f751d80fe8d053cc4bc68bd84"
    )


def test_a_tokenizer_that_knows_all_words_changes_nothing() -> None:
    plain = Docstring().pairs("test", limit=100)
    tokenizer = word_level(everything("test"))
    assert Docstring().pairs("test", tokenizer, limit=100) == plain
    batch = Batch.from_pairs(plain, tokenizer)
    assert batch.mask.all() and not any(batch.alignment.values())
    assert tokenizer.batch_decode(batch.answers) == [pair.answers[0].strip() for pair in plain]
    assert [tokenizer.convert_ids_to_tokens(row) for row in batch.foils.tolist()] == [
        [foil.strip() for foil in pair.foils] for pair in plain
    ]


def test_a_filter_by_counterfactuals_keeps_every_pair() -> None:
    """Nothing completes a counterfactual, so that no model gets one wrong."""
    tokenizer = word_level(everything("test"))
    shape = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    network = quiet_model(
        LlamaForCausalLM,
        LlamaConfig(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **shape),
    )
    plain = Docstring().pairs("test", tokenizer, limit=6)
    kept = Docstring().pairs("test", make_model(network, tokenizer), limit=6, keep="counterfactual")
    assert (
        kept == plain and not kept.dropped and not any(pair.counterfactual_answers for pair in kept)
    )


def test_unknown_names_and_words_are_left_out() -> None:
    names, words = LISTS["test"]["names"][:12], LISTS["test"]["words"][:7]
    tokenizer = word_level({*names, *words})
    for example in Docstring().examples("test", tokenizer, limit=50):
        check(example, set(names), set(words))


@pytest.mark.parametrize(
    ("n_names", "n_words", "message"),
    [(11, 9, "12 names .*'tiny' has 11 of 56"), (20, 6, "7 words .*'tiny' has 6 of 168")],
)
def test_too_few_words(n_names: int, n_words: int, message: str) -> None:
    tokenizer = word_level({*LISTS["test"]["names"][:n_names], *LISTS["test"]["words"][:n_words]})
    tokenizer.name_or_path = "tiny"
    with pytest.raises(BadPairs, match=message):
        Docstring().pairs("test", tokenizer)


def test_no_word_for_w1() -> None:
    """A tokenizer to which no word is whole without a space before it."""
    words = {f" {word}" for word in everything("test") | {"x"}}
    tokenizer = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate(["[UNK]", *sorted(words)])}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" [a-z]+"), "isolated")
    with pytest.raises(
        BadPairs, match="at least 1 words without a space before them that are single tokens"
    ):
        Docstring().pairs(
            "test", PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
        )


def test_byte_level_tokenizer() -> None:
    """Only whole names and words are used, so that all prompts are equally long."""
    tokenizer = byte_level()
    single = {
        text
        for word in everything("test")
        for text in (word, f" {word}")
        if len(tokenizer(text)["input_ids"]) == 1
    }
    names = {name for name in LISTS["test"]["names"] if f" {name}" in single}
    words, first = (
        {word for word in LISTS["test"]["words"] if before + word in single} for before in (" ", "")
    )
    assert (
        12 <= len(names) < 56
        and 7 <= len(words) < 168
        and 1 <= len(first) < len(words)
        and not first <= words
    )
    for kind in (MATCHED, RANDOM, UNMATCHED):
        pairs = Docstring().pairs("test", tokenizer, limit=300, counterfactual=kind)
        assert not pairs.dropped
        batch = Batch.from_pairs(pairs, tokenizer)
        assert batch.mask.all() and not any(batch.alignment.values())
        assert tokenizer.batch_decode(batch.answers) == [pair.answers[0] for pair in pairs]
        assert all(
            tokenizer.batch_decode(row[:, None]) == list(pair.foils)
            for row, pair in zip(batch.foils, pairs, strict=True)
        )
    used = Docstring().examples("test", tokenizer, limit=300)
    assert {each.tags["w1"] for each in used} == first
    assert {each.tags[f"w{n}"] for each in used for n in range(2, 8)} == words
    assert {each.tags["c"] for each in used} == names


def test_positions() -> None:
    tokenizer = byte_level()
    pairs = Docstring().pairs("test", tokenizer, limit=20, counterfactual=RANDOM)
    batch = Batch.from_pairs(pairs, tokenizer)
    for part in FIELDS:
        places = token_position(
            [pair.clean for pair in pairs], [pair.spans for pair in pairs], part, tokenizer
        )
        assert len(set(places)) == 1 and places[0] is not None
        # Byte-level offsets leave the space before a word to its token; w1 has none.
        written = [token.strip() for token in tokenizer.batch_decode(batch.clean[:, [places[0]]])]
        assert written == [pair.clean[slice(*pair.spans[part])] for pair in pairs]
        differs = (batch.clean[:, places[0]] != batch.counterfactual[:, places[0]]).all()
        assert bool(differs) == (part in ("a", "b", "c", "a_2", "b_2"))


def test_load_task() -> None:
    task = load_task("docstring")
    assert task == Docstring() and (task.name, task.objective) == ("docstring", "logit_diff")
    assert (
        task.default_counterfactual == MATCHED == task.counterfactuals[0]
        and len(task.counterfactuals) == 3
    )
    with pytest.raises(UnknownName, match="Did you mean 'random_random_counterfactual'"):
        task.pairs("test", counterfactual="random_counterfactual")
