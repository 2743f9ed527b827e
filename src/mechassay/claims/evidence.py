"""Whether evidence holds: quotes are in their documents, records are as they were; and the score.

Three profiles. `paper` takes statuses as they were given. In `quote_exists` a YES or PARTIAL
without evidence that exists counts as NO: no quote that is found, and no record whose file still
has its hash. What could not be looked at, as no document or folder was given, does not exist
either, and is counted apart. Nor does a quote that is only in a passage which gives a reader
orders, or that is too short to say anything (`is_short`). In `supported` a quote must also be able
to be about its criterion, be counted for it alone, and not be denied by the document itself
(`quote_rules`).

Records, and what the claim says of itself, are evidence for the criteria whose rule reads them,
and for no others; what a claim says of itself only where an execution looked. A record that was
edited is an error, not a status.

Scored judgments become records: one for each claim, with its score under every profile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from mechassay.claims.claim import Claim, system_claim
from mechassay.claims.document import (
    BREAK,
    PagedDocument,
    cut_words,
    marks,
    normalised,
    pattern_of,
    skeleton,
)
from mechassay.claims.judgments import (
    Evidence,
    JudgedClaim,
    Judgment,
    Judgments,
    Quote,
    RecordEvidence,
)
from mechassay.claims.quote_rules import Limitation, find_limitations, objections
from mechassay.claims.rubric import (
    DECLARED,
    NEEDS,
    ClaimScore,
    PaperScore,
    Rubric,
    Status,
    claim_score,
    lifting,
    paper_score,
)
from mechassay.errors import BadFile, MissingExtra
from mechassay.results.measures import measure_texts
from mechassay.results.reading import read_record
from mechassay.results.records import Check, Measure, Record, Spec, Table, provenance
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, counted, html_facts, html_table, number
from mechassay.utils.files import file_hash

Match = Literal["exact", "normalised", "loose", "none"]
LEAST_WORDS, LEAST_LETTERS = 4, 20
"""A quote with fewer words and fewer letters or digits is too short: every document has it."""


@dataclass(frozen=True)
class QuoteMatch:
    """How a quote was found.

    Attributes:
        page: where it begins, from 1; 0 if it was not found.
        flagged: it is only in a passage that gives a reader orders.
    """

    match: Match
    page: int = 0
    flagged: bool = False


@dataclass(frozen=True)
class NearestPassage:
    """The passage that is most like a quote; `likeness` is from 0 to 100 (Levenshtein)."""

    text: str
    page: int
    likeness: float


@dataclass(frozen=True)
class _Stretch:
    """A text that quotes are looked for in: a page, a part of one, or the seam of two."""

    page: int
    text: str

    @cached_property
    def normal(self) -> str:
        return normalised(self.text)

    @cached_property
    def bones(self) -> str:
        return skeleton(self.normal)

    @cached_property
    def places(self) -> list[int]:
        """Of each letter of `bones`, its place in `normal`."""
        return [place for place, letter in enumerate(self.normal) for _ in skeleton(letter)]


@checked
def find_quote(document: PagedDocument, exact: str) -> QuoteMatch:
    """Where a document has a quote, and on which page: exactly, normalised, loosely, or not.

    A quote is found exactly; or normalised, where a hyphen at a line's end is a hyphen or
    nothing; or loosely, by letters and digits alone. On every rung the numbers and the
    negations of the passage are those of the quote, also of the words that the quote cuts:
    "7 %" is no quote of "87 %", nor "can" of "cannot". Nothing else is found.

    Pages are searched one by one, then each with the next, so that a quote may run over a
    page's end. Passages that give a reader orders are left out first; what is found only there
    is flagged, and supports nothing.

    An empty quote, or one without a letter or digit, is nowhere.
    """
    if not skeleton(normalised(exact)):
        return QuoteMatch("none")
    matches = _best_match(_stretches(document.pieces), exact)
    if matches.match == "none" and document.orders:
        matches = _best_match(_stretches(tuple((page,) for page in document.pages)), exact)
        return replace(matches, flagged=matches.match != "none")
    return matches


def is_short(exact: str) -> bool:
    """Whether a quote is too short to support anything, wherever it stands."""
    words = [word for word in normalised(exact).split() if skeleton(word)]
    return len(words) < LEAST_WORDS and len(skeleton(normalised(exact))) < LEAST_LETTERS


def nearest_passage(document: PagedDocument, exact: str) -> NearestPassage | None:
    """The passage of a page that is most like a quote; None if there is nothing to compare.

    It is for people to look at where a quote was not found, and is no match: of 100 letters one
    digit is little to a measure of likeness, and everything to a claim.

    Raises:
        MissingExtra: rapidfuzz is not installed.
    """
    try:
        fuzz = import_module("rapidfuzz.fuzz")
    except ImportError:
        raise MissingExtra("Finding the nearest passage", "rapidfuzz", "papers") from None
    wanted = normalised(exact)
    best: NearestPassage | None = None
    for place, page in enumerate(document.pages, start=1):
        text = normalised(page)
        if not wanted or not text:
            continue
        at = fuzz.partial_ratio_alignment(wanted, text)
        if at is not None and (best is None or at.score > best.likeness):
            before, after = cut_words(text, at.dest_start, at.dest_end)
            passage = f"{before}{text[at.dest_start : at.dest_end]}{after}".replace(BREAK, "-")
            best = NearestPassage(passage, place, float(at.score))
    return best


@lru_cache(maxsize=8)
def _stretches(pieces: tuple[tuple[str, ...], ...]) -> tuple[_Stretch, ...]:
    """The pieces of each page; then of each page its last, with the first of the next."""
    own = [_Stretch(n, text) for n, page in enumerate(pieces, start=1) for text in page]
    seams = [
        _Stretch(n, f"{page[-1]}\n{after[0]}")
        for n, (page, after) in enumerate(pairwise(pieces), start=1)
        if page and after
    ]
    return (*own, *seams)


def _best_match(stretches: tuple[_Stretch, ...], exact: str) -> QuoteMatch:
    rungs: list[tuple[Match, Callable[[_Stretch, str], Iterator[str]]]] = [
        ("exact", _exactly),
        ("normalised", _normally),
        ("loose", _loosely),
    ]
    wanted = marks(exact)
    for match, passages in rungs:
        for stretch in stretches:
            if any(marks(passage) == wanted for passage in passages(stretch, exact)):
                return QuoteMatch(match, stretch.page)
    return QuoteMatch("none")


# Each yields the passages that could be the quote, with the words that it cuts.


def _exactly(stretch: _Stretch, exact: str) -> Iterator[str]:
    begin = stretch.text.find(exact)
    while begin >= 0:
        before, after = cut_words(stretch.text, begin, begin + len(exact))
        yield before + exact + after
        begin = stretch.text.find(exact, begin + 1)


def _normally(stretch: _Stretch, exact: str) -> Iterator[str]:
    for match in _pattern(exact).finditer(stretch.normal):
        before, after = cut_words(stretch.normal, match.start(), match.end())
        # Its line ends are read as the quote reads them.
        yield before + exact + after


def _loosely(stretch: _Stretch, exact: str) -> Iterator[str]:
    bones, places = skeleton(normalised(exact)), stretch.places
    begin = stretch.bones.find(bones)
    while begin >= 0 and len(places) == len(stretch.bones):
        first, last = places[begin], places[begin + len(bones) - 1] + 1
        before, after = cut_words(stretch.normal, first, last)
        for reading in ("", "-"):
            yield before + stretch.normal[first:last].replace(BREAK, reading) + after
        begin = stretch.bones.find(bones, begin + 1)


_pattern = lru_cache(maxsize=64)(pattern_of)


State = Literal[
    "exact",
    "normalised",
    "loose",
    "flagged",
    "too short",
    "not found",
    "other rule",
    "record",
    "declared",
    "not checked",
]
HOLDS: tuple[State, ...] = ("exact", "normalised", "loose", "record", "declared")
Profile = Literal["quote_exists", "supported"]


@dataclass(frozen=True)
class CheckedEvidence:
    """One piece of evidence, and what came of looking for it.

    Attributes:
        page: where it begins; 0 is no page.
        against: why it supports nothing though it exists; "" if it does.
    """

    claim: str
    criterion: str
    evidence: Evidence
    state: State
    page: int = 0
    against: str = ""

    @property
    def supports(self) -> bool:
        """Whether it exists, and nothing is against it."""
        return self.state in HOLDS and not self.against


@dataclass(frozen=True, repr=False)
class EvidenceChecks(OneLine):
    """All evidence of judgments, looked at.

    Attributes:
        missing: of each claim, criteria whose YES or PARTIAL has no evidence that exists.
        unsupported: those, and criteria whose YES or PARTIAL no evidence supports.
        limitations: what the documents say of their own limits.
    """

    rows: tuple[CheckedEvidence, ...]
    missing: Mapping[str, tuple[str, ...]]
    unsupported: Mapping[str, tuple[str, ...]]
    limitations: tuple[Limitation, ...] = ()

    def count(self, *states: State) -> int:
        """Pieces of evidence in these states."""
        return sum(row.state in states for row in self.rows)

    def statuses(self, judged: JudgedClaim, profile: Profile = "supported") -> dict[str, Status]:
        """The statuses of a profile."""
        lost = (self.missing if profile == "quote_exists" else self.unsupported)[judged.claim.id]
        return {code: "NO" if code in lost else status for code, status in judged.statuses.items()}

    def why(self, claim: str, code: str) -> str:
        """Why a YES or PARTIAL is not supported; "" if it is, or if it is neither."""
        if code not in self.unsupported[claim]:
            return ""
        own = [row for row in self.rows if (row.claim, row.criterion) == (claim, code)]
        lines = [row.against for row in own if row.against]
        return lines[0] if lines else own[0].state if own else "no quote"


def check_evidence(
    judgments: Judgments,
    documents: Sequence[PagedDocument] = (),
    runs: Path | None = None,
) -> EvidenceChecks:
    """Look for every quote, and at the file of every record.

    Args:
        documents: that quotes are from.
        runs: the folder that records are below.

    Raises:
        BadFile: a record is not there, has no hash of its content, or was edited since it was read.
    """

    def state(evidence: Evidence, judged: JudgedClaim, code: str) -> tuple[State, int]:
        if evidence.quote is not None:
            return _quote_state(evidence.quote, documents)
        codes = read_by(judgments.criteria, code, judged.claim)
        if evidence.record is not None:
            return _record_state(evidence.record, judgments.criteria, codes, runs), 0
        executed = judgments.rater.kind == "execution"
        return _declared_state(
            evidence.declared, judged.claim, judgments.criteria, codes, executed
        ), 0

    rows: list[CheckedEvidence] = []
    missing: dict[str, tuple[str, ...]] = {}
    unsupported: dict[str, tuple[str, ...]] = {}
    limits = tuple(
        limitation for document in documents for limitation in find_limitations(document)
    )
    letters = "\n".join(skeleton(normalised("\n".join(document.pages))) for document in documents)
    for judged in judgments.claims:
        name = judged.claim.id
        own = _with_objections(
            judged,
            [
                CheckedEvidence(name, code, quote, *state(quote, judged, code))
                for code, judgment in judged.criteria.items()
                for quote in judgment.evidence
            ],
            limits,
            letters,
        )
        rows += own
        exists = {row.criterion for row in own if row.state in HOLDS}
        supports = {row.criterion for row in own if row.supports}
        codes = [code for code, judgment in judged.criteria.items() if _says_something(judgment)]
        missing[name] = tuple(code for code in codes if code not in exists)
        unsupported[name] = tuple(code for code in codes if code not in supports)
    return EvidenceChecks(tuple(rows), missing, unsupported, limits)


def _with_objections(
    judged: JudgedClaim,
    rows: Sequence[CheckedEvidence],
    limits: Sequence[Limitation],
    letters: str,
) -> list[CheckedEvidence]:
    """Evidence with what is against its quotes, of those that exist."""
    quotes = {
        place: (row.criterion, row.evidence.quote.exact)
        for place, row in enumerate(rows)
        if row.evidence.quote is not None and row.state in HOLDS
    }
    reasons = objections(judged.claim, judged.statuses, list(quotes.values()), limits, letters)
    against = dict(zip(quotes, reasons, strict=True))
    return [replace(row, against=against.get(place, "")) for place, row in enumerate(rows)]


def _says_something(judgment: Judgment) -> bool:
    return judgment.status in ("YES", "PARTIAL")


def read_by(rubric: Rubric, code: str, claim: Claim) -> tuple[str, ...]:
    """The criteria whose evidence a criterion takes: its own, and that of those it needs."""
    rule = rubric.criterion(code).rule
    needs = rule is not None and any(part.test == NEEDS for part in rule.parts)
    return (code, *(rubric.asked.get(claim.description_mode, ()) if needs else ()))


def _record_state(
    record: RecordEvidence, rubric: Rubric, codes: Sequence[str], runs: Path | None
) -> State:
    if runs is None:
        return "not checked"
    file = inside(runs, record.file)
    digest = file_hash(file)
    if digest != record.sha256:
        raise BadFile(
            f"{runs / record.file}: was edited after it was judged (SHA-256 {digest[:12]}, judged"
            f" {record.sha256[:12]}); link the claim again."
        )
    read_record(file)
    ruled = [f"{rubric.key}:{code}" for code in codes if rubric.criterion(code).rule is not None]
    return "record" if record.rule in ruled else "other rule"


def _declared_state(
    field: str, claim: Claim, rubric: Rubric, codes: Sequence[str], executed: bool
) -> State:
    rules = [rule for code in codes if (rule := rubric.criterion(code).rule) is not None]
    asked = {part.measure for rule in rules for part in rule.parts if part.test == DECLARED}
    if not executed or field not in asked:
        return "other rule"
    return "declared" if getattr(claim, field) else "not found"


def _quote_state(quote: Quote, documents: Sequence[PagedDocument]) -> tuple[State, int]:
    wanted = [document for document in documents if quote.document in ("", document.sha256)]
    if not wanted:
        return "not checked", 0
    matches = [find_quote(document, quote.exact) for document in wanted]
    for match in matches:
        if match.match != "none" and not match.flagged:
            return ("too short" if is_short(quote.exact) else match.match), match.page
    flagged = next((match for match in matches if match.flagged), None)
    return ("flagged", flagged.page) if flagged else ("not found", 0)


def inside(folder: Path, name: str) -> Path:
    """A file below a folder.

    Raises:
        BadFile: the name leads out of the folder, or there is no such file.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadFile(f"{name}: leads out of {folder}.")
    if not path.is_file():
        raise BadFile(f"{path}: there is no such record.")
    return path


