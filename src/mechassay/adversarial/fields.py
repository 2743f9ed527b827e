"""The fields of prompts, by which pairs are chosen and grouped, and strata for fair comparison.

A field is a part of the prompt (`Prompt.spans`), or "template", how a prompt is built. Two options
say which pairs of a grid there are:

    where    all prompts have one value ("object=ring"): a grid of fewer prompts
    same     both prompts of a pair agree in some fields: one grid for each value (`partial_grid`)

Prompts that agree with none of the other side are left out and counted.

**Strata.** All prompts of a pool have the same number of tokens, so a template with a long text is
left only with short words, and a long word looks worse than it is. Among prompts of one template
whose word for a field has one number of tokens, labels are independent of the rest of the prompt
again. The stratum of a prompt, for a field, is therefore

    (template, number of tokens of the field's text)

and for the template, the prompt without its parts, the number of tokens of its own text. If the
template hardly ever repeats (texts of random words), the number of tokens is the stratum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from mechassay.adversarial.pools import TEMPLATE, Pool
from mechassay.alignment import encode
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Prompt
from mechassay.stats.groups import Field
from mechassay.stats.partial_grid import PartialGrid

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPEATS = 2
"""Prompts that a template, or a label, has on average at least."""
MAX_LABELS = 150
CORRUPTED = "corrupted "


def parse_where(texts: Sequence[str]) -> dict[str, str]:
    """Fields and the values that all prompts must have, from texts like "object=ring".

    Raises:
        BadUsage: a text without "=", or without a field before it; a field that comes twice.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in values:
            raise BadUsage(f"--where takes FIELD=VALUE, each field once; got {', '.join(texts)}.")
        values[name] = value
    return values


def parse_same(text: str) -> tuple[str, ...]:
    """Fields from a text like "template,object".

    Raises:
        BadUsage: an empty field, or one that comes twice.
    """
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if not all(names) or len(set(names)) < len(names):
        raise BadUsage(f"--same takes FIELD or FIELD,FIELD, each once; got {text!r}.")
    return names


def agreeing(clean: Pool, corrupted: Pool, same: Sequence[str]) -> tuple[Pool, Pool, PartialGrid]:
    """The prompts that agree with one of the other side in all of some fields, and which pairs do.

    Raises:
        UnknownName: a field that a prompt of either side lacks.
        BadPairs: no two prompts agree.
    """
    pools = (clean, corrupted)
    columns = [_labels_of_both(*pools, name) for name in same]
    labels = [list(zip(*side, strict=True)) for side in zip(*columns, strict=True)]
    common = set(labels[0]) & set(labels[1])
    if not common:
        raise BadPairs(
            f"No clean prompt agrees with a corrupted one in {', '.join(same)}: there are no pairs."
        )
    reason = f"agrees with none of the other side in {', '.join(same)}"
    kept = [[row for row, label in enumerate(side) if label in common] for side in labels]
    ours, theirs = (
        replace(
            pool.select(rows),
            dropped={
                **pool.dropped,
                **({reason: len(pool) - len(rows)} if len(rows) < len(pool) else {}),
            },
        )
        for pool, rows in zip(pools, kept, strict=True)
    )
    agreed = ([side[row] for row in rows] for side, rows in zip(labels, kept, strict=True))
    return ours, theirs, PartialGrid.of(*agreed)


