"""Records to statuses: every rule by hand, what is missing, what was edited, a known circuit.

Predictions against records, by hand.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.edits import sealed
from mechassay.circuits.scores import SCORES_SHA256
from mechassay.claims.claim import Claim, ClaimFile, Prediction, claims_of
from mechassay.claims.dossier import REGISTERED, combined, completed, link, outcome_table, outcomes
from mechassay.claims.evidence import score_judgments
from mechassay.claims.judgments import Judgment, Judgments, judgments_of
from mechassay.claims.record_rules import TESTS, StoredRecord
from mechassay.claims.rubric import (
    DECLARED,
    JUDGED,
    NEEDS,
    claim_score,
    dimension_levels,
    load_rubric,
)
from mechassay.cli.main import main
from mechassay.errors import BadFile, BadUsage
from mechassay.results.records import Measure, Record, Selection, Spec, Table, Values, provenance
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.utils.files import file_hash

RUBRIC = load_rubric()
RULED = [each.code for each in RUBRIC.criteria if each.rule]
CLAIM = {"id": "a", "statement": "It runs through 9 edges.", "model": "m", "task": "t"}
CLAIM |= {"circuit": "eap@9"}
COMMANDED = [each.code for each in RUBRIC.criteria if each.rule and each.rule.command]
Triple = tuple[float, float, float]


def claims(**fields: Any) -> ClaimFile:
    return claims_of({**CLAIM, **fields})


def record(
    measures: dict[str, Triple],
    *,
    model: str = "m",
    task: str = "t",
    method: str = "eap",
    kind: str = "circuits",
    prompts: str = "x",
    n: int = 100,
    controls: dict[str, Triple] | None = None,
    gap: float = 1.0,
    n_pairs: int = FEW_GROUPS,
    family: str = "llama",
    seed: int = 0,
    scores: str = "",
    **args: Any,
) -> Record:
    """A record of a circuit in a model whose behaviour is `gap`; `args` are those of its task."""
    rows = {("result", name): row for name, row in measures.items()}
    for name, row in (controls or {}).items():
        of = "control:random" if name == "auprc" else "control:random-paths"
        rows[of, name] = row
    how = {"ablation": "counterfactual", "split": "test", "train_split": "train", **args}
    return Record(
        kind=kind,
        cell={"method": method},
        specs={
            "model": Spec(name=model, args={"family": family}),
            "task": Spec(name=task, args=how),
            "method": Spec(name=method, args={SCORES_SHA256: scores} if scores else {}),
        },
        measures=[
            Measure(name=name, of=of, value=value, low=low, high=high, n=n)
            for (of, name), (value, low, high) in rows.items()
        ],
        values=Values(
            unit="pair",
            ids=list(map(str, range(n_pairs))),
            groups=list(map(str, range(n_pairs))),
            columns={"clean": [gap] * n_pairs, "empty": [0.0] * n_pairs},
        ),
        spent={"evaluate_seconds": 12.0},
        data={"test": Selection(hash=prompts)},
        provenance=provenance(device="cpu", dtype="float32", seed=seed),
    )


def gauge(
    name: str,
    verdict: str,
    *,
    flags: tuple[str, ...] = (),
    graded: float = 1.0,
    left_out: int = 0,
    **about: Any,
) -> Record:
    """A record of measurement of the claim's circuit."""
    rows = [{"variant": "repaired", "verdict": verdict}, {"variant": "page", "verdict": "passes"}]
    measures = {"graded": graded, "graded_left_out": float(left_out)}
    made = record(
        {name: (value, math.nan, math.nan) for name, value in measures.items()},
        kind="measure",
        method=name,
        n=10,
        **about,
    )
    return made.model_copy(
        update={
            "specs": {**made.specs, "circuit": Spec(name="runs/eap.safetensors@9")},
            "tables": [
                Table.of("verdicts", ("variant",), rows),
                Table.of("flags", ("flag",), [{"flag": flag, "says": ""} for flag in flags]),
            ],
        }
    )


def on_truth(circuit: float, complement: float, r_precision: float = 1.0) -> Record:
    """A record of the claim's method on a model whose circuit is known."""
    values = {"circuit": circuit, "complement": complement, "r_precision": r_precision}
    measures = {name: (value, value - 0.005, value + 0.005) for name, value in values.items()}
    return record(measures, model="truth-ioi", task="truth-ioi")


def stored(folder: Path, *records: Record) -> Path:
    for place, each in enumerate(records):
        each.save(folder / "run" / "records" / f"{place}.json")
    (folder / "run").mkdir(parents=True, exist_ok=True)
    return folder


def status(folder: Path, code: str, *records: Record, **fields: Any) -> str:
    found = link(claims(**fields), stored(folder, *records))
    return found.claims[0].criteria[code].status


def circuit(value: float, low: float, high: float, **more: Any) -> Record:
    return record({"circuit@9": (value, low, high)}, **more)


def complement(value: float, low: float, high: float, **more: Any) -> Record:
    return record({"complement@9": (value, low, high)}, **more)


