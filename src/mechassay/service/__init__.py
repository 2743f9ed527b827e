"""The leaderboard as a service: submissions of others, read as data, evaluated and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.service.bundle import Bundle, read_bundle
    from mechassay.service.database import Database, DatabaseAway
    from mechassay.service.settings import (
        PrivateSeed,
        PrivateSeeds,
        ServiceLimits,
        ServiceSettings,
    )
    from mechassay.service.store import Store, StoreAway
    from mechassay.service.tables import Evaluation, Recomputed, Submission, Submitter
    from mechassay.service.tokens import BadToken
    from mechassay.service.track import ServiceTrack

__all__ = [
    "BadToken",
    "Bundle",
    "Database",
    "DatabaseAway",
    "Evaluation",
    "PrivateSeed",
    "PrivateSeeds",
    "Recomputed",
    "ServiceLimits",
    "ServiceSettings",
    "ServiceTrack",
    "Store",
    "StoreAway",
    "Submission",
    "Submitter",
    "read_bundle",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bundle": "Bundle read_bundle",
        "database": "Database DatabaseAway",
        "settings": "PrivateSeed PrivateSeeds ServiceLimits ServiceSettings",
        "store": "Store StoreAway",
        "tables": "Evaluation Recomputed Submission Submitter",
        "tokens": "BadToken",
        "track": "ServiceTrack",
    },
)
