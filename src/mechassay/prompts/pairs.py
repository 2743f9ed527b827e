"""Examples of tasks, the pairs of prompts made of them, and batches of token ids.

An `Example` has a prompt with what continues it, and its counterfactual prompts. A `Pair` is a
clean prompt, one counterfactual prompt, and the answers and foils that the objective compares.
The foils are what the counterfactual run is expected to say: the counterfactual's answers. Where
those are the original's own (a counterfactual that keeps the answer), or there are none, the
foils are the original's other choices. `Pairs` know what was dropped when they were chosen, and
why.

A `Batch` holds pairs as token ids: both prompts of a pair have equally many tokens, and end
where the first token comes that tells answers from foils (`prompts.tokenization`). Batches are
left-padded, so that this place is the last column of every prompt; padding never changes a
result.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechassay.errors import BadFile, BadPairs, first_line
from mechassay.prompts.tokenization import Aligned, Misaligned, Span, align
from mechassay.utils.display import OneLine, Tabular, html_facts, html_note, html_table, line
from mechassay.utils.files import FORMAT, write_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


EMPTY: Mapping[str, str] = MappingProxyType({})
NO_SPANS: Mapping[str, Span] = MappingProxyType({})
NO_COUNTS: Mapping[str, int] = MappingProxyType({})
NO_TOKEN = -1
SHOWN = ("task", "split", "counterfactual", "keep", "seed")
"""What of their source pairs show."""
ROWS = 10
"""Pairs that a notebook shows."""
_TENSORS = ("clean", "counterfactual", "mask", "answers", "foils")


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

    def shown(self) -> dict[str, Any]:
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
        made.source = MappingProxyType(dict(source or {}))
        made.dropped = MappingProxyType(dict(dropped or {}))
        return made

    def __repr__(self) -> str:
        named = {key: self.source[key] for key in SHOWN if key in self.source}
        dropped = {"dropped": sum(self.dropped.values())} if self.dropped else {}
        return line("Pairs", {"n": len(self), **named, **dropped})

    def _repr_html_(self) -> str:
        rows = [
            (each.id, each.clean, each.counterfactual, *map(", ".join, (each.answers, each.foils)))
            for each in self[:ROWS]
        ]
        headings = ("id", "clean", "counterfactual", "answers", "foils")
        more = f"{len(self) - ROWS:,} more pairs" if len(self) > ROWS else ""
        left = "; ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
        notes = (more, f"dropped on the way: {left}" if left else "")
        facts = {key: self.source[key] for key in SHOWN if key in self.source}
        title, below = f"{len(self):,} pairs", html_note("; ".join(filter(None, notes)))
        return html_facts(title, facts, html_table(headings, rows), below)

    def columns(self) -> dict[str, list[Any]]:
        """The pairs as columns: texts, answers, foils, groups, and each tag under its name."""
        rows = [each.as_dict() for each in self]
        own = ("id", "clean", "counterfactual", "answers", "foils", "group")
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in own}
        for tag in dict.fromkeys(tag for each in self for tag in each.tags):
            columns[tag if tag not in own else f"tag {tag}"] = [each.tags.get(tag) for each in self]
        return columns

    def save(self, path: str | Path) -> Path:
        """Write the pairs as JSON lines; the first line is their source, what was dropped, and
        their hash.
        """
        head = {"kind": "pairs", "format": FORMAT, "source": plain_values(self.source)}
        head |= {"dropped": dict(self.dropped), "hash": self.content_hash}
        rows = [head, *(each.as_dict() for each in self)]
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        return write_text(Path(path), "\n".join(lines) + "\n")

    @staticmethod
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
        """What a reader should know of the data, by what it is about; see `Task.notes`."""
        return self.source.get("notes", EMPTY)

    @property
    def fields(self) -> dict[str, int]:
        """The parts that prompts have, clean or counterfactual, and how many pairs have each."""
        names = (dict.fromkeys((*pair.spans, *pair.counterfactual_spans)) for pair in self)
        return dict(Counter(name for of_pair in names for name in of_pair))

    def selection(self) -> dict[str, Any]:
        """What was chosen and what was dropped, as plain values for a record."""
        chosen = {"kept": len(self), "dropped": dict(self.dropped), "hash": self.content_hash}
        return {**self.source, **chosen}


@dataclass(frozen=True, eq=False, repr=False)
class Batch(OneLine):
    """Pairs as token ids, left-padded: column -1 is the last token of every prompt.

    Attributes:
        clean, counterfactual: token ids; padding holds an arbitrary valid id.
        mask: True at real tokens, the same for both prompts of a pair.
        answers, foils: first token of each continuation, `NO_TOKEN` where a pair has fewer.
        ids: one name a pair.
        groups: the unit that error bars respect.
        alignment: how many pairs had tokens cut from or forced after their prompts, and how many
            are compared by the first of several tokens (see `mechassay.prompts.tokenization`).
    """

    clean: Int[Tensor, "batch pos"]
    counterfactual: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    answers: Int[Tensor, "batch n_answers"]
    foils: Int[Tensor, "batch n_foils"]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    content: str = ""
    alignment: Mapping[str, int] = field(default_factory=lambda: NO_COUNTS)

    def __len__(self) -> int:
        return self.clean.shape[0]

    def shown(self) -> dict[str, Any]:
        lengths = self.lengths
        tokens = f"{int(lengths.min())} to {int(lengths.max())}" if len(self) else "none"
        return {"pairs": len(self), "tokens": tokens, "device": str(self.clean.device)}

    @property
    def lengths(self) -> Int[Tensor, "batch"]:
        """Real tokens of each prompt."""
        return self.mask.sum(dim=1)

    @property
    def n_tokens(self) -> int:
        """Columns, padding included."""
        return self.clean.shape[1]

    def prompt_hashes(self) -> tuple[str, ...]:
        """Sixteen hex digits for each pair: of the tokens of its clean prompt and its answers."""
        rows = zip(token_rows(self.clean, self.mask), self.answers.tolist(), strict=True)
        return tuple(_token_hash(clean, sorted(right))[:16] for clean, right in rows)

    def first_difference(self) -> int:
        """The first column in which any pair's prompts differ (`n_tokens` if none does)."""
        differs = (self.clean != self.counterfactual).any(dim=0).nonzero()
        return int(differs[0]) if len(differs) else self.n_tokens

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on `device`."""
        return self._each(lambda x: x.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(self, **{name: change(getattr(self, name)) for name in _TENSORS})

    def select(self, rows: Sequence[int]) -> Batch:
        """The pairs at `rows`, in that order, trimmed to the longest of them."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.clean.device)
        mask = self.mask[index]
        start = int(mask.any(dim=0).int().argmax())
        return replace(
            self,
            clean=self.clean[index, start:],
            counterfactual=self.counterfactual[index, start:],
            mask=mask[:, start:],
            answers=self.answers[index],
            foils=self.foils[index],
            ids=tuple(self.ids[i] for i in rows),
            groups=tuple(self.groups[i] for i in rows),
            alignment=NO_COUNTS,
        )

    def repeat(self, times: int) -> Batch:
        """The batch `times` times over, copy after copy."""
        return replace(
            self._each(lambda x: x.repeat(times, 1)),
            ids=self.ids * times,
            groups=self.groups * times,
        )

    def chunks(self, max_tokens: int) -> Iterator[tuple[list[int], Batch]]:
        """Split into batches of at most `max_tokens` columns times rows (always at least one row).

        Pairs of similar length come together. Yields the row numbers of a chunk and the chunk.
        """
        lengths = self.lengths.tolist()
        order = sorted(range(len(self)), key=lengths.__getitem__)
        rows: list[int] = []
        for row in order:
            if rows and (len(rows) + 1) * lengths[row] > max_tokens:
                yield rows, self.select(rows)
                rows = []
            rows.append(row)
        if rows:
            yield rows, self.select(rows)

    @staticmethod
    def from_tokens(
        clean: Sequence[Sequence[int]] | Tensor,
        counterfactual: Sequence[Sequence[int]] | Tensor,
        answers: Sequence[Any] | Tensor,
        foils: Sequence[Any] | Tensor,
        *,
        mask: Tensor | None = None,
        ids: Sequence[str] | None = None,
        groups: Sequence[str | None] | None = None,
        pad: int = 0,
    ) -> Batch:
        """A batch from token ids; no tokenizer needed.

        Args:
            clean: one sequence of ids a pair, or a tensor [batch, pos].
            counterfactual: the same lengths as `clean`.
            answers: one id, or a sequence of ids, a pair.
            foils: as `answers`.
            mask: for tensors with padding, True at real tokens; padding may stand on either
                side and `counterfactual` is padded like `clean`.
            ids: names for messages and records; row numbers by default.
            groups: the units that error bars respect; each pair its own by default.
            pad: the id that fills padding.

        Raises:
            BadPairs: no pairs; a pair's lengths differ; an answer equals a foil.
        """
        cleans, counterfactuals = token_rows(clean, mask), token_rows(counterfactual, mask)
        names = tuple(ids) if ids is not None else tuple(str(i) for i in range(len(cleans)))
        if not cleans:
            raise BadPairs("A batch needs at least one pair; got none.")
        if len(counterfactuals) != len(cleans):
            raise BadPairs(
                f"A batch needs as many counterfactual as clean prompts; got {len(counterfactuals)}"
                f" and {len(cleans)}."
            )
        for name, a, b in zip(names, cleans, counterfactuals, strict=True):
            if len(a) != len(b):
                raise BadPairs(
                    f"Pair {name}: clean has {len(a)} tokens, counterfactual has {len(b)}; they"
                    " must be equally long."
                )
            if not a:
                raise BadPairs(f"Pair {name}: the prompts have no tokens.")
        right, wrong = token_table(answers), token_table(foils)
        if len(right) != len(cleans) or len(wrong) != len(cleans):
            raise BadPairs(
                f"A batch of {len(cleans)} pairs needs as many rows of answers and foils; got"
                f" {len(right)} and {len(wrong)}."
            )
        clash = (right[:, :, None] == wrong[:, None, :]) & (right[:, :, None] != NO_TOKEN)
        if clash.any():
            row = int(clash.flatten(1).any(dim=1).nonzero()[0])
            raise BadPairs(
                f"Pair {names[row]}: an answer and a foil begin with the same token (id"
                f" {int(right[row][clash[row].any(1)][0])})."
            )
        width = max(map(len, cleans))
        units = [None] * len(names) if groups is None else groups
        return Batch(
            clean=left_padded(cleans, width, pad),
            counterfactual=left_padded(counterfactuals, width, pad),
            mask=torch.tensor([[False] * (width - len(a)) + [True] * len(a) for a in cleans]),
            answers=right,
            foils=wrong,
            ids=names,
            groups=tuple(n if unit is None else unit for n, unit in zip(names, units, strict=True)),
            content=_token_hash(cleans, counterfactuals, right, wrong),
        )

    @staticmethod
    def from_pairs(
        pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, *, prepend: Sequence[int] = ()
    ) -> Batch:
        """Tokenize pairs. Special tokens are those the tokenizer adds by itself, after `prepend`.

        Answers and foils are compared by the first token that tells them apart, see
        `mechassay.prompts.tokenization`.

        Raises:
            BadPairs: no pairs; a pair that cannot be aligned, by its id.
        """
        if not pairs:
            raise BadPairs("A batch needs at least one pair; got none.")
        aligned = align_pairs(pairs, tokenizer)
        for pair, row in zip(pairs, aligned, strict=True):
            if isinstance(row, Misaligned):
                raise BadPairs(f"Pair {pair.id}: {row.message}.")
        rows = [row for row in aligned if isinstance(row, Aligned)]
        head = list(prepend)
        batch = Batch.from_tokens(
            [head + row.clean for row in rows],
            [head + row.counterfactual for row in rows],
            [row.answers for row in rows],
            [row.foils for row in rows],
            ids=[pair.id for pair in pairs],
            groups=[pair.group for pair in pairs],
        )
        counts = {
            "cut": sum(row.cut > 0 for row in rows),
            "forced": sum(row.forced > 0 for row in rows),
            "partial": sum(row.partial for row in rows),
        }
        return replace(batch, alignment=MappingProxyType(counts))


