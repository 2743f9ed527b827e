"""How circuits depend on the pairs: known answers, a slow version, files, and any method."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.circuits import (
    ACDC,
    EAP,
    NAP,
    CleanCorrupted,
    EAPIGActivations,
    EAPIGInputs,
    ExactPatching,
    Random,
    UniformGradientSampling,
    resampled,
    seed_stability,
)
from mechassay.circuits.methods.method import AnyMethod
from mechassay.circuits.methods.stability import (
    N_PARTS,
    PartScores,
    interval_of_method,
    parts_of,
    resampled_rows,
    score_in_parts,
    two_peaks,
)
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadFile, BadUsage
from mechassay.models.graph import Graph
from mechassay.models.model import Model, load_model
from mechassay.prompts.batch import Batch
from mechassay.stats.intervals import Interval
from mechassay.tasks import load_task
from mechassay.utils.display import SILENT

TRUTH = "truth-ioi-trained"
GRAPH = Graph(n_layers=3, n_heads=4)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(TRUTH)


@pytest.fixture(scope="module")
def batch(model: Model) -> Batch:
    return model.batch(load_task(TRUTH).pairs("train", model, limit=24))


def made(parts: np.ndarray, n_pairs: list[int] | None = None, graph: Graph = GRAPH) -> PartScores:
    """Parts with the given scores of all edges."""
    values = torch.full((graph.n_writers, graph.n_readers), torch.nan)
    counts = np.array(n_pairs or [5] * len(parts))
    values[graph.legal] = torch.from_numpy((counts @ parts / counts.sum()).astype(np.float32))
    return PartScores(EdgeScores(graph, values), parts.astype(np.float32), counts)


def rows(scored: PartScores, by: str = "magnitude", **asked: Any) -> list[dict[str, Any]]:
    stability = scored.stability(**asked)
    return [dict(row) for row in stability.rows if row["ranking"] == by]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "method",
    [
        EAP(),
        EAPIGInputs(steps=3),
        EAPIGActivations(steps=2),
        CleanCorrupted(),
        NAP(),
        ExactPatching(),
    ],
)
def test_the_mean_of_the_parts_is_the_score_of_all_pairs(
    model: Model, batch: Batch, method: AnyMethod
) -> None:
    scored = score_in_parts(method, model, batch, progress=SILENT)
    whole = method.score(model, batch, progress=SILENT)
    assert len(scored.parts) == 12 and scored.n_pairs.sum() == len(batch)
    largest = float(whole.values.nan_to_num().abs().max())
    torch.testing.assert_close(
        scored.scores.values, whole.values, equal_nan=True, rtol=0, atol=2e-6 * largest
    )
    # The slow version: every part by itself.
    part = parts_of(batch)[3]
    alone = method.score(model, batch.select(part), progress=SILENT)
    places = alone.scored().flatten().numpy()
    np.testing.assert_allclose(scored.parts[3], alone.values.flatten().numpy()[places], rtol=1e-6)


def test_parts_hold_whole_groups_and_all_pairs(batch: Batch) -> None:
    grouped = replace(batch, groups=tuple(f"template {i % 9}" for i in range(len(batch))))
    parts = parts_of(grouped)
    assert len(parts) == 4 and sorted(row for part in parts for row in part) == list(
        range(len(batch))
    )
    groups = [{grouped.groups[row] for row in part} for part in parts]
    assert sum(map(len, groups)) == 9
    assert parts_of(replace(batch, groups=("one",) * len(batch))) == []
    assert parts_of(batch.select(range(7))) == []
    many = replace(batch, groups=tuple(map(str, range(len(batch)))))
    assert len(parts_of(many)) == 12 <= N_PARTS
    assert parts_of(many, seed=0) != parts_of(many, seed=1)


class TestKnownAnswers:
    def test_the_same_scores_in_every_part_agree_wholly(self) -> None:
        one = np.random.default_rng(0).normal(size=GRAPH.n_edges)
        for row in rows(made(np.tile(one, (20, 1))), n_splits=4):
            if row["size"]:
                assert row["jaccard"] == row["jaccard_low"] == row["stable"] == 1
                assert row["n_stable"] == row["size"]
                assert math.isnan(row["rank"]) or row["rank"] == pytest.approx(1)

    def test_independent_scores_agree_as_chance_does(self) -> None:
        graph = Graph(n_layers=6, n_heads=6)
        parts = np.random.default_rng(1).normal(size=(20, graph.n_edges))
        for by in ("value", "magnitude"):
            for row in rows(made(parts, graph=graph), by):
                # Halves that know nothing of each other.
                assert row["jaccard"] == pytest.approx(row["jaccard_chance"], abs=0.04)
                assert row["jaccard_random_signs"] == pytest.approx(row["jaccard"], abs=0.04)
                if row["fraction"] <= 0.2 and row["size"]:
                    assert row["stable"] <= 0.05

    def test_edges_that_scatter_most_agree_by_magnitude_and_random_signs_say_so(self) -> None:
        rng = np.random.default_rng(2)
        spread = np.where(np.arange(GRAPH.n_edges) < 26, 1000.0, 1.0)
        parts = rng.normal(size=(20, GRAPH.n_edges)) * spread
        (row,) = (row for row in rows(made(parts)) if row["fraction"] == 0.1)
        assert row["jaccard"] > 10 * row["jaccard_chance"]
        assert row["jaccard_random_signs"] == pytest.approx(row["jaccard"], abs=0.15)

    def test_constant_scores_agree_in_nothing(self) -> None:
        for by in ("value", "magnitude"):
            for row in rows(made(np.ones((20, GRAPH.n_edges))), by, n_splits=2):
                assert row["size"] == row["n_stable"] == 0
                assert all(math.isnan(row[name]) for name in ("jaccard", "rank", "stable"))

    def test_a_single_pair_that_decides_is_seen(self) -> None:
        """One part has all of one edge's score: half of the halves do not have it."""
        parts = np.random.default_rng(3).normal(size=(20, GRAPH.n_edges)) * 1e-3 + np.linspace(
            1, 2, GRAPH.n_edges
        )
        parts[:, 0] = 0
        parts[0, 0] = 1000
        (row,) = (row for row in rows(made(parts)) if row["fraction"] == 0.01)
        assert row["size"] == 2
        assert row["n_stable"] == 1 and row["jaccard"] < 0.5

    def test_all_edges_and_no_edges(self) -> None:
        scored = made(np.random.default_rng(4).normal(size=(8, GRAPH.n_edges)))
        assert int(scored.stable(0).sum()) == 0
        assert int(scored.stable(GRAPH.n_edges).sum()) == GRAPH.n_edges
        assert bool((scored.stable(GRAPH.n_edges) == GRAPH.legal).all())

    def test_by_hand(self) -> None:
        """Four parts, two edges chosen: of the three ways to deal, one finds two circuits."""
        graph = Graph(n_layers=1, n_heads=1, mlp=False)
        n = graph.n_edges
        parts = np.zeros((4, n))
        parts[:, 0] = 10
        parts[:2, 1] = 6  # In the first two parts only.
        parts[2:, 2] = 5  # In the others.
        scored = made(parts, graph=graph)
        (row,) = rows(scored, fractions=(2 / n, 1.0), n_splits=300)
        # Dealt {0, 1} {2, 3}: circuits {0, 1} and {0, 2}, a Jaccard of 1/3. Dealt otherwise both
        # halves have 3 and 2.5 for them: {0, 1} twice, 1.
        assert row["size"] == 2
        assert row["jaccard"] == pytest.approx((1 / 3 + 1 + 1) / 3, abs=0.06)
        assert (row["jaccard_low"], row["jaccard_high"]) == (pytest.approx(1 / 3), 1)
        # Edge 1 is in five of six halves, which is less than 95 %.
        assert row["n_stable"] == 1 and row["jaccard_chance"] == pytest.approx(2 / (2 * n - 2))


