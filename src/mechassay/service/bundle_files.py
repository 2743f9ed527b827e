"""The files of a submission's folder: which there are, and the hash of all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from mechassay.files import file_hash
from mechassay.service.track import ServiceTrack
from mechassay.submissions import LEADS_OUT, Problems, leads_out

DEEPEST = 8
"""Folders in folders that are looked into."""


def files_in(folder: Path, track: ServiceTrack, problems: Problems) -> list[Path]:
    """All files below a folder, sorted by path; what is none, or too much, is a problem."""
    found: list[Path] = []
    waiting = [folder]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            name = path.relative_to(folder)
            if name.parts[0] in (".git", ".cache"):
                continue
            if leads_out(path, folder):
                problems.note(name.as_posix(), LEADS_OUT)
            elif path.is_dir():
                if path.is_symlink():
                    problems.note(name.as_posix(), "a link to a folder; copy the folder here.")
                elif len(name.parts) > DEEPEST:
                    problems.note(name.as_posix(), f"more than {DEEPEST} folders deep.")
                else:
                    waiting.append(path)
            elif path.is_file():
                found.append(path)
            else:
                problems.note(name.as_posix(), "is no regular file.")
    limits, total = track.upload, sum(path.stat().st_size for path in found)
    if len(found) > limits.files:
        problems.note(".", f"{len(found):,} files; at most {limits.files:,} are allowed.")
    if total > limits.n_bytes:
        said = f"{total / 10**6:,.0f} MB; at most {limits.megabytes:,.0f} MB are allowed."
        problems.note(".", said)
    return sorted(found)


def digest_of(folder: Path, files: Iterable[Path]) -> str:
    """The SHA-256 of paths and of the hashes of their files."""
    told = [(path.relative_to(folder).as_posix(), file_hash(path)) for path in files]
    return hashlib.sha256(json.dumps(sorted(told)).encode()).hexdigest()
