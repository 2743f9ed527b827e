"""Where the files of a run are, for tests that look at them."""

from __future__ import annotations

from pathlib import Path


def held(out: Path, kind: str, name: str) -> Path:
    """A file of the only model and task of a run: `held(out, "records", "eap.json")`."""
    groups = [path for path in (out / kind).glob("*/") if path.is_dir()]
    return (groups[0] if groups else out / kind / "none") / name
