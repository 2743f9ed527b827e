"""Models of InterpBench's size that do IOI in English, by circuits with what real ones have.

    "While Kate and Paul sat at the park, Paul passed a book to" -> " Kate"

    truth-text-ioi               one name mover
    truth-text-ioi-redundant     two movers share the work
    truth-text-ioi-negative      a mover, and a negative head, which lowers the answer
    truth-text-ioi-mixed         two movers and a negative head
    truth-text-ioi-parallel      two paths: each mover has an inhibition head of its own
    truth-text-ioi-backup        a mover, and a backup that writes where the mover does not

Six layers of four heads, 64 wide, as InterpBench's model of IOI (Gupta et al. 2024; Mueller et
al. 2025, appendix F); each word is one token of SmolLM2's tokenizer. Heads are named as by Wang et
al. (2023). A model is trained (`mechassay.truth.training`) to have the logits

    logits = sum over movers w of weight[w] onehot(answer[w])

where answer[w] is the name that w's inhibition head leaves over; the weight of a negative head is
negative, and a backup's is 0 where its primary head, which it reads, writes the same name. Strict
training of all heads from random weights is slow and confuses names, so that the circuit's heads
are trained alone first (`CausalTextIOI.stages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

PEOPLE = ("Kate", "Paul", "Emma", "Jack", "Laura", "Simon", "Tom", "Peter")
PLACES = ("store", "park", "museum", "farm", "school", "beach", "library", "hotel")
OBJECTS = ("book", "ring", "gift", "letter", "phone", "key", "flower", "lamp")
TEMPLATES = (
    "Today {name_A} met {name_B} there, and {name_C} wanted to give a {object} to",
    "Then {name_A} and {name_B} were there, {name_C} decided to give a {object} to",
    "When {name_A} and {name_B} left the {place}, {name_C} gave a small {object} to",
    "At the {place}, {name_A} met {name_B} and {name_C} handed a small {object} to",
    "While {name_A} and {name_B} sat at the {place}, {name_C} passed a {object} to",
    "At the {place}, {name_A} and {name_B} met and {name_C} offered a {object} to",
)
"""Two with the repeated name in the eighth place, two in the ninth, two in the tenth."""
SAME_PEOPLE = "same-people"
COMMON = {"batch_size": 48, "pool": 2500, "constant": 0.0, "paired": 0.5, "quiet": 0.1}
FIRST = {"steps": 500, "rate": 5e-3, "last_rate": 3e-5, "seed": 0, **COMMON}
CORE = {"rate": 3e-3, "last_rate": 3e-5, "seed": 1, **COMMON}
WHOLE = {"steps": 500, "rate": 1.5e-3, "last_rate": 1e-5, "seed": 2, **COMMON}
"""Settings of the trainings of a model's stages, see `CausalTextIOI.stages`."""


def _other_words() -> tuple[str, ...]:
    empty = dict.fromkeys(("name_A", "name_B", "name_C", "place", "object"), "")
    plain = [word for template in TEMPLATES for word in words_of(template.format(**empty))]
    return (*dict.fromkeys(plain), *PLACES, *OBJECTS)


