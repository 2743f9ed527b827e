"""Orthonormal directions against torch's own parametrization, and principal angles."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.utils import parametrizations

from mechassay.errors import BadUsage
from mechassay.features.directions import (
    check_basis,
    is_orthonormal,
    orthonormal,
    orthonormalised,
    principal_angles,
    random_basis,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def torch_rotation(basis: torch.Tensor, k: int) -> torch.nn.Linear:
    """torch's parametrization (householder, trivialised), as pyvene calls it, on a given base."""
    d = len(basis)
    layer = torch.nn.Linear(d, k, bias=False, dtype=basis.dtype)
    layer.weight = torch.nn.Parameter(torch.zeros(d, k, dtype=basis.dtype))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.nn.init.orthogonal_(layer.weight)
        parametrizations.orthogonal(layer, orthogonal_map="householder")
    layer.parametrizations.weight[0].base = basis
    return layer


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize(("d", "k"), [(12, 1), (12, 5), (12, 11), (12, 12)])
def test_steps_are_torchs(optimizer: type, d: int, k: int) -> None:
    settings = {"lr": 0.05}
    if optimizer is torch.optim.AdamW:
        settings["weight_decay"] = 0.0
    n_sites = 3
    bases = torch.stack([random_basis(d, generator(i), torch.float64) for i in range(n_sites)])
    data = torch.randn(n_sites, 20, d, generator=generator(9), dtype=torch.float64)
    wanted = torch.randn(n_sites, 20, k, generator=generator(8), dtype=torch.float64)

    raw = torch.zeros(n_sites, d, k, dtype=torch.float64, requires_grad=True)
    ours = optimizer([raw], **settings)
    layers = [torch_rotation(basis, k) for basis in bases]
    theirs = [optimizer(layer.parameters(), **settings) for layer in layers]
    assert torch.allclose(orthonormal(raw, bases), bases[:, :, :k], atol=1e-14)
    for _ in range(30):
        q = orthonormal(raw, bases)
        ours.zero_grad()
        (data @ q - wanted).square().mean(dim=(1, 2)).sum().backward()
        for i, (layer, step) in enumerate(zip(layers, theirs, strict=True)):
            step.zero_grad()
            (data[i] @ layer.weight - wanted[i]).square().mean().backward()
            assert torch.allclose(q[i], layer.weight, atol=1e-10, rtol=0)
            gradient = layer.parametrizations.weight.original.grad
            assert torch.allclose(raw.grad[i].tril(-1), gradient.tril(-1), atol=1e-10, rtol=0)
            step.step()
        ours.step()
    moved = orthonormal(raw, bases).detach() - bases[:, :, :k]
    assert float(moved.abs().max()) > 0.05


@pytest.mark.parametrize("k", [1, 4, 9])
def test_columns_are_orthonormal_wherever_the_parameter_is(k: int) -> None:
    raw = 3 * torch.randn(5, 9, k, generator=generator(), dtype=torch.float64)
    basis = random_basis(9, generator(1), torch.float64)
    q = orthonormal(raw, basis[None])
    assert torch.allclose(q.mT @ q, torch.eye(k, dtype=q.dtype).expand(5, k, k), atol=1e-12)
    assert torch.allclose(q, orthonormal(raw, basis.expand(5, 9, 9)), atol=1e-13)


def test_gradients_are_those_of_finite_differences_and_none_above_the_diagonal() -> None:
    raw = torch.randn(2, 6, 3, generator=generator(), dtype=torch.float64, requires_grad=True)
    basis = random_basis(6, generator(1), torch.float64)[None]
    assert torch.autograd.gradcheck(lambda x: orthonormal(x, basis), (raw,))
    orthonormal(raw, basis).square().sum().backward()
    orthonormal(raw, basis).sin().sum().backward()
    assert raw.grad is not None
    assert not raw.grad.triu().any()


def test_one_direction_is_in_stereographic_coordinates() -> None:
    x = torch.randn(7, generator=generator(), dtype=torch.float64)
    raw = torch.cat((torch.tensor([5.0], dtype=torch.float64), x))[None, :, None]
    basis = random_basis(8, generator(1), torch.float64)
    s = float(x.square().sum())
    by_hand = basis @ torch.cat((torch.tensor([1 - s], dtype=torch.float64), 2 * x)) / (1 + s)
    assert torch.allclose(orthonormal(raw, basis[None])[0, :, 0], by_hand, atol=1e-14)


def test_principal_angles_of_planes_turned_by_known_angles() -> None:
    for angle in (1e-12, 1e-9, 1e-4, 0.3, 1.2, math.pi / 2 - 1e-9, math.pi / 2):
        a = torch.eye(5, dtype=torch.float64)[:, :2]
        b = a.clone()
        b[1, 1], b[2, 1] = math.cos(angle), math.sin(angle)
        turn = random_basis(5, generator(3), torch.float64)
        mixed = torch.tensor([[1.0, 2.0], [-3.0, 0.5]], dtype=torch.float64)
        found = principal_angles(turn @ a @ mixed, turn @ b)
        assert found[0] < 1e-15 * 10
        assert float(found[1]) == pytest.approx(angle, rel=1e-3 if angle < 1e-9 else 1e-6)


def test_principal_angles_of_spaces_of_two_sizes() -> None:
    eye = torch.eye(6)
    assert principal_angles(eye[:, :3], eye[:, 2:3]).tolist() == [0.0]
    assert principal_angles(eye[:, :1], eye[:, 3:]).tolist() == pytest.approx([math.pi / 2])
    with pytest.raises(BadUsage, match="one length; got 6 and 4"):
        principal_angles(eye, torch.eye(4))
    with pytest.raises(BadUsage, match="span fewer than 2"):
        principal_angles(eye[:, :2], torch.ones(6, 2))


def test_random_bases_are_uniform() -> None:
    drawn = torch.stack([random_basis(3, generator(i), torch.float64) for i in range(400)])
    eye = torch.eye(3, dtype=torch.float64)
    assert torch.allclose(drawn.mT @ drawn, eye.expand(400, 3, 3), atol=1e-12)
    # Mean 0 and variance 1/3 of every entry: 1/sqrt(3 * 400) = 0.029 is the error of the mean.
    assert float(drawn.mean(0).abs().max()) < 0.12
    assert float((drawn.square().mean(0) - 1 / 3).abs().max()) < 0.08


def test_bases_are_checked() -> None:
    with pytest.raises(
        BadUsage, match=r"das needs an initial basis of shape \(4, 4\); got \(4, 3\)"
    ):
        check_basis("das", torch.eye(4)[:, :3], 4)
    with pytest.raises(BadUsage, match="orthonormal"):
        check_basis("das", 2 * torch.eye(4), 4)
    with pytest.raises(BadUsage, match="orthonormal"):
        check_basis("das", torch.full((4, 4), torch.nan), 4)
    kept = orthonormalised(torch.tensor([[2.0, 1.0], [0.0, 3.0]]))
    assert torch.allclose(kept, torch.eye(2))


def test_no_column_is_orthonormal_and_a_column_that_is_not_finite_is_not() -> None:
    assert is_orthonormal(torch.zeros(4, 0))
    assert not is_orthonormal(torch.full((4, 1), float("nan")))
    assert not is_orthonormal(torch.ones(4, 1))
