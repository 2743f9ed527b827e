"""What a trained ground-truth model is to compute: a causal model of its task, and its circuit.

A causal model is a few variables, each at home in one head or MLP of a transformer. Its answer is
known for two prompts x and x' and any one variable taken from x' (an interchange intervention,
Geiger et al. 2021):

    previous token   previous[i] = word i - 1;     answer = previous[place of the mark]
    induction        previous[i] = word i - 1;     answer = the word where previous is the last word
    IOI              duplicate = the repeated name -> inhibited = duplicate
                     -> answer = the other name of the prompt
    fraction         share = how many letters are x   ->  answer = share
    greater than     digit = the digit of the prompt  ->  answers = the larger digits
    mcqa             previous = word i - 1; answer_pointer = the number of the asked color
                     -> answer = the letter of that number
    addition         x1 = ones of the first number -> carry = x1 + y1 is ten or more -> carried
                     both_tens = both tens digits; answer = both_tens + carried

Where the answer is not defined no intervention is made. The last variable of each is the answer
itself, at home in what writes to the logits. Training decides which of two kinds of edges are of
the circuit, and `verify` finds out: `constant_edges` may carry what is the same in every prompt,
which no counterfactual shows; `free_edges` may carry anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from mechassay.registry import Registry
from mechassay.truth.tasks import (
    LETTERS,
    NAMES,
    AddedTens,
    Choices,
    CompiledIOI,
    CompiledTask,
    Fraction,
    Induction,
    Larger,
    PreviousToken,
)

Tokens = Int[np.ndarray, "prompts pos"]
Right = Bool[np.ndarray, "prompts words"]
PLACES = (4, 5, 7, 8)
"""Of the digits of an addition: tens and ones of the first number, and of the second."""


class Causal(ABC):
    """A causal model of a task, and where its variables live.

    Attributes:
        task: what is computed.
        n_layers, d_mlp: of the transformer.
        nodes: the writers that hold the variables, by variable.
        edges: the edges that carry them.
        constant_edges: the edges that may carry something that is the same in every prompt.
        free_edges: the edges that may carry anything, or nothing.
    """

    task: ClassVar[CompiledTask]
    n_layers: ClassVar[int] = 2
    d_mlp: ClassVar[int] = 64
    nodes: ClassVar[dict[str, str]]
    edges: ClassVar[tuple[str, ...]]
    constant_edges: ClassVar[tuple[str, ...]]
    free_edges: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        """The right answers to `own` if one variable has its value in `other`; none where
        undefined.

        Args:
            variable: a key of `nodes`, or None: no intervention.
        """

    def token(self, word: str) -> int:
        """The id of a word."""
        return self.task.vocabulary.index(word)

    def one_of(self, tokens: Int[np.ndarray, "prompts"]) -> Right:
        """Each token as the only right answer; none where it is no answer at all."""
        return tokens[:, None] == 1 + np.arange(len(self.task.words))


class CausalPreviousToken(Causal):
    """A head looks one position back, another looks for the mark and copies what is there."""

    task = PreviousToken()
    nodes: ClassVar[dict[str, str]] = {"previous": "a0.h1", "answer": "a1.h2"}
    edges = ("input->a0.h1<v>", "a0.h1->a1.h2<v>", "input->a1.h2<k>", "a1.h2->logits")
    constant_edges = ("input->a0.h1<q>", "input->a0.h1<k>", "input->a1.h2<q>")

    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        mark = self.token("#")
        places = (other if variable == "answer" else own) == mark
        words = own if variable is None else other
        return self.one_of(words[:, :-1][places[:, 1:]])


class CausalInduction(Causal):
    """A head looks one position back, another finds the last word and copies what followed."""

    task = Induction()
    nodes: ClassVar[dict[str, str]] = {"previous": "a0.h3", "answer": "a1.h0"}
    edges = ("input->a0.h3<v>", "a0.h3->a1.h0<k>", "input->a1.h0<q>", "input->a1.h0<v>")
    edges += ("a1.h0->logits",)
    constant_edges = ("input->a0.h3<q>", "input->a0.h3<k>")

    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        words = other if variable == "answer" else own
        previous = own if variable is None else other
        matches = previous[:, :-2] == words[:, -1:]
        followed = np.take_along_axis(words[:, 1:], matches.argmax(axis=1)[:, None], axis=1)[:, 0]
        return self.one_of(np.where(matches.any(axis=1), followed, 0))


class CausalIOI(Causal):
    """A head finds what is repeated, another brings it to the end, a third attends to other names.

    How the first one finds it is left to training: by matching words with earlier words, or from
    the end, as the last name of the prompt. The second way needs no query that depends on the
    prompt, and no key of the second head: `free_edges`.
    """

    task = CompiledIOI()
    n_layers: ClassVar[int] = 3
    nodes: ClassVar[dict[str, str]] = {"duplicate": "a0.h2", "inhibited": "a1.h3"}
    nodes["answer"] = "a2.h1"
    edges = ("input->a0.h2<k>", "input->a0.h2<v>", "a0.h2->a1.h3<v>", "a1.h3->a2.h1<q>")
    edges += ("input->a2.h1<k>", "input->a2.h1<v>", "a2.h1->logits")
    constant_edges = ("input->a1.h3<q>", "input->a1.h3<k>", "input->a2.h1<q>")
    free_edges = ("input->a0.h2<q>",)

    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        present, _ = self._names(other if variable == "answer" else own)
        _, repeated = self._names(own if variable is None else other)
        # A name that is not there inhibits none: which of the two is left is not defined.
        return present & ~repeated & (present & repeated).any(axis=1, keepdims=True)

    def _names(self, tokens: Tokens) -> tuple[Right, Right]:
        counts = (tokens[:, :, None] == 1 + np.arange(len(NAMES))).sum(axis=1)
        return counts > 0, counts > 1


class CausalFraction(Causal):
    """A head takes the share of one letter among all, the MLP after it tells the shares apart."""

    task = Fraction()
    nodes: ClassVar[dict[str, str]] = {"share": "a0.h2", "answer": "m1"}
    edges = ("input->a0.h2<v>", "a0.h2->m1", "m1->logits")
    constant_edges = ("input->a0.h2<q>", "input->a0.h2<k>")

    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        words = own if variable is None else other
        return self.one_of((words == self.token(LETTERS[0])).sum(axis=1))


class CausalLarger(Causal):
    """A head brings the digit to the end, the MLP after it knows what is larger."""

    task = Larger()
    nodes: ClassVar[dict[str, str]] = {"digit": "a0.h0", "answer": "m1"}
    edges = ("input->a0.h0<k>", "input->a0.h0<v>", "a0.h0->m1", "m1->logits")
    constant_edges = ("input->a0.h0<q>",)

    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        words = own if variable is None else other
        digit = np.where(words <= len(self.task.words), words, 0).max(axis=1) - 1
        return np.arange(len(self.task.words)) > digit[:, None]


class CausalChoices(Causal):
    """A head looks one position back, so that a number has its color and a letter its number; a
    second finds the asked color and brings its number; a third copies the letter of that number.

    That a letter has its number is the same in every prompt: `a0.h0->a2.h2<k>` is constant.
    """

    task = Choices()
    n_layers: ClassVar[int] = 3
    nodes: ClassVar[dict[str, str]] = {"previous": "a0.h0", "answer_pointer": "a1.h1"}
    nodes["answer"] = "a2.h2"
    edges = ("input->a0.h0<v>", "a0.h0->a1.h1<k>", "input->a1.h1<q>", "a1.h1->a2.h2<q>")
    edges += ("input->a2.h2<v>", "a2.h2->logits")
    constant_edges = ("input->a0.h0<q>", "input->a0.h0<k>", "input->a1.h1<v>", "a0.h0->a2.h2<k>")

    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        asked = (other if variable in ("answer_pointer", "answer") else own)[:, -1:]
        colors = (own if variable is None else other)[:, 1:-1:3]
        symbols = (other if variable == "answer" else own)[:, 3:-1:3]
        matches = colors == asked
        found = np.take_along_axis(symbols, matches.argmax(axis=1)[:, None], axis=1)[:, 0]
        return self.one_of(np.where(matches.any(axis=1), found, 0))


class CausalAddedTens(Causal):
    """A head brings the first ones digit to the second, the MLP there has the carry; at the end a
    head brings the carry, another both tens digits, and the MLP there adds.
    """

    task = AddedTens()
    d_mlp: ClassVar[int] = 128
    nodes: ClassVar[dict[str, str]] = {"x1": "a0.h1", "carry": "m0", "carried": "a1.h2"}
    nodes |= {"both_tens": "a0.h3", "answer": "m1"}
    edges = ("input->a0.h1<v>", "a0.h1->m0", "input->m0", "m0->a1.h2<v>", "a1.h2->m1")
    edges += ("input->a0.h3<v>", "a0.h3->m1", "m1->logits")
    constant_edges = ("input->a0.h1<q>", "input->a0.h1<k>", "input->a1.h2<q>", "input->a1.h2<k>")
    constant_edges += ("input->a0.h3<q>", "input->a0.h3<k>")

    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        (x10, x1, y10, y1), theirs = (self._values[each[:, PLACES].T] for each in (own, other))
        if variable == "x1":
            x1 = theirs[1]
        if variable in ("carry", "carried", "answer"):
            x1, y1 = theirs[1], theirs[3]
        if variable in ("both_tens", "answer"):
            x10, y10 = theirs[0], theirs[2]
        return self.one_of(1 + (x10 + x1 + y10 + y1) // 10)

    @property
    def _values(self) -> Int[np.ndarray, "words"]:
        """The number that each word is, by token."""
        return np.array([int(word) if word.isdigit() else 0 for word in self.task.vocabulary])


CAUSAL = Registry(
    "trained ground truth",
    {
        "truth-addition-trained": f"{__name__}:CausalAddedTens",
        "truth-fraction-trained": f"{__name__}:CausalFraction",
        "truth-greater-than-trained": f"{__name__}:CausalLarger",
        "truth-induction-trained": f"{__name__}:CausalInduction",
        "truth-ioi-trained": f"{__name__}:CausalIOI",
        "truth-mcqa-trained": f"{__name__}:CausalChoices",
        "truth-previous-token-trained": f"{__name__}:CausalPreviousToken",
    },
    plural="trained ground truths",
)
