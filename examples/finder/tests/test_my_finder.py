import pytest
import torch

import mechassay as ma
from mechassay.features import principal_angles
from mechassay.features.finder import Found
from mechassay.testing import check_featurizer, check_finder, tiny
from my_finder.length import LengthAndDirection, length_alone
from my_finder.pair_differences import PairDifferences


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_it_is_a_finder(family: str) -> None:
    base, source = [[5, 7, 11], [13, 17], [3, 8]], [[2, 4], [6, 12, 9], [1, 10]]
    batch = ma.InterchangeBatch.from_tokens(base=base, source=source, labels=[20, 21, 22])
    sites = ["resid.0@last", "mlp.1@last"]
    check_finder(PairDifferences(k=2), tiny.subject(family).model, batch, sites)


def test_it_finds_the_plane_in_which_pairs_differ() -> None:
    base, steps, plane = torch.randn(38, 8, generator=torch.Generator().manual_seed(0)).split(
        (20, 16, 2)
    )
    moves = steps.reshape(-1, 2)[:20] @ plane
    site, classes = ma.sites(tiny.subject("gpt2").model)[0], torch.zeros(20).long()
    found = PairDifferences(k=2).find(Found(site, base, base + moves, classes))
    assert principal_angles(found.vectors, plane.T).max() < 1e-3


def test_it_is_a_featurizer() -> None:
    values, others = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    check_featurizer(LengthAndDirection(), values, others)


def test_the_base_gets_the_length_of_the_source() -> None:
    base, source = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 10.0]])
    new = length_alone(2).change(base, source)
    torch.testing.assert_close(new, torch.tensor([[6.0, 8.0]]))
