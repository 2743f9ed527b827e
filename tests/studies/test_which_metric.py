"""Which measure ranks as the truth does: measures, scorings and cells against known answers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mechassay as ma
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate, run_controls
from mechassay.circuits.methods import load_method
from mechassay.models.graph import Graph
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT
from studies.which_metric import contrasts, measures, scorings, study, tables, truths
from studies.which_metric.__main__ import main
from studies.which_metric.made import METHODS as MADE_METHODS
from studies.which_metric.made import page as made_page
from studies.which_metric.measures import Area, CutCircuits, Ends, Smallest

pytestmark = pytest.mark.guard

QUICK = study.Settings(
    n_train=6, n_test=12, methods={name: name for name in ("eap", "exact", "eap-ig-inputs")}
)


def circuits_of(objective: list[list[float]], **others: list[list[float]]) -> measures.Values:
    """Circuits by their objective of each pair; what is not given is 0."""
    values = np.zeros((len(objective), 4, len(objective[0])))
    values[:, measures.OBJECTIVE] = objective
    for name, rows in others.items():
        values[:, getattr(measures, name)] = rows
    return values


def two_pairs(objective: list[list[float]]) -> dict[str, np.ndarray]:
    """Quantities where m(0) = (0, 0) and m(N) = (4, 2)."""
    empty, full = circuits_of([[0, 0], [4, 2]])
    return measures.quantities(circuits_of(objective), Ends(empty, full, 3.0))


def test_quantities_by_hand() -> None:
    """Overshoot, errors that cancel, half, perfect, and empty."""
    worked = two_pairs([[8, 4], [6, 0], [2, 1], [4, 2], [0, 0]])
    expected = {
        "f": [2, 1, 0.5, 1, 0],
        "closeness": [0, 1, 0.5, 1, 0],
        "tent": [0, 1, 0.5, 1, 0],
        "clipped": [1, 1, 0.5, 1, 0],
        "agreement": [0, 1 / 3, 0.5, 1, 0],
        # Errors (2, -2) against effects (4, 2): the root of 8 / 20.
        "rms": [0, 1 - 0.4**0.5, 0.5, 1, 0],
    }
    for name, values in expected.items():
        assert worked[name] == pytest.approx(values), name


def test_tokens_by_hand() -> None:
    empty, full = circuits_of(
        [[0, 0], [4, 2]], DIVERGENCE=[[3, 1], [0, 0]], RIGHT=[[0, 0], [1, 1]], SAME=[[0, 1], [1, 1]]
    )
    half = circuits_of([[4, 0]], DIVERGENCE=[[1, 0]], RIGHT=[[1, 0]], SAME=[[1, 0]])
    worked = measures.quantities(half, Ends(empty, full, 3.0))
    assert worked["kl"] == pytest.approx([0.75])
    assert worked["accuracy"] == pytest.approx([0.5])
    assert worked["same token"] == pytest.approx([0.5])


def test_what_is_divided_by_nothing_is_undefined() -> None:
    still = circuits_of([[1, 1]])[0]
    worked = measures.quantities(circuits_of([[1, 1]]), Ends(still, still, np.nan))
    for name in ("f", "agreement", "rms", "accuracy", "kl"):
        assert np.isnan(worked[name]).all(), name


def test_areas_by_hand() -> None:
    """A = 0, .5, 1, 1 at sizes .001, .01, .1 and 1: the area is .009 * 0 + .09 * .5 + .9."""
    sizes = np.array([0.001, 0.01, 0.1, 1.0])
    circuits = CutCircuits(sizes, sizes, circuits_of([[0], [1], [2], [2]]))
    heights = {"agreement": np.array([0, 0, 0.5, 1, 1])}
    assert Area("agreement").value(circuits, heights) == pytest.approx(0.945946, abs=1e-6)
    log = Area("agreement", log=True).value(circuits, heights)
    assert log == pytest.approx((0 + 0.5 + 1) / 3)
    # From .1 on it stays at .9 or more.
    assert Smallest("agreement").value(circuits, heights) == pytest.approx(0.9)
    dips = {"agreement": np.array([0, 0.95, 0.5, 0.5, 1])}
    assert Smallest("agreement").value(circuits, dips) == 0, "only the full circuit stays"
    whole = {"agreement": np.ones(5)}
    assert Smallest("agreement").value(circuits, whole) == 1, "nothing is needed"


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        ("eap", "logit_diff"),
        ("ifr", "prob_diff"),
        ("exact-nodes", "logit_diff"),
        ("random-paths", "prob_diff"),
    ],
)
def test_areas_are_those_of_the_package(method: str, objective: str) -> None:
    truth = load_truth("truth-induction-trained")
    train, test = (
        truth.model.batch(truth.task.pairs(split, truth.model, limit=12))
        for split in ("train", "test")
    )
    scores = load_method(method).score(truth.model, train, objective, progress=SILENT)
    circuits = {(by, kind): study.cut(scores, by, kind) for by, kind in study.RANKINGS}
    values = {
        key: study.run_circuits(truth.model, series, test, objective)
        for key, series in circuits.items()
    }
    n = truth.model.graph.n_edges
    ends_run = study.run_circuits(
        truth.model, study.end_circuits(truth.model.graph), test, objective
    )
    worked = measures.all_measures(
        {
            key: CutCircuits(
                np.array(study.sizes_of(n, key[1])),
                np.array([circuit.weighted_edge_count() for circuit in series]) / n,
                values[key],
            )
            for key, series in circuits.items()
        },
        study.ends_of(ends_run, test, n, objective),
    )
    controls = run_controls(truth.model, test, objective, seeds=(0, 1), progress=SILENT)
    strict, published = (
        ma.circuits.faithfulness_curve(
            truth.model,
            scores,
            test,
            objective,
            profile=profile,
            controls=controls,
            progress=SILENT,
        )
        for profile in ("strict", "mib-2025")
    )
    package = {
        "CMA": strict.cma,
        "CMA by value": strict.sweeps["value"].cma.value,
        "CPR": strict.cpr,
        "CMD": 1 - strict.cmd,
        "f by magnitude": strict.sweeps["magnitude"].cpr.value,
        "CPR, mib-2025": published.cpr,
        "CMD, mib-2025": 0.999 - published.cmd,
    }
    if isinstance(scores, ma.circuits.EdgeScores):
        # Of nodes the package has kept sizes of whole edges.
        dense = ma.circuits.faithfulness_curve(
            truth.model,
            scores,
            test,
            objective,
            fractions=study.sizes_of(n, "dense"),
            progress=SILENT,
        )
        package["CMA, 24 sizes"] = dense.cma
    assert {name: worked[name] for name in package} == pytest.approx(package, abs=1e-9)


def test_a_copied_head_at_half_weight_hardly_changes_what_the_model_does() -> None:
    truth = load_truth("truth-induction-trained")
    half = truths.changed_model(truth, "half", n_pairs=60)
    negative = truths.changed_model(truth, "neg", n_pairs=60)
    assert half.dropped == negative.dropped == ""
    pairs = truth.task.pairs("test", truth.model, limit=20)
    full = ma.circuits.Circuit.full(truth.model.graph)
    plain = evaluate(truth.model, full, pairs, progress=SILENT)
    assert evaluate(half.model, full, pairs, progress=SILENT) == pytest.approx(plain, abs=0.05)
    # The copy's edges into and out of it are in the circuit, beside those of the last head.
    names = half.circuits["counterfactual"].names()
    assert names == negative.circuits["counterfactual"].names()
    assert {name for name in names if name.endswith("->logits")} == {
        f"a1.h{head}->logits" for head in (0, 1)
    }
    assert truths.family_of(half.name) == truth.name and truths.change_of(half.name) == "half"


def test_a_changed_model_whose_circuit_is_not_clear_is_dropped() -> None:
    dropped = truths.changed_model(load_truth("truth-previous-token-trained"), "neg")
    assert "does not hold" in dropped.dropped


def test_made_scorings_have_the_faults_that_they_are_named_after() -> None:
    n, member = 100, np.zeros(100, dtype=bool)
    member[[3, 50, 80]] = True
    exact = np.where(member, np.linspace(-2, 4, n), 0.0)
    rng = np.random.default_rng(0)
    made = dict(scorings.made_values(exact, exact, member, rng))
    assert len(made) == 25 and set(scorings.FEW) - set(made) == {"random edges 0", "random paths 0"}
    ranks = {name: np.argsort(-abs(values)) for name, values in made.items()}
    for name in ("as they are", "magnitudes", "noise .1 0", "signs 1", "random order"):
        assert set(ranks[name][:3]) == {3, 50, 80}, name
    assert (made["magnitudes"][member] > 0).all() and (
        made["signs 1"] == -made["as they are"]
    ).all()
    strongest, weakest = 80, 50
    assert ranks["strongest last"][-1] == strongest and ranks["weakest last"][-1] == weakest
    assert made["weakest 0"][weakest] == 0
    assert not member[ranks["false .3"][:30]].any() and member[ranks["false .3"][30:33]].all()
    assert member[ranks["half 0"][:2]].all() and not member[ranks["half 0"][2]]


def record_of(
    grid: str, model: str, sample: int, rng: np.random.Generator, errors: Mapping[str, float]
) -> dict[str, Any]:
    """A record in which a measure is the AUROC with an error of its own, by default .3."""

    def scoring(sort: str) -> dict[str, Any]:
        auroc = float(rng.random())
        values = {m: auroc + float(rng.normal()) * errors.get(m, 0.3) for m in measures.MEASURES}
        largest = {"value": 1.5, "magnitude": 1.0}
        numbers = {"auroc": auroc, "auprc": auroc, "measures": values, "largest f": largest}
        return {"sort": sort, **numbers}

    labels = [*tables.CONTROLS, "magnitudes", *(f"made {number}" for number in range(12))]
    made = {label: scoring("made") for label in labels}
    methods = {f"method {number}": scoring("method") for number in range(14)}
    about = {"grid": grid, "model": model, "sample": sample, "margin": 20.0, "dropped": ""}
    about |= {"n_edges": 110, "n_true": 5, "refused": {}, "seconds": 1.0}
    about |= {"settings": {"n_train": 5, "n_test": 10}}
    return {**about, "scorings": {**made, **methods}}


def made_records(**errors: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Records of two grids; `errors` of a measure by grid."""
    rng = np.random.default_rng(0)
    for grid in ("counterfactual", "mean"):
        for model in ("a", "a+neg", "a+half", "b", "b+half", "c", "d", "e", "f"):
            for sample in range(2):
                yield record_of(grid, model, sample, rng, errors[grid])


