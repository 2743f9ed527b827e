import numpy as np
import pytest

from mechassay.circuits import Circuit
from mechassay.errors import BadUsage
from mechassay.testing import check_gauge, check_metric, tiny
from my_metric.late_edges import LateEdges, late
from my_metric.sign_agreement import SignAgreement, rates, sign_agreement

GROUPS = [str(i) for i in range(40)]
MODEL = np.where(np.arange(40) % 4 > 0, 1.0, -1.0)


def test_late_edges_is_a_metric() -> None:
    check_metric(LateEdges())


def test_a_size_is_a_fraction_or_a_number_of_edges() -> None:
    check_metric(LateEdges(size=30.0))
    with pytest.raises(BadUsage, match="late-edges needs size above 0"):
        LateEdges(size=0.0)


def test_the_fraction_by_hand() -> None:
    graph = tiny.subject("gpt2").model.graph
    names = ["input->a0.h0<q>", f"m{graph.n_layers - 1}->logits"]
    assert late(Circuit.from_names(graph, names)) == 0.5


def test_sign_agreement_is_a_gauge() -> None:
    subject = tiny.subject("gpt2")
    circuit = Circuit.full(subject.model.graph)
    check_gauge(SignAgreement(), model=subject.model, pairs=subject.batch, circuit=circuit)


def test_a_perfect_a_worthless_and_a_deceptive_circuit() -> None:
    assert sign_agreement(MODEL, MODEL / 2, GROUPS).passed
    assert not sign_agreement(MODEL, np.random.default_rng(0).standard_normal(40), GROUPS).passed
    same = sign_agreement(np.ones(40), np.ones(40), GROUPS)
    assert same.passed is None, "a circuit with a constant answer would agree"
    low = same.repaired.quantities["agreement_low"]
    assert low.value is None and low.reason.startswith("the model has the same sign")


def test_few_groups_are_flagged() -> None:
    assert sign_agreement(MODEL, MODEL, [str(i % 5) for i in range(40)]).flagged("few_groups")
    assert not sign_agreement(MODEL, MODEL, GROUPS).flagged("few_groups")


def test_the_threshold_can_be_trusted() -> None:
    null = rates(40)
    assert null.false_alarm("repaired") < 0.05 and null.power("repaired") > 0.8
