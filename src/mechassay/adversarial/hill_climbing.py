"""Search for pairs that are worse than those of a sample, by changing one field after the other.

1. Successive halving of the clean pool, unless a sample of the pools is given. Each prompt is
   evaluated against a few corrupted ones; the half with the worst pairs goes on, against twice
   as many others, until few prompts or no others are left.

2. Starts are the worst pairs of this, no two with a prompt in common, and after them random
   pairs of the pools with random values in some random fields.

3. From each start, coordinate ascent: all pairs that differ in one field of the clean or of the
   corrupted prompt are evaluated together, and the worst one is next. If there are many, random
   batches are evaluated until one has a worse pair. A pair that no change makes worse is a local
   maximum.

No pair is evaluated twice, and the search ends with its budget. Its result is the divergence of
an existing pair, a LOWER BOUND on the maximum. Beside it stands what random sampling finds with
as many evaluations: the expected maximum of so many pairs of the sample, drawn without
replacement, or the maximum of so many random pairs of the pools.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.options import BUDGET, RESTARTS, STARTS
from mechassay.adversarial.pools import Pool, tokenized, worst_apart
from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadUsage
from mechassay.models.model import Model
from mechassay.prompts.pairs import Prompt
from mechassay.prompts.tokenization import Span
from mechassay.stats.distribution import expected_maximum
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, SILENT, Advance, OneLine, Progress

FieldValues = Mapping[str, Sequence[str]]
"""The possible texts of prompts' parts, by name."""
NO_VALUES: FieldValues = MappingProxyType({})


@dataclass(frozen=True)
class Edit:
    """A changed prompt, and the change in words: "name_A, name_C: Ann -> Bob"."""

    prompt: Prompt
    change: str


@checked
def field_values(
    prompts: Iterable[Prompt], more: FieldValues = NO_VALUES
) -> dict[str, tuple[str, ...]]:
    """The texts that every part has in some prompt, and more, by name, in order of appearance."""
    values: dict[str, dict[str, None]] = {}
    for prompt in prompts:
        for name in prompt.spans:
            values.setdefault(name, {})[prompt.part(name)] = None
    for name, texts in more.items():
        values.setdefault(name, {}).update(dict.fromkeys(texts))
    return {name: tuple(texts) for name, texts in values.items()}


@checked
def single_field_edits(prompt: Prompt, values: FieldValues) -> list[Edit]:
    """All prompts that differ from a prompt in one field, and fit its template as it does.

    The fields of a prompt are its parts (`Prompt.spans`). Parts with the same text are one
    field: a name that comes twice is changed at both places, so a prompt keeps what makes it
    one of its task (the last name is one of the first two, the century is written twice). A
    field takes the values that each of its parts has in some prompt, but none that another part
    of the prompt has already: two people do not become one. A part that contains other parts is
    not changed itself; they are. The changed prompts have no answers: the right continuation is
    not known here.
    """
    spans = set(prompt.spans.values())
    fields: dict[str, set[Span]] = {}
    for begin, end in spans:
        fields.setdefault(prompt.text[begin:end], set()).add((begin, end))
    edits: list[Edit] = []
    for old in dict.fromkeys(prompt.part(name) for name in prompt.spans):
        if not all(_is_innermost(span, spans) for span in fields[old]):
            continue
        names = [name for name, span in prompt.spans.items() if span in fields[old]]
        common = set.intersection(*(set(values.get(name, ())) for name in names))
        edits += [
            Edit(_with_text(prompt, fields[old], new), f"{', '.join(names)}: {old} -> {new}")
            for new in dict.fromkeys(values.get(names[0], ()))
            if new and new in common and new not in fields
        ]
    return edits


def _is_innermost(span: Span, spans: set[Span]) -> bool:
    """Whether no other part begins or ends inside."""
    begin, end = span
    overlapping = (
        other for other in spans if other != span and other[0] < end and begin < other[1]
    )
    return begin < end and all(a <= begin and end <= b for a, b in overlapping)


