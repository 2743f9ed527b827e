"""Train gym-neox, and measure each checkpoint on each task: python -m studies.gym_neox.

The model is runs/gym-neox/model, its checkpoints runs/gym-neox/model@step256 and so on, the page
runs/gym-neox/accuracy/report.html. accuracy.csv, beside this file, is written anew.
"""

from __future__ import annotations

import csv
from pathlib import Path

import mechassay
from mechassay.gym.experiments import GymCheckExperiment
from mechassay.models.sources import checkpoints
from studies.gym_neox.corpus import TRAINING, corpus_tasks
from studies.gym_neox.training import train_gym_model

HERE = Path(__file__).parent
FOLDER = Path("runs/gym-neox")
COLUMNS = ("task", "step", "accuracy", "low", "high", "n")


def main(folder: Path, table: Path) -> None:
    """Train if that is not done, measure what is not measured, write the table."""
    model = folder / "model"
    if checkpoints(model) != [f"step{step}" for step in TRAINING.kept]:
        train_gym_model(model, TRAINING, tasks=corpus_tasks())
    experiment = GymCheckExperiment((str(model),), revisions=tuple(checkpoints(model)))
    results = mechassay.run(experiment, folder / "accuracy")
    rows: list[tuple[object, ...]] = []
    for record in results.records:
        step = record.model.args["step"]
        rows += [
            (
                record.task.name,
                step,
                f"{each.value:.4f}",
                f"{each.low:.4f}",
                f"{each.high:.4f}",
                each.n,
            )
            for each in record.measures
            if each.name == "accuracy"
        ]
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    print(f"Checkpoints: {model}@step256 ...; table: {table}")


if __name__ == "__main__":
    main(FOLDER, HERE / "accuracy.csv")
