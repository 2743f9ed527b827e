"""Make the comparisons of README.md: python -m studies.robust."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mechassay
from studies.robust.experiment import RobustExperiment

TRUTH = RobustExperiment(
    "truth-ioi-trained",
    "truth-ioi-trained",
    pairing="random",
    group="subject",
    edges=7,
    sizes=(5, 6, 7, 8),
    n_held_out=60,
    repeats=5,
)
RUNS = {
    "truth": TRUTH,
    "truth-probing": replace(
        TRUTH,
        method="subnetwork-probing:steps=300,lr=0.03,batch_size=16",
        tails=("cvar", "mixture", "worst-group:step=0.01"),
    ),
    "smollm2-135m": RobustExperiment(
        "smollm2-135m",
        "ioi",
        edges=0.01,
        sizes=(0.01, 0.05),
        rounds=2,
        n_base=32,
        n_held_out=24,
        repeats=3,
    ),
}

if __name__ == "__main__":
    for name, experiment in RUNS.items():
        results = mechassay.run(experiment, Path("runs/robust") / name)
        print(f"Report: {results.folder / 'report.html'}")