def _with_text(prompt: Prompt, places: set[Span], new: str) -> Prompt:
    """The prompt with a new text at some places; its other parts move along."""

    def moved(place: int) -> int:
        return place + sum(len(new) - (end - begin) for begin, end in places if end <= place)

    text, rest = "", 0
    for begin, end in sorted(places):
        text, rest = text + prompt.text[rest:begin] + new, end
    return Prompt(
        text + prompt.text[rest:],
        spans={name: (moved(begin), moved(end)) for name, (begin, end) in prompt.spans.items()},
    )


class TokenizedPrompt(NamedTuple):
    """A prompt and its tokens."""

    prompt: Prompt
    tokens: tuple[int, ...]


class Neighbours:
    """Edits of a prompt that have as many tokens as it, and no more that are unknown."""

    def __init__(self, model: Model, values: FieldValues) -> None:
        self.model, self.values = model, values
        self._known: dict[str, list[tuple[str, TokenizedPrompt]]] = {}

    def of(self, text: TokenizedPrompt) -> list[tuple[str, TokenizedPrompt]]:
        """Each with the change in words."""
        if text.prompt.text not in self._known:
            edits = single_field_edits(text.prompt, self.values)
            assert self.model.tokenizer is not None
            unknown = self.model.tokenizer.unk_token_id
            assert unknown is None or isinstance(unknown, int)
            ids = tokenized(self.model, [edit.prompt.text for edit in edits])
            self._known[text.prompt.text] = [
                (edit.change, TokenizedPrompt(edit.prompt, tuple(tokens)))
                for edit, tokens in zip(edits, ids, strict=True)
                if len(tokens) == len(text.tokens)
                and (unknown is None or tokens.count(unknown) <= text.tokens.count(unknown))
            ]
        return self._known[text.prompt.text]


KICKS = 4
"""Random changes of each prompt of a restart."""
PARTNERS = 4
"""Corrupted prompts for each clean one in the first round of halving."""
HALVING_SHARE = 0.5
"""Most of the budget that halving may use."""
CANDIDATES = 1024
"""Changed pairs evaluated before one of them is taken."""
LEAST_GAIN = 1e-5
"""Rounding of a divergence in fp32: a pair that is larger by less is not worse."""


class Step(NamedTuple):
    """One change of a climb.

    Attributes:
        change: in words; empty for the start.
        kl: of the pair it led to, in nats.
        evaluations: pairs evaluated so far, in the whole search.
    """

    change: str
    kl: float
    evaluations: int


@dataclass(frozen=True, repr=False)
class Climb(OneLine):
    """One start and the changes that led from it to worse pairs.

    Attributes:
        clean, corrupted: the pair where it ended.
        steps: the start, and then every change.
        is_local_maximum: no change of one field leads to a worse pair; False if the search ended
            before that was known.
    """

    clean: Prompt
    corrupted: Prompt
    steps: tuple[Step, ...]
    is_local_maximum: bool

    @property
    def kl(self) -> float:
        """The divergence of the pair, in nats."""
        return self.steps[-1].kl

    def as_dict(self) -> dict[str, Any]:
        """The climb as plain JSON values."""
        return {
            "clean": self.clean.text,
            "corrupted": self.corrupted.text,
            "kl": self.kl,
            "is_local_maximum": self.is_local_maximum,
            "steps": [step._asdict() for step in self.steps],
        }


class RandomBest(NamedTuple):
    """The largest divergence of random pairs of the pools, and how many; NaN if not asked for."""

    kl: float
    pairs: int


@dataclass(frozen=True, repr=False)
class SearchResult(OneLine):
    """The result of a search.

    Attributes:
        climbs: one for each start, the worst pair first.
        evaluations: pairs evaluated, those of the halving included.
        random: what random sampling finds with as many evaluations.
        finished: False if it was interrupted.
    """

    climbs: tuple[Climb, ...]
    evaluations: int
    random: RandomBest
    finished: bool

    @property
    def best(self) -> Climb:
        """The climb that ended at the worst pair."""
        return self.climbs[0]

    @property
    def lower_bound(self) -> float:
        """The largest divergence found, in nats: the maximum over all pairs is at least this."""
        return self.best.kl

    def as_dict(self) -> dict[str, Any]:
        """The result as plain JSON values; without a comparison `random` is null."""
        random = None if math.isnan(self.random.kl) else self.random._asdict()
        return {
            "lower_bound": self.lower_bound,
            "evaluations": self.evaluations,
            "random": random,
            "finished": self.finished,
            "climbs": [climb.as_dict() for climb in self.climbs],
        }

    def __str__(self) -> str:
        text = bound_text(self.lower_bound, self.evaluations, *self.random)
        return text if self.finished else f"{text}; interrupted"


