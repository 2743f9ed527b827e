"""The leaderboard as a service: submissions of others, read as data, evaluated and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.service.app import create_app
    from mechassay.service.archive import pack, unpack
    from mechassay.service.bundle import Bundle, open_bundle, read_bundle
    from mechassay.service.bundle_part import BundlePart
    from mechassay.service.database import Database, DatabaseAway
    from mechassay.service.declaration import Declaration
    from mechassay.service.settings import (
        PrivateSeed,
        PrivateSeeds,
        ServiceLimits,
        ServiceSettings,
    )
    from mechassay.service.store import Store, StoreAway
    from mechassay.service.tables import Evaluation, Recomputed, Submission, Submitter
    from mechassay.service.tokens import BadToken
    from mechassay.service.track import CellLimits, ServiceModel, ServiceTrack, UploadLimits

__all__ = [
    "BadToken",
    "Bundle",
    "BundlePart",
    "CellLimits",
    "Database",
    "DatabaseAway",
    "Declaration",
    "Evaluation",
    "PrivateSeed",
    "PrivateSeeds",
    "Recomputed",
    "ServiceLimits",
    "ServiceModel",
    "ServiceSettings",
    "ServiceTrack",
    "Store",
    "StoreAway",
    "Submission",
    "Submitter",
    "UploadLimits",
    "create_app",
    "open_bundle",
    "pack",
    "read_bundle",
    "unpack",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "app": "create_app",
        "archive": "pack unpack",
        "bundle": "Bundle open_bundle read_bundle",
        "bundle_part": "BundlePart",
        "database": "Database DatabaseAway",
        "declaration": "Declaration",
        "settings": "PrivateSeed PrivateSeeds ServiceLimits ServiceSettings",
        "store": "Store StoreAway",
        "tables": "Evaluation Recomputed Submission Submitter",
        "tokens": "BadToken",
        "track": "CellLimits ServiceModel ServiceTrack UploadLimits",
    },
)
