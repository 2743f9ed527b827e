"""Causal variables: where each one is, what its controls say, and a heat map of each cell.

The page begins with a sentence for each variable, about the features that are best on validation
pairs, so that test numbers are of some that were not chosen by them. The full vector is a ceiling:
it is named beside them where it has the variable and they have not. Then each task has one figure
of what the sentences say, and one table, a row a variable and featurizer with all controls.

Folded are the tables in the form of MIB's tables 3a to 3d (a row a featurizer, a column a variable,
mean over layers and best site), and the heat maps of all cells. Variables whose output is a logit
difference are measured by squared errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.features.probes import FullVector
from mechassay.interventions.heatmap import draw_accuracies
from mechassay.results.page import (
    Block,
    Column,
    Figure,
    Fold,
    Page,
    Report,
    Row,
    Section,
    Text,
    TextTable,
)
from mechassay.results.plots import draw_points
from mechassay.results.reading import means
from mechassay.results.records import Measure, Record, estimate_of
from mechassay.results.sections import (
    checks_section,
    facts_section,
    failures_table,
    framed,
    measured,
    stored_table,
)
from mechassay.stats.intervals import FEW_GROUPS, Estimate
from mechassay.variables.interchange_accuracy import FULL, NOTHING, RANDOM, RESULT
from mechassay.variables.ioi_heads import SUBSETS
from mechassay.variables.localization import SITES, shown_cells
from mechassay.variables.logit_difference import CONSTANT
from mechassay.variables.verdicts import (
    FALLS,
    FOUND,
    IIA,
    ISOLATED,
    KINDS_TABLE,
    MSE,
    NOT_TRAINED,
    RANDOM_VARIABLE,
    TOO_FEW,
    UNTRAINED,
    measure_of,
    verdict_of,
)

LAYERS, FALL = "iia_layers", "training_fall"
IN_WORDS = {
    NOTHING: "without intervention",
    CONSTANT: "the best constant",
    RANDOM: "as many random directions",
    RANDOM_VARIABLE: "a random variable",
    FULL: "the full vector",
    UNTRAINED: "an untrained model",
}
"""Controls in a sentence, and their order in tables."""
WHOLE = FullVector.name
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
    "Random variable": (
        "The featurizer trained and scored on labels of a random variable: of each pair the base's"
        " own answer or the source's, by a hash of the two prompts. Nothing can know which on"
        " pairs it was not trained on, so this is what a coin gets."
    ),
    "Untrained model": (
        "The featurizer trained and scored on the same architecture with random weights: a high"
        " number would say that no training of the model is needed for it."
    ),
    "Found": (
        "The gain is above a half, and the accuracy above no intervention, the random variable and"
        " the untrained model. Isolated: also above random directions. Each by the 95 % interval."
    ),
    "Not trained": (
        "Not found, and the loss of the training still fell: in a quarter of its steps, by the line"
        " through its second half, perhaps by an eighth of itself, or surely by a tenth of all that"
        " it fell. Train longer (--steps) before you say that nothing is there."
    ),
    "Not judged": f"There are fewer than {FEW_GROUPS} independent groups of test pairs.",
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

    def title(self, report: Report) -> str:
        tasks = ", ".join(dict.fromkeys(record.task.name for record in report.records))
        return f"Causal variables{f': {tasks}' if tasks else ''}"

    def tables(self, report: Report) -> list[TextTable]:
        """Of each model and task a table with all controls; then those in the form of MIB's, and
        what failed.
        """
        made = [_of_task(list(group)) for _, group in groupby(report.records, _place)]
        made += [_accuracies(list(group)) for _, group in groupby(_of(report.records, IIA), _place)]
        return [*made, *failures_table(report.failures, "variable")]

    def sections(self, report: Report) -> list[Section]:
        """Sentences; a figure and a table for each task; what failed; folded heat maps; how to read
        them; facts; values.
        """
        records = report.records
        groups = [list(group) for _, group in groupby(records, _place)]
        blocks: list[Block] = [
            Text(_sentence(best) + _of_whole(best, group), "verdict")
            for group in groups
            for best in _best_of(group)
        ]
        reading = {**(READING if _of(records, IIA) else {})}
        reading |= READING_ERRORS if _of(records, MSE) else {}
        failed = tuple(failures_table(report.failures, "variable"))
        return framed(
            report,
            blocks,
            [*map(_task_section, groups), *([Section("Failures", failed)] if failed else [])],
            folded=[*_maps(records), *checks_section(records)],
            reading=reading,
            facts=facts_section([group[0] for group in groups]),
        )

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
            record = _cell(records, variable, featurizer)
            for name in (LAYERS, IIA):
                cells.append("" if record is None else measured(record.measure(name)))
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


def _task_section(records: Sequence[Record]) -> Section:
    """The figure and the table of one model and task, and folded the table in the form of MIB's."""
    model, task = _place(records[0])
    best = _best_of(records)
    title = "mean squared error" if measure_of(best[0]) == MSE else "accuracy on test pairs"
    measured_of = {"result": "result"}
    measured_of |= {name: f"control:{name}" for name in _controls_of(best)}
    points = {
        name: [estimate_of(record.measure(measure_of(record), of)) for record in best]
        for name, of in measured_of.items()
    }
    figure = Figure(
        partial(draw_points, points, [_named(record) for record in best], title),
        "",
        "Of each variable the features that are best on validation pairs, at their site, and the"
        " controls there. Lines are 95 % intervals.",
        name=f"{task}, {model}",
        about="Results of the best features of each variable beside their controls.",
    )
    inner: tuple[Block, ...] = (figure, _of_task(records))
    if of_mib := _of(records, IIA):
        inner += (Fold("Means over layers, as in MIB's tables", (_accuracies(of_mib),)),)
    return Section(f"{task}, {model}", inner)


