"""Judgments made in code."""

from __future__ import annotations

from typing import Any

from mechassay.claims.judgments import Judgments, judgments_of
from mechassay.claims.rubric import load_rubric

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
