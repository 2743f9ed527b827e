"""What a run for accuracy does: the fields of `runs.accuracy.AccuracyExperiment`, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from mechassay.runs import options
from mechassay.runs.options import option

AccuracyScoring = Literal["exact", "mib-2025"]


@dataclass(frozen=True)
class AccuracyOptions:
    """Greedy and ranked-choice accuracy of models on tasks, for original prompts and every
    counterfactual.

    Attributes:
        tasks: all tasks if empty.
        scoring: "mib-2025" is MIB's scoring beside the exact one, in the tasks that MIB has.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.TASKS_OR_ALL] = ()
    split: Annotated[str, option("Split to score.")] = "test"
    limit: Annotated[
        int | None,
        options.limit("Examples of each task, or `all` of the split.", none="all", first=True),
    ] = None
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None
    scoring: Annotated[
        AccuracyScoring, option("With mib-2025, MIB's laxer scoring of what is written is beside.")
    ] = "exact"

    kind: ClassVar[str] = "accuracy"
    typed: ClassVar[Mapping[str, Any]] = MappingProxyType({"limit": 200})
