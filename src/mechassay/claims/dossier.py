"""Records as evidence: the rules of a rubric, applied to the records of runs.

    claim + records -> a status for each criterion that has a rule, what was read, its hash

A rule has parts (`rubric.RecordTest`), which `claims.record_rules` answers. All parts met are
YES, all that were tested missed NO, anything between PARTIAL; some rules say PARTIAL at most, and
so do all below `FEW_GROUPS` groups of pairs. What a circuit that does nothing would meet is NOT
TESTED where recovery is none. A record that is gone makes NOT TESTED, never NO.

Two kinds of parts read no record. `declared` asks what the claim says of itself; predictions
count in full if the claim stood in the folder before its first record (`REGISTERED`), if a
random circuit would fail one of them, and if none fails. `needs` asks whether the criteria are
met that the claim's mode of description asks for.

A prediction holds if the whole interval of its measure is on the side that it names, fails if
the whole interval is on the other, and is open else. Of several records the worst counts. A
prediction that fails refutes the claim, whatever its score.

What is missing is named with the command that makes it, and with its cost. The circuit is that
of the claim: found by a method, or cut from the score file that the claim names. Other
ablations, tasks, models and samples measure the same scores again. The cost is what a record of
the same model took; if there is none, how many circuits are run on each pair.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Literal

from mechassay.circuits.evaluation.chance import n_groups
from mechassay.claims.claim import COUNTERFACTUAL, Claim, ClaimFile, Prediction, read_claims
from mechassay.claims.judgments import (
    Evidence,
    JudgedClaim,
    Judgment,
    Judgments,
    Rater,
    RecordEvidence,
    now,
    ordered,
)
from mechassay.claims.record_rules import (
    RANDOM,
    SIZED,
    TESTS,
    Answer,
    StoredRecord,
    answering,
    measured,
    of_pairs,
    records_below,
    task_name,
)
from mechassay.claims.rubric import (
    DECLARED,
    JUDGED,
    NEEDS,
    Criterion,
    RecordTest,
    Rubric,
    Status,
    load_rubric,
)
from mechassay.errors import BadFile, BadUsage
from mechassay.results.preconditions import task
from mechassay.results.reading import has_values
from mechassay.results.records import Measure, Record, Table
from mechassay.results.verdict import Standing
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.tasks import TASKS
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, interval
from mechassay.version import __version__

if TYPE_CHECKING:
    from mechassay.models.model import Model

ANY_TASK, ANY_MODEL = "TASK", "MODEL"
"""Stand in a command for a task or a model of the reader's choice."""
COMMANDS = {
    "own": Template(
        "$first --no-curve --metric completeness$at --metric minimality$at -o $runs/own"
    ),
    "other": Template("$again -t $other --no-curve --metric completeness$at -o $runs/other-task"),
    "other ablation": Template(
        "$again -t $task --ablation $ablation --no-curve --metric completeness$at"
        " -o $runs/$ablation"
    ),
    "other sample": Template(
        "$again -t $task --split validation --no-curve --metric completeness$at -o $runs/validation"
    ),
    "untrained": Template(
        "$evaluate -m $untrained -t $task --no-curve --metric completeness$at -o $runs/untrained"
    ),
    "truth": Template(
        "mechassay circuits run -m truth --method $ranking --no-curve -o $runs/truth"
    ),
    "adversarial": Template(
        "mechassay adversarial run -m $model -t $task -c $circuit -o $runs/adversarial"
    ),
    "graded": Template(
        "mechassay measure run EX11 -m $model -t $task --circuit $circuit -o $runs/graded"
    ),
    "composition": Template(
        "mechassay measure run B10 -m $model -t $task --circuit $circuit -o $runs/composition"
    ),
    "invariance": Template(
        "mechassay measure run EX2 -m $model -t $task --circuit $circuit -o $runs/invariance"
    ),
    "convergence": Template(
        "mechassay measure run F03 -m $model -t $task --circuit $circuit --method $ranking"
        " --method exact -o $runs/convergence"
    ),
    "other family": Template(
        "mechassay circuits run -m $others -t $task --method $ranking --no-curve"
        " --metric completeness$at -o $runs/other-family"
    ),
}
WITH_METHOD = ("truth", "convergence", "other family")
"""Commands that look for circuits again: a circuit that no method found has none."""
AT_ONE_SIZE = 10
"""Circuits of one size that are run on each pair: the full and the empty one, the circuit and the
rest, and those of random paths."""
COSTS = {
    "adversarial": "two runs of the model and one of the circuit for each of a million pairs",
    "graded": "a part of the model is run some 30 times a head on each of 40 pairs",
    "composition": "no prompt is run: products of the weights of all heads",
    "invariance": "the model and the circuit are run on 120 prompts",
    "convergence": "what the two methods take to rank all edges",
}


