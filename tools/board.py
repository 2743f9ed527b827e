"""Packs the runs of the project's own board: python tools/board.py runs/board docs/board.

    runs.zip     what `leaderboard build` reads: plans, records, scores that methods found
    BOARD.csv    the cells of each board

The same runs make the same bytes: names are sorted and have no times. `tools/pages.py` makes the
pages from the archive.
"""

import shutil
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from mechassay.leaderboard import BoardsFolder

KEPT = ("plan.json", "records/**/*.json", "scores/**/*.safetensors")
"""Files of a run that its board reads."""


def pack(runs: Path, target: Path) -> None:
    """Write the archive of a folder of runs, and the CSV of each board."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    folders = [plan.parent for plan in runs.rglob("plan.json")]
    files = {file for folder in folders for names in KEPT for file in folder.glob(names)}
    with ZipFile(target / "runs.zip", "w") as archive:
        for name, file in sorted((file.relative_to(runs).as_posix(), file) for file in files):
            entry = ZipInfo(name)  # Its date is the earliest that a zip can have.
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes(), ZIP_DEFLATED, 9)
    for name, board in BoardsFolder.of(runs, target).boards.items():
        (target / f"{name}.csv").write_text(board.to_csv(), "utf-8")


if __name__ == "__main__":
    pack(*map(Path, sys.argv[1:]))
