"""EX11, Weber and Fechner: how much must a head change before the output changes noticeably?

Each head of a circuit is scaled alone, and some heads outside of it as a control: at level b and
scale s its output is times b s. The just noticeable difference (JND) is the smallest 1 - s at
which the logit difference changes by more than 5 %. By Weber's law it is proportional to b.

`page`      smallest 1 - s of its grid at which the logit difference drops by more than 5 % of
            what it is at that level, at the levels 1 and .5; fraction = JND / b; consistency is
            1 - sd / mean of all fractions, of all heads together; passes if every head has a
            JND. Of a linear head 5 % of its own level is always the same share: Weber's law by
            construction, which the division by b then doubles. Heads that lower the output are
            never noticed, and of an additive circuit only heads with more than a tenth of the
            output. Whether one head or all of them are halved, the page does not say.
`repaired`  a change in either direction by more than 5 % of the model's own output, the same for
            all levels; JND in units of the full output, interpolated between points of the grid,
            down to s = 0; the exponent of JND over level for each head, 1 under Weber's law and
            0 for a linear head, with its interval over heads. Responses are fitted by a line, a
            logarithm and a constant. A head is graded if it is noticed and its ten responses
            rise or fall with the scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Float

from mechassay.interventions.intervention import Scale
from mechassay.interventions.site import ALL, Site
from mechassay.interventions.sweep import logit_differences
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
    N_SIMULATIONS,
    Drawn,
    Measurement,
    NullTable,
    Scenario,
    simulate,
)
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.measurement.metrics.circuit_runs import head_writers, heads_of, named_heads
from mechassay.measurement.metrics.method_agreement import rank_correlation
from mechassay.results.records import Table
from mechassay.stats.intervals import Interval, resolved_difference, student_interval
from mechassay.utils.settings import Within, checked_settings

ID = "EX11"
PAGE_SCALES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
PAGE_LEVELS = (1.0, 0.5)
LEVELS = (1.0, 0.75, 0.5, 0.25)
SCALES = (0.0, 0.25, *PAGE_SCALES)
NOTICED = 0.05
GRADED = 0.95
REPAIRED = (Condition("weber_exponent_low", ">", 0.5), Condition("n_undetectable", "=", 0.0))
Responses = Float[np.ndarray, "levels scales"]
"""The output with a head at level times scale, for levels and scales."""


def page_jnd(
    response: Float[np.ndarray, "scales"], scales: Sequence[float] = PAGE_SCALES
) -> float | None:
    """The smallest 1 - s of the grid that lowers the output by more than 5 % of it at s = 1."""
    at_one = float(response[list(scales).index(1.0)])
    for s, output in sorted(zip(scales, response.tolist(), strict=True), reverse=True):
        # Exact steps of the grid: 1 - .8 is not .2 in binary.
        if s < 1 and at_one - output > NOTICED * abs(at_one) + 1e-12:
            return round(1 - s, 10)
    return None


def weber_consistency(fractions: Sequence[float]) -> float:
    """1 - sd / mean of Weber fractions; NaN without any."""
    values = np.asarray(fractions, dtype=float)
    return 1 - float(values.std() / values.mean()) if len(values) and values.mean() else math.nan


def jnd(
    response: Float[np.ndarray, "scales"],
    scales: Sequence[float],
    level: float,
    noticed: float,
) -> float | None:
    """The smallest change of the output scale, level x (1 - s), that changes the output by more
    than `noticed` either way; interpolated between points of the grid.
    """
    order = np.argsort(-np.asarray(scales))
    s, output = np.asarray(scales)[order], response[order]
    moved = np.abs(output - output[0])
    beyond = np.flatnonzero(moved > noticed)
    if not len(beyond):
        return None
    last = int(beyond[0])
    share = (noticed - moved[last - 1]) / (moved[last] - moved[last - 1])
    at = s[last - 1] + share * (s[last] - s[last - 1])
    return float(level * (1 - at))


def exponent(levels: Sequence[float], jnds: Sequence[float | None]) -> float:
    """The slope of log JND over log level; NaN with fewer than two."""
    known = [(b, x) for b, x in zip(levels, jnds, strict=True) if x is not None and x > 0]
    if len(known) < 2:
        return math.nan
    x, y = np.log(np.array(known)).T
    return float(np.polyfit(x, y, 1)[0])


def fits(response: Float[np.ndarray, "scales"], scales: Sequence[float]) -> dict[str, float]:
    """R^2 of a line and of a logarithm through the responses at s > 0; NaN where they are equal."""
    s = np.asarray(scales)
    y = response[s > 0]
    x = s[s > 0]
    varies = len(y) > 0 and float(resolved_difference(y.std(), 0.0, y)) > 0
    total = float(((y - y.mean()) ** 2).sum())
    shares: dict[str, float] = {}
    for name, column in (("linear", x), ("logarithm", np.log(x))):
        design = np.stack((np.ones_like(column), column), axis=1)
        rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
        shares[name] = 1 - float((rest**2).sum()) / total if varies else math.nan
    return shares


def weber(
    responses: Mapping[str, Responses],
    *,
    controls: Mapping[str, Responses] | None = None,
    levels: Sequence[float] = LEVELS,
    scales: Sequence[float] = SCALES,
    n_prompts: int = 0,
    n_left_out: int = 0,
    flags: Iterable[Flag] = (),
) -> Measurement:
    """EX11 of the mean logit difference with each head of a circuit at levels and scales.

    Args:
        responses: by head; levels and scales hold those of the page.
        controls: the same of heads outside of the circuit.
        n_left_out: heads of the circuit that were not scaled.
    """
    others, n = dict(controls or {}), len(responses)
    notes = [*flags, flag("weber_by_construction", percent=100 * NOTICED)]
    page = _page(responses, levels, scales)
    rows = [_row(name, x, levels, scales, "circuit") for name, x in responses.items()]
    rows += [_row(name, x, levels, scales, "control") for name, x in others.items()]
    own = rows[:n]
    exponents = np.array([row["exponent"] for row in own], dtype=float)
    known = exponents[~np.isnan(exponents)]
    ends = student_interval(known) if len(known) > 1 else Interval(math.nan, math.nan)
    missing = sum(row["jnd"] is None for row in own)
    noticed = sum(row["jnd"] is not None for row in rows[n:])
    graded = sum(row["jnd"] is not None and row["rank"] >= GRADED for row in own)
    repaired = {
        "weber_exponent": quantity(_mean(known), interval=ends, n=len(known)),
        "weber_exponent_low": quantity(ends.low, n=len(known)),
        "n_undetectable": quantity(float(missing), n=n),
        "graded": quantity(_over(graded, n), n=n),
        "graded_left_out": quantity(float(n_left_out), n=n),
        "linear_fit": _mean_fit(own, "linear"),
        "logarithmic_fit": _mean_fit(own, "logarithm"),
        "control_detectable": quantity(_over(noticed, len(others)), n=len(others)),
    }
    return Measurement.of(
        ID,
        page,
        repaired,
        REPAIRED,
        flags=notes,
        null=null(n_prompts or 40),
        tables=[
            Table.of("heads", ("head",), rows),
            Table.of(
                "responses",
                ("head", "level", "scale"),
                [
                    {"head": name, "of": of, "level": b, "scale": s, "output": float(output)}
                    for of, own_responses in (("circuit", responses), ("control", others))
                    for name, x in own_responses.items()
                    for b, row in zip(levels, x, strict=True)
                    for s, output in zip(scales, row, strict=True)
                ],
            ),
        ],
        words={"percent": 100 * NOTICED, "graded": GRADED},
    )


def _page(
    responses: Mapping[str, Responses], levels: Sequence[float], scales: Sequence[float]
) -> dict[str, Quantity]:
    columns = [list(scales).index(s) for s in PAGE_SCALES]
    by_head = {
        name: [page_jnd(x[list(levels).index(b)][columns]) for b in PAGE_LEVELS]
        for name, x in responses.items()
    }
    fractions = [
        value / level
        for threshold in by_head.values()
        for level, value in zip(PAGE_LEVELS, threshold, strict=True)
        if value is not None
    ]
    undetected = sum(threshold[0] is None for threshold in by_head.values())
    differ = sum(len(set(jnds)) > 1 for jnds in by_head.values())
    n = len(responses)
    return {
        "weber_consistency": quantity(weber_consistency(fractions), n=len(fractions)),
        "all_detectable": quantity(float(undetected == 0) if n else math.nan, n=n),
        "n_undetectable": quantity(float(undetected) if n else math.nan, n=n),
        "levels_differ": quantity(_over(differ, n), n=n),
    }


def _row(
    name: str, x: Responses, levels: Sequence[float], scales: Sequence[float], of: str
) -> dict[str, Any]:
    full = float(x[list(levels).index(1.0)][list(scales).index(1.0)])
    jnds = [jnd(row, scales, b, NOTICED * abs(full)) for b, row in zip(levels, x, strict=True)]
    at_one = x[list(levels).index(1.0)]
    columns = [list(scales).index(s) for s in PAGE_SCALES]
    return {
        "head": name,
        "of": of,
        "jnd": jnds[list(levels).index(1.0)],
        "page_jnd": page_jnd(at_one[columns]),
        "exponent": exponent(levels, jnds),
        "rank": abs(rank_correlation(at_one, np.asarray(scales, dtype=float))),
        "removed": float(at_one[list(scales).index(0.0)] / full) if full else math.nan,
        **fits(at_one, scales),
    }


def _mean_fit(rows: Sequence[Mapping[str, Any]], name: str) -> Quantity:
    known = [row[name] for row in rows if not math.isnan(row[name])]
    return quantity(_mean(known), n=len(known))


def _mean(values: Sequence[float] | Float[np.ndarray, "n"]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _over(count: int, n: int) -> float:
    return count / n if n else math.nan


# How often the thresholds err


@cache
def null(
    n: int = 40, heads: int = 5, n_simulations: int = N_SIMULATIONS // 2, seed: int = 0
) -> NullTable:
    """Rates of the conditions for `heads` heads, whose outputs are means over `n` prompts."""
    grid = np.asarray(LEVELS)[:, None] * np.asarray(SCALES)

    def draw(rng: np.random.Generator, size: int, kind: str) -> Drawn:
        names = ("all_detectable", "n_undetectable", "low")
        drawn = {name: np.full(size, np.nan) for name in names}
        for row in range(size):
            shares = rng.uniform(0.2, 0.9, heads) * (kind != "nothing")
            jnds: list[list[float | None]] = []
            detected = 0
            for share in shares:
                # Outputs are paired over prompts: what is left is a small noise of the mean.
                noise = 0.01 / math.sqrt(n) * rng.standard_normal(grid.shape)
                gain = np.log(0.05 + grid) / math.log(21) if kind == "logarithm" else grid - 1
                x = 1 + share * gain + noise
                columns = [SCALES.index(s) for s in PAGE_SCALES]
                detected += page_jnd(x[0][columns]) is not None
                jnds.append([jnd(y, SCALES, b, NOTICED) for b, y in zip(LEVELS, x, strict=True)])
            drawn["all_detectable"][row] = detected == heads
            drawn["n_undetectable"][row] = sum(threshold[0] is None for threshold in jnds)
            slopes = np.array([exponent(LEVELS, threshold) for threshold in jnds])
            known = slopes[~np.isnan(slopes)]
            if len(known) > 1:
                drawn["low"][row] = student_interval(known).low
        repaired = {"weber_exponent_low": drawn["low"], "n_undetectable": drawn["n_undetectable"]}
        return {"page": {"all_detectable": drawn["all_detectable"]}, "repaired": repaired}

    scenarios = (
        Scenario(
            "linear heads, which do not follow Weber's law",
            True,
            lambda rng, size: draw(rng, size, "linear"),
        ),
        Scenario("heads that do nothing", True, lambda rng, size: draw(rng, size, "nothing")),
        Scenario("logarithmic heads", False, lambda rng, size: draw(rng, size, "logarithm")),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


HeadName = tuple[int, int]


@dataclass(frozen=True)
@checked_settings
class WeberFechner(Gauge):
    """How much must a head change before the output does, and does that follow Weber's law?

    Attributes:
        most: heads of the circuit that are scaled, drawn at random where it has more.
        controls: heads outside of it.
    """

    most: Annotated[int, Within(1)] = 12
    controls: Annotated[int, Within(0)] = 3

    about: ClassVar[PageMetric] = page_metric(ID)
    version: ClassVar[int] = 2

    def measure(self, inputs: GaugeInputs) -> Measurement:
        graph, rng = inputs.model.graph, np.random.default_rng(inputs.seed)
        inside = heads_of(inputs.circuit)
        own, others = (
            named_heads(graph, heads) for heads in (inside, head_writers(graph) & ~inside)
        )
        flags: list[Flag] = []
        if not own:
            flags.append(flag("no_heads"))
        if len(own) > self.most:
            flags.append(flag("some_heads", most=self.most, n=len(own)))
        n_left_out = max(0, len(own) - self.most)
        own, others = _some(own, self.most, rng), _some(others, self.controls, rng)
        responses = self._responses(inputs, [*own, *others])
        named = dict(zip(map(_name, [*own, *others]), responses, strict=True))
        return weber(
            {name: named[name] for name in map(_name, own)},
            controls={name: named[name] for name in map(_name, others)},
            n_prompts=len(inputs.batch),
            n_left_out=n_left_out,
            flags=flags,
        )

    def _responses(
        self, inputs: GaugeInputs, heads: Sequence[HeadName]
    ) -> list[Float[np.ndarray, "levels scales"]]:
        """The mean logit difference with each head at levels and scales."""
        grid = np.round(np.outer(LEVELS, SCALES), 10)
        factors, where = np.unique(grid, return_inverse=True)
        plans: list[Any] = [
            {Site(layer, ALL, "heads", (head,)): Scale(float(factor))}
            for layer, head in heads
            for factor in factors
        ]
        if not plans:
            return []
        differences = logit_differences(inputs.model, inputs.batch, plans, progress=inputs.progress)
        means = differences.after.mean(axis=0).reshape(len(heads), len(factors))
        return [row[where.reshape(grid.shape)] for row in means]

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` prompts, of five heads."""
        return null(n, 5, n_simulations, seed)


def _name(head: HeadName) -> str:
    return f"a{head[0]}.h{head[1]}"


def _some(heads: Sequence[HeadName], most: int, rng: np.random.Generator) -> list[HeadName]:
    if len(heads) <= most:
        return list(heads)
    return [heads[i] for i in sorted(rng.choice(len(heads), size=most, replace=False).tolist())]
