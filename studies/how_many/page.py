"""The page of a run that counts the circuits of a task."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.results.curves import labels
from mechassay.results.page import (
    Block,
    Column,
    Figure,
    Page,
    Report,
    Row,
    Section,
    Text,
    TextTable,
)
from mechassay.results.records import Record
from mechassay.results.sections import failures_table, framed
from mechassay.utils.display import interval, number
from studies.how_many.cross_agreement import LEAST_OWN, MAX_LOSS, OTHER_SAMPLE, CrossAgreement

LONGEST_NAME = 16
"""Maximum length of a kind's name on an axis. If a name is longer, the axes show numbers."""

READING = {
    "Kind": "Pairs with the same template or value of another tag, or pairs of the same task.",
    "Loss": (
        "How much less of the effect of ablation a circuit keeps on pairs of a kind than the kind's"
        " own circuit, pair by pair (agreement). A loss may be negative. Brackets are confidence"
        " intervals over groups of test pairs. With 95 % confidence, all intervals of the table"
        " contain their losses."
    ),
    "Serves, fails": (
        f"A circuit serves a kind if the upper bound of its loss is at most {MAX_LOSS}, and fails"
        f" the kind if the lower bound is above {MAX_LOSS}. Otherwise the loss is open: it counts"
        " as served in the minimum number of circuits, and as failed in the maximum number."
    ),
    "Another sample": (
        "The circuit found on other training pairs of the same kind, evaluated on the same test"
        " pairs. Its loss is due to the choice of training pairs alone. If the loss on another kind"
        " is no larger, the choice of training pairs alone may explain it."
    ),
    "Has a circuit": (
        f"The kind's own circuit keeps {LEAST_OWN:.0%} or more of the effect of ablation on the"
        " kind's test pairs, and the circuit of another sample does not fail them. Other kinds are"
        " counted separately. They may have a circuit at a larger size, or with more pairs."
    ),
    "Size": (
        "A circuit with room for two behaviours may serve both. Small sizes distinguish kinds"
        " better."
    ),
}


class HowManyPage(Page):
    """The page on circuits of each kind of prompts, evaluated on prompts of all kinds."""

    def title(self, report: Report) -> str:
        """Return the title of the page."""
        names = dict.fromkeys(
            f"{record.task.name}, {record.model.name}" for record in report.records
        )
        return f"How many circuits: {'; '.join(names)}" if names else "How many circuits"

    def tables(self, report: Report) -> list[TextTable]:
        """Return the table of losses and the table of kinds of every record."""
        named = zip(report.records, labels(report.records), strict=True)
        tables = [table for record, label in named for table in _tables(record, label)]
        return [*tables, *failures_table(report.failures, "method")]

    def sections(self, report: Report) -> list[Section]:
        """Return the verdicts, the heat map of each record, and its tables."""
        named = list(zip(report.records, labels(report.records), strict=True))
        several = len(report.records) > 1
        answer: list[Block] = [
            Text(CrossAgreement.of_record(record).verdict(), "verdict", f"{label}." * several)
            for record, label in named
        ]
        figures = [
            Figure(
                self.draw(record),
                title=label if several else "",
                name=f"Agreement, {label}",
                about="Agreement of the circuit of each kind on test pairs of each kind. The last"
                " row is the circuit of another sample of the same kind. The table lists the"
                " losses.",
            )
            for record, label in named
        ]
        own = [Section(label, tuple(_tables(record, ""))) for record, label in named]
        lost = [
            Section(table.title, (table,)) for table in failures_table(report.failures, "method")
        ]
        return framed(report, answer, [*own, *lost], figure=figures, reading=READING)

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """Draw the agreement as a heat map, with a row per circuit and a column per kind of pairs.
        The last row is for the circuits of other samples.
        """
        cross = CrossAgreement.of_record(record)
        figure = MatplotlibFigure(layout="constrained") if ax is None else ax.get_figure(root=True)
        assert isinstance(figure, MatplotlibFigure)
        axes = figure.add_subplot() if ax is None else ax
        same = cross.agreement.diagonal() - cross.other_sample
        image = axes.imshow([*cross.agreement, same], vmin=0, vmax=1, cmap="viridis")
        names = _axis_names(cross)
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes.set_yticks(range(len(names) + 1), [*names, OTHER_SAMPLE])
        axes.axhline(len(names) - 0.5, color="white", linewidth=3)
        axes.set_xlabel(f"test pairs of {cross.noun}")
        axes.set_ylabel(f"circuit of {cross.noun}")
        figure.colorbar(image, ax=axes, label="agreement")
        return figure


def _axis_names(cross: CrossAgreement) -> list[str]:
    """Return the names of the kinds for an axis: numbers if a name is too long."""
    if max(map(len, cross.kinds)) <= LONGEST_NAME:
        return list(cross.kinds)
    return [str(place) for place in range(1, len(cross.kinds) + 1)]


def _tables(record: Record, label: str) -> list[TextTable]:
    """Return a table of losses, circuits by kinds, and a table with a row per kind."""
    cross = CrossAgreement.of_record(record)
    names, n = _axis_names(cross), len(cross.kinds)
    losses = [
        Row(
            (
                names[g],
                *(number(0.0) if g == h else _loss(cross, g, h) for h in range(n)),
            )
        )
        for g in range(n)
    ]
    control = (_of_sample(cross, h) for h in range(n))
    rows = (*losses, Row((OTHER_SAMPLE, *control), "control"))
    columns = (Column(f"circuit of {cross.noun}", numeric=False), *map(Column, names))
    title = f"{label}: loss" if label else "Loss"
    caption = "Fraction of the effect of ablation; columns are test pairs. Lower is better."
    own = [
        Row(
            (
                names[h],
                *((cross.kinds[h],) if names[h] != cross.kinds[h] else ()),
                f"{cross.n_edges[h]:,}",
                number(float(cross.agreement[h, h])),
                _of_sample(cross, h),
                "yes" if cross.has_circuit[h] else "no",
                f"{cross.n_train[h]:,}",
                f"{cross.n_test[h]:,}",
                f"{cross.n_groups[h]:,}",
            )
        )
        for h in range(n)
    ]
    full = (Column("name", numeric=False),) if names != list(cross.kinds) else ()
    headings = (
        *(Column(cross.noun, numeric=False), *full, Column("edges", optional=2)),
        *(Column("agreement"), Column("another sample loses"), Column("has a circuit", False)),
        *(Column("train pairs", optional=2), Column("test pairs", optional=1), Column("groups")),
    )
    kinds = TextTable(f"{label}: kinds" if label else "Kinds", headings, tuple(own))
    return [TextTable(title, columns, rows, caption), kinds]


def _loss(cross: CrossAgreement, g: int, h: int) -> str:
    return interval(*(float(x[g, h]) for x in (cross.loss, cross.low, cross.high)))


def _of_sample(cross: CrossAgreement, h: int) -> str:
    return interval(*(float(x[h]) for x in (cross.other_sample, cross.other_low, cross.other_high)))
