"""Can these pairs be used? What a task or a file of pairs has, counted before anything is run.

For each split and in total: rows, how many a tokenizer can compare, what is dropped and why (as by
`Task.pairs`, but for its filter `keep`), what is unusual, and how long prompts are. Notes are about
pairs that are used:

    no leading space    an answer or foil is joined to the prompt's last word (" Paris" was meant?)
    partial             compared by the first of several tokens
    forced              tokens that answers and foils share are written after the prompt
    cut                 tokens of the prompt are left out, as its continuations change them

The last three are explained in `mechassay.alignment`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from mechassay.alignment import Aligned, Misaligned, tokenizer_of
from mechassay.errors import BadUsage, one_of
from mechassay.examples import Example, Unreadable
from mechassay.pairs import EMPTY
from mechassay.progress import SILENT, Progress
from mechassay.tasks.files import FileTask
from mechassay.tasks.load import load_task
from mechassay.tasks.task import SPLITS, Task, aligned

NO_SPACE = "no leading space"
PARTIAL, FORCED, CUT = "partial", "forced", "cut"
NAMED = 5
# Examples that are aligned together.
AT_ONCE = 64


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
        dropped, notes: by reason, and by what is unusual; a row may have several notes.
        lengths: tokens of the usable prompts as they are run, (least, median, most); None without a
            tokenizer.
        fields: how many of the usable original prompts have each part, by its name.
    """

    rows: int
    usable: int
    dropped: Mapping[str, Finding]
    notes: Mapping[str, Finding]
    lengths: tuple[int, float, int] | None
    fields: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PairsCheck:
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
    remarks: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return json.loads(json.dumps(asdict(self)))


def check_pairs(
    task_or_path: Task | str | Path,
    model: Any = None,
    *,
    counterfactual: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    private_seed: int | None = None,
    progress: Progress = SILENT,
) -> PairsCheck:
    """Look at all pairs of a task or a file.

    Args:
        task_or_path: a task, the name of one, or a file of pairs.
        model: a model with a tokenizer, or a tokenizer. None: only what can be told without tokens.
        counterfactual, seed: as in `Task.pairs`.
        limit: the first so many examples of each split. None: the split's own size.
        private_seed: for the private split, which is left out without it, unless no seed makes it.

    Raises:
        BadFile, BadPairs: a file of which no pairs can be made, with the rows that are wrong.
        UnknownName: no such task, counterfactual or split.
        BadUsage: a limit below 1, a negative seed, or a model without a tokenizer.
    """
    task = task_or_path if isinstance(task_or_path, Task) else load_task(str(task_or_path))
    tokenizer = tokenizer_of(task.name, model)
    kind = task.counterfactual_for(tokenizer) if counterfactual is None else counterfactual
    one_of("counterfactual", kind, task.counterfactuals)
    if limit is not None and limit < 1:
        raise BadUsage(f"limit must be 1 or more; got {limit}.")
    if min(seed, private_seed or 0) < 0:
        raise BadUsage(f"A seed must be 0 or more; got {min(seed, private_seed or 0)}.")
    held = {split: task.sizes[split] for split in SPLITS if task.sizes.get(split)}
    sizes = {split: min(size, limit or size) for split, size in held.items()}
    if private_seed is None and task.seeded:
        sizes.pop("private", None)
    looked: dict[str, list[_Looked]] = {split: [] for split in sizes}
    examples: Iterator[tuple[str, Example | Unreadable]]
    if isinstance(task, FileTask) and limit is None:
        examples = task.located(tokenizer)
    else:
        seeds = dict.fromkeys(SPLITS, seed) | {"private": private_seed or 0}
        examples = (
            (split, example)
            for split, size in sizes.items()
            for example in islice(task.readings(split, seeds[split], tokenizer), size)
        )
    with progress.track("checking pairs", sum(sizes.values())) as advance:
        while chunk := list(islice(examples, AT_ONCE)):
            found = aligned([example for _, example in chunk], kind, tokenizer)
            for (split, example), each in zip(chunk, found, strict=True):
                looked[split].append(_looked(example, each))
            advance(len(chunk))
    remarks: dict[str, str] = {}
    for split in looked:
        remarks |= task.notes(split, tokenizer)
    splits = {split: _summary(rows) for split, rows in looked.items()}
    total = _summary(list(chain.from_iterable(looked.values())))
    return PairsCheck(task.name, kind, splits, total, remarks)


class _Looked(NamedTuple):
    """What was seen of one example; `dropped` and `notes` are messages by kind.

    Attributes:
        length: tokens of its prompt; None if it is not usable, or without a tokenizer.
        parts: of its prompt, if it is usable.
    """

    id: str
    dropped: Mapping[str, str]
    notes: Mapping[str, str] = EMPTY
    length: int | None = None
    parts: tuple[str, ...] = ()


def _looked(example: Example | Unreadable, found: Aligned | Misaligned | None) -> _Looked:
    if isinstance(example, Unreadable) or isinstance(found, Misaligned):
        assert isinstance(found, Misaligned), "what cannot be read has a reason"
        return _Looked(example.id, {found.reason: found.message})
    length = None if found is None else len(found.clean)
    return _Looked(example.id, EMPTY, _notes(example, found), length, tuple(example.prompt.spans))


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
        said = "tokens that answers and foils share are written after the prompt"
        notes[FORCED] = f"{said} ({found.forced} here)"
    if found.cut:
        said = "tokens at the end of the prompt are left out, as what follows changes them"
        notes[CUT] = f"{said} ({found.cut} here)"
    return notes


def _summary(rows: Sequence[_Looked]) -> SplitCheck:
    lengths = [row.length for row in rows if row.length is not None]
    parts = Counter(part for row in rows for part in row.parts)
    return SplitCheck(
        len(rows),
        sum(not row.dropped for row in rows),
        _findings((row.id, row.dropped) for row in rows),
        _findings((row.id, row.notes) for row in rows),
        (min(lengths), float(median(lengths)), max(lengths)) if lengths else None,
        dict(parts),
    )


def _findings(told: Iterable[tuple[str, Mapping[str, str]]]) -> Mapping[str, Finding]:
    """For each kind, how many rows have it, the first of them, and what is said of the first."""
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for id, messages in told:
        for kind, message in messages.items():
            by_kind.setdefault(kind, []).append((id, message))
    return {
        kind: Finding(len(rows), tuple(id for id, _ in rows[:NAMED]), rows[0][1])
        for kind, rows in by_kind.items()
    }
