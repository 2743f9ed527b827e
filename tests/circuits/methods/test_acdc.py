"""ACDC against the algorithm written plainly, one evaluation a decision,
and facts that hold for any model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from mechassay.circuits import Circuit, ablate
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.evaluation.metrics import recovery_of
from mechassay.circuits.methods import acdc
from mechassay.circuits.methods.acdc import ACDC, DECISION, ACDCTop, removal_order
from mechassay.circuits.methods.eap import EAPIGInputs
from mechassay.errors import BadUsage, NonFinite, UnknownName
from mechassay.models import memory
from mechassay.models.graph import Graph
from mechassay.models.model import Model, make_model
from mechassay.models.objectives import Objective
from mechassay.prompts.batch import Batch
from mechassay.testing.checks import check_method
from mechassay.testing.tiny import Subject, configs, subject
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT, Advance


@cache
def small(family: str, heads: int = 1, seed: int = 0) -> Subject:
    """Two layers of one head (23 edges) or two (46), and the pairs of `tiny.subject`."""
    smaller = {
        "gpt2": {"n_layer": 2, "n_head": heads},
        "gemma2": {
            "num_hidden_layers": 2,
            "num_attention_heads": heads,
            "num_key_value_heads": 1,
            "layer_types": None,
        },
        "neox": {"num_hidden_layers": 2, "num_attention_heads": heads},
    }
    config = configs()[family]
    config = type(config)(**{**config.to_diff_dict(), **smaller[family]})
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager"
        ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            centre = (
                1.0
                if parameter.ndim == 1 and path.endswith("weight") and family != "gemma2"
                else 0.0
            )
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator) + centre)
    return Subject(
        make_model(model.requires_grad_(False)), subject("gpt2", n_pairs=2, seed=seed).batch
    )


@cache
def plainly(
    case: Subject,
    threshold: float,
    *,
    absolute: bool = False,
    objective: str = "kl",
    start: Circuit | None = None,
) -> tuple[Tensor, list[float], float]:
    """Algorithm 1 on the edges of a circuit, one evaluation a decision:
    edges, changes in order, final loss.
    """
    graph = case.model.graph
    sign = -1.0 if objective == "logit_diff" else 1.0

    def loss(edges: Tensor) -> float:
        return float(
            (
                sign
                * evaluate(
                    case.model, Circuit(graph, edges), case.batch, objective, progress=SILENT
                )
            ).mean()
        )

    edges, changes = (graph.legal if start is None else start.edges).clone(), []
    now = loss(edges)
    for reader in reversed(range(graph.n_readers)):
        for writer in reversed(range(int(graph.visible[reader]))):
            if not edges[writer, reader]:
                continue
            trial = edges.clone()
            trial[writer, reader] = False
            after = loss(trial)
            changes.append(after - now)
            if (abs(after - now) if absolute else after - now) < threshold:
                edges, now = trial, after
    return edges, changes, now


def find(
    method: ACDC, model: Model, pairs: Batch, objective: str | Objective = "kl", **options: Any
) -> Circuit:
    """The edges that score 1: those that are kept."""
    scores = method.score(model, pairs, objective, **options)
    return Circuit(model.graph, scores.values == 1)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "threshold"), [("gpt2", 0.02), ("gpt2", 0.1), ("gemma2", 0.05), ("neox", 0.03)]
)
def test_decisions_are_the_sequential_ones(family: str, threshold: float) -> None:
    case = small(family, heads=2)
    edges, _, final = plainly(case, threshold)
    scores = ACDC(threshold=threshold).score(case.model, case.batch, progress=SILENT)
    assert torch.equal(scores.values == 1.0, edges)
    assert torch.equal(scores.values == 0.0, case.model.graph.legal & ~edges)
    assert scores.provenance["losses"] == pytest.approx([final], rel=1e-4, abs=1e-6)
    assert scores.provenance["kept"] == [int(edges.sum())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "compare"),
    [("kl", "absolute"), ("logit_diff", "signed"), ("logit_diff", "absolute")],
)
def test_comparisons_and_objectives(objective: str, compare: str) -> None:
    case, threshold = small("gpt2"), 0.003
    edges, _, _ = plainly(case, threshold, absolute=compare == "absolute", objective=objective)
    if objective == "logit_diff":
        assert not torch.equal(
            edges, plainly(case, threshold, absolute=compare != "absolute", objective=objective)[0]
        )
    found = find(
        ACDC(threshold=threshold, compare=compare),
        case.model,
        case.batch,
        objective,
        progress=SILENT,
    )
    assert torch.equal(found.edges, edges)


@pytest.mark.slow
def test_looking_ahead_changes_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing held, and one example a chunk:
    several removals are evaluated at once, some for nothing.
    """
    case = small("gpt2")
    monkeypatch.setattr(acdc, "HELD_SHARE", 0.0)
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    edges, changes, final = plainly.__wrapped__(case, 0.02)
    for ahead in (2, 64):
        scores = ACDC(threshold=0.02, ahead=ahead).score(case.model, case.batch, progress=SILENT)
        assert torch.equal(scores.values == 1.0, edges)
        assert scores.provenance["losses"] == pytest.approx([final], rel=1e-4, abs=1e-6)
    assert 0 < int(edges.sum()) < len(changes)


