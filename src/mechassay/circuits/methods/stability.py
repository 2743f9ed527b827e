"""How much a circuit depends on the pairs that it was found on.

A method whose scores are means over pairs runs on P parts of them, groups of pairs staying whole.
Any weighting of the parts is then one more scoring without a forward pass. The parts are dealt
into two halves at random, S times (complementary halves, Shah and Samworth 2013), and each half
cuts its own circuit of k edges:

    Jaccard  |A and B| / |A or B| of the circuits of two halves
    rank     Spearman's correlation of their scores, over the edges of the circuit of all pairs
    stable   edges of the circuit of all pairs that at least 95 % of the 2 S halves have
             (stability selection, Meinshausen and Bühlmann 2010)

A half has half of the pairs, so all three are lower bounds on what as many fresh pairs would give.
Two controls stand beside them. *By chance* circuits of k of n edges have a Jaccard of k / (2 n - k)
or, of independent halves, no stable edge. *Random signs* multiplies the scores of each part by +1
or -1: edges keep how far they scatter, and none has an effect. By magnitude, edges that scatter
most then come first in both halves, and agree though they mean nothing.

An edge whose score equals that of the first one left out is in no circuit: nothing ranks it. So
constant scores agree in nothing, and the numbers are undefined (NaN).

A method with a seed (a random start, order or masks) may also run again with other seeds on the
same pairs (`seed_stability`): Jaccard and rank are of two seeds, and stable edges those that at
least 95 % of the other seeds have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import binom, norm, rankdata
from scipy.stats import t as student
from torch import Tensor

from mechassay.circuits.methods.method import AnyMethod, ScoreInputs, method_name, provenance_of
from mechassay.circuits.scores import By, Scores
from mechassay.circuits.series import FRACTIONS
from mechassay.errors import BadFile, BadUsage, one_of
from mechassay.models.model import Model
from mechassay.models.objectives import ObjectiveLike, load_objective
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.results.records import Table
from mechassay.stats.intervals import AGREE, Interval
from mechassay.utils.arguments import checked
from mechassay.utils.checkpoint import checkpointed, key_of
from mechassay.utils.display import BAR, SILENT, OneLine, Progress, Tabular
from mechassay.utils.files import read_tensors, write_tensors

N_PARTS = 20
"""Parts of the pairs: halves of 20 parts can be dealt in 92,378 ways, and cost little more."""
GROUPS_A_PART = 2
LEAST_PARTS = 4
"""Fewer parts have no halves worth comparing."""
N_SPLITS = 25
LEAST_RESAMPLES = 8
"""Fewer resamples say too little of a standard deviation."""
SIGN_DRAWS = 4
"""Draws of random signs, each with `SIGN_SPLITS` splits."""
SIGN_SPLITS = 10
STABLE = 0.95
Selection = Literal["rank", "sign", "ratio"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)
Over = Literal["pairs", "templates", "seeds"]
"""What varies: the pairs that circuits are found on, their templates, or the method's seed."""
STABILITY, RESAMPLES = "stability", "resamples"
"""The tables of a record."""


def is_mean_of_pairs(method: AnyMethod) -> bool:
    """Whether a method's scores of pairs are the mean of its scores of each, as it declares."""
    return bool(getattr(method, "mean_of_pairs", False))


def has_seed(method: AnyMethod) -> bool:
    """Whether a method has a setting `seed`: of a random start, order or masks."""
    own: Any = method  # A dataclass, which the type does not say.
    return any(field.name == "seed" for field in fields(own))


def scored_again(method: AnyMethod, over: Over) -> bool:
    """Whether each resample of a run is one more scoring."""
    return over == "seeds" or not is_mean_of_pairs(method)


def reseeded(method: AnyMethod, number: int) -> AnyMethod:
    """The method with one of its other seeds: its own, and one and `number` more.

    Raises:
        BadUsage: it has no seed.
    """
    if not has_seed(method):
        raise BadUsage(f"{method.name} has no seed: it finds the same again on the same pairs.")
    own: Any = method
    return replace(own, seed=own.seed + 1 + number)


