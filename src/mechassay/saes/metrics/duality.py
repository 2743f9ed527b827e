"""M07, architecture duality: do two dictionaries of one site have the same features?

Both code the same held-out values.

`page`      overlap: the Jaccard index of the numbers of the features that are active in both,
            its mean over values; that of all values together stands beside, as the page does not
            say which. Direction agreement: the mean over features of the largest cosine of their
            encoder's column with any of the other's, both ways averaged; passes if the mean of
            the two exceeds .3. The same dictionary in another order has hardly any overlap, as
            numbers of features mean nothing; and the largest of many random cosines is large:
            two random dictionaries of 512 features in 64 dimensions have a direction agreement
            of .37.
`repaired`  features that are active at all, matched one to one by their decoder rows. The share
            that has a counterpart, which writes the same and is active in the same values,
            passes where its lower end above chance (`counterparts`) exceeds a half. Beside it
            stand the cosine of matches with that of random rows, and the Jaccard index of their
            values.

Two dictionaries may agree on what is no feature: agreement is necessary, and not sufficient. The
page cites a text of Lindsey and others. That the assumptions of an architecture decide which
features it can find is shown by Hindupur et al. (2025, 2503.01822).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
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
from mechassay.saes.feature_matching import (
    Counterparts,
    counterparts,
    rows_like,
    sparse_codes,
    symmetric_mean_max,
    unit_rows,
)
from mechassay.saes.metrics.feature_tokens import HELD_OUT_ROWS, coded, held_out
from mechassay.saes.synthetic import at_cosine
from mechassay.stats.intervals import Interval
from mechassay.utils.settings import Within, checked_settings

ID = "M07"
REPAIRED = (Condition("shared_above_chance_low", ">", 0.5),)
NEAR = 0.05
"""A direction agreement that is no more than this above that of random rows is one of chance."""
SIMULATIONS = 100
Codes = Float[Tensor, "values _"]
Rows = Float[Tensor, "_ d"]


def index_overlap(active: Bool[Tensor, "values n"], others: Bool[Tensor, "values m"]) -> float:
    """The mean Jaccard index of the numbers of active features; NaN if none is active anywhere."""
    common = min(active.shape[1], others.shape[1])
    both = (active[:, :common] & others[:, :common]).sum(1)
    either = active.sum(1) + others.sum(1) - both
    is_active = either > 0
    return (
        float((both[is_active] / either[is_active]).mean()) if bool(is_active.any()) else math.nan
    )


def whole_overlap(active: Bool[Tensor, "values n"], others: Bool[Tensor, "values m"]) -> float:
    """The Jaccard index of the numbers of features that are active in some value; NaN if none."""
    return index_overlap(active.any(0)[None], others.any(0)[None])


def matched_overlap(
    active: Bool[Tensor, "values k"], others: Bool[Tensor, "values k"]
) -> Float[Tensor, "k"]:
    """The Jaccard index of the values that each feature and its match are active in."""
    return (active & others).sum(0) / (active | others).sum(0)


def duality(
    codes: Codes,
    other_codes: Codes,
    encoder: Rows,
    other_encoder: Rows,
    decoder: Rows,
    other_decoder: Rows,
    *,
    threshold: Annotated[float, Within(0)] = 0.0,
    seed: int = 0,
    flags: Iterable[Flag] = (),
) -> Measurement:
    """M07 of two dictionaries' codes of the same values, and their rows.

    Args:
        encoder: columns of W_enc, as rows.
        threshold: a feature is active above it; the page names none.
        seed: of random rows.
    """
    drawn = torch.Generator().manual_seed(seed)
    active, others = codes > threshold, other_codes > threshold
    read, other_read = unit_rows(encoder), unit_rows(other_encoder)
    overlap = index_overlap(active, others)
    direction = symmetric_mean_max(read, other_read)
    random = symmetric_mean_max(read, rows_like(other_read, drawn))
    alive, other_alive = active.any(0), others.any(0)
    matched = counterparts(
        decoder[alive],
        other_decoder[other_alive],
        drawn,
        codes=codes[:, alive],
        other_codes=other_codes[:, other_alive],
    )
    notes = [*flags, flag("numbers_of_features"), flag("overlap_of_what")]
    if direction <= random + NEAR:
        notes.append(flag("direction_by_chance", direction=direction, random=random))
    dead = int((~alive).sum()), int((~other_alive).sum())
    if any(dead):
        notes.append(flag("dead_features", dead=dead[0], other_dead=dead[1], n=len(codes)))
    page = {
        "feature_overlap": quantity(overlap, n=len(codes)),
        "feature_overlap_of_all": quantity(whole_overlap(active, others), n=len(codes)),
        "direction_agreement": quantity(direction, n=len(read) + len(other_read)),
        "architecture_agreement": quantity((overlap + direction) / 2, n=len(codes)),
    }
    repaired = _repaired(matched, active[:, alive], others[:, other_alive])
    repaired["random_direction"] = quantity(random, n=len(read) + len(other_read))
    tables: list[Table] = []
    if matched is not None:
        encoders = (read[alive][matched.rows] * other_read[other_alive][matched.others]).sum(1)
        repaired["encoder_cosine"] = quantity(float(encoders.mean()), n=len(encoders))
        tables.append(_shares(matched))
    return Measurement.of(ID, page, repaired, REPAIRED, flags=notes, null=null(), tables=tables)


def _repaired(matched: Counterparts | None, active: Tensor, others: Tensor) -> dict[str, Quantity]:
    if matched is None:
        names = ("shared", "shared_above_chance", "shared_above_chance_low", "matched_cosine")
        return {name: quantity(None, reason="few") for name in names}
    ends, n = matched.above_chance_interval(), matched.n + matched.n_other
    jaccard = matched_overlap(active[:, matched.rows], others[:, matched.others])
    return {
        "shared": quantity(matched.shared, n=n),
        "random_shared": quantity(matched.random_shared, n=n),
        "shared_above_chance": quantity(matched.above_chance, interval=ends, n=n),
        "shared_above_chance_low": quantity(ends.low, n=n),
        "matched_cosine": quantity(float(matched.cosines.mean()), n=len(matched.cosines)),
        "random_cosine": quantity(matched.random_cosine, n=len(jaccard)),
        "matched_overlap": quantity(float(jaccard.mean()), n=len(jaccard)),
    }


def _shares(matched: Counterparts) -> Table:
    """How many matches reach a cosine."""
    levels = [round(0.1 * step, 1) for step in range(1, 10)]
    rows = (
        {"cosine": level, "share": float((matched.cosines >= level).double().mean())}
        for level in levels
    )
    return Table.of("matches", ("cosine",), rows)


# How often the thresholds err


@cache
def null(n: int = 64, n_simulations: int = SIMULATIONS, seed: int = 0) -> NullTable:
    """Rates of the conditions for dictionaries of `n` features, a tenth active in a value."""
    names = ("architecture_agreement", "low")

    def draw(
        rng: np.random.Generator, size: int, d: int, cosine: float | None, *, same_codes: bool
    ) -> Drawn:
        drawn = torch.Generator().manual_seed(int(rng.integers(2**31)))
        numbers = {name: np.full(size, np.nan) for name in names}
        for row in range(size):
            rows, codes = (
                unit_rows(torch.randn(n, d, generator=drawn, dtype=torch.float32)),
                sparse_codes(n, drawn),
            )
            # In another order, as another training would have them.
            order = torch.randperm(n, generator=drawn)
            others = unit_rows(torch.randn(n, d, generator=drawn, dtype=torch.float32))
            if cosine is not None:
                others = at_cosine(rows, cosine, drawn)[order]
            other_codes = codes[:, order] if same_codes else sparse_codes(n, drawn)
            overlap = index_overlap(codes > 0, other_codes > 0)
            numbers["architecture_agreement"][row] = (
                overlap + symmetric_mean_max(rows, others)
            ) / 2
            matched = counterparts(rows, others, drawn, codes=codes, other_codes=other_codes)
            ends = Interval(math.nan, math.nan)
            numbers["low"][row] = (matched.above_chance_interval() if matched else ends).low
        page = {"architecture_agreement": numbers["architecture_agreement"]}
        return {"page": page, "repaired": {"shared_above_chance_low": numbers["low"]}}

    few, many = max(2, n // 8), max(2, n // 2)
    worlds: dict[str, tuple[bool, int, float | None, bool]] = {
        f"random dictionaries of {few} numbers a row": (True, few, None, False),
        f"random dictionaries of {many} numbers a row": (True, many, None, False),
        "the same rows for other values": (True, many, 0.9, False),
        f"the same features at a cosine of .9, {many} numbers a row": (False, many, 0.9, True),
    }
    scenarios = [
        Scenario(
            name,
            worthless,
            lambda rng, size, d=d, cosine=cosine, same=same: draw(
                rng, size, d, cosine, same_codes=same
            ),
        )
        for name, (worthless, d, cosine, same) in worlds.items()
    ]
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


@dataclass(frozen=True)
@checked_settings
class Duality(Gauge):
    """Do two dictionaries, as of two architectures or seeds, have the same features?

    Attributes:
        threshold: a feature is active above it.
        rows: held-out values.
    """

    threshold: Annotated[float, Within(0)] = 0.0
    rows: Annotated[int, Within(2)] = HELD_OUT_ROWS

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = 64

    def measure(self, inputs: GaugeInputs) -> Measurement:
        """Return both variants for the dictionary and the first further one."""
        sae, (other, *more) = inputs.dictionary, inputs.other_saes
        values = held_out(inputs, (sae, other), self.rows)
        a, b = coded(sae, values), coded(other, values)
        flags: list[Flag] = []
        if more:
            flags.append(flag("first_two", n=len(more)))
        if a.sae.n_features != b.sae.n_features:
            flags.append(flag("other_widths", n=a.sae.n_features, other_n=b.sae.n_features))
        return duality(
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

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for two dictionaries of `n` features each."""
        return null(n, n_simulations, seed)
