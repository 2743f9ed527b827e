"""Examples of tasks, and the pairs of prompts made of them: text, no tokens yet.

An `Example` has a prompt with what continues it, and its counterfactual prompts. A `Pair` is a
clean prompt, one counterfactual prompt, and the answers and foils that the objective compares.
The foils are what the counterfactual run is expected to say: the counterfactual's answers. Where
those are the original's own (a counterfactual that keeps the answer), or there are none, the
foils are the original's other choices. `Pairs` know what was dropped when they were chosen, and
why.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechassay.errors import BadFile, first_line
from mechassay.prompts.tokenization import Aligned, Misaligned, Span, align, alignment_notes
from mechassay.utils.arguments import check_fields, checked
from mechassay.utils.display import (
    NOTEBOOK_ROWS,
    OneLine,
    Tabular,
    html_facts,
    html_note,
    html_table,
    line,
)
from mechassay.utils.files import FORMAT, write_text
from mechassay.utils.frozen import frozen

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


EMPTY: Mapping[str, str] = frozen({})
NO_SPANS: Mapping[str, Span] = frozen({})
NO_COUNTS: Mapping[str, int] = frozen({})
SHOWN = ("task", "split", "counterfactual", "keep", "seed")
"""What of their source pairs show."""
LAST = "last"
"""Name of the last token of a prompt, as a position."""


@dataclass(frozen=True, repr=False)
class Pair(OneLine):
    """One counterfactual example.

    Attributes:
        id: unique within its task and split.
        clean: the prompt whose behaviour is explained.
        counterfactual: the prompt that ablated edges carry; as many tokens as `clean`.
        answers: right continuations of `clean`, with their leading space (" Mary").
        foils: continuations that the answers are compared with.
        group: the unit that error bars respect; pairs of one group are resampled together.
            None: the pair is its own group.
        tags: template fields, for group-by.
        counterfactual_answers: right continuations of `counterfactual`; empty where it has none.
        spans, counterfactual_spans: where the parts of each prompt are, in characters, by name.
    """

    id: str
    clean: str
    counterfactual: str
    answers: tuple[str, ...]
    foils: tuple[str, ...]
    group: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    counterfactual_answers: tuple[str, ...] = ()
    spans: Mapping[str, Span] = field(default_factory=lambda: NO_SPANS)
    counterfactual_spans: Mapping[str, Span] = field(default_factory=lambda: NO_SPANS)

    def __post_init__(self) -> None:
        check_fields(self)

    def repr_fields(self) -> dict[str, Any]:
        texts = {"clean": self.clean, "counterfactual": self.counterfactual}
        return {"id": self.id, **texts, "answers": self.answers, "foils": self.foils}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Pair:
        """The pair of plain JSON values, as `as_dict` makes them.

        Raises:
            KeyError, TypeError, ValueError: they are not such values.
        """
        spans: list[dict[str, Span]] = [
            {name: (int(begin), int(end)) for name, (begin, end) in plain.get(key, {}).items()}
            for key in ("spans", "counterfactual_spans")
        ]
        return Pair(
            id=str(plain["id"]),
            clean=str(plain["clean"]),
            counterfactual=str(plain["counterfactual"]),
            answers=tuple(map(str, plain["answers"])),
            foils=tuple(map(str, plain["foils"])),
            group=plain.get("group"),
            tags=dict(plain.get("tags", {})),
            counterfactual_answers=tuple(map(str, plain.get("counterfactual_answers", ()))),
            spans=spans[0],
            counterfactual_spans=spans[1],
        )

    def as_dict(self) -> dict[str, Any]:
        """The pair as plain JSON values."""
        return {
            "id": self.id,
            "clean": self.clean,
            "counterfactual": self.counterfactual,
            "answers": list(self.answers),
            "foils": list(self.foils),
            "group": self.group,
            "tags": dict(self.tags),
            "counterfactual_answers": list(self.counterfactual_answers),
            "spans": {name: list(span) for name, span in self.spans.items()},
            "counterfactual_spans": {
                name: list(x) for name, x in self.counterfactual_spans.items()
            },
        }


def plain_values(value: Any) -> Any:
    """Mappings and sequences as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(x) for key, x in value.items()}
    return [plain_values(x) for x in value] if isinstance(value, list | tuple) else value


