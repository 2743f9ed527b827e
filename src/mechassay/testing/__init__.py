"""What authors of plug-ins check their work with, and models to check it on.

`check_method`, `check_task`, `check_metric`, `check_gauge`, `check_featurizer`, `check_finder`,
`check_experiment` and `check_record` raise AssertionError at the first broken promise. `tiny` has
random models of every family, made in code in a moment.
"""

from __future__ import annotations

from mechassay.testing.checks import (
    check_experiment,
    check_featurizer,
    check_finder,
    check_gauge,
    check_method,
    check_metric,
    check_record,
    check_task,
)

__all__ = [
    "check_experiment",
    "check_featurizer",
    "check_finder",
    "check_gauge",
    "check_method",
    "check_metric",
    "check_record",
    "check_task",
]
