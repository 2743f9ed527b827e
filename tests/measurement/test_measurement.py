"""Both variants, what is undefined, conditions with their rates, names and missing inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mechassay as ma
from mechassay.errors import BadUsage, UnknownName
from mechassay.measurement import GAUGES, GaugeInputs, measure, null_table
from mechassay.measurement.catalogue import (
    CRITERIA,
    RUBRIC,
    Condition,
    Flag,
    Quantity,
    Variant,
    catalogue,
    page_metric,
    quantity,
)
from mechassay.measurement.gauges import all_gauges, list_gauges
from mechassay.measurement.measurement import ALL, Measurement, Scenario, simulate
from mechassay.measurement.metric import NEEDS, load_gauge, missing_inputs
from mechassay.results.records import Spec, provenance
from mechassay.testing import check_record

SCRIPTS = {
    "M09": "115_core_stability",
    "EX25": "132_reproducibility",
    "EX24": "131_saebench_audit",
    "M07": "110_architecture_duality",
    "M08": "114_weightlens",
    "M10": "117_prism",
    "M11": "118_matryoshka",
    "M12": "120_adaptive_sparsity",
    "M13": "126_superposition_regime",
    "EX34": "133_nla_sae_convergence",
    "EX1": "EX1_dprime",
    "EX2": "EX2_dif",
    "EX11": "EX11_weber_fechner",
    "MIB": "MIB_faithfulness_curve",
    "M14": "136_safety_sve",
    "B10": "B10_k_composition",
}
"""The fifteen published scripts of the page, and that of B10, written down apart from the
catalogue."""


READ_BESIDE = {
    "M10": {"dead_share"},
    "M13": {"layers_together"},
    "EX11": {"levels_differ"},
    "MIB": {"least_f", "largest_step"},
}


def test_the_catalogue_has_the_page() -> None:
    metrics = catalogue()
    assert {id: each.script for id, each in metrics.items() if each.script} == SCRIPTS
    assert [id for id in metrics if id.startswith("F")] == [f"F0{n}" for n in range(1, 9)]
    assert [str(x) for x in metrics["EX25"].conditions] == [
        "deviation_rate < 0.05",
        "max_deviation < 0.08",
        "coherence_score > 0.9",
    ]
    assert metrics["EX25"].defaults == {"n_runs": 10, "n_prompts": 50}
    for each in metrics.values():
        assert {c.quantity for c in each.conditions} <= set(each.keys)
        # Readings speak of some quantities that the script does not print.
        read = {name for scale in each.scales for name in scale.of}
        assert read <= set(each.keys) | READ_BESIDE.get(each.id, set())
        assert each.establishes and each.does_not and not each.establishes.endswith(".")
        assert all(missing_inputs([need], tuple(NEEDS)) == [] for need in each.needs)
        assert str(each.criterion) == f"mv-27@1:{each.criterion.code}"


@pytest.mark.parametrize("id", SCRIPTS)
def test_a_script_is_a_name(id: str) -> None:
    for name in (SCRIPTS[id], f"{SCRIPTS[id]}.py", id.lower()):
        assert page_metric(name).id == id


def test_a_metric_without_a_gauge_is_said_to_be_one() -> None:
    absent = next((id for id in catalogue() if id not in GAUGES.targets()), None)
    if absent is not None:
        with pytest.raises(BadUsage, match="no gauge in this version"):
            load_gauge(absent)
    with pytest.raises(UnknownName, match="Did you mean 'EX1_dprime'"):
        load_gauge("EX1_dprim")
    with pytest.raises(UnknownName, match="setting of EX25"):
        load_gauge("EX25:runs=3")
    assert load_gauge("132_reproducibility:n_runs=3").n_runs == 3
    listed = list_gauges()
    here = dict(zip(listed.columns()["metric"], listed.columns()["here"], strict=True))
    assert {id for id, is_here in here.items() if is_here == "yes"} == set(all_gauges())


def test_a_missing_input_is_named_with_its_option() -> None:
    with pytest.raises(BadUsage, match=r"EX1 needs .*--model.*--task.*--circuit"):
        measure("EX1")
    with pytest.raises(BadUsage, match=r"--circuit\) or a sparse"):
        measure("EX24", pairs=[])
    with pytest.raises(UnknownName, match="input"):
        missing_inputs(["modell"], ("model",))


def test_an_input_is_made_once_and_only_when_asked_for() -> None:
    made: list[int] = []

    def rankings() -> dict[str, int]:
        made.append(1)
        return {"a": 1, "b": 2}

    inputs = GaugeInputs(rankings=rankings)
    assert inputs.has("rankings") and not inputs.has("circuit|sae") and made == []
    assert inputs.rankings == inputs.rankings == {"a": 1, "b": 2} and made == [1]
    with pytest.raises(BadUsage, match="which is missing"):
        inputs.circuit  # noqa: B018


# --- undefined is never a pass


def test_a_quantity_is_finite_or_has_a_reason() -> None:
    assert quantity(math.nan, reason="why").value is None
    assert quantity(math.inf, reason="why").reason == "why"
    with pytest.raises(BadUsage, match="reason"):
        Quantity(None)
    with pytest.raises(BadUsage, match="finite"):
        Quantity(math.nan)


def test_undefined_neither_passes_nor_fails() -> None:
    above = Condition("x", ">", 1.0), Condition("y", "<", 1.0)
    none, two = Quantity(None, reason="r"), Quantity(2.0)
    assert Variant("page", {"x": none, "y": Quantity(0.0)}, above).passed is None
    assert Variant("page", {"x": two, "y": Quantity(0.0)}, above).passed is True
    assert Variant("page", {"x": none, "y": two}, above).passed is False
    assert Variant("page", {"x": two}).passed is None
    with pytest.raises(BadUsage, match="no quantity"):
        Variant("page", {"x": two}, above)


@pytest.mark.parametrize(("sign", "holds"), [("<", False), (">", False), ("=", True)])
def test_thresholds_are_strict(sign: str, holds: bool) -> None:
    assert Condition("x", sign, 1.0).holds(1.0) is holds
    assert Condition("x", sign, 1.0).holds(None) is None
    assert Condition("x", sign, 1.0).holds(math.nan) is None


# --- how often thresholds err


def test_rates_are_those_of_the_simulated_values() -> None:
    def draw(rng: np.random.Generator, size: int) -> dict[str, dict[str, np.ndarray]]:
        x = np.arange(size, dtype=float)
        return {"page": {"x": x, "y": np.full(size, np.nan)}, "repaired": {}}

    conditions = {"page": (Condition("x", "<", 3.0), Condition("y", "<", 3.0)), "repaired": ()}
    table = simulate([Scenario("s", True, draw)], conditions, 5, n_simulations=10)
    assert table.false_alarm("page", conditions["page"][0]) == 0.3
    # What is undefined does not pass.
    assert table.false_alarm("page", conditions["page"][1]) == table.false_alarm("page") == 0
    assert math.isnan(table.power("page"))
    assert {row.condition for row in table} == {"x < 3", "y < 3", ALL}


@pytest.mark.few(4)
@pytest.mark.parametrize("id", sorted(GAUGES.built_in))
def test_every_gauge_knows_how_often_its_thresholds_err(id: str) -> None:
    table = null_table(id, n_simulations=20)
    gauge = load_gauge(id)
    assert gauge.id == id and page_metric(id).id == id
    for variant in ("page", "repaired"):
        # A variant that decides nothing has no rates.
        if any(row.variant == variant for row in table):
            assert 0 <= table.false_alarm(variant) <= 1 and 0 <= table.power(variant) <= 1
    assert len(list(table)) > 0
    said = {row.condition for row in table if row.variant == "page"}
    # A metric that only reports has the errors of what it decides on the way.
    wanted = set(map(str, page_metric(id).conditions))
    assert said == wanted | {ALL} if wanted else said in (set(), {ALL}) or said > {ALL}


def test_a_rate_needs_a_simulation() -> None:
    with pytest.raises(BadUsage, match="one simulation"):
        null_table("EX1", n_simulations=0)


# --- records


def test_a_measurement_is_a_record() -> None:
    page = {key: Quantity(1.5) for key in page_metric("EX1").keys}
    page["dprime"] = Quantity(None, reason="rates are 1")
    repaired, flags = {"ceiling": Quantity(1.0)}, [Flag("odd", "It is odd.")]
    found = Measurement.of("EX1", page, repaired, flags=flags)
    assert found.passed is None and found.page.passed is None and found.flagged("odd")
    made = provenance(device="cpu", dtype="float32", seed=0)
    record = found.record({"model": Spec(name="m"), "task": Spec(name="t")}, made, cell={})
    check_record(record)
    assert "EX1: It is odd." in record.warnings
    assert record.measure("ceiling").criterion == "mv-27@1:M4"
    assert record.measure("dprime", "page").n_undefined == 1
    assert record.measure("dprime", "page").criterion == ""
    held = {row["condition"]: row["holds"] for row in record.table("conditions").rows()}
    assert held == {"dprime > 1": "undefined", "auc > 0.7": "yes"}
    assert "EX1" in repr(found) and "d-prime" in found._repr_html_()
    assert found.columns()["reason"].count("rates are 1") == 1


def test_criteria_are_those_of_the_rubric() -> None:
    """Measurement stands below claims, so it has names of its own; they must be the same."""
    rubric = ma.claims.load_rubric(RUBRIC)
    for code, name in CRITERIA.items():
        assert rubric.criterion(code).name == name