def bound_text(kl: float, evaluations: int, random: float = math.nan, pairs: int = 0) -> str:
    """A lower bound, and what random sampling of so many pairs found; NaN if not asked for."""
    text = f"lower bound on the maximum: {kl:.6g} nats, after {evaluations:,} pairs"
    return text if math.isnan(random) else f"{text} (random sampling: {random:.6g} with {pairs:,})"


@checked
def search(
    model: Model,
    circuit: Circuit,
    clean: Pool,
    corrupted: Pool,
    *,
    sample: Float[np.ndarray, "clean corrupted"] | None = None,
    budget: int = BUDGET,
    starts: int = STARTS,
    restarts: int = RESTARTS,
    values: FieldValues = NO_VALUES,
    compare: bool = True,
    seed: int = 0,
    progress: Progress = BAR,
) -> SearchResult:
    """Look for pairs of prompts for which the circuit diverges from the model as much as possible.

    An interrupt (Ctrl-C) ends the search with the result of the last complete step.

    Args:
        clean, corrupted: prompts to start from, unchanged or with changed fields.
        sample: divergences of the grid of these pools, if known (`evaluate_pairs`).
        budget: most pairs to evaluate. Without a sample, the comparison with random sampling takes
            as many again.
        starts: climbs from the worst pairs of the sample, or of the halving.
        restarts: climbs after these, from random pairs.
        values: more values of fields, by name.
        compare: also sample at random.

    Raises:
        BadUsage: a budget or number of starts below 1, pools of different lengths, or a sample of
            another shape.
        GraphMismatch: the circuit belongs to another graph than the model's.
        BadPairs: the model has no tokenizer.
        NonFinite: a divergence is NaN or infinite.
        KeyboardInterrupt: nothing was evaluated before it.
    """
    if budget < 1 or starts < 1 or restarts < 0:
        raise BadUsage(
            f"A search needs a budget and starts of 1 or more; got {budget} and {starts}, with"
            f" {restarts} restarts."
        )
    if sample is not None and sample.shape != (len(clean), len(corrupted)):
        raise BadUsage(
            f"The sample must have the shape {(len(clean), len(corrupted))} of the pools; got"
            f" {sample.shape}."
        )
    rng = np.random.default_rng(seed)
    neighbours = Neighbours(model, field_values((*clean.prompts, *corrupted.prompts), values))
    with progress.track("searching for worse pairs", budget) as advance:
        evaluator = _Evaluator(model, circuit, budget, advance)
        run = _Ascent(evaluator, neighbours, clean, corrupted, rng)
        finished = run.finishes(sample, starts, restarts)
    climbs = tuple(sorted((climb.result() for climb in run.climbs), key=lambda climb: -climb.kl))
    best, used = RandomBest(math.nan, 0), evaluator.used
    if finished and compare:
        try:
            best = _random_best(model, circuit, (clean, corrupted), sample, used, rng, progress)
        except KeyboardInterrupt:
            finished = False
    return SearchResult(climbs, used, best, finished)


