"""EX11, Weber and Fechner: scales the heads of a circuit one by one, and some heads outside of it.

A head at level b and scale s has its output times b s, the rest of the model as it is. The page
does not say whether one head or all of them are halved; here it is the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from mechassay.errors import BadUsage
from mechassay.interventions.intervention import Scale
from mechassay.interventions.site import ALL, Site
from mechassay.interventions.token_logits import logit_differences
from mechassay.measurement.formulas import weber as formula
from mechassay.measurement.gauges.arms import head_writers, heads_of, named_heads
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag

HeadName = tuple[int, int]


@dataclass(frozen=True)
class WeberFechner:
    """How much must a head change before the output does, and does that follow Weber's law?

    Attributes:
        most: heads of the circuit that are scaled, drawn at random where it has more.
        controls: heads outside of it.
    """

    most: int = 12
    controls: int = 3

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("model", "pairs", "circuit")

    def __post_init__(self) -> None:
        if self.most < 1 or self.controls < 0:
            raise BadUsage(
                f"One head or more is scaled, and controls are counted from 0; got {self.most} and"
                f" {self.controls}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        graph, rng = inputs.model.graph, np.random.default_rng(inputs.seed)
        inside = heads_of(inputs.circuit)
        own, others = (
            named_heads(graph, heads) for heads in (inside, head_writers(graph) & ~inside)
        )
        flags: list[Flag] = []
        if not own:
            flags.append(Flag("no_heads", "No head is live in the circuit."))
        if len(own) > self.most:
            flags.append(
                Flag("some_heads", f"{self.most} of the circuit's {len(own)} heads are scaled.")
            )
        own, others = _some(own, self.most, rng), _some(others, self.controls, rng)
        responses = self._responses(inputs, [*own, *others])
        named = dict(zip(map(_name, [*own, *others]), responses, strict=True))
        return formula.weber(
            {name: named[name] for name in map(_name, own)},
            controls={name: named[name] for name in map(_name, others)},
            n_prompts=len(inputs.batch),
            flags=flags,
        )

    def _responses(
        self, inputs: Inputs, heads: Sequence[HeadName]
    ) -> list[Float[np.ndarray, "levels scales"]]:
        """The mean logit difference with each head at levels and scales."""
        grid = np.round(np.outer(formula.LEVELS, formula.SCALES), 10)
        factors, where = np.unique(grid, return_inverse=True)
        plans: list[Any] = [
            {Site(layer, ALL, "heads", (head,)): Scale(float(factor))}
            for layer, head in heads
            for factor in factors
        ]
        if not plans:
            return []
        found = logit_differences(inputs.model, inputs.batch, plans, progress=inputs.progress)
        means = found.after.mean(axis=0).reshape(len(heads), len(factors))
        return [row[where.reshape(grid.shape)] for row in means]

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts, of five heads."""
        return formula.null(40 if n is None else n, 5, n_simulations, seed)


def _name(head: HeadName) -> str:
    return f"a{head[0]}.h{head[1]}"


def _some(heads: Sequence[HeadName], most: int, rng: np.random.Generator) -> list[HeadName]:
    if len(heads) <= most:
        return list(heads)
    return [heads[i] for i in sorted(rng.choice(len(heads), size=most, replace=False).tolist())]