UNDEFINED = (math.nan, math.nan, math.nan)
OTHER = {"task": "other"}
ABOVE_CHANCE = record(
    {"circuit@9": (0.9, 0.8, 1.0)}, controls={"circuit@9": (0.1, 0.0, 0.2)}, prompts="c"
)
CASES: list[tuple[str, str, list[Record]]] = [
    # Sufficiency: the lower bound decides YES, the upper bound NO.
    ("I2", "YES", [circuit(0.8, 0.7, 0.9)]),
    ("I2", "PARTIAL", [circuit(0.8, 0.69, 0.9)]),
    ("I2", "PARTIAL", [circuit(0.6, 0.5, 0.7)]),
    ("I2", "NO", [circuit(0.6, 0.5, 0.69)]),
    ("I2", "NOT TESTED", [circuit(*UNDEFINED)]),
    ("I2", "NOT TESTED", [circuit(0.9, math.nan, math.nan)]),
    # Other circuits, models, tasks, sizes and ablations are not this claim's.
    ("I2", "NOT TESTED", [circuit(0.9, 0.8, 1.0, method="exact")]),
    ("I2", "NOT TESTED", [circuit(0.9, 0.8, 1.0, model="m2")]),
    ("I2", "NOT TESTED", [circuit(0.9, 0.8, 1.0, **OTHER)]),
    ("I2", "NOT TESTED", [circuit(0.9, 0.8, 1.0, ablation="mean")]),
    ("I2", "NOT TESTED", [record({"circuit@10": (0.9, 0.8, 1.0)})]),
    ("I2", "NOT TESTED", [record({"circuit": (0.9, 0.8, 1.0)})]),
    # The worst of several records.
    ("I2", "NO", [circuit(0.9, 0.8, 1.0), circuit(0.5, 0.4, 0.6, prompts="y")]),
    # Necessity: under two ablations.
    ("I1", "YES", [complement(0.1, 0, 0.3), complement(0.1, 0, 0.3, ablation="mean")]),
    ("I1", "PARTIAL", [complement(0.1, 0, 0.3)]),
    ("I1", "PARTIAL", [complement(0.1, 0, 0.3), complement(0.9, 0.8, 1, ablation="mean")]),
    ("I1", "NO", [complement(0.9, 0.8, 1.0)]),
    ("I5", "YES", [circuit(0.9, 0.8, 1), circuit(0.9, 0.8, 1, ablation="zero")]),
    ("I5", "YES", [circuit(0.9, 0.8, 1), circuit(0.9, 0.8, 1, counterfactual="S1")]),
    ("I5", "PARTIAL", [circuit(0.9, 0.8, 1), circuit(0.9, 0.8, 1, prompts="y")]),
    # Specificity: another task stays.
    ("I3", "YES", [complement(0.9, 0.8, 1.0, **OTHER)]),
    ("I3", "NO", [complement(0.1, 0.0, 0.2, **OTHER)]),
    ("I3", "NOT TESTED", [complement(0.9, 0.8, 1.0)]),
    ("I4", "YES", [circuit(x, 0.7, 1, prompts=str(x)) for x in (0.8, 0.801, 0.802)]),
    # Three samples bound a standard deviation of .02 by .13 alone.
    ("I4", "PARTIAL", [circuit(x, 0.7, 1, prompts=str(x)) for x in (0.8, 0.82, 0.84)]),
    ("I4", "PARTIAL", [circuit(x, 0.7, 1, prompts=str(x)) for x in (0.8, 0.82)]),
    # A circuit that does nothing does so in every sample.
    ("I4", "NOT TESTED", [circuit(0, -0.01, 0.01, prompts=x) for x in "xyz"]),
    ("I4", "NOT TESTED", [circuit(0.05, 0.04, 0.09, prompts=x) for x in "xyz"]),
    ("I4", "NO", [circuit(x, 0.7, 1, prompts=str(x)) for x in (0.6, 0.8, 0.9)]),
    ("I4", "NOT TESTED", [circuit(0.8, 0.7, 1), circuit(0.8, 0.7, 1)]),
    # The same prompts under other seeds are one sample, whose worst counts.
    ("I4", "NOT TESTED", [circuit(0.8, 0.7, 1, seed=n) for n in range(3)]),
    (
        "I4",
        "NO",
        [circuit(0.8, 0.7, 1, prompts=x) for x in "yz"]
        + [circuit(0.6, 0.5, 1), circuit(0.8, 0.7, 1, seed=1)],
    ),
    ("C3", "YES", [circuit(0.9, 0.8, 1.0), circuit(0.3, 0.2, 0.4, **OTHER)]),
    ("C3", "PARTIAL", [circuit(0.9, 0.8, 1.0), circuit(0.4, 0.3, 0.5, **OTHER)]),
    ("C3", "NO", [circuit(0.9, 0.8, 1.0), circuit(0.9, 0.8, 1.0, **OTHER)]),
    ("C3", "YES", [circuit(0.9, 0.8, 1.0), circuit(-0.2, -0.3, -0.1, **OTHER)]),
    ("C3", "NO", [circuit(-0.1, -0.2, 0.0), circuit(-0.2, -0.3, -0.1, **OTHER)]),
    ("E3", "YES", [complement(0.1, 0.0, 0.2), complement(0.9, 0.8, 1.0, **OTHER)]),
    ("E3", "NO", [complement(0.1, 0.0, 0.2), complement(0.1, 0.0, 0.2, **OTHER)]),
    ("C4", "YES", [record({"unneeded@9": (0.1, 0.1, 0.1)}, n=20)]),
    ("C4", "PARTIAL", [record({"unneeded@9": (0.0, 0.0, 0.14)}, n=200)]),
    ("C4", "NO", [record({"unneeded@9": (0.5, 0.27, 0.73)}, n=20)]),
    ("E1", "YES", [complement(0.9, 0.85, 0.98)]),
    ("E1", "NO", [complement(1.0, 0.995, 1.0)]),
    ("E4", "YES", [circuit(0.2, 0.1, 0.3)]),
    ("E4", "NO", [circuit(0.05, 0.0, 0.09)]),
    # Agreement stands beside recovery: a circuit that overshoots by as much as ablation changes
    # recovers twice the behaviour and agrees in nothing.
    ("E4", "YES", [record({"circuit@9": (0.2, 0.1, 0.3), "agreement@9": (0.2, 0.1, 0.3)})]),
    ("E4", "PARTIAL", [record({"circuit@9": (2.0, 1.9, 2.1), "agreement@9": (0.0, 0.0, 0.05)})]),
    ("E4", "NO", [record({"circuit@9": (0.05, 0.0, 0.09), "agreement@9": (0.5, 0.4, 0.6)})]),
    ("M1", "YES", [circuit(x, x - 0.02, x + 0.02, prompts=str(x)) for x in (0.8, 0.8002)]),
    ("M1", "PARTIAL", [circuit(x, x - 0.02, x + 0.02, prompts=str(x)) for x in (0.8, 0.81)]),
    ("M1", "PARTIAL", [circuit(0.8, 0.78, 0.82)]),
    ("M1", "NO", [circuit(0.8, 0.7, 0.9)]),
    (
        "M3",
        "PARTIAL",
        [record({"circuit@9": (0.9, 0.8, 1.0)}, controls={"circuit@9": (0.1, 0.0, 0.2)})],
    ),
    (
        "M3",
        "YES",
        [
            record({"circuit@9": (0.9, 0.8, 1.0)}, controls={"circuit@9": (0.1, 0.0, 0.2)}),
            circuit(0.9, 0.8, 1.0, model="untrained:m", gap=0.1),
        ],
    ),
    # A copy that does most of the behaviour, and its circuit all of that.
    ("M3", "YES", [ABOVE_CHANCE, circuit(1, 1, 1, model="untrained:m", gap=0.7)]),
    ("M3", "PARTIAL", [ABOVE_CHANCE, circuit(1, 1, 1, model="untrained:m", gap=0.95)]),
    # A copy whose recovery is undefined: all that it does stands for it.
    ("M3", "YES", [ABOVE_CHANCE, circuit(*UNDEFINED, model="untrained:m", gap=-0.01)]),
    ("M3", "PARTIAL", [ABOVE_CHANCE, circuit(*UNDEFINED, model="untrained:m", gap=-1.0)]),
    # Two pairs on which the copy does the same do not say what it does on others.
    (
        "M3",
        "NOT TESTED",
        [circuit(0.9, 0.8, 1.0), circuit(*UNDEFINED, model="untrained:m", gap=0.01, n_pairs=2)],
    ),
    (
        "M3",
        "NO",
        [record({"circuit@9": (0.1, 0.05, 0.1)}, controls={"circuit@9": (0.1, 0.05, 0.2)})],
    ),
    (
        "M4",
        "YES",
        [
            record(
                {"auroc": (0.95, 0.85, 1.0), "auprc": (0.8, math.nan, math.nan)},
                controls={"auprc": (0.1, math.nan, math.nan)},
                model="truth-ioi",
                task="truth-ioi",
            )
        ],
    ),
    ("M4", "NOT TESTED", [record({"auroc": (0.95, 0.85, 1.0)})]),
    (
        "E5",
        "YES",
        [
            circuit(0.9, 0.8, 1.0),
            record(
                {"worse than empty": (0.0, math.nan, math.nan)},
                kind="adversarial",
                method="scores/eap.safetensors@9",
            ),
        ],
    ),
    # A grid of 20 prompts has 400 pairs and 20 independent ones.
    (
        "E5",
        "PARTIAL",
        [
            circuit(0.9, 0.8, 1.0),
            record(
                {"worse than empty": (0.0, math.nan, math.nan)},
                kind="adversarial",
                method="scores/eap.safetensors@9",
                n=400,
            ).changed(data={"prompts": Selection(hash="x", counts={"clean": 20, "corrupted": 20})}),
        ],
    ),
    ("E5", "PARTIAL", [circuit(0.9, 0.8, 1.0)]),
    ("E5", "NOT TESTED", [circuit(0.9, 0.8, 1.0, split="train")]),
    # What does not say where it was found is not held out.
    ("E5", "NOT TESTED", [circuit(0.9, 0.8, 1.0, train_split="")]),
    ("E5", "NOT TESTED", [circuit(0.9, 0.8, 1.0, split="")]),
    # Of measurement: the verdict of the repaired definition, PARTIAL at most where it shows a part.
    ("M2", "PARTIAL", [gauge("F07", "passes")]),
    ("M2", "NO", [gauge("F07", "fails")]),
    ("M2", "NOT TESTED", [gauge("F07", "no verdict")]),
    # EX2 writes prompts of IOI, which are not those of this claim's task.
    ("M2", "NOT TESTED", [gauge("EX2", "passes")]),
    ("C2", "YES", [gauge("B10", "passes")]),
    ("C2", "NO", [gauge("B10", "fails")]),
    # Too few heads to tell, or no edge between heads: nothing was tested.
    ("C2", "NOT TESTED", [gauge("B10", "no verdict")]),
    # Weights are the same for all tasks, but the circuit is that of another one.
    ("C2", "NOT TESTED", [gauge("B10", "passes", task="u")]),
    ("C2", "NOT TESTED", [gauge("B10", "passes", model="n")]),
    ("C5", "PARTIAL", [gauge("F03", "passes")]),
    ("C5", "NO", [gauge("F03", "fails")]),
    ("C5", "NOT TESTED", [gauge("F03", "passes", flags=("one_family",))]),
    ("E2", "YES", [gauge("EX11", "fails", graded=0.9)]),
    # Ten heads of a hundred: what they do, the others may not.
    ("E2", "PARTIAL", [gauge("EX11", "passes", graded=1.0, left_out=90)]),
    ("E2", "NO", [gauge("EX11", "passes", graded=0.5)]),
    ("E2", "NO", [gauge("EX11", "passes", graded=0.0, left_out=90)]),
    ("M5", "YES", [on_truth(0.96, 0.04)]),
    ("M5", "PARTIAL", [on_truth(0.953, 0.04)]),
    ("M5", "NO", [on_truth(0.96, 0.04), on_truth(0.9, 0.0)]),
    ("M5", "NOT TESTED", [on_truth(1.0, 0.0, r_precision=0.9)]),
    ("E6", "PARTIAL", [circuit(0.5, 0.4, 0.6), circuit(0.9, 0.8, 1, model="g", family="gemma")]),
    ("E6", "NO", [circuit(0.9, 0.8, 1), circuit(0.5, 0.4, 0.6, model="g", family="gemma")]),
    # Another size of the same family is no other family; and which is the claim's is to be known.
    ("E6", "NOT TESTED", [circuit(0.9, 0.8, 1.0), circuit(0.9, 0.8, 1.0, model="big")]),
    ("E6", "NOT TESTED", [circuit(0.9, 0.8, 1.0, model="g", family="gemma")]),
    # It names no alternative; those that do are in test_alternative.py.
    ("V4", "NOT TESTED", [circuit(0.9, 0.8, 1.0)]),
    # What the claim says of itself.
    ("C1", "NOT TESTED", []),
    ("V1", "NOT TESTED", []),
    ("V2", "NOT TESTED", [circuit(0.9, 0.8, 1.0)]),
]


