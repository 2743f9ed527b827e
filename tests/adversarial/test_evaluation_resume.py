"""Evaluations that were killed anywhere end bit for bit the same; foreign stores are refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import mechassay as ma
from helpers.adversarial import LENGTH, N_CLEAN, N_CORRUPTED, circuits, pools
from mechassay.adversarial import evaluation as batching
from mechassay.adversarial import evaluation as prefixes
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.errors import BadFile, DiskFull, NonFinite
from mechassay.models.model import Model
from mechassay.testing.tiny import subject
from mechassay.utils.display import SILENT, Advance


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clean prompts a block, one of them at once if all columns are run,
    and two corrupted ones: several blocks, the last not full.
    """
    monkeypatch.setattr(batching, "BLOCK_TOKENS", 2 * LENGTH + 1)
    monkeypatch.setattr(batching, "RUN_TOKENS", LENGTH)
    monkeypatch.setattr(batching, "REFERENCES", 2)


class Stopped(BaseException):
    """What a killed run is simulated with."""


class Killed:
    """Progress that stops the experiment when it is told for the n-th time."""

    def __init__(self, after: int) -> None:
        self.left = after

    @contextmanager
    def track(self, label: str, total: int) -> Iterator[Advance]:
        def advance(done: int) -> None:
            self.left -= 1
            if self.left < 0:
                raise Stopped

        yield advance


class Counted:
    """Progress that adds up what it is told."""

    def __init__(self) -> None:
        self.done = self.total = 0

    @contextmanager
    def track(self, label: str, total: int) -> Iterator[Advance]:
        self.total = total

        def advance(done: int) -> None:
            self.done += done

        yield advance


def stored(
    model: Model, store: Path | None, *, grid: bool = True, progress: ma.progress.Progress = SILENT
) -> np.ndarray:
    clean, corrupted = pools() if grid else pools(N_CLEAN, N_CLEAN)
    found = evaluate_pairs(
        model, circuits(model)[1:3], clean, corrupted, grid=grid, folder=store, progress=progress
    )
    return np.concatenate((np.asarray(found.corrupted)[None], np.asarray(found.circuits)))


@pytest.mark.guard
@pytest.mark.parametrize("grid", [True, False])
def test_killed_after_any_step_the_result_is_the_same_bit_for_bit(
    grid: bool, tmp_path: Path
) -> None:
    model = subject("gpt2").model
    wanted = stored(model, None, grid=grid)
    assert stored(model, tmp_path / "undisturbed", grid=grid).tobytes() == wanted.tobytes()
    for steps in range(0, 3 + N_CORRUPTED * 3, 2) if grid else range(3):
        with pytest.raises(Stopped):
            stored(model, tmp_path / str(steps), grid=grid, progress=Killed(steps))
        counted = Counted()
        assert (
            stored(model, tmp_path / str(steps), grid=grid, progress=counted).tobytes()
            == wanted.tobytes()
        )
        assert counted.done == counted.total == wanted[0].size


