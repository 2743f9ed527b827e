"""What truth.json says of the models whose circuit is known; no model is loaded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mechassay.errors import BadFile
from mechassay.models.sources import (
    MADE_TRUTHS,
    TRUTH_FOLDERS,
    made_truth_folder,
    truth_names,
)
from mechassay.models.weight_files import is_model_folder

FORMAT = 1
FILE = "truth.json"
COMPILED = "in the cache, compiled when first loaded"


def ratio(inside: float, outside: float) -> float:
    """How many times an effect exceeds another; infinite over none, and NaN if neither is there."""
    if outside == 0:
        return math.inf if inside > 0 else math.nan
    return inside / outside


def read_truth_file(path: Path) -> Any:
    """What a truth.json holds.

    Raises:
        BadFile: it cannot be read.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: cannot be read as JSON: {error}.") from error


def truth_rows() -> list[dict[str, str]]:
    """The models, their circuits for each ablation, how clear these are, and their folders."""
    rows: list[dict[str, str]] = []
    folders = {name: TRUTH_FOLDERS / name for name in truth_names()}
    folders |= {name: made_truth_folder(name) for name in MADE_TRUTHS}
    for name, folder in folders.items():
        if name in MADE_TRUTHS and not (folder / FILE).is_file():
            nothing = dict.fromkeys(("ablation", "circuit", "margin", "least share"), "")
            rows.append({"name": name, **nothing, "folder": f"mechassay truth make {name}"})
            continue
        known = read_truth_file(folder / FILE)
        for ablation, verified in known["ablations"].items():
            margin = ratio(verified["smallest_inside"], verified["largest_outside"])
            rows.append(
                {
                    "name": name,
                    "ablation": ablation,
                    "circuit": f"{len(verified['edges'])} of {known['n_edges']} edges",
                    "margin": f"{margin:,.0f} in {known['n_pairs']} pairs",
                    "least share": f"{min(verified.get('shares', ()), default=math.nan):.2f}",
                    "folder": str(folder) if is_model_folder(folder) else COMPILED,
                }
            )
    return rows
