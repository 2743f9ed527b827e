"""Rows of a file of pairs: what columns mean, what values must be, and what is wrong with rows.

    clean, counterfactual    the two prompts; `corrupted` means the same as the second
    answer, foil             texts; also `answers`, `foils`
    two of EAP-IG's columns  token ids, see `TOKEN_IDS`
    label or correct_idx     without any foil: a year, see below
    tags, spans, ...         what `Pair.as_dict` writes, where a row has them as objects
    anything else            a tag, and a field where its value is a word of the prompt

EAP-IG (Hanna et al. 2024) has token ids in columns of four pairs of names, or a last column with
a year YY from 0 to 98 (`label` or `correct_idx`), where the prompt has CCYY and ends in CC:
right is every later year of that century, wrong YY and those before. Columns of texts beside
those of ids are tags, unless they are a whole answer and foil.

pydantic looks at all rows; mistakes are told by kind, with the places of the rows. `TokenIds`
reads ids of a tokenizer. `tasks.file_splits` looks at what rows have in common.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails

from mechassay.errors import BadFile, BadPairs
from mechassay.prompts.rows import (
    DELIMITERS,
    Mistake,
    Rows,
    raise_mistakes,
    read_rows,
    several,
    short,
    spans_of,
)
from mechassay.prompts.tokenization import Span, encode
from mechassay.utils.files import load_yaml

PROMPTS = {"clean": ("clean",), "counterfactual": ("counterfactual", "corrupted")}
CONTINUATIONS = {
    "answer": ("answer", "answers", "correct_idx"),
    "foil": ("foil", "foils", "incorrect_idx"),
}
# Columns of token ids: the right ones and the wrong ones.
TOKEN_IDS = (
    ("correct_idx", "incorrect_idx"),
    ("clean_answer_idx", "corrupted_answer_idx"),
    ("country_idx", "corrupted_country_idx"),
    ("answers_idx", "corrupted_answers_idx"),
)
ID_COLUMNS = frozenset(name for pair in TOKEN_IDS for name in pair)
YEARS = ("label", "correct_idx")
OPTIONAL = ("id", "group")
TAGS, ANSWERS_OF_OTHER = "tags", "counterfactual_answers"
SPANS = ("spans", "counterfactual_spans")
RESERVED = frozenset(
    [*OPTIONAL, *(name for names in (PROMPTS | CONTINUATIONS).values() for name in names)]
)
# A column of this beginning and the name of another says what that is in the counterfactual.
OF_OTHER = ("counterfactual_", "corrupted_")

Texts = tuple[str, ...]


class Columns(NamedTuple):
    """The column of each required text, and those of the tags.

    Attributes:
        foil: empty where the answer is a year.
        others: for a tag, the column that says what it is in the counterfactual.
    """

    clean: str
    counterfactual: str
    answer: str
    foil: str
    tags: Texts
    others: Mapping[str, str]

    @property
    def years(self) -> bool:
        return not self.foil

    @property
    def token_ids(self) -> bool:
        return bool(self.foil) and self.answer in ID_COLUMNS


GOOD_AND_BAD = ("sentence_good", "sentence_bad")
"""Columns of minimal pairs of sentences, as BLiMP has them."""


@cache
def public_names() -> Mapping[str, Texts]:
    """Return names of columns in public files, by what they mean here."""
    text = files("mechassay.tasks").joinpath("data/columns.yaml").read_text("utf-8")
    return {what: tuple(names) for what, names in load_yaml(text).items()}


@lru_cache(maxsize=64)
def meaning(names: Texts, split_column: str) -> Columns:
    """What columns of these names mean.

    Raises:
        Mistake: columns are missing, or mean the same.
    """
    columns = _present(PROMPTS, names) | _continuations(names)
    missing = [what for what in (*PROMPTS, *CONTINUATIONS) if what not in columns]
    if missing:
        message = f"no column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
        if set(GOOD_AND_BAD) <= set(names):
            raise Mistake(
                "no column 'counterfactual'",
                "the sentences give clean, answer and foil where one word differs",
            )
        raise Mistake(message, _hint(missing, names))
    # A column without a name is no tag: it is the row number that pandas writes, or nothing.
    special = {*columns.values(), *OPTIONAL, ANSWERS_OF_OTHER, split_column, ""}
    tags = tuple(name for name in names if name not in special)
    prefixed = [(name, prefix + name) for name in tags for prefix in OF_OTHER]
    others = {name: other for name, other in prefixed if other in tags}
    return Columns(**columns, tags=tags, others=others)


def _continuations(names: Texts) -> dict[str, str]:
    """The columns of answers and foils, as far as there are any; an empty foil beside a year."""
    texts = tuple(name for name in names if name not in ID_COLUMNS)
    present = _present(CONTINUATIONS, texts)
    if len(present) == len(CONTINUATIONS):
        return present  # Token ids beside them are tags.
    present = _present(CONTINUATIONS, names)
    if len({name in ID_COLUMNS for name in present.values()}) > 1:
        raise Mistake(
            f"{present['answer']!r} and {present['foil']!r} are not of one kind",
            "both must be texts, or both token ids",
        )
    if len(present) == len(CONTINUATIONS):
        return present
    for pair in TOKEN_IDS:
        if set(pair) <= set(names):
            return dict(zip(CONTINUATIONS, pair, strict=True))
    years = [name for name in YEARS if name in names]
    if len(years) == 1 and set(present.values()) <= set(years):
        return {"answer": years[0], "foil": ""}
    return present


def _present(wanted: Mapping[str, Texts], names: Texts) -> dict[str, str]:
    """The column of each meaning that has one."""
    columns: dict[str, str] = {}
    for what, spellings in wanted.items():
        present = [name for name in spellings if name in names]
        present = present or [
            name for name in names if name.lower() in (*spellings, *public_names()[what])
        ]
        if len(present) > 1:
            same = f"{present[0]!r} and {present[1]!r}"
            raise Mistake(f"the columns {same} mean the same", "keep one of them")
        if present:
            columns[what] = present[0]
    return columns


def understood(names: Texts, split_column: str) -> str:
    """Say which columns of other names were read: "clean_prefix as clean, patch_answer as foil"."""
    columns = meaning(names, split_column)
    read = {"clean": columns.clean, "counterfactual": columns.counterfactual}
    read |= {"answer": columns.answer, "foil": columns.foil}
    if columns.years or all(name in (what, f"{what}s", "corrupted") for what, name in read.items()):
        return ""
    return f"read {', '.join(f'{name} as {what}' for what, name in read.items())}"


def _hint(missing: Sequence[str], names: Sequence[str]) -> str:
    """The columns that there are, and which of them may be one of the missing."""
    present = f"there are {', '.join(map(repr, names))}" if names else "there are none"
    free = {name.lower(): name for name in names if name not in RESERVED}
    spellings = [spelling for what in missing for spelling in (PROMPTS | CONTINUATIONS)[what]]
    for spelling in spellings:
        for name in get_close_matches(spelling, free, n=1, cutoff=0.8):
            return f"{present}; did you mean {spelling!r} by {free[name]!r}?"
    return present


ENDINGS = tuple(f"{number:02d}" for number in range(100))

_IDS = re.compile(r"\s*(?:\d{1,9}|\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\])\s*", re.ASCII)
_YEAR = re.compile(r"\s*\d{1,2}\s*", re.ASCII)
_CENTURY = re.compile(r"(?<!\d)\d\d$", re.ASCII)


def _as_name(value: Any) -> Any:
    """Ids and groups may be whole numbers; an empty one is none."""
    return str(value) if type(value) is int else None if value == "" else value


Name = Annotated[str | None, BeforeValidator(_as_name)]
Shown = Annotated[str, StringConstraints(pattern=r"\S")]
Continuation = Annotated[str, StringConstraints(min_length=1)]
# What a value must be that is not just text.
_SEVERAL, _NAME = "text or a list of texts", "text or a whole number"
_WANTED = {"answer": _SEVERAL, "foil": _SEVERAL, "id": _NAME, "group": _NAME}


class PairRow(BaseModel):
    """A row as the file has it.

    Attributes:
        place: of the row in the file.
        answer_ids, foil_ids: token ids, in place of the texts.
        counterfactual_answers: right continuations of `counterfactual`, if the row says them.
        values: what may be parts of the clean prompt, by name.
        other_values: the same of the counterfactual.
        spans, other_spans: parts that the row gives itself.
        years: whether answers and foils are the years of a century.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    place: int
    clean: Shown
    counterfactual: Shown
    answers: tuple[Continuation, ...] = Field((), alias="answer", min_length=1)
    foils: tuple[Continuation, ...] = Field((), alias="foil", min_length=1)
    answer_ids: tuple[int, ...] = ()
    foil_ids: tuple[int, ...] = ()
    id: Name = None
    group: Name = None
    split: str | None = None
    counterfactual_answers: tuple[Continuation, ...] = ()
    tags: dict[str, str] = {}
    values: dict[str, str] = {}
    other_values: dict[str, str] = {}
    spans: dict[str, Span] = {}
    other_spans: dict[str, Span] = {}
    years: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_columns(cls, placed: tuple[int, dict[str, Any]], info: ValidationInfo) -> Any:
        """The values of a row's columns by the names of the fields."""
        place, raw = placed
        split_column, in_cells = info.context or ("", False)
        columns = meaning(tuple(raw), split_column)
        clean, other = raw[columns.clean], raw[columns.counterfactual]
        made = {"place": place, "clean": clean, "counterfactual": other}
        if not isinstance(clean, str) or not isinstance(other, str):
            return made
        names = {"id": raw.get("id"), "group": raw.get("group"), "split": raw.get(split_column)}
        made |= names | _parts(raw, columns, in_cells, clean, other)
        answers = raw[columns.answer]
        if columns.years:
            return _with_years(made, columns.answer, answers)
        foils = raw[columns.foil]
        if columns.token_ids:
            ids = _token_ids(columns.answer, answers), _token_ids(columns.foil, foils)
            return made | {"answer_ids": ids[0], "foil_ids": ids[1]}
        return made | {"answer": several(answers, in_cells), "foil": several(foils, in_cells)}

    @model_validator(mode="after")
    def _different(self) -> PairRow:
        if self.clean == self.counterfactual:
            raise Mistake("'clean' equals 'counterfactual'", short(self.clean), BadPairs)
        foils = {*self.foils, *self.foil_ids}
        for answer in (*self.answers, *self.answer_ids):
            if answer in foils:
                raise Mistake("an answer equals a foil", short(answer), BadPairs)
        return self


