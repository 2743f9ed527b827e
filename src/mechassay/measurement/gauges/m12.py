"""M12, adaptive sparsity: active features of test values, and how many each needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mechassay.errors import BadUsage
from mechassay.measurement.formulas import adaptive_sparsity as formula
from mechassay.measurement.gauges.sae_tokens import given_dictionary
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag
from mechassay.saes.pursuit import needed_by

TIMES = 4
"""The search for what a value needs ends at so many times the mean number of active features."""


@dataclass(frozen=True)
class AdaptiveSparsity:
    """Has a value as many active features as it needs?

    Attributes:
        mismatch_threshold: of the page a deviation from what is expected; of the repaired variant a
            ratio to what is needed.
        n_values: that are searched, spread evenly over the test documents.
    """

    mismatch_threshold: float = formula.THRESHOLD
    n_values: int = 1000

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "sae", "texts")

    def __post_init__(self) -> None:
        if self.mismatch_threshold <= 1 or self.n_values < 3:
            raise BadUsage(
                "A mismatch is a ratio above 1, of three values or more; got"
                f" {self.mismatch_threshold} and {self.n_values}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        sae, store = given_dictionary(inputs)
        total = store.n_rows("test")
        some = torch.linspace(0, total - 1, min(total, self.n_values)).round().long()
        values = store.values("test")[some].float()
        mean_k = float((sae.encode(values) != 0).sum(dim=1).float().mean())
        most = min(sae.n_features, max(8, round(TIMES * mean_k)))
        k, need = needed_by(sae, values, most)
        flags = [Flag("position_0", "The first token of a window is among the values.")]
        return formula.adaptive_sparsity(
            k.double().numpy(),
            values.norm(dim=1).double().numpy(),
            need.double().numpy(),
            [str(x) for x in store.rows("test")[some].tolist()],
            threshold=self.mismatch_threshold,
            most=most,
            seed=inputs.seed,
            flags=flags if store.settings.drop == 0 else (),
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS // 2, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is values."""
        return formula.null(formula.SIMULATED if n is None else n, n_simulations, seed)
