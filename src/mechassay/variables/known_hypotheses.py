"""Right and wrong hypotheses about trained ground truths, to test what localizes variables.

A right one is a variable that has a home in the model: an interchange there gives its labels. A
wrong one is a variable of another causal model, which has the same answer to every prompt and comes
to it in a way that the model does not: nothing in the model gives its labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from mechassay.errors import UnknownName
from mechassay.variables.causal_model import CausalModel
from mechassay.variables.homes import HOMES
from mechassay.variables.load import load_causal_model
from mechassay.variables.models import truths

_TRAINED = "-trained"
_WRONG: Mapping[str, tuple[Callable[[], CausalModel], str]] = MappingProxyType(
    {
        "truth-addition": (truths.odd_ones_model, "odd"),
        "truth-fraction": (truths.odd_places_model, "odd_places"),
        "truth-greater-than": (truths.odd_place_model, "odd_place"),
        "truth-induction": (truths.following_place_model, "word_place"),
        "truth-ioi": (truths.name_place_model, "name_place"),
        "truth-mcqa": (truths.symbol_rank_model, "symbol_rank"),
        "truth-previous-token": (truths.mark_place_model, "word_place"),
    }
)


class KnownHypothesis(NamedTuple):
    """A hypothesis that is known to be right or wrong about the trained model of a task."""

    model: CausalModel
    variable: str
    right: bool


def hypotheses(task: str) -> dict[str, KnownHypothesis]:
    """The right hypotheses about the trained model of a ground truth's task, and a wrong one.

    Args:
        task: such as "truth-mcqa".

    Returns:
        By the name of the variable.

    Raises:
        UnknownName: none are known of the task.
    """
    if task not in _WRONG:
        raise UnknownName("task with known hypotheses", task, _WRONG)
    right = load_causal_model(task)
    found = {name: KnownHypothesis(right, name, True) for name in HOMES[task + _TRAINED]}
    make, wrong = _WRONG[task]
    return {**found, wrong: KnownHypothesis(make(), wrong, False)}
