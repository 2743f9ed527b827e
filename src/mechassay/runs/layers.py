"""Layers as they are typed."""

from __future__ import annotations

from mechassay.errors import BadUsage

MANY = 1_000
"""Layers, before a model is known."""


def layers_of(text: str, n_layers: int) -> tuple[int, ...] | None:
    """Layers as they are typed: all (None), numbers, or a slice of all as in Python.

    Raises:
        BadUsage: neither, or none of the model's layers.
    """
    if text == "all":
        return None
    try:
        if ":" in text:
            parts = [int(x) if x.strip() else None for x in text.split(":")]
            found = tuple(range(n_layers))[slice(*parts)]
        else:
            found = tuple(int(x) for x in text.split(","))
    except (ValueError, TypeError):
        raise BadUsage(
            f"Layers are all, numbers such as 0,3,6, or a slice such as ::3; got {text!r}."
        ) from None
    if not found:
        raise BadUsage(f"Layers {text} are none of the model's, 0 to {n_layers - 1}.")
    return found
