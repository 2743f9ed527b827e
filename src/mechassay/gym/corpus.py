"""Sentences to train a small language model on: those of gym tasks, each with its continuation.

    The artists that feared the child are

A row is a sentence of a task, drawn as its pairs are, and a label of its type; there are equally
many of each task. Only sentences of the train split are drawn, so none of the dev and test
sentences is among them. As tasks share words, one may be the beginning of a longer sentence of
another task, and rarely its label follows there ("... has" of "... has never").

A word is a token, and so is a mark of punctuation; the control labels are words too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.gym.control_labels import DOG_GIVE
from mechassay.gym.gym_task import GymTask
from mechassay.tasks.task import split_rng
from mechassay.truth.tasks import UNKNOWN

SPLIT = "train"
PAD = -1
_WORD = re.compile(r"\w+|[^\w\s]+")
"""As `truth.folders.word_tokenizer` splits."""


def words_of(tasks: Iterable[GymTask]) -> list[str]:
    """All words that sentences, labels and control labels of some tasks can have, sorted; first the
    token for any other.
    """
    texts = set(DOG_GIVE)
    for task in tasks:
        texts |= {label for labels in task.labels.values() for label in labels}
        for choice in task.choices:
            texts |= {text for rows in choice.rows.values() for row in rows for text in row}
    return [UNKNOWN, *sorted({word for text in texts for word in _WORD.findall(text)})]


@dataclass(frozen=True, eq=False, repr=False)
class GymCorpus(OneLine):
    """Sentences as token ids, one a row.

    Attributes:
        words: by id.
        ids: of sentences with their continuations; `PAD` after the end.
        tasks: names of the tasks, in the order of their rows, equally many of each.
    """

    words: tuple[str, ...]
    ids: Int[Tensor, "rows longest"]
    tasks: tuple[str, ...]

    @classmethod
    def of(cls, tasks: Sequence[GymTask], size: int, seed: int) -> GymCorpus:
        """Draw sentences of the train split.

        Args:
            size: sentences of each task; some may be the same where a task has few.
            seed: another seed, other sentences.

        Raises:
            BadUsage: no task, or a size below 1.
        """
        if not tasks or size < 1:
            raise BadUsage(f"A corpus has tasks and sentences; got {len(tasks)} and {size}.")
        words = words_of(tasks)
        id_of = {word: number for number, word in enumerate(words)}
        rng = split_rng(SPLIT, seed)
        rows = [
            [id_of[word] for word in _WORD.findall(drawn.sentence + drawn.label)]
            for task in tasks
            for drawn in islice(task.sentences(SPLIT, rng), size)
        ]
        ids = np.full((len(rows), max(map(len, rows))), PAD)
        for row, found in zip(ids, rows, strict=True):
            row[: len(found)] = found
        return cls(tuple(words), torch.from_numpy(ids), tuple(task.name for task in tasks))

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self) -> list[str]:
        """The rows as words with spaces between them."""
        return [
            " ".join(self.words[each] for each in row if each != PAD) for row in self.ids.tolist()
        ]

    def shown(self) -> dict[str, object]:
        """What a line says of it."""
        tokens = int((self.ids != PAD).sum())
        return {
            "tasks": len(self.tasks),
            "n": len(self),
            "tokens": tokens,
            "words": len(self.words),
        }
