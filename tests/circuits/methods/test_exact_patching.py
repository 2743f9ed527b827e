"""Exact node patching: against circuits without one node's edges,
single edges, and what it does with constants.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from mechassay.circuits import (
    EAP,
    METHODS,
    Circuit,
    EAPIGInputs,
    EdgeScores,
    ExactNodePatching,
    ExactPatching,
    ExactTop,
    ablate,
    evaluate,
)
from mechassay.circuits.evaluation.metrics import recovery_of
from mechassay.circuits.methods.method import ScoreInputs
from mechassay.errors import BadUsage, NonFinite, UnknownName
from mechassay.models.forward import constants_of, trace
from mechassay.models.objectives import load_objective
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import Subject, subject
from mechassay.truth.ground_truth import load_truth
from mechassay.utils import checkpoint
from mechassay.utils.display import SILENT


@pytest.fixture(scope="module", params=["gpt2", "neox", "llama", "gemma2", "gemma3"])
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, torch.float64)


def effects(
    case: Subject,
    batch: Batch,
    method: ExactNodePatching,
    objective: str = "logit_diff",
    stack: int = 40,
) -> Tensor:
    """The scores in fp64, from blocks that split a layer's heads."""
    inputs = ScoreInputs(case.model, batch, load_objective(objective), SILENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactNodePatching, "stack_tokens", stack)
        return method.effects(inputs)[0]


def without(
    case: Subject, batch: Batch, removed: list[Tensor], objective: str = "logit_diff"
) -> Tensor:
    """The drop of the objective from the full circuit to that without some edges."""
    graph = case.model.graph
    circuits = [Circuit.full(graph), *(Circuit(graph, graph.legal & ~edges) for edges in removed)]
    values = evaluate(case.model, circuits, batch, objective, progress=SILENT).mean(1)
    drops = torch.from_numpy(values[0] - values[1:])
    return drops if load_objective(objective).direction == "up" else -drops


