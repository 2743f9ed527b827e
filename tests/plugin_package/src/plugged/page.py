"""The page of logit lenses: the general one, with a title and a figure of its own."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.results.page import Figure, Report, Section
from mechassay.results.plots import svg
from mechassay.results.records import Record
from mechassay.results.report import GenericPage


class LensPage(GenericPage):
    """The objective by layer."""

    def title(self, report: Report) -> str:
        return "Logit lenses"

    def sections(self, report: Report) -> list[Section]:
        first, *others = super().sections(report)
        names = [f"{record.model.name} on {record.task.name}" for record in report.records]
        figures = [
            Figure(svg(self.draw(record)), name, name=name)
            for record, name in zip(report.records, names, strict=True)
        ]
        return [first, Section("By layer", tuple(figures)), *others]

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        axes = MatplotlibFigure().subplots() if ax is None else ax
        lens = record.table("lens")
        layer, objective = list(lens.columns)[:2]
        axes.plot(lens.numbers(layer), lens.numbers(objective))
        axes.set(xlabel=layer, ylabel=objective)
        figure = axes.figure
        assert isinstance(figure, MatplotlibFigure)
        return figure