@pytest.mark.few(17)
@pytest.mark.parametrize(("code", "expected", "records"), CASES)
def test_rules_by_hand(tmp_path: Path, code: str, expected: str, records: list[Record]) -> None:
    assert status(tmp_path, code, *records) == expected


def test_a_task_with_other_settings_is_another_question(tmp_path: Path) -> None:
    six = circuit(0.9, 0.8, 1.0, task="mcqa", n_choices=6)
    for place, (asked, expected) in enumerate(
        (("mcqa:n_choices=6", "YES"), ("mcqa", "NOT TESTED"), ("mcqa:n_choices=4", "NOT TESTED"))
    ):
        assert status(tmp_path / str(place), "I2", six, task=asked) == expected
    # Nor is it a behaviour of its own.
    rest = complement(0.9, 0.8, 1.0, task="mcqa", n_choices=6)
    assert status(tmp_path / "other", "I3", rest, task="mcqa") == "NOT TESTED"


def test_a_file_of_scores_is_known_by_its_hash_and_is_no_method(tmp_path: Path) -> None:
    file = tmp_path / "eap.safetensors"
    file.write_bytes(b"scores")
    own = circuit(0.9, 0.8, 1.0, scores=file_hash(file))
    other = circuit(0.9, 0.8, 1.0, scores="0" * 64)
    assert status(tmp_path / "own", "I2", own, scores=str(file)) == "YES"
    assert status(tmp_path / "other", "I2", other, scores=str(file)) == "NOT TESTED"
    assert status(tmp_path / "truth", "M5", on_truth(1.0, 0.0)) == "YES"
    assert status(tmp_path / "file", "M5", on_truth(1.0, 0.0), scores=str(file)) == "NOT TESTED"


