"""A small suite in SyntaxGym's form: the number of a verb behind a prepositional phrase."""

from __future__ import annotations

from typing import Any

ITEMS = (("author", "senator"), ("farmer", "clerk"), ("pilot", "driver"))
WORDS = ("The", "near", "the", "is", "are", "tired", ".", *(w for pair in ITEMS for w in pair))
WORDS += tuple(f"{subject}s" for subject, _ in ITEMS)


def condition(name: str, *texts: str) -> dict[str, Any]:
    regions = [{"region_number": n, "content": text} for n, text in enumerate(texts, 1)]
    return {"condition_name": name, "regions": regions}


def number_suite() -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for number, (subject, other) in enumerate(ITEMS, 1):
        conditions = [
            condition(
                f"{match}_{kind}",
                f"The {subject}{'s' * (kind == 'plural')}",
                "near the",
                other,
                "is" if (kind == "sing") == (match == "match") else "are",
                "tired .",
            )
            for kind in ("sing", "plural")
            for match in ("match", "mismatch")
        ]
        items.append({"item_number": number, "conditions": conditions})
    formulas = [f"(4;%match_{k}%) < (4;%mismatch_{k}%)" for k in ("sing", "plural")]
    names = ("subject", "prep", "object", "verb", "end")
    return {
        "meta": {"name": "number-pp", "metric": "sum"},
        "region_meta": {str(n): name for n, name in enumerate(names, 1)},
        "predictions": [{"type": "formula", "formula": text} for text in formulas],
        "items": items,
    }
