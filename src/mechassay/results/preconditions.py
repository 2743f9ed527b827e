"""Preconditions of conclusions: each function reads a record and returns a case of the table of
verdicts.

    groups        the test pairs are at least `FEW_GROUPS` independent groups, none of which the
                  circuit was found or chosen on
    task          the model does the task, and not by liking some answers
    effect        ablating everything changes the objective, and not in one group of pairs alone
    information   the scores rank something, and were not found on the test pairs
    different     methods that are compared rank differently

Fields that break a precondition are looked at first, then what is missing: a record without the
fields of a precondition is not known to meet it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mechassay.prompts.independence import POOLED, PROMPTS
from mechassay.results.records import Record, Table, Values
from mechassay.results.verdict import Case, NotStored, Numbers, stored
from mechassay.stats.intervals import (
    FEW_GROUPS,
    clopper_pearson,
    percentile_interval,
    proportion_interval,
    resampled_means,
    resolved_difference,
)

ABILITY = "does the task"
"""The table of what a model prefers in each pair (`models.ability`)."""
RANKING = "ranking"
"""The spec of the scores that circuits are cut from: what they rank, and where they are from."""
SHARED = "shared with {} pairs"
"""The count of test pairs whose prompt is one of another role's pairs."""
TEMPLATES = "different templates"
MANY_SHARED = 0.05
"""The share of test pairs above which a prompt of the training pairs is no accident."""
COPY = 1e-3
"""The relative distance of scores below which a ranking is a copy of another."""
NO_EFFECT = 0.01
"""The mean change of a pair, of the objective's size, below which ablation changes nothing."""
MOST = 0.5
"""The share of all changes above which one group has most of them."""


@stored
def groups(record: Record, of: str = "") -> Case:
    """Check that the test pairs are `FEW_GROUPS` independent groups, and no training pairs."""
    held = _values(record)
    names = held.groups or held.ids
    if record.has_table(ABILITY) and 0 < len(record.table(ABILITY)) < len(names):
        # Other examples have no right answer.
        names = [str(row["group"]) for row in record.table(ABILITY).rows()]
    n, chosen = len(set(names)), record.data.get("test")
    counts = chosen.counts if chosen else {}
    numbers: Numbers = {"pairs": len(names), "groups": n, "needed": FEW_GROUPS}
    numbers = {**numbers, "unit": held.unit}
    prompts = counts.get(PROMPTS, n)
    if prompts < FEW_GROUPS <= len(names):
        return Case("groups", "copies", {**numbers, "prompts": prompts})
    if n < FEW_GROUPS:
        return Case("groups", "few" if n == len(names) else "few groups", numbers)
    shared = {role: counts.get(SHARED.format(role), 0) for role in ("training", "validation")}
    role = max(shared, key=lambda own: shared[own])
    numbers = {**numbers, "shared": shared[role], "role": role}
    if shared[role] > MANY_SHARED * len(held.ids):
        return Case("groups", "shared", numbers)
    if chosen is None or PROMPTS not in counts:
        raise NotStored("prompts of the test pairs")
    if shared[role]:
        return Case("groups", "few shared", numbers)
    if counts.get(POOLED):
        return Case("groups", "pooled", {**numbers, "pooled": counts[POOLED]})
    return Case("groups", "met")


@stored
def task(record: Record, of: str = "") -> Case:
    """Check that the model does the task: its accuracy exceeds guessing, and its accuracy with the
    prompts of other pairs.
    """
    if not record.has_table(ABILITY):
        return _task_of_measures(record)
    if not len(record.table(ABILITY)):
        raise NotStored("accuracy of pairs")
    return task_of(record.table(ABILITY), record.values.unit if record.values else "pair")


@stored
def does(record: Record, of: str = "") -> Case:
    """Answer whether the model does the task, as `task` checks it."""
    if not record.has_table(ABILITY) or not len(record.table(ABILITY)):
        raise NotStored("accuracy with exchanged prompts")
    case = task(record)
    if any(record.table(ABILITY).numbers("chance")):
        return Case("does", case.name, case.numbers)
    # An answer that is written is not guessed among choices.
    names = {"met": "writes"}
    names |= dict.fromkeys(("not shown", "exchanged", "below", "worse"), "not written")
    return Case("does", names.get(case.name, case.name), case.numbers)


