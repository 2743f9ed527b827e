"""The leaderboard as a service: submissions of others, read as data, evaluated and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.service.bundle import Bundle, read_bundle
    from mechassay.service.track import ServiceTrack

__all__ = ["Bundle", "ServiceTrack", "read_bundle"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bundle": "Bundle read_bundle",
        "track": "ServiceTrack",
    },
)
