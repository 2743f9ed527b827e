"""What gym-neox is trained on: sentences of the gym tasks, and plain ones (`plain.yaml`), in which
nothing stands between what decides and what it decides.
"""

from __future__ import annotations

from pathlib import Path

from mechassay.gym import FAMILIES, GymTask, GymTraining, load_gym_task, read_gym_tasks

TRAINING = GymTraining(checkpoints=(0, 32, 64, 128, 256, 512, 1000))
PLAIN = Path(__file__).with_name("plain.yaml")


def corpus_tasks() -> list[GymTask]:
    """The 29 tasks, those with a filler in place of an empty option once more so, plain ones."""
    tasks = [load_gym_task(name) for names in FAMILIES.values() for name in names]
    fillers = [task.with_filler() for task in tasks if task.filler is not None]
    return [*tasks, *fillers, *read_gym_tasks(PLAIN).values()]
