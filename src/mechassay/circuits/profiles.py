"""Profiles: whose definitions circuits of all sizes are cut and measured by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Profile = Literal["strict", "mib-2025"]
VERSIONS: Mapping[str, int] = {"strict": 2, "mib-2025": 1}
"""Profiles and the versions of their definitions."""
PROFILES = tuple(VERSIONS)