@dataclass(frozen=True)
class TrainingStage:
    """One training of those that make a model.

    Attributes:
        name: of the folder where its model is kept.
        causal: what is trained.
        training: settings of `mechassay.truth.training.Training`.
        copies: heads that begin as heads of the stage before, with the factor of what they write.
    """

    name: str
    causal: CausalTextIOI
    training: Mapping[str, float]
    copies: Mapping[str, tuple[str, float]] = field(default_factory=dict)


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
        weights: of each mover; negative for a negative head.
        backups: the primary head of each mover that writes nothing where that one writes its name.
        core_steps: of the training of the circuit's heads alone.
        whole_steps: of the training among all other heads; those of `WHOLE` if 0.
    """

    task = TextIOI()
    n_layers: ClassVar[int] = 6
    width: ClassVar[int] = 64
    d_head: ClassVar[int] = 16
    d_mlp: ClassVar[int] = 64
    context: ClassVar[int] = 24
    duplicate: ClassVar[str] = "a0.h2"
    inhibitors: ClassVar[Mapping[str, str]] = {"a4.h1": "a2.h3"}
    weights: ClassVar[Mapping[str, float]] = {"a4.h1": LOGIT}
    core_steps: ClassVar[int] = 300
    whole_steps: ClassVar[int] = 0

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
        names += [f"{primary}->{backup}<q>" for backup, primary in self.backups.items()]
        return tuple(names)

    @property
    def constant_edges(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        readers = dict.fromkeys(self.inhibitors.values())
        names = [f"input->{head}<{part}>" for head in readers for part in "qk"]
        names.append(f"input->{self.duplicate}<q>")
        return (*names, *(f"input->{mover}<q>" for mover in self.inhibitors))

    def core(self) -> CausalTextIOI:
        """The same in a model that has the circuit's heads alone, one a layer."""
        heads = {head: f"a{layer}.h0" for layer, head in enumerate(sorted(self.nodes))}
        made = {
            "n_layers": len(heads),
            "n_heads": 1,
            "d_mlp": 4,
            "duplicate": heads[self.duplicate],
            "inhibitors": {heads[own]: heads[other] for own, other in self.inhibitors.items()},
            "weights": {heads[head]: weight for head, weight in self.weights.items()},
            "backups": {heads[own]: heads[other] for own, other in self.backups.items()},
        }
        return type("Core", (type(self),), made)()

    def stages(self, name: str) -> tuple[TrainingStage, ...]:
        """How a model of this name is made: the plain circuit's heads alone, then its own circuit's
        heads alone, which begin as copies of them, then these among all other heads.
        """
        plain, own = CausalTextIOI(), self.core()
        ((mover, inhibitor),) = plain.core().inhibitors.items()
        copies = {own.duplicate: (plain.core().duplicate, 1.0)}
        copies |= dict.fromkeys(own.inhibitors.values(), (inhibitor, 1.0))
        copies |= {head: (mover, weight / LOGIT) for head, weight in own.weights.items()}
        first = TrainingStage("truth-text-ioi.core", plain.core(), FIRST)
        whole = {head: (other, 1.0) for head, other in zip(self.nodes, own.nodes, strict=True)}
        steps = self.whole_steps or WHOLE["steps"]
        last = TrainingStage(f"{name}.whole", self, {**WHOLE, "steps": steps}, whole)
        heads = TrainingStage(f"{name}.heads", own, {**CORE, "steps": self.core_steps}, copies)
        return first, heads, last

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
            if mover in self.backups:
                primary = self._answer(own, other, variable, self.backups[mover])
                agree = (answer & primary).any(axis=1, keepdims=True) | (variable == mover)
                answer = answer & ~agree
            total += np.where(undefined, np.nan, weight * answer)
        return total

    def _names(self, tokens: Tokens) -> tuple[Right, Right]:
        counts = (tokens[:, :, None] == 1 + np.arange(len(PEOPLE))).sum(axis=1)
        return counts > 0, counts > 1


class Redundant(CausalTextIOI):
    """Two movers read the same inhibition head."""

    core_steps: ClassVar[int] = 900
    inhibitors: ClassVar[Mapping[str, str]] = {"a4.h1": "a2.h3", "a5.h0": "a2.h3"}
    weights: ClassVar[Mapping[str, float]] = {"a4.h1": 5.0, "a5.h0": 3.0}


class WithNegative(CausalTextIOI):
    """A negative head writes a third of what the mover writes, with the other sign."""

    core_steps: ClassVar[int] = 900
    inhibitors: ClassVar[Mapping[str, str]] = {"a4.h1": "a2.h3", "a5.h2": "a2.h3"}
    weights: ClassVar[Mapping[str, float]] = {"a4.h1": 12.0, "a5.h2": -4.0}


class Mixed(CausalTextIOI):
    """Two movers that share the work, and a negative head."""

    core_steps: ClassVar[int] = 900
    inhibitors: ClassVar[Mapping[str, str]] = dict.fromkeys(("a4.h1", "a3.h0", "a5.h2"), "a2.h3")
    weights: ClassVar[Mapping[str, float]] = {"a4.h1": 7.0, "a3.h0": 5.0, "a5.h2": -4.0}


class Parallel(CausalTextIOI):
    """Two paths from the head that finds the repeated name to the logits."""

    core_steps: ClassVar[int] = 900
    inhibitors: ClassVar[Mapping[str, str]] = {"a4.h1": "a2.h3", "a3.h2": "a1.h0"}
    weights: ClassVar[Mapping[str, float]] = {"a4.h1": 5.0, "a3.h2": 3.0}


class WithBackup(CausalTextIOI):
    """A backup writes the answer where the mover writes another name, and nothing else."""

    core_steps: ClassVar[int] = 3000
    whole_steps: ClassVar[int] = 1000
    inhibitors: ClassVar[Mapping[str, str]] = {"a4.h1": "a2.h3", "a5.h0": "a2.h3"}
    weights: ClassVar[Mapping[str, float]] = {"a4.h1": 8.0, "a5.h0": 12.0}
    backups: ClassVar[Mapping[str, str]] = {"a5.h0": "a4.h1"}
