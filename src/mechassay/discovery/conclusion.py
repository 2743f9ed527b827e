"""Conclusions from records of circuits of one model and task: preconditions first, then answers.

    small                   is there a small circuit that stands for the model?
    stable                  which of its edges are found again on other pairs?
    chance by magnitude     are circuits better than those of random rankings? by CMA and CMD
    chance by value         the same by CPR

If only some methods break a precondition (scores of the test pairs, equal scores, a copy of another
ranking), only these methods are left out. `results.preconditions` has the preconditions, and
`results/data/verdicts.yaml` the sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mechassay.circuits.evaluation.chance import SIGN, against_chance, n_groups
from mechassay.circuits.evaluation.curve import AGREES, SMALLEST
from mechassay.circuits.evaluation.differences import AreaName
from mechassay.circuits.methods.stability import STABILITY, STABLE
from mechassay.results.curves import CONTROL, control_kinds, is_random, labels
from mechassay.results.preconditions import (
    TEMPLATES,
    different,
    effect,
    groups,
    information,
    task,
)
from mechassay.results.records import Record
from mechassay.results.text import plain_number
from mechassay.results.verdict import Case, Conclusion, Standing, percent
from mechassay.stats.chance import DRAWS_PER_TRY
from mechassay.utils.display import counted, interval

ORDER = ("groups", "task", "effect", "information", "different")
"""The preconditions in the order in which the headline names the first that is not met."""
AREAS: tuple[AreaName, ...] = ("cma", "cmd", "cpr")
Named = Sequence[tuple[Record, str]]


def conclude(records: Sequence[Record]) -> Conclusion:
    """Return the verdict and the sentences that the records of one setting's methods earn.

    Args:
        records: at least one record. Records of random rankings are used only if no other is
            given.
    """
    names = dict(zip(map(id, records), labels(records), strict=True))
    tried = [record for record in records if not is_random(record)] or list(records)
    own, first = [names[id(record)] for record in tried], tried[0]
    cases = [groups(first), task(first), effect(first)]
    of_methods = [information(r, name) for r, name in zip(tried, own, strict=True)]
    informed = [case.standing is not Standing.NOT_MET for case in of_methods]
    if len(tried) > 1:
        distinct, no_copy = different(tried, own)
        cases.append(distinct)
        informed = [a and b for a, b in zip(informed, no_copy, strict=True)]
    if len(tried) == 1 or not any(informed):  # The precondition is that of all methods.
        of_methods = [replace(case, of="") for case in of_methods[:1]]
    asked = [(r, name) for r, name, good in zip(tried, own, informed, strict=True) if good]
    raised = any(case.name == "raised" for case in cases)
    answers: list[Case] = []
    if asked:
        answers = [small(asked), *stable(asked), *(chance(asked, area, raised) for area in AREAS)]
        answers += [case for record, name in asked for case in by_value(record, name)]
    order = sorted((*cases, *of_methods), key=lambda case: ORDER.index(case.part))
    return Conclusion(tuple(order), tuple(answers), _subject(first))


def excluded(record: Record) -> str:
    """Return why a record's model and task have no verdict, whatever the method; "" if they may."""
    own = Conclusion((groups(record), task(record), effect(record)), (), _subject(record))
    return own.reason


def _subject(record: Record) -> dict[str, str]:
    return {"model": record.model.name or "The model", "task": record.task.name or "the task"}


def small(asked: Named) -> Case:
    """Answer whether a small circuit keeps most of what ablation changes."""
    held = _smallest_rows(asked)
    if not held:
        return _one_size(asked)
    some, name = next(iter(held.values()))["chosen"], asked[0][1]
    curve = asked[next(iter(held))][0].table("curve").where(of="result", ranking="magnitude")
    numbers: dict[str, Any] = {
        "target": plain_number(some["target"]),
        "largest": plain_number(some["largest"]),
        "chosen_on": int(some["n"]),
        "split": str(some["split"] or "validation"),
        "methods": name if len(asked) == 1 else counted(len(asked), "method"),
        "among": f"; {len(asked)} methods tried" if len(asked) > 1 else "",
        "sizes": int((curve.numbers("fraction") < 1).sum()),
    }
    best = best_smallest(asked)
    if best is None:
        more = [own for r, n in asked for own in by_value(r, n) if own.name == "more"]
        if more:
            best_by_value = max(own.numbers["value"] for own in more)
            return Case("small", "no, but by value", {**numbers, "value": best_by_value})
        return Case("small", "no", numbers)
    record, name = asked[best]
    own, fraction = held[best]["result"], held[best]["result"]["fraction"]
    without = [plain_number(held[best]["without"][x]) for x in ("value", "low", "high")]
    random = _random(record, fraction)
    edges, all_edges = int(own["kept"]), int(str(record.model.args.get("n_edges", 0)))
    numbers |= {
        "method": name,
        "pairs": record.n,
        "templates": _templates(record),
        "agreement": tuple(plain_number(own[x]) for x in ("value", "low", "high")),
        "edges": edges,
        "fraction": edges / all_edges if all_edges else plain_number(fraction),
        "random": float(random.max()) if len(random) else math.nan,
        "n_random": len(random),
        "tied": _tied(record, fraction),
        "without": "an unknown share" if math.isnan(without[0]) else f"f = {interval(*without)}",
    }
    agreement = numbers["agreement"]
    if not len(random):
        return Case("small", "no control", numbers)
    if random.max() >= agreement[1]:
        return Case("small", "not distinguishable", numbers)
    if agreement[0] < numbers["target"]:
        return Case("small", "only where chosen", numbers)
    if plain_number(fraction) >= numbers["largest"] > 0.0:
        return Case("small", "largest only", numbers)
    return Case("small", "tied" if numbers["tied"] else "yes", numbers)


