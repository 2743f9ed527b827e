"""What multiple-choice tasks share: the form of a prompt, its parts,
the changes of format, and reading rows back.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Example, Prompt, content_hash
from mechassay.prompts.tokenization import token_position
from mechassay.tasks import load_task
from mechassay.tasks.multiple_choice import (
    Format,
    Question,
    answer_index,
    changes_of,
    derangement,
    labelled,
    letters,
    one_line,
    random_letters,
    read_question,
    swap,
)
from mechassay.tasks.task import SPLITS

NAMES = [
    "mcqa",
    "mcqa:n_choices=2",
    "mcqa:n_choices=10",
    "mcqa:labels=mib-2025",
    "arc-easy",
    "arc-challenge",
    "arc-easy:labels=mib-2025",
]
SHARED = [
    "answerPosition_counterfactual",
    "symbol_counterfactual",
    "randomLetter_counterfactual",
    "answerPosition_randomLetter_counterfactual",
]
SALMON = Question(
    "Salmon meat is pink. What color is salmon meat?",
    ("gray", "black", "white", "pink"),
    tuple("ABCD"),
    3,
)


class Parsed:
    """A prompt taken apart by its lines alone."""

    def __init__(self, text: str) -> None:
        first, *lines, last = text.split("\n")
        assert last == "Answer:"
        assert first.startswith("Question: ")
        self.stem = first.removeprefix("Question: ")
        pairs = [re.fullmatch(r"([A-Z]|\d+)\. (\S.*)", line) for line in lines]
        self.labels = [pair[1] for pair in pairs if pair]
        self.choices = [pair[2] for pair in pairs if pair]
        assert len(self.labels) == len(lines) == len(set(self.labels)) == len(set(self.choices)) > 1

    def spans(self, correct: int) -> dict[str, tuple[int, int]]:
        """Where the parts are, by counting characters line by line."""
        found = {"question": (10, 10 + len(self.stem))}
        at = 10 + len(self.stem)
        for i, (label, choice) in enumerate(zip(self.labels, self.choices, strict=True)):
            begin = at + 1
            found[f"symbol_{i}"] = (begin, begin + len(label))
            found[f"choice_{i}"] = (begin + len(label) + 2, begin + len(label) + 2 + len(choice))
            at = found[f"choice_{i}"][1]
        found["correct_symbol"], found["correct_choice"] = (
            found[f"symbol_{correct}"],
            found[f"choice_{correct}"],
        )
        end = found["correct_symbol"][1]
        return found | {"correct_symbol_period": (end, end + 1)}


def bpe(texts: list[str], *, digits: bool = False, size: int = 500) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer trained in a moment, with single digits if asked for;
    it has all labels after a space.
    """
    texts = [
        *texts,
        *(
            f"Answer: {label}"
            for label in (*string.ascii_uppercase, *map(str, range(1, 10)))
            for _ in range(50)
        ),
    ]
    tokenizer = Tokenizer(models.BPE())
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
        if digits
        else whole
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def word_level(texts: list[str]) -> PreTrainedTokenizerFast:
    """One token a word or mark of punctuation."""
    words = sorted(
        {word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)}
        | set(string.ascii_uppercase)
    )
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def single_digits(texts: list[str]) -> PreTrainedTokenizerFast:
    return bpe(texts, digits=True)


def examples(name: str, split: str = "test", limit: int = 8, seed: int = 0) -> list[Example]:
    return load_task(name).examples(split, limit=limit, seed=seed, private_seed=seed)


def texts_of(name: str, split: str = "test") -> list[str]:
    return [
        prompt.text
        for each in examples(name, split)
        for prompt in (each.prompt, *each.counterfactuals.values())
    ]


many = settings(max_examples=25, deadline=None)
drawn = given(
    name=st.sampled_from(NAMES), split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70)
)


@many
@drawn
def test_prompts_are_of_one_form_and_know_their_parts(name: str, split: str, seed: int) -> None:
    for example in examples(name, split, 6, seed):
        assert list(example.counterfactuals) == list(load_task(name).counterfactuals)
        for prompt in (example.prompt, *example.counterfactuals.values()):
            found = Parsed(prompt.text)
            space = "" if "2025" in name else " "
            assert prompt.choices == tuple(space + label for label in found.labels)
            (answer,) = prompt.answers
            expected = found.spans(prompt.choices.index(answer))
            assert {part: prompt.spans[part] for part in expected} == expected
            assert (
                prompt.part("correct_symbol") == answer.strip()
                and prompt.part("correct_symbol_period") == "."
            )


