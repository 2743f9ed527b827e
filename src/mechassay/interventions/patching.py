"""Activation patching of models on tasks: an experiment.

A cell is one model, task and part. Its record has the shares of all cells of the map with
intervals. `maps/` has the objective of every pair after every patch, as a file of tensors that
`PatchMap.load` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar

from mechassay.errors import one_of
from mechassay.interventions.names import PARTS, Direction, Part
from mechassay.runs import options
from mechassay.runs.cells import Inputs
from mechassay.runs.experiment import Experiment
from mechassay.runs.options import option
from mechassay.tasks import TASKS, Keep

if TYPE_CHECKING:
    from rich.console import Console

    from mechassay.interventions.patch_map import PatchMap
    from mechassay.results.page import Report
    from mechassay.runs.cells import Cell


@dataclass(frozen=True)
class PatchExperiment(Experiment):
    """Patch every site of a part between the prompts of pairs, one at a time: heat maps over layers
    and tokens, or layers and heads.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.LOADED_TASKS]
    parts: Annotated[
        tuple[Part, ...],
        option("What is patched. Repeat for several.", "--part", "-p", first=True),
    ] = ("resid",)
    direction: Annotated[
        Direction,
        option("Clean values into counterfactual runs, or the other way."),
    ] = "denoising"
    objective: Annotated[str | None, options.OBJECTIVE] = None
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    keep: Annotated[Keep, options.KEEP] = "all"
    split: Annotated[str, options.UNFITTED_SPLIT] = ""
    limit: Annotated[int, options.limit("Pairs of each task.", first=True)] = 40
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None

    kind: ClassVar[str] = "patch"
    axes: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"model": "models", "task": "tasks", "part": "parts"}
    )
    keeps: ClassVar[str] = "maps"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tasks", TASKS.full_names(self.tasks))

    def measure(self, cell: Cell, inputs: Inputs) -> PatchMap:
        """Return the map of a part."""
        from mechassay.interventions.activation_patching import patch
        from mechassay.tasks.task import PRIVATE

        patched = patch(
            inputs.model,
            inputs.pairs["test"],
            part=one_of("part", cell["part"], PARTS),
            direction=self.direction,
            objective=self.objective or inputs.task.objective,
            seed=self.seed,
            progress=inputs.progress,
        )
        return patched.without_tokens() if self.split == PRIVATE else patched

    def show(self, report: Report, console: Console) -> None:
        from mechassay.interventions.patch_page import verdicts
        from mechassay.results.console import print_text

        for name, text in verdicts(report.records):
            print_text(f"{name}. {text}\n", console)
        super().show(report, console)
