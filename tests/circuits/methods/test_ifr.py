"""Information flow routes: the public code's numbers, a slow definition,
and what must not change them.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from helpers.hooks_reference import Recording, ReferenceModel, exact_precision
from helpers.tiny_models import quiet_model
from mechassay.circuits.methods.ifr import InformationFlowRoutes, _Shares, normed_share, proximities
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import NonFinite
from mechassay.models import memory
from mechassay.models.decoder import Norm
from mechassay.models.graph import Graph
from mechassay.models.model import Model, make_model
from mechassay.prompts.batch import Batch
from mechassay.testing.checks import check_method
from mechassay.testing.tiny import Subject, subject

GOLDEN = Path(__file__).parents[2] / "golden"


def score(case: Subject, batch: Batch | None = None) -> EdgeScores:
    return InformationFlowRoutes().score(case.model, case.batch if batch is None else batch)


def test_scores_of_the_public_code() -> None:
    golden: dict[str, Any] = json.loads((GOLDEN / "gpt2_tiny.json").read_text(encoding="utf-8"))
    hf = quiet_model(GPT2LMHeadModel, GPT2Config(**golden["config"]))
    hf.load_state_dict(load_file(GOLDEN / "gpt2_tiny.safetensors"))
    labels = torch.tensor(golden["labels"])
    scores = InformationFlowRoutes().score(
        make_model(hf),
        Batch.from_tokens(golden["clean"], golden["corrupted"], labels[:, 0], labels[:, 1]),
    )
    ours = torch.stack([scores.values[scores.graph.index(edge)] for edge in golden["edges"]])
    torch.testing.assert_close(ours, torch.tensor(golden["scores"]["ifr"]), rtol=1e-4, atol=1e-6)


def slowly(model: Model, batch: Batch) -> np.ndarray:
    """Every reader, writer, example and position by itself,
    from what hooks on the original model recorded.
    """
    graph = model.graph
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, graph)
        recorded = reference.record(batch.clean, batch.mask)
        written = _as_added(reference, recorded)
    result = np.full((graph.n_writers, graph.n_readers), np.nan)
    for reader in range(graph.n_readers):
        layer, place = divmod(reader, graph.readers_per_layer)
        at = (
            recorded.final
            if reader == graph.logits
            else (recorded.before if place < 3 * graph.n_heads else recorded.middle)[layer]
        )
        seen = int(graph.visible[reader])
        examples: list[np.ndarray] = []
        for row, length in enumerate(batch.lengths.tolist()):
            positions: list[np.ndarray] = []
            for column in range(batch.n_tokens - length, batch.n_tokens):
                stream = at[row, column].numpy()
                near = np.zeros(seen)
                for writer in range(seen):
                    rest = stream - written[writer, row, column].numpy()
                    near[writer] = max(np.abs(stream).sum() - np.abs(rest).sum(), 0.0)
                if near.sum() > 0:
                    positions.append(near / near.sum())
            if positions:
                examples.append(np.mean(positions, axis=0))
        if examples:
            result[:seen, reader] = np.mean(examples, axis=0)
    return result


def _as_added(reference: ReferenceModel, recorded: Recording) -> Tensor:
    """What writers added to the stream:
    heads behind a post-norm as the parts that sum to its output.
    """
    graph, path = reference.graph, reference.layout.post_attention
    if path is None:
        return recorded.writers
    added = recorded.writers.clone()
    for layer in range(graph.n_layers):
        post, total = reference.part(layer, path), recorded.attended[layer]
        # The ratio of the norm's output and its input, dimension by dimension.
        added[graph.heads(layer)] *= post(total) / total
    return added


@pytest.mark.parametrize("family", ["gpt2", "neox", "qwen2", "gemma2"])
def test_agrees_with_the_definition(family: str) -> None:
    case = subject(family, dtype=torch.float64)
    sums = _exact(case)
    np.testing.assert_allclose(sums, slowly(case.model, case.batch), rtol=1e-9, atol=1e-9)


def _exact(case: Subject) -> np.ndarray:
    """The method's sums before they are rounded to the fp32 of stored scores."""
    graph, sums = case.model.graph, _Shares.zeros(case.model)
    with torch.no_grad():
        sums.add(case.model, case.batch)
    values = torch.full((graph.n_writers, graph.n_readers), float("nan"), dtype=torch.float64)
    for stage, readers in enumerate(graph.stages()):
        values[:, readers] = (sums.shares[stage] / sums.examples[stage])[:, None]
    found = torch.where(graph.legal, values, float("nan"))
    stored = score(case).values
    torch.testing.assert_close(stored, found.float(), equal_nan=True, rtol=1e-6, atol=1e-7)
    return found.numpy()


