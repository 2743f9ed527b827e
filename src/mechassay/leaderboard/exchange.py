"""Boards in formats of others, and numbers that others reported, read as cells.

`write_exchange` writes the recomputed, public cells of a board:

    Every Eval Ever       data/mechassay-BOARD/DEVELOPER/MODEL/UUID.json, one a model and row:
                          results with their intervals and n (its schema 0.3.0)
    Hugging Face          MODEL/.eval_results/BOARD-ROW.yaml, what a model's repository gets: a
                          list of data set, value, date; and eval.yaml for the data set's own
    MIB                   one JSON a row: curves of circuits, from which its board takes areas

The first two name the record's hash, so a reader can find what a number came from. Undefined
numbers are left out of formats that have no place for them, and `left_out` counts them. Neither
has a place for controls: Every Eval Ever gets them among the details of a score, as text.

`read_mib_results` reads numbers as others reported them. They are rows that stand beside
recomputed ones and are never mixed in. MIB's board has one JSON file a submission (Mueller et
al. 2025):

    {"method_name": ..., "results": [{"model_id": ..., "scores": {TASK: {
        "CPR": {"edge_counts": [...], "faithfulness": [...]}, "CMD": {...}}}}]}

Its areas are the trapezoidal rule over the nominal sizes .1 % to 100 %, which files do not name:
the k-th point has the k-th size, and the evaluator appends the full model as the last. CPR
integrates f, CMD |1 - f|. A file with another number of points is refused. Which examples they
were measured on is not known, so no cell of ours is compared with them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import yaml

from mechassay.errors import BadFile
from mechassay.leaderboard.board import Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.rules import rules_of
from mechassay.results.reading import read_record
from mechassay.results.records import Record, Table
from mechassay.runs.job import cell_name
from mechassay.stats.intervals import trapezoid
from mechassay.utils.files import file_hash, read_json, write_text
from mechassay.version import __version__

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
RANKED_BY = {"cpr": "value", "cmd": "magnitude"}
"""What edges of each area are ranked by."""
CONDITIONS = "mib-2025, as reported"
EVERY_EVAL_EVER = "0.3.0"
"""Version of the schema that is written."""
LEVEL = 0.95


def read_mib_results(path: str | Path) -> list[BoardCell]:
    """The cells of a results file of MIB's circuit board.

    Raises:
        BadFile: not such a file, or curves of another number of points.
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
    if not numbers or points is None or len(points) != len(SIZES):
        n = len(points) if isinstance(points, list) else "no list"
        raise BadFile(f"{file}: {name} needs {len(SIZES)} values of faithfulness; got {n}.")
    f = np.array(points, dtype=float)
    if not np.isfinite(f).all():
        return math.nan
    heights = f if name == "CPR" else np.abs(1 - f)
    return float(trapezoid(heights[None], np.array(SIZES))[0])


@dataclass(frozen=True)
class Exchanged:
    """What was written, and how many undefined numbers were not.

    Attributes:
        files: by format.
    """

    files: Mapping[str, tuple[Path, ...]]
    left_out: int


def write_exchange(board: Board, folder: Path, runs: Path | None = None) -> Exchanged:
    """Write a board in all formats into a folder.

    Args:
        runs: the folder of the records, whose curves MIB's format needs; without it, or on another
            board than that of circuits, nothing is written for MIB.
    """
    cells = [cell for cell in board.cells if _is_public(cell)]
    defined = [cell for cell in cells if math.isfinite(cell.value)]
    files: dict[str, tuple[Path, ...]] = {
        "every_eval_ever": tuple(_every_eval_ever(board, defined, folder / "every_eval_ever")),
        "hugging_face": tuple(_hugging_face(board, defined, folder / "hugging_face")),
    }
    if runs is not None and board.rules.name == "circuits":
        files["mib"] = tuple(_mib(board, runs, folder / "mib"))
    return Exchanged(files, len(cells) - len(defined))


def _mib(board: Board, runs: Path, folder: Path) -> Iterator[Path]:
    """Curves over MIB's ten sizes, as its evaluator writes them; others have no place there.

    The format has no conditions: of each task of a model it gets those under which most rows were
    measured, which the averages are over too.
    """
    (column, *_) = RANKED_BY
    kinds = board.kinds(column) if column in board.columns else {}
    places = [place for kind in kinds for place in board.comparable(column, kind)]
    for row in board.rows():
        cells = [board.cell(row, place, column) for place in places]
        given = [cell for cell in cells if cell and cell.file and _is_public(cell)]
        results: list[dict[str, Any]] = []
        for (model,), of_model in _by(given, "model").items():
            records = {cell.place["task"]: read_record(runs / cell.file) for cell in of_model}
            scores = {
                task: curve
                for task, own_records in records.items()
                if (curve := _curves(own_records))
            }
            if scores:
                results.append({"model_id": model, "scores": scores})
        if results:
            described = f"mechassay {__version__}, definitions of its own profile"
            submission = {"method_name": row, "description": described, "results": results}
            path = folder / f"{cell_name(row)}.json"
            yield write_text(path, json.dumps(submission, indent=1))


def _is_public(cell: BoardCell) -> bool:
    return cell.origin == "recomputed" and not cell.private


def _curves(record: Record) -> dict[str, Any]:
    """The curves of a record by MIB's name of the area; empty if the sizes are not MIB's."""
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
    if tuple(columns["fraction"][row] for row in rows) != SIZES:
        return {}
    f = [columns["f"][row] for row in rows]
    if not all(isinstance(value, float) and math.isfinite(value) for value in f):
        return {}
    return {"edge_counts": [columns["kept"][row] for row in rows], "faithfulness": f}


