"""Interchanges as text: a base prompt, a source prompt, and what follows after the interchange.

An interchange runs the base with activations of the source in their places (Geiger et al. 2021).
The prompts may have different lengths. What should then be said is the label.

    from a pair     base = clean, source = counterfactual,
                    label = the counterfactual's answers, or the foils where it has none,
                    base label = the answers
    from a file     columns base, source, label; optional: base_label, id, group, kind, value (a
                    number), and base_spans, source_spans ({"name": [begin, end]}, as JSON text in
                    CSV and TSV); anything else is a tag

Of several labels ("a|b" in cells, a list in JSON) the first is what a batch holds.

*Tokens.* Labels are tokenized together with the base. Where a tokenizer joins the end of the base
with a label ("is: " + "91" becomes " 91"), the joined tokens are cut from the base and belong to
the label. The source ends in the same tokens, which are cut too; one that ends in others has no
last token that could be compared, and is `Misaligned`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechassay.errors import BadFile, BadPairs
from mechassay.prompts.pairs import EMPTY, NO_SPANS, Pair
from mechassay.prompts.rows import (
    DELIMITERS,
    Mistake,
    check_ending,
    raise_mistakes,
    read_rows,
    several,
    short,
    spans_of,
)
from mechassay.prompts.tokenization import (
    NOTHING,
    UNKNOWN,
    Misaligned,
    Span,
    continued,
    encode,
    part_tokens,
)
from mechassay.utils.display import OneLine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


JOINED = "label joins the prompt"
NO_LABEL = "no label"
NEEDED = ("base", "source", "label")
SPANS = ("base_spans", "source_spans")
TAGS = "tags"
# Columns that are no tags; one without a name is the row number that pandas writes, or nothing.
OWN = frozenset([*NEEDED, *SPANS, TAGS, "base_label", "id", "group", "kind", "value", ""])

Part = tuple[int, int]
"""The first and the last token of a part of a prompt, from 0 at its first token."""


@dataclass(frozen=True, eq=False, repr=False)
class InterchangePair(OneLine):
    """One interchange as text.

    Attributes:
        id: unique within its batch.
        base: the prompt that is run.
        source: the prompt whose activations are put into that run; of any length.
        label: what follows the base after the interchange, with its leading space; of several
            right texts the first is used.
        base_label: what follows the base without it; empty where that is not known.
        group: the unit that error bars respect. None: the pair is its own group.
        kind: which kind of counterfactual the source is.
        tags: template fields, for group-by.
        base_spans, source_spans: where the parts of each prompt are, in characters, by name.
        value: what is expected of logit(base label) - logit(label) after the interchange, of their
            first tokens; NaN: nothing is.
    """

    id: str
    base: str
    source: str
    label: str | tuple[str, ...]
    base_label: str | tuple[str, ...] = ()
    group: str | None = None
    kind: str = ""
    tags: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    base_spans: Mapping[str, Span] = field(default_factory=lambda: NO_SPANS)
    source_spans: Mapping[str, Span] = field(default_factory=lambda: NO_SPANS)
    value: float = math.nan

    def __eq__(self, other: object) -> bool:
        # NaN is not itself, but pairs of which no value is expected may be equal.
        return isinstance(other, InterchangePair) and self.as_dict() == other.as_dict()

    def repr_fields(self) -> dict[str, Any]:
        texts = {"base": self.base, "source": self.source, "label": self.label}
        return {"id": self.id, **texts, **({"kind": self.kind} if self.kind else {})}

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, none of them empty."""
        return _texts(self.label)

    @property
    def base_labels(self) -> tuple[str, ...]:
        """The base's own labels, none of them empty."""
        return _texts(self.base_label)

    @staticmethod
    def from_pair(pair: Pair, kind: str = "") -> InterchangePair:
        """The interchange of a pair; see the module."""
        return InterchangePair(
            id=pair.id,
            base=pair.clean,
            source=pair.counterfactual,
            label=pair.counterfactual_answers or pair.foils,
            base_label=pair.answers,
            group=pair.group,
            kind=kind,
            tags=pair.tags,
            base_spans=pair.spans,
            source_spans=pair.counterfactual_spans,
        )

    def as_dict(self) -> dict[str, Any]:
        """The pair as plain JSON values: a row of a file that `read_interchanges` reads."""
        value = {} if math.isnan(self.value) else {"value": self.value}
        return {
            "id": self.id,
            "base": self.base,
            "source": self.source,
            "label": list(self.labels),
            "base_label": list(self.base_labels),
            "group": self.group,
            "kind": self.kind,
            "tags": dict(self.tags),
            "base_spans": {name: list(span) for name, span in self.base_spans.items()},
            "source_spans": {name: list(span) for name, span in self.source_spans.items()},
            **value,
        }


