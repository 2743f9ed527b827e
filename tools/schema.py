"""Writes the JSON schemas of records and of judgments in docs/: python tools/schema.py."""

import json
from pathlib import Path

from mechassay.claims.judgments import Judgments
from mechassay.results.records import Record

DOCS = Path(__file__).parents[1] / "docs"
# Undefined numbers, also as defaults, are null in JSON, which has no NaN.
record = json.loads(json.dumps(Record.model_json_schema()), parse_constant=lambda _: None)
texts = {
    "record": json.dumps(record, indent=2, allow_nan=False),
    "judgments": json.dumps(Judgments.model_json_schema(), indent=1, sort_keys=True),
}
for name, text in texts.items():
    (DOCS / f"{name}.schema.json").write_text(f"{text}\n", encoding="utf-8")
    print(DOCS / f"{name}.schema.json")
