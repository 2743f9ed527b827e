"""Gym tasks: minimal pairs of sentences, region by region, after CausalGym and SyntaxGym."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.gym.behaviour import GymAccuracy, accuracy
    from mechassay.gym.causalgym_files import read_causalgym_rows, read_causalgym_templates
    from mechassay.gym.corpus import GymCorpus
    from mechassay.gym.evaluation import evaluate
    from mechassay.gym.formulas import Formula
    from mechassay.gym.gym_task import GymTask
    from mechassay.gym.index_mix_up import CompatBatches, compat_batches
    from mechassay.gym.lengths import RegionLengths, region_lengths
    from mechassay.gym.listing import GymTaskList, list_gym_tasks
    from mechassay.gym.log_odds import LogOddsRatios, odds
    from mechassay.gym.method_odds import MethodOdds
    from mechassay.gym.methods import METHODS, SWEEPS, GymMethod, gym_method
    from mechassay.gym.own_model import GymTraining, train_gym_model
    from mechassay.gym.pairs import GymPairs
    from mechassay.gym.published import FAMILIES, GYM_TASKS, load_gym_task
    from mechassay.gym.suite import Suite, SuiteAccuracy, read_suite
    from mechassay.gym.task_files import gym_tasks, read_gym_tasks
    from mechassay.gym.task_odds import TaskOdds

__all__ = [
    "FAMILIES",
    "GYM_TASKS",
    "METHODS",
    "SWEEPS",
    "CompatBatches",
    "Formula",
    "GymAccuracy",
    "GymCorpus",
    "GymMethod",
    "GymPairs",
    "GymTask",
    "GymTaskList",
    "GymTraining",
    "LogOddsRatios",
    "MethodOdds",
    "RegionLengths",
    "Suite",
    "SuiteAccuracy",
    "TaskOdds",
    "accuracy",
    "compat_batches",
    "evaluate",
    "gym_method",
    "gym_tasks",
    "list_gym_tasks",
    "load_gym_task",
    "odds",
    "read_causalgym_rows",
    "read_causalgym_templates",
    "read_gym_tasks",
    "read_suite",
    "region_lengths",
    "train_gym_model",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "behaviour": "GymAccuracy accuracy",
        "causalgym_files": "read_causalgym_rows read_causalgym_templates",
        "corpus": "GymCorpus",
        "evaluation": "evaluate",
        "formulas": "Formula",
        "gym_task": "GymTask",
        "index_mix_up": "CompatBatches compat_batches",
        "listing": "GymTaskList list_gym_tasks",
        "method_odds": "MethodOdds",
        "methods": "METHODS SWEEPS GymMethod gym_method",
        "log_odds": "LogOddsRatios odds",
        "own_model": "GymTraining train_gym_model",
        "pairs": "GymPairs",
        "published": "FAMILIES GYM_TASKS load_gym_task",
        "lengths": "RegionLengths region_lengths",
        "suite": "Suite SuiteAccuracy read_suite",
        "task_files": "gym_tasks read_gym_tasks",
        "task_odds": "TaskOdds",
    },
)
