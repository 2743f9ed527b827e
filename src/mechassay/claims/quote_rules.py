"""Whether quotes support what they are quoted for, beyond being in their document.

Three objections to a quote that exists (rules and words are data, `data/quote-rules.yaml`):

    denied        the document itself says that it was not done ("we did not test other models")
    not about it  no word of the quote can be about the criterion: E6 takes another model, M1 an
                  interval or seeds. A rule never says that a quote shows what it is quoted for.
    counted       the passage is counted for another criterion of the claim

A passage counts once for a claim. Quotes are one passage if one contains the other, if they overlap
in their document, or if eight of ten words are the same in their order and so are numbers and
negations; and so are quotes that a chain of such pairs connects. Passages are given to criteria so
that as many as possible have one (augmenting paths; Kuhn 1955), the first in the rubric's order
before others.

Limitations are looked for sentence by sentence. What a document says of others is left out where
it says so before the passage; that a later section does what an earlier one did not is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import yaml
from pydantic import Field, field_validator

from mechassay.claims.claim import Claim
from mechassay.claims.document import BREAK, PagedDocument, flat_text, marks, normalised, skeleton
from mechassay.claims.rubric import Status
from mechassay.results.records import Stored
from mechassay.utils.display import shortened

SAME_WORDS = 0.8
SHOWN = 160
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[^a-z])")
_OWN = re.compile(r"\b(?:we|our|us|I)\b", re.IGNORECASE)
_NAME = re.compile(r"<(\w+)>")


class QuoteRule(Stored):
    """What a quote needs to be about a criterion.

    Attributes:
        takes: the rule in words.
        can: alternatives; one is met if all of its patterns are found.
        other_model: the name of a model of another family than the claim's is enough.
    """

    takes: str
    can: tuple[tuple[str, ...], ...]
    other_model: bool = False

    @field_validator("can", mode="before")
    @classmethod
    def _one_pattern(cls, plain: Any) -> Any:
        return [[part] if isinstance(part, str) else part for part in plain]


class LimitationRule(Stored):
    """A limitation that documents state of themselves.

    Attributes:
        any: patterns, of which one has to be found.
        denies: criteria whose YES and PARTIAL it contradicts; `denies_yes`, whose YES alone.
        doubts: criteria that it casts doubt on.
    """

    id: str
    any: tuple[str, ...]
    denies: tuple[str, ...] = ()
    denies_yes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


class QuoteRules(Stored):
    """The rules of a rubric; see the data."""

    rubric: str
    models: dict[str, str]
    words: dict[str, str]
    criteria: dict[str, QuoteRule]
    others: str
    limit_words: dict[str, str]
    limitations: tuple[LimitationRule, ...] = Field(min_length=1)

    def pattern(self, text: str, *more: Mapping[str, str]) -> re.Pattern[str]:
        """A pattern with the words that it names."""
        named = {"model": "|".join(self.models.values())}
        for words in (self.words, *more):
            named |= words
        while (filled := _NAME.sub(lambda name: f"(?:{named[name[1]]})", text)) != text:
            text = filled
        return re.compile(text, re.IGNORECASE)

    @cached_property
    def quote_patterns(self) -> dict[str, tuple[tuple[re.Pattern[str], ...], ...]]:
        """Of each criterion its alternatives."""
        return {
            code: tuple(tuple(map(self.pattern, needed)) for needed in rule.can)
            for code, rule in self.criteria.items()
        }

    @cached_property
    def limit_patterns(self) -> tuple[tuple[LimitationRule, tuple[re.Pattern[str], ...]], ...]:
        """Every kind of limitation with its patterns."""
        return tuple(
            (rule, tuple(self.pattern(words, self.limit_words) for words in rule.any))
            for rule in self.limitations
        )

    def families(self, text: str) -> set[str]:
        """Families of models that a text names."""
        return {
            name for name, pattern in self.models.items() if re.search(pattern, text, re.IGNORECASE)
        }


@cache
def quote_rules() -> QuoteRules:
    """The rules of this version."""
    text = files("mechassay.claims").joinpath("data/quote-rules.yaml").read_text("utf-8")
    return QuoteRules.model_validate(yaml.safe_load(text))


def can_be_about(code: str, exact: str, claim: Claim | None = None) -> bool:
    """Whether the words of a quote can be about a criterion.

    Args:
        claim: whose model is none of another family.
    """
    rules, text = quote_rules(), normalised(exact).replace(BREAK, "")
    rule = rules.criteria[code]
    if rule.other_model:
        own = rules.families(f"{claim.model} {claim.statement}") if claim else set[str]()
        named = rules.families(text)
        if len(named) > 1 or (own and named - own):
            return True
    return any(
        all(pattern.search(text) for pattern in needed) for needed in rules.quote_patterns[code]
    )


@dataclass(frozen=True)
class Limitation:
    """A sentence in which a document limits what it shows.

    Attributes:
        kind: the rule's id.
        page: from 1.
        denies, denies_yes, doubts: as of the rule.
    """

    kind: str
    page: int
    text: str
    denies: tuple[str, ...] = ()
    denies_yes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def contradicts(self, code: str, status: Status) -> bool:
        """Whether it says that a criterion is not met as judged."""
        return (code in self.denies and status in ("YES", "PARTIAL")) or (
            code in self.denies_yes and status == "YES"
        )


def find_limitations(document: PagedDocument) -> tuple[Limitation, ...]:
    """What a document says of its own limits, in its order; a sentence may be of several kinds."""
    rules, flat = quote_rules(), flat_text(document.pages)
    others = rules.pattern(rules.others)
    ends = [match.end() for match in _SENTENCE.finditer(flat.text)]
    limitations: list[Limitation] = []
    for begin, end in zip([0, *ends], [*ends, len(flat.text)], strict=True):
        sentence = flat.text[begin:end].strip()
        for rule, patterns in rules.limit_patterns:
            matches = [match for pattern in patterns if (match := pattern.search(sentence))]
            before = sentence[: min((match.start() for match in matches), default=0)]
            if matches and (_OWN.search(before) or not others.search(before)):
                page = flat.places[begin][0] + 1
                shown_sentence = shortened(sentence, SHOWN, SHOWN - 1)
                denied = rule.denies, rule.denies_yes, rule.doubts
                limitations.append(Limitation(rule.id, page, shown_sentence, *denied))
    return tuple(limitations)


def objections(
    claim: Claim,
    statuses: Mapping[str, Status],
    quotes: Sequence[tuple[str, str]],
    limitations: Sequence[Limitation] = (),
    letters: str = "",
) -> list[str]:
    """Why quotes that exist do not support what they are quoted for; "" for those that do.

    Args:
        statuses: of the claim's criteria in their order; quotes for others than YES and PARTIAL
            support nothing, and nothing is said of them.
        quotes: criterion and words.
        letters: of the documents (`skeleton`), in which quotes may overlap.
    """
    reasons, rules = [""] * len(quotes), quote_rules()
    passages = _passages([exact for _, exact in quotes], letters)
    wanted: dict[str, list[int]] = {}
    for place, (code, exact) in enumerate(quotes):
        status = statuses[code]
        if status not in ("YES", "PARTIAL"):
            continue
        denied = next(
            (limitation for limitation in limitations if limitation.contradicts(code, status)), None
        )
        if denied is not None:
            reasons[place] = f"the document denies it: “{denied.text}”"
        elif not can_be_about(code, exact, claim):
            takes = rules.criteria[code].takes
            reasons[place] = f"the quote is not about it: {code} takes {takes}"
        else:
            wanted.setdefault(code, []).append(passages[place])
    owner = _owners({code: wanted[code] for code in statuses if code in wanted})
    for place, (code, _) in enumerate(quotes):
        held = owner.get(passages[place], code)
        if not reasons[place] and held != code and statuses[code] in ("YES", "PARTIAL"):
            reasons[place] = f"the passage is counted for {held}, and counts once"
    return reasons


def _owners(wanted: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """Of each passage the criterion that it is counted for: as many criteria as can have one."""
    owner: dict[int, str] = {}

    def give(code: str, tried: set[int]) -> bool:
        for passage in wanted[code]:
            if passage not in tried:
                tried.add(passage)
                if passage not in owner or give(owner[passage], tried):
                    owner[passage] = code
                    return True
        return False

    for code in wanted:
        give(code, set())
    return owner


def _passages(quotes: Sequence[str], letters: str) -> list[int]:
    """Of each quote the number of its passage: that of the first quote that it is one with."""
    unique = list(dict.fromkeys(quotes))
    number = list(range(len(unique)))
    for place, quote in enumerate(unique):
        for before in range(place):
            if number[before] != number[place] and is_one_passage(unique[before], quote, letters):
                low, high = sorted((number[before], number[place]))
                number = [low if end == high else end for end in number]
    return [number[unique.index(quote)] for quote in quotes]


def is_one_passage(one: str, other: str, letters: str = "") -> bool:
    """Whether two quotes are one passage of documents with these letters; see the module."""
    bones = skeleton(normalised(one)), skeleton(normalised(other))
    if bones[0] in bones[1] or bones[1] in bones[0]:
        return True
    words = [[skeleton(word) for word in normalised(text).split()] for text in (one, other)]
    first, second = ([word for word in spaced if word] for spaced in words)
    for begin, end in ((first, second), (second, first)):
        for n in range(1, min(len(begin), len(end))):
            if begin[-n:] == end[:n] and "".join([*begin, *end[n:]]) in letters:
                return True
    alike = SequenceMatcher(None, first, second, autojunk=False).ratio()
    return alike >= SAME_WORDS and marks(one) == marks(other)
