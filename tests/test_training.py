"""The loop of steps: what a killed training goes on with, early stopping, rates, and clipping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.training import Order, descend


class Killed(Exception):
    pass


def fit(
    kind: type[torch.optim.Optimizer],
    checkpoint: Path | None = None,
    *,
    steps: int = 12,
    killed_at: int | None = None,
    **options: Any,
) -> tuple[list[Tensor], list[int], int]:
    """Two groups of parameters that follow random examples: their values, the steps that were
    taken, and how far the bar got.
    """
    a, b = torch.full((3,), 2.0), torch.full((2, 2), -1.0)
    x = torch.linspace(-1, 1, 21).view(7, 3)
    order, generator = Order(7, 3), torch.Generator().manual_seed(4)
    done: list[int] = []
    bar: list[int] = []

    def differentiate(step: int) -> None:
        if step == killed_at:
            raise Killed
        rows = order.draw(generator)
        noise = torch.rand(3, generator=generator)
        (
            ((x[rows] * a.requires_grad_()).sum(1) - noise).square().sum() + b.square().sum()
        ).backward()
        done.append(step)

    groups = [{"params": [a.requires_grad_()]}, {"params": [b.requires_grad_()], "lr": 0.2}]
    descend(
        differentiate,
        kind(groups, lr=0.1),  # pyright: ignore[reportCallIssue]
        steps,
        advance=bar.append,
        checkpoint=checkpoint,
        generator=generator,
        also=order.kept,
        **options,
    )
    return [a.detach(), b.detach()], done, sum(bar)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("killed_at", [1, 5, 11])
def test_a_killed_training_ends_bit_for_bit_the_same(
    kind: type[torch.optim.Optimizer],
    killed_at: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mechassay.checkpoint.EVERY_SECONDS", 0.0)
    file = tmp_path / "a.checkpoint"
    expected, _, _ = fit(kind)
    with pytest.raises(Killed):
        fit(kind, file, killed_at=killed_at)
    values, done, bar = fit(kind, file)
    assert done == list(range(killed_at, 12)) and bar == 12 and not file.exists()
    assert all(torch.equal(*pair) for pair in zip(values, expected, strict=True))


def test_a_training_that_has_stopped_takes_no_further_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mechassay.checkpoint.EVERY_SECONDS", 0.0)
    file = tmp_path / "a.checkpoint"
    for expected in (list(range(5)), []):
        _, done, bar = fit(torch.optim.Adam, file, key="a", keep=True, stop=lambda step: step == 4)
        assert done == expected and bar == 12 and file.is_file()
    # Another key is another training.
    assert fit(torch.optim.Adam, file, key="b")[1] == list(range(12))


def test_rates_and_clips() -> None:
    """Descent by hand: one step at rate 1, one at 0, the gradient of each group of norm 0.5."""
    (a, b), _, _ = fit(torch.optim.SGD, steps=2, schedule=lambda step: float(step == 0), clip=0.5)
    assert float((a - 2).norm()) == pytest.approx(0.5, rel=1e-4)
    torch.testing.assert_close(b, torch.full((2, 2), -0.75), rtol=1e-4, atol=0)


def test_an_optimiser_whose_state_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="by Adam or AdamW .*; got SGD"):
        fit(torch.optim.SGD, tmp_path / "a.checkpoint")


def test_an_order_takes_every_row_once_before_it_is_drawn_anew() -> None:
    order, generator = Order(6, 2), torch.Generator().manual_seed(0)
    for _ in range(2):
        assert sorted(row for _ in range(3) for row in order.draw(generator)) == list(range(6))
    assert sorted(Order(3, 8).draw(generator)) == [0, 1, 2]
