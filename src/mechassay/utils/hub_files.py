"""Files of a repository of the Hugging Face hub, `hub:OWNER/NAME[@REVISION]`, as data.

The list of files is asked for first: what is too much is refused before anything is downloaded.
Files of one commit whose names end in one of some ways are downloaded, and no others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mechassay.errors import BadFile, BadUsage, MissingExtra, first_line

HUB = "hub:"
_ID = re.compile(r"hub:(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})(@(?P<revision>[\w./-]{1,100}))?")


def check_hub_name(name: str) -> tuple[str, str | None]:
    """The repository and the revision of a name.

    Raises:
        BadUsage: it is none.
    """
    match = _ID.fullmatch(name)
    if match is None:
        raise BadUsage(f"A folder on the hub is named hub:OWNER/NAME[@REVISION]; got {name!r}.")
    return match["repo"], match["revision"]


def download(
    name: str, folder: Path, endings: Sequence[str], most_files: int, most_bytes: int
) -> Path:
    """Download the files of a repository whose names end in one of these ways into a folder.

    Raises:
        BadUsage: no id of the hub, or more files or bytes than these.
        BadFile: the hub does not give it, or it has no such file.
        MissingExtra: huggingface_hub is not installed.
    """
    repo, revision = check_hub_name(name)
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise MissingExtra("Reading a folder from the hub", "huggingface_hub", "hub") from None
    try:
        info: Any = HfApi().model_info(repo, revision=revision, files_metadata=True)
    except Exception as error:  # Which errors the hub's clients raise is not documented.
        raise BadFile(f"{name}: did not come from the hub ({first_line(error)[:200]}).") from None
    sizes = {
        sibling.rfilename: sibling.size or 0
        for sibling in info.siblings or ()
        if sibling.rfilename.endswith(tuple(endings))
    }
    total = sum(sizes.values())
    if not sizes:
        raise BadFile(f"{name}: has no files of data ({', '.join(endings)}).")
    if len(sizes) > most_files or total > most_bytes:
        raise BadUsage(
            f"{name}: {len(sizes):,} files, {total / 10**6:,.0f} MB; a submission has at most"
            f" {most_files:,} files, {most_bytes / 10**6:,.0f} MB. Nothing was downloaded."
        )
    try:
        patterns = [f"*{ending}" for ending in endings]
        snapshot_download(repo, revision=info.sha, local_dir=folder, allow_patterns=patterns)
    except Exception as error:  # As above.
        raise BadFile(f"{name}: did not come from the hub ({first_line(error)[:200]}).") from None
    return folder
