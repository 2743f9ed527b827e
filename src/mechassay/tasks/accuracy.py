"""Does a model do a task at all? Greedy and ranked-choice accuracy of prompts.

    greedy   the most likely token at every step spells a right answer, exactly  (MIB, table 1)
    ranked   of all choices, the one of the highest log-probability is right     (MIB, table 11)

A continuation of several tokens is scored as a sequence, log p = sum_t log p(token_t | before):
greedy decoding writes an answer if and only if each of its tokens is the argmax after those
before it. What prompts and continuations share at their beginnings is run once
(`models.generation`): the hundred years after a greater-than prompt are ten tokens more, their
tens digits.

Where a tokenizer joins the end of a prompt with what follows ("is: " + "91" becomes " 91"), the
joined tokens are cut from the prompt and scored with the continuation; MIB's code appends them,
in a place where the model has never seen them.

A prompt without a right answer has NaN for both, one without choices NaN for ranked; a
continuation that adds no token is refused. Beside these two stands MIB's own scoring of what a
model writes, "mib-2025" (`mib_scores`), which is laxer than equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage
from mechassay.models.generation import ROWS_OF_LOGITS, Tokens, final_streams, generate, until_end
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.prompts.pairs import Example, Prompt
from mechassay.prompts.tokenization import continued, encode
from mechassay.results.measures import measure_texts
from mechassay.results.records import Measure
from mechassay.stats.intervals import proportion_interval
from mechassay.tasks.scoring import NAME as MIB
from mechassay.tasks.scoring import Scoring
from mechassay.utils.display import SILENT, Progress

ORIGINAL = "original"
"""The kind of the prompts that are no counterfactuals."""


@dataclass(frozen=True, eq=False)
class Behaviour:
    """What a model does with prompts, one value a prompt.

    Attributes:
        greedy, ranked: 1 right, 0 wrong, NaN undefined.
        chance: the share of the choices that is right; NaN without choices.
        predicted: the most likely next token, as text.
    """

    greedy: Float[np.ndarray, "n"]
    ranked: Float[np.ndarray, "n"]
    chance: Float[np.ndarray, "n"]
    predicted: tuple[str, ...]


@dataclass(frozen=True)
class _TokenQuestion:
    """A prompt's tokens, and its continuations as the tokens that follow."""

    tokens: Tokens
    answers: tuple[Tokens, ...]
    choices: tuple[Tokens, ...]


@dataclass(frozen=True)
class _Next:
    """What the model says after a context: the likeliest token, and log-probabilities of those
    asked for.
    """

    best: int
    log_probs: Mapping[int, float]


def needs_model(model: Any, who: str) -> Model:
    """The model, if it is one that can be run on text.

    Raises:
        BadUsage: it is not.
    """
    if not isinstance(model, Model) or model.tokenizer is None:
        raise BadUsage(
            f"{who} runs the model on text: it needs a model with a tokenizer; got"
            f" {type(model).__name__}."
        )
    return model


def score_prompts(
    model: Model, prompts: Sequence[Prompt], *, progress: Progress = SILENT
) -> Behaviour:
    """Greedy and ranked-choice scores of prompts.

    Raises:
        BadUsage: a model without a tokenizer.
        BadPairs: a continuation that adds no token to its prompt.
    """
    needs_model(model, "score_prompts")
    questions = _questions(model, prompts)
    predicted = _predictions(model, questions, progress)
    greedy, ranked, chance = np.full((3, len(prompts)), np.nan)
    for row, question in enumerate(questions):
        prompt = question.tokens
        if question.answers:
            greedy[row] = any(
                all(
                    predicted[prompt + answer[:end]].best == token
                    for end, token in enumerate(answer)
                )
                for answer in question.answers
            )
        if question.answers and question.choices:
            best = max(question.choices, key=lambda choice: _log_prob(prompt, choice, predicted))
            ranked[row] = best in question.answers
            chance[row] = np.mean([choice in question.answers for choice in question.choices])
    assert model.tokenizer is not None
    words = model.tokenizer.batch_decode(
        [[predicted[question.tokens].best] for question in questions]
    )
    return Behaviour(greedy, ranked, chance, tuple(words))


