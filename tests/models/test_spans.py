"""Runs of long prompts, span by span, are those of the whole prompts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.models import families, long_subject
from mechassay.circuits import Circuit, RandomPaths, ablate, evaluate
from mechassay.errors import OutOfMemory
from mechassay.models import memory
from mechassay.models.forward import Contrast
from mechassay.models.spans import LongContrast
from mechassay.testing.tiny import Subject
from mechassay.utils.display import SILENT


@pytest.fixture(scope="module", params=families(quick=("gpt2", "gemma2", "cohere_plus")))
def case(request: pytest.FixtureRequest) -> Subject:
    return long_subject(request.param)


@pytest.mark.parametrize("ablation", ["counterfactual", "positional-mean"])
def test_the_runs_of_spans_are_columns_of_the_whole_runs(case: Subject, ablation: str) -> None:
    decoder = case.model.decoder
    batch = ablate(case.model, case.batch, ablation, progress=SILENT)
    whole, long = Contrast.run(decoder, batch), LongContrast.of(decoder, batch, 130)
    assert long.start == whole.start == (30 if ablation == "counterfactual" else 0)
    assert max(span.stop - span.start for span in long.spans) <= 130
    begin = whole.start
    for span, part in zip(long.spans, long.contrasts(), strict=True):
        assert span.start == begin == part.start
        begin = span.stop
        for run, expected, start in (
            (part.clean, whole.clean, 0),
            (part.other, whole.other, whole.start),
        ):
            columns = slice(span.start - start, span.stop - start)
            close(run.embed, expected.embed[:, columns])
            close(run.final, expected.final[:, columns])
            for own, layer in zip(run.layers, expected.layers, strict=True):
                close(own.k, layer.k[:, :, : span.stop])
                close(own.v, layer.v[:, :, : span.stop])
                close(own.z, layer.z[:, :, columns])
                for name in ("before", "middle", "attended", "mlp"):
                    one = getattr(layer, name)
                    if one is not None:
                        close(getattr(own, name), one[:, columns])
    assert begin == batch.n_tokens


def close(own: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(own, expected, rtol=0, atol=1e-10)


def circuits(case: Subject) -> list[Circuit]:
    """The two ends, one of 1 % of edges and a dense one, and one of half of all neurons."""
    graph = case.model.graph
    scores = RandomPaths(seed=1).draw(graph)
    shape = graph.n_writers, case.model.decoder.d_model
    neurons = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.5
    return [
        Circuit.full(graph),
        Circuit.empty(graph),
        scores.top(0.01).pruned(),
        scores.top(0.5).pruned(),
        Circuit(graph, graph.legal, neurons),
    ]


@pytest.mark.few(3)
@pytest.mark.parametrize("objective", ["logit_diff", "kl"])
def test_circuits_of_long_prompts(
    case: Subject, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch, chosen = case.model, case.batch, circuits(case)
    whole = evaluate(model, chosen, batch, objective, progress=SILENT)
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    monkeypatch.setattr(memory, "EXAMPLE_BUDGET", 390 * memory.trace_bytes(model.decoder))
    # As many circuits at a time as keep their keys and values.
    assert memory.circuits_at_once(model.decoder, batch.n_tokens, model.device) < len(chosen)
    sizes = list[int]()
    other = LongContrast.other

    def counted(self: LongContrast, span: slice, *rest: object) -> object:
        sizes.append(span.stop - span.start)
        return other(self, span, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(LongContrast, "other", counted)
    in_spans = evaluate(model, chosen, batch, objective, progress=SILENT)
    assert sizes and max(sizes) < 100
    np.testing.assert_allclose(in_spans, whole, rtol=0, atol=1e-10)


def test_circuits_of_prompts_that_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = long_subject("gpt2")
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2**20)
    with pytest.raises(OutOfMemory, match=r"One example of 400 tokens .* about \d+ tokens\.$"):
        evaluate(tiny.model, circuits(tiny), tiny.batch, progress=SILENT)
