"""Conditions of a place in words: what tells it from other places of the same task and model.

    40 examples          the number of examples, where it differs
    bf16, cpr@2          a value that says what it is of
    split validation     any other value with its name
    without NAME         controls that other places are compared with

Hashes say nothing to a reader. Only what these words leave equal has one behind them, the hash by
which a cell's name has its conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mechassay.text import shortened

AS_REPORTED = "as reported"
EXAMPLES, DTYPE, DEFINITION, CONTROLS = "examples", "dtype", "definition", "controls"
HASHED = ("examples", "weights", "constants from", "coefficients from", "sha256")
"""Conditions that are hashes, alone or behind a comma."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
CONTROL = "control:"
LONGEST = 32
NONE = "none"
HASH = 8


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
    names = dict.fromkeys(name for each in places for name in each.conditions)
    changed = [name for name in names if len({each.conditions.get(name) for each in places}) > 1]
    short = [_short(each, changed, places) for each in places]
    full = [
        "; ".join(f"{name} {each.conditions.get(name, NONE)}" for name in changed)
        for each in places
    ]
    unclear = [words for words in short if short.count(words) > 1]
    return [
        (" ".join(filter(None, [words, f"#{each.under}"])), said)
        if words in unclear or (len(places) > 1 and not words)
        else (words, said)
        for each, words, said in zip(places, short, full, strict=True)
    ]


def _short(own: PlaceConditions, changed: Sequence[str], every: Sequence[PlaceConditions]) -> str:
    if own.reported:
        return AS_REPORTED
    others = [each for each in every if not each.reported]
    words: list[str] = []
    for name in changed:
        if len({each.conditions.get(name) for each in others}) < 2:
            continue  # It is numbers as reported alone that differ by it.
        value = own.conditions.get(name, "")
        if name == EXAMPLES:
            private = " " in value  # The name of an epoch's examples.
            told = value if private else _counted(own, others)
        elif name == CONTROLS:
            told = _without(value, [each.conditions.get(name, "") for each in others])
        elif name in (DTYPE, DEFINITION):
            told = DTYPES.get(value, value)
        elif name in HASHED:
            told = "" if value else f"no {name}"
        elif name == "chosen of":
            told = value.rpartition(", ")[0] or value
            same = [each.conditions.get(name, "").startswith(f"{told},") for each in others]
            told = "" if sum(same) > 1 and all(same) else told
        else:
            told = f"{name} {shortened(value or NONE, LONGEST)}"
        words.append(told)
    return ", ".join(filter(None, dict.fromkeys(words)))


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
