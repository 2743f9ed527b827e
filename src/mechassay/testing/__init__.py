"""What authors of plug-ins check their work with, and models to check it on.

`check_method`, `check_task`, `check_metric`, `check_featurizer`, `check_finder`, `check_job`,
and `check_record` raise AssertionError at the first promise that is broken. `tiny` has
random models of every family, made in code in a moment.
"""

from mechassay.testing.features import check_featurizer, check_finder
from mechassay.testing.jobs import check_job
from mechassay.testing.methods import check_method
from mechassay.testing.metrics import check_metric
from mechassay.testing.records import check_record
from mechassay.testing.tasks import check_task

__all__ = [
    "check_featurizer",
    "check_finder",
    "check_job",
    "check_method",
    "check_metric",
    "check_record",
    "check_task",
]
