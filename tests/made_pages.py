"""The script tools/pages.py as a module: it makes pages from code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]

_spec = importlib.util.spec_from_file_location("pages", ROOT / "tools" / "pages.py")
assert _spec and _spec.loader
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)