def test_a_known_winner_wins() -> None:
    better = {"S90": 0.01}
    records = list(made_records(counterfactual=better, mean=better))
    result = contrasts.decision(records)
    assert result.winner == "S90"
    assert [name for name, _ in result.above] == ["S90", "S90"], "for all scorings and for methods"
    difference = contrasts.agreements(records[:18]).differences
    assert difference.mean("S90").low > 0 > difference.mean("tent").low
    assert difference.mean("S90").n == 9 and difference.mean("S90", families=True).n == 6
    assert difference.mean("CMA") == (0, 0, 9)
    page = tables.page(records)
    assert page.startswith("By the rule of the plan S90 takes the place of CMA.")
    assert "counterfactual | 18 | 9 | 2 |" in page


def test_truths_that_were_made_have_tables_of_their_own() -> None:
    """CMA is the AUROC itself; each truth has a row with the range of its samples, and the mean an
    interval. Only where backups are known is there a table against the circuit without them.
    """
    rng = np.random.default_rng(0)
    records = [
        record_of("made", name, sample, rng, {"CMA": 0.0})
        for name in ("one", "two")
        for sample in range(2)
    ]
    for record in records:
        scored = record["scorings"]
        scored |= {label: {**scored["method 0"]} for label in MADE_METHODS}
        scored["exact"] |= {
            "sort": "made",
            "auroc": 0.25,
            "measures": {**scored["exact"]["measures"], "CMA": 0.25},
        }
    page = made_page(records)
    for line in (
        "| CMA: mean | 1.00 ± .000 |",
        "| CMA: one | ",
        "| CPR: two | ",
        "| one | exact | .25 |",
        "| CMA: two | 1.00 [1.00, 1.00] | 1.00 [1.00, 1.00] |",
    ):
        assert line in page, line
    assert "; 2 samples of pairs" in page and "without its backups" not in page
    for record in records[:2]:
        for scoring in record["scorings"].values():
            scoring[study.WITHOUT_BACKUPS] = -scoring["auroc"]
    page = made_page(records)
    assert "| CMA: one | -1.00 [-1.00, -1.00] | -1.00 [-1.00, -1.00] |" in page


