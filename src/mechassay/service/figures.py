"""Curves and drawings of a submission that is done.

Circuits are drawn from the uploaded file, which is unpacked and read as it was when it was checked.
A drawing is made once, and kept by the hash of the upload. Large files are not drawn here: reading
one would hold up the pages of everybody.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

from mechassay.circuits.series import is_series
from mechassay.errors import MechassayError
from mechassay.files import write_text
from mechassay.records import Record
from mechassay.report.page import Figure
from mechassay.report.sections import parts as drawing_parts
from mechassay.runs.draw import cut_circuits
from mechassay.service.bundle import BundlePart, open_bundle
from mechassay.service.lookups import SubmissionView
from mechassay.service.parts import ServiceParts

LOG = logging.getLogger("mechassay.service.figures")
LARGEST = 20 * 10**6
"""Bytes of an upload, and of a file in it, that is drawn."""
MOST = 6
"""Drawings of a page."""


def submission_figures(
    parts: ServiceParts, view: SubmissionView
) -> tuple[list[Record], list[Figure]]:
    """The records of a submission that are on a board, and drawings of its circuits.

    Raises:
        StoreAway: the store does not answer. DiskFull: there is no room for the drawings.
    """
    keys = [each.record for each in view.evaluations if each.record]
    found = [parts.boards.record_of(key) for key in keys]
    records = [record for record in found if record is not None]
    return records, _drawings(parts, view)


def _drawings(parts: ServiceParts, view: SubmissionView) -> list[Figure]:
    held = view.submission
    if held.kind != "circuits" or held.n_bytes > LARGEST:
        return []
    kept = parts.settings.folder / "drawings" / f"{held.digest}.json"
    if not kept.is_file():
        made = [{"title": title, "svg": svg} for title, svg in _drawn(parts, held.file)]
        write_text(kept, json.dumps(made))
    told = json.loads(kept.read_text("utf-8"))
    return [Figure(each["svg"], each["title"], kind="drawing") for each in told]


def _drawn(parts: ServiceParts, key: str) -> list[tuple[str, str]]:
    """The title and SVG of each part that can be drawn."""
    scratch = parts.settings.scratch / "drawings"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(dir=scratch))
    try:
        parts.store.get_file(key, folder / "upload")
        bundle = open_bundle(folder / "upload", folder / "bundle", parts.track)
        return [
            drawn
            for part in bundle.parts[:MOST]
            if (drawn := _part_drawn(part, bundle.folder / part.path)) is not None
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _part_drawn(part: BundlePart, path: Path) -> tuple[str, str] | None:
    for file in _drawable(path):
        try:
            [cut] = cut_circuits([str(file)])
            svg, _, _ = drawing_parts(cut.drawing())
        except MechassayError as error:
            LOG.info("%s, %s is not drawn: %s", part.model, part.task, error)
            continue
        return f"{part.task} in {part.model}: {cut.how}", svg
    return None


def _drawable(path: Path) -> Iterator[Path]:
    """The files of a part that may be drawn; of circuits of several sizes the first that can be."""
    files = sorted(path.iterdir()) if is_series(path) else [path]
    yield from (file for file in files if file.is_file() and file.stat().st_size <= LARGEST)