def command_for(name: str, claim: Claim, runs: Path, records: Sequence[Record]) -> str:
    """The command of a name for a claim, and its cost, in a sentence."""
    if claim.scores and name in WITH_METHOD:
        return "No command makes it: the circuit is one of a file, which no method found."
    file = claim.scores or (
        f"{runs}/own/scores/{claim.model}--{claim.task}/{claim.ranking}.safetensors"
    )
    evaluate = f"mechassay circuits evaluate {file}"
    again = f"{evaluate} -m {claim.model}"
    method = f"mechassay circuits run -m {claim.model} -t {claim.task} --method {claim.ranking}"
    command = COMMANDS[name].substitute(
        first=f"{again} -t {claim.task}" if claim.scores else method,
        again=again,
        evaluate=evaluate,
        at=f":size={claim.size}" if claim.size else "",
        runs=runs,
        model=claim.model,
        task=claim.task,
        other=claim.other_task or ANY_TASK,
        others=claim.other_model or ANY_MODEL,
        untrained=claim.untrained_copy,
        ranking=claim.ranking,
        circuit=f"{claim.scores}@{claim.size}" if claim.scores else claim.circuit,
        ablation=other_ablation(claim),
    )
    return f"To make it: `{command}` ({cost(name, claim, records)})."


def other_ablation(claim: Claim) -> str:
    """An ablation that is not the claim's."""
    return "mean" if claim.ablation == COUNTERFACTUAL else COUNTERFACTUAL


def cost(name: str, claim: Claim, records: Sequence[Record]) -> str:
    """What a command costs, by what is known."""
    if name in COSTS:
        return COSTS[name]
    taken = [
        sum(x for key, x in record.spent.items() if key.endswith("seconds") and math.isfinite(x))
        for record in records
        if record.model.name == claim.model
    ]
    known = [seconds for seconds in taken if seconds > 0]
    if known and name != "truth":
        return f"a record of {claim.model} took {max(known):,.0f} s"
    return f"about {n_circuits(name, claim)} circuits are run on each of 100 pairs"


def n_circuits(name: str, claim: Claim, most: int | None = None) -> int:
    """About how many circuits a command runs on each pair.

    Args:
        most: edges that are left out in turn.
    """
    size = int(claim.size) if name == "own" and claim.size.isdigit() else 0
    return AT_ONE_SIZE + 2 * min(size, size if most is None else most)


Outcome = Literal["holds", "open", "fails", "not measured"]
WORST: tuple[Outcome, ...] = ("fails", "open", "holds")


@dataclass(frozen=True, repr=False)
class PredictionOutcome(OneLine):
    """A prediction, what was measured, and what that says.

    Attributes:
        measured: the measure with its interval; "" if nothing was measured.
        could_fail: whether the prediction fails for random circuits of the same records: what
            these meet says nothing of the claim. None where there are none.
    """

    prediction: Prediction
    outcome: Outcome
    measured: str = ""
    could_fail: bool | None = None


def outcomes(claim: Claim, records: Sequence[StoredRecord]) -> list[PredictionOutcome]:
    """What became of each prediction of a claim."""
    return [_outcome(prediction, claim, records) for prediction in claim.predictions]


