"""MIB's scoring: known answers of its rules, and what is written against the slow, obvious way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mechassay.errors import BadUsage
from mechassay.examples import Prompt
from mechassay.models.model import Model, make_model
from mechassay.tasks import TASKS, load_task
from mechassay.tasks.behaviour import score_prompts, written
from mechassay.tasks.mib_scoring import LABELLED, NAMED, NUMBERED, VALUED, Scoring, mib_scores
from mechassay.tasks.public import PublicTask
from mechassay.testing.tiny import build

# What is written, the right continuations, and whether MIB calls it right.
KNOWN: list[tuple[Scoring, str, tuple[str, ...], bool]] = [
    (NAMED, " John", (" John",), True),
    (NAMED, "John", (" John",), True),
    (NAMED, " Johnson", (" John",), True),
    (NAMED, " Jo", (" John",), False),
    (NAMED, " john", (" John",), False),
    (LABELLED, " D", (" D",), True),
    (LABELLED, " D", ("D",), True),
    (LABELLED, " Do", (" D",), True),
    (LABELLED, "D", (" D",), False),
    (LABELLED, " A", (" D",), False),
    (NUMBERED, " 91", (" 91",), True),
    (NUMBERED, "91\n", ("91",), True),
    (NUMBERED, "091", (" 91",), True),
    (NUMBERED, "008", (" 8",), True),
    (NUMBERED, "8", ("8",), True),
    (NUMBERED, "0142", ("142",), False),
    (NUMBERED, "910", (" 91",), False),
    (NUMBERED, " it is 91", (" 91",), True),
    (NUMBERED, "9 1", (" 91",), False),
    (NUMBERED, "-91", (" 91",), True),
    (NUMBERED, " ninety", (" 91",), False),
    (NUMBERED, "", (" 91",), False),
    (VALUED, " france.", (" France",), True),
    (VALUED, " in France", (" France",), True),
    (VALUED, " Berberi", (" Arabic", " Berberi"), True),
    (VALUED, " Fra", (" France",), False),
    (VALUED, "", (" France",), False),
    (VALUED, " the United States", (" United States",), True),
    (VALUED, " US", (" United States",), True),
    (VALUED, " USSR", (" United States",), False),
    (VALUED, " England", (" United Kingdom",), True),
    (VALUED, " Korea", (" South Korea",), True),
    (VALUED, " North Korea", (" South Korea",), False),
    (VALUED, " Farsi", (" Persian",), True),
    (VALUED, " Australia", (" Oceania",), True),
    (VALUED, " Australia", (" Europe",), False),
    (VALUED, " America", (" North America",), True),
    (VALUED, " NA", (" North America",), True),
    (VALUED, " South America", (" North America",), False),
    (VALUED, " Mandarin Chinese", (" Chinese",), True),
    (VALUED, " Mandarin", (" Chinese",), True),
    (VALUED, " Czech", (" Czech Republic",), False),
]


@pytest.mark.parametrize(("scoring", "text", "answers", "right"), KNOWN)
def test_known_answers(scoring: Scoring, text: str, answers: tuple[str, ...], right: bool) -> None:
    assert scoring.right(text, answers) is right


def test_every_public_task_has_one() -> None:
    found = {
        name: task.mib_scoring.tokens
        for name in TASKS.names()
        if isinstance(task := load_task(name), PublicTask)
    }
    assert found == {
        "arc-challenge": 1,
        "arc-easy": 1,
        "arithmetic-addition": 3,
        "arithmetic-subtraction": 3,
        "ioi": 1,
        "mcqa": 1,
        "ravel": 2,
    }


@pytest.fixture(scope="module")
def model() -> Model:
    """A tiny model that reads characters, and two letters after a space as one token;
    all of its 97 tokens have a text.
    """
    words = [
        "[UNK]",
        *map(str, range(10)),
        *"abcdefgh+=",
        " ",
        *(f" {a}{b}" for a in "abcdefgh" for b in "abcdefgh"),
        *"ABCDEFGHIJK",
    ]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" [a-h][a-h]|."), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    return make_model(
        build("gpt2"),
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"),
        check=False,
    )


def slow(model: Model, text: str, n: int, end: int | None = None) -> list[int]:
    """One run a token, without a cache."""
    assert model.tokenizer is not None
    begun = list(model.tokenizer(text)["input_ids"])
    tokens = begun
    for _ in range(n):
        tokens = [*tokens, int(model.hf(torch.tensor([tokens])).logits[0, -1].argmax())]
        if tokens[-1] == end:
            return tokens[len(begun) : -1]
    return tokens[len(begun) :]


TEXTS = [f"{a}+{b}{'=' * (a % 4)}" for a in range(7) for b in (1, 30, 457)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_written_equals_one_run_a_token(model: Model, n: int) -> None:
    assert model.tokenizer is not None
    found = written(model, TEXTS, n)
    for text, each in zip(TEXTS, found, strict=True):
        begun = list(model.tokenizer(text)["input_ids"])
        whole = model.tokenizer.decode([*begun, *slow(model, text, n)])
        assert each == whole[len(model.tokenizer.decode(begun)) :]


def test_what_comes_after_the_end_of_text_does_not_count(model: Model) -> None:
    assert model.tokenizer is not None
    plain = written(model, TEXTS, 3)
    end = slow(model, TEXTS[0], 3)[1]
    model.tokenizer.eos_token = model.tokenizer.decode([end])
    try:
        found = written(model, TEXTS, 3)
        lengths = [len(slow(model, text, 3, end)) for text in TEXTS]
    finally:
        model.tokenizer.eos_token = None
    assert min(lengths) < 3
    for short, long, length in zip(found, plain, lengths, strict=True):
        assert long.startswith(short) and (short == long) == (length == 3)


def test_scores_are_of_what_is_written(model: Model) -> None:
    """An exact greedy answer of one token is right by MIB's rule too;
    the converse does not hold.
    """
    said = written(model, TEXTS, 1)
    prompts = [
        Prompt(text, (word if row % 3 else "no such text",))
        for row, (text, word) in enumerate(zip(TEXTS, said, strict=True))
    ]
    prompts.append(Prompt("1+1="))
    found = mib_scores(model, prompts, Scoring(1, lambda text, answers: text in answers))
    exact = score_prompts(
        model, [prompt for row, prompt in enumerate(prompts[:-1]) if row % 3]
    ).greedy
    assert found[:-1].tolist() == [float(row % 3 > 0) for row in range(len(TEXTS))] and np.isnan(
        found[-1]
    )
    assert exact.all()
    assert np.isnan(mib_scores(model, [Prompt("1+1=")], NUMBERED)).all(), "nothing is run"


def test_text_needs_a_tokenizer() -> None:
    with pytest.raises(BadUsage, match="written runs the model on text"):
        written(make_model(build("gpt2"), None, check=False), ["a"], 1)
