"""A run that is killed, by force or by Ctrl-C,
goes on where it was and ends bit for bit the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch

from helpers.tiny_models import with_words
from mechassay.circuits import EdgeScores
from mechassay.circuits.methods.exact_patching import ExactPatching
from mechassay.cli.main import main
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.runs.cells import cell_name
from mechassay.runs.names import name_of
from mechassay.runs.run import run
from mechassay.utils.display import SILENT
from mechassay.utils.files import read_tensors

Undisturbed = Callable[[str], torch.Tensor]

STACK_TOKENS = 256
SLOW = f"""
import signal, sys, time
from mechassay.utils import checkpoint
from mechassay.circuits.methods.exact_patching import ExactPatching
from mechassay.cli.main import main

# Many small blocks, a checkpoint after each, and time to be killed in between.
ExactPatching.stack_tokens = {STACK_TOKENS}
checkpoint.EVERY_SECONDS = 0.0
# Where tests run in the background a shell has interrupts ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
done = checkpoint.State.done
checkpoint.State.done = lambda state, cursor: (done(state, cursor), time.sleep(0.05))[0]
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model, tokenizer = with_words()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def words_of(folder: Path, out: Path, method: str) -> list[str]:
    return [
        "circuits",
        "run",
        "-m",
        str(folder),
        "-t",
        "ioi",
        "--train-limit",
        "3",
        "--limit",
        "4",
        "-o",
        str(out),
        "--method",
        "eap",
        "--method",
        method,
    ]


def start(folder: Path, out: Path, method: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, *words_of(folder, out, method)],
        # One thread, as in this process (`as_there`): sums depend on it.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def as_there() -> Iterator[None]:
    """Blocks and threads of the other process, in this one."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactPatching, "stack_tokens", STACK_TOKENS)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def wait_for_checkpoint(file: Path, cursor: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        if file.is_file() and read_tensors(file, "checkpoint")[1]["cursor"] >= cursor:
            return
        time.sleep(0.05)
    raise AssertionError("the run wrote no checkpoint in time")


@pytest.fixture(scope="module")
def undisturbed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    @cache
    def scores(method: str) -> torch.Tensor:
        out = tmp_path_factory.mktemp("runs") / "undisturbed"
        experiment = CircuitsExperiment(
            (str(folder),), ("ioi",), (method,), train_limit=3, stage="localize"
        )
        with as_there():
            run(experiment, out, progress=SILENT)
        return EdgeScores.load(scores_file(out, folder, method)).values

    return scores


def scores_file(out: Path, folder: Path, method: str) -> Path:
    group = cell_name(name_of(str(folder), "models"), "ioi")
    return out / "scores" / group / f"{method.replace(':', ' ')}.safetensors"


@pytest.mark.parametrize(
    ("method", "how"),
    [
        pytest.param("exact", signal.SIGKILL, marks=pytest.mark.guard),
        pytest.param("exact", signal.SIGINT, marks=pytest.mark.guard),
        pytest.param(
            "subnetwork-probing:steps=12,batch_size=2", signal.SIGKILL, marks=pytest.mark.guard
        ),
    ],
)
def test_a_killed_run_is_taken_up(
    method: str, how: signal.Signals, folder: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    out, expected = tmp_path / "out", undisturbed(method)
    file = scores_file(out, folder, method)
    checkpoint = file.with_suffix(".checkpoint")
    process = start(folder, out, method)
    wait_for_checkpoint(checkpoint, 3, process)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "goes on from there" in err
    assert scores_file(out, folder, "eap").is_file()
    assert not file.exists()
    kept = read_tensors(checkpoint, "checkpoint")[1]["cursor"]
    assert kept >= 3

    with as_there(), pytest.raises(SystemExit) as ended:
        main(words_of(folder, out, method))
    assert not ended.value.code
    values = EdgeScores.load(file).values
    assert torch.equal(values.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert not checkpoint.exists()
    assert (out / "report.html").is_file()
