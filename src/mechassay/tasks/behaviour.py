"""Does a model do a task at all? Greedy and ranked-choice accuracy of prompts.

    greedy   the most likely token at every step spells a right answer, exactly  (MIB, table 1)
    ranked   of all choices, the one of the highest log-probability is right     (MIB, table 11)

A continuation of several tokens is scored as a sequence, log p = sum_t log p(token_t | before), in
one forward pass: greedy decoding writes an answer if and only if each of its tokens is the argmax
after those before it. Continuations that begin alike share their runs.

Where a tokenizer joins the end of a prompt with what follows ("is: " + "91" becomes " 91"), the
joined tokens are cut from the prompt and scored with the continuation; MIB's code appends them, in
a place where the model has never seen them.

A prompt without a right answer has NaN for both, one without choices NaN for ranked; a continuation
that adds no token is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.alignment import continued, encode
from mechassay.errors import BadPairs, BadUsage
from mechassay.examples import Prompt
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.models.trace import trace
from mechassay.progress import SILENT, Progress

Tokens = tuple[int, ...]
ROWS_OF_LOGITS = 64


@dataclass(frozen=True, eq=False)
class Behaviour:
    """What a model does with prompts, one value a prompt.

    Attributes:
        greedy, ranked: 1 right, 0 wrong, NaN undefined.
        chance: the share of the choices that is right; NaN without choices.
        said: the most likely next token, as text.
    """

    greedy: Float[np.ndarray, "n"]
    ranked: Float[np.ndarray, "n"]
    chance: Float[np.ndarray, "n"]
    said: tuple[str, ...]


@dataclass(frozen=True)
class _TokenQuestion:
    """A prompt's tokens, and its continuations as the tokens that follow."""

    tokens: Tokens
    answers: tuple[Tokens, ...]
    choices: tuple[Tokens, ...]

    @property
    def contexts(self) -> dict[Tokens, None]:
        """What continuations look like before each of their tokens; always the prompt itself."""
        beginnings = (
            rest[:end] for rest in (*self.answers, *self.choices) for end in range(len(rest))
        )
        return dict.fromkeys([(), *beginnings])


@dataclass(frozen=True)
class _ScoringRun:
    """A prompt with a prefix of its continuations, read at the ends of several contexts."""

    question: int
    tokens: Tokens
    contexts: tuple[Tokens, ...]


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
    answered = _run(model, questions, progress)
    greedy, ranked, chance = np.full((3, len(prompts)), np.nan)
    for row, (question, said) in enumerate(zip(questions, answered, strict=True)):
        if question.answers:
            greedy[row] = any(
                all(said[answer[:end]].best == token for end, token in enumerate(answer))
                for answer in question.answers
            )
        if question.answers and question.choices:
            best = max(question.choices, key=lambda choice: _log_prob(choice, said))
            ranked[row] = best in question.answers
            chance[row] = np.mean([choice in question.answers for choice in question.choices])
    assert model.tokenizer is not None
    words = model.tokenizer.batch_decode([[said[()].best] for said in answered])
    return Behaviour(greedy, ranked, chance, tuple(words))


def log_probabilities(
    model: Model, prompts: Sequence[Prompt], *, progress: Progress = SILENT
) -> list[dict[str, float]]:
    """The log-probability (nats) of every answer and choice of each prompt, as a sequence of
    tokens.
    """
    needs_model(model, "log_probabilities")
    questions = _questions(model, prompts)
    scored: list[dict[str, float]] = []
    for prompt, question, said in zip(
        prompts, questions, _run(model, questions, progress), strict=True
    ):
        texts = (*prompt.answers, *prompt.choices)
        rests = zip(texts, (*question.answers, *question.choices), strict=True)
        scored.append({text: _log_prob(rest, said) for text, rest in rests})
    return scored


