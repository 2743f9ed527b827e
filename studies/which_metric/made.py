"""After the plan: the same on ground truths of InterpBench's size, which training gave negative
heads, heads that share the work, and a backup: python -m studies.which_metric.made [NAME ...].

The truths have to be made before (`mechassay truth make NAME`); all of them if none is named.
Records are kept in runs/which-metric-made. None of this is in plan.md and it decides nothing.

The edges of a backup count as true, though no measure of faithfulness sees their loss. So beside
the AUROC of the verified circuit stands that of the circuit without its backups, whose edges are
false.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from mechassay.models.sources import MADE_TRUTHS
from mechassay.utils.files import write_text
from studies.which_metric.contrasts import SETS, Records, Target, agreements
from studies.which_metric.measures import MEASURES
from studies.which_metric.study import WITHOUT_BACKUPS, Cell, Grid, run
from studies.which_metric.tables import cell, markdown, number

FOLDER = Path("runs/which-metric-made")
TABLES = Path(__file__).with_name("made.md")
GRID = Grid("made", "counterfactual", "logit_diff", 3, changed=False, few=False)
COMPARED = ("CMA", "CMA by value", "CMD", "CPR", "S90 of A", "KL faithfulness")
METHODS = ("exact", "eap", "eap-ig-inputs")


def main(names: Sequence[str] = MADE_TRUTHS, folder: Path = FOLDER, tables: Path = TABLES) -> None:
    """Make the missing records and the tables."""
    cells = [Cell(GRID, name, sample) for name in names for sample in range(GRID.n_samples)]
    records = run(folder, cells, report=_say)
    write_text(tables, page(records))


def page(records: Records) -> str:
    """How measures order the scorings of each truth, and what the true scores come to."""
    truths = _by_truth(records)
    counts = sorted({len(own) for own in truths.values()})
    n = " or ".join(map(str, counts))
    parts = [
        f"Spearman's correlation with the AUROC, over all scorings and over methods; {n} samples of"
        f" pairs, whose mean stands first and whose range in brackets. Means over {len(truths)}"
        " truths, which begin with the same heads, have 95 % Student intervals.",
        _agreement_table(records, "auroc"),
        "What scorings come to: the true effects, these by magnitude, and methods. Means over"
        " samples.",
        _scoring_table(records),
    ]
    backed = [one for one in records if all(WITHOUT_BACKUPS in s for s in one["scorings"].values())]
    if backed:
        about = "The same with the AUROC of the circuit without its backups, whose edges are false."
        parts[2:2] = [about, _agreement_table(backed, WITHOUT_BACKUPS)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _by_truth(records: Records) -> dict[str, Records]:
    names = dict.fromkeys(str(record["model"]) for record in records)
    return {name: [record for record in records if record["model"] == name] for name in names}


def _agreement_table(records: Records, target: Target) -> str:
    rows: list[list[str]] = []
    truths = _by_truth(records)
    if len(truths) > 1:
        tables = [agreements(records, chosen, target) for chosen in SETS]
        for name in COMPARED:
            rows.append([f"{name}: mean", *(cell(table.mean(name)) for table in tables)])
    for truth, own in truths.items():
        tables = [agreements(own, chosen, target) for chosen in SETS]
        for name in COMPARED:
            place = list(MEASURES).index(name)
            rows.append([f"{name}: {truth}", *(_spread(t.values[:, place]) for t in tables)])
    return markdown(["measure", *SETS], rows)


def _spread(values: Float[np.ndarray, "samples"]) -> str:
    """The mean over samples and, of several, their range; what is undefined is left out."""
    known = values[~np.isnan(values)]
    if len(known) < 2:
        return number(float(known[0]) if len(known) else math.nan)
    return f"{number(known.mean())} [{number(known.min())}, {number(known.max())}]"


def _scoring_table(records: Records) -> str:
    rows: list[list[str]] = []
    for truth, own in _by_truth(records).items():
        for label in ("as they are", "magnitudes", *METHODS):
            scorings = [record["scorings"][label] for record in own]
            areas = [[s["auroc"], *(s["measures"][name] for name in COMPARED)] for s in scorings]
            largest = np.mean([s["largest f"]["value"] for s in scorings])
            rows.append([truth, label, *map(number, np.mean(areas, axis=0)), f"{largest:.2f}"])
    heads = ["model", "scoring", "AUROC", *COMPARED, "largest f, by value"]
    return markdown(heads, rows)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or MADE_TRUTHS)
