"""What a task is: a maker of examples, the same in all else.

Whatever it is about, a task is

- deterministic: the same arguments give the same examples on any machine, nothing global is
  seeded, and `limit` takes the first of one fixed stream;
- split: train, validation, test and private share no example, no counterfactual prompt, nor the
  words they are made of (a task whose words do not suffice says so);
- aligned: with a model, both prompts of a pair have equally many tokens, and a token tells
  answers from foils; what cannot be aligned is dropped and counted by reason;
- private where it says so: the split "private" depends on a seed that only its keeper knows.

A split never comes out smaller in silence: fewer pairs than asked for are an error with the
counts, and a split taken whole carries them (`Pairs.dropped`).

Rows that belong together go into one split as a whole, so that splits share nothing
(`least_hash`). Word lists of tasks are in `data`; `single_tokens` are those that a tokenizer
writes as one token.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from itertools import accumulate, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mechassay.errors import BadPairs, BadUsage, NoSuchSplit, one_of
from mechassay.prompts.pairs import ABSENT, Example, Examples, Pairs, Unreadable, align_pairs
from mechassay.prompts.tokenization import (
    Aligned,
    Misaligned,
    compared,
    counted_alignments,
    encode,
    tokenizer_of,
)
from mechassay.tasks import KEEP, MOST_PAIRS, Keep
from mechassay.utils.arguments import checked
from mechassay.utils.display import counted, html_facts

if TYPE_CHECKING:
    from jaxtyping import Float, UInt64

PRIVATE = "private"
"""The split whose prompts are never stored."""
PUBLIC_SPLITS = ("train", "validation", "test")
SPLITS = (*PUBLIC_SPLITS, PRIVATE)
ALL = "all"
"""All rows of a file, as a split for runs that fit nothing."""
CHUNK = 256
# Examples looked at for each one wanted, before a tokenizer or a model is found unfit for the task.
PATIENCE = 50
FEWER, COMPARED = "fewer pairs", "compared"
"""Notes on pairs: a split that has fewer than asked for, and what the first pair compares."""


class Task(ABC):
    """A maker of examples: a frozen dataclass whose fields are its settings.

    Attributes:
        name: the name the task is registered under.
        version: grows whenever the same arguments would give other examples.
        counterfactuals: the kinds of counterfactual prompt it can make.
        default_counterfactual: the kind used when none is asked for and no tokenizer is known.
        objective: the objective that fits its answers.
        sizes: examples of each split when no limit is given; a split that is not there is empty.
        published_sizes: those of the paper, of splits that are smaller here; the public data has
            them where a task can read it (`source=hub`, `questions=hub`, or a file).
        seeded: whether a seed decides the examples; where they are read, it does not.
        unfitted_split: the split of runs that fit nothing, if none is named.
    """

    obtained_by: ClassVar[str] = "load_task(name) loads one."

    name: ClassVar[str]
    version: ClassVar[int] = 1
    counterfactuals: ClassVar[tuple[str, ...]]
    default_counterfactual: ClassVar[str]
    objective: ClassVar[str] = "logit_diff"
    sizes: ClassVar[Mapping[str, int]]
    published_sizes: ClassVar[Mapping[str, int]] = MappingProxyType({})

    @property
    def seeded(self) -> bool:
        return True

    @property
    def unfitted_split(self) -> str:
        return "test"

    def _repr_html_(self) -> str:
        sizes = ", ".join(f"{split} {n:,}" for split, n in self.sizes.items() if n)
        facts = {"objective": self.objective, "examples": sizes}
        facts["counterfactuals"] = ", ".join(self.counterfactuals)
        settings = {name: str(value) for name, value in settings_of(self).items()}
        return html_facts(f"Task {self.name}", {**facts, **settings})

    @abstractmethod
    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """The stream of different examples of one split, endless or not.

        Args:
            split: one of `SPLITS`, checked.
            seed: 0 or more; for the private split, the private seed.
            tokenizer: for tasks that choose their words by it; most do not look at it.
        """

    def template(self, tags: Mapping[str, str]) -> str | None:
        """How prompts with these tags are built, counterfactuals too; None where the task does not
        say.
        """
        return tags.get("template")

    def counterfactual_for(self, tokenizer: Any = None) -> str:
        """The kind used when none is asked for; a task may choose it by the tokenizer."""
        return self.default_counterfactual

    def unusable(self, kind: str, tokenizer: Any = None) -> str | None:
        """Why a tokenizer can align no pair of a kind, as far as is known; None where it may."""
        return None

    def notes(self, split: str, tokenizer: Any = None) -> dict[str, str]:
        """What a reader should know of the data beside what was dropped, by what it is about."""
        return {}

    def readings(
        self, split: str, seed: int, tokenizer: Any = None
    ) -> Iterator[Example | Unreadable]:
        """As `generate`, with an `Unreadable` for each example that could not be read."""
        yield from self.generate(split, seed, tokenizer)

    @checked
    def examples(
        self,
        split: str,
        model: Any = None,
        *,
        limit: int | None = None,
        seed: int = 0,
        private_seed: int | None = None,
        fewer: bool = False,
    ) -> Examples:
        """The examples of one split with all their counterfactuals, not filtered by length.

        What cannot be read is counted by reason in `dropped`. Arguments and errors are those of
        `pairs`.
        """
        size = self._size(split, limit)
        dropped: Counter[str] = Counter()
        examples: list[Example] = []
        for example in self._stream(split, tokenizer_of(self.name, model), seed, private_seed):
            if isinstance(example, Example):
                examples.append(example)
            else:
                dropped[example.reason] += 1
            if len(examples) == size:
                break
        if limit is not None and len(examples) < limit and not (fewer and examples):
            raise BadUsage(
                f"Split {split!r} of {self.name} has {len(examples)} examples; asked for {limit}."
            )
        return Examples(examples, dropped)

    @checked
    def pairs(
        self,
        split: str,
        model: Any = None,
        *,
        limit: int | None = None,
        counterfactual: str | None = None,
        keep: Keep = "all",
        seed: int = 0,
        private_seed: int | None = None,
        fewer: bool = False,
    ) -> Pairs:
        """The pairs of one split.

        Args:
            split: one of `SPLITS`.
            model: a model with a `tokenizer`, or a tokenizer: only pairs that it can compare
                token by token. None: no filtering.
            limit: how many pairs, the first of the stream. None: the task's own size of the split,
                or as many as there are.
            counterfactual: one of `counterfactuals`. None: that of `counterfactual_for`.
            keep: "base", "counterfactual" or "both": only examples whose prompts of that kind the
                model completes greedily with a right answer. Prompts that nothing completes are
                kept. Needs a model.
            seed: another seed, other pairs. The private split does not use it.
            private_seed: takes the place of `seed` for the split "private", where it is required.
            fewer: whether a split with fewer pairs than the limit gives what it has, with a note,
                in place of an error.

        Raises:
            UnknownName: no such split, counterfactual or filter.
            BadUsage: a limit below 1, above `MOST_PAIRS` or above what the split has, a negative
                seed, or no seed for the private split.
            BadPairs: the tokenizer or the filter leaves too little; the message has the counts.
        """
        tokenizer = tokenizer_of(self.name, model)
        kind = self.counterfactual_for(tokenizer) if counterfactual is None else counterfactual
        one_of("counterfactual", kind, self.counterfactuals)
        one_of("filter", keep, KEEP)
        size = self._size(split, limit)
        reason = self.unusable(kind, tokenizer)
        if reason is not None:
            raise BadPairs(f"No pair of {kind} of {self.name} can be compared: {reason}.")
        stream = self._stream(split, tokenizer, seed, private_seed)
        chosen = _Chosen(kind, keep, tokenizer, model)
        while len(chosen.pairs) < size and chosen.looked_at < PATIENCE * size + CHUNK:
            chunk = list(islice(stream, min(CHUNK, 2 * (size - len(chosen.pairs)) + 8)))
            if not chunk:
                break
            chosen.take(chunk, size)
        source = {
            "task": self.name,
            "version": self.version,
            "split": split,
            "counterfactual": kind,
            "keep": keep,
        }
        # The private seed is a secret: it is never stored.
        source |= {"settings": settings_of(self)} | ({} if split == "private" else {"seed": seed})
        notes = dict(self.notes(split, tokenizer))
        if fewer and limit is not None and 0 < len(chosen.pairs) < limit:
            notes[FEWER] = fewer_text(split, len(chosen.pairs), "pair", limit)
        if split != PRIVATE and chosen.compared:
            notes[COMPARED] = chosen.compared
        source |= {"notes": notes} if notes else {}
        source |= {"alignment": chosen.alignment} if any(chosen.alignment.values()) else {}
        pairs = Pairs(chosen.pairs, source=source, dropped=chosen.dropped)
        if not pairs or (limit is not None and len(pairs) < limit and not fewer):
            raise _too_few(self, split, pairs, size)
        return pairs

    def _size(self, split: str, limit: int | None) -> int:
        one_of("split", split, SPLITS)
        if limit is not None and not 1 <= limit <= MOST_PAIRS:
            raise BadUsage(
                f"{self.name} gives 1 to {MOST_PAIRS:,} pairs; got a limit of {limit:,}."
            )
        if split not in self.sizes:
            raise self._no_split(split)
        return limit or self.sizes[split]

    def _no_split(self, split: str) -> NoSuchSplit:
        known = ", ".join(self.sizes)
        return NoSuchSplit(
            f"{self.name} has no split {split!r}, only {known}: ask for one of those."
        )

    def _stream(
        self, split: str, tokenizer: Any, seed: int, private_seed: int | None
    ) -> Iterator[Example | Unreadable]:
        if split == "private" and self.seeded:
            if private_seed is None:
                raise BadUsage(
                    f"The private split of {self.name!r} needs private_seed, which only the keeper"
                    " of the private test knows; got none."
                )
            seed = private_seed
        if seed < 0:
            raise BadUsage(f"A seed must be 0 or more; got {seed}.")
        return self.readings(split, seed, tokenizer)


class _Chosen:
    """Pairs taken from a stream so far, and what was dropped."""

    def __init__(self, kind: str, keep: Keep, tokenizer: Any, model: Any) -> None:
        self.kind, self.keep, self.tokenizer, self.model = kind, keep, tokenizer, model
        self.pairs: list[Any] = []
        self.dropped: Counter[str] = Counter()
        self.alignment: Counter[str] = Counter()
        self.looked_at = 0
        self.compared = ""

    def take(self, chunk: Sequence[Example | Unreadable], size: int) -> None:
        """Add what is fit, up to `size` pairs; nothing after the last one taken is looked at."""
        alignments = aligned(chunk, self.kind, self.tokenizer, self.model)
        reasons = [
            alignment.reason if isinstance(alignment, Misaligned) else None
            for alignment in alignments
        ]
        fit = {
            row: example
            for row, example in enumerate(chunk)
            if isinstance(example, Example) and reasons[row] is None
        }
        wrong = self._wrong(fit)
        for row, reason in enumerate(reasons):
            if len(self.pairs) == size:
                return
            self.looked_at += 1
            reason = reason or wrong.get(row)
            if reason is None:
                self.pairs.append(fit[row].pair(self.kind))
                alignment = alignments[row]
                if isinstance(alignment, Aligned):
                    self.compared = self.compared or compared(alignment, self.tokenizer)
                    self.alignment.update(counted_alignments([alignment]))
            else:
                self.dropped[reason] += 1

    def _wrong(self, examples: Mapping[int, Example]) -> dict[int, str]:
        """Rows that the model gets wrong where `keep` asks for right ones."""
        if self.keep == "all" or not examples:
            return {}
        from mechassay.tasks.accuracy import needs_model, score_prompts

        model = needs_model(self.model, f"keep={self.keep!r}")
        wrong: dict[int, str] = {}
        for side in ("counterfactual", "base"):
            if self.keep not in (side, "both"):
                continue
            prompts = [
                example.prompt if side == "base" else example.counterfactuals[self.kind]
                for example in examples.values()
            ]
            # A prompt that nothing completes is NaN: there is nothing to get wrong.
            for row, right in zip(examples, score_prompts(model, prompts).greedy, strict=True):
                if right == 0:
                    wrong[row] = f"model wrong on {side}"
        return wrong


def aligned(
    examples: Sequence[Example | Unreadable], kind: str, tokenizer: Any, model: Any = None
) -> list[Aligned | Misaligned | None]:
    """Return how the tokens of each example's pair are aligned, or why the pair cannot be used.

    Args:
        model: a prompt that is longer than its positions cannot be used.

    Returns:
        One entry an example; None is a pair that can be used, but has no tokens without a
        tokenizer.
    """
    alignments: list[Aligned | Misaligned | None] = [_misfit(example, kind) for example in examples]
    if tokenizer is not None:
        pairs = {
            row: example.pair(kind)
            for row, example in enumerate(examples)
            if isinstance(example, Example) and alignments[row] is None
        }
        aligned_pairs = align_pairs(list(pairs.values()), tokenizer)
        for row, alignment in zip(pairs, aligned_pairs, strict=True):
            alignments[row] = _short_enough(alignment, model)
    return alignments


def _short_enough(alignment: Aligned | Misaligned, model: Any) -> Aligned | Misaligned:
    """Return the alignment, or that its prompt is longer than the model's positions."""
    longest = getattr(getattr(model, "decoder", None), "longest", None)
    if longest is None or isinstance(alignment, Misaligned):
        return alignment
    if len(alignment.clean) <= longest - len(model.prepend):
        return alignment
    reason = f"longer than the model's {longest:,} positions"
    return Misaligned(reason, f"the prompt has {len(alignment.clean)} tokens")


