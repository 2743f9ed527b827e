"""Featurizers: what is exchanged, and what is exact.

Orthonormal directions against torch's own parametrization, and principal angles.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.utils import parametrizations

from helpers.pairs import token_interchanges
from mechassay.errors import BadFile, BadUsage
from mechassay.features import DAS, SAE, Affine, ChosenFeatures, Directions, Identity, PrincipalAxes
from mechassay.features.featurizer import (
    check_basis,
    exchanged,
    is_orthonormal,
    orthonormal,
    orthonormalised,
    principal_angles,
    random_basis,
)
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Interchange
from mechassay.models.model import make_model
from mechassay.testing import tiny
from mechassay.utils.display import SILENT


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_runs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    base, source = torch.randn(2, 5, 8, generator=generator(), dtype=dtype).unbind()
    return base, source


def sae(**settings: Any) -> SAE:
    noise = torch.randn(8, 20, generator=generator(1), dtype=torch.float64)
    arrays = noise, noise.mT.contiguous(), noise[0] * 0.1, noise[:, 0] * 0.1
    return SAE(*arrays, **settings)


def test_all_directions_are_the_full_vector_to_rounding() -> None:
    base, source = two_runs()
    whole = Directions(random_basis(8, generator(), torch.float64))
    assert float((whole.change(base, source) - source).abs().max()) < 8 * 8 * 2.3e-16
    assert Identity().change(base, source) is source
    assert torch.equal(
        ChosenFeatures(Identity(8), torch.ones(8, dtype=torch.bool)).change(base, source), source
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nothing_chosen_is_the_base_itself(dtype: torch.dtype) -> None:
    base, source = two_runs(dtype)
    for featurizer, k in ((Identity(), 8), (Directions(torch.eye(8)), 8), (sae(), 20)):
        empty = torch.zeros(k, dtype=torch.bool)
        assert torch.equal(featurizer.change(base, source, empty), base)
        assert torch.equal(ChosenFeatures(featurizer, empty).change(base, source), base)
        assert featurizer.change(base, source).dtype == dtype


def test_one_direction_is_equation_11_of_causalgym() -> None:
    base, source = two_runs()
    a = torch.nn.functional.normalize(source[0], dim=0)
    by_hand = base + (source @ a - base @ a)[:, None] * a
    found = Directions.of(-3 * source[0]).change(base, source)
    assert torch.allclose(found, by_hand, atol=1e-13)
    assert torch.allclose(found @ a, source @ a, atol=1e-13)


def test_exchanges_are_the_formula_with_its_error_term() -> None:
    base, source = two_runs()
    chosen = torch.arange(20) % 3 == 0
    for featurizer in (
        sae(),
        sae(activation="jumprelu", threshold=torch.full((20,), 0.5).double()),
    ):
        ours, theirs = featurizer.encode(base), featurizer.encode(source)
        mixed = featurizer.decode(torch.where(chosen, theirs, ours))
        by_hand = base + mixed - featurizer.decode(ours)
        assert torch.allclose(featurizer.change(base, source, chosen), by_hand, atol=1e-12)

    class Bent:
        """A featurizer of one's own, which does not decode linearly."""

        def encode(self, h: torch.Tensor) -> torch.Tensor:
            return h.sinh()

        def decode(self, f: torch.Tensor) -> torch.Tensor:
            return f.asinh()

    some = torch.arange(8) < 3
    found = ChosenFeatures(Bent(), some).change(base, source)
    assert torch.allclose(found, torch.where(some, source, base), atol=1e-12)
    gate = torch.full((8,), 0.5, dtype=torch.float64)
    half = exchanged(Bent(), base, source, gate=gate)
    assert torch.allclose(half.sinh(), (base.sinh() + source.sinh()) / 2, atol=1e-10)


def test_mean_and_scale_change_features_and_no_exchange() -> None:
    base, source = two_runs()
    axes = random_basis(8, generator(), torch.float64)[:, :3]
    scaled = PrincipalAxes(axes, base[0], torch.tensor([2.0, 3.0, 0.1], dtype=torch.float64))
    plain = Directions(axes)
    chosen = torch.tensor([True, False, True])
    for mask in (None, chosen):
        assert torch.allclose(
            scaled.change(base, source, mask), plain.change(base, source, mask), atol=1e-12
        )
    assert torch.allclose(scaled.decode(scaled.encode(axes.mT + base[0])), axes.mT + base[0])


def test_affine_features_are_exchanged_exactly() -> None:
    base, source = two_runs()
    weight = torch.randn(8, 3, generator=generator(4), dtype=torch.float64)
    affine = Affine(weight, torch.ones(3, dtype=torch.float64))
    new = affine.change(base, source)
    assert torch.allclose(affine.encode(new), affine.encode(source), atol=1e-12)
    chosen = torch.tensor([False, True, False])
    mixed = affine.encode(affine.change(base, source, chosen))
    wanted = torch.where(chosen, affine.encode(source), affine.encode(base))
    assert torch.allclose(mixed, wanted, atol=1e-12)
    square = Affine.of(torch.randn(8, 8, generator=generator(5), dtype=torch.float64))
    assert torch.allclose(square.change(base, source), source, atol=1e-10)