def outcome_table(measured_outcomes: Sequence[PredictionOutcome]) -> Table:
    """A row for each prediction."""
    rows = [
        {
            "prediction": str(outcome.prediction),
            "outcome": outcome.outcome,
            "found": outcome.measured,
            "could_fail": outcome.could_fail,
        }
        for outcome in measured_outcomes
    ]
    return Table.of("predictions", ("prediction",), rows)


def _outcome(
    prediction: Prediction, claim: Claim, records: Sequence[StoredRecord]
) -> PredictionOutcome:
    own = [
        stored
        for kind in dict.fromkeys(stored.record.kind for stored in records)
        for stored in answering(
            RecordTest(test="interval", measure=prediction.measure, kind=kind), claim, records
        )
    ]
    sized = prediction.measure in SIZED and claim.size
    name = f"{prediction.measure}@{claim.size}" if sized else prediction.measure
    measures = [stored.record.measure(name, prediction.of) for stored in own]
    outcomes_of = [
        (value, _outcome_of_measure(prediction, value)) for value in measures if value is not None
    ]
    known = [
        (WORST.index(outcome), outcome_measure)
        for outcome_measure, outcome in outcomes_of
        if outcome in WORST
    ]
    if not known:
        return PredictionOutcome(prediction, "not measured")
    place, measure = min(known, key=lambda row: row[0])
    by_chance = [
        _outcome_of_measure(prediction, own_measure)
        for stored in own
        for own_measure in stored.record.measures
        if own_measure.name == name and fnmatchcase(own_measure.of, RANDOM)
    ]
    return PredictionOutcome(
        prediction,
        WORST[place],
        interval(measure.value, measure.low, measure.high),
        could_fail=set(by_chance) == {"fails"} if by_chance else None,
    )


def _outcome_of_measure(prediction: Prediction, measure: Measure) -> Outcome:
    """Without an interval, the number itself decides."""
    if math.isnan(measure.value):
        return "not measured"
    bare = math.isnan(measure.low)
    low, high = (measure.value, measure.value) if bare else (measure.low, measure.high)
    above = prediction.direction == "above"
    if low > prediction.threshold if above else high < prediction.threshold:
        return "holds"
    failed = high <= prediction.threshold if above else low >= prediction.threshold
    return "fails" if failed else "open"


EFFECT = "E4"
"""The criterion that says which recovery is large enough to matter."""
NO_RULE = "No rule decides it from records: a reader does."
REGISTERED = "claims.json"
"""The claims as they were before the first record, in the folder of the runs."""
FIXED = (
    "statement",
    "model",
    "task",
    "circuit",
    "scores",
    "components",
    "ablation",
    "predictions",
)
"""What of a claim must be as it was for its predictions to have been made before."""


@checked
def link(
    claims: ClaimFile,
    runs: str | Path,
    *,
    model: str | Model = "",
    before: Judgments | None = None,
) -> Judgments:
    """Judge claims by the records of runs.

    Args:
        model: whose records are read, where it is not the model that the claims are about; the
            judgments are then of another model, and override none.
        before: judgments that were made of the same runs: their records must be as they were.

    Raises:
        BadFile: a record cannot be read, is not as it was written, or was edited since `before`.
        BadUsage: a claim names no model, task or circuit.
    """
    rubric, folder = load_rubric(claims.rubric), Path(runs)
    records = records_below(folder)
    _refuse_edited(folder, records, before)
    registered = _registered(folder, records)
    judged: list[JudgedClaim] = []
    name = model if isinstance(model, str) else model.name
    elsewhere = False
    for claim in claims.claims:
        check_claim(claim)
        other = bool(name) and name != claim.model
        elsewhere = elsewhere or other
        own = claim.model_copy(update={"model": name, "untrained": ""}) if other else claim
        stood = _is_same(claim, registered.get(claim.id))
        dossier = _Dossier(rubric, own, records, folder, stood)
        criteria = dossier.criteria()
        judged.append(
            JudgedClaim(
                claim=own,
                criteria=criteria,
                n_groups=min(dossier.n_groups, default=None),
                unable=dossier.unable(),
                beyond=beyond_records(claim, [record.record for record in records]),
                is_whole=dossier.is_whole(),
            )
        )
    return Judgments(
        rubric=rubric.key,
        rater=Rater(kind="execution", id=f"mechassay {__version__}"),
        scope="other model" if elsewhere else "claim",
        created=now(),
        claims=tuple(judged),
    )