def _texts(label: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text for text in ((label,) if isinstance(label, str) else label) if text)


# --- tokens ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InterchangeTokens:
    """An interchange as tokens.

    Attributes:
        base, source: the prompts, special tokens of the tokenizer included.
        label, base_label: what follows the base; `base_label` is empty where it is not known.
        base_parts, source_parts: the parts whose tokens are all there, by name.
        cut: tokens that were left out of the end of both prompts, as a label changes them.
    """

    base: list[int]
    source: list[int]
    label: list[int]
    base_label: list[int]
    base_parts: Mapping[str, Part]
    source_parts: Mapping[str, Part]
    cut: int


def interchange_tokens(
    pairs: Sequence[InterchangePair], tokenizer: PreTrainedTokenizerBase
) -> list[InterchangeTokens | Misaligned]:
    """The tokens of each interchange, or why it has none."""
    bases = encode(tokenizer, [pair.base for pair in pairs])
    sources = encode(tokenizer, [pair.source for pair in pairs])
    labels = [(*pair.labels[:1], *pair.base_labels[:1]) for pair in pairs]
    joined = [pair.base + text for pair, texts in zip(pairs, labels, strict=True) for text in texts]
    whole = iter(encode(tokenizer, joined))
    parts = _parts(pairs, tokenizer)
    unknown = tokenizer.unk_token_id
    assert unknown is None or isinstance(unknown, int)
    tokens: list[InterchangeTokens | Misaligned] = []
    for row, (pair, texts) in enumerate(zip(pairs, labels, strict=True)):
        rows = [next(whole) for _ in texts]
        if not pair.labels:
            said_so = "its label is empty: nothing is expected after the interchange"
            tokens.append(Misaligned(NO_LABEL, said_so))
            continue
        tokens.append(_tokens(bases[row], sources[row], texts, rows, parts[row], unknown))
    return tokens


def _parts(
    pairs: Sequence[InterchangePair], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[dict[str, Part], dict[str, Part]]]:
    """The parts of both prompts of each pair; none without character offsets."""
    if not tokenizer.is_fast or not any(pair.base_spans or pair.source_spans for pair in pairs):
        return [({}, {}) for _ in pairs]
    spans = [pair.base_spans for pair in pairs], [pair.source_spans for pair in pairs]
    base = part_tokens([pair.base for pair in pairs], spans[0], tokenizer)
    source = part_tokens([pair.source for pair in pairs], spans[1], tokenizer)
    return list(zip(base, source, strict=True))


def _tokens(
    base: list[int],
    source: list[int],
    texts: tuple[str, ...],
    whole: list[list[int]],
    parts: tuple[Mapping[str, Part], Mapping[str, Part]],
    unknown: int | None,
) -> InterchangeTokens | Misaligned:
    split = continued(base, whole, force=False)
    for text, rest in zip(texts, split.rests, strict=True):
        if not rest:
            message = f"{text!r} written after the base adds no token of its own"
            return Misaligned(NOTHING, message)
        if unknown is not None and unknown in rest:
            return Misaligned(UNKNOWN, f"the tokenizer does not know {text!r}")
    kept = len(base) - split.cut, len(source) - split.cut
    if min(kept) < 1 or source[max(kept[1], 0) :] != base[kept[0] :]:
        end = f"the last {split.cut} tokens" if split.cut > 1 else "the last token"
        message = (
            f"the tokenizer joins {end} of the base with {' or '.join(map(repr, texts))}, and the"
            " source has no such end"
        )
        return Misaligned(JOINED, message)
    there = [
        {name: part for name, part in of_prompt.items() if part[1] < stop}
        for of_prompt, stop in zip(parts, kept, strict=True)
    ]
    label, *others = (list(rest) for rest in split.rests)
    return InterchangeTokens(
        base=base[: kept[0]],
        source=source[: kept[1]],
        label=label,
        base_label=others[0] if others else [],
        base_parts=there[0],
        source_parts=there[1],
        cut=split.cut,
    )


