"""EX24, audit of a metric: a circuit against random edges, a dictionary against its shuffled self.

    circuit   ablation recovery of the circuit, and of as many edges drawn at random
    sae       logit-difference recovery with the site's values replaced by their reconstruction, and
              by one whose decoder rows are permuted

Reseeds are subsamples of the prompts, the same for both configurations. All prompts are run once:
the value of a subsample is that of its prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadUsage
from mechassay.features.featurizer import Featurizer
from mechassay.interventions.intervene import intervene
from mechassay.measurement.formulas import discriminability as formula
from mechassay.measurement.formulas.discriminability import ConfigurationPair
from mechassay.measurement.formulas.resampling import example_weights
from mechassay.measurement.gauges.arms import by_counterfactual
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag, VariantName
from mechassay.objectives import least_size
from mechassay.stats.intervals import percentile_interval
from mechassay.stats.rounding import resolved_difference

Means = Float[np.ndarray, "resamples parts"]


@dataclass(frozen=True, eq=False)
class Reconstruct:
    """A site's value in the words of a featurizer: decode(encode(b)).

    Attributes:
        order: of the features between encoding and decoding; None leaves them in theirs.
    """

    featurizer: Featurizer
    order: Int[Tensor, "k"] | None = None

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __call__(self, base: Tensor, source: Tensor | None) -> Tensor:
        found = self.featurizer.encode(base)
        if self.order is not None:
            found = found[:, self.order.to(found.device)]
        return self.featurizer.decode(found).to(base.dtype)


@dataclass(frozen=True)
class Audit:
    """Is a metric steady over reseeds, and does it tell a good configuration from a bad one?

    Attributes:
        n_reseeds: subsamples of the prompts.
        share: of the prompts in each.
    """

    n_reseeds: int = 10
    share: float = 0.75

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "pairs", "circuit|sae")
    score: ClassVar[Mapping[VariantName, str]] = MappingProxyType(
        {"page": "discriminability_d", "repaired": "difference_low"}
    )

    def __post_init__(self) -> None:
        if self.n_reseeds < 2 or not 0 < self.share < 1:
            raise BadUsage(
                f"An audit needs two reseeds or more, on a share of the prompts between 0 and 1;"
                f" got {self.n_reseeds} and {self.share}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        pairs: list[ConfigurationPair] = []
        flags: list[Flag] = []
        if inputs.has("circuit"):
            pairs.append(self._circuits(inputs))
            size = inputs.circuit.size
            if not 0.005 <= size <= 0.02:
                flags.append(
                    Flag(
                        "other_size",
                        f"The circuit has {size:.1%} of the edges; the audit is"
                        " meant for about 1 %.",
                    )
                )
        if inputs.has("sae"):
            pairs.append(self._dictionaries(inputs))
        return formula.discriminability(pairs, flags=flags, n_prompts=len(inputs.batch))

    def _circuits(self, inputs: Inputs) -> ConfigurationPair:
        circuit, graph = inputs.circuit, inputs.model.graph
        random = Random(seed=inputs.seed).draw(graph).top(len(circuit))
        arms = [Circuit.full(graph), Circuit.empty(graph), circuit, random]
        parts = by_counterfactual(inputs, arms)

        def of(place: int) -> Callable[[Means], np.ndarray]:
            def share(means: Means) -> np.ndarray:
                gaps = resolved_difference(
                    means[:, 0], means[:, 1], parts[:2], least=least_size(inputs.objective.name)
                )
                return (means[:, place] - means[:, 1]) / np.where(gaps == 0, np.nan, gaps)

            return share

        name = f"circuit of {len(circuit)} edges, as many random edges"
        return self._pair(name, inputs, parts, of(2), of(3))

    def _dictionaries(self, inputs: Inputs) -> ConfigurationPair:
        model, batch, site = inputs.model, inputs.batch, inputs.site
        width = self._width(inputs)
        order = torch.from_numpy(np.random.default_rng(inputs.seed).permutation(width))

        def output(change: Reconstruct) -> Float[np.ndarray, "n"]:
            final = intervene(model, batch, {site: change}).final
            with torch.no_grad():
                values = inputs.objective(model.decoder.readout(final), batch)
            return values.double().cpu().numpy()

        full = by_counterfactual(inputs, [Circuit.full(model.graph)])[0]
        parts = np.stack(
            (full, output(Reconstruct(inputs.sae)), output(Reconstruct(inputs.sae, order)))
        )
        name = "dictionary, its decoder rows permuted"

        def kept(place: int) -> Callable[[Means], np.ndarray]:
            def share(means: Means) -> np.ndarray:
                whole = resolved_difference(means[:, 0], 0.0, full)
                return means[:, place] / np.where(whole == 0, np.nan, whole)

            return share

        return self._pair(name, inputs, parts, kept(1), kept(2))

    def _width(self, inputs: Inputs) -> int:
        """How many features the dictionary has."""
        width = inputs.site.check(inputs.model).width(inputs.model.decoder)
        nothing = torch.zeros((1, width), device=inputs.model.device, dtype=inputs.model.dtype)
        try:
            return inputs.sae.encode(nothing).shape[1]
        except RuntimeError:
            raise BadUsage(
                f"The dictionary does not take the {width} numbers of {inputs.site}."
            ) from None

    def _pair(
        self,
        name: str,
        inputs: Inputs,
        parts: Float[np.ndarray, "parts n"],
        better: Callable[[Means], np.ndarray],
        worse: Callable[[Means], np.ndarray],
    ) -> ConfigurationPair:
        n = parts.shape[1]
        rng = np.random.default_rng(inputs.seed)
        rows = rng.random((self.n_reseeds, n)).argsort(axis=1)[:, : max(2, round(self.share * n))]
        means = parts[:, rows].mean(axis=2).T
        weights, n_groups = example_weights(inputs.batch.groups, rng)
        drawn = weights @ parts.T / weights.sum(axis=1, keepdims=True)
        whole = parts.mean(axis=1)[None]
        return ConfigurationPair(
            name,
            better(means),
            worse(means),
            float((better(whole) - worse(whole))[0]),
            percentile_interval(better(drawn) - worse(drawn), n_groups=n_groups),
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts."""
        return formula.null(50 if n is None else n, self.n_reseeds, n_simulations, seed)
