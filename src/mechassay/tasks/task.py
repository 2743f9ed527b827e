"""What a task is, and how one is found by name.

A task makes pairs. Whatever it is about, it must be

- deterministic: the same arguments give the same pairs on any machine, nothing global is
  seeded, and `limit` takes the first pairs of one fixed stream;
- split: train, validation, test and private share no pair, nor the words the pairs are made of;
- aligned: with a model given, the clean and the counterfactual prompt of every pair have
  equally many tokens under its tokenizer;
- private where it says so: the split "private" depends on a seed that only its keeper knows.
"""

from __future__ import annotations

from typing import Any, Protocol

from mechassay.pairs import Pair
from mechassay.registry import Registry

SPLITS = ("train", "validation", "test", "private")
TASKS = Registry("task", {"ioi": "mechassay.tasks.ioi:IOI"})


class Task(Protocol):
    """A maker of pairs.

    Attributes:
        name: the name the task is registered under.
        version: grows whenever the same arguments would give other pairs.
        counterfactuals: the kinds of counterfactual prompt it can make.
        default_counterfactual: the kind used when none is asked for.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def counterfactuals(self) -> tuple[str, ...]: ...
    @property
    def default_counterfactual(self) -> str: ...

    def pairs(
        self,
        split: str,
        model: Any = None,
        *,
        limit: int | None = None,
        counterfactual: str | None = None,
        seed: int = 0,
        private_seed: int | None = None,
    ) -> list[Pair]:
        """The pairs of one split.

        Args:
            split: one of `SPLITS`.
            model: a model with a `tokenizer`, or a tokenizer: only pairs that it can compare
                token by token. None: no filtering.
            limit: how many pairs, the first of the stream. None: the task's own size of the split.
            counterfactual: one of `counterfactuals`. None: the default one.
            seed: another seed, other pairs. The private split does not use it.
            private_seed: takes the place of `seed` for the split "private", where it is required.

        Raises:
            UnknownName: no such split or counterfactual.
            BadUsage: a limit below 1, a negative seed, or no seed for the private split.
            BadPairs: the tokenizer leaves too little to make pairs of, or breaks their alignment.
        """
        ...


def load_task(name: str) -> Task:
    """The task registered as `name`: a class, or any callable that gives a `Task` when called with nothing.

    Raises:
        UnknownName: nobody registered `name`.
    """
    return TASKS.load(name)()