def test_the_circuit_without_a_head_lacks_the_edges_to_and_from_it() -> None:
    graph = Graph(n_layers=2, n_heads=2)
    names = ["input->a0.h1<q>", "a0.h1->a1.h0<v>", "a1.h0->logits", "input->a1.h0<k>"]
    circuit = Circuit.from_names(graph, names)
    assert set(truths.without_heads(circuit, ["a0.h1"]).names()) == {names[2], names[3]}
    assert truths.without_heads(circuit, ["a1.h0"]).names() == [names[0]]
    assert truths.without_heads(circuit, []).names() == circuit.names()


def test_nothing_wins_where_measures_are_alike_or_fail_elsewhere() -> None:
    alike = list(made_records(counterfactual={}, mean={}))
    result = contrasts.decision(alike)
    assert result.winner is None and not result.above
    assert "CMA stays: none of 18" in tables.answer(result)
    # Better in the main grid, worse in another.
    records = list(made_records(counterfactual={"S90": 0.01}, mean={"S90": 3.0, "CMA": 0.01}))
    result = contrasts.decision(records)
    assert result.winner is None and ("S90", "all") in result.above
    assert ("mean", "all") in result.below["S90"]
    assert "worse in: mean, all" in tables.answer(result)


def test_agreement_by_hand() -> None:
    x, y = np.array([1.0, 2, 3, 4]), np.array([0.1, 0.2, 0.4, 0.3])
    assert contrasts.spearman(x, y) == pytest.approx(0.8)
    assert contrasts.spearman(x + 1e-9, x) == 1
    assert math.isnan(contrasts.spearman(np.ones(4), y))
    assert math.isnan(contrasts.spearman(np.array([1, np.nan, 2, 3]), y))
    # All six pairs are .05 apart, and five are ordered as in y; then with a tie in one.
    assert contrasts.order(x, y) == pytest.approx(5 / 6)
    assert contrasts.order(np.array([1.0, 2, 3, 3]), y) == pytest.approx(5.5 / 6)
    assert math.isnan(contrasts.order(x, np.ones(4)))
    # Student's quantile of 2 degrees of freedom is 4.303.
    mean = contrasts.student([1.0, 2.0, 3.0, math.nan])
    assert mean == pytest.approx((2, 4.3027 / math.sqrt(3), 3), abs=1e-3)
    assert math.isnan(contrasts.student([1.0]).half) and contrasts.student([]).n == 0


