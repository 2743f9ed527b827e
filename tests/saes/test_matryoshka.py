"""Matryoshka: errors of nested dictionaries are summed, and the first ones stand alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.progress import SILENT
from mechassay.saes import SAESettings, prefix_of, train_sae
from mechassay.saes.learners.matryoshka import MatryoshkaLearner
from planted_store import ACTIVE, D, N, explained, planted

SETTINGS = SAESettings(
    "matryoshka", N, ACTIVE, prefixes=(6, 12, N), steps=200, batch_size=128, lr=1e-2
)


@pytest.mark.parametrize("inner", ["batchtopk", "topk"])
def test_prefixes_are_dictionaries_of_the_first_features(inner: str) -> None:
    """Against dense codes whose later features are put to zero."""
    settings = replace(SETTINGS, inner=inner)  # pyright: ignore[reportArgumentType]
    drawn = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(N, D, generator=drawn), dim=1)
    learner = MatryoshkaLearner(settings, rows)
    x = torch.randn(50, D, generator=drawn)
    coded = learner.code(x, 0)
    pre = x @ rows.mT
    if inner == "topk":
        least = pre.topk(ACTIVE, dim=1).values[:, -1:]
    else:
        least = pre.flatten().topk(50 * ACTIVE).values[-1]
    f = torch.where(pre >= least, pre, 0.0).relu()
    slow = [f[:, :m] @ rows[:m] for m in (6, 12, N)]
    for fast, each in zip((*coded.prefixes, coded.decoded), slow, strict=True):
        assert torch.allclose(fast, each, atol=1e-5)
    assert torch.equal(coded.fired, (f > 0).any(dim=0))


def test_the_first_prefix_stands_alone() -> None:
    """It explains more than the first features of a TopK SAE do, which know of the others."""
    store, _ = planted(2000)
    nested = train_sae(store, SETTINGS, progress=SILENT).sae
    plain = train_sae(store, replace(SETTINGS, architecture="topk"), progress=SILENT).sae
    first = [explained(prefix_of(sae, 6), store.held) for sae in (nested, plain)]
    assert first[0] > first[1] + 0.1
    assert explained(nested, store.held) > 0.75


def test_a_prefix_by_hand() -> None:
    eye = torch.eye(3)
    sae = SAE(eye, eye, torch.zeros(3), torch.zeros(3), "topk", k=2)
    h = torch.tensor([[1.0, 2.0, 3.0]])
    assert sae.encode(h).tolist() == [[0, 2, 3]]
    two, one = prefix_of(sae, 2), prefix_of(sae, 1)
    assert two.encode(h).tolist() == [[1, 2]] and two.k == 2
    assert one.reconstruct(h).tolist() == [[1, 0, 0]] and one.k == 1
    jumping = replace(sae, activation="jumprelu", k=None, threshold=torch.tensor([0.5, 2.5, 0.5]))
    assert prefix_of(jumping, 2).encode(h).tolist() == [[1, 0]]
    for n in (0, 4):
        with pytest.raises(BadUsage, match=f"1 to 3 features; got {n}"):
            prefix_of(sae, n)
