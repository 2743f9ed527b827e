"""Every built-in task keeps the contract, in its default settings and in others."""

from __future__ import annotations

import pytest

from mechassay.tasks import TASKS, load_task
from mechassay.testing.tasks import check_task

VARIANTS = ["greater-than:digit=last", "ravel:variable=Country"]
OTHER_VARIANTS = [
    "mcqa:n_choices=2",
    "mcqa:n_choices=10,labels=mib-2025",
    "arithmetic-addition:digits=2",
    "arithmetic-subtraction:labels=mib-2025",
    "ioi:words=paper",
    "ioi:words=paper-matched",
    "greater-than:words=paper",
    "greater-than:words=paper,digit=last",
    "docstring:words=paper",
]


@pytest.mark.parametrize(
    "name",
    [
        *TASKS.names(),
        *VARIANTS,
        *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_VARIANTS),
    ],
)
def test_a_task_keeps_the_contract(name: str) -> None:
    check_task(load_task(name))
