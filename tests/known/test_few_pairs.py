"""Two pairs that agree earn no certainty: no interval, or one with a width, and a page says so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechassay.circuits import EdgeScores, faithfulness_curve
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.differences import differences_of
from mechassay.circuits.evaluation.faithfulness import completeness, minimality
from mechassay.interventions.activation_patching import patch
from mechassay.models.model import make_model
from mechassay.stats.intervals import FEW_GROUPS, proportion_interval
from mechassay.testing.tiny import Subject, subject
from mechassay.utils.display import SILENT


def alike(n: int) -> Subject:
    """One pair under n ids and groups, whose first tokens differ and have one embedding."""
    case = subject("gpt2", dtype=torch.float64)
    names, hf = tuple(f"pair {i}" for i in range(n)), case.model.hf
    batch = replace(case.batch.select([1] * n), ids=names, groups=names)
    used = {int(x) for own in (batch.clean, batch.answers, batch.foils) for x in own.flatten()}
    used |= set(batch.counterfactual.flatten().tolist())
    embedding = hf.get_input_embeddings().weight
    first = torch.tensor([x for x in range(len(embedding)) if x not in used][:n])
    assert len(first) == n and bool(batch.mask.all())
    with torch.no_grad():
        embedding[first] = embedding[first[0]].clone()
    texts = {name: getattr(batch, name).clone() for name in ("clean", "counterfactual")}
    for tokens in texts.values():
        tokens[:, 0] = first
    return Subject(make_model(hf), replace(batch, **texts))


def unknown(ends: Iterable[tuple[float, float]]) -> bool:
    return all(math.isnan(low) and math.isnan(high) for low, high in ends)


@pytest.fixture(scope="module", name="two")
def two_pairs() -> Subject:
    return alike(2)


def scores(case: Subject, *, worth: float) -> EdgeScores:
    """Of every edge the same but for a little noise, or of none any."""
    legal = case.model.graph.legal
    noise = torch.rand(legal.shape, generator=torch.Generator().manual_seed(0))
    return EdgeScores(case.model.graph, torch.where(legal, worth + worth * noise, math.nan))


@pytest.mark.parametrize("worth", [1.0, math.nan])
def test_a_curve_of_two_pairs(two: Subject, worth: float, tmp_path: Path) -> None:
    """Worthless scores have f = 0 and CMD 1 on both pairs; others have what the model gives."""
    curve = faithfulness_curve(
        two.model, scores(two, worth=worth), two.batch, profile="strict", progress=SILENT
    )
    if math.isnan(worth):
        assert (curve.cpr, curve.cmd) == pytest.approx((0.0, 1.0), abs=2e-3)
    for sweep in curve.sweeps.values():
        assert unknown(interval[:2] for interval in sweep.intervals)
    assert unknown([curve.cpr_interval[:2], curve.cmd_interval[:2]])
    record = curve.record()
    for name in ("cpr", "cmd"):
        measure = record.measure(name)
        assert measure is not None and measure.n == 2 and math.isnan(measure.low)
    text = curve.to_html(tmp_path / "curve.html").read_text("utf-8")
    assert "No verdict: only 2 independent test pairs" in text and "[nan" not in text


def test_two_pairs_do_not_rank_a_perfect_and_a_worthless_method(two: Subject) -> None:
    curves = [
        faithfulness_curve(
            two.model, scores(two, worth=worth), two.batch, profile="strict", progress=SILENT
        )
        for worth in (1.0, math.nan)
    ]
    for area in ("cpr", "cmd"):
        found = differences_of(curves, area, names=["a", "b"])
        assert abs(found.values[0, 1]) > 0.01 and math.isnan(found.low[0, 1])
        assert found.n_resolved == 0 and found.ranks() == [(1, 2), (1, 2)]


@pytest.mark.parametrize("n", [2, FEW_GROUPS - 1, FEW_GROUPS])
def test_the_full_and_the_empty_circuit(n: int) -> None:
    case = alike(n)
    graph = case.model.graph
    for circuit, f in ((Circuit.full(graph), 1.0), (Circuit.empty(graph), 0.0)):
        found = completeness(case.model, circuit, case.batch, progress=SILENT)
        assert (found.circuit, found.complement) == pytest.approx((f, 1 - f), abs=1e-9)
        ends = [found.circuit_interval[:2], found.complement_interval[:2]]
        assert unknown(ends) == (n < FEW_GROUPS)
        if n == FEW_GROUPS:
            assert ends[0] == pytest.approx((f, f), abs=1e-9)
    names = [graph.edge_name(*row) for row in graph.legal.nonzero().tolist()[:3]]
    parts = minimality(case.model, Circuit.from_names(graph, names), case.batch, progress=SILENT)
    assert unknown(interval[:2] for interval in parts.intervals) == (n < FEW_GROUPS)
    assert n >= FEW_GROUPS or parts.n_unneeded == len(parts.parts)


def test_a_map_of_two_pairs(two: Subject, tmp_path: Path) -> None:
    found = patch(two.model, two.batch, part="heads", progress=SILENT)
    measured = ~found.by_construction & np.isfinite(found.share)
    assert measured.any() and np.isfinite(found.total) and found.total != 0
    for ends in (found.intervals, found.joint_intervals):
        assert np.isnan(ends[:, measured]).all()
    record, page = found.record(), found.to_html(tmp_path / "map.html").read_text("utf-8")
    assert math.isnan(record.measures[0].low) and "No verdict" in page and "[nan" not in page


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_an_accuracy_of_two_pairs_is_hardly_known(right: float) -> None:
    """Clopper and Pearson's interval of 2 of 2 ends at the root of 0.025: 0.158."""
    low, high, _ = proportion_interval(np.full(2, right), ["a", "b"])
    expected = (0.158, 1.0) if right else (0.0, 1 - 0.158)
    assert (low, high) == pytest.approx(expected, abs=1e-3)