@many
@drawn
def test_changes_of_format_change_nothing_else(name: str, split: str, seed: int) -> None:
    for example in examples(name, split, 6, seed):
        original, right = Parsed(example.prompt.text), example.prompt.part("correct_choice")
        n = len(original.labels)
        assert original.labels == list(string.ascii_uppercase[:n])
        found = {kind: Parsed(example.counterfactuals[kind].text) for kind in SHARED}
        position, symbol, letter, both = found.values()
        assert {each.stem for each in found.values()} == {original.stem}
        assert all(example.counterfactuals[kind].part("correct_choice") == right for kind in SHARED)
        assert position.labels == original.labels and sorted(position.choices) == sorted(
            original.choices
        )
        assert position.choices.index(right) != original.choices.index(right)
        assert symbol.choices == letter.choices == original.choices
        assert symbol.labels == [str(i) for i in range(1, n + 1)]
        assert not set(letter.labels) & set(original.labels) and set(letter.labels) <= set(
            string.ascii_uppercase
        )
        # The combination is made of the very same changes.
        assert (both.choices, both.labels) == (position.choices, letter.labels)


@many
@drawn
def test_pairs_compare_the_two_answers(name: str, split: str, seed: int) -> None:
    for example in examples(name, split, 4, seed):
        for kind in SHARED:
            pair = example.pair(kind)
            assert (
                pair.foils
                == pair.counterfactual_answers
                == example.counterfactuals[kind].answers
                != pair.answers
            )
            assert (pair.clean, pair.counterfactual) == (
                example.prompt.text,
                example.counterfactuals[kind].text,
            )
            assert (
                pair.spans == example.prompt.spans
                and pair.counterfactual_spans == example.counterfactuals[kind].spans
            )


@many
@given(
    name=st.sampled_from(NAMES),
    split=st.sampled_from(SPLITS),
    seed=st.integers(0, 2**70),
    n=st.integers(1, 8),
    more=st.integers(0, 4),
)
def test_streams_are_fixed(name: str, split: str, seed: int, n: int, more: int) -> None:
    n, more = (n, more) if "arc" not in name else (min(n, 4), min(more, 4))
    task = load_task(name)
    call: dict[str, Any] = {"seed": seed, "private_seed": seed}
    short, long = task.pairs(split, limit=n, **call), task.pairs(split, limit=n + more, **call)
    assert len(short) == n and content_hash(short) == content_hash(long[:n])
    assert len({pair.clean for pair in long}) == len({pair.id for pair in long}) == n + more
    assert all(pair.id == f"{task.name}-{split}-{i:06d}" for i, pair in enumerate(long))
    call = {"seed": seed + 1, "private_seed": seed + 1}
    kind = "randomLetter_counterfactual"
    assert content_hash(task.pairs(split, limit=8, counterfactual=kind, **call)) != content_hash(
        task.pairs(split, limit=8, counterfactual=kind, seed=seed, private_seed=seed)
    )


@pytest.mark.parametrize("name", ["mcqa", "mcqa:n_choices=2", "arc-easy", "arc-challenge"])
def test_splits_share_no_prompt_in_either_direction(name: str) -> None:
    task = load_task(name)
    seen: dict[str, str] = {}
    for split in SPLITS:
        for seed in range(2):
            for example in task.examples(split, seed=seed, private_seed=seed):
                for prompt in (example.prompt, *example.counterfactuals.values()):
                    assert seen.setdefault(prompt.text, split) == split
                    assert seen.setdefault(prompt.part("question"), split) == split


@many
@drawn
def test_rows_round_trip(name: str, split: str, seed: int) -> None:
    task: Any = load_task(name)
    for example in examples(name, split, 4, seed):
        row = task.to_row(example)
        assert list(row)[:3] == ["prompt", "choices", "answerKey"]
        assert all(
            list(row[kind]) == ["prompt", "choices", "answerKey"] for kind in task.counterfactuals
        )
        assert row["choices"] == {
            "label": Parsed(row["prompt"]).labels,
            "text": Parsed(row["prompt"]).choices,
        }
        again = task.from_row(json.loads(json.dumps(row)), example.id)
        assert again == example
        for kind in task.counterfactuals:
            assert content_hash([again.pair(kind)]) == content_hash([example.pair(kind)])


