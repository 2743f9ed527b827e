"""Several workers in one process, and how they are refused at their start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mechassay.errors import BadFile, BadUsage, MissingExtra
from mechassay.service.worker import WorkerOptions
from mechassay.service.workers import run_workers
from small_service import Served


def test_several_workers_do_what_there_is_and_leave_no_folder(tmp_path: Path) -> None:
    served = Served.at(tmp_path / "service")
    for n in range(3):
        archive = tmp_path / f"{n}.zip"
        archive.write_bytes(str(n).encode())
        served.store.delete(served.submission(served.submit(archive)).file)
    left = served.settings.scratch / "gone.1.ab"
    left.mkdir(parents=True)
    assert run_workers(served.settings, 2, options=WorkerOptions(threads=1), once=True) == 3
    assert list(served.settings.scratch.iterdir()) == [left]


def test_workers_are_refused_at_their_start_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served.at(tmp_path / "service", splits="test, private")
    assert served.settings.private_seed_file is not None
    with pytest.raises(BadUsage, match="workers must be 1 or more"):
        run_workers(served.settings, 0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mechassay\[ray\]'"):
        run_workers(served.settings, options=WorkerOptions(engine="ray"))
    served.settings.private_seed_file.chmod(0o644)
    with pytest.raises(BadFile, match="others can read it"):
        run_workers(served.settings)
