"""The process that draws the circuits of an upload: `python -m mechassay.service.drawing FOLDER`.

It unpacks and reads FOLDER/upload as it was when it was checked, and writes FOLDER/drawn.json: the
title and the SVG of each part that can be drawn. Its orders come on its standard input, as those of
`service.cell`; it ends when that does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mechassay.circuits.series import is_series
from mechassay.errors import MechassayError
from mechassay.files import write_text
from mechassay.report.sections import parts as drawing_parts
from mechassay.runs.draw import cut_circuits
from mechassay.service.bundle import open_bundle
from mechassay.service.bundle_part import BundlePart
from mechassay.service.cell import read_orders
from mechassay.service.track import ServiceTrack

COMMAND = (sys.executable, "-m", "mechassay.service.drawing")
UPLOAD, DRAWN = "upload", "drawn.json"
LARGEST = 20 * 10**6
"""Bytes of an upload, and of a file in it, that is drawn."""
MOST = 6
"""Drawings of a page."""


def draw(folder: Path, track: ServiceTrack) -> Path:
    """Draw the upload in a folder; the file of the drawings.

    Raises:
        DiskFull: there is no room.
    """
    bundle = open_bundle(folder / UPLOAD, folder / "bundle", track)
    made = [
        {"title": drawn[0], "svg": drawn[1]}
        for part in bundle.parts[:MOST]
        if (drawn := _part_drawn(part, bundle.folder / part.path)) is not None
    ]
    return write_text(folder / DRAWN, json.dumps(made))


def _part_drawn(part: BundlePart, path: Path) -> tuple[str, str] | None:
    for file in _drawable(path):
        try:
            [cut] = cut_circuits([str(file)])
            svg, _, _ = drawing_parts(cut.drawing())
        except MechassayError:
            continue  # Another size may be drawn.
        return f"{part.task} in {part.model}: {cut.how}", svg
    return None


def _drawable(path: Path) -> Iterator[Path]:
    """The files of a part that may be drawn; of circuits of several sizes the first that can be."""
    files = sorted(path.iterdir()) if is_series(path) else [path]
    yield from (file for file in files if file.is_file() and file.stat().st_size <= LARGEST)


def main(folder: str) -> int:
    """Draw; 0 if it ended in a file, else 1 and one line on stderr."""
    try:
        draw(Path(folder), read_orders().track)
    except MechassayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stderr.flush()
    # Not sys.exit: it would wait for the thread that reads.
    os._exit(code)
