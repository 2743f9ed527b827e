"""Search for pairs that are worse than those of a sample,
by changing one field of a prompt after the other.

The largest divergence of a sample says little about the largest there is: it is no upper bound, and
as a lower bound it is weak, because a sample has few of the very worst pairs. Template fields give
a better lower bound for the same number of evaluations:

1. Successive halving of the clean pool. Each prompt is evaluated against a few corrupted ones; the
   half with the worst pairs so far goes on, against twice as many others, until few prompts or no
   others are left. With a sample of the pools that is there already (`sample`), this is not done.
2. The worst pairs of this, no two with a prompt in common, are starts, and after them random pairs
   of the pools in which some fields, drawn at random, have other values.
3. From each start, coordinate ascent: all pairs that differ from the pair in one field of the clean
   or of the corrupted prompt (`variants`) are evaluated together, and the worst one is next; where
   there are many, random parts of them are looked at until one has a worse pair. A pair from which
   no change leads to a worse one is a local maximum.

The values that a field may take are those of the pools, and others if they are given. Changed
prompts have as many tokens as the pools' prompts, none of them unknown to the tokenizer. Nothing is
evaluated twice. When the budget is used up, the search ends where it is. The result is the
divergence of a pair that exists: a LOWER BOUND on the maximum, and not a statement about how
probable such pairs are.

Beside it stands what plain random sampling finds with as many evaluations: the expected maximum of
that many pairs of the sample, drawn without replacement, or, without a sample, the maximum of that
many random pairs of the pools, evaluated for it.

Where a task's own pairs can be counted, `population.enumerate_pairs` evaluates all of them: their
maximum is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from mechassay.adversarial.climbs import Climb, RandomBest, SearchResult, Step
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool, tokenized
from mechassay.adversarial.variants import NO_VALUES, Values, values_of, variants
from mechassay.circuits.scores import Circuit
from mechassay.errors import BadUsage
from mechassay.examples import Prompt
from mechassay.models.model import Model
from mechassay.progress import BAR, SILENT, Advance, Progress

BUDGET = 20_000
STARTS, RESTARTS = 8, 8
KICKS = 4
"""Random changes of each prompt of a restart."""
PARTNERS = 4
"""Corrupted prompts that each clean one is evaluated against in the first round of halving."""
HALVING_SHARE = 0.5
"""Of the budget, at the most."""
CANDIDATES = 1024
"""Changed pairs that are looked at before one of them is taken."""
LEAST_GAIN = 1e-5
"""Rounding of a divergence in fp32: what exceeds the pair by less is not worse."""


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
    values: Values = NO_VALUES,
    compare: bool = True,
    seed: int = 0,
    progress: Progress = BAR,
) -> SearchResult:
    """Look for pairs of prompts for which the circuit diverges from the model as much as possible.

    An interrupt (Ctrl-C) ends the search with what was found before the step that it came in.

    Args:
        clean, corrupted: pools of prompts; a pair has one of each, or one that comes from it by
        changes of fields.
        sample: divergences of the grid of these pools that are there already (`evaluate_pairs`).
        budget: pairs to evaluate at the most. The comparison with random sampling takes as many
            again, if there is no sample.
        starts: climbs from the worst pairs of the sample, or of the halving.
        restarts: climbs after these, from random pairs.
        values: more values of fields, by name; words that no pool has.
        compare: say what random sampling finds.

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
    known = values_of((*clean.prompts, *corrupted.prompts), values)
    with progress.track("searching for worse pairs", budget) as advance:
        run = _Search(
            _Evaluator(model, circuit, budget, advance),
            _Neighbours(model, known),
            clean,
            corrupted,
            rng,
        )
        finished = run.finishes(sample, starts, restarts)
    climbs = tuple(sorted((each.result() for each in run.climbs), key=lambda climb: -climb.kl))
    best, used = RandomBest(math.nan, 0), run.evaluator.used
    if finished and compare:
        try:
            best = _random_best(model, circuit, (clean, corrupted), sample, used, rng, progress)
        except KeyboardInterrupt:
            finished = False
    return SearchResult(climbs, used, best, finished)


def expected_maximum(values: Float[np.ndarray, "*shape"], draws: int) -> float:
    """The expected maximum of that many of the values, drawn without replacement:
    of N the j-th largest is the maximum with

    P_j = C(N - j, n - 1) / C(N, n),    P_1 = n / N,    P_(j + 1) = P_j (N - j - n + 1) / (N - j).

    More draws than values are all of them.

    Raises:
        BadUsage: no draws, or no values.
    """
    if draws < 1 or not values.size:
        raise BadUsage(
            f"An expected maximum needs at least 1 draw of at least 1 value; got {draws} of"
            f" {values.size}."
        )
    falling = np.sort(values, axis=None)[::-1].astype(float)
    total, n = falling.size, min(draws, falling.size)
    j = np.arange(1, total - n + 1)
    shares = n / total * np.cumprod(np.concatenate(([1.0], (total - j - n + 1) / (total - j))))
    return float(shares @ falling[: len(shares)])


