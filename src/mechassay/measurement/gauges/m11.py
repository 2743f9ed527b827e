"""M11, consistency across widths: a narrow and a wide dictionary of one site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.measurement.formulas import matryoshka as formula
from mechassay.measurement.gauges.dictionaries import (
    ROWS,
    coded,
    held_out,
)
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.saes.controls import random_sae


@dataclass(frozen=True)
class WidthConsistency:
    """Does a wider dictionary keep the features of a narrow one?

    Attributes:
        top_k: best matches that the page looks at.
        rows: held-out values.
    """

    top_k: int = 20
    rows: int = ROWS

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("site", "sae", "other sae", "texts")

    def __post_init__(self) -> None:
        if self.top_k < 2 or self.rows < 2:
            raise BadUsage(
                f"There are two best matches or more, on two values or more; got {self.top_k} and"
                f" {self.rows}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`; of several further dictionaries, the first of another width."""
        narrow, wide = two_widths(inputs.dictionary, inputs.other_saes)
        values = held_out(inputs, (narrow, wide), self.rows)
        a, b = coded(narrow, values), coded(wide, values)
        k = min(max(1, round(b.l0)), wide.n_features)
        mean = values.mean(0)
        controls = [
            coded(random_sae(wide.d_in, wide.n_features, k, mean, seed=inputs.seed + draw), values)
            for draw in range(formula.RANDOM_DRAWS)
        ]
        return formula.matryoshka(
            a.codes,
            b.codes,
            a.decoder,
            b.decoder,
            random=[(each.codes, each.decoder) for each in controls],
            top_k=self.top_k,
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is features of the narrow dictionary."""
        return formula.null(32 if n is None else n, n_simulations, seed)


def two_widths(sae: SAE, others: tuple[SAE, ...]) -> tuple[SAE, SAE]:
    """The narrow and the wide one of a dictionary and the first that has another width; if all have
    one width, the first.
    """
    of_other_width = [each for each in others if each.n_features != sae.n_features]
    other = (of_other_width or list(others))[0]
    return (sae, other) if sae.n_features <= other.n_features else (other, sae)
