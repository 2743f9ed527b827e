"""Runs of a judge made in code: claims with statements, components and statuses.

Judgments made in code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mechassay.claims.judgments import Judgments, judgments_of
from mechassay.claims.rubric import JUDGED, load_rubric

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


CODES = load_rubric().codes
TEXT = """The circuit
recovers 87% of the logit dif-
ference. It was not tested on other
well-known tasks.\fHeads 9.9 and 9.6 copy the ﬁrst name with probability 1.5.
"""


def plain_judgments(**fields: Any) -> dict[str, Any]:
    """Plain values of judgments: one claim, all NOT TESTED, but for `statuses`."""
    statuses = {**dict.fromkeys(CODES, "NOT TESTED"), **fields.pop("statuses", {})}
    evidence = fields.pop("evidence", {})
    criteria = {
        code: {"status": status, "evidence": evidence.get(code, [])}
        for code, status in statuses.items()
    }
    own = {"id": "ioi", "statement": "Heads 9.9 and 9.6 copy the name."}
    claim = {**own, **fields.pop("claim", {})}
    made = {
        "rubric": "mv-27@1",
        "rater": {"kind": "human", "id": "Ann"},
        "claims": [{"claim": claim, "criteria": criteria}],
    }
    return {**made, **fields}


def made_judgments(**fields: Any) -> Judgments:
    return judgments_of(plain_judgments(**fields))


def quoted(text: str, **more: Any) -> list[dict[str, Any]]:
    return [{"quote": {"exact": text, **more}}]
