"""The study of chance, on made pools: what random rankings earn, and what a good one would."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mechassay.stats.chance import chance_limit
from studies.chance import __main__ as study


def a_pool(rng: np.random.Generator, n: int = 100) -> dict[tuple[str, str], np.ndarray]:
    """Areas with a long tail to the good side, as random rankings have."""
    return {(kind, area): rng.exponential(size=n) for kind in study.KINDS for area in study.AREAS}


def test_the_usual_limit_by_hand() -> None:
    """Draws 0 to 4: mean 2, variance 2.5; t of 4 degrees at .95 is 2.1318."""
    assert study.usual_limit(np.arange(5.0)) == pytest.approx(2 + 2.13185 * np.sqrt(3), abs=1e-4)


def test_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "N_RUNS", 400)
    rng = np.random.default_rng(0)
    areas = a_pool(rng)
    strict, usual = (
        study.rate(areas, "cpr", 16, 5, limit, np.random.default_rng(1))
        for limit in (chance_limit, study.usual_limit)
    )
    assert 0 < strict < usual, "the same runs, with a higher and a lower limit"
    # What no control could be beyond is always called good; what is like all, never.
    assert study.rate(areas, "cpr", 1, 5, lambda *_, **__: -1.0, rng) == 1
    equal = {key: np.ones(100) for key in areas}
    assert study.rate(equal, "cpr", 16, 5, chance_limit, rng) == 0


def test_a_pool_that_is_kept_is_not_scored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "FOLDER", tmp_path)
    monkeypatch.setattr(study, "N_RUNS", 5)
    held = {
        " ".join(key): areas.tolist() for key, areas in a_pool(np.random.default_rng(0)).items()
    }
    (tmp_path / "mine.json").write_text(json.dumps(held))
    rows = study.table(("mine",)).splitlines()
    assert len(rows) == 2 + len(study.AREAS) * len(study.TRIED)
    # A hundred rankings are too few for 20 of each of 16 methods: the cell is empty.
    assert rows[-1].split(" | ")[5] == ""
