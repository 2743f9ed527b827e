"""Folders that others hand in: what is wrong with them, all of it at once.

Such a folder is data. Only regular files inside it are opened, no link that leads out of it, and
nothing in a file is executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mechassay.errors import BadFile, MechassayError, first_line
from mechassay.text import shortened

BESIDE = frozenset({"README.md", "LICENSE", ".gitattributes", ".gitignore", ".git", ".cache"})
"""What else belongs to a repository on the Hugging Face hub."""
LEADS_OUT = "a link that leads out of the submission; it was not followed. Copy the file here."
CODE = "code, which is never run: a folder holds data alone."
MOST_PROBLEMS, LONGEST = 200, 500
"""Problems of a report, and letters of one."""
LARGEST_JSON = 10**7
"""Bytes of a JSON file from which on it is not opened."""

FoundT = TypeVar("FoundT")


@dataclass(frozen=True)
class Problem:
    """What is wrong with a part of a submission; `path` is relative to its folder.

    Attributes:
        warning: the submission is valid, but a board may skip the file or read it otherwise.
    """

    path: str
    message: str
    warning: bool = False


class Problems(list[Problem]):
    """Problems, collected while the rest is read."""

    def note(self, path: str, message: str, *, warning: bool = False) -> None:
        """Add one."""
        self.append(Problem(path, message, warning))

    def tried(
        self, path: str, read: Callable[[], FoundT], file: Path | None = None
    ) -> FoundT | None:
        """What `read` returns; None, with one problem more, if it refuses.

        Args:
            file: what the message need not name again.
        """
        try:
            return read()
        except MechassayError as error:
            self.note(path, str(error).removeprefix(f"{file}: "))
            return None

    @property
    def errors(self) -> list[Problem]:
        """Those that are no warnings."""
        return [problem for problem in self if not problem.warning]

    def short(self) -> Problems:
        """As a report has them: at most `MOST_PROBLEMS`, mistakes first then, none of them long."""
        many = len(self) > MOST_PROBLEMS
        ordered = sorted(self, key=lambda problem: problem.warning) if many else self
        found = Problems(
            Problem(shortened(each.path, LONGEST), shortened(each.message, LONGEST), each.warning)
            for each in ordered[:MOST_PROBLEMS]
        )
        if left := ordered[MOST_PROBLEMS:]:
            wrong = sum(not each.warning for each in left)
            said = f"and {len(left):,} more, {wrong:,} of them mistakes."
            found.note(".", said, warning=not wrong)
        return found

    def refuse(self, folder: Path, lists: str = "mechassay variables validate") -> None:
        """Refuse the folder if there are errors.

        Args:
            lists: the command that lists all of them.

        Raises:
            BadFile: the first of them, and how many more there are.
        """
        errors = self.errors
        if errors:
            first, more = errors[0], len(errors) - 1
            also = f" ({more} more: `{lists}` lists all.)" if more else ""
            raise BadFile(f"{folder / first.path}: {first.message}{also}")


def leads_out(path: Path, root: Path) -> bool:
    """Whether a path is a link out of a folder; judged without opening what it leads to."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def read_json(path: Path, largest: int | None = None) -> dict[str, Any]:
    """The object that a JSON file of others holds.

    Args:
        largest: bytes that it may have; `LARGEST_JSON` where None.

    Raises:
        BadFile: missing, too large, no JSON, or no object.
    """
    told = read_small_json(path, largest)
    if not isinstance(told, dict):
        raise BadFile(f"{path}: holds a JSON {type(told).__name__}; expected an object.")
    return told


def read_small_json(path: Path, largest: int | None = None) -> Any:
    """What a JSON file of others holds.

    Args:
        largest: bytes that it may have; `LARGEST_JSON` where None.

    Raises:
        BadFile: missing, too large, or no JSON.
    """
    if not path.is_file():
        raise BadFile(f"{path}: there is no such file.")
    largest = LARGEST_JSON if largest is None else largest
    if path.stat().st_size > largest:
        raise BadFile(f"{path}: has more than {largest // 10**6} MB; it was not opened.")
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{path}: not readable as JSON ({first_line(error)}).") from None
