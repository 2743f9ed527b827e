"""Whether circuits of a ranking are better than those of random rankings.

That is a statement about rankings, not only about examples. A record holds the areas of k random
rankings of each kind, of single edges and of whole paths; the method's area has to be

    beyond what chance may reach for the best of the m methods of a run     (`stats.chance`)
    better than the mean of random rankings on these examples, whose paired interval excludes 0
    in the profile `strict`, better than that of the empty circuit

for both kinds: the harder one counts. Fewer than `FEW_GROUPS` independent groups of examples
support no verdict. "worse" asks the same of the other side, also for both kinds. An area beyond all
random rankings, where these are too few to say what chance may reach, has the verdict "few
rankings".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.stats import norm

from mechassay.circuits.evaluation.differences import AreaName
from mechassay.results.curves import CONTROL, CONTROLS, control_kinds, is_random
from mechassay.results.records import Record
from mechassay.stats.chance import FEW_DRAWS, chance_limit
from mechassay.stats.intervals import FEW_GROUPS, LEVEL

SIGN: Mapping[AreaName, float] = {"cpr": 1.0, "cmd": -1.0, "cma": 1.0}
"""1 where a larger area is better."""
MANY = 1000
Verdict = Literal["better", "worse", "unresolved", "few rankings", "few groups", "undefined"]


@dataclass(frozen=True)
class ChanceTest:
    """What random rankings say of a method's area.

    Attributes:
        limits: what the area has to be beyond, by kind of random ranking.
        n_drawn: random rankings, by kind.
        n_tried: methods that were tried.
    """

    area: AreaName
    verdict: Verdict
    limits: Mapping[str, float] = field(default_factory=dict)
    n_drawn: Mapping[str, int] = field(default_factory=dict)
    n_tried: int = 1


def n_groups(record: Record) -> int:
    """How many independent groups of examples a record is of."""
    values = record.values
    return 0 if values is None else len(set(values.groups or values.ids))


def n_methods(records: Sequence[Record]) -> int:
    """Methods of a run that may be told from chance; those that are random are not counted."""
    return max(1, sum(not is_random(record) for record in records))


def against_chance(record: Record, area: AreaName, n_tried: int = 1) -> ChanceTest:
    """Compare an area of a record with the random rankings that it holds.

    Args:
        n_tried: methods of the same run, of which this may be the best.
    """
    sign, own = SIGN[area], record.measure(area)
    kinds = [kind for kind in control_kinds(record) if kind in CONTROLS]
    draws = {kind: sign * _drawn(record, kind, area) for kind in kinds}
    n_drawn = {kind: len(areas) for kind, areas in draws.items()}
    gaps = {kind: record.measure(area, f"difference:{kind}") for kind in kinds}
    if n_groups(record) < FEW_GROUPS:
        return ChanceTest(area, "few groups", n_drawn=n_drawn, n_tried=n_tried)
    known = [own, *gaps.values()]
    if any(m is None or math.isnan(m.value) or math.isnan(m.low) for m in known):
        return ChanceTest(area, "undefined", n_drawn=n_drawn, n_tried=n_tried)
    if not draws or min(n_drawn.values()) < FEW_DRAWS:
        return ChanceTest(area, "few rankings", n_drawn=n_drawn, n_tried=n_tried)
    assert own is not None
    value, above, below, clear = sign * own.value, list[bool](), list[bool](), list[bool]()
    limits = dict[str, float]()
    for kind, areas in draws.items():
        gap = gaps[kind]
        assert gap is not None
        low, high = sorted((sign * gap.low, sign * gap.high))
        noise = (high - low) / (2 * float(norm.ppf((1 + LEVEL) / 2)))
        limits[kind] = sign * chance_limit(areas, n_tried=n_tried, noise=noise)
        above.append(low > 0 and value > sign * limits[kind])
        # Beyond all of them, and they are too few for so many methods.
        clear.append(low > 0 and value > areas.max())
        below.append(high < 0 and -value > chance_limit(-areas, n_tried=n_tried, noise=noise))
    if record.metric.args.get("profile") == "strict":
        # There the empty circuit is worth 0 (of CMD 1); random ones may do harm.
        worthless = 1.0 if area == "cmd" else 0.0
        ends = (sign * (own.low - worthless), sign * (own.high - worthless))
        above.append(min(ends) > 0)
        clear.append(min(ends) > 0)
    verdict: Verdict = "better" if all(above) else "worse" if all(below) else "unresolved"
    if verdict == "unresolved" and all(clear):
        verdict = "few rankings"
    return ChanceTest(area, verdict, limits, n_drawn, n_tried)


def _drawn(record: Record, kind: str, area: AreaName) -> np.ndarray:
    if not record.has_table("random areas"):
        return np.empty(0)
    return record.table("random areas").where(of=f"{CONTROL}{kind}").numbers(area)


def most_tried(record: Record, area: AreaName) -> int | None:
    """Of how many methods a record may be the best and still be better than random rankings.

    Returns:
        0 if not even alone, at most `MANY`; None where the record does not say.
    """
    alone = against_chance(record, area)
    if alone.verdict in ("few groups", "undefined") or not alone.limits:
        return None
    most, too_many = 0, MANY + 1
    while too_many - most > 1:
        n_tried = (most + too_many) // 2
        better = against_chance(record, area, n_tried).verdict == "better"
        most, too_many = (n_tried, too_many) if better else (most, n_tried)
    return most