def _by(cells: Sequence[BoardCell], *keys: str) -> dict[tuple[str, ...], list[BoardCell]]:
    """Cells by their row ("row") and roles of their place."""
    groups: dict[tuple[str, ...], list[BoardCell]] = {}
    for cell in cells:
        key = tuple(cell.row if name == "row" else cell.place.get(name, "") for name in keys)
        groups.setdefault(key, []).append(cell)
    return groups


def _every_eval_ever(board: Board, cells: Sequence[BoardCell], folder: Path) -> list[Path]:
    written: list[Path] = []
    for (model, row), own in _by(cells, "model", "row").items():
        newest = max(cell.created for cell in own)
        benchmark = f"mechassay-{board.rules.name}"
        retrieved = str(int(datetime.fromisoformat(newest).timestamp())) if newest else "0"
        id = f"{benchmark}/{model}/{row}/{retrieved}"
        log = {
            "schema_version": EVERY_EVAL_EVER,
            "evaluation_id": id,
            "evaluation_timestamp": newest,
            "retrieved_timestamp": retrieved,
            "source_metadata": {
                "source_name": board.rules.title,
                "source_type": "evaluation_run",
                # Who ran it is not known: the name is that of the tool.
                "source_organization_name": "mechassay",
                "evaluator_relationship": "other",
            },
            "eval_library": {"name": "mechassay", "version": __version__},
            "model_info": {
                "name": model,
                "id": model,
                "additional_details": {
                    "deployment_type": "self_deployed",
                    "model_availability": "unknown",
                },
            },
            "evaluation_results": [_result(board, cell) for cell in own],
        }
        developer, _, name = model.rpartition("/")
        # Version 4 by its form alone: the same cells have the same name.
        uuid = UUID(bytes=hashlib.sha256(id.encode()).digest()[:16], version=4)
        place = folder / "data" / benchmark / (cell_name(developer) or "unknown") / cell_name(name)
        written.append(write_text(place / f"{uuid}.json", json.dumps(log, indent=1)))
    return written


def _result(board: Board, cell: BoardCell) -> dict[str, Any]:
    """A cell as one result of Every Eval Ever, whose details are all text."""
    column = board.rules.column(cell.column)
    place = {role: name for role, name in cell.place.items() if role != "model"}
    details = {
        "n": cell.n,
        "n_undefined": cell.n_undefined,
        **{f"control: {name}": value for name, value in cell.controls.items()},
        "controls that fail": ", ".join(cell.failing),
        "conditions": cell.under,
        "record_sha256": cell.sha256,
    }
    known = math.isfinite(cell.low) and math.isfinite(cell.high)
    ends = {"lower": cell.low, "upper": cell.high, "confidence_level": LEVEL}
    return {
        "evaluation_result_id": cell.full_id,
        "evaluation_name": "/".join([board.rules.name, *place.values()]),
        "evaluation_timestamp": cell.created,
        "source_data": {
            "dataset_name": cell.examples_of,
            "source_type": "other",
            "additional_details": {key: str(x) for key, x in cell.conditions.items()},
        },
        "metric_config": {
            "metric_id": f"mechassay.{cell.column}",
            "metric_name": f"{cell.column}@{cell.version}",
            "evaluation_description": column.says,
            "lower_is_better": column.better == "down",
        },
        "score_details": {
            "score": cell.value,
            "details": {key: str(x) for key, x in details.items() if x != ""},
            **(
                {"uncertainty": {"confidence_interval": ends, "num_samples": cell.n}}
                if known
                else {}
            ),
        },
        "generation_config": {
            **({"generation_args": {"execution_command": cell.command}} if cell.command else {}),
            "additional_details": {"method": cell.row, "settings": cell.settings},
        },
    }


def _hugging_face(board: Board, cells: Sequence[BoardCell], folder: Path) -> list[Path]:
    """What repositories of models get, a file a row, and `eval.yaml` of the data set."""
    dataset = f"mechassay/{board.rules.name}"
    written: list[Path] = []
    for (model, row), own in _by(cells, "model", "row").items():
        lines = [
            {
                "dataset": {"id": dataset, "task_id": _task(cell)},
                "value": cell.value,
                "date": cell.created[:10],
                "notes": f"{cell.row}{_interval(cell)}; conditions {cell.under}; record sha256"
                f" {cell.sha256}",
            }
            for cell in own
        ]
        path = folder / cell_name(model) / ".eval_results" / f"{board.rules.name}-{cell_name(row)}"
        text = yaml.safe_dump(lines, sort_keys=False)
        written.append(write_text(path.with_name(f"{path.name}.yaml"), text))
    says = {column.name: f"{column.says} ({column.better})" for column in board.rules.columns}
    about = {
        "name": board.rules.title,
        "description": " ".join(f"{name}: {text}" for name, text in says.items()),
        "evaluation_framework": "mechassay",
        "tasks": [
            {"id": task, "config": "default", "split": "test"}
            for task in sorted({_task(cell) for cell in cells})
        ],
    }
    written.append(write_text(folder / "eval.yaml", yaml.safe_dump(about, sort_keys=False)))
    return written


def _task(cell: BoardCell) -> str:
    return f"{cell.place['task']}_{cell.column}"


def _interval(cell: BoardCell) -> str:
    if not (math.isfinite(cell.low) and math.isfinite(cell.high)):
        return f", n={cell.n}"
    return f", [{cell.low:.6g}, {cell.high:.6g}], n={cell.n}"
