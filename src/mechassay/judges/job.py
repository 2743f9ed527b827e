"""A document judged by a language model: a cell is one run of the judge.

    answers/           every request with its answer, by the hash of the request
    judgments/1.json   what the first run said; a file for each, to be compared or voted over
    scores/1/          a record a claim
    report.html        scores of every run, and of a single one its claims

Answers are kept as they come, so that a run that was killed goes on where it was, and judgments are
the same as those of an undisturbed run. More `runs` may be asked for later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from mechassay.claims.claim import ClaimFile, read_claims
from mechassay.claims.document import PagedDocument
from mechassay.claims.evidence import score_judgments
from mechassay.claims.judgments import read_judgments
from mechassay.claims.rubric import load_rubric
from mechassay.documents.reading import check_title, read_document
from mechassay.errors import BadUsage, one_of
from mechassay.judges.assessment import Assessment, assess, check_codes, judge_prompt
from mechassay.judges.judge import Judge, load_judge
from mechassay.judges.plan import AssessPlan, Steps
from mechassay.results.reading import read_record
from mechassay.results.records import Record, Spec
from mechassay.results.report import print_report, write_page, write_tables
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import Bench, Cell, Job, Results, cell_name, command_line
from mechassay.utils.files import file_hash

ANSWERS, JUDGMENTS, SCORES = "answers", "judgments", "scores"


@dataclass(frozen=True)
class AssessJob(AssessPlan, Job):
    """A cell is one run of the judge; see `AssessPlan` for the fields."""

    def words(self) -> tuple[Sequence[str], Sequence[str]]:
        """See `Job.words`."""
        return ("claims", "assess", self.source), ("source",)

    def versions(self, bench: Bench) -> Mapping[str, Any]:
        """See `Job.versions`: the document, the claims and the judge's words."""
        claims = file_hash(Path(self.claims)) if self.claims else ""
        return {
            "document": self.document().sha256,
            "claims_file": claims,
            "prompt": judge_prompt().key,
        }

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        one_of("steps of a judge", self.steps, get_args(Steps))
        check_codes(load_rubric(), self.criteria)
        if (self.input_price is None) != (self.output_price is None):
            raise BadUsage("A price is that of input and of output: give both or none.")
        self.given_claims()
        check_title(self.document())
        self.load_judge()

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        about = {"source": Path(self.source).name, "judge": self.judge}
        return [
            Cell(str(run), {**about, "run": str(run)}, shares=f"run {run}")
            for run in range(1, self.runs + 1)
        ]

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
        )

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`: the record is that of the system claim."""
        begin = time.perf_counter()
        folder, number = bench.folder.path, cell.of["run"]
        document = self.document()
        assessment = assess(
            document,
            self.load_judge(),
            steps=self.steps,
            claims=self.given_claims(),
            criteria=self.criteria,
            run=int(number) - 1,
            most_tokens=self.most_tokens,
            longest=self.longest,
            tries=self.tries,
            kept=folder / ANSWERS,
            progress=bench.progress,
        )
        assessment.judgments.save(judgments_file(folder, number))
        scored = score_judgments(assessment.judgments, [document])
        spent = {**assessment.spent(), "seconds": round(time.perf_counter() - begin, 3)}
        records = [self._about(record, assessment, cell, spent) for record in scored.records()]
        for record in records:
            name = cell_name(record.cell["claim"])
            record.save(folder / SCORES / number / f"{name}.json")
        return records[0]

    def _about(
        self, record: Record, assessment: Assessment, cell: Cell, spent: dict[str, float]
    ) -> Record:
        """The record with who judged what, and what rules found."""
        flags = [f"{flag.name}: {flag.says}" for flag in assessment.flags]
        answered = dict.fromkeys(
            exchange.answer.model
            for exchange in assessment.exchanges
            if exchange.answer and exchange.answer.model
        )
        [source] = assessment.judgments.documents
        more = {
            "judge": Spec(
                name=assessment.judgments.rater.id,
                args={
                    "typed": self.judge,
                    "steps": self.steps,
                    "temperature": self.temperature,
                    "answered_as": ", ".join(answered),
                },
            ),
            "prompt": Spec(name=judge_prompt().id, version=judge_prompt().version),
            "document": Spec(name=source.name, args={"sha256": source.sha256[:16]}),
        }
        return record.model_copy(
            update={
                "cell": {**record.cell, "run": cell.of["run"]},
                "specs": {**record.specs, **more},
                "warnings": [*flags, *record.warnings],
                "realised": spent,
            }
        )

    def show(self, results: Results, console: Console) -> None:
        """See `Job.show`."""
        print_report(records_of(results), results.failures, console, self.kind)

    def report(self, results: Results) -> Path:
        """See `Job.report`: a page over all runs, and one for each where there are several."""
        folder, records = results.folder.path, records_of(results)
        runs = dict.fromkeys(record.cell["run"] for record in records)
        if len(runs) > 1:
            for number in runs:
                own = [record for record in records if record.cell["run"] == number]
                write_page(folder / f"run-{number}.html", own, kind="claims")
                write_tables(folder / f"run-{number}.md", own, kind="claims")
        write_tables(folder / self.markdown, records, results.failures, self.kind)
        return write_page(
            folder / "report.html",
            records,
            failures=results.failures,
            kind=self.kind,
            command=command_line(self, Path(folder.name)),
        )


def judgments_file(folder: Path, run: int | str) -> Path:
    """Where the judgments of a run of the judge stand, which count from 1."""
    return folder / JUDGMENTS / f"{run}.json"


def records_of(results: Results) -> list[Record]:
    """The records of all claims of all runs of the judge, the system claim of each first."""
    return [
        record for cell, own in results.done for record in _claims_of(results.folder, cell, own)
    ]


def _claims_of(folder: RunFolder, cell: Cell, own: Record) -> list[Record]:
    judged = read_judgments(judgments_file(folder.path, cell.name))
    names = [
        own_claim.claim.id for own_claim in judged.claims if own_claim.claim.id != own.cell["claim"]
    ]
    place = folder.path / SCORES / cell.name
    return [own, *(read_record(place / f"{cell_name(name)}.json") for name in names)]
