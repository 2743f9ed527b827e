"""M11, consistency across widths: does a wider dictionary keep the features of a narrow one?

`page`      of each narrow feature the `top_k` wide ones whose codes correlate with its own most:
            it is split where their decoder rows have a low mean cosine (below .5: the page names
            no number). A wide feature absorbs where it is the best match of several narrow ones.
            consistency = 1 - (split share + absorbing share) / 2, above .7. The twenty features
            that correlate most are mostly unrelated: two copies of one dictionary have a
            consistency of .5. The absorbing share is of wide features, so it cannot exceed a
            half.
`repaired`  of features that are active at all. The children of a narrow feature are the wide
            ones whose codes correlate with its own by .3 or more, and those that are active
            almost only with it. A feature is kept where what its children write when it is
            active points its way (cosine .5 or more), and no other narrow feature has the same
            best match. consistency = the share that is kept, its lower end above .7, and above
            the share that random dictionaries of the wide one's size keep: of many random
            features some are active where a narrow one is, and lean its way. What is not kept is
            lost (no child), incoherent (children that write something else) or absorbed.

Coherent kinds of one feature have rows of their own, so their cosine to each other is no sign of
incoherence: what they write together is. "Absorption" here is a match that two features share,
and not that of Chanin et al. (2024). The dictionaries are Matryoshka's (Bussmann et al. 2025),
or any two of one site; if the narrow one is the beginning of the wide one, its features are kept
by construction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.features.sae import SAE
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
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
from mechassay.saes.feature_matching import correlations, random_sae, unit_rows
from mechassay.saes.metrics.feature_tokens import HELD_OUT_ROWS, coded, held_out
from mechassay.saes.synthetic import at_cosine
from mechassay.stats.intervals import clopper_pearson
from mechassay.utils.settings import Within, checked_settings

ID = "M11"
REPAIRED = (
    Condition("consistency_low", ">", 0.7),
    Condition("consistency_low_above_random", ">", 0.0),
)
COHERENT = 0.5
"""The cut of cosines: the page's, which it does not name, and ours of what children write."""
RELATED, IMPLIED, LIFT, FEWEST = 0.3, 0.8, 2.0, 5
"""A child's correlation; or how often its parent is active with it, how much more often than
otherwise, and in how many values at least."""
SAME = 0.999
RANDOM_DRAWS = 3
"""Random dictionaries that stand beside the wide one."""
SIMULATIONS = 60
Codes = Float[Tensor, "values _"]
Rows = Float[Tensor, "_ d"]
FATES = ("same", "split", "absorbed", "incoherent", "lost")


@dataclass(frozen=True)
class PageConsistency:
    """The page's three numbers."""

    splitting: float
    absorption: float

    @property
    def consistency(self) -> float:
        return 1 - (self.splitting + self.absorption) / 2


def page_consistency(
    codes: Codes, wide_codes: Codes, wide_rows: Rows, *, top_k: int = 20
) -> PageConsistency:
    """The published definition; a feature that never varies correlates by 0 with all others."""
    similarities = correlations(codes, wide_codes).nan_to_num(nan=0.0)
    k = min(top_k, similarities.shape[1])
    if not len(similarities) or k < 2:
        return PageConsistency(math.nan, math.nan)
    rows = unit_rows(wide_rows)
    sums = torch.stack([rows[top].sum(0) for top in similarities.topk(k, dim=1).indices])
    # |sum of k unit rows|^2 = k + the sum of the cosines of all ordered pairs.
    cosines = (sums.square().sum(1) - k) / (k * (k - 1))
    best = torch.bincount(similarities.argmax(dim=1), minlength=similarities.shape[1])
    return PageConsistency(
        float((cosines < COHERENT).double().mean()), float((best > 1).double().mean())
    )


@dataclass(frozen=True, eq=False)
class Fates:
    """What becomes of each narrow feature that is active at all.

    Attributes:
        of: the place of its fate in `FATES`.
        children: how many it has.
        cosine: of what they write with its row.
    """

    of: Float[Tensor, "n"]
    children: Float[Tensor, "n"]
    cosine: Float[Tensor, "n"]

    def share(self, *names: str) -> float:
        """The share of features with one of some fates; NaN without features."""
        if not len(self.of):
            return math.nan
        wanted = torch.tensor([FATES.index(name) for name in names])
        return float(torch.isin(self.of, wanted).double().mean())


def children_of(codes: Codes, wide_codes: Codes) -> Bool[Tensor, "n m"]:
    """Which wide features are children of which narrow ones."""
    on, wide_on = (codes > 0).double(), (wide_codes > 0).double()
    together, count = on.mT @ wide_on, wide_on.sum(0)
    implied = together / count >= torch.clamp(LIFT * on.mean(0)[:, None], min=IMPLIED)
    related = correlations(codes, wide_codes).nan_to_num(nan=0.0)
    return (related >= RELATED) | (implied & (together >= FEWEST) & (related > 0))