def written(
    model: Model, texts: Sequence[str], n: int, *, progress: Progress = SILENT
) -> list[str]:
    """What a model writes after each text: up to `n` tokens, each the likeliest, up to end-of-text.

    Raises:
        BadUsage: a model without a tokenizer.
        BadPairs: a text without a token.
    """
    needs_model(model, "written")
    if not texts:
        return []
    tokenizer = model.tokenizer
    assert tokenizer is not None
    begun = _encoded(model, texts)
    rows = list(begun)
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    longest = max(map(len, rows)) + n
    size = max(1, token_budget(trace_bytes(model.decoder), longest, model.device) // longest)
    eos: Any = tokenizer.eos_token_id
    end: tuple[int, ...] = () if eos is None else (eos,)
    with progress.track("writing", len(rows)) as advance, out_of_memory_is_an_error("Writing"):
        for start in range(0, len(order), size):
            chunk = order[start : start + size]
            tokens, mask = _left_padded([begun[row] for row in chunk], model.device)
            new = generate(model.decoder, tokens, mask, n, end=end).tolist()
            for row, tail in zip(chunk, new, strict=True):
                rows[row] = (*begun[row], *until_end(tail, end))
            advance(len(chunk))
    before, after = (
        tokenizer.batch_decode([list(row) for row in some_rows]) for some_rows in (begun, rows)
    )
    return [text[len(prompt) :] for prompt, text in zip(before, after, strict=True)]


def _left_padded(
    rows: Sequence[Tokens], device: torch.device
) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
    """Token ids and mask of rows that end in the last column."""
    width = max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return tokens, torch.arange(width, device=device) >= width - lengths[:, None]


def _log_prob(prompt: Tokens, rest: Tokens, predicted: Mapping[Tokens, _Next]) -> float:
    return sum(predicted[prompt + rest[:end]].log_probs[token] for end, token in enumerate(rest))


def _encoded(model: Model, texts: Sequence[str]) -> list[Tokens]:
    """Texts as the model's tokens, those before every prompt included."""
    assert model.tokenizer is not None
    model.check_unchanged()
    rows = [(*model.prepend, *tokens) for tokens in encode(model.tokenizer, texts)]
    for text, row in zip(texts, rows, strict=True):
        if not row:
            raise BadPairs(f"Prompt {text!r} has no token.")
    return rows


def _questions(model: Model, prompts: Sequence[Prompt]) -> list[_TokenQuestion]:
    assert model.tokenizer is not None
    model.check_unchanged()
    own = encode(model.tokenizer, [prompt.text for prompt in prompts])
    continuations = [(*prompt.answers, *prompt.choices) for prompt in prompts]
    joined = [
        prompt.text + text
        for prompt, texts in zip(prompts, continuations, strict=True)
        for text in texts
    ]
    whole = iter(encode(model.tokenizer, joined))
    questions: list[_TokenQuestion] = []
    for prompt, texts, tokens in zip(prompts, continuations, own, strict=True):
        split = continued(tokens, [next(whole) for _ in texts] or [tokens], force=False)
        rests = split.rests if texts else ()
        for text, rest in zip(texts, rests, strict=True):
            if not rest:
                raise BadPairs(f"Prompt {prompt.text!r}: {text!r} written after it adds no token.")
        n, kept = len(prompt.answers), (*model.prepend, *tokens[: split.kept])
        if not kept:
            raise BadPairs(f"Prompt {prompt.text!r} has no token that its continuations leave.")
        # The last token of a continuation is not run.
        longest = len(kept) + max([len(rest) - 1 for rest in rests], default=0)
        model.check_length(f"Prompt {prompt.text!r} with what continues it", longest)
        questions.append(_TokenQuestion(kept, rests[:n], rests[n:]))
    return questions


def _predictions(
    model: Model, questions: Sequence[_TokenQuestion], progress: Progress
) -> dict[Tokens, _Next]:
    """What the model says after every prompt, and after what continuations look like before each
    of their tokens.
    """
    asked = _asked(questions)
    contexts = list(asked)
    predicted: dict[Tokens, _Next] = {}
    with (
        progress.track("scoring prompts", len(contexts)) as advance,
        out_of_memory_is_an_error("Scoring prompts"),
        torch.no_grad(),
    ):
        for members, streams in final_streams(model.decoder, contexts):
            read = [contexts[member] for member in members]
            for begin in range(0, len(read), ROWS_OF_LOGITS):
                rows = slice(begin, begin + ROWS_OF_LOGITS)
                wanted = [list(asked[context]) for context in read[rows]]
                says = _read_out(model.decoder.readout(streams[rows]).all(), wanted)
                predicted |= zip(read[rows], says, strict=True)
            advance(len(read))
    return predicted


def _asked(questions: Sequence[_TokenQuestion]) -> dict[Tokens, dict[int, None]]:
    """Every context of all questions, and the tokens that continuations have after it."""
    asked: dict[Tokens, dict[int, None]] = {}
    for question in questions:
        asked.setdefault(question.tokens, {})
        for rest in (*question.answers, *question.choices):
            for end, token in enumerate(rest):
                asked.setdefault(question.tokens + rest[:end], {})[token] = None
    return asked


def _read_out(logits: Float[Tensor, "n vocab"], wanted: Sequence[Sequence[int]]) -> Iterator[_Next]:
    """What logits say: the likeliest token, and the log-probabilities of those asked for."""
    width = max(1, *map(len, wanted))
    index = torch.tensor([[*ids] + [0] * (width - len(ids)) for ids in wanted])
    index = index.to(logits.device)
    best, total = logits.argmax(dim=-1).tolist(), logits.logsumexp(dim=-1)
    values = (logits.gather(1, index) - total[:, None]).tolist()
    for top, ids, line in zip(best, wanted, values, strict=True):
        yield _Next(top, dict(zip(ids, line, strict=False)))


def mib_scores(
    model: Model, prompts: Sequence[Prompt], scoring: Scoring, *, progress: Progress = SILENT
) -> Float[np.ndarray, "n"]:
    """Whether what a model writes after each prompt is right; NaN for a prompt without answers.

    The causal track of MIB (Mueller et al. 2025) lets a model write a few tokens greedily, and
    calls the text right by rules that are laxer than equality ("mib-2025"):

        task        tokens   right where the text
        ioi         1        has the right name anywhere in it
        mcqa, arc   1        has a space and the right label anywhere in it
        arithmetic  3        has the result as its first number; "091" is 91
        ravel       2        has one of the right values anywhere in it, whatever its case,
                             without punctuation, or one of a few other names, such as "Korea"

    An example has one value: 1 right, 0 wrong, NaN where nothing is right. What a model writes
    after its end-of-text token does not count.

    Deviations from the public code: arithmetic has 3 tokens for every model (there 1 for
    Llama), and results of one digit are right as they are written; of the other names in RAVEL
    those of each value are looked at, not of the whole list; models are run in the precision
    they were loaded in.

    Raises:
        BadUsage: a model without a tokenizer.
    """
    asked = [row for row, prompt in enumerate(prompts) if prompt.answers]
    texts = written(model, [prompts[row].text for row in asked], scoring.tokens, progress=progress)
    values = np.full(len(prompts), np.nan)
    for row, text in zip(asked, texts, strict=True):
        values[row] = scoring.right(text, prompts[row].answers)
    return values


def accuracy_columns(
    model: Model,
    examples: Sequence[Example],
    kinds: Sequence[str],
    rules: Scoring | None,
    progress: Progress,
) -> dict[str, Float[np.ndarray, "n"]]:
    """Return the values of each kind of prompt for every example; NaN if it has none.

    All kinds are scored together, because the prompts of an example have much in common.

    Args:
        kinds: "original", and kinds of counterfactuals.
        rules: for MIB's scoring beside the exact one.
    """
    there = [
        (kind, row, prompt)
        for kind in kinds
        for row, example in enumerate(examples)
        if (prompt := example.prompt if kind == ORIGINAL else example.counterfactuals.get(kind))
        and prompt.answers
    ]
    prompts = [prompt for _, _, prompt in there]
    scored = score_prompts(model, prompts, progress=progress)
    scores = {"greedy": scored.greedy, "ranked": scored.ranked, "chance": scored.chance}
    if rules is not None:
        scores[MIB] = mib_scores(model, prompts, rules, progress=progress)
    columns: dict[str, Float[np.ndarray, "n"]] = {}
    for kind in kinds:
        mine = [place for place, (other, _, _) in enumerate(there) if other == kind]
        rows = [there[place][1] for place in mine]
        for name, values in scores.items():
            column = columns[f"{name}@{kind}"] = np.full(len(examples), np.nan)
            column[rows] = values[mine]
    return columns


def accuracy_measure(name: str, values: Float[np.ndarray, "n"], groups: Sequence[str]) -> Measure:
    """Return the mean of a column with its interval over groups of examples."""
    defined = ~np.isnan(values)
    n, left_out = int(defined.sum()), int((~defined).sum())
    value = float(values[defined].mean()) if n else float("nan")
    score, _, prompts = name.partition("@")
    interval = None
    if score != "chance":
        interval = proportion_interval(
            values[defined], [group for group, there in zip(groups, defined, strict=True) if there]
        )
    return measure_texts("accuracy").measure(
        f"{score}@{{prompts}}", value, interval, n=n, n_undefined=left_out, prompts=prompts
    )
