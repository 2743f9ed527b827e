"""What there is, with tasks of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from mechassay import registry
from mechassay.gym import GymTask, gym_tasks, list_gym_tasks, load_gym_task


def plugged(name: str) -> GymTask:
    """A task of another package."""
    data = {
        "template": "{who} {verb}",
        "labels": {"a": "x", "b": "y"},
        "options": {"who": {"a": ["Ann"], "b": ["Bob"]}, "verb": ["ran", "sat"]},
    }
    return gym_tasks({"family": "theirs", "tasks": {name: data}})[name]


def test_the_table() -> None:
    tasks = list_gym_tasks()
    columns = tasks.columns()
    assert len(tasks) == 29 and columns["task"][0] == "agr_gender"
    assert columns["labels"][1] == "are,were,have | is,was,has" and sum(columns["regions"]) == 168
    assert columns["lengths"].count("unequal") == 8 and all(columns["about"])
    assert repr(tasks) == "GymTaskList(n=29, families=5)" and "gss_subord_pp" in tasks._repr_html_()


def test_tasks_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("theirs", f"{__name__}:plugged", "mechassay.gym_tasks"),
        EntryPoint("cleft", f"{__name__}:plugged", "mechassay.gym_tasks"),
    ]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: points if group == "mechassay.gym_tasks" else []
    )
    monkeypatch.setattr(registry, "import_module", _module)
    assert load_gym_task("theirs").family == "theirs"
    # A name of ours is not replaced.
    assert load_gym_task("cleft").family == "long-distance"
    assert list_gym_tasks()[-1].name == "theirs"


def _module(name: str) -> object:
    import importlib
    import sys

    return sys.modules[name] if name in sys.modules else importlib.import_module(name)
