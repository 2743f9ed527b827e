"""Logit lens: what the objective would be if the model stopped after a layer.

The residual stream before each layer, at the last position, is read by the final norm and the
unembedding (nostalgebraist 2020). The control is the model itself, after its last layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from mechassay.models.model import Model
from mechassay.models.objectives import load_objective
from mechassay.prompts.batch import Batch
from mechassay.results.records import Measure, Spec, Table, Values
from mechassay.results.result import RecordContents
from mechassay.runs import options
from mechassay.runs.cells import Cell, Inputs
from mechassay.runs.experiment import Experiment
from mechassay.runs.options import option
from mechassay.stats.intervals import percentile_interval, resampled_means


@dataclass(frozen=True)
class LensExperiment(Experiment):
    """The logit lens of models on tasks."""

    models: Annotated[tuple[str, ...], options.MODELS]
    tasks: Annotated[tuple[str, ...], options.TASKS]
    limit: Annotated[int, option("Pairs of the test split.", least=1)] = 100
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "lens"

    def measure(self, cell: Cell, inputs: Inputs) -> RecordContents:
        model, objective = inputs.model, inputs.task.objective
        batch = model.batch(inputs.pairs["test"])
        values = np.stack(list(lens(model, batch, objective)))
        draws = resampled_means(values, batch.groups, np.random.default_rng(self.seed))
        rows: list[dict[str, float]] = []
        for layer, row in enumerate(values):
            low, high, _ = percentile_interval(draws[:, layer])
            rows.append({"layer": layer, objective: row.mean(), "low": low, "high": high})
        return {
            "specs": {"method": Spec(name="logit lens")},
            "measures": [
                Measure(name=name, title=name, of=of, value=values[layer].mean(), n=len(batch))
                for of, layer in (("result", len(values) // 2), ("model", -1))
                for name in (f"{objective} halfway",)
            ],
            "tables": [Table.of("lens", ("layer",), rows)],
            "values": Values(
                unit="pair",
                ids=[str(number) for number in range(len(batch))],
                groups=[str(group) for group in batch.groups],
                columns={f"layer {layer}": row.tolist() for layer, row in enumerate(values)},
            ),
        }


@torch.no_grad()
def lens(model: Model, batch: Batch, objective: str) -> Iterator[np.ndarray]:
    """The objective of every pair before each layer, and after the last."""
    run, _ = model.run(batch)
    score = load_objective(objective)
    for stream in [*(layer.before for layer in run.layers), run.final]:
        yield score(model.decoder.readout(stream[:, -1]), batch).cpu().numpy()
