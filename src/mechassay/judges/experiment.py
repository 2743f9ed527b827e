"""A document judged by a language model: a cell is one run of the judge, the last what is left.

    answers/              every request with its answer, by the hash of the request
    judgments/1.json      what the first run said; a file for each, to be compared or voted over
    judgments/final-.json after the vote over all runs, the audit and the advocate, as asked for;
                          beside it what the auditor and the advocate said
    scores/1/             a record a claim
    report.html           the final score, those of every run, and of a single one its claims

The pipeline is that of Tower (2026, section 3): runs, the least status of all, a leak audit, an
advocate if there is to be one, then the score. Answers are kept as they come, so that a run that
was killed goes on where it was, and judgments are the same as those of an undisturbed run. More
`runs`, an audit or an advocate may be asked for later: no answer is paid for twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from mechassay.claims.claim import ClaimFile, read_claims
from mechassay.claims.document import PagedDocument
from mechassay.claims.evidence import score_judgments
from mechassay.claims.judgments import Judgments, read_judgments
from mechassay.claims.rubric import load_rubric
from mechassay.documents.reading import check_title, read_document
from mechassay.errors import BadUsage, NoAnswer
from mechassay.judges.assessment import assess, check_codes, judge_prompt
from mechassay.judges.debiasing import challenge, debiasing_record
from mechassay.judges.judge import Judge, load_judge
from mechassay.judges.leak_audit import audit
from mechassay.judges.objections import ask_advocate, ask_auditor
from mechassay.judges.options import AssessOptions
from mechassay.judges.pages import FINAL_RUN as FINAL
from mechassay.judges.requests import Exchange, spent_on
from mechassay.judges.voting import vote
from mechassay.results.page import Report
from mechassay.results.reading import read_record
from mechassay.results.records import Record, Spec
from mechassay.results.report import print_report, write_page, write_tables
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment, command_line
from mechassay.runs.identities import Source
from mechassay.runs.worker import Worker
from mechassay.utils.display import counted

ANSWERS, JUDGMENTS, SCORES = "answers", "judgments", "scores"
STEPS = "steps.json"


@dataclass(frozen=True)
class AssessExperiment(AssessOptions, Experiment):
    """A cell is one run of the judge; see `AssessOptions` for the fields."""

    command: ClassVar[tuple[str, ...]] = ("claims", "assess")

    def words(self) -> tuple[Sequence[str], Sequence[str]]:
        return (*self.command, self.source), ("source",)

    def versions(self, worker: Worker) -> Mapping[str, Any]:
        """Return the version of the text that the judge is given."""
        return {"prompt_version": judge_prompt(self.prompt).key}

    def sources(self, cell: Cell) -> dict[str, Source]:
        document = Source("document", self.source, digest=self.document().sha256[:16])
        return {**super().sources(cell), "source": document}

    def check(self, worker: Worker) -> None:
        super().check(worker)
        check_codes(load_rubric(), self.criteria)
        if (self.input_price is None) != (self.output_price is None):
            raise BadUsage("A price is that of input and of output: give both or none.")
        self.given_claims()
        judge_prompt(self.prompt)
        check_title(self.document())
        self.load_judge()

    def cells(self) -> list[Cell]:
        about = {"source": Path(self.source).name, "judge": self.judge}
        # With a last step one worker does all runs, in order; without one, runs need not wait.
        inputs = {run: "all" if self.steps_taken else f"run {run}" for run in self._numbers}
        cells = [Cell(str(run), {**about, "run": str(run)}, inputs[run]) for run in self._numbers]
        if self.steps_taken:
            cells.append(Cell(self._final, {**about, "run": FINAL}, "all"))
        return cells

    @property
    def _numbers(self) -> range:
        return range(1, self.runs + 1)

    @property
    def steps_taken(self) -> tuple[str, ...]:
        """What follows the runs, in order: vote, audit, advocate."""
        taken = {"vote": self.runs > 1, "audit": self.audit, "advocate": self.advocate}
        return tuple(step for step, wanted in taken.items() if wanted)

    @property
    def _final(self) -> str:
        """The name of the last cell, another one for other steps."""
        words = {"vote": f"vote{self.runs}", "advocate": f"advocate-{self.calibration}"}
        return "-".join((FINAL, *(words.get(step, step) for step in self.steps_taken)))

    def document(self) -> PagedDocument:
        """What is judged."""
        return read_document(self.source, self.pages, extractor=self.extractor, title=self.title)

    def given_claims(self) -> ClaimFile | None:
        """The claims to judge, if they are named."""
        return read_claims(self.claims) if self.claims else None

    def load_judge(self) -> Judge:
        """Who judges."""
        prices = None
        if self.input_price is not None and self.output_price is not None:
            prices = (self.input_price, self.output_price)
        return load_judge(
            self.judge,
            temperature=self.temperature,
            timeout=self.timeout,
            context=self.context,
            prices=prices,
            effort=self.effort,
        )

    def run(self, cell: Cell, worker: Worker) -> Record:
        """Judge the claims, and return the record of the system claim."""
        if cell.labels["run"] == FINAL:
            return self._debiased(cell, worker)
        begin = time.perf_counter()
        folder, number = worker.folder.path, cell.labels["run"]
        document = self.document()
        assessment = assess(
            document,
            self.load_judge(),
            steps=self.steps,
            claims=self.given_claims(),
            criteria=self.criteria,
            prompt=judge_prompt(self.prompt),
            theory=self.theory,
            run=int(number) - 1,
            kept=folder / ANSWERS,
            progress=worker.progress,
            **self._limits,
        )
        flags = [f"{flag.name}: {flag.says}" for flag in assessment.flags]
        return self._scored(
            cell, folder, document, assessment.judgments, assessment.exchanges, begin, flags
        )

    @property
    def _limits(self) -> dict[str, Any]:
        return {"most_tokens": self.most_tokens, "longest": self.longest, "tries": self.tries}

    def _debiased(self, cell: Cell, worker: Worker) -> Record:
        """What all runs leave, after an audit and an advocate where these are asked for.

        Raises:
            NoAnswer: a run is missing, or the judge gives no answer of the form.
        """
        begin, folder = time.perf_counter(), worker.folder.path
        missing = [str(n) for n in self._numbers if not judgments_file(folder, n).is_file()]
        if missing:
            raise NoAnswer(
                f"The {self.steps_taken[0]} needs {counted(self.runs, 'run', 'runs')} of the judge;"
                f" {', '.join(missing)} gave no judgments. What was answered is kept: the same"
                " command asks for the rest."
            )
        runs = [read_judgments(judgments_file(folder, n)) for n in self._numbers]
        judgments = vote(runs, self.given_claims()) if len(runs) > 1 else runs[0]
        exchanges: list[Exchange] = []
        how: dict[str, Any] = {
            "kept": folder / ANSWERS,
            "progress": worker.progress,
            **self._limits,
        }
        # Each has a file of its own before the next is asked for.
        judge = self.load_judge() if self.audit or self.advocate else None
        if self.audit and judge is not None:
            objections = ask_auditor(judgments, judge, **how)
            objections.judgments.save(judgments_file(folder, f"{cell.name}-auditor"))
            judgments = audit(judgments, objections.judgments)
            exchanges += objections.exchanges
        if self.advocate and judge is not None:
            objections = ask_advocate(judgments, judge, self.calibration, **how)
            objections.judgments.save(judgments_file(folder, f"{cell.name}-advocate"))
            judgments = challenge(judgments, objections.judgments, self.calibration)
            exchanges += objections.exchanges
        record = self._scored(cell, folder, self.document(), judgments, exchanges, begin, [])
        steps = debiasing_record(judgments)
        steps.save(folder / SCORES / cell.name / STEPS)
        return record

    def _scored(
        self,
        cell: Cell,
        folder: Path,
        document: PagedDocument,
        judgments: Judgments,
        exchanges: Sequence[Exchange],
        begin: float,
        flags: Sequence[str],
    ) -> Record:
        """Save judgments and a record for each claim, with who judged what; the system's record."""
        judgments.save(judgments_file(folder, cell.name))
        seconds = round(time.perf_counter() - begin, 3)
        answered = dict.fromkeys(
            exchange.answer.model
            for exchange in exchanges
            if exchange.answer and exchange.answer.model
        )
        [source] = judgments.documents
        prompt = judge_prompt(self.prompt)
        about = {
            "judge": Spec(
                name=read_judgments(judgments_file(folder, 1)).rater.id,
                args={
                    "typed": self.judge,
                    "steps": self.steps,
                    "temperature": self.temperature,
                    "effort": self.effort,
                    "theory": self.theory,
                    "answered_as": ", ".join(answered),
                    "followed_by": ", ".join(self.steps_taken)
                    if cell.labels["run"] == FINAL
                    else "",
                },
            ),
            "prompt": Spec(name=prompt.id, version=prompt.version),
            "document": Spec(name=source.name, args={"sha256": source.sha256[:16]}),
        }
        records = [
            record.model_copy(
                update={
                    "kind": self.kind,
                    "cell": {**record.cell, "run": cell["run"], **cell.labels},
                    "specs": {**record.specs, **about},
                    "warnings": [*flags, *record.warnings],
                    "spent": {**spent_on(exchanges), "seconds": seconds},
                }
            )
            for record in score_judgments(judgments, [document]).records()
        ]
        for record in records:
            name = cell_name(record.cell["claim"])
            record.save(folder / SCORES / cell.name / f"{name}.json")
        return records[0]

    def show(self, report: Report, console: Console) -> None:
        print_report(Report(records_of(report), report.failures), console, self.kind)

    def write(self, report: Report) -> Path:
        """Write a page of all runs, a page of each of several runs, and a page of the changes that
        steps made.
        """
        folder, records = report.folder, records_of(report)
        runs = dict.fromkeys(record.cell["run"] for record in records)
        if len(runs) > 1:
            for number in runs:
                own = Report([r for r in records if r.cell["run"] == number])
                write_page(folder / f"run-{number}.html", own, kind="claims")
                write_tables(folder / f"run-{number}.md", own, kind="claims")
        steps = folder / SCORES / self._final / STEPS
        if FINAL in runs and steps.is_file():
            write_page(folder / "steps.html", Report([read_record(steps)]))
        contents = Report(records, report.failures)
        write_tables(folder / self.markdown, contents, self.kind)
        command = command_line(self, Path(folder.name))
        return write_page(folder / "report.html", contents, kind=self.kind, command=command)


def judgments_file(folder: Path, run: int | str) -> Path:
    """Where the judgments of a run of the judge stand, which count from 1."""
    return folder / JUDGMENTS / f"{run}.json"


def records_of(report: Report) -> list[Record]:
    """The records of all claims of what is left, then of all runs of the judge; the system claim of
    each first.
    """
    records: list[Record] = []
    for name, own in sorted(report.by_name.items(), key=lambda row: row[1].cell["run"] != FINAL):
        judged = read_judgments(judgments_file(report.folder, name))
        others = [x.claim.id for x in judged.claims if x.claim.id != own.cell["claim"]]
        place = report.folder / SCORES / name
        records += [own, *(read_record(place / f"{cell_name(id)}.json") for id in others)]
    return records
