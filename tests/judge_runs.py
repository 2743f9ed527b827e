"""Runs of a judge made in code: claims with statements, components and statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from judgments_made import CODES
from mechassay.claims.judgments import Judgments, judgments_of
from mechassay.claims.scoring import JUDGED

CIRCUIT = "The IOI circuit of 26 heads moves the indirect object's name to the end."
MOVERS = "Name mover heads copy the indirect object's name to the last position."
INHIBITION = "S-inhibition heads remove the repeated subject from attention of later heads."
DUPLICATE = "Duplicate token heads notice where the subject occurred before."


def claim(
    name: str,
    statement: str,
    statuses: Mapping[str, str] | str = "NO",
    *,
    components: Sequence[str] = (),
    evidence: Mapping[str, Sequence[str]] | None = None,
    reasons: Mapping[str, str] | None = None,
    system: bool = False,
) -> dict[str, Any]:
    """A judged claim as plain values; one status is that of every criterion, else NO."""
    given = dict.fromkeys(CODES, statuses) if isinstance(statuses, str) else statuses
    quotes = evidence or {}
    return {
        "claim": {
            "id": name,
            "statement": statement,
            "components": list(components),
            "system": system,
        },
        "criteria": {
            code: {
                "status": given.get(code, "NO"),
                "reason": (reasons or {}).get(code, ""),
                "evidence": [{"quote": {"exact": text}} for text in quotes.get(code, ())],
            }
            for code in CODES
        },
    }


def run(*claims: dict[str, Any], by: str = "judge", **more: Any) -> Judgments:
    """A run of a judge."""
    rater = {"kind": "language model", "id": by}
    return judgments_of({"rater": rater, "claims": list(claims), **more})


def drawn(rng: np.random.Generator, shares: Sequence[float] = (0.3, 0.3, 0.4)) -> dict[str, str]:
    """A random status of every criterion; shares of NO, PARTIAL and YES."""
    return {code: str(rng.choice(JUDGED, p=shares)) for code in CODES}
