"""Causal variables: a table of accuracies by featurizer and variable, and a heat map of each cell.

The tables have the form of MIB's tables 3a to 3d: a row a featurizer, a column a variable, the mean
over layers and the best layer; here the layer was chosen on other pairs, and controls stand beside.
Variables whose output is a logit difference are measured by squared errors, in a table of their
own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.interventions.heatmap import draw_accuracies, draw_points
from mechassay.results.page import (
    Block,
    Column,
    Figure,
    Fold,
    Page,
    Row,
    Section,
    Terms,
    Text,
    TextTable,
)
from mechassay.results.reading import means
from mechassay.results.records import Failure, Measure, Record
from mechassay.results.sections import (
    all_numbers,
    checks_table,
    facts_section,
    failures_table,
    measured,
    opening,
    stored_table,
    values_section,
)
from mechassay.stats.intervals import Estimate
from mechassay.variables.interchange_accuracy import RESULT
from mechassay.variables.ioi_heads import MUST_STAY_BELOW
from mechassay.variables.localization import CONTROLS, LEAST_GAIN, MUST_EXCEED, shown_cells
from mechassay.variables.logit_difference import CONSTANT, NOTHING

SITES, KINDS, SUBSETS = "sites", "kinds", "subsets"
IIA, MSE = "iia", "mse"
LAYERS = "iia_layers"
READING = {
    "Accuracy": (
        "The share of test pairs in which the model writes the whole label that the causal model"
        " expects after the interchange. Brackets are 95 % intervals over groups of pairs."
    ),
    "No intervention": (
        "The same labels without any interchange: what a set of pairs gives for nothing, where the"
        " interchange keeps the label. An accuracy near it shows nothing."
    ),
    "Full vector": "The whole value of the site exchanged, at the same site.",
    "Gain": (
        "The share of what no intervention leaves wrong that the interchange makes right, less what"
        " it makes wrong."
    ),
    "Random": "As many random directions as the featurizer has features, mean of three draws.",
    "Arbitrary labels": (
        "The featurizer trained and scored on labels that one permutation has exchanged: a high"
        " number would say that the featurizer can make the model say anything."
    ),
    "Untrained model": (
        "The featurizer trained and scored on the same architecture with random weights: a high"
        " number would say that no training of the model is needed for it."
    ),
    "Found": (
        "The gain is above a half, and the accuracy above no intervention, arbitrary labels and the"
        " untrained model. Isolated: also above random directions. Each by the 95 % interval."
    ),
}
READING_ERRORS = {
    "Squared error": (
        "The squared difference, in logits, between the logit difference that the linear causal"
        " model expects after the interchange, and the model's. Lower is better."
    ),
    "Best constant": (
        "The error of the one constant that fits the train pairs best: who does no better knows"
        " nothing of the variable."
    ),
}


class VariablesPage(Page):
    """Where models keep causal variables."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        tasks = ", ".join(dict.fromkeys(record.task.name for record in records))
        return f"Causal variables{f': {tasks}' if tasks else ''}"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """One table for each model and task, then the controls of every cell, and what failed."""
        made: list[TextTable] = []
        for measure, about in ((IIA, _accuracies), (MSE, _errors)):
            some = _of(records, measure)
            made += [about(list(group)) for _, group in groupby(some, _place)]
        made += [_controls(list(group)) for _, group in groupby(_of(records, IIA), _place)]
        return [*made, *failures_table(failures, "variable")]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """Verdicts; tables; a heat map of each cell; how to read them; facts; values."""
        said: list[Block] = [Text(text, "verdict") for text in _verdicts(records)]
        checks = checks_table(records)
        reading = {**(READING if _of(records, IIA) else {})}
        reading |= READING_ERRORS if _of(records, MSE) else {}
        firsts = [next(group) for _, group in groupby(records, _place)]
        return [
            opening(records, said, failures),
            Section("Accuracies and controls", tuple(self.tables(records, failures))),
            *_maps(records),
            *([Section("Checks", (checks,))] if checks.rows else []),
            Section("How to read this", (Terms(reading),)),
            *facts_section(firsts),
            *values_section(records),
            *all_numbers(records),
        ]

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """The heat map of a record's sites, or the errors of its heads."""
        if record.has_table(SUBSETS):
            return _draw_subsets(record, ax)
        if not record.has_table(SITES):
            return _draw_kinds(record, ax)
        choose_on = str(record.method.args.get("choose_on", "validation"))
        cells = shown_cells(record.table(SITES).columns, choose_on)
        layers = [int(x) for x in cells["layer"]]
        values = [math.nan if x is None else float(x) for x in cells["test"]]
        return draw_accuracies(layers, cells["place"], values, ax=ax)

    def recomputed(self, record: Record) -> list[Measure]:
        """Accuracies or errors of the features and the controls, and their differences."""
        return list(means(record, {IIA: RESULT, MSE: RESULT}))


