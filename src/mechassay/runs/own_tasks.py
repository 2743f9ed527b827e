"""What the models of a run are run on: a ground truth on a task of its kind, others on any.

A ground truth runs on its own task. Where tasks of ground truths are named it runs on these, as one
may know the words of another's task. All other tasks are for models that are no ground truth.
"""

from __future__ import annotations

from collections.abc import Sequence

from mechassay.errors import BadUsage, MechassayError, UnknownName
from mechassay.models.sources import find_source, truth_names
from mechassay.truth.models import is_truth

ALL_TRUTHS = "truth"
"""What stands for all ground truths among the models of a run."""


def with_truths(models: Sequence[str]) -> tuple[str, ...]:
    """The models, each once, "truth" written out."""
    named = [truth_names() if name == ALL_TRUTHS else [name] for name in models]
    return tuple(dict.fromkeys(name for names in named for name in names))


def tasks_of(model: str, tasks: Sequence[str]) -> tuple[str, ...]:
    """What a model runs on, of the tasks that are named."""
    if not is_truth(model):
        return tuple(tasks)
    return tuple(task for task in tasks if is_truth(task)) or (model,)


def check_tasks(models: Sequence[str], tasks: Sequence[str]) -> None:
    """Refuse models without a task, and tasks without a model.

    Raises:
        UnknownName: a model without a task is none that can be named.
        BadUsage: a model that is no ground truth has no task; or all models are ground truths, and
            one of the tasks is none of theirs.
    """
    for model in models:
        if not tasks_of(model, tasks):
            _check_known(model)
            raise BadUsage(
                f"{model} needs a task to run on; only ground truths have one of their own."
            )
    others = _of_others(tasks)
    if others and models and all(map(is_truth, models)):
        which = models[0] if len(models) == 1 else "Ground truths"
        own = f"its own task, {models[0]}" if len(models) == 1 else "their own tasks"
        raise BadUsage(
            f"{which} run{'s' * (len(models) == 1)} on {own}, or on one of another ground truth;"
            f" got {', '.join(others)}. Leave --task out."
        )


def own_task_notes(models: Sequence[str], tasks: Sequence[str]) -> tuple[str, ...]:
    """What to say where ground truths are among the models, and the tasks are for the others."""
    truths, others = [name for name in models if is_truth(name)], _of_others(tasks)
    if not truths or not others:
        return ()
    who = truths[0] if len(truths) == 1 else f"{len(truths)} ground truths"
    runs, own = ("runs", "its own task") if len(truths) == 1 else ("run", "their own tasks")
    if named := [task for task in tasks if is_truth(task)]:
        own = ", ".join(named)
    return (f"{who} {runs} on {own}, not on {', '.join(others)}.",)


def _check_known(model: str) -> None:
    """Refuse a name that is no model's, such as a ground truth's with a letter wrong."""
    try:
        find_source(model)
    except UnknownName:
        raise
    except MechassayError:
        return  # A model that is not here, which has no task either.


def _of_others(tasks: Sequence[str]) -> list[str]:
    """The tasks that no ground truth runs on."""
    return [task for task in tasks if not is_truth(task)]