def test_every_rule_is_tested_by_hand_and_every_test_is_used() -> None:
    assert {code for code, *_ in CASES} == set(RULED)
    used = {part.test for c in RUBRIC.criteria if c.rule for part in c.rule.parts}
    assert used == {*TESTS, DECLARED, NEEDS}


def test_parts_together() -> None:
    assert combined(["YES", "YES"]) == "YES"
    assert combined(["YES", "NOT TESTED"]) == combined(["YES", "NO"]) == "PARTIAL"
    assert combined(["NO", "NOT TESTED"]) == combined(["NO", "NO"]) == "NO"
    assert combined(["NOT TESTED", "NOT TESTED"]) == combined([]) == "NOT TESTED"


def test_what_is_missing_is_not_tested_with_its_command_and_cost(tmp_path: Path) -> None:
    found = link(claims(), stored(tmp_path)).claims[0].criteria
    assert {found[code].status for code in RUBRIC.codes if code != "V5"} == {"NOT TESTED"}
    assert "mechassay circuits run -m m -t t --method eap" in found["I2"].reason
    assert "--metric completeness:size=9" in found["I2"].reason
    assert "28 circuits are run on each of 100 pairs" in found["I2"].reason
    assert "--ablation mean" in found["I1"].reason
    assert "evaluate" in found["M3"].reason and "-m untrained:m" in found["M3"].reason
    assert found["V3"].reason == "No rule decides it from records: a reader does."
    assert all(found[code].reason.count("`mechassay") == 1 for code in COMMANDED)
    known = link(claims(), stored(tmp_path, circuit(0.9, 0.8, 1.0))).claims[0].criteria
    assert "a record of m took 12 s" in known["I1"].reason
    assert (
        "evaluate s.safetensors"
        in link(claims(scores="s.safetensors"), stored(tmp_path / "none"))
        .claims[0]
        .criteria["I2"]
        .reason
    )