class _Text(NamedTuple):
    """A prompt and its tokens."""

    prompt: Prompt
    tokens: tuple[int, ...]


_Names = tuple[str, str]


class _Evaluator:
    """Divergences of pairs, none of them evaluated twice, until the budget is used up."""

    def __init__(self, model: Model, circuit: Circuit, budget: int, advance: Advance) -> None:
        self.model, self.circuit, self.budget, self.advance = model, circuit, budget, advance
        self.known: dict[_Names, float] = {}

    @property
    def used(self) -> int:
        return len(self.known)

    @property
    def left(self) -> int:
        return self.budget - self.used

    def grid(self, clean: Pool, corrupted: Pool) -> Float[np.ndarray, "clean corrupted"]:
        """All combinations of some prompts, none of which is known."""
        found = evaluate_pairs(
            self.model, [self.circuit], clean, corrupted, progress=SILENT
        ).circuits[0]
        self._note(
            [(a.text, b.text) for a in clean.prompts for b in corrupted.prompts], found.reshape(-1)
        )
        return found

    def pairs(
        self, pairs: Sequence[tuple[_Text, _Text]], rng: np.random.Generator
    ) -> Float[np.ndarray, "pairs"]:
        """The divergence of each pair. Where the budget does not suffice,
        some drawn at random are NaN.
        """
        named = {
            (clean.prompt.text, corrupted.prompt.text): (clean, corrupted)
            for clean, corrupted in pairs
        }
        new = [name for name in named if name not in self.known]
        if len(new) > self.left:
            new = [new[place] for place in rng.choice(len(new), self.left, replace=False).tolist()]
        if new:
            clean, corrupted = (_pool([named[name][side] for name in new]) for side in (0, 1))
            self._note(
                new,
                evaluate_pairs(
                    self.model, [self.circuit], clean, corrupted, grid=False, progress=SILENT
                ).circuits[0],
            )
        return np.array(
            [
                self.known.get((clean.prompt.text, corrupted.prompt.text), math.nan)
                for clean, corrupted in pairs
            ]
        )

    def _note(self, names: Sequence[_Names], values: Float[np.ndarray, "pairs"]) -> None:
        self.known.update(zip(names, values.tolist(), strict=True))
        self.advance(len(names))


class _Neighbours:
    """Prompts that differ from a prompt in one field and have as many tokens,
    all of them known to the tokenizer.
    """

    def __init__(self, model: Model, values: Values) -> None:
        self.model, self.values = model, values
        self.found: dict[str, list[tuple[str, _Text]]] = {}

    def of(self, text: _Text) -> list[tuple[str, _Text]]:
        """Each with the change in words."""
        if text.prompt.text not in self.found:
            self.found[text.prompt.text] = self._new(text)
        return self.found[text.prompt.text]

    def _new(self, text: _Text) -> list[tuple[str, _Text]]:
        changed = variants(text.prompt, self.values)
        assert self.model.tokenizer is not None
        unknown = self.model.tokenizer.unk_token_id
        assert unknown is None or isinstance(unknown, int)
        return [
            (each.change, _Text(each.prompt, tuple(tokens)))
            for each, tokens in zip(
                changed, tokenized(self.model, [each.prompt.text for each in changed]), strict=True
            )
            if len(tokens) == len(text.tokens)
            and (unknown is None or tokens.count(unknown) <= text.tokens.count(unknown))
        ]


class _Climbing:
    """A climb on its way."""

    def __init__(self, clean: _Text, corrupted: _Text, kl: float, evaluations: int) -> None:
        self.clean, self.corrupted = clean, corrupted
        self.steps = [Step("", kl, evaluations)]
        self.is_local_maximum = False

    def result(self) -> Climb:
        return Climb(
            self.clean.prompt, self.corrupted.prompt, tuple(self.steps), self.is_local_maximum
        )