def best_smallest(asked: Named) -> int | None:
    """Return the index of the method whose smallest circuit has the fewest edges on the pairs that
    chose it, and of equal sizes the highest agreement; None if no method has a smallest circuit.
    """
    there = {place: rows for place, rows in _smallest_rows(asked).items() if "result" in rows}

    def worth(place: int) -> tuple[float, float]:
        chosen = there[place]["chosen"]
        return plain_number(chosen["kept"]), -plain_number(chosen["value"])

    return min(there, key=worth, default=None)


def _smallest_rows(asked: Named) -> dict[int, dict[str, dict[str, Any]]]:
    """Return the rows of each method's smallest circuit, by the method's place and column `of`."""
    return {
        place: {str(row["of"]): row for row in record.table(SMALLEST).rows()}
        for place, (record, _) in enumerate(asked)
        if record.has_table(SMALLEST)
    }


def _random(record: Record, fraction: Any) -> np.ndarray:
    """Return the agreement of each random circuit of one size, on the test pairs."""
    curve = record.table("curve")
    kept = [
        curve.where(of=f"{CONTROL}{kind}", fraction=fraction).numbers("agreement")
        for kind in control_kinds(record)
    ]
    return np.concatenate(kept) if kept else np.empty(0)


def _tied(record: Record, fraction: Any) -> int:
    rows = record.table("curve").where(of="result", ranking="magnitude", fraction=fraction)
    return int(rows.numbers("tied")[0]) if len(rows) and "tied" in rows.columns else 0


def _templates(record: Record) -> str:
    """Return the number of groups of the test pairs, if they are fewer, and of templates, if known,
    as words.
    """
    chosen, n_own = record.data.get("test"), n_groups(record)
    n = chosen.counts.get(TEMPLATES, 0) if chosen else 0
    apart = f" in {counted(n_own, 'independent group')}" if 0 < n_own < record.n else ""
    return apart + (f" over prompts of {counted(n, 'template')}" if n else "")


def _one_size(asked: Named) -> Case:
    """Answer for a circuit of one size, by random circuits of this size."""
    record, name = asked[0]
    sizes = [m for m in record.measures if _is_size(m.name) and m.of == "result"]
    # A size that was asked for before that of the known circuit.
    own = max(sizes, key=lambda m: "@" in m.name, default=None)
    if own is None or math.isnan(own.value):
        return Case("small", "not tested")
    random = [m for m in record.measures if m.name == own.name and m.of.startswith(CONTROL)]
    defined = [m for m in random if not math.isnan(m.value)]
    size, all_edges = own.name.partition("@")[2], int(str(record.model.args.get("n_edges", 0)))
    numbers = {
        "method": name,
        "pairs": record.n,
        "agreement": (own.value, own.low, own.high),
        "size": f"{size} of {counted(all_edges, 'edge')}" if size else "the known size",
        "random": max((m.value for m in defined), default=math.nan),
    }
    if not defined:
        return Case("small", "one size no control", numbers)
    # Where one random circuit more may reach the circuit's interval.
    ends = (m.value if math.isnan(m.high) else m.high for m in defined)
    as_good = max(ends) >= (own.value if math.isnan(own.low) else own.low)
    return Case("small", "one size not distinguishable" if as_good else "one size", numbers)


def _is_size(name: str) -> bool:
    """Return whether a measure is the agreement of the circuit of one size."""
    return name.partition("@")[0] == "agreement"


def stable(asked: Named) -> list[Case]:
    """Answer which edges of the smallest circuit depend on the pairs; no case if not measured."""
    best = best_smallest(asked)
    if best is None:
        return []
    fraction = _smallest_rows(asked)[best]["result"]["fraction"]
    return stable_at(asked[best][0], plain_number(fraction))


