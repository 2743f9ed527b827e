"""Try metrics: python -m studies.measure_trial [package.module:Class].

Without a class all metrics are tried, and tables.md, beside this file, is written anew. A class is
tried alone, in runs/measure-trial-ID; the module is imported from the working folder or the path.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import cast

import mechassay
from mechassay.errors import BadUsage, MechassayError
from mechassay.measurement.gauges import GAUGES
from studies.measure_trial.experiment import MeasureTrialExperiment

TABLES = Path(__file__).with_name("tables.md")


def register(target: str) -> str:
    """Make a class known as a metric in this process, as its entry point would; its identifier.

    Raises:
        BadUsage: no such class, or its identifier is that of a metric of the package.
    """
    module, _, name = target.partition(":")
    try:
        gauge = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadUsage(
            f"A metric is package.module:Class, a class that can be imported; got {target!r}"
            f" ({error})."
        ) from error
    known = cast("dict[str, str]", GAUGES.built_in)
    if known.setdefault(gauge.id, target) != target:
        raise BadUsage(f"{target}: the package has a metric {gauge.id}; take another identifier.")
    return gauge.id


def main(metrics: list[str], experiment: MeasureTrialExperiment, folder: Path) -> Path:
    """Try the metrics, or all if there are none; the folder of the run."""
    if len(metrics) > 1:
        raise BadUsage(f"One metric is tried at a time; got {', '.join(metrics)}.")
    for target in metrics:
        name = register(target)
        experiment, folder = (
            replace(experiment, metrics=(name,)),
            folder.with_name(f"{folder.name}-{name}"),
        )
    results = mechassay.run(experiment, folder)
    for failure in results.failures:
        print(f"{failure.cell['metric']}: {failure.message}")
    return results.folder


if __name__ == "__main__":
    try:
        made = main(sys.argv[1:], MeasureTrialExperiment(), Path("runs/measure-trial"))
    except MechassayError as refused:
        sys.exit(f"measure-trial: {refused}")
    if len(sys.argv) == 1:
        shutil.copyfile(made / "tables.md", TABLES)
    print(f"Report: {made / 'report.html'}")
