"""The exception tree. Every message says who refused, what was allowed and what was given.

The command line prints the message on one line and exits with 2 for wrong usage (`usage = True`),
else with 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import ClassVar, TypeVar


class MechassayError(Exception):
    """Base of all errors raised on purpose: one line for the person who typed the call."""

    usage = False


class BadUsage(MechassayError, ValueError):
    """An argument that is not allowed."""

    usage = True


class OtherContent(BadUsage):
    """A folder holds results of other content.

    Attributes:
        changes: a phrase for each changed model, task or file.
    """

    def __init__(self, changes: Sequence[str], message: str) -> None:
        super().__init__(message)
        self.changes = tuple(changes)


class UnknownName(BadUsage):
    """A name nobody registered. The message carries the nearest valid one, and all, each once; of
    more than `MANY` the nearest few, and how many others there are. `note` is put at its end, and
    `meant` has aliases of known names.
    """

    MANY: ClassVar[int] = 60
    FEW: ClassVar[int] = 10

    def __init__(
        self,
        kind: str,
        name: str,
        allowed: Iterable[str],
        note: str = "",
        meant: Mapping[str, str] | None = None,
    ) -> None:
        known = sorted(set(allowed))
        close = nearest(name, known, meant or {})
        hint = f" Did you mean {close!r}?" if close else ""
        names = ", ".join(known) or "none"
        if len(known) > self.MANY:
            near = get_close_matches(name, known, n=self.FEW, cutoff=0.0)
            names = f"{', '.join(near)}, and {len(known) - len(near):,} others"
        more = f" {note}" if note else ""
        super().__init__(f"Unknown {kind} {name!r}.{hint} Known: {names}.{more}")


def nearest(name: str, known: Sequence[str], meant: Mapping[str, str]) -> str:
    """Return the known name that a mistyped name most likely stands for; "" if there is none.

    A known name that begins with the typed letters is preferred, the shortest of several; then the
    name of an alias that begins with them; then the name or alias with the least edit distance.

    Args:
        meant: aliases, each with its known name.
    """
    plain = name.lower().replace("_", "-")
    if len(plain) > 1:
        begins = [candidate for candidate in known if candidate.lower().startswith(plain)]
        if begins:
            return min(begins, key=len)
        begins = [meant[alias] for alias in meant if alias.startswith(plain)]
        if begins:
            return begins[0]
    close = get_close_matches(name, [*known, *meant], n=1, cutoff=0.5)
    return meant.get(close[0], close[0]) if close else ""


def first_line(error: object) -> str:
    """Return the message of an error in one line; its class if it has none. The message of a file
    that cannot be read is the reason, without the number and the path.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


ChoiceT = TypeVar("ChoiceT", bound=str)


def one_of(kind: str, value: str, choices: Collection[ChoiceT]) -> ChoiceT:
    """The value as one of its choices, such as the arguments of a `Literal`; else UnknownName."""
    for choice in choices:
        if choice == value:
            return choice
    raise UnknownName(kind, value, choices)


class NoSuchSplit(BadUsage):
    """A split that a task or a file does not have."""


class UnsupportedModel(MechassayError):
    """A model whose architecture the engine cannot decode."""

    usage = True


class ModelNotFetched(MechassayError):
    """A packaged model that is not on this machine yet."""

    usage = True


class SelfCheckFailed(MechassayError):
    """The decoded model and the original differ; the message says which part."""


class BadPairs(MechassayError):
    """Pairs that cannot be compared: unequal lengths, coinciding answers, an empty split."""

    usage = True


class GraphMismatch(MechassayError):
    """Scores or circuits made on another graph than the model's."""

    usage = True


class BadFile(MechassayError):
    """A truncated, foreign or unsafe file."""

    usage = True


class NonFinite(MechassayError):
    """NaN or infinite activations, metrics or scores."""


class OutOfMemory(MechassayError):
    """Not enough memory for even one example."""


class DiskFull(MechassayError):
    """Not enough room for what would be written."""

    @classmethod
    def of(
        cls, path: object, needed: int, free: int, *, what: str = "the file", at_least: bool = False
    ) -> DiskFull:
        """Where there is no room, for how many bytes, and how many are free."""
        size = f"{'more than ' * at_least}{_size(needed)}"
        return cls(f"{path}: the disk is full: {what} needs {size}; {_size(free)} are free.")


def _size(count: int) -> str:
    """Bytes in the largest unit that they fill: `84 kB`, `1.4 MB`."""
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if count >= 1000**power:
            return f"{count / 1000**power:.3g} {unit}"
    return f"{count:,} bytes"


class JudgeFault(MechassayError):
    """A judge that cannot be asked now, as when its server is busy; asking again may help.

    Attributes:
        wait: seconds that it asks to be left alone; 0 if it says nothing.
    """

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class InvalidAnswer(MechassayError):
    """An answer of a judge that is cut off or not of the form that was asked for."""


class NoAnswer(MechassayError):
    """A judge that refuses a request, or gave no valid answer."""


class MissingExtra(MechassayError):
    """An optional dependency that is not installed."""

    usage = True

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}: pip install 'mechassay[{extra}]'."
        )
