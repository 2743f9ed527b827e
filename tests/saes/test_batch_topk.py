"""BatchTopK: as many features as asked for on average, and one threshold afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mechassay.progress import SILENT
from mechassay.saes import SAESettings, load_sae, train_sae
from mechassay.saes.learners.batch_topk import BatchTopKLearner, largest_of_batch, mean_smallest
from planted_store import ACTIVE, N, planted


@pytest.mark.parametrize("shape", [(1, 3), (5, 7), (64, 300), (40, 122)])
@pytest.mark.parametrize("k", [1, 3])
def test_the_largest_are_those_of_a_full_sort(shape: tuple[int, int], k: int) -> None:
    pre = torch.randn(*shape, generator=torch.Generator().manual_seed(k))
    # A bound from every so many numbers must not be fooled where a few rows have all large ones.
    pre[: shape[0] // 4] += 3.0
    places, found = largest_of_batch(pre, k)
    wanted = pre.flatten().sort(descending=True).values[: shape[0] * k]
    assert torch.equal(found.sort(descending=True).values, wanted)
    assert torch.equal(pre[places.rows, places.features], found)
    assert torch.equal(places.rows, places.rows.sort().values)


def test_largest_of_equal_numbers() -> None:
    places, found = largest_of_batch(torch.zeros(64, 122), 2)
    assert len(found) == len(places.rows) == 128 and not found.any()
    assert len({*zip(places.rows.tolist(), places.features.tolist(), strict=True)}) == 128


def test_the_threshold_is_the_mean_smallest_feature() -> None:
    """Identity weights: features are the values. Of 2 x 1 largest, the smaller are 2 and 5."""
    settings = SAESettings("batchtopk", n_features=3, k=1)
    learner = BatchTopKLearner(settings, torch.eye(3))
    one = torch.tensor([[3.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    two = torch.tensor([[5.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    none = torch.full((2, 3), -1.0)
    assert mean_smallest(learner, [one, two, none], 1) == pytest.approx(3.5)
    assert mean_smallest(learner, [none], 1) == 0.0
    coded = learner.code(one, 0)
    assert coded.decoded.tolist() == [[3, 2, 0], [0, 0, 0]]
    assert coded.fired.tolist() == [True, True, False]


def test_k_features_are_active_on_average(tmp_path: Path) -> None:
    """In inference by the threshold, which is saved; values may have more and fewer."""
    store, _ = planted(2000)
    settings = SAESettings("batchtopk", N, ACTIVE, steps=150, batch_size=128, lr=1e-2)
    found = train_sae(store, settings, progress=SILENT)
    counts = (found.sae.encode(store.held) != 0).sum(1).double()
    assert float(counts.mean()) == pytest.approx(ACTIVE, rel=0.15)
    assert int(counts.min()) < int(counts.max())
    again = load_sae(found.save(tmp_path / "sae"))
    assert again.activation == "jumprelu" and again.threshold is not None
    assert len(set(again.threshold.tolist())) == 1 and float(again.threshold[0]) > 0
    assert torch.equal(again.encode(store.held), found.sae.encode(store.held))
