"""Causal models of the tasks of ground truths, the right ones and a wrong one for each.

The right ones have the variables of the trained models (`mechassay.truth.tasks`), by their names:

    truth-mcqa            answer_pointer -> answer, as `mcqa`
    truth-addition        carry, both_tens = x10 + y10  ->  answer = both_tens + carry
    truth-ioi             duplicate: the repeated name  ->  answer: the other one
    truth-greater-than    digit  ->  answers: the larger digits
    truth-fraction        share: how many letters are x  ->  answer
    truth-previous-token  previous: the word before the mark  ->  answer
    truth-induction       asked: the last word  ->  answer: what follows it elsewhere

The wrong ones say the same after every prompt, but by another way, through a variable that the
models do not have. An interchange of it changes what is expected, so that it can be refuted. It
does not follow from the answers of base and source, which are there at the end:

    truth-mcqa            symbol_rank: the alphabetical place of the answer among the letters
    truth-addition        odd: whether x1 + y1 is odd; the carry is read off whether it agrees
    truth-ioi             name_place: whether the single name comes first or second
    truth-greater-than    odd_place: whether the digit stands on an odd place
    truth-fraction        odd_places: whether an odd number of x stands on odd places
    truth-previous-token  word_place: how many words stand before the mark
    truth-induction       word_place: where the answer stands

`KNOWN_SITES` says where the right ones live, as far as is claimed; `true_sites` verifies it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from mechassay.causal_models.causal_model import CausalModel, Undecided, Variable
from mechassay.causal_models.task_models import DIGIT, mcqa_model, space_before, written_after
from mechassay.prompts.pairs import LAST, Prompt
from mechassay.truth.tasks import CHOICES, COUNTS, DIGITS, LETTERS, NAMES, SUMS, TREES

if TYPE_CHECKING:
    from mechassay.interventions.site import Site

BIT = (0, 1)


# --- choosing


def choices_model() -> CausalModel:
    """The causal model of `truth-mcqa`."""
    return mcqa_model(CHOICES).renamed("truth-mcqa")


def symbol_rank_model() -> CausalModel:
    """Wrong: the answer is kept as its alphabetical place among the four letters."""
    right = choices_model()
    kept = {name: right.variables[name] for name in right.variables if name != "answer"}
    return CausalModel(
        "truth-mcqa by rank",
        {
            **kept,
            "symbol_rank": Variable(
                range(CHOICES),
                lambda symbols, answer_pointer: sorted(symbols).index(symbols[answer_pointer]),
            ),
            "answer": Variable(str, lambda symbols, symbol_rank: sorted(symbols)[symbol_rank]),
        },
        read=right.read,
        write=right.write,
    )


# --- adding


def added_tens_model() -> CausalModel:
    """The causal model of `truth-addition`."""
    return _adding(
        "truth-addition",
        {
            "carry": Variable(BIT, lambda x1, y1: (x1 + y1) // 10),
            "both_tens": Variable(range(2, 19), lambda x10, y10: x10 + y10),
            "answer": Variable(range(2, 20), lambda both_tens, carry: both_tens + carry),
        },
    )


def odd_ones_model() -> CausalModel:
    """Wrong: whether the sum of the ones is odd is kept, and whether the carry is the same."""
    return _adding(
        "truth-addition by parity",
        {
            "odd": Variable(BIT, lambda x1, y1: (x1 + y1) % 2),
            "agrees": Variable(BIT, lambda x1, y1: int((x1 + y1) // 10 == (x1 + y1) % 2)),
            "both_tens": Variable(range(2, 19), lambda x10, y10: x10 + y10),
            "answer": Variable(
                range(2, 20), lambda both_tens, odd, agrees: both_tens + int(odd == agrees)
            ),
        },
    )


def _adding(name: str, variables: Mapping[str, Variable]) -> CausalModel:
    def read(prompt: Prompt) -> Mapping[str, Any]:
        numbers = [int(_part(prompt, part)) for part in ("op1_first", "op1_last")]
        numbers += [int(_part(prompt, part)) for part in ("op2_first", "op2_last")]
        x10, x1, y10, y1 = numbers
        return {"x10": x10 // 10, "x1": x1, "y10": y10 // 10, "y1": y1}

    inputs = {"x10": range(1, 10), "x1": range(10), "y10": range(1, 10), "y1": range(10)}
    return CausalModel(
        name,
        {**inputs, **variables},
        read=read,
        write=lambda value, base: (space_before(base) + SUMS[value],),
    )


# --- the name that is not repeated


def repeated_name_model() -> CausalModel:
    """The causal model of `truth-ioi`."""
    return _naming(
        "truth-ioi",
        {
            "duplicate": Variable(NAMES, lambda repeated: repeated),
            "answer": Variable(NAMES, _other_name, parents=("names", "duplicate")),
        },
    )


def name_place_model() -> CausalModel:
    """Wrong: which of the two names is the single one is kept, by their order."""
    return _naming(
        "truth-ioi by place",
        {
            "name_place": Variable(BIT, lambda names, repeated: 1 - names.index(repeated)),
            "answer": Variable(NAMES, lambda names, name_place: names[name_place]),
        },
    )


def _naming(name: str, variables: Mapping[str, Variable]) -> CausalModel:
    def read(prompt: Prompt) -> Mapping[str, Any]:
        parts = {part: _part(prompt, part) for part in ("subject", "indirect_object")}
        first, second = sorted(parts, key=lambda part: prompt.spans[part])
        return {"names": (parts[first], parts[second]), "repeated": parts["subject"]}

    return CausalModel(
        name,
        {"names": _is_two_names, "repeated": NAMES, **variables},
        read=read,
        write=written_after,
    )


def _is_two_names(value: Any) -> bool:
    return isinstance(value, tuple) and len(set(value)) == 2 and set(value) <= set(NAMES)


def _other_name(names: tuple[str, str], duplicate: str) -> str:
    if duplicate not in names:
        raise Undecided("a repeated name that is not in the base")
    return names[1 - names.index(duplicate)]


# --- comparing


def larger_model() -> CausalModel:
    """The causal model of `truth-greater-than`."""
    return _comparing(
        "truth-greater-than",
        {
            "digit": Variable(range(10), lambda written: written),
            "answers": Variable(tuple, lambda digit: DIGITS[digit + 1 :]),
        },
    )


def odd_place_model() -> CausalModel:
    """Wrong: kept is whether the digit stands on an odd place, and whether it agrees, odd or not,
    with its place.
    """
    return _comparing(
        "truth-greater-than by place",
        {
            "place": range(10),
            "odd_place": Variable(BIT, lambda place: place % 2),
            "agrees": Variable(BIT, lambda written, place: int(written % 2 == place % 2)),
            "half": Variable(range(5), lambda written: written // 2),
            "answers": Variable(
                tuple,
                lambda half, odd_place, agrees: DIGITS[2 * half + int(odd_place == agrees) + 1 :],
            ),
        },
    )


def _comparing(name: str, variables: Mapping[str, Any]) -> CausalModel:
    def read(prompt: Prompt) -> Mapping[str, Any]:
        digit = _part(prompt, "digit")
        values = {"written": int(digit), "place": prompt.text.split().index(digit)}
        return {name: value for name, value in values.items() if name in known}

    known = {"written": DIGIT, **variables}
    return CausalModel(
        name,
        known,
        read=read,
        write=lambda value, base: tuple(space_before(base) + digit for digit in value),
        prompt=_prompt_before,
    )


def _prompt_before(labels: tuple[str, ...], base: Prompt) -> str:
    """The base with the digit that the labels begin after."""
    begin, end = base.spans["digit"]
    return f"{base.text[:begin]}{int(labels[0]) - 1}{base.text[end:]}"


# --- counting


def share_model() -> CausalModel:
    """The causal model of `truth-fraction`."""
    return _counting(
        "truth-fraction",
        {
            "share": Variable(range(1, 8), lambda count: count),
            "answer": Variable(COUNTS, lambda share: COUNTS[share - 1]),
        },
    )


def odd_places_model() -> CausalModel:
    """Wrong: kept is whether an odd number of x stands on odd places, and whether the number of all
    x agrees with that, odd or not.
    """
    return _counting(
        "truth-fraction by place",
        {
            "on_odd": range(5),
            "odd_places": Variable(BIT, lambda on_odd: on_odd % 2),
            "agrees": Variable(BIT, lambda count, on_odd: int(count % 2 == on_odd % 2)),
            "half": Variable(lambda value: value in range(4), lambda count: count // 2),
            "answer": Variable(COUNTS, _counted, parents=("half", "odd_places", "agrees")),
        },
    )


def _counting(name: str, variables: Mapping[str, Any]) -> CausalModel:
    def read(prompt: Prompt) -> Mapping[str, Any]:
        letters = prompt.text.split()[1:-1]
        if not set(letters) <= set(LETTERS) or not 1 <= letters.count(LETTERS[0]) <= len(COUNTS):
            raise Undecided("a prompt of other words than letters")
        values = {"count": letters.count(LETTERS[0]), "on_odd": letters[::2].count(LETTERS[0])}
        return {name: value for name, value in values.items() if name in known}

    known = {"count": range(1, 8), **variables}
    return CausalModel(name, known, read=read, write=written_after)


def _counted(half: int, odd_places: int, agrees: int) -> str:
    count = 2 * half + int(odd_places == agrees)
    if not count:
        raise Undecided("no x at all")
    return COUNTS[count - 1]


# --- copying


def previous_word_model() -> CausalModel:
    """The causal model of `truth-previous-token`."""
    return _copying(
        "truth-previous-token",
        {
            "previous": Variable(TREES, _word_at, parents=("words", "place")),
            "answer": Variable(TREES, lambda previous: previous),
        },
    )


def mark_place_model() -> CausalModel:
    """Wrong: it is kept how many words stand before the mark."""
    return _by_place("truth-previous-token by place")


def following_word_model() -> CausalModel:
    """The causal model of `truth-induction`."""
    return _copying(
        "truth-induction",
        {
            "asked": Variable(TREES, lambda words: words[-1]),
            "answer": Variable(TREES, _following, parents=("words", "asked")),
        },
    )


def following_place_model() -> CausalModel:
    """Wrong: it is kept where the answer stands."""
    return _by_place("truth-induction by place")


def _copying(name: str, variables: Mapping[str, Variable]) -> CausalModel:
    """Inputs are the words that can be answers, and the place of the right one among them."""

    def read(prompt: Prompt) -> Mapping[str, Any]:
        right, words = _part(prompt, "answer"), prompt.text.split()
        if not set(words) & set(TREES):
            raise Undecided("a prompt of other words than trees")
        trees = tuple(word for word in words if word in TREES)
        return {"words": trees, "place": trees.index(right)}

    inputs = {"words": lambda value: isinstance(value, tuple), "place": range(8)}
    needed = {parent for variable in variables.values() for parent in variable.parents or ()}
    kept = inputs if "place" in needed else {"words": inputs["words"]}

    def read_kept(prompt: Prompt) -> Mapping[str, Any]:
        return {name: value for name, value in read(prompt).items() if name in kept}

    return CausalModel(name, {**kept, **variables}, read=read_kept, write=written_after)


def _by_place(name: str) -> CausalModel:
    return _copying(
        name,
        {
            "word_place": Variable(range(8), lambda place: place, parents=("place",)),
            "answer": Variable(TREES, _word_at, parents=("words", "word_place")),
        },
    )


def _word_at(words: tuple[str, ...], place: int) -> str:
    return words[place]


def _following(words: tuple[str, ...], asked: str) -> str:
    if asked not in words[:-2]:
        raise Undecided("an asked word that nothing follows in the base")
    return words[words.index(asked) + 1]


# --- what they share


def _part(prompt: Prompt, name: str) -> str:
    if name not in prompt.spans:
        raise Undecided(f"a prompt without the part {name}")
    return prompt.part(name)


# --- where the right ones live

INPUT, LOGITS = "input", "logits"
_WRITER = re.compile(r"a(?P<layer>\d+)\.h(?P<head>\d+)|m(?P<mlp>\d+)|input")


class KnownSite(NamedTuple):
    """A writer that holds a variable, where, and who reads it there.

    Attributes:
        writer: as edges spell it: "a1.h1", "m0" or "input".
        position: a part of the prompt, or "last".
        until: the first that takes it from the stream there, or adds what makes the stream hold
            another thing too; "logits" after the last block.
    """

    writer: str
    position: str
    until: str

    @property
    def site(self) -> Site:
        """The writer's own site; of the input, the stream before the first block."""
        from mechassay.interventions.site import Site

        match = _WRITER.fullmatch(self.writer)
        assert match is not None
        if match["head"] is not None:
            return Site(int(match["layer"]), self.position, "heads", (int(match["head"]),))
        if match["mlp"] is not None:
            return Site(int(match["mlp"]), self.position, "mlp")
        return Site(-1, self.position)

    def stream(self, n_layers: int) -> tuple[Site, ...]:
        """The stream at the position after each block, from the writer's on."""
        from mechassay.interventions.site import Site

        end = n_layers if self.until == LOGITS else _layer(self.until)
        return tuple(Site(layer, self.position) for layer in range(_layer(self.writer), end))


