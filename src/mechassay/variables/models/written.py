"""How a value is written after a prompt: as the task writes its own answers."""

from __future__ import annotations

from mechassay.examples import Prompt


def space_before(prompt: Prompt) -> str:
    """What stands between a prompt and its continuations; a space where it has none."""
    known = (*prompt.answers, *prompt.choices)
    return known[0][: len(known[0]) - len(known[0].lstrip())] if known else " "
