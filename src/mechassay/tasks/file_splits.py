"""Rows of a file together: their splits and groups, their counterfactuals, their continuations.

*Splits.* Rows that share a clean prompt, a counterfactual or a group are one component, and a
component is allotted as a whole (`tasks.task.allotted`):

    components   training, validation, test
    100 or more  60, 20 and 20 % of the rows, each at least 20 components
    60 to 99     the rest, 20 and 20 components
    40 to 59     half of the rest, half of the rest, 20 components
    below 40     a half, a quarter, a quarter, each at least one component

*Permuted facts.* A counterfactual is often the clean prompt of another row. Counterfactuals link
rows only if at least half of the components remain, because they would link a circle of facts to
one component. If the counterfactual of a row is a clean prompt of another split, the row gets the
prompt of a row of its own split with the same number of tokens. Its foils become the answers of
that row, if its foils were the answers of the former row; else the row is dropped.

*Continuations.* An answer or foil that merges with the end of its prompt is left out of its row, if
most answers and foils of the file do not merge (`prompts.tokenization`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import UInt64

from mechassay.errors import BadFile, BadPairs, UnknownName
from mechassay.prompts.pairs import Unreadable
from mechassay.prompts.rows import where
from mechassay.prompts.tokenization import MERGES, encode, n_merged, usual_merging
from mechassay.tasks.greater_than import usual
from mechassay.tasks.pair_rows import ENDINGS, SPLIT, PairRow, TokenIds
from mechassay.tasks.task import (
    NO_HASH,
    PRIVATE,
    SHARES,
    SPLITS,
    allotted,
    hash_columns,
    least_hash,
    split_named,
    text_hash,
)
from mechassay.utils.display import counted

OTHER_SPLIT = "its counterfactual is a prompt of another split"

PromptAndLabels = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Contents:
    """The rows of a file.

    Attributes:
        path: of the file, for messages.
        name: begins ids and groups that are made.
        splits, groups: of each row.
        n_components: components that were allotted; 0 if the file names the splits.
        notes: what a reader should know, by subject.
    """

    rows: list[PairRow]
    path: str
    name: str
    splits: list[str]
    groups: list[str | None]
    n_components: int
    notes: dict[str, str]


def contents_of(rows: list[PairRow], path: str, name: str, split_column: str) -> Contents:
    """Return the rows with their splits and groups.

    Rows with the same clean prompt are one group, whatever the file says, because intervals would
    count one prompt as many.

    Raises:
        BadFile, BadPairs, UnknownName: a split of another name, an id that comes twice, a clean
            prompt in two splits, or rows with the same clean prompt and answer and foil exchanged;
            the message has the places of the rows.
    """
    hashes = hash_columns(
        [text_hash(row.clean) for row in rows],
        [text_hash(row.counterfactual) for row in rows],
        [NO_HASH if row.group is None else text_hash(row.group, b"group") for row in rows],
    )
    _check_ids(rows, path, name)
    splits, n_components = _splits(rows, hashes, path, split_column)
    stated = [_prompt_and_labels(row) for row in rows]
    _check_contradictions(rows, stated, path)
    groups = _groups(rows, hashes, name)
    notes: dict[str, str] = {}
    if shared := _shared_counterfactuals(rows, splits):
        notes["shared counterfactuals"] = (
            f"{counted(shared, 'row')} of different splits share a counterfactual prompt"
        )
    if 0 < n_components < TWO_SPLITS:
        notes["splits"] = _few_components(n_components, split_column)
    repeated = [rows[row].place for row, _ in _repeats([row.clean for row in rows])]
    if repeated:
        notes["repeated prompts"] = _repeated(
            rows, repeated, joined=groups != [row.group for row in rows]
        )
    return Contents(rows, path, name, splits, groups, n_components, notes)


def _shared_counterfactuals(rows: Sequence[PairRow], splits: Sequence[str]) -> int:
    """Count the rows whose counterfactual is that of a row of another split, and no clean prompt,
    for which there is an exchange.
    """
    cleans = {row.clean for row in rows}
    by_text: dict[str, set[str]] = {}
    for row, split in zip(rows, splits, strict=True):
        by_text.setdefault(row.counterfactual, set()).add(split)
    several = {text for text, own in by_text.items() if len(own) > 1} - cleans
    return sum(row.counterfactual in several for row in rows)


TWO_SPLITS, THREE_SPLITS, BY_SHARES = 40, 60, 100
"""Components from which on test, then validation too, has `FEW_GROUPS`, and shares decide."""


def _few_components(n: int, split_column: str) -> str:
    from mechassay.stats.intervals import FEW_GROUPS  # scipy is not imported for a list of tasks.

    return (
        f"the file has {counted(n, 'group')} of rows that share nothing; a run that finds a circuit"
        f" or a site gives no verdict over prompts below {TWO_SPLITS} ({TWO_SPLITS - n} more are"
        f" needed), as its test split then has fewer than {FEW_GROUPS}. A column {split_column!r}"
        " with train, validation or test for each row decides otherwise"
    )


def _repeated(rows: Sequence[PairRow], repeated: Sequence[int], *, joined: bool) -> str:
    whole = len(_repeats([(row.counterfactual, *_prompt_and_labels(row)) for row in rows]))
    has = "has" if len(repeated) == 1 else "have"
    note = f"{where(repeated)} {has} the clean prompt of a row before"
    note += f" ({whole:,} of them repeat{'s' * (whole == 1)} a whole row)" if whole else ""
    return note + ("; rows with one prompt are one group" if joined else "")


def own_id(name: str, row: PairRow) -> str:
    """Return the id of a row; without an id in the file, the task's name and the row's place."""
    return f"{name}-{row.place:06d}" if row.id is None else row.id


def _prompt_and_labels(row: PairRow) -> PromptAndLabels:
    """The clean prompt, and its answers and foils in one order."""
    answers = row.answers or map(str, row.answer_ids)
    foils = row.foils or map(str, row.foil_ids)
    return row.clean, tuple(sorted(answers)), tuple(sorted(foils))


def _splits(
    rows: Sequence[PairRow], hashes: UInt64[np.ndarray, "rows 3"], path: str, split_column: str
) -> tuple[list[str], int]:
    """Return the split of each row, and the number of components if the file names no splits."""
    given = [split_named(row.split) if row.split else None for row in rows]
    unknown = [row for row, split in zip(rows, given, strict=True) if row.split and split is None]
    if unknown:
        places = where([row.place for row in unknown])
        raise UnknownName(f"split ({path}, {places})", str(unknown[0].split), SPLITS)
    without = [row.place for row, split in zip(rows, given, strict=True) if split is None]
    if len(without) == len(rows):
        if split_column != SPLIT:
            message = f"no row has the column {split_column!r}, which split_column names"
            raise BadFile(f"{path}: {message}.")
        components = _components(hashes)
        return _allotted(components), len(np.unique(components))
    if without:
        raise BadFile(f"{path}: {where(without)}: no {split_column!r}, which other rows have.")
    splits = [split for split in given if split is not None]
    _check_shared_prompts(rows, splits, path)
    return splits, 0


def _components(hashes: UInt64[np.ndarray, "rows 3"]) -> UInt64[np.ndarray, "rows"]:
    """Return the component of each row. Counterfactuals link rows if that leaves half of the
    components that clean prompts and groups give.
    """
    linked, apart = least_hash(hashes), least_hash(hashes[:, [0, 2]])
    return linked if 2 * len(np.unique(linked)) >= len(np.unique(apart)) else apart


def _allotted(components: UInt64[np.ndarray, "rows"]) -> list[str]:
    from mechassay.stats.intervals import FEW_GROUPS

    n = len(np.unique(components))
    if n >= BY_SHARES:
        return allotted(components, SHARES, FEW_GROUPS)
    if n >= THREE_SPLITS:
        shares = (1 - 2 * FEW_GROUPS / n, FEW_GROUPS / n, FEW_GROUPS / n)
    elif n >= TWO_SPLITS:
        rest = (n - FEW_GROUPS) / (2 * n)
        shares = (rest, rest, FEW_GROUPS / n)
    else:
        shares = (0.5, 0.25, 0.25)
    return allotted(components, dict(zip(SHARES, shares, strict=True)), 1, by_rows=False)


def _check_ids(rows: Sequence[PairRow], path: str, name: str) -> None:
    again = _repeats([own_id(name, row) for row in rows])
    if again:
        row, before = (rows[index].place for index in again[0])
        raise BadPairs(
            f"{path}: row {row} has the id of row {before}; ids must differ"
            f"{_so_do(len(again) - 1)}."
        )


def _check_shared_prompts(rows: Sequence[PairRow], splits: Sequence[str], path: str) -> None:
    again = reversed(_repeats([row.clean for row in rows]))
    shared = {now: before for now, before in again if splits[now] != splits[before]}
    if shared:
        first = min(shared)
        a, b = (f"row {rows[row].place} ({splits[row]})" for row in (first, shared[first]))
        raise BadPairs(
            f"{path}: {a} has the clean prompt of {b}; splits must not share clean prompts"
            f"{_so_do(len(shared) - 1)}."
        )


def _check_contradictions(
    rows: Sequence[PairRow], stated: Sequence[PromptAndLabels], path: str
) -> None:
    first = {what: row for row, what in reversed(list(enumerate(stated)))}
    against = [
        (row, first[clean, foils, answers])
        for row, (clean, answers, foils) in enumerate(stated)
        if (clean, foils, answers) in first
    ]
    if against:
        a, b = (rows[row].place for row in against[0])
        raise BadPairs(
            f"{path}: rows {a} and {b} have the same clean prompt, with answer and foil exchanged;"
            f" one of them is wrong{_so_do(len(against) - 2)}."
        )


def _so_do(more: int) -> str:
    return f" ({more} more such row{'s' if more > 1 else ''})" if more else ""


def _repeats(keys: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Where keys come again, each with the place of the first."""
    first: dict[Hashable, int] = {}
    places = [(index, first.setdefault(key, index)) for index, key in enumerate(keys)]
    return [(index, before) for index, before in places if index != before]


