"""The RAVEL task: what tokenizers make of it."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mechassay.alignment import ALIKE, LENGTHS, Misaligned, encode, token_position
from mechassay.errors import BadPairs
from mechassay.pairs import Batch, align_pairs
from mechassay.tasks.ravel import Ravel
from ravel_facts_read import (
    ATTRIBUTE,
    CITIES,
    CITY,
    COUNTRIES,
    FACTS,
    TEMPLATE,
    WIKIPEDIA,
    check_example,
    patterns,
)

# --- tokenizers
# ---------------------------------------------------------------------------------------


def words(tokenizer: PreTrainedTokenizerFast, tokens: list[int]) -> str:
    """The words that tokens spell, without punctuation."""
    return " ".join(re.findall(r"\w+", str(tokenizer.decode(tokens))))


def word_level(split: str) -> PreTrainedTokenizerFast:
    """One token a word; words it has not are [UNK]."""
    texts = [
        *(text for _, text, _ in patterns(split)),
        *CITIES[split],
        *(value for facts in COUNTRIES.values() for value in facts.values()),
    ]
    known = {word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)}
    tokenizer = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate(["[UNK]", *sorted(known)])}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def bpe(split: str, *, metaspace: bool) -> PreTrainedTokenizerFast:
    """A tokenizer like GPT-2's or like Llama 2's, trained in a moment."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Metaspace()
        if metaspace
        else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    tokenizer.decoder = decoders.Metaspace() if metaspace else decoders.ByteLevel()
    texts = [
        example.prompt.text + example.prompt.answers[0]
        for example in islice(Ravel().generate(split, 9), 1500)
    ]
    texts += [f" {value}" for facts in FACTS.values() for value in facts.values()]
    alphabet = (
        sorted({letter for text in texts for letter in text})
        if metaspace
        else pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="module", params=["words", "byte-level", "metaspace"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return (
        word_level("test")
        if request.param == "words"
        else bpe("test", metaspace=request.param == "metaspace")
    )


def test_nearly_all_city_counterfactuals_are_aligned(tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = Ravel().pairs("test", tokenizer, limit=300)
    assert set(pairs.dropped) <= {LENGTHS, ALIKE}
    assert sum(pairs.dropped.values()) < 0.05 * len(pairs)
    batch = Batch.from_pairs(pairs, tokenizer)
    assert not batch.alignment["cut"]
    for pair, right, wrong in zip(pairs, batch.answers.tolist(), batch.foils.tolist(), strict=True):
        assert len(right) == len(wrong) == 1 and right != wrong
        assert (
            words(tokenizer, right) in pair.answers[0] and words(tokenizer, wrong) in pair.foils[0]
        )


def test_a_word_that_answer_and_foil_share_is_forced() -> None:
    tokenizer = word_level("test")
    tokenizer.add_tokens(["Skopje", "Macedonia"])
    # Skopje is none of our cities, so its row says where it is.
    facts = (("Pyongyang", "North Korea"), ("Skopje", "North Macedonia"))
    rows = (
        {
            "prompt": f"City: {city}. Country:",
            "entity": city,
            "attribute": "Country",
            "Country": name,
        }
        for city, name in facts
    )
    base, other = rows
    pair = Ravel().from_row({**base, CITY: other}, "x").pair(CITY)
    assert (pair.answers, pair.foils) == ((" North Korea",), (" North Macedonia",))
    batch = Batch.from_pairs([pair], tokenizer)
    assert batch.alignment["forced"] == 1
    assert [words(tokenizer, rows[0].tolist()) for rows in (batch.answers, batch.foils)] == [
        "Korea",
        "Macedonia",
    ]


def test_other_kinds_are_seldom_aligned(tokenizer: PreTrainedTokenizerFast) -> None:
    examples = Ravel().examples("test", tokenizer, limit=200)
    for kind in (ATTRIBUTE, WIKIPEDIA, TEMPLATE):
        found = align_pairs([example.pair(kind) for example in examples], tokenizer)
        reasons = Counter(each.reason for each in found if isinstance(each, Misaligned))
        assert set(reasons) == {LENGTHS} and reasons[LENGTHS] > 130


def test_what_is_not_aligned_is_counted() -> None:
    with pytest.raises(BadPairs, match=r"of 900 asked for; dropped: \d+ unequal lengths"):
        Ravel().pairs("validation", word_level("validation"), limit=900, counterfactual=WIKIPEDIA)


def test_a_tokenizer_changes_the_other_city_only(tokenizer: PreTrainedTokenizerFast) -> None:
    plain, fitted = (
        Ravel().examples("test", limit=300),
        Ravel().examples("test", tokenizer, limit=300),
    )
    assert [example.prompt.text for example in plain] == [example.prompt.text for example in fitted]
    assert [example.tags for example in plain] == [example.tags for example in fitted]
    lengths = [
        [len(row) for row in encode(tokenizer, [each.prompt.text, each.counterfactuals[CITY].text])]
        for each in fitted
    ]
    before = [
        [len(row) for row in encode(tokenizer, [each.prompt.text, each.counterfactuals[CITY].text])]
        for each in plain
    ]
    kept = [example for example, (a, b) in zip(plain, before, strict=True) if a == b]
    assert sum(a == b for a, b in lengths) > 285 > len(kept)
    for example in fitted:
        check_example("test", example)
    # Where the first city drawn fits, it stays.
    by_id = {example.id: example for example in fitted}
    assert all(
        by_id[example.id].counterfactuals[CITY].part("entity")
        == example.counterfactuals[CITY].part("entity")
        for example in kept
    )


def test_the_last_token_of_the_city(tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = Ravel().pairs("test", tokenizer, limit=60)
    for texts, spans in (
        ([pair.clean for pair in pairs], [pair.spans for pair in pairs]),
        ([pair.counterfactual for pair in pairs], [pair.counterfactual_spans for pair in pairs]),
    ):
        found = token_position(texts, spans, "entity.last", tokenizer)
        for text, span, place in zip(texts, spans, found, strict=True):
            assert place is not None
            # Up to that token the city is not complete; with it, it is. Punctuation may belong to
            # the token.
            (row,) = encode(tokenizer, [text])
            done = " ".join(re.findall(r"\w+", text[: span["entity"][1]]))
            before, after = words(tokenizer, row[:place]), words(tokenizer, row[: place + 1])
            assert after.startswith(done) and not before.startswith(done)
