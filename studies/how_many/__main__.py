"""Make tables.md: python -m studies.how_many.

The run finds circuits of 1 % of the edges on eight templates of IOI in SmolLM2-135M. Its folder is
runs/how-many; a second call resumes there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import mechassay
from studies.how_many.experiment import HowManyExperiment

JOB = HowManyExperiment(("smollm2-135m",), ("ioi",), size=0.01, limit=40, dtype="bfloat16")
TABLES = Path(__file__).with_name("tables.md")


def main(experiment: HowManyExperiment, folder: Path, tables: Path) -> None:
    """Run the experiment and copy its tables."""
    results = mechassay.run(experiment, folder)
    shutil.copyfile(folder / "tables.md", tables)
    print(results)


if __name__ == "__main__":
    main(JOB, Path("runs/how-many"), TABLES)
