"""Pools of clean and corrupted prompts, each with each: what an adversarial evaluation draws its pairs from.

The clean pool are original prompts of a task's split, the corrupted pool counterfactual prompts of one kind, from
other examples of the same split (the next ones of its stream), so that the two are drawn independently. Where they are
matched instead, prompt i of one belongs to prompt i of the other.

Any clean prompt must be comparable with any corrupted one, token by token, so all have the same number of
tokens: the number that most of the clean prompts have. Prompts of another length, or with words that the tokenizer does
not know, are dropped and counted.

The fields of a prompt are its parts (`Prompt.spans`): what group-by and search work with.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

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


@dataclass(frozen=True, eq=False)
class Pool:
    """Prompts of one length.

    Attributes:
        prompts: texts with their parts.
        tokens: their ids, with what the model puts before every prompt.
        dropped: prompts left out, by reason.
    """

    prompts: tuple[Prompt, ...]
    tokens: Int[Tensor, "prompts pos"]
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.prompts)

    @cached_property
    def fields(self) -> dict[str, tuple[str, ...]]:
        """The text of every part, by its name, in the order of the prompts; "-" where a prompt lacks it."""
        names = dict.fromkeys(name for prompt in self.prompts for name in prompt.spans)
        return {name: tuple(prompt.part(name) if name in prompt.spans else NOTHING for prompt in self.prompts) for name in names}

    def select(self, rows: Sequence[int]) -> Pool:
        """The prompts at `rows`, in that order."""
        return Pool(tuple(self.prompts[row] for row in rows), self.tokens[torch.as_tensor(rows, dtype=torch.long)])


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
    split: str = "test",
    counterfactual: str | None = None,
    seed: int = 0,
) -> tuple[Pool, Pool]:
    """The clean and the corrupted pool of a task.

    Args:
        matched: take each corrupted prompt from the example of the clean one; the sizes must then be equal.
        counterfactual: the kind of corrupted prompts; the task's default if None.
        seed: another seed, other prompts.

    Raises:
        UnknownName: no such split or counterfactual.
        BadUsage: a size below 1, a negative seed, or matched pools of different sizes.
        BadPairs: the task has fewer prompts of one length.
    """
    kind = _checked(task, split, counterfactual, seed, model.tokenizer)
    if min(n_clean, n_corrupted) < 1 or (matched and n_clean != n_corrupted):
        raise BadUsage(f"Pools need a prompt each, and matched ones equal sizes; got {n_clean} clean and {n_corrupted} corrupted prompts.")
    sides = _Sides(model, matched, n_clean, n_corrupted)
    sides.fill(islice(task.generate(split, seed, model.tokenizer), PATIENCE * (n_clean + n_corrupted) + CHUNK), kind)
    if not sides.full:
        had = f"{len(sides.clean)} clean and {len(sides.corrupted)} corrupted prompts of {sides.length or 0} tokens"
        asked = f"asked for {n_clean} and {n_corrupted}{said(sides.clean.dropped + sides.corrupted.dropped)}"
        raise BadPairs(f"Split {split!r} of {task.name} has {had} for {model.name}; {asked}.")
    return sides.clean.pool(), sides.corrupted.pool()


def left_out(model: Model, tokens: Sequence[int], length: int) -> str | None:
    """Why a prompt cannot be in a pool; None if it can. What stands before every prompt may be anything."""
    unknown = None if model.tokenizer is None else model.tokenizer.unk_token_id
    if len(tokens) != length:
        return f"not {length} tokens"
    return "words unknown to the tokenizer" if unknown in tokens[len(model.prepend) :] else None


def said(dropped: Mapping[str, int]) -> str:
    """Counts of what was left out, for the end of a message."""
    counts = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    return f" (left out: {counts})" if counts else ""


def _checked(task: Task, split: str, counterfactual: str | None, seed: int, tokenizer: PreTrainedTokenizerBase | None) -> str:
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


class _Side:
    """Prompts of one pool so far."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        # A million prompts as lists of numbers would be as large again as their texts.
        self.tokens = array("q")
        self.dropped: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.prompts)

    def add(self, prompt: Prompt, tokens: list[int]) -> None:
        self.prompts.append(prompt)
        self.tokens.extend(tokens)

    def pool(self) -> Pool:
        tokens = torch.from_numpy(np.array(self.tokens)).view(len(self), -1)
        return Pool(tuple(self.prompts), tokens, dict(self.dropped))


class _Sides:
    """Both pools, filled from one stream of examples: the clean one first, unless they are matched."""

    def __init__(self, model: Model, matched: bool, n_clean: int, n_corrupted: int) -> None:
        self.model, self.matched = model, matched
        self.n_clean, self.n_corrupted = n_clean, n_corrupted
        self.clean, self.corrupted = _Side(), _Side()
        self.length: int | None = None

    @property
    def full(self) -> bool:
        return len(self.clean) >= self.n_clean and len(self.corrupted) >= self.n_corrupted

    def fill(self, examples: Iterator[Example], kind: str) -> None:
        """Take prompts until both pools are full, or there are no more."""
        while not self.full and (chunk := list(islice(examples, CHUNK))):
            self._add([example.prompt for example in chunk], [example.counterfactuals.get(kind) for example in chunk])

    def _add(self, clean: Sequence[Prompt], corrupted: Sequence[Prompt | None]) -> None:
        ours = tokenized(self.model, [prompt.text for prompt in clean])
        present = [prompt for prompt in corrupted if prompt is not None]
        theirs = iter(tokenized(self.model, [prompt.text for prompt in present]))
        if self.length is None:
            self.length = Counter(map(len, ours)).most_common(1)[0][0]
        for prompt, tokens, other in zip(clean, ours, corrupted, strict=True):
            other_tokens = [] if other is None else next(theirs)
            if self.full:
                return
            if self.matched:
                if self._fits(self.clean, tokens) and self._fits(self.corrupted, other_tokens) and other is not None:
                    self.clean.add(prompt, tokens)
                    self.corrupted.add(other, other_tokens)
            elif len(self.clean) < self.n_clean:
                if self._fits(self.clean, tokens):
                    self.clean.add(prompt, tokens)
            elif self._fits(self.corrupted, other_tokens) and other is not None:
                self.corrupted.add(other, other_tokens)

    def _fits(self, side: _Side, tokens: list[int]) -> bool:
        assert self.length is not None
        reason = left_out(self.model, tokens, self.length) if tokens else "no such counterfactual"
        if reason is not None:
            side.dropped[reason] += 1
        return reason is None
