"""From a claim to a verdict: run what its criteria ask for, and judge it by the records.

Every step (`assay_steps`) is a job in a folder of its own, so that what is done stays done: a step
whose cells all have records costs nothing, and a step that fails leaves its criteria NOT TESTED and
the others as they are. The claims are written down before the first record, which is what makes
predictions of them. Then `claims.link` judges; a reader's judgments may fill in the rest.

The plan of a step that is done is held against what is asked now: a folder of another claim or of
other settings is refused, never read for this one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mechassay.claims.claim import Claim, ClaimFile
from mechassay.claims.documents import PagedDocument
from mechassay.claims.dossier import REGISTERED, completed, link
from mechassay.claims.judgments import Judgments, Scope, now
from mechassay.claims.predictions import PredictionOutcome, outcome_table, outcomes
from mechassay.claims.scored import ScoredJudgments, score_judgments
from mechassay.claims.stored import records_below
from mechassay.display import OneLine
from mechassay.errors import BadUsage, DiskFull, MechassayError, MissingExtra
from mechassay.files import write_text
from mechassay.progress import BAR, Progress
from mechassay.records import Record, Table
from mechassay.report.claim_form import write_form
from mechassay.report.reports import write_page
from mechassay.runs.assay_steps import OWN, AssaySettings, AssayStep, ClaimSteps
from mechassay.runs.execute import Here, done, prepare
from mechassay.runs.folder import read_json
from mechassay.runs.job import cell_name

SECONDS = "seconds.json"


@dataclass(frozen=True, repr=False)
class Assayed(OneLine):
    """What an assay found.

    Attributes:
        judgments: of all claims; with a reader's for the rest, if there were any.
        predictions: of each claim, what became of them in the model that was run.
        scope: "other model" if that is not the model that the claims are about.
        failed: steps that left no record, by their folders, with the reason.
        page, form: the report, and the form in which a reader judges the rest.
    """

    judgments: Judgments
    scored: ScoredJudgments
    records: tuple[Record, ...]
    predictions: dict[str, list[PredictionOutcome]]
    scope: Scope
    failed: dict[str, str]
    page: Path
    form: Path

    @property
    def refuted(self) -> list[str]:
        """Predictions that fail, with their claims; another model refutes none."""
        if self.scope == "other model":
            return []
        return [
            f"{name}: {each.prediction} ({each.found})"
            for name, found in self.predictions.items()
            for each in found
            if each.outcome == "fails"
        ]


class Assay:
    """The assay of a file of claims in a folder.

    Args:
        model: that is run instead of the claims' own; the judgments are then of another model.

    Raises:
        BadUsage, UnknownName, BadFile: a claim names no model or task, or what does not exist.
    """

    def __init__(
        self,
        claims: ClaimFile,
        folder: str | Path,
        settings: AssaySettings | None = None,
        *,
        model: str = "",
        device: str = "cpu",
        progress: Progress = BAR,
    ) -> None:
        self.claims, self.folder = claims, Path(folder)
        self.settings, self.model = settings or AssaySettings(), model
        self.device, self.progress = device, progress
        parts = [self._part(claim) for claim in claims.claims]
        self.parts = tuple(parts)

    def _part(self, claim: Claim) -> ClaimSteps:
        own = claim
        if self.model and self.model != claim.model:
            own = claim.model_copy(update={"model": self.model, "untrained": ""})
        for name in ("model", "task"):
            if not getattr(own, name):
                raise BadUsage(f"The claim {claim.id} names no {name} to run.")
        alone = len(self.claims.claims) == 1
        folder = self.folder if alone else self.folder / cell_name(claim.id)
        return ClaimSteps(own, folder, self.settings, self.device)

    @property
    def steps(self) -> list[AssayStep]:
        """All steps, those of a claim after another."""
        return [step for part in self.parts for step in part.steps]

    def seconds_per_forward(self) -> float:
        """Seconds that a run of the first claim's model takes on one pair: the unit of costs."""
        return self.parts[0].seconds_per_forward()

    def run(
        self,
        read: Judgments | None = None,
        say: Callable[[str], object] = lambda text: None,
        documents: Sequence[PagedDocument] = (),
    ) -> Assayed:
        """Run what has no record yet, judge, and write judgments.json, score.json, report.html and
        form.html.

        Args:
            read: a reader's judgments, for what no record decides.
            say: is given a line for each step.
            documents: that the reader's quotes are from.

        Raises:
            BadUsage: the folder holds a run of another claim, or with other settings; the reader
                judged another claim.
            MechassayError: a circuit could not be found at all; there is no room.
        """
        self._register()
        failed = self._run(say)
        return self._judge(read, documents, failed)

    def _register(self) -> None:
        """Write the claims down with their circuits, unless there are records already."""
        if not self.folder.is_dir() or not records_below(self.folder):
            held = self._held().model_copy(update={"registered": now()})
            write_text(self.folder / REGISTERED, held.model_dump_json(indent=1) + "\n")

    def _held(self) -> ClaimFile:
        """The claims with their circuits as records name them, of the model that they are about."""
        held = [
            part.claim.model_copy(update={"model": claim.model or part.claim.model})
            for part, claim in zip(self.parts, self.claims.claims, strict=True)
        ]
        return self.claims.model_copy(update={"claims": tuple(held)})

    def _run(self, say: Callable[[str], object]) -> dict[str, str]:
        failed: dict[str, str] = {}
        steps = self.steps
        open_steps = [step for step in steps if not step.is_done]
        left, spent, run_for = sum(step.forwards for step in open_steps), 0.0, 0.0
        for place, step in enumerate(steps, start=1):
            head = f"{place}/{len(steps)} {step.name} ({', '.join(step.criteria)})"
            if step not in open_steps:
                # Its records are of this claim and of these settings, or the folder is refused.
                prepare(step.job, step.folder, device=self.device, progress=self.progress)
                say(f"{head}: done before")
                continue
            rest = f", about {_minutes(left * run_for / spent)} left" if spent else ""
            say(f"{head}: about {step.forwards:,.0f} runs of a pair{rest}")
            begin = time.perf_counter()
            reason = self._do(step)
            seconds = time.perf_counter() - begin
            self._spend(step, seconds)
            left, spent, run_for = left - step.forwards, spent + step.forwards, run_for + seconds
            if reason:
                failed[str(step.folder)] = reason
                say(f"{head}: no record: {reason}")
                if step.name == OWN:
                    raise MechassayError(f"{step.folder}: {reason}")
        return failed

    def _do(self, step: AssayStep) -> str:
        """Run a step; why it left no record, if it did."""
        try:
            bench = prepare(
                step.job, step.folder, device=self.device, progress=self.progress, here=True
            )
        except MissingExtra as error:
            return str(error)
        try:
            results = done(step.job, bench, Here())
        except DiskFull:
            raise
        except MechassayError as error:
            return str(error)
        step.job.report(results)
        lacking = [each for each in results.failures if each.status == "failed"]
        return lacking[0].message if lacking else ""

    def _spend(self, step: AssayStep, seconds: float) -> None:
        file = self.folder / SECONDS
        known = read_json(file, "times of steps", dict) if file.is_file() else {}
        key = str(step.folder.relative_to(self.folder))
        known[key] = round(float(known.get(key, 0.0)) + seconds, 1)
        write_text(file, json.dumps(known, indent=1))

    def _judge(
        self, read: Judgments | None, documents: Sequence[PagedDocument], failed: dict[str, str]
    ) -> Assayed:
        executed = link(self._held(), self.folder, model=self.model)
        judgments = executed if read is None else completed(executed, read)
        scored = score_judgments(judgments, documents, self.folder)
        stored = records_below(self.folder)
        predicted = {part.claim.id: outcomes(part.claim, stored) for part in self.parts}
        # Another model says nothing of what was predicted of the claim's own.
        shown = predicted if executed.scope == "claim" else {}
        records = tuple(
            self._with_tables(each, shown.get(each.cell["claim"])) for each in scored.records()
        )
        judgments.save(self.folder / "judgments.json")
        records[0].save(self.folder / "score.json")
        page = write_page(self.folder / "report.html", list(records))
        form = write_form(self.folder / "form.html", initial=judgments)
        scope = executed.scope
        return Assayed(judgments, scored, records, predicted, scope, failed, page, form)

    def _with_tables(self, record: Record, predicted: Sequence[PredictionOutcome] | None) -> Record:
        """The record with what became of predictions, if any, and with what was run for it."""
        part = next(each for each in self.parts if each.claim.id == record.cell["claim"])
        file = self.folder / SECONDS
        known = read_json(file, "times of steps", dict) if file.is_file() else {}
        rows = [
            {
                "step": step.name,
                "criteria": " ".join(step.criteria),
                "records": "there" if step.is_done else "missing",
                "seconds": known.get(str(step.folder.relative_to(self.folder))),
                "command": step.command,
            }
            for step in part.steps
        ]
        steps = Table.of("steps", ("step",), rows)
        told = [] if predicted is None else [outcome_table(predicted)]
        return record.changed(tables=[*record.tables, *told, steps])


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