def _misfit(example: Example | Unreadable, kind: str) -> Misaligned | None:
    """Why an example has no pair of a kind, whatever the tokenizer."""
    if isinstance(example, Unreadable):
        return Misaligned(example.reason, example.message)
    if kind in example.counterfactuals:
        return None
    reason = example.unread.get(kind, ABSENT)
    return Misaligned(reason, f"there is no {kind!r} of this example")


def _too_few(task: Task, split: str, pairs: Pairs, size: int) -> BadPairs:
    # A data set that is read has no size of its own.
    wanted = "" if size == sys.maxsize else f" of {size} asked for"
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(pairs.dropped.items()))
    return BadPairs(
        f"Split {split!r} of {task.name} has {len(pairs)} usable pairs{wanted}; dropped:"
        f" {dropped or 'none'}."
    )


def fewer_text(split: str, n: int, one: str, limit: int) -> str:
    """Say that a split has fewer pairs or examples than the limit of a run."""
    where = "the rows of the file give" if split == ALL else f"the split {split} gives"
    return f"{where} {counted(n, one)}; the limit is {limit}"


def split_rng(split: str, seed: int) -> np.random.Generator:
    """The random numbers of one split; no two (seed, split) share any."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(SPLITS.index(split),)))


def settings_of(task: Task) -> dict[str, Any]:
    """A task's settings, its dataclass fields, as plain values."""
    by_contract: Any = task  # A dataclass, which no protocol can say.
    return {field.name: getattr(task, field.name) for field in fields(by_contract) if field.repr}


