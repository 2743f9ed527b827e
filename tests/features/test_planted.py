"""A variable planted in a known subspace of a model is found; what is worthless finds nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mechassay.errors import BadPairs
from mechassay.features import (
    DAS,
    DBM,
    LDA,
    PCA,
    BoundlessDAS,
    DiffInMeans,
    Fit,
    FullVector,
    PrincipalAxes,
    Probe,
    RandomDirections,
    principal_angles,
)
from mechassay.features.directions import random_basis
from mechassay.interchange import InterchangeBatch
from mechassay.interventions.base_run import BaseRun, Branch, Change
from mechassay.models.model import Model, make_model
from mechassay.progress import SILENT
from mechassay.testing import tiny

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
