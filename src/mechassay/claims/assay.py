"""From a claim to a verdict: run what its criteria ask for, and judge it by the records.

Every step is an experiment in a folder of its own, so that what is done stays done: a step whose
cells all have records costs nothing, and a step that fails leaves its criteria NOT TESTED and the
others as they are. The claims are written down before the first record, which is what makes
predictions of them. Then `claims.link` judges; a reader's judgments may fill in the rest. The
module `assay_steps` makes the steps.

A folder of another claim, of other settings, or of other weights and files is refused. Without a
named folder the assay has a default folder NAME, and NAME-2, NAME-3 and so on for other content.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mechassay.adversarial.divergence import arrow
from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.claims.assay_steps import ADVERSARIAL, OWN, AssaySettings, AssayStep, ClaimSteps
from mechassay.claims.claim import ClaimFile
from mechassay.claims.document import PagedDocument
from mechassay.claims.dossier import (
    REGISTERED,
    PredictionOutcome,
    completed,
    link,
    outcome_table,
    outcomes,
)
from mechassay.claims.evidence import ScoredJudgments, score_judgments
from mechassay.claims.judgments import Judgments, Scope, now
from mechassay.claims.pages import write_form
from mechassay.claims.record_rules import (
    StoredRecord,
    beside_alternative,
    record_name,
    records_below,
)
from mechassay.errors import (
    BadFile,
    BadUsage,
    DiskFull,
    MechassayError,
    MissingExtra,
    OtherContent,
    first_line,
)
from mechassay.measurement.measurement import Measurement
from mechassay.models.sources import model_name
from mechassay.results.page import Report
from mechassay.results.reading import recomputed
from mechassay.results.records import Record, Table
from mechassay.results.report import write_page
from mechassay.runs.cells import cell_name
from mechassay.runs.experiment import command_line
from mechassay.runs.folder import read_run_file
from mechassay.runs.identities import FILE
from mechassay.runs.names import model_label
from mechassay.runs.resuming import numbered
from mechassay.runs.run import opened, run
from mechassay.runs.worker import Worker
from mechassay.utils.display import BAR, OneLine, Progress, counted
from mechassay.utils.files import write_text

SECONDS = "seconds.json"
SHOWN_FILES = 3
"""Files that a warning names."""


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
            f"{name}: {prediction.prediction} ({prediction.measured})"
            for name, own_predictions in self.predictions.items()
            for prediction in own_predictions
            if prediction.outcome == "fails"
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
        self.notes: dict[str, None] = {}
        parts: list[ClaimSteps] = []
        for claim in claims.claims:
            own = claim
            if model and model != claim.model:
                own = claim.model_copy(update={"model": model, "untrained": ""})
            for name in ("model", "task"):
                if not getattr(own, name):
                    raise BadUsage(f"The claim {claim.id} names no {name} to run.")
            alone = len(claims.claims) == 1
            place = self.folder if alone else self.folder / cell_name(claim.id)
            parts.append(ClaimSteps(own, place, self.settings, device, self.folder))
        self.parts = tuple(parts)

    @staticmethod
    def resumed(
        claims: ClaimFile, name: str, settings: AssaySettings, *, load: bool = True, **about: Any
    ) -> tuple[Assay, str]:
        """Return the assay in the newest default folder with the same claims and content, and a
        note if the content changed. In a new folder, steps whose content did not change are copied.

        Args:
            name: of the claims' file, without its ending.
            load: whether models whose digests are not cached may be loaded.
            about: of `Assay`.
        """
        model = model_name(about.get("model") or claims.claims[0].model)
        text = json.dumps([asdict(settings), model, len(claims.claims)], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        base = Path("runs") / cell_name("-".join(("assay", model_label(model), name, digest)))
        others: list[tuple[Assay, list[str]]] = []
        assay = Assay(claims, base, settings, **about)
        while assay.folder.exists():
            others.append((assay, assay.changes(load=load)))
            assay = Assay(claims, numbered(base, len(others) + 1), settings, **about)
        for earlier, changes in reversed(others):
            if not changes:
                return earlier, ""
        if not others:
            return assay, ""
        earlier, changes = others[-1]
        if load:
            assay._take_over(earlier)
        return assay, f"{'; '.join(changes)}: the results are in {assay.folder} now."

    def changes(self, *, load: bool = True) -> list[str]:
        """Return how the folder's results differ from this assay: phrases of changed models, tasks
        and files, and why a step's folder is refused. Notes on the folders are added to `notes`.

        Args:
            load: whether models whose digests are not cached may be loaded.
        """
        changes, refused = dict[str, None](), ""
        try:
            self._follow()
            held = [step for step in self.steps if (step.folder / "plan.json").is_file()]
        except BadUsage as error:  # The folder holds the circuit of another claim.
            return [first_line(error).rstrip(".")]
        about: dict[str, Any] = {"device": self.device, "progress": self.progress, "load": load}
        for step in held:
            try:
                for note in opened(step.experiment, step.folder, **about).notes:
                    _, resumed, condition = note.partition(" is resumed ")
                    self.notes[f"steps are done {condition}" if resumed else note] = None
            except OtherContent as error:
                changes |= dict.fromkeys(error.changes)
            except BadUsage as error:
                refused = refused or first_line(error).partition(". Name another")[0]
            except BadFile:
                continue  # Scores that an earlier step has to find first; the step looks again.
        return [*changes, *filter(None, [refused])]

    def _take_over(self, earlier: Assay) -> None:
        """Copy the folders of equal steps whose models, tasks and files did not change."""
        about: dict[str, Any] = {"device": self.device, "progress": self.progress}
        with suppress(BadUsage):  # The earlier folder is of another claim.
            before = {step.folder.relative_to(earlier.folder): step for step in earlier.steps}
            for step in self.steps:
                own = before.get(step.folder.relative_to(self.folder))
                if own is None or not (own.folder / "plan.json").is_file():
                    continue
                # The steps name scores by their place in the folder.
                same = own.command.replace(str(earlier.folder), str(self.folder)) == step.command
                if not same or not all(path.exists() for path in self._read_by(step)):
                    continue
                partial = step.folder.with_name(f".{step.folder.name}.{secrets.token_hex(4)}")
                try:
                    opened(own.experiment, own.folder, **about)
                    shutil.copytree(own.folder, partial)
                    partial.rename(step.folder)
                except OtherContent:
                    continue
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
        self._follow()

    def _read_by(self, step: AssayStep) -> list[Path]:
        """Return the files of scores in this folder that a step reads."""
        words = shlex.split(command_line(step.experiment))
        inside = [word for word in words if word.startswith(str(self.folder))]
        return [Path(CircuitSpec.path_in(word) or word) for word in inside]

    @property
    def steps(self) -> list[AssayStep]:
        """All steps, those of a claim after another."""
        return [step for part in self.parts for step in part.steps]

    def seconds_per_forward(self) -> float:
        """Estimate the seconds of a forward pass of the first claim's model on one pair."""
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
            MissingExtra: a step needs a package that is not installed.
            BadUsage: the folder holds a run of another claim, with other settings, or of other
                weights or files; the reader judged another claim.
            MechassayError: a circuit could not be found at all; there is no room.
        """
        if any(not step.is_done and step.name == ADVERSARIAL for step in self.steps):
            arrow()  # Else its step would fail after hours of others.
        if changes := self.changes():
            raise BadUsage(f"{self.folder}: {'; '.join(changes)}. Name another --output.")
        if not self.folder.is_dir() or not records_below(self.folder):
            # The claims are written down with their circuits before there is a record.
            held = self._held().model_copy(update={"registered": now()})
            write_text(self.folder / REGISTERED, held.model_dump_json(indent=1) + "\n")
        failed = self._run(say)
        return self._judge(read, documents, failed)

    def _follow(self) -> None:
        """Let the plans of steps name files of this folder where it is now.

        Plans and identities name the scores that a step measures by their path. The identities have
        the digest of the scores, so that other scores in the same place are refused all the same.
        """
        for part in self.parts:
            for scores in (part.scores, str(part.alternative_file)):
                if Path(scores).is_relative_to(part.folder):
                    self._follow_one(part, scores)

    def _follow_one(self, part: ClaimSteps, scores: str) -> None:
        within = Path(scores).relative_to(part.folder).as_posix()
        pattern = re.compile(rf'"(file )?[^"]*/{re.escape(within)}')
        here = json.dumps(scores)[1:-1]
        for step in part.steps:
            for file in (step.folder / "plan.json", step.folder / FILE):
                if file.is_file():
                    text = file.read_text("utf-8")
                    moved = pattern.sub(lambda match: f'"{match[1] or ""}{here}', text)
                    if moved != text:
                        write_text(file, moved)

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
                # Its records are of this claim and of these scores, or the folder is refused.
                opened(step.experiment, step.folder, device=self.device, progress=self.progress)
                say(f"{head}: done before")
                continue
            rest = f", about {_minutes(left * run_for / spent)} left" if spent else ""
            say(f"{head}: about {step.forwards:,.0f} runs of a pair{rest}")
            begin = time.perf_counter()
            reason = self._do(step)
            seconds = time.perf_counter() - begin
            file, key = self.folder / SECONDS, str(step.folder.relative_to(self.folder))
            times = read_run_file(file, "times of steps", dict) if file.is_file() else {}
            times[key] = round(float(times.get(key, 0.0)) + seconds, 1)
            write_text(file, json.dumps(times, indent=1))
            left, spent, run_for = left - step.forwards, spent + step.forwards, run_for + seconds
            if reason:
                failed[str(step.folder)] = reason
                say(f"{head}: no record: {reason}")
                if step.name == OWN:
                    raise MechassayError(f"{step.folder}: {reason}")
        return failed

    def _do(self, step: AssayStep) -> str:
        """Run a step; why it left no record, if it did."""
        if step.copied is not None:
            folder, file = step.copied
            if not folder.is_file():
                return f"{folder} is not there, as no step found it."
            shutil.copyfile(folder, file)
        begun: list[Worker] = []
        about: dict[str, Any] = {"device": self.device, "progress": self.progress}
        try:
            report = run(
                step.experiment, step.folder, **about, begin=lambda worker, _: begun.append(worker)
            )
        except DiskFull:
            raise
        except MechassayError as error:
            if not begun and not isinstance(error, MissingExtra):
                raise
            return str(error)
        lacking = [failure for failure in report.failures if failure.status == "failed"]
        return lacking[0].message if lacking else ""

    def _judge(
        self, read: Judgments | None, documents: Sequence[PagedDocument], failed: dict[str, str]
    ) -> Assayed:
        executed = link(self._held(), self.folder, model=self.model)
        judgments = executed if read is None else completed(executed, read)
        scored = score_judgments(judgments, documents, self.folder)
        stored = records_below(self.folder)
        predicted = {part.claim.id: outcomes(part.claim, stored) for part in self.parts}
        # Another model says nothing of what was predicted of the claim's own.
        predictions = predicted if executed.scope == "claim" else {}
        records = tuple(
            self._with_tables(record, predictions.get(record.cell["claim"]), stored)
            for record in scored.records()
        )
        if lacking := [
            stored_record.file for stored_record in stored if not recomputed(stored_record.record)
        ]:
            count_text = f"{len(lacking)} of {counted(len(stored), 'record')}"
            warning = (
                f"The numbers of {count_text} were not recomputed, as the records hold no values of"
                f" single examples that give them: {', '.join(lacking[:SHOWN_FILES])}"
                f"{f' and {n_more} more' if (n_more := len(lacking) - SHOWN_FILES) > 0 else ''}."
            )
            records = (
                records[0].changed(warnings=[*records[0].warnings, warning]),
                *records[1:],
            )
        records = tuple(
            _with_warnings(record, part, failed, stored)
            for record in records
            for part in self.parts
            if part.claim.id == record.cell["claim"]
        )
        judgments.save(self.folder / "judgments.json")
        records[0].save(self.folder / "score.json")
        page = write_page(self.folder / "report.html", Report(records))
        form = write_form(self.folder / "form.html", initial=judgments)
        scope = executed.scope
        return Assayed(judgments, scored, records, predicted, scope, failed, page, form)

    def _with_tables(
        self,
        record: Record,
        predicted: Sequence[PredictionOutcome] | None,
        stored: Sequence[StoredRecord],
    ) -> Record:
        """The record with what became of predictions and of an alternative, if any, and with what
        was run for it.
        """
        part = next(
            claim_part for claim_part in self.parts if claim_part.claim.id == record.cell["claim"]
        )
        file = self.folder / SECONDS
        known = read_run_file(file, "times of steps", dict) if file.is_file() else {}
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
        own = (part.folder / OWN).relative_to(self.folder).as_posix()
        elsewhere = {
            what: there
            for stored_record in stored
            if stored_record.file.startswith(f"{own}/")
            for what, there in stored_record.record.found_in.items()
        }
        steps = Table.of("steps", ("step",), rows)
        tables = [] if predicted is None else [outcome_table(predicted)]
        if beside := beside_alternative(part.claim, stored):
            tables.append(Table.of("alternative", ("says",), [{"says": beside}]))
        return record.changed(tables=[*record.tables, *tables, steps], found_in=elsewhere)


def _with_warnings(
    record: Record, part: ClaimSteps, failed: Mapping[str, str], stored: Sequence[StoredRecord]
) -> Record:
    """The record with a warning for each step of its claim that left none, and each warning of the
    circuit's records in the claim's own model, once. Metrics of measurement have pages of theirs.
    """
    steps = {step.folder: step.name for step in part.steps}
    lines = [
        f"The step {name} left no record: {failed[str(folder)]}"
        for folder, name in steps.items()
        if str(folder) in failed
    ]
    by_warning: dict[str, dict[str, None]] = {}
    for stored_record in stored:
        file = part.base / stored_record.file
        step = next((name for folder, name in steps.items() if file.is_relative_to(folder)), "")
        own = stored_record.record.model.name == record_name(part.claim.model)
        if step and own and stored_record.record.kind != Measurement.kind:
            for warning in stored_record.record.warnings:
                by_warning.setdefault(warning, {})[step] = None
    order = list(steps.values())
    lines += [
        f"{warning} (in {', '.join(sorted(names, key=order.index))})"
        for warning, names in by_warning.items()
    ]
    return record.changed(warnings=[*record.warnings, *lines])


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