def parts_of(batch: Batch, seed: int = 0) -> list[list[int]]:
    """The rows of each part, as even as groups allow; no parts of too few groups.

    Each part has at least two groups of pairs, and there are at most 20 parts.
    """
    names, group_of = np.unique(np.asarray(batch.groups), return_inverse=True)
    n_parts = min(N_PARTS, len(names) // GROUPS_A_PART)
    if n_parts < LEAST_PARTS:
        return []
    part_of_group = np.arange(len(names)) % n_parts
    np.random.default_rng(seed).shuffle(part_of_group)
    part_of_row = part_of_group[group_of.reshape(-1)]
    return [np.flatnonzero(part_of_row == part).tolist() for part in range(n_parts)]


@dataclass(frozen=True, eq=False, repr=False)
class PartScores(OneLine):
    """Scores of all pairs, and those of each part of the pairs.

    Attributes:
        scores: of all pairs: the mean of the parts, each counting by its pairs.
        parts: fp32 scores of what is scored, in the order of the flat index.
        n_pairs: of each part.
    """

    scores: Scores
    parts: Float[np.ndarray, "parts units"]
    n_pairs: Int[np.ndarray, "parts"]

    def repr_fields(self) -> dict[str, Any]:
        units = self.parts.shape[1]
        return {"parts": len(self.parts), "pairs": int(self.n_pairs.sum()), "units": units}

    @property
    def _places(self) -> Int[np.ndarray, "units"]:
        return np.flatnonzero(self.scores.scored().flatten().numpy())

    def _whole(self) -> Float[np.ndarray, "units"]:
        return self.scores.values.flatten().numpy()[self._places]

    @checked
    def resample(self, number: int, seed: int = 0) -> Scores:
        """Scores of one resample: as many parts, drawn with replacement (bootstrap)."""
        rng, n_parts = np.random.default_rng((seed, number)), len(self.parts)
        weights = rng.multinomial(n_parts, np.full(n_parts, 1 / n_parts)) * self.n_pairs
        values = self.scores.values.clone()
        values.view(-1)[self._places] = torch.from_numpy(_mean(self.parts, weights))
        about = {**self.scores.provenance, "resample": number, "resample seed": seed}
        return replace(self.scores, values=values, provenance=about)

    @checked
    def stability(
        self, fractions: Sequence[float] = FRACTIONS, *, n_splits: int = N_SPLITS, seed: int = 0
    ) -> Stability:
        """How circuits of halves agree, at sizes that are shares of all edges; 1 is left out.

        Raises:
            BadUsage: fewer than one split.
        """
        if n_splits < 1:
            raise BadUsage(f"Halves are compared at least once; got n_splits={n_splits}.")
        sizes = {share: self.scores.size(float(share)) for share in fractions if share < 1}
        rows: list[dict[str, Any]] = []
        for by in ("value", "magnitude"):
            rng = np.random.default_rng(seed)
            own = _compared(self, list(sizes.values()), by, n_splits, rng)
            drawn = [
                _compared(
                    self._with_random_signs(rng),
                    list(sizes.values()),
                    by,
                    SIGN_SPLITS,
                    rng,
                    correlated=False,
                )
                for _ in range(SIGN_DRAWS)
            ]
            rows += [
                _row(by, share, place, own, drawn, self.parts.shape[1])
                for place, share in enumerate(sizes)
            ]
        n_pairs = int(self.n_pairs.sum())
        return Stability(tuple(rows), n_pairs, len(self.parts), n_splits, self.scores.unit)

    def _with_random_signs(self, rng: np.random.Generator) -> PartScores:
        signs = rng.choice(np.array([-1.0, 1.0], dtype=np.float32), size=(len(self.parts), 1))
        parts = self.parts * signs
        values = self.scores.values.clone()
        values.view(-1)[self._places] = torch.from_numpy(_mean(parts, self.n_pairs))
        return replace(self, scores=replace(self.scores, values=values), parts=parts)

    @checked
    def stable(
        self, n: int, by: By = "magnitude", *, n_splits: int = N_SPLITS, seed: int = 0
    ) -> Bool[Tensor, "writers *dims"]:
        """Which units at least 95 % of halves have among their n best, in the shape of scores."""
        counts = np.zeros(self.parts.shape[1], dtype=int)
        for pair in _halves(len(self.parts), n_splits, np.random.default_rng(seed)):
            for half in pair:
                counts += _UnitRanks.of(_mean(self.parts, half * self.n_pairs), by).chosen(n)
        flat = torch.zeros(self.scores.values.numel(), dtype=torch.bool)
        flat[self._places] = torch.from_numpy(counts >= STABLE * 2 * n_splits)
        return flat.view_as(self.scores.values)

    @checked
    def ordered(self, selection: Selection, *, seed: int = 0) -> Scores:
        """Scores that rank units by how they hold over the pairs, for circuits of stable units.

        Each is in [-1, 1] with the sign of the mean score, so that `by="magnitude"` takes those
        that hold best:

            rank    1 - mean rank by magnitude over halves, as a share of all (rank ensemble)
            sign    |positive - negative parts| / P; within a tie the larger mean is first
            ratio   |sum| / sum of absolute values, over parts: 1 where all parts agree in sign

        Raises:
            UnknownName: no such selection.
        """
        one_of("selection", selection, SELECTIONS)
        whole, n_units = self._whole(), self.parts.shape[1]
        if selection == "rank":
            rng, held = np.random.default_rng(seed), np.zeros(n_units)
            for pair in _halves(len(self.parts), N_SPLITS, rng):
                for half in pair:
                    held += _UnitRanks.of(_mean(self.parts, half * self.n_pairs), "magnitude").ranks
            worth = 1 - held / (2 * N_SPLITS * n_units)
        elif selection == "sign":
            largest = float(np.abs(whole).max(initial=0.0)) or 1.0
            agreeing = np.abs(np.sign(self.parts).sum(axis=0))
            worth = (agreeing + np.abs(whole) / largest / 2) / (len(self.parts) + 0.5)
        else:
            weighted = self.parts * self.n_pairs[:, None]
            total = np.abs(weighted).sum(axis=0)
            worth = np.abs(weighted.sum(axis=0)) / np.where(total > 0, total, 1.0)
        values = self.scores.values.clone()
        values.view(-1)[self._places] = torch.from_numpy(
            (np.sign(whole) * worth).astype(np.float32)
        )
        about = {**self.scores.provenance, "selection": selection}
        return replace(self.scores, values=values, provenance=about)

    @checked
    def save(self, path: str | Path) -> None:
        """Write the parts as safetensors; the scores have a file of their own."""
        tensors = {"parts": torch.from_numpy(self.parts), "n_pairs": torch.from_numpy(self.n_pairs)}
        header = {"kind": "part_scores", "fingerprint": self.scores.graph.fingerprint}
        write_tensors(Path(path), tensors, header)

    @staticmethod
    @checked
    def load(path: str | Path, scores: Scores) -> PartScores:
        """Read the parts of scores.

        Raises:
            BadFile: missing, truncated or foreign; parts that are not those of the scores.
        """
        tensors, _ = read_tensors(Path(path), "part_scores")
        if set(tensors) != {"parts", "n_pairs"}:
            raise BadFile(f"{path}: the file of part scores has {', '.join(sorted(tensors))}.")
        parts, n_pairs = tensors["parts"].float().numpy(), tensors["n_pairs"].long().numpy()
        read = PartScores(scores, parts, n_pairs)
        whole = read._whole()
        if parts.ndim != 2 or parts.shape != (len(n_pairs), len(whole)):
            raise BadFile(
                f"{path}: parts of shape {parts.shape} do not fit {len(whole):,} scores of"
                f" {len(n_pairs)} parts."
            )
        largest = float(np.abs(parts).max(initial=0.0))
        if not np.allclose(_mean(parts, n_pairs), whole, atol=1e-4 * largest, rtol=1e-3):
            raise BadFile(f"{path}: the mean of the parts is not these scores.")
        return read


def _mean(
    parts: Float[np.ndarray, "parts units"], weights: np.ndarray
) -> Float[np.ndarray, "units"]:
    weights = weights.astype(np.float32)
    return (weights @ parts) / weights.sum()


def _halves(
    n_parts: int, n_splits: int, rng: np.random.Generator
) -> Iterator[tuple[Int[np.ndarray, "parts"], Int[np.ndarray, "parts"]]]:
    """Two disjoint halves of the parts, as weights of 0 and 1; of an odd number one is left out."""
    half = n_parts // 2
    for _ in range(n_splits):
        order = rng.permutation(n_parts)
        one, other = np.zeros(n_parts, dtype=int), np.zeros(n_parts, dtype=int)
        one[order[:half]] = 1
        other[order[half : 2 * half]] = 1
        yield one, other


class _UnitRanks(NamedTuple):
    """Units ranked: the key, its rank, and the keys best first."""

    keys: Float[np.ndarray, "units"]
    ranks: Int[np.ndarray, "units"]
    falling: Float[np.ndarray, "units"]

    @staticmethod
    def of(values: Float[np.ndarray, "units"], by: By) -> _UnitRanks:
        keys = np.abs(values) if by == "magnitude" else values
        order = np.argsort(-keys, kind="stable")
        ranks = np.empty(len(order), dtype=np.int32)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        return _UnitRanks(keys, ranks, keys[order])

    def decided(self, n: int) -> int:
        """How many of the n best are better than the first one left out."""
        if n >= len(self.falling):
            return len(self.falling)
        return int(np.searchsorted(-self.falling, -self.falling[n], side="left"))

    def chosen(self, n: int) -> Bool[np.ndarray, "units"]:
        return self.ranks < self.decided(n)


class _Halves(NamedTuple):
    """How halves agree at each size."""

    sizes: Int[np.ndarray, "sizes"]
    jaccard: Float[np.ndarray, "splits sizes"]
    rank: Float[np.ndarray, "splits sizes"]
    n_stable: Int[np.ndarray, "sizes"]

    @property
    def stable_share(self) -> Float[np.ndarray, "sizes"]:
        return np.where(self.sizes > 0, self.n_stable / np.maximum(self.sizes, 1), np.nan)


def _compared(
    scored: PartScores,
    sizes: Sequence[int],
    by: By,
    n_splits: int,
    rng: np.random.Generator,
    *,
    correlated: bool = True,
) -> _Halves:
    """Halves at each size; their rank correlation, a third of the time, only if `correlated`."""
    whole = _UnitRanks.of(_mean(scored.parts, scored.n_pairs), by)
    members = [np.flatnonzero(whole.chosen(n)) for n in sizes]
    counts = [np.zeros(len(member), dtype=int) for member in members]
    jaccard, rank = np.full((2, n_splits, len(sizes)), np.nan)
    for split, pair in enumerate(_halves(len(scored.parts), n_splits, rng)):
        one, other = (
            _UnitRanks.of(_mean(scored.parts, half * scored.n_pairs), by) for half in pair
        )
        for place, (n, member) in enumerate(zip(sizes, members, strict=True)):
            first, second = one.chosen(n), other.chosen(n)
            either = np.count_nonzero(first | second)
            if either:
                jaccard[split, place] = np.count_nonzero(first & second) / either
            if correlated:
                rank[split, place] = _correlation(one.keys[member], other.keys[member])
            counts[place] += first[member].astype(int) + second[member]
    n_stable = [int((count >= STABLE * 2 * n_splits).sum()) for count in counts]
    return _Halves(np.array([len(member) for member in members]), jaccard, rank, np.array(n_stable))


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation; NaN of fewer than three, or where one of them does not vary."""
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])


def _row(
    by: By,
    share: float,
    place: int,
    own: _Halves,
    drawn: Sequence[_Halves],
    n_units: int,
) -> dict[str, Any]:
    """One size of one ranking."""
    size, jaccard = int(own.sizes[place]), own.jaccard[:, place]
    known = jaccard[~np.isnan(jaccard)]
    low, high = np.quantile(known, (0.05, 0.95)) if len(known) else (math.nan, math.nan)
    return {
        "ranking": by,
        "fraction": share,
        "size": size,
        "jaccard": _nanmean(jaccard),
        "jaccard_low": float(low),
        "jaccard_high": float(high),
        "jaccard_random_signs": _nanmean(np.array([null.jaccard[:, place] for null in drawn])),
        "jaccard_chance": size / (2 * n_units - size) if size else math.nan,
        "rank": _nanmean(own.rank[:, place]),
        "n_stable": int(own.n_stable[place]),
        "stable": float(own.stable_share[place]),
        "stable_random_signs": _nanmean(np.array([null.stable_share[place] for null in drawn])),
    }


def _nanmean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


@dataclass(frozen=True, eq=False, repr=False)
class Stability(OneLine, Tabular):
    """How circuits of halves of the pairs agree, by ranking and size.

    Attributes:
        rows: of each ranking and size: the Jaccard of two halves with the middle 90 % of splits,
            rank correlation, stable edges, and the controls.
        n_pairs, n_parts, n_splits: pairs, their parts, and how often these were dealt into halves.
        unit: "edge", "node" or "neuron".
        n_seeds: other seeds, where circuits of seeds were compared; there are no parts then.
    """

    rows: tuple[Mapping[str, Any], ...]
    n_pairs: int
    n_parts: int
    n_splits: int
    unit: str = "edge"
    n_seeds: int = 0

    def repr_fields(self) -> dict[str, Any]:
        if self.n_seeds:
            return {"pairs": self.n_pairs, "seeds": self.n_seeds}
        return {"pairs": self.n_pairs, "parts": self.n_parts, "splits": self.n_splits}

    def columns(self) -> dict[str, list[Any]]:
        """A row for each ranking and size."""
        return {name: [row[name] for row in self.rows] for name in self.rows[0]}

    def table(self) -> Table:
        """The rows as the table of a record."""
        halves = {"n_parts": self.n_parts, "n_splits": self.n_splits}
        about = {
            "n_pairs": self.n_pairs,
            **({"n_seeds": self.n_seeds} if self.n_seeds else halves),
            "unit": self.unit,
        }
        return Table.of(STABILITY, ("ranking", "fraction"), [{**row, **about} for row in self.rows])


@checked
def seed_stability(
    scores: Scores, others: Sequence[Scores], fractions: Sequence[float] = FRACTIONS
) -> Stability:
    """How circuits of other seeds agree, at sizes that are shares of all edges; 1 is left out.

    Beside the stable edges stands what chance would make stable: the share of k random ones of n
    that at least 95 % of as many independent random circuits of k have.

    Args:
        scores: those whose circuits are asked about; `others` are of the same method on the same
            pairs with other seeds.

    Raises:
        BadUsage: no other scores; scores of another graph or kind.
    """
    if not others:
        raise BadUsage("Circuits of one seed are compared with those of others; got no others.")
    places = np.flatnonzero(scores.scored().flatten().numpy())
    for other in others:
        same_places = np.array_equal(np.flatnonzero(other.scored().flatten().numpy()), places)
        if (other.graph, other.unit) != (scores.graph, scores.unit) or not same_places:
            raise BadUsage(f"{other} scores other places than {scores}: they cannot be compared.")
    values = [one.values.flatten().numpy()[places] for one in (scores, *others)]
    n_units, needed = len(places), math.ceil(STABLE * len(others))
    rows: list[dict[str, Any]] = []
    for by in ("value", "magnitude"):
        ranks = [_UnitRanks.of(of_seed, by) for of_seed in values]
        for share in (float(fraction) for fraction in fractions if fraction < 1):
            chosen = np.stack([of_seed.chosen(scores.size(share)) for of_seed in ranks])
            own = np.flatnonzero(chosen[0])
            # Of each two circuits, the edges that both have.
            counted = chosen.astype(np.float32)
            both = (counted @ counted.T).astype(float)
            jaccard, rank = np.full((2, len(both) * (len(both) - 1) // 2), np.nan)
            for pair, (i, j) in enumerate(combinations(range(len(both)), 2)):
                either = both[i, i] + both[j, j] - both[i, j]
                if either:
                    jaccard[pair] = both[i, j] / either
                rank[pair] = _correlation(ranks[i].keys[own], ranks[j].keys[own])
            n_stable = np.count_nonzero(chosen[1:, own].sum(axis=0) >= needed)
            halves = _Halves(
                np.array([len(own)]), jaccard[:, None], rank[:, None], np.array([n_stable])
            )
            row = _row(by, share, 0, halves, (), n_units)
            by_chance = float(binom.sf(needed - 1, len(others), len(own) / n_units))
            rows.append({**row, "stable_chance": by_chance if len(own) else math.nan})
    n_pairs = int(scores.provenance.get("n_examples", 0))
    return Stability(tuple(rows), n_pairs, 0, 0, scores.unit, len(others))


@checked
def score_in_parts(
    method: AnyMethod,
    model: Model,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    seed: int = 0,
    progress: Progress = BAR,
    checkpoint: Path | None = None,
) -> PartScores:
    """The scores of a method on pairs, and on 20 parts of them. Replicas of the model score parts.

    Args:
        seed: of which groups of pairs are together.
        checkpoint: a file that keeps what is done, so that a killed run can go on.

    Raises:
        BadUsage: the method's scores are no mean over pairs; fewer than eight groups of pairs.
        MechassayError: whatever `Method.score` refuses.
    """
    batch = model.batch(pairs)
    if not is_mean_of_pairs(method):
        raise BadUsage(
            f"Scores of {method.name} are no mean over pairs, so that parts of the pairs do not add"
            " up to them; `resampled` runs it again for every resample."
        )
    parts = parts_of(batch, seed)
    if not parts:
        raise BadUsage(
            f"Parts need at least {LEAST_PARTS * GROUPS_A_PART} groups of pairs; got"
            f" {len(set(batch.groups))}."
        )
    about = provenance_of(method, ScoreInputs(model, batch, load_objective(objective)))
    key = key_of({**about, "parts": parts, "graph": model.graph.fingerprint})
    inner = None if checkpoint is None else checkpoint.with_suffix(".part-checkpoint")

    def here(model: Model, part: Batch) -> Scores:
        return method.score(model, part, objective, progress=SILENT, checkpoint=inner)

    with progress.track(method_name(method), len(batch)) as advance:
        # The shape of scores is the method's own to know.
        first = here(model, batch.select(parts[0]))
        values = torch.zeros((len(parts), first.values.numel()), dtype=torch.float32)
        with checkpointed(checkpoint, key, {"values": values}) as state:
            left = [batch.select(rows).sendable() for rows in parts[max(state.cursor, 1) :]]
            others = model.everywhere(partial(_score, method, objective), left, here)
            for number, rows in enumerate(parts):
                if number >= state.cursor:
                    of_part = torch.zeros_like(values)
                    scores = first if number == 0 else next(others)
                    of_part[number] = scores.values.flatten().nan_to_num(0.0)
                    state.add(number + 1, values=of_part)
                advance(len(rows))
    n_pairs = np.array([len(rows) for rows in parts])
    places = first.scored().flatten().numpy()
    kept = state.tensors["values"].numpy()[:, places]
    mean = torch.full((first.values.numel(),), torch.nan, dtype=torch.float32)
    mean[torch.from_numpy(places)] = torch.from_numpy(_mean(kept, n_pairs))
    provenance = {**first.provenance, **about, "parts": len(parts)}
    whole = replace(first, values=mean.view_as(first.values), provenance=provenance)
    return PartScores(whole, kept, n_pairs)


def _score(method: AnyMethod, objective: ObjectiveLike, model: Model, part: Batch) -> Scores:
    return method.score(model, part, objective, progress=SILENT)


def resampled_rows(batch: Batch, number: int, seed: int = 0) -> list[int]:
    """The pairs of one resample: as many groups, drawn with replacement, whole."""
    names, group_of = np.unique(np.asarray(batch.groups), return_inverse=True)
    drawn = np.random.default_rng((seed, number)).integers(len(names), size=len(names))
    return np.concatenate([np.flatnonzero(group_of.reshape(-1) == name) for name in drawn]).tolist()


@checked
def resampled(
    method: AnyMethod,
    model: Model,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    n: int = 20,
    over: Literal["pairs", "seeds"] = "pairs",
    seed: int = 0,
    progress: Progress = BAR,
) -> Iterator[Scores]:
    """Scores that a method finds on resamples of the pairs: groups drawn with replacement.

    A mean over pairs is scored once, in parts, and the parts are drawn. Any other method (ACDC,
    learned masks) runs again for every resample, at n times its cost.

    Args:
        over: "seeds" takes all pairs each time, and another seed of the method instead.

    Raises:
        BadUsage: fewer than one resample; seeds of a method that has none. Others as
            `Method.score`.
    """
    if n < 1:
        raise BadUsage(f"At least one resample can be drawn; got {n}.")
    one_of("source of resamples", over, ("pairs", "seeds"))
    batch = model.batch(pairs)
    if over == "seeds":
        other_seeds = [reseeded(method, number) for number in range(n)]
        with progress.track(f"{n} seeds of {method_name(method)}", n) as advance:
            for other in other_seeds:
                yield other.score(model, batch, objective, progress=SILENT)
                advance(1)
        return
    if is_mean_of_pairs(method) and parts_of(batch, seed):
        scored = score_in_parts(method, model, batch, objective, seed=seed, progress=progress)
        yield from (scored.resample(number, seed) for number in range(n))
        return
    with progress.track(f"{n} resamples of {method_name(method)}", n) as advance:
        for number in range(n):
            chosen = batch.select(resampled_rows(batch, number, seed))
            yield method.score(model, chosen, objective, progress=SILENT)
            advance(1)


def interval_of_method(own: Interval, draws: Float[np.ndarray, "resamples"]) -> Interval:
    """The interval of what a method reaches on other training pairs too, around the value at hand.

    Half its width is t sqrt(h^2 / z^2 + s^2): h is half the width of `own`, the interval over test
    pairs at the same level; s the standard deviation over resamples of the training pairs, whose
    circuits were measured on the same test pairs; z and t are the quantiles of the normal and of
    Student's distribution with as many degrees of freedom as there are resamples, less one.

    Returns:
        Half widths below and above the value, as `low` and `high` of an interval around 0; NaN of
        fewer than eight resamples, where one is undefined, and where they have two peaks: no
        interval around one of them holds both.
    """
    undefined = len(draws) < LEAST_RESAMPLES or bool(np.isnan(draws).any())
    if undefined or two_peaks(draws, own.high - own.low):
        return Interval(math.nan, math.nan, own.level)
    tail = (1 + own.level) / 2
    spread = (own.high - own.low) / 2 / float(norm.ppf(tail))
    half = float(student.ppf(tail, len(draws) - 1)) * math.hypot(spread, float(draws.std(ddof=1)))
    return Interval(-half, half, own.level)


def two_peaks(draws: Float[np.ndarray, "resamples"], least: float = 0.0) -> bool:
    """Whether draws fall into two clusters: a gap between neighbours is more than half of the
    range, and at least two lie on either side.

    Args:
        least: a smaller gap tells nothing apart, such as the width of an interval over test pairs.
    """
    known = np.sort(draws[~np.isnan(draws)])
    if len(known) < 4:
        return False
    gaps = np.diff(known)
    widest = int(gaps.argmax())
    apart = gaps[widest] > max(least, np.ptp(known) / 2, AGREE * float(np.abs(known).max()))
    return bool(apart and 1 <= widest <= len(gaps) - 2)