def test_a_part_counts_by_its_pairs_in_a_half() -> None:
    """One part of a million pairs ranks edge 0 first, the others, of one pair each, edge 1."""
    parts = np.zeros((8, GRAPH.n_edges))
    parts[0, 0], parts[1:, 1] = 2.0, 1.0
    n_pairs = [10**6] + [1] * 7
    (row,) = rows(made(parts, n_pairs), fractions=(1 / GRAPH.n_edges,), n_splits=4)
    assert row["size"] == 1 and row["jaccard"] == 0.0


@settings(max_examples=5)
@given(st.integers(0, 2**31), st.integers(-9, 9))
def test_scale_changes_nothing(seed: int, power: int) -> None:
    parts = np.random.default_rng(seed).normal(size=(8, GRAPH.n_edges)).astype(np.float32)
    plain = rows(made(parts), n_splits=3)
    scaled = rows(made(parts * np.float32(2.0**power)), n_splits=3)
    assert all(
        np.isclose(one[name], other[name], equal_nan=True, atol=1e-6)
        for one, other in zip(plain, scaled, strict=True)
        for name in one
        if name != "ranking"
    )


class TestResamples:
    def test_the_mean_of_many_is_the_score(self, model: Model, batch: Batch) -> None:
        scored = score_in_parts(EAP(), model, batch, progress=SILENT)
        drawn = torch.stack([scored.resample(number).values for number in range(400)])
        largest = float(scored.scores.values.nan_to_num().abs().max())
        away = (drawn.mean(0) - scored.scores.values).nan_to_num().abs().max()
        assert float(away) < 0.05 * largest
        assert not torch.equal(drawn[0], drawn[1])
        again = scored.resample(1).values
        assert torch.equal(again.nan_to_num(), drawn[1].nan_to_num())

    @pytest.mark.parametrize("method", [EAP(), ACDC(threshold=0.01)])
    def test_any_method_has_them(self, model: Model, batch: Batch, method: AnyMethod) -> None:
        few = batch.select(range(8))
        scores = list(resampled(method, model, few, n=2, seed=3, progress=SILENT))
        assert len(scores) == 2
        if isinstance(method, ACDC):
            rows_drawn = resampled_rows(few, 1, 3)
            alone = method.score(model, few.select(rows_drawn), progress=SILENT)
            assert torch.equal(alone.values.nan_to_num(), scores[1].values.nan_to_num())

    def test_groups_are_drawn_whole(self, batch: Batch) -> None:
        grouped = replace(batch, groups=tuple(str(i // 3) for i in range(len(batch))))
        drawn = resampled_rows(grouped, 0, 0)
        assert len(drawn) == len(batch)
        counts = np.bincount(drawn, minlength=len(batch)).reshape(-1, 3)
        assert bool((counts == counts[:, :1]).all()) and counts.max() > 1

    def test_bad_requests(self, model: Model, batch: Batch) -> None:
        with pytest.raises(BadUsage, match="At least one resample"):
            next(resampled(EAP(), model, batch, n=0, progress=SILENT))
        with pytest.raises(BadUsage, match="no mean over pairs"):
            score_in_parts(ACDC(), model, batch, progress=SILENT)
        with pytest.raises(BadUsage, match="at least 8 groups of pairs; got 7"):
            score_in_parts(EAP(), model, batch.select(range(7)), progress=SILENT)
        with pytest.raises(BadUsage, match="n_splits=0"):
            made(np.ones((4, GRAPH.n_edges))).stability(n_splits=0)


class TestIntervalOfTheMethod:
    OWN = Interval(0.4, 0.6)

    def test_draws_that_agree_leave_the_interval_as_students(self) -> None:
        around = interval_of_method(self.OWN, np.full(10, 0.5))
        assert around.high == pytest.approx(0.1 * 2.2622 / 1.9600, rel=1e-4)
        assert around.low == -around.high

    def test_spread_is_added(self) -> None:
        draws = np.linspace(0.3, 0.7, 9)
        spread = math.hypot(0.1 / 1.959964, draws.std(ddof=1))
        assert interval_of_method(self.OWN, draws).high == pytest.approx(2.306004 * spread)

    @pytest.mark.parametrize(
        "draws",
        [[0.5], [0.5] * 7, [math.nan] + [0.5] * 9, [0.1, 0.1, 0.12, 0.11, 0.9, 0.91, 0.92, 0.9]],
        ids=["one", "seven", "undefined", "two peaks"],
    )
    def test_where_there_is_none(self, draws: list[float]) -> None:
        assert all(map(math.isnan, interval_of_method(self.OWN, np.array(draws))[:2]))

    def test_peaks(self) -> None:
        two = np.array([0.1, 0.12, 0.9, 0.91, 0.92])
        assert two_peaks(two) and not two_peaks(two, least=0.8)
        assert not two_peaks(np.array([0.1, 0.9, 0.91, 0.92]))  # One lies alone.
        assert not two_peaks(np.linspace(0, 1, 10))
        assert not two_peaks(np.array([0.5, 0.5, 0.5 + 1e-15, 0.5 + 1e-15]))
        assert not two_peaks(np.array([math.nan] * 5))


class TestFiles:
    def test_written_and_read(self, tmp_path: Path) -> None:
        scored = made(np.random.default_rng(0).normal(size=(6, GRAPH.n_edges)), [5, 5, 5, 4, 4, 4])
        scored.save(tmp_path / "parts.safetensors")
        read = PartScores.load(tmp_path / "parts.safetensors", scored.scores)
        assert np.array_equal(read.parts, scored.parts)
        assert str(read.stability().rows) == str(scored.stability().rows)

    def test_other_scores_are_refused(self, tmp_path: Path) -> None:
        scored = made(np.random.default_rng(0).normal(size=(6, GRAPH.n_edges)))
        scored.save(tmp_path / "parts.safetensors")
        other = replace(scored.scores, values=scored.scores.values * 2)
        with pytest.raises(BadFile, match="the mean of the parts is not these scores"):
            PartScores.load(tmp_path / "parts.safetensors", other)
        small = made(np.ones((6, Graph(n_layers=1, n_heads=2).n_edges)), graph=Graph(1, 2))
        with pytest.raises(BadFile, match="do not fit"):
            PartScores.load(tmp_path / "parts.safetensors", small.scores)

    def test_a_killed_scoring_goes_on(
        self, model: Model, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        method, file = EAP(), tmp_path / "scores.checkpoint"
        whole = score_in_parts(method, model, batch, progress=SILENT)
        calls: list[int] = []
        score = EAP.score

        def killed(self: EAP, model: Model, pairs: Batch, *args: Any, **named: Any) -> Any:
            calls.append(len(pairs))
            if len(calls) == 6:
                raise KeyboardInterrupt
            return score(self, model, pairs, *args, **named)

        monkeypatch.setattr(EAP, "score", killed)
        with pytest.raises(KeyboardInterrupt):
            score_in_parts(method, model, batch, progress=SILENT, checkpoint=file)
        assert file.is_file()
        calls[:] = [0] * 6
        again = score_in_parts(method, model, batch, progress=SILENT, checkpoint=file)
        assert np.array_equal(again.parts, whole.parts) and not file.exists()
        # The first part says what scores look like; five were kept.
        assert len(calls) - 6 == len(whole.parts) - 5 + 1


class TestSeeds:
    """Scorings of the same pairs with other seeds."""

    def scored(self, *values: np.ndarray) -> list[EdgeScores]:
        return [made(np.tile(one, (4, 1))).scores for one in values]

    def test_a_method_that_heeds_no_seed_agrees_wholly(self) -> None:
        one = np.random.default_rng(0).normal(size=GRAPH.n_edges)
        first, *others = self.scored(one, one, one)
        for row in seed_stability(first, others).rows:
            if row["size"]:
                assert row["jaccard"] == row["jaccard_low"] == row["stable"] == 1
                assert math.isnan(row["jaccard_random_signs"])

    def test_two_seeds_by_hand(self) -> None:
        """Of 4 edges each, two are in both: Jaccard 2 / 6, and half is stable."""
        n = GRAPH.n_edges
        first, other = np.zeros((2, n))
        first[[0, 1, 2, 3]] = [9, 8, 7, -6]
        other[[2, 3, 4, 5]] = [9, 8, 7, -6]
        of_first, of_other = self.scored(first, other)
        stability = seed_stability(of_first, [of_other], (4 / n, 1))
        value, magnitude = stability.rows
        assert (magnitude["size"], magnitude["n_stable"], magnitude["stable"]) == (4, 2, 0.5)
        assert magnitude["jaccard"] == pytest.approx(2 / 6)
        assert magnitude["jaccard_chance"] == pytest.approx(4 / (2 * n - 4))
        # One other circuit has an edge with this probability.
        assert magnitude["stable_chance"] == pytest.approx(4 / n)
        # By value three edges are above 0, and the others tie.
        assert (value["size"], value["n_stable"]) == (3, 1) and value["jaccard"] == 1 / 5
        assert stability.n_seeds == 1
        assert stability.table().columns["n_seeds"] == [1, 1]

    def test_constant_scores_have_no_circuit(self) -> None:
        constant, drawn = self.scored(
            np.ones(GRAPH.n_edges), np.random.default_rng(0).normal(size=GRAPH.n_edges)
        )
        for row in seed_stability(constant, [constant, drawn]).rows:
            assert row["size"] == 0 and math.isnan(row["stable"])
            assert math.isnan(row["stable_chance"])
        # A seed that gave nothing keeps no edge stable.
        for row in seed_stability(drawn, [constant, constant]).rows:
            assert row["n_stable"] == 0

    def test_as_a_slow_version_and_by_chance(self) -> None:
        """20 other seeds, of which 19 must have a stable edge; and random rankings."""
        rng = np.random.default_rng(1)
        effect = np.where(np.arange(GRAPH.n_edges) < 12, 5.0, 0.0)
        first, *others = self.scored(*(effect + rng.normal(size=GRAPH.n_edges) for _ in range(21)))
        share = 20 / GRAPH.n_edges
        row = next(
            r for r in seed_stability(first, others, (share, 1)).rows if r["ranking"] == "magnitude"
        )
        best = [set(one.top(20, by="magnitude").names()) for one in (first, *others)]
        held = {edge: sum(edge in one for one in best[1:]) for edge in best[0]}
        assert row["n_stable"] == sum(count >= 19 for count in held.values()) > 0
        jaccards = [len(a & b) / len(a | b) for a, b in itertools.combinations(best, 2)]
        assert row["jaccard"] == pytest.approx(np.mean(jaccards))
        assert row["stable_chance"] < 1e-12
        drawn = [Random(seed=seed).draw(GRAPH) for seed in range(40)]
        by_chance = [
            next(r for r in seed_stability(one, [other], (0.3, 1)).rows)
            for one, other in itertools.pairwise(drawn)
        ]
        names = ("stable", "stable_chance", "jaccard", "jaccard_chance")
        means = {name: np.mean([row[name] for row in by_chance]) for name in names}
        assert means["stable"] == pytest.approx(means["stable_chance"], abs=0.03)
        assert means["jaccard"] == pytest.approx(means["jaccard_chance"], abs=0.03)

    def test_what_cannot_be_compared_is_refused(self) -> None:
        one = Random(seed=0).draw(GRAPH)
        with pytest.raises(BadUsage, match="got no others"):
            seed_stability(one, [])
        with pytest.raises(BadUsage, match="they cannot be compared"):
            seed_stability(one, [Random(seed=1).draw(Graph(n_layers=2, n_heads=4))])

    def test_other_seeds_are_of_all_pairs(self, model: Model, batch: Batch) -> None:
        method = UniformGradientSampling(steps=3, batch_size=4, seed=5)
        drawn = list(resampled(method, model, batch, n=2, over="seeds", progress=SILENT))
        for number, scores in enumerate(drawn):
            alone = replace(method, seed=6 + number).score(model, batch, progress=SILENT)
            assert torch.equal(scores.values.nan_to_num(), alone.values.nan_to_num())
        with pytest.raises(BadUsage, match="eap has no seed"):
            next(resampled(EAP(), model, batch, n=2, over="seeds", progress=SILENT))
        with pytest.raises(BadUsage, match="At least one"):
            next(resampled(method, model, batch, n=0, over="seeds", progress=SILENT))
