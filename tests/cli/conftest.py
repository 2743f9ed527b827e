"""A tiny model on disk that can read the IOI task, and a runner of the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.tiny_models import with_words
from mechassay.cli.main import main


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model, tokenizer = with_words()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@dataclass(frozen=True)
class Outcome:
    """What a command left behind: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The error message, which has to be one line; plans and notes may stand before it."""
        told = ("plan: ", "note: ")
        lines = [line for line in self.err.strip().splitlines() if not line.startswith(told)]
        assert len(lines) == 1, self.err
        return lines[0]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*words: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        code = stopped.value.code
        shown = capsys.readouterr()
        return Outcome(code if isinstance(code, int) else 0, shown.out, shown.err)

    return call
