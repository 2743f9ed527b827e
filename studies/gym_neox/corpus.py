"""The corpus and the settings of gym-neox.

The corpus has sentences of the gym tasks and plain sentences (`plain.yaml`). In a plain sentence
the word that decides the label stands directly before it.
"""

from __future__ import annotations

from pathlib import Path

from mechassay.gym import FAMILIES, GymTask, load_gym_task, read_gym_tasks
from studies.gym_neox.training import GymTraining

TRAINING = GymTraining(checkpoints=(0, 32, 64, 128, 256, 512, 1000))
PLAIN = Path(__file__).with_name("plain.yaml")


def corpus_tasks() -> list[GymTask]:
    """Return the 29 tasks, eight of them again with their filler, and the eight plain tasks."""
    tasks = [load_gym_task(name) for names in FAMILIES.values() for name in names]
    fillers = [task.with_filler() for task in tasks if task.filler is not None]
    return [*tasks, *fillers, *read_gym_tasks(PLAIN).values()]
