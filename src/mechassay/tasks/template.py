"""A task of your own in a few lines: a prompt with fields, and rows that fill them.

    Template(name="capitals", prompt="The capital of {country} is", answer=" {capital}",
        rows=[{"country": "France", "capital": "Paris"}, ...])

*Examples.* Each row is one example. Its partner is another row of its split with another answer,
drawn at random; the partner's answer is the foil. "other_row" is the partner's whole prompt. A kind
in `changes` takes only some fields from the partner. Such a mixture has answers if it is the prompt
of a row, or if the answer is made of fields that the prompt shows. An example lacks the kinds that
would change nothing in its prompt.

With a tokenizer, of 32 possible partners the first is taken whose prompts all have as many tokens
as the row's own, or else the one with most of them; so the partners depend on the tokenizer.

*Splits.* Rows are allotted to train, validation and test (60, 20 and 20 %, at least two rows each
as long as they suffice) in the order of a hash of their prompts, whatever the seed and the order of
rows. Rows that have the value of a `disjoint` field in common go to the same split. A mixture that
is the prompt of no row belongs to the split that a hash of its text says, and is left out
elsewhere, unless a disjoint field of the prompt already keeps it apart. There is no private split,
as the rows are in your program.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.prompts.pairs import Example, Prompt, filled
from mechassay.prompts.tokenization import encode
from mechassay.tasks.task import (
    SHARES,
    Task,
    allotted,
    hash_columns,
    least_hash,
    share_of,
    split_rng,
    text_hash,
)

OTHER_ROW = "other_row"
ROWS_A_SPLIT = 2
PARTNERS_TRIED = 32

_FIELD = re.compile(r"\{([^{}]+)\}")


class _TemplateRow(NamedTuple):
    """A row with its prompt; `number` is its place in `Template.rows`, from 1."""

    number: int
    fields: Mapping[str, str]
    prompt: Prompt
    split: str


@dataclass(frozen=True)
class Template(Task):
    """A task made of a template and rows; see the module.

    Every field of a row is a tag. A field of the prompt is also a span, under its name.

    Attributes:
        name: begins the ids of the examples.
        prompt: text with {fields}.
        answer: what continues it, with {fields} and its leading space.
        rows: what fills the fields: texts or whole numbers. Not stored with results; `sha256` is.
        changes: for each further kind of counterfactual, the fields of the prompt that are taken
            from another row.
        disjoint: fields whose values no two splits may share.
        group: the field that says which rows belong together when intervals are made.
        sha256: of the rows.

    Raises:
        UnknownName: a template, change, `disjoint` or `group` names a field that no row has.
        BadUsage: a row that lacks a field, or fills it with something else than text; a template
            whose braces do not close.
        BadPairs: rows with the same prompt, or all with the same answer.
    """

    name: str  # pyright: ignore[reportIncompatibleVariableOverride]
    prompt: str
    answer: str
    rows: Sequence[Mapping[str, Any]] = field(repr=False, hash=False)
    changes: Mapping[str, str | Sequence[str]] = field(default_factory=dict, hash=False)
    disjoint: str | Sequence[str] = ()
    group: str | None = None
    sha256: str = field(init=False)
    counterfactuals: tuple[str, ...] = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        init=False, repr=False, compare=False
    )
    sizes: Mapping[str, int] = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        init=False, repr=False, compare=False
    )
    # The prompt's text, with each field at an odd place.
    _pieces: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _rows: tuple[_TemplateRow, ...] = field(init=False, repr=False, compare=False)
    _by_text: Mapping[str, _TemplateRow] = field(init=False, repr=False, compare=False)

    version: ClassVar[int] = 1
    default_counterfactual: ClassVar[str] = OTHER_ROW

    def __post_init__(self) -> None:
        rows = _texts(self.name, self.rows)
        if not rows:
            raise BadPairs(f"{self.name} has no rows.")
        self._set(
            rows=rows,
            disjoint=_several(self.disjoint),
            changes={kind: _several(names) for kind, names in self.changes.items()},
        )
        self._set(
            counterfactuals=(OTHER_ROW, *self.changes),
            sha256=hashlib.sha256(
                json.dumps([sorted(row.items()) for row in rows]).encode()
            ).hexdigest(),
            _pieces=tuple(_FIELD.split(self.prompt)),
        )
        self._check_fields()
        prompts = [
            filled(self.prompt, fields, (filled(self.answer, fields).text,)) for fields in rows
        ]
        self._check_prompts(prompts)
        placed = zip(rows, prompts, self._allotted(prompts), strict=True)
        made = tuple(_TemplateRow(number, *row) for number, row in enumerate(placed, 1))
        counts = Counter(row.split for row in made)
        self._set(
            _rows=made,
            _by_text={row.prompt.text: row for row in made},
            sizes={split: counts[split] for split in SHARES if counts[split]},
        )

    def template(self, tags: Mapping[str, str]) -> str | None:
        return self.prompt

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """The rows of a split in an order drawn by the seed, each with its counterfactuals.

        Raises:
            BadPairs: the split has fewer than two rows, or they all have the same answer.
        """
        rows = [row for row in self._rows if row.split == split]
        if len(rows) < ROWS_A_SPLIT:
            raise BadPairs(
                f"Split {split!r} of {self.name} has {len(rows)} of its {len(self._rows)} rows; it"
                f" needs at least {ROWS_A_SPLIT}."
            )
        if len({row.prompt.answers for row in rows}) == 1:
            raise BadPairs(
                f"All {len(rows)} rows in split {split!r} of {self.name} have the answer"
                f" {rows[0].prompt.answers[0]!r}."
            )
        rng = split_rng(split, seed)
        rows = [rows[place] for place in rng.permutation(len(rows))]
        length = _lengths(tokenizer)
        for row in rows:
            begin = int(rng.integers(len(rows)))
            partner, counterfactuals = self._partner(row, rows[begin:] + rows[:begin], length)
            yield Example(
                id=f"{self.name}-{row.number:06d}",
                prompt=row.prompt,
                counterfactuals=counterfactuals,
                foils=partner.prompt.answers,
                group=None if self.group is None else row.fields[self.group],
                tags=row.fields,
            )

    def _partner(
        self, row: _TemplateRow, others: Sequence[_TemplateRow], length: Callable[[str], int]
    ) -> tuple[_TemplateRow, dict[str, Prompt]]:
        """The first of the others that suits best, and the counterfactuals made with it."""
        best: tuple[int, _TemplateRow, dict[str, Mapping[str, str]]] | None = None
        possible = (other for other in others if other.prompt.answers != row.prompt.answers)
        for other in islice(possible, PARTNERS_TRIED):
            mixtures = self._mixtures(row, other)
            wanted, texts = length(row.prompt.text), (other.fields, *mixtures.values())
            suits = sum(length(self._text(fields)) == wanted for fields in texts)
            if best is None or suits > best[0]:
                best = suits, other, mixtures
            if suits == len(self.counterfactuals):
                break
        assert best is not None, "a split has at least two different answers"
        _, other, mixtures = best
        mixed = {kind: self._mixed(fields) for kind, fields in mixtures.items()}
        return other, {OTHER_ROW: other.prompt, **mixed}

    def _mixtures(self, row: _TemplateRow, other: _TemplateRow) -> dict[str, Mapping[str, str]]:
        """The fields of each change that changes the prompt to one that the row's split may use."""
        made = {
            kind: {**row.fields, **{name: other.fields[name] for name in names}}
            for kind, names in self.changes.items()
        }
        texts = {kind: self._text(fields) for kind, fields in made.items()}
        return {
            kind: made[kind]
            for kind, text in texts.items()
            if text != row.prompt.text and self._owner(text, row.split) == row.split
        }

    def _mixed(self, fields: Mapping[str, str]) -> Prompt:
        prompt = filled(self.prompt, fields)
        if prompt.text in self._by_text:
            return replace(prompt, answers=self._by_text[prompt.text].prompt.answers)
        if set(_FIELD.findall(self.answer)) <= set(self._prompt_fields):
            return replace(prompt, answers=(filled(self.answer, fields).text,))
        return prompt

    def _text(self, fields: Mapping[str, str]) -> str:
        """The prompt of some fields, quicker than `filled`."""
        return "".join(
            piece if number % 2 == 0 else fields[piece] for number, piece in enumerate(self._pieces)
        )

    def _owner(self, text: str, split: str) -> str:
        """The split that may use a prompt; `split` where no other can make it."""
        if text in self._by_text:
            return self._by_text[text].split
        if not set(self.disjoint).isdisjoint(self._prompt_fields):
            return split
        return share_of(text)

    @property
    def _prompt_fields(self) -> Sequence[str]:
        """The fields of the prompt."""
        return self._pieces[1::2]

    def _allotted(self, prompts: Sequence[Prompt]) -> list[str]:
        """Return the split of each row; connected rows stay together."""
        columns = [[text_hash(prompt.text) for prompt in prompts]]
        columns += [
            [text_hash(str(row[name]), b"field") for row in self.rows] for name in self.disjoint
        ]
        return allotted(least_hash(hash_columns(*columns)), SHARES, ROWS_A_SPLIT)

    def _check_fields(self) -> None:
        known = list(dict.fromkeys(name for row in self.rows for name in row))
        for what, template in (("prompt", self.prompt), ("answer", self.answer)):
            if set(_FIELD.sub("", template)) & set("{}"):
                raise BadUsage(
                    f"The {what} of {self.name} has a brace that belongs to no {{field}}:"
                    f" {template!r}."
                )
        uses = [
            ("the prompt", self._prompt_fields, known),
            ("the answer", _FIELD.findall(self.answer), known),
            ("disjoint", self.disjoint, known),
            ("group", [self.group] if self.group is not None else [], known),
            # A field that the prompt does not show changes nothing in it.
            *(
                (f"the change {kind!r}", names, self._prompt_fields)
                for kind, names in self.changes.items()
            ),
        ]
        for where, names, allowed in uses:
            for name in names:
                one_of(f"field in {where} of {self.name}", name, allowed)
        for kind, names in self.changes.items():
            if kind == OTHER_ROW or not names:
                raise BadUsage(
                    f"A change of {self.name} has a name other than {OTHER_ROW!r} and one field or"
                    f" more; got {kind!r}: {names!r}."
                )
        for name in dict.fromkeys(
            name for _, names, allowed in uses if allowed is known for name in names
        ):
            lacking = [number for number, row in enumerate(self.rows, 1) if name not in row]
            if lacking:
                more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
                raise BadUsage(f"Row {lacking[0]} of {self.name}{more} lacks the field {name!r}.")

    def _check_prompts(self, prompts: Sequence[Prompt]) -> None:
        numbers: dict[str, int] = {}
        for number, prompt in enumerate(prompts, 1):
            if not prompt.text.strip() or not prompt.answers[0]:
                raise BadPairs(
                    f"Row {number} of {self.name} has an empty"
                    f" {'answer' if prompt.text.strip() else 'prompt'}."
                )
            before = numbers.setdefault(prompt.text, number)
            if before != number:
                raise BadPairs(
                    f"Rows {before} and {number} of {self.name} have the same prompt,"
                    f" {prompt.text!r}."
                )
        if len({prompt.answers for prompt in prompts}) == 1:
            raise BadPairs(
                f"All {len(prompts)} rows of {self.name} have the answer {prompts[0].answers[0]!r};"
                " foils need another."
            )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _texts(name: str, rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], ...]:
    """The rows with their values as text."""
    for number, row in enumerate(rows, 1):
        for key, value in row.items():
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise BadUsage(
                    f"Row {number} of {name} must fill {key!r} with text or a whole number; got"
                    f" {value!r}."
                )
    return tuple({key: str(value) for key, value in row.items()} for row in rows)


def _lengths(tokenizer: Any) -> Callable[[str], int]:
    """How many tokens a text has; without a tokenizer all texts count as equally long."""
    known: dict[str, int] = {}

    def length(text: str) -> int:
        if tokenizer is not None and text not in known:
            known[text] = len(encode(tokenizer, [text])[0])
        return known.get(text, 0)

    return length
