"""What a service is started with: where its parts are, its limits, and its private seeds.

All that is not said lies in one folder. Addresses may hold passwords and seeds are secret: neither
shows in `repr`, in a message or in a log.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from mechassay.errors import BadFile, BadUsage, first_line

EPOCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
LEAST_SEED = 2**40
"""Seeds below are refused: somebody could try them all."""
MOST_SEED = 2**63
OTHERS = 0o077
"""The rights of a file that others than its owner have."""


@dataclass(frozen=True)
class ServiceLimits:
    """What one submitter may hand in.

    Attributes:
        a_day: submissions in 24 hours.
        at_once: submissions that are not evaluated yet.
    """

    a_day: int = 20
    at_once: int = 5

    def check(self, submitter: str, *, pending: int, today: int) -> None:
        """Refuse one submission more.

        Raises:
            BadUsage: it would be too many.
        """
        if today >= self.a_day:
            raise BadUsage(
                f"{submitter}: {today} submissions in 24 hours; {self.a_day} are allowed."
            )
        if pending >= self.at_once:
            raise BadUsage(
                f"{submitter}: {pending} submissions wait for their evaluation; {self.at_once} may"
                " at once."
            )


@dataclass(frozen=True)
class PrivateSeed:
    """The seed of private examples, and the name of the time in which it holds."""

    epoch: str
    seed: int = field(repr=False)


@dataclass(frozen=True)
class PrivateSeeds:
    """Seeds that only the server has, the current one last.

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


@dataclass(frozen=True)
class ServiceSettings:
    """Where the parts of a service are.

    Attributes:
        folder: of everything that is not said; `scratch` below it is emptied at will.
        database: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/NAME`.
        store: a folder or `s3://BUCKET/PREFIX`.
        track: file of what is evaluated; the track that comes with the package if not said.
        private_seed_file: see `PrivateSeeds`; without it nothing is evaluated on private examples.
        board: folder of a static board, whose rows stand beside the submissions.
    """

    folder: Path = Path("service")
    database: str = field(default="", repr=False)
    store: str = ""
    track: Path | None = None
    private_seed_file: Path | None = None
    limits: ServiceLimits = ServiceLimits()
    board: Path | None = None

    def __post_init__(self) -> None:
        if not self.database:
            file = self.folder.absolute() / "board.sqlite"
            object.__setattr__(self, "database", f"sqlite:///{file}")
        if not self.store:
            object.__setattr__(self, "store", str(self.folder.absolute() / "store"))

    @property
    def scratch(self) -> Path:
        """Folder of what is being worked on."""
        return self.folder / "scratch"

    def seeds(self) -> PrivateSeeds | None:
        """The private seeds, read anew: a rotation needs no restart.

        Raises:
            BadFile: the file of seeds cannot be used.
        """
        return PrivateSeeds.read(self.private_seed_file) if self.private_seed_file else None
