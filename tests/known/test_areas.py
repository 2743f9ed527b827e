"""CPR and CMD worked by hand, and of rankings whose worth is known:
four worthless ones and a perfect one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import mechassay as ma
from mechassay.circuits import Circuit, Controls, EdgeScores, FaithfulnessCurve, NodeScores, Random
from mechassay.circuits.profiles import Profile
from mechassay.circuits.series import FRACTIONS, FaithfulnessMetric, step_weights, trapezoid_weights
from mechassay.errors import BadUsage
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.testing.tiny import subject
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT

KEPT = tuple(int(1000 * p) for p in FRACTIONS)


def rule(
    profile: Profile,
    fractions: Sequence[float] = FRACTIONS,
    n_edges: int = 1000,
    empty: float = 0.0,
    full: float = 1.0,
) -> FaithfulnessMetric:
    return FaithfulnessMetric(
        profile, fractions, n_edges, np.full(4, empty), np.full(4, full), tuple("abcd")
    )


# Worked by hand


def test_mib_weights_of_faithfulness_in_cpr() -> None:
    """CPR is linear in f; the trapezoidal rule on MIB's sizes gives these weights
    (they sum to .999).
    """
    expected = [0.0005, 0.002, 0.004, 0.0075, 0.02, 0.04, 0.075, 0.2, 0.4, 0.25]
    np.testing.assert_allclose(trapezoid_weights(FRACTIONS), expected, atol=1e-12)
    for place, weight in enumerate(expected):
        values = np.zeros((10, 4))
        values[place] = 1.0
        assert rule("mib-2025").sweep("value", KEPT, KEPT, values).cpr.value == pytest.approx(
            weight, abs=1e-12
        )


def test_strict_weights_are_steps_between_pruned_sizes() -> None:
    """Circuits cut at 1, 50 and 100 of 100 edges keep 0, 20 and 100:
    the empty one counts from .01 to .2, the other to 1.
    """
    weights = step_weights((0.0, 0.2, 1.0), 0.01)
    np.testing.assert_allclose(weights, [0.0, 0.19 / 0.99, 0.8 / 0.99, 0.0], atol=1e-12)
    sweep = rule("strict", (0.01, 0.5, 1.0), 100, 2.0, 4.0).sweep(
        "value", (1, 50, 100), (0, 20, 100), np.repeat([[2.0], [3.0], [4.0]], 4, 1)
    )
    assert sweep.faithfulness.tolist() == [0.0, 0.5, 1.0]
    assert sweep.cpr.value == pytest.approx(0.5 * 0.8 / 0.99)
    assert sweep.cmd.value == pytest.approx((0.19 + 0.5 * 0.8) / 0.99)
    # In log size: from .01 to .2 and from .2 to 1.
    assert sweep.log_cpr is not None and sweep.log_cmd is not None
    assert sweep.log_cpr.value == pytest.approx(0.5 * math.log(5) / math.log(100))
    assert sweep.log_cmd.value == pytest.approx((math.log(20) + 0.5 * math.log(5)) / math.log(100))


def test_sizes_below_the_first_one_asked_for_have_no_weight() -> None:
    # At the first size, .5, a circuit of .3 is the largest that there is.
    np.testing.assert_allclose(step_weights((0.3, 1.0), 0.5), [0.0, 1.0, 0.0])
    # It may also be none.
    np.testing.assert_allclose(step_weights((0.0, 1.0), 0.5), [0.0, 1.0, 0.0])
    # Two circuits of one size: the later one counts.
    np.testing.assert_allclose(step_weights((0.2, 0.2, 1.0), 0.1), [1 / 9, 0.0, 8 / 9, 0.0])


@pytest.mark.parametrize(
    ("profile", "cpr", "cmd"), [("strict", 1.0, 0.0), ("mib-2025", 0.999, 0.0)]
)
def test_f_of_one_at_all_sizes(profile: Profile, cpr: float, cmd: float) -> None:
    sweep = rule(profile).sweep("value", KEPT, KEPT, np.ones((10, 4)))
    assert (sweep.cpr.value, sweep.cmd.value) == pytest.approx((cpr, cmd), abs=1e-12)
    if sweep.log_cpr is not None and sweep.log_cmd is not None:
        assert (sweep.log_cpr.value, sweep.log_cmd.value) == pytest.approx((1.0, 0.0), abs=1e-12)


@pytest.mark.parametrize("kept", [KEPT, (0,) * 9 + (1000,), (0, 0, 0, 0, 0, 0, 5, 6, 7, 1000)])
@pytest.mark.parametrize(
    ("profile", "cpr", "cmd"), [("strict", 0.0, 1.0), ("mib-2025", 0.25, 0.749)]
)
def test_circuits_that_do_nothing(
    kept: tuple[int, ...], profile: Profile, cpr: float, cmd: float
) -> None:
    values = np.zeros((10, 4))
    values[-1] = 1.0
    sweep = rule(profile).sweep("value", KEPT, kept, values)
    assert (sweep.cpr.value, sweep.cmd.value) == pytest.approx((cpr, cmd))


def test_faithfulness_is_a_ratio_of_means_not_a_mean_of_ratios() -> None:
    made = FaithfulnessMetric(
        "mib-2025", (0.5, 1.0), 10, np.array([0.0, 0.0]), np.array([1.0, 3.0]), ("a", "b")
    )
    sweep = made.sweep("value", (5, 10), (5, 10), np.array([[1.0, 0.0], [1.0, 3.0]]))
    assert sweep.faithfulness[0] == pytest.approx(1 / 4)


def test_denominator_whose_interval_contains_zero_is_undefined_in_strict() -> None:
    made = FaithfulnessMetric(
        "strict", (0.5, 1.0), 10, np.zeros(4), np.array([1.0, -1.0, 1.0, -0.9]), tuple("abcd")
    )
    assert not made.defined
    sweep = made.sweep("value", (5, 10), (5, 10), np.ones((2, 4)))
    assert np.isnan([sweep.cpr.value, sweep.cmd.value]).all()
    assert np.isnan(sweep.faithfulness).all()
    assert all(
        np.isnan(interval.low)
        for interval in [*sweep.intervals, sweep.cpr.interval, sweep.cmd.interval]
    )


@pytest.mark.parametrize("profile", ["strict", "mib-2025"])
@pytest.mark.parametrize(
    ("dtype", "rounding", "small"), [(np.float64, 1e-15, 1e-9), (np.float32, 1e-7, 1e-3)]
)
def test_a_denominator_of_rounding_is_undefined(
    profile: Profile, dtype: type, rounding: float, small: float
) -> None:
    # As many groups as it takes for f without any spread to have an interval.
    full = np.tile(np.array([1.1, 2.3, 0.7, 1.9], dtype=dtype), FEW_GROUPS // 4)
    for part in (rounding, -rounding, small, -small):
        empty = full * dtype(1 + part)
        ends = (empty.astype(float), full.astype(float))
        made = FaithfulnessMetric(
            profile, (0.5, 1.0), 10, *ends, tuple(map(str, range(FEW_GROUPS)))
        )
        sweep = made.sweep("value", (5, 10), (5, 10), np.stack((ends[0], ends[1])))
        assert made.defined == (abs(part) == small)
        if made.defined:
            assert sweep.faithfulness == pytest.approx([0, 1])
            assert np.isfinite(sweep.intervals).all() and np.isfinite(sweep.cpr.interval).all()
        else:
            assert np.isnan([*sweep.faithfulness, sweep.cpr.value, sweep.cmd.value]).all()
            assert np.isnan([*sweep.intervals[0][:2], *sweep.cpr.interval[:2]]).all()


def test_a_divergence_of_rounding_is_no_denominator() -> None:
    """KL(P || P) is 0 up to the rounding of its terms, of either circuit."""
    ends = (np.array([2e-16, -1e-16, 3e-16]) * 1.1, np.array([-1e-16, 1e-16, 1e-17]) * 1.1)
    made = FaithfulnessMetric("mib-2025", (0.5, 1.0), 10, *ends, tuple("abc"), objective="kl")
    assert np.isnan(made.sweep("value", (5, 10), (5, 10), np.stack(ends)).faithfulness).all()


@pytest.mark.parametrize("groups", [("a",), ("a", "a", "a")])
def test_one_example_or_one_group_has_no_interval(groups: tuple[str, ...]) -> None:
    n = len(groups)
    made = FaithfulnessMetric("strict", (0.5, 1.0), 10, np.zeros(n), np.full(n, 2.0), groups)
    sweep = made.sweep("value", (5, 10), (5, 10), np.full((2, n), 1.0))
    assert sweep.cpr.value == pytest.approx(0.5)
    assert np.isnan(
        [
            *sweep.cpr.interval[:2],
            *sweep.cmd.interval[:2],
            *sweep.intervals[0][:2],
            *made.denominator[:2],
        ]
    ).all()


@pytest.mark.parametrize("n", [2, FEW_GROUPS - 1, FEW_GROUPS])
def test_few_pairs_that_agree_have_no_interval_of_width_0(n: int) -> None:
    """Circuits that are perfect, or do nothing, on every one of a few pairs."""
    full = np.linspace(1.0, 2.0, n)
    made = FaithfulnessMetric(
        "strict", (0.5, 1.0), 10, np.zeros(n), full, tuple(map(str, range(n)))
    )
    for f in (0.0, 1.0):
        sweep = made.sweep("value", (5, 10), (5, 10), np.stack((f * full, full)))
        assert sweep.faithfulness.tolist() == [f, 1.0]
        ends = [*sweep.intervals[0][:2], *sweep.cpr.interval[:2], *sweep.cmd.interval[:2]]
        if n < FEW_GROUPS:
            assert np.isnan(ends).all()
        else:
            assert ends == pytest.approx([f, f, f, f, 1 - f, 1 - f], abs=1e-12)


@pytest.mark.parametrize(
    "fractions",
    [(), (1.0,), (1.0, 0.5, 0.1), (0.1, 0.5), (0.0, 1.0), (0.1, 0.1, 1.0), (-0.1, 1.0), (0.5, 1.5)],
)
def test_fractions_that_are_no_sizes(fractions: tuple[float, ...]) -> None:
    case = subject("gpt2")
    with pytest.raises(BadUsage, match="rising from above 0 to 1"):
        ma.circuits.faithfulness_curve(
            case.model,
            Random().draw(case.model.graph),
            case.batch,
            fractions=fractions,
            progress=SILENT,
        )
    with pytest.raises(BadUsage, match="rising from above 0 to 1"):
        ma.circuits.run_controls(case.model, case.batch, fractions=fractions, progress=SILENT)


def test_controls_of_other_fractions() -> None:
    case = subject("gpt2")
    controls = ma.circuits.run_controls(
        case.model, case.batch, fractions=(0.1, 1.0), progress=SILENT
    )
    with pytest.raises(BadUsage, match="other fractions"):
        ma.circuits.faithfulness_curve(
            case.model,
            Random().draw(case.model.graph),
            case.batch,
            controls=controls,
            progress=SILENT,
        )


# Rankings of a model whose circuit is known

TRUTHS = ("truth-ioi", "truth-ioi-trained", "truth-previous-token")
WORTHLESS = ("empty", "disconnected", "connected", "unscored")


class Known:
    """A ground truth with its test pairs, and rankings of its edges."""

    def __init__(self, name: str) -> None:
        truth = load_truth(name)
        self.model: Model = truth.model
        self.batch: Batch = truth.model.batch(truth.task.pairs("test", truth.model, limit=12))
        self.true = truth.circuits["counterfactual"].edges
        self.controls: Controls = ma.circuits.run_controls(self.model, self.batch, progress=SILENT)

    def scores(self, kind: str) -> EdgeScores:
        graph = self.model.graph
        values = torch.rand(graph.legal.shape, generator=torch.Generator().manual_seed(0))
        if kind == "empty":
            values[:] = math.nan
        elif kind == "unscored":
            values[:] = math.nan
            values[graph.index("input->logits")] = 1.0
        elif kind == "disconnected":
            values[:, graph.logits] -= 10
        elif kind == "connected":
            # What leads to the logits comes first, the true circuit last.
            values[:, graph.logits] += 10
            values[0] += 5
            values[self.true] = -20
        elif kind == "perfect":
            values[self.true] += 20
        # All above 0, so that by value and by magnitude are one ranking.
        return EdgeScores(graph, torch.where(graph.legal, values + 30, math.nan))

    def curve(self, kind: str, profile: Profile) -> FaithfulnessCurve:
        scores = self.scores(kind)
        return ma.circuits.faithfulness_curve(
            self.model, scores, self.batch, profile=profile, controls=self.controls, progress=SILENT
        )


@pytest.fixture(scope="module", params=TRUTHS)
def known(request: pytest.FixtureRequest) -> Known:
    return Known(request.param)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", WORTHLESS)
def test_worthless_rankings_in_strict(known: Known, kind: str) -> None:
    curve = known.curve(kind, "strict")
    assert (curve.cpr, curve.cmd) == pytest.approx((0.0, 1.0), abs=2e-3)
    for sweep in curve.sweeps.values():
        assert sweep.n_edges_kept[-1] == known.model.graph.n_edges and sweep.faithfulness[
            -1
        ] == pytest.approx(1.0)
        assert sweep.log_cpr is not None and sweep.log_cmd is not None
        assert (sweep.log_cpr.value, sweep.log_cmd.value) == pytest.approx((0.0, 1.0), abs=2e-3)
    # What has no information is not better than random rankings, or the empty circuit.
    assert (
        curve.cpr <= max(0.0, curve.random_cpr) + 2e-3
        and curve.cmd >= min(1.0, curve.random_cmd) - 2e-3
    )


@pytest.mark.parametrize("name", ["truth-ioi", "truth-ioi-trained"])
def test_random_rankings_are_worth_no_more_than_the_empty_one(name: str) -> None:
    """Not so on truth-previous-token: of 4 true edges, a random half has all of them once in 16
    times.
    """
    curve = Known(name).curve("empty", "strict")
    assert curve.random_cpr < 0.2 and curve.random_cmd > 0.8


def test_the_perfect_ranking(known: Known) -> None:
    """f is 1 from the first size that holds the true edges,
    and no ranking reaches it with fewer.
    """
    curve = known.curve("perfect", "strict")
    n, n_true = known.model.graph.n_edges, int(known.true.sum())
    first = next(place for place, p in enumerate(FRACTIONS) if int(p * n + 1e-9) >= n_true)
    for sweep in curve.sweeps.values():
        np.testing.assert_allclose(sweep.faithfulness[first:], 1.0, atol=1e-3)
    assert curve.cpr > 1 - FRACTIONS[first] and curve.cmd < FRACTIONS[first]


@pytest.mark.slow
def test_a_perfect_ranking_at_every_size() -> None:
    """A model in which nothing but input->logits does anything:
    f is 1 at all sizes of one edge or more.
    """
    from mechassay.models.model import make_model
    from mechassay.testing.tiny import build

    hf: Any = build("gpt2_12x12")
    with torch.no_grad():
        for block in hf.transformer.h:
            for weight in (
                block.attn.c_proj.weight,
                block.attn.c_proj.bias,
                block.mlp.c_proj.weight,
                block.mlp.c_proj.bias,
            ):
                weight.zero_()
    model = make_model(hf, check=False)
    graph = model.graph
    assert graph.n_edges >= 1000
    values = torch.where(graph.legal, 0.5, math.nan)
    values[graph.index("input->logits")] = 1.0
    clean = torch.arange(6)[:, None] + torch.arange(4)
    # Embeddings are tied: what the last token says alone is that it comes again.
    batch = Batch.from_tokens(clean, clean + 30, clean[:, -1], clean[:, -1] + 30)
    wanted: dict[Profile, tuple[float, float]] = {"strict": (1.0, 0.0), "mib-2025": (0.999, 0.0)}
    for profile, areas in wanted.items():
        curve = ma.circuits.faithfulness_curve(
            model, EdgeScores(graph, values), batch, profile=profile, progress=SILENT
        )
        assert (curve.cpr, curve.cmd) == pytest.approx(areas, abs=1e-4)


MIB = {
    # CPR and CMD of circuits that do nothing until the last; of the perfect ranking less than .001
    # + the first size.
    "disconnected": (0.25, 0.749),
    "connected": (0.25, 0.749),
}


@pytest.mark.parametrize("kind", MIB)
def test_worthless_rankings_in_mib(known: Known, kind: str) -> None:
    curve = known.curve(kind, "mib-2025")
    assert (curve.cpr, curve.cmd) == pytest.approx(MIB[kind], abs=2e-3)


@pytest.mark.parametrize("kind", ["empty", "unscored"])
def test_unscored_rankings_never_reach_the_full_circuit_in_mib(known: Known, kind: str) -> None:
    curve = known.curve(kind, "mib-2025")
    assert (curve.cpr, curve.cmd) == pytest.approx((0.0, 0.999), abs=2e-3)


# Unscored edges


def test_unscored_edges_are_counted_and_only_in_the_full_circuit(known: Known) -> None:
    graph = known.model.graph
    scores = known.scores("random").values.clone()
    places = graph.legal.nonzero()[::2]
    scores[places[:, 0], places[:, 1]] = math.nan
    curve = ma.circuits.faithfulness_curve(
        known.model,
        EdgeScores(graph, scores),
        known.batch,
        controls=known.controls,
        progress=SILENT,
    )
    assert any(
        f"{len(places):,} of {graph.n_edges:,} edges have no score" in warning
        for warning in curve.warnings
    )
    assert curve.sweeps["value"].n_edges_kept[-2] <= graph.n_edges - len(places)
    assert curve.sweeps["value"].n_edges_kept[-1] == graph.n_edges
    assert not any("no score" in warning for warning in known.curve("perfect", "strict").warnings)


def test_unscored_nodes(known: Known) -> None:
    graph = known.model.graph
    values = torch.full((graph.n_writers,), math.nan)
    values[0] = 1.0
    curve = ma.circuits.faithfulness_curve(
        known.model,
        NodeScores(graph, values),
        known.batch,
        controls=known.controls,
        progress=SILENT,
    )
    assert any(
        f"{graph.n_writers - 1} of {graph.n_writers} nodes have no score" in warning
        for warning in curve.warnings
    )
    assert (curve.cpr, curve.cmd) == pytest.approx((0.0, 1.0), abs=2e-3)


def test_half_a_random_ranking_is_no_better_than_a_whole_one() -> None:
    """What the segments of the first `strict` rewarded: a shorter curve has less area above it."""
    graph = Graph(2, 2)
    assert len(Circuit.full(graph)) == graph.n_edges
    values = np.zeros((10, 4))
    values[-1] = 1.0
    short = (*(min(each, 500) for each in KEPT[:-1]), 1000)
    whole, half = (rule("strict").sweep("value", KEPT, kept, values) for kept in (KEPT, short))
    assert whole.cmd.value == half.cmd.value == 1.0
