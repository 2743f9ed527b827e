"""Gym tasks from elsewhere: the public data set on the hub, its files, templates; and back.

    hub                 aryaman/causalgym: train, dev and test rows of the 29 tasks
    a folder            one file of such rows a split: train.jsonl, dev.parquet, test.json
    a .json file        templates as the public code has them (`read_causalgym_templates`)
    a .yaml file        tasks of one's own (`gym.task_files`)

Rows are taken in their order; a pair and its swap are one group. They are dropped, and counted,
if a continuation is not one token after one of the sentences. A row whose sentences have another
number of spans than the task's first row is refused.

`export_rows` writes what a task draws as such rows: a span for each region, the first with the
mark of the beginning of a text that the public code expects (Arora et al. 2024, section 3.3).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.gym.causalgym import BEGIN, gym_rows, published_task, read_causalgym_templates
from mechassay.gym.gym_task import GymTask, unusable
from mechassay.gym.names import FAMILY_OF, FILES
from mechassay.gym.pairs import GymPairs
from mechassay.gym.task_files import read_gym_tasks
from mechassay.tasks.hub_datasets import PublicData, public_rows
from mechassay.tasks.task import PUBLIC_SPLITS, split_named

PUBLIC = PublicData("aryaman/causalgym", splits={"validation": "dev"})


@dataclass(frozen=True, eq=False)
class RowsTask:
    """A task whose interchanges are rows of a file, in their order.

    Attributes:
        splits: its interchanges; those of a split are all that there are.
    """

    name: str
    splits: Mapping[str, GymPairs]

    version: ClassVar[int] = 1
    lengths: ClassVar[str] = "unequal"

    @property
    def family(self) -> str:
        """The published family of its name, or "own"."""
        return FAMILY_OF.get(self.name, "own")

    @property
    def tested(self) -> tuple[str, ...]:
        """The regions at which interventions are tried."""
        return next(iter(self.splits.values())).tested

    @property
    def types(self) -> tuple[str, ...]:
        """The types of sentences: in the order of our task of that name, else as they come."""
        every = (pair.tags["type"] for pairs in self.splits.values() for pair in pairs)
        own = tuple(dict.fromkeys(every))
        ours = published_task(self.name).types if self.name in FAMILY_OF else ()
        return ours if set(ours) == set(own) else own

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each split."""
        return {split: len(pairs) for split, pairs in self.splits.items()}

    @property
    def sha256(self) -> str:
        """Of all sentences and labels."""
        texts = (
            "\t".join((pair.base, pair.source, *pair.labels, *pair.base_labels))
            for split in sorted(self.splits)
            for pair in self.splits[split]
        )
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def interchanges(
        self, split: str = "train", model: Any = None, *, limit: int | None = None, seed: int = 0
    ) -> GymPairs:
        """The first interchanges of a split that a model's tokenizer takes.

        Raises:
            UnknownName: no such split. BadPairs: none is left; the message has the counts.
        """
        pairs = self.splits[one_of("split", split_named(split) or split, self.splits)]
        tokenizer = getattr(model, "tokenizer", model)
        reasons = [None] * len(pairs) if tokenizer is None else unusable(pairs, tokenizer)
        dropped = Counter(misfit.reason for misfit in reasons if misfit is not None)
        kept = [pair for pair, misfit in zip(pairs, reasons, strict=True) if misfit is None]
        if not kept:
            counts = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items()))
            raise BadPairs(f"Split {split!r} of {self.name} has no usable row; dropped: {counts}.")
        return GymPairs(
            kept[:limit],
            task=self.name,
            split=split,
            seed=None,
            tested=self.tested,
            dropped=dropped,
        )


def source_tasks(source: str) -> dict[str, GymTask | RowsTask]:
    """The tasks of a source by name; see the module.

    Raises:
        BadUsage: not "hub", nor a folder or file of a known ending; a task lacks a split, or has
            sentences of one type alone.
        BadFile: files that cannot be read, or the hub does not answer.
        MissingExtra: the hub without `datasets`, parquet without `pyarrow`.
    """
    path = Path(source)
    tasks: dict[str, GymTask | RowsTask]
    if path.suffix.lower() == ".json" and path.is_file():
        tasks = dict(read_causalgym_templates(path))
    elif path.suffix.lower() in FILES:
        tasks = dict(read_gym_tasks(path))
    elif source == "hub" or path.is_dir():
        read = {
            split: gym_rows(enumerate(public_rows(source, PUBLIC, split), 1), source, split=split)
            for split in PUBLIC_SPLITS
        }
        names = dict.fromkeys(name for by_task in read.values() for name in by_task)
        tasks = {name: _of_rows(source, name, read) for name in names}
    else:
        raise BadUsage(
            "A source of gym tasks is hub, a folder with train, dev and test rows, a .json file of"
            f" templates or a .yaml file of tasks; got {source!r}."
        )
    for task in tasks.values():
        if len(task.types) < 2:
            raise BadUsage(
                f"{source}: {task.name} has sentences of one type alone,"
                f" {''.join(task.types)!r}; a pair is of two types."
            )
    return tasks


def _of_rows(source: str, name: str, read: Mapping[str, Mapping[str, GymPairs]]) -> RowsTask:
    for split in PUBLIC_SPLITS:
        if name not in read[split]:
            raise BadUsage(f"{source}: {name} has no rows of {PUBLIC.split(split)}.")
    return RowsTask(name, {split: read[split][name] for split in PUBLIC_SPLITS})


def export_rows(
    tasks: Iterable[GymTask],
    split: str,
    model: Any = None,
    *,
    limit: int | None = None,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Interchanges of tasks as rows of the public data set.

    Args:
        model: a model or tokenizer whose tokens continuations have to be; None: no check.

    Raises:
        UnknownName, BadPairs, BadUsage: see `GymTask.interchanges`.
    """
    for task in tasks:
        for pair in task.interchanges(split, model, limit=limit, seed=seed):
            yield {
                "base": _spans(task.regions, pair.base, pair.base_spans),
                "src": _spans(task.regions, pair.source, pair.source_spans),
                "base_type": pair.tags["type"],
                "src_type": pair.tags["source_type"],
                "base_label": pair.base_labels[0],
                "src_label": pair.labels[0],
                "task": task.name,
            }


def _spans(
    regions: Sequence[str], sentence: str, spans: Mapping[str, tuple[int, int]]
) -> list[str]:
    """A sentence cut at its regions, each with the space before it; empty regions are empty."""
    texts, begin = [BEGIN], 0
    for region in regions:
        end = spans[region][1] if region in spans else begin
        texts.append(sentence[begin:end])
        begin = end
    return texts
