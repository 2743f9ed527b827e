"""AUROCs by hand, undefined scores, worlds that agree; which quantity decides; subjects."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from mechassay.measurement.catalogue import Condition, Quantity, Variant, quantity
from mechassay.measurement.gauges import GAUGES
from mechassay.measurement.metric import load_gauge
from mechassay.saes.synthetic import PlantedSettings
from mechassay.truth.ground_truth import load_truth
from studies.measure_trial.discrimination import (
    TrialScore,
    auroc_estimate,
    deciding_quantity,
    discriminate,
    score_of,
    tallies,
)
from studies.measure_trial.subjects import (
    CIRCUITS,
    DICTIONARIES,
    circuit_subjects,
    dictionary_subjects,
    near_misses,
    ranked_first,
    sort_of_subject,
)


def row(score: float, *, world: str = "a", kind: str = "true", passed: bool | None = True) -> Any:
    return TrialScore(world, 0, kind, kind == "true", "repaired", score, passed)


def test_auroc_by_hand() -> None:
    right = [row(3.0), row(1.0), row(2.0, world="b")]
    wrong = [row(1.0, kind="w"), row(0.0, kind="w"), row(2.5, world="b", kind="w")]
    wins, pairs = tallies(right, wrong, ["a", "b"])
    # World a: 3 beats both, 1 ties with 1 and beats 0. Its 3 beats b's 2.5, b's 2 beats both of a.
    assert wins.tolist() == [[3.5, 1.0], [2.0, 0.0]] and pairs.tolist() == [[4, 2], [2, 1]]
    found = discriminate([*right, *wrong], {"repaired": "x"})
    assert len(found) == 1 and found[0].auroc.value == pytest.approx(6.5 / 9)
    assert found[0].within == pytest.approx((3.5 / 4 + 0) / 2)
    assert found[0].auroc.low <= 6.5 / 9 <= found[0].auroc.high
    # The slow obvious version.
    slow = np.mean([(x.score > y.score) + 0.5 * (x.score == y.score) for x in right for y in wrong])
    assert found[0].auroc.value == pytest.approx(slow)


def test_a_monotone_change_of_scores_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    plain = [
        row(float(rng.normal(1.0 * (k == "true"))), world=w, kind=k)
        for w in "abcd"
        for k in ("true", "w")
        for _ in range(3)
    ]
    other = [row(math.exp(x.score), world=x.world, kind=x.kind) for x in plain]
    assert discriminate(plain, {"repaired": "x"}) == discriminate(other, {"repaired": "x"})


def test_undefined_scores_rank_last_and_are_counted() -> None:
    nan = math.nan
    found = discriminate(
        [row(0.1), row(nan, passed=None), row(nan, kind="w", passed=None)], {"repaired": "x"}
    )[0]
    # .1 beats the undefined one, and the two undefined ones tie.
    assert found.auroc.value == pytest.approx(0.75)
    assert (found.undefined_right, found.undefined_wrong) == (1, 1)
    assert found.passes_right.value == 0.5 and found.passes_wrong.value == 0


def test_no_verdict_is_not_no_condition() -> None:
    # The defect: scores without a verdict were taken for a variant that only reports.
    no_verdict = [row(0.1, passed=None), row(0.2, kind="w", passed=None)]
    found = discriminate(no_verdict, {"repaired": "x"})[0]
    assert found.passes_right.value == 0 and found.passes_wrong.value == 0
    # And an undefined score for a variant that decides.
    reports = [replace(x, score=math.nan, has_conditions=False) for x in no_verdict]
    assert math.isnan(discriminate(reports, {"repaired": "x"})[0].passes_right.value)


def test_worlds_that_all_agree_are_no_certainty() -> None:
    found = auroc_estimate(np.eye(4) + 1 - np.eye(4), np.ones((4, 4)))
    # Clopper and Pearson's lower end for 4 of 4.
    assert found.value == 1 and found.low == pytest.approx(0.025**0.25)
    assert math.isnan(auroc_estimate(np.zeros((2, 2)), np.zeros((2, 2))).value)
    assert math.isnan(auroc_estimate(np.full((1, 1), 0.5), np.ones((1, 1))).low), "one world"


def test_a_metric_that_tells_nothing_has_chance() -> None:
    rng = np.random.default_rng(1)
    rows = [
        row(float(rng.normal()), world=str(w), kind=k)
        for w in range(10)
        for k in ("true", "w")
        for _ in range(10)
    ]
    found = discriminate(rows, {"repaired": "x"})[0]
    assert found.auroc.low < 0.5 < found.auroc.high and found.within == pytest.approx(0.5, abs=0.1)


def test_the_score_is_what_decides() -> None:
    values = {"low": quantity(0.2), "share": Quantity(0.7, better="down"), "n": quantity(3.0)}

    class Gauge:
        score: ClassVar = {"page": "share"}

    conditions = (Condition("low", "<", 0.5), Condition("n", "=", 1.0))
    part = Variant("repaired", values, conditions)
    assert deciding_quantity(Gauge(), part) == ("low", conditions[0])
    assert score_of(Gauge(), part) == -0.2, "of a condition < less is better"
    assert score_of(Gauge(), Variant("repaired", values, conditions[1:])) == -2
    assert score_of(Gauge(), Variant("page", values)) == -0.7
    assert deciding_quantity(Gauge(), Variant("repaired", values)) is None
    undefined = Variant("repaired", {"low": quantity(None)}, conditions[:1])
    assert math.isnan(score_of(Gauge(), undefined))


def test_what_metrics_are_tried_on_is_read_from_the_registry() -> None:
    sorts = {name: sort_of_subject(load_gauge(name)) for name in GAUGES.targets()}
    assert {"EX1", "EX11", "EX24", "EX25", "MIB", "F01", "F02"} <= {
        name for name, sort in sorts.items() if sort == CIRCUITS
    }
    assert {"M07", "M09", "M11"} <= {x for x, sort in sorts.items() if sort == DICTIONARIES}
    assert sorts["F03"] == sorts["F08"] == ""


def test_circuits_of_known_worth() -> None:
    truth = load_truth("truth-ioi")
    true = truth.circuits["counterfactual"]
    found = {x.kind: x for x in circuit_subjects(truth, 0, n_prompts=4, train_limit=4)}
    assert [x.kind for x in found.values() if x.right] == ["true"]
    circuits = {kind: each.inputs.circuit for kind, each in found.items()}
    assert circuits["true"] == true and len(circuits["random edges"]) == len(true)
    assert len(true - circuits["edge missing"]) == 1 and len(circuits["edge missing"] - true) == 0
    assert len(circuits["edge wrong"] - true) == 1 and len(true - circuits["edge wrong"]) == 0
    assert len(circuits["edge exchanged"]) == len(true)
    again = near_misses(true, torch.Generator().manual_seed(0))
    assert again["edge missing"] == circuits["edge missing"]
    assert ranked_first(true, 3).top(len(true)) == true


def test_dictionaries_of_known_worth() -> None:
    found = list(dictionary_subjects("w", PlantedSettings(documents=8), 1))
    assert [x.kind for x in found if x.right] == ["true"] and len(found) == 5
    values = found[0].inputs.get("texts").values("train")
    assert all(torch.equal(x.inputs.get("texts").values("train"), values) for x in found)
    widths = {x.kind: x.inputs.get("sae").n_features for x in found}
    assert widths["merged"] == 12 and widths["true"] == 24
