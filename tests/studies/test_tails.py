"""Weights of losses: by hand, as gradients of what they stand for,
and where there is no tail at all.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mechassay.errors import BadUsage, UnknownName
from studies.robust.tails import TAILS, CVaR, Mean, Mixture, Tail, WorstGroup, even

TEN = torch.arange(1.0, 11.0, dtype=torch.float64)
ALL: list[Any] = [Mean(), CVaR(0.3), Mixture(0.4, 0.1), WorstGroup(0.7)]


def weigh(tail: Tail, losses: Tensor, groups: Tensor | None = None) -> Tensor:
    member = torch.zeros(len(losses), dtype=torch.long) if groups is None else groups
    return tail.weights(losses, member, even(int(member.max()) + 1, losses)).losses


def value(tail: Tail, losses: Tensor, groups: Tensor | None = None) -> float:
    return float(weigh(tail, losses, groups) @ losses)


def test_the_worst_fifth_of_one_to_ten() -> None:
    assert value(CVaR(0.2), TEN) == pytest.approx(9.5)
    assert value(CVaR(1.0), TEN) == pytest.approx(5.5) == value(Mean(), TEN)
    assert value(CVaR(0.01), TEN) == pytest.approx(10)
    # A quarter of ten losses: 10, 9 and half of 8.
    assert value(CVaR(0.25), TEN) == pytest.approx((10 + 9 + 4) / 2.5)
    # 0.1 * 30 exceeds 3 in floating point; still three losses count.
    assert int((weigh(CVaR(0.1), torch.rand(30, dtype=torch.float64)) > 1e-12).sum()) == 3


def test_losses_that_tie_at_the_edge_share_what_is_left() -> None:
    losses = torch.tensor([5.0, 1.0, 5.0, 9.0, 5.0], dtype=torch.float64)
    # Two of five: 9 whole, and the other place is shared by three.
    assert weigh(CVaR(0.4), losses).tolist() == pytest.approx([1 / 6, 0, 1 / 6, 1 / 2, 1 / 6])


def test_mixtures() -> None:
    assert torch.equal(weigh(Mixture(1.0, 0.2), TEN), weigh(Mean(), TEN))
    assert torch.allclose(weigh(Mixture(0.0, 0.2), TEN), weigh(CVaR(0.2), TEN))
    assert value(Mixture(0.25, 0.2), TEN) == pytest.approx(0.25 * 5.5 + 0.75 * 9.5)


def test_weights_of_groups_by_hand() -> None:
    """Group 1 is worse by ln 2 in the mean, so one update doubles its weight against group 0's."""
    losses = torch.tensor([1.0, 1.0, 1.0, 1.0 + torch.log(torch.tensor(2.0))], dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1])
    found = WorstGroup(1.0).weights(losses, groups, even(2, losses))
    assert found.groups.tolist() == pytest.approx([1 / 3, 2 / 3], rel=1e-6)
    assert found.losses.tolist() == pytest.approx([1 / 9, 1 / 9, 1 / 9, 2 / 3], rel=1e-6)
    assert weigh(WorstGroup(0.0), losses, groups).tolist() == pytest.approx(
        [1 / 6, 1 / 6, 1 / 6, 1 / 2]
    )


def test_the_worst_group_gets_nearly_all() -> None:
    losses, groups = (
        torch.tensor([1.0, 2.0, 3.0, 2.0], dtype=torch.float64),
        torch.tensor([0, 0, 1, 2]),
    )
    standing = even(3, losses)
    for _ in range(20):
        found = WorstGroup(1.0).weights(losses, groups, standing)
        standing = found.groups
    assert float(found.losses[2]) > 0.999 and float(standing.sum()) == pytest.approx(1)
    # A group that is not there keeps its weight, and those that are share a whole.
    found = WorstGroup(1.0).weights(
        losses[:2], groups[:2], torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    )
    assert found.groups.tolist() == pytest.approx(
        [0.2, 0.5, 0.3]
    ) and found.losses.tolist() == pytest.approx([0.5, 0.5])


