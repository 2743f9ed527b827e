"""Modules of tests/web, which is no package: pytest imports its files one by one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

WEB = Path(__file__).parent / "web"


def web_module(name: str) -> ModuleType:
    """A module of tests/web, once."""
    known = sys.modules.get(f"web_{name}")
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(f"web_{name}", WEB / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