def content_hash(pairs: Sequence[Pair]) -> str:
    """SHA-256 of the pairs' content, in order: the same pairs give the same hash on any machine."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(json.dumps(pair.as_dict(), sort_keys=True, ensure_ascii=False).encode())
        digest.update(b"\n")
    return digest.hexdigest()


class Pairs(Tabular, tuple[Pair, ...]):
    """Pairs as a task chose them: a tuple that knows where it comes from.

    Attributes:
        source: task, version, split, counterfactual, seed and whatever else they were made with.
        dropped: how many examples were looked at and left out, by reason.
    """

    source: Mapping[str, Any]
    dropped: Mapping[str, int]

    def __new__(
        cls,
        pairs: Iterable[Pair],
        *,
        source: Mapping[str, Any] | None = None,
        dropped: Mapping[str, int] | None = None,
    ) -> Pairs:
        made = super().__new__(cls, pairs)
        made.source = frozen(source or {})
        made.dropped = frozen(dropped or {})
        return made

    def __repr__(self) -> str:
        named = {key: self.source[key] for key in SHOWN if key in self.source}
        dropped = {"dropped": sum(self.dropped.values())} if self.dropped else {}
        return line("Pairs", {"n": len(self), **named, **dropped})

    def _repr_html_(self) -> str:
        rows = [
            (pair.id, pair.clean, pair.counterfactual, *map(", ".join, (pair.answers, pair.foils)))
            for pair in self[:NOTEBOOK_ROWS]
        ]
        headings = ("id", "clean", "counterfactual", "answers", "foils")
        more = f"{len(self) - NOTEBOOK_ROWS:,} more pairs" if len(self) > NOTEBOOK_ROWS else ""
        left = "; ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
        notes = (more, f"dropped on the way: {left}" if left else "", *self.notes.values())
        facts = {key: self.source[key] for key in SHOWN if key in self.source}
        title, below = f"{len(self):,} pairs", html_note("; ".join(filter(None, notes)))
        return html_facts(title, facts, html_table(headings, rows), below)

    def columns(self) -> dict[str, list[Any]]:
        """The pairs as columns: texts, answers, foils, groups, and each tag under its name."""
        rows = [pair.as_dict() for pair in self]
        own = ("id", "clean", "counterfactual", "answers", "foils", "group")
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in own}
        for tag in dict.fromkeys(tag for pair in self for tag in pair.tags):
            columns[tag if tag not in own else f"tag {tag}"] = [pair.tags.get(tag) for pair in self]
        return columns

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the pairs as JSON lines; the first line is their source, what was dropped, and
        their hash.
        """
        head = {"kind": "pairs", "format": FORMAT, "source": plain_values(self.source)}
        head |= {"dropped": dict(self.dropped), "hash": self.content_hash}
        rows = [head, *(pair.as_dict() for pair in self)]
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        return write_text(Path(path), "\n".join(lines) + "\n")

    @staticmethod
    @checked
    def load(path: str | Path) -> Pairs:
        """Pairs written by `save`.

        Raises:
            BadFile: missing, truncated, foreign or changed.
        """
        try:
            lines = Path(path).read_text("utf-8").splitlines()
            head, *rows = (json.loads(row) for row in lines)
            if head.get("kind") != "pairs" or head.get("format") != FORMAT:
                raise BadFile(f"{path}: holds no pairs of this version.")
            given = {"source": head["source"], "dropped": head["dropped"]}
            pairs = Pairs(map(Pair.from_dict, rows), **given)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadFile(f"{path}: not a file of pairs ({first_line(error)}).") from None
        if pairs.content_hash != head.get("hash"):
            raise BadFile(f"{path}: truncated or changed: its pairs have another hash.")
        return pairs

    @property
    def content_hash(self) -> str:
        """SHA-256 of the pairs, see `content_hash`."""
        return content_hash(self)

    @property
    def notes(self) -> Mapping[str, str]:
        """Return notes on the data by subject: those of `Task.notes`, and notes on the pairs whose
        tokens were cut, appended or compared by the first of several.
        """
        aligned = alignment_notes(self.source.get("alignment", EMPTY), len(self))
        return {**self.source.get("notes", EMPTY), **aligned}

    @property
    def fields(self) -> dict[str, int]:
        """The parts that prompts have, clean or counterfactual, and how many pairs have each."""
        names = (dict.fromkeys((*pair.spans, *pair.counterfactual_spans)) for pair in self)
        return dict(Counter(name for of_pair in names for name in of_pair))

    def selection(self) -> dict[str, Any]:
        """What was chosen and what was dropped, as plain values for a record."""
        chosen = {"kept": len(self), "dropped": dict(self.dropped), "hash": self.content_hash}
        return {**self.source, **chosen}


