"""M09, core stability: trains dictionaries in cycles that keep a core, and from nothing.

Of a core the page keeps encoders, decoder rows and biases, our cycles the encoders alone. The
trainer gives kept features the first places of a new dictionary, and never draws them again. So
each feature has a number of its own, which a kept one takes along; all others get new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.measurement.formulas import core_stability as formula
from mechassay.measurement.formulas.core_stability import Core
from mechassay.measurement.gauges.dictionaries import ROWS, coded, given_texts, held_out
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import VariantName

FROM_NOTHING = 1000
"""What is added to seeds of dictionaries that keep nothing: cycles have others."""
Marked = Callable[[SAE], Int[Tensor, "k"]]
"""The core of a dictionary."""
Keep = Callable[[SAE, Tensor], Mapping[str, Tensor]]
"""What the next cycle keeps of a core."""


def kept_whole(sae: SAE, core: Int[Tensor, "k"]) -> Mapping[str, Tensor]:
    """All that features have; a jumprelu's thresholds are drawn again."""
    return {
        "encoder": sae.w_enc[:, core],
        "decoder": sae.w_dec[core],
        "b_enc": sae.b_enc[core],
    }


def kept_encoder(sae: SAE, core: Int[Tensor, "k"]) -> Mapping[str, Tensor]:
    """Encoders alone."""
    return {"encoder": sae.w_enc[:, core]}


@dataclass(frozen=True)
class CoreStability:
    """Are the features that matter found again, in cycles that keep them and from nothing?

    Attributes:
        n_cycles: trainings of which each keeps the core of the last.
        top_share: of the features, the page's core.
        effect_share: of what all features do, that our core makes up.
        n_seeds: dictionaries that are trained from nothing.
        rows: held-out values that importance is measured on.
    """

    n_cycles: int = 5
    top_share: float = 0.1
    effect_share: float = 0.9
    n_seeds: int = 3
    rows: int = ROWS

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("site", "texts", "trainer")
    score: ClassVar[Mapping[VariantName, str]] = MappingProxyType({"page": "mean_overlap"})

    def __post_init__(self) -> None:
        if self.n_cycles < 2 or self.n_seeds < 2:
            raise BadUsage(
                "Core stability needs two cycles and two seeds or more; got"
                f" {self.n_cycles} and {self.n_seeds}."
            )
        if not (0 < self.top_share <= 1 and 0 < self.effect_share <= 1):
            raise BadUsage(
                f"A core is a share above 0, at most 1; got {self.top_share} and"
                f" {self.effect_share}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        trainer, seed = inputs.get("trainer"), inputs.seed
        check_texts(trainer, inputs)

        def trained(number: int, **kept: Tensor) -> SAE:
            return trainer.train(seed=seed + number, **kept).sae

        first = trained(0)
        values = held_out(inputs, (first,), self.rows)
        page = self._cycles(
            first,
            trained,
            lambda sae: formula.largest(
                formula.page_importance(*_parts(sae, values)), self.top_share
            ),
            kept_whole,
        )
        own = self._cycles(first, trained, lambda sae: self._core(sae, values), kept_encoder)
        own_values = coded(first, values)
        others = [
            coded(trained(FROM_NOTHING + number), values) for number in range(1, self.n_seeds)
        ]
        return formula.core_stability(
            page,
            own,
            first.n_features,
            own_values.decoder,
            [each.decoder for each in others],
            self._core(first, values),
            codes=own_values.codes,
            other_codes=[each.codes for each in others],
            seed=seed,
        )

    def _core(self, sae: SAE, values: Float[Tensor, "values d"]) -> Int[Tensor, "k"]:
        return formula.fewest(formula.importance(*_parts(sae, values)), self.effect_share)

    def _cycles(self, sae: SAE, trained: Any, marked: Marked, keep: Keep) -> list[Core]:
        """The cores of all cycles, by features' own numbers."""
        numbers, new = torch.arange(sae.n_features), sae.n_features
        cores: list[Core] = []
        for cycle in range(1, self.n_cycles + 1):
            core = marked(sae)
            cores.append(frozenset(numbers[core].tolist()))
            if cycle < self.n_cycles:
                sae = trained(cycle, **keep(sae, core))
                drawn = torch.arange(new, new + sae.n_features - len(core))
                numbers, new = torch.cat((numbers[core], drawn)), new + len(drawn)
        return cores

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is features of a dictionary."""
        return formula.null(64 if n is None else n, self.n_seeds - 1, n_simulations, seed)


def check_texts(trainer: Any, inputs: Inputs) -> None:
    """Refuse a trainer whose store, if it has one, is not that of the texts.

    Raises:
        BadUsage: dictionaries of other values.
    """
    store, texts = getattr(trainer, "store", None), given_texts(inputs)
    if store is not None and store.key != texts.key:
        raise BadUsage(
            f"The trainer's dictionaries are of {store.site} over {store.corpus} ({store.key}); the"
            f" texts' activations are of {texts.site} over {texts.corpus} ({texts.key})."
        )


@torch.no_grad()
def _parts(sae: SAE, values: Float[Tensor, "values d"]) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, errors of the reconstruction, and decoder rows."""
    errors = values - sae.reconstruct(values.to(sae.w_enc.device)).cpu()
    return coded(sae, values).codes, errors, sae.w_dec.float().cpu()
