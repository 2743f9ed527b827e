"""The parts of a prompt that are words of its row: where the values of columns stand in the text.

    {"clean": "Ann gave the ring to", "object": "ring"}    the part `object` is "ring"

A value is a part where it stands as a whole word: no letter, digit or underscore directly before or
after it. Its first place has the column's name, further ones `object_2`, `object_3` and so on (as
in templates). In the counterfactual a part is the value that the row says for it (a column
counterfactual_object or corrupted_object), else the same value as in the clean prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

from mechassay.alignment import Span


def parts_of(text: str, values: Mapping[str, str], given: Mapping[str, Span]) -> dict[str, Span]:
    """The parts of a text: those given, and where values stand.

    Args:
        text: the prompt.
        values: what is looked for, by name.
        given: parts that are known; their names are taken.
    """
    found = dict(given)
    for name, value in values.items():
        if name in given:
            continue
        for number, span in enumerate(places(text, value.strip()), 1):
            numbered = name if number == 1 else f"{name}_{number}"
            if number == 1 or (numbered not in values and numbered not in found):
                found[numbered] = span
    return found


def places(text: str, value: str) -> list[Span]:
    """Where a value stands as a whole word, from left to right; nothing for an empty one."""
    found: list[Span] = []
    begin = text.find(value) if value else -1
    while begin >= 0:
        end = begin + len(value)
        whole = not _in_word(text[begin - 1 : begin]) and not _in_word(text[end : end + 1])
        if whole:
            found.append((begin, end))
        begin = text.find(value, end if whole else begin + 1)
    return found


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
