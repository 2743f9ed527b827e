"""The words of Uit de Bos and Garriga-Alonso (2024):
what the lists have, and how their prompts are divided.
"""

from __future__ import annotations

import re
from itertools import combinations, islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Example
from mechassay.tasks import MOST_PAIRS, load_task
from mechassay.tasks import ioi as ioi_module
from mechassay.tasks.greater_than import GreaterThan
from mechassay.tasks.ioi import ABC, CHANGES, IOI, NEW_NAMES
from mechassay.tasks.task import PAPER_SIZES, owner, word_lists

NAMES = [
    "ioi:words=paper",
    "ioi:words=paper-matched",
    "greater-than:words=paper",
    "docstring:words=paper",
]
# Prompts that the paper prints (tables 4 to 6, 8).
PRINTED = {
    "ioi:words=paper": (
        "Then, Tiffany and Sean went to the house. Sean gave a basketball to",
        "Then, Erica and Justin went to the house. Justin gave a kiss to",
        "Then, Crystal and Tyler went to the restaurant. Tyler gave a necklace to",
    ),
    "ioi:words=paper-matched": (
        "Then, Stephen and Jacob had a lot of fun at the house. Jacob gave a necklace to",
        "Then, Richard and Erin had a lot of fun at the store. Erin gave a ring to",
    ),
    "greater-than:words=paper": (
        "The dispute lasted from the year 1694 to 16",
        "The raids lasted from the year 1788 to 17",
    ),
}
SENTENCE = {
    "ioi:words=paper": r"Then, (\w+) and (\w+) went to the (\w+)\. (\w+) gave a (\w+) to",
    "ioi:words=paper-matched": (
        r"Then, (\w+) and (\w+) had a lot of fun at the (\w+)\. (\w+) gave a (\w+) to"
    ),
    "greater-than:words=paper": r"The (\w+) lasted from the year (\d\d)(\d\d) to (\d\d)",
}


def examples(
    name: str, split: str, limit: int, seed: int = 0, tokenizer: Any = None
) -> list[Example]:
    return load_task(name).examples(split, tokenizer, limit=limit, seed=seed)


def gpt2_like(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level, trained so long that it has every word with its space,
    and numbers as two and two digits.
    """
    tokenizer = Tokenizer(models.BPE())
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs_of_digits = pre_tokenizers.Split(Regex(r"(?<=\d\d)(?=\d\d)"), "isolated")  # pyright: ignore[reportArgumentType]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pairs_of_digits, whole])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=6000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_the_lists_are_those_of_the_paper() -> None:
    ioi, nouns = word_lists("paper")["ioi"], word_lists("paper")["greater-than"]["nouns"]
    assert set(ioi["objects"]) == {
        "kiss",
        "ring",
        "bone",
        "basketball",
        "computer",
        "necklace",
        "drink",
        "snack",
    }
    assert set(ioi["places"]) == {
        "store",
        "garden",
        "restaurant",
        "school",
        "hospital",
        "office",
        "house",
        "station",
    }
    docstring = word_lists("paper")["docstring"]
    sizes = [
        len(each)
        for each in (
            ioi["names"],
            ioi["objects"],
            ioi["places"],
            nouns,
            docstring["names"],
            docstring["words"],
        )
    ]
    assert sizes == [99, 8, 8, 120, 111, 687]
    for each in (ioi["names"], nouns, docstring["names"], docstring["words"]):
        assert len(set(each)) == len(each) and all(
            re.fullmatch(r"[A-Za-z]+", word) for word in each
        )
    assert {"file", "filename", "files", "image", "expected", "key", "line"} <= set(
        docstring["names"]
    )
    assert {"package", "crime", "framework", "dollar", "author", "cup", "spring"} <= set(
        docstring["words"]
    )
    assert {"war", "siege"} & set(nouns) == {"siege"}, "war is not among the 120 nouns"


@pytest.mark.parametrize("name", list(PRINTED))
def test_printed_prompts_are_prompts_of_the_task(name: str) -> None:
    """Each is made of the task's words as the task makes them, and the task makes nothing else."""
    lists = word_lists("paper")[name.split(":")[0]]
    for text in (*PRINTED[name], *(each.prompt.text for each in examples(name, "test", 50))):
        match = re.fullmatch(SENTENCE[name], text)
        assert match is not None, text
        if name.startswith("ioi"):
            indirect_object, subject, place, again, thing = match.groups()
            assert subject == again != indirect_object and {subject, indirect_object} <= set(
                lists["names"]
            )
            assert place in lists["places"] and thing in lists["objects"]
        else:
            noun, century, year, century_2 = match.groups()
            assert (
                noun in lists["nouns"]
                and century == century_2
                and 11 <= int(century) <= 17
                and 2 <= int(year) <= 98
            )


def shared(name: str, example: Example) -> set[Any]:
    """What all prompts of an example belong to a split by, read from their texts."""
    texts = [example.prompt.text, *(prompt.text for prompt in example.counterfactuals.values())]
    if name.startswith("ioi"):
        return {frozenset(text.split()[1:4:2]) for text in texts}
    if name.startswith("greater"):
        return {(text.split()[1], text.split()[6][:2]) for text in texts}
    return {text[5 : text.index("(")] for text in texts}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(NAMES[0], marks=pytest.mark.slow), *NAMES[1:]])