KNOWN_SITES: Mapping[str, Mapping[str, tuple[KnownSite, ...]]] = MappingProxyType(
    {
        "truth-addition-trained": {
            "carry": (KnownSite("m0", "op2_last", "a1.h2"), KnownSite("a1.h2", LAST, "m1")),
            "both_tens": (KnownSite("a0.h3", LAST, "m1"),),
            "answer": (KnownSite("m1", LAST, LOGITS),),
        },
        "truth-fraction-trained": {
            "share": (KnownSite("a0.h2", LAST, "m1"), KnownSite("m1", LAST, LOGITS))
        },
        "truth-greater-than-trained": {
            "digit": (
                *(KnownSite(INPUT, "digit", "a0.h0"), KnownSite("a0.h0", LAST, "m1")),
                KnownSite("m1", LAST, LOGITS),
            )
        },
        "truth-induction-trained": {"asked": (KnownSite(INPUT, LAST, "a1.h0"),)},
        "truth-ioi-trained": {
            "duplicate": (
                *(KnownSite(INPUT, "subject_2", "a0.h2"), KnownSite("a0.h2", LAST, "a1.h3")),
                KnownSite("a1.h3", LAST, "a2.h1"),
            ),
            "answer": (
                KnownSite(INPUT, "indirect_object", "a2.h1"),
                KnownSite("a2.h1", LAST, LOGITS),
            ),
        },
        "truth-mcqa-trained": {
            "answer_pointer": (KnownSite("a1.h1", LAST, "a2.h2"),),
            "answer": (
                KnownSite(INPUT, "correct_symbol", "a2.h2"),
                KnownSite("a2.h2", LAST, LOGITS),
            ),
        },
        "truth-previous-token-trained": {
            "previous": (
                *(KnownSite(INPUT, "answer", "a0.h1"), KnownSite("a0.h1", "mark", "a1.h2")),
                KnownSite("a1.h2", LAST, LOGITS),
            )
        },
    }
)
"""By ground truth and variable of its task's causal model."""


def _layer(node: str) -> int:
    return -1 if node == INPUT else int(re.findall(r"\d+", node)[0])
