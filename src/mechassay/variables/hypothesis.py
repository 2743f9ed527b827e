"""What may be claimed of a task: by name, a causal model and one of its variables.

Of most tasks nobody knows what is right: every variable of the task's causal model is a hypothesis.
Of ground truths it is known. A right hypothesis is a variable that has a home in the trained model:
an interchange there gives its labels. A wrong one is a variable of another causal model, which has
the same answer to every prompt and comes to it in a way that the trained model does not: nothing in
it gives its labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from mechassay.variables.causal_model import CausalModel
from mechassay.variables.defaults import defaults_of
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


class Hypothesis(NamedTuple):
    """A variable of a causal model.

    Attributes:
        right: whether the model has it, where that is known.
        by_default: whether it is looked at if none is named.
    """

    model: CausalModel
    variable: str
    right: bool | None = None
    by_default: bool = True


def hypotheses(task: str) -> dict[str, Hypothesis]:
    """The hypotheses about a task, by the name of their variable.

    Args:
        task: such as "mcqa" or "truth-mcqa".

    Raises:
        UnknownName: it has no causal model.
    """
    model = load_causal_model(task)
    if task in _WRONG:
        found = {name: Hypothesis(model, name, True) for name in HOMES[task + _TRAINED]}
        make, wrong = _WRONG[task]
        return {**found, wrong: Hypothesis(make(), wrong, False)}
    default = defaults_of(task).variables or model.inner
    # A logit difference is what is measured, not what is exchanged.
    names = [name for name in model.inner if name != model.output or model.contrast is None]
    return {name: Hypothesis(model, name, None, name in default) for name in names}