def test_splits_have_all_words_and_share_no_prompt(name: str) -> None:
    task = load_task(name)
    assert dict(task.sizes) == PAPER_SIZES and "private" not in task.sizes
    seen = {split: set[Any]() for split in PAPER_SIZES}
    words: dict[str, set[str]] = {split: set() for split in PAPER_SIZES}
    for split in PAPER_SIZES:
        # As many as bring every word: the rarest has a chance of about 1 in 100 each time.
        for example in examples(name, split, 3000):
            seen[split] |= shared(name, example)
            words[split] |= {
                example.tags[key]
                for key in example.tags
                if key not in ("template", "order", "name", "tens")
            }
    for one, other in combinations(PAPER_SIZES, 2):
        assert not seen[one] & seen[other]
        assert words[one] == words[other]


@settings(max_examples=20, deadline=None)
@given(
    split=st.sampled_from(list(PAPER_SIZES)),
    seed=st.integers(0, 2**40),
    words=st.sampled_from(["paper", "paper-matched"]),
)
def test_ioi_rows(split: str, seed: int, words: str) -> None:
    names = set(word_lists("paper")["ioi"]["names"])
    for example in examples(f"ioi:words={words}", split, 8, seed):
        assert tuple(example.counterfactuals) == (*CHANGES, NEW_NAMES)
        tags = example.tags
        assert tags["order"] == "ABBA", "in the paper the indirect object always comes first"
        a, b, c = (example.counterfactuals[NEW_NAMES].part(f"name_{letter}") for letter in "ABC")
        assert len({a, b, c, tags["subject"], tags["indirect_object"]}) == 5 and {a, b, c} <= names
        new = example.counterfactuals[NEW_NAMES]
        assert new.answers == () and set(new.choices) == {f" {a}", f" {b}", f" {c}"}
        assert new.part("place") == tags["place"] and new.part("object") == tags["object"]
        assert example.counterfactuals[ABC].part("name_C") == c
        pair = example.pair(NEW_NAMES)
        assert (pair.answers, pair.foils) == (
            (f" {tags['indirect_object']}",),
            (f" {tags['subject']}",),
        )


def test_a_row_of_ioi_worked_by_hand() -> None:
    row = ioi_module._IOIRow(
        "{name_A}, {name_B}, {place}, {name_C}, {object}",
        tuple("SIabc"),
        "ring",
        "store",
        subject_first=False,
    )
    texts = {
        kind: prompt.text
        for kind, prompt in row.example("x", [ABC, NEW_NAMES, *CHANGES]).counterfactuals.items()
    }
    assert row.example("x", ()).prompt.text == "I, S, store, S, ring"
    assert texts[NEW_NAMES] == "b, a, store, c, ring" and texts[ABC] == "I, S, store, c, ring"
    assert texts["s2_io_flip_counterfactual"] == "I, S, store, I, ring"
    assert texts["random_names_s1_ioi_flip_s2_ioi_flip_counterfactual"] == "a, b, store, b, ring"


