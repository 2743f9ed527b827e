"""A faithfulness curve as a stored record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mechassay.circuits.areas import VERSIONS, Sweep
from mechassay.circuits.faithfulness import Controls, FaithfulnessCurve
from mechassay.errors import BadFile
from mechassay.files import read_tensors, write_tensors
from mechassay.models.memory import token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.objectives import Accuracy
from mechassay.pairs import NO_TOKEN, Batch
from mechassay.records import Measure, Record, Spec, provenance
from mechassay.stats.intervals import BootstrapEstimate, mean_estimate, proportion_interval

ACCURACY = Accuracy()


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
    data: Mapping[str, Any] | None = None,
    behaviour: Behaviour | None = None,
) -> Record:
    """Everything needed to show, recompute and compare the curve, as plain data."""
    n = len(curve.ids)
    value, magnitude = curve.sweeps["value"], curve.sweeps["magnitude"]
    areas = {
        "cpr": value.cpr,
        "cmd": magnitude.cmd,
        "log_cpr": value.log_cpr,
        "log_cmd": magnitude.log_cmd,
    }
    measures = [_measure(name, area, n, curve) for name, area in areas.items() if area is not None]
    measures.append(
        Measure(name="cmd_corrected", value=curve.cmd_corrected, n=n, n_undefined=curve.n_undefined)
    )
    warnings = list(curve.warnings)
    if behaviour is not None:
        measures += behaviour.measures()
        warnings = [*behaviour.warnings(), *warnings]
    per_example = {"clean": curve.controls.full.tolist(), "empty": curve.controls.empty.tolist()}
    for by, sweep in curve.sweeps.items():
        per_example |= {
            f"{by}@{p:g}": row.tolist()
            for p, row in zip(curve.fractions, sweep.per_example, strict=True)
        }
    return Record(
        kind="faithfulness",
        model=Spec(
            name=model.name, version=model.version, args={**model.args, "n_edges": curve.n_edges}
        ),
        task=task,
        method=method,
        metric=Spec(
            name=curve.objective, version=VERSIONS[curve.profile], args={"profile": curve.profile}
        ),
        measures=measures,
        per_example=per_example,
        example_ids=list(curve.ids),
        groups=list(curve.groups),
        curves={
            "fractions": list(curve.fractions),
            **{by: _line(sweep) for by, sweep in curve.sweeps.items()},
        },
        controls={
            "empty": {"metric": float(curve.controls.empty.mean()), "faithfulness": 0.0},
            "full": {"metric": float(curve.controls.full.mean()), "faithfulness": 1.0},
            "denominator": list(curve.denominator),
            **{kind: _random_control(curve, sweeps) for kind, sweeps in curve.drawn.items()},
        },
        realised=dict(realised or {}),
        data=dict(data or {}),
        warnings=warnings,
        provenance=provenance(device=device, dtype=dtype, seed=seed, data_hash=data_hash),
    )


def _random_control(curve: FaithfulnessCurve, sweeps: Mapping[int, Sweep]) -> dict[str, Any]:
    """What random rankings reach on average, and how far the curve is from them:
    values with intervals over examples.
    """
    own = {"cpr": curve.sweeps["value"].cpr, "cmd": curve.sweeps["magnitude"].cmd}
    means = {
        "cpr": mean_estimate([each.cpr for each in sweeps.values()]),
        "cmd": mean_estimate([each.cmd for each in sweeps.values()]),
    }
    found: dict[str, Any] = {}
    for name, mean in means.items():
        found |= {name: _plain_number(mean.value), f"{name}_interval": _bounds(mean)}
        found[f"{name}_difference"] = [
            _plain_number((own[name] - mean).value),
            *_bounds(own[name] - mean),
        ]
    seeds = {
        str(seed): {
            "cpr": _plain_number(sweep.cpr.value),
            "cmd": _plain_number(sweep.cmd.value),
            **_line(sweep),
        }
        for seed, sweep in sweeps.items()
    }
    return {**found, "seeds": seeds}


@dataclass(frozen=True, eq=False)
class Behaviour:
    """Whether the model itself does what its circuits are to explain.

    Attributes:
        right: 1 where the best answer's logit exceeds every foil's, else 0.
        chance: the share of the compared tokens that are answers.
        groups: the unit that the interval respects.
    """

    right: Float[np.ndarray, "n"]
    chance: Float[np.ndarray, "n"]
    groups: tuple[str, ...]

    def measures(self) -> list[Measure]:
        """Accuracy with its interval, and chance."""
        low, high, level = proportion_interval(self.right, self.groups)
        n = len(self.right)
        return [
            Measure(
                name="accuracy",
                value=float(self.right.mean()),
                low=low,
                high=high,
                level=level,
                n=n,
            ),
            Measure(name="chance", value=float(self.chance.mean()), n=n),
        ]

    def warnings(self) -> list[str]:
        """A line if the accuracy may be chance or less:
        then there is no behaviour of the task to explain.
        """
        accuracy, chance = self.measures()
        if accuracy.low > chance.value:
            return []
        return [
            "The model itself is not above chance: its answer beats the foils in"
            f" {accuracy.value:.0%} of {accuracy.n} pairs ({accuracy.low:.0%} to"
            f" {accuracy.high:.0%}), guessing does in {chance.value:.0%}. Its circuits explain how"
            " it prefers tokens, not how it does the task."
        ]


@torch.no_grad()
def behaviour_of(model: Model, batch: Batch) -> Behaviour:
    """Run the clean prompts of a batch and compare answers with foils."""
    right = np.full(len(batch), np.nan)
    for rows, chunk in batch.chunks(
        token_budget(trace_bytes(model.decoder), batch.n_tokens, model.device)
    ):
        taken, _ = model.run(chunk)
        right[rows] = ACCURACY(taken.readout(model.decoder), chunk).double().cpu().numpy()
    n_answers, n_foils = (
        (tokens != NO_TOKEN).sum(dim=1).double().cpu().numpy()
        for tokens in (batch.answers, batch.foils)
    )
    return Behaviour(right, n_answers / (n_answers + n_foils), batch.groups)


def _measure(name: str, area: BootstrapEstimate, n: int, curve: FaithfulnessCurve) -> Measure:
    low, high, level = area.interval
    return Measure(
        name=name,
        value=area.value,
        low=low,
        high=high,
        level=level,
        n=n,
        n_undefined=curve.n_undefined,
    )


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
    return [_plain_number(value) for value in values]


def _plain_number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _bounds(estimate: BootstrapEstimate) -> list[float | None]:
    return [_plain_number(estimate.interval.low), _plain_number(estimate.interval.high)]


def save_controls(controls: Controls, path: Path) -> None:
    """Keep controls, so that other scores can be evaluated beside them."""
    tensors = {"empty": torch.from_numpy(controls.empty), "full": torch.from_numpy(controls.full)}
    kept: dict[str, dict[str, list[int]]] = {}
    for kind, drawn in (("random", controls.random), ("random_paths", controls.random_paths)):
        tensors |= {
            f"{kind}{seed}": torch.from_numpy(values) for seed, (_, values) in drawn.items()
        }
        kept[kind] = {str(seed): list(sizes) for seed, (sizes, _) in drawn.items()}
    header = {
        "objective": controls.objective,
        "ids": list(controls.ids),
        "fractions": list(controls.fractions),
        "kept": kept,
    }
    write_tensors(path, tensors, {"kind": "controls", **header})


def load_controls(path: Path) -> Controls:
    """Controls written by `save_controls`.

    Raises:
        BadFile: truncated, foreign, or of a version without random paths.
    """
    tensors, header = read_tensors(path, "controls")
    try:
        drawn = {
            kind: {
                int(seed): (tuple(sizes), tensors[f"{kind}{seed}"].numpy())
                for seed, sizes in header["kept"][kind].items()
            }
            for kind in ("random", "random_paths")
        }
        ids, fractions = tuple(header["ids"]), tuple(header["fractions"])
        return Controls(
            header["objective"],
            ids,
            fractions,
            tensors["empty"].numpy(),
            tensors["full"].numpy(),
            **drawn,
        )
    except KeyError as error:
        raise BadFile(
            f"{path}: these controls lack {error}; remove the file, and they are run again."
        ) from None
