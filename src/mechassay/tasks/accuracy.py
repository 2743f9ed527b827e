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

If choices tie for the highest log-probability, the prompt is right by the fraction of these choices
that are right. A prompt without a right answer has NaN for both, one without choices NaN for
ranked; a continuation that adds no token is refused.

A model that prefers some answers whatever the prompt is right, too. `score_prompts` therefore also
compares the choices of a prompt after other prompts (`exchanged`). `mib_scores` is MIB's own
scoring of what a model writes ("mib-2025"), which is laxer than equality.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage
from mechassay.models.ability import Ability, fraction_right
from mechassay.models.generation import ROWS_OF_LOGITS, Tokens, final_streams, generate, until_end
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.prompts.batch import contrasts
from mechassay.prompts.independence import grouped
from mechassay.prompts.pairs import Example, Prompt
from mechassay.prompts.tokenization import continued, encode
from mechassay.results.measures import measure_texts
from mechassay.results.records import Measure
from mechassay.stats.intervals import FEW_GROUPS, proportion_interval
from mechassay.tasks.scoring import NAME as MIB
from mechassay.tasks.scoring import Scoring
from mechassay.utils.display import SILENT, Progress
from mechassay.utils.frozen import frozen

Places = Sequence[int] | Int[np.ndarray, "others"]
NO_EXCHANGES: Mapping[int, Places] = frozen({})
ORIGINAL = "original"
"""The kind of the prompts that are no counterfactuals."""
MOST_EXCHANGED = 500
"""Prompts, evenly spaced in their order, after which the choices of other prompts are compared."""
MOST_READ = 2_000_000
"""Log-probabilities that are read after exchanged prompts, of all of them together."""
FEW_EXCHANGED = 5
"""The same for a prompt whose choices have several tokens, each of which is a forward pass."""


@dataclass(frozen=True, eq=False)
class Behaviour:
    """Answers of a model to prompts, one value for each prompt.

    Attributes:
        greedy, ranked: 1 right, 0 wrong, NaN undefined; ranked is between them if choices tie.
        tied: 1 if right and wrong choices tie; NaN without choices.
        chance: the fraction of the choices that is right; NaN without choices.
        exchanged: the mean of ranked, or without choices of greedy, after other prompts; NaN if no
            other prompt was given.
        predicted: the most likely next token, as text.
    """

    greedy: Float[np.ndarray, "n"]
    ranked: Float[np.ndarray, "n"]
    tied: Float[np.ndarray, "n"]
    chance: Float[np.ndarray, "n"]
    exchanged: Float[np.ndarray, "n"]
    predicted: tuple[str, ...]


@dataclass(frozen=True)
class _TokenQuestion:
    """A prompt's tokens, and its continuations as the tokens that follow."""

    tokens: Tokens
    answers: tuple[Tokens, ...]
    choices: tuple[Tokens, ...]

    @property
    def compared(self) -> tuple[Tokens, ...]:
        """The different choices, or the answers if there are no choices."""
        return tuple(dict.fromkeys(self.choices or self.answers))


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
    model: Model,
    prompts: Sequence[Prompt],
    *,
    exchanges: Mapping[int, Places] = NO_EXCHANGES,
    progress: Progress = SILENT,
) -> Behaviour:
    """Return greedy and ranked-choice scores of prompts.

    Args:
        exchanges: for a prompt, by its place, the places of prompts after which its choices are
            compared, too. If they have several tokens, `FEW_EXCHANGED` of these prompts are used.

    Raises:
        BadUsage: a model without a tokenizer.
        BadPairs: a continuation that adds no token to its prompt.
    """
    needs_model(model, "score_prompts")
    questions = _questions(model, prompts)
    exchanged = _Exchanged.of(model, questions, exchanges)
    predicted = _predictions(model, questions, exchanged, progress)
    greedy, ranked, tied, chance = np.full((4, len(prompts)), np.nan)
    for row, question in enumerate(questions):
        if question.answers:
            greedy[row] = _writes(question, question.tokens, predicted)
        if question.answers and question.choices:
            ranked[row] = _right(question, question.tokens, predicted)
            tied[row] = 0 < ranked[row] < 1
            chance[row] = np.mean([choice in question.answers for choice in question.compared])
    assert model.tokenizer is not None
    words = model.tokenizer.batch_decode(
        [[predicted[question.tokens].best] for question in questions]
    )
    scores = exchanged.scores(questions, predicted)
    return Behaviour(greedy, ranked, tied, chance, scores, tuple(words))