def test_losses_beyond_the_range_of_exp() -> None:
    losses, groups = torch.tensor([1e6, 0.0], dtype=torch.float64), torch.tensor([0, 1])
    assert weigh(WorstGroup(1.0), losses, groups).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("tail", ALL, ids=lambda tail: tail.name)
def test_where_all_losses_are_equal_pairs_count_alike(tail: Tail) -> None:
    """The worthless case. Groups of one size each, as worst-group weighs groups and not pairs."""
    losses = torch.full((6,), 3.0, dtype=torch.float64)
    assert weigh(tail, losses, torch.tensor([0, 1, 2, 0, 1, 2])).tolist() == pytest.approx(
        [1 / 6] * 6
    )


@pytest.mark.parametrize("tail", ALL, ids=lambda tail: tail.name)
@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_weights_are_shares_that_do_not_hang_on_the_order_and_rise_with_the_loss(
    tail: Tail, n: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    losses = torch.rand(n, generator=generator, dtype=torch.float64).mul(8).round()
    groups = torch.randint(3, (n,), generator=generator)
    standing = even(3, losses)
    found = tail.weights(losses, groups, standing)
    assert float(found.losses.min()) >= 0 and float(found.losses.sum()) == pytest.approx(1)
    assert float(found.groups.sum()) == pytest.approx(1)
    order = torch.randperm(n, generator=generator)
    torch.testing.assert_close(
        tail.weights(losses[order], groups[order], standing).losses, found.losses[order]
    )
    if not isinstance(tail, WorstGroup):
        assert float(found.losses @ losses) >= float(losses.mean()) - 1e-12
        assert bool((found.losses[losses.argsort()].diff() >= -1e-12).all())


@pytest.mark.parametrize(
    ("tail", "written"),
    [
        (CVaR(0.3), lambda losses: losses.sort(descending=True).values[:3].mean()),
        (
            Mixture(0.4, 0.2),
            lambda losses: (
                0.4 * losses.mean() + 0.6 * losses.sort(descending=True).values[:2].mean()
            ),
        ),
        # The least t + E(L - t)_+ / alpha, which is how Rockafellar and Uryasev define it; the
        # least is at the third largest.
        (
            CVaR(0.25),
            lambda losses: (
                (t := losses.sort().values[-3]) + (losses - t).clamp(min=0).mean() / 0.25
            ),
        ),
        (
            WorstGroup(0.5),
            lambda losses: (
                torch.softmax(0.5 * losses.view(5, 2).mean(1).detach(), 0)
                @ losses.view(5, 2).mean(1)
            ),
        ),
    ],
)
def test_weights_are_the_gradient(tail: Tail, written: Any) -> None:
    losses = torch.rand(
        10, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    ).requires_grad_()
    total = written(losses)
    (slope,) = torch.autograd.grad(total, losses)
    weights = weigh(tail, losses.detach(), torch.arange(10) // 2)
    torch.testing.assert_close(weights, slope)
    assert float(weights @ losses.detach()) == pytest.approx(float(total.detach()))


def test_tails_by_name() -> None:
    assert TAILS.make("mixture:weight=0.25,alpha=0.1") == Mixture(0.25, 0.1)
    assert TAILS.names() == ["cvar", "mean", "mixture", "worst-group"]
    with pytest.raises(UnknownName, match="Did you mean 'cvar'"):
        TAILS.make("cvr")


def test_what_is_refused() -> None:
    for alpha in (0.0, 1.5, float("nan")):
        with pytest.raises(BadUsage, match="above 0 and at most 1"):
            CVaR(alpha)
        with pytest.raises(BadUsage, match="above 0 and at most 1"):
            Mixture(0.5, alpha)
    with pytest.raises(BadUsage, match="between 0 and 1; got 2"):
        Mixture(2.0)
    with pytest.raises(BadUsage, match="finite and 0 or more; got -1"):
        WorstGroup(-1.0)
    for tail in ALL:
        with pytest.raises(BadUsage, match="one finite loss or more; got none"):
            tail.weights(torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.ones(1))
        with pytest.raises(BadUsage, match="one finite loss or more; got \\[nan\\]"):
            tail.weights(
                torch.tensor([float("nan")]), torch.zeros(1, dtype=torch.long), torch.ones(1)
            )
