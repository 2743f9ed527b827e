"""Writes docs/record.schema.json, the JSON schema of results: python tools/schema.py."""

import json
from pathlib import Path

from mechassay.results.records import Record

target = Path(__file__).parents[1] / "docs" / "record.schema.json"
# Undefined numbers, also as defaults, are null in JSON, which has no NaN.
schema = json.loads(json.dumps(Record.model_json_schema()), parse_constant=lambda _: None)
target.write_text(json.dumps(schema, indent=2, allow_nan=False) + "\n", encoding="utf-8")
print(target)
