"""Gauges on ground truths and tiny models: true circuits, worthless ones, and bad inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from helpers.pairs import word_level
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import faithfulness_curve
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadPairs, BadUsage
from mechassay.features.featurizer import Directions
from mechassay.interventions.intervene import intervene
from mechassay.measurement import GaugeInputs, measure
from mechassay.measurement.metrics.circuit_runs import (
    by_means,
    head_writers,
    heads_of,
    only_heads,
    without_heads,
)
from mechassay.measurement.metrics.curve_area import heads_in_layer_order
from mechassay.measurement.metrics.differential_items import (
    name_groups,
    name_pairs,
    name_tokens,
    pool_text,
)
from mechassay.measurement.metrics.discriminability import Reconstruct
from mechassay.models.model import make_model
from mechassay.results.records import Measure, Record, Spec, provenance
from mechassay.tasks.task import word_lists
from mechassay.testing import tiny
from mechassay.truth.ground_truth import load_truth


@dataclass(frozen=True)
class Case:
    model: Any
    pairs: Any
    train: Any
    circuit: Circuit

    def measured(self, metric: str, **more: Any) -> Any:
        given = {"pairs": self.pairs, "train": self.train, "circuit": self.circuit}
        return measure(metric, self.model, **{**given, **more})


@pytest.fixture(scope="module")
def case() -> Case:
    truth = load_truth("truth-ioi")
    test, train = (truth.task.pairs(x, truth.model, limit=24) for x in ("test", "train"))
    return Case(truth.model, test, train, truth.circuits["counterfactual"])


def rankings(graph: Any, n: int = 2) -> dict[str, Any]:
    return {f"random {seed}": Random(seed=seed).draw(graph) for seed in range(n)}


def test_the_true_circuit_is_detected_and_a_worthless_one_is_not(case: Case) -> None:
    found = case.measured("EX1")
    assert found.passed is True and found.repaired["dprime_circuit_only"] > 2
    nothing = case.measured("EX1", circuit=Circuit.empty(case.model.graph))
    assert nothing.passed is False and nothing.repaired["dprime"] == 0
    assert nothing.flagged("no_heads") and nothing.flagged("arms_equal")


def test_heads_are_ablated_as_whole_writers(case: Case) -> None:
    graph, heads = case.model.graph, heads_of(case.circuit)
    assert bool(heads.any()) and not bool((heads & ~head_writers(graph)).any())
    inputs = GaugeInputs(case.model, pairs=case.pairs, train=case.train)
    full, without, rest = by_means(
        inputs,
        [Circuit.full(graph), without_heads(graph, heads), only_heads(graph, heads)],
    )
    assert rest.mean() == pytest.approx(full.mean(), rel=0.05)
    assert without.mean() < 0.5 * full.mean()


def test_a_deterministic_model_is_reproducible(case: Case) -> None:
    for metric in ("logit-diff", "ablation-recovery", "probe-accuracy"):
        found = case.measured(f"EX25:n_runs=3,metric={metric}", site="blocks.1.hook_resid_post")
        assert found.repaired["measurement_sd"] < 1e-4, metric
    with pytest.raises(BadUsage, match=r"circuit \(--circuit\)"):
        measure("EX25:n_runs=2,metric=ablation-recovery", case.model, pairs=case.pairs)


def test_the_audit_tells_a_circuit_from_random_edges(case: Case) -> None:
    found = case.measured("EX24")
    assert found.repaired["difference"] == pytest.approx(1, abs=0.05)
    assert found.repaired.passed is True
    nothing = case.measured("EX24", circuit=Circuit.empty(case.model.graph))
    assert nothing.repaired.passed is not True


def test_the_audit_tells_a_dictionary_from_its_shuffled_self(case: Case) -> None:
    width = case.model.decoder.d_model
    whole = Directions(torch.eye(width))
    found = measure("EX24", case.model, pairs=case.pairs, sae=whole, site="resid.1@all")
    row = found.tables[0].rows()[0]
    assert row["better"] == pytest.approx(1, abs=1e-4) and row["worse"] < row["better"]
    narrow = Directions(torch.eye(width + 3))
    with pytest.raises(BadUsage, match="does not take"):
        measure("EX24", case.model, pairs=case.pairs, sae=narrow, site="resid.1@all")


def test_a_whole_dictionary_changes_nothing(case: Case) -> None:
    whole = Directions(torch.eye(case.model.decoder.d_model))
    batch = case.model.batch(case.pairs)
    out = intervene(case.model, batch, {"resid.1@all": Reconstruct(whole)})
    assert torch.allclose(out.final, out.base_final, atol=1e-4)


def test_errors_over_prompts(case: Case) -> None:
    assert case.measured("F01").repaired["value"] == pytest.approx(1, abs=0.05)
    assert case.measured("F02").repaired["sign_consistency"] == 1
    alone = measure("F01", case.model, pairs=case.pairs)
    assert alone.repaired["value"] > 1, "without a circuit: the model's objective"


def test_random_methods_neither_converge_nor_agree(case: Case) -> None:
    given = rankings(case.model.graph)
    for metric in ("F03", "F06"):
        assert measure(metric, rankings=given).passed is False
    same = {"a": given["random 0"], "b": given["random 0"]}
    assert measure("F03", rankings=same).repaired["spearman"] == pytest.approx(1)
    assert measure("F06", rankings=same).repaired["jaccard_corrected"] == pytest.approx(1)
    other = {"a": given["random 0"], "b": given["random 1"]}
    assert measure("F04", rankings=other, other_rankings=same).passed is False
    # Twelve heads on which everything agrees are too few for an interval, and decide nothing.
    assert measure("F04", rankings=same, other_rankings=same).passed is None
    with pytest.raises(BadUsage, match="two methods"):
        measure("F03", rankings={"a": given["random 0"]})
    with pytest.raises(BadUsage, match="same methods"):
        measure("F04", rankings=given, other_rankings=same)


def test_circuits_over_prompts_and_groups(case: Case) -> None:
    given = rankings(case.model.graph, 3)
    labels = [pair.answers[0] for pair in case.pairs]
    consistent = case.measured("F05", rankings=given)
    assert consistent.page["alpha"] is not None
    assert case.measured("F07", rankings=given, labels=labels).tables[0].columns["groups"]


def test_gains_over_methods_from_records() -> None:
    made = provenance(device="cpu", dtype="float32", seed=0)

    def record(task: str, method: str, value: float) -> Record:
        specs = {"model": Spec(name="m"), "task": Spec(name=task), "method": Spec(name=method)}
        measures = [Measure(name="cpr", value=value)]
        return Record(kind="faithfulness", specs=specs, measures=measures, provenance=made)

    records = [
        record(t, m, v + 0.1 * i)
        for i, t in enumerate("abc")
        for m, v in (("new", 0.5 + 0.02 * i), ("old", 0.3))
    ]
    found = measure("F08", records=records)
    assert found.repaired["delta"] == pytest.approx(0.22) and found.passed is True
    assert measure("F08:method=old", records=records).passed is False
    with pytest.raises(BadUsage, match="two methods"):
        measure("F08", records=records[:1])


def test_the_published_curve_does_not_depend_on_the_ranking(case: Case) -> None:
    one, other = rankings(case.model.graph).items()
    found = [case.measured("MIB", rankings=dict([each])) for each in (one, other)]
    assert found[0].page.values == found[1].page.values and found[0].flagged("not_ranked")
    assert all(each.passed is False for each in found)
    graph = case.model.graph
    assert not heads_in_layer_order(graph, 1.0)[0], "the input is no head"
    assert torch.equal(heads_in_layer_order(graph, 1.0), head_writers(graph))
    assert int(heads_in_layer_order(graph, 0.001).sum()) == 1


def test_the_repaired_curve_is_compared_with_both_random_rankings(case: Case) -> None:
    [(label, ranking)] = rankings(case.model.graph, 1).items()
    found = case.measured("MIB", rankings={label: ranking}).repaired
    curve = faithfulness_curve(case.model, ranking, case.pairs, "logit_diff").record()
    for name, control in {"cpr_above_edges": "random", "cpr_above_paths": "random-paths"}.items():
        gap = curve.measure("cpr", f"difference:{control}")
        assert gap is not None and found[name] == pytest.approx(gap.value, abs=1e-6)
        assert found[f"{name}_low"] == pytest.approx(gap.low, abs=1e-6)


def test_scaled_heads(case: Case) -> None:
    found = case.measured("EX11")
    heads = {row["head"]: row for row in found.tables[0].rows()}
    assert {row["of"] for row in heads.values()} == {"circuit", "control"}
    assert found.repaired["n_undetectable"] == 0
    assert found.repaired["control_detectable"] == 0, "heads outside of the true circuit"
    nothing = case.measured("EX11", circuit=Circuit.empty(case.model.graph))
    assert nothing.passed is None or nothing.passed is False
    assert nothing.flagged("no_heads")


# --- names


def names_model(names: list[str]) -> Any:
    words = word_lists("ioi")["test"]
    texts = [*words["templates"], *words["objects"], *words["places"], *names]
    known = {word for text in texts for word in __import__("re").findall(r"\w+|[^\w\s]", text)}
    hf = tiny.random_model(
        tiny.configs()["gpt2"].__class__(
            **{**tiny.configs()["gpt2"].to_dict(), "vocab_size": len(known) + 5}
        )
    )
    return make_model(hf, word_level(known), name="names")


def test_names_of_three_kinds() -> None:
    every = [name for names in name_groups().values() for name in names]
    assert len(set(every)) == len(every) and set(name_groups()) == {
        "common",
        "less common",
        "other origins",
    }
    assert {"Nigel", "Mabel", "Rupert", "Hiroshi", "Priya", "Oluwaseun"} <= set(every)
    model = names_model(every)
    found = measure("EX2:n_per_group=24", model, circuit=Circuit.full(model.graph))
    groups = found.tables[0].rows()
    assert [row["names by tokens"] for row in groups] == ["36 of 1"] * 3
    assert [row["pairs of names"] for row in groups] == [36 * 35 // 2] * 3
    # The full circuit does as the model: there is no DIF, whatever the impact.
    assert found.repaired.passed is not False or found.repaired["max_delta_r2"] < 0.2
    with pytest.raises(BadPairs, match="less common names"):
        measure(
            "EX2",
            names_model(list(name_groups()["common"])),
            circuit=found and Circuit.full(model.graph),
        )


def test_names_are_paired_by_their_number_of_tokens() -> None:
    tokens = {"Ann": (1,), "Bob": (2,), "Priya": (3, 4), "Prita": (3, 5), "Xo": (6, 7)}
    assert name_pairs(tokens) == [("Ann", "Bob"), ("Priya", "Xo"), ("Prita", "Xo")]
    assert pool_text(tokens) == "2 of 1, 3 of 2"
    known = word_level({"and", "Ann"})
    assert list(name_tokens(["Ann", "Zoe"], known)) == ["Ann"]


def test_weights_of_resamples_are_those_of_whole_groups() -> None:
    from mechassay.stats.intervals import example_weights, weighted_means

    weights, n = example_weights(["a", "a", "b"], np.random.default_rng(0), 50)
    assert n == 2 and (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, 0] + weights[:, 2] == 2).all()
    assert np.allclose(weighted_means(weights, np.ones(3)), 1)