KIND = "claims"
NO_SCORE = "No criterion was judged YES, PARTIAL or NO: the claim has no score."


@dataclass(frozen=True, repr=False)
class ScoredJudgments(OneLine):
    """Judgments with their scores.

    Attributes:
        paper, quote_exists, supported, lenient: scores by claim: as judged; where evidence has to
            exist; where it has to support the status too; as judged with lenient conjuncts.
        source, source_quote_exists, source_supported: of all claims.
    """

    judgments: Judgments
    evidence: EvidenceChecks
    paper: dict[str, ClaimScore]
    quote_exists: dict[str, ClaimScore]
    supported: dict[str, ClaimScore]
    lenient: dict[str, ClaimScore]
    source: PaperScore
    source_quote_exists: PaperScore
    source_supported: PaperScore

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                number(score.cvs),
                score.tier,
                score.gated_tier,
                number(self.quote_exists[name].cvs),
                number(self.supported[name].cvs),
            )
            for name, score in self.paper.items()
        ]
        headings = ("claim", "CVS", "tier", "gated tier", "quote exists", "supported")
        rater = self.judgments.rater
        facts = {"rater": f"{rater.kind}: {rater.id}", "paper": number(self.source.cvs)}
        return html_facts(self.judgments.rubric, facts, html_table(headings, rows))

    def records(self) -> list[Record]:
        """A record for each claim, the system claim first."""
        names = [self.source.system, *(name for name in self.paper if name != self.source.system)]
        return [self._record(self.judgments.claim(name)) for name in names]

    def _record(self, judged: JudgedClaim) -> Record:
        judgments, claim = self.judgments, judged.claim
        rubric = judgments.criteria
        rows = [row for row in self.evidence.rows if row.claim == claim.id]
        rater = f"{judgments.rater.kind}: {judgments.rater.id}"
        score = self.paper[claim.id]
        warnings: list[str] = [] if score.n_judged else [NO_SCORE]
        if judgments.scope == "other model":
            warnings.append(
                f"The evidence is of {claim.model or 'another model'}, not of the model that the"
                " claim is about: it overrides no judgment of that."
            )
        if n := sum(row.state == "not checked" for row in rows):
            warnings.append(
                f"{counted(n, 'piece of evidence was', 'pieces of evidence were')} not checked:"
                " name the --document of quotes, or the folder of the --runs."
            )
        if n := len(self.evidence.unsupported[claim.id]) - len(self.evidence.missing[claim.id]):
            warnings.append(
                f"{counted(n, 'YES or PARTIAL has', 'YES or PARTIAL have')} quotes that exist and"
                " do not support them; each criterion says why."
            )
        return Record(
            kind=KIND,
            cell={"claim": claim.id, "rater": rater, **_names(claim)},
            specs={
                **{role: Spec(name=name) for role, name in _names(claim).items()},
                "method": Spec(
                    name=claim.id,
                    args={
                        "statement": claim.statement,
                        "is_whole": judged.is_whole,
                        **({"unable": judged.unable} if judged.unable else {}),
                    },
                ),
                "rater": Spec(name=judgments.rater.id, args={"kind": judgments.rater.kind}),
                "rubric": Spec(name=rubric.id, version=rubric.version),
            },
            measures=[*self._measures(claim.id, rubric), *_groups(judged)],
            tables=[
                _criteria(rubric, judged, self.evidence),
                _evidence(rows),
                _limitations(judged, self.evidence.limitations),
                Table.of(
                    "upgrades",
                    ("criterion",),
                    [
                        {"criterion": code, "name": rubric.criterion(code).name}
                        for code in lifting(rubric, judged.statuses)
                    ],
                ),
                Table.of(
                    "beyond",
                    ("words",),
                    [{"words": words, "why": why} for words, why in judged.beyond.items()],
                ),
            ],
            checks=_checks(rows),
            warnings=warnings,
            provenance=provenance(device="cpu", dtype="float32", seed=0),
        )

    def _measures(self, name: str, rubric: Rubric) -> list[Measure]:
        score, n = self.paper[name], len(rubric.criteria)
        left = n - score.n_judged

        scores = {
            "cvs": score.cvs,
            "cvs quote exists": self.quote_exists[name].cvs,
            "cvs supported": self.supported[name].cvs,
            "cvs lenient": self.lenient[name].cvs,
            "cvs highest": score.highest,
        }
        texts = measure_texts(KIND)
        levels = [
            texts.measure(
                "{dimension}",
                float(score.dimensions[dimension.code]),
                n=n,
                n_undefined=left,
                dimension=dimension.name.lower(),
                title=dimension.name,
                asks=dimension.asks,
            )
            for dimension in rubric.dimensions
        ]
        of_statuses = [
            texts.measure(key, value, n=n, n_undefined=left) for key, value in scores.items()
        ]
        return [*of_statuses, *levels]


