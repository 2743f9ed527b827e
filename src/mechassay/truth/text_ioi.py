"""Two models of InterpBench's size that do IOI in English, by circuits with what real ones have.

    "When Kate and Paul went to the store, Paul gave a book to" -> " Kate"

    truth-text-ioi               one name mover
    truth-text-ioi-redundant     two movers share the work

Six layers of four heads, 64 wide, as InterpBench's model of IOI (Gupta et al. 2024; Mueller et
al. 2025, appendix F). Each word is one token of SmolLM2's tokenizer; no other words are known.
Heads are named as by Wang et al. (2023): one finds the repeated name, inhibition heads bring it
to the end, movers attend to the name that is not inhibited. A model is trained
(`mechassay.truth.training`) to have the logits

    logits = sum over movers w of weight[w] onehot(answer[w])

where answer[w] is the name that w's inhibition head leaves over. The weights sum to `LOGIT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from mechassay.prompts.pairs import Prompt
from mechassay.tasks.ioi import ioi_prompt
from mechassay.truth.tasks import (
    LOGIT,
    OTHER,
    PATIENCE,
    Causal,
    CompiledTask,
    Right,
    Tokens,
    words_of,
)

PEOPLE = ("Kate", "Paul", "Emma", "Jack", "Laura", "Simon", "Alice", "Tom", "Susan", "Peter")
PLACES = ("store", "park", "museum", "farm", "school", "beach", "library", "hotel")
OBJECTS = ("book", "ring", "gift", "letter", "phone", "key", "flower", "lamp")
TEMPLATES = (
    "When {name_A} and {name_B} went to the {place}, {name_C} gave a {object} to",
    "While {name_A} and {name_B} sat at the {place}, {name_C} passed a {object} to",
    "After {name_A} and {name_B} came to the {place}, {name_C} handed a {object} to",
    "At the {place}, {name_A} and {name_B} met and {name_C} gave a {object} to",
    "Today {name_A} and {name_B} met near the {place} and {name_C} offered a {object} to",
    "Then {name_A} and {name_B} left the {place}, and {name_C} brought a {object} to",
)
SAME_PEOPLE = "same-people"


def _other_words() -> tuple[str, ...]:
    empty = dict.fromkeys(("name_A", "name_B", "name_C", "place", "object"), "")
    plain = [word for template in TEMPLATES for word in words_of(template.format(**empty))]
    return (*dict.fromkeys(plain), *PLACES, *OBJECTS)


@dataclass(frozen=True)
class TextIOI(CompiledTask):
    """Two people, one of them again: the other one. All prompts have 14 tokens.

    A counterfactual is another prompt about the same people with the other answer, or any prompt.
    """

    counterfactuals: ClassVar[tuple[str, ...]] = (SAME_PEOPLE, OTHER)
    default_counterfactual: ClassVar[str] = SAME_PEOPLE
    name: ClassVar[str] = "truth-text-ioi"
    words: ClassVar[tuple[str, ...]] = PEOPLE
    others: ClassVar[tuple[str, ...]] = _other_words()

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        first, second = rng.choice(PEOPLE, size=2, replace=False).tolist()
        repeated = str(rng.choice((first, second)))
        return _about(first, second, repeated, rng), (f" {repeated}",)

    def others_of(self, prompt: Prompt, split: str, rng: np.random.Generator) -> dict[str, Prompt]:
        repeated, other = prompt.part("indirect_object"), prompt.part("subject")
        # Three in four have the other order, so that each place has another name.
        first = prompt.part("name_A")
        same = (repeated, other) if first == repeated else (other, repeated)
        turns = (same if rng.integers(4) == 0 else same[::-1] for _ in range(PATIENCE))
        about = self.first_of(split, (_about(a, b, repeated, rng) for a, b in turns))
        any_other = {OTHER: self.draw_from(split, rng)[0]}
        return any_other if about is None else {SAME_PEOPLE: about, **any_other}


def _about(first: str, second: str, repeated: str, rng: np.random.Generator) -> Prompt:
    """A prompt about two people in this order, at a random place with a random thing."""
    place, thing, template = (str(rng.choice(what)) for what in (PLACES, OBJECTS, TEMPLATES))
    people = {"name_A": first, "name_B": second, "name_C": repeated}
    return ioi_prompt(template, {**people, "place": place, "object": thing}, PEOPLE)


class CausalTextIOI(Causal):
    """One head finds what is repeated, another brings it to the end, a mover copies the other name.

    Attributes:
        inhibitors: the inhibition head of each mover.
        weights: of each mover.
    """

    task = TextIOI()
    n_layers: ClassVar[int] = 6
    width: ClassVar[int] = 64
    d_mlp: ClassVar[int] = 64
    context: ClassVar[int] = 24
    recipe: ClassVar[tuple[Mapping[str, float], ...]] = (
        {"steps": 3000, "batch_size": 96, "rate": 3e-3, "seed": 0},
        {"steps": 1500, "batch_size": 96, "rate": 1e-3, "seed": 1},
    )
    duplicate: ClassVar[str] = "a0.h2"
    inhibitors: ClassVar[Mapping[str, str]] = {"a4.h1": "a2.h3"}
    weights: ClassVar[Mapping[str, float]] = {"a4.h1": LOGIT}
    free_edges: ClassVar[tuple[str, ...]] = ("input->a0.h2<q>",)

    @property
    def nodes(self) -> dict[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        writers = (self.duplicate, *dict.fromkeys(self.inhibitors.values()), *self.inhibitors)
        return {name: name for name in writers}

    @property
    def edges(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        names = [f"input->{self.duplicate}<{part}>" for part in "kv"]
        names += [
            f"{self.duplicate}->{head}<v>" for head in dict.fromkeys(self.inhibitors.values())
        ]
        for mover, inhibitor in self.inhibitors.items():
            names += [f"{inhibitor}->{mover}<q>", f"{mover}->logits"]
            names += [f"input->{mover}<{part}>" for part in "kv"]
        return tuple(names)

    @property
    def constant_edges(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        readers = dict.fromkeys(self.inhibitors.values())
        names = [f"input->{head}<{part}>" for head in readers for part in "qk"]
        return (*names, *(f"input->{mover}<q>" for mover in self.inhibitors))

    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        return self._answer(own, other, variable, next(iter(self.inhibitors)))

    def _answer(self, own: Tokens, other: Tokens, variable: str | None, mover: str) -> Right:
        """The name that a mover writes; none where what is inhibited is no name of the prompt."""
        present, _ = self._names(other if variable == mover else own)
        upstream = (self.duplicate, self.inhibitors[mover], mover)
        _, repeated = self._names(other if variable in upstream else own)
        return present & ~repeated & (present & repeated).any(axis=1, keepdims=True)

    def logits(
        self, own: Tokens, other: Tokens, variable: str | None
    ) -> Float[np.ndarray, "prompts words"]:
        total = np.zeros((len(own), len(PEOPLE)))
        for mover, weight in self.weights.items():
            answer = self._answer(own, other, variable, mover)
            undefined = ~answer.any(axis=1, keepdims=True)
            total += np.where(undefined, np.nan, weight * answer)
        return total

    def _names(self, tokens: Tokens) -> tuple[Right, Right]:
        counts = (tokens[:, :, None] == 1 + np.arange(len(PEOPLE))).sum(axis=1)
        return counts > 0, counts > 1


class Redundant(CausalTextIOI):
    """Two movers read the same inhibition head. It begins with the plain model's weights."""

    recipe: ClassVar[tuple[Mapping[str, float], ...]] = CausalTextIOI.recipe[1:]
    begins_with: ClassVar[str] = "truth-text-ioi"
    inhibitors: ClassVar[Mapping[str, str]] = {"a4.h1": "a2.h3", "a5.h0": "a2.h3"}
    weights: ClassVar[Mapping[str, float]] = {"a4.h1": 5.0, "a5.h0": 3.0}
    copies: ClassVar[Mapping[str, tuple[str, float]]] = {
        mover: ("a4.h1", weight / LOGIT) for mover, weight in weights.items()
    }