def _groups(
    rows: Sequence[PairRow], hashes: UInt64[np.ndarray, "rows 3"], name: str
) -> list[str | None]:
    """The group of each row. Connected rows that are not one group, or one row, are joined."""
    components: list[int] = least_hash(hashes[:, [0, 2]]).tolist()
    # For each component, the units that the file gives, groups or single rows, with their places.
    units: dict[int, dict[str | int, int]] = {}
    for row, component in zip(rows, components, strict=True):
        unit = row.place if row.group is None else row.group
        units.setdefault(component, {}).setdefault(unit, row.place)
    joined = {
        component: f"{name}, rows like {min(places.values())}"
        for component, places in units.items()
        if len(places) > 1
    }
    placed = zip(rows, components, strict=True)
    return [joined.get(component, row.group) for row, component in placed]


# Counterfactuals and continuations, by the tokenizer.


@dataclass(frozen=True, eq=False)
class Readings:
    """The rows of a file as a tokenizer reads them.

    Attributes:
        rows: of each row of the file, the row with its counterfactual and its answers and foils as
            texts, or why the row cannot be used.
        notes: what a reader should know, by subject.
    """

    rows: list[PairRow | Unreadable]
    notes: dict[str, str]


@lru_cache(maxsize=8)
def readings(contents: Contents, tokenizer: Any, *, whole: bool = False) -> Readings:
    """Return the rows of a file as a tokenizer reads them; see the module.

    Args:
        tokenizer: None reads texts as they are, and exchanges prompts of any length.
        whole: whether the splits are used together, so that no counterfactual is exchanged.

    Raises:
        BadPairs: token ids of another tokenizer.
    """
    notes: dict[str, str] = {}
    rows: list[PairRow | Unreadable]
    rows = list(contents.rows) if whole else _own_counterfactuals(contents, tokenizer, notes)
    if tokenizer is None:
        return Readings(rows, notes)
    ids = TokenIds(contents.path, tokenizer)
    rows = [_as_texts(row, ids, tokenizer) for row in rows]
    ids.check_letters()
    public = (
        row
        for row, split in zip(rows, contents.splits, strict=True)
        if isinstance(row, PairRow) and split != PRIVATE and not ids.is_known(row)
    )
    if (first := next((row for row in public if row.answer_ids), None)) is not None:
        notes["token ids"] = ids.note(first)
    return Readings(_continued(rows, contents.name, tokenizer), notes)