class _Evaluator:
    """Divergences of pairs, none of them evaluated twice, until the budget is used up."""

    def __init__(self, model: Model, circuit: Circuit, budget: int, advance: Advance) -> None:
        self.model, self.circuit, self.budget, self.advance = model, circuit, budget, advance
        self.known: dict[tuple[str, str], float] = {}

    @property
    def used(self) -> int:
        return len(self.known)

    @property
    def left(self) -> int:
        return self.budget - self.used

    def grid(self, clean: Pool, corrupted: Pool) -> Float[np.ndarray, "clean corrupted"]:
        """All combinations of some prompts, none of which is known."""
        values = self._evaluate(clean, corrupted, grid=True)
        names = [(a.text, b.text) for a in clean.prompts for b in corrupted.prompts]
        self._note(names, values.reshape(-1))
        return values

    def pairs(
        self, pairs: Sequence[tuple[TokenizedPrompt, TokenizedPrompt]], rng: np.random.Generator
    ) -> Float[np.ndarray, "pairs"]:
        """The divergence of each pair; NaN for random ones where the budget does not suffice."""
        names = [(clean.prompt.text, corrupted.prompt.text) for clean, corrupted in pairs]
        pair_of = dict(zip(names, pairs, strict=True))
        new = [name for name in pair_of if name not in self.known]
        if len(new) > self.left:
            new = [new[place] for place in rng.choice(len(new), self.left, replace=False).tolist()]
        if new:
            clean, corrupted = (_pool([pair_of[name][side] for name in new]) for side in (0, 1))
            self._note(new, self._evaluate(clean, corrupted, grid=False))
        return np.array([self.known.get(name, math.nan) for name in names])

    def _evaluate(self, clean: Pool, corrupted: Pool, *, grid: bool) -> Float[np.ndarray, "*pairs"]:
        return evaluate_pairs(
            self.model, [self.circuit], clean, corrupted, grid=grid, progress=SILENT
        ).circuits[0]

    def _note(self, names: Sequence[tuple[str, str]], values: Float[np.ndarray, "pairs"]) -> None:
        self.known.update(zip(names, values.tolist(), strict=True))
        self.advance(len(names))


class _Climbing:
    """A climb on its way."""

    def __init__(
        self, clean: TokenizedPrompt, corrupted: TokenizedPrompt, kl: float, evaluations: int
    ) -> None:
        self.clean, self.corrupted = clean, corrupted
        self.steps = [Step("", kl, evaluations)]
        self.is_local_maximum = False

    def result(self) -> Climb:
        return Climb(
            self.clean.prompt, self.corrupted.prompt, tuple(self.steps), self.is_local_maximum
        )


