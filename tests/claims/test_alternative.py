"""A claim's circuit beside the alternative that it names: by hand, invariant, and executed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.two_behaviours import IOI_EDGES, two_behaviours
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import completeness_of
from mechassay.claims.assay import Assay
from mechassay.claims.assay_steps import AssaySettings
from mechassay.claims.claim import Claim, claims_of
from mechassay.claims.dossier import link
from mechassay.claims.judgments import Judgment
from mechassay.claims.record_rules import StoredRecord, beside_alternative
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.models.model import load_model
from mechassay.results.records import Measure, Record, Selection, Spec, Values, provenance
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.utils.display import SILENT

N = FEW_GROUPS
OF_METHOD, OF_TASK = {"method": "exact"}, {"method": "eap", "task": "u"}
SWING = np.tile([0.3, -0.3], 50)
"""What makes pairs easy or hard, alike for both circuits."""
METRIC = Spec(name="logit_diff")
ABOUT = provenance(device="cpu", dtype="float32", seed=0)


def a_claim(alternative: dict[str, str] | None, **about: Any) -> dict[str, Any]:
    plain = {"id": "a", "statement": "x", "model": "m", "task": "t", "circuit": "eap@9"}
    return {**plain, "alternative": alternative, **about}


def a_record(
    method: str,
    circuit: Sequence[float],
    *,
    complement: Sequence[float] | None = None,
    task: str = "t",
    chance: float = 0.1,
    prompts: str = "x",
    scale: tuple[float, float] = (1.0, 0.0),
    columns: bool = True,
) -> Record:
    """A record of pairs on which the model has 1 and the empty circuit 0, times and plus a
    `scale`.
    """
    rows = {"circuit@9": circuit, "complement@9": [0.0] * len(circuit)}
    rows |= {} if complement is None else {"complement@9": complement}
    names = [str(place) for place in range(len(circuit))]
    ends = {"clean": np.ones(len(names)), "empty": np.zeros(len(names))}
    held = {**ends, **rows} if columns else ends
    values = {name: (scale[0] * np.array(row) + scale[1]).tolist() for name, row in held.items()}
    how = {"ablation": "counterfactual", "split": "test", "train_split": "train"}
    measures = list[Measure]()
    lines = [scale[0] * np.array(line) + scale[1] for line in (*ends.values(), *rows.values())]
    part = completeness_of(np.array(lines), names, METRIC.name)
    intervals = (part.circuit_interval, part.complement_interval)
    for (name, row), (low, high, _) in zip(rows.items(), intervals, strict=True):
        measures.append(
            Measure(name=name, value=float(np.mean(row)), low=low, high=high, n=len(row))
        )
        by_chance = chance if name == "circuit@9" else 1 - chance
        low, high = sorted((by_chance, 0.0 if name == "circuit@9" else 1.0))
        measures.append(
            Measure(name=name, of="control:random-paths", value=by_chance, low=low, high=high)
        )
    return Record(
        kind="circuits",
        cell={"method": method},
        specs={
            "model": Spec(name="m"),
            "task": Spec(name=task, args=how),
            "method": Spec(name=method),
            "metric": METRIC,
        },
        measures=measures,
        values=Values(unit="pair", ids=names, groups=names, columns=values),
        data={"test": Selection(hash=prompts)},
        provenance=ABOUT,
    )


def judged(
    folder: Path, code: str, alternative: dict[str, str] | None, *records: Record
) -> Judgment:
    for place, each in enumerate(records):
        each.save(folder / "run" / "records" / f"{place}.json")
    return link(claims_of(a_claim(alternative)), folder).claims[0].criteria[code]


def own(mean: float, n: int = N, **about: Any) -> Record:
    return a_record("eap", mean + SWING[:n], **about)


def its(mean: float, n: int = N, **about: Any) -> Record:
    return a_record("a.alternative", mean + SWING[:n], **about)


CASES = {
    # By each pair .2 more, although both spread by .3 over pairs; found on its own task.
    "more": ("V4", "PARTIAL", [own(0.8), its(0.6)], OF_METHOD),
    "less": ("V4", "NO", [own(0.6), its(0.8)], OF_METHOD),
    "more than another task's": ("C3", "PARTIAL", [own(0.8), its(0.6)], OF_TASK),
    "and twice what it does there": (
        "C3",
        "YES",
        [own(0.8), its(0.6), own(0.15, task="u")],
        OF_TASK,
    ),
    "less than another task's": ("C3", "NO", [own(0.6), its(0.8)], OF_TASK),
    "less, and twice what it does there": (
        "C3",
        "PARTIAL",
        [own(0.6), its(0.8), own(0.2, task="u")],
        OF_TASK,
    ),
    # What is optional makes no NO better.
    "more, and as much there": (
        "C3",
        "NO",
        [own(0.8), its(0.6), own(0.8, task="u")],
        OF_TASK,
    ),
    # One task measured is no specificity, and another task is no explanation of this one.
    "of its own task": ("C3", "NOT TESTED", [own(0.8), its(0.6)], OF_METHOD),
    "of another task": ("V4", "NOT TESTED", [own(0.8), its(0.6)], OF_TASK),
    "none": ("V4", "NOT TESTED", [own(0.8), its(0.6)], None),
    "other pairs": ("V4", "NOT TESTED", [own(0.8), its(0.6, prompts="y")], OF_METHOD),
    "other numbers of pairs": ("V4", "NOT TESTED", [own(0.8), its(0.6, n=30)], OF_METHOD),
    "no values of pairs": ("V4", "NOT TESTED", [own(0.8), its(0.6, columns=False)], OF_METHOD),
    "few groups": (
        "C3",
        "PARTIAL",
        [own(0.8, n=19), its(0.6, n=19), own(0.3, n=19, task="u")],
        OF_TASK,
    ),
    # What is none leaves the criterion as it was.
    "the same circuit": ("V4", "NOT TESTED", [own(0.8), its(0.8)], OF_METHOD),
    "as random ones": ("V4", "NOT TESTED", [own(0.8), its(0.12)], OF_METHOD),
    "as random ones, and twice": (
        "C3",
        "YES",
        [own(0.8), its(0.12), own(0.15, task="u")],
        OF_TASK,
    ),
    "nothing, below random ones": ("V4", "NO", [own(0.05), its(0.12)], OF_METHOD),
    # 1.5 is farther from 1 than .9.
    "overshoot": (
        "C3",
        "PARTIAL",
        [own(1.5), its(0.9), own(0.3, task="u")],
        OF_TASK,
    ),
    # Of each pair that the circuit carries, the alternative carries one half.
    "loss": (
        "E3",
        "YES",
        [
            own(0.8, complement=0.2 + SWING[:N]),
            its(0.4, complement=0.6 + SWING[:N]),
            own(0.3, complement=[0.9] * N, task="u"),
        ],
        OF_TASK,
    ),
    "less lost": (
        "E3",
        "NO",
        [own(0.8, complement=0.6 + SWING[:N]), its(0.4, complement=0.2 + SWING[:N])],
        OF_TASK,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_by_hand(tmp_path: Path, case: str) -> None:
    code, expected, records, alternative = CASES[case]
    assert judged(tmp_path, code, alternative, *records).status == expected


def test_the_difference_is_that_of_pairs_and_has_no_unit(tmp_path: Path) -> None:
    """.2 in every pair, whose interval has no width; logits of other sizes change nothing."""
    said = "It recovers 0.200 [0.200, 0.200] more than the alternative (what exact finds on t:"
    for place, scale in enumerate(((1.0, 0.0), (7.0, 0.0), (2.0, 100.0), (-1.0, 3.0))):
        rows = [own(0.8, scale=scale), its(0.6, scale=scale)]
        told = judged(tmp_path / str(place), "V4", OF_METHOD, *rows).reason
        assert said in told and "n = 20 pairs in 20 groups" in told, scale


def test_uneven_pairs_against_a_slow_bootstrap() -> None:
    rng = np.random.default_rng(3)
    ours, theirs = (mean + 0.3 * rng.standard_normal(60) for mean in (0.8, 0.6))
    rows = [
        StoredRecord(name, name, a_record(name, row))
        for name, row in (("eap", ours), ("a.alternative", theirs))
    ]
    told = beside_alternative(Claim(**a_claim(OF_METHOD)), rows)
    low, high = map(float, told.split("[")[1].split("]")[0].split(", "))
    drawn = [float((ours - theirs)[rng.integers(0, 60, 60)].mean()) for _ in range(4000)]
    # Widened for 60 groups by 3 %, and rounded to two digits.
    assert np.allclose([low, high], np.quantile(drawn, [0.025, 0.975]), atol=0.02)


def test_what_is_no_alternative(tmp_path: Path) -> None:
    for stated in ({}, {"circuit": "a.json", "method": "eap"}, {"circuit": "a.json", "task": "u"}):
        with pytest.raises(BadFile, match="an alternative is a circuit, or what a method finds"):
            claims_of(a_claim(stated))
    plain: dict[str, Any] = {"model": "truth-ioi", "task": "truth-ioi"}
    cases = (
        ({"circuit": "random@8"}, BadUsage, "has 8 edges and the claim's circuit 9: name one of"),
        ({"circuit": "empty"}, BadUsage, "without edges"),
        ({"circuit": "exact@9"}, BadUsage, "which a method finds: name it as method: exact"),
        ({"circuit": "none.json"}, BadFile, "no such file"),
        ({"method": "eep"}, UnknownName, "eep"),
        ({"task": "iio"}, UnknownName, "iio"),
    )
    for place, (stated, error, message) in enumerate(cases):
        with pytest.raises(error, match=message):
            _ = Assay(claims_of(a_claim(stated, **plain)), tmp_path / str(place)).steps
    about = {**plain, "circuit": "truth"}
    with pytest.raises(BadUsage, match="names no method that finds it"):
        _ = Assay(claims_of(a_claim({"task": "ioi"}, **about)), tmp_path / "file").steps


@pytest.mark.slow
def test_executed_where_both_circuits_are_known(tmp_path: Path) -> None:
    """In the model with two behaviours: a circuit that lacks an edge of IOI beside IOI's, which
    stands beside itself, and beside what EAP finds for the other behaviour.
    """
    model, names, fruits = two_behaviours(tmp_path)
    file = tmp_path / "true.safetensors"
    Circuit.from_names(load_model(str(model)).graph, IOI_EDGES).save(file)
    lacking = [edge for edge in IOI_EDGES if edge != "a1.h0->a2.h2<q>"]
    stated: dict[str, tuple[dict[str, str], Sequence[str]]] = {
        "lacking": ({"circuit": str(file)}, (*lacking, "input->m1")),
        "same": ({"circuit": str(file)}, IOI_EDGES),
        "fruits": ({"method": "eap", "task": str(fruits)}, IOI_EDGES),
    }
    about = {"model": str(model), "task": str(names), "other_task": str(fruits), "circuit": ""}
    rows = [
        a_claim(other, **about, id=name, components=list(edges))
        for name, (other, edges) in stated.items()
    ]
    small = AssaySettings(limit=24, train_limit=24, grid=4, left_out=2)
    assay = Assay(claims_of({"claims": rows}), tmp_path / "runs", small, progress=SILENT)
    for part in assay.parts:
        kept = ("own", "other-task", "alternative", "alternative-found")
        part.steps = [step for step in part.steps if step.name in kept]
    found = assay.run()
    assert not found.failed
    page = found.page.read_text("utf-8")
    for name, code, status, said in (
        ("lacking", "V4", "NO", "less than the alternative (true.safetensors"),
        ("same", "V4", "NOT TESTED", "That is none: it does the same on every pair."),
        ("fruits", "C3", "YES", "That is none: random circuits of its size may reach"),
    ):
        criterion = found.judgments.claim(name).criteria[code]
        assert criterion.status == status and said in criterion.reason
        assert said in page
    assert page.count("beside its alternative:") == 3
    assert str(tmp_path) not in "".join(
        found.judgments.claim(name).criteria["V4"].reason for name in stated
    )
