import numpy as np

from mechassay.circuits import Circuit
from mechassay.testing import check_gauge, check_metric, tiny
from my_metric.late_edges import LateEdges, late
from my_metric.sign_agreement import SignAgreement, rates, sign_agreement

GROUPS = [str(i) for i in range(40)]
MODEL = np.where(np.arange(40) % 4 > 0, 1.0, -1.0)


def test_late_edges_is_a_metric() -> None:
    check_metric(LateEdges())


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
    assert same.flagged("one_sided"), "a constant answer agrees, and the result says so"


def test_the_threshold_can_be_trusted() -> None:
    null = rates(40)
    assert null.false_alarm("repaired") < 0.05 and null.power("repaired") > 0.8
