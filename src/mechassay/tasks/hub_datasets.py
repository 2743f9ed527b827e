"""Public data sets with the schema of MIB (Mueller et al. 2025): tasks that read and write them.

A row is plain JSON: the prompt with its answer, and one struct {prompt, ...} for each kind of
counterfactual, under the column names of `mib-worker/*` on the Hugging Face hub. A `PublicTask`
generates such examples itself (`source="own"`), or reads them from the hub (`source="hub"`) or
from a folder with one file a split (train.jsonl, .json or .parquet); `rows` writes what it
generates.

A row that cannot be read is dropped, and counted by reason in `Pairs.dropped`; a counterfactual
that cannot be read is left out of its row. If no row of a split can be read, that is an error
with the reasons. Nothing of a data set is executed.

Whether the hub can be reached is asked once and with a deadline: without a network its own
clients try again and again, for tens of seconds. Any answer counts, an error too: what it means
is for the client to say. Proxies are those of the environment.
"""

from __future__ import annotations

import ssl
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from mechassay.errors import BadFile, BadUsage, MissingExtra, first_line
from mechassay.prompts.pairs import Example, Unreadable
from mechassay.prompts.rows import read_rows
from mechassay.tasks.scoring import Scoring
from mechassay.tasks.task import Task, names_of

# Seconds until the hub has answered, looking up its name included.
DEADLINE = 2.5


def reachable(repo: str, endpoint: str) -> None:
    """Refuse a data set that would have to come from a hub which does not answer.

    Args:
        repo: the data set, for the message.
        endpoint: the hub's address.

    Raises:
        BadFile: no answer within `DEADLINE`.
    """
    answers: list[str] = []
    # Looking up a name has no time limit of its own, so the question has a thread to be left in.
    asking = Thread(target=lambda: answers.append(_asked(endpoint)), daemon=True)
    asking.start()
    asking.join(DEADLINE)
    refused = answers[0] if answers else f"no answer within {DEADLINE:g} s"
    if refused:
        raise BadFile(
            f"{repo}: the hub cannot be reached at {endpoint} ({refused}); HF_HUB_OFFLINE=1 reads"
            " what is cached, and source may be a folder of its rows."
        )


def _asked(endpoint: str) -> str:
    """Why an address does not answer; empty if it does."""
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=DEADLINE):
            return ""
    except HTTPError:
        return ""
    except URLError as error:
        # The client has certificates of its own; a server is there in any case.
        return (
            "" if isinstance(error.reason, ssl.SSLError) else first_line(error.reason).rstrip(".")
        )
    except (OSError, ValueError) as error:
        return first_line(error).rstrip(".")


ROW_FILES = (".jsonl", ".json", ".parquet")

T = TypeVar("T")


