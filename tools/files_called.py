"""Which files of the package does a command go through? Functions that are called are counted.

    python tools/files_called.py circuits run -m truth-ioi-trained --method eap -o DIR
    python tools/files_called.py gym run -m gym-neox -t agr_gender -M probe -o DIR

The command runs in this process, without workers. Printed are its files with the number of their
functions that were called, the most first, how many files there are, and how few of them have
80 % of the functions. What only runs while modules are imported does not count.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import FrameType

from mechassay import version
from mechassay.cli.main import main

PACKAGE = str(Path(version.__file__).parent)
COMPREHENSIONS = ("<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def files_called(words: list[str]) -> dict[str, set[tuple[str, int]]]:
    """The functions that a command calls, as name and line, by file below the package."""
    called: dict[str, set[tuple[str, int]]] = defaultdict(set)

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        # Bodies of modules and classes have no local variables of their own.
        is_function = code.co_flags & CO_NEWLOCALS and code.co_name not in COMPREHENSIONS
        if event == "call" and is_function and code.co_filename.startswith(PACKAGE):
            called[code.co_filename.removeprefix(f"{PACKAGE}/")].add(
                (code.co_name, code.co_firstlineno)
            )

    sys.setprofile(note)
    try:
        main(words)
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)
    return called


def report(called: dict[str, set[tuple[str, int]]]) -> str:
    """A line a file, and the two counts."""
    counts = sorted(((len(functions), file) for file, functions in called.items()), reverse=True)
    total, most, so_far = sum(count for count, _ in counts), 0, 0
    while so_far < 0.8 * total:
        so_far += counts[most][0]
        most += 1
    lines = [f"{count:5} {file}" for count, file in counts]
    return "\n".join(
        [*lines, f"{total} functions of {len(counts)} files; 80 % of them stand in {most}"]
    )


if __name__ == "__main__":
    print(report(files_called(sys.argv[1:])))
