"""Long examples: differentiated in spans of columns, they have the scores that they have whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.models import families, long_subject
from mechassay.circuits import EAP, NAP, EAPIGInputs, ablate
from mechassay.circuits.methods.attribution import (
    ReaderGradients,
    WriterGradients,
    add_products,
    contract,
)
from mechassay.circuits.methods.differentiation import Quadrature, differentiate
from mechassay.circuits.methods.eap import quadrature
from mechassay.errors import OutOfMemory
from mechassay.models import memory
from mechassay.models.gradients import backward_model
from mechassay.models.memory import GradientShare
from mechassay.models.objectives import Kl, LogitDiff, Objective
from mechassay.models.spans import LongContrast
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import VOCABULARY, Subject, subject
from mechassay.utils.display import SILENT

LOGIT_DIFF = LogitDiff()
TOKENS = 400
WHOLE = GradientShare(2**40, 100)
IN_SPANS = GradientShare(2 * 150, 2)
"""Of two examples three spans; the three copies of a path come two at a time."""


@pytest.fixture(
    scope="module",
    params=families(quick=("gpt2", "gemma2", "cohere_plus")),
)
def case(request: pytest.FixtureRequest) -> Subject:
    return long_subject(request.param)


def summed(
    case: Subject, path: Quadrature | None, share: GradientShare, objective: Objective
) -> tuple[Tensor, Tensor, int]:
    """Scores of edges and of neurons, summed over examples, and how many parts they came in."""
    model, parts = case.model, list[int]()
    graph = model.graph
    edges = torch.zeros(graph.n_writers, graph.n_readers, dtype=torch.float64)
    neurons = torch.zeros(graph.n_writers, model.decoder.d_model, dtype=torch.float64)

    def add_edges(*found: Any) -> None:
        parts.append(1)
        contract(model, *found, edges)

    def add_neurons(*found: Any) -> None:
        add_products(model, *found, neurons)

    both: list[tuple[Callable[..., Any], Callable[..., None]]] = [
        (ReaderGradients.of, add_edges),
        (WriterGradients.of, add_neurons),
    ]
    for gradients_of, add in both:
        differentiate(model, case.batch, objective, path, share, gradients_of, add)
    return torch.where(graph.legal, edges, 0.0), neurons, len(parts)


def check_equal(
    case: Subject, path: Quadrature | None, parts: int, objective: Objective = LOGIT_DIFF
) -> None:
    *whole, one = summed(case, path, WHOLE, objective)
    *in_spans, several = summed(case, path, IN_SPANS, objective)
    assert (one, several) == (1, parts)
    for expected, found in zip(whole, in_spans, strict=True):
        largest = float(expected.abs().max())
        assert largest > 0
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * largest)


def test_at_the_clean_run_spans_sum_to_the_whole(case: Subject) -> None:
    check_equal(case, None, 3)


@pytest.mark.few(1)
def test_along_a_path_spans_and_groups_of_copies_sum_to_the_whole(case: Subject) -> None:
    check_equal(case, quadrature("left", 3), 2 * 3)


def test_groups_of_copies_of_whole_examples_sum_to_all_copies() -> None:
    tiny, path = long_subject("gpt2"), quadrature("left", 3)
    *expected, one = summed(tiny, path, WHOLE, LOGIT_DIFF)
    *in_groups, several = summed(tiny, path, WHOLE._replace(copies=2), LOGIT_DIFF)
    assert (one, several) == (1, 2)
    for own, found in zip(expected, in_groups, strict=True):
        torch.testing.assert_close(found, own, rtol=0, atol=1e-10 * float(own.abs().max()))


@pytest.mark.few(1)
@pytest.mark.parametrize("rules", ["gim", "attnlrp", "relp"])
def test_other_rules_of_the_backward_pass(rules: str) -> None:
    """Their attention keeps patterns, and gradients of keys and values are scaled."""
    tiny = long_subject("gemma2" if rules == "gim" else "qwen2")
    check_equal(Subject(backward_model(tiny.model, rules), tiny.batch), None, 3)


def test_a_divergence_is_measured_from_the_clean_run_of_the_last_span() -> None:
    check_equal(long_subject("llama"), quadrature("midpoint", 2), 3, Kl())


@pytest.mark.few(1)
@pytest.mark.parametrize("ablation", ["zero", "mean", "positional-mean"])
def test_constants_differ_from_the_first_column_on(ablation: str) -> None:
    tiny = long_subject("gpt2")
    batch = ablate(tiny.model, tiny.batch, ablation, progress=SILENT)
    check_equal(Subject(tiny.model, batch), quadrature("left", 2), 3)


def test_a_difference_at_the_end_alone_is_one_span(case: Subject) -> None:
    batch, other = case.batch, case.batch.clean.clone()
    other[:, -2] = (other[:, -2] + 1) % VOCABULARY
    late = Batch.from_tokens(batch.clean, other, batch.answers, batch.foils, mask=batch.mask)
    check_equal(Subject(case.model, late), None, 1)


@pytest.mark.few(2)
@pytest.mark.parametrize("method", [EAP(), EAPIGInputs(steps=3), NAP()], ids=lambda x: x.name)
def test_the_budget_decides(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, seen = long_subject("llama"), list[int]()
    model, device = tiny.model, tiny.model.device
    whole = method.score(model, tiny.batch, progress=SILENT).values
    share = memory.gradient_share(model.decoder, method.copies, TOKENS, device)
    assert share[:2] == (TOKENS, method.copies) or share.tokens > TOKENS
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    per_token = memory.gradient_bytes(model.decoder, 1, TOKENS)
    monkeypatch.setattr(memory, "EXAMPLE_BUDGET", 390 * per_token)
    share = memory.gradient_share(model.decoder, method.copies, TOKENS, device)
    assert memory.LEAST_COLUMNS < share.tokens < 100

    other = LongContrast.other

    def counted(self: LongContrast, span: slice, *rest: Any) -> Any:
        seen.append(span.stop - span.start)
        return other(self, span, *rest)

    monkeypatch.setattr(LongContrast, "other", counted)
    in_spans = method.score(model, tiny.batch, progress=SILENT).values
    torch.testing.assert_close(in_spans, whole, rtol=1e-6, atol=1e-7, equal_nan=True)
    assert seen and max(seen) <= share.tokens


@pytest.mark.parametrize("family", families(quick=("gpt2", "gemma2")))
@pytest.mark.parametrize("method", [EAP(), EAPIGInputs(steps=3), NAP()], ids=lambda x: x.name)
def test_columns_that_pairs_share_are_not_differentiated(
    method: Any, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of whole runs, which pairs have that differ from the first column on."""
    model = subject(family, torch.float64).model
    tokens = torch.arange(1, 73).view(6, 12) % VOCABULARY
    other, answers = tokens.clone(), torch.arange(6)
    other[:, 9:] = other[:, 9:].flip(0)
    late = Batch.from_tokens(tokens, other, answers, answers + 7)
    share = method._share(model, late)
    assert share.changed == memory.changed_share(model.decoder, share.copies, 12) > 0.5
    # As many bytes hold more pairs: 3 of 12 columns are differentiated.
    tight = share._replace(tokens=2 * 12)
    sizes = [len(rows) for rows, _ in tight.chunks(late)]
    assert max(sizes) > 2 and sum(sizes) == 6
    assert all(tight.holds(chunk) for _, chunk in tight.chunks(late))
    scores = method.score(model, late, progress=SILENT).values
    monkeypatch.setattr(Batch, "first_difference", lambda _: 0)
    whole = method._share(model, late)
    assert (whole.changed == 0) == (method.path is None)
    expected = method.score(model, late, progress=SILENT).values
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_copies_that_leave_no_room_come_one_by_one() -> None:
    """By hand: what is kept of a token grows with copies, and so does what a column takes."""
    decoder, device = long_subject("llama").model.decoder, torch.device("cpu")
    one, two = (memory.past_bytes(decoder, n) for n in (1, 2))
    # Keys and values of 3 layers, 2 of 4 heads, 8 wide, in fp64; each query head's, and gradients.
    assert memory.past_bytes(decoder) == 2 * 2 * 3 * 2 * 8 * 8
    assert two - one == 2 * 3 * 2 * 8 * 8 + 2 * (2 * 3 * 4 * 8 * 8)
    # Of three copies: the clean run, nine vectors a layer, and the keys and values of each copy.
    whole = 3 * (9 * decoder.d_model + 2 * 3 * 4 * 8) * 8
    part = 1 - whole / memory.gradient_bytes(decoder, 3, 10)
    assert memory.changed_share(decoder, 3, 10) == pytest.approx(part)
    room = memory.EXAMPLE_BUDGET
    longest = room // two + 1
    share = memory.gradient_share(decoder, 5, longest, device)
    per_token = memory.gradient_bytes(decoder, 1, longest)
    assert share[:2] == (int(room * memory.SPAN_SHARE) // per_token, 1)


def test_too_long_even_in_spans_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = long_subject("llama")
    decoder = tiny.model.decoder
    per_token, kept = memory.gradient_bytes(decoder, 1, TOKENS), memory.past_bytes(decoder, 1)
    free = memory.LEAST_COLUMNS * per_token + 100 * kept
    monkeypatch.setattr(memory, "available_bytes", lambda device: free)
    with pytest.raises(OutOfMemory, match=r"of 400 tokens .* enough for about 100 tokens\.$"):
        EAP().score(tiny.model, tiny.batch, progress=SILENT)
    free = memory.LEAST_COLUMNS * per_token + TOKENS * kept
    EAP().score(tiny.model, tiny.batch, progress=SILENT)
