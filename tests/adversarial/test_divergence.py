"""KL by an entropy, a product and a streamed logsumexp:
against two log-softmaxes of the original model's logits.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from families import families
from mechassay.adversarial import divergence as module
from mechassay.adversarial.divergence import Target, Tolerance, divergence, divergences_from
from mechassay.models.decoder import Decoder, Readout
from mechassay.models.model import Model
from mechassay.models.reference import exact_precision
from mechassay.models.trace import trace
from mechassay.testing.tiny import VOCABULARY, subject

FAMILIES = families(["gpt2", "neox", "llama", "qwen3", "gemma2", "gemma3"])


def plain(p: Tensor, q: Tensor) -> Tensor:
    """KL of softmax(p) from softmax(q), in fp64."""
    logp, logq = p.double().log_softmax(-1), q.double().log_softmax(-1)
    return (logp.exp() * (logp - logq)).sum(-1)


def readouts(model: Model, n: int = 5) -> tuple[Tensor, Tensor, Readout, Readout]:
    """Two batches of prompts, and the decoder's readouts of them."""
    tokens = torch.randint(0, VOCABULARY, (2, n, 6), generator=torch.Generator().manual_seed(2))
    ctx = model.decoder.context(torch.ones(n, 6, dtype=torch.bool))
    p, q = (
        trace(model.decoder, model.decoder.embed(each), ctx).readout(model.decoder)
        for each in tokens
    )
    return tokens[0], tokens[1], p, q


def with_bias(decoder: Decoder, shift: float = 0.0) -> Decoder:
    bias = (
        torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        + shift
    )
    return replace(decoder, unembed_bias=bias.to(decoder.unembedding))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", [8192, 96, 10])
def test_the_originals_two_log_softmaxes(
    family: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    model = subject(family, torch.float64).model
    a, b, p, q = readouts(model)
    with exact_precision(model.hf), torch.no_grad():
        wanted = plain(
            model.hf(a, use_cache=False).logits[:, -1], model.hf(b, use_cache=False).logits[:, -1]
        )
    found = divergence(Target.of(p), q)
    assert found.dtype == torch.float64 and float(wanted.min()) > 1e-3
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        divergence(Target.of(p), p), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_biases_and_soft_caps(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 10)
    *_, p, q = readouts(subject(family, torch.float64).model)
    p, q = (Readout(each.hidden, with_bias(each.decoder)) for each in (p, q))
    found = divergence(Target.of(p), q)
    torch.testing.assert_close(found, plain(p.all(), q.all()), rtol=0, atol=1e-9)
    plain_model = divergence(Target.of(Readout(p.hidden, replace(p.decoder, unembed_bias=None))), q)
    assert float((found - plain_model).abs().min()) > 1e-6  # so the bias did count


def test_the_same_whatever_is_added_to_all_logits() -> None:
    *_, p, q = readouts(subject("gpt2", torch.float64).model)
    one, other = (
        divergence(
            Target.of(Readout(p.hidden, with_bias(p.decoder, shift))),
            Readout(q.hidden, with_bias(q.decoder, shift)),
        )
        for shift in (0.0, -100.0)
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_one_product_for_many(family: str) -> None:
    *_, p, q = readouts(subject(family, torch.float64).model)
    found = divergences_from(Target.of(p), q.all().log_softmax(-1)[:3])
    wanted = torch.stack([plain(p.all(), q.all()[j].expand(5, -1)) for j in range(3)], dim=1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def coins(*shares: float, dtype: torch.dtype = torch.float64) -> Readout:
    """A model of two words: hidden vectors are its logits, log q and log (1 - q)."""
    decoder = subject("gpt2", dtype).model.decoder
    decoder = replace(
        decoder,
        unembedding=torch.eye(2, decoder.d_model, dtype=dtype),
        embedding=torch.eye(2, decoder.d_model, dtype=dtype),
    )
    hidden = torch.zeros(len(shares), decoder.d_model, dtype=dtype)
    hidden[:, :2] = torch.tensor([[math.log(q), math.log(1 - q)] for q in shares], dtype=dtype) + 7
    return Readout(hidden, decoder)


def test_two_coins_by_hand() -> None:
    found = divergence(Target.of(coins(0.5, 0.5, 0.9)), coins(0.25, 0.5, 0.1))
    wanted = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.0, 0.9 * math.log(9) - 0.1 * math.log(9)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-12)


def test_logits_of_thousands_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 10)
    *_, p, q = readouts(subject("gpt2").model)
    p, q = (Readout(each.hidden * 3000, each.decoder) for each in (p, q))
    found, wanted = divergence(Target.of(p), q), plain(p.all(), q.all())
    assert float(wanted.max()) > 1000
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_fp32_is_fp64_to_rounding(family: str) -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        *_, p, q = readouts(subject(family, dtype).model)
        found.append(divergence(Target.of(p), q))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_rounded_logits_are_compared_as_they_are(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 10)
    *_, p, q = readouts(subject(family, dtype).model)
    p, q = (Readout(each.hidden * 4, each.decoder) for each in (p, q))
    target = Target.of(p)
    torch.testing.assert_close(divergence(target, q), plain(p.all(), q.all()), rtol=0, atol=1e-4)
    # A circuit that is the model has its logits, rounded alike: nothing of their rounding may show.
    assert float(divergence(target, p).abs().max()) < 1e-5


def test_the_rounding_of_large_logits_cancels() -> None:
    """Logits of thousands have errors of 1e-4 in fp32;
    a distribution must not diverge from itself for that.
    """
    decoder = replace(subject("gpt2", torch.float32).model.decoder, unembed_bias=None)
    decoder = replace(decoder, unembedding=decoder.unembedding + 30.0)
    readout = Readout(
        torch.randn(16, decoder.d_model, generator=torch.Generator().manual_seed(0)) + 5, decoder
    )
    target = Target.of(readout)
    assert float(divergence(target, readout).abs().max()) < 2e-6
    # The shortcut by W^T p does not see the rounded logits.
    shortcut = ((target.p @ decoder.unembedding) * readout.hidden).sum(dim=-1) - (
        target.p * readout.all()
    ).sum(dim=-1)
    assert float(shortcut.abs().max()) > 1e-4


def test_agreement_is_absolute_for_small_values_and_relative_for_large_ones() -> None:
    allowed = Tolerance.of(torch.float32)
    a = np.array([0.0, 0.0, 10.0, 10.0, math.nan])
    b = np.array([0.9e-4, 1.2e-4, 10.009, 10.02, math.nan])
    assert allowed.holds(a, b).tolist() == [True, False, True, False, False]
    assert Tolerance.of(torch.bfloat16).absolute > allowed.absolute
