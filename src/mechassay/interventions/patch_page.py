"""The page of activation patching.

The page begins with what the maps say (`interventions.patch_verdict`). It has heat maps of
shares and the numbers behind that sentence. The first map of a record is of the parts of all
prompts, where the task names parts; below it are maps of single templates with the prompts' own
tokens along the axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.interventions.heatmap import draw_patch_map
from mechassay.interventions.patch_verdict import (
    COLUMNS,
    MapCells,
    answer_table,
    templates,
    verdict,
)
from mechassay.results.page import Block, Figure, Fold, Page, Report, Section, Text, TextTable
from mechassay.results.records import Record
from mechassay.results.sections import checks_section, framed, measures_table
from mechassay.utils.display import counted

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
        "95 % intervals over groups of pairs. Those of shares hold for all measured cells of a map"
        " at once, so the largest may be named. The record has those of each cell alone too."
    ),
    "Above one half": (
        "The whole interval of a share lies above one half. Between the last layer at which the"
        " first place is, and the first at which the last token is, the answer moves."
    ),
    "By construction": (
        "Shares that tokens and the model's structure fix before anything is run: 0 where the"
        " prompts cannot differ yet or nothing after it is read, 1 where one stream alone carries"
        " the difference, as the last block at the last token. They are no result; maps hatch them."
    ),
}


class PatchPage(Page):
    """Maps of activation patching."""

    def title(self, report: Report) -> str:
        tasks = ", ".join(dict.fromkeys(record.task.name for record in report.records))
        return f"Activation patching{f': {tasks}' if tasks else ''}"

    def tables(self, report: Report) -> list[TextTable]:
        """The numbers behind the verdict of each record, and the measures of all."""
        tables = [answer_table(record, _name(record)) for record in report.records]
        return [*tables, measures_table(report)]

    def sections(self, report: Report) -> list[Section]:
        """Verdict; a section for each record with its maps; how to read them; facts; values."""
        blocks: list[Block] = [
            Text(text, "verdict", lead=f"{name}.") for name, text in verdicts(report.records)
        ]
        return framed(
            report,
            blocks,
            [Section(_name(record), tuple(_maps(record))) for record in report.records],
            folded=[
                Section("Measures", (measures_table(report),)),
                *checks_section(report.records),
            ],
            reading=READING,
        )

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """The first map of a record."""
        return _drawn(MapCells.of(record, templates(record)[0]), ax)


def verdicts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the name and verdict of each record, residual streams first."""
    ordered = sorted(records, key=lambda record: record.method.name != "resid")
    return [(_name(record), verdict(record)) for record in ordered]


def _drawn(cells: MapCells, ax: Axes | None = None) -> MatplotlibFigure:
    return draw_patch_map(cells.share, cells.layers, cells.headings, cells.part, cells.known, ax=ax)


def _name(record: Record) -> str:
    direction = record.method.args["direction"]
    return f"{record.model.name}, {record.task.name}, {NAMES[record.method.name]}, {direction}"


def _maps(record: Record) -> list[Block]:
    """The first map, the numbers behind the verdict, and maps of templates."""
    names = templates(record)
    first, *others = (_figure(record, name) for name in names[: TEMPLATES + 1])
    left = len(names) - len(others) - 1
    more: list[Block] = (
        [Text(f"{left:,} more templates are in the record.", "soft")] if left else []
    )
    blocks: list[Block] = [first, answer_table(record, "")]
    return [*blocks, *([Fold("Maps of single templates", (*others, *more))] if others else [])]


def _figure(record: Record, template: str) -> Figure:
    cells = MapCells.of(record, template)
    title = template or "all pairs"
    n = f"{counted(cells.n_pairs, 'pair')} in {counted(cells.n_groups, 'group')}"
    about = (
        f"Shares of {NAMES[cells.part]} by layer and {COLUMNS[cells.part]},"
        f" {record.method.args['direction']}, {n}; the table has the numbers behind the verdict."
    )
    return Figure(
        partial(_drawn, cells), title=f"{title}, {n}", name=f"Patching: {title}", about=about
    )
