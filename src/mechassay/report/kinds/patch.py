"""Activation patching: heat maps of shares, and the cells that carry most.

The first map of a record is of the parts of all prompts, where the task names parts; below it, maps
of single templates with the prompts' own tokens along the axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.figures import svg
from mechassay.interventions.heat_map import draw_patch_map
from mechassay.interventions.patch_map import ALL_PROMPTS, COLUMNS
from mechassay.records import Failure, Record, Table
from mechassay.report.page import Block, Figure, Fold, Page, Section, Terms, Text
from mechassay.report.sections import (
    all_numbers,
    checks_table,
    facts_section,
    measures_table,
    opening,
    values_section,
)
from mechassay.report.tables import TextTable
from mechassay.report.text import objective
from mechassay.text import interval

TABLE = "patches"
LARGEST = 12
"""Cells of the table of what carries most."""
TEMPLATES = 6
"""Maps of single templates on a page."""
NAMES = {"resid": "residual stream", "heads": "attention heads", "mlp": "MLPs"}

READING = {
    "Share": (
        "(m(patched) - m(base)) / (m(source) - m(base)), of means over pairs: 0 where the patch"
        " changes nothing, 1 where it carries all of the difference. It may be negative, or more"
        " than 1."
    ),
    "Denoising": (
        "The base is the counterfactual prompt; one site gets the clean run's value. A share is"
        " what the site alone restores."
    ),
    "Noising": (
        "The base is the clean prompt; one site gets the counterfactual run's value. A share is"
        " what the model loses without the site. Where a model has two ways to the answer, either"
        " restores it, and neither is missed alone."
    ),
    "Brackets": (
        "95 % intervals over groups of pairs, of each cell by itself: of many cells some are far"
        " off by chance."
    ),
}


class PatchPage(Page):
    """Maps of activation patching."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        tasks = ", ".join(dict.fromkeys(record.task.name for record in records))
        return f"Activation patching{f': {tasks}' if tasks else ''}"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """The measures of all records, and the cells that carry most of each."""
        return [measures_table(records, failures), *(_largest(record) for record in records)]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """Verdict; a section for each record with its maps; how to read them; facts; values."""
        said: list[Block] = [Text(_verdict(record), "verdict") for record in records]
        checks = checks_table(records)
        return [
            opening(records, said, failures),
            *(Section(_name(record), tuple(_maps(record))) for record in records),
            Section("Measures", (measures_table(records, failures),)),
            *([Section("Controls", (checks,))] if checks.rows else []),
            Section("How to read this", (Terms(READING),)),
            *facts_section(records),
            *values_section(records),
            *all_numbers(records),
        ]

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """The first map of a record."""
        shown = _of(record.table(TABLE), _templates(record)[0], record.method.name)
        return draw_patch_map(shown.share, shown.layers, shown.headings, shown.part, ax=ax)


@dataclass(frozen=True)
class _Map:
    """One template's cells, as arrays."""

    template: str
    part: str
    layers: list[int]
    headings: list[str]
    share: np.ndarray


def _of(table: Table, template: str, part: str) -> _Map:
    rows = table.where(template=template)
    layers = list(dict.fromkeys(int(str(x)) for x in rows.columns["layer"]))
    share = rows.numbers("share").reshape(len(layers), -1)
    headings = [str(x) for x in rows.columns[COLUMNS[part]][: share.shape[1]]]
    return _Map(template, part, layers, headings, share)


def _templates(record: Record) -> list[str]:
    return list(dict.fromkeys(str(x) for x in record.table(TABLE).columns["template"]))


def _name(record: Record) -> str:
    return f"{record.model.name}, {record.task.name}: {NAMES[record.method.name]}"


def _maps(record: Record) -> list[Block]:
    """The first map, the cells that carry most, and maps of templates."""
    table, part, names = record.table(TABLE), record.method.name, _templates(record)
    first, *others = (_figure(_of(table, name, part), record) for name in names[: TEMPLATES + 1])
    left = len(names) - len(others) - 1
    more: list[Block] = (
        [Text(f"{left:,} more templates are in the record.", "soft")] if left else []
    )
    blocks: list[Block] = [first, _largest(record)]
    return [*blocks, *([Fold("Maps of single templates", (*others, *more))] if others else [])]


def _figure(shown: _Map, record: Record) -> Figure:
    direction = record.method.args.get("direction", "")
    title = shown.template or "all pairs"
    drawn = draw_patch_map(shown.share, shown.layers, shown.headings, shown.part)
    about = (
        f"Shares of {NAMES[shown.part]} by layer and {COLUMNS[shown.part]}, {direction}; the table"
        " has the largest."
    )
    return Figure(svg(drawn), title=title, name=f"Patching: {title}", about=about)


def _largest(record: Record) -> TextTable:
    """The cells of the first map with the largest shares, either way."""
    table, part = record.table(TABLE), record.method.name
    names = _templates(record)
    rows = table.where(template=names[0]).rows() if names else []
    known = [row for row in rows if row["share"] is not None]
    best = sorted(known, key=lambda row: -abs(float(str(row["share"]))))[:LARGEST]
    cells = [
        (
            str(row["layer"]) if int(str(row["layer"])) >= 0 else "embedding",
            str(row[COLUMNS[part]]),
            interval(*(float("nan") if row[x] is None else float(str(row[x])) for x in ENDS)),
        )
        for row in best
    ]
    where = ALL_PROMPTS if names and names[0] == ALL_PROMPTS else "the first template"
    return TextTable.of(
        f"The cells that carry most, {_name(record)}",
        ("layer", COLUMNS[part], "share"),
        cells,
        caption=f"Of {where}: {len(cells)} of {len(known):,} cells.",
    )


ENDS = ("share", "low", "high")


def _verdict(record: Record) -> str:
    """What carries most, in a sentence."""
    largest = _largest(record)
    ends = [record.measure(name, "model") for name in ("m_base", "m_source")]
    told = ", ".join(f"{m.heading} {interval(m.value, m.low, m.high)}" for m in ends if m)
    if not largest.rows:
        return f"{_name(record)}: no cell is defined ({told})."
    layer, column, share = largest.rows[0].cells
    where = f"layer {layer}, {COLUMNS[record.method.name]} {column}"
    return (
        f"{_name(record)}: patching {where} alone carries {share} of the difference in"
        f" {objective(record)} ({told})."
    )