def test_first_records_never_lower_a_score(tmp_path: Path) -> None:
    """Records that answer what was open, one after the other: good ones and bad ones."""
    rows = [
        circuit(0.5, 0.4, 0.6),
        complement(0.1, 0.0, 0.2),
        complement(0.1, 0.0, 0.2, ablation="mean"),
        complement(0.2, 0.1, 0.3, **OTHER),
        record({"unneeded@9": (0.5, math.nan, math.nan)}),
        circuit(0.0, -0.1, 0.1, model="untrained:m", gap=0.1),
        gauge("EX2", "fails"),
        gauge("B10", "fails"),
        gauge("EX11", "fails", graded=0.2),
        on_truth(0.5, 0.5),
    ]
    scores = [0.0]
    for n in range(1, len(rows) + 1):
        found = link(claims(), stored(tmp_path, *rows[:n])).claims[0].statuses
        scores.append(claim_score(RUBRIC, found).cvs)
    assert scores == sorted(scores) and scores[-1] > scores[1]


@pytest.mark.slow
def test_commands_that_are_named_exist(tmp_path: Path) -> None:
    """Each is looked up as those of the documentation are."""
    path = Path(__file__).parents[1] / "docs" / "test_code_blocks.py"
    spec = importlib.util.spec_from_file_location("code_blocks", path)
    assert spec is not None and spec.loader is not None
    blocks = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = blocks
    spec.loader.exec_module(blocks)
    for place, fields in enumerate(({}, {"scores": "s.safetensors"})):
        found = link(claims(**fields), stored(tmp_path / str(place))).claims[0].criteria
        told = [found[code].reason for code in COMMANDED]
        lines = {reason.split("`")[1] for reason in told if "`" in reason}
        assert len(lines) == 12 - 3 * place  # A file has no method to look for it again.
        for line in lines:
            assert blocks.mistakes(line) is None, line


def test_a_record_that_is_gone_is_not_tested(tmp_path: Path) -> None:
    runs = stored(tmp_path, circuit(0.5, 0.4, 0.6))
    assert link(claims(), runs).claims[0].criteria["I2"].status == "NO"
    (runs / "run" / "records" / "0.json").unlink()
    assert link(claims(), runs).claims[0].criteria["I2"].status == "NOT TESTED"


def test_evidence_is_the_record_by_its_hash(tmp_path: Path) -> None:
    runs = stored(tmp_path / "runs", circuit(0.8, 0.75, 0.85))
    found = link(claims(), runs)
    assert (found.rater.kind, found.scope) == ("execution", "claim")
    evidence = found.claims[0].criteria["I2"].evidence[0].record
    assert evidence is not None and evidence.rule == "mv-27@1:I2"
    assert evidence.file == "run/records/0.json" and evidence.measures[0].low == 0.75
    scored = score_judgments(found, runs=runs)
    assert scored.supported["a"].cvs == scored.paper["a"].cvs > 0


def test_an_edited_record_is_refused_with_judgments_and_without(tmp_path: Path) -> None:
    runs = stored(tmp_path, circuit(0.6, 0.5, 0.65))
    before = link(claims(), runs)
    assert before.claims[0].criteria["I2"].status == "NO"
    file = runs / "run" / "records" / "0.json"
    plain = json.loads(file.read_text())
    plain["measures"][0] |= {"value": 0.9, "low": 0.8, "high": 1.0}
    file.write_text(json.dumps(plain))
    for known in (before, None):
        with pytest.raises(BadFile, match="was edited after it was written"):
            link(claims(), runs, before=known)
    # Its own hash taken away.
    file.write_text(json.dumps({key: x for key, x in plain.items() if key != "sha256"}))
    with pytest.raises(BadFile, match="has no hash of its content"):
        link(claims(), runs)
    # Made again with other numbers: what was judged is no longer there.
    circuit(0.9, 0.8, 1.0).save(file)
    with pytest.raises(BadFile, match="was edited after it was judged"):
        link(claims(), runs, before=before)
    with pytest.raises(BadFile, match="was edited after it was judged"):
        score_judgments(before, runs=runs)


def test_numbers_that_do_not_follow_from_values_are_refused(tmp_path: Path) -> None:
    ids, right = ["a", "b", "c", "d"], [1.0, 1.0, 0.0, 1.0]
    values = Values(unit="pair", ids=ids, groups=ids, columns={"features": right})
    made = circuit(0.9, 0.8, 1.0).changed(
        kind="variables", measures=[Measure(name="iia", value=0.75, n=4)], values=values
    )
    runs = stored(tmp_path, made)
    link(claims(), runs)
    file = runs / "run" / "records" / "0.json"
    plain = json.loads(file.read_text())
    plain["measures"][0]["value"] = 0.95
    sealed(file, plain)
    with pytest.raises(BadFile, match=r"0\.json: iia is 0\.95, its values give 0\.75"):
        link(claims(), runs)


def test_values_that_were_edited_are_refused(tmp_path: Path) -> None:
    made = circuit(0.9, 0.8, 1.0).changed(values=Values(unit="pair", file="v.bin", sha256="0" * 64))
    runs = stored(tmp_path, made)
    (runs / "run" / "plan.json").write_text("{}")
    (runs / "run" / "v.bin").write_bytes(b"other")
    with pytest.raises(BadFile, match=r"v\.bin: was edited after 0\.json"):
        link(claims(), runs)


def test_another_model_is_said(tmp_path: Path) -> None:
    runs = stored(tmp_path, circuit(0.9, 0.8, 1.0, model="m2"))
    found = link(claims(), runs, model="m2")
    assert found.scope == "other model" and found.claims[0].claim.model == "m2"
    assert found.claims[0].criteria["I2"].status == "YES"
    assert link(claims(), runs, model="m").scope == "claim"


