"""M07, architecture duality: two dictionaries of one site on the same held-out values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.errors import BadUsage
from mechassay.measurement.formulas import duality as formula
from mechassay.measurement.gauges.dictionaries import (
    ROWS,
    coded,
    held_out,
)
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag


@dataclass(frozen=True)
class Duality:
    """Do two dictionaries, as of two architectures or seeds, have the same features?

    Attributes:
        threshold: a feature is active above it.
        rows: held-out values.
    """

    threshold: float = 0.0
    rows: int = ROWS

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("site", "sae", "other sae", "texts")

    def __post_init__(self) -> None:
        if self.threshold < 0 or self.rows < 2:
            raise BadUsage(
                f"A threshold is 0 or more, on two values or more; got {self.threshold} and"
                f" {self.rows}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`; the first of several further dictionaries is compared."""
        sae, (other, *more) = inputs.dictionary, inputs.other_saes
        values = held_out(inputs, (sae, other), self.rows)
        a, b = coded(sae, values), coded(other, values)
        flags: list[Flag] = []
        if more:
            flags.append(
                Flag(
                    "first_two", f"{len(more)} further dictionaries are not compared: M07 has two."
                )
            )
        if a.sae.n_features != b.sae.n_features:
            flags.append(
                Flag(
                    "other_widths",
                    f"Of {a.sae.n_features:,} and {b.sae.n_features:,} features not all can have a"
                    " counterpart.",
                )
            )
        return formula.duality(
            a.codes,
            b.codes,
            a.encoder,
            b.encoder,
            a.decoder,
            b.decoder,
            threshold=self.threshold,
            seed=inputs.seed,
            flags=flags,
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is features of each dictionary."""
        return formula.null(64 if n is None else n, n_simulations, seed)