# 60 % train, 20 % validation, 20 % test.
SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}
HASH_BYTES = 8
NONE = 0
NO_HASH = NONE.to_bytes(HASH_BYTES, "little")
# What others call our splits, in lower case.
USUAL_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing"),
    "private": ("private",),
}


def names_of(split: str) -> tuple[str, ...]:
    """The usual names of one of our splits, ours first."""
    return USUAL_NAMES.get(split, (split,))


def split_named(name: str) -> str | None:
    """Our split of a usual name, in whatever case and with space around it; None if it is none."""
    plain = name.strip().lower()
    return next((split for split, names in USUAL_NAMES.items() if plain in names), None)


def text_hash(text: str, kind: bytes = b"") -> bytes:
    """The hash of a text, 8 bytes, least first; texts of another kind (up to 16 bytes) never share
    it.
    """
    return blake2b(text.encode(), digest_size=HASH_BYTES, person=kind).digest()


def share_of(text: str) -> str:
    """The split of a text of which nothing but its hash says where it belongs."""
    place = int.from_bytes(text_hash(text), "little") * 2.0**-64
    ends = zip(SHARES, accumulate(SHARES.values()), strict=True)
    # The shares may add up to a little less than 1.
    return next((name for name, end in ends if place < end), [*SHARES][-1])


