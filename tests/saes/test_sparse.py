"""Sparse codes against dense ones: what is written, and every gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from mechassay.saes.learners.sparse import Places, read_at, write

B, D, N = 7, 5, 11


def made(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=drawn, dtype=torch.float64)


def places_of(mask: Tensor) -> Places:
    rows, features = mask.nonzero(as_tuple=True)
    return Places(rows, features, *mask.shape)


def test_gradients_are_those_of_the_dense_code() -> None:
    """One row has no feature, one feature no row."""
    x, mask = made(B, D), made(B, N, seed=1) > 0.3
    mask[2], mask[:, 4] = False, False
    given = [made(N, D, seed=2), made(N, seed=3), made(D, seed=4), made(N, D, seed=5)]
    target = made(B, D, seed=6)
    encoder, b_enc, b_dec, decoder = dense = [each.clone().requires_grad_() for each in given]
    f = (((x - b_dec) @ encoder.mT + b_enc) * mask).relu()
    whole = f @ decoder + b_dec
    (whole - target).square().sum().backward()

    encoder, b_enc, b_dec, decoder = sparse = [each.clone().requires_grad_() for each in given]
    places = places_of(mask)
    with torch.no_grad():
        found = ((x - b_dec) @ encoder.mT + b_enc)[mask]
    values = read_at(x, encoder, b_enc, b_dec, found, places).relu()
    decoded = write(values, decoder, places) + b_dec
    (decoded - target).square().sum().backward()
    assert torch.allclose(decoded, whole)
    for one, two in zip(sparse, dense, strict=True):
        assert one.grad is not None and two.grad is not None
        assert torch.allclose(one.grad, two.grad), (one.grad - two.grad).abs().max()


def test_a_code_by_hand() -> None:
    """Rows 0 and 2 of three: 2 a, and a + 3 c."""
    decoder = torch.tensor([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]])
    places = Places(torch.tensor([0, 2, 2]), torch.tensor([0, 0, 2]), 3, 3)
    decoded = write(torch.tensor([2.0, 1.0, 3.0]), decoder, places)
    assert decoded.tolist() == [[2, 0], [0, 0], [1, 3]]
    assert places.row_offsets.tolist() == [0, 1, 1]
    some, kept = places.of_first(3, begin=1)
    assert kept.tolist() == [2] and some.rows.tolist() == [2] and some.features.tolist() == [2]


def test_an_empty_code_is_zero_and_has_no_gradient() -> None:
    places = places_of(torch.zeros(B, N, dtype=torch.bool))
    decoder = made(N, D).requires_grad_()
    encoder, zeros = made(N, D).requires_grad_(), torch.zeros(N, dtype=torch.float64)
    bias = torch.zeros(D, dtype=torch.float64)
    none = torch.zeros(0, dtype=torch.float64)
    values = read_at(made(B, D), encoder, zeros, bias, none, places)
    decoded = write(values, decoder, places)
    assert torch.equal(decoded, torch.zeros(B, D, dtype=torch.float64))
    decoded.sum().backward()
    for each in (decoder, encoder):
        assert each.grad is not None and not each.grad.any()
