"""Pools of clean and corrupted prompts, and the fields by which their pairs are chosen and grouped.

The clean pool holds original prompts of a task's split. The corrupted pool holds counterfactual
prompts of one kind, from the next examples of the same stream, so that the two are drawn
independently. If they are matched, prompt i of one belongs to prompt i of the other. All prompts
have the number of tokens that most of the clean prompts have. Prompts of another length, or with
words that the tokenizer does not know, are dropped and counted.

A field is a part of the prompt (`Prompt.spans`), or "template", how a prompt is built. Two
options say which pairs of a grid there are:

    where    all prompts have one value ("object=ring"): a grid of fewer prompts
    same     both prompts of a pair agree in some fields: one grid for each value

Prompts that agree with none of the other side are left out and counted.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage, UnknownName, one_of
from mechassay.prompts.pairs import ABSENT, Example, Prompt
from mechassay.prompts.tokenization import encode
from mechassay.stats.bounds import PartialGrid
from mechassay.stats.distribution import Field
from mechassay.tasks.task import PUBLIC_SPLITS
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mechassay.models.model import Model
    from mechassay.tasks.task import Task


CHUNK = 256
PATIENCE = 20
"""Examples tried for each prompt asked for, before giving up."""
NOTHING = "-"
TEMPLATE = "template"
RARE = 100
"""How many times more examples are tried where prompts are chosen by their fields."""
NO_FIELDS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, eq=False, repr=False)
class Pool(OneLine):
    """Prompts of one length.

    Attributes:
        prompts: texts with their parts.
        tokens: their ids, with what the model puts before every prompt.
        dropped: prompts left out, by reason.
        columns: other labels of every prompt, by name: the tags of its example, and "template" (how
            it is built) where the task says so.
    """

    prompts: tuple[Prompt, ...]
    tokens: Int[Tensor, "prompts pos"]
    dropped: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.prompts)

    @cached_property
    def fields(self) -> dict[str, tuple[str, ...]]:
        """The text of every part by name, in the order of the prompts; "-" where it is missing."""
        names = dict.fromkeys(name for prompt in self.prompts for name in prompt.spans)
        return {
            name: tuple(
                prompt.part(name) if name in prompt.spans else NOTHING for prompt in self.prompts
            )
            for name in names
        }

    def labels(self, name: str) -> tuple[str, ...] | None:
        """The value of a field in every prompt, from parts or `columns`; None if one lacks it."""
        other = self.columns.get(name, (NOTHING,) * len(self))
        labels = tuple(
            prompt.part(name) if name in prompt.spans else label
            for prompt, label in zip(self.prompts, other, strict=True)
        )
        return None if NOTHING in labels else labels

    def select(self, rows: Sequence[int]) -> Pool:
        """The prompts at `rows`, in that order."""
        columns = {
            name: tuple(labels[row] for row in rows) for name, labels in self.columns.items()
        }
        return Pool(
            tuple(self.prompts[row] for row in rows),
            self.tokens[torch.as_tensor(rows, dtype=torch.long)],
            {},
            columns,
        )


def tokenized(model: Model, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of prompts, with what the model puts before them.

    Raises:
        BadPairs: the model has no tokenizer.
    """
    if model.tokenizer is None:
        raise BadPairs(f"{model.name} has no tokenizer: prompts cannot be read.")
    model.check_unchanged()
    rows = [[*model.prepend, *ids] for ids in encode(model.tokenizer, list(texts))]
    model.check_length("A prompt", max(map(len, rows), default=0))
    return rows


