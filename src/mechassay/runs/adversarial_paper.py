"""The evaluation of Uit de Bos and Garriga-Alonso (2024), run again:
three circuits of the literature, unmatched and matched pairs.

    unmatched  1000 clean x 1000 corrupted prompts, one template   figures 1 to 3, tables 3 to 6
    matched    1,000,000 prompts, each with its own corrupted one    figures 4 to 6, tables 7 to 10

Each of the six is a run of its own (`runs.adversarial`) in a folder of its own; one page puts their
distributions beside the printed ones, and ends with a verdict: is table 3 closer to the circuit or
to the empty circuit (`adversarial_verdict`)? In the paper both prompts of a pair have one template,
so pairs are those of the same template here. What else differs from the paper is in
docs/adversarial.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from mechassay.adversarial.divergence_file import DivergenceFile
from mechassay.errors import BadUsage, MechassayError
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.records import Failure, Record, failure_of
from mechassay.report.nats import nats, summary
from mechassay.report.page import render
from mechassay.report.sections import broken, table_sections
from mechassay.report.tables import NOTHING, Table
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.adversarial_study import AdversarialStudy
from mechassay.runs.adversarial_verdict import Closeness, closeness, keep, kept, other_model
from mechassay.runs.execute import Here, done, prepare
from mechassay.runs.folder import write_text
from mechassay.tasks.docstring import RANDOM
from mechassay.tasks.greater_than import GreaterThan
from mechassay.tasks.ioi import NEW_NAMES
from mechassay.tasks.paper import PAPER

ROWS = ("mean", "std", "min", "25%", "50%", "75%", "95%", "99%", "99.9%", "99.99%", "max")
TASKS = ("ioi", "greater-than", "docstring")
MAPS = {"ioi": ("place,object",), "greater-than": ("noun,year",)}
"""Fields of the paper's figures 7 and 10."""
PROMPTS: Mapping[str, Mapping[str, str]] = {
    "unmatched": {
        "ioi": "ioi:words=paper",
        "greater-than": "greater-than:words=paper",
        "docstring": "docstring:words=paper",
    },
    "matched": {
        "ioi": "ioi:words=paper-matched",
        "greater-than": "greater-than:words=paper",
        "docstring": "docstring:words=paper",
    },
}
"""The task, as commands take it, that the prompts of each table are from."""
IOI_MATCHED = 300_000
"""The most matched pairs of IOI:
the paper's words make 372,480 different clean prompts of the split test.
"""
SAME = ("template",)
"""What both prompts of an unmatched pair agree in."""
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

Load = Callable[[str, bool], Model]
"""A model by its name, and whether BOS goes before every prompt."""


@dataclass(frozen=True)
class PaperRun:
    """What to run.

    Attributes:
        model: GPT-2 small: hub id or folder.
        docstring_model: attn-only-4l; None leaves the docstring circuit out.
        n_clean, n_corrupted: sides of the grids.
        n_matched: matched pairs; of greater-than all, if the split has no more, of IOI at most
            `IOI_MATCHED`.
    """

    model: str
    docstring_model: str | None = None
    n_clean: int = 1000
    n_corrupted: int = 1000
    n_matched: int = 1_000_000
    dtype: str = "float32"
    seed: int = 0
    worst: int = 10

    def check(self) -> None:
        """Refuse what cannot be run, before anything is loaded.

        Raises:
            BadUsage, UnknownName: a setting of all runs.
        """
        for name in ("n_clean", "n_corrupted", "n_matched"):
            if getattr(self, name) < 1:
                raise BadUsage(f"{name} must be 1 or more; got {getattr(self, name)}.")
        for plan in self.plans().values():
            plan.refuse()

    def plans(self) -> dict[str, AdversarialJob]:
        """The runs by the name of their folder: "ioi-unmatched" and so on."""
        found: dict[str, AdversarialJob] = {}
        kinds = {"ioi": NEW_NAMES, "greater-than": None, "docstring": RANDOM}
        for task in TASKS:
            model = self.docstring_model if task == "docstring" else self.model
            if model is None:
                continue
            every = task == "greater-than" and self.n_matched >= GreaterThan(
                words=PAPER
            ).population("test")
            n_matched = min(self.n_matched, IOI_MATCHED) if task == "ioi" else self.n_matched
            sizes = {
                "unmatched": (self.n_clean, self.n_corrupted),
                "matched": (n_matched, n_matched),
            }
            for pairs, (n_clean, n_corrupted) in sizes.items():
                found[f"{task}-{pairs}"] = AdversarialJob(
                    model=model,
                    task=PROMPTS[pairs][task],
                    circuits=(f"canonical:{task}",),
                    design="grid" if pairs == "unmatched" else "matched",
                    n_clean=n_clean,
                    n_corrupted=n_corrupted,
                    same=SAME if pairs == "unmatched" else (),
                    enumerate_all=every and pairs == "matched",
                    counterfactual=kinds[task],
                    # Docstring prompts begin with BOS in the paper, those of the other tasks do
                    # not.
                    prepend_bos=task == "docstring",
                    dtype=self.dtype,
                    seed=self.seed,
                    worst=self.worst,
                    heat_maps=MAPS.get(task, ()),
                )
        return found


@dataclass(frozen=True)
class PaperResult:
    """What came out.

    Attributes:
        records: by the name of their folder.
        failures: runs that could not be made.
        verdicts: of table 3, by task.
    """

    records: Mapping[str, Record]
    failures: Sequence[Failure]
    verdicts: Mapping[str, Closeness]


