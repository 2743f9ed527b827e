"""Boards in formats of others: Every Eval Ever, and Hugging Face's evaluation results.

    Every Eval Ever       one JSON a model and row: who evaluated what with which result
    Hugging Face          .eval_results/BOARD.yaml beside a model, a list of dataset, value, date

Each file names the record's hash, so a reader can find what a number came from. Undefined numbers
are left out of formats that have no place for them, and `left_out` counts them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mechassay.files import write_text
from mechassay.leaderboard.board import Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.runs.job import cell_name
from mechassay.version import __version__


@dataclass(frozen=True)
class Exchanged:
    """What was written, and how many undefined numbers were not.

    Attributes:
        files: by format.
    """

    files: Mapping[str, tuple[Path, ...]]
    left_out: int


def write_exchange(board: Board, folder: Path) -> Exchanged:
    """Write a board in all formats into a folder."""
    cells = [cell for cell in board.cells if cell.origin == "recomputed" and not cell.private]
    defined = [cell for cell in cells if math.isfinite(cell.value)]
    files: dict[str, tuple[Path, ...]] = {
        "every_eval_ever": tuple(_every_eval_ever(board, defined, folder / "every_eval_ever")),
        "hugging_face": tuple(_hugging_face(board, defined, folder / "hugging_face")),
    }
    return Exchanged(files, len(cells) - len(defined))


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
        told = {
            "evaluation_id": f"mechassay/{board.rules.name}/{model}/{row}",
            "source_metadata": {"source_name": "mechassay", "source_version": __version__},
            "model_info": {"name": model, "id": model},
            "evaluation_results": [
                {
                    "evaluation_name": "/".join([board.rules.name, *cell.place.values()]),
                    "evaluation_timestamp": cell.created,
                    "metric_config": {
                        "evaluation_description": board.rules.column(cell.column).says,
                        "metric_name": f"{cell.column}@{cell.version}",
                        "lower_is_better": board.rules.column(cell.column).better == "down",
                    },
                    "score_details": {"score": cell.value, "details": _details(cell)},
                    "generation_config": {"additional_details": {"method": row}},
                }
                for cell in own
            ],
        }
        path = folder / cell_name(model) / f"{board.rules.name}-{cell_name(row)}.json"
        written.append(write_text(path, json.dumps(told, indent=1)))
    return written


def _details(cell: BoardCell) -> dict[str, Any]:
    ends = {name: getattr(cell, name) for name in ("low", "high")}
    known = {name: value for name, value in ends.items() if math.isfinite(value)}
    return {**known, "n": cell.n, "conditions": cell.under, "record_sha256": cell.sha256}


def _hugging_face(board: Board, cells: Sequence[BoardCell], folder: Path) -> list[Path]:
    written: list[Path] = []
    for (model,), own in _by(cells, "model").items():
        told = [
            {
                "dataset": {"id": f"mechassay/{board.rules.name}", "task_id": _task(cell)},
                "value": cell.value,
                "date": cell.created[:10],
                "notes": f"{cell.row}; conditions {cell.under}; record sha256 {cell.sha256}",
                **(
                    {"source": {"name": "mechassay", "command": cell.command}}
                    if cell.command
                    else {}
                ),
            }
            for cell in own
        ]
        path = folder / cell_name(model) / ".eval_results" / f"{board.rules.name}.yaml"
        written.append(write_text(path, yaml.safe_dump(told, sort_keys=False)))
    tasks = [
        {"id": f"{task}_{column.name}", "better": column.better, "says": column.says}
        for column in board.rules.columns
        for task in sorted({cell.place["task"] for cell in cells if cell.column == column.name})
    ]
    told_tasks = {"name": board.rules.title, "evaluation_framework": "mechassay", "tasks": tasks}
    written.append(write_text(folder / "eval.yaml", yaml.safe_dump(told_tasks, sort_keys=False)))
    return written


def _task(cell: BoardCell) -> str:
    return f"{cell.place['task']}_{cell.column}"