UNIVERSAL = re.compile(
    r"\b(?:universal(?:ly)?|always|never|unique(?:ly)?|in general|generally)\b"
    r"|\b(?:all|every|any|only)[\s-]+(?:\w+[\s-]+){0,2}?(?:models?|transformers?|LLMs?|networks?|"
    r"tasks?|prompts?|mechanisms?|circuits?|languages?|brains?|humans?)\b",
    re.IGNORECASE,
)
"""Words that speak of more than anything that was run."""
MODELS = re.compile(
    r"\b(?:GPT|Llama|LLaMA|Gemma|Gemini|Mistral|Mixtral|Qwen|Pythia|Claude|BERT|RoBERTa|T5|OPT|"
    r"Phi|SmolLM|DeepSeek|OLMo|Falcon|BLOOM|PaLM|GPT-NeoX|GPT-J)\d*(?:[- ]?\d[\w.]*)?\b"
)
"""Names of models, as statements write them."""


def beyond_records(claim: Claim, records: Sequence[Record]) -> dict[str, str]:
    """Words of a statement that no record of these runs can carry, and why.

    Simple rules: words for everything there is, and names of models and tasks that were not run.
    They miss much, and what they find a reader may find harmless.
    """
    run = {_letters(record.model.name) for record in records} | {_letters(claim.model)}
    beyond: dict[str, str] = {}
    for match in UNIVERSAL.finditer(claim.statement):
        beyond[match[0]] = "it speaks of more than any number of runs can show"
    for match in MODELS.finditer(claim.statement):
        if not any(_letters(match[0]) in name for name in run):
            beyond[match[0]] = "this model was not run"
    tasks = {task_name(record.task.name) for record in records} | {claim.task, claim.model}
    for name in TASKS.names():
        words = name.replace("-", " ")
        pattern = rf"\b{re.escape(words)}\b"
        named = re.search(pattern, claim.statement.replace("-", " "), re.IGNORECASE)
        if named and not any(name in task for task in tasks):
            beyond[words] = "this task was not run"
    return beyond


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def check_claim(claim: Claim) -> None:
    """Refuse a claim whose records cannot be found.

    Raises:
        BadUsage: it names no model, task or circuit.
    """
    for name in ("model", "task", "circuit"):
        if not getattr(claim, name):
            raise BadUsage(
                f"The claim {claim.id} names no {name}: records are found by model, task and"
                " circuit."
            )


def _registered(runs: Path, records: Sequence[StoredRecord]) -> dict[str, Claim]:
    """The claims that were written down before the first record, by their ids."""
    file = runs / REGISTERED
    if not file.is_file():
        return {}
    held = read_claims(file)
    created = [_time(record.record.provenance.created) for record in records]
    if not held.registered or any(_time(held.registered) > time for time in created):
        return {}
    return {claim.id: claim for claim in held.claims}


