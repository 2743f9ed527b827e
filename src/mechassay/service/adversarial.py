"""The adversarial evaluation of submitted circuits: which of them, and on how many prompts.

    boards: [circuits, variables, adversarial]
    adversarial:
      n_clean: 10                     prompts of each pool; every clean one is paired with every
      n_corrupted: 10                 corrupted one of the split test
      sizes: [0.01]                   shares of the edges: one circuit, and one row, for each
      tasks: {smollm2-135m: [ioi]}    what it is done on; all of the track's models if left out

Scores are cut at a size as by `mechassay adversarial run -c FILE@SIZE`: the best edges by
magnitude, pruned; grown from the logits if their method says so. Of a folder of circuits the
largest that is not larger than the size is taken, as by the curve of faithfulness: the nearest from
below, so that nobody stands at 1 % with the full graph. If all are larger it is the empty circuit.

A size costs the forward passes of its circuit, the empty circuit and the controls on all pairs, and
those of the worst pairs, which are run again alone. There are no private examples: pools have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from mechassay.circuits.series import CircuitSeries
from mechassay.graph import Graph
from mechassay.records import Record, Stored
from mechassay.runs.adversarial import AdversarialJob


def _different(sizes: tuple[float, ...]) -> tuple[float, ...]:
    if len(set(sizes)) < len(sizes):
        raise ValueError("a size is named twice")
    return sizes


Share = Annotated[float, Field(gt=0, lt=1)]


class AdversarialTrack(Stored):
    """What is evaluated adversarially of submitted circuits.

    Attributes:
        n_clean, n_corrupted: prompts of the two pools.
        sizes: of the circuits, as shares of the model's edges.
        tasks: by the public name of a model; all of the track if it is empty.
    """

    n_clean: int = Field(default=10, ge=1)
    n_corrupted: int = Field(default=10, ge=1)
    sizes: Annotated[tuple[Share, ...], AfterValidator(_different)] = Field(
        default=(0.01,), min_length=1
    )
    tasks: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)

    def has(self, model: str, task: str) -> bool:
        """Whether circuits of a model on a task are evaluated."""
        return not self.tasks or task in self.tasks.get(model, ())

    def job(self, path: Path, model: str, task: str, dtype: str, seed: int) -> AdversarialJob:
        """The job that evaluates a file of scores, or a folder of circuits.

        Args:
            model: what `load_model` gets.
        """
        return AdversarialJob(
            model=model,
            task=task,
            circuits=tuple(f"{path}@{size}" for size in self.sizes),
            n_clean=self.n_clean,
            n_corrupted=self.n_corrupted,
            dtype=dtype,
            seed=seed,
        )

    def told(self, path: Path, graph: Graph) -> list[str]:
        """What of a file of scores, or of a folder of circuits, is evaluated, a line a size.

        Raises:
            BadFile, GraphMismatch: the folder holds no circuits of this graph.
        """
        series = CircuitSeries.load(path, graph) if path.is_dir() else None
        pairs = f"{self.n_clean} x {self.n_corrupted} pairs of prompts, public"
        lines: list[str] = []
        for size in self.sizes:
            which = ""
            if series is not None:
                file, circuit = series.named_within(size)
                which = (
                    f" ({file}, {circuit.weighted_edge_count():,.0f} edges)"
                    if file
                    else " (none is so small)"
                )
            lines.append(f"adversarial at {100 * size:.15g} % of the edges{which}: {pairs}")
        return lines


def prompts_then_and_now(
    record: Record, track: AdversarialTrack
) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """How many prompts an adversarial record was made of, and how many a track has; by name."""
    if record.kind != AdversarialJob.kind:
        return {}, {}
    names = ("n_clean", "n_corrupted")
    then = {name: record.task.args.get(name) for name in names}
    return then, {name: getattr(track, name) for name in names}


def row_ending(record: Record) -> str:
    """What stands behind the name of a submission in a row: the size of an adversarial record."""
    size = record.method.args.get("size") if record.kind == AdversarialJob.kind else None
    return f"@{size}" if isinstance(size, int | float) else ""
