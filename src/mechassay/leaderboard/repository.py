"""The repository of a board: what entrants read, what is evaluated, and the workflows of its CI.

Submissions are folders `submissions/NAME/` that arrive by pull request. A check of the change,
an evaluation on public examples, the publishing after a merge and the weekly recomputing are GitHub
Actions; they call commands and scripts that run elsewhere too. The files are those of
`data/repository`, as they are, but for the version of this package.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from mechassay.errors import BadUsage
from mechassay.utils.files import write_text
from mechassay.version import __version__

WORKFLOWS = ("check-change", "evaluate", "publish", "recompute")
SCRIPTS = ("install", "fetch-results", "evaluate-all", "build-site", "keep-results")
WRITTEN = {
    "README.md": "README.md",
    "OPERATING.md": "OPERATING.md",
    "requirements.txt": "requirements.txt",
    ".gitignore": "gitignore",
    ".gitattributes": "gitattributes",
    "submissions/.gitkeep": "gitkeep",
    **{f"scripts/{name}.sh": f"scripts/{name}.sh" for name in SCRIPTS},
    **{f".github/workflows/{name}.yml": f"workflows/{name}.yml" for name in WORKFLOWS},
}
"""Files of the repository, and of `data/repository`; the track comes from where it is packaged."""


def write_repository(folder: Path) -> list[str]:
    """Write the repository of a board; the paths of its files.

    Args:
        folder: new or empty, or the clone of an empty repository.

    Raises:
        BadUsage: there is something already.
    """
    if folder.exists() and not folder.is_dir():
        raise BadUsage(f"{folder}: is a file; the repository of a board is a folder.")
    there = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if there not in ([], [".git"]):
        raise BadUsage(f"{folder}: is not empty (it has {there[0]}); name a new or empty folder.")
    packaged = files("mechassay.leaderboard") / "data" / "repository"
    texts = {path: packaged.joinpath(name).read_text("utf-8") for path, name in WRITTEN.items()}
    # The version of the package; a file that is kept in step by hand would be forgotten.
    texts["requirements.txt"] = texts["requirements.txt"].replace("VERSION", __version__)
    track = files("mechassay.leaderboard").joinpath("data/track.yaml")
    texts["track.yaml"] = track.read_text("utf-8")
    for path, text in texts.items():
        write_text(folder / path, text)
    return sorted(texts)