def test_runs_are_counted_and_dead_edges_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    case = small("gpt2", heads=2)
    graph = case.model.graph
    edges, _, _ = plainly(case, 0.1)
    # Edges into writers with a kept edge to something that leads to the logits.
    leads = np.append(np.zeros(graph.n_writers, dtype=bool), True)
    owner, live = graph.reader_owner.numpy(), 0
    for reader in reversed(range(graph.n_readers)):
        if leads[owner[reader]]:
            live += int(graph.visible[reader])
            leads[:-1] |= edges[:, reader].numpy()
    assert live < graph.n_edges
    provenance = ACDC(threshold=0.1).score(case.model, case.batch, progress=SILENT).provenance
    assert provenance["n_decisions"] == graph.n_edges
    assert provenance["n_runs"] > 1 + live, "some were taken to go otherwise"
    for share in (acdc.HELD_SHARE, 0.0):
        monkeypatch.setattr(acdc, "HELD_SHARE", share)
        one = ACDC(threshold=0.1, ahead=1).score(case.model, case.batch, progress=SILENT)
        assert one.provenance["n_runs"] == 1 + live


def test_the_order() -> None:
    graph = Graph(1, 2)
    names = [
        graph.edge_name(u, v)
        for u, v in zip(*(each.tolist() for each in removal_order(graph.legal)), strict=True)
    ]
    heads = [f"input->a0.h{head}<{slot}>" for slot in "vkq" for head in (1, 0)]
    assert names == [
        "m0->logits",
        "a0.h1->logits",
        "a0.h0->logits",
        "input->logits",
        "a0.h1->m0",
        "a0.h0->m0",
        "input->m0",
        *heads,
    ]
    parallel = Graph(3, 4, parallel=True)
    writers, readers = removal_order(parallel.legal)
    assert (
        len(writers)
        == parallel.n_edges
        == len(set(zip(writers.tolist(), readers.tolist(), strict=True)))
    )
    assert bool(
        parallel.legal[torch.from_numpy(writers.copy()), torch.from_numpy(readers.copy())].all()
    )


def test_ends_of_the_thresholds() -> None:
    case = small("gemma2")
    graph = case.model.graph
    assert find(ACDC(threshold=1e6), case.model, case.batch, progress=SILENT) == Circuit.empty(
        graph
    )
    assert find(
        ACDC(threshold=0.0, compare="absolute"), case.model, case.batch, progress=SILENT
    ) == Circuit.full(graph)
    found = find(ACDC(threshold=0.0), case.model, case.batch, progress=SILENT)
    _, changes, final = plainly(case, 0.0)
    kept = found.edges[removal_order(graph.legal)[0].copy(), removal_order(graph.legal)[1].copy()]
    # From a loss of 0 all changes are at least 0; rounding may make one a little less.
    assert bool(kept[torch.tensor(changes) > 1e-6].all()), "every edge whose removal hurts is kept"
    # From a loss of 0, a divergence's smallest, nothing helps: the first removal that counts is
    # refused.
    assert final >= -1e-6


def test_the_threshold_itself_is_too_much() -> None:
    case = small("gpt2")
    graph = case.model.graph
    first = plainly(case, 0.02)[1][0]
    assert first > 0
    edge = graph.index("m1->logits")
    for times, kept in ((1 - 1e-4, True), (1 + 1e-4, False)):
        found = find(ACDC(threshold=first * times), case.model, case.batch, progress=SILENT)
        assert bool(found.edges[edge]) is kept
    decisions = np.zeros(graph.n_edges, dtype=np.int8)
    walk = acdc._Walk(Circuit.full(graph), 0.5, absolute=False, decisions=decisions)
    assert walk._below(0.5 - 1e-9) and not walk._below(0.5)