def test_labels_of_2025_have_no_space() -> None:
    for plain, old in zip(examples("mcqa"), examples("mcqa:labels=mib-2025"), strict=True):
        assert plain.prompt.text == old.prompt.text and plain.prompt.spans == old.prompt.spans
        assert [text.strip() for text in plain.prompt.choices] == list(old.prompt.choices)
        assert plain.prompt.answers == (" " + old.prompt.answers[0],)
    for name in ("mcqa", "arc-easy"):
        with pytest.raises(UnknownName, match=r"labels 'strickt'.*Did you mean 'strict'"):
            load_task(name, labels="strickt")


def test_nothing_global_is_seeded() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()  # pyright: ignore[reportArgumentType]
    for name in NAMES:
        examples(name)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # pyright: ignore[reportArgumentType]


# --- alignment
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("name", ["mcqa", "arc-easy"])
@pytest.mark.parametrize("make", [word_level, bpe, single_digits], ids=["words", "bytes", "digits"])
def test_changes_of_format_align(name: str, kind: str, make: Any) -> None:
    task, tokenizer = load_task(name), make(texts_of(name))
    pairs = task.pairs("test", tokenizer, limit=8, counterfactual=kind)
    assert not pairs.dropped and pairs == task.pairs("test", limit=8, counterfactual=kind)
    batch = Batch.from_pairs(pairs, tokenizer)
    assert [text.strip() for text in tokenizer.batch_decode(batch.answers)] == [
        pair.answers[0].strip() for pair in pairs
    ]
    foils = tokenizer.batch_decode(batch.foils)
    if kind == "symbol_counterfactual" and make is single_digits:
        assert set(foils) == {" "} and batch.alignment["partial"] == len(pairs), (
            "the space before a digit is a token of its own"
        )
    else:
        assert [text.strip() for text in foils] == [pair.foils[0].strip() for pair in pairs]


@pytest.mark.parametrize(
    "name", ["mcqa", "mcqa:n_choices=2", "mcqa:n_choices=10", "arc-easy", "arc-challenge"]
)
def test_the_default_counterfactual_is_letters_where_a_symbol_begins_with_a_space(
    name: str,
) -> None:
    """Under a tokenizer of digits, " D" against " 4" would be " D" against a space."""
    task, texts = load_task(name), texts_of(name)
    assert task.counterfactual_for() == task.default_counterfactual == "symbol_counterfactual"
    for make, kind in ((word_level, "symbol"), (bpe, "symbol"), (single_digits, "randomLetter")):
        if make is bpe and name.endswith("10"):
            continue
        tokenizer = make(texts)
        assert task.counterfactual_for(tokenizer) == f"{kind}_counterfactual"
        pairs = task.pairs("test", tokenizer, limit=6)
        assert pairs.source["counterfactual"] == f"{kind}_counterfactual"
        assert pairs == task.pairs(
            "test", tokenizer, limit=6, counterfactual=f"{kind}_counterfactual"
        )
        foils = tokenizer.batch_decode(Batch.from_pairs(pairs, tokenizer).foils)
        assert [foil.strip() for foil in foils] == [pair.foils[0].strip() for pair in pairs]


def test_without_a_space_digits_tell_symbols_apart() -> None:
    task = load_task("mcqa:labels=mib-2025")
    assert task.counterfactual_for(single_digits(texts_of("mcqa"))) == "symbol_counterfactual"


def test_ten_symbols_need_a_token_for_ten() -> None:
    task, texts = load_task("mcqa:n_choices=10"), texts_of("mcqa:n_choices=10")
    tokenizer = single_digits(texts)
    for kind in ("symbol_counterfactual", "answerPosition_symbol_counterfactual"):
        with pytest.raises(
            BadPairs,
            match=rf"^No pair of {kind} of mcqa .* 1 to 10 in \d+ tokens .* take randomLetter",
        ):
            task.pairs("test", tokenizer, limit=2, counterfactual=kind)
        assert not task.pairs("test", word_level(texts), limit=2, counterfactual=kind).dropped
    assert not load_task("mcqa:n_choices=9").pairs("test", tokenizer, limit=8).dropped