# --- files ----------------------------------------------------------------------------------------


def read_interchanges(path: str | Path) -> dict[int, InterchangePair]:
    """Interchanges of a JSONL, JSON, CSV or TSV file, by the place of their row; see the module.

    Raises:
        BadFile: the file cannot be read as rows of these columns.
        BadPairs: an empty prompt or label, or one id twice; messages name rows.
    """
    file = Path(path)
    check_ending(file)
    rows, in_cells = read_rows(file), file.suffix.lower() in DELIMITERS
    if not rows:
        raise BadFile(f"{path}: there are no rows.")
    if in_cells and (missing := _missing(rows[0][1])):
        raise BadFile(f"{path}: row 1: {missing}.")
    pairs: dict[int, InterchangePair] = {}
    mistakes: list[tuple[int, Mistake]] = []
    ids: dict[str, int] = {}
    for place, row in rows:
        try:
            pair = _read(row, in_cells, f"{file.stem}-{place:06d}")
            if pair.id in ids:
                raise Mistake("an id comes twice", f"{short(pair.id)}, as row {ids[pair.id]}")
            ids[pair.id], pairs[place] = place, pair
        except Mistake as mistake:
            mistakes.append((place, mistake))
    raise_mistakes(path, mistakes)
    return pairs


def _missing(row: Mapping[str, Any]) -> Mistake | None:
    missing = [repr(name) for name in NEEDED if name not in row]
    if not missing:
        return None
    message = f"no column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    return Mistake(message, f"there are {', '.join(map(repr, row))}" if row else "there are none")


def _read(row: Mapping[str, Any], in_cells: bool, default: str) -> InterchangePair:
    if missing := _missing(row):
        raise missing
    base, source = (_prompt(row, name) for name in ("base", "source"))
    spans = [
        _spans(row, name, text, in_cells) for name, text in zip(SPANS, (base, source), strict=True)
    ]
    nested: Any = row.get(TAGS)
    others = {name: value for name, value in row.items() if name not in OWN}
    tags: dict[str, Any] = others | (nested if isinstance(nested, dict) else {})
    return InterchangePair(
        id=_name(row, "id") or default,
        base=base,
        source=source,
        label=_labels_of(row, "label", in_cells),
        base_label=_labels_of(row, "base_label", in_cells) if row.get("base_label") else (),
        group=_name(row, "group"),
        kind=_name(row, "kind") or "",
        tags={
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in tags.items()
            if value is not None
        },
        base_spans=spans[0],
        source_spans=spans[1],
        value=_value(row),
    )


def _value(row: Mapping[str, Any]) -> float:
    """A finite number; an empty one is none."""
    value = row.get("value")
    if value is None or value == "":
        return math.nan
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise Mistake("'value' must be a number", f"got {short(value)}")
    return number


def _prompt(row: Mapping[str, Any], column: str) -> str:
    text = row[column]
    if not isinstance(text, str):
        raise Mistake(f"{column!r} must be text", f"got {short(text)}")
    if not text.strip():
        raise Mistake(f"{column!r} is empty", error=BadPairs)
    return text


def _labels_of(row: Mapping[str, Any], column: str, in_cells: bool) -> tuple[str, ...]:
    labels = several(row[column], in_cells, "labels")
    if not isinstance(labels, tuple) or not all(isinstance(text, str) for text in labels):
        raise Mistake(f"{column!r} must be text or a list of texts", f"got {short(row[column])}")
    if not labels or not all(labels):
        raise Mistake(f"{column!r} is empty", error=BadPairs)
    return labels


def _name(row: Mapping[str, Any], column: str) -> str | None:
    """An id, group or kind: text, or a whole number; an empty one is none."""
    value = row.get(column)
    if value is None or type(value) is int or isinstance(value, str):
        return None if value is None or value == "" else str(value)
    raise Mistake(f"{column!r} must be text or a whole number", f"got {short(value)}")


def _spans(row: Mapping[str, Any], column: str, text: str, in_cells: bool) -> dict[str, Span]:
    value = row.get(column)
    if value is None or value == "":
        return {}
    if in_cells:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise Mistake(f"{column!r} is not JSON", f"got {short(value)}") from None
    return spans_of(column, value, text)
