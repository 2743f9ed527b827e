"""Word lists of tasks: those of the package, and which of them a tokenizer writes as one token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from mechassay.alignment import encode
from mechassay.errors import BadPairs


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