@checked
def draw_pools(
    model: Model,
    task: Task,
    n_clean: int,
    n_corrupted: int,
    *,
    matched: bool = False,
    where: Mapping[str, str] = NO_FIELDS,
    split: str = "test",
    counterfactual: str | None = None,
    seed: int = 0,
) -> tuple[Pool, Pool]:
    """The clean and the corrupted pool of a task.

    Args:
        matched: take each corrupted prompt from the example of the clean one; the sizes must then
            be equal.
        where: values of fields that all prompts must have.
        counterfactual: the kind of corrupted prompts; the task's default if None.
        seed: another seed, other prompts.

    Raises:
        UnknownName: no such split, counterfactual or field.
        BadUsage: a size below 1, a negative seed, or matched pools of different sizes.
        BadPairs: the task has fewer prompts of one length.
    """
    kind = _checked(task, split, counterfactual, seed, model.tokenizer)
    if min(n_clean, n_corrupted) < 1 or (matched and n_clean != n_corrupted):
        raise BadUsage(
            f"Pools need a prompt each, and matched ones equal sizes; got {n_clean} clean and"
            f" {n_corrupted} corrupted prompts."
        )
    sides = _Sides(model, matched, n_clean, n_corrupted)
    # Prompts chosen by their fields may be rare, and are checked before they are tokenized.
    patience = (PATIENCE * (n_clean + n_corrupted) + CHUNK) * (RARE if where else 1)
    examples = _with_fields(task, task.generate(split, seed, model.tokenizer), kind, where)
    sides.fill(
        (_Candidate.of(task, example, kind, where) for example in islice(examples, patience)),
        min(CHUNK, 4 * (n_clean + n_corrupted)) if where else CHUNK,
    )
    if not sides.full:
        dropped = dropped_text(sides.clean.dropped + sides.corrupted.dropped)
        raise BadPairs(
            f"Split {split!r} of {task.name} has {len(sides.clean)} clean and"
            f" {len(sides.corrupted)} corrupted prompts of {sides.length or 0} tokens for"
            f" {model.name}; asked for {n_clean} and {n_corrupted}{dropped}."
        )
    return sides.clean.pool(), sides.corrupted.pool()


def why_dropped(model: Model, tokens: Sequence[int], length: int) -> str | None:
    """Why a prompt cannot be in a pool; None if it can. Prepended tokens are not checked."""
    unknown = None if model.tokenizer is None else model.tokenizer.unk_token_id
    if len(tokens) != length:
        return f"not {length} tokens"
    return "words unknown to the tokenizer" if unknown in tokens[len(model.prepend) :] else None


def dropped_text(dropped: Mapping[str, int]) -> str:
    """Counts of what was dropped, for the end of a message."""
    counts = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    return f" (left out: {counts})" if counts else ""


@checked
def enumerate_pools(
    model: Model,
    task: Task,
    *,
    split: str = "test",
    counterfactual: str | None = None,
    seed: int = 0,
) -> tuple[Pool, Pool]:
    """All prompts of a split that the tokenizer allows, and for each its own corrupted prompt.

    Args:
        seed: of their order alone.

    Raises:
        UnknownName: no such split or counterfactual.
        BadUsage: the task's examples cannot be counted, or a negative seed.
        BadPairs: nothing is left of the split.
    """
    kind = _checked(task, split, counterfactual, seed, model.tokenizer)
    check_finite(task)
    examples = [
        (example.prompt, example.counterfactuals.get(kind))
        for example in task.generate(split, seed, model.tokenizer)
    ]
    pairs = [(clean, corrupted) for clean, corrupted in examples if corrupted is not None]
    if not pairs:
        raise BadPairs(
            f"Split {split!r} of {task.name} has no examples with {kind!r} for {model.name}."
        )
    tokens = [tokenized(model, [pair[side].text for pair in pairs]) for side in (0, 1)]
    length = Counter(map(len, tokens[0])).most_common(1)[0][0]
    reasons = [
        why_dropped(model, clean, length) or why_dropped(model, corrupted, length)
        for clean, corrupted in zip(*tokens, strict=True)
    ]
    dropped = Counter({ABSENT: len(examples) - len(pairs)}) + Counter(filter(None, reasons))
    kept = [row for row, reason in enumerate(reasons) if reason is None]
    if not kept:
        raise BadPairs(
            f"Split {split!r} of {task.name} has no pairs of {length} tokens for"
            f" {model.name}{dropped_text(dropped)}."
        )
    clean, corrupted = (
        Pool(tuple(pairs[row][side] for row in kept), torch.tensor([ids[row] for row in kept]))
        for side, ids in enumerate(tokens)
    )
    return replace(clean, dropped=dict(dropped)), corrupted


def check_finite(task: Any) -> None:
    """Refuse a task whose examples cannot be counted.

    Raises:
        BadUsage: it has no `population`.
    """
    if not hasattr(task, "population"):
        raise BadUsage(
            f"The examples of {task.name} cannot be enumerated; those of greater-than can."
        )


