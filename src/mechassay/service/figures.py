"""Curves and drawings of a submission that is done.

Circuits are drawn from the uploaded file by a process of its own (`drawing`), within limits of time
and memory: the file is of others. One is drawn at a time. What comes of it is kept by the hash of
the upload, also that nothing did. Large files are not drawn.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from pathlib import Path
from tempfile import mkdtemp

from mechassay.files import write_text
from mechassay.records import Record
from mechassay.report.page import Figure
from mechassay.service.answers import TooMany
from mechassay.service.cell import CellOrders
from mechassay.service.drawing import COMMAND, DRAWN, LARGEST, UPLOAD
from mechassay.service.evaluation import run_child
from mechassay.service.lookups import SubmissionView
from mechassay.service.parts import ServiceParts
from mechassay.service.track import CellLimits, ServiceTrack

LOG = logging.getLogger("mechassay.service.figures")
LIMITS = CellLimits(seconds=60, memory_gb=2)
UNPACKED = 100.0
"""MB of an upload that is unpacked to be drawn."""
_DRAWING = threading.Lock()


def submission_figures(
    parts: ServiceParts, view: SubmissionView
) -> tuple[list[Record], list[Figure]]:
    """The records of a submission that are on a board, and drawings of its circuits.

    Raises:
        StoreAway: the store does not answer. DiskFull: there is no room for the drawings.
        TooMany: another submission is being drawn.
    """
    return list(parts.boards.records_of(view).values()), _drawings(parts, view)


def _drawings(parts: ServiceParts, view: SubmissionView) -> list[Figure]:
    held = view.submission
    if held.kind != "circuits" or held.n_bytes > LARGEST:
        return []
    kept = parts.settings.folder / "drawings" / f"{held.digest}.json"
    if not kept.is_file():
        if not _DRAWING.acquire(blocking=False):
            raise TooMany("Another submission is being drawn; try again in a moment.")
        try:
            write_text(kept, _drawn(parts, held.file))
        finally:
            _DRAWING.release()
    told = json.loads(kept.read_text("utf-8"))
    return [Figure(each["svg"], each["title"], kind="drawing") for each in told]


def _drawn(parts: ServiceParts, key: str) -> str:
    """The title and SVG of each part that can be drawn, as JSON."""
    scratch = parts.settings.scratch / "drawings"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(dir=scratch))
    try:
        parts.store.get_file(key, folder / UPLOAD)
        orders = CellOrders(track=_small(parts.track), threads=1)
        end = run_child((str(folder),), orders, LIMITS, threading.Event(), command=COMMAND)
        file = folder / DRAWN
        if file.is_file():
            return file.read_text("utf-8")
        LOG.warning("%s is not drawn: %s", key, end.message)
        return "[]"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _small(track: ServiceTrack) -> ServiceTrack:
    """A track that unpacks less."""
    upload = track.upload
    less = upload.model_copy(update={"megabytes": min(UNPACKED, upload.megabytes)})
    return track.model_copy(update={"upload": less})
