"""M09, core stability: are the features that matter found again?

A cycle trains a dictionary and marks its core. The next one keeps the core (the page all of its
parameters, ours the encoders alone), draws everything else again, and trains.

`page`      core: the tenth of the features (the page names no number) with the largest mean
            |activation x gradient| of the reconstruction error. core_fraction = the share of
            features in the core of every cycle; mean_overlap = the mean Jaccard index of the
            cores of consecutive cycles; stable above .8. The fraction is at most a tenth,
            whatever the features are worth. Core features are carried over, so they need not be
            found again; training may still drop them. At the least reconstruction error that
            gradient is near 0.
`repaired`  core: the fewest features that make up 90 % of what all features do for the
            reconstruction, each by itself. Dictionaries are trained from nothing with other
            seeds. The share of the core that has a counterpart in every one of them (a matched
            cosine of .7, and codes of held-out values that correlate by .5, see `found_again`)
            passes where its lower end, above chance, exceeds a half. Beside it stand the cycles
            with this core, their overlap J less that of random cores: (J - J0) / (1 - J0).

The paper (Martin-Linares and Ling 2025, 2512.24975) attributes the loss of the next token, keeps
encoders alone, and reports a small core as a finding; the page's reading table calls it very
small. Page and paper train on activations or on tokens; here the error of the reconstruction is
attributed in both variants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
    VariantName,
    flag,
    page_metric,
    quantity,
    thresholds,
)
from mechassay.measurement.measurement import (
    Drawn,
    Measurement,
    NullTable,
    Scenario,
    simulate,
)
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.results.records import Table
from mechassay.saes.feature_matching import above, found_again, sparse_codes, unit_rows
from mechassay.saes.metrics.feature_tokens import HELD_OUT_ROWS, coded, given_texts, held_out
from mechassay.saes.synthetic import at_cosine
from mechassay.stats.intervals import Interval, clopper_pearson
from mechassay.utils.settings import Within, checked_settings

ID = "M09"
REPAIRED = (Condition("found_again_above_chance_low", ">", 0.5),)
STABLE = 0.8
SIMULATIONS = 60
EFFECT_SHARE = 0.9
Core = frozenset[int]
"""Features, by a number that stays theirs over cycles."""


def page_importance(
    codes: Float[Tensor, "values n"],
    errors: Float[Tensor, "values d"],
    rows: Float[Tensor, "n d"],
) -> Float[Tensor, "n"]:
    """The mean of |f dE/df|, E = |error|^2 / d, error = value less reconstruction."""
    return (2 * codes * (errors @ rows.mT) / rows.shape[1]).abs().mean(0)


def importance(
    codes: Float[Tensor, "values n"],
    errors: Float[Tensor, "values d"],
    rows: Float[Tensor, "n d"],
) -> Float[Tensor, "n"]:
    """How much E rises on average where a feature is taken out; at least 0."""
    own = rows.square().sum(1)
    rise = 2 * codes * (errors @ rows.mT) + codes.square() * own
    return (rise.mean(0) / rows.shape[1]).clamp(min=0)


def largest(values: Float[Tensor, "n"], share: float) -> Int[Tensor, "k"]:
    """The share of features with the largest values, one at least, in their order."""
    k = max(1, round(share * len(values)))
    return values.topk(k).indices.sort().values


def fewest(values: Float[Tensor, "n"], share: float) -> Int[Tensor, "k"]:
    """The fewest features whose values make up a share of the sum; none if all are 0."""
    ranked = values.sort(descending=True, stable=True)
    total = float(values.double().sum())
    if total <= 0:
        return torch.zeros(0, dtype=torch.long)
    # The sum of those before it is below the share.
    before = ranked.values.double().cumsum(0) - ranked.values.double()
    return ranked.indices[before < share * total * (1 - 1e-9)].sort().values


def jaccard(a: Core, b: Core) -> float:
    """The Jaccard index of two sets; NaN of two empty ones."""
    return len(a & b) / len(a | b) if a or b else math.nan


def chance_jaccard(a: int, b: int, n: int) -> float:
    """About that of random sets of a and b of n features; p / (2 - p) of two shares p."""
    both = a * b / n
    return both / (a + b - both) if a + b else math.nan


def _overlaps(cores: Sequence[Core], n: int) -> tuple[list[float], list[float]]:
    """Jaccard indices of consecutive cores, and above chance."""
    steps = list(pairwise(cores))
    plain = [jaccard(a, b) for a, b in steps]
    chance = [chance_jaccard(len(a), len(b), n) for a, b in steps]
    return plain, [above(x, x0) for x, x0 in zip(plain, chance, strict=True)]


def core_stability(
    page_cores: Sequence[Core],
    cores: Sequence[Core],
    n_features: int,
    rows: Float[Tensor, "n d"],
    others: Sequence[Float[Tensor, "n d"]],
    core: Int[Tensor, "k"],
    *,
    codes: Float[Tensor, "values n"] | None = None,
    other_codes: Sequence[Float[Tensor, "values n"]] = (),
    effect_share: float = EFFECT_SHARE,
    seed: int = 0,
) -> Measurement:
    """M09 of the cores of cycles, and of dictionaries that were trained from nothing.

    Args:
        page_cores, cores: of every cycle, by the page's importance and by ours.
        rows: decoder rows of the first dictionary; `core` are the places of its core.
        others: those of the other seeds.
        codes, other_codes: of held-out values, of the first dictionary and of each other one;
            without them a counterpart need not be active in the same values.
        effect_share: of what all features do, that a core makes up.
        seed: of random rows.
    """
    plain, _ = _overlaps(page_cores, n_features)
    own, own_above = _overlaps(cores, n_features)
    share = len(frozenset.intersection(*page_cores)) / n_features
    mean = _mean(plain)
    page = {
        "core_fraction": quantity(share, n=n_features),
        "mean_overlap": quantity(mean, n=len(plain)),
        "is_stable": quantity(math.nan if math.isnan(mean) else float(mean > STABLE), n=len(plain)),
    }
    drawn = torch.Generator().manual_seed(seed)
    again = found_again(rows, others, drawn, codes=codes, other_codes=other_codes)
    repaired = _found_again(*again, core, len(others))
    repaired |= {
        "core_share": quantity(len(core) / n_features, n=n_features),
        "kept_share": quantity(len(frozenset.intersection(*cores)) / n_features, n=n_features),
        "overlap": quantity(_mean(own), n=len(own)),
        "overlap_above_chance": quantity(_mean(own_above), n=len(own)),
    }
    n_core = len(page_cores[0])
    notes = [
        *_carried_over(mean),
        flag("bounded_fraction", core=n_core, n=n_features, most=n_core / n_features),
    ]
    table = (
        {"cycle": cycle + 1, "page_core": len(a), "core": len(b), "page_overlap": x, "overlap": y}
        for cycle, (a, b, x, y) in enumerate(
            zip(page_cores, cores, [None, *plain], [None, *own], strict=True)
        )
    )
    return Measurement.of(
        ID,
        page,
        repaired,
        REPAIRED,
        flags=notes,
        null=null(n_others=max(1, len(others))),
        tables=[Table.of("cycles", ("cycle",), table)],
        words={"percent": 100 * effect_share},
    )


def _carried_over(overlap: float) -> Iterable[Flag]:
    if overlap > 0:
        yield flag("carried_over", overlap=overlap)


def _mean(values: Sequence[float]) -> float:
    known = [x for x in values if not math.isnan(x)]
    return float(np.mean(known)) if known else math.nan


def _found_again(
    is_found: Bool[Tensor, "n"], chance: Float[Tensor, "n"], core: Int[Tensor, "k"], n_others: int
) -> dict[str, Quantity]:
    names = ("found_again", "found_again_above_chance", "found_again_above_chance_low")
    if not len(core) or not n_others:
        reason = "no_core" if n_others else "no_seed"
        return {name: quantity(None, reason=reason) for name in names}
    share, by_chance = float(is_found[core].float().mean()), float(chance[core].mean())
    ends = found_interval(is_found[core], by_chance)
    exact = clopper_pearson(float(is_found[core].sum()), float(len(core)))
    return {
        "found_again": quantity(share, interval=exact, n=len(core)),
        "found_again_random": quantity(by_chance, n=len(core)),
        "found_again_above_chance": quantity(above(share, by_chance), interval=ends, n=len(core)),
        "found_again_above_chance_low": quantity(ends.low, n=len(core)),
        "found_again_all": quantity(float(is_found.float().mean()), n=len(is_found)),
    }


def found_interval(is_found: Bool[Tensor, "k"], chance: float) -> Interval:
    """Of the share that is found above chance, over features."""
    low, high = clopper_pearson(float(is_found.sum()), float(len(is_found)))[:2]
    return Interval(above(low, chance), above(high, chance))


# How often the thresholds err


@cache
def null(
    n: int = 64, n_others: int = 2, n_simulations: int = SIMULATIONS, seed: int = 0
) -> NullTable:
    """Rates of the conditions for dictionaries of `n` features, a fourth of them the core."""
    core = torch.arange(max(2, n // 4))

    def draw(
        rng: np.random.Generator, size: int, d: int, cosine: float | None, *, same_codes: bool
    ) -> Drawn:
        drawn = torch.Generator().manual_seed(int(rng.integers(2**31)))
        lows = np.full(size, np.nan)
        for row in range(size):
            rows = unit_rows(torch.randn(n, d, generator=drawn, dtype=torch.float32))
            others = [
                unit_rows(torch.randn(n, d, generator=drawn, dtype=torch.float32))
                if cosine is None
                else at_cosine(rows, cosine, drawn)
                for _ in range(n_others)
            ]
            codes = sparse_codes(n, drawn)
            other_codes = [codes if same_codes else sparse_codes(n, drawn) for _ in range(n_others)]
            is_found, chance = found_again(
                rows, others, drawn, codes=codes, other_codes=other_codes
            )
            lows[row] = found_interval(is_found[core], float(chance[core].mean())).low
        return {"page": {}, "repaired": {"found_again_above_chance_low": lows}}

    few, many = max(2, n // 8), max(2, n // 2)
    scenarios = (
        Scenario(
            f"random dictionaries of {few} numbers a row",
            True,
            lambda rng, size: draw(rng, size, few, None, same_codes=True),
        ),
        Scenario(
            f"random dictionaries of {many} numbers a row",
            True,
            lambda rng, size: draw(rng, size, many, None, same_codes=True),
        ),
        Scenario(
            "the same rows for other values",
            True,
            lambda rng, size: draw(rng, size, many, 0.9, same_codes=False),
        ),
        Scenario(
            f"the same features at a cosine of .9, {many} numbers a row",
            False,
            lambda rng, size: draw(rng, size, many, 0.9, same_codes=True),
        ),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


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
@checked_settings
class CoreStability(Gauge):
    """Are the features that matter found again, in cycles that keep them and from nothing?

    Of a core the page keeps encoders, decoder rows and biases, our cycles the encoders alone.
    The trainer gives kept features the first places of a new dictionary, and never draws them
    again. So each feature has a number of its own, which a kept one takes along; all others get
    new ones.

    Attributes:
        n_cycles: trainings of which each keeps the core of the last.
        top_share: of the features, the page's core.
        effect_share: of what all features do, that our core makes up.
        n_seeds: dictionaries that are trained from nothing.
        rows: held-out values that importance is measured on.
    """

    n_cycles: Annotated[int, Within(2)] = 5
    top_share: Annotated[float, Within(above=0, most=1)] = 0.1
    effect_share: Annotated[float, Within(above=0, most=1)] = EFFECT_SHARE
    n_seeds: Annotated[int, Within(2)] = 3
    rows: int = HELD_OUT_ROWS

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = 64
    score: ClassVar[Mapping[VariantName, str]] = MappingProxyType({"page": "mean_overlap"})

    def measure(self, inputs: GaugeInputs) -> Measurement:
        trainer, seed = inputs.get("trainer"), inputs.seed
        check_texts(trainer, inputs)

        def trained(number: int, **kept: Tensor) -> SAE:
            return trainer.train(seed=seed + number, **kept).sae

        first = trained(0)
        values = held_out(inputs, (first,), self.rows)
        page = self._cycles(
            first,
            trained,
            lambda sae: largest(page_importance(*_parts(sae, values)), self.top_share),
            kept_whole,
        )
        own = self._cycles(first, trained, lambda sae: self._core(sae, values), kept_encoder)
        own_values = coded(first, values)
        others = [
            coded(trained(FROM_NOTHING + number), values) for number in range(1, self.n_seeds)
        ]
        return core_stability(
            page,
            own,
            first.n_features,
            own_values.decoder,
            [other.decoder for other in others],
            self._core(first, values),
            codes=own_values.codes,
            other_codes=[other.codes for other in others],
            effect_share=self.effect_share,
            seed=seed,
        )

    def _core(self, sae: SAE, values: Float[Tensor, "values d"]) -> Int[Tensor, "k"]:
        return fewest(importance(*_parts(sae, values)), self.effect_share)

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

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for dictionaries of `n` features, `n_seeds` of them."""
        return null(n, self.n_seeds - 1, n_simulations, seed)


def check_texts(trainer: Any, inputs: GaugeInputs) -> None:
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