_ROWS = TypeAdapter(list[PairRow])


def pair_rows(path: str, split_column: str) -> tuple[list[PairRow], str]:
    """Return the rows of a file of pairs, and which columns were read under other names.

    Raises:
        BadFile: the file cannot be read as rows of these columns.
        BadPairs: rows that cannot be compared.
    """
    rows, in_cells = read_rows(Path(path)), Path(path).suffix.lower() in DELIMITERS
    if not rows:
        raise BadFile(f"{path}: there are no rows.")
    sentences = _read_sentences(path, rows)
    lists = _read_lists(path, rows, split_column)
    if in_cells:
        try:
            meaning(tuple(rows[0][1]), split_column)
        except Mistake as mistake:
            raise BadFile(f"{path}: row 1: {mistake}.") from mistake
    try:
        read = _ROWS.validate_python(rows, context=(split_column, in_cells))
        names = understood(tuple(rows[0][1]), split_column)
        return read, "; ".join(filter(None, (sentences or names, lists)))
    except ValidationError as error:
        # One mistake a row is enough.
        first = {details["loc"][0]: details for details in reversed(error.errors())}
        raise_mistakes(path, [(rows[int(row)][0], _mistake(first[row])) for row in sorted(first)])
        raise


def _read_sentences(path: str, rows: Rows) -> str:
    """Read pairs of sentences that differ in one word as a prompt, an answer and a foil.

    "The cat sits here." and "The cat sit here." become the prompt "The cat", the answer " sits"
    and the foil " sit". Rows without counterfactuals are not changed; they are refused later.

    Returns:
        A phrase that names the columns that were read; empty if none were.

    Raises:
        BadFile: two sentences differ in their first word, or not in exactly one word.
    """
    names = tuple(rows[0][1])
    if not set(GOOD_AND_BAD) <= set(names) or {*_present(PROMPTS, names)} != {"counterfactual"}:
        return ""
    mistakes: list[tuple[int, Mistake]] = []
    for place, row in rows:
        good, bad = (row.pop(name, None) for name in GOOD_AND_BAD)
        try:
            row["clean"], row["answer"], row["foil"] = _minimal_pair(good, bad)
        except Mistake as mistake:
            mistakes.append((place, mistake))
    raise_mistakes(path, mistakes)
    return f"read clean, answer and foil from {' and '.join(GOOD_AND_BAD)}"


