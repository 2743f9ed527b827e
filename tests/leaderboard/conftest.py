from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mechassay as ma
from mechassay.utils.display import SILENT


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two methods on a ground truth."""
    folder = tmp_path_factory.mktemp("runs")
    experiment = ma.CircuitsExperiment(
        models=("truth-ioi",),
        methods=("eap", "random"),
        train_limit=6,
        limit=8,
        random_rankings=5,
    )
    ma.run(experiment, folder / "own", progress=SILENT)
    return folder


@pytest.fixture(scope="session", autouse=True)
def few_random_rankings() -> Iterator[None]:
    """Boards draw random rankings for ten rows; what is tested here does not depend on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mechassay.leaderboard.evaluate.MANY_ROWS", 1)
        yield
