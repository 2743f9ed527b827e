"""Gym tasks: minimal pairs of sentences, region by region, after CausalGym and SyntaxGym."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.gym.causalgym import (
        GymTaskList,
        list_gym_tasks,
        load_gym_task,
        read_causalgym_rows,
        read_causalgym_templates,
    )
    from mechassay.gym.evaluation import evaluate
    from mechassay.gym.gym_task import GymTask
    from mechassay.gym.interchanges import (
        CompatBatches,
        RegionLengths,
        compat_batches,
        region_lengths,
    )
    from mechassay.gym.log_odds import LogOddsRatios, odds
    from mechassay.gym.names import FAMILIES, METHODS, SWEEPS
    from mechassay.gym.pairs import GymPairs
    from mechassay.gym.syntaxgym import Formula, Suite, SuiteAccuracy, read_suite
    from mechassay.gym.task_accuracy import GymAccuracy, accuracy
    from mechassay.gym.task_files import gym_tasks, read_gym_tasks
    from mechassay.gym.task_odds import MethodOdds, TaskOdds

__all__ = [
    "FAMILIES",
    "METHODS",
    "SWEEPS",
    "CompatBatches",
    "Formula",
    "GymAccuracy",
    "GymPairs",
    "GymTask",
    "GymTaskList",
    "LogOddsRatios",
    "MethodOdds",
    "RegionLengths",
    "Suite",
    "SuiteAccuracy",
    "TaskOdds",
    "accuracy",
    "compat_batches",
    "evaluate",
    "gym_tasks",
    "list_gym_tasks",
    "load_gym_task",
    "odds",
    "read_causalgym_rows",
    "read_causalgym_templates",
    "read_gym_tasks",
    "read_suite",
    "region_lengths",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "causalgym": "GymTaskList list_gym_tasks load_gym_task"
        " read_causalgym_rows read_causalgym_templates",
        "evaluation": "evaluate",
        "gym_task": "GymTask",
        "interchanges": "CompatBatches RegionLengths compat_batches region_lengths",
        "log_odds": "LogOddsRatios odds",
        "names": "FAMILIES METHODS SWEEPS",
        "pairs": "GymPairs",
        "syntaxgym": "Formula Suite SuiteAccuracy read_suite",
        "task_accuracy": "GymAccuracy accuracy",
        "task_files": "gym_tasks read_gym_tasks",
        "task_odds": "MethodOdds TaskOdds",
    },
)
