"""A part of a submission, what is evaluated on one task with one model, and what its readers share.

Each form of parts has its reader: `circuit_parts`, `alignment_parts`, `direction_parts`. What is
wrong goes to the problems of the whole submission, and the rest is read on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mechassay.service.declaration import FILES
from mechassay.service.track import ServiceTrack
from mechassay.submissions import BESIDE, Problems

Form = Literal["scores", "circuits", "alignment", "mib-alignment", "directions"]
_RUN_FOLDER = re.compile(r"(?P<model>[a-z0-9.-]+?)--(?P<task>[a-z0-9._-]+)")


@dataclass(frozen=True)
class BundlePart:
    """What is evaluated of a submission on one task with one model.

    Attributes:
        model, task: by the names that the track has for them.
        path: a file of scores, or a folder of circuits, of an alignment or of directions, relative
            to the bundle.
        variable: of an alignment, as the folder calls it.
    """

    model: str
    task: str
    path: str
    form: Form
    variable: str = ""


@dataclass(frozen=True, eq=False)
class PartReader:
    """A submission's folder as readers of its parts see it.

    Attributes:
        folder: of the submission.
        problems: of all of it.
    """

    folder: Path
    track: ServiceTrack
    problems: Problems

    def name_of(self, path: Path) -> str:
        """A path as problems name it."""
        return path.relative_to(self.folder).as_posix()

    def entries(self, folder: Path) -> list[Path]:
        """What is in a folder beside what every repository has."""
        return [
            path
            for path in sorted(folder.iterdir())
            if path.name not in BESIDE and path.name not in FILES
        ]

    def take(self, folder: Path, inner: Problems) -> None:
        """Problems of a folder inside as those of the whole, but what was said already."""
        said = {(problem.path, problem.message) for problem in self.problems}
        before = "" if folder == self.folder else f"{self.name_of(folder)}/"
        for problem in inner:
            path = (before + problem.path).removesuffix("/.")
            known = (path, problem.message) in said or Path(path).name in FILES
            if not known:
                self.problems.note(path, problem.message, warning=problem.warning)


def task_and_model(name: str) -> tuple[str, str]:
    """Those of a folder's name; both "" where it has not the form of one."""
    run = _RUN_FOLDER.fullmatch(name)
    if run is not None:
        return run["task"], run["model"]
    task, _, model = name.rpartition("_")
    return (task, model) if task and model else ("", "")
