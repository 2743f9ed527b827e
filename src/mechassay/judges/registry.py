"""Evidence over papers on one circuit: which criteria several papers show, and where they differ.

Judgments of several papers are put together claim by claim. Claims of two papers are one circuit
if their words and components are alike (`mechassay.judges.voting.match_claims`). Of a criterion
of a circuit

    agreement        two papers or more say YES or PARTIAL
    contradiction    one says YES or PARTIAL, another NO with a quote or a record: it found the
                     contrary; a NO without evidence is silence, as what was not done
    one paper alone  says YES or PARTIAL

A score over papers takes the best status of each criterion. It is an upper end: two papers that
speak of other models or tasks under one name are not told apart. Tower (2026) names such a
registry as future work; all of it is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechassay.claims.judgments import JudgedClaim, Judgments, rank
from mechassay.claims.rubric import Status, claim_score, load_rubric, tier_of
from mechassay.errors import BadUsage
from mechassay.judges.voting import match_claims
from mechassay.results.measures import measure_texts
from mechassay.results.page import Page, Report, Section, Text, TextTable
from mechassay.results.records import Record, Spec, Table
from mechassay.results.result import RecordContents, Result
from mechassay.results.sections import framed
from mechassay.results.text import plain_number
from mechassay.utils.display import counted, number

LIKE = 0.5
"""The similarity from which claims of two papers are of one circuit: papers share fewer words than
runs on one paper do."""
AGREEMENT, CONTRADICTION, ALONE = "agreement", "contradiction", "one paper alone"


@dataclass(frozen=True, eq=False)
class KnownCircuit:
    """Claims of papers that are taken for one circuit.

    Attributes:
        name: of the claim that the others were matched to.
        statement: of that claim.
        claims: by paper.
        similarity: of each to the leading claim.
    """

    name: str
    statement: str
    claims: Mapping[str, JudgedClaim]
    similarity: Mapping[str, float]

    def statuses(self, code: str) -> dict[str, Status]:
        """What each paper says of a criterion."""
        return {paper: own.criteria[code].status for paper, own in self.claims.items()}

    def kind(self, code: str) -> str:
        """Agreement, contradiction or one paper alone; "" if no paper shows the criterion."""
        judgments = [own.criteria[code] for own in self.claims.values()]
        n_met = sum(rank(judgment.status) > 1 for judgment in judgments)
        against = any(judgment.status == "NO" and judgment.evidence for judgment in judgments)
        if n_met and against:
            return CONTRADICTION
        return AGREEMENT if n_met > 1 else ALONE if n_met else ""

    def best(self) -> dict[str, Status]:
        """The best status of each criterion over papers."""
        codes = next(iter(self.claims.values())).criteria
        return {code: max(self.statuses(code).values(), key=rank) for code in codes}


@dataclass(frozen=True, eq=False, repr=False)
class CircuitRegistry(Result, kind="claims-registry"):
    """Circuits with the judgments of every paper on them; those of several papers come first."""

    rubric: str
    papers: tuple[str, ...]
    circuits: tuple[KnownCircuit, ...]

    @staticmethod
    def of(judged: Mapping[str, Judgments], like: float = LIKE) -> CircuitRegistry:
        """Collect judgments by the names of their papers.

        Raises:
            BadUsage: fewer than two papers, one twice, or judgments by several rubrics.
        """
        if len(judged) < 2:
            raise BadUsage(f"A registry is over two papers or more; got {len(judged)}.")
        rubrics = sorted({own.rubric for own in judged.values()})
        if len(rubrics) > 1:
            raise BadUsage(f"A registry is by one rubric; these judgments are by {rubrics}.")
        papers = tuple(judged)
        paper_of: dict[str, str] = {}
        for paper, own in judged.items():
            for document in own.documents:
                first = paper_of.setdefault(document.sha256, paper)
                if first != paper:
                    raise BadUsage(
                        f"{first!r} and {paper!r} judge one document, which would agree with"
                        " itself; judgments of one paper go to claims vote."
                    )
        circuits = [
            KnownCircuit(
                group.lead.id,
                group.lead.statement,
                {papers[place]: own for place, own in sorted(group.members.items())},
                {papers[place]: value for place, value in sorted(group.similarity.items())},
            )
            for group in match_claims([judged[paper] for paper in papers], like=like)
        ]
        circuits.sort(key=lambda circuit: -len(circuit.claims))
        return CircuitRegistry(rubrics[0], papers, tuple(circuits))

    def contents(self) -> RecordContents:
        rubric = load_rubric(self.rubric)
        shared = [circuit for circuit in self.circuits if len(circuit.claims) > 1]
        rows = list(self._criteria(shared))
        counts = {
            kind: sum(row["kind"] == kind for row in rows) for kind in (AGREEMENT, CONTRADICTION)
        }
        texts, n_criteria = measure_texts("claims-registry"), len(rubric.codes) * len(shared)
        return {
            "cell": {"papers": ", ".join(self.papers)},
            "specs": {
                "method": Spec(name="registry"),
                "rubric": Spec(name=rubric.id, version=rubric.version),
            },
            "measures": [
                texts.measure(f"{kind}s", float(n), n=n_criteria) for kind, n in counts.items()
            ],
            "tables": [
                Table.of("circuits", ("circuit",), self._circuits()),
                Table.of("claims", ("circuit", "paper"), self._claims()),
                Table.of("criteria", ("circuit", "criterion"), rows),
            ],
        }

    def _circuits(self) -> Iterator[dict[str, Any]]:
        rubric = load_rubric(self.rubric)
        for place, circuit in enumerate(self.circuits, start=1):
            scores = [claim_score(rubric, own.statuses).cvs for own in circuit.claims.values()]
            together = claim_score(rubric, circuit.best()).cvs
            kinds = [circuit.kind(code) for code in rubric.codes]
            yield {
                "circuit": place,
                "name": circuit.name,
                "statement": circuit.statement,
                "papers": ", ".join(circuit.claims),
                "n_papers": len(circuit.claims),
                "best_alone": max(scores),
                "together": together,
                "tier": tier_of(rubric, together),
                "agreements": kinds.count(AGREEMENT),
                "contradictions": kinds.count(CONTRADICTION),
            }

    def _claims(self) -> Iterator[dict[str, Any]]:
        rubric = load_rubric(self.rubric)
        for place, circuit in enumerate(self.circuits, start=1):
            for paper, own in circuit.claims.items():
                yield {
                    "circuit": place,
                    "paper": paper,
                    "claim": own.claim.id,
                    "statement": own.claim.statement,
                    "similarity": circuit.similarity[paper],
                    "cvs": claim_score(rubric, own.statuses).cvs,
                }

    def _criteria(self, circuits: Sequence[KnownCircuit]) -> Iterator[dict[str, Any]]:
        rubric = load_rubric(self.rubric)
        for place, circuit in enumerate(circuits, start=1):
            for code in rubric.codes:
                if kind := circuit.kind(code):
                    statuses = circuit.statuses(code)
                    yield {
                        "circuit": place,
                        "criterion": code,
                        "name": rubric.criterion(code).name,
                        "kind": kind,
                        "statuses": ", ".join(f"{paper} {own}" for paper, own in statuses.items()),
                    }


READING = {
    "Agreement": "Two papers or more say YES or PARTIAL.",
    "Contradiction": (
        "One says YES or PARTIAL, another NO with a quote or a record. A NO without evidence is"
        " silence and contradicts nothing."
    ),
    "Together": (
        "The score of the best status of each criterion over papers: an upper end, as papers may"
        " speak of other models or tasks under one name."
    ),
}


class RegistryPage(Page):
    """Circuits over papers."""

    def title(self, report: Report) -> str:
        return f"Circuits in {', '.join(record.cell['papers'] for record in report.records)}"

    def tables(self, report: Report) -> list[TextTable]:
        made = [make(record) for record in report.records for make in (_circuits, _differences)]
        return [table for table in made if table.rows]

    def sections(self, report: Report) -> list[Section]:
        """What papers agree on, circuits, and every criterion that some paper shows."""
        records = report.records
        return framed(
            report,
            [Text(_verdict(record), "verdict") for record in records],
            [
                Section("Circuits", tuple(map(_circuits, records))),
                Section("Contradictions", tuple(map(_differences, records))),
            ],
            folded=[
                Section("Criteria of shared circuits", tuple(map(_criteria, records))),
                Section("Claims", tuple(map(_claims, records))),
            ],
            reading=READING,
            values=[],
        )


def _verdict(record: Record) -> str:
    shared = [row for row in record.table("circuits").rows() if plain_number(row["n_papers"]) > 1]
    if not shared:
        return "No circuit is claimed by two of these papers."
    agreements, contradictions = (
        round(record.value(name)) for name in ("agreements", "contradictions")
    )
    return (
        f"{counted(len(shared), 'circuit is', 'circuits are')} claimed by two papers or more. They"
        f" agree on {counted(agreements, 'criterion', 'criteria')} and contradict each other on"
        f" {contradictions}."
    )


def _circuits(record: Record) -> TextTable:
    rows = [
        (
            str(row["name"]),
            str(row["papers"]),
            number(plain_number(row["best_alone"])),
            number(plain_number(row["together"])),
            str(row["tier"]),
            str(row["agreements"]),
            str(row["contradictions"]),
        )
        for row in record.table("circuits").rows()
    ]
    headings = ("circuit", "papers", "best alone", "together", "tier", "agree", "contradict")
    return TextTable.of("Circuits", headings, rows, words=True)


def _differences(record: Record) -> TextTable:
    return _listed(record, "Contradictions", {CONTRADICTION})


def _criteria(record: Record) -> TextTable:
    return _listed(record, "Criteria of shared circuits", {AGREEMENT, CONTRADICTION, ALONE})


def _listed(record: Record, title: str, kinds: set[str]) -> TextTable:
    names = {row["circuit"]: str(row["name"]) for row in record.table("circuits").rows()}
    rows = [
        (
            names[row["circuit"]],
            f"{row['name']} ({row['criterion']})",
            str(row["kind"]),
            str(row["statuses"]),
        )
        for row in record.table("criteria").rows()
        if row["kind"] in kinds
    ]
    return TextTable.of(title, ("circuit", "criterion", "", "statuses"), rows, words=True)


def _claims(record: Record) -> TextTable:
    names = {row["circuit"]: str(row["name"]) for row in record.table("circuits").rows()}
    rows = [
        (
            names[row["circuit"]],
            str(row["paper"]),
            str(row["statement"]),
            number(plain_number(row["similarity"])),
            number(plain_number(row["cvs"])),
        )
        for row in record.table("claims").rows()
    ]
    return TextTable.of(
        "Claims", ("circuit", "paper", "statement", "likeness", "CVS"), rows, words=True
    )