@checked
def score_judgments(
    judgments: Judgments,
    documents: Sequence[PagedDocument] = (),
    runs: Path | None = None,
) -> ScoredJudgments:
    """Score every claim under every profile.

    Args:
        documents: in which quotes are looked for.
        runs: the folder of the records that are evidence.

    Raises:
        BadFile: a record is not there, or was edited since it was judged.
    """
    rubric = judgments.criteria
    evidence = check_evidence(judgments, documents, runs)
    own = {judged.claim.id: judged for judged in judgments.claims}
    paper = {name: claim_score(rubric, judged.statuses) for name, judged in own.items()}
    lenient = {
        name: claim_score(rubric, judged.statuses, "lenient") for name, judged in own.items()
    }
    exists, supported = (
        {name: claim_score(rubric, evidence.statuses(judged, way)) for name, judged in own.items()}
        for way in get_args(Profile)
    )
    system, why = system_claim([claim.claim for claim in judgments.claims])
    return ScoredJudgments(
        judgments,
        evidence,
        paper,
        exists,
        supported,
        lenient,
        paper_score(paper, system, why),
        paper_score(exists, system, why),
        paper_score(supported, system, why),
    )


def _names(claim: Claim) -> dict[str, str]:
    return {role: name for role, name in (("model", claim.model), ("task", claim.task)) if name}