def align_pairs(
    pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase
) -> list[Aligned | Misaligned]:
    """The tokens of each pair, or why it has none."""
    return align(
        [(pair.clean, pair.counterfactual) for pair in pairs],
        [pair.answers for pair in pairs],
        [pair.foils for pair in pairs],
        tokenizer,
    )


ABSENT = "no such counterfactual"


@dataclass(frozen=True, repr=False)
class Prompt(OneLine):
    """A text and what continues it.

    Attributes:
        text: the prompt.
        answers: right continuations, with their leading space; empty where nothing is right.
        choices: what ranked-choice scoring picks from, the answers included; empty where an answer
            is free.
        spans: parts of the text by name, in characters.
    """

    text: str
    answers: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    spans: Mapping[str, Span] = field(default_factory=lambda: NO_SPANS)

    def __post_init__(self) -> None:
        check_fields(self)

    def part(self, name: str) -> str:
        """The text of one of `spans`."""
        begin, end = self.spans[name]
        return self.text[begin:end]


@dataclass(frozen=True, repr=False)
class Example(OneLine):
    """An original prompt and its counterfactuals.

    Attributes:
        id: unique within its task and split.
        prompt: the original.
        counterfactuals: by kind; a kind that this example cannot have is not there.
        foils: what answers are compared with, if not what the module's rule says.
        group: the unit that error bars respect; None: the example itself.
        tags: template fields, for group-by.
        unread: why a kind of counterfactual that was to be read is not there, by kind.
    """

    id: str
    prompt: Prompt
    counterfactuals: Mapping[str, Prompt]
    foils: tuple[str, ...] | None = None
    group: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    unread: Mapping[str, str] = field(default_factory=lambda: EMPTY, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)

    def repr_fields(self) -> dict[str, Any]:
        kinds = tuple(self.counterfactuals)
        return {"id": self.id, "prompt": self.prompt.text, "counterfactuals": kinds}

    def pair(self, kind: str) -> Pair:
        """The pair of the original and its counterfactual of one kind.

        Raises:
            KeyError: the example has no counterfactual of that kind.
        """
        other = self.counterfactuals[kind]
        return Pair(
            id=self.id,
            clean=self.prompt.text,
            counterfactual=other.text,
            answers=self.prompt.answers,
            foils=self._foils(other),
            group=self.group,
            tags=self.tags,
            counterfactual_answers=other.answers,
            spans=self.prompt.spans,
            counterfactual_spans=other.spans,
        )

    def _foils(self, other: Prompt) -> tuple[str, ...]:
        if self.foils is not None:
            return self.foils
        right = self.prompt.answers
        changed = tuple(answer for answer in other.answers if answer not in right)
        return changed or tuple(choice for choice in self.prompt.choices if choice not in right)


class Examples(list[Example]):
    """Examples as a task chose them; `dropped` counts those that could not be read, by reason."""

    def __init__(self, examples: Iterable[Example], dropped: Mapping[str, int]) -> None:
        super().__init__(examples)
        self.dropped = frozen(dropped)

    def __repr__(self) -> str:
        return line("Examples", {"n": len(self), "dropped": sum(self.dropped.values())})


@dataclass(frozen=True)
class Unreadable:
    """An example that could not be read: its id, a reason to count by, and what is wrong."""

    id: str
    reason: str
    message: str


def filled(
    template: str,
    fields: Mapping[str, str],
    answers: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
) -> Prompt:
    """A template with its {fields} filled in, each a span of the prompt under its name.

    A field that comes twice has the span of its first place under its name, and of the others under
    name_2, name_3 and so on. The template has no other braces.
    """
    text, spans, count = "", {}, dict.fromkeys(fields, 0)
    for number, piece in enumerate(template.replace("}", "{").split("{")):
        if number % 2 == 0:
            text += piece
            continue
        count[piece] += 1
        name = piece if count[piece] == 1 else f"{piece}_{count[piece]}"
        spans[name] = (len(text), len(text) + len(fields[piece]))
        text += fields[piece]
    return Prompt(text, answers, choices, spans)