@torch.no_grad()
def written(
    model: Model, texts: Sequence[str], n: int, *, progress: Progress = SILENT
) -> list[str]:
    """What a model writes after each text: up to `n` tokens, each the likeliest, up to end-of-text.

    Raises:
        BadUsage: a model without a tokenizer.
    """
    needs_model(model, "written")
    if not texts:
        return []
    tokenizer = model.tokenizer
    assert tokenizer is not None
    begun = [(*model.prepend, *tokens) for tokens in encode(tokenizer, texts)]
    rows = list(begun)
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    longest = max(map(len, rows)) + n
    size = max(1, token_budget(trace_bytes(model.decoder), longest, model.device) // longest)
    with progress.track("writing", len(rows)) as advance, out_of_memory_is_an_error("Writing"):
        for start in range(0, len(order), size):
            chunk = order[start : start + size]
            for _ in range(n):
                tokens = _likeliest(model, [rows[row] for row in chunk])
                for row, token in zip(chunk, tokens, strict=True):
                    rows[row] = (*rows[row], token)
            advance(len(chunk))
    end = tokenizer.eos_token_id
    kept = [
        row[: row.index(end, len(prompt))] if end in row[len(prompt) :] else row
        for row, prompt in zip(rows, begun, strict=True)
    ]
    before, after = (tokenizer.batch_decode([list(row) for row in each]) for each in (begun, kept))
    return [text[len(prompt) :] for prompt, text in zip(before, after, strict=True)]


def _likeliest(model: Model, rows: Sequence[Tokens]) -> list[int]:
    """The likeliest next token of each row."""
    last = _final(model, rows)[:, -1].split(ROWS_OF_LOGITS)
    best = [model.decoder.readout(part).all().argmax(dim=-1) for part in last]
    return torch.cat(best).tolist()


def _log_prob(rest: Tokens, said: Mapping[Tokens, _Next]) -> float:
    return sum(said[rest[:end]].log_probs[token] for end, token in enumerate(rest))


def _questions(model: Model, prompts: Sequence[Prompt]) -> list[_TokenQuestion]:
    assert model.tokenizer is not None
    own = encode(model.tokenizer, [prompt.text for prompt in prompts])
    said = [(*prompt.answers, *prompt.choices) for prompt in prompts]
    joined = [
        prompt.text + text for prompt, texts in zip(prompts, said, strict=True) for text in texts
    ]
    whole = iter(encode(model.tokenizer, joined))
    questions: list[_TokenQuestion] = []
    for prompt, texts, tokens in zip(prompts, said, own, strict=True):
        split = continued(tokens, [next(whole) for _ in texts] or [tokens], force=False)
        rests = split.rests if texts else ()
        for text, rest in zip(texts, rests, strict=True):
            if not rest:
                raise BadPairs(f"Prompt {prompt.text!r}: {text!r} written after it adds no token.")
        n, kept = len(prompt.answers), (*model.prepend, *tokens[: split.kept])
        questions.append(_TokenQuestion(kept, rests[:n], rests[n:]))
    return questions


def _runs(questions: Sequence[_TokenQuestion]) -> list[_ScoringRun]:
    """One run for every context that no longer one contains, with contexts not read before it."""
    runs: list[_ScoringRun] = []
    for number, question in enumerate(questions):
        left = question.contexts
        for longest in sorted(left, key=len, reverse=True):
            if longest not in left:
                continue
            prefixes = (longest[:end] for end in range(len(longest) + 1))
            inside = tuple(prefix for prefix in prefixes if prefix in left)
            runs.append(_ScoringRun(number, question.tokens + longest, inside))
            left = {context: None for context in left if context not in inside}
    return runs


def _run(
    model: Model, questions: Sequence[_TokenQuestion], progress: Progress
) -> list[dict[Tokens, _Next]]:
    """What the model says after every context of every question."""
    asked = [_asked(question) for question in questions]
    found: list[dict[Tokens, _Next]] = [{} for _ in questions]
    runs = sorted(_runs(questions), key=lambda run: len(run.tokens))
    longest = max((len(run.tokens) for run in runs), default=1)
    budget = token_budget(trace_bytes(model.decoder), longest, model.device)
    with (
        progress.track("scoring prompts", len(runs)) as advance,
        out_of_memory_is_an_error("Scoring prompts"),
    ):
        begin = 0
        while begin < len(runs):
            end = begin + 1
            while end < len(runs) and (end - begin + 1) * len(runs[end].tokens) <= budget:
                end += 1
            _run_chunk(model, runs[begin:end], asked, found)
            advance(end - begin)
            begin = end
    return found


def _asked(question: _TokenQuestion) -> dict[Tokens, list[int]]:
    """For each context, the tokens that continuations have after it."""
    tokens: dict[Tokens, dict[int, None]] = {context: {} for context in question.contexts}
    for rest in (*question.answers, *question.choices):
        for end, token in enumerate(rest):
            tokens[rest[:end]][token] = None
    return {context: list(found) for context, found in tokens.items()}


@torch.no_grad()
def _run_chunk(
    model: Model,
    runs: Sequence[_ScoringRun],
    asked: Sequence[Mapping[Tokens, list[int]]],
    found: list[dict[Tokens, _Next]],
) -> None:
    decoder, device = model.decoder, model.device
    final = _final(model, [run.tokens for run in runs])
    # A context that is n tokens short of its run's end is read n columns before the last.
    reads = [
        (row, len(run.contexts[-1]) - len(context), run.question, context)
        for row, run in enumerate(runs)
        for context in run.contexts
    ]
    for start in range(0, len(reads), ROWS_OF_LOGITS):
        part = reads[start : start + ROWS_OF_LOGITS]
        rows, back = (
            torch.tensor(column, device=device)
            for column in zip(*((row, back) for row, back, _, _ in part), strict=True)
        )
        logits = decoder.readout(final[rows, -1 - back]).all()
        best, total = logits.argmax(dim=-1).tolist(), logits.logsumexp(dim=-1)
        wanted = [asked[question][context] for _, _, question, context in part]
        width = max(1, *map(len, wanted))
        index = torch.tensor([ids + [0] * (width - len(ids)) for ids in wanted], device=device)
        values = (logits.gather(1, index) - total[:, None]).double().tolist()
        told = zip(part, best, wanted, values, strict=True)
        for (_, _, question, context), top, ids, line in told:
            found[question][context] = _Next(top, dict(zip(ids, line, strict=False)))


def _final(model: Model, rows: Sequence[Tokens]) -> Float[Tensor, "batch pos d_model"]:
    """The last residual stream of rows of tokens, padded on the left."""
    decoder, width = model.decoder, max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    ctx = decoder.context(mask.to(model.device))
    return trace(decoder, decoder.embed(tokens.to(model.device)), ctx).final
