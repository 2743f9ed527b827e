"""Records to statuses: every rule by hand, what is missing, what was edited, a known circuit."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from mechassay.claims.claim import Claim, ClaimFile, claims_of
from mechassay.claims.dossier import TESTS, combined, link
from mechassay.claims.judgments import Judgments
from mechassay.claims.rubric import load_rubric
from mechassay.claims.scored import score_judgments
from mechassay.claims.scoring import claim_score, dimension_levels
from mechassay.cli.main import main
from mechassay.errors import BadFile, BadUsage
from mechassay.records import Measure, Record, Selection, Spec, Values, provenance

RUBRIC = load_rubric()
RULED = [each.code for each in RUBRIC.criteria if each.rule]
CLAIM = {"id": "a", "statement": "It runs through 9 edges.", "model": "m", "task": "t"}
CLAIM |= {"circuit": "eap@9", "untrained": "m (untrained)"}
Triple = tuple[float, float, float]


def claims(**fields: Any) -> ClaimFile:
    return claims_of({**CLAIM, **fields})


def record(
    measures: dict[str, Triple],
    *,
    model: str = "m",
    task: str = "t",
    method: str = "eap",
    kind: str = "faithfulness",
    prompts: str = "x",
    n: int = 100,
    controls: dict[str, Triple] | None = None,
    **args: Any,
) -> Record:
    """A record of a circuit; `args` are those of its task."""
    rows = {("result", name): row for name, row in measures.items()}
    for name, row in (controls or {}).items():
        of = "control:random" if name == "auprc" else "control:random-paths"
        rows[of, name] = row
    how = {"ablation": "counterfactual", "split": "test", "train_split": "train", **args}
    return Record(
        kind=kind,
        cell={"method": method},
        specs={
            "model": Spec(name=model),
            "task": Spec(name=task, args=how),
            "method": Spec(name=method),
        },
        measures=[
            Measure(name=name, of=of, value=value, low=low, high=high, n=n)
            for (of, name), (value, low, high) in rows.items()
        ],
        realised={"evaluate_seconds": 12.0},
        data={"test": Selection(hash=prompts)},
        provenance=provenance(device="cpu", dtype="float32", seed=0),
    )


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
    ("I4", "YES", [circuit(x, 0.7, 1, prompts=str(x)) for x in (0.8, 0.82, 0.84)]),
    ("I4", "PARTIAL", [circuit(x, 0.7, 1, prompts=str(x)) for x in (0.8, 0.82)]),
    ("I4", "NO", [circuit(x, 0.7, 1, prompts=str(x)) for x in (0.6, 0.8, 0.9)]),
    ("I4", "NOT TESTED", [circuit(0.8, 0.7, 1), circuit(0.8, 0.7, 1)]),
    ("C3", "YES", [circuit(0.9, 0.8, 1.0), circuit(0.3, 0.2, 0.4, **OTHER)]),
    ("C3", "PARTIAL", [circuit(0.9, 0.8, 1.0), circuit(0.4, 0.3, 0.5, **OTHER)]),
    ("C3", "NO", [circuit(0.9, 0.8, 1.0), circuit(0.9, 0.8, 1.0, **OTHER)]),
    ("C3", "YES", [circuit(0.9, 0.8, 1.0), circuit(-0.2, -0.3, -0.1, **OTHER)]),
    ("C3", "NO", [circuit(-0.1, -0.2, 0.0), circuit(-0.2, -0.3, -0.1, **OTHER)]),
    ("E3", "YES", [complement(0.1, 0.0, 0.2), complement(0.9, 0.8, 1.0, **OTHER)]),
    ("E3", "NO", [complement(0.1, 0.0, 0.2), complement(0.1, 0.0, 0.2, **OTHER)]),
    ("C4", "YES", [record({"unneeded@9": (0.1, math.nan, math.nan)}, n=20)]),
    ("C4", "PARTIAL", [record({"unneeded@9": (0.2, math.nan, math.nan)}, n=20)]),
    ("C4", "NO", [record({"unneeded@9": (0.5, math.nan, math.nan)}, n=20)]),
    ("E1", "YES", [complement(0.9, 0.85, 0.98)]),
    ("E1", "NO", [complement(1.0, 0.995, 1.0)]),
    ("E4", "YES", [circuit(0.2, 0.1, 0.3)]),
    ("E4", "NO", [circuit(0.05, 0.0, 0.09)]),
    ("M1", "YES", [circuit(x, x - 0.02, x + 0.02, prompts=str(x)) for x in (0.8, 0.81)]),
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
            circuit(0.0, -0.1, 0.1, model="m (untrained)"),
        ],
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
                {"worse than empty": (0.01, math.nan, math.nan)},
                kind="adversarial",
                method="scores/eap.safetensors@9",
            ),
        ],
    ),
    ("E5", "PARTIAL", [circuit(0.9, 0.8, 1.0)]),
    ("E5", "NOT TESTED", [circuit(0.9, 0.8, 1.0, split="train")]),
]


@pytest.mark.parametrize(("code", "expected", "records"), CASES)
def test_rules_by_hand(tmp_path: Path, code: str, expected: str, records: list[Record]) -> None:
    assert status(tmp_path, code, *records) == expected


def test_every_rule_is_tested_by_hand_and_every_test_is_used() -> None:
    assert {code for code, *_ in CASES} == set(RULED)
    assert {part.test for c in RUBRIC.criteria if c.rule for part in c.rule.parts} == set(TESTS)


def test_parts_together() -> None:
    assert combined(["YES", "YES"]) == "YES"
    assert combined(["YES", "NOT TESTED"]) == combined(["YES", "NO"]) == "PARTIAL"
    assert combined(["NO", "NOT TESTED"]) == combined(["NO", "NO"]) == "NO"
    assert combined(["NOT TESTED", "NOT TESTED"]) == combined([]) == "NOT TESTED"


def test_what_is_missing_is_not_tested_with_its_command_and_cost(tmp_path: Path) -> None:
    found = link(claims(), stored(tmp_path)).claims[0].criteria
    assert {found[code].status for code in RUBRIC.codes} == {"NOT TESTED"}
    assert "mechassay circuits run -m m -t t --method eap" in found["I2"].reason
    assert "--metric completeness:size=9" in found["I2"].reason
    assert "93 circuits are run on each of 100 pairs" in found["I2"].reason
    assert "--ablation mean" in found["I1"].reason
    assert found["V5"].reason == "No rule decides it from records: a reader does."
    assert all(found[code].reason.count("`mechassay") == 1 for code in RULED)
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
        circuit(0.0, -0.1, 0.1, model="m (untrained)"),
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
        lines = {found[code].reason.split("`")[1] for code in RULED}
        assert len(lines) == 6
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
    assert scored.verified["a"].cvs == scored.paper["a"].cvs > 0


def test_an_edited_record_is_refused(tmp_path: Path) -> None:
    runs = stored(tmp_path, circuit(0.6, 0.5, 0.65))
    before = link(claims(), runs)
    assert before.claims[0].criteria["I2"].status == "NO"
    file = runs / "run" / "records" / "0.json"
    plain = json.loads(file.read_text())
    plain["measures"][0] |= {"value": 0.9, "low": 0.8, "high": 1.0}
    file.write_text(json.dumps(plain))
    with pytest.raises(BadFile, match="was edited after it was judged"):
        link(claims(), runs, before=before)
    with pytest.raises(BadFile, match="was edited after it was judged"):
        score_judgments(before, runs=runs)


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
    with pytest.raises(BadFile, match="no such folder of runs"):
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
    assert "I2 Sufficiency" in capsys.readouterr().out
    file = runs / "run" / "records" / "0.json"
    file.write_text(file.read_text().replace("0.75", "0.6"))
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 2 and "was edited" in capsys.readouterr().err


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
    from mechassay.progress import SILENT
    from mechassay.runs.circuits import CircuitsJob
    from mechassay.runs.execute import run
    from mechassay.truth.models import load_truth

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
        job = CircuitsJob(
            models=("truth-ioi",),
            scores=tuple(files),
            ablation=ablation,
            metrics=(f"completeness:size={size}",),
            train_limit=20,
            test_limit=30,
        )
        run(job, tmp_path / "runs" / ablation, progress=SILENT)

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
