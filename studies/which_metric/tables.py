"""The tables of the study as Markdown, and its answer in one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from studies.which_metric.contrasts import (
    CHOSEN,
    CORRECTED,
    MAIN,
    RIVALS,
    SETS,
    Agreements,
    Decision,
    Mean,
    Records,
    agreements,
    averaged,
    decision,
    grids_of,
    order,
    ordered_by_gap,
    student,
)
from studies.which_metric.measures import MEASURES, REFERENCE
from studies.which_metric.truths import CHANGES, change_of

OVERSHOOTS, NEAR, LUCKY = 1.1, 0.99, 0.1
"""An f above the first overshoots, an AUROC of the second or more is nearly perfect, and a CMA of
more than the third is luck in a random ranking."""
CONTROLS = (
    *("as they are", "signs 1", "random edges 0", "random paths 0", "noise .3 0", "noise 1 0"),
    *("false .1", "false .3", "false .6", "weakest last", "strongest last", "half 0"),
)
SUMMED_UP = (REFERENCE, "CPR", "CMD", "1 - RMS", "KL faithfulness", "S90", "same best token")
GAUGED = (REFERENCE, "CMD", "CPR", "KL faithfulness", "S90 of A")
GAPS = (1e-6, 0.01, 0.03, 0.1, math.inf)
"""Differences of methods, from one to the next."""
KINDS = ("plain", *CHANGES)


def number(value: float, *, signed: bool = False) -> str:
    """Two decimals without a leading zero, three where it is smaller than .1."""
    if math.isnan(value):
        return "undefined"
    text = f"{abs(value):.{3 if abs(value) < 0.0995 else 2}f}".removeprefix("0")
    sign = "" if not text.strip(".0") else "-" if value < 0 else "+" if signed else ""
    return f"{sign}{text}"


def cell(mean: Mean, *, signed: bool = False) -> str:
    """A mean with the half width of its interval."""
    if mean.n < 2:
        return number(mean.value, signed=signed)
    return f"{number(mean.value, signed=signed)} ± {number(mean.half)}"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def answer(result: Decision) -> str:
    """The decision in a sentence."""
    if result.winner is not None:
        return f"By the rule of the plan {result.winner} takes the place of {REFERENCE}."
    text = f"By the rule of the plan {REFERENCE} stays: "
    if not result.above:
        return (
            text + f"none of {len(RIVALS)} measures is resolved to order scorings better in the"
            " counterfactual grid."
        )
    reasons: list[str] = []
    for name, chosen in result.above:
        below = "; ".join(f"{grid}, {which}" for grid, which in result.below[name])
        where = f"worse in: {below}" if below else "not resolved over families"
        reasons.append(f"{name} is better over {chosen} in the counterfactual grid, but {where}")
    return text + ". ".join(reasons) + "."


def page(records: Records) -> str:
    """All tables."""
    result, grids = decision(records), grids_of(records)
    main = grids[MAIN]
    parts = [
        answer(result),
        f"Half widths are those of 95 % Student intervals over models, or, where it says so, over"
        f" families; *corrected* ones have the level 1 - .05/{len(RIVALS) * len(SETS)}. All: all"
        " scorings. AUROC and AUPRC: Spearman's correlation with them.",
        "## Which measure orders scorings as the truth does",
        _main_table(main),
        "## Against CMA",
        _contrast_table(main),
        "Not in the plan, the same for two other sets of scorings: without the three whose signs"
        " were changed, and for methods and random rankings alone.",
        _other_sets_table(main),
        "Nor this: of pairs of methods whose measures are so far apart, the share whose AUROC is"
        " ordered the same (equal AUROCs are left out), and how many pairs there are.",
        _gap_table(main),
        "## Plain and changed models",
        _kind_table(main),
        "## The other grids",
        _grid_table(grids),
        "## What overshoots",
        _overshoot_table(main),
        "## What known faults cost",
        _control_table(main),
        "## Models",
        _model_table(main),
        _reference_table(grids),
        "## What ran",
        _run_table(grids),
        _undefined(grids),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _main_table(records: Records) -> str:
    columns = [
        agreements(records, chosen, target) for target in ("auroc", "auprc") for chosen in SETS
    ] + [agreements(records, chosen, "auroc", order) for chosen in SETS]
    heads = ["measure", "AUROC, all", "AUROC, methods", "AUPRC, all", "AUPRC, methods"]
    heads += ["order, all", "order, methods"]
    rows = ([name, *(cell(column.mean(name)) for column in columns)] for name in MEASURES)
    return _counts(records) + "\n\n" + markdown(heads, rows)


def _counts(records: Records) -> str:
    counted = [record for record in records if not record["dropped"]]
    scorings = {len(record["scorings"]) for record in counted}
    models = {record["model"] for record in counted}
    aurocs = [
        [s["auroc"] for s in record["scorings"].values() if s["sort"] == "method"]
        for record in counted
    ]
    near = [int((np.array(values) >= NEAR).sum()) for values in aurocs]
    n_methods = sorted({len(values) for values in aurocs})
    return (
        f"{len(models)} models, {len(counted)} cells, {_range(scorings)} scorings each, of which"
        f" {_range(n_methods)} are methods; {np.median(near):g} of these (median; {min(near)} to"
        f" {max(near)}) have an AUROC of {number(NEAR)} or more, so that their order is much about"
        " near-ties."
    )


def _range(values: Iterable[int]) -> str:
    low, high = min(values := list(values)), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _contrast_table(records: Records) -> str:
    heads, columns = ["measure less CMA"], []
    for chosen in SETS:
        heads += [chosen, f"{chosen}, corrected", f"{chosen}, families"]
        columns.append(agreements(records, chosen).differences)
    rows: list[list[str]] = []
    for name in RIVALS:
        row = [name]
        for column in columns:
            row.append(cell(column.mean(name), signed=True))
            row.append("± " + number(column.mean(name, CORRECTED).half))
            row.append(cell(column.mean(name, families=True), signed=True))
        rows.append(row)
    return markdown(heads, rows)


def _other_sets_table(records: Records) -> str:
    columns = {
        chosen: agreements(records, chosen).differences for chosen in CHOSEN if chosen not in SETS
    }
    rows = (
        [name, *(cell(column.mean(name), signed=True) for column in columns.values())]
        for name in RIVALS
    )
    return markdown(["measure less CMA", *columns], rows)


def _gap_table(records: Records) -> str:
    counted = [record for record in records if not record["dropped"]]
    rows: list[list[str]] = []
    for low, high in pairwise(GAPS):
        upper = "" if math.isinf(high) else f" to {number(high)}"
        row = [f"{'more than ' if not upper else ''}{number(low)}{upper}"]
        for name in GAUGED:
            models, shares, n = ordered_by_gap(counted, name, low, high)
            row.append(f"{cell(_over_models(models, shares))} ({n})")
        rows.append(row)
    return markdown(["difference", *GAUGED], rows)


def _kind_table(records: Records) -> str:
    heads, columns = ["AUROC"], list[Agreements]()
    for chosen in SETS:
        for kind in KINDS:
            members = [record for record in records if change_of(record["model"]) == kind]
            columns.append(agreements(members, chosen))
            n = len(set(columns[-1].models))
            heads.append(f"{chosen}, {kind} ({n})")
    rows = ([name, *(cell(column.mean(name)) for column in columns)] for name in MEASURES)
    return markdown(heads, rows)


def _grid_table(grids: dict[str, Records]) -> str:
    heads, levels, columns = ["measure less CMA"], [f"{REFERENCE} itself"], list[Agreements]()
    for name, records in grids.items():
        if name == MAIN:
            continue
        for chosen in SETS:
            own = agreements(records, chosen)
            heads.append(f"{name}, {chosen} ({len(set(own.models))})")
            levels.append(cell(own.mean(REFERENCE)))
            columns.append(own.differences)
    rows = [levels]
    rows += [[m, *(cell(column.mean(m), signed=True) for column in columns)] for m in RIVALS]
    return markdown(heads, rows)


def _overshoot_table(records: Records) -> str:
    heads = ["models", "n", "largest f, by value", "largest f, by magnitude"]
    heads += [f"f > {OVERSHOOTS:g}, by value", f"f > {OVERSHOOTS:g}, by magnitude"]
    heads += ["CPR of the true scores", "CPR of their magnitudes"]
    rows: list[list[str]] = []
    for kind in KINDS:
        members = [r for r in records if change_of(r["model"]) == kind and not r["dropped"]]
        tops = {
            by: [[s["largest f"][by] for s in r["scorings"].values()] for r in members]
            for by in ("value", "magnitude")
        }
        models = [str(record["model"]) for record in members]
        row = [kind, str(len(set(models)))]
        row += [f"{max(map(max, values)):.2f}" for values in tops.values()]
        for values in tops.values():
            shares = [float((np.array(line) > OVERSHOOTS).mean()) for line in values]
            row.append(cell(_over_models(models, shares)))
        for label in ("as they are", "magnitudes"):
            areas = [r["scorings"][label]["measures"]["CPR"] for r in members]
            row.append(cell(_over_models(models, areas)))
        rows.append(row)
    return markdown(heads, rows)


def _over_models(models: Sequence[str], values: Sequence[float]) -> Mean:
    """The mean of cells, averaged within models first."""
    return student(averaged(models, values)[1])


def _control_table(records: Records) -> str:
    members = [record for record in records if not record["dropped"]]
    models = [str(record["model"]) for record in members]
    rows: list[list[str]] = []
    for label in CONTROLS:
        scorings = [record["scorings"][label] for record in members]
        row = [label, cell(_over_models(models, [s["auroc"] for s in scorings]))]
        for name in SUMMED_UP:
            row.append(cell(_over_models(models, [s["measures"][name] for s in scorings])))
        rows.append(row)
    lines = [markdown(["scoring", "AUROC", *SUMMED_UP], rows)]
    for kind in ("random edges", "random paths"):
        areas = np.array(
            [
                scoring["measures"][REFERENCE]
                for record in members
                for label, scoring in record["scorings"].items()
                if label.startswith(kind)
            ]
        )
        lines.append(
            f"Of {len(areas)} rankings of {kind} {float((areas > LUCKY).mean()):.0%} have a"
            f" {REFERENCE} above {number(LUCKY)}; the largest is {number(float(areas.max()))}.\n"
        )
    return "\n".join(lines)


def _model_table(records: Records) -> str:
    rows: list[list[str]] = []
    for record in records:
        if record["sample"]:
            continue
        name, margin = str(record["model"]), f"{record['margin']:.3g}"
        row = [name, str(record["n_edges"]), str(record["n_true"]), margin]
        scorings = [r["scorings"] for r in records if r["model"] == name]
        if record["dropped"]:
            rows.append([*row, "", "", "", str(record["dropped"])])
            continue
        top = max(s["largest f"]["value"] for held in scorings for s in held.values())
        row.append(f"{top:.2f}")
        for label in ("as they are", "false .3"):
            areas = [held[label]["measures"]["CPR"] for held in scorings]
            row.append(number(float(np.mean(areas))))
        rows.append([*row, "counts"])
    heads = ["model", "edges", "true edges", "margin", "largest f, by value"]
    heads += ["CPR, as they are", "CPR, false .3", "counts, or why not"]
    return markdown(heads, rows)


def _reference_table(grids: dict[str, Records]) -> str:
    """The reference's agreement in each model: where it fails."""
    heads, columns = ["AUROC, CMA"], list[dict[str, float]]()
    place = list(MEASURES).index(REFERENCE)
    for name, records in grids.items():
        for chosen in SETS:
            table = agreements(records, chosen)
            names, means = averaged(table.models, table.values[:, place].tolist())
            columns.append(dict(zip(names, means, strict=True)))
            heads.append(f"{name}, {chosen}")
    rows = [
        [model, *(number(column[model]) if model in column else "" for column in columns)]
        for model in columns[0]
    ]
    return markdown(heads, rows)


def _run_table(grids: dict[str, Records]) -> str:
    rows: list[list[str]] = []
    for name, records in grids.items():
        counted = [record for record in records if not record["dropped"]]
        settings = counted[0]["settings"]
        rows.append(
            [
                name,
                str(len(counted)),
                str(len({record["model"] for record in counted})),
                str(len({record["sample"] for record in counted})),
                _range(len(record["scorings"]) for record in counted),
                f"{settings['n_train']}, {settings['n_test']}",
                f"{sum(record['seconds'] for record in records) / 3600:.2f}",
            ]
        )
    heads = ["grid", "cells", "models", "samples", "scorings", "pairs: train, test", "hours"]
    return markdown(heads, rows)


def _undefined(grids: dict[str, Records]) -> str:
    lines: list[str] = []
    for name, records in grids.items():
        for chosen in SETS:
            for measure, n in agreements(records, chosen).n_undefined.items():
                lines.append(f"- {name}, {chosen}: {measure} is undefined in {n} cells.")
        refused = {(label, why) for record in records for label, why in record["refused"].items()}
        lines += [f"- {name}: {label} has no scores: {why}" for label, why in sorted(refused)]
    return "\n".join(lines) if lines else "No agreement is undefined, and no method refused."
