"""The leaderboard as a service: submissions, their queue, workers, and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
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

__all__ = [
    "BadToken",
    "Database",
    "DatabaseAway",
    "Evaluation",
    "PrivateSeed",
    "PrivateSeeds",
    "Recomputed",
    "ServiceLimits",
    "ServiceSettings",
    "Store",
    "StoreAway",
    "Submission",
    "Submitter",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "database": "Database DatabaseAway",
        "settings": "PrivateSeed PrivateSeeds ServiceLimits ServiceSettings",
        "store": "Store StoreAway",
        "tables": "Evaluation Recomputed Submission Submitter",
        "tokens": "BadToken",
    },
)