def worst_apart(
    values: Float[np.ndarray, "*pairs"],
    count: int,
    clean: Sequence[Hashable] | None = None,
    corrupted: Sequence[Hashable] | None = None,
) -> Int[np.ndarray, "k"]:
    """Places in the flat values of the largest ones that share no prompt, largest first.

    The largest value comes first, then the largest of pairs without either of its prompts, and so
    on; fewer than `count` if there are fewer. NaN is no pair.

    Args:
        values: of a grid [clean, corrupted], or of pairs.
        clean, corrupted: the prompts, where some may be equal; all are different if not given.

    Raises:
        BadUsage: a count below 0.
    """
    if count < 0:
        raise BadUsage(f"The number of worst pairs must be 0 or more; got {count}.")
    n, m = values.shape[0], values.shape[-1]
    numbers: dict[Hashable, int] = {}
    prompts = [
        np.array([numbers.setdefault(name, len(numbers)) for name in side])
        for side in (clean or range(n), corrupted or range(n, n + m))
    ]
    left = np.where(np.isnan(values), -np.inf, values)
    places: list[int] = []
    while len(places) < count and left.max(initial=-np.inf) > -np.inf:
        place = int(left.argmax())
        places.append(place)
        row, column = divmod(place, m) if values.ndim == 2 else (place, place)
        rows, columns = (
            (side == prompts[0][row]) | (side == prompts[1][column]) for side in prompts
        )
        left[rows | columns if values.ndim == 1 else rows] = -np.inf
        if values.ndim == 2:
            left[:, columns] = -np.inf
    return np.array(places, dtype=np.int64)


def _checked(
    task: Task,
    split: str,
    counterfactual: str | None,
    seed: int,
    tokenizer: PreTrainedTokenizerBase | None,
) -> str:
    """The kind of corrupted prompts, after checking what was asked for."""
    kind = task.counterfactual_for(tokenizer) if counterfactual is None else counterfactual
    one_of("counterfactual", kind, task.counterfactuals)
    # The private split has a seed of its own, which no report may give away.
    one_of("split", split, [name for name in PUBLIC_SPLITS if name in task.sizes])
    if seed < 0:
        raise BadUsage(f"A seed must be 0 or more; got {seed}.")
    return kind


class _Candidate(NamedTuple):
    """An example's clean and corrupted prompt (None if unwanted), their labels, and reasons."""

    prompts: tuple[Prompt | None, ...]
    columns: tuple[Mapping[str, str], ...]
    reasons: tuple[str | None, ...]

    def is_wanted(self) -> bool:
        """Whether one of its prompts is."""
        return self.prompts != (None, None)

    @staticmethod
    def of(task: Task, example: Example, kind: str, where: Mapping[str, str]) -> _Candidate:
        template = task.template(example.tags)
        # Other tags are of the original: a counterfactual may change what they say.
        built = {} if template is None else {TEMPLATE: template}
        columns = ({**example.tags, **built}, built)
        pair = (example.prompt, example.counterfactuals.get(kind))
        reasons = tuple(
            ABSENT if prompt is None else _why_unwanted(prompt, columns[side], where)
            for side, prompt in enumerate(pair)
        )
        wanted = tuple(
            prompt if reason is None else None for prompt, reason in zip(pair, reasons, strict=True)
        )
        return _Candidate(wanted, columns, reasons)


def _why_unwanted(
    prompt: Prompt, columns: Mapping[str, str], where: Mapping[str, str]
) -> str | None:
    """Why a prompt is not one of those asked for."""
    for name, value in where.items():
        if value != (prompt.part(name) if name in prompt.spans else columns.get(name)):
            return f"not {name} = {value}"
    return None


