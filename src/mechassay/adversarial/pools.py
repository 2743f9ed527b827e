"""Pools of clean and corrupted prompts, each with each:
what an adversarial evaluation draws its pairs from.

The clean pool are original prompts of a task's split, the corrupted pool counterfactual prompts of
one kind, from other examples of the same split (the next ones of its stream), so that the two are
drawn independently. Where they are matched instead, prompt i of one belongs to prompt i of the
other.

Any clean prompt must be comparable with any corrupted one, token by token, so all have the same
number of
tokens: the number that most of the clean prompts have. Prompts of another length, or with words
that the tokenizer does not know, are dropped and counted.

The fields of a prompt are its parts (`Prompt.spans`): what group-by and search work with.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mechassay.alignment import encode
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Example, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mechassay.models.model import Model
    from mechassay.tasks.task import Task

PUBLIC_SPLITS = ("train", "validation", "test")
CHUNK = 256
PATIENCE = 20
"""Examples that are looked at for each prompt that is wanted, before giving up."""
NOTHING = "-"
TEMPLATE = "template"
ABSENT = "no such counterfactual"
RARE = 100
"""How many times more examples are looked at where prompts are chosen by their fields."""
NO_FIELDS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Pool:
    """Prompts of one length.

    Attributes:
        prompts: texts with their parts.
        tokens: their ids, with what the model puts before every prompt.
        dropped: prompts left out, by reason.
        columns: what else is known of every prompt, by name: tags of its example, and "template",
            how it is built, where the task says so.
    """

    prompts: tuple[Prompt, ...]
    tokens: Int[Tensor, "prompts pos"]
    dropped: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.prompts)

    @cached_property
    def fields(self) -> dict[str, tuple[str, ...]]:
        """The text of every part, by its name, in the order of the prompts;
        "-" where a prompt lacks it.
        """
        names = dict.fromkeys(name for prompt in self.prompts for name in prompt.spans)
        return {
            name: tuple(
                prompt.part(name) if name in prompt.spans else NOTHING for prompt in self.prompts
            )
            for name in names
        }

    def labels(self, name: str) -> tuple[str, ...] | None:
        """The value of a field for every prompt: its part of that name, or what else is known;
        None where one lacks it.
        """
        known = self.columns.get(name, (NOTHING,) * len(self))
        found = tuple(
            prompt.part(name) if name in prompt.spans else known[row]
            for row, prompt in enumerate(self.prompts)
        )
        return None if NOTHING in found else found

    def select(self, rows: Sequence[int]) -> Pool:
        """The prompts at `rows`, in that order."""
        columns = {
            name: tuple(labels[row] for row in rows) for name, labels in self.columns.items()
        }
        return Pool(
            tuple(self.prompts[row] for row in rows),
            self.tokens[torch.as_tensor(rows, dtype=torch.long)],
            {},
            columns,
        )


def tokenized(model: Model, texts: Sequence[str]) -> list[list[int]]:
    """Ids of prompts as the model gets them.

    Raises:
        BadPairs: the model has no tokenizer.
    """
    if model.tokenizer is None:
        raise BadPairs(f"{model.name} has no tokenizer: prompts cannot be read.")
    return [[*model.prepend, *ids] for ids in encode(model.tokenizer, list(texts))]


def draw_pools(
    task: Task,
    model: Model,
    n_clean: int,
    n_corrupted: int,
    *,
    matched: bool = False,
    where: Mapping[str, str] = NO_FIELDS,
    split: str = "test",
    counterfactual: str | None = None,
    seed: int = 0,
) -> tuple[Pool, Pool]:
    """The clean and the corrupted pool of a task.

    Args:
        matched: take each corrupted prompt from the example of the clean one; the sizes must then
            be equal.
        where: values of fields that all prompts must have.
        counterfactual: the kind of corrupted prompts; the task's default if None.
        seed: another seed, other prompts.

    Raises:
        UnknownName: no such split, counterfactual or field.
        BadUsage: a size below 1, a negative seed, or matched pools of different sizes.
        BadPairs: the task has fewer prompts of one length.
    """
    kind = _checked(task, split, counterfactual, seed, model.tokenizer)
    if min(n_clean, n_corrupted) < 1 or (matched and n_clean != n_corrupted):
        raise BadUsage(
            f"Pools need a prompt each, and matched ones equal sizes; got {n_clean} clean and"
            f" {n_corrupted} corrupted prompts."
        )
    sides = _Sides(model, matched, n_clean, n_corrupted)
    # What is chosen by its fields may be rare, and is looked at before it is tokenized.
    patience = (PATIENCE * (n_clean + n_corrupted) + CHUNK) * (RARE if where else 1)
    examples = _with_fields(task, task.generate(split, seed, model.tokenizer), kind, where)
    sides.fill(
        (_Candidate.of(task, example, kind, where) for example in islice(examples, patience)),
        min(CHUNK, 4 * (n_clean + n_corrupted)) if where else CHUNK,
    )
    if not sides.full:
        had = (
            f"{len(sides.clean)} clean and {len(sides.corrupted)} corrupted prompts of"
            f" {sides.length or 0} tokens"
        )
        asked = (
            f"asked for {n_clean} and"
            f" {n_corrupted}{said(sides.clean.dropped + sides.corrupted.dropped)}"
        )
        raise BadPairs(f"Split {split!r} of {task.name} has {had} for {model.name}; {asked}.")
    return sides.clean.pool(), sides.corrupted.pool()


def left_out(model: Model, tokens: Sequence[int], length: int) -> str | None:
    """Why a prompt cannot be in a pool; None if it can.
    What stands before every prompt may be anything.
    """
    unknown = None if model.tokenizer is None else model.tokenizer.unk_token_id
    if len(tokens) != length:
        return f"not {length} tokens"
    return "words unknown to the tokenizer" if unknown in tokens[len(model.prepend) :] else None


def said(dropped: Mapping[str, int]) -> str:
    """Counts of what was left out, for the end of a message."""
    counts = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    return f" (left out: {counts})" if counts else ""


def _checked(
    task: Task,
    split: str,
    counterfactual: str | None,
    seed: int,
    tokenizer: PreTrainedTokenizerBase | None,
) -> str:
    """The kind of corrupted prompts that is meant."""
    kind = task.counterfactual_for(tokenizer) if counterfactual is None else counterfactual
    if kind not in task.counterfactuals:
        raise UnknownName("counterfactual", kind, task.counterfactuals)
    # The private split has a seed of its own, which no report may give away.
    if split not in PUBLIC_SPLITS or split not in task.sizes:
        raise UnknownName("split", split, [each for each in PUBLIC_SPLITS if each in task.sizes])
    if seed < 0:
        raise BadUsage(f"A seed must be 0 or more; got {seed}.")
    return kind


class _Candidate(NamedTuple):
    """An example's clean prompt, its corrupted one, and what is known of each;
    None for a prompt that is not there or not wanted.
    """

    prompts: tuple[Prompt | None, Prompt | None]
    columns: tuple[Mapping[str, str], Mapping[str, str]]
    reasons: tuple[str | None, str | None]

    def is_there(self) -> bool:
        """Whether one of its prompts is."""
        return self.prompts != (None, None)

    @staticmethod
    def of(task: Task, example: Example, kind: str, where: Mapping[str, str]) -> _Candidate:
        template = task.template(example.tags)
        # Other tags are of the original: a counterfactual may change what they say.
        built = {} if template is None else {TEMPLATE: template}
        columns = ({**example.tags, **built}, built)
        pair = (example.prompt, example.counterfactuals.get(kind))
        reasons = tuple(
            ABSENT if each is None else _unfit(each, columns[side], where)
            for side, each in enumerate(pair)
        )
        prompts = tuple(
            each if reason is None else None for each, reason in zip(pair, reasons, strict=True)
        )
        return _Candidate((prompts[0], prompts[1]), columns, (reasons[0], reasons[1]))


def _value(prompt: Prompt, columns: Mapping[str, str], name: str) -> str | None:
    return prompt.part(name) if name in prompt.spans else columns.get(name)


def _unfit(prompt: Prompt, columns: Mapping[str, str], where: Mapping[str, str]) -> str | None:
    """Why a prompt is not one of those wanted."""
    return next(
        (
            f"not {name} = {value}"
            for name, value in where.items()
            if _value(prompt, columns, name) != value
        ),
        None,
    )


class _Side:
    """Prompts of one pool so far."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        # A million prompts as lists of numbers would be as large again as their texts.
        self.tokens = array("q")
        self.dropped: Counter[str] = Counter()
        self.columns: list[Mapping[str, str]] = []

    def __len__(self) -> int:
        return len(self.prompts)

    def add(self, prompt: Prompt, tokens: list[int], columns: Mapping[str, str]) -> None:
        self.prompts.append(prompt)
        self.tokens.extend(tokens)
        self.columns.append(columns)

    def pool(self) -> Pool:
        tokens = torch.from_numpy(np.array(self.tokens)).view(len(self), -1)
        return Pool(tuple(self.prompts), tokens, dict(self.dropped), columns_of(self.columns))