@pytest.mark.guard
@pytest.mark.parametrize("grid", [True, False])
def test_killed_between_two_circuits(
    grid: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = subject("gpt2").model
    wanted, real = stored(model, None, grid=grid), batching.divergence
    for calls in (1, 4, 7) if grid else (1, 2, 5):
        left = [calls]

        def once_too_often(*args: object, left: list[int] = left) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Stopped
            return real(*args)  # pyright: ignore[reportArgumentType]

        with monkeypatch.context() as patched:
            patched.setattr(batching, "divergence", once_too_often)
            with pytest.raises(Stopped):
                stored(model, tmp_path / str(calls), grid=grid)
        assert stored(model, tmp_path / str(calls), grid=grid).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("grid", [True, False])
def test_a_block_that_is_half_there_is_done_again(grid: bool, tmp_path: Path) -> None:
    model, rng = subject("gpt2").model, np.random.default_rng(0)
    wanted = stored(model, tmp_path, grid=grid)
    for share in (0.02, 0.5):
        values = np.lib.format.open_memmap(tmp_path / "divergences.npy", mode="r+")
        values[rng.random(values.shape) < share] = np.nan
        values.flush()
        assert stored(model, tmp_path, grid=grid).tobytes() == wanted.tobytes()


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = subject("gpt2").model
    wanted = stored(model, tmp_path)
    monkeypatch.setattr(batching, "trace", None)
    assert stored(model, tmp_path).tobytes() == wanted.tobytes()


def spoil(file: Path, how: str) -> None:
    if how == "shape":
        np.save(file, np.zeros((3, N_CLEAN, N_CORRUPTED + 1), dtype=np.float32))
    elif how == "dtype":
        np.save(file, np.zeros((3, N_CLEAN, N_CORRUPTED)))
    elif how == "objects":
        np.save(file, np.array([[None]]), allow_pickle=True)
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[:-20])
    else:
        file.write_bytes(b"" if how == "empty" else b"no array")


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["shape", "dtype", "objects", "truncated", "empty", "foreign"])
def test_a_store_that_holds_something_else_is_refused(how: str, tmp_path: Path) -> None:
    model, file = subject("gpt2").model, tmp_path / "divergences.npy"
    stored(model, tmp_path)
    spoil(file, how)
    before = file.read_bytes()
    with pytest.raises(BadFile, match=r"divergences\.npy: (holds|not an array)"):
        stored(model, tmp_path)
    assert file.read_bytes() == before


@pytest.mark.parametrize("what", ["circuits", "clean", "corrupted"])
def test_a_store_of_other_circuits_or_prompts_is_refused(what: str, tmp_path: Path) -> None:
    model, (clean, corrupted) = subject("gpt2").model, pools()
    chosen = circuits(model)[:2]
    evaluate_pairs(model, chosen, clean, corrupted, folder=tmp_path, progress=SILENT)
    before = (tmp_path / "divergences.npy").read_bytes()
    if what == "circuits":
        chosen = chosen[::-1]
    elif what == "clean":
        clean = clean.select([1, 0, *range(2, N_CLEAN)])
    else:
        corrupted = corrupted.select(range(N_CORRUPTED)[::-1])
    with pytest.raises(BadFile, match="holds the divergences of other circuits or prompts"):
        evaluate_pairs(model, chosen, clean, corrupted, folder=tmp_path, progress=SILENT)
    assert (tmp_path / "divergences.npy").read_bytes() == before


def test_a_store_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: Usage(2 * 4 * 3 * N_CLEAN * N_CORRUPTED - 1)
    )
    with pytest.raises(DiskFull, match="divergences needs 360 bytes; 359 bytes are free"):
        stored(subject("gpt2").model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("grid", [True, False])
def test_what_is_not_finite_is_said_as_soon_as_its_block_is_done(
    grid: bool, tmp_path: Path
) -> None:
    model, (clean, corrupted) = subject("llama31").model, pools(N_CLEAN, N_CLEAN)
    token = int(clean.tokens[2, 5])
    assert token not in corrupted.tokens and int((clean.tokens == token).sum()) == 1
    model.decoder.embedding[token] = float("inf")
    with pytest.raises(NonFinite, match="The divergence of the corrupted run for pair 2.* is nan"):
        evaluate_pairs(
            model, circuits(model), clean, corrupted, grid=grid, folder=tmp_path, progress=SILENT
        )
    done = ~np.isnan(np.load(tmp_path / "divergences.npy")).reshape(5, N_CLEAN, -1)
    # The blocks before are there, in this one only the pairs without that token, and those after
    # were not begun.
    order = prefixes.lexicographic(clean.tokens) if grid else list(range(N_CLEAN))
    begin = order.index(2) // 2 * 2
    assert (
        done[:, order[:begin]].all()
        and not done[:, 2].any()
        and not done[:, order[begin + 2 :]].any()
    )
    assert done[:, [row for row in order[begin : begin + 2] if row != 2]].all()
