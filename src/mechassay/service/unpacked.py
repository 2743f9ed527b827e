"""The folders of a worker in which submissions are unpacked; nobody else works in them."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import psutil

FOLDERS = 4
"""Submissions that a worker keeps unpacked."""


class UnpackedSubmissions:
    """What a worker keeps unpacked, for cells to come.

    Args:
        folder: of the worker.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Path] = {}

    def of(self, submission: str) -> Path:
        """The folder of a submission; of several the longest unused goes."""
        folder = self._known.pop(submission, self._folder / submission)
        self._known[submission] = folder
        while len(self._known) > FOLDERS:
            self._remove(next(iter(self._known)))
        return folder

    def clear(self) -> None:
        """Remove all of them: the disk may be full of what is kept."""
        while self._known:
            self._remove(next(iter(self._known)))

    def _remove(self, submission: str) -> None:
        shutil.rmtree(self._known.pop(submission), ignore_errors=True)


def sweep(scratch: Path) -> None:
    """Remove the folders of workers of this machine that are gone."""
    for folder in scratch.glob(f"{socket.gethostname()}.*.*"):
        pid = folder.name.rsplit(".", 2)[1]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