@pytest.mark.parametrize("threshold", [0.002, 0.5])
def test_the_loss_is_bounded_by_the_removals(threshold: float) -> None:
    case = small("gemma2")
    graph = case.model.graph
    for compare in ("signed", "absolute"):
        scores = ACDC(threshold=threshold, compare=compare).score(
            case.model, case.batch, progress=SILENT
        )
        circuit = Circuit(graph, scores.values == 1.0)
        (final,) = scores.provenance["losses"]
        assert final <= threshold * (graph.n_edges - len(circuit))
        values = evaluate(case.model, circuit, case.batch, "kl", progress=SILENT)
        assert final == pytest.approx(values.mean(), rel=1e-4, abs=1e-6)
        # A kept edge leads to the logits.
        assert all(
            circuit.edges[:, graph.reader_owner == writer].sum() == 0 or circuit.edges[writer].any()
            for writer in range(1, graph.n_writers)
        )


def test_a_head_that_writes_nothing_goes_with_all_edges_into_it() -> None:
    case = small("gpt2", heads=2, seed=1)
    model = make_model(case.model.hf)
    with torch.no_grad():
        model.decoder.layers[1].attention.out[0] = 0.0
    graph = model.graph
    kept = find(ACDC(threshold=1e-4), model, case.batch, progress=SILENT).edges
    head = graph.head(1, 0)
    assert not bool(kept[head].any())
    assert not bool(kept[:, graph.reader_owner == head].any())
    other = graph.head(1, 1)
    assert bool(kept[other].any()) and bool(kept[:, graph.reader_owner == other].any())


def test_a_sweep_is_single_thresholds_put_together() -> None:
    case = small("gpt2")
    thresholds = (0.003, 0.5, 0.03)
    swept = ACDC(thresholds=thresholds).score(case.model, case.batch, progress=SILENT)
    expected = torch.zeros_like(swept.values)
    sizes, losses = [], []
    for threshold in sorted(thresholds):
        one = ACDC(threshold=threshold).score(case.model, case.batch, progress=SILENT)
        expected[one.values == 1.0] = threshold
        sizes, losses = one.provenance["kept"] + sizes, one.provenance["losses"] + losses
    legal = case.model.graph.legal
    assert torch.equal(swept.values[legal], expected[legal])
    assert swept.provenance["thresholds"] == [0.5, 0.03, 0.003]
    assert swept.provenance["kept"] == sizes
    assert swept.provenance["losses"] == losses
    assert swept.provenance["n_decisions"] == 3 * case.model.graph.n_edges
    assert len(set(sizes)) == 3, sizes


def test_constants_on_ablated_edges() -> None:
    case = small("gpt2")
    zeroed = Subject(case.model, ablate(case.model, case.batch, "zero", progress=SILENT))
    found = find(ACDC(threshold=0.1), zeroed.model, zeroed.batch, progress=SILENT)
    assert torch.equal(found.edges, plainly(zeroed, 0.1)[0])
    assert found != find(ACDC(threshold=0.1), case.model, case.batch, progress=SILENT)


def test_order_of_examples_is_irrelevant() -> None:
    case = small("gpt2")
    shuffled = replace(case.batch.select([1, 0]), content="shuffled")
    method = ACDC(threshold=0.1)
    assert find(method, case.model, shuffled, progress=SILENT) == find(
        method, case.model, case.batch, progress=SILENT
    )


class Interrupting:
    """Progress that is interrupted once `after` decisions are made."""

    def __init__(self, after: int) -> None:
        self.after, self.seen = after, 0

    @contextmanager
    def track(self, label: str, total: int) -> Iterator[Advance]:
        def advance(done: int) -> None:
            self.seen += done
            if self.seen >= self.after:
                raise KeyboardInterrupt

        yield advance
        assert self.seen == total


@pytest.mark.parametrize("after", [10, 30])
def test_an_interrupted_search_goes_on(after: int, tmp_path: Path) -> None:
    case, file = small("gpt2"), tmp_path / "acdc.checkpoint"
    method = ACDC(thresholds=(0.1, 0.02))
    with pytest.raises(KeyboardInterrupt):
        method.score(case.model, case.batch, progress=Interrupting(after), checkpoint=file)
    assert file.is_file()
    counting = Interrupting(10**9)
    again = method.score(case.model, case.batch, progress=counting, checkpoint=file)
    whole = method.score(case.model, case.batch, progress=SILENT)
    assert torch.equal(again.values.nan_to_num(9.0), whole.values.nan_to_num(9.0))
    assert again.provenance["losses"] == pytest.approx(whole.provenance["losses"], rel=1e-4)
    assert counting.seen == again.provenance["n_decisions"]
    # Taken up, not begun again: the losses of circuits at the break are run a second time.
    assert again.provenance["n_runs"] <= whole.provenance["n_runs"] + 10
    assert not file.exists()


