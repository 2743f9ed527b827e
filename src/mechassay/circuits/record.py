"""A faithfulness curve as a stored record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechassay.circuits.faithfulness import Area, Controls, FaithfulnessCurve, Sweep
from mechassay.circuits.files import read_tensors, write_tensors
from mechassay.records import Measure, Record, Spec, provenance


def record_of(
    curve: FaithfulnessCurve,
    *,
    model: Spec,
    task: Spec,
    method: Spec,
    device: str = "",
    dtype: str = "",
    seed: int = 0,
    data_hash: str = "",
    realised: Mapping[str, float] | None = None,
) -> Record:
    """Everything needed to show, recompute and compare the curve, as plain data."""
    n = len(curve.ids)
    value, magnitude = curve.sweeps["value"], curve.sweeps["magnitude"]
    measures = [_measure("cpr", value.cpr, n, curve), _measure("cmd", magnitude.cmd, n, curve)]
    measures += [
        _measure(name, area, n, curve) for name, area in (("log_cpr", value.log_cpr), ("log_cmd", magnitude.log_cmd)) if area is not None
    ]
    per_example = {"clean": curve.controls.full.tolist(), "empty": curve.controls.empty.tolist()}
    for by, sweep in curve.sweeps.items():
        per_example |= {f"{by}@{p:g}": row.tolist() for p, row in zip(curve.fractions, sweep.per_example, strict=True)}
    return Record(
        kind="faithfulness",
        model=Spec(name=model.name, version=model.version, args={**model.args, "n_edges": curve.n_edges}),
        task=task,
        method=method,
        metric=Spec(name=curve.objective, args={"profile": curve.profile}),
        measures=measures,
        per_example=per_example,
        example_ids=list(curve.ids),
        groups=list(curve.groups),
        curves={"fractions": list(curve.fractions), **{by: _line(sweep) for by, sweep in curve.sweeps.items()}},
        controls={
            "empty": {"metric": float(curve.controls.empty.mean()), "faithfulness": 0.0},
            "full": {"metric": float(curve.controls.full.mean()), "faithfulness": 1.0},
            "denominator": list(curve.denominator),
            "random": {
                "cpr": curve.random_cpr,
                "cmd": curve.random_cmd,
                "seeds": {
                    str(seed): {"cpr": sweep.cpr.value, "cmd": sweep.cmd.value, **_line(sweep)} for seed, sweep in curve.random.items()
                },
            },
        },
        realised=dict(realised or {}),
        warnings=list(curve.warnings),
        provenance=provenance(device=device, dtype=dtype, seed=seed, data_hash=data_hash),
    )


def _measure(name: str, area: Area, n: int, curve: FaithfulnessCurve) -> Measure:
    low, high, level = area.interval
    return Measure(name=name, value=area.value, low=low, high=high, level=level, n=n, n_undefined=curve.n_undefined)


def _line(sweep: Sweep) -> dict[str, Any]:
    return {
        "asked": list(sweep.asked),
        "kept": list(sweep.kept),
        "metric": np.mean(sweep.per_example, axis=1).tolist(),
        "faithfulness": _plain(sweep.faithfulness),
        "low": _plain(np.array([interval.low for interval in sweep.intervals])),
        "high": _plain(np.array([interval.high for interval in sweep.intervals])),
    }


def _plain(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def save_controls(controls: Controls, path: Path) -> None:
    """Keep controls, so that other scores can be evaluated beside them."""
    tensors = {"empty": torch.from_numpy(controls.empty), "full": torch.from_numpy(controls.full)}
    tensors |= {f"random{seed}": torch.from_numpy(values) for seed, (_, values) in controls.random.items()}
    kept = {str(seed): list(sizes) for seed, (sizes, _) in controls.random.items()}
    write_tensors(path, tensors, {"kind": "controls", "objective": controls.objective, "ids": list(controls.ids), "kept": kept})


def load_controls(path: Path) -> Controls:
    """Controls written by `save_controls`.

    Raises:
        BadFile: truncated or foreign.
    """
    tensors, header = read_tensors(path, "controls")
    random = {int(seed): (tuple(sizes), tensors[f"random{seed}"].numpy()) for seed, sizes in header["kept"].items()}
    return Controls(header["objective"], tuple(header["ids"]), tensors["empty"].numpy(), tensors["full"].numpy(), random)
