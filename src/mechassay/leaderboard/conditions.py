"""Conditions of a place in words: what tells it from other places of the same task and model.

    40 examples          the number of examples, where it differs
    bf16, cpr@2          a value that says what it is of
    split validation     any other value with its name
    without NAME         controls that other places are compared with

Of these a place has the ones that fewer than half of the places have, and all of them if there is
none. Hashes say nothing to a reader. Only places that words leave equal have one behind them, the
hash by which a cell's name has its conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mechassay.text import shortened

AS_REPORTED = "as reported"
EXAMPLES, DTYPE, DEFINITION = "examples", "dtype", "definition"
CONTROLS, SITES = "controls", "chosen of"
HASHED = ("examples", "weights", "constants from", "coefficients from", "sha256")
"""Conditions that are hashes, alone or behind a comma."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
CONTROL = "control:"
LONGEST = 32
NONE = "none"


@dataclass(frozen=True)
class PlaceConditions:
    """What one of several places was measured under.

    Attributes:
        under: the hash of the conditions.
        n: examples; 0 where this is not known.
        reported: whether its numbers are as others reported them.
    """

    under: str
    conditions: Mapping[str, str]
    n: int = 0
    reported: bool = False


def in_words(places: Sequence[PlaceConditions]) -> list[tuple[str, str]]:
    """What each of several places differs by: in short, and in full; "" for a single one."""
    if len(places) < 2:
        return [("", "")] * len(places)
    names = dict.fromkeys(name for each in places for name in each.conditions)
    changed = [name for name in names if len({each.conditions.get(name) for each in places}) > 1]
    words = [_words(each, changed, places) for each in places]
    whole = [", ".join(each.values()) for each in words]
    rare = [", ".join(_rare(each, words)) for each in words]
    short = [
        one if one and rare.count(one) == 1 else other
        for one, other in zip(rare, whole, strict=True)
    ]
    short = [
        told if told and short.count(told) == 1 else f"{told} #{each.under}".strip()
        for told, each in zip(short, places, strict=True)
    ]
    full = [
        "; ".join(f"{name} {each.conditions.get(name, NONE)}" for name in changed)
        for each in places
    ]
    return list(zip(short, full, strict=True))


def _rare(own: Mapping[str, str], every: Sequence[Mapping[str, str]]) -> list[str]:
    """The words of a place that fewer than half of all have."""
    return [
        told
        for name, told in own.items()
        if 2 * sum(each.get(name) == told for each in every) < len(every)
    ]


def _words(
    own: PlaceConditions, changed: Sequence[str], every: Sequence[PlaceConditions]
) -> dict[str, str]:
    """The words of a place by condition; conditions that words cannot tell have none."""
    if own.reported:
        return {DEFINITION: AS_REPORTED}
    others = [each for each in every if not each.reported]
    words: dict[str, str] = {}
    for name in changed:
        values = [each.conditions.get(name, "") for each in others]
        if len(set(values)) < 2:
            continue  # It is numbers as reported alone that differ by it.
        value = own.conditions.get(name, "")
        if name == EXAMPLES:
            private = " " in value  # The name of an epoch's examples.
            told = value if private else _counted(own, others)
        elif name == CONTROLS:
            told = _without(value, values)
        elif name in (DTYPE, DEFINITION):
            told = DTYPES.get(value, value)
        elif name in HASHED:
            told = ""
        elif name == SITES:
            counts = [each.partition(", ")[0] for each in values]
            told = value.partition(", ")[0] if len(set(counts)) > 1 else ""
        else:
            told = f"{name} {shortened(value or NONE, LONGEST)}"
        if told:
            words[name] = told
    return words


def _counted(own: PlaceConditions, every: Sequence[PlaceConditions]) -> str:
    """The number of examples, where it is not the same everywhere."""
    differs = own.n and len({each.n for each in every}) > 1
    return f"{own.n:,} examples" if differs else ""


def _without(own: str, every: Sequence[str]) -> str:
    """Which controls a place lacks of those that others have."""
    held = [_names(each) for each in (own, *every)]
    every_name = dict.fromkeys(name for each in held for name in each)
    lacking = [name for name in every_name if name not in held[0]]
    return f"without {', '.join(lacking)}" if lacking else "all controls"


def _names(controls: str) -> list[str]:
    named = (each.partition(CONTROL) for each in controls.split(", "))
    return [name for before, _, name in named if name and not before]
