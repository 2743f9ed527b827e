"""Accuracy against the slow, obvious way: generate token by token,
and sum log-probabilities one run at a time.

MIB's scoring: known answers of its rules, and what is written against the slow, obvious way.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from helpers.hooks_reference import exact_precision
from helpers.models import USUAL, families
from mechassay.errors import BadPairs, BadUsage
from mechassay.models.forward import trace
from mechassay.models.model import Model, make_model
from mechassay.prompts.pairs import Prompt
from mechassay.tasks import TASKS, accuracy, load_task
from mechassay.tasks.accuracy import (
    mib_scores,
    needs_model,
    score_prompts,
    written,
)
from mechassay.tasks.hub_datasets import PublicTask
from mechassay.tasks.scoring import LABELLED, NAMED, NUMBERED, VALUED, Scoring
from mechassay.testing.tiny import FAMILIES, build
from mechassay.utils.display import SILENT

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


def log_probabilities(model: Model, prompts: list[Prompt]) -> list[dict[str, float]]:
    """Of every answer and choice of each prompt, as `score_prompts` compares them."""
    questions = accuracy._questions(model, prompts)
    none = accuracy._Exchanged.of(model, questions, {})
    predicted = accuracy._predictions(model, questions, none, SILENT)
    return [
        {
            text: accuracy._log_prob(question.tokens, rest, predicted)
            for text, rest in zip(
                (*prompt.answers, *prompt.choices),
                (*question.answers, *question.choices),
                strict=True,
            )
        }
        for prompt, question in zip(prompts, questions, strict=True)
    ]


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


@pytest.mark.few(1)
@pytest.mark.parametrize("family", families(quick=USUAL))
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
            assert found.predicted[row] == model.tokenizer.decode(generated(model, begin, 1))


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
        assert found.predicted == (model.tokenizer.decode([said[0]]),) * 3
        assert np.isnan(found.ranked).all() and np.isnan(found.chance).all()
    assert tried >= 5


def test_a_joined_token_is_scored_from_before_the_join(model: Model) -> None:
    """ "1 " + "ae" is "1" and " ae": the space is not left standing alone."""
    found = log_probabilities(model, [Prompt("1 ", ("ae", "bf"))])[0]
    assert found["ae"] == pytest.approx(
        log_prob(model, ids(model, "1"), ids(model, " ae")), abs=1e-4
    )
    assert math.isfinite(found["bf"])


def slow_score(model: Model, prompt: Prompt, begin: list[int]) -> float:
    """How right the best choice of a prompt is after other tokens, one run a token."""
    rests = {choice: ids(model, choice) for choice in prompt.choices}
    if not rests:
        return float(
            any(
                generated(model, begin, len(ids(model, a))) == ids(model, a) for a in prompt.answers
            )
        )
    slow = {choice: log_prob(model, begin, rest) for choice, rest in rests.items()}
    best = [choice for choice, value in slow.items() if value == max(slow.values())]
    return sum(choice in prompt.answers for choice in best) / len(best)


@pytest.mark.parametrize("kind", ["one token", "several tokens", "free answers"])
def test_exchanged_is_the_mean_score_after_other_prompts(kind: str) -> None:
    """In fp64, against one run a token: all given prompts for choices of one token, the first few
    in turn for choices of several.
    """
    model = reader(build("gpt2", torch.float64))
    rng = np.random.default_rng(3)
    asked: list[Prompt] = []
    for _ in range(9):
        text = "".join(rng.choice([*DIGITS, "+", "="], size=rng.integers(2, 6)))
        size = 40 if kind == "several tokens" else 10
        choices = tuple(dict.fromkeys(str(k) for k in rng.integers(size // 4, size, size=4)))
        choices = tuple(c for c in choices if kind != "one token" or len(c) == 1)
        answers = tuple(DIGITS) if kind == "free answers" else choices[:2]
        asked.append(Prompt(text, answers[:5], () if kind == "free answers" else choices))
    exchanges = {row: [n for n in range(9) if n != row] for row in range(8)}
    found = score_prompts(model, asked, exchanges=exchanges)
    assert np.isnan(found.exchanged[8]), "no prompt was given"
    n_tokens = [max(len(ids(model, text)) for text in (*p.choices, *p.answers)) for p in asked]
    with exact_precision(model.hf), torch.no_grad():
        for row, others in exchanges.items():
            if n_tokens[row] > 1:
                n = accuracy.FEW_EXCHANGED
                others = [others[(row + k * len(others) // n) % len(others)] for k in range(n)]
            slow = [slow_score(model, asked[row], ids(model, asked[o].text)) for o in others]
            assert found.exchanged[row] == pytest.approx(np.mean(slow), abs=1e-12)


def test_ties_count_by_the_part_that_is_right(model: Model) -> None:
    zero = reader(build("gpt2"))
    with torch.no_grad():
        for parameter in zero.hf.parameters():
            parameter.zero_()
    zero = make_model(zero.hf, model.tokenizer, check=False)
    asked = [
        Prompt("1+1=", ("2",), ("2", "3")),
        Prompt("1+2=", ("3",), ("1", "2", "3")),
        Prompt("1+3=", ("4", "5"), ("3", "4", "5", "4")),
        Prompt("1+4=", ("5",), ("5",)),
    ]
    found = score_prompts(zero, asked, exchanges={0: [1, 2]})
    assert found.ranked.tolist() == [1 / 2, 1 / 3, 2 / 3, 1]
    assert found.chance.tolist() == found.ranked.tolist()
    assert found.tied.tolist() == [1, 1, 1, 0] and found.exchanged[0] == 0.5


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
        "ioi-shift": 1,
        "mcqa": 1,
        "ravel": 2,
    }


@pytest.fixture(scope="module")
def mib_scoring_model() -> Model:
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
def test_written_equals_one_run_a_token(mib_scoring_model: Model, n: int) -> None:
    assert mib_scoring_model.tokenizer is not None
    found = written(mib_scoring_model, TEXTS, n)
    for text, each in zip(TEXTS, found, strict=True):
        begun = list(mib_scoring_model.tokenizer(text)["input_ids"])
        whole = mib_scoring_model.tokenizer.decode([*begun, *slow(mib_scoring_model, text, n)])
        assert each == whole[len(mib_scoring_model.tokenizer.decode(begun)) :]


def test_what_comes_after_the_end_of_text_does_not_count(mib_scoring_model: Model) -> None:
    assert mib_scoring_model.tokenizer is not None
    plain = written(mib_scoring_model, TEXTS, 3)
    end = slow(mib_scoring_model, TEXTS[0], 3)[1]
    mib_scoring_model.tokenizer.eos_token = mib_scoring_model.tokenizer.decode([end])
    try:
        found = written(mib_scoring_model, TEXTS, 3)
        lengths = [len(slow(mib_scoring_model, text, 3, end)) for text in TEXTS]
    finally:
        mib_scoring_model.tokenizer.eos_token = None
    assert min(lengths) < 3
    for short, long, length in zip(found, plain, lengths, strict=True):
        assert long.startswith(short) and (short == long) == (length == 3)


def test_scores_are_of_what_is_written(mib_scoring_model: Model) -> None:
    """An exact greedy answer of one token is right by MIB's rule too;
    the converse does not hold.
    """
    said = written(mib_scoring_model, TEXTS, 1)
    prompts = [
        Prompt(text, (word if row % 3 else "no such text",))
        for row, (text, word) in enumerate(zip(TEXTS, said, strict=True))
    ]
    prompts.append(Prompt("1+1="))
    found = mib_scores(
        mib_scoring_model, prompts, Scoring(1, lambda text, answers: text in answers)
    )
    exact = score_prompts(
        mib_scoring_model, [prompt for row, prompt in enumerate(prompts[:-1]) if row % 3]
    ).greedy
    assert found[:-1].tolist() == [float(row % 3 > 0) for row in range(len(TEXTS))] and np.isnan(
        found[-1]
    )
    assert exact.all()
    assert np.isnan(mib_scores(mib_scoring_model, [Prompt("1+1=")], NUMBERED)).all(), (
        "nothing is run"
    )


def test_text_needs_a_tokenizer() -> None:
    with pytest.raises(BadUsage, match="written runs the model on text"):
        written(make_model(build("gpt2"), None, check=False), ["a"], 1)