def quick_cells() -> list[study.Cell]:
    few = study.Grid("mean", "mean", "logit_diff", 1, changed=False, few=True)
    names = ("truth-previous-token", "truth-mcqa-trained")
    return [study.Cell(few, name, 0) for name in names]


def test_cells_are_kept_and_a_killed_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, lines = quick_cells(), list[str]()
    made = study.measured_cell

    def killed(cell: study.Cell, settings: study.Settings) -> dict[str, Any]:
        if cell == cells[1]:
            raise KeyboardInterrupt
        return made(cell, settings)

    monkeypatch.setattr(study, "measured_cell", killed)
    with pytest.raises(KeyboardInterrupt):
        study.run(tmp_path, cells, QUICK, report=lines.append)
    assert [path.name for path in tmp_path.iterdir()] == [cells[0].file]
    monkeypatch.setattr(study, "measured_cell", made)
    records = study.run(tmp_path, cells, QUICK, report=lines.append)
    assert len(lines) == 2 and lines[1].startswith("1 of 1: mean--truth-mcqa-trained--0.json")
    assert study.run(tmp_path, cells, QUICK, report=lines.append) == records and len(lines) == 2
    # Made with other settings, it is made anew.
    file = tmp_path / cells[1].file
    file.write_text(json.dumps(json.loads(file.read_text()) | {"settings": {}}))
    study.run(tmp_path, cells, QUICK, report=lines.append)
    assert len(lines) == 3
    # A model without a circuit for this ablation is there, with why it does not count.
    known, unknown = records
    assert "no circuit is verified for mean" in unknown["dropped"] and not unknown["scorings"]
    scored = known["scorings"]
    assert len(scored) == 3 + len(scorings.FEW)
    perfect, worthless = scored["as they are"], scored["false .6"]
    assert perfect["auroc"] == 1 and worthless["auroc"] < 0.5
    for name in ("CMA", "CMD", "1 - RMS", "KL faithfulness", "S90"):
        assert perfect["measures"][name] > 0.85, name
    for name in ("CMA", "CMD", "1 - RMS", "KL faithfulness", "CPR"):
        assert worthless["measures"][name] < 0.1, name


def test_the_command_writes_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "studies.which_metric.__main__"
    monkeypatch.setattr(f"{command}.run", lambda *_, **__: [{"seconds": 1.0}])
    monkeypatch.setattr(f"{command}.page", lambda records: f"{len(records)} records\n")
    main(tmp_path, tmp_path / "tables.md")
    assert (tmp_path / "tables.md").read_text("utf-8") == "1 records\n"


def test_the_cells_are_those_of_the_plan() -> None:
    counts = {grid.name: 0 for grid in study.GRIDS}
    for cell in study.all_cells():
        counts[cell.grid.name] += 1
    assert counts == {"counterfactual": 90, "mean": 10, "zero": 10, "probability": 30}
