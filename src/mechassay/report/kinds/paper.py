"""Uit de Bos and Garriga-Alonso (2024), run again: our distributions beside the printed ones.

A record is a run of adversarial evaluation; those of unmatched pairs have a verdict too: is table 3
closer to the circuit or to the empty circuit (`adversarial.verdict`)?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from mechassay.adversarial.verdict import Closeness
from mechassay.records import Failure, Record
from mechassay.report.nats import nats, plain_number, summary
from mechassay.report.page import Page, Section
from mechassay.report.sections import broken, table_sections
from mechassay.report.tables import NOTHING, TextTable

KIND = "adversarial-paper"
VERDICT = "verdict on table 3"
"""The table of a record that has the distances from the printed one."""
ROWS = ("mean", "std", "min", "25%", "50%", "75%", "95%", "99%", "99.9%", "99.99%", "max")
TASKS = ("ioi", "greater-than", "docstring")
SCALED = {"docstring": 50257 / 48262}
"""What the printed numbers of table 3 are too large by."""
PRINTED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "unmatched": {
        "ioi": (5.15, 1.70, 0.03, 4.01, 5.12, 6.27, 7.99, 9.25, 10.81, 12.25, 14.64),
        "greater-than": (2.09, 1.04, 0.08, 1.23, 2.07, 2.91, 3.77, 4.23, 4.63, 4.91, 5.31),
        "docstring": (3.91, 1.45, 0.10, 2.85, 3.66, 4.75, 6.66, 8.03, 9.46, 10.58, 12.07),
    },
    "matched": {
        "ioi": (0.59, 0.53, 0.00, 0.21, 0.42, 0.80, 1.65, 2.49, 3.85, 5.34, 8.83),
        "greater-than": (0.08, 0.06, 0.01, 0.04, 0.07, 0.10, 0.20, 0.33, 0.46, 0.54, 0.60),
        "docstring": (1.38, 0.93, 0.01, 0.71, 1.11, 1.78, 3.29, 4.57, 6.06, 7.33, 9.97),
    },
}
"""Tables 3 and 7 of the paper, in nats, in the order of `ROWS`."""
TITLES = {"unmatched": "Unmatched pairs (table 3)", "matched": "Matched pairs (table 7)"}
READING = {
    "Here": "The circuit, run again.",
    "Population": (
        "As in the paper, both prompts of every pair have the same template. Prompts of different"
        " ones are in no pair with each other."
    ),
    "Empty": "KL(M(x) ‖ M(x̃)): the model itself on the corrupted prompt, without any circuit.",
    "Printed": (
        "What the paper says. Its numbers for unmatched pairs are probably those of the empty"
        " circuit, and those for docstring are 4 % too large in table 3, because all were scaled by"
        " the vocabulary of GPT-2."
    ),
    "Distance": (
        "The mean of |ln(percentile here / percentile printed)| over the percentiles that the"
        " sample reaches to: 0.1 is a difference of about 10 % at a typical percentile. Docstring's"
        " printed numbers are divided by what they are too large by. Table 3 is called closer to"
        " one of the two if the 95 % interval of the difference of the distances excludes 0."
        " Whether docstring's model is the paper's is told by its shape alone."
    ),
}


class PaperPage(Page):
    """Three circuits of the literature under adversarial evaluation."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        return "Three circuits of the literature under adversarial evaluation"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """What failed; our distributions beside the printed ones; the verdict."""
        by_run = _by_run(records)
        made = [table for pairs in TITLES if (table := paper_table(by_run, pairs)).columns[1:]]
        said = [(failure.cell["run"], failure.message) for failure in failures]
        said += [(name, text) for name, record in by_run.items() for text in broken(record)]
        if said:
            made.insert(0, TextTable.of("What failed", ("run", "why"), said, words=True))
        found = verdicts(records)
        return [*made, verdict_table(found)] if found else made

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """A section a table, how to read them, and each run with its own report."""
        facts = [
            {
                "run": name,
                "model": record.model.name,
                "prompts": record.cell["task"],
                "templates": (
                    "the same in both prompts"
                    if "same" in record.task.args
                    else "the task's own pairs"
                ),
                "circuit": record.method.name,
                "edges": f"{record.method.args['edges']:,}",
                "pairs": f"{record.n:,}{' (all)' if record.task.args['population'] else ''}",
                # Markup is set as it is, and escapes what is put into it.
                "report": Markup('<a href="{0}/report.html">{0}/report.html</a>').format(name),
            }
            for name, record in _by_run(records).items()
        ]
        return table_sections(self.tables(records, failures), READING, facts)


def _by_run(records: Sequence[Record]) -> dict[str, Record]:
    return {record.cell["run"]: record for record in records}


def paper_table(records: Mapping[str, Record], pairs: str) -> TextTable:
    """One of the two tables; tasks that were not run are left out."""
    run = {task: records[f"{task}-{pairs}"] for task in TASKS if f"{task}-{pairs}" in records}
    columns = ("", *(f"{task}: {what}" for task in run for what in ("here", "empty", "printed")))
    rows: list[tuple[str, ...]] = []
    for place, name in enumerate(ROWS):
        cells = [name]
        for task, record in run.items():
            for numbers in (summary(record), summary(record, "control:empty")):
                cells.append(nats(numbers[name]["value"]) if name in numbers else NOTHING)
            cells.append(f"{PRINTED[pairs][task][place]:.2f}")
        rows.append(tuple(cells))
    return TextTable.of(TITLES[pairs], columns, rows)


def verdicts(records: Sequence[Record]) -> dict[str, Closeness]:
    """What table 3 is closer to, by task."""
    found: dict[str, Closeness] = {}
    for record in records:
        for row in record.table(VERDICT).rows() if record.has_table(VERDICT) else ():
            numbers = {
                name: plain_number(row[name]) for name in ("circuit", "empty", "low", "high")
            }
            names = tuple(str(row["compared"]).split())
            found[str(row["task"])] = Closeness(str(row["why_not"]), **numbers, compared=names)
    return found


def verdict_table(found: Mapping[str, Closeness]) -> TextTable:
    """For each task what table 3 is closer to."""
    columns = (
        "task",
        "table 3 is closer to",
        "from the circuit",
        "from the empty circuit",
        "the first minus the second",
        "percentiles",
    )
    rows = [
        (task, each.closer_to, *[NOTHING] * 4)
        if not each.compared
        else (
            task,
            each.closer_to,
            f"{each.circuit:.2f}",
            f"{each.empty:.2f}",
            f"[{each.low:.2f}, {each.high:.2f}]",
            ", ".join(each.compared),
        )
        for task, each in found.items()
    ]
    return TextTable.of("Verdict on table 3, by distances", columns, rows, words=True)


def verdict_text(task: str, found: Closeness) -> str:
    """The verdict on one task in a line."""
    what = "what " if found.closer_to.startswith("cannot") else ""
    said = f"{task}: {what}table 3 is closer to {found.closer_to}"
    if not found.compared:
        return f"{said}."
    return (
        f"{said}; its distance is {found.circuit:.2f} from the circuit and {found.empty:.2f} from"
        " the empty circuit."
    )