def _groups(judged: JudgedClaim) -> list[Measure]:
    if judged.n_groups is None:
        return []
    return [measure_texts(KIND).measure("groups", float(judged.n_groups), n=judged.n_groups)]


def _criteria(rubric: Rubric, judged: JudgedClaim, evidence: EvidenceChecks) -> Table:
    exists, supported = (evidence.statuses(judged, way) for way in get_args(Profile))
    worst, best = judged.ends
    rows = [
        {
            "criterion": criterion.code,
            "name": criterion.name,
            "dimension": criterion.dimension,
            "status": judged.criteria[criterion.code].status,
            "quote_exists": exists[criterion.code],
            "supported": supported[criterion.code],
            "unsupported": evidence.why(judged.claim.id, criterion.code),
            "at_worst": worst[criterion.code],
            "at_best": best[criterion.code],
            "reason": judged.criteria[criterion.code].full_reason,
            "n_evidence": len(judged.criteria[criterion.code].evidence),
        }
        for criterion in rubric.criteria
    ]
    return Table.of("criteria", ("criterion",), rows)


def _evidence(rows: Sequence[CheckedEvidence]) -> Table:
    found_rows = [
        {
            "criterion": row.criterion,
            "number": place,
            "state": row.state,
            "against": row.against,
            "page": row.page or (row.evidence.quote.page if row.evidence.quote else None),
            "text": row.evidence.quote.exact if row.evidence.quote else _record_text(row),
        }
        for place, row in enumerate(rows)
    ]
    return Table.of("evidence", ("criterion", "number"), found_rows)


