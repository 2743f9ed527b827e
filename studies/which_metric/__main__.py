"""Run what is missing of the study, and write tables.md: python -m studies.which_metric.

Records are kept in runs/which-metric; all of them take most of an hour on one core.
"""

from __future__ import annotations

from pathlib import Path

from mechassay.utils.files import write_text
from studies.which_metric.study import all_cells, run
from studies.which_metric.tables import page

FOLDER = Path("runs/which-metric")
TABLES = Path(__file__).with_name("tables.md")


def main(folder: Path = FOLDER, tables: Path = TABLES) -> None:
    """Make the missing records and the tables."""
    records = run(folder, all_cells(), report=lambda line: print(line, flush=True))
    write_text(tables, page(records))
    hours = sum(record["seconds"] for record in records) / 3600
    print(f"{len(records)} records took {hours:.2f} hours. Tables: {tables}")


if __name__ == "__main__":
    main()