def fates(codes: Codes, wide_codes: Codes, rows: Rows, wide_rows: Rows) -> Fates:
    """What becomes of narrow features in a wider dictionary."""
    alive, wide_alive = (codes > 0).any(0), (wide_codes > 0).any(0)
    codes, rows = codes[:, alive], unit_rows(rows[alive])
    wide_codes, wide_rows = wide_codes[:, wide_alive], wide_rows[wide_alive].float()
    if not len(rows) or not len(wide_rows):
        lost = torch.full((len(rows),), float(FATES.index("lost")), dtype=torch.float32)
        return Fates(
            lost,
            torch.zeros(len(rows), dtype=torch.float32),
            torch.zeros(len(rows), dtype=torch.float32),
        )
    children = children_of(codes, wide_codes)
    written = ((codes > 0).double().mT @ wide_codes.double()) * children
    cosine = (unit_rows(written.float() @ wide_rows) * rows).sum(1)
    similarities = correlations(codes, wide_codes).nan_to_num(nan=0.0)
    related = (similarities * children).max(dim=1)
    times = torch.bincount(related.indices[related.values > 0], minlength=similarities.shape[1])
    absorbed = (times[related.indices] > 1) & (related.values > 0)
    n = children.sum(1)
    of = torch.full((len(rows),), FATES.index("same"))
    of[n > 1] = FATES.index("split")
    of[absorbed] = FATES.index("absorbed")
    of[cosine < COHERENT] = FATES.index("incoherent")
    of[n == 0] = FATES.index("lost")
    return Fates(of.float(), n.float(), cosine)


def matryoshka(
    codes: Codes,
    wide_codes: Codes,
    rows: Rows,
    wide_rows: Rows,
    *,
    random: Sequence[tuple[Codes, Rows]] = (),
    top_k: Annotated[int, Within(2)] = 20,
) -> Measurement:
    """M11 of a narrow and a wide dictionary's codes of the same values, and their decoder rows.

    Args:
        random: codes and rows of random dictionaries of the wide one's size; without any there is
            no verdict.
        top_k: of the page.
    """
    published = page_consistency(codes, wide_codes, wide_rows, top_k=top_k)
    outcome = fates(codes, wide_codes, rows, wide_rows)
    n, kept = len(outcome.of), ("same", "split")
    share = outcome.share(*kept)
    ends = clopper_pearson(float(round(share * n)), float(n)) if n else None
    notes = _flags(codes, rows, wide_codes, wide_rows, n, top_k)
    page = {
        "splitting_rate": quantity(published.splitting, n=codes.shape[1]),
        "absorption_rate": quantity(published.absorption, n=wide_codes.shape[1]),
        "cross_scale_consistency": quantity(published.consistency, n=codes.shape[1]),
    }
    by_chance, reason = random_share(codes, rows, random), "no_control" if n else ""
    repaired = {
        "consistency": quantity(share, interval=ends, n=n),
        "consistency_low": quantity(None if ends is None else ends.low, n=n),
        "consistency_random": quantity(by_chance, n=n, reason=reason),
        "consistency_low_above_random": quantity(
            math.nan if ends is None else ends.low - by_chance, n=n, reason=reason
        ),
    }
    for name in ("split", "absorbed", "incoherent", "lost"):
        repaired[f"{name}_share"] = quantity(outcome.share(name), n=n)
    counts = (
        {"fate": name, "features": int((outcome.of == place).sum())}
        for place, name in enumerate(FATES)
    )
    return Measurement.of(
        ID,
        page,
        repaired,
        REPAIRED,
        flags=notes,
        null=null(),
        tables=[Table.of("fates", ("fate",), counts)],
    )


def random_share(codes: Codes, rows: Rows, random: Sequence[tuple[Codes, Rows]]) -> float:
    """The mean share of features that random dictionaries keep; NaN without any, or without
    features.
    """
    shares = [fates(codes, beside[0], rows, beside[1]).share("same", "split") for beside in random]
    return float(np.mean(shares)) if shares else math.nan


def _flags(
    codes: Codes, rows: Rows, wide_codes: Codes, wide_rows: Rows, alive: int, top_k: int
) -> list[Flag]:
    flags: list[Flag] = []
    if alive < codes.shape[1]:
        flags.append(flag("dead_features", dead=codes.shape[1] - alive, n=len(codes)))
    if top_k > 2:
        flags.append(flag("unrelated_matches", top_k=top_k))
    n = len(rows)
    if len(wide_rows) == n:
        flags.append(flag("equal_widths"))
    if len(wide_rows) >= n:
        beginning = (unit_rows(rows) * unit_rows(wide_rows[:n])).sum(1)
        if bool((beginning > SAME).all()):
            flags.append(flag("nested"))
    return flags


# How often the thresholds err


