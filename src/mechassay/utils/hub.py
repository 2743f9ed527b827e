"""Files of data in a repository of the Hugging Face hub, of one commit, and no others.

What a repository holds is asked for first; so what is too much is refused before anything is
downloaded, and what is no data (a pickle, code, a page) never is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any

from mechassay.errors import BadFile, BadUsage, MissingExtra, first_line

REASONS = {
    "RepositoryNotFoundError": "there is no such repository, or it is private: `hf auth login`",
    "RevisionNotFoundError": "it has no such revision",
}
"""What errors of the hub's client mean, by the names of their classes."""
UNAUTHORIZED = 401
HUB = "hub:"
_NAME = re.compile(r"hub:(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})(@(?P<revision>[\w./-]{1,100}))?")


def hub_reason(error: Exception) -> str:
    """Why the hub did not do what was asked, in one short line."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status == UNAUTHORIZED and type(error).__name__ not in REASONS:
        return "it does not know the token: `hf auth login`, or HF_TOKEN"
    return REASONS.get(type(error).__name__, first_line(error)[:200].rstrip("."))


@dataclass(frozen=True)
class HubFiles:
    """The files of data of a repository at a commit.

    Attributes:
        sizes: bytes of each file, by its path.
        endings: how names of files of data end.
    """

    repo: str
    commit: str
    sizes: Mapping[str, int]
    endings: Sequence[str]

    @staticmethod
    def of(repo: str, revision: str | None, endings: Sequence[str], name: str = "") -> HubFiles:
        """Ask the hub what a repository holds.

        Args:
            revision: a branch, tag or commit; the newest commit if None.
            name: what messages call the repository.

        Raises:
            BadFile: the hub does not say, there are no files of data, or a path leads out.
            MissingExtra: huggingface_hub is not installed.
        """
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise MissingExtra("Reading from the hub", "huggingface_hub", "hub") from None
        name = name or repo
        try:
            info: Any = HfApi().model_info(repo, revision=revision, files_metadata=True)
        except Exception as error:  # Which errors the hub's clients raise is not documented.
            raise BadFile(f"{name}: did not come from the hub ({hub_reason(error)}).") from None
        sizes = {
            sibling.rfilename: sibling.size or 0
            for sibling in info.siblings or ()
            if sibling.rfilename.endswith(tuple(endings))
        }
        if not sizes:
            raise BadFile(f"{name}: has no files of data ({', '.join(endings)}).")
        for path in map(PurePosixPath, sizes):
            if path.is_absolute() or ".." in path.parts:
                raise BadFile(f"{name}: the path {str(path)!r} leads out of the repository.")
        return HubFiles(repo, info.sha, sizes, endings)

    def download(self, folder: Path, within: str = "") -> Path:
        """Download them into a folder, which is made; those that are there already stay.

        Args:
            within: a file or a folder of the repository, alone.

        Raises:
            BadFile: the hub does not give them.
        """
        from huggingface_hub import snapshot_download

        patterns = [
            f"{escape(within)}/*{ending}" if within else f"*{ending}" for ending in self.endings
        ]
        patterns += [escape(within)] if within in self.sizes else []
        try:
            snapshot_download(
                self.repo, revision=self.commit, local_dir=folder, allow_patterns=patterns
            )
        except Exception as error:  # As above.
            raise BadFile(
                f"{self.repo}: did not come from the hub ({hub_reason(error)})."
            ) from None
        return folder


def check_hub_name(name: str) -> tuple[str, str | None]:
    """The repository and the revision of `hub:OWNER/NAME[@REVISION]`.

    Raises:
        BadUsage: another name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise BadUsage(f"A folder on the hub is named hub:OWNER/NAME[@REVISION]; got {name!r}.")
    return match["repo"], match["revision"]


def download(
    name: str, folder: Path, endings: Sequence[str], most_files: int, most_bytes: int
) -> Path:
    """Download the files of data of a repository into a folder, if they are not too many.

    Args:
        name: `hub:OWNER/NAME[@REVISION]`.
        endings: how names of files of data end.

    Raises:
        BadUsage: another name, or more files or bytes than these.
        BadFile: the hub does not give it, or it has no such file.
        MissingExtra: huggingface_hub is not installed.
    """
    repo, revision = check_hub_name(name)
    held = HubFiles.of(repo, revision, endings, name)
    n, total = len(held.sizes), sum(held.sizes.values())
    if n > most_files or total > most_bytes:
        raise BadUsage(
            f"{name}: {n:,} files, {total / 10**6:,.0f} MB; at most {most_files:,} files,"
            f" {most_bytes / 10**6:,.0f} MB are taken. Nothing was downloaded."
        )
    return held.download(folder)