def test_what_cannot_be_linked(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such folder; expected one of runs"):
        link(claims(), tmp_path / "none")
    for name in ("model", "task", "circuit"):
        with pytest.raises(BadUsage, match=f"names no {name}"):
            link(claims(**{name: ""}), stored(tmp_path))
    (tmp_path / "run" / "records").mkdir(parents=True)
    (tmp_path / "run" / "records" / "a.json").write_text("{")
    with pytest.raises(BadFile, match="not a record"):
        link(claims(), tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = stored(tmp_path / "runs", circuit(0.8, 0.75, 0.85))
    (tmp_path / "claim.json").write_text(json.dumps(CLAIM))
    words = ["claims", "link", str(tmp_path / "claim.json"), "--runs", str(runs)]
    words += ["-o", str(tmp_path / "judgments.json")]
    for _ in range(2):
        with pytest.raises(SystemExit) as done:
            main(words)
        assert done.value.code == 0
    assert "Sufficiency (I2)" in capsys.readouterr().out
    file = runs / "run" / "records" / "0.json"
    file.write_text(file.read_text().replace("0.75", "0.6"))
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 2 and "was edited" in capsys.readouterr().err


# What the claim says of itself

AT_CHANCE = {"circuit@9": (0.1, 0.0, 0.2)}
PREDICTS = {"predictions": [{"measure": "circuit", "direction": "above", "threshold": 0.7}]}


def register(runs: Path, held: ClaimFile, registered: str = "2020-01-01T00:00:00+00:00") -> None:
    held = held.model_copy(update={"registered": registered})
    (runs / REGISTERED).write_text(held.model_dump_json())


@pytest.mark.parametrize(
    ("registered", "about"),
    [
        # After the first record, or nobody knows when.
        ("2999-01-01T00:00:00+00:00", {}),
        ("", {}),
        # The claim was another: its circuit, its words.
        ("2020-01-01T00:00:00+00:00", {"circuit": "eap@10"}),
        ("2020-01-01T00:00:00+00:00", {"statement": "It runs through 10 edges."}),
        ("2020-01-01T00:00:00+00:00", {"components": ["a0.h0"]}),
    ],
)
def test_a_claim_that_was_not_there_before_counts_in_part(
    tmp_path: Path, registered: str, about: dict[str, Any]
) -> None:
    runs = stored(tmp_path, circuit(0.9, 0.8, 1.0))
    register(runs, claims(**{**PREDICTS, **about}), registered)
    assert link(claims(**PREDICTS), runs).claims[0].criteria["C1"].status == "PARTIAL"


def test_a_prediction_of_what_no_record_has_counts_in_part(tmp_path: Path) -> None:
    about = {"predictions": [{**PREDICTS["predictions"][0], "measure": "beauty"}]}
    runs = stored(tmp_path / "runs", circuit(0.9, 0.8, 1.0))
    register(runs, claims(**about))
    found = link(claims(**about), runs).claims[0].criteria["C1"]
    assert found.status == "PARTIAL" and "beauty above 0.7; no record has that" in found.reason
    with pytest.raises(BadFile, match="threshold"):
        claims(predictions=[{**PREDICTS["predictions"][0], "threshold": math.inf}])


def test_a_prediction_that_random_circuits_meet_is_none(tmp_path: Path) -> None:
    """A threshold that nothing can miss, and one that chance does not miss."""
    for place, (threshold, expected) in enumerate(
        ((-1e6, "NOT TESTED"), (-0.1, "NOT TESTED"), (0.7, "YES"))
    ):
        about = {"predictions": [{**PREDICTS["predictions"][0], "threshold": threshold}]}
        runs = stored(tmp_path / str(place), circuit(0.9, 0.8, 1.0, controls=AT_CHANCE))
        register(runs, claims(**about))
        found = link(claims(**about), runs).claims[0].criteria["C1"]
        assert found.status == expected


def test_a_refuted_claim_is_not_falsifiable_in_full(tmp_path: Path) -> None:
    runs = stored(tmp_path, circuit(0.5, 0.4, 0.6, controls=AT_CHANCE))
    register(runs, claims(**PREDICTS))
    found = link(claims(**PREDICTS), runs).claims[0].criteria["C1"]
    assert found.status == "PARTIAL" and "is refuted by it" in found.reason


def test_few_groups_of_pairs_show_no_criterion_in_full(tmp_path: Path) -> None:
    for n, expected in ((FEW_GROUPS - 1, "PARTIAL"), (FEW_GROUPS, "YES")):
        runs = stored(tmp_path / str(n), circuit(0.9, 0.8, 1.0, n_pairs=n))
        found = link(claims(), runs).claims[0]
        assert found.criteria["I2"].status == expected and found.n_groups == n
        assert f"in {n} groups" in found.criteria["I2"].reason


def test_what_intervals_leave_open(tmp_path: Path) -> None:
    criteria = link(claims(), stored(tmp_path, circuit(0.75, 0.6, 0.9))).claims[0].criteria
    assert criteria["I2"].ends == ("NO", "YES")
    assert criteria["E4"].ends is None and criteria["E4"].status == "YES"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("Nine edges of m carry the name on t.", set()),
        ("This mechanism is unique.", {"unique"}),
        ("All models do it, GPT-4 too.", {"All models", "GPT-4"}),
        ("All language models do it.", {"All language"}),
        ("These edges carry nothing at all.", set()),
        ("It also does greater-than.", {"greater than"}),
        ("It holds in Llama-3 as in m.", {"Llama-3"}),
    ],
)
def test_words_that_no_record_carries(tmp_path: Path, statement: str, words: set[str]) -> None:
    held = claims(statement=statement)
    (judged,) = link(held, stored(tmp_path, circuit(0.9, 0.8, 1.0))).claims
    assert set(judged.beyond) == words
    assert judged.criteria["V5"].status == "NOT TESTED"