def run_paper(run: PaperRun, output: Path, load: Load, *, progress: Progress = BAR) -> PaperResult:
    """All runs that can be made, each with its report, and the page of all.

    Raises:
        BadUsage, UnknownName: a setting that no run can have, or no run could be made.
    """
    run.check()
    records: dict[str, Record] = {}
    failures: list[Failure] = []
    verdicts: dict[str, Closeness] = {}
    held: dict[tuple[str, bool], Model | MechassayError] = {}

    def loaded(plan: AdversarialJob) -> Model:
        key = (plan.model, plan.prepend_bos)
        if key not in held:
            # What cannot be loaded is not tried again.
            try:
                held[key] = load(*key)
            except MechassayError as error:
                held[key] = error
        found = held[key]
        if isinstance(found, MechassayError):
            raise found
        return found

    for name, plan in run.plans().items():
        try:
            models = {plan.model: loaded(plan)}
            bench = prepare(plan, output / name, models=models, progress=progress)
            results = done(plan, bench, Here())
            for failure in results.failures:
                raise MechassayError(failure.message)
            plan.report(results)
            (records[name],) = results.records
            task, _, pairs = name.rpartition("-")
            if pairs == "unmatched":
                verdicts[task] = _verdict(AdversarialStudy(plan, bench), task)
        except Exception as error:
            failures.append(failure_of({"run": name}, error))
    if not records and failures:
        raise BadUsage(f"None of the runs could be made; the first: {failures[0].message}")
    result = PaperResult(records, failures, verdicts)
    write_text(output / "report.html", paper_page(result))
    return result


def _verdict(job: AdversarialStudy, task: str) -> Closeness:
    """Whether table 3 is closer to the circuit or to the empty circuit; a finished folder knows."""
    file, digest = job.folder.path / "verdict.json", DivergenceFile.file_hash(job.values_file)
    found = kept(file, digest)
    if found is None:
        printed = {
            name: value / SCALED.get(task, 1.0)
            for name, value in zip(ROWS, PRINTED["unmatched"][task], strict=True)
        }
        why_not, values = other_model(job.model, task), job.values
        units = job.statistics.drawn(values.corrupted).n_units
        found = (
            Closeness(why_not)
            if why_not
            else closeness(values.circuits[0], values.corrupted, printed, units, job.run.seed)
        )
        keep(file, digest, found)
    return found


def verdict_grid(verdicts: Mapping[str, Closeness]) -> Table:
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
        (
            task,
            found.closer_to,
            *(
                (f"{found.circuit:.2f}", f"{found.empty:.2f}")
                if found.compared
                else (NOTHING, NOTHING)
            ),
            f"[{found.low:.2f}, {found.high:.2f}]" if found.compared else NOTHING,
            ", ".join(found.compared) or NOTHING,
        )
        for task, found in verdicts.items()
    ]
    return Table.of("Verdict on table 3, by distances", columns, tuple(rows), words=True)


def verdict_text(task: str, found: Closeness) -> str:
    """The verdict on one task in a line."""
    if not found.compared:
        return f"{task}: what table 3 is closer to {found.closer_to}."
    near = (
        f"its distance is {found.circuit:.2f} from the circuit and {found.empty:.2f} from the empty"
        " circuit"
    )
    if found.closer_to.startswith("cannot"):
        return f"{task}: what table 3 is closer to {found.closer_to}; {near}."
    return f"{task}: table 3 is closer to {found.closer_to}; {near}."


def paper_page(result: PaperResult) -> str:
    """Our distributions beside the printed ones, and the verdict."""
    records, failures = result.records, result.failures
    grids = [grid for pairs in TITLES if (grid := paper_grid(records, pairs)).columns[1:]]
    said = [(failure.cell["run"], failure.message) for failure in failures]
    said += [(name, text) for name, record in records.items() for text in broken(record)]
    if said:
        grids.insert(0, Table.of("What failed", ("run", "why"), tuple(said), words=True))
    if result.verdicts:
        grids.append(verdict_grid(result.verdicts))
    facts = [
        {
            "run": name,
            "model": record.model.name,
            "prompts": PROMPTS[name.rpartition("-")[2]][name.rpartition("-")[0]],
            "templates": (
                "the same in both prompts" if "same" in record.task.args else "the task's own pairs"
            ),
            "circuit": record.method.name,
            "edges": f"{record.method.args['edges']:,}",
            "pairs": (f"{record.n:,}{' (all)' if record.task.args['population'] else ''}"),
            # Markup is set as it is, and escapes what is put into it.
            "report": Markup('<a href="{0}/report.html">{0}/report.html</a>').format(name),
        }
        for name, record in records.items()
    ]
    return render(
        "Three circuits of the literature under adversarial evaluation",
        table_sections(grids, READING, facts),
    )


def paper_grid(records: Mapping[str, Record], pairs: str) -> Table:
    """One of the two tables; tasks that were not run are left out."""
    there = {task: records[f"{task}-{pairs}"] for task in TASKS if f"{task}-{pairs}" in records}
    columns = ("", *(f"{task}: {what}" for task in there for what in ("here", "empty", "printed")))
    rows: list[tuple[str, ...]] = []
    for place, name in enumerate(ROWS):
        cells = [name]
        for task, record in there.items():
            for table in (summary(record), summary(record, "control:empty")):
                cells.append(nats(table[name]["value"]) if name in table else NOTHING)
            cells.append(f"{PRINTED[pairs][task][place]:.2f}")
        rows.append(tuple(cells))
    return Table.of(TITLES[pairs], columns, tuple(rows))