class _Sides:
    """Both pools, filled from one stream of examples:
    the clean one first, unless they are matched.
    """

    def __init__(self, model: Model, matched: bool, n_clean: int, n_corrupted: int) -> None:
        self.model, self.matched = model, matched
        self.n_clean, self.n_corrupted = n_clean, n_corrupted
        self.clean, self.corrupted = _Side(), _Side()
        self.length: int | None = None

    @property
    def full(self) -> bool:
        return len(self.clean) >= self.n_clean and len(self.corrupted) >= self.n_corrupted

    def fill(self, candidates: Iterator[_Candidate], size: int) -> None:
        """Take prompts until both pools are full, there are no more,
        or too few have what is asked for.

        Args:
            size: candidates with a prompt that are looked at together; the first ones decide the
                length.
        """
        while not self.full and (chunk := _chunk(candidates, size)):
            self._add(chunk)
            if not any(map(_Candidate.is_there, chunk)):
                return

    def _add(self, chunk: Sequence[_Candidate]) -> None:
        texts = [
            [prompt.text for each in chunk if (prompt := each.prompts[side]) is not None]
            for side in (0, 1)
        ]
        found = [tokenized(self.model, texts[side]) for side in (0, 1)]
        if self.length is None and found[0]:
            self.length = Counter(map(len, found[0])).most_common(1)[0][0]
        rows = [iter(each) for each in found]
        for each in chunk:
            ours, theirs = (
                [] if prompt is None else next(rows[side])
                for side, prompt in enumerate(each.prompts)
            )
            if self.full:
                return
            if self.matched:
                if self._fits(self.clean, ours, each.reasons[0]) and self._fits(
                    self.corrupted, theirs, each.reasons[1]
                ):
                    self._take(each, 0, ours)
                    self._take(each, 1, theirs)
            elif len(self.clean) < self.n_clean:
                if self._fits(self.clean, ours, each.reasons[0]):
                    self._take(each, 0, ours)
            elif self._fits(self.corrupted, theirs, each.reasons[1]):
                self._take(each, 1, theirs)

    def _take(self, candidate: _Candidate, side: int, tokens: list[int]) -> None:
        prompt = candidate.prompts[side]
        assert prompt is not None, "a prompt that fits is there"
        (self.clean, self.corrupted)[side].add(prompt, tokens, candidate.columns[side])

    def _fits(self, side: _Side, tokens: list[int], reason: str | None) -> bool:
        if reason is None:
            assert self.length is not None
            reason = left_out(self.model, tokens, self.length)
        if reason is not None:
            side.dropped[reason] += 1
        return reason is None


