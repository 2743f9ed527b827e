"""What a run of activation patching does: the fields of `interventions.experiment.PatchExperiment`, and its
options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from mechassay.runs import options
from mechassay.runs.options import option
from mechassay.tasks import Keep

Direction = Literal["denoising", "noising"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


@dataclass(frozen=True)
class PatchOptions:
    """Patch every site of a part between the prompts of pairs, one at a time: heat maps over layers
    and tokens, or layers and heads.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.LOADED_TASKS]
    parts: Annotated[
        tuple[str, ...],
        option(
            "What is patched: resid, heads or mlp. Repeat for several.", "--part", "-p", first=True
        ),
    ] = ("resid",)
    direction: Annotated[
        Direction,
        option("Clean values into counterfactual runs, or the other way."),
    ] = "denoising"
    objective: Annotated[str | None, options.OBJECTIVE] = None
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    keep: Annotated[Keep, options.KEEP] = "all"
    split: Annotated[str, option("Split to patch.")] = "test"
    limit: Annotated[int, options.limit("Pairs of each task.", first=True)] = 40
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None

    kind: ClassVar[str] = "patch"