class BadRow(ValueError):
    """A row that does not say what it should.

    Attributes:
        reason: the kind of mistake, to count by.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


# What reading a value of the wrong kind, or one that is not there, raises.
ROW_ERRORS = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def reason_of(error: Exception) -> str:
    """The kind of mistake that made a row unreadable."""
    if isinstance(error, BadRow):
        return error.reason
    return f"a row without {error}" if isinstance(error, KeyError) else "a row of another form"


@dataclass(frozen=True)
class PublicData:
    """Where a data set is on the hub.

    Attributes:
        repo: its id; the private test set is `repo` + "_private_test", for those who may read it.
        config: its configuration, if it has several.
        splits: their name of each of our splits, where it is not the same.
    """

    repo: str
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=dict)

    def split(self, ours: str) -> str:
        """Their name of a split; the private test set calls its only one "test"."""
        ours = "test" if ours == "private" else ours
        return self.splits.get(ours, ours)


# Kinds of mistakes that a message names.
NAMED = 4


class PublicTask(Task):
    """A task with a public data set of its own schema: a dataclass with a field `source`.

    Attributes:
        source: "own" (generated here), "hub", or a folder with one file a split.
        public: where the data set is.
        mib_scoring: how MIB scores what a model writes.
    """

    source: str
    public: ClassVar[PublicData]
    mib_scoring: ClassVar[Scoring]

    @property
    def seeded(self) -> bool:
        return self.source == "own"

    def _size(self, split: str, limit: int | None) -> int:
        """A data set that is read has the size it has."""
        size = super()._size(split, limit)
        return size if limit is not None or self.seeded else sys.maxsize

    @abstractmethod
    def invent(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """The stream of generated examples, see `Task.generate`."""

    @abstractmethod
    def from_row(self, row: Mapping[str, Any], id: str) -> Example:
        """The example that a row of the public schema holds."""

    @abstractmethod
    def to_row(self, example: Example) -> dict[str, Any]:
        """An example as plain JSON values in the public schema."""

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """Generated examples, or those of the data set in its own order, as far as they can be
        read.

        Raises:
            BadFile: there are rows, but none can be read; or the data set itself cannot.
        """
        return (
            reading
            for reading in self.readings(split, seed, tokenizer)
            if isinstance(reading, Example)
        )

    def readings(
        self, split: str, seed: int, tokenizer: Any = None
    ) -> Iterator[Example | Unreadable]:
        """As `generate`, with an `Unreadable` in the place of each row that cannot be read."""
        if self.source == "own":
            yield from self.invent(split, seed, tokenizer)
            return
        wrong: Counter[str] = Counter()
        first, number = "", 0
        for number, row in enumerate(public_rows(self.source, self.public, split), 1):
            id = f"{self.name}-{split}-{number - 1:06d}"
            try:
                yield self.from_row(row, id)
            except ROW_ERRORS as error:
                reason, message = reason_of(error), first_line(error).rstrip(".")
                message = f"no {error}" if isinstance(error, KeyError) else message
                first = first or f"row {number}: {message}"
                wrong[reason] += 1
                yield Unreadable(id, reason, f"row {number} of {self.source} ({split}): {message}")
        if number and wrong.total() == number:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in wrong.most_common(NAMED))
            raise BadFile(
                f"{self.source} ({split}): none of {number:,} rows is one of {self.public.repo}:"
                f" {reasons} ({first})."
            )

    def read_counterfactuals(
        self, row: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]
    ) -> tuple[dict[str, T], dict[str, str]]:
        """The counterfactuals of a public row that can be read, and why others cannot.

        A struct that is null, or whose prompt is, is not there.
        """
        parsed: dict[str, T] = {}
        unread: dict[str, str] = {}
        for kind in self.counterfactuals:
            struct = row.get(kind)
            if not struct or (isinstance(struct, Mapping) and struct.get("prompt") is None):
                continue
            try:
                parsed[kind] = read(struct)
            except ROW_ERRORS as error:
                unread[kind] = f"its counterfactual: {reason_of(error)}"
        return parsed, unread

    def rows(
        self,
        split: str,
        model: Any = None,
        *,
        limit: int | None = None,
        seed: int = 0,
        private_seed: int | None = None,
    ) -> list[dict[str, Any]]:
        """The examples of a split in the public schema; arguments and errors as of `pairs`."""
        chosen = self.examples(split, model, limit=limit, seed=seed, private_seed=private_seed)
        return [self.to_row(example) for example in chosen]


def public_rows(source: str, public: PublicData, split: str) -> Iterable[Mapping[str, Any]]:
    """Rows of one split, from the hub or a folder.

    Raises:
        MissingExtra: `datasets` (hub) or `pyarrow` (parquet) is not installed.
        BadFile: no such data set, split or file, or one that cannot be read.
    """
    if source != "hub":
        name = split if split == "private" else public.split(split)
        return [row for _, row in read_rows(_split_file(Path(source), name))]
    try:
        from datasets import config, load_dataset
    except ImportError as error:
        raise MissingExtra("Reading data sets from the hub", "datasets", "hub") from error
    repo = public.repo + ("_private_test" if split == "private" else "")
    # In its offline mode the client reads what is cached, and asks nobody.
    if not config.HF_HUB_OFFLINE:
        reachable(repo, config.HF_ENDPOINT)
    try:
        dataset: Any = load_dataset(repo, public.config, split=public.split(split))
        return dataset
    except (OSError, ValueError, RuntimeError) as error:
        raise BadFile(
            f"{repo}{f' ({public.config})' if public.config else ''}, split"
            f" {public.split(split)!r}: {first_line(error).rstrip('.')}."
        ) from error


def _split_file(folder: Path, split: str) -> Path:
    if not folder.is_dir():
        raise BadUsage(
            f'A source is "own", "hub" or a folder with one file a split; got {str(folder)!r}.'
        )
    for name in dict.fromkeys((split, *names_of(split))):
        for suffix in ROW_FILES:
            if (file := folder / f"{name}{suffix}").is_file():
                return file
    raise BadFile(f"{folder}: no {split}.jsonl, {split}.json or {split}.parquet there.")