def test_activations_of_saes() -> None:
    h = torch.tensor([[1.0, -2.0]])
    eye, zero = torch.eye(2), torch.zeros(2)
    arrays: Any = (eye, eye, zero, torch.tensor([0.5, 0.5]))
    assert SAE(*arrays).encode(h).tolist() == [[1.0, 0.0]]
    assert SAE(*arrays, centred=True).encode(h).tolist() == [[0.5, 0.0]]
    above = SAE(*arrays, "jumprelu", threshold=torch.tensor([1.5, -3.0]))
    assert above.encode(h).tolist() == [[0.0, 0.0]]
    top = SAE(*arrays, "topk", k=1)
    assert top.encode(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).tolist() == [[0.0, 2.0], [3.0, 0.0]]
    assert top.decode(torch.tensor([[1.0, 2.0]])).tolist() == [[1.5, 2.5]]


def test_saes_are_read_as_data(tmp_path: Any) -> None:
    known = sae(activation="jumprelu", threshold=torch.ones(20).double())
    names = {"W_enc": "w_enc", "W_dec": "w_dec", "b_enc": "b_enc", "b_dec": "b_dec"}
    arrays = {name: getattr(known, field) for name, field in names.items()}
    arrays["threshold"] = known.threshold
    save_file(arrays, tmp_path / "sae.safetensors")
    np.savez(tmp_path / "sae.npz", **{name: x.numpy() for name, x in arrays.items()})
    base, source = two_runs()
    for name in ("sae.safetensors", "sae.npz"):
        loaded = SAE.load(tmp_path / name)
        assert loaded.activation == "jumprelu"
        assert torch.equal(loaded.change(base, source), known.change(base, source))
    assert SAE.load(tmp_path / "sae.npz", k=4).activation == "topk"
    save_file({"W_enc": arrays["W_enc"]}, tmp_path / "part.safetensors")
    (tmp_path / "text.safetensors").write_text("no")
    np.savez(tmp_path / "bad.npz", W_enc=np.array([{}], dtype=object))
    for name, match in (
        ("part.safetensors", "lacks W_dec, b_enc, b_dec"),
        ("text.safetensors", "not a readable file"),
        ("bad.npz", "not a readable file"),
        ("none.npz", "no such file"),
    ):
        with pytest.raises(BadFile, match=match):
            SAE.load(tmp_path / name)


def test_mistakes_are_one_line() -> None:
    base, source = two_runs()
    for make, match in (
        (lambda: Directions(torch.ones(3, 2)), "must be orthonormal"),
        (lambda: Directions.of(torch.ones(3, 2)), "span fewer than 2"),
        (lambda: Directions.of(torch.full((3,), torch.nan)), "finite"),
        (lambda: Affine.of(torch.zeros(3, 1)), "span fewer than 1"),
        (lambda: PrincipalAxes(torch.eye(2), torch.zeros(2), torch.zeros(2)), "positive"),
        (lambda: sae(k=3), "k if and only if"),
        (lambda: sae(activation="jumprelu"), "thresholds if and only if"),
        (lambda: sae(activation="topk", k=21), "keeps 1 to 20; got k=21"),
        (lambda: SAE(torch.eye(3), torch.eye(3), torch.zeros(3), torch.zeros(2)), "got"),
        (
            lambda: ChosenFeatures(Identity(8), torch.ones(3, dtype=torch.bool)).change(
                base, source
            ),
            "8",
        ),
        (
            lambda: ChosenFeatures(sae(), torch.ones(3, dtype=torch.bool)).change(base, source),
            "mask of 20",
        ),
    ):
        with pytest.raises(BadUsage, match=match):
            make()


def test_a_fit_is_an_intervention() -> None:
    """The loss of a fit's last step is what an intervention with its features says."""
    model = make_model(tiny.build("llama", torch.float64))
    batch = token_interchanges(5, label_tokens=2)
    d = model.decoder.d_model
    for site, k in (("resid.0@x", 4), ("heads.1.0,1.2@last", 3), ("mlp.1@x", d)):
        trained = DAS(k=k, steps=3, batch_size=5).fit(model, batch, site, progress=SILENT)
        start = trained.losses[0, 0]
        basis = random_basis(trained.sites[0].width(model.decoder), generator(), torch.float64)
        begun = Interchange(features=Directions(basis[:, :k]))
        out = intervene(model, batch, {site: begun})
        assert float(-out.log_probs.mean()) == pytest.approx(float(start), abs=1e-10)
        after = intervene(model, batch, {site: Interchange(features=trained.features(site))})
        if k == d:
            whole = intervene(model, batch, {site: Interchange()})
            assert torch.allclose(after.log_probs, whole.log_probs, atol=1e-10)
        else:
            assert float(-after.log_probs.mean()) < float(start)
    nothing = ChosenFeatures(Identity(d), torch.zeros(d, dtype=torch.bool))
    out = intervene(model, batch, {"resid.0@x": Interchange(features=nothing)})
    assert torch.equal(out.final, out.base_final) and not out.changed.any()


def torch_rotation(basis: torch.Tensor, k: int) -> torch.nn.Linear:
    """torch's parametrization (trivialised), as pyvene calls it, on a given base: householder, or
    the exponential of a whole rotation.
    """
    d = len(basis)
    layer = torch.nn.Linear(d, k, bias=False, dtype=basis.dtype)
    layer.weight = torch.nn.Parameter(torch.zeros(d, k, dtype=basis.dtype))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.nn.init.orthogonal_(layer.weight)
        parametrizations.orthogonal(layer)
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
