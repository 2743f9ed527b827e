"""What stands around a model's name: a checkpoint, `NAME@REVISION`, with the training step that it
names; and `untrained:NAME`, the same architecture with random weights.
"""

from __future__ import annotations

import re
from pathlib import Path

AT = "@"
UNTRAINED = "untrained:"
_STEP = re.compile(r"(?:step|checkpoint)[-_]?(\d+)", re.IGNORECASE)


def split_revision(name: str) -> tuple[str, str]:
    """The model and the revision of "gpt2@step64"; no revision if a file has the whole name."""
    model, at, revision = name.rpartition(AT)
    return (model, revision) if at and not Path(name).exists() else (name, "")


def training_step(revision: str) -> int | None:
    """The step in names such as "step512", "checkpoint-512" and "stage1-step512-tokens2B"; None if
    there is none.
    """
    found = _STEP.search(revision)
    return None if found is None else int(found[1])