def test_a_split_of_ioi_ends_when_every_prompt_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {
        "templates": {"paper": "So {name_A} and {name_B} {place} {name_C} a {object} to"},
        "names": [*"ABCDEFGH"],
    }
    monkeypatch.setattr(
        ioi_module,
        "word_lists",
        lambda name: {"ioi": {**few, "objects": ["x", "y"], "places": ["z"]}},
    )
    ioi_module._paper_words.cache_clear()
    try:
        found = {
            split: {each.prompt.text for each in IOI(words="paper").generate(split, 0)}
            for split in PAPER_SIZES
        }
    finally:
        ioi_module._paper_words.cache_clear()
    # 28 pairs of 8 names, two orders, two objects; in each split as many as its pairs.
    owned = {
        split: sum(owner(a, b) == split for a, b in combinations(range(8), 2))
        for split in PAPER_SIZES
    }
    assert {split: len(texts) for split, texts in found.items()} == {
        split: 4 * n for split, n in owned.items()
    }
    assert sum(owned.values()) == 28 and owned["test"] > owned["train"]


@pytest.mark.slow
def test_the_population_of_greater_than() -> None:
    task = GreaterThan(words="paper")
    assert {split: task.population(split) for split in PAPER_SIZES} == {
        "train": 16_296,
        "validation": 16_296,
        "test": 48_888,
    }
    assert sum(task.population(split) for split in PAPER_SIZES) == 120 * 7 * 97
    found = [example.tags for example in islice(task.generate("test", 0), None)]
    assert (
        len({(tags["noun"], tags["century"], tags["year"]) for tags in found})
        == len(found)
        == task.population("test")
    )
    for split in PAPER_SIZES:
        held = {
            (noun, century)
            for noun in range(120)
            for century in range(7)
            if owner(noun, century) == split
        }
        assert {noun for noun, _ in held} == set(range(120)) and {
            century for _, century in held
        } == set(range(7))
    with pytest.raises(UnknownName, match="split 'private'"):
        task.population("private")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_made_with_a_tokenizer_like_gpt2s(name: str) -> None:
    task = load_task(name)
    texts = [
        prompt.text
        for split in PAPER_SIZES
        for each in examples(name, split, 400)
        for prompt in (each.prompt, *each.counterfactuals.values())
    ]
    tokenizer = gpt2_like([f"{text}{answer}" for text in texts for answer in ("", " 1733 to 1788")])
    for split in PAPER_SIZES:
        pairs = task.pairs(split, tokenizer, limit=30)
        batch = Batch.from_pairs(pairs, tokenizer)
        assert len(pairs) == 30 and batch.clean.shape == batch.counterfactual.shape
        assert sum(pairs.dropped.values()) <= 60, dict(pairs.dropped)


def test_a_tokenizer_that_leaves_too_few_words_is_refused() -> None:
    tokenizer = gpt2_like(["nothing of use"])
    for name in ("ioi:words=paper", "docstring:words=paper"):
        with pytest.raises(BadPairs, match="at least|two pairs"):
            load_task(name).pairs("test", tokenizer, limit=2)


def test_settings() -> None:
    for name in ("ioi", "greater-than", "docstring"):
        assert load_task(name, words="paper") == load_task(f"{name}:words=paper") != load_task(name)
        assert (
            load_task(name) == load_task(name, words="own") and "private" in load_task(name).sizes
        )
        with pytest.raises(UnknownName, match=r"words 'papers'\. Did you mean 'paper'"):
            load_task(name, words="papers")
        with pytest.raises(BadUsage, match="no split 'private'"):
            load_task(name, words="paper").pairs("private", limit=1, private_seed=3)
    with pytest.raises(BadUsage, match='ioi takes words only with source="own"'):
        load_task("ioi", words="paper", source="hub")
    assert NEW_NAMES not in IOI().counterfactuals == tuple(CHANGES)


@pytest.mark.parametrize("limit", [0, MOST_PAIRS + 1, 99_999_999])
def test_a_stream_without_end_is_not_followed(limit: int) -> None:
    """Made-up prompts never run out, so that only the limit ends them."""
    task, said = load_task("ioi"), f"ioi gives 1 to 100,000 pairs; got a limit of {limit:,}"
    for ask in (task.pairs, task.examples):
        with pytest.raises(BadUsage, match=said):
            ask("test", limit=limit)