@dataclass(frozen=True)
class _Exchanged:
    """The prompts after which the choices of questions are compared, by the places of both.

    Attributes:
        one: of questions whose choices have one token each: all that were given.
        several: of other questions: a few, which differ from question to question.
        pool: the prompts of `one`.
        words: the tokens of all choices of `one`, which are read after each prompt of the pool.
    """

    one: Mapping[int, Sequence[int]]
    several: Mapping[int, Sequence[int]]
    pool: Sequence[int]
    words: Sequence[int]

    @classmethod
    def of(
        cls,
        model: Model,
        questions: Sequence[_TokenQuestion],
        exchanges: Mapping[int, Places],
    ) -> _Exchanged:
        one, several = dict[int, Places](), dict[int, Sequence[int]]()
        limit = model.decoder.longest
        for row, others in exchanges.items():
            longest = max(map(len, questions[row].compared))
            if longest == 1:
                one[row] = others
                continue
            fit = [
                int(other)
                for other in others
                if limit is None or len(questions[other].tokens) + longest - 1 <= limit
            ]
            n = min(FEW_EXCHANGED, len(fit))
            several[row] = [fit[(row + k * len(fit) // n) % len(fit)] for k in range(n)]
        pool = np.unique(np.concatenate([np.empty(0, int), *map(np.asarray, one.values())]))
        with_choices = [row for row in one if questions[row].choices]
        words = sorted({token for row in with_choices for (token,) in questions[row].compared})
        # So many words are read after fewer prompts.
        n_most = max(FEW_GROUPS, MOST_READ // max(1, len(words)))
        pool = pool[:: math.ceil(max(1, len(pool)) / n_most)].tolist()
        left = {row: np.intersect1d(own, pool).tolist() for row, own in one.items()}
        return cls({row: own for row, own in left.items() if own}, several, pool, words)

    def scores(
        self, questions: Sequence[_TokenQuestion], predicted: Mapping[Tokens, _Next]
    ) -> Float[np.ndarray, "n"]:
        """Return the mean score of each question after its prompts; NaN without prompts."""
        scores = np.full(len(questions), np.nan)
        for row, others in self.several.items():
            own = [_right(questions[row], questions[x].tokens, predicted) for x in others]
            scores[row] = np.mean(own) if own else np.nan
        after = [predicted[questions[place].tokens] for place in self.pool]
        values = np.array([[own.log_probs[word] for word in self.words] for own in after])
        best = np.array([own.best for own in after])
        place_of = {place: n for n, place in enumerate(self.pool)}
        column_of = {word: n for n, word in enumerate(self.words)}
        for row, others in self.one.items():
            question, rows = questions[row], [place_of[place] for place in others]
            choices = question.compared
            if question.choices:
                columns = [column_of[word] for (word,) in choices]
                is_answer = np.array([choice in question.answers for choice in choices])
                scores[row] = fraction_right(values[np.ix_(rows, columns)], is_answer).mean()
            else:
                scores[row] = np.isin(best[rows], [word for (word,) in choices]).mean()
        return scores


def _right(question: _TokenQuestion, prompt: Tokens, predicted: Mapping[Tokens, _Next]) -> float:
    """Return the score of a question after its own or another prompt; ties as `fraction_right`."""
    if not question.choices:
        return float(_writes(question, prompt, predicted))
    choices = question.compared
    values = np.array([[_log_prob(prompt, choice, predicted) for choice in choices]])
    is_answer = np.array([choice in question.answers for choice in choices])
    return float(fraction_right(values, is_answer)[0])


def _writes(question: _TokenQuestion, prompt: Tokens, predicted: Mapping[Tokens, _Next]) -> bool:
    """Return whether the likeliest tokens after a prompt spell an answer of a question."""
    return any(
        all(predicted[prompt + answer[:end]].best == token for end, token in enumerate(answer))
        for answer in question.answers
    )


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
    begun = token_ids(model, texts)
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


def token_ids(model: Model, texts: Sequence[str]) -> list[Tokens]:
    """Return the tokens of each text, with those that the model has before every prompt.

    Raises:
        BadUsage: a model without a tokenizer.
        BadPairs: a text without a token.
    """
    tokenizer = needs_model(model, "token_ids").tokenizer
    assert tokenizer is not None
    model.check_unchanged()
    rows = [(*model.prepend, *tokens) for tokens in encode(tokenizer, texts)]
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
    model: Model,
    questions: Sequence[_TokenQuestion],
    exchanged: _Exchanged,
    progress: Progress,
) -> dict[Tokens, _Next]:
    """What the model says after every prompt, and after what continuations look like before each
    of their tokens.
    """
    asked = _asked(questions, exchanged)
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


def _asked(
    questions: Sequence[_TokenQuestion], exchanged: _Exchanged
) -> dict[Tokens, dict[int, None]]:
    """Every context of all questions, and the tokens that continuations have after it."""
    asked: dict[Tokens, dict[int, None]] = {}
    for row, question in enumerate(questions):
        asked.setdefault(question.tokens, {})
        prompts = [(question.tokens, (*question.answers, *question.choices))]
        prompts += [
            (questions[x].tokens, question.compared) for x in exchanged.several.get(row, ())
        ]
        for prompt, rests in prompts:
            for rest in rests:
                for end, token in enumerate(rest):
                    asked.setdefault(prompt + rest[:end], {})[token] = None
    words = dict.fromkeys(exchanged.words)
    for place in exchanged.pool:
        asked[questions[place].tokens] |= words
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


@dataclass(frozen=True, eq=False)
class TaskAccuracy:
    """Accuracy of a model on the examples of a task.

    Attributes:
        columns: by score and kind of prompt ("ranked@original"), a value for each example; NaN if
            it has no such prompt, or no right answer there.
        groups: by kind, the independent unit of each example: examples of one group of their task,
            or whose prompts of this kind have the same tokens.
        ability: the same of the original prompts with what ignoring the prompt reaches; None if no
            original prompt has a right answer.
    """

    columns: Mapping[str, Float[np.ndarray, "n"]]
    groups: Mapping[str, tuple[str, ...]]
    ability: Ability | None


def task_accuracy(
    model: Model,
    examples: Sequence[Example],
    kinds: Sequence[str],
    rules: Scoring | None = None,
    progress: Progress = SILENT,
) -> TaskAccuracy:
    """Score the prompts of examples, all kinds together, as prompts of an example have much in
    common.

    The choices of an original prompt are also compared after the original prompts of other groups,
    and after their counterfactual prompts of the first kind, without those known to have the same
    answers, after which a model that reads the prompt is right.

    Args:
        kinds: "original", then kinds of counterfactuals.
        rules: for MIB's scoring next to the exact one.
    """
    there = [
        (kind, row, prompt)
        for number, kind in enumerate(kinds)
        for row, example in enumerate(examples)
        if (prompt := example.prompt if kind == ORIGINAL else example.counterfactuals.get(kind))
        and (prompt.answers or (number < 2 and _fits(model, prompt)))
    ]
    # After an exchanged prompt, which needs no answers, the choices of other prompts are compared.
    prompts = [prompt if prompt.answers else Prompt(prompt.text) for _, _, prompt in there]
    tokens = token_ids(model, [prompt.text for prompt in prompts])
    names = [example.group or example.id for example in examples]
    places = {
        kind: {there[n][1]: n for n in range(len(there)) if there[n][0] == kind} for kind in kinds
    }
    groups: dict[str, tuple[str, ...]] = {}
    for kind, own in places.items():
        in_groups = grouped([names[row] for row in own], [tokens[n] for n in own.values()])
        of_row = dict(zip(own, in_groups, strict=True))
        groups[kind] = tuple(of_row.get(row, name) for row, name in enumerate(names))
    exchanges = _exchanges(there, groups[kinds[0]], kinds)
    scored = score_prompts(model, prompts, exchanges=exchanges, progress=progress)
    scores = {"greedy": scored.greedy, "ranked": scored.ranked, "chance": scored.chance}
    if rules is not None:
        scores[MIB] = mib_scores(model, prompts, rules, progress=progress)
    columns: dict[str, Float[np.ndarray, "n"]] = {}
    for kind, own in places.items():
        for name, values in scores.items():
            column = columns[f"{name}@{kind}"] = np.full(len(examples), np.nan)
            column[list(own)] = values[list(own.values())]
    ability = _ability(examples, scored, places, tokens, groups, kinds)
    return TaskAccuracy(columns, groups, ability)


def _fits(model: Model, prompt: Prompt) -> bool:
    """Return whether a prompt has tokens, and no more than the model has positions."""
    assert model.tokenizer is not None
    n = len(model.prepend) + len(encode(model.tokenizer, [prompt.text])[0])
    return 0 < n <= (model.decoder.longest or n)


def _exchanges(
    there: Sequence[tuple[str, int, Prompt]], groups: Sequence[str], kinds: Sequence[str]
) -> dict[int, Int[np.ndarray, "others"]]:
    """Return for each original prompt the prompts of other groups, original ones and those of the
    first kind of counterfactual, that are not known to have the same answers.
    """
    every = [place for place, (kind, _, _) in enumerate(there) if kind in kinds[:2]]
    step = max(1.0, len(every) / MOST_EXCHANGED)
    pool = [every[int(n * step)] for n in range(min(len(every), MOST_EXCHANGED))]
    of = np.array([groups[there[place][1]] for place in pool])
    keys = np.array([str(sorted(there[place][2].answers)) for place in pool])
    places = np.array(pool)
    exchanges: dict[int, Int[np.ndarray, "others"]] = {}
    for place, (kind, row, prompt) in enumerate(there):
        if kind == kinds[0] and prompt.answers:
            other = (of != groups[row]) & (keys != str(sorted(prompt.answers)))
            exchanges[place] = places[other]
    return exchanges


def _ability(
    examples: Sequence[Example],
    scored: Behaviour,
    places: Mapping[str, Mapping[int, int]],
    tokens: Sequence[Tokens],
    groups: Mapping[str, tuple[str, ...]],
    kinds: Sequence[str],
) -> Ability | None:
    """Return the accuracy by ranked choice, or of free answers by what the model writes."""
    original, other = places[kinds[0]], places[kinds[1]] if len(kinds) > 1 else {}
    ranked = {row: place for row, place in original.items() if np.isfinite(scored.ranked[place])}
    greedy = {row: place for row, place in original.items() if np.isfinite(scored.greedy[place])}
    asked, values = (ranked, scored.ranked) if ranked else (greedy, scored.greedy)
    if not asked:
        return None
    rows, own = list(asked), list(asked.values())
    here = [other.get(row) for row in rows]
    words = contrasts(
        [tokens[place] for place in own],
        [() if n is None else tokens[n] for n in here],
        [str(sorted(examples[row].prompt.answers)) for row in rows],
    )
    return Ability(
        right=values[own],
        exchanged=scored.exchanged[own],
        tied=np.nan_to_num(scored.tied[own]),
        chance=np.nan_to_num(scored.chance[own]),
        contrasts=words,
        groups=tuple(groups[kinds[0]][row] for row in rows),
        ids=tuple(examples[row].id for row in rows),
    )


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