def _best_of(records: Sequence[Record]) -> list[Record]:
    """Of each variable of a task the record that its sentence is about: the best one on validation
    pairs, of several that of the fewest features; the full vector where there is nothing else.
    """
    by_variable: dict[str, list[Record]] = {}
    for record in records:
        by_variable.setdefault(record.specs["variable"].name, []).append(record)
    return [
        max(some, key=lambda record: (record.method.name != WHOLE, *_rank(record)))
        for some in by_variable.values()
    ]


def _controls_of(records: Sequence[Record]) -> list[str]:
    """The controls that some record has, in one order."""
    measured_of = {(m.name, m.of) for record in records for m in record.measures}
    measures = {measure_of(record) for record in records}
    return [c for c in IN_WORDS if any((name, f"control:{c}") in measured_of for name in measures)]


def _of_task(records: Sequence[Record]) -> TextTable:
    """A row a variable and featurizer: verdict, result, and every control at the same site."""
    controls, measure = _controls_of(records), measure_of(records[0])
    errors = measure == MSE
    columns = [
        *(Column(name, numeric=False) for name in ("variable", "featurizer", "verdict")),
        Column("heads" if errors else "site", numeric=False),
        Column("mean squared error" if errors else "accuracy"),
        *(Column(control, optional=1) for control in controls),
        *([] if errors else [Column("gain", optional=2)]),
        *(Column(name, optional=2) for name in ("features", "steps")),
        Column("loss still falls", numeric=False, optional=2),
    ]
    rows: list[Row] = []
    for record in records:
        args, fall, n_features = record.method.args, record.measure(FALL), _n_features(record)
        cells = (
            record.specs["variable"].name,
            record.method.name,
            verdict_of(record),
            str(args.get("heads" if errors else "site", "")),
            measured(record.measure(measure)),
            *(_control(record, control, measure) for control in controls),
            *([] if errors else [measured(record.measure("gain"))]),
            "" if n_features is None else f"{n_features:,}",
            str(args.get("steps", "")),
            "" if fall is None else "yes" if args.get(FALLS) else "no",
        )
        rows.append(Row(cells))
    model, task = _place(records[0])
    n = max(_n(record) for record in records)
    chosen = any(record.has_table(SUBSETS) for record in records)
    heads = "were chosen on validation pairs" if chosen else "were given"
    of_errors = f"Squared errors in logits on test pairs; heads {heads}. Brackets: 95 % interval."
    what = of_errors if errors else _caption(records)
    where = "of the same heads" if errors else "of the same site"
    caption = f"{what} Controls are those {where} and pairs; n: up to {n:,} pairs."
    return TextTable(f"{task}, {model}", tuple(columns), tuple(rows), caption)


def _n_features(record: Record) -> int | None:
    """Of the chosen site; None where the featurizer does not say, and of heads."""
    if not record.has_table(SITES):
        return None
    (chosen,) = record.table(SITES).where(chosen=True).rows()
    return None if chosen["features"] is None else int(str(chosen["features"]))


