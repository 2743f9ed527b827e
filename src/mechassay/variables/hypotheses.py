"""What may be claimed of a task: by name, a causal model and one of its variables.

Of most tasks nobody knows what is right: every variable of the task's causal model is a hypothesis.
"""

from __future__ import annotations

from dataclasses import dataclass

from mechassay.variables.causal_model import CausalModel
from mechassay.variables.defaults import defaults_of
from mechassay.variables.load import load_causal_model


@dataclass(frozen=True)
class Hypothesis:
    """A variable of a causal model.

    Attributes:
        right: whether it is, where that is known.
        by_default: whether it is looked at if none is named.
    """

    model: CausalModel
    variable: str
    right: bool | None = None
    by_default: bool = True


def hypotheses_of(task: str) -> dict[str, Hypothesis]:
    """The hypotheses about a task, by name.

    Raises:
        UnknownName: it has no causal model.
    """
    model = load_causal_model(task)
    default = defaults_of(task).variables or model.inner
    names = [name for name in model.inner if name != model.output or model.contrast is None]
    return {name: Hypothesis(model, name, None, name in default) for name in names}