def _as_texts(row: PairRow | Unreadable, ids: TokenIds, tokenizer: Any) -> PairRow | Unreadable:
    if isinstance(row, Unreadable):
        return row
    answers, foils = row.answers, row.foils
    if row.answer_ids:
        answers, foils = ids.texts(row)
    elif row.years:
        # Years that the tokenizer writes in its usual way, if some are left.
        kept = set(usual(row.clean, ENDINGS, tokenizer))
        right, wrong = (tuple(filter(kept.__contains__, years)) for years in (answers, foils))
        answers, foils = (right, wrong) if right and wrong else (answers, foils)
    return row.model_copy(update={"answers": answers, "foils": foils})


def _continued(
    rows: Sequence[PairRow | Unreadable], name: str, tokenizer: Any
) -> list[PairRow | Unreadable]:
    """Leave out the continuations that change another number of their prompt's tokens than most
    continuations of the file.
    """
    texts = list(
        dict.fromkeys(
            (row.clean, text)
            for row in rows
            if isinstance(row, PairRow) and not (row.years or row.answer_ids)
            for text in (*row.answers, *row.foils)
        )
    )
    prompts = list(dict.fromkeys(clean for clean, _ in texts))
    known = dict(zip(prompts, encode(tokenizer, prompts), strict=True))
    encoded = zip(texts, encode(tokenizer, [clean + text for clean, text in texts]), strict=True)
    merged = {(clean, text): n_merged(known[clean], ids) for (clean, text), ids in encoded}
    most = usual_merging(merged.values())

    def kept(row: PairRow) -> PairRow | Unreadable:
        right, wrong = (
            tuple(text for text in some if merged.get((row.clean, text), most) == most)
            for some in (row.answers, row.foils)
        )
        if right and wrong:
            return row.model_copy(update={"answers": right, "foils": wrong})
        gone = next(x for x in (*row.answers, *row.foils) if x not in (*right, *wrong))
        message = f"{gone!r} changes the tokens of {row.clean[-20:]!r} before it"
        return Unreadable(own_id(name, row), MERGES, message)

    return [kept(row) if isinstance(row, PairRow) else row for row in rows]