def task_of(pairs: Table, unit: str = "pair") -> Case:
    """Check that a model does the task.

    Args:
        pairs: a table `ABILITY`, with a row for each pair.
        unit: the word for a row.
    """
    right, exchanged, tied, chance = (
        pairs.numbers(name) for name in ("right", "exchanged", "tied", "chance")
    )
    names = [str(row["group"]) for row in pairs.rows()]
    n, contrasts = len(right), len({row["contrast"] for row in pairs.rows()})
    accuracy = float(right.mean())
    ends = proportion_interval(right, names)
    # NaN: all other examples have the same group or the same answers as this example.
    there = exchanged[~np.isnan(exchanged)]
    exchanges, guess = float(there.mean()) if len(there) else math.nan, float(chance.mean())
    numbers: Numbers = {
        "unit": unit,
        "pairs": n,
        "right": (accuracy, ends.low, ends.high),
        "exchanged": exchanges,
        "chance": guess,
        "tied": int(tied.sum()),
        "foil": int((right == 0).sum()),
        "contrasts": contrasts,
    }
    if tied.mean() > MOST:
        return Case("task", "tied", numbers)
    if math.isnan(exchanges):
        unknown = "one group" if len(set(names)) == 1 else "no exchange"
        return Case("task", "worse" if ends.high < guess else unknown, numbers)
    # Liking some answers explains more than half of the distance to guessing, in its direction.
    distance = accuracy - guess
    liked = distance != 0 and (exchanges - guess) / distance > 1 / 2
    if ends.high < guess:
        return Case("task", "below" if liked else "worse", numbers)
    bar = max(guess, exchanges)
    if not guess:  # Nobody guesses a free answer, and few exchanges may miss one that is liked.
        own = [name for name, x in zip(names, exchanged, strict=True) if not math.isnan(x)]
        bar = proportion_interval(there, own).high
    # Few contrasts: random weights that react to one word are right on many pairs.
    half_way = bar if contrasts >= FEW_GROUPS else (bar + 1) / 2
    numbers = {**numbers, "half_way": half_way}
    if ends.low > half_way:
        return Case("task", "met", numbers)
    if liked and ends.low > guess:
        return Case("task", "exchanged", numbers)
    # All of so few groups right would not exceed the bar either.
    if clopper_pearson(len(set(names)), len(set(names))).low <= half_way:
        return Case("task", "too few", numbers)
    if ends.low > bar:
        return Case("task", "few contrasts", numbers)
    # An accuracy well above the bar that its interval does not resolve is not its absence.
    if accuracy > (bar + 1) / 2:
        return Case("task", "too few", numbers)
    return Case("task", "not shown", numbers)


def _task_of_measures(record: Record) -> Case:
    """Check a record without numbers of pairs. Such a record may break the precondition, and never
    meets the precondition.
    """
    accuracy, chance = (record.measure(name, "model") for name in ("accuracy", "chance"))
    if accuracy is None or chance is None:
        raise NotStored("accuracy of the model")
    right = (accuracy.value, accuracy.low, accuracy.high)
    numbers = {"pairs": accuracy.n, "right": right, "chance": chance.value, "unit": "pair"}
    if accuracy.high < chance.value:
        return Case("task", "worse before", numbers)
    if accuracy.low <= chance.value:
        return Case("task", "not shown before", numbers)
    raise NotStored("accuracy with exchanged prompts")


