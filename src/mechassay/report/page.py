"""Results as one HTML file that needs nothing else: no network, no scripts, no other files.

From top to bottom: what was found, in one sentence computed from the numbers; warnings; the
figures and the table of CPR and CMD; how to read them; the circuits; what was run on what; the
values of every example. Text from records is escaped by the template; the only markup that
enters as it is are our own SVGs, and the page forbids itself scripts and loads of any kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mechassay.circuits.faithfulness import FaithfulnessCurve
from mechassay.circuits.record import record_of
from mechassay.files import whole
from mechassay.records import Failure, Record, Spec
from mechassay.report.canvas import Drawing
from mechassay.report.figures import areas_figure, colours, faithfulness_figure
from mechassay.report.table import NUMERIC, shown_columns, table_rows
from mechassay.report.text import (
    CHANCE_DECIMALS,
    CONTROLS,
    arguments,
    control_kinds,
    labels,
    measure,
    measure_text,
    number,
    objective,
    random_seeds,
    setting_name,
    settings,
    share,
    verdict,
)

MAX_EXAMPLES = 200
"""Rows of the table of examples; the JSON record holds them all."""


def write_page(
    path: Path,
    results: Sequence[Record | FaithfulnessCurve],
    drawings: Sequence[Drawing] = (),
    failures: Sequence[Failure] = (),
    title: str | None = None,
) -> Path:
    """Write results as one self-contained HTML file.

    Args:
        path: of the file; its folder is made.
        results: records; or curves, whose page then lacks what only a record knows.
        drawings: of `draw_circuit`. Their SVGs enter the page as they are.
        failures: cells that failed, shown as rows.

    Returns:
        The path.
    """
    records = [as_record(result) for result in results]
    environment = Environment(
        loader=PackageLoader("mechassay.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    html = environment.get_template("page.html").render(
        _content(records, drawings, failures, title)
    )
    with whole(path) as partial:
        partial.write_text(html, encoding="utf-8")
    return path


def _content(
    records: Sequence[Record],
    drawings: Sequence[Drawing],
    failures: Sequence[Failure],
    title: str | None,
) -> dict[str, Any]:
    groups = settings(records)
    return {
        "title": title or _title(records),
        "verdicts": [(setting_name(group[0]), verdict(group)) for group in groups],
        "n_failures": sum(failure.status == "failed" for failure in failures),
        "warnings": _warnings(records),
        "groups": [_group(group, failures if len(groups) == 1 else ()) for group in groups],
        "failures": _table([], failures) if failures and len(groups) != 1 else None,
        "numeric": NUMERIC,
        "profiles": {record.metric.args.get("profile") for record in records},
        "has_log_areas": any(measure(record, "log_cpr") for record in records),
        "drawings": [_drawing(drawing) for drawing in drawings],
        "facts": _facts(records),
        "names": labels(records),
        "examples": [
            _examples(record, label) for record, label in zip(records, labels(records), strict=True)
        ],
        "max_examples": MAX_EXAMPLES,
    }


def _title(records: Sequence[Record]) -> str:
    models, tasks = (
        {name for name in names if name}
        for names in ((r.model.name for r in records), (r.task.name for r in records))
    )
    of = f" of {models.pop()}" if len(models) == 1 else ""
    on = f" on {tasks.pop()}" if len(tasks) == 1 else ""
    return f"Faithfulness of circuits{of}{on}"


def as_record(result: Record | FaithfulnessCurve) -> Record:
    """A record as it is; a curve as a record of what the curve itself knows."""
    if isinstance(result, Record):
        return result
    notes = dict(result.notes)
    return record_of(
        result,
        model=Spec(name=notes.pop("model", "")),
        task=Spec(name=notes.pop("task", "")),
        method=Spec(
            name=result.label,
            args={f"scores' {key}": text for key, text in notes.items() if key != "method"},
        ),
        dtype=notes.get("dtype", ""),
    )


def _warnings(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Every distinct warning and the records it is about;
    nothing there if it is about all of them.
    """
    about: dict[str, list[str]] = {}
    for record, label in zip(records, labels(records), strict=True):
        for text in record.warnings:
            about.setdefault(text, []).append(label)
    return [
        (text, "" if len(names) == len(records) else "; ".join(names))
        for text, names in about.items()
    ]


def _group(records: Sequence[Record], failures: Sequence[Failure]) -> dict[str, Any]:
    """Figures and table of records that can be compared."""
    return {
        "name": setting_name(records[0]),
        "faithfulness": Markup(faithfulness_figure(records)),
        "areas": Markup(areas_figure(records)),
        "table": _table(records, failures),
    }