def _labels_of_both(
    clean: Pool, corrupted: Pool, name: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The values of a field, which every prompt of both sides must have."""
    ours, theirs = clean.labels(name), corrupted.labels(name)
    if ours is None or theirs is None:
        raise UnknownName("field of all prompts", name, common_fields(clean, corrupted))
    return ours, theirs


def common_fields(clean: Pool, corrupted: Pool) -> tuple[str, ...]:
    """The fields that every prompt of both sides has."""
    names = dict.fromkeys((*clean.columns, *clean.fields))
    return tuple(name for name in names if None not in (clean.labels(name), corrupted.labels(name)))


def fields_of(
    clean: Pool, corrupted: Pool | None, tokenizer: PreTrainedTokenizerBase, *, grid: bool
) -> list[Field]:
    """The fields by which pairs can be grouped: two labels or more, each repeated on average.

    Fields that group the prompts alike are one field with several names.

    Args:
        corrupted: None if pairs are not grouped by corrupted prompts.
        tokenizer: counts the tokens of words, for the strata.
    """
    names: dict[tuple[str, tuple[int, ...]], list[tuple[str, str]]] = {}
    fields: dict[tuple[str, tuple[int, ...]], Field] = {}
    pools = {"clean": clean, "corrupted": corrupted}
    for side, name, labels in _all_labels(clean, corrupted):
        if not 2 <= len(set(labels)) <= min(MAX_LABELS, len(labels) // REPEATS):
            continue
        # Of a grid, only fields of the same side group the pairs alike.
        groups = np.unique(np.asarray(labels), return_inverse=True)[1].tolist()
        key = (side if grid else "", tuple(groups))
        names.setdefault(key, []).append((side, name))
        fields.setdefault(key, Field(name, labels, side))
    distinct: list[Field] = []
    for key, one in fields.items():
        pool = pools[one.side]
        assert pool is not None
        own = [name for side, name in names[key] if side == one.side]
        joined = _joined([_full_name(side, name) for side, name in names[key]])
        distinct.append(replace(one, name=joined, strata=strata_of(pool, own, tokenizer)))
    return distinct


def named_field(name: str, clean: Pool, corrupted: Pool | None) -> Field:
    """The field of that name, however many labels it has.

    Raises:
        UnknownName: the prompts have no such part.
    """
    known: list[str] = []
    for side, own, labels in _all_labels(clean, corrupted):
        if _full_name(side, own) == name:
            return Field(name, labels, side)
        known.append(_full_name(side, own))
    raise UnknownName("field for a heat map", name, known)


def _all_labels(
    clean: Pool, corrupted: Pool | None
) -> Iterator[tuple[Literal["clean", "corrupted"], str, tuple[str, ...]]]:
    """Every field of both sides: its side, name and labels; the last one is the template."""
    sides: list[tuple[Literal["clean", "corrupted"], Pool | None]] = [
        ("clean", clean),
        ("corrupted", corrupted),
    ]
    for side, pool in sides:
        if pool is not None:
            templates = tuple(map(skeleton, pool.prompts))
            for name, labels in {**pool.fields, TEMPLATE: templates}.items():
                yield side, name, labels


def _full_name(side: str, name: str) -> str:
    return name if side == "clean" else CORRUPTED + name


def _joined(names: Sequence[str]) -> str:
    """Several names of one field; of a repeated part (`year`, `year_2`) only the first."""
    first = [re.sub(r"_\d+$", "", name) for name in names]
    return " = ".join(
        dict.fromkeys(
            short if short in names else name for short, name in zip(first, names, strict=True)
        )
    )


def skeleton(prompt: Prompt) -> str:
    """A prompt's text with the names of its outermost parts in their places."""
    text, done = "", 0
    for name, begin, end in _outermost(prompt):
        text, done = f"{text}{prompt.text[done:begin]}{{{name}}}", end
    return text + prompt.text[done:]


def strata_of(
    pool: Pool, names: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[str, ...]:
    """The stratum of every prompt for a field, or for several that group the prompts alike.

    Args:
        names: parts of the prompts, or "template". A prompt without the part has 0 tokens for it.
    """
    lengths = [_lengths(pool, name, tokenizer) for name in names]
    templates = tuple(map(skeleton, pool.prompts))
    if TEMPLATE in names or len(set(templates)) > len(pool) / REPEATS:
        templates = ("",) * len(pool)
    return tuple(
        f"{text} {' '.join(map(str, row))}" for text, *row in zip(templates, *lengths, strict=True)
    )


def _lengths(pool: Pool, name: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """For each prompt the tokens of a part; for the template the tokens outside all parts."""
    if name != TEMPLATE:
        parts = [_piece(prompt, *prompt.spans.get(name, (0, 0))) for prompt in pool.prompts]
        return _token_counts(parts, tokenizer)
    rows = [[_piece(prompt, *span) for _, *span in _outermost(prompt)] for prompt in pool.prompts]
    counts = iter(_token_counts([piece for row in rows for piece in row], tokenizer))
    return [pool.tokens.shape[1] - sum(next(counts) for _ in row) for row in rows]


def _outermost(prompt: Prompt) -> list[tuple[str, int, int]]:
    """Name and ends of the non-empty parts, from left to right, that overlap no earlier one."""
    parts: list[tuple[str, int, int]] = []
    for name, (begin, end) in sorted(prompt.spans.items(), key=lambda item: item[1]):
        if end > begin and (not parts or begin >= parts[-1][2]):
            parts.append((name, begin, end))
    return parts


def _piece(prompt: Prompt, begin: int, end: int) -> str:
    """A part with the space before it, which tokenizers join to it."""
    space = begin > 0 and prompt.text[begin - 1] == " "
    return prompt.text[begin - space : end] if end > begin else ""


def _token_counts(pieces: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of each piece; the same few words repeat, so each is tokenized once."""
    distinct = list(dict.fromkeys(pieces))
    ids = encode(tokenizer, distinct)
    size = {piece: len(tokens) for piece, tokens in zip(distinct, ids, strict=True)}
    return [size[piece] for piece in pieces]