def hash_columns(*columns: Sequence[bytes]) -> UInt64[np.ndarray, "rows columns"]:
    """Hashes of rows as numbers, from one list a column; `NO_HASH` where a row has none."""
    numbers = [np.frombuffer(b"".join(column), "<u8") for column in columns]
    return np.stack(numbers, axis=1).astype(np.uint64)


def least_hash(hashes: UInt64[np.ndarray, "rows columns"]) -> UInt64[np.ndarray, "rows"]:
    """The least hash of each row's component. `NONE` connects nothing; a first column has none of
    it.

    What two rows have in common (a prompt, a group, a word) is given as equal 64-bit hashes.
    Rows that share one are connected, directly or through others, and a connected component
    goes into one split as a whole. It is known by its least hash, so that nothing depends on
    the order of the rows.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    values, nodes = np.unique(hashes, return_inverse=True)
    nodes = nodes.reshape(hashes.shape)
    linked = [
        (nodes[there, 0], nodes[there, column])
        for column in range(hashes.shape[1])
        for there in [hashes[:, column] != NONE]
    ]
    begin, end = np.concatenate([a for a, _ in linked]), np.concatenate([b for _, b in linked])
    graph = coo_array(
        (np.ones(len(begin), dtype=np.bool_), (begin, end)), shape=(len(values), len(values))
    )
    _, component = connected_components(graph, directed=False)
    # Values are sorted, so the first of a component is its least.
    _, first = np.unique(component, return_index=True)
    return values[first][component[nodes[:, 0]]]


def uniform(hashes: UInt64[np.ndarray, "rows"]) -> Float[np.ndarray, "rows"]:
    """A number in [0, 1) for each hash, also where the hash is the least of several."""
    # The finalizer of SplitMix64 (Steele et al. 2014); uint64 arithmetic wraps around.
    mixed = hashes + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def allotted(
    components: UInt64[np.ndarray, "rows"],
    shares: Mapping[str, float],
    least: int,
    *,
    by_rows: bool = True,
) -> list[str]:
    """Allot the components of rows to splits: the largest component first, to the split that lacks
    most of its share.

    Args:
        components: the component of each row, see `least_hash`. Components of one size come in the
            order of a hash.
        shares: the share of each split.
        least: components that each split gets before any split gets more.
        by_rows: whether shares are shares of the rows; else of the components.

    Returns:
        The split of each row.
    """
    sizes = Counter(components.tolist())
    values = np.unique(components)
    largest_first = np.array([-sizes[value] for value in values.tolist()])
    total = len(components) if by_rows else len(values)
    held, n_components = dict.fromkeys(shares, 0), dict.fromkeys(shares, 0)
    split_of: dict[int, str] = {}
    for value in values[np.lexsort((uniform(values), largest_first))].tolist():
        short = [split for split in shares if n_components[split] < least and shares[split] > 0]
        lacking = {split: shares[split] * total - held[split] for split in shares}
        split_of[value] = short[0] if short else max(lacking, key=lambda split: lacking[split])
        held[split_of[value]] += sizes[value] if by_rows else 1
        n_components[split_of[value]] += 1
    return [split_of[value] for value in components.tolist()]


@cache
def word_lists(name: str) -> Any:
    """The contents of data/`name`.json."""
    file = files("mechassay.tasks").joinpath(f"data/{name}.json")
    return json.loads(file.read_text(encoding="utf-8"))


def single_tokens(
    texts: Sequence[str], before: Sequence[str], tokenizer: Any, *, what: str, least: int = 0
) -> tuple[str, ...]:
    """Texts that add exactly one known token to whatever stands before them, without their space.

    Args:
        before: the contexts; unknown tokens do not count, they would all look alike to a model.
        what: "IOI needs names", for the error.

    Raises:
        BadPairs: there are fewer than `least`.
    """
    kept, unknown = list(texts), tokenizer.unk_token_id
    for context in before:
        base, *encoded = encode(tokenizer, [context, *(context + text for text in kept)])
        kept = [
            text
            for text, ids in zip(kept, encoded, strict=True)
            if len(ids) == len(base) + 1 and ids.count(unknown) == base.count(unknown)
        ]
    if len(kept) < least:
        label = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        who, _, kind = what.partition(" needs ")
        raise BadPairs(
            f"{who} needs at least {least} {kind} that are single tokens; tokenizer {label!r} has"
            f" {len(kept)} of {len(texts)}."
        )
    return tuple(text.removeprefix(" ") for text in kept)


OWN, PAPER, PAPER_MATCHED = "own", "paper", "paper-matched"
PAPER_SIZES = {"train": 10_000, "validation": 1_000, "test": 1_000}
_FIFTHS = ("test", "test", "test", "train", "validation")


def owner(*places: int) -> str:
    """The split of words by their places in their lists, in any order.

    It divides the words of Uit de Bos and Garriga-Alonso (2024) among splits. The lists
    (`data/paper.json`) are those of the paper's public code
    (Nielius/AdversarialCircuitEvaluation), after Wang et al. (2023), Hanna et al. (2023) and
    Heimersheim and Janiak (2023):

        ioi            99 names, 8 places, 8 objects; ABBA only, one template for each
                       population: "paper" for unmatched pairs (tables 3 and 4), "paper-matched"
                       for matched ones
        greater-than   120 nouns
        docstring      111 names, 687 words; 59 are both

    The paper has no splits. Here every split has all words, and prompts are kept apart by what
    all prompts of an example share: the two people of the first clause, the noun with its
    century, the name of the function. Three fifths of these belong to test, one fifth each to
    train and validation. There is no private split, as the words are public and few.
    """
    return _FIFTHS[sum(places) % len(_FIFTHS)]
