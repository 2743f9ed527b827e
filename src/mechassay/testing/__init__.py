"""What authors of methods, tasks and jobs check their work with, and models to check it on.

`check_method`, `check_task` and `check_job` raise AssertionError at the first promise that is
broken. `mechassay.testing.tiny` has random models of every family, made in code in a moment.
"""

from mechassay.testing.jobs import check_job
from mechassay.testing.methods import check_method
from mechassay.testing.tasks import check_task

__all__ = ["check_job", "check_method", "check_task"]