def rows(case: Subject) -> list[Tensor]:
    """All edges out of each writer."""
    graph = case.model.graph
    return [
        torch.zeros_like(graph.legal).index_fill(0, torch.tensor([u]), True)
        for u in range(graph.n_writers)
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize("objective", ["logit_diff", "kl"])
def test_a_node_is_worth_what_the_full_circuit_loses_with_its_edges(
    case: Subject, objective: str
) -> None:
    found = effects(case, case.batch, ExactNodePatching(), objective)
    torch.testing.assert_close(
        found, without(case, case.batch, rows(case), objective), rtol=0, atol=1e-9
    )
    assert float(found.abs().min()) > 0


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", ["zero", "mean", "positional-mean", "resample"])
def test_with_every_ablation(case: Subject, kind: str) -> None:
    batch = ablate(case.model, case.batch.select([1, 2]), kind, progress=SILENT)
    found, expected = effects(case, batch, ExactNodePatching()), without(case, batch, rows(case))
    torch.testing.assert_close(found[1:], expected[1:], rtol=0, atol=1e-9)
    if constants_of(batch) is None:
        assert float(found[0]) == pytest.approx(float(expected[0]), abs=1e-9)
        return
    # Constants: the model is run on that of the input, and the other nodes compute what they make
    # of it.
    decoder, chosen = case.model.decoder, load_objective("logit_diff")
    ctx = decoder.context(batch.mask)
    on_constant = chosen(
        trace(decoder, constants_of(batch).embed_at(ctx.position_ids), ctx).readout(decoder), batch
    ).mean()
    full = evaluate(case.model, Circuit.full(case.model.graph), batch, progress=SILENT).mean()
    assert float(found[0]) == pytest.approx(float(full - on_constant), abs=1e-9)


@pytest.mark.few(2)
def test_direct_effects_are_those_of_the_edges_to_the_logits(case: Subject) -> None:
    graph = case.model.graph
    edges = [row & (torch.arange(graph.n_readers) == graph.logits) for row in rows(case)]
    found = effects(case, case.batch, ExactNodePatching(paths="direct"))
    torch.testing.assert_close(found, without(case, case.batch, edges), rtol=0, atol=1e-9)
    exact = (
        ExactPatching(layers=(-1,))
        .score(case.model, case.batch, progress=SILENT)
        .values[:, graph.logits]
    )
    scores = ExactNodePatching(paths="direct").score(case.model, case.batch, progress=SILENT)
    torch.testing.assert_close(scores.values, exact, rtol=1e-6, atol=1e-7)
    # What the last MLP writes is read by nothing else.
    last = graph.mlp_writer(graph.n_layers - 1)
    assert float(effects(case, case.batch, ExactNodePatching())[last]) == pytest.approx(
        float(found[last]), abs=1e-12
    )


@pytest.mark.few(2)
def test_blocks_chunks_and_order_do_not_change_scores(case: Subject) -> None:
    whole = effects(case, case.batch, ExactNodePatching(), stack=4096)
    torch.testing.assert_close(
        effects(case, case.batch, ExactNodePatching(), stack=7), whole, rtol=0, atol=1e-9
    )
    torch.testing.assert_close(
        effects(case, case.batch.select([2, 0, 1]), ExactNodePatching()), whole, rtol=0, atol=1e-9
    )
    score = ExactNodePatching().score(case.model, case.batch, progress=SILENT)
    torch.testing.assert_close(score.values, whole.float(), rtol=1e-6, atol=1e-7)
    assert score.provenance["settings"] == {"paths": "all"}


def test_attention_only_models() -> None:
    from dataclasses import replace

    tiny = subject("gpt2", torch.float64)
    decoder = replace(
        tiny.model.decoder,
        layers=tuple(replace(layer, mlp=None) for layer in tiny.model.decoder.layers),
    )
    bare = Subject(replace(tiny.model, decoder=decoder), tiny.batch)
    torch.testing.assert_close(
        effects(bare, bare.batch, ExactNodePatching()),
        without(bare, bare.batch, rows(bare)),
        rtol=0,
        atol=1e-9,
    )


@pytest.mark.few(5)
@pytest.mark.parametrize("edges", [1, 20, 10**6])
def test_the_top_edges_are_exact_and_all_others_estimated(case: Subject, edges: int) -> None:
    model, batch, legal = case.model, case.batch, case.model.graph.legal
    exact = ExactPatching().score(model, batch, progress=SILENT)
    estimate = EAPIGInputs().score(model, batch, progress=SILENT)
    n = min(edges, model.graph.n_edges)
    top = estimate.top(n, by="magnitude").edges
    scores = ExactTop(edges=edges).score(model, batch, progress=SILENT)
    assert int(top.sum()) == n == scores.provenance["patched"]
    torch.testing.assert_close(scores.values[top], exact.values[top], rtol=1e-5, atol=1e-6)
    assert torch.equal(scores.values[legal & ~top], estimate.values[legal & ~top])


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("estimate", "second"), [("eap", EAPIGInputs()), ("clean-corrupted", EAP())]
)
def test_undecided_edges_are_exact_and_all_others_estimated(
    case: Subject, estimate: str, second: EAP | EAPIGInputs
) -> None:
    """The rule written plainly, edge by edge."""
    model, batch, legal, n = case.model, case.batch, case.model.graph.legal, 25
    exact = ExactPatching().score(model, batch, progress=SILENT)
    first = METHODS.make(estimate).score(model, batch, progress=SILENT)
    other = second.score(model, batch, progress=SILENT)
    cut = sorted(abs(first[name]) for name in Circuit.full(model.graph).names())[-n]

    def clear(name: str) -> float:
        away, doubt = abs(abs(first[name]) - cut), abs(first[name] - other[name])
        return away / doubt if doubt else float("inf")

    names = sorted(Circuit.full(model.graph).names(), key=clear)[:n]
    undecided = Circuit.from_names(model.graph, names).edges
    scores = ExactTop(edges=n, estimate=estimate, choose="undecided").score(
        model, batch, progress=SILENT
    )
    assert scores.provenance["patched"] == n
    assert not torch.equal(undecided, first.top(n, by="magnitude").edges)
    torch.testing.assert_close(
        scores.values[undecided], exact.values[undecided], rtol=1e-5, atol=1e-6
    )
    assert torch.equal(scores.values[legal & ~undecided], first.values[legal & ~undecided])


