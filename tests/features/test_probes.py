"""A variable planted in a known subspace of a model is found; what is worthless finds nothing.

On Gaussians, finders that look at values do what theory says.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from mechassay.errors import BadPairs, BadUsage
from mechassay.features import (
    DAS,
    DBM,
    LDA,
    PCA,
    BoundlessDAS,
    DiffInMeans,
    Fit,
    FullVector,
    KMeans,
    PrincipalAxes,
    Probe,
    RandomDirections,
    principal_angles,
)
from mechassay.features.featurizer import random_basis
from mechassay.features.finder import Found
from mechassay.features.probes import logistic_weights
from mechassay.interventions.intervene import BaseRun, Branch, Change
from mechassay.interventions.site import Site
from mechassay.models.model import Model, make_model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.testing import tiny
from mechassay.utils.display import SILENT

VALUES, NUISANCES, FIRST_LABEL = 5, 6, 40
SHARP = 12
SITE = "resid.1@last"


def planted(turn: torch.Tensor) -> Model:
    """A model that says which of five values its last token has, and reads it in two directions.

    Token 6 v + w is written as value v in the first two columns of `turn`, as nuisance w in the
    next six, and as a large constant in the ninth, which makes the last norm a linear map. Blocks
    write nothing. The label of value v is token 40 + v.
    """
    hf: Any = tiny.build("mistral", torch.float64)
    angle = torch.arange(VALUES, dtype=torch.float64) * 2 * math.pi / VALUES
    code = torch.stack((angle.cos(), angle.sin()), dim=1)
    for layer in hf.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    tokens = torch.arange(VALUES * NUISANCES)
    value, nuisance = tokens // NUISANCES, tokens % NUISANCES
    embedding = torch.zeros(tiny.VOCABULARY, len(turn), dtype=torch.float64)
    embedding[tokens] = 4 * code[value] @ turn[:, :2].T + 4 * turn[:, 2:8].T[nuisance]
    embedding[:] += 60 * turn[:, 8]
    hf.model.embed_tokens.weight.copy_(embedding)
    hf.model.norm.weight.fill_(1.0)
    head = torch.zeros_like(embedding)
    head[FIRST_LABEL : FIRST_LABEL + VALUES] = SHARP * code @ turn[:, :2].T
    hf.lm_head.weight.copy_(head)
    return make_model(hf)


def interchanges(n: int = 1200, seed: int = 0) -> InterchangeBatch:
    generator = torch.Generator().manual_seed(seed)
    base, source = torch.randint(0, VALUES * NUISANCES, (2, n), generator=generator)
    return InterchangeBatch.from_tokens(
        base=[[1, token] for token in base.tolist()],
        source=[[2, 3, token] for token in source.tolist()],
        labels=(FIRST_LABEL + source // NUISANCES).tolist(),
        base_labels=(FIRST_LABEL + base // NUISANCES).tolist(),
    )


def accuracy(model: Model, batch: InterchangeBatch, fit: Fit, site: str = SITE) -> float:
    """The share of rows in which the model says the label after the interchange."""
    run = BaseRun.of(model, batch.base, batch.base_mask)
    other = BaseRun.of(model, batch.source, batch.source_mask)
    rows, (ours, theirs) = torch.arange(len(batch)), batch.column("last")
    at = fit.sites[list(map(str, fit.sites)).index(site)]
    source = other.values(at, rows, theirs)
    features = fit.features(site)
    change = Change(at, rows, ours, lambda values: features.change(values, source))
    (final,) = run.run([Branch(rows, (change,))])
    said = model.decoder.readout(final[:, 0]).all().argmax(dim=1)
    return float((said == batch.labels[:, 0]).double().mean())


TURN = random_basis(32, torch.Generator().manual_seed(5), torch.float64)


def fitted(finder: Any, model: Model, sites: Any = SITE, **given: Any) -> Fit:
    return finder.fit(model, interchanges(), sites, progress=SILENT, **given)


def test_das_finds_the_planted_plane() -> None:
    model = planted(TURN)
    das = DAS(k=2, lr=0.02, steps=200, batch_size=100, schedule="linear")
    fit = fitted(das, model, ["resid.0@last", SITE])
    for site in ("resid.0@last", SITE):
        angles = principal_angles(fit.directions(site), TURN[:, :2])
        assert float(angles.max()) < 0.03
        assert accuracy(model, interchanges(seed=1), fit, site) == 1.0
    assert fit.losses[-1].max() < 1.0 < 4.0 < fit.losses[0].min()


def test_boundless_das_keeps_few_directions_that_hold_the_plane() -> None:
    finder = BoundlessDAS(lr=0.02, steps=200, batch_size=100, hot=2.0, cold=0.05)
    model = planted(TURN)
    fit = fitted(finder, model)
    found = fit.directions(SITE)
    assert 2 <= found.shape[1] < 16
    # The planted plane lies within the directions that are kept.
    inside = (found.T @ TURN[:, :2]).norm(dim=0)
    assert float(inside.min()) > 0.99
    assert accuracy(model, interchanges(seed=1), fit) == 1.0


def test_dbm_finds_planted_axes() -> None:
    """With the columns of a permutation the variable lies in two numbers of the stream."""
    order = torch.randperm(32, generator=torch.Generator().manual_seed(2))
    turn = torch.eye(32, dtype=torch.float64)[:, order]
    model = planted(turn)
    fit = fitted(DBM(lr=0.1, steps=150, batch_size=60, l1=1e-3), model)
    chosen = fit.features(SITE).chosen
    assert chosen is not None
    assert chosen.nonzero()[:, 0].tolist() == sorted(order[:2].tolist())
    assert accuracy(model, interchanges(seed=1), fit) == 1.0
    assert fit.directions(SITE).shape == (32, 2) and fit.n_features(SITE) == 2


def test_dbm_finds_planted_axes_among_features_of_another_finder() -> None:
    model = planted(TURN)
    axes = PrincipalAxes(TURN, torch.ones(32, dtype=torch.float64), torch.full((32,), 3.0).double())
    fit = fitted(DBM(lr=0.1, steps=150, batch_size=60, l1=1e-3), model, init={SITE: axes})
    chosen = fit.features(SITE).chosen
    assert chosen is not None
    assert chosen.nonzero()[:, 0].tolist() == [0, 1]
    angles = principal_angles(fit.directions(SITE), TURN[:, :2])
    assert float(angles.max()) < 1e-12
    pca = fitted(PCA(k=None), model)
    found = fitted(DBM(lr=0.1, steps=150, batch_size=60), model, init=pca)
    assert accuracy(model, interchanges(seed=1), found) == 1.0


def test_features_that_need_a_loop_give_the_same_masks() -> None:
    class Turned:
        """Directions that say nothing of their decoder."""

        def encode(self, h: torch.Tensor) -> torch.Tensor:
            return h @ TURN

        def decode(self, f: torch.Tensor) -> torch.Tensor:
            return f @ TURN.T

    model, dbm = planted(TURN), DBM(lr=0.1, steps=10, batch_size=60)
    ours: Any = {SITE: Turned()}
    known = fitted(dbm, model, init={SITE: TURN})
    unknown = fitted(dbm, model, init=ours)
    assert torch.allclose(known.losses, unknown.losses, atol=1e-10)


@pytest.mark.parametrize(
    "finder", [DiffInMeans(k=2), Probe(k=2, l2=1e-3), LDA(k=2, shrinkage=0.1)], ids=lambda f: f.name
)
def test_supervised_values_find_the_plane(finder: Any) -> None:
    fit = fitted(finder, planted(TURN))
    # Nuisances are independent of values: class means differ within the plane, but for noise.
    assert float(principal_angles(fit.directions(SITE), TURN[:, :2]).max()) < 0.25


def test_worthless_features_change_little_and_the_full_vector_everything() -> None:
    model, batch = planted(TURN), interchanges(seed=1)
    same = (batch.labels == batch.base_labels).double().mean()
    full = fitted(FullVector(), model)
    assert accuracy(model, batch, full) == 1.0
    nothing = Fit(full.featurizers, {full.sites[0]: torch.zeros(32, dtype=torch.bool)})
    assert accuracy(model, batch, nothing) == pytest.approx(float(same))
    outside = fitted(
        DAS(k=4, steps=1, batch_size=60, lr=1e-12), model, init={SITE: TURN.roll(-2, 1)}
    )
    assert accuracy(model, batch, outside) == pytest.approx(float(same))
    drawn = [accuracy(model, batch, fitted(RandomDirections(seed=i), model)) for i in range(5)]
    assert max(drawn) < 0.6
    everything = fitted(RandomDirections(k=32), model)
    assert accuracy(model, batch, everything) == 1.0


def test_classes_are_needed_where_they_are_read() -> None:
    model = planted(TURN)
    bare = InterchangeBatch.from_tokens(base=[[1, 2]], source=[[3, 4]], labels=[41])
    with pytest.raises(BadPairs, match=r"probe needs the label of every base \(base_labels\)"):
        Probe().fit(model, bare, SITE, progress=SILENT)
    one = InterchangeBatch.from_tokens(
        base=[[1, 2]] * 2, source=[[3, 4]] * 2, labels=[41, 42], base_labels=[41, 41]
    )
    with pytest.raises(BadPairs, match="at least two labels; all 2 have one"):
        DiffInMeans().fit(model, one, SITE, progress=SILENT)


D = 8


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BASIS = random_basis(D, generator(3), torch.float64)
SPREADS = torch.tensor([3.0, 2.0, 1.5, 1.0, 0.8, 0.6, 0.5, 0.4], dtype=torch.float64)
COVARIANCE = BASIS @ torch.diag(SPREADS**2) @ BASIS.T
SHIFT = torch.linspace(-1, 1, D, dtype=torch.float64)


def drawn(
    n: int, means: torch.Tensor, seed: int = 0, covariance: torch.Tensor = COVARIANCE
) -> Found:
    """Values of classes in turn, Gaussian around their means with a common covariance."""
    root = torch.linalg.cholesky(covariance)
    noise = torch.randn(n, D, generator=generator(seed), dtype=torch.float64) @ root.T
    classes = torch.arange(n) % len(means)
    return Found(Site(0), means[classes] + noise, None, classes)


def two(n: int = 20_000, seed: int = 0) -> Found:
    return drawn(n, torch.stack((-SHIFT / 2, SHIFT / 2)), seed)


def direction(finder: Any, values: Found) -> torch.Tensor:
    found = finder.find(values)
    return found.axes if isinstance(found, PrincipalAxes) else found.vectors


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    columns = [x if x.ndim == 2 else x[:, None] for x in (a, b)]
    return float(principal_angles(*columns).max())


def test_principal_axes_are_those_of_the_covariance() -> None:
    values = drawn(40_000, torch.full((1, D), 7.0, dtype=torch.float64))
    found = PCA(k=3, scaled=True).find(values)
    assert isinstance(found, PrincipalAxes)
    assert angle(found.axes[:, :1], BASIS[:, :1]) < 0.02
    assert angle(found.axes, BASIS[:, :3]) < 0.05
    assert torch.allclose(found.scale, SPREADS[:3], rtol=0.02)
    features = found.encode(values.base)
    assert torch.allclose(features.std(dim=0), torch.ones(3, dtype=torch.float64), atol=1e-6)
    assert float(features.mean(dim=0).abs().max()) < 1e-10
    # Without centring, the first axis of far values is the direction of their mean.
    ones = torch.ones(D, dtype=torch.float64)
    assert angle(direction(PCA(centred=False), values), ones) < 0.05


def test_axes_of_both_runs_and_of_few_values() -> None:
    base, source = drawn(40, SHIFT[None]), drawn(40, -SHIFT[None], seed=1)
    both = Found(base.site, base.base, source.base, base.classes)
    joined = Found(base.site, torch.cat((base.base, source.base)), None, torch.zeros(80).long())
    assert torch.allclose(direction(PCA(k=2, of="both"), both), direction(PCA(k=2), joined))
    few = Found(Site(0), base.base[:4], None, base.classes[:4])
    assert direction(PCA(k=None), few).shape == (D, 3)
    with pytest.raises(BadUsage, match="pca at resid.0@last: 4 values vary along 3 axes; got k=4"):
        PCA(k=4).find(few)


def test_the_mean_difference_is_exact_and_points_to_the_second_class() -> None:
    values = two(101)
    found = direction(DiffInMeans(), values)[:, 0]
    a, b = (values.base[values.classes == i].mean(dim=0) for i in (0, 1))
    assert torch.allclose(found, (b - a) / (b - a).norm(), atol=1e-12)
    moved = Found(values.site, values.base + 100 * SHIFT, None, values.classes)
    assert torch.allclose(direction(DiffInMeans(), moved)[:, 0], found, atol=1e-10)
    swapped = Found(values.site, values.base, None, 1 - values.classes)
    assert torch.allclose(direction(DiffInMeans(), swapped)[:, 0], -found, atol=1e-12)
    with pytest.raises(BadUsage, match="2 classes have 1 directions; got k=2"):
        DiffInMeans(k=2).find(values)


def test_means_of_several_classes_span_their_plane() -> None:
    means = torch.stack([SHIFT, BASIS[:, 0] * 3, -SHIFT - BASIS[:, 0], SHIFT + BASIS[:, 0]])
    values = drawn(40_000, means)
    plane = torch.stack((SHIFT, BASIS[:, 0]), dim=1)
    assert angle(direction(DiffInMeans(k=2), values), plane) < 0.1
    exact = Found(values.site, means, None, torch.arange(4))
    with pytest.raises(BadUsage, match="along fewer than k=3"):
        DiffInMeans(k=3).find(exact)


@pytest.mark.parametrize("finder", [LDA(), LDA(shrinkage=0.0), Probe(l2=1e-6)], ids=repr)
def test_discriminants_whiten_the_mean_difference(finder: Any) -> None:
    wanted = torch.linalg.solve(COVARIANCE, SHIFT)
    found = direction(finder, two())
    assert angle(found, wanted) < 0.1
    assert float(found[:, 0] @ wanted) > 0
    assert angle(direction(DiffInMeans(), two()), wanted) > 0.5


def test_a_probe_with_a_large_penalty_is_the_mean_difference() -> None:
    values = two(2_000)
    assert angle(direction(Probe(l2=1e9), values), direction(DiffInMeans(), values)) < 1e-3


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(("n", "l2"), [(300, 1e-2), (300, 100.0), (6, 1.0)])
def test_a_probe_is_at_the_optimum(n_classes: int, n: int, l2: float) -> None:
    means = 3 * torch.stack([SHIFT, -SHIFT, BASIS[:, 0]])[:n_classes]
    found = drawn(n, means + 50.0)
    weights, bias = logistic_weights(found.base, found.classes, l2)
    parameters = [weights.clone().requires_grad_(), bias.clone().requires_grad_()]
    scores = found.base @ parameters[0].T + parameters[1]
    logits = torch.cat((torch.zeros_like(scores), scores), dim=1) if n_classes == 2 else scores
    total = torch.nn.functional.cross_entropy(logits, found.classes, reduction="sum")
    (total + l2 / 2 * parameters[0].square().sum()).backward()
    for parameter in parameters:
        assert parameter.grad is not None
        # Of values around 50, n of them.
        assert float(parameter.grad.abs().max()) < 1e-5 * n * 50
    kind: Any = LogisticRegression
    slow = kind(C=1 / l2, tol=1e-12, max_iter=100_000, solver="newton-cholesky")
    centred = (found.base - found.base.mean(dim=0)).numpy()
    slow.fit(centred, found.classes.numpy())
    assert np.allclose(slow.coef_, weights.numpy(), atol=1e-4 * float(weights.abs().max()))


def test_two_means_of_far_clusters_are_their_difference() -> None:
    means = torch.stack((-20 * SHIFT, 20 * SHIFT))
    values = drawn(400, means, covariance=torch.eye(D, dtype=torch.float64))
    assert angle(direction(KMeans(), values), direction(DiffInMeans(), values)) < 1e-9
    assert angle(direction(PCA(), values), SHIFT) < 0.02
    far = torch.stack((20 * SHIFT, 40 * BASIS[:, 0], -20 * SHIFT))
    three = drawn(300, far, covariance=torch.eye(D, dtype=torch.float64))
    assert angle(direction(KMeans(k=2), three), direction(DiffInMeans(k=2), three)) < 1e-9
    same = Found(Site(0), torch.ones(4, D, dtype=torch.float64), None, torch.zeros(4).long())
    with pytest.raises(BadUsage, match="k-means at resid.0@last: 2 clusters need as many values"):
        KMeans().find(same)


def test_random_directions_carry_their_share() -> None:
    values = two(10)
    moved = torch.randn(D, generator=generator(8), dtype=torch.float64)
    shares = []
    for seed in range(300):
        found = direction(RandomDirections(k=2, seed=seed), values)
        shares.append(float((moved @ found).square().sum() / moved.square().sum()))
    assert np.mean(shares) == pytest.approx(2 / D, abs=0.03)
    other = Found(Site(1), values.base, None, values.classes)
    assert angle(direction(RandomDirections(), values), direction(RandomDirections(), other)) > 0.01
    with pytest.raises(BadUsage, match="so k is 1 to 8; got 9"):
        RandomDirections(k=9).find(values)


def test_values_have_to_vary() -> None:
    same = Found(Site(0), torch.ones(4, D, dtype=torch.float64), None, torch.arange(4) % 2)
    refused: list[tuple[Any, str]] = [
        (Probe(), "probe at resid.0@last needs values that vary; all are equal"),
        (DiffInMeans(), "fewer than k=1"),
        (PCA(k=None), "pca at resid.0@last needs values that vary; all 4 are equal"),
        (LDA(), "lda at resid.0@last needs values that vary within their classes; got 4"),
    ]
    for finder, match in refused:
        with pytest.raises(BadUsage, match=match):
            finder.find(same)
    # One value a class.
    alone = Found(Site(0), torch.eye(3, D, dtype=torch.float64), None, torch.arange(3))
    for shrinkage in (None, "auto"):
        with pytest.raises(BadUsage, match="vary within their classes; got 3"):
            LDA(shrinkage=shrinkage).find(alone)
    with pytest.raises(BadUsage, match="l2 above 0; got 0.0"):
        Probe(l2=0.0)
    with pytest.raises(BadUsage, match="shrinkage"):
        LDA(shrinkage="much")
