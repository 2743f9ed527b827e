"""Rotary tables of a model's own modules, one for each prompt where the prompt's length matters.

Two types of scaling choose their frequencies by the largest position of a forward pass:

    longrope    one set of frequencies up to a limit, another one beyond it
    dynamic     beyond the limit, frequencies that depend on the length

In a batch, the longest prompt would decide for all prompts. Here prompts are grouped by the
frequencies that each prompt has alone, so its values do not depend on its neighbours. The module of
a dynamic table also remembers its longest prompt, so a fresh module is made from the configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Rotary = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(a tensor giving dtype and device, positions [batch, pos]) -> cos, sin [batch, pos, rotary]."""


@dataclass(frozen=True, eq=False)
class RotaryTable:
    """Cosines and sines of positions, computed by a module of the original model.

    Attributes:
        make: returns a module to call; a fresh module if its state matters.
        limit: the longest prompt with the first frequencies; None if all prompts have these.
        by_length: whether every length beyond the limit has its own frequencies.
    """

    make: Callable[[], Rotary]
    limit: int | None = None
    by_length: bool = False

    @classmethod
    def of(cls, table: Rotary) -> RotaryTable:
        """Make the table of a rotary module of transformers, or of any function of positions.

        A module with a table for each type of layer comes as `partial(module, layer_type=...)`.
        """
        kind = table.keywords.get("layer_type") if isinstance(table, partial) else None
        module: Any = table.func if isinstance(table, partial) else table
        config, scaling = getattr(module, "config", None), getattr(module, "rope_type", None)
        if kind is not None and isinstance(scaling, dict):
            scaling = scaling[kind]
        if not isinstance(scaling, str) or config is None:
            return cls(lambda: table)
        if scaling == "longrope":
            own = config.rope_parameters.get(kind, config.rope_parameters)
            return cls(lambda: table, int(own["original_max_position_embeddings"]))
        if "dynamic" in scaling:
            named = {} if kind is None else {"layer_type": kind}
            limit = int(config.max_position_embeddings)
            return cls(lambda: partial(type(module)(config), **named), limit, by_length=True)
        return cls(lambda: table)

    def key(self, length: int) -> int:
        """Return a number that is equal for lengths with the same frequencies."""
        if self.limit is None or length <= self.limit:
            return 0
        return length if self.by_length else self.limit + 1

    def __call__(
        self, like: Tensor, position_ids: Int[Tensor, "batch pos"], lengths: Int[Tensor, "batch"]
    ) -> tuple[Float[Tensor, "rows pos rotary"], Float[Tensor, "rows pos rotary"]]:
        """Compute cosines and sines, in the dtype and on the device of `like`.

        Args:
            lengths: each prompt's last position plus 1. Where they matter, columns behind a prompt
                have the values of its last position.
        """
        if self.limit is None:
            return self._values(like, position_ids)
        position_ids = position_ids.minimum(lengths[:, None] - 1)
        keys = torch.tensor([self.key(length) for length in lengths.tolist()])
        out: tuple[Tensor, Tensor] | None = None
        for key in keys.unique():
            rows = (keys == key).nonzero()[:, 0].to(like.device)
            values = self._values(like, position_ids[rows])
            if out is None:
                cos, sin = (x.new_empty((len(keys), *x.shape[1:])) for x in values)
                out = cos, sin
            for whole, some in zip(out, values, strict=True):
                whole[rows] = some
        assert out is not None
        return out

    def _values(self, like: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.make()(like, position_ids)
        return cos.to(like.device), sin.to(like.device)
