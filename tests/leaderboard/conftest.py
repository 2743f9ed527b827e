from __future__ import annotations

from pathlib import Path

import pytest

import mechassay as ma
from mechassay.utils.display import SILENT


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two methods on a ground truth."""
    folder = tmp_path_factory.mktemp("runs")
    job = ma.CircuitsJob(
        models=("truth-ioi",), methods=("eap", "random"), train_limit=6, test_limit=8
    )
    ma.run(job, folder / "own", progress=SILENT)
    return folder
