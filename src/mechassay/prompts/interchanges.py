"""Interchanges as text: a base prompt, a source prompt, and what follows after the interchange.

An interchange runs the base with activations of the source in their places (Geiger et al. 2021).
The prompts may have different lengths. What should then be said is the label.

    from a pair     base = clean, source = counterfactual,
                    label = the counterfactual's answers, or the foils where it has none,
                    base label = the answers

If there are several labels, a batch holds the first.

*Tokens.* Labels are tokenized together with the base. Where a tokenizer joins the end of the base
with a label ("is: " + "91" becomes " 91"), the joined tokens are cut from the base and belong to
the label. The source ends in the same tokens, which are cut too; one that ends in others has no
last token that could be compared, and is `Misaligned`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mechassay.prompts.pairs import EMPTY, NO_SPANS, Pair
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
        """Return the pair as plain JSON values."""
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