def _time(text: str) -> datetime:
    """A time that a file states; one without a zone is UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadFile(f"{text!r} is no time; expected one such as {now()}.") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _is_same(claim: Claim, before: Claim | None) -> bool:
    """Whether a claim is as it was; a file of scores may lie in another folder."""
    if before is None:
        return False

    def fixed(own_claim: Claim) -> list[object]:
        plain = own_claim.model_copy(update={"scores": Path(own_claim.scores).name})
        return [getattr(plain, name) for name in FIXED]

    return fixed(claim) == fixed(before)


def _refuse_edited(runs: Path, records: Sequence[StoredRecord], before: Judgments | None) -> None:
    known = {record.file: record.sha256 for record in records}
    rows = before.claims if before else ()
    held = [
        quote.record
        for judged in rows
        for judgment in judged.criteria.values()
        for quote in judgment.evidence
        if quote.record
    ]
    for record in held:
        if known.get(record.file, record.sha256) != record.sha256:
            raise BadFile(
                f"{runs / record.file}: was edited after it was judged (SHA-256"
                f" {known[record.file][:12]}, judged {record.sha256[:12]}); remove the judgments if"
                " the record was made again."
            )


class _Dossier:
    """One claim and all records."""

    def __init__(
        self,
        rubric: Rubric,
        claim: Claim,
        records: Sequence[StoredRecord],
        runs: Path,
        stood: bool,
    ) -> None:
        self.rubric, self.claim, self.records, self.runs = rubric, claim, records, runs
        self.stood = stood
        self.judged: dict[str, Judgment] = {}
        self.n_groups: list[int] = []

    def criteria(self) -> dict[str, Judgment]:
        """The judgment of every criterion; those that need others come last."""
        ruled = [by_rule for by_rule in self.rubric.criteria if by_rule.rule is not None]
        ruled.sort(key=_needs_others)
        for criterion in ruled:
            self.judged[criterion.code] = self._judgment(criterion)
        rest = {code: Judgment(status="NOT TESTED", reason=NO_RULE) for code in self.rubric.codes}
        return ordered(self.rubric, {**rest, **self.judged})

    def _judgment(self, criterion: Criterion) -> Judgment:
        assert criterion.rule is not None
        rule = criterion.rule
        every = [(part, self._answer(part)) for part in rule.parts]
        answers = [answer for _, answer in every]
        counted = [
            answer
            for part, answer in every
            if not (part.optional and answer.status == "NOT TESTED")
        ]
        required = [answer for part, answer in every if not part.optional]

        def of_all(status: Callable[[Answer], Status]) -> Status:
            """What is optional makes no NO better."""
            least = combined([status(code) for code in required])
            return least if least == "NO" else combined([status(code) for code in counted])

        statuses: list[Status] = [
            of_all(lambda answer: answer.status),
            of_all(lambda answer: answer.at_worst),
            of_all(lambda answer: answer.at_best),
        ]
        reasons = [rule.says, *(answer.reason for answer in answers)]
        read = [row for answer in counted for row in answer.read]
        reasons += [of_pairs(read)]
        groups = [n_groups(stored.record) for stored, _ in read if has_values(stored.record)]
        self.n_groups += groups
        few = min(groups, default=FEW_GROUPS) < FEW_GROUPS
        if few:
            reasons.append(f"Fewer than {FEW_GROUPS} groups show PARTIAL at most.")
        if rule.at_most == "PARTIAL" or few:
            statuses = ["PARTIAL" if status == "YES" else status for status in statuses]
        if rule.needs_recovery and statuses[0] in ("YES", "PARTIAL") and (why := self._idle()):
            statuses = ["NOT TESTED"] * 3
            reasons.append(why)
        if rule.command and any(answer.status == "NOT TESTED" for answer in counted):
            held = [record.record for record in self.records]
            reasons.append(command_for(rule.command, self.claim, self.runs, held))
        evidence = [
            *self._records(
                criterion.code,
                [own_answer for own_answer in answers if own_answer.status in JUDGED],
            ),
            *self._declared(rule.parts, answers),
            *self._borrowed(rule.parts, answers),
        ]
        status, worst, best = statuses
        return Judgment(
            status=status,
            reason=" ".join(filter(None, reasons)),
            evidence=tuple(evidence),
            ends=None if worst == status == best else (worst, best),
        )

    def unable(self) -> str:
        """Why the model is not shown to do the claim's task; "" if it is, or no record says it."""
        part = RecordTest(test="interval", measure="circuit")
        for stored in answering(part, self.claim, self.records):
            case = task(stored.record)
            if case.standing is Standing.NOT_MET:
                own = stored.record
                return case.text({"model": own.model.name, "task": own.task.name})
        return ""

    def is_whole(self) -> bool:
        """Whether the circuit has as many edges as the model, as far as records say how many."""
        part = RecordTest(test="interval", measure="circuit")
        edges = {
            int(str(stored.record.model.args.get("n_edges", 0)))
            for stored in answering(part, self.claim, self.records)
        } - {0}
        size = self.claim.size
        return size.isdigit() and bool(edges) and int(size) >= max(edges)

    def _idle(self) -> str:
        """Why a circuit does nothing, as far as its recovery tells; "" if it does something."""
        part = RecordTest(test="interval", measure="circuit")
        for _, measure in measured(part, self.claim, answering(part, self.claim, self.records)):
            known = not math.isnan(measure.low)
            if known and (measure.low <= 0 or measure.high < self._least_effect):
                return (
                    f"Recovery is {interval(measure.value, measure.low, measure.high)}: a circuit"
                    " that does nothing would meet this."
                )
        return ""

    @property
    def _least_effect(self) -> float:
        """The recovery that is large enough to matter."""
        rule = self.rubric.criterion(EFFECT).rule
        return 0.0 if rule is None else rule.parts[0].least or 0.0

    def _answer(self, part: RecordTest) -> Answer:
        if part.test == DECLARED:
            return self._by_declaration(part)
        if part.test == NEEDS:
            return self._by_needs()
        return TESTS[part.test](part, self.claim, self.records)

    def _by_declaration(self, part: RecordTest) -> Answer:
        """What the claim says of itself; predictions as they stood before the first record."""
        field = part.measure
        if not getattr(self.claim, field):
            return Answer("NOT TESTED", f"The claim has no {field}.")
        if field != "predictions":
            return Answer("YES", f"The claim has {field}.")
        predictions = ", ".join(map(str, self.claim.predictions))
        measured_outcomes = outcomes(self.claim, self.records) if self.records else []
        known = [outcome for outcome in measured_outcomes if outcome.outcome != "not measured"]
        if known and all(outcome.could_fail is False for outcome in known):
            return Answer(
                "NOT TESTED", f"It predicts {predictions}, which random circuits meet too."
            )
        if failed := [
            str(outcome.prediction) for outcome in measured_outcomes if outcome.outcome == "fails"
        ]:
            return Answer("PARTIAL", f"It predicts {', '.join(failed)}, and is refuted by it.")
        if not self.stood:
            sentence = (
                f"It predicts {predictions}. The folder does not show that it did, as it is now,"
                " before the first record of this circuit."
            )
            return Answer("PARTIAL", sentence)
        lacking = [
            str(outcome.prediction)
            for outcome in measured_outcomes
            if outcome.outcome == "not measured"
        ]
        if lacking:
            return Answer("PARTIAL", f"It predicts {', '.join(lacking)}; no record has that.")
        if known and not any(outcome.could_fail for outcome in known):
            sentence = (
                f"It predicts {predictions}; no record says whether a random circuit would meet it."
            )
            return Answer("PARTIAL", sentence)
        return Answer("YES", f"It predicts {predictions}, and did before the first record.")

    def _by_needs(self) -> Answer:
        mode = self.claim.description_mode
        asked = self.rubric.asked.get(mode, ())
        if not asked:
            sentence = (
                f"No criteria are asked of the mode {mode}." if mode else "The claim has no mode."
            )
            return Answer("NOT TESTED", sentence)
        statuses: list[Status] = [self.judged[code].status for code in asked]
        answers_text = ", ".join(
            f"{code} {status}" for code, status in zip(asked, statuses, strict=True)
        )
        if "NOT TESTED" in statuses:
            return Answer("NOT TESTED", f"{mode}: {answers_text}.")
        return Answer(combined(statuses), f"{mode}: {answers_text}.")

    def _records(self, code: str, answers: Sequence[Answer]) -> list[Evidence]:
        read: dict[str, tuple[StoredRecord, list[Measure]]] = {}
        for stored, measure in (row for answer in answers for row in answer.read):
            held = read.setdefault(stored.file, (stored, []))[1]
            if measure not in held:
                held.append(measure)
        return [
            Evidence(
                record=RecordEvidence(
                    file=stored.file,
                    sha256=stored.sha256,
                    rule=f"{self.rubric.key}:{code}",
                    measures=tuple(measures),
                )
            )
            for stored, measures in read.values()
        ]

    def _declared(self, parts: Sequence[RecordTest], answers: Sequence[Answer]) -> list[Evidence]:
        return [
            Evidence(declared=part.measure)
            for part, answer in zip(parts, answers, strict=True)
            if part.test == DECLARED and answer.status in JUDGED
        ]

    def _borrowed(self, parts: Sequence[RecordTest], answers: Sequence[Answer]) -> list[Evidence]:
        """The evidence of the criteria that another one needs."""
        tested = [
            answer
            for part, answer in zip(parts, answers, strict=True)
            if part.test == NEEDS and answer.status in JUDGED
        ]
        asked = self.rubric.asked.get(self.claim.description_mode, ()) if tested else ()
        quotes = [quote for code in asked for quote in self.judged[code].evidence]
        return [quote for place, quote in enumerate(quotes) if quote not in quotes[:place]]


