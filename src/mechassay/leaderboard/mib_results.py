"""Results files of MIB's circuit board: read as reported numbers, or written from a board.

MIB's board has one JSON file per submission (Mueller et al. 2025):

    {"method_name": ..., "results": [{"model_id": ..., "scores": {TASK: {
        "CPR": {"edge_counts": [...], "faithfulness": [...]}, "CMD": {...}}}}]}

MIB computes its areas by the trapezoidal rule over the nominal sizes 0.1 % to 100 %. The files do
not contain the sizes: point k of a curve has size k, and MIB's evaluator appends the full model as
the last point. CPR integrates f, CMD integrates |1 - f|.

`read_mib_results` computes these areas and returns them as cells *as reported*. A file does not
name its examples, so the board never compares reported cells with recomputed cells.

`write_mib_results` writes one file per row of a board of circuits, with the recomputed, public
curves. `read_mib_results` computes the same areas from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mechassay.circuits.series import FRACTIONS
from mechassay.errors import BadFile
from mechassay.leaderboard.board import Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.rules import rules_of
from mechassay.results.reading import read_record
from mechassay.results.records import Record, Table
from mechassay.runs.cells import cell_name
from mechassay.stats.intervals import trapezoid
from mechassay.utils.files import file_hash, read_json, write_text
from mechassay.version import __version__

RANKED_BY = {"cpr": "value", "cmd": "magnitude"}
"""Column of the board: how edges are ranked for its curve."""
CONDITIONS = "mib-2025, as reported"


def read_mib_results(path: str | Path) -> list[BoardCell]:
    """Return the areas in a results file of MIB's circuit board as reported cells.

    Raises:
        BadFile: the file is not a results file, or a curve does not have ten points.
    """
    file = Path(path)
    submission = read_json(file)
    results = submission.get("results")
    if not isinstance(results, list) or not isinstance(submission.get("method_name"), str):
        raise BadFile(f"{file}: no results of MIB's board: it needs method_name and results.")
    digest, name = file_hash(file), " ".join(submission["method_name"].split())
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
    if not numbers or points is None or len(points) != len(FRACTIONS):
        n = len(points) if isinstance(points, list) else "no list"
        raise BadFile(f"{file}: {name} needs {len(FRACTIONS)} values of faithfulness; got {n}.")
    f = np.array(points, dtype=float)
    if not np.isfinite(f).all():
        return math.nan
    heights = f if name == "CPR" else np.abs(1 - f)
    return float(trapezoid(heights[None], np.array(FRACTIONS))[0])


def write_mib_results(board: Board, runs: Path, folder: Path) -> tuple[Path, ...]:
    """Write a results file of MIB's circuit board for each row, and return the paths.

    The format has no place for conditions. Each file contains, for each task of a model, the
    curves under the conditions that most rows were measured under; averages on the board use the
    same conditions. Curves over other sizes than MIB's, or with an undefined point, are left out.

    Args:
        board: The board of circuits.
        runs: Folder of the runs, whose records contain the curves.
        folder: Folder of the files, which are named like the rows.

    Raises:
        UnknownName: `board` is another board than that of circuits.
    """
    (column, *_) = RANKED_BY
    kinds = board.kinds(column)
    places = [place for kind in kinds for place in board.comparable(column, kind)]
    written: list[Path] = []
    for row in board.rows():
        models: dict[str, dict[str, Any]] = {}
        for place in places:
            cell = board.cell(row, place, column)
            if cell is None or not cell.file or cell.private or cell.origin != "recomputed":
                continue
            if curves := _curves(read_record(runs / cell.file)):
                models.setdefault(cell.place["model"], {})[cell.place["task"]] = curves
        if models:
            submission = {
                "method_name": row,
                "description": f"mechassay {__version__}, definitions of its own profile",
                "results": [{"model_id": name, "scores": tasks} for name, tasks in models.items()],
            }
            path = folder / f"{cell_name(row)}.json"
            written.append(write_text(path, json.dumps(submission, indent=1)))
    return tuple(written)


def _curves(record: Record) -> dict[str, Any]:
    """Return the curves of a record by MIB's names of the areas; empty if one is missing."""
    if not record.has_table("curve"):
        return {}
    curve = record.table("curve")
    curves = {name.upper(): _curve(curve, by) for name, by in RANKED_BY.items()}
    return curves if all(curves.values()) else {}


def _curve(table: Table, by: str) -> dict[str, Any]:
    columns = table.columns
    rows = [
        row
        for row, (of, ranking) in enumerate(zip(columns["of"], columns["ranking"], strict=True))
        if of == "result" and ranking == by
    ]
    if tuple(columns["fraction"][row] for row in rows) != FRACTIONS:
        return {}
    f = [columns["f"][row] for row in rows]
    if not all(isinstance(value, float) and math.isfinite(value) for value in f):
        return {}
    return {"edge_counts": [columns["kept"][row] for row in rows], "faithfulness": f}