class _Side:
    """Prompts of one pool so far."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        # A million prompts as lists of numbers would be as large again as their texts.
        self.tokens = array("q")
        self.dropped: Counter[str] = Counter()
        self.columns: list[Mapping[str, str]] = []

    def __len__(self) -> int:
        return len(self.prompts)

    def add(self, prompt: Prompt, tokens: list[int], columns: Mapping[str, str]) -> None:
        self.prompts.append(prompt)
        self.tokens.extend(tokens)
        self.columns.append(columns)

    def pool(self) -> Pool:
        tokens = torch.from_numpy(np.array(self.tokens)).view(len(self), -1)
        columns = {
            name: tuple(row.get(name, NOTHING) for row in self.columns)
            for name in dict.fromkeys(name for row in self.columns for name in row)
        }
        return Pool(tuple(self.prompts), tokens, dict(self.dropped), columns)


class _Sides:
    """Both pools, filled from one stream of examples; the clean one first, unless matched."""

    def __init__(self, model: Model, matched: bool, n_clean: int, n_corrupted: int) -> None:
        self.model, self.matched = model, matched
        self.n_clean, self.n_corrupted = n_clean, n_corrupted
        self.sides = self.clean, self.corrupted = _Side(), _Side()
        self.length: int | None = None

    @property
    def full(self) -> bool:
        return len(self.clean) >= self.n_clean and len(self.corrupted) >= self.n_corrupted

    def fill(self, candidates: Iterator[_Candidate], size: int) -> None:
        """Take prompts until both pools are full, or a chunk has none.

        Args:
            size: candidates with a prompt in a chunk; the first chunk decides the length.
        """
        while not self.full and (chunk := _chunk(candidates, size)):
            self._add(chunk)
            if not any(map(_Candidate.is_wanted, chunk)):
                return

    def _add(self, chunk: Sequence[_Candidate]) -> None:
        tokens = [
            tokenized(self.model, [prompt.text for prompt in prompts if prompt is not None])
            for prompts in zip(*(candidate.prompts for candidate in chunk), strict=True)
        ]
        if self.length is None and tokens[0]:
            self.length = Counter(map(len, tokens[0])).most_common(1)[0][0]
        rows = [iter(side) for side in tokens]
        for candidate in chunk:
            ours, theirs = (
                [] if prompt is None else next(rows[side])
                for side, prompt in enumerate(candidate.prompts)
            )
            if self.full:
                return
            if self.matched:
                if self._fits(candidate, 0, ours) and self._fits(candidate, 1, theirs):
                    self._take(candidate, 0, ours)
                    self._take(candidate, 1, theirs)
            elif len(self.clean) < self.n_clean:
                if self._fits(candidate, 0, ours):
                    self._take(candidate, 0, ours)
            elif self._fits(candidate, 1, theirs):
                self._take(candidate, 1, theirs)

    def _take(self, candidate: _Candidate, side: int, tokens: list[int]) -> None:
        prompt = candidate.prompts[side]
        assert prompt is not None, "a prompt that fits is there"
        self.sides[side].add(prompt, tokens, candidate.columns[side])

    def _fits(self, candidate: _Candidate, side: int, tokens: list[int]) -> bool:
        reason = candidate.reasons[side]
        if reason is None:
            assert self.length is not None
            reason = why_dropped(self.model, tokens, self.length)
        if reason is not None:
            self.sides[side].dropped[reason] += 1
        return reason is None


def _chunk(candidates: Iterator[_Candidate], size: int) -> list[_Candidate]:
    """The next candidates until `size` are wanted, or `RARE` times as many were tried."""
    chunk: list[_Candidate] = []
    wanted = 0
    for candidate in islice(candidates, RARE * size):
        chunk.append(candidate)
        wanted += candidate.is_wanted()
        if wanted == size:
            break
    return chunk


def _with_fields(
    task: Task, examples: Iterator[Example], kind: str, where: Mapping[str, str]
) -> Iterator[Example]:
    """The examples, after checking that the prompts of the first ones have the fields."""
    if not where:
        return examples
    first = list(islice(examples, CHUNK))
    candidates = [_Candidate.of(task, example, kind, NO_FIELDS) for example in first]
    for side, name in enumerate(("clean", "corrupted")):
        known = {
            key
            for candidate in candidates
            if (prompt := candidate.prompts[side]) is not None
            for key in (*prompt.spans, *candidate.columns[side])
        }
        for wanted in where:
            if wanted not in known:
                raise UnknownName(f"field of {name} prompts of {task.name}", wanted, sorted(known))
    return chain(first, examples)


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
    """The field of that name, however many labels it has; "century+year" joins the labels of
    several.

    Raises:
        UnknownName: the prompts have no such part. BadUsage: parts of both sides are joined.
    """
    if "+" in name:
        parts = [named_field(part, clean, corrupted) for part in name.split("+")]
        if len({part.side for part in parts}) > 1:
            raise BadUsage(f"A joined field is of one side; got {name!r}.")
        labels = map("".join, zip(*(part.labels for part in parts), strict=True))
        return Field(name, tuple(labels), parts[0].side)
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

    All prompts of a pool have the same number of tokens, so a template with a long text is left
    only with short words, and a long word looks worse than it is. Among prompts of one template
    whose word for a field has one number of tokens, labels are independent of the rest of the
    prompt again. The stratum of a prompt, for a field, is therefore

        (template, number of tokens of the field's text)

    and for the template, which is the prompt without its parts, the number of tokens of its own
    text. If the template hardly ever repeats (texts of random words), the number of tokens
    alone is the stratum.

    Args:
        names: parts of the prompts, or "template". A prompt without the part has 0 tokens for
            it.
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