def _limitations(judged: JudgedClaim, limits: Sequence[Limitation]) -> Table:
    rows = [
        {
            "number": place,
            "page": limit.page,
            "kind": limit.kind,
            "text": limit.text,
            "denies": ", ".join([*limit.denies, *limit.denies_yes]),
            "doubts": ", ".join(limit.doubts),
            "contradicts": ", ".join(
                code for code, status in judged.statuses.items() if limit.contradicts(code, status)
            ),
        }
        for place, limit in enumerate(limits)
    ]
    return Table.of("limitations", ("number",), rows)


def _record_text(row: CheckedEvidence) -> str:
    record = row.evidence.record
    if record is None:
        return f"the claim's {row.evidence.declared}"
    measures = ", ".join(
        f"{measure.name} {number(measure.value, measure.low, measure.high)}"
        + (f" [{measure.low:.3g}, {measure.high:.3g}]" if math.isfinite(measure.low) else "")
        for measure in record.measures
    )
    return f"{record.file} ({record.sha256[:12]}): {measures}"


def _checks(rows: Sequence[CheckedEvidence]) -> list[Check]:
    looked = [row for row in rows if row.evidence.quote and row.state != "not checked"]
    lost = [row for row in looked if row.state in ("not found", "flagged", "too short")]
    if not looked:
        return []
    n, short = (sum(row.state == state for row in lost) for state in ("flagged", "too short"))
    sentence = f"{len(lost) - n - short} of {len(looked)} quotes are not in their document"
    sentence += f"; {n} only where it gives a reader orders" if n else ""
    sentence += f"; {short} are too short to show anything." if short else "."
    return [
        Check(
            name="quotes",
            must_be="in their document",
            largest=float(len(lost)),
            n=len(looked),
            n_wrong=len(lost),
            says=sentence if lost else "",
        )
    ]
