"""Arbitrary labels: one permutation of all labels, without a fixed point."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mechassay.causal_models.labels import with_arbitrary_labels
from mechassay.errors import BadPairs
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import InterchangeBatch

Label = tuple[int, ...]


def batch_of(labels: list[Label]) -> InterchangeBatch:
    n = len(labels)
    return InterchangeBatch.from_tokens(base=[[1, 2]] * n, source=[[1, 3]] * n, labels=labels)


def labels_of(batch: InterchangeBatch) -> list[Label]:
    return [tuple(t for t in row if t != NO_TOKEN) for row in batch.labels.tolist()]


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=12),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=12),
    st.integers(0, 99),
)
def test_it_is_one_permutation_in_all_batches_and_moves_every_label(
    train: list[list[int]], test: list[list[int]], seed: int
) -> None:
    # Three labels that differ in their lengths too, whatever else there is.
    before = [[(0,), (1,), (0, 1), *map(tuple, train)], list(map(tuple, test))]
    generator = torch.Generator().manual_seed(seed)
    after = list(map(labels_of, with_arbitrary_labels(list(map(batch_of, before)), generator)))
    to: dict[Label, Label] = {}
    for old, new in zip(chain(*before), chain(*after), strict=True):
        assert to.setdefault(old, new) == new and old != new
    assert set(to) == set(to.values())


def test_a_seed_says_which_and_nothing_else_changes() -> None:
    batch = batch_of([(i,) for i in range(9)])
    first, again, other = (
        with_arbitrary_labels([batch], torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1)
    )
    assert torch.equal(first.labels, again.labels) and not torch.equal(first.labels, other.labels)
    assert torch.equal(first.base, batch.base) and first.ids == batch.ids


@pytest.mark.parametrize("labels", [[(1,)] * 4, [(1,), (2,), (1,)]])
def test_fewer_than_three_labels_are_refused(labels: list[Label]) -> None:
    # Of two, the other one is what a base says anyhow: nothing to exchange would be right.
    with pytest.raises(BadPairs, match=r"at least 3 different ones; there are [12]\."):
        with_arbitrary_labels([batch_of(labels)], torch.Generator())
