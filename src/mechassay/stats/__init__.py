"""Intervals, bounds, permutation tests: statistics that know nothing of models."""

from __future__ import annotations

from typing import Literal, get_args

DesignKind = Literal["grid", "matched", "independent"]
"""How pairs are drawn, see `stats.distribution.Design`."""
DESIGN_KINDS: tuple[DesignKind, ...] = get_args(DesignKind)
