"""The options of experiments on gym tasks: the fields of the classes of `gym.experiments`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from mechassay.gym.names import ALL_TASKS, PUBLISHED
from mechassay.runs import options
from mechassay.runs.options import option

PAPER_STEPS = "paper-steps"
GymControl = Literal["labels", "shuffled", "untrained"]
GYM_CONTROLS: tuple[GymControl, ...] = get_args(GymControl)
TASKS = option(
    "Gym task, see `mechassay gym list`; a family of them, all, or a YAML file. Repeat for"
    " several.",
    "--task",
    "-t",
    complete="gym tasks",
    first=True,
)
SOURCE = option(
    "Where tasks are from: hub (aryaman/causalgym), a folder of its rows, a .json file of its"
    " templates; else they are ours.",
    complete="files",
)
DTYPES = option("float32, float64, bfloat16 or float16; several by model: float32,MODEL=bfloat16.")
REVISIONS = option(
    "Checkpoint of the models: a revision of the hub, or a subfolder, such as step512. Repeat for"
    f" several; {PAPER_STEPS} stands for those of the paper's section 6.",
    "--revision",
)


@dataclass(frozen=True)
class GymOptions:
    """Run methods on gym tasks: how far exchanging what they find moves what the model says, at
    every region and layer, with original and control labels.

    Attributes:
        tasks: names of gym tasks, of families, or files; "all" stands for the 29.
        revisions: checkpoints; every model becomes `MODEL@REVISION` of each, and this is empty.
        methods: see `gym.methods`; names of `SWEEPS` stand for all their settings.
        steps, epochs, lr: of methods that are trained; they become settings of these methods, such
            as `das:steps=200`, and these are None.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], TASKS] = (ALL_TASKS,)
    methods: Annotated[
        tuple[str, ...],
        option(
            "Method, with settings if wanted: das:k=4; or a sweep: table-2a. Repeat for several.",
            "--method",
            "-M",
            complete="gym methods",
            first=True,
        ),
    ] = PUBLISHED
    revisions: Annotated[tuple[str, ...], REVISIONS] = ()
    source: Annotated[str, SOURCE] = ""
    layers: Annotated[str, option("`all`, numbers such as 0,3,6, or every third: ::3.")] = "all"
    seeds: Annotated[
        tuple[int, ...],
        option("Seed of the start of das, random directions and shuffled labels.", "--draw"),
    ] = (0,)
    controls: Annotated[
        tuple[GymControl, ...],
        option(
            "Controls that train again: on --control-label, on shuffled labels, or in a model of"
            " random weights.",
            "--control",
        ),
    ] = GYM_CONTROLS
    control_labels: Annotated[
        tuple[str, ...],
        option("Word for each type, with its space; dog and give by default.", "--control-label"),
    ] = ()
    steps: Annotated[
        int | None,
        option("Steps of methods that are trained; 100 of das, as published.", least=1),
    ] = None
    epochs: Annotated[
        int | None, option("The same in passes over the train interchanges.", least=1)
    ] = None
    lr: Annotated[
        float | None, option("Their highest learning rate; 0.005 of das, as published.")
    ] = None
    compat: Annotated[
        str, option("causalgym-2024: read and fit at the indices of the public code.")
    ] = ""
    train_limit: Annotated[int, options.limit("Interchanges to train on.", least=4)] = 400
    validation_limit: Annotated[int, options.limit("Interchanges to choose on.", least=2)] = 100
    limit: Annotated[int, options.limit("Interchanges to report on.", least=2, first=True)] = 100
    dtype: Annotated[str, DTYPES] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "gym"


@dataclass(frozen=True)
class GymCheckOptions:
    """Accuracy of models on gym tasks: how often a sentence's own label is the more probable one.

    Attributes:
        tasks: names of gym tasks, of families, or files; "all" stands for the 29.
        revisions: checkpoints; every model becomes `MODEL@REVISION` of each, and this is empty.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], TASKS] = (ALL_TASKS,)
    revisions: Annotated[tuple[str, ...], REVISIONS] = ()
    source: Annotated[str, SOURCE] = ""
    limit: Annotated[int, options.limit("Test sentences of each task.", least=2, first=True)] = 100
    dtype: Annotated[str, DTYPES] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "gym-check"


@dataclass(frozen=True)
class DirectionsOptions:
    """Measure directions that were found elsewhere on a gym task: log odds-ratios of test items
    beside controls; nothing is trained, and nothing in the folders is executed.

    Attributes:
        directions: folders, which have to be there as long as the run is gone on with or reported.
    """

    directions: Annotated[
        tuple[str, ...],
        option("Folder of directions, as `gym run` leaves them in features.", complete="files"),
    ]
    model: Annotated[str, options.MODEL]
    task: Annotated[
        str,
        option(
            "Gym task, see `mechassay gym list`; or a YAML file.",
            "--task",
            "-t",
            complete="gym tasks",
        ),
    ]
    layers: Annotated[str, option("`all`, numbers such as 0,3,6, or every third: ::3.")] = "all"
    control_labels: Annotated[
        tuple[str, ...],
        option("Word for each type, with its space; dog and give by default.", "--control-label"),
    ] = ()
    validation_limit: Annotated[int, options.limit("Interchanges to choose on.", least=2)] = 100
    limit: Annotated[int, options.limit("Interchanges to report on.", least=2, first=True)] = 100
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    transfer: Annotated[bool, options.TRANSFER] = False
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "directions"
