"""The options of experiments on causal variables: the fields of the classes of
`variables.experiments`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, get_args

from mechassay.interventions.names import Part
from mechassay.runs import options
from mechassay.runs.options import option

Featurizers = Literal["full-vector", "das", "boundless-das", "dbm", "dbm+pca", "dbm+svd", "dbm+sae"]
FEATURIZERS: tuple[Featurizers, ...] = get_args(Featurizers)
Profile = Literal["strict", "paper", "mib-2025"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
VariableControl = Literal["random-variable", "untrained"]
VARIABLE_CONTROLS: tuple[VariableControl, ...] = get_args(VariableControl)
POSITION_RULES = option(
    r"A part of the prompts by a regular expression that matches once, its group if it has one:"
    r" year=/in 17(\d\d)/, for --position year.",
    "--position-rule",
)


@dataclass(frozen=True)
class VariablesOptions:
    """Look for causal variables in models: for each variable and featurizer the site that is best
    on validation pairs, its interchange intervention accuracy on test pairs, and controls.

    Attributes:
        variables: of the causal models of all tasks; none: those that
            `causal_models.hypothesis` names.
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
    position_rules: Annotated[tuple[str, ...], POSITION_RULES] = ()
    part: Annotated[Part, option("Of each layer; heads are each alone.")] = "resid"
    train_at: Annotated[
        int | None,
        option(
            "Train only at so many sites of a variable: those where whole vectors do best on"
            " validation pairs whose answer changes; at all sites if not given.",
            least=1,
        ),
    ] = None
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
            "Controls that train again, for a random variable or in a model of random weights.",
            "--control",
        ),
    ] = VARIABLE_CONTROLS
    steps: Annotated[
        int | None, option("Steps of a training; those of the profile if not given.", least=1)
    ] = None
    epochs: Annotated[int | None, option("Epochs of a training, in place of steps.", least=1)] = (
        None
    )
    lr: Annotated[float | None, option("Learning rate; that of the profile if not given.")] = None
    train_limit: Annotated[int, options.limit("Answered examples to train on.")] = 160
    validation_limit: Annotated[int, options.limit("Answered examples to choose on.")] = 60
    limit: Annotated[int, options.limit("Answered examples to report on.", first=True)] = 100
    split: Annotated[str, option("Split to report on.")] = "test"
    saes: Annotated[
        str,
        option(
            "For dbm+sae: a folder with an SAE a site (resid.12), a run of `saes train`, or a"
            " release on the hub: google/gemma-scope-2b-pt-res/width_16k.",
            complete="files",
        ),
    ] = ""
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    transfer: Annotated[bool, options.TRANSFER] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None

    kind: ClassVar[str] = "variables"


@dataclass(frozen=True)
class AlignmentsOptions:
    """Measure features that were found elsewhere: interchange accuracy on test pairs beside
    controls; nothing is trained, and nothing in the folders is executed.

    Attributes:
        alignments: folders, which have to be there as long as the run is gone on with or reported.
            Of a run, and of a submission to MIB's causal track, those count that are about the
            model.
        tasks: none: all that the folders are about.
    """

    alignments: Annotated[
        tuple[str, ...],
        option(
            "Folder of an alignment (alignment.json), of a run, or of a submission to MIB's track.",
            complete="files",
        ),
    ]
    model: Annotated[str, options.MODEL]
    tasks: Annotated[
        tuple[str, ...],
        replace(options.TASKS, help="Only alignments of this task. Repeat for several."),
    ] = ()
    kinds: Annotated[
        tuple[str, ...], option("Kind of counterfactuals; the task's default ones.", "--kind")
    ] = ()
    position_rules: Annotated[tuple[str, ...], POSITION_RULES] = ()
    layers: Annotated[
        str, option("Of IOI: layers whose heads the coefficients are fitted with, such as ::3.")
    ] = "all"
    train_limit: Annotated[int, options.limit("Answered examples to fit coefficients on.")] = 160
    validation_limit: Annotated[int, options.limit("Answered examples to choose a site on.")] = 60
    limit: Annotated[int, options.limit("Answered examples to report on.", first=True)] = 100
    split: Annotated[str, option("Split to report on.")] = "test"
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    transfer: Annotated[bool, options.TRANSFER] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None

    kind: ClassVar[str] = "alignments"
