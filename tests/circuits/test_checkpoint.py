"""Checkpoints: taken up only by the same job, never in the way of another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mechassay.circuits.checkpoint import checkpointed, key_of


def add_up(path: Path | None, key: str, stop_at: int | None = None) -> tuple[torch.Tensor, list[int]]:
    total, visited = torch.zeros(3, dtype=torch.float64), []
    with checkpointed(path, key, {"total": total}) as state:
        begin = state.cursor
        for part in range(begin, 6):
            if part == stop_at:
                raise KeyboardInterrupt
            visited.append(part)
            total += 0.1 * (part + 1)
            state.done(part + 1)
    return total, visited


def test_goes_on_where_it_was(tmp_path: Path) -> None:
    file, key = tmp_path / "a.checkpoint", key_of({"a": 1})
    with pytest.raises(KeyboardInterrupt):
        add_up(file, key, stop_at=4)
    total, visited = add_up(file, key)
    assert visited == [4, 5]
    assert torch.equal(total, add_up(None, key)[0])
    assert not file.exists()


def test_another_job_starts_over(tmp_path: Path) -> None:
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
