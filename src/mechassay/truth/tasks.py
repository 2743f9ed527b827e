"""Tasks of ground-truth models, and the causal models that trained ones are to compute.

    truth-previous-token   oak elm # ash yew ... =     -> elm: the word before the mark
    truth-induction        : oak elm ash yew ... oak   -> elm: what followed the word before
    truth-ioi              then . Ann and Bob , so Ann . to  -> Bob: the name not repeated
    truth-fraction         : a b x b x c x d =         -> three: how many of eight letters are x
    truth-greater-than     then so . 6 and , . so and to  -> 7, 8 or 9: a digit that is larger
    truth-mcqa             : red 1 K blue 2 B pink 3 T blue  -> B: the letter of the asked color
    truth-addition         : the sum of 20 7 and 60 4 is  -> 9: how many tens the sum has

Every prompt has ten words (`LENGTH`; of truth-mcqa eleven), each one token. A counterfactual
prompt is another prompt of the same task with another answer, so that whatever a part of the
model computes from the words differs for some pair; the last two tasks have others too, which
hold some of it. Prompts belong to splits by the hash of their text. The splits share no prompt,
but they share their words: the models know no others.

A causal model (`Causal`) is a few variables, each at home in one head or MLP of a transformer,
and a circuit.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from mechassay.errors import BadPairs
from mechassay.prompts.pairs import Example, Prompt
from mechassay.tasks.arithmetic import RANDOM
from mechassay.tasks.task import NONE, SPLITS, Task, split_rng, text_hash, uniform
from mechassay.utils.registry import Registry

LENGTH = 10
LOGIT = 8.0
"""Of a right answer."""
PATIENCE = 200
"""Changes of a prompt that are drawn until one belongs to its split, of which a quarter does."""
UNKNOWN = "[UNK]"
WORD = re.compile(r"\w+|[^\w\s]+")
SIZES = MappingProxyType({"train": 1000, "validation": 500, "test": 500, "private": 500})
TREES = ("oak", "elm", "ash", "yew", "fir", "bay", "box", "fig", "gum", "nut", "pear", "plum")
NAMES = ("Ann", "Bob", "Cid", "Dan", "Eve", "Fay")
FILLERS = ("and", "so", ",", ".")
LETTERS = ("x", "a", "b", "c", "d", "e", "f")
COUNTS = ("one", "two", "three", "four", "five", "six", "seven")
DIGITS = tuple("0123456789")
COLORS = ("red", "blue", "pink", "gray", "green", "black", "white", "brown")
SYMBOLS = tuple("BEHKMPRTVZ")
CHOICES = 3
ORDINALS = ("1", "2", "3")
TENS = tuple(map(str, range(10, 100, 10)))
SUMS = tuple(map(str, range(20)))
OTHER = "other-prompt"
# Spelled as the kinds of `mcqa` and of `arithmetic-addition` are.
PLACE, SYMBOL = "answerPosition_counterfactual", "randomLetter_counterfactual"
PLACE_SYMBOL = "answerPosition_randomLetter_counterfactual"
CARRY = "ones_carry_counterfactual"


class CompiledTask(Task):
    """A task of a ground-truth model: its words, and one random prompt after another.

    Attributes:
        words, others: all words; the answers are among the first.
        patience: draws in a row without a new prompt, after which a split is taken to have no more.
    """

    counterfactuals: ClassVar[tuple[str, ...]] = (OTHER,)
    default_counterfactual: ClassVar[str] = OTHER
    sizes: ClassVar[Mapping[str, int]] = SIZES
    words: ClassVar[tuple[str, ...]]
    others: ClassVar[tuple[str, ...]]
    patience: ClassVar[int] = 20_000

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words by token id; the answers are among `words`."""
        return (UNKNOWN, *self.words, *self.others)

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        """A random prompt, and the foils that it brings (none: the counterfactual's answer)."""

    def template(self, tags: Mapping[str, str]) -> str | None:
        return self.name

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """Different prompts, until `patience` draws in a row bring no other.

        Raises:
            BadPairs: as many draws bring no prompt of the split.
        """
        rng = split_rng(split, seed)
        seen: set[str] = set()
        old = 0
        while old < self.patience:
            old += 1
            prompt, foils = self.draw_from(split, rng)
            if prompt.text in seen:
                continue
            others = self.others_of(prompt, split, rng)
            if others[self.default_counterfactual].answers == prompt.answers:
                continue
            id, old = f"{self.name}-{split}-{len(seen)}", 0
            seen.add(prompt.text)
            yield Example(id, prompt, others, foils=foils or None)

    def others_of(self, prompt: Prompt, split: str, rng: np.random.Generator) -> dict[str, Prompt]:
        """The counterfactuals of a prompt by kind: any other prompt of the split.

        Raises:
            BadPairs: see `draw_from`.
        """
        return {self.default_counterfactual: self.draw_from(split, rng)[0]}

    def draw_from(self, split: str, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        """A random prompt of a split, and its own foils.

        Raises:
            BadPairs: none comes within `patience` draws.
        """
        for _ in range(self.patience):
            prompt, foils = self.draw(rng)
            if split_of(prompt.text) == split:
                return prompt, foils
        raise BadPairs(
            f"{self.name}: none of {self.patience:,} prompts drawn belongs to the split {split!r};"
            " its words allow too few."
        )

    def first_of(self, split: str, prompts: Iterable[Prompt]) -> Prompt | None:
        """The first prompt that belongs to a split, if any does."""
        return next((prompt for prompt in prompts if split_of(prompt.text) == split), None)


def split_of(text: str) -> str:
    """The split that a prompt belongs to, whatever the seed: a quarter each."""
    value = int.from_bytes(text_hash(text), "little") or NONE + 1
    return SPLITS[int(uniform(np.array([value], dtype=np.uint64))[0] * len(SPLITS))]


@dataclass(frozen=True)
class PreviousToken(CompiledTask):
    """Eight words, a mark after one of them, and the question: the word before the mark."""

    name: ClassVar[str] = "truth-previous-token"
    words: ClassVar[tuple[str, ...]] = TREES
    others: ClassVar[tuple[str, ...]] = ("#", "=")

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        drawn = _words(self.words, LENGTH - 2, rng)
        place = int(rng.integers(1, LENGTH - 1))
        text = [*drawn[:place], "#", *drawn[place:], "="]
        places = {"answer": place - 1, "mark": place}
        return _prompt(text, [drawn[place - 1]], self.words, places), ()


@dataclass(frozen=True)
class Induction(CompiledTask):
    """A colon, eight different words, and one of them again: what followed it."""

    name: ClassVar[str] = "truth-induction"
    words: ClassVar[tuple[str, ...]] = TREES
    others: ClassVar[tuple[str, ...]] = (":",)

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        # No word stands first: a head that looks one position back sees itself there.
        drawn = [":", *_words(self.words, LENGTH - 2, rng)]
        place = int(rng.integers(1, LENGTH - 2))
        spans = {"first": place, "answer": place + 1, "second": LENGTH - 1}
        return _prompt([*drawn, drawn[place]], [drawn[place + 1]], self.words, spans), ()


@dataclass(frozen=True)
class CompiledIOI(CompiledTask):
    """Two names in either order and one of them again, among fillers: the one not repeated."""

    name: ClassVar[str] = "truth-ioi"
    words: ClassVar[tuple[str, ...]] = NAMES
    others: ClassVar[tuple[str, ...]] = (*FILLERS, "then", "to")

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        first, second = _words(self.words, 2, rng)
        repeated, single = (first, second) if rng.integers(2) else (second, first)
        text = _fillers(rng)
        one, two, again = sorted((1 + rng.choice(LENGTH - 2, size=3, replace=False)).tolist())
        text[one], text[two], text[again] = first, second, repeated
        spans = {"indirect_object": text.index(single), "subject": text.index(repeated)}
        spans["subject_2"] = again
        return _prompt(text, [single], self.words, spans), (f" {repeated}",)


@dataclass(frozen=True)
class Fraction(CompiledTask):
    """Eight letters: how many eighths of them are x, from one to seven (others are too few
    prompts).
    """

    name: ClassVar[str] = "truth-fraction"
    words: ClassVar[tuple[str, ...]] = COUNTS
    others: ClassVar[tuple[str, ...]] = (*LETTERS, ":", "=")

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        count = int(rng.integers(1, len(COUNTS) + 1))
        others = rng.integers(1, len(LETTERS), size=LENGTH - 2 - count)
        letters = [LETTERS[0]] * count + [LETTERS[number] for number in others]
        shuffled = [letters[place] for place in rng.permutation(LENGTH - 2).tolist()]
        return _prompt([":", *shuffled, "="], [COUNTS[count - 1]], self.words, {}), ()


@dataclass(frozen=True)
class Larger(CompiledTask):
    """One digit among fillers: any digit that is larger; the others are the foils."""

    name: ClassVar[str] = "truth-greater-than"
    words: ClassVar[tuple[str, ...]] = DIGITS
    others: ClassVar[tuple[str, ...]] = (*FILLERS, "then", "to")

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        digit, place = int(rng.integers(len(DIGITS) - 1)), int(rng.integers(1, LENGTH - 1))
        text = _fillers(rng)
        text[place] = DIGITS[digit]
        foils = tuple(f" {word}" for word in DIGITS[: digit + 1])
        return _prompt(text, DIGITS[digit + 1 :], self.words, {"digit": place}), foils


@dataclass(frozen=True)
class Choices(CompiledTask):
    """A colon, three colors with a number and a letter each, and one of the colors again: its
    letter.

    Counterfactuals are those of `mcqa` (`mechassay.tasks.multiple_choice`): the colors come in
    another order, the right one in another place, or all letters change, or both; and any other
    prompt. There is no question, the asked color is the last word, and numbers say the order.
    """

    name: ClassVar[str] = "truth-mcqa"
    counterfactuals: ClassVar[tuple[str, ...]] = (OTHER, PLACE, SYMBOL, PLACE_SYMBOL)
    words: ClassVar[tuple[str, ...]] = SYMBOLS
    others: ClassVar[tuple[str, ...]] = (*COLORS, *ORDINALS, ":")

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        colors, symbols = _words(COLORS, CHOICES, rng), _words(self.words, CHOICES, rng)
        return self.prompt(colors, symbols, int(rng.integers(CHOICES))), ()

    def prompt(self, colors: Sequence[str], symbols: Sequence[str], right: int) -> Prompt:
        """Choices in their order, and the place of the one that is asked for."""
        rows = zip(colors, ORDINALS, symbols, strict=True)
        places = {f"choice_{i}": 3 * i + 1 for i in range(CHOICES)}
        places |= {f"number_{i}": 3 * i + 2 for i in range(CHOICES)}
        places |= {f"symbol_{i}": 3 * i + 3 for i in range(CHOICES)}
        places |= {"correct_choice": 3 * right + 1, "correct_number": 3 * right + 2}
        places |= {"correct_symbol": 3 * right + 3, "color": 3 * CHOICES + 1}
        text = [":", *(word for row in rows for word in row), colors[right]]
        return _prompt(text, [symbols[right]], self.words, places)

    def others_of(self, prompt: Prompt, split: str, rng: np.random.Generator) -> dict[str, Prompt]:
        words = prompt.text.split()
        colors, symbols = words[1:-1:3], words[3:-1:3]
        right = colors.index(words[-1])

        def changed(kind: str) -> Prompt:
            order, letters, place = colors, symbols, right
            if kind in (PLACE, PLACE_SYMBOL):
                place = (right + int(rng.integers(1, CHOICES))) % CHOICES
                others = tuple(colour for colour in colors if colour != words[-1])
                order = _words(others, CHOICES - 1, rng)
                order.insert(place, words[-1])
            if kind in (SYMBOL, PLACE_SYMBOL):
                rest = tuple(symbol for symbol in self.words if symbol not in symbols)
                letters = _words(rest, CHOICES, rng)
            return self.prompt(order, letters, place)

        others = super().others_of(prompt, split, rng)
        for kind in self.counterfactuals[1:]:
            other = self.first_of(split, (changed(kind) for _ in range(PATIENCE)))
            if other is not None:
                others[kind] = other
        return others


@dataclass(frozen=True)
class AddedTens(CompiledTask):
    """Two numbers of two digits, tens and ones apart: how many tens their sum has, the carried one
    included (2 to 19).

    The answer is one word, as O_110 of Mueller et al. (2025), section 4.3, which stands between
    the carry and what is written. Tens and ones are different words, so that a head can tell them
    apart without counting places. Counterfactuals are two of `arithmetic-addition`: any other
    numbers, and other ones digits such that a carry appears or disappears.
    """

    name: ClassVar[str] = "truth-addition"
    counterfactuals: ClassVar[tuple[str, ...]] = (RANDOM, CARRY)
    default_counterfactual: ClassVar[str] = RANDOM
    words: ClassVar[tuple[str, ...]] = SUMS
    others: ClassVar[tuple[str, ...]] = (*TENS[1:], ":", "the", "sum", "of", "and", "is")

    def draw(self, rng: np.random.Generator) -> tuple[Prompt, tuple[str, ...]]:
        (x10, y10), (x1, y1) = rng.integers(9, size=2).tolist(), rng.integers(10, size=2).tolist()
        return self.prompt(x10 + 1, x1, y10 + 1, y1), ()

    def prompt(self, x10: int, x1: int, y10: int, y1: int) -> Prompt:
        """The digits of both numbers; those of tens are 1 to 9."""
        text = f": the sum of {x10}0 {x1} and {y10}0 {y1} is".split()
        places = {"op1_first": 4, "op1_last": 5, "op2_first": 7, "op2_last": 8}
        return _prompt(text, [self.words[x10 + y10 + (x1 + y1) // 10]], self.words, places)

    def others_of(self, prompt: Prompt, split: str, rng: np.random.Generator) -> dict[str, Prompt]:
        x10, x1, y10, y1 = map(int, filter(str.isdigit, prompt.text.split()))
        others = super().others_of(prompt, split, rng)
        ones = [(a, b) for a in range(10) for b in range(10) if (a + b > 9) != (x1 + y1 > 9)]
        order = (ones[number] for number in rng.permutation(len(ones)).tolist())
        changed = (self.prompt(x10 // 10, a, y10 // 10, b) for a, b in order)
        other = self.first_of(split, changed)
        return others if other is None else {**others, CARRY: other}


def words_of(text: str) -> list[str]:
    """A text as the words and marks that are its tokens."""
    return WORD.findall(text)


def _words(words: tuple[str, ...], count: int, rng: np.random.Generator) -> list[str]:
    return [words[number] for number in rng.choice(len(words), size=count, replace=False).tolist()]


def _fillers(rng: np.random.Generator) -> list[str]:
    """The words of a prompt before others take their places."""
    drawn = (FILLERS[number] for number in rng.integers(len(FILLERS), size=LENGTH - 2))
    return ["then", *drawn, "to"]


def _prompt(
    text: list[str], answers: Sequence[str], choices: tuple[str, ...], places: Mapping[str, int]
) -> Prompt:
    begins = np.cumsum([0] + [len(word) + 1 for word in text]).tolist()
    spans = {name: (begins[n], begins[n] + len(text[n])) for name, n in places.items()}
    answer_texts, offered = (tuple(f" {word}" for word in words) for words in (answers, choices))
    return Prompt(" ".join(text), answer_texts, offered, spans)


Tokens = Int[np.ndarray, "prompts pos"]
Right = Bool[np.ndarray, "prompts words"]
PLACES = (4, 5, 7, 8)
"""Of the digits of an addition: tens and ones of the first number, and of the second."""


class Causal(ABC):
    """What a trained ground-truth model is to compute: a causal model of its task, and its
    circuit.

    A causal model is a few variables, each at home in one head or MLP of a transformer. Its
    answer is known for two prompts x and x' and any one variable taken from x' (an interchange
    intervention, Geiger et al. 2021):

        previous token   previous[i] = word i - 1;     answer = previous[place of the mark]
        induction        previous[i] = word i - 1;     answer = the word where previous is the
                         last
                                                       word
        IOI              duplicate = the repeated name -> inhibited = duplicate -> answer = the
                         other name of the prompt
        fraction         share = how many letters are x   ->  answer = share
        greater than     digit = the digit of the prompt  ->  answers = the larger digits
        mcqa             previous = word i - 1; answer_pointer = the number of the asked color
                         -> answer = the letter of that number
        addition         x1 = ones of the first number -> carry = x1 + y1 is ten or more ->
                         carried both_tens = both tens digits; answer = both_tens + carried

    Where the answer is not defined no intervention is made. The last variable of each is the
    answer itself, at home in what writes to the logits. Training decides which of two kinds of
    edges are of the circuit, and `mechassay.truth.verification.verify` finds out:
    `constant_edges` may carry what is the same in every prompt, which no counterfactual shows;
    `free_edges` may carry anything.

    Attributes:
        task: what is computed.
        n_layers, n_heads, width, d_head, rope_theta, d_mlp, context: of the transformer.
        nodes: the writers that hold the variables, by variable.
        edges: the edges that carry them.
        constant_edges: the edges that may carry something that is the same in every prompt.
        free_edges: the edges that may carry anything, or nothing.
        backups: the primary head of each backup head.
    """

    task: ClassVar[CompiledTask]
    n_layers: ClassVar[int] = 2
    n_heads: ClassVar[int] = 4
    width: ClassVar[int] = 48
    d_head: ClassVar[int] = 12
    rope_theta: ClassVar[float] = 100.0
    d_mlp: ClassVar[int] = 64
    context: ClassVar[int] = 16
    nodes: ClassVar[dict[str, str]]
    edges: ClassVar[tuple[str, ...]]
    constant_edges: ClassVar[tuple[str, ...]]
    free_edges: ClassVar[tuple[str, ...]] = ()
    backups: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @abstractmethod
    def answers(self, own: Tokens, other: Tokens, variable: str | None) -> Right:
        """The right answers to `own` if one variable has its value in `other`; none where
        undefined.

        Args:
            variable: a key of `nodes`, or None: no intervention.
        """

    def logits(
        self, own: Tokens, other: Tokens, variable: str | None
    ) -> Float[np.ndarray, "prompts words"]:
        """What the words' logits are to be: `LOGIT` for right answers; NaN where undefined."""
        right = self.answers(own, other, variable)
        return np.where(right.any(axis=1, keepdims=True), LOGIT * right, np.nan)

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
        symbols_at = np.take_along_axis(symbols, matches.argmax(axis=1)[:, None], axis=1)[:, 0]
        return self.one_of(np.where(matches.any(axis=1), symbols_at, 0))


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
        (x10, x1, y10, y1), theirs = (
            self._values[pairs_of[:, PLACES].T] for pairs_of in (own, other)
        )
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
        "truth-text-ioi": "mechassay.truth.text_ioi:CausalTextIOI",
        "truth-text-ioi-backup": "mechassay.truth.text_ioi:WithBackup",
        "truth-text-ioi-mixed": "mechassay.truth.text_ioi:Mixed",
        "truth-text-ioi-negative": "mechassay.truth.text_ioi:WithNegative",
        "truth-text-ioi-parallel": "mechassay.truth.text_ioi:Parallel",
        "truth-text-ioi-redundant": "mechassay.truth.text_ioi:Redundant",
    },
    plural="trained ground truths",
)
