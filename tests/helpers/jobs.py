"""A small job of every kind, on ground truths where there are some.

Where the files of a run are, for tests that look at them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mechassay.adversarial.jobs import AdversarialJob, SearchJob
from mechassay.adversarial.paper import PaperJob
from mechassay.adversarial.shift import ShiftJob
from mechassay.discovery.job import CircuitsJob
from mechassay.gym.jobs import DirectionsJob, GymCheckJob, GymJob
from mechassay.interventions.job import PatchJob
from mechassay.judges.job import AssessJob
from mechassay.measurement.job import MeasureJob
from mechassay.reproduction.job import ReproductionJob
from mechassay.runs.accuracy import AccuracyJob
from mechassay.saes.job import SAEJob
from mechassay.variables.jobs import AlignmentsJob, VariablesJob

SMALL_GYM_TASK = str(Path(__file__).parents[1] / "data" / "gym_small.yaml")
"""A task of the words of truth-ioi."""

DATA = Path(__file__).parents[1] / "data"
COVERAGE = Path(__file__).parents[2] / "examples" / "coverage"
"""The files that docs/coverage.md names."""

SMALL_JOBS: dict[str, Any] = {
    "circuits": CircuitsJob(
        ("truth-ioi", "truth-induction"),
        methods=("random",),
        train_limit=4,
        test_limit=6,
        random_rankings=5,
    ),
    "accuracy": AccuracyJob(("truth-ioi",), ("truth-ioi", "truth-induction"), limit=4),
    "adversarial": AdversarialJob(
        "truth-ioi",
        "truth-ioi",
        ("truth", "random@0.5"),
        n_clean=6,
        n_corrupted=5,
        n_resamples=20,
        n_permutations=20,
        worst=1,
    ),
    "adversarial-search": SearchJob(
        "truth-ioi",
        "truth-ioi",
        ("truth", "random@0.5"),
        n_clean=4,
        n_corrupted=4,
        budget=30,
        starts=1,
        restarts=1,
    ),
    "adversarial-shift": ShiftJob(
        "truth-ioi", ("truth",), "truth-ioi", ("truth-ioi",), n_prompts=8
    ),
    "assess": AssessJob(
        str(COVERAGE / "paper.md"),
        f"scripted:{COVERAGE / 'judged.yaml'}",
        runs=2,
        steps="per-criterion",
        criteria=("I1", "I2", "E4"),
    ),
    "directions": DirectionsJob(
        (str(DATA / "directions" / "gym_small_truth-ioi"),),
        "truth-ioi",
        SMALL_GYM_TASK,
        control_labels=(" Ann", " Bob"),
        validation_limit=8,
        test_limit=8,
    ),
    "gym": GymJob(
        ("truth-ioi",),
        (SMALL_GYM_TASK,),
        ("das:steps=3", "mean", "random", "vanilla"),
        control_labels=(" Ann", " Bob"),
        train_limit=16,
        validation_limit=8,
        test_limit=8,
    ),
    "gym-check": GymCheckJob(("truth-ioi",), (SMALL_GYM_TASK,), limit=8),
    "measure": MeasureJob(
        ("EX1", "EX25:n_runs=2", "F01"), ("truth-ioi",), n_prompts=6, train_limit=6
    ),
    "alignments": AlignmentsJob(
        (str(DATA / "alignments" / "truth_ioi_answer"),),
        "truth-ioi-trained",
        train_limit=8,
        validation_limit=6,
        test_limit=8,
    ),
    "patch": PatchJob(("truth-ioi",), ("truth-ioi",), ("heads", "resid"), limit=4),
    "variables": VariablesJob(
        ("truth-ioi-trained", "truth-previous-token-trained"),
        featurizers=("full-vector", "das"),
        positions=("last",),
        ks=(3,),
        train_limit=12,
        validation_limit=6,
        test_limit=8,
    ),
    "reproduction": ReproductionJob("adversarial", ("1", "Section 2")),
    "saes": SAEJob(
        ("truth-ioi",),
        ("resid.1", "mlp.0"),
        str(Path(__file__).parents[1] / "data" / "words.jsonl"),
        tokens=None,
        window=8,
        n_features=96,
        k=4,
        steps=12,
        batch_size=64,
        controls=("random", "permuted", "untrained"),
        windows=6,
    ),
    "adversarial-paper": PaperJob("small-gpt2", n_clean=4, n_corrupted=3, n_matched=3, worst=1),
}


def held(out: Path, kind: str, name: str) -> Path:
    """A file of the only model and task of a run: `held(out, "records", "eap.json")`."""
    groups = [path for path in (out / kind).glob("*/") if path.is_dir()]
    return (groups[0] if groups else out / kind / "none") / name