def _table(records: Sequence[Record], failures: Sequence[Failure]) -> dict[str, Any]:
    rows = table_rows(records, failures)
    drawn = [*colours(records), *[""] * (len(rows) - len(records))]
    return {"columns": shown_columns(rows), "rows": list(zip(rows, drawn, strict=True))}


def _drawing(drawing: Drawing) -> dict[str, str]:
    """A drawing and its caption."""
    return {"svg": Markup(drawing.svg), "title": drawing.title, "about": drawing.about}


def _facts(records: Sequence[Record]) -> list[tuple[str, list[tuple[str, int]]]]:
    """What was run on what: a name, and cells of text with the number
    of neighbouring records that share it.
    """
    columns = [_facts_of(record) for record in records]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows: list[tuple[str, list[tuple[str, int]]]] = []
    for name in names:
        cells = [column.get(name, "") for column in columns]
        if any(cells):
            rows.append((name, [(text, len(list(same))) for text, same in groupby(cells)]))
    return rows


def _facts_of(record: Record) -> dict[str, str]:
    args, about = record.task.args, record.provenance
    task = {"counterfactual", "split"}
    commit = (
        f"{about.commit or 'not a checkout'}{', with uncommitted changes' if about.dirty else ''}"
    )
    return {
        "method": _versioned(record.method),
        "method's settings": arguments(record.method),
        "model": record.model.name,
        "family": str(record.model.args.get("family", "")),
        "edges": f"{record.model.args['n_edges']:,}" if "n_edges" in record.model.args else "",
        "task": _versioned(record.task),
        "counterfactual": str(args.get("counterfactual", "")),
        "split": str(args.get("split", "")),
        **{key.replace("_", " "): str(value) for key, value in args.items() if key not in task},
        "accuracy of the model": measure_text(record, "accuracy", least=CHANCE_DECIMALS),
        "chance": measure_text(record, "chance"),
        **{f"{split} pairs": _selection(chosen) for split, chosen in record.data.items()},
        "pairs": f"{len(record.example_ids):,} in {len(set(record.groups)):,} groups",
        "objective": objective(record),
        "profile": str(record.metric.args.get("profile", "")),
        "random control": "; ".join(
            f"{CONTROLS[kind]}, seeds {', '.join(random_seeds(record, kind))}"
            for kind in control_kinds(record)
        )
        or "none",
        **{
            key.replace("_", " "): f"{value:,.4g}"
            for key, value in record.realised.items()
            if not math.isnan(value)
        },
        "seed": str(about.seed),
        "data hash": about.data_hash,
        "device": ", ".join(filter(None, (about.device, about.dtype, f"{about.threads} threads"))),
        "machine": about.machine,
        "commit": commit,
        "packages": ", ".join(
            [
                f"Python {about.python}",
                *(f"{name} {version}" for name, version in about.packages.items()),
            ]
        ),
        "created": about.created,
    }


def _selection(chosen: dict[str, Any]) -> str:
    """What was kept of a split, what was dropped, and how its tokens were aligned."""
    dropped = [f"{count} dropped: {reason}" for reason, count in chosen.get("dropped", {}).items()]
    words = {
        "cut": "cut back",
        "forced": "written on",
        "partial": "compared by the first of several tokens",
    }
    aligned = [
        f"{count} {words[how]}" for how, count in chosen.get("alignment", {}).items() if count
    ]
    return "; ".join(
        [
            f"{chosen.get('kept', 0)} kept",
            *dropped,
            *aligned,
            f"hash {str(chosen.get('hash', ''))[:12]}",
        ]
    )


def _versioned(spec: Spec) -> str:
    return f"{spec.name} (version {spec.version})" if spec.name else ""


def _examples(record: Record, label: str) -> dict[str, Any]:
    """The objective of every example in the clean run,
    the empty circuit, and the circuits by value.
    """
    columns = {"clean": "clean", "empty": "empty"}
    columns |= {
        f"value@{fraction:g}": f"value@{share(float(fraction))}"
        for fraction in record.curves.get("fractions", [])
    }
    held = {key: record.per_example[key] for key in columns if key in record.per_example}
    rows = [
        (name, [number(value) for value in values])
        for name, *values in zip(
            record.example_ids[:MAX_EXAMPLES],
            *(column[:MAX_EXAMPLES] for column in held.values()),
            strict=True,
        )
    ]
    return {
        "label": label,
        "columns": [columns[key] for key in held],
        "rows": rows,
        "total": len(record.example_ids),
    }