class _Search:
    """The search as far as it is;
    an interrupt leaves it as it was before the step that was interrupted.
    """

    def __init__(
        self,
        evaluator: _Evaluator,
        neighbours: _Neighbours,
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
            for row, column in worst_apart(values, starts):
                if not self._climb(self._text(0, row), self._text(1, column)):
                    return True
            for _ in range(restarts):
                if not self._climb(self._anything(0), self._anything(1)):
                    return True
        except KeyboardInterrupt:
            if sample is None and not self.climbs:
                used = self.evaluator.used
                worst = worst_apart(values, 1)
                self.climbs += [
                    _Climbing(self._text(0, i), self._text(1, j), float(values[i, j]), used)
                    for i, j in worst
                ]
            if not self.climbs:
                raise
            return False
        return True

    def _halve(self, values: Float[np.ndarray, "clean corrupted"], fewest: int) -> None:
        """Fill in part of the grid: fewer and fewer clean prompts,
        those with the worst pairs so far, against more and more others.
        """
        rows, columns = (np.array(_distinct(pool)) for pool in self.pools)
        rows, columns = self.rng.permutation(rows), self.rng.permutation(columns)
        reserved = self.evaluator.budget - max(1, int(HALVING_SHARE * self.evaluator.budget))
        begin, width = 0, PARTNERS
        while begin < len(columns) and (left := self.evaluator.left - reserved) > 0:
            some = columns[begin : begin + min(width, left)]
            chosen = rows[: left // len(some)]
            clean, corrupted = self.pools
            values[np.ix_(chosen, some)] = self.evaluator.grid(
                clean.select(chosen.tolist()), corrupted.select(some.tolist())
            )
            if len(chosen) <= fewest:
                break
            highest = np.nanmax(values[chosen], axis=1)
            rows = chosen[np.argsort(-highest, kind="stable")[: max(fewest, len(chosen) // 2)]]
            begin, width = begin + len(some), 2 * width

    def _text(self, side: int, row: int) -> _Text:
        pool = self.pools[side]
        return _Text(pool.prompts[row], tuple(pool.tokens[row].tolist()))

    def _anything(self, side: int) -> _Text:
        """A random prompt of a pool, changed at random."""
        text = self._text(side, int(self.rng.integers(len(self.pools[side]))))
        for _ in range(KICKS):
            if others := self.neighbours.of(text):
                _, text = others[int(self.rng.integers(len(others)))]
        return text

    def _climb(self, clean: _Text, corrupted: _Text) -> bool:
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
        """The change that leads to the worst pair, or to the worst of many;
        False if none leads to a worse one.
        """
        clean, corrupted = climb.clean, climb.corrupted
        moves = [(f"clean {change}", text, corrupted) for change, text in self.neighbours.of(clean)]
        moves += [
            (f"corrupted {change}", clean, text) for change, text in self.neighbours.of(corrupted)
        ]
        order = (
            self.rng.permutation(len(moves)).tolist()
            if len(moves) > CANDIDATES
            else range(len(moves))
        )
        for begin in range(0, len(moves), CANDIDATES):
            batch = [moves[place] for place in order[begin : begin + CANDIDATES]]
            found = self.evaluator.pairs([(one, other) for _, one, other in batch], self.rng)
            best = int(np.argmax(np.where(np.isnan(found), -np.inf, found)))
            if found[best] > climb.steps[-1].kl + LEAST_GAIN:
                change, climb.clean, climb.corrupted = batch[best]
                climb.steps.append(Step(change, float(found[best]), self.evaluator.used))
                return True
            if np.isnan(found).any():
                return False
        climb.is_local_maximum = True
        return False


def worst_apart(values: Float[np.ndarray, "clean corrupted"], count: int) -> list[tuple[int, int]]:
    """The largest values of a grid, no two in one row or column; NaN is left out."""
    left = np.where(np.isnan(values), -np.inf, values)
    found: list[tuple[int, int]] = []
    while len(found) < min(count, *values.shape):
        row, column = map(int, np.unravel_index(int(np.argmax(left)), left.shape))
        if left[row, column] == -np.inf:
            break
        found.append((row, column))
        left[row], left[:, column] = -np.inf, -np.inf
    return found


def _random_best(
    model: Model,
    circuit: Circuit,
    pools: tuple[Pool, Pool],
    sample: Float[np.ndarray, "clean corrupted"] | None,
    draws: int,
    rng: np.random.Generator,
    progress: Progress,
) -> RandomBest:
    """What as many random pairs of the pools have at most."""
    clean, corrupted = pools
    draws = min(draws, len(clean) * len(corrupted))
    if sample is not None:
        return RandomBest(expected_maximum(sample, draws), draws)
    rows, columns = np.divmod(
        rng.choice(len(clean) * len(corrupted), draws, replace=False), len(corrupted)
    )
    drawn = clean.select(rows.tolist()), corrupted.select(columns.tolist())
    return RandomBest(
        float(
            evaluate_pairs(model, [circuit], *drawn, grid=False, progress=progress).circuits.max()
        ),
        draws,
    )


def _distinct(pool: Pool) -> list[int]:
    """The first prompt of each text."""
    first: dict[str, int] = {}
    for row, prompt in enumerate(pool.prompts):
        first.setdefault(prompt.text, row)
    return list(first.values())


def _pool(texts: Sequence[_Text]) -> Pool:
    return Pool(tuple(text.prompt for text in texts), torch.tensor([text.tokens for text in texts]))