@cache
def null(n: int = 32, n_simulations: int = SIMULATIONS, seed: int = 0) -> NullTable:
    """Rates of the conditions for a narrow dictionary of `n` features and a wide one of 2 n."""
    values, many = 600, 16 * n

    def codes_of(drawn: torch.Generator, count: int) -> Tensor:
        on = torch.rand(values, count, generator=drawn, dtype=torch.float32) < 3 / n
        return on * (1 + torch.rand(values, count, generator=drawn, dtype=torch.float32))

    def random_codes(x: Tensor, count: int, drawn: torch.Generator) -> tuple[Codes, Rows]:
        seed = int(torch.randint(2**31, (), generator=drawn))
        sae = random_sae(x.shape[1], count, min(8, count), x.mean(0), seed=seed)
        return sae.encode(x), sae.w_dec

    def draw(rng: np.random.Generator, size: int, kind: str) -> Drawn:
        drawn = torch.Generator().manual_seed(int(rng.integers(2**31)))
        names = ("cross_scale_consistency", "low", "above_random")
        numbers = {name: np.full(size, np.nan) for name in names}
        for row in range(size):
            # In few dimensions random rows lean to many others.
            d = n if kind == "random" else 2 * n
            rows, codes = (
                unit_rows(torch.randn(n, d, generator=drawn, dtype=torch.float32)),
                codes_of(drawn, n),
            )
            wide_rows = unit_rows(torch.randn(2 * n, d, generator=drawn, dtype=torch.float32))
            wide_codes = codes_of(drawn, 2 * n)
            if kind == "other rows":
                wide_codes[:, :n] = codes
            elif kind == "more features":
                wide_codes[:, :n], wide_rows[:n] = codes, rows
            elif kind == "split":
                first = torch.rand(values, n, generator=drawn, dtype=torch.float32) < 0.5
                wide_codes = torch.cat((codes * first, codes * ~first), dim=1)
                wide_rows = at_cosine(rows.repeat(2, 1), 0.8, drawn)
            elif kind == "random":
                wide_codes, wide_rows = random_codes(codes @ rows, many, drawn)
            page = page_consistency(codes, wide_codes, wide_rows)
            share = fates(codes, wide_codes, rows, wide_rows).share("same", "split")
            numbers["cross_scale_consistency"][row] = page.consistency
            low = clopper_pearson(float(round(share * n)), float(n)).low
            beside = [
                random_codes(codes @ rows, len(wide_rows), drawn) for _ in range(RANDOM_DRAWS)
            ]
            numbers["low"][row] = low
            numbers["above_random"][row] = low - random_share(codes, rows, beside)
        page_values = {"cross_scale_consistency": numbers["cross_scale_consistency"]}
        repaired = {
            "consistency_low": numbers["low"],
            "consistency_low_above_random": numbers["above_random"],
        }
        return {"page": page_values, "repaired": repaired}

    worlds = {
        "unrelated": ("an unrelated wide dictionary", True),
        "other rows": ("the narrow features with other decoder rows, among others", True),
        "random": (
            f"a random dictionary of {many} features that encodes the same values, in {n} numbers",
            True,
        ),
        "more features": ("the narrow features among others", False),
        "split": ("each narrow feature in two kinds", False),
    }
    scenarios = [
        Scenario(name, worthless, lambda rng, size, kind=kind: draw(rng, size, kind))
        for kind, (name, worthless) in worlds.items()
    ]
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


@dataclass(frozen=True)
@checked_settings
class WidthConsistency(Gauge):
    """Does a wider dictionary keep the features of a narrow one?

    Attributes:
        top_k: best matches that the page looks at.
        rows: held-out values.
    """

    top_k: Annotated[int, Within(2)] = 20
    rows: Annotated[int, Within(2)] = HELD_OUT_ROWS

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = 32

    def measure(self, inputs: GaugeInputs) -> Measurement:
        """Return both variants for the dictionary and the first further one of another width."""
        narrow, wide = two_widths(inputs.dictionary, inputs.other_saes)
        values = held_out(inputs, (narrow, wide), self.rows)
        a, b = coded(narrow, values), coded(wide, values)
        k = min(max(1, round(b.l0)), wide.n_features)
        mean = values.mean(0)
        controls = [
            coded(random_sae(wide.d_in, wide.n_features, k, mean, seed=inputs.seed + draw), values)
            for draw in range(RANDOM_DRAWS)
        ]
        return matryoshka(
            a.codes,
            b.codes,
            a.decoder,
            b.decoder,
            random=[(control.codes, control.decoder) for control in controls],
            top_k=self.top_k,
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for a narrow dictionary of `n` features."""
        return null(n, n_simulations, seed)


def two_widths(sae: SAE, others: tuple[SAE, ...]) -> tuple[SAE, SAE]:
    """The narrow and the wide one of a dictionary and the first that has another width; if all have
    one width, the first.
    """
    of_other_width = [other_sae for other_sae in others if other_sae.n_features != sae.n_features]
    other = (of_other_width or list(others))[0]
    return (sae, other) if sae.n_features <= other.n_features else (other, sae)
