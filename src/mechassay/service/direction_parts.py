"""Directions for gym tasks in a submission: folders TASK_MODEL, or MODEL--TASK as a run has them.

A folder has the directions of one method (`gym.given_directions`), as many at a site as the track
allows: most methods have one, and the whole vector may be above them all. A submission that has one
such folder is one of directions as a whole. Sentences of gym tasks are drawn from public templates,
so directions are evaluated on public examples alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mechassay.features.fit import KIND
from mechassay.files import kind_of
from mechassay.gym.given_directions import GivenDirections, read_directions
from mechassay.gym.published import load_gym_task
from mechassay.interventions.model_shape import ModelShape
from mechassay.runs.directions import DirectionsJob
from mechassay.service.bundle_part import BundlePart, PartReader, task_and_model
from mechassay.service.track import ServiceTrack
from mechassay.submissions import CODE, Problems, leads_out


class DirectionParts(PartReader):
    """The folders of directions of a submission."""

    def is_one(self, path: Path) -> bool:
        """Whether a path is a folder of directions, by its name or by a file in it."""
        task, model = task_and_model(path.name)
        if leads_out(path, self.folder) or not path.is_dir():
            return False
        about = self.track.models.get(model)
        if about is not None and task in about.gym:
            return True
        files = (file for file in path.iterdir() if file.suffix == ".safetensors")
        return any(not leads_out(file, self.folder) and kind_of(file) == KIND for file in files)

    def read(self, path: Path) -> Iterator[BundlePart]:
        """The part that a folder is, if it is one that can be evaluated."""
        name, (task, model) = self.name_of(path), task_and_model(path.name)
        if leads_out(path, self.folder):
            return  # Said already.
        if not path.is_dir():
            said = CODE if path.suffix == ".py" else "belongs to no directions and is not read."
            self.problems.note(name, said, warning=path.suffix != ".py")
            return
        if not task:
            self.problems.note(name, "is not named TASK_MODEL, such as agr_gender_gym-neox.")
            return
        about = self.problems.tried(name, partial(self._about, task, model))
        if about is None:
            return
        regions, shape = about
        inner = Problems()
        given = read_directions(path, regions, shape, model, inner, self.track.gym_k)
        self.take(path, inner)
        if len(given) > 1:
            self._note_methods(name, given)
        if len(given) == 1 and not inner.errors:
            yield BundlePart(model, task, name, "directions")

    def _about(self, task: str, model: str) -> tuple[tuple[str, ...], ModelShape]:
        self.track.check_gym(model, task)
        return load_gym_task(task).tested, self.track.shape(model)

    def _note_methods(self, name: str, given: list[GivenDirections]) -> None:
        methods = ", ".join(each.method for each in given[:3])
        said = f"directions of {len(given)} methods ({methods}); a submission has those of one."
        self.problems.note(name, said)


def directions_job(path: Path, model: str, task: str, track: ServiceTrack) -> DirectionsJob:
    """The job that evaluates a folder; regions are chosen on as many items as it is tested on.

    Args:
        model: what `load_model` gets.
    """
    n = track.examples_of(task)
    return DirectionsJob(
        (str(path),),
        model,
        task,
        validation_limit=n,
        test_limit=n,
        dtype=track.dtype,
        seed=track.seed,
    )