def _of_whole(best: Record, records: Sequence[Record]) -> str:
    """What the full vector has of a variable that the best features have not."""
    if verdict_of(best) in (ISOLATED, FOUND):
        return ""
    variable = best.specs["variable"].name
    for record in records:
        own = record.specs["variable"].name == variable and record.method.name == WHOLE
        if own and verdict_of(record) in (ISOLATED, FOUND):
            measure, args = record.measure(measure_of(record)), record.method.args
            where = f"in heads {args['heads']}" if "heads" in args else f"at {args['site']}"
            return f" It is in the full vector {where}, which has {measured(measure)}."
    return ""


def _sentence(record: Record) -> str:
    """What is said of a variable, where, by what, on how many pairs, and what the controls have."""
    model, task = _place(record)
    variable, args, measure = record.specs["variable"], record.method.args, measure_of(record)
    wrong = " (a wrong hypothesis)" if variable.args.get("hypothesis") == "wrong" else ""
    where = f"in heads {args.get('heads')}" if measure == MSE else f"at {args.get('site')}"
    n_features = _n_features(record)
    size = "" if n_features is None else f", {n_features:,} features"
    steps = f", {args['steps']:,} steps of training" if args.get("steps") else ""
    if n_sites := args.get("train_at"):
        best = "best site" if n_sites == 1 else f"{n_sites} best sites"
        steps += f" at the {best} of whole vectors"
    what = "squared error" if measure == MSE else "accuracy"
    controls = [
        f"{IN_WORDS[control]} {own.value:.2f}"
        for control in _controls_of([record])
        if (own := record.measure(measure, f"control:{control}")) is not None
    ]
    return (
        f"{model}, {task}: {variable.name}{wrong} is {verdict_of(record)} {where} by"
        f" {record.method.name}{size}{steps}: {what} {measured(record.measure(measure))} on"
        f" {_n(record):,} test pairs in {record.n_groups:,} groups; {', '.join(controls)}."
        f"{_caveat(record)}"
    )


def _caveat(record: Record) -> str:
    """What the choice of a site on the reported pairs makes of its numbers, and few groups or a
    short training of the verdict.
    """
    text = ""
    if record.method.args.get("choose_on") == "test":
        text += " The site was chosen on these pairs; intervals are those of the best of all sites."
    fall, verdict_said = record.measure(FALL), verdict_of(record)
    if fall is not None and verdict_said == NOT_TRAINED:
        most = "" if math.isnan(fall.high) else f" by up to {fall.high:.0%} in a quarter as long"
        text += f" Its loss may still fall{most}: train longer before you say that it is not there."
    if verdict_said == TOO_FEW:
        text += f" Fewer than {FEW_GROUPS} independent groups have no verdict."
    return text


def _n(record: Record) -> int:
    """Test pairs."""
    measure = record.measure(measure_of(record))
    return 0 if measure is None else measure.n


def _rank(record: Record) -> tuple[float, float]:
    """How good on validation pairs, then fewer features."""
    measure, n = record.measure("validation"), _n_features(record)
    value = -np.inf if measure is None or np.isnan(measure.value) else measure.value
    if measure is not None and measure.better == "down":
        value = -value
    return value, -np.inf if n is None else -float(n)


def _maps(records: Sequence[Record]) -> list[Section]:
    """Folds with the heat map of every cell and its tables, of sites and of kinds."""
    folds: list[Block] = []
    for record in records:
        model, task = _place(record)
        name, shows = _named(record), _drawn(record)
        drawn = Figure(record.plot, "", f"{shows}.", name=name, about=f"{name}: {shows}.")
        tables = (stored_table(table) for table in record.tables)
        folds.append(Fold(f"{name}, {task}, {model}", (drawn, *tables)))
    return [Section("Every site", tuple(folds))] if folds else []


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


def _draw_subsets(record: Record, ax: Axes | None) -> MatplotlibFigure:
    """Errors of all subsets of heads, on both splits, with no intervention and best constant."""
    table = record.table(SUBSETS)
    points = {
        split: [
            Estimate(*row)
            for row in zip(
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
    table = record.table(KINDS_TABLE)
    names = list(dict.fromkeys(str(x) for x in table.columns["of"]))
    points: dict[str, list[Estimate]] = {}
    numbers = zip(*(table.numbers(name).tolist() for name in ("mse", "low", "high")), strict=True)
    for kind, row in zip(table.columns["kind"], numbers, strict=True):
        points.setdefault(str(kind), []).append(Estimate(*row))
    return draw_points(points, names, "mean squared error", ax=ax)
