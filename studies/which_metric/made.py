"""After the plan: the same on ground truths of InterpBench's size, which training gave negative
heads, heads that share the work, and a backup: python -m studies.which_metric.made [NAME ...].

The truths have to be made before (`mechassay truth make NAME`); all of them if none is named.
Records are kept in runs/which-metric-made. None of this is in plan.md and it decides nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from mechassay.models.sources import MADE_TRUTHS
from mechassay.utils.files import write_text
from studies.which_metric.contrasts import SETS, Records, agreements
from studies.which_metric.study import Cell, Grid, run
from studies.which_metric.tables import cell, markdown, number

FOLDER = Path("runs/which-metric-made")
TABLES = Path(__file__).with_name("made.md")
GRID = Grid("made", "counterfactual", "logit_diff", 1, changed=False, few=False)
COMPARED = ("CMA", "CMA by value", "CMD", "CPR", "S90 of A", "KL faithfulness")
METHODS = ("exact", "eap", "eap-ig-inputs")


def main(names: Sequence[str] = MADE_TRUTHS, folder: Path = FOLDER, tables: Path = TABLES) -> None:
    """Make the missing records and the tables."""
    cells = [Cell(GRID, name, 0) for name in names]
    records = run(folder, cells, report=_say)
    write_text(tables, page(records))


def page(records: Records) -> str:
    """How measures order the scorings of each truth, and what the true scores come to."""
    parts = [
        "Spearman's correlation with the AUROC, over all scorings and over methods; one sample of"
        f" pairs. Means over {len(records)} truths, which begin with the same heads, have 95 %"
        " Student intervals.",
        _agreement_table(records),
        "What scorings come to: the true effects, these by magnitude, and methods.",
        _scoring_table(records),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _agreement_table(records: Records) -> str:
    rows: list[list[str]] = []
    tables = [agreements(records, chosen) for chosen in SETS]
    for name in COMPARED:
        means = [cell(table.mean(name)) for table in tables]
        rows.append([f"{name}: mean", *means])
    for record in records:
        for name in COMPARED:
            own = [agreements([record], chosen).mean(name).value for chosen in SETS]
            rows.append([f"{name}: {record['model']}", *map(number, own)])
    return markdown(["measure", *SETS], rows)


def _scoring_table(records: Records) -> str:
    rows: list[list[str]] = []
    for record in records:
        for label in ("as they are", "magnitudes", *METHODS):
            scoring = record["scorings"][label]
            areas = [number(scoring["measures"][name]) for name in COMPARED]
            largest = f"{scoring['largest f']['value']:.2f}"
            rows.append([str(record["model"]), label, number(scoring["auroc"]), *areas, largest])
    heads = ["model", "scoring", "AUROC", *COMPARED, "largest f, by value"]
    return markdown(heads, rows)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or MADE_TRUTHS)