@pytest.mark.parametrize("make", [word_level, bpe], ids=["words", "bytes"])
@pytest.mark.parametrize("name", ["mcqa", "arc-challenge"])
def test_token_positions_are_those_of_the_right_line(name: str, make: Any) -> None:
    tokenizer = make(texts_of(name))
    pairs = load_task(name).pairs(
        "test", tokenizer, limit=8, counterfactual="answerPosition_randomLetter_counterfactual"
    )
    for side, spans, answers in (
        ("clean", "spans", "answers"),
        ("counterfactual", "counterfactual_spans", "counterfactual_answers"),
    ):
        texts, parts = (
            [getattr(pair, side) for pair in pairs],
            [getattr(pair, spans) for pair in pairs],
        )
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
        symbols = token_position(texts, parts, "correct_symbol", tokenizer)
        periods = token_position(texts, parts, "correct_symbol_period", tokenizer)
        for pair, row, at, period in zip(pairs, tokens, symbols, periods, strict=True):
            assert at is not None and period == at + 1
            assert row[at] == getattr(pair, answers)[0].strip() and row[period] == "."


# --- the pieces
# --------------------------------------------------------------------------------------


def test_a_prompt_worked_by_hand() -> None:
    assert Question("Is it I?", ("yes", "no"), ("A", "I"), 1).prompt(
        " ", {"who": (6, 7)}
    ) == Prompt(
        "Question: Is it I?\nA. yes\nI. no\nAnswer:",
        answers=(" I",),
        choices=(" A", " I"),
        spans={
            "question": (10, 18),
            "symbol_0": (19, 20),
            "choice_0": (22, 25),
            "symbol_1": (26, 27),
            "choice_1": (29, 31),
            "who": (16, 17),
            "correct_symbol": (26, 27),
            "correct_symbol_period": (27, 28),
            "correct_choice": (29, 31),
        },
    )


def test_the_format_counterfactuals_of_table_9() -> None:
    draw = Format(swap(4, 3, 2), tuple("EZFL"))
    table = {
        "answerPosition_counterfactual": ("A. gray\nB. black\nC. pink\nD. white", "C"),
        "symbol_counterfactual": ("1. gray\n2. black\n3. white\n4. pink", "4"),
        "randomLetter_counterfactual": ("E. gray\nZ. black\nF. white\nL. pink", "L"),
        "answerPosition_randomLetter_counterfactual": ("E. gray\nZ. black\nF. pink\nL. white", "F"),
        "answerPosition_symbol_counterfactual": ("1. gray\n2. black\n3. pink\n4. white", "3"),
    }
    for kind, (lines, answer) in table.items():
        prompt = draw.changed(SALMON, changes_of(kind)).prompt(" ")
        assert (
            prompt.text
            == f"Question: Salmon meat is pink. What color is salmon meat?\n{lines}\nAnswer:"
        )
        assert prompt.answers == (" " + answer,)


def test_the_format_counterfactuals_of_table_10() -> None:
    whence = tuple(f"from its {word}" for word in ("environment", "food", "offspring", "parents"))
    draw = Format((1, 3, 0, 2), tuple("DHME"))
    table = {
        "answerPosition_counterfactual": ("ABCD", "food parents environment offspring", "B"),
        "symbol_counterfactual": ("1234", "environment food offspring parents", "4"),
        "randomLetter_counterfactual": ("DHME", "environment food offspring parents", "E"),
        "answerPosition_randomLetter_counterfactual": (
            "DHME",
            "food parents environment offspring",
            "H",
        ),
    }
    for kind, (labels, words, answer) in table.items():
        prompt = draw.changed(
            Question("How does a tiger get stripes?", whence, letters(4), 3), changes_of(kind)
        ).prompt(" ")
        lines = [
            f"{label}. from its {word}" for label, word in zip(labels, words.split(), strict=True)
        ]
        assert prompt.text == "\n".join(
            ["Question: How does a tiger get stripes?", *lines, "Answer:"]
        )
        assert prompt.answers == (" " + answer,)


