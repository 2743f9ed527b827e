"""The plan of a run for causal variables: its fields, and what they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from mechassay.errors import one_of
from mechassay.runs import options
from mechassay.runs.job import option
from mechassay.runs.own_tasks import with_truths
from mechassay.tasks import load_task
from mechassay.variables.featurizers import Featurizers, Profile
from mechassay.variables.hypothesis import Hypothesis, hypotheses

VariableControl = Literal["arbitrary", "untrained"]
VARIABLE_CONTROLS: tuple[VariableControl, ...] = get_args(VariableControl)


@dataclass(frozen=True)
class VariablesPlan:
    """What a run for causal variables does.

    Attributes:
        variables: of the causal models of all tasks; none: those that `variables.defaults` names.
        ks: numbers of features to choose among for DAS; none: that of the profile.
        kinds, positions: none: those of the task's defaults.
    """

    models: Annotated[tuple[str, ...], options.MODELS]
    tasks: Annotated[tuple[str, ...], options.TASKS] = ()
    variables: Annotated[
        tuple[str, ...],
        option("Variable of the causal model; the task's default ones if none.", "--variable"),
    ] = ()
    featurizers: Annotated[
        tuple[Featurizers, ...],
        option(
            "What makes features of a site's values. Repeat for several.",
            "--featurizer",
            "-f",
            first=True,
        ),
    ] = ("full-vector", "das", "dbm", "dbm+pca")
    layers: Annotated[str, option("`all`, numbers such as 0,3,6, or every third: ::3.")] = "all"
    positions: Annotated[
        tuple[str, ...],
        option("Part of the prompts, or `last`; the task's default ones if none.", "--position"),
    ] = ()
    part: Annotated[str, option("Of each layer: resid, mlp, or heads (each alone).")] = "resid"
    ks: Annotated[
        tuple[int, ...],
        option("Number of directions of das; of several the best on validation.", "--k"),
    ] = ()
    kinds: Annotated[
        tuple[str, ...], option("Kind of counterfactuals; the task's default ones.", "--kind")
    ] = ()
    profile: Annotated[
        Profile, option("paper and mib-2025 are settings of MIB's paper and of its code.")
    ] = "strict"
    controls: Annotated[
        tuple[VariableControl, ...],
        option(
            "Controls that train again, on labels of no variable or in a model of random weights.",
            "--control",
        ),
    ] = VARIABLE_CONTROLS
    train_limit: Annotated[int, option("Answered examples to train on.", least=1)] = 160
    validation_limit: Annotated[int, option("Answered examples to choose on.", least=1)] = 60
    test_limit: Annotated[
        int, option("Answered examples to report on.", "--limit", least=1, first=True)
    ] = 100
    test_split: Annotated[str, option("Split to report on.", "--split")] = "test"
    saes: Annotated[
        str, option("Folder with an SAE a site, for dbm+sae: folders or files named resid.12@last.")
    ] = ""
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", with_truths(self.models))

    def variables_of(self, task: str) -> dict[str, Hypothesis]:
        """The hypotheses of a task that are looked at, by name.

        Raises:
            UnknownName: the task has no causal model, or that no such variable.
        """
        known = hypotheses(load_task(task).name)
        names = self.variables or tuple(name for name, each in known.items() if each.by_default)
        return {name: known[one_of(f"variable of {task}", name, known)] for name in names}