PairsLike = Pair | Sequence[Pair] | Batch
"""What models and methods take: one pair, several, or a batch."""


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


def token_rows(tokens: Sequence[Sequence[int]] | Tensor, mask: Tensor | None) -> list[list[int]]:
    """The real tokens of each row; without a mask all are real."""
    if not isinstance(tokens, Tensor):
        return [list(map(int, row)) for row in tokens]
    if mask is None:
        return tokens.tolist()
    return [
        [t for t, real in zip(row, keep, strict=True) if real]
        for row, keep in zip(tokens.tolist(), mask.bool().tolist(), strict=True)
    ]


def token_table(tokens: Sequence[Any] | Tensor) -> Int[Tensor, "batch width"]:
    """One token, or several, a row, with `NO_TOKEN` on the right of those that have fewer."""
    rows = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
    lists = [list(row) if isinstance(row, Sequence | Tensor) else [row] for row in rows]
    width = max((len(row) for row in lists), default=0)
    table = [[int(t) for t in row] + [NO_TOKEN] * (width - len(row)) for row in lists]
    return torch.tensor(table, dtype=torch.long).reshape(len(lists), width)


def left_padded(rows: Sequence[list[int]], width: int, pad: int) -> Int[Tensor, "batch pos"]:
    """Rows of at most `width` tokens that end in the last column."""
    return torch.tensor([[pad] * (width - len(row)) + row for row in rows], dtype=torch.long)


def _token_hash(*parts: object) -> str:
    plain = [part.tolist() if isinstance(part, Tensor) else part for part in parts]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


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

    def shown(self) -> dict[str, Any]:
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
        self.dropped = MappingProxyType(dict(dropped))

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
