"""The tables of docs/records.md are made of the data files that give numbers their words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_all_numbers_are_up_to_date() -> None:
    words = [sys.executable, ROOT / "tools" / "records.py", "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (ROOT / "docs" / "records.md").read_text("utf-8")
    assert "| gym | `odds_{method}` | up | nats |" in text