@many
@given(n=st.integers(2, 10), seed=st.integers(0, 2**32))
def test_orders_and_letters(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = derangement(n, rng)
    assert sorted(order) == list(range(n)) and all(a != b for a, b in enumerate(order))
    drawn = random_letters(n, rng)
    assert len(set(drawn)) == n and set(drawn) <= set(string.ascii_uppercase[n:])
    a, b = (int(i) for i in rng.permutation(n)[:2])
    swapped = swap(n, a, b)
    assert (swapped[a], swapped[b]) == (b, a) and all(
        swapped[i] == i for i in range(n) if i not in (a, b)
    )


def test_every_derangement_is_equally_likely() -> None:
    rng = np.random.default_rng(0)
    counts = Counter(derangement(4, rng) for _ in range(9000))
    # 9 derangements of 4 things; 1000 expected of each, with a standard deviation of 30.
    assert len(counts) == 9 and all(abs(count - 1000) < 150 for count in counts.values())


def test_random_letters_reach_the_whole_alphabet() -> None:
    rng = np.random.default_rng(0)
    assert {letter for _ in range(200) for letter in random_letters(4, rng)} == set(
        string.ascii_uppercase[4:]
    )


def test_permuted_keeps_the_correct_choice() -> None:
    moved = SALMON.permuted((3, 0, 1, 2))
    assert (moved.choices, moved.labels, moved.correct) == (
        ("pink", "gray", "black", "white"),
        tuple("ABCD"),
        0,
    )
    assert moved.permuted((1, 2, 3, 0)) == SALMON


# --- reading
# -----------------------------------------------------------------------------------------


def row(**changes: Any) -> dict[str, Any]:
    plain = {
        "prompt": "Question: One\nA. is\nB. not?\nA. yes\nB. no\nAnswer:",
        "choices": {"label": ["A", "B"], "text": ["yes", "no"]},
        "answerKey": 1,
    }
    return {**plain, **changes}


def test_read_question() -> None:
    expected = Question("One\nA. is\nB. not?", ("yes", "no"), ("A", "B"), 1)
    assert read_question(row()) == read_question(row(answerKey="B")) == expected
    assert (
        read_question(row(choices=[{"label": "A", "text": "yes"}, {"label": "B", "text": "no"}]))
        == expected
    )
    assert expected.prompt(" ").text == row()["prompt"], "the text stays as it is"
    spaced = row(prompt="Question: One?\nA. yes \nB.  no\nAnswer:")
    assert read_question(spaced).prompt("").text == spaced["prompt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answerKey": 2}, "index below 2"),
        ({"answerKey": -1}, "index below 2"),
        ({"answerKey": True}, "got True"),
        ({"answerKey": "C"}, "labels .* got 'C'"),
        ({"answerKey": None}, "got None"),
        ({"prompt": None}, "begins with 'Question: '"),
        ({"prompt": "One?\nA. yes\nB. no\nAnswer:"}, "begins with 'Question: '"),
        ({"prompt": "Question: One?\nA. yes\nB. no\nAnswer: "}, "ends with"),
        ({"prompt": "Question: One?\nB. no\nA. yes\nAnswer:"}, "no line 'A. ...' in its place"),
        ({"prompt": "Question: One?\nA. yes\nB. maybe\nAnswer:"}, "the field has"),
        ({"choices": {"label": ["A", "A"], "text": ["yes", "no"]}}, "all different"),
        ({"choices": {"label": ["A", "B"], "text": ["yes"]}}, "one label each"),
        ({"choices": {"label": ["A"], "text": ["yes"]}}, "two choices or more"),
    ],
)
def test_contradictory_rows(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){message}"):
        read_question(row(**changes))


def test_answer_keys_and_labels() -> None:
    assert answer_index("2", ["1", "2"]) == 1, "a label before an index"
    assert answer_index(1, ["1", "2"]) == 1
    with pytest.raises(KeyError):
        labelled({"text": ["yes", "no"]})
    with pytest.raises(TypeError):
        labelled(["yes", "no"])


def test_one_line() -> None:
    assert one_line("  a \n  b\nc ") == "a b c"
    for wrong in ("", " \n", None, 3):
        with pytest.raises(ValueError, match="are texts"):
            one_line(wrong)


@pytest.mark.parametrize("name", ["mcqa", "arc-easy"])
def test_an_unknown_source_is_refused(name: str) -> None:
    with pytest.raises(BadUsage, match="A source is"):
        load_task(name, source="nowhere").pairs("test")
