"""Gym tasks: minimal pairs of sentences, region by region, after CausalGym and SyntaxGym."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.gym.causalgym import GymTaskList as GymTaskList
    from mechassay.gym.causalgym import list_gym_tasks as list_gym_tasks
    from mechassay.gym.causalgym import load_gym_task as load_gym_task
    from mechassay.gym.causalgym import read_causalgym_rows as read_causalgym_rows
    from mechassay.gym.causalgym import read_causalgym_templates as read_causalgym_templates
    from mechassay.gym.evaluation import evaluate as evaluate
    from mechassay.gym.gym_task import GymTask as GymTask
    from mechassay.gym.interchanges import CompatBatches as CompatBatches
    from mechassay.gym.interchanges import RegionLengths as RegionLengths
    from mechassay.gym.interchanges import compat_batches as compat_batches
    from mechassay.gym.interchanges import region_lengths as region_lengths
    from mechassay.gym.log_odds import LogOddsRatios as LogOddsRatios
    from mechassay.gym.log_odds import odds as odds
    from mechassay.gym.names import FAMILIES as FAMILIES
    from mechassay.gym.names import METHODS as METHODS
    from mechassay.gym.names import SWEEPS as SWEEPS
    from mechassay.gym.pairs import GymPairs as GymPairs
    from mechassay.gym.syntaxgym import Formula as Formula
    from mechassay.gym.syntaxgym import Suite as Suite
    from mechassay.gym.syntaxgym import SuiteAccuracy as SuiteAccuracy
    from mechassay.gym.syntaxgym import read_suite as read_suite
    from mechassay.gym.task_accuracy import GymAccuracy as GymAccuracy
    from mechassay.gym.task_accuracy import accuracy as accuracy
    from mechassay.gym.task_files import gym_tasks as gym_tasks
    from mechassay.gym.task_files import read_gym_tasks as read_gym_tasks
    from mechassay.gym.task_odds import MethodOdds as MethodOdds
    from mechassay.gym.task_odds import TaskOdds as TaskOdds


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