@stored
def effect(record: Record, of: str = "") -> Case:
    """Check that ablating all edges changes the objective, also without the group of pairs that has
    the largest effect.
    """
    held = _values(record)
    if not {"clean", "empty"} <= held.columns.keys():
        raise NotStored("objective of the full and the empty circuit")
    whole, empty = (np.array(held.columns[name], dtype=float) for name in ("clean", "empty"))
    sign = -1.0 if record.metric.args.get("better") == "down" else 1.0
    change, names = sign * (whole - empty), np.array(held.groups or held.ids)
    sums = {name: abs(change[names == name].sum()) for name in dict.fromkeys(names.tolist())}
    largest = max(sums, key=lambda name: sums[name], default="")
    rest, total = names != largest, float(np.abs(change).sum())
    seed = record.provenance.seed
    full = _mean_interval(change, names, whole, empty, seed)
    others = _mean_interval(change[rest], names[rest], whole[rest], empty[rest], seed)
    numbers: Numbers = {
        "change": full,
        "others": others,
        "pairs": len(change),
        "most": float(np.abs(change[~rest]).sum()) / total if total else 0.0,
    }
    size = float(np.maximum(np.abs(whole), np.abs(empty)).mean()) if len(whole) else 0.0
    if total == 0 or float(np.abs(change).mean()) < NO_EFFECT * size:
        return Case("effect", "none", numbers)
    if any(map(math.isnan, full)):  # Few groups that agree have no interval.
        return Case("effect", "undefined", numbers)
    if full[1] <= 0 <= full[2]:
        return Case("effect", "one group" if numbers["most"] > MOST else "unclear", numbers)
    if any(map(math.isnan, others)) or others[1] <= 0 <= others[2]:
        return Case("effect", "one group", numbers)
    return Case("effect", "raised" if full[2] < 0 else "met", numbers)


def _mean_interval(
    change: np.ndarray, names: np.ndarray, whole: np.ndarray, empty: np.ndarray, seed: int
) -> tuple[float, float, float]:
    """Return the mean change with its interval; 0 if rounding may have made the change."""
    if not len(change):  # Without the largest, one group leaves nothing.
        return math.nan, math.nan, math.nan
    values, rng = np.stack([whole, empty]), np.random.default_rng(seed)
    draws = resampled_means(change[None], names.tolist(), rng)[:, 0]
    draws = resolved_difference(draws, 0.0, values)
    mean = float(resolved_difference(float(change.mean()), 0.0, values))
    ends = percentile_interval(draws, n_groups=len(set(names.tolist())))
    return mean, ends.low, ends.high


@stored
def information(record: Record, of: str = "") -> Case:
    """Check that the scores of a method differ, and were not found on the test pairs."""
    ranking = record.specs.get(RANKING)
    args = dict(ranking.args) if ranking else {}
    numbers = {"method": of or record.method.name, "pairs": record.n, "model": record.model.name}
    numbers |= args
    if args.get("different") == 1:
        return Case("information", "equal", numbers, of)
    sizes = _cut_in_ties(record)
    if sizes and all(sizes):
        return Case("information", "ties", {**numbers, "sizes": len(sizes)}, of)
    if args.get("shared"):
        return Case("information", "test pairs", numbers, of)
    if ranking is None:
        raise NotStored("origin of the scores")
    if not args.get("known"):
        return Case("information", "unknown", numbers, of)
    return Case("information", "met", numbers, of)


def _cut_in_ties(record: Record) -> list[bool]:
    """Return for each circuit by magnitude, without the empty and the full one, whether the cut
    goes through equal scores.
    """
    if not record.has_table("curve"):
        return []
    rows = record.table("curve").where(of="result", ranking="magnitude")
    if "tied" not in rows.columns:
        return []
    cut = (rows.numbers("fraction") < 1) & (rows.numbers("asked") > 0)
    return (rows.numbers("tied")[cut] > 0).tolist()


def different(records: Sequence[Record], names: Sequence[str]) -> tuple[Case, list[bool]]:
    """Return whether the methods of a comparison rank the edges differently.

    Returns:
        The case, and for each method whether its ranking differs from those of all earlier methods.
    """
    sketches: dict[str, np.ndarray] = {}
    case, own = Case("different", "met"), list[bool]()
    for record, name in zip(records, names, strict=True):
        spec = record.specs.get(RANKING)
        sketch = np.array(spec.args.get("sketch", ()) if spec else (), dtype=float)
        about = str(spec.args.get("selection", "")) if spec else ""
        same = (
            other
            for other, known in sketches.items()
            if other.startswith(f"{about}\0")
            and np.linalg.norm(sketch - known) < COPY * np.linalg.norm(known)
        )
        first = next(same, "") if len(sketch) else ""
        own.append(not first)
        if first:
            case = Case("different", "same", {"one": first.partition("\0")[2], "other": name})
        elif len(sketch):
            sketches[f"{about}\0{name}"] = sketch
        elif case.name == "met":
            case = Case("different", "not stored")
    return case, own


def _values(record: Record) -> Values:
    if record.values is None or not record.values.ids:
        raise NotStored("values of pairs")
    return record.values
