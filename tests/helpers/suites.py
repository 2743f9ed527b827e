"""A small suite in SyntaxGym's form: the number of a verb behind a prepositional phrase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ITEMS = (("author", "senator"), ("farmer", "clerk"), ("pilot", "driver"))
WORDS = ("The", "near", "the", "is", "are", "tired", ".", *(w for pair in ITEMS for w in pair))
WORDS += tuple(f"{subject}s" for subject, _ in ITEMS)
FILE = Path(__file__).parents[2] / "examples" / "coverage" / "suite.json"


def number_suite() -> dict[str, Any]:
    return json.loads(FILE.read_text("utf-8"))
