"""Numbers as others reported them: rows that stand beside recomputed ones and are never mixed in.

MIB's board writes one JSON file a submission (Mueller et al. 2025):

    {"method_name": ..., "results": [{"model_id": ..., "scores": {TASK: {
        "CPR": {"edge_counts": [...], "faithfulness": [...]}, "CMD": {...}}}}]}

Its areas are the trapezoidal rule over the nominal sizes .1 % to 100 %, which files do not name:
the k-th point has the k-th size, and the evaluator appends the full model as the last. CPR
integrates f, CMD |1 - f|. A file with another number of points is refused. Which examples they were
measured on is not known, so no cell of ours is compared with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mechassay.errors import BadFile
from mechassay.files import file_hash
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.rules import rules_of
from mechassay.stats.intervals import trapezoid
from mechassay.submissions import read_json

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
RANKED_BY = {"cpr": "value", "cmd": "magnitude"}
"""What edges of each area are ranked by."""
CONDITIONS = "mib-2025, as reported"


def read_mib_results(path: str | Path) -> list[BoardCell]:
    """The cells of a results file of MIB's circuit board.

    Raises:
        BadFile: not such a file, or curves of another number of points.
    """
    file = Path(path)
    told = read_json(file)
    results = told.get("results")
    if not isinstance(results, list) or not isinstance(told.get("method_name"), str):
        raise BadFile(f"{file}: no results of MIB's board: it needs method_name and results.")
    digest, name = file_hash(file), " ".join(told["method_name"].split())
    cells = [
        BoardCell(
            board="circuits",
            column=column,
            version=rules_of("circuits").column(column).version,
            row=f"{name} (as reported)",
            place={"model": model, "task": task},
            value=value,
            origin="as reported",
            conditions={"definition": CONDITIONS},
            source=f"{file.name}, sha256 {digest[:16]}",
        )
        for model, task, column, value in _areas(file, results)
    ]
    if not cells:
        raise BadFile(f"{file}: has no score of any task.")
    return cells


def _areas(file: Path, results: Sequence[Any]) -> Iterator[tuple[str, str, str, float]]:
    for result in results:
        if not isinstance(result, dict) or not isinstance(result.get("scores"), dict):
            raise BadFile(f"{file}: every result needs a model_id and scores.")
        model = str(result.get("model_id", "")).split("/")[-1] or "unknown"
        for task, scores in result["scores"].items():
            if not isinstance(scores, dict):
                raise BadFile(f"{file}: the scores of {task} are no object.")
            for column in RANKED_BY:
                name = column.upper()
                if name in scores:
                    yield model, str(task), column, _area(file, name, scores[name])


def _area(file: Path, name: str, curve: Any) -> float:
    points = curve.get("faithfulness") if isinstance(curve, Mapping) else None
    numbers = isinstance(points, list) and all(
        isinstance(x, int | float) and not isinstance(x, bool) for x in points
    )
    if not numbers or points is None or len(points) != len(SIZES):
        n = len(points) if isinstance(points, list) else "no list"
        raise BadFile(f"{file}: {name} needs {len(SIZES)} values of faithfulness; got {n}.")
    f = np.array(points, dtype=float)
    if not np.isfinite(f).all():
        return math.nan
    heights = f if name == "CPR" else np.abs(1 - f)
    return float(trapezoid(heights[None], np.array(SIZES))[0])
