"""A small experiment of every kind, on ground truths where there are some.

Where the files of a run are, for tests that look at them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mechassay.adversarial.experiments import AdversarialExperiment, SearchExperiment
from mechassay.adversarial.paper import PaperExperiment
from mechassay.adversarial.shift import ShiftExperiment
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.gym.experiments import DirectionsExperiment, GymCheckExperiment, GymExperiment
from mechassay.interventions.patching import PatchExperiment
from mechassay.judges.experiment import AssessExperiment
from mechassay.measurement.experiment import MeasureExperiment
from mechassay.reproduction.experiment import ReproductionExperiment
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.saes.experiment import SAEExperiment
from mechassay.variables.experiments import AlignmentsExperiment, VariablesExperiment

SMALL_GYM_TASK = str(Path(__file__).parents[1] / "data" / "gym_small.yaml")
"""A task of the words of truth-ioi."""

DATA = Path(__file__).parents[1] / "data"
COVERAGE = Path(__file__).parents[2] / "examples" / "coverage"
"""The files that docs/coverage.md names."""

SMALL_EXPERIMENTS: dict[str, Any] = {
    "circuits": CircuitsExperiment(
        ("truth-ioi", "truth-induction"),
        methods=("random",),
        train_limit=4,
        limit=6,
        random_rankings=5,
    ),
    "accuracy": AccuracyExperiment(("truth-ioi",), ("truth-ioi", "truth-induction"), limit=4),
    "adversarial": AdversarialExperiment(
        "truth-ioi",
        "truth-ioi",
        ("truth", "random@0.5"),
        n_clean=6,
        n_corrupted=5,
        n_resamples=20,
        n_permutations=20,
        worst=1,
    ),
    "adversarial-search": SearchExperiment(
        "truth-ioi",
        "truth-ioi",
        ("truth", "random@0.5"),
        n_clean=4,
        n_corrupted=4,
        budget=30,
        starts=1,
        restarts=1,
    ),
    "adversarial-shift": ShiftExperiment(
        "truth-ioi", ("truth",), "truth-ioi", ("truth-ioi",), n_prompts=8
    ),
    "assess": AssessExperiment(
        str(COVERAGE / "paper.md"),
        f"scripted:{COVERAGE / 'judged.yaml'}",
        runs=2,
        steps="per-criterion",
        criteria=("I1", "I2", "E4"),
    ),
    "directions": DirectionsExperiment(
        (str(DATA / "directions" / "gym_small_truth-ioi"),),
        "truth-ioi",
        SMALL_GYM_TASK,
        control_labels=(" Ann", " Bob"),
        validation_limit=8,
        limit=8,
    ),
    "gym": GymExperiment(
        ("truth-ioi",),
        (SMALL_GYM_TASK,),
        ("das:steps=3", "mean", "random", "vanilla"),
        control_labels=(" Ann", " Bob"),
        train_limit=16,
        validation_limit=8,
        limit=8,
    ),
    "gym-check": GymCheckExperiment(("truth-ioi",), (SMALL_GYM_TASK,), limit=8),
    "measure": MeasureExperiment(
        ("EX1", "EX25:n_runs=2", "F01"), ("truth-ioi",), n_prompts=6, train_limit=6
    ),
    "alignments": AlignmentsExperiment(
        (str(DATA / "alignments" / "truth_ioi_answer"),),
        "truth-ioi-trained",
        train_limit=8,
        validation_limit=6,
        limit=8,
    ),
    "patch": PatchExperiment(("truth-ioi",), ("truth-ioi",), ("heads", "resid"), limit=4),
    "variables": VariablesExperiment(
        ("truth-ioi-trained", "truth-previous-token-trained"),
        featurizers=("full-vector", "das"),
        positions=("last",),
        ks=(3,),
        train_limit=12,
        validation_limit=6,
        limit=8,
    ),
    "reproduction": ReproductionExperiment("adversarial", ("1", "Section 2")),
    "saes": SAEExperiment(
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
    "adversarial-paper": PaperExperiment(
        "small-gpt2", n_clean=4, n_corrupted=3, n_matched=3, worst=1
    ),
}


def held(out: Path, kind: str, name: str) -> Path:
    """A file of the only model and task of a run: `held(out, "records", "eap.json")`."""
    groups = [path for path in (out / kind).glob("*/") if path.is_dir()]
    return (groups[0] if groups else out / kind / "none") / name