def _needs_others(criterion: Criterion) -> bool:
    return criterion.rule is not None and any(part.test == NEEDS for part in criterion.rule.parts)


def combined(statuses: Sequence[Status]) -> Status:
    """The status of a rule by those of its parts."""
    tested = [status for status in statuses if status in JUDGED]
    if not tested:
        return "NOT TESTED"
    if all(status == "YES" for status in statuses):
        return "YES"
    return "NO" if all(status == "NO" for status in tested) else "PARTIAL"


def completed(executed: Judgments, read: Judgments) -> Judgments:
    """What was executed, and a reader's judgments of the rest.

    A status that records gave stands, but for a PARTIAL of a rule that can say no more. Records of
    another model than the claim's override none: then all is the reader's.

    Raises:
        BadUsage: two rubrics, a claim that the reader did not judge, or another claim of its id.
    """
    if executed.rubric != read.rubric:
        raise BadUsage(
            f"Judgments by different rubrics are not joined; got {executed.rubric} and"
            f" {read.rubric}."
        )
    if executed.scope == "other model":
        return read
    judged: list[JudgedClaim] = []
    for claim in executed.claims:
        other = read.claim(claim.claim.id)
        _check_same(claim.claim, other.claim)
        theirs: Mapping[str, Judgment] = other.criteria
        criteria = {
            code: theirs[code] if _is_open(executed.criteria, code, own, theirs[code]) else own
            for code, own in claim.criteria.items()
        }
        judged.append(claim.model_copy(update={"criteria": criteria}))
    rater = Rater(kind="execution", id=f"{executed.rater.id}, the rest by {read.rater.id}")
    return executed.model_copy(
        update={"claims": tuple(judged), "rater": rater, "documents": read.documents}
    )


def _check_same(own: Claim, other: Claim) -> None:
    """Refuse a reader's claim that has the id of ours and is another."""
    for name in ("statement", "model", "task", "circuit"):
        ours, theirs = getattr(own, name), getattr(other, name)
        # A circuit that was written as a file has the name of the file.
        renamed = name == "circuit" and bool(own.scores) != bool(other.scores)
        if ours and theirs and ours != theirs and not renamed:
            raise BadUsage(
                f"The reader's claim {own.id} is another: its {name} is {theirs!r}, here {ours!r}."
            )


def _is_open(rubric: Rubric, code: str, own: Judgment, theirs: Judgment) -> bool:
    """Whether a reader's judgment takes the place of an executed one."""
    if own.status == "NOT TESTED":
        return True
    rule = rubric.criterion(code).rule
    capped = rule is not None and rule.at_most == own.status == "PARTIAL"
    return capped and theirs.status in JUDGED