def test_a_reader_of_another_claim_with_the_same_id_is_refused(tmp_path: Path) -> None:
    executed = link(claims(), stored(tmp_path, circuit(0.5, 0.4, 0.6)))
    said = reader(V3="YES")
    for field in ("statement", "model", "task", "circuit"):
        own = said.claims[0].claim.model_copy(update={field: "x"})
        other = said.model_copy(
            update={"claims": (said.claims[0].model_copy(update={"claim": own}),)}
        )
        with pytest.raises(BadUsage, match=f"its {field} is 'x'"):
            completed(executed, other)
    own = said.claims[0].claim.model_copy(update={"model": "", "circuit": ""})
    bare = said.model_copy(update={"claims": (said.claims[0].model_copy(update={"claim": own}),)})
    assert completed(executed, bare).claims[0].statuses["V3"] == "YES"


def test_predictions_count_in_full_if_they_stood_before_the_records(tmp_path: Path) -> None:
    runs = stored(tmp_path, circuit(0.9, 0.8, 1.0, controls=AT_CHANCE))
    assert link(claims(**PREDICTS), runs).claims[0].criteria["C1"].status == "PARTIAL"
    register(runs, claims(**PREDICTS))
    found = link(claims(**PREDICTS), runs)
    assert found.claims[0].criteria["C1"].status == "YES"
    assert found.claims[0].criteria["C1"].evidence[0].declared == "predictions"
    scored = score_judgments(found, runs=runs)
    assert scored.supported["a"].dimensions["C"] == scored.paper["a"].dimensions["C"] == 1
    changed = {"predictions": [{**PREDICTS["predictions"][0], "threshold": 0.5}]}
    assert link(claims(**changed), runs).claims[0].criteria["C1"].status == "PARTIAL"


def test_the_level_is_matched_in_part_by_the_criteria_that_its_mode_asks_for(
    tmp_path: Path,
) -> None:
    """implementational-topographic asks for necessity alone."""
    mode = {"description_mode": "implementational-topographic"}
    rows = [complement(0.1, 0, 0.3), complement(0.1, 0, 0.3, ablation="mean")]
    assert status(tmp_path / "none", "V2", **mode) == "NOT TESTED"
    assert status(tmp_path / "met", "V2", *rows, **mode) == "PARTIAL"
    assert status(tmp_path / "not", "V2", complement(0.9, 0.8, 1.0), **mode) == "NO"
    mode = {"description_mode": "representational"}
    assert status(tmp_path / "other", "V2", *rows, **mode) == "NOT TESTED"
    assert status(tmp_path / "other", "V1", *rows, **mode) == "YES"


def test_a_declaration_that_the_claim_does_not_make_is_unsupported() -> None:
    criteria = {code: {"status": "NOT TESTED"} for code in RUBRIC.codes}
    for field in ("predictions", "__class__"):
        criteria["C1"] = {"status": "YES", "evidence": [{"declared": field}]}
        plain = {"rater": {"kind": "human", "id": "x"}}
        plain |= {"claims": [{"claim": CLAIM, "criteria": criteria}]}
        assert score_judgments(judgments_of(plain)).evidence.unsupported == {"a": ("C1",)}


def reader(**statuses: str) -> Judgments:
    criteria = {code: Judgment(status="NOT TESTED") for code in RUBRIC.codes}
    criteria |= {code: Judgment(status=each) for code, each in statuses.items()}  # pyright: ignore[reportArgumentType]
    plain = {"rater": {"kind": "human", "id": "Ann"}}
    return judgments_of({**plain, "claims": [{"claim": CLAIM, "criteria": criteria}]})


def test_a_reader_judges_the_rest_and_another_model_overrides_nothing(tmp_path: Path) -> None:
    said = reader(I2="YES", V3="YES")
    runs = stored(tmp_path, circuit(0.5, 0.4, 0.6), circuit(0.5, 0.4, 0.6, model="m2"))
    joined = completed(link(claims(), runs), said)
    assert (joined.claims[0].statuses["I2"], joined.claims[0].statuses["V3"]) == ("NO", "YES")
    assert joined.rater.id.endswith("the rest by Ann")
    other = link(claims(), runs, model="m2")
    assert other.claims[0].statuses["I2"] == "NO"
    assert completed(other, said) == said


# More records


@pytest.mark.slow
def test_a_record_lowers_a_status_only_if_it_is_among_its_evidence(tmp_path: Path) -> None:
    """Subsets of all records of the table above, each with one more of them."""
    rng = np.random.default_rng(0)
    pool = [each for _, _, rows in CASES for each in rows]
    lowered = 0
    for number in range(40):
        drawn = [pool[place] for place in rng.choice(len(pool), size=6, replace=False)]
        last = drawn[-1].changed(cell={**drawn[-1].cell, "mark": "last"})
        runs = stored(tmp_path / str(number), *drawn[:-1])
        before = link(claims(), runs).claims[0].statuses
        last.save(runs / "run" / "records" / "last.json")
        after = link(claims(), runs).claims[0].criteria
        for code, judgment in after.items():
            if judgment.status not in JUDGED:
                assert before[code] not in JUDGED, code
                continue
            if before[code] in JUDGED and JUDGED.index(judgment.status) < JUDGED.index(
                before[code]
            ):
                lowered += 1
                files = [each.record.file for each in judgment.evidence if each.record]
                assert "run/records/last.json" in files, code
    assert lowered, "no record contradicted another: the test shows nothing"