def _minimal_pair(good: Any, bad: Any) -> tuple[str, list[str], list[str]]:
    """Return the common beginning of two sentences and the word of each in which they differ."""
    if not isinstance(good, str) or not isinstance(bad, str):
        raise Mistake(f"{' and '.join(map(repr, GOOD_AND_BAD))} must be texts")
    words = [re.findall(r"\s*\S+", text) for text in (good, bad)]
    different = [one != two for one, two in zip(*words, strict=False)]
    if len(words[0]) != len(words[1]) or sum(different) != 1:
        raise Mistake("the sentences must differ in exactly one word", short(bad))
    place = different.index(True)
    if not place:
        raise Mistake("the sentences differ in their first word, so there is no prompt", short(bad))
    (right,), (wrong,) = ([one[place].rstrip(".,;:!?")] for one in words)
    return "".join(words[0][:place]), [right], [wrong]


def _read_lists(path: str, rows: Rows, split_column: str) -> str:
    """Read columns of answers and foils whose texts are lists, as pandas writes them: "['a', 'b']".

    Returns:
        Which columns were read as lists, in words.

    Raises:
        BadPairs: some texts of a column are lists, and some are not.
    """
    try:
        columns = meaning(tuple(rows[0][1]), split_column)
    except Mistake:
        return ""  # The rows are refused with this mistake.
    read: list[str] = []
    for name in (columns.answer, columns.foil):
        if not name or name in ID_COLUMNS or name in YEARS:
            continue
        texts = [row.get(name) for _, row in rows]
        lists = [_list_of(text) for text in texts]
        if all(own is None for own in lists):
            continue
        if None in lists:
            place = rows[lists.index(None)][0]
            raise BadPairs(
                f"{path}: {name!r} of row {place} is no list, and other rows have lists such as"
                f" {short(next(text for text, own in zip(texts, lists, strict=True) if own))}."
            )
        for (_, row), own in zip(rows, lists, strict=True):
            row[name] = own
        read.append(name)
    return f"read the texts of {' and '.join(read)} as lists" if read else ""


