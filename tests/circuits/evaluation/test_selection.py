"""Edges chosen at each size by |1 - f|: mixtures by hand, and the choice on truths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechassay.circuits import EAPIGInputs, EdgeScores, evaluate, faithful_circuits
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import faithfulness_curve
from mechassay.circuits.evaluation.selection import SELECTION, SHARES, FaithfulSelection
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.models.model import Model, load_model
from mechassay.prompts.batch import Batch
from mechassay.tasks import load_task
from mechassay.utils.display import SILENT

FRACTIONS = (0.02, 0.05, 0.1, 0.3, 1.0)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("truth-ioi")


@pytest.fixture(scope="module")
def batch(model: Model) -> Batch:
    return model.batch(load_task("truth-ioi").pairs("validation", model, limit=24))


def scores_of(model: Model, values: dict[int, float]) -> EdgeScores:
    """Scores of the edges at these places of the ranking by index; others are 0."""
    flat = torch.zeros(model.graph.legal.numel())
    places = model.graph.legal.flatten().nonzero()[:, 0]
    for place, value in values.items():
        flat[places[place]] = value
    return EdgeScores.of(model.graph, flat.view_as(model.graph.legal))


def places_of(circuit: Circuit) -> list[int]:
    legal = circuit.graph.legal.flatten().nonzero()[:, 0].tolist()
    return sorted(legal.index(x) for x in circuit.edges.flatten().nonzero()[:, 0].tolist())


class TestMixture:
    VALUES = {0: -9.0, 1: 5.0, 2: 4.0, 3: -8.0, 4: 3.0, 5: -7.0}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("n", "share", "places"),
        [
            (4, 0.0, [0, 1, 3, 5]),
            (4, 0.5, [0, 1, 2, 3]),  # Two positive ones, then -9 and -8.
            (4, 0.75, [0, 1, 2, 4]),
            (2, 1.0, [1, 2]),
            (4, 1.0, [0, 1, 2, 4]),  # There are three positive edges: the fourth is the largest.
            (0, 1.0, []),
        ],
    )
    def test_by_hand(self, model: Model, n: int, share: float, places: list[int]) -> None:
        assert places_of(scores_of(model, self.VALUES).mixture(n, share)) == places

    def test_the_ends_are_the_rankings(self, model: Model) -> None:
        values = torch.randn(model.graph.legal.shape, generator=torch.Generator().manual_seed(1))
        scores = EdgeScores.of(model.graph, values)
        for n in (1, 7, 0.3, 1.0):
            assert scores.mixture(n, 0.0) == scores.top(n, by="magnitude")
        n_positive = int((values[model.graph.legal] > 0).sum())
        assert scores.mixture(n_positive, 1.0) == scores.top(n_positive)

    def test_bad_requests(self, model: Model) -> None:
        scores = scores_of(model, self.VALUES)
        with pytest.raises(BadUsage, match=r"must be in \[0, 1\]"):
            scores.mixture(3, 1.5)
        with pytest.raises(BadUsage, match="must be between 0 and"):
            scores.mixture(10**6, 0.5)


@pytest.fixture(scope="module")
def scores(model: Model) -> EdgeScores:
    """Good scores, of which some true ones have the wrong sign, as negative heads have."""
    pairs = load_task("truth-ioi").pairs("train", model, limit=12)
    found = EAPIGInputs(steps=3).score(model, pairs, progress=SILENT)
    values = found.values.clone()
    values.view(-1)[torch.from_numpy(found.ranking("magnitude")[1:8:3].copy())] *= -1
    return replace(found, values=values)


@pytest.fixture(scope="module")
def selection(model: Model, scores: EdgeScores, batch: Batch) -> FaithfulSelection:
    return faithful_circuits(
        model, scores, batch, fractions=FRACTIONS, split="validation", progress=SILENT
    )


def test_no_candidate_is_nearer_to_1_and_f_is_that_of_a_slow_version(
    model: Model, scores: EdgeScores, batch: Batch, selection: FaithfulSelection
) -> None:
    ends = [Circuit.empty(model.graph), Circuit.full(model.graph)]
    empty, full = evaluate(model, ends, batch, progress=SILENT).mean(axis=1)
    assert len(selection.rows) == 4
    for row, circuit in zip(selection.rows, selection.series.circuits, strict=True):
        slow: dict[float, float] = {}
        for share in SHARES:
            mixed = scores.mixture(row["fraction"], share).pruned()
            mean = evaluate(model, mixed, batch, progress=SILENT).mean()
            slow[share] = (mean - empty) / (full - empty)
            assert row[f"f at {share:g}"] == pytest.approx(slow[share])
        assert abs(1 - row["f"]) == pytest.approx(min(abs(1 - f) for f in slow.values()))
        assert circuit == scores.mixture(row["fraction"], row["positive"])
        assert row["edges"] == len(circuit.pruned()) and row["split"] == "validation"
    assert len({row["positive"] for row in selection.rows}) > 1, "the choice chooses something"


def test_the_circuits_are_measured_as_they_were_chosen(
    model: Model, batch: Batch, selection: FaithfulSelection
) -> None:
    curve = faithfulness_curve(model, selection.series, batch, fractions=FRACTIONS, progress=SILENT)
    for by in ("value", "magnitude"):
        f = curve.sweeps[by].faithfulness[:-1]
        assert f == pytest.approx([row["f"] for row in selection.rows])


def test_one_candidate_is_that_candidate(model: Model, scores: EdgeScores, batch: Batch) -> None:
    one = faithful_circuits(
        model, scores, batch, shares=(0.0,), fractions=FRACTIONS, progress=SILENT
    )
    by_magnitude = [scores.top(size, by="magnitude") for size in FRACTIONS[:-1]]
    assert list(one.series.circuits) == by_magnitude
    assert all(row["nested"] and row["positive"] == 0 for row in one.rows)
    assert one.rows[0]["n_circuits"] <= 2 + 4 and one.rows[0]["n_pairs"] == 24


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_constant_scores_are_by_magnitude(model: Model, batch: Batch, value: float) -> None:
    constant = EdgeScores.of(model.graph, torch.full(model.graph.legal.shape, value))
    chosen = faithful_circuits(model, constant, batch, fractions=FRACTIONS, progress=SILENT)
    assert [row["positive"] for row in chosen.rows] == [0.0] * 4
    sizes = FRACTIONS[:-1]
    assert list(chosen.series.circuits) == [constant.top(size, by="magnitude") for size in sizes]


def test_an_undefined_faithfulness_leaves_the_order_by_magnitude(
    model: Model, scores: EdgeScores, batch: Batch
) -> None:
    same = replace(batch, counterfactual=batch.clean)
    chosen = faithful_circuits(model, scores, same, fractions=FRACTIONS, progress=SILENT)
    assert all(np.isnan(row["f"]) and row["positive"] == 0 for row in chosen.rows)


def test_where_the_sizes_are_not_nested_the_rows_say_it(selection: FaithfulSelection) -> None:
    circuits = selection.series.circuits
    for row, smaller, larger in zip(selection.rows[1:], circuits, circuits[1:], strict=False):
        inside = bool((smaller.edges & ~larger.edges).sum() == 0)
        assert row["nested"] == inside
    assert selection.table().name == SELECTION and selection.rows[0]["nested"]
    assert selection.series.provenance["selection"] == "faithful"
    assert list(selection.columns()) == list(selection.rows[0])


def test_bad_requests(model: Model, scores: EdgeScores, batch: Batch) -> None:
    with pytest.raises(BadUsage, match="one share or more, each once"):
        faithful_circuits(model, scores, batch, shares=(), progress=SILENT)
    with pytest.raises(BadUsage, match="one share or more, each once"):
        faithful_circuits(model, scores, batch, shares=(0.5, 0.5), progress=SILENT)
    other = load_model("truth-induction")
    with pytest.raises(GraphMismatch, match="The scores were made on"):
        faithful_circuits(other, scores, batch, progress=SILENT)
