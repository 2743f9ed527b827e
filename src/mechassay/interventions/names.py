"""The parts and directions of patching, as options name them; nothing heavy is imported."""

from __future__ import annotations

from typing import Literal, get_args

Part = Literal["resid", "heads", "mlp"]
PARTS: tuple[Part, ...] = get_args(Part)
Direction = Literal["denoising", "noising"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