# A circuit that is known


@pytest.mark.slow
def test_the_known_circuit_is_told_from_one_that_lacks_an_edge_and_from_a_random_one(
    tmp_path: Path,
) -> None:
    """On truth-ioi: necessity and sufficiency of the true circuit, half of it, none.

    Its vocabulary has no other task, so I3 stays open: the true circuit's highest level is 3.
    """
    import torch

    from mechassay.circuits.methods.random import Random
    from mechassay.circuits.scores import EdgeScores
    from mechassay.discovery.experiment import CircuitsExperiment
    from mechassay.runs.run import run
    from mechassay.truth.ground_truth import load_truth
    from mechassay.utils.display import SILENT

    truth = load_truth("truth-ioi")
    graph, true = truth.model.graph, truth.circuits["mean"].edges
    less = true.clone()
    less[graph.index("a1.h0->a2.h2<q>")] = False
    size = int(true.sum())
    edges = {
        "true": true,
        "less": less,
        "coins": Random(seed=0).draw(graph).top(size, by="magnitude").edges,
    }
    files: list[str] = []
    for name, chosen in edges.items():
        values = torch.where(graph.legal, chosen.float(), torch.nan)
        files.append(str(tmp_path / f"{name}.safetensors"))
        EdgeScores(graph, values, {"method": name}).save(files[-1])
    for ablation in ("mean", "zero"):
        experiment = CircuitsExperiment(
            models=("truth-ioi",),
            scores=tuple(files),
            ablation=ablation,
            metrics=(f"completeness:size={size}",),
            train_limit=20,
            limit=30,
        )
        run(experiment, tmp_path / "runs" / ablation, progress=SILENT)

    def linked(name: str) -> tuple[Judgments, dict[str, int]]:
        claim = Claim(
            id=name,
            statement="IOI runs through these edges.",
            model="truth-ioi",
            task="truth-ioi",
            circuit=f"{name}@{size}",
            ablation="mean",
        )
        found = link(ClaimFile(claims=(claim,)), tmp_path / "runs")
        score = claim_score(RUBRIC, found.claims[0].statuses)
        return found, dict(score.dimensions)

    levels = {name: linked(name)[1]["I"] for name in edges}
    assert levels == {"true": 2, "less": 1, "coins": 0}
    own = linked("true")[0].claims[0].statuses
    assert {code: own[code] for code in ("I1", "I2", "I5", "E1", "E4")} == dict.fromkeys(
        ("I1", "I2", "I5", "E1", "E4"), "YES"
    )
    assert own["I3"] == "NOT TESTED"
    assert dimension_levels(RUBRIC, {**own, "I3": "YES"})["I"] == 3


NAN = math.nan


def predictions_stored(
    value: float, low: float = NAN, high: float = NAN, kind: str = "circuits"
) -> StoredRecord:
    specs = {"model": Spec(name="m"), "task": Spec(name="t"), "method": Spec(name="eap")}
    record = Record(
        kind=kind,
        cell={"method": "eap"},
        specs=specs,
        measures=[Measure(name="circuit@9", value=value, low=low, high=high)],
        provenance=provenance(device="cpu", dtype="float32", seed=0),
    )
    return StoredRecord("x.json", "0", record)


@pytest.mark.parametrize(
    ("records", "above", "below"),
    [
        ([], "not measured", "not measured"),
        ([predictions_stored(NAN)], "not measured", "not measured"),
        ([predictions_stored(0.8, 0.71, 0.9)], "holds", "fails"),
        ([predictions_stored(0.8, 0.7, 0.9)], "open", "fails"),
        ([predictions_stored(0.7, 0.6, 0.8)], "open", "open"),
        ([predictions_stored(0.6, 0.5, 0.7)], "fails", "open"),
        ([predictions_stored(0.8)], "holds", "fails"),
        ([predictions_stored(0.7)], "fails", "fails"),
        (
            [predictions_stored(0.8, 0.71, 0.9), predictions_stored(0.6, 0.5, 0.65)],
            "fails",
            "fails",
        ),
        ([predictions_stored(0.8, 0.71, 0.9, kind="circuits")], "holds", "fails"),
    ],
)
def test_outcomes(records: list[StoredRecord], above: str, below: str) -> None:
    predictions = (
        Prediction(measure="circuit", direction="above", threshold=0.7),
        Prediction(measure="circuit", direction="below", threshold=0.7),
    )
    about = {"model": "m", "task": "t", "circuit": "eap@9", "predictions": predictions}
    found = outcomes(Claim(id="a", statement="x", **about), records)
    assert [each.outcome for each in found] == [above, below]
    assert outcome_table(found).columns["prediction"] == ["circuit above 0.7", "circuit below 0.7"]


def test_a_model_that_does_not_do_the_task_earns_no_tier(tmp_path: Path) -> None:
    """As where answers and foils are exchanged; of a record on another task it says nothing."""
    good = record({"circuit": (0.9, 0.88, 0.92)})
    accuracy = {"low": 0.0, "high": 0.09, "n": 40}
    wrong = [
        Measure(name="accuracy", of="model", value=0.0, **accuracy),
        Measure(name="chance", of="model", value=0.5, n=40),
    ]
    for name, task, unable in (("own", "t", True), ("other", "u", False)):
        own = record({"circuit": (0.9, 0.88, 0.92)}, task=task)
        own = own.changed(measures=[*own.measures, *wrong])
        (judged,) = link(claims(), stored(tmp_path / name, good, own)).claims
        assert bool(judged.unable) == unable