def _of(records: Sequence[Record], measure: str) -> list[Record]:
    return [record for record in records if record.measure(measure) is not None]


def _place(record: Record) -> tuple[str, str]:
    return record.model.name, record.task.name


def _named(record: Record) -> str:
    return f"{record.specs['variable'].name}, {record.method.name}"


def _accuracies(records: Sequence[Record]) -> TextTable:
    """A row a featurizer; of each variable the accuracy at its site, and the mean of layers."""
    model, task = _place(records[0])
    variables = list(dict.fromkeys(record.specs["variable"].name for record in records))
    columns = [Column("featurizer", numeric=False)]
    for variable in variables:
        columns += [
            Column(f"{variable}, mean of layers", optional=1),
            Column(f"{variable}, best site"),
        ]
    rows: list[Row] = []
    for featurizer in dict.fromkeys(record.method.name for record in records):
        cells = [featurizer]
        for variable in variables:
            found = _cell(records, variable, featurizer)
            for name in (LAYERS, IIA):
                cells.append("" if found is None else measured(found.measure(name)))
        rows.append(Row(tuple(cells)))
    nothing = [_control(_cell(records, variable), "no intervention") for variable in variables]
    cells = [x for value in nothing for x in (value, value)]
    rows.append(Row(("no intervention", *cells), "control"))
    return TextTable(f"{task}, {model}", tuple(columns), tuple(rows), _caption(records))


def _caption(records: Sequence[Record]) -> str:
    splits = dict.fromkeys(str(record.method.args.get("choose_on", "")) for record in records)
    return (
        "Interchange intervention accuracy on test pairs. Layer, position and number of features"
        f" were chosen on {' or '.join(splits)} pairs. Brackets: 95 % interval."
    )


def _cell(records: Sequence[Record], variable: str, featurizer: str | None = None) -> Record | None:
    return next(
        (
            record
            for record in records
            if record.specs["variable"].name == variable
            and featurizer in (None, record.method.name)
        ),
        None,
    )


def _control(record: Record | None, control: str, name: str = IIA) -> str:
    return "" if record is None else measured(record.measure(name, f"control:{control}"))


def _controls(records: Sequence[Record]) -> TextTable:
    columns = [
        *(Column(name, numeric=False) for name in ("variable", "featurizer", "site", "verdict")),
        Column("accuracy"),
        Column("gain", optional=1),
        Column("features", optional=1),
        *(Column(control, optional=2) for control in CONTROLS),
    ]
    model, task = _place(records[0])
    rows = [
        Row(
            (
                record.specs["variable"].name,
                record.method.name,
                str(record.method.args.get("site", "")),
                verdict_of(record),
                measured(record.measure(IIA)),
                measured(record.measure("gain")),
                _features(record),
                *(_control(record, control) for control in CONTROLS),
            )
        )
        for record in records
    ]
    caption = f"{_caption(records)} Controls are those of the same site and pairs."
    title = f"{task}, {model}: chosen sites and their controls"
    return TextTable(title, tuple(columns), tuple(rows), caption)


def _features(record: Record) -> str:
    value = _n_features(record)
    return "" if value is None else f"{value:,}"


def _n_features(record: Record) -> int | None:
    """Of the chosen site; None where the featurizer does not say."""
    (chosen,) = record.table(SITES).where(chosen=True).rows()
    return None if chosen["features"] is None else int(str(chosen["features"]))


def verdict_of(record: Record) -> str:
    """Whether the variable is isolated, found or not found, by the controls that there are."""
    gain = record.measure("gain")
    differences = [record.measure(IIA, f"difference:{control}") for control in MUST_EXCEED]
    exceeds = all(each.low > 0 for each in differences if each is not None)
    if gain is None or not exceeds or not gain.low > LEAST_GAIN:
        return "not found"
    random = record.measure(IIA, "difference:random")
    return "isolated" if random is not None and random.low > 0 else "found"


def _verdicts(records: Sequence[Record]) -> list[str]:
    """A sentence for each variable, of the featurizer that is best on validation pairs; of several
    that of the fewest features.
    """
    said: list[str] = []
    for (model, task), group in groupby(_of(records, IIA), _place):
        some = list(group)
        for variable in dict.fromkeys(record.specs["variable"].name for record in some):
            cells = [record for record in some if record.specs["variable"].name == variable]
            best = max(cells, key=_rank)
            wrong = best.specs["variable"].args.get("hypothesis") == "wrong"
            known = " (a wrong hypothesis)" if wrong else ""
            said.append(
                f"{model}, {task}: {variable}{known} is {verdict_of(best)} at"
                f" {best.method.args.get('site')} by {best.method.name}, with an accuracy of"
                f" {measured(best.measure(IIA))} on {_n(best):,} test pairs; without intervention"
                f" {_control(best, NOTHING)}.{_caveat(best)}"
            )
    for record in _of(records, MSE):
        below = [record.measure(MSE, f"difference:{control}") for control in MUST_STAY_BELOW]
        found = all(each is not None and each.high < 0 for each in below)
        variable = record.specs["variable"].name
        said.append(
            f"{record.model.name}, {record.task.name}: {variable} is"
            f" {'found' if found else 'not found'} in heads {record.method.args.get('heads')} by"
            f" {record.method.name}, with a mean squared error of {measured(record.measure(MSE))};"
            f" no intervention {_control(record, NOTHING, MSE)}, the best constant"
            f" {_control(record, CONSTANT, MSE)}."
        )
    return said


