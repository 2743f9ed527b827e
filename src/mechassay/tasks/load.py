"""Tasks by name, or from a file of pairs; and what can be used of either.

A name may carry settings ("mcqa:n_choices=6"). The name of a ground truth ("truth-ioi") stands
for its model, and where a task is named for its task. A file is a `FileTask`: one row, one pair,
whose columns give the prompts, answers and foils. `check_pairs` counts what a task or a file has
before anything is run.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from os import PathLike, fspath
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from mechassay.errors import BadFile, BadUsage, MechassayError, NoSuchSplit, one_of
from mechassay.prompts.independence import linked_groups
from mechassay.prompts.pairs import EMPTY, Example, Prompt, Unreadable
from mechassay.prompts.rows import FILES, check_ending
from mechassay.prompts.tokenization import Aligned, Misaligned, Span, compared, tokenizer_of
from mechassay.tasks import registry_of
from mechassay.tasks.file_splits import Contents, contents_of, own_id, readings
from mechassay.tasks.greater_than import GreaterThan
from mechassay.tasks.pair_rows import RESERVED, SPLIT, PairRow, pair_rows
from mechassay.tasks.task import ALL, COMPARED, PRIVATE, SPLITS, Task, aligned
from mechassay.utils.arguments import checked
from mechassay.utils.display import SILENT, Progress

if TYPE_CHECKING:
    from mechassay.results.verdict import Conclusion


def parts_of(text: str, values: Mapping[str, str], given: Mapping[str, Span]) -> dict[str, Span]:
    """The parts of a text: those given, and where values stand.

    The values of a row's columns are parts of its prompt where they stand in the text:

        {"clean": "Ann gave the ring to", "object": "ring"}    the part `object` is "ring"

    A value is a part where it stands as a whole word: no letter, digit or underscore directly
    before or after it. Its first place has the column's name, further ones `object_2`,
    `object_3` and so on (as in templates). In the counterfactual a part is the value that the
    row says for it (a column counterfactual_object or corrupted_object), else the same value as
    in the clean prompt.

    Args:
        text: the prompt.
        values: what is looked for, by name.
        given: parts that are known; their names are taken.
    """
    spans = dict(given)
    for name, value in values.items():
        if name in given:
            continue
        for number, span in enumerate(places(text, value.strip()), 1):
            numbered = name if number == 1 else f"{name}_{number}"
            if number == 1 or (numbered not in values and numbered not in spans):
                spans[numbered] = span
    return spans


def places(text: str, value: str) -> list[Span]:
    """Where a value stands as a whole word, from left to right; nothing for an empty one."""
    spans: list[Span] = []
    begin = text.find(value) if value else -1
    while begin >= 0:
        end = begin + len(value)
        whole = not _in_word(text[begin - 1 : begin]) and not _in_word(text[end : end + 1])
        if whole:
            spans.append((begin, end))
        begin = text.find(value, end if whole else begin + 1)
    return spans


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


KIND, COLUMNS = "counterfactual", "columns"


@dataclass(frozen=True)
class FileTask(Task):
    r"""Pairs of your own, from a file: one row, one pair (`mechassay.prompts.rows`).

        clean            the prompt
        counterfactual   the counterfactual prompt; `corrupted` means the same
        answer           right continuations of `clean`, or `answers`
        foil             what they are compared with, or `foils`
        id, group        optional, see `mechassay.prompts.pairs.Pair`
        split            optional: train, validation, test or private, or a usual name of one
                         (val, dev)
        anything else    a tag, and a part of the prompt where its value is a word of it
                         (`parts_of`)

    Several answers are a list in JSON, and "a|b" in CSV and TSV, where a bar that is meant is
    "\|". Layouts of public files are read too (`mechassay.tasks.pair_rows`). The file is read once,
    when its rows are first needed; mistakes are told with the places of rows. Examples come in
    the order of the file, whatever the seed. A line break within a CSV cell is always "\n".

    Without a split column, rows are allotted to train, validation and test
    (`mechassay.tasks.file_splits`).

    Attributes:
        path: of the file (`mechassay.prompts.rows`). Not stored with results; `file` and `sha256`
            are.
        split_column: the column that says each row's split.
        file: the file's name.
        sha256: of its content.
        name: the file's name without its ending.

    Raises:
        BadFile: no such file, or of another ending. What is in it is read when it is first
            needed.
        BadUsage: a `split_column` that means something else.
    """

    path: str = field(repr=False, compare=False)
    split_column: str = SPLIT
    file: str = field(init=False)
    sha256: str = field(init=False)
    name: str = field(init=False, repr=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    version: ClassVar[int] = 3
    counterfactuals: ClassVar[tuple[str, ...]] = (KIND,)
    default_counterfactual: ClassVar[str] = KIND

    def __post_init__(self) -> None:
        path = Path(self.path)
        object.__setattr__(self, "path", str(path))
        check_ending(path)
        if self.split_column in RESERVED:
            raise BadUsage(f"split_column must be a column of its own; got {self.split_column!r}.")
        if not path.is_file():
            raise BadFile(f"{self.path}: there is no such file.")
        known = {"file": path.name, "name": path.stem, "sha256": _sha256(path)}
        for name, value in known.items():
            object.__setattr__(self, name, value)

    @property
    def seeded(self) -> bool:
        """No seed makes what a file holds: its private split is as private as the file."""
        return False

    # `sizes` and `objective` are known only after reading.
    @cached_property
    def sizes(self) -> Mapping[str, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Rows of each split that has any.

        Raises:
            BadFile: the file cannot be read as rows of these columns.
            BadPairs: rows that cannot be compared.
            UnknownName: a split that is none of `SPLITS`.
        """
        counts = Counter(self._contents.splits)
        return {split: counts[split] for split in SPLITS if counts[split]}

    @property
    def unfitted_split(self) -> str:
        """All rows, if no column names their splits."""
        return ALL if self._contents.n_components else "test"

    def _size(self, split: str, limit: int | None) -> int:
        if split != ALL:
            return super()._size(split, limit)
        super()._size(next(iter(self.sizes)), limit)  # Refuses a limit that no split has.
        return limit or sum(split != PRIVATE for split in self._contents.splits)

    @property
    def objective(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The difference of probability where all answers are years, else of logits; errors as
        `sizes`.
        """
        years = all(row.years for row in self._contents.rows)
        return GreaterThan.objective if years else Task.objective

    def notes(self, split: str, tokenizer: Any = None) -> dict[str, str]:
        """Return notes on splits, repeated prompts, exchanged counterfactuals and token ids."""
        whole = split == ALL
        own = dict(self._contents.notes)
        if whole:
            own.pop("splits", None)
        return own | readings(self._contents, tokenizer, whole=whole).notes

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """The examples of a split, in the order of the file; the seed changes nothing.

        Raises:
            BadFile, BadPairs, UnknownName: as for `sizes`.
            BadUsage: token ids, and no tokenizer to read them by.
        """
        rows = self.readings(split, seed, tokenizer)
        return (example for example in rows if isinstance(example, Example))

    def readings(
        self, split: str, seed: int, tokenizer: Any = None
    ) -> Iterator[Example | Unreadable]:
        return (example for _, example in self.located(tokenizer, split))

    def located(
        self, tokenizer: Any = None, split: str | None = None
    ) -> Iterator[tuple[str, Example | Unreadable]]:
        """Return the examples of one split, of `ALL` rows but private ones regardless of splits,
        or of each split (None), in the order of the file, each with its split.

        Errors are those of `generate`.
        """
        contents = self._contents
        if tokenizer is None and any(row.answer_ids for row in contents.rows):
            raise BadUsage(
                f"{self.path}: answers and foils are token ids; reading them needs the model"
                " they were made for."
            )
        rows = readings(contents, tokenizer, whole=split == ALL).rows
        for row, its_split, group in zip(rows, contents.splits, contents.groups, strict=True):
            if split in (None, its_split) or (split == ALL and its_split != PRIVATE):
                is_row = isinstance(row, PairRow)
                yield its_split, _example(self.name, row, group) if is_row else row

    def rows_digest(self) -> str:
        """Return the digest of the rows and their splits: 16 hexadecimal digits. A file that cannot
        be read as rows has the digest of its bytes.
        """
        try:
            rows = [row.model_dump_json(exclude={"place"}) for row in self._contents.rows]
        except MechassayError:
            return self.sha256[:16]
        return hashlib.sha256("\n".join([*rows, self.split_column]).encode()).hexdigest()[:16]

    @cached_property
    def _contents(self) -> Contents:
        rows, columns = pair_rows(self.path, self.split_column)
        if _sha256(Path(self.path)) != self.sha256:
            message = "the file has changed since it was first read; load the task again"
            raise BadFile(f"{self.path}: {message}.")
        contents = contents_of(rows, self.path, self.name, self.split_column)
        return replace(contents, notes=contents.notes | ({COLUMNS: columns} if columns else {}))

    def _no_split(self, split: str) -> NoSuchSplit:
        there = ", ".join(self.sizes)
        ask = next(iter(self.sizes))
        return NoSuchSplit(
            f"{self.name} has no split {split!r}, only {there}: ask for {ask!r} (--split {ask}), or"
            f" say in a column {self.split_column!r} which rows are {split}."
        )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or type(error).__name__}.") from error


def _example(name: str, row: PairRow, group: str | None) -> Example:
    other_spans = parts_of(row.counterfactual, row.other_values, row.other_spans)
    other = Prompt(row.counterfactual, row.counterfactual_answers, spans=other_spans)
    spans = parts_of(row.clean, row.values, row.spans)
    return Example(
        id=own_id(name, row),
        prompt=Prompt(row.clean, row.answers, (*row.answers, *row.foils), spans),
        counterfactuals={KIND: other},
        foils=row.foils,
        group=group,
        tags=row.tags,
    )


@checked
def load_task(name: str | PathLike[str], **settings: Any) -> Task:
    """The task registered as `name`, or the pairs of a file.

    Args:
        name: a registered name, one with settings ("mcqa:n_choices=6"), a ground truth's, or the
            path of a file of pairs (`mechassay.prompts.rows`).
        settings: the task's settings by keyword, over those in the name.

    Raises:
        UnknownName: nobody registered `name`, or the task has no such setting.
        BadFile: there is no such file. What is wrong inside it is said when its pairs are asked
            for.
    """
    # Users' Python may give anything.
    is_name = isinstance(name, str | PathLike)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_name:
        raise BadUsage(f"load_task takes a name or a path; got {name!r}.")
    text = fspath(name)
    if text.lower().endswith(FILES):
        return FileTask(text, **settings)
    return registry_of(text).make(text, **settings)


NO_SPACE = "no leading space"
PARTIAL, FORCED, CUT, SPECIAL = "partial", "forced", "cut", "special"
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
        groups: independent groups of the usable examples: examples that share no prompt, by their
            tokens, or without a tokenizer by their text (`prompts.independence`).
        prompts: different prompts of the usable examples.
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
    groups: int = 0
    prompts: int = 0


@dataclass(frozen=True)
class PairsCheck:
    """What a task's pairs of one kind are like.

    Attributes:
        task, counterfactual: what was checked.
        verdict, conclusion: whether a run on all pairs can have a verdict over prompts.
        splits: by name, those that have rows.
        total: all of them together.
        remarks: what a reader should know of the data as a whole, see `Task.notes`.
    """

    task: str
    counterfactual: str
    splits: Mapping[str, SplitCheck]
    total: SplitCheck
    remarks: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""
    conclusion: str = ""

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

    For each split and in total: rows, how many a tokenizer can compare, what is dropped and why
    (as by `Task.pairs`, but for its filter `keep`), what is unusual, and how long prompts are.
    Notes are about pairs that are used:

        no leading space    an answer or foil is joined to the prompt's last word (" Paris" was
                            meant?)
        partial             compared by the first of several tokens
        forced              tokens that answers and foils share are written after the prompt
        cut                 tokens of the prompt are left out, as its continuations change them

    The last three are explained in `mechassay.prompts.tokenization`.

    Args:
        task_or_path: a task, the name of one, or a file of pairs.
        model: a model with a tokenizer, or a tokenizer. None: only what can be told without
            tokens.
        counterfactual, seed: as in `Task.pairs`.
        limit: the first so many examples of each split. None: the split's own size.
        private_seed: for the private split, which is left out without it, unless no seed makes
            it.

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
            alignments = aligned([example for _, example in chunk], kind, tokenizer, model)
            for (split, example), alignment in zip(chunk, alignments, strict=True):
                looked[split].append(_looked(example, kind, alignment, tokenizer))
            advance(len(chunk))
    remarks: dict[str, str] = {}
    for split in looked:
        remarks |= task.notes(split, tokenizer)
    public = [row for split, rows in looked.items() if split != PRIVATE for row in rows]
    first = next((row.compared for row in public if row.compared), "")
    remarks |= {COMPARED: first} if first else {}
    splits = {split: _summary(rows) for split, rows in looked.items()}
    total = _summary(list(chain.from_iterable(looked.values())))
    made = _conclusion(task, splits, limit, by_tokens=tokenizer is not None)
    return PairsCheck(task.name, kind, splits, total, remarks, str(made.verdict), made.headline)


def _conclusion(
    task: Task, splits: Mapping[str, SplitCheck], limit: int | None, *, by_tokens: bool
) -> Conclusion:
    """Return whether a run on all pairs can have a verdict over prompts."""
    from mechassay.results.verdict import Case, Conclusion
    from mechassay.stats.intervals import FEW_GROUPS

    named: dict[str, dict[str, Any]] = {
        split: {"split": split, "pairs": own.usable, "groups": own.groups, "prompts": own.prompts}
        for split, own in splits.items()
        if split != PRIVATE
    }
    needed: dict[str, Any] = {"needed": FEW_GROUPS, "task": task.name, "limit": limit or 0}
    needed["splits"] = ", ".join(named)
    asked = [Case("tokens", "met" if by_tokens else "by text")]
    fewest = min(named.values(), key=lambda own: own["groups"], default=needed)
    test = named.get("test")
    enough = test is not None and fewest["groups"] >= FEW_GROUPS
    if not enough and limit is not None and any(task.sizes[x] > limit for x in named):
        answer = Case("usable", "limit", needed)
    elif test is None:
        answer = Case("usable", "no test pairs", needed)
    elif test["prompts"] < FEW_GROUPS <= test["pairs"]:
        answer = Case("usable", "copies", {**test, **needed})
    elif test["groups"] < FEW_GROUPS:
        answer = Case("usable", "few", {**test, **needed})
    elif fewest["groups"] < FEW_GROUPS:
        answer = Case("usable", "few others", {**fewest, **needed})
    else:
        answer = Case("usable", "yes", {**fewest, **needed})
    return Conclusion(tuple(asked), (answer,))


class _Looked(NamedTuple):
    """What was seen of one example; `dropped` and `notes` are messages by kind.

    Attributes:
        length: tokens of its prompt; None if it is not usable, or without a tokenizer.
        parts: of its prompt, if it is usable.
        group: of the example, if it is usable.
        prompts: hashes of the tokens of the clean and the counterfactual prompt, or their texts, if
            it is usable.
        compared: the tokens that it compares, in words.
    """

    id: str
    dropped: Mapping[str, str]
    notes: Mapping[str, str] = EMPTY
    length: int | None = None
    parts: tuple[str, ...] = ()
    group: str = ""
    prompts: tuple[Hashable, ...] = ("", "")
    compared: str = ""


def _looked(
    example: Example | Unreadable, kind: str, alignment: Aligned | Misaligned | None, tokenizer: Any
) -> _Looked:
    if isinstance(example, Unreadable) or isinstance(alignment, Misaligned):
        assert isinstance(alignment, Misaligned), "what cannot be read has a reason"
        return _Looked(example.id, {alignment.reason: alignment.message})
    length, text = (
        (None, "") if alignment is None else (len(alignment.clean), compared(alignment, tokenizer))
    )
    notes, parts = _notes(example, alignment), tuple(example.prompt.spans)
    # Without a tokenizer, spaces that may make no token are not compared.
    texts = (example.prompt.text, example.counterfactuals[kind].text)
    prompts: tuple[Hashable, ...] = tuple(" ".join(text.split()) for text in texts)
    if alignment is not None:
        prompts = (hash(tuple(alignment.clean)), hash(tuple(alignment.counterfactual)))
    group = example.group or example.id
    return _Looked(example.id, EMPTY, notes, length, parts, group, prompts, text)


def _notes(example: Example, alignment: Aligned | None) -> dict[str, str]:
    """What is unusual about a usable pair, each with a message."""
    notes: dict[str, str] = {}
    for answer in example.prompt.answers:
        if not answer[:1].isspace() and not example.prompt.text[-1:].isspace():
            notes[NO_SPACE] = f"{answer!r} directly follows {example.prompt.text[-20:]!r}"
            break
    if alignment is None:
        return notes
    if alignment.special:
        note = "the prompt begins with the tokenizer's special tokens"
        notes[SPECIAL] = f"{note}, which are not added again"
    if alignment.partial:
        notes[PARTIAL] = "an answer or foil has more tokens than the one that is compared"
    if alignment.forced:
        note = "tokens that answers and foils share are written after the prompt"
        notes[FORCED] = f"{note} ({alignment.forced} here)"
    if alignment.cut:
        note = "tokens at the end of the prompt are left out, as what follows changes them"
        notes[CUT] = f"{note} ({alignment.cut} here)"
    return notes


def _summary(rows: Sequence[_Looked]) -> SplitCheck:
    lengths = [row.length for row in rows if row.length is not None]
    parts = Counter(part for row in rows for part in row.parts)
    usable = [row for row in rows if not row.dropped]
    clean, other = ([row.prompts[side] for row in usable] for side in (0, 1))
    groups, _ = linked_groups([row.group for row in usable], clean, other)
    return SplitCheck(
        len(rows),
        len(usable),
        _findings((row.id, row.dropped) for row in rows),
        _findings((row.id, row.notes) for row in rows),
        (min(lengths), float(median(lengths)), max(lengths)) if lengths else None,
        dict(parts),
        len(set(groups)),
        len(set(clean)),
    )


def _findings(notes_of: Iterable[tuple[str, Mapping[str, str]]]) -> Mapping[str, Finding]:
    """For each kind, how many rows have it, the first of them, and what is said of the first."""
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for id, messages in notes_of:
        for kind, message in messages.items():
            by_kind.setdefault(kind, []).append((id, message))
    return {
        kind: Finding(len(rows), tuple(id for id, _ in rows[:NAMED]), rows[0][1])
        for kind, rows in by_kind.items()
    }