def stable_at(record: Record, fraction: float) -> list[Case]:
    """Answer which edges of the circuit of one size by magnitude depend on the pairs, or on the
    seed.
    """
    if not record.has_table(STABILITY):
        return []
    rows = record.table(STABILITY).where(ranking="magnitude", fraction=fraction).rows()
    if not rows or not rows[0]["size"]:
        return []
    row: dict[str, Any] = rows[0]
    n, size = int(row["n_stable"]), int(row["size"])
    numbers: dict[str, Any] = {"size": size, "stable": n, "part": n / size, "often": STABLE}
    if "n_seeds" in row:
        signs, of_pairs = "stable_chance", counted(int(row["n_seeds"]), "other seed")
    else:
        over = "templates of the " if record.task.args.get("over") == "templates" else ""
        signs, of_pairs = "stable_random_signs", f"the {over}{row['n_pairs']:,} training pairs"
    numbers |= {"signs": plain_number(row[signs]), "of_pairs": of_pairs}
    if math.isnan(numbers["signs"]):
        return []
    if "n_seeds" in row:
        return [Case("stable", "seeds", numbers)]
    if n < size * numbers["signs"] + 1:  # Not one edge more.
        return [Case("stable", "no more than signs", numbers)]
    return [Case("stable", "all" if n == size else "some", numbers)]


def chance(asked: Named, area: AreaName, raised: bool) -> Case:
    """Return whether the best method's area exceeds the best of equally many random rankings."""
    part = "chance by value" if area == "cpr" else "chance by magnitude"
    if raised and area == "cpr":
        return Case(part, "raised")
    # A random ranking is compared with no others of its kind.
    defined = [(r, name) for r, name in asked if not (is_random(r) or math.isnan(r.value(area)))]
    if not defined:
        return Case(part, "not tested")
    record, name = max(defined, key=lambda own: SIGN[area] * own[0].value(area))
    test, own = against_chance(record, area, len(asked)), record.measure(area)
    controls = [record.measure(area, f"{CONTROL}{kind}") for kind in control_kinds(record)]
    values = [m.value for m in controls if m is not None and not math.isnan(m.value)]
    if own is None or not values or test.verdict in ("undefined", "few groups"):
        return Case(part, "not tested")
    # The kind of random rankings that comes nearest to the method.
    hardest = max(values, key=lambda value: SIGN[area] * value)
    limits = [x for x in test.limits.values() if not math.isnan(x)]
    limit = max(limits, key=lambda x: SIGN[area] * x, default=math.nan)
    numbers = {
        "method": name,
        "best": f" (the best of {len(asked)} by {area.upper()})" if len(asked) > 1 else "",
        "area": area.upper(),
        "own": (own.value, own.low, own.high),
        "random": hardest,
        "limit": limit,
        "n_tried": len(asked),
        "enough": DRAWS_PER_TRY * len(asked),
        "overshoot": _overshoot(record) if area == "cpr" else "",
    }
    if not limits:  # So few random rankings say nothing.
        return Case(part, "not tested")
    if test.verdict == "few rankings":
        return Case(part, "few rankings", numbers)
    # A limit that no circuit can be beyond: its draws are too few.
    if (area == "cma" and limit >= 1) or (area == "cmd" and limit <= 0):
        return Case(part, "too few rankings", numbers)
    words = {"better": "yes", "worse": "no"}
    return Case(part, words.get(test.verdict, "not distinguishable"), numbers)


def by_value(record: Record, name: str) -> list[Case]:
    """Return a case if circuits by value are empty, or keep much less than by magnitude."""
    if not record.has_table("curve"):
        return []
    curve = record.table("curve").where(of="result")
    most, empty = dict[str, float](), dict[str, int]()
    for by in ("value", "magnitude"):
        rows = curve.where(ranking=by)
        below = rows.numbers("fraction") < 1
        if not below.any():
            return []
        most[by] = float(np.nanmax(rows.numbers("agreement")[below], initial=0))
        empty[by] = int((rows.numbers("kept")[below] == 0).sum())
    numbers = {"method": name, **most, "empty": empty["value"]}
    if most["value"] >= AGREES > most["magnitude"]:
        return [Case("by value", "more", numbers)]
    if empty["value"] > empty["magnitude"]:
        return [Case("by value", "empty", numbers)]
    return [Case("by value", "less", numbers)] if most["value"] < most["magnitude"] / 2 else []


def _overshoot(record: Record) -> str:
    """Return a sentence if CPR exceeds 1."""
    if not record.value("cpr") > 1:
        return ""
    text = " A CPR above 1 is overshoot: circuits leave out edges that work against the answer."
    if not record.has_table("curve"):
        return text
    rows = record.table("curve").where(of="result", ranking="value")
    kept = rows.numbers("agreement")[rows.numbers("fraction") < 1]
    most = float(np.nanmax(kept, initial=0.0))
    return f"{text} Pair by pair, these circuits keep at most {percent(most)}."
