"""Accuracy against the slow, obvious way: generate token by token,
and sum log-probabilities one run at a time.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mechassay.errors import BadPairs, BadUsage
from mechassay.examples import Prompt
from mechassay.models.model import Model, make_model
from mechassay.models.reference import exact_precision
from mechassay.models.trace import trace
from mechassay.tasks.behaviour import log_probabilities, needs_model, score_prompts, written
from mechassay.testing.tiny import FAMILIES, build

DIGITS = [str(n) for n in range(10)]


@pytest.fixture(scope="module")
def model() -> Model:
    return reader(build("gpt2"))


def reader(hf: PreTrainedModel) -> Model:
    """A tiny model that reads characters, and two letters after a space as one token;
    all of its 97 tokens have a text.
    """
    words = [
        "[UNK]",
        *DIGITS,
        *"abcdefgh+=",
        " ",
        *(f" {a}{b}" for a in "abcdefgh" for b in "abcdefgh"),
        *"ABCDEFGHIJK",
    ]
    assert len(words) == 97
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" [a-h][a-h]|."), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    return make_model(
        hf,
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"),
        check=False,
    )


def ids(model: Model, text: str) -> list[int]:
    assert model.tokenizer is not None
    return list(model.tokenizer(text)["input_ids"])


def log_prob(model: Model, prompt: list[int], rest: list[int]) -> float:
    """One run a token."""
    total = 0.0
    for end, token in enumerate(rest):
        logits = model.hf(torch.tensor([prompt + rest[:end]])).logits[0, -1].double()
        total += float(logits.log_softmax(-1)[token])
    return total


def generated(model: Model, prompt: list[int], n: int) -> list[int]:
    for _ in range(n):
        prompt = [*prompt, int(model.hf(torch.tensor([prompt])).logits[0, -1].argmax())]
    return prompt[-n:]


def prompts(seed: int, n: int = 12) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    found: list[Prompt] = []
    for _ in range(n):
        text = "".join(rng.choice([*DIGITS, "+", "="], size=rng.integers(1, 9)))
        choices = tuple(dict.fromkeys(str(k) for k in rng.integers(0, 300, size=6)))
        # No choice begins with another here: what is asked is their order alone.
        choices = tuple(c for c in choices if not any(o != c and o.startswith(c) for o in choices))
        found.append(Prompt(text, choices[:2], choices))
    return found


def row_by_row(model: Model, prompt: list[int], rest: list[int]) -> float:
    """A prompt with all of a continuation but its last token as a row of its own, left-padded."""
    row = prompt + rest[:-1]
    tokens = torch.tensor([[0, 0, 0, *row]])
    mask = torch.tensor([[False] * 3 + [True] * len(row)])
    run = trace(model.decoder, model.decoder.embed(tokens), model.decoder.context(mask))
    logits = model.decoder.readout(run.final[0, -len(rest) :]).all()
    return float(logits.log_softmax(-1).gather(1, torch.tensor(rest)[:, None]).sum())


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_one_run_a_token(family: str) -> None:
    """In fp64, against Hugging Face's model and against rows of our own: prompts and continuations
    are longer than the windows of those that have them.
    """
    model = reader(build(family, torch.float64))
    asked = prompts(FAMILIES.index(family))
    scored = log_probabilities(model, asked)
    found = score_prompts(model, asked)
    with exact_precision(model.hf), torch.no_grad():
        for row, prompt in enumerate(asked):
            begin = ids(model, prompt.text)
            rests = {choice: ids(model, choice) for choice in prompt.choices}
            slow = {choice: log_prob(model, begin, rest) for choice, rest in rests.items()}
            rows = {choice: row_by_row(model, begin, rest) for choice, rest in rests.items()}
            assert scored[row] == pytest.approx(slow, rel=0, abs=1e-10)
            assert scored[row] == pytest.approx(rows, rel=0, abs=1e-10)
            assert found.ranked[row] == (max(slow, key=slow.__getitem__) in prompt.answers)
            assert found.chance[row] == len(prompt.answers) / len(prompt.choices)
            assert found.greedy[row] == any(
                generated(model, begin, len(ids(model, a))) == ids(model, a) for a in prompt.answers
            )
            assert model.tokenizer is not None
            assert found.said[row] == model.tokenizer.decode(generated(model, begin, 1))


def test_greedy_is_what_would_be_generated(model: Model) -> None:
    assert model.tokenizer is not None
    tried = 0
    for number in range(25):
        text = str(number * 37)
        said = generated(model, ids(model, text), 3)
        answer = "".join(model.tokenizer.convert_ids_to_tokens(said))
        if ids(model, text + answer) != ids(model, text) + said:
            continue
        tried += 1
        almost = answer[:-1] + ("1" if answer[-1] != "1" else "2")
        found = score_prompts(
            model,
            [Prompt(text, (answer,)), Prompt(text, (almost,)), Prompt(text, (almost, answer))],
        )
        assert found.greedy.tolist() == [1, 0, 1]
        assert found.said == (model.tokenizer.decode([said[0]]),) * 3
        assert np.isnan(found.ranked).all() and np.isnan(found.chance).all()
    assert tried >= 5


def test_a_joined_token_is_scored_from_before_the_join(model: Model) -> None:
    """ "1 " + "ae" is "1" and " ae": the space is not left standing alone."""
    found = log_probabilities(model, [Prompt("1 ", ("ae", "bf"))])[0]
    assert found["ae"] == pytest.approx(
        log_prob(model, ids(model, "1"), ids(model, " ae")), abs=1e-4
    )
    assert math.isfinite(found["bf"])


def test_undefined(model: Model) -> None:
    found = score_prompts(
        model, [Prompt("1+1="), Prompt("1+1=", ("2",)), Prompt("1+1=", (), ("1", "2"))]
    )
    assert np.isnan(found.greedy).tolist() == [True, False, True]
    assert np.isnan(found.ranked).all()
    with pytest.raises(BadPairs, match="adds no token"):
        score_prompts(model, [Prompt("1", ("",))])
    with pytest.raises(BadPairs, match="Prompt '' has no token"):
        score_prompts(model, [Prompt("", ("1",))])
    with pytest.raises(BadPairs, match="Prompt '' has no token"):
        written(model, ["1", ""], 2)
    with pytest.raises(BadUsage, match="needs a model with a tokenizer; got int"):
        needs_model(3, "keep")


def test_padding_and_chunks_change_nothing(model: Model) -> None:
    asked = prompts(7, 40)
    together = log_probabilities(model, asked)
    for prompt, each in zip(asked, together, strict=True):
        assert log_probabilities(model, [prompt])[0] == pytest.approx(each, abs=1e-4)
