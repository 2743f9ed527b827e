"""Every built-in task keeps the contract, in its default settings and in others."""

from __future__ import annotations

import pytest

from mechassay.tasks import TASKS, load_task
from mechassay.testing.tasks import check_task

VARIANTS = [
    "mcqa:n_choices=2",
    "mcqa:n_choices=10,labels=mib-2025",
    "arithmetic-addition:digits=2",
    "arithmetic-subtraction:labels=mib-2025",
    "ravel:variable=Country",
    "greater-than:digit=last",
    "ioi:words=paper",
    "ioi:words=paper-matched",
    "greater-than:words=paper",
    "greater-than:words=paper,digit=last",
    "docstring:words=paper",
]


@pytest.mark.parametrize("name", [*TASKS.names(), *VARIANTS])
def test_a_task_keeps_the_contract(name: str) -> None:
    check_task(load_task(name))
