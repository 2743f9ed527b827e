"""Texts in forms that can be compared: normalised, and letters and digits alone.

Normalised: Unicode's compatible forms (NFKC, so that "ﬁ" is "fi"), one space for white space, one
hyphen for all hyphens and the minus sign, and a mark of its own for a hyphen at a line's end, which
may be the word's or the line's. Raised and lowered digits stay apart from others: "10²" is "10^2",
not "102".

What no other may stand for are the numbers of a text, with their sign, and its negations.
"""

from __future__ import annotations

import re
import unicodedata

BREAK = "\ue000"
"""Stands for a hyphen at a line's end."""
LINE_END_HYPHENS = re.compile(r"[-‐\u00ad\ufffe]\s*\n\s*|[\ufffe\u00ad]")
"""Hyphens at the ends of lines, with what follows; U+FFFE is pdfium's, U+00AD one that is soft."""
_HYPHENS = str.maketrans(dict.fromkeys("‐‑‒–−", "-"))
_RAISED = {each: f"^{digit}" for digit, each in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_LOWERED = {each: f"_{digit}" for digit, each in enumerate("₀₁₂₃₄₅₆₇₈₉")}
_DIGITS = str.maketrans(_RAISED | _LOWERED)
# A hyphen is a sign where nothing that it could join or subtract from stands before it.
_NUMBERS = re.compile(r"(?:(?<![\w)\].,%^-])-)?\d+(?:[.,]\d+)*")
_NEGATIONS = re.compile(r"\b(?:not|no|never|none|nor|neither|cannot|without|\w+n[’']t)\b", re.I)
_TOKEN = re.compile(
    rf"[^\W\d_]+(?:(?:['’{BREAK}]|[-‐]\s*\n\s*)[^\W\d_]+)*"
    r"|(?:(?<![\w)\].,%^-])-|[\^_])?\d+(?:[.,^_-]\d+)*"
)
LONGEST = 60
"""Letters of a word that are looked at beyond a passage."""


def normalised(text: str) -> str:
    """NFKC, one space for white space, one hyphen for all, `BREAK` for one at a line's end."""
    text = LINE_END_HYPHENS.sub(BREAK, text).translate(_DIGITS)
    return " ".join(unicodedata.normalize("NFKC", text).translate(_HYPHENS).split())


def pattern_of(quote: str) -> re.Pattern[str]:
    """What finds a quote in normalised text: between its characters may stand a line's end, but
    not within a number.
    """
    parts, before = list[str](), ""
    for character in normalised(quote):
        if before and not (before.isdigit() and character.isdigit()):
            parts.append(f"{BREAK}?")
        if character == "-":
            parts.append(f"(?:-|{BREAK})")
        elif character == BREAK:
            parts.append(f"(?:-|{BREAK})?")
        else:
            parts.append(re.escape(character))
        before = character
    return re.compile("".join(parts))


def skeleton(text: str) -> str:
    """Letters and digits, without case."""
    return "".join(character for character in text.casefold() if character.isalnum())


def marks(text: str) -> tuple[list[str], list[str]]:
    """The negations and the numbers of a text, in their order."""
    text = normalised(text)
    negations = [word.casefold().replace("’", "'") for word in _NEGATIONS.findall(text)]
    return negations, _NUMBERS.findall(text)


def cut_words(text: str, begin: int, end: int) -> tuple[str, str]:
    """What a passage lacks of its first and of its last word or number: ("8", "") where "7 %" is
    taken from "87 %", and ("", "not") where "can" is taken from "cannot". A number at the end of a
    word, such as the mark of a footnote, is no part of it.
    """
    before = after = ""
    for token in _TOKEN.finditer(text, max(0, begin - LONGEST), min(len(text), end + LONGEST)):
        if token.start() < begin < token.end():
            before = text[token.start() : begin]
        if token.start() < end < token.end():
            after = text[end : token.end()]
    return _without_breaks(before), _without_breaks(after)


def _without_breaks(text: str) -> str:
    return LINE_END_HYPHENS.sub("", text).replace(BREAK, "")
