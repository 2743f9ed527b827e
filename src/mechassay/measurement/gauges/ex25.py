"""EX25, reproducibility: runs a base metric again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mechassay.errors import BadUsage, one_of
from mechassay.measurement.formulas import reproducibility as formula
from mechassay.measurement.gauges.base_metrics import BASE_NAMES, run_base
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable


@dataclass(frozen=True)
class Reproducibility:
    """Is a number the same when it is computed again: noise of measuring apart from sampling.

    Attributes:
        metric: logit-diff, probe-accuracy or ablation-recovery.
        n_runs: of each kind.
        share: of the prompts that a run of the page has, and of a probe's train prompts.
    """

    metric: str = "logit-diff"
    n_runs: int = 10
    share: float = 0.75

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "pairs")
    uses: ClassVar[tuple[str, ...]] = ("circuit",)
    tried_as: ClassVar[str] = "metric=ablation-recovery"

    def __post_init__(self) -> None:
        one_of("base metric", self.metric, BASE_NAMES)
        if self.n_runs < 2 or not 0 < self.share < 1:
            raise BadUsage(
                f"Reproducibility needs two runs or more, on a share of the prompts between 0 and"
                f" 1; got {self.n_runs} and {self.share}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        batch, n = inputs.batch, len(inputs.batch)
        size = max(2, round(self.share * n))
        items = np.full((2, self.n_runs, n), np.nan)
        values = np.empty((2, self.n_runs))
        for run in range(self.n_runs):
            for kind, kept in enumerate((size, n)):
                rng = np.random.default_rng((inputs.seed, kind, run))
                rows = rng.permutation(n)[:kept]
                share = self.share if kind == 0 else 1.0
                scores = run_base(self.metric, inputs, rows, rng, train_share=share)
                values[kind, run] = scores.value()
                items[kind, run, rows] = scores.ranking
        rng = np.random.default_rng(inputs.seed)
        se = run_base(self.metric, inputs, np.arange(n), rng).sampling_se(rng)
        return formula.reproducibility(
            values[0],
            items[0],
            values[1],
            items[1],
            se,
            ids=batch.ids,
            groups=batch.groups,
            share=self.share,
            metric=self.metric,
            seed=inputs.seed,
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts."""
        return formula.null(50 if n is None else n, self.n_runs, n_simulations, seed)
