"""Circuits of several sizes: how they are cut, read from folders, and measured.

How often intervals hold the truth, simulated by `tools/area_coverage.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tools import area_coverage
from tools.area_coverage import SHAPES, areas, coverage, of_cmd

import mechassay as ma
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.curve import SmallestCircuit
from mechassay.circuits.evaluation.faithfulness import evaluate, faithfulness_curve
from mechassay.circuits.graph_files import write_graph_file
from mechassay.circuits.methods.random import Random, RandomPaths
from mechassay.circuits.series import (
    FRACTIONS,
    CircuitSeries,
    FaithfulnessMetric,
    RankingCurve,
    agreement,
    is_series,
    load_ranked,
    ranked_name,
)
from mechassay.discovery.experiment import CircuitsExperiment, score_files
from mechassay.errors import BadFile, BadUsage, GraphMismatch
from mechassay.leaderboard.cells import cells_of
from mechassay.leaderboard.rules import board_rules
from mechassay.models.graph import Graph
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT
from mechassay.utils.files import path_hash

GRAPH = Graph(2, 2)
"""46 edges."""


def circuit(n: int, seed: int = 0, graph: Graph = GRAPH) -> Circuit:
    """A circuit of n edges that are all on paths."""
    return RandomPaths(seed=seed).circuit(graph, n)


def counts(circuits: list[Circuit]) -> list[int]:
    return [len(each) for each in circuits]


def test_a_size_takes_the_largest_circuit_that_fits() -> None:
    few, some, many = circuit(3), circuit(9), circuit(20)
    assert counts([few, some, many]) == [3, 9, 20]
    series = CircuitSeries(GRAPH, (many, few, some))
    # .1, .3 and .5 of 46 edges are 4, 13 and 23.
    assert counts(series.cut((0.1, 0.3, 0.5, 1.0))) == [3, 9, 20, 46]
    assert counts(series.cut((0.05, 0.3, 1.0))) == [0, 9, 46]
    assert series.within(20) == many and series.within(19) == some
    assert series.within(20 / 46) == many
    assert not len(series.within(2))


def test_the_circuit_that_fits_has_the_name_of_its_file(tmp_path: Path) -> None:
    given = {"c": circuit(3), "a": circuit(9), "b": circuit(20)}
    for name, each in given.items():
        each.save(tmp_path / f"{name}.safetensors")
    series = CircuitSeries.load(tmp_path, GRAPH)
    assert series.names == ("c.safetensors", "a.safetensors", "b.safetensors")
    for n, name in ((46, "b"), (19, "a"), (8, "c")):
        assert series.named_within(n) == (f"{name}.safetensors", given[name])
    assert series.named_within(2) == ("", Circuit.empty(GRAPH))
    assert CircuitSeries(GRAPH, (given["a"],)).named_within(10) == ("", given["a"])
    with pytest.raises(BadUsage, match="1 circuits have 2 names"):
        CircuitSeries(GRAPH, (given["a"],), names=("a", "b"))


def test_what_stands_for_no_size_is_counted() -> None:
    series = CircuitSeries(GRAPH, (circuit(3), circuit(8), circuit(9), circuit(30)))
    # 8 lies below 9 in the same size; 30 edges are more than half.
    assert series.left_out((0.1, 0.3, 0.5, 1.0)) == 2
    assert series.left_out((0.1, 0.18, 0.3, 0.7, 1.0)) == 0


def test_mibs_rule_goes_by_rank() -> None:
    series = CircuitSeries(GRAPH, (circuit(20), circuit(3), circuit(9)))
    assert counts(series.cut((0.001, 0.002, 0.005, 1.0), "mib-2025")) == [3, 9, 20, 46]
    with pytest.raises(BadUsage, match="mib-2025 takes 9 circuits, one of each size; got 3"):
        series.cut(FRACTIONS, "mib-2025")


def test_circuits_are_pruned_before_they_are_weighed() -> None:
    live = circuit(3)
    edges = live.edges.clone()
    dead = next(
        (u, v)
        for u, v in (GRAPH.legal & ~edges).nonzero().tolist()
        if len(Circuit(GRAPH, edges | _only(u, v)).pruned()) == 3
    )
    series = CircuitSeries(GRAPH, (Circuit(GRAPH, edges | _only(*dead)),))
    assert len(series.circuits[0]) == 4
    assert series.within(3) == live


def _only(u: int, v: int) -> torch.Tensor:
    mask = torch.zeros_like(GRAPH.legal)
    mask[u, v] = True
    return mask


def test_edges_are_ranked_by_how_many_circuits_have_them() -> None:
    first, second = circuit(3), circuit(3) | circuit(9, seed=1)
    scores = CircuitSeries(GRAPH, (second, first)).counts()
    shared = (first.pruned().edges & second.pruned().edges).sum()
    assert int((scores.values == 2).sum()) == int(shared) > 0
    assert bool((scores.values[GRAPH.legal] >= 0).all())
    assert bool(scores.values[~GRAPH.legal].isnan().all())


def test_a_series_needs_circuits_of_one_graph() -> None:
    with pytest.raises(BadUsage, match="at least one"):
        CircuitSeries(GRAPH, ())
    with pytest.raises(GraphMismatch, match="one graph"):
        CircuitSeries(GRAPH, (circuit(3), Circuit.empty(Graph(1, 2))))


def test_folders_of_all_forms_are_read(tmp_path: Path) -> None:
    given = [circuit(3), circuit(9)]
    for i, each in enumerate(given):
        each.save(tmp_path / "ours" / f"{i}.safetensors")
        write_graph_file(tmp_path / "json" / f"{i}.json", circuit=each, d_model=8)
        write_graph_file(tmp_path / "pt" / f"{i}.pt", circuit=each, d_model=8)
    for name in ("ours", "json", "pt"):
        read = load_ranked(tmp_path / name, GRAPH)
        assert isinstance(read, CircuitSeries) and list(read.circuits) == given
        assert is_series(tmp_path / name) and ranked_name(tmp_path / name) == name
        assert score_files([tmp_path / name]) == (str(tmp_path / name),)
    assert ranked_name("a/eap.v2.safetensors") == "eap.v2" and ranked_name("ioi_qwen2.5") == (
        "ioi_qwen2.5"
    )
    before = path_hash(tmp_path / "json")
    given[1].save(tmp_path / "ours" / "0.safetensors")
    write_graph_file(tmp_path / "json" / "0.json", circuit=given[1], d_model=8)
    assert path_hash(tmp_path / "json") != before


def test_what_is_no_folder_of_circuits(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such folder; expected one of circuits"):
        CircuitSeries.load(tmp_path / "none")
    with pytest.raises(BadFile, match="has no circuits"):
        CircuitSeries.load(tmp_path)
    scores = Random(seed=0).draw(GRAPH)
    scores.save(tmp_path / "scores" / "a.safetensors")
    assert not is_series(tmp_path / "scores") and not is_series(tmp_path / "none")
    with pytest.raises(BadFile, match="holds 'edge_scores'; expected 'circuit'"):
        CircuitSeries.load(tmp_path / "scores")
    write_graph_file(tmp_path / "json" / "a.json", scores, d_model=8)
    assert not is_series(tmp_path / "json")
    with pytest.raises(BadFile, match="holds scores and no circuit"):
        CircuitSeries.load(tmp_path / "json")
    circuit(3).save(tmp_path / "out" / "a.safetensors")
    (tmp_path / "out" / "b.safetensors").symlink_to(tmp_path / "scores" / "a.safetensors")
    with pytest.raises(BadFile, match="leads out"):
        CircuitSeries.load(tmp_path / "out")
    (tmp_path / "out" / "b.safetensors").unlink()
    with pytest.raises(GraphMismatch, match="the circuit belongs to"):
        CircuitSeries.load(tmp_path / "out", Graph(1, 2))


# Measured


def test_the_area_of_a_rankings_own_circuits_is_that_of_the_ranking() -> None:
    model = ma.load_model("truth-ioi")
    # Its circuits are as large after pruning as before, so each keeps its size.
    scores = RandomPaths(seed=4).draw(model.graph)
    pairs = ma.load_task("truth-ioi").pairs("test", model, limit=12)
    series = CircuitSeries(model.graph, tuple(scores.top(p) for p in FRACTIONS[:-1]))
    ranked = faithfulness_curve(model, scores, pairs, progress=SILENT)
    curve = faithfulness_curve(model, series, pairs, controls=ranked.controls, progress=SILENT)
    own, other = curve.sweeps["value"], ranked.sweeps["value"]
    assert own.n_edges_kept == other.n_edges_kept and own.cpr.value == other.cpr.value
    np.testing.assert_array_equal(own.per_example, other.per_example)
    np.testing.assert_array_equal(curve.sweeps["magnitude"].per_example, own.per_example)


def test_the_area_is_over_the_circuits_own_sizes() -> None:
    """By hand: two circuits of s_1 and s_2 of the edges, all other sizes those below them."""
    model = ma.load_model("truth-ioi")
    known, graph = load_truth("truth-ioi").circuits["counterfactual"], model.graph
    few = circuit(4, graph=graph)
    pairs = ma.load_task("truth-ioi").pairs("test", model, limit=12)
    curve = faithfulness_curve(model, CircuitSeries(graph, (known, few)), pairs, progress=SILENT)
    m_few, m_known, empty, full = (
        values.mean()
        for values in evaluate(
            model,
            [few, known, Circuit.empty(graph), Circuit.full(graph)],
            pairs,
            progress=SILENT,
        )
    )
    s_few, s_known = len(few) / graph.n_edges, len(known.pruned()) / graph.n_edges
    assert 0.001 < s_few < s_known < 0.5
    f_few, f_known = ((m - empty) / (full - empty) for m in (m_few, m_known))
    expected = (f_few * (s_known - s_few) + f_known * (1 - s_known)) / (1 - 0.001)
    assert curve.cpr == pytest.approx(expected, abs=1e-9)
    assert curve.cmd == pytest.approx(
        ((s_few - 0.001) + abs(1 - f_few) * (s_known - s_few) + abs(1 - f_known) * (1 - s_known))
        / (1 - 0.001),
        abs=1e-9,
    )


@pytest.mark.slow
def test_a_folder_of_circuits_is_a_row_of_the_board(tmp_path: Path) -> None:
    graph = ma.load_model("truth-ioi").graph
    known = load_truth("truth-ioi").circuits["counterfactual"]
    folder = tmp_path / "truth-ioi_truth-ioi"
    known.save(folder / "known.safetensors")
    (known | circuit(graph.n_edges // 3, graph=graph)).save(folder / "more.safetensors")
    circuit(graph.n_edges - 5, graph=graph).save(folder / "nearly-all.safetensors")
    experiment = CircuitsExperiment(
        ("truth-ioi",), scores=(str(folder),), limit=8, random_rankings=5
    )
    (record,) = ma.run(experiment, tmp_path / "run", progress=SILENT).records
    assert record.kind == "faithfulness" and record.method.name == folder.name
    assert record.method.args["scores_sha256"] == path_hash(folder)
    assert any("1 of 3 circuits are not measured" in text for text in record.warnings)
    cells = {cell.column: cell for cell in cells_of(board_rules()["circuits"], record)}
    assert cells["cpr"].row == f"{folder.name} (file {path_hash(folder)[:8]})"
    assert all(math.isfinite(cell.value) for cell in cells.values())
    # The known circuit's edges are in two or three circuits, nearly all others in none or one.
    assert 0.5 < cells["auroc"].value <= 1
    # At the known circuit's size the known circuit is taken.
    assert record.value("circuit") == pytest.approx(1, abs=0.1)
    page = experiment.write(ma.run(experiment, tmp_path / "run", progress=SILENT)).read_text(
        "utf-8"
    )
    assert "the circuit at its size" in page
    by_rank = replace(experiment, profile="mib-2025")
    with pytest.raises(BadUsage, match="mib-2025 takes 9 circuits, one of each size; got 3"):
        ma.run(by_rank, tmp_path / "mib", progress=SILENT)


def test_a_small_file_with_scores_and_nothing_in_the_graph_is_the_empty_circuit(
    tmp_path: Path,
) -> None:
    """EAP-IG writes scores beside the circuit, which pruning may leave without an edge."""
    scores = Random(seed=0).draw(GRAPH)
    write_graph_file(tmp_path / "0.1pct.json", scores, circuit=Circuit.empty(GRAPH), d_model=8)
    write_graph_file(tmp_path / "50pct.json", scores, circuit=scores.top(0.5), d_model=8)
    series = CircuitSeries.load(tmp_path)
    assert [len(circuit) for circuit in series.circuits] == [0, len(scores.top(0.5))]


def test_a_file_that_was_changed_is_not_the_one_that_was_measured(tmp_path: Path) -> None:
    graph = load_truth("truth-ioi").model.graph
    file = tmp_path / "own.safetensors"
    Random(seed=0).draw(graph).save(file)
    experiment = CircuitsExperiment(
        models=("truth-ioi",), scores=(str(file),), curve=False, train_limit=4, limit=4
    )
    ma.run(experiment, tmp_path / "out", progress=SILENT)
    ma.run(experiment, tmp_path / "out", progress=SILENT)
    Random(seed=1).draw(graph).save(file)
    with pytest.raises(BadUsage, match=r"own\.safetensors has other content than on"):
        ma.run(experiment, tmp_path / "out", progress=SILENT)


@pytest.mark.slow
def test_the_folder_of_a_finished_run_stands_for_its_scores(tmp_path: Path) -> None:
    experiment = CircuitsExperiment(models=("truth-ioi",), methods=("eap",), train_limit=4, limit=4)
    ma.run(experiment, tmp_path / "run", progress=SILENT)
    assert len(list((tmp_path / "run").glob("*.json"))) > 1
    [file] = score_files([tmp_path / "run"])
    assert file.endswith("eap.safetensors")


# Simulated


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_intervals_of_cmd_hold_the_truth(shape: str, n: int) -> None:
    runs = 150
    shares = coverage(shape, n, 1.0, runs)
    # 93 % at least, less three standard errors of this small simulation; docs/areas.md has the
    # large one.
    least = 0.93 - 3 * math.sqrt(0.93 * 0.07 / runs)
    assert shares["CMD covered"] >= least and shares["CPR covered"] >= least


@pytest.mark.slow
def test_intervals_of_cmd_are_not_too_wide() -> None:
    """What is perfect, or near it, is missed by about 1 in 20 intervals, not by 1 in 100."""
    shapes = ("perfect", "near perfect", "alternating, groups of 4", "jump, heavy tails")
    shares = [coverage(shape, 100, 1.0, 150)["CMD covered"] for shape in shapes]
    assert np.mean(shares) <= 0.95 + 3 * math.sqrt(0.95 * 0.05 / (4 * 150))


@pytest.mark.slow
def test_cmd_of_a_perfect_circuit_is_noise_and_that_of_a_worthless_one_is_not() -> None:
    assert coverage("perfect", 40, 1.0, 150)["bias"] > 0.02
    assert abs(coverage("random-like", 40, 1.0, 150)["bias"]) < 0.01


def test_the_simulations_other_rivals_have_equal_cmd() -> None:
    assert areas(of_cmd(SHAPES["perfect"], 0.05))[1] == pytest.approx(0.05)
    for methods in area_coverage.RIVALS.values():
        assert np.ptp([areas(f)[1] for f in methods]) == pytest.approx(0, abs=1e-12)


def test_a_simulation_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(area_coverage, "SHAPES", {"perfect": SHAPES["perfect"]})
    monkeypatch.setattr(area_coverage, "RIVALS", {"perfect": area_coverage.RIVALS["perfect"]})
    file = tmp_path / "new" / "rows.jsonl"
    area_coverage.main(file, 3)
    first, lines = capsys.readouterr().out, file.read_text("utf-8").splitlines()
    # Three n with two noises, and two n of differences.
    assert len(lines) == 8 and "| perfect | 20 | 1.0 | 0.000 |" in first
    file.write_text("\n".join(lines[:5]) + "\n", encoding="utf-8")
    made, row = list[Any](), area_coverage.row
    monkeypatch.setattr(area_coverage, "row", lambda *args: made.append(args[1]) or row(*args))
    area_coverage.main(file, 3)
    assert len(made) == 3 and capsys.readouterr().out == first
    assert file.read_text("utf-8").splitlines() == lines


def agreement_of(*circuits: tuple[float, float]) -> list[float]:
    """A of circuits on two pairs, with m(0) = 0 and m(N) = (4, 2)."""
    ends = {"empty": np.zeros(2), "full": np.array([4.0, 2.0])}
    return agreement(**ends, circuit=np.array(circuits)).tolist()


def test_agreement_by_hand() -> None:
    """Overshoot, errors that cancel in f, half of the effect, and the two ends."""
    perfect, empty, overshoot, cancelling, half = (4, 2), (0, 0), (8, 4), (6, 0), (2, 1)
    expected = [1, 0, 0, 2 / 6, 0.5]
    assert agreement_of(perfect, empty, overshoot, cancelling, half) == pytest.approx(expected)
    # f calls the cancelling circuit perfect, and the overshooting one twice as good.
    f = [np.mean(circuit) / 3 for circuit in (cancelling, overshoot)]
    assert f == [1, 2]


def test_the_area_under_agreement_by_hand() -> None:
    """1,000 edges, sizes .001, .01, .1 and 1 with A 0, .5, 1 and 1: .045 + .901."""
    ends = np.zeros(40), np.tile([4.0, 2.0], 20)
    values = np.outer([0.0, 0.5, 1.0, 1.0], ends[1])
    ids = [str(n) for n in range(40)]
    for profile in ("strict", "mib-2025"):
        rule = FaithfulnessMetric(profile, (0.001, 0.01, 0.1, 1.0), 1000, *ends, ids)
        kept = (1, 10, 100, 1000)
        sweep = rule.sweep("magnitude", kept, kept, values)
        assert sweep.cma.value == pytest.approx((0.09 * 0.5 + 0.9) / 0.999)
        assert sweep.agreement == pytest.approx([0, 0.5, 1, 1])
        areas = rule.areas(kept, values)
        own = {name: getattr(sweep, name).value for name in areas}
        assert areas == pytest.approx(own)


@pytest.mark.parametrize("scale", [1.0, -1.0, 1e-3])
def test_agreement_is_of_shares_of_pairs(scale: float) -> None:
    """Another unit or direction of the objective, another order of pairs, an added constant."""
    rng = np.random.default_rng(0)
    full, empty, circuit = rng.normal(size=(3, 30))
    own = float(agreement(full=full, empty=empty, circuit=circuit))
    order = rng.permutation(30)
    other = {
        name: scale * values[order] + 0.5
        for name, values in {"full": full, "empty": empty, "circuit": circuit}.items()
    }
    assert 0 <= own <= 1 and float(agreement(**other)) == pytest.approx(own)
    slow = sum(
        max(0.0, abs(n - o) - abs(c - n)) for n, o, c in zip(full, empty, circuit, strict=True)
    ) / sum(abs(n - o) for n, o in zip(full, empty, strict=True))
    assert own == pytest.approx(slow)


def test_agreement_is_undefined_where_ablation_changes_nothing() -> None:
    ones = np.ones(3)
    assert np.isnan(agreement(full=ones, empty=ones, circuit=np.zeros(3)))
    assert np.isnan(agreement(full=ones, empty=ones * (1 + 1e-15), circuit=ones))


def sweep_of(agreements: tuple[float, ...], noise: float = 0.0) -> RankingCurve:
    """40 pairs, of which a circuit keeps such shares; the last size is the full circuit."""
    rng = np.random.default_rng(0)
    full, empty = np.ones(40), np.zeros(40)
    values = np.array(agreements)[:, None] + noise * rng.normal(size=(len(agreements), 40))
    rule = FaithfulnessMetric("strict", SIZES, 1000, empty, full, [str(n) for n in range(40)])
    return rule.sweep("magnitude", (1, 10, 100, 1000), (1, 10, 100, 1000), values)


SIZES = (0.001, 0.01, 0.1, 1.0)


@pytest.mark.parametrize(
    ("agreements", "fraction"),
    [
        ((0.1, 0.95, 0.97, 1.0), 0.01),
        ((0.95, 0.95, 0.97, 1.0), 0.001),
        ((0.95, 0.5, 0.97, 1.0), 0.1),  # a small one that larger ones do not bear out
        ((0.1, 0.5, 0.89, 1.0), None),  # the full circuit is none
        ((0.1, 0.95, 1.97, 1.0), None),  # overshoot is no agreement
    ],
)
def test_the_smallest_circuit(agreements: tuple[float, ...], fraction: float | None) -> None:
    chosen = SmallestCircuit.of(SIZES, sweep_of(agreements), split="validation")
    assert chosen.fraction == fraction and chosen.n == 40 and chosen.largest == 0.1
    assert np.isnan(chosen.agreement) == (fraction is None)
    assert chosen.cma == sweep_of(agreements).cma.value


def test_a_circuit_has_to_be_sure_to_be_chosen() -> None:
    noisy = SmallestCircuit.of(SIZES, sweep_of((0.1, 0.2, 1.0, 1.0), noise=0.3))
    assert noisy.fraction is None
    with pytest.raises(BadUsage, match="share above 0"):
        SmallestCircuit.of(SIZES, sweep_of((0.1, 0.2, 1.0, 1.0)), target=1.5)
