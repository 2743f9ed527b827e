"""Checkpoints: taken up only by the same experiment, never in the way of another.

The loop of steps: what a killed training goes on with, early stopping, rates, and clipping.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from mechassay.circuits import EAP, ExactNodePatching, ExactPatching, InformationFlowRoutes
from mechassay.circuits.methods import eap as gradient
from mechassay.circuits.methods import ifr
from mechassay.circuits.methods.exact_patching import PatchingMethod
from mechassay.circuits.methods.method import AnyMethod
from mechassay.errors import BadUsage
from mechassay.models import memory
from mechassay.testing.tiny import subject
from mechassay.utils.checkpoint import Order, State, checkpointed, descend, key_of
from mechassay.utils.display import SILENT


def add_up(
    path: Path | None, key: str, stop_at: int | None = None
) -> tuple[torch.Tensor, list[int]]:
    total, visited = torch.zeros(3, dtype=torch.float64), []
    with checkpointed(path, key, {"total": total}) as state:
        begin = state.cursor
        for part in range(begin, 6):
            if part == stop_at:
                raise KeyboardInterrupt
            visited.append(part)
            state.add(part + 1, total=torch.full_like(total, 0.1 * (part + 1)))
        return state.tensors["total"], visited


def test_goes_on_where_it_was(tmp_path: Path) -> None:
    file, key = tmp_path / "a.checkpoint", key_of({"a": 1})
    with pytest.raises(KeyboardInterrupt):
        add_up(file, key, stop_at=4)
    total, visited = add_up(file, key)
    assert visited == [4, 5]
    assert torch.equal(total, add_up(None, key)[0])
    assert not file.exists()


def test_another_experiment_starts_over(tmp_path: Path) -> None:
    file = tmp_path / "a.checkpoint"
    with pytest.raises(KeyboardInterrupt):
        add_up(file, key_of({"a": 1}), stop_at=4)
    assert add_up(file, key_of({"a": 2}))[1] == [0, 1, 2, 3, 4, 5]


def test_an_unreadable_file_means_starting_over(tmp_path: Path) -> None:
    file = tmp_path / "a.checkpoint"
    file.write_bytes(b"half a file")
    assert add_up(file, "key")[1] == [0, 1, 2, 3, 4, 5]


def test_keys_depend_on_every_setting() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})


class _InterruptAt:
    """Ctrl-C before the n-th bytecode that `State.add` runs:
    Python looks at signals between bytecodes alone.
    """

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not State.add.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def test_an_interrupt_anywhere_leaves_no_part_half_counted(tmp_path: Path) -> None:
    expected, file, before, n = add_up(None, "key")[0], tmp_path / "a.checkpoint", sys.gettrace(), 0
    cursors: set[int] = set()
    while True:
        n += 1
        sys.settrace(_InterruptAt(n))
        try:
            total, _ = add_up(file, "key")
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        total, visited = add_up(file, "key")
        assert torch.equal(total, expected), n
        cursors.add(visited[0] if visited else 6)
    # Interrupted within every part, and the one that was being added was there or not, according to
    # when.
    assert torch.equal(total, expected) and cursors == set(range(7)) and n > 60


PLACES = {
    "eap": (EAP(), gradient, "contract"),
    "exact": (ExactPatching(layers=(0, -1)), ExactPatching, "add"),
    "exact-nodes": (ExactNodePatching(), ExactNodePatching, "add"),
    "ifr": (InformationFlowRoutes(), ifr._Shares, "add"),
}


@pytest.mark.parametrize("name", PLACES)
def test_interrupted_while_adding_ends_bit_for_bit_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after a part is half or wholly added, but before it is done."""
    method, owner, attribute = PLACES[name]
    kept: AnyMethod = method
    tiny, file, add = (
        subject("gpt2", n_pairs=4),
        tmp_path / "a.checkpoint",
        getattr(owner, attribute),
    )
    monkeypatch.setattr(memory, "CPU_BUDGET", 1)
    monkeypatch.setattr(PatchingMethod, "stack_tokens", 16)
    expected = kept.score(tiny.model, tiny.batch, progress=SILENT).values
    calls: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        add(*args, **kwargs)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, interrupted)
        with pytest.raises(KeyboardInterrupt):
            kept.score(tiny.model, tiny.batch, progress=SILENT, checkpoint=file)
    assert file.is_file()
    values = kept.score(tiny.model, tiny.batch, progress=SILENT, checkpoint=file).values
    assert torch.equal(values.nan_to_num(9.0), expected.nan_to_num(9.0)) and not file.exists()


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
    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
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
    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
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