class _Ascent:
    """The search so far; an interrupt leaves it as it was before the interrupted step."""

    def __init__(
        self,
        evaluator: _Evaluator,
        neighbours: Neighbours,
        clean: Pool,
        corrupted: Pool,
        rng: np.random.Generator,
    ) -> None:
        self.evaluator, self.neighbours, self.rng = evaluator, neighbours, rng
        self.pools = (clean, corrupted)
        self.climbs: list[_Climbing] = []

    def finishes(
        self, sample: Float[np.ndarray, "clean corrupted"] | None, starts: int, restarts: int
    ) -> bool:
        """Search to the end; False if it was interrupted."""
        values = np.full(tuple(map(len, self.pools)), np.nan) if sample is None else sample
        try:
            if sample is None:
                self._halve(values, starts)
            for row, column in _worst(values, starts):
                if not self._climb(self._text(0, row), self._text(1, column)):
                    return True
            for _ in range(restarts):
                if not self._climb(self._random_text(0), self._random_text(1)):
                    return True
        except KeyboardInterrupt:
            if sample is None and not self.climbs:
                self.climbs += [
                    _Climbing(
                        self._text(0, row),
                        self._text(1, column),
                        float(values[row, column]),
                        self.evaluator.used,
                    )
                    for row, column in _worst(values, 1)
                ]
            if not self.climbs:
                raise
            return False
        return True

    def _halve(self, values: Float[np.ndarray, "clean corrupted"], fewest: int) -> None:
        """Fill in part of the grid: ever fewer clean prompts against ever more corrupted ones."""
        rows, columns = (np.array(_distinct(pool)) for pool in self.pools)
        rows, columns = self.rng.permutation(rows), self.rng.permutation(columns)
        reserved = self.evaluator.budget - max(1, int(HALVING_SHARE * self.evaluator.budget))
        begin, width = 0, PARTNERS
        while begin < len(columns) and (left := self.evaluator.left - reserved) > 0:
            others = columns[begin : begin + min(width, left)]
            chosen = rows[: left // len(others)]
            clean, corrupted = self.pools
            values[np.ix_(chosen, others)] = self.evaluator.grid(
                clean.select(chosen.tolist()), corrupted.select(others.tolist())
            )
            if len(chosen) <= fewest:
                break
            highest = np.nanmax(values[chosen], axis=1)
            rows = chosen[np.argsort(-highest, kind="stable")[: max(fewest, len(chosen) // 2)]]
            begin, width = begin + len(others), 2 * width

    def _text(self, side: int, row: int) -> TokenizedPrompt:
        pool = self.pools[side]
        return TokenizedPrompt(pool.prompts[row], tuple(pool.tokens[row].tolist()))

    def _random_text(self, side: int) -> TokenizedPrompt:
        """A random prompt of a pool, changed at random."""
        text = self._text(side, int(self.rng.integers(len(self.pools[side]))))
        for _ in range(KICKS):
            if others := self.neighbours.of(text):
                _, text = others[int(self.rng.integers(len(others)))]
        return text

    def _climb(self, clean: TokenizedPrompt, corrupted: TokenizedPrompt) -> bool:
        """Climb from a pair; False if the budget does not suffice."""
        (kl,) = self.evaluator.pairs([(clean, corrupted)], self.rng).tolist()
        if math.isnan(kl):
            return False
        climb = _Climbing(clean, corrupted, kl, self.evaluator.used)
        self.climbs.append(climb)
        while self._step(climb):
            pass
        return climb.is_local_maximum

    def _step(self, climb: _Climbing) -> bool:
        """Take the change to the worst pair, or to the worst of many; False if none is worse."""
        clean, corrupted = climb.clean, climb.corrupted
        moves = [(f"clean {change}", text, corrupted) for change, text in self.neighbours.of(clean)]
        moves += [
            (f"corrupted {change}", clean, text) for change, text in self.neighbours.of(corrupted)
        ]
        order = range(len(moves))
        if len(moves) > CANDIDATES:
            order = self.rng.permutation(len(moves)).tolist()
        for begin in range(0, len(moves), CANDIDATES):
            batch = [moves[place] for place in order[begin : begin + CANDIDATES]]
            values = self.evaluator.pairs([move[1:] for move in batch], self.rng)
            best = int(np.argmax(np.where(np.isnan(values), -np.inf, values)))
            if values[best] > climb.steps[-1].kl + LEAST_GAIN:
                change, climb.clean, climb.corrupted = batch[best]
                climb.steps.append(Step(change, float(values[best]), self.evaluator.used))
                return True
            if np.isnan(values).any():
                return False
        climb.is_local_maximum = True
        return False


def _worst(values: Float[np.ndarray, "clean corrupted"], count: int) -> list[tuple[int, int]]:
    return [divmod(place, values.shape[1]) for place in worst_apart(values, count).tolist()]


def _random_best(
    model: Model,
    circuit: Circuit,
    pools: tuple[Pool, Pool],
    sample: Float[np.ndarray, "clean corrupted"] | None,
    draws: int,
    rng: np.random.Generator,
    progress: Progress,
) -> RandomBest:
    """The maximum of as many random pairs of the pools."""
    clean, corrupted = pools
    draws = min(draws, len(clean) * len(corrupted))
    if sample is not None:
        return RandomBest(expected_maximum(sample, draws), draws)
    places = rng.choice(len(clean) * len(corrupted), draws, replace=False)
    rows, columns = np.divmod(places, len(corrupted))
    drawn = clean.select(rows.tolist()), corrupted.select(columns.tolist())
    values = evaluate_pairs(model, [circuit], *drawn, grid=False, progress=progress).circuits
    return RandomBest(float(values.max()), draws)


def _distinct(pool: Pool) -> list[int]:
    """The first prompt of each text."""
    first: dict[str, int] = {}
    for row, prompt in enumerate(pool.prompts):
        first.setdefault(prompt.text, row)
    return list(first.values())


def _pool(texts: Sequence[TokenizedPrompt]) -> Pool:
    return Pool(tuple(text.prompt for text in texts), torch.tensor([text.tokens for text in texts]))