@pytest.mark.parametrize("choose", ["top", "undecided"])
def test_where_a_gradient_vanishes_the_other_estimate_says_what_to_patch(
    choose: Literal["top", "undecided"],
) -> None:
    """In `truth-ioi` attention is saturated: its gradients miss a third of the circuit."""
    truth = load_truth("truth-ioi")
    known = truth.circuits["counterfactual"]
    pairs = truth.task.pairs("train", truth.model, limit=20)
    method = ExactTop(edges=len(known), estimate="eap", choose=choose)
    scores = method.score(truth.model, pairs, truth.task.objective, progress=SILENT)
    share = recovery_of(scores, known, by="magnitude").r_precision
    assert share == pytest.approx(1.0 if choose == "undecided" else 6 / 9)


def test_a_resumed_run_with_other_edges_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An estimate whose last bits differ may choose another edge, which was not patched yet."""
    case = subject("gpt2", torch.float64)
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    method, kept, calls = ExactTop(edges=12, estimate="eap"), tmp_path / "kept", []
    plain, add = ExactPatching().score(case.model, case.batch, progress=SILENT), ExactTop.add

    def killed(self: ExactTop, *args: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        add(self, *args)

    monkeypatch.setattr(ExactTop, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        method.score(case.model, case.batch, progress=SILENT, checkpoint=kept)
    assert kept.is_file()
    score = EAP.score

    def reversed_estimate(self: EAP, *args: Any, **options: Any) -> EdgeScores:
        scores = score(self, *args, **options)
        return replace(scores, values=1 / (scores.values.abs() + 1e-3))

    monkeypatch.setattr(EAP, "score", reversed_estimate)
    other = method.score(case.model, case.batch, progress=SILENT, checkpoint=kept)
    top = EAP().score(case.model, case.batch, progress=SILENT).top(12, by="magnitude").edges
    torch.testing.assert_close(other.values[top], plain.values[top], rtol=1e-5, atol=1e-6)


def test_one_layer_is_typed_as_a_number() -> None:
    assert METHODS.make("exact:layers=-1") == ExactPatching(layers=(-1,))
    assert METHODS.make("exact:layers=(0,-1)").layers == (0, -1)


def test_what_exact_top_costs_and_refuses() -> None:
    case = subject("gpt2")
    graph = case.model.graph
    every = ExactTop(edges=10**9).forwards(graph, 3)
    assert every == EAPIGInputs().forwards(graph, 3) + 3 * (2 + 0.26 * graph.n_edges)
    few = ExactTop(edges=9, estimate="eap").forwards(graph, 3)
    assert few < every
    both = ExactTop(edges=9, estimate="eap", choose="undecided")
    assert both.forwards(graph, 3) == few + EAPIGInputs().forwards(graph, 3)
    assert [method.name for method in both.inner()] == ["eap", "eap-ig-inputs"]
    with pytest.raises(UnknownName, match="'undecided'"):
        ExactTop(choose="undecidd")  # pyright: ignore[reportArgumentType]
    for name in ("ifr", "nap", "random"):
        with pytest.raises(BadUsage, match=f"{name} does not estimate the effect of an edge"):
            ExactTop(estimate=name)
    with pytest.raises(BadUsage, match="eap:backward=auto is chosen on validation pairs"):
        ExactTop(estimate="eap:backward=auto")
    with pytest.raises(BadUsage, match="edges of at least 1; got 0"):
        ExactTop(edges=0)


def test_what_is_refused() -> None:
    with pytest.raises(UnknownName, match="direct"):
        ExactNodePatching(paths="dirct")  # pyright: ignore[reportArgumentType]
    tiny = subject("gpt2")
    with torch.no_grad():
        tiny.model.decoder.layers[1].attention.out[0] = float("nan")
    with pytest.raises(NonFinite, match="16 of 16 node scores are not finite"):
        ExactNodePatching().score(tiny.model, tiny.batch, progress=SILENT)
    assert np.isfinite(ExactNodePatching(paths="direct").forwards(tiny.model.graph, 3))
