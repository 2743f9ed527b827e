"""Can these pairs be used? What a task or a file of pairs has, counted before anything is run.

For each split and in total: rows, how many a tokenizer can compare, what is dropped and why, what
is unusual, and how long prompts are. What is dropped is what `Task.pairs` drops, reason by reason;
a filter by what the model says (`keep`) is not part of it. Notes are about pairs that are used:

    no leading space    an answer or foil is joined to the prompt's last word (" Paris" was meant?)
    partial             compared by the first of several tokens
    forced              tokens that answers and foils share are written after the prompt
    cut                 tokens of the prompt are left out, as its continuations change them

The last three are explained in `mechassay.alignment`. Rows are looked at in chunks and not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mechassay.alignment import Aligned, Misaligned
from mechassay.errors import BadUsage, UnknownName
from mechassay.examples import Example, Unreadable
from mechassay.pairs import EMPTY, NO_COUNTS, align_pairs
from mechassay.progress import SILENT, Progress
from mechassay.tasks.files import AT_ONCE, FileTask
from mechassay.tasks.task import SPLITS, Task, load_task, misfit, tokenizer_of

NO_SPACE = "no leading space"
PARTIAL, FORCED, CUT = "partial", "forced", "cut"
NAMED = 5


@dataclass(frozen=True)
class Finding:
    """One thing found in some rows.

    Attributes:
        count: in how many.
        ids: of the first of them, up to 5.
        message: about the first of them.
    """

    count: int
    ids: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class SplitCheck:
    """What a split has, or all splits together.

    Attributes:
        rows: examples looked at.
        usable: those that are not dropped.
        dropped: by reason.
        notes: by what is unusual; a row may have several.
        lengths: tokens of the usable prompts as they are run, (least, median, most); None without a
            tokenizer.
        fields: how many of the usable original prompts have each part, by its name.
    """

    rows: int
    usable: int
    dropped: Mapping[str, Finding]
    notes: Mapping[str, Finding]
    lengths: tuple[int, float, int] | None
    fields: Mapping[str, int] = field(default_factory=lambda: NO_COUNTS)


@dataclass(frozen=True)
class Check:
    """What a task's pairs of one kind are like.

    Attributes:
        task, counterfactual: what was checked.
        splits: by name, those that have rows.
        total: all of them together.
        remarks: what a reader should know of the data as a whole, see `Task.notes`.
    """

    task: str
    counterfactual: str
    splits: Mapping[str, SplitCheck]
    total: SplitCheck
    remarks: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {
            "task": self.task,
            "counterfactual": self.counterfactual,
            "splits": {split: _plain(each) for split, each in self.splits.items()},
            "total": _plain(self.total),
            "remarks": dict(self.remarks),
        }


def check_pairs(
    task_or_path: Task | str | Path,
    model: Any = None,
    *,
    counterfactual: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    private_seed: int | None = None,
    progress: Progress = SILENT,
) -> Check:
    """Look at all pairs of a task or a file.

    Args:
        task_or_path: a task, the name of one, or a file of pairs.
        model: a model with a tokenizer, or a tokenizer. None: only what can be told without tokens.
        counterfactual: as in `Task.pairs`.
        limit: the first so many examples of each split. None: the split's own size.
        seed: as in `Task.pairs`.
        private_seed: for the private split, which is left out without it, unless no seed makes it.
        progress: shows how far the check is.

    Raises:
        BadFile, BadPairs, UnknownName: a file of which no pairs can be made, with the rows that are
        wrong.
        UnknownName: no such task or counterfactual.
        BadUsage: a limit below 1, a negative seed, or a model without a tokenizer.
    """
    task = task_or_path if isinstance(task_or_path, Task) else load_task(str(task_or_path))
    tokenizer = tokenizer_of(task.name, model)
    kind = task.counterfactual_for(tokenizer) if counterfactual is None else counterfactual
    if kind not in task.counterfactuals:
        raise UnknownName("counterfactual", kind, task.counterfactuals)
    if limit is not None and limit < 1:
        raise BadUsage(f"limit must be 1 or more; got {limit}.")
    if min(seed, private_seed or 0) < 0:
        raise BadUsage(f"A seed must be 0 or more; got {min(seed, private_seed or 0)}.")
    sizes = {
        split: min(task.sizes[split], limit or task.sizes[split])
        for split in SPLITS
        if task.sizes.get(split)
    }
    if private_seed is None and task.seeded:
        sizes.pop("private", None)
    counts = {split: _Count() for split in sizes}
    examples: Iterator[tuple[str, Example | Unreadable]]
    if isinstance(task, FileTask) and limit is None:
        examples = task.located(tokenizer)
    else:
        seeds = dict.fromkeys(SPLITS, seed) | {"private": private_seed or 0}
        examples = (
            (split, each)
            for split, size in sizes.items()
            for each in islice(task.readings(split, seeds[split], tokenizer), size)
        )
    with progress.track("checking pairs", sum(sizes.values())) as advance:
        while chunk := list(islice(examples, AT_ONCE)):
            for (split, example), found in zip(
                chunk, _aligned([example for _, example in chunk], kind, tokenizer), strict=True
            ):
                counts[split].add(example, found)
            advance(len(chunk))
    splits = {split: each.result() for split, each in counts.items()}
    remarks = {
        name: text for split in splits for name, text in task.notes(split, tokenizer).items()
    }
    return Check(
        task.name,
        kind,
        MappingProxyType(splits),
        _together(counts.values()).result(),
        MappingProxyType(remarks),
    )


def _aligned(
    examples: Sequence[Example | Unreadable], kind: str, tokenizer: Any
) -> list[Aligned | Misaligned | None]:
    """What becomes of each example;
    None if it is usable as far as can be told without a tokenizer.
    """
    found: list[Aligned | Misaligned | None] = [_misfit(example, kind) for example in examples]
    if tokenizer is not None:
        present = {
            row: each
            for row, each in enumerate(examples)
            if isinstance(each, Example) and found[row] is None
        }
        for row, each in zip(
            present,
            align_pairs([example.pair(kind) for example in present.values()], tokenizer),
            strict=True,
        ):
            found[row] = each
    return found


def _misfit(example: Example | Unreadable, kind: str) -> Misaligned | None:
    reason = misfit(example, kind)
    if reason is None:
        return None
    return Misaligned(
        reason,
        (
            example.message
            if isinstance(example, Unreadable)
            else f"there is no {kind!r} of this example"
        ),
    )


@dataclass
class _Tally:
    """A finding while it is counted."""

    message: str
    ids: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, ids: Sequence[str], count: int) -> None:
        self.count += count
        self.ids += ids[: NAMED - len(self.ids)]


@dataclass
class _Count:
    """A split while it is looked at."""

    rows: int = 0
    usable: int = 0
    dropped: dict[str, _Tally] = field(default_factory=dict)
    notes: dict[str, _Tally] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)

    def add(self, example: Example | Unreadable, found: Aligned | Misaligned | None) -> None:
        self.rows += 1
        if isinstance(example, Unreadable) or isinstance(found, Misaligned):
            assert isinstance(found, Misaligned), "what cannot be read has a reason"
            self.dropped.setdefault(found.reason, _Tally(found.message)).add([example.id], 1)
            return
        self.usable += 1
        self.fields.update(example.prompt.spans.keys())
        for name, message in _notes(example, found).items():
            self.notes.setdefault(name, _Tally(message)).add([example.id], 1)
        if found is not None:
            self.lengths[len(found.clean)] += 1

    def result(self) -> SplitCheck:
        return SplitCheck(
            self.rows,
            self.usable,
            _findings(self.dropped),
            _findings(self.notes),
            _spread(self.lengths),
            MappingProxyType(dict(self.fields)),
        )


def _notes(example: Example, found: Aligned | None) -> dict[str, str]:
    """What is unusual about a usable pair, each with a message."""
    notes: dict[str, str] = {}
    for answer in example.prompt.answers:
        if not answer[:1].isspace() and not example.prompt.text[-1:].isspace():
            notes[NO_SPACE] = f"{answer!r} directly follows {example.prompt.text[-20:]!r}"
            break
    if found is None:
        return notes
    if found.partial:
        notes[PARTIAL] = "an answer or foil has more tokens than the one that is compared"
    if found.forced:
        notes[FORCED] = (
            f"tokens that answers and foils share are written after the prompt ({found.forced}"
            " here)"
        )
    if found.cut:
        notes[CUT] = (
            "tokens at the end of the prompt are left out, as what follows changes them"
            f" ({found.cut} here)"
        )
    return notes


def _together(counts: Iterable[_Count]) -> _Count:
    total = _Count()
    for each in counts:
        total.rows += each.rows
        total.usable += each.usable
        total.lengths += each.lengths
        total.fields.update(each.fields)
        for ours, theirs in ((total.dropped, each.dropped), (total.notes, each.notes)):
            for name, tally in theirs.items():
                ours.setdefault(name, _Tally(tally.message)).add(tally.ids, tally.count)
    return total


def _findings(tallies: Mapping[str, _Tally]) -> Mapping[str, Finding]:
    return MappingProxyType(
        {name: Finding(each.count, tuple(each.ids), each.message) for name, each in tallies.items()}
    )


def _spread(lengths: Counter[int]) -> tuple[int, float, int] | None:
    """The least, the median and the most of numbers, given how often each comes."""
    if not lengths:
        return None
    values = np.array(sorted(lengths))
    ends = np.cumsum([lengths[value] for value in values.tolist()])
    middle = values[np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")]
    return int(values[0]), float(middle.mean()), int(values[-1])


def _plain(split: SplitCheck) -> dict[str, Any]:
    return {
        "rows": split.rows,
        "usable": split.usable,
        "dropped": {
            name: {**asdict(each), "ids": list(each.ids)} for name, each in split.dropped.items()
        },
        "notes": {
            name: {**asdict(each), "ids": list(each.ids)} for name, each in split.notes.items()
        },
        "lengths": None if split.lengths is None else list(split.lengths),
        "fields": dict(split.fields),
    }