@pytest.mark.parametrize("family", ["gpt2", "neox", "gemma3"])
def test_contract(family: str) -> None:
    case = subject(family)
    check_method(InformationFlowRoutes(), case.model, case.batch)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_shares_of_a_reader_sum_to_one(family: str) -> None:
    values = score(subject(family)).values
    assert float(values.nan_to_num(0.0).min()) >= 0
    torch.testing.assert_close(values.nansum(0), torch.ones(values.shape[1]), rtol=0, atol=1e-5)


def test_a_layer_has_one_column_for_all_heads() -> None:
    case = subject("llama")
    values, graph = score(case).values, case.model.graph
    for layer in range(graph.n_layers):
        columns = values[: graph.seen_by_heads(layer), graph.slots(layer)]
        assert torch.equal(columns, columns[:, :1].expand_as(columns))
    assert not torch.equal(values[:1, graph.slots(1)], values[:1, graph.slots(2)])


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_padding_and_chunks_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = subject(family)
    values = score(case).values
    alone = [score(case, case.batch.select([row])).values for row in range(len(case.batch))]
    torch.testing.assert_close(
        torch.stack(alone).mean(0), values, equal_nan=True, rtol=1e-5, atol=1e-6
    )
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    torch.testing.assert_close(score(case).values, values, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_counterfactuals_and_objective_change_nothing() -> None:
    case = subject("llama")
    other = replace(
        case.batch,
        counterfactual=case.batch.counterfactual.flip(0),
        answers=case.batch.foils,
        foils=case.batch.answers,
    )
    again = InformationFlowRoutes().score(case.model, other, "accuracy")
    assert torch.equal(again.values.nan_to_num(9.0), score(case).values.nan_to_num(9.0))


def test_scale_of_the_stream_changes_nothing() -> None:
    """A model whose writers all write four times as much, and whose norms take that out again."""
    case = subject("llama", dtype=torch.float64)
    decoder = case.model.decoder

    def wider(norm: Norm) -> Norm:
        return replace(norm, eps=norm.eps * 16)

    layers = []
    for layer in decoder.layers:
        assert layer.mlp is not None
        attention = replace(
            layer.attention, norm=wider(layer.attention.norm), out=layer.attention.out * 4
        )
        layers.append(
            replace(
                layer,
                attention=attention,
                mlp=replace(layer.mlp, norm=wider(layer.mlp.norm), down=layer.mlp.down * 4),
            )
        )
    scaled = replace(
        decoder,
        embedding=decoder.embedding * 4,
        layers=tuple(layers),
        final_norm=wider(decoder.final_norm),
    )
    model = replace(case.model, decoder=scaled)
    taken, plain = model.run(case.batch)[0].final, case.model.run(case.batch)[0].final
    torch.testing.assert_close(taken, 4 * plain)
    torch.testing.assert_close(
        score(Subject(model, case.batch)).values,
        score(case).values,
        equal_nan=True,
        rtol=1e-6,
        atol=1e-9,
    )


def test_proximities_worked_by_hand() -> None:
    """One layer of one head: input (2, 0), head (1, -1), MLP (-1, 1); constants (0, 0.5)."""
    graph = Graph(1, 1)
    embed, head, mlp = (torch.tensor([[pair]]) for pair in ([2.0, 0.0], [1.0, -1.0], [-1.0, 1.0]))
    before = embed + torch.tensor([0.0, 0.5])
    streams = torch.cat(
        [before, before + head, before + head + mlp], dim=1
    )  # (2, .5), (3, -.5), (2, .5)
    near = proximities(
        streams, [(slice(0, 1), embed), (slice(1, 2), head), (slice(2, 3), mlp)], graph
    )
    # Heads: |2| + |.5| - |.5| = 2. MLP: 3.5 - 1.5 = 2 and 3.5 - 2.5 = 1. Logits: 2.5 - .5 = 2, 2.5
    # - 2.5 = 0, 2.5 - 3.5 < 0.
    assert near.tolist() == [[[2.0, 0.0, 0.0], [2.0, 1.0, 0.0], [2.0, 0.0, 0.0]]]


def test_a_writer_of_zeros_has_no_share() -> None:
    graph, generator = Graph(1, 1), torch.Generator().manual_seed(0)
    streams = torch.randn(50, 3, 37, generator=generator)
    assert not bool(proximities(streams, [(slice(0, 1), torch.zeros(50, 1, 37))], graph).any())


def test_shares_behind_a_post_norm_sum_to_its_output() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(5, 4, 8, generator=generator)
    for centred in (False, True):
        norm = Norm(torch.randn(8, generator=generator), None, 1e-6, centred)
        total = parts.sum(1, keepdim=True)
        torch.testing.assert_close(normed_share(norm, parts, total).sum(1), norm(total[:, 0]))


def test_positions_where_nothing_is_near_are_left_out_and_counted() -> None:
    """A learned position that cancels the embedding:
    the readers of layer 0 see zeros there, and 0 is near nothing.
    """
    case = subject("gpt2", dtype=torch.float64)
    decoder, batch = case.model.decoder, case.batch
    assert decoder.positions is not None
    # Row 1 is not padded: its columns are positions. Position 2 of row 1 is cancelled, and no other
    # token.
    positions = decoder.positions.clone()
    positions[2] = -decoder.embed(batch.clean[1:2, 2:3])[0, 0]
    model = replace(case.model, decoder=replace(decoder, positions=positions))
    scores = score(Subject(model, batch))
    assert scores.provenance["undefined_positions"] == {"a0": 1}
    assert scores.values[model.graph.index("input->a0.h0<q>")].item() == pytest.approx(1.0)
    assert scores.provenance["selection"] == InformationFlowRoutes.selection == "greedy"


def test_a_reader_with_no_defined_position_is_not_scored() -> None:
    case = subject("gpt2")
    decoder = case.model.decoder
    model = replace(
        case.model, decoder=replace(decoder, embedding=torch.zeros_like(decoder.embedding))
    )
    scores = score(Subject(model, case.batch))
    graph = model.graph
    assert bool(scores.values[0, graph.slots(0)].isnan().all())
    assert int(scores.scored().sum()) == graph.n_edges - 3 * graph.n_heads
    assert scores.provenance["undefined_positions"]["a0"] == int(case.batch.mask.sum())
    # The others go on without what is not there.
    assert float(scores.values[0, graph.mlp_reader(0) :].abs().max()) == 0.0


def test_overflow_is_refused() -> None:
    case = subject("llama")
    decoder = case.model.decoder
    model = replace(case.model, decoder=replace(decoder, embedding=decoder.embedding * math.inf))
    with pytest.raises(NonFinite, match="not finite"):
        score(Subject(model, case.batch))


def test_circuits_are_grown_from_the_logits() -> None:
    """In one ranking the in-edges of layer 0 all come first, whatever they are for;
    grown circuits are all of use.
    """
    case = subject("gpt2")
    scores, graph = score(case), case.model.graph
    assert scores.values[graph.index("input->a0.h0<q>")].item() == pytest.approx(1.0)
    assert len(scores.top(12).pruned()) == 0
    grown = scores.greedy(12)
    assert len(grown) == 12
    assert bool(grown.edges[:, graph.logits].any())


def test_an_interrupted_experiment_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, path = subject("llama"), tmp_path / "half.safetensors"
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    whole = score(case).values
    add, done = _Shares.add, []

    def interrupted(self: Any, model: Model, chunk: Batch) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(chunk)
        add(self, model, chunk)

    monkeypatch.setattr(_Shares, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        InformationFlowRoutes().score(case.model, case.batch, checkpoint=path)
    done.clear()
    again = InformationFlowRoutes().score(case.model, case.batch, checkpoint=path)
    assert len(done) == 1
    assert torch.equal(again.values.nan_to_num(9.0), whole.nan_to_num(9.0))
    assert not path.exists()
