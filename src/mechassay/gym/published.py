"""The 29 tasks of CausalGym (Arora et al. 2024, appendix A) by name, in five families.

Sentences and words are our own; regions, types and labels are those of the paper. Other packages
add tasks under the entry point group `mechassay.gym_tasks`: each is a function that takes the name
and returns a `GymTask`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType

from mechassay.errors import BadUsage, UnknownName
from mechassay.gym.gym_task import GymTask
from mechassay.gym.task_files import FILES, read_gym_tasks
from mechassay.registry import Registry

FAMILIES = MappingProxyType(
    {
        "agreement": (
            "agr_gender",
            "agr_sv_num_subj-relc",
            "agr_sv_num_obj-relc",
            "agr_sv_num_pp",
        ),
        "licensing": (
            "agr_refl_num_subj-relc",
            "agr_refl_num_obj-relc",
            "agr_refl_num_pp",
            "npi_any_subj-relc",
            "npi_any_obj-relc",
            "npi_ever_subj-relc",
            "npi_ever_obj-relc",
        ),
        "garden path": (
            "garden_mvrr",
            "garden_mvrr_mod",
            "garden_npz_obj",
            "garden_npz_obj_mod",
            "garden_npz_v-trans",
            "garden_npz_v-trans_mod",
        ),
        "gross syntactic state": (
            "gss_subord",
            "gss_subord_subj-relc",
            "gss_subord_obj-relc",
            "gss_subord_pp",
        ),
        "long-distance": (
            "cleft",
            "cleft_mod",
            "filler_gap_embed_3",
            "filler_gap_embed_4",
            "filler_gap_hierarchy",
            "filler_gap_obj",
            "filler_gap_pp",
            "filler_gap_subj",
        ),
    }
)
"""The published tasks of each family, in the order of the paper."""
_FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names}

GYM_TASKS = Registry(
    "gym task", dict.fromkeys(_FAMILY_OF, f"{__name__}:published_task"), plural="gym_tasks"
)
"""By name."""


def published_task(name: str) -> GymTask:
    """One of the 29 tasks.

    Raises:
        UnknownName: it is none of them.
    """
    if name not in _FAMILY_OF:
        raise UnknownName("published gym task", name, _FAMILY_OF)
    return _family(_FAMILY_OF[name])[name]


@cache
def _family(name: str) -> dict[str, GymTask]:
    file = files("mechassay.gym").joinpath("data", f"{name.replace(' ', '_')}.yaml")
    with as_file(file) as path:
        return read_gym_tasks(path)


def load_gym_task(name: str | PathLike[str], *, filler: bool = False) -> GymTask:
    """A gym task by its name, or that of a YAML file with one task.

    Args:
        name: one of `GYM_TASKS`, or the path of a .yaml or .yml file.
        filler: with a filler in place of empty options, where the task has one.

    Raises:
        UnknownName: no such task.
        BadFile: the file is not there or not of the form of `read_gym_tasks`.
        BadUsage: a file of several tasks; `filler` of a task without one.
    """
    text = fspath(name)
    if text.lower().endswith(FILES):
        tasks = read_gym_tasks(Path(text))
        if len(tasks) > 1:
            raise BadUsage(
                f"{text} has {len(tasks)} tasks, {', '.join(tasks)}: take one of"
                " read_gym_tasks(path)."
            )
        (task,) = tasks.values()
    else:
        task = GYM_TASKS.load(text)(text)
    return task.with_filler() if filler else task