def columns_of(rows: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """What is known of prompts, by name; "-" where a prompt lacks it."""
    return {
        name: tuple(row.get(name, NOTHING) for row in rows)
        for name in dict.fromkeys(name for row in rows for name in row)
    }


def _chunk(candidates: Iterator[_Candidate], size: int) -> list[_Candidate]:
    """The next ones until so many have a prompt, or `RARE` times as many were looked at."""
    found: list[_Candidate] = []
    wanted = 0
    for each in islice(candidates, RARE * size):
        found.append(each)
        wanted += each.is_there()
        if wanted == size:
            break
    return found


def _with_fields(
    task: Task, examples: Iterator[Example], kind: str, where: Mapping[str, str]
) -> Iterator[Example]:
    """The examples; refused where the prompts of the first ones have no such field.

    Raises:
        UnknownName: clean or corrupted prompts lack one of the fields.
    """
    if not where:
        return examples
    first = list(islice(examples, CHUNK))
    candidates = [_Candidate.of(task, example, kind, NO_FIELDS) for example in first]
    for side, name in enumerate(("clean", "corrupted")):
        known = {
            key
            for each in candidates
            if (prompt := each.prompts[side]) is not None
            for key in (*prompt.spans, *each.columns[side])
        }
        for wanted in where:
            if wanted not in known:
                raise UnknownName(f"field of {name} prompts of {task.name}", wanted, sorted(known))
    return chain(first, examples)
