"""Private examples: seeds that only the keeper of a board has, and what may be said of results.

A seed makes examples that nobody else can make. Rotation adds a seed with the name of a new epoch;
results keep the name of theirs, so that each epoch has columns of its own.

Numbers on private examples could be climbed by who hands in again and again. So a submission is
evaluated on them once an epoch, and of its record is published (`published`)

    measures       the number, its interval and its controls, rounded to the digit that the interval
                   resolves: a power of ten that is not above half its width. A number without an
                   interval resolves nothing and is withheld (NaN)
    examples       how many they are; their hash is keyed with the seed: equal for equal examples,
                   and of no use to who has examples and looks for them here

Tables, values of examples, warnings about examples and times are left out. Whoever has the numbers
could still try seeds: a seed is at least 2^40. Rounding limits what one evaluation tells, not what
many do: the Ladder (Blum and Hardt, ICML 2015) also releases nothing that is not better than all
before. Here every number is released, so a seed has to be rotated.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from mechassay.errors import BadFile, BadUsage, first_line
from mechassay.records import Measure, Record
from mechassay.tasks.task import PRIVATE

PRIVATE_RUNS = "private"
"""The folder of private runs, beside the file of seeds."""
EPOCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
LEAST_SEED = 2**40
"""Seeds below are refused: somebody could try them all."""
MOST_SEED = 2**63
OTHERS = 0o077
"""The rights of a file that others than its owner have."""


@dataclass(frozen=True)
class PrivateSeed:
    """The seed of private examples, and the name of the time in which it holds."""

    epoch: str
    seed: int = field(repr=False)


@dataclass(frozen=True)
class PrivateSeeds:
    """Seeds that only the keeper of a board has, the current one last.

    Rotation adds one; results keep the name of the epoch they were measured in.
    """

    epochs: tuple[PrivateSeed, ...]

    @classmethod
    def read(cls, file: Path) -> PrivateSeeds:
        """Read a file of lines `EPOCH SEED`; lines that begin with # are comments.

        Raises:
            BadFile: others can read it, or a line is none; the message never holds a seed.
        """
        try:
            mode = file.stat().st_mode
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            # A decoding error would repeat bytes of the file.
            why = first_line(error.strerror) if isinstance(error, OSError) else "it is no text"
            raise BadFile(f"{file}: cannot be read ({why}).") from None
        if os.name == "posix" and mode & OTHERS:
            raise BadFile(f"{file}: others can read it: chmod 600 {file}")
        found = [
            _seed_of(words, f"{file}: line {number}")
            for number, line in enumerate(lines, 1)
            if (words := line.split()) and not words[0].startswith("#")
        ]
        if not found:
            raise BadFile(f"{file}: has no seed; a line is: EPOCH SEED.")
        names = [seed.epoch for seed in found]
        again = sorted({name for name in names if names.count(name) > 1})
        if again:
            raise BadFile(f"{file}: has the epoch {again[0]} twice.")
        return cls(tuple(found))

    @property
    def current(self) -> PrivateSeed:
        """The one that holds now."""
        return self.epochs[-1]


def _seed_of(words: list[str], where: str) -> PrivateSeed:
    if len(words) != 2 or not EPOCH.fullmatch(words[0]):
        raise BadFile(f"{where}: is not EPOCH SEED, as: 2026-11 SEED.")
    if not (words[1].isascii() and words[1].isdigit() and len(words[1]) < 20):
        raise BadFile(f"{where}: its seed is no whole number below 2^63.")
    if not LEAST_SEED <= int(words[1]) < MOST_SEED:
        raise BadFile(
            f"{where}: a seed is at least 2^40, so that nobody finds it by trying, and below 2^63;"
            " `mechassay leaderboard seed` draws one."
        )
    return PrivateSeed(words[0], int(words[1]))


def add_seed(file: Path, epoch: str) -> int:
    """Draw a seed and put it at the end of a file of seeds; how many there are then.

    Raises:
        BadUsage: the epoch's name is none, or has a seed.
        BadFile: the file cannot be used.
    """
    known = PrivateSeeds.read(file).epochs if file.exists() else ()
    if not EPOCH.fullmatch(epoch):
        raise BadUsage(f"{epoch!r}: the name of an epoch is letters, digits, dots, - and _.")
    if epoch in {seed.epoch for seed in known}:
        raise BadUsage(f"{file}: has a seed of {epoch} already.")
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = LEAST_SEED + secrets.randbelow(MOST_SEED - LEAST_SEED)
    # Nobody else can read it at any moment; a line before may lack its end.
    with open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as stream:
        text = stream.read()
        stream.write(b"\n" * (text[-1:] not in (b"", b"\n")) + f"{epoch} {drawn}\n".encode())
    return len(known) + 1


def resolved_digits(low: float, high: float) -> int | None:
    """Decimal places that an interval resolves: its half width is at least 1 in the last of them.

    None where there is no interval, or an infinite one. One of no width resolves 15 places.
    """
    half = (high - low) / 2
    if math.isnan(half) or math.isinf(half):
        return None
    return min(15, -math.floor(math.log10(half))) if half > 0 else 15


def published(record: Record, seed: PrivateSeed) -> Record:
    """What may be published of a record on private examples; see the module."""
    places = {
        measure.name: resolved_digits(measure.low, measure.high)
        for measure in record.measures
        if measure.of == "result"
    }
    data, keyed = dict(record.data), dict[str, str]()
    for role, selection in record.data.items():
        if selection.split == PRIVATE:
            code = hmac.new(str(seed.seed).encode(), selection.hash.encode(), hashlib.sha256)
            keyed[selection.hash] = code.hexdigest()
            data[role] = selection.model_copy(update={"hash": code.hexdigest()})
    about = record.provenance
    task = record.task.model_copy(update={"args": {**record.task.args, "epoch": seed.epoch}})
    return record.changed(
        task=task,
        data=data,
        provenance=about.model_copy(
            update={"data_hash": keyed.get(about.data_hash, about.data_hash)}
        ),
        measures=[_rounded(each, places.get(each.name)) for each in record.measures],
        tables=[],
        values=None,
        warnings=[],
        realised={},
    )


def _rounded(measure: Measure, places: int | None) -> Measure:
    names = ("value", "low", "high")
    if places is None:
        return measure.model_copy(update=dict.fromkeys(names, math.nan))
    return measure.model_copy(
        update={name: round(getattr(measure, name), places) for name in names}
    )
