"""A submission on the Hugging Face hub: `hub:OWNER/NAME`, with `@REVISION` if it is not the newest.

The list of files is asked for first: what is too much is refused before anything is downloaded.
Files of data are downloaded, of one commit, and no others; nothing that comes with them is run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mechassay.circuits.formats import ENDINGS
from mechassay.errors import BadFile, BadUsage, MissingExtra, first_line
from mechassay.service.track import UploadLimits

PREFIX = "hub:"
DATA_ENDINGS = (".safetensors", *ENDINGS, ".yaml", "_featurizer", "_indices", "README.md")
"""How the files end that are downloaded; MIB's causal folders have no endings of their own."""
_ID = re.compile(r"hub:(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})(@(?P<revision>[\w./-]{1,100}))?")


def download(name: str, folder: Path, limits: UploadLimits) -> Path:
    """Download the files of data of a repository into a folder.

    Raises:
        BadUsage: no id of the hub, or more files or bytes than a submission may have.
        BadFile: the hub does not give it.
        MissingExtra: huggingface_hub is not installed.
    """
    match = _ID.fullmatch(name)
    if match is None:
        raise BadUsage(f"A submission on the hub is named hub:OWNER/NAME[@REVISION]; got {name!r}.")
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise MissingExtra("Reading a submission from the hub", "huggingface_hub", "hub") from None
    repo, revision = match["repo"], match["revision"]
    try:
        info: Any = HfApi().model_info(repo, revision=revision, files_metadata=True)
    except Exception as error:  # Which errors the hub's clients raise is not documented.
        raise BadFile(f"{name}: did not come from the hub ({first_line(error)[:200]}).") from None
    sizes = {
        each.rfilename: each.size or 0
        for each in info.siblings or ()
        if each.rfilename.endswith(DATA_ENDINGS)
    }
    total = sum(sizes.values())
    if not sizes:
        raise BadFile(f"{name}: has no files of data ({', '.join(DATA_ENDINGS)}).")
    if len(sizes) > limits.files or total > limits.n_bytes:
        raise BadUsage(
            f"{name}: {len(sizes):,} files, {total / 10**6:,.0f} MB; a submission has at most"
            f" {limits.files:,} files, {limits.megabytes:,.0f} MB. Nothing was downloaded."
        )
    try:
        patterns = [f"*{ending}" for ending in DATA_ENDINGS]
        snapshot_download(repo, revision=info.sha, local_dir=folder, allow_patterns=patterns)
    except Exception as error:  # As above.
        raise BadFile(f"{name}: did not come from the hub ({first_line(error)[:200]}).") from None
    return folder