def _list_of(text: Any) -> list[str] | None:
    """Return the texts of a list in Python's or JSON's spelling; None if the text is no list."""
    if not isinstance(text, str) or text.strip()[:1] != "[" or text.strip()[-1:] != "]":
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, list) and value and all(isinstance(own, str) for own in value):
            return value
    return None


def _mistake(details: ErrorDetails) -> Mistake:
    if details["type"] == "value_error":
        return details["ctx"]["error"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    column = str(details["loc"][1])
    if details["type"] in ("string_pattern_mismatch", "string_too_short", "too_short"):
        return Mistake(f"{column!r} is empty", error=BadPairs)
    wanted = _WANTED.get(column, "text")
    return Mistake(f"{column!r} must be {wanted}", f"got {short(details['input'])}")


# --- values of columns ----------------------------------------------------------------------------


def _parts(
    raw: dict[str, Any], columns: Columns, in_cells: bool, clean: str, other: str
) -> dict[str, Any]:
    """What a row says beside its prompts, answers and foils."""
    tags = {name: raw[name] for name in columns.tags if raw[name] is not None}
    given = {
        name: spans_of(name, tags.pop(name), text)
        for name, text in zip(SPANS, (clean, other), strict=True)
        if name in tags and not in_cells
    }
    nested: dict[str, Any] = tags.pop(TAGS) if isinstance(tags.get(TAGS), dict) else {}
    # A row that gives its parts itself has them from its columns besides, not from its tags.
    sought = tags if given else tags | nested
    values = {name: str(value) for name, value in sought.items() if type(value) in (str, int)}
    ours = {name: text for name, text in values.items() if name not in columns.others.values()}
    theirs = {name: raw[column] for name, column in columns.others.items() if column in values}
    return {
        "tags": {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in (tags | nested).items()
            if value is not None
        },
        "values": ours,
        "other_values": {name: str(theirs.get(name, text)) for name, text in ours.items()},
        "spans": given.get(SPANS[0], {}),
        "other_spans": given.get(SPANS[1], {}),
        "counterfactual_answers": several(raw.get(ANSWERS_OF_OTHER) or (), in_cells),
    }


def _token_ids(column: str, value: Any) -> tuple[int, ...]:
    text = json.dumps(value) if isinstance(value, int | list) else value
    if not isinstance(text, str) or not _IDS.fullmatch(text):
        raise Mistake(
            f"{column!r} must be a token id or a list of them, as 7 or [7, 8]",
            f"got {short(value)}",
        )
    return tuple(int(digits) for digits in re.findall(r"\d+", text))


def _with_years(made: dict[str, Any], column: str, value: Any) -> dict[str, Any]:
    """The years of a prompt's century after the one it names, those up to it, and its parts."""
    clean: str = made["clean"]
    text = str(value) if type(value) is int else value
    century = _CENTURY.search(clean)
    year = f"{int(text):02d}" if isinstance(text, str) and _YEAR.fullmatch(text) else None
    if century is None:
        raise Mistake("no column 'foil'", f"{column!r} is {short(value)}, an answer alone")
    if year is None or century[0] + year not in clean or year == ENDINGS[-1]:
        raise Mistake(
            f"{column!r} without a foil is a year YY, 0 to 98, of a prompt with CCYY that ends"
            " in CC",
            f"got {short(value)} after {short(clean[-30:])}",
        )
    later, place = int(year) + 1, clean.rfind(century[0] + year)
    return made | {
        "answer": ENDINGS[later:],
        "foil": ENDINGS[:later],
        "tags": made["tags"] | {"century": century[0], "year": year},
        "spans": _year_spans(clean, place) | made["spans"],
        "other_spans": _year_spans(made["counterfactual"], place) | made["other_spans"],
        "years": True,
    }


def _year_spans(text: str, place: int) -> dict[str, Span]:
    """The parts of a prompt with CCYY at a place, named as in greater-than, if digits are there."""
    if not text[place : place + 4].isdigit():
        return {}
    century_2 = {"century_2": (len(text) - 2, len(text))} if _CENTURY.search(text) else {}
    return {"century": (place, place + 2), "year": (place + 2, place + 4), **century_2}


SPLIT = "split"

Continuations = tuple[tuple[str, ...], tuple[str, ...]]
TOKENIZER = "tokenizer"
"""The column that names the tokenizer of token ids: a hub id, or its last part."""
ONE_KIND = 0.8
"""The least share of words whose first letters are of one kind (`TokenIds`)."""


@dataclass
class TokenIds:
    """Reads the token ids of one file as text, if they are of this tokenizer.

    An id is read as the text that it adds to its prompt. A file is refused where

    - the tokenizer has no such id, or would not read the text as that id;
    - some ids are words with a space before them and some are not: those that continue prompts
      are mostly of one kind, and a foreign tokenizer mixes them.

    - the first letters of the words are of several kinds (small, capital, none), and fewer than
      `ONE_KIND` of them of one kind.

    That does not find every foreign file, so what the first row's ids are read as is a note, unless
    a column `tokenizer` names the tokenizer.

    Attributes:
        path: of the file, for messages.
        tokenizer: the one they are read with.
    """

    path: str
    tokenizer: Any
    # How many texts there are of each kind of first letter, and the first of each.
    _letters: Counter[str] = field(default_factory=Counter)
    _first_of: dict[str, str] = field(default_factory=dict)
    # The first text of each kind, by whether it begins with a space.
    _first: dict[bool, str] = field(default_factory=dict)

    def texts(self, row: PairRow) -> Continuations:
        """The texts that a row's token ids add to its prompt.

        A token is decoded after its prompt, as some tokenizers write a space before a word only
        there.

        Raises:
            BadPairs: ids of another tokenizer, see the module.
        """
        tokenizer, where = self.tokenizer, f"{self.path}: row {row.place}"
        (prompt,) = encode(tokenizer, [row.clean])
        tokens = (*row.answer_ids, *row.foil_ids)
        if max(tokens) >= len(tokenizer):
            raise BadPairs(
                f"{where}: there is no token {max(tokens)}; the tokenizer has {len(tokenizer):,}."
            )
        before, *whole = tokenizer.batch_decode([prompt, *([*prompt, token] for token in tokens)])
        texts = [text[len(before) :] for text in whole]
        again = encode(tokenizer, [row.clean + text for text in texts])
        for token, text, ids in zip(tokens, texts, again, strict=True):
            if ids != [*prompt, token]:
                raise BadPairs(
                    f"{where}: token {token} is {text!r} after its prompt, which this tokenizer"
                    " does not read as that token; was the file made for another model?"
                )
            self._check_kind(row, token, text)
        if not self.is_known(row):
            for token, text in zip(tokens, texts, strict=True):
                self._count_letter(row, token, text)
        n = len(row.answer_ids)
        return tuple(texts[:n]), tuple(texts[n:])

    def note(self, row: PairRow) -> str:
        """Say that the tokenizer is not known, and how a row was read.

        Args:
            row: with its answers and foils as texts.
        """
        return (
            f"answers and foils are token ids of a tokenizer that is not known; row {row.place} is"
            f" read as {_listed(row.answers)} against {_listed(row.foils)}. If these are not the"
            " words that were meant, the file is of another tokenizer"
        )

    def is_known(self, row: PairRow) -> bool:
        """Return whether a row names this tokenizer.

        Raises:
            BadPairs: the row names another tokenizer.
        """
        named = row.tags.get(TOKENIZER, "")
        own = str(getattr(self.tokenizer, "name_or_path", ""))
        if named and named.rpartition("/")[2].lower() != own.rstrip("/").rpartition("/")[2].lower():
            raise BadPairs(
                f"{self.path}: row {row.place} has token ids of the tokenizer {named}; this one is"
                f" {own or type(self.tokenizer).__name__}."
            )
        return bool(named)

    def _count_letter(self, row: PairRow, token: int, text: str) -> None:
        letter = text.strip()[:1]
        kind = "capital" if letter.isupper() else "small" if letter.isalpha() else "none"
        self._letters[kind] += 1
        self._first_of.setdefault(kind, f"row {row.place}: {token} is {text!r}")

    def check_letters(self) -> None:
        """Refuse words whose first letters are of several kinds, after all rows were read.

        Raises:
            BadPairs: fewer than `ONE_KIND` of the words are of one kind.
        """
        total = self._letters.total()
        if total and max(self._letters.values()) < ONE_KIND * total:
            some = "; ".join(self._first_of.values())
            raise BadPairs(
                f"{self.path}: the token ids are no words of one use ({some}): was the file made"
                " for another model? Texts in columns answer and foil fit any."
            )

    def _check_kind(self, row: PairRow, token: int, text: str) -> None:
        """Refuse a word with a space before it where another has none."""
        spaced = text[:1].isspace()
        message = f"row {row.place}: {token} is {text!r}"
        self._first.setdefault(spaced, message)
        if not row.clean[-1:].isspace() and len(self._first) == 2:
            raise BadPairs(
                f"{self.path}: some token ids are words with a space before them and some are not"
                f" ({self._first[True]}; {self._first[False]}): was the file made for another"
                " model? Texts in columns answer and foil fit any."
            )


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return ", ".join(map(repr, texts[:3])) + more