def _own_counterfactuals(
    contents: Contents, tokenizer: Any, notes: dict[str, str]
) -> list[PairRow | Unreadable]:
    """Return the rows with counterfactuals of their own split."""
    rows, splits = contents.rows, contents.splits
    split_of = dict(zip((row.clean for row in rows), splits, strict=True))
    cleans = {row.clean: row for row in rows}
    foreign = [
        place
        for place, row in enumerate(rows)
        if split_of.get(row.counterfactual, splits[place]) != splits[place]
    ]
    if not foreign:
        return list(rows)
    lengths: Mapping[str, int] = {}
    if tokenizer is not None:
        prompts = list(cleans)
        lengths = dict(zip(prompts, map(len, encode(tokenizer, prompts)), strict=True))
    places: dict[tuple[str, int], list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault((splits[place], lengths.get(row.clean, 0)), []).append(place)
    own: list[PairRow | Unreadable] = list(rows)
    exchanged = 0
    for place in foreign:
        row = rows[place]
        if set(_labels(row)[1]) != set(_labels(cleans[row.counterfactual])[0]):
            why = "its foils are not the answers of that prompt, so that no other prompt fits them"
            own[place] = Unreadable(own_id(contents.name, row), OTHER_SPLIT, why)
            continue
        like = places[splits[place], lengths.get(row.clean, 0)]
        after = bisect_right(like, place)
        others = (rows[other] for other in (*like[after:], *like[:after]))
        answers = set(_labels(row)[0])
        partner = next((x for x in others if answers.isdisjoint(_labels(x)[0])), None)
        exchanged += partner is not None
        own[place] = (
            _with_counterfactual(row, partner)
            if partner is not None
            else Unreadable(
                own_id(contents.name, row),
                OTHER_SPLIT,
                f"no other row of the split {splits[place]!r} has a prompt of the same number of"
                " tokens and other answers",
            )
        )
    linked = sum(row.counterfactual in cleans for row in rows)
    notes["exchanged counterfactuals"] = (
        f"the counterfactuals of {linked:,} rows are clean prompts of other rows:"
        f" {linked - len(foreign):,} are of the row's split and were kept, {exchanged:,} were"
        f" exchanged for a prompt of the row's split, {len(foreign) - exchanged:,} rows were"
        " dropped"
    )
    return own


def _with_counterfactual(row: PairRow, other: PairRow) -> PairRow:
    """Return a row with the prompt of another row as its counterfactual."""
    return row.model_copy(
        update={
            "counterfactual": other.clean,
            "foils": other.answers,
            "foil_ids": other.answer_ids,
            "counterfactual_answers": other.answers if row.counterfactual_answers else (),
            "other_values": {name: other.values.get(name, "") for name in row.values},
            "other_spans": other.spans,
        }
    )


def _labels(row: PairRow) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...]]:
    return row.answers or row.answer_ids, row.foils or row.foil_ids