@pytest.mark.few(2)
@pytest.mark.parametrize("ahead", [1, 7])
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_from_the_top_edges_the_decisions_are_the_sequential_ones(family: str, ahead: int) -> None:
    """The algorithm written plainly, from the circuit of the estimate's best edges."""
    case = small(family, heads=2)
    estimate = EAPIGInputs().score(case.model, case.batch, "kl", progress=SILENT)
    start = estimate.top(25, by="magnitude").pruned()
    edges, changes, final = plainly(case, 0.02, start=start)
    scores = ACDCTop(edges=25, threshold=0.02, ahead=ahead).score(
        case.model, case.batch, progress=SILENT
    )
    about = scores.provenance
    assert about["visited"] == len(start) == len(changes) == about["n_decisions"]
    assert torch.equal(scores.values >= 1.0, edges)
    assert 0 < about["kept"][0] < about["visited"]
    assert about["losses"] == pytest.approx([final], rel=1e-4, abs=1e-6)
    # Kept ones first, then by the estimate alone.
    values, size = scores.values, estimate.values.abs()
    legal = case.model.graph.legal
    order = torch.argsort(values[legal] - 1.0 * edges[legal])
    assert torch.equal(order, torch.argsort((size[legal] / size[legal].max()).double()))
    assert 0 <= float(values[legal & ~edges].max()) <= 0.5
    assert scores.top(about["kept"][0]) == Circuit(case.model.graph, edges)


def test_all_edges_visited_is_acdc() -> None:
    case = small("gpt2", heads=2)
    for settings in ({"threshold": 0.05}, {"thresholds": (0.1, 0.02)}):
        plain = ACDC(**settings).score(case.model, case.batch, progress=SILENT)
        other = ACDCTop(edges=10**6, **settings).score(case.model, case.batch, progress=SILENT)
        for name in ("losses", "kept", "n_decisions", "n_runs"):
            assert other.provenance[name] == plain.provenance[name]
        assert other.provenance["visited"] == case.model.graph.n_edges
        for kept in plain.provenance["kept"]:
            # Edges that ACDC ties are in an order here, and none leaves its kind.
            assert other.top(kept) == plain.top(kept)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["truth-induction", "truth-ioi", "truth-ioi-trained"])
def test_the_known_circuit_is_found_among_few_edges(name: str) -> None:
    truth = load_truth(name)
    known = truth.circuits["counterfactual"]
    pairs = truth.task.pairs("train", truth.model, limit=12)
    scores = ACDCTop(edges=4 * len(known), thresholds=(0.3, 0.03)).score(
        truth.model, pairs, truth.task.objective, progress=SILENT
    )
    assert recovery_of(scores, known, by="magnitude").auroc > 0.97


def test_what_acdc_top_costs_and_refuses() -> None:
    graph = small("gpt2").model.graph
    few, all_edges = ACDCTop(edges=9), ACDCTop(edges=10**9, thresholds=(0.1, 0.2))
    estimate = EAPIGInputs().forwards(graph, 3)
    assert few.forwards(graph, 3) == pytest.approx(estimate + 3 * (2 + DECISION * 9))
    every = 2 + 2 * DECISION * graph.n_edges
    assert all_edges.forwards(graph, 3) == pytest.approx(estimate + 3 * every)
    with pytest.raises(BadUsage, match="acdc-top: random does not estimate the effect of an edge"):
        ACDCTop(estimate="random")
    with pytest.raises(BadUsage, match="edges of at least 1; got 0"):
        ACDCTop(edges=0)


def test_contract() -> None:
    case = small("gpt2")
    check_method(ACDC(thresholds=(0.1, 0.05), compare="absolute"), case.model, case.batch)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_bad_thresholds(bad: float) -> None:
    with pytest.raises(BadUsage, match="at least 0"):
        ACDC(threshold=bad)
    with pytest.raises(BadUsage, match="above 0"):
        ACDC(thresholds=(0.1, bad))


def test_bad_settings() -> None:
    with pytest.raises(BadUsage, match="above 0"):
        ACDC(thresholds=(0.0,))
    with pytest.raises(BadUsage, match="differ"):
        ACDC(thresholds=(0.1, 0.1))
    with pytest.raises(UnknownName, match="'signed'"):
        ACDC(compare="signd")
    with pytest.raises(BadUsage, match="ahead of at least 1"):
        ACDC(ahead=0)


def test_overflow_is_named() -> None:
    case = subject("gpt2")
    with torch.no_grad():
        case.model.decoder.layers[2].attention.out[1, 0, 0] = float("inf")
    with pytest.raises(NonFinite, match="kl of example 0 is not finite"):
        find(ACDC(), case.model, case.batch, progress=SILENT)
