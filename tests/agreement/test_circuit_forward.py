"""The compiled circuit forward against the dense reference, in fp64, for every family."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from helpers.hooks_reference import ReferenceModel, exact_precision
from helpers.models import USUAL, families
from mechassay.circuits.circuit import Circuit
from mechassay.models.circuit_compiler import compile_circuit
from mechassay.models.circuit_forward import run_circuit
from mechassay.models.forward import Contrast
from mechassay.testing.tiny import Subject, subject

DENSITIES = (0.02, 0.06, 0.15, 0.4, 0.7, 0.95)


@dataclass(frozen=True)
class Case:
    """A family's logits for many circuits, by the compiled forward and by the reference."""

    subject: Subject
    masks: dict[str, Tensor]
    neurons: dict[str, Tensor | None]
    fast: dict[str, Tensor]
    slow: dict[str, Tensor]


@pytest.fixture(scope="module", params=families(quick=USUAL))
def case(request: pytest.FixtureRequest) -> Case:
    tiny = subject(request.param, dtype=torch.float64)
    model, batch = tiny.model, tiny.batch
    masks = {**random_masks(tiny), **special_masks(tiny)}
    neurons: dict[str, Tensor | None] = dict.fromkeys(masks)
    for name, (mask, kept) in mixed_masks(tiny, masks).items():
        masks[name], neurons[name] = mask, kept
    contrast = Contrast.run(model.decoder, batch)
    fast = {}
    for name, mask in masks.items():
        plan = compile_circuit(
            model.graph, mask, neurons[name], post_norm=model.decoder.has_post_norm
        )
        fast[name] = run_circuit(model.decoder, contrast, plan).all()
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, model.graph)
        recorded = reference.record(batch.counterfactual, batch.mask)
        slow = {
            name: reference.run(
                batch.clean,
                batch.mask,
                recorded,
                mask.double(),
                neurons=None if kept is None else kept.double(),
            )
            for (name, mask), kept in zip(masks.items(), neurons.values(), strict=True)
        }
    return Case(tiny, masks, neurons, fast, slow)


def random_masks(tiny: Subject) -> dict[str, Tensor]:
    graph, generator = tiny.model.graph, torch.Generator().manual_seed(3)
    return {
        f"random {p}": (torch.rand(graph.legal.shape, generator=generator) < p) & graph.legal
        for p in DENSITIES
    }


def special_masks(tiny: Subject) -> dict[str, Tensor]:
    graph = tiny.model.graph

    def edges(*names: str) -> Tensor:
        return Circuit.from_names(graph, list(names)).edges

    all_but_one, heads_only = graph.legal.clone(), graph.legal.clone()
    all_but_one[graph.index("a1.h0->a2.h3<q>")] = False
    heads_only[:, [graph.mlp_reader(layer) for layer in range(graph.n_layers)]] = False
    return {
        "empty": torch.zeros_like(graph.legal),
        "full": graph.legal,
        "one edge": edges("input->logits"),
        "disconnected": edges("a0.h1->m1", "m1->a2.h0<k>"),
        "chain": edges("input->a0.h2<v>", "a0.h2->a1.h1<k>", "a1.h1->m2", "m2->logits"),
        "all but one": all_but_one,
        "heads only": heads_only,
    }


def mixed_masks(tiny: Subject, masks: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Edges, and the neurons that they carry: some of each writer;
    some writers whole, some out; all but one neuron.
    """
    graph, d_model, generator = (
        tiny.model.graph,
        tiny.model.decoder.d_model,
        torch.Generator().manual_seed(4),
    )
    some = torch.rand(graph.n_writers, d_model, generator=generator) < 0.5
    kinds = torch.randint(0, 3, (graph.n_writers, 1), generator=generator)
    kinds[0] = 1
    sorts = (kinds == 1) | ((kinds == 2) & some)
    late = torch.ones_like(some)
    late[graph.mlp_writer(1), 5] = False
    return {
        "neurons 0.15": (masks["random 0.15"], some),
        "neurons 0.7": (masks["random 0.7"], some),
        "neurons chain": (masks["chain"], some),
        "neurons full": (graph.legal, some),
        "mixed 0.4": (masks["random 0.4"], sorts),
        "mixed 0.95": (masks["random 0.95"], sorts),
        "all but one neuron": (graph.legal, late),
        "all neurons": (masks["random 0.4"], torch.ones_like(some)),
        "no neurons": (graph.legal, torch.zeros_like(some)),
    }


@pytest.mark.few(3)
def test_compiled_equals_reference(case: Case) -> None:
    for name, slow in case.slow.items():
        torch.testing.assert_close(
            case.fast[name], slow, rtol=0, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_empty_is_the_counterfactual_run_and_full_the_clean_run(case: Case) -> None:
    model, batch = case.subject.model, case.subject.batch
    with exact_precision(model.hf), torch.no_grad():
        ctx = model.decoder.context(batch.mask)
        for name, tokens in (
            ("empty", batch.counterfactual),
            ("disconnected", batch.counterfactual),
            ("no neurons", batch.counterfactual),
            ("full", batch.clean),
        ):
            original = model.hf(
                tokens,
                attention_mask=batch.mask.long(),
                position_ids=ctx.position_ids,
                use_cache=False,
            ).logits[:, -1]
            torch.testing.assert_close(case.fast[name], original, rtol=0, atol=1e-9)


def test_circuits_differ_from_each_other(case: Case) -> None:
    """The agreement above would be empty if circuits made no difference."""
    names = (
        "empty",
        "full",
        "chain",
        "random 0.4",
        "random 0.7",
        "random 0.95",
        "neurons 0.7",
        "mixed 0.4",
        "all but one neuron",
    )
    first = [float(case.fast[name][0, 0]) for name in names]
    assert min(abs(a - b) for i, a in enumerate(first) for b in first[:i]) > 1e-6


def test_all_neurons_are_whole_writers(case: Case) -> None:
    assert torch.equal(case.fast["all neurons"], case.fast["random 0.4"])


def test_only_live_nodes_are_compiled(case: Case) -> None:
    graph, post_norm = case.subject.model.graph, case.subject.model.decoder.has_post_norm
    plan = compile_circuit(graph, case.masks["chain"], post_norm=post_norm)
    assert (plan.n_live_heads, plan.n_live_mlps) == (2, 1)
    assert compile_circuit(graph, graph.legal, post_norm=post_norm).final is None
    assert (
        compile_circuit(graph, graph.legal, case.neurons["no neurons"], post_norm=post_norm).rows[1]
        == 0
    )
    # Up to the MLP with a neuron out everything comes from the clean run.
    late = compile_circuit(
        graph, graph.legal, case.neurons["all but one neuron"], post_norm=post_norm
    )
    assert (late.n_live_heads, late.n_live_mlps) == (graph.n_heads, 1)
    assert compile_circuit(graph, case.masks["disconnected"], post_norm=post_norm).rows[1] == 0