def _caveat(record: Record) -> str:
    """What a site that was chosen on the pairs it is reported on makes of its numbers."""
    chosen_on_test = record.method.args.get("choose_on") == "test"
    return " The site was chosen on these pairs, so that it is too high." if chosen_on_test else ""


def _n(record: Record) -> int:
    """Test pairs."""
    measure = record.measure(IIA)
    return measure.n or 0 if measure is not None else 0


def _rank(record: Record) -> tuple[float, float]:
    """The accuracy on validation pairs, then fewer features."""
    measure, n = record.measure("validation"), _n_features(record)
    value = -np.inf if measure is None or np.isnan(measure.value) else measure.value
    return value, -np.inf if n is None else -float(n)


def _maps(records: Sequence[Record]) -> list[Section]:
    """For each model and task the heat maps of its cells, with the table by kind."""
    made: list[Section] = []
    for (model, task), group in groupby(records, _place):
        blocks: list[Block] = []
        for record in group:
            name = _named(record)
            shows = _drawn(record)
            blocks.append(
                Figure(record.plot(), name, f"{shows}.", name=name, about=f"{name}: {shows}.")
            )
            inner = [stored_table(table, f"{name}: {table.name}") for table in record.tables]
            blocks.append(Fold(f"{name}: tables", tuple(inner)))
        made.append(Section(f"{task}, {model}", tuple(blocks)))
    return made


def _drawn(record: Record) -> str:
    """What a record's figure shows."""
    if record.has_table(SUBSETS):
        return "Mean squared errors of whole heads, by subset"
    if not record.has_table(SITES):
        return "Mean squared errors of the features and their controls"
    columns = record.table(SITES).columns
    places = list(zip(columns["layer"], columns["position"], strict=True))
    best = ", the best of several sites or numbers of features"
    more = best if len(set(places)) < len(places) else ""
    return f"Accuracy on test pairs by layer and position{more}"


def _errors(records: Sequence[Record]) -> TextTable:
    """Mean squared errors of the linear model of IOI, as MIB's table 3d."""
    model, task = _place(records[0])
    controls = [
        measure.of.removeprefix("control:")
        for measure in records[0].measures
        if measure.name == MSE and measure.of.startswith("control:")
    ]
    columns = [
        Column("variable, featurizer", numeric=False),
        Column("heads", numeric=False),
        Column("mean squared error"),
        *(Column(control, optional=1) for control in controls),
    ]
    rows = [
        Row(
            (
                _named(record),
                str(record.method.args.get("heads", "")),
                measured(record.measure(MSE)),
                *(_control(record, control, MSE) for control in controls),
            )
        )
        for record in records
    ]
    chosen = any(record.has_table(SUBSETS) for record in records)
    caption = "Squared errors in logits on test pairs"
    caption += "; heads were chosen on validation pairs." if chosen else "; heads were given."
    return TextTable(f"{task}, {model}", tuple(columns), tuple(rows), caption)


def _draw_subsets(record: Record, ax: Axes | None) -> MatplotlibFigure:
    """Errors of all subsets of heads, on both splits, with no intervention and best constant."""
    table = record.table(SUBSETS)
    points = {
        split: [
            Estimate(*each)
            for each in zip(
                *(table.numbers(name) for name in (split, f"{split}_low", f"{split}_high")),
                strict=True,
            )
        ]
        for split in ("validation", "test")
    }
    heads = [str(x) for x in table.columns["heads"]]
    return draw_points(points, heads, "mean squared error", ax=ax)


def _draw_kinds(record: Record, ax: Axes | None) -> MatplotlibFigure:
    """Errors of the features and their controls, a colour for each kind of counterfactual."""
    table = record.table(KINDS)
    names = list(dict.fromkeys(str(x) for x in table.columns["of"]))
    points: dict[str, list[Estimate]] = {}
    numbers = zip(*(table.numbers(name).tolist() for name in ("mse", "low", "high")), strict=True)
    for kind, row in zip(table.columns["kind"], numbers, strict=True):
        points.setdefault(str(kind), []).append(Estimate(*row))
    return draw_points(points, names, "mean squared error", ax=ax)
