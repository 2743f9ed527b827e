"""What is measured of others' circuits and features, and of features beside whole vectors.

circuits   a file of scores, or nine circuits, by two definitions: the profile mib-2025, whose
           numbers stand beside the table's, and the package's own, in which a circuit's size is
           what is left of it and the smallest circuits do not count less than the largest
features   the interchange accuracy at one site less that of the whole vector at the same site,
           pair by pair. A submission that exchanges everything gains 0, whatever its accuracy; what
           exchanges nothing loses what the whole vector does. The site is the best on validation
           pairs of features of others, and as the table's own rule has it of those that are found
           here (the test pairs, with intervals for the best of so many)

`board` is what MIB's evaluator makes of features that were handed in, at their best layer: where
they have none at a position of the task, it exchanges the whole vector (`variables.mib_numbers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mechassay.reproduction.artefacts import Artefact
from mechassay.reproduction.published import Published
from mechassay.results.records import Measure, Record, Table, estimate_of
from mechassay.variables.interchange_accuracy import FULL, NOTHING
from mechassay.variables.localization import SUBMITTED

CIRCUITS, GAINS = "circuits of others", "gain over the whole vector"
"""Tables of a record."""
BETTER = {"cmd": min, "cpr": max, "auroc": max}


def circuits_table(
    artefact: Artefact,
    published: Sequence[Published],
    benchmark: Record,
    own: Record,
    stand_in: str,
) -> Table:
    """The areas of one artefact, a row a measure.

    Args:
        published: the numbers of its column.
        benchmark, own: the records of both definitions.
        stand_in: the weights that ran in place of the published ones; "" for these.
    """
    rows: list[dict[str, Any]] = []
    for measure in dict.fromkeys(value.measure for value in published):
        printed = [
            v for v in published if v.measure == measure and math.isfinite(v.value) and v.method
        ]
        best = BETTER[measure](printed, key=lambda v: v.value) if printed else None
        rows.append(
            {
                "row": artefact.row,
                "column": artefact.column,
                "measure": measure,
                "best": "" if best is None else f"{best.printed} {best.row}",
                **_ends("benchmark", benchmark.measure(measure)),
                **_ends("own", own.measure(measure)),
                "n": benchmark.n,
                "stand-in": stand_in,
            }
        )
    return Table.of(CIRCUITS, ("row", "column", "measure"), rows)


def gains_table(row: str, column: str, record: Record, stand_in: str, given: bool) -> Table:
    """The gain of one record of features over whole vectors.

    Args:
        given: whether they are of others.
    """
    best: dict[str, Any] = {"accuracy": math.nan, "site": "", "whole": False}
    if record.has_table(SUBMITTED):
        best = max(record.table(SUBMITTED).rows(), key=lambda layer: float(str(layer["accuracy"])))
    return Table.of(
        GAINS,
        ("row", "column"),
        [
            {
                "row": row,
                "column": column,
                "given": given,
                "site": str(record.method.args.get("site", "")),
                **_ends("accuracy", record.measure("iia")),
                "full": estimate_of(record.measure("iia", f"control:{FULL}")).value,
                "nothing": estimate_of(record.measure("iia", f"control:{NOTHING}")).value,
                **_ends("gain", record.measure("iia", f"difference:{FULL}")),
                **_ends("layers", record.measure("over_full")),
                "board": best["accuracy"],
                "board site": best["site"],
                "board whole": best["whole"],
                "n": record.n,
                "stand-in": stand_in,
            }
        ],
    )


def _ends(name: str, measure: Measure | None) -> dict[str, float]:
    own = estimate_of(measure)
    return {name: own.value, f"{name} low": own.low, f"{name} high": own.high}
