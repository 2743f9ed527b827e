"""Ground truths run on their own tasks, and whoever names another one for them sees that."""

from __future__ import annotations

import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.models.sources import truth_names
from mechassay.runs.own_tasks import check_tasks, own_task_notes, tasks_of, with_truths


def test_a_ground_truth_runs_on_its_own_task() -> None:
    assert tasks_of("gpt2", ("ioi", "mcqa")) == ("ioi", "mcqa")
    assert tasks_of("truth-ioi", ("ioi", "mcqa")) == ("truth-ioi",)
    assert tasks_of("truth-ioi", ("ioi", "truth-mcqa-trained")) == ("truth-mcqa-trained",)
    assert tasks_of("gpt2", ()) == ()


def test_a_letter_wrong_in_the_name_of_a_truth_is_no_missing_task() -> None:
    with pytest.raises(UnknownName, match=r"model 'truth-iio'\. Did you mean 'truth-ioi'\?"):
        check_tasks(("truth-iio",), ())


def test_truth_stands_for_all_of_them_once() -> None:
    assert with_truths(("gpt2", "truth", "truth-ioi")) == ("gpt2", *truth_names())


@pytest.mark.parametrize(
    ("models", "tasks", "message"),
    [
        (("gpt2",), (), "gpt2 needs a task to run on"),
        (
            ("truth-ioi",),
            ("ioi",),
            "truth-ioi runs on its own task, truth-ioi, or on one of another ground truth;"
            " got ioi. Leave --task out.",
        ),
        (
            ("truth-ioi", "truth-induction"),
            ("truth-ioi", "ioi", "ravel"),
            "Ground truths run on their own tasks, or on one of another ground truth;"
            " got ioi, ravel. Leave --task out.",
        ),
    ],
)
def test_a_task_that_nothing_runs_on_is_refused(
    models: tuple[str, ...], tasks: tuple[str, ...], message: str
) -> None:
    with pytest.raises(BadUsage) as error:
        check_tasks(models, tasks)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("models", "tasks", "notes"),
    [
        (("gpt2",), ("ioi",), ()),
        (("truth-ioi",), (), ()),
        (("truth-ioi",), ("truth-induction",), ()),
        (("gpt2", "truth-ioi"), ("ioi",), ("truth-ioi runs on its own task, not on ioi.",)),
        (
            ("gpt2", "truth-ioi", "truth-induction"),
            ("ioi", "mcqa"),
            ("2 ground truths run on their own tasks, not on ioi, mcqa.",),
        ),
        (
            ("gpt2", "truth-ioi", "truth-induction"),
            ("ioi", "truth-ioi"),
            ("2 ground truths run on truth-ioi, not on ioi.",),
        ),
    ],
)
def test_a_mixed_run_says_which_tasks_are_for_the_others(
    models: tuple[str, ...], tasks: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    check_tasks(models, tasks)
    assert own_task_notes(models, tasks) == notes
