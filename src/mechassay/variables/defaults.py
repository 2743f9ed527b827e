"""What is exchanged for each task unless something else is asked for: variables, kinds, positions.

Kinds and positions of MIB's tasks are those of Mueller et al. (2025, section 4 and appendix G). A
task that is not here has all variables of its causal model, all kinds of its counterfactuals, and
the last token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType

from mechassay.examples import Example, Examples

Prepare = Callable[[Sequence[Example]], Examples]


@dataclass(frozen=True)
class TaskDefaults:
    """Defaults of one task.

    Attributes:
        variables: of its causal model; none: all that have a mechanism.
        kinds: of counterfactuals; none: all that there are.
        positions: where sites are.
        balanced: whether half of the pairs are to be such that the interchange changes the label.
        prepare: what gives examples counterfactuals that the task itself has not, as
            "module:function"; none.
    """

    variables: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    positions: tuple[str, ...] = ("last",)
    balanced: bool = False
    prepare: str = ""

    def prepared(self, examples: Examples) -> Examples:
        """The examples with those counterfactuals."""
        if not self.prepare:
            return examples
        module, _, name = self.prepare.partition(":")
        prepare: Prepare = getattr(import_module(module), name)
        return prepare(examples)


_CHOICES = TaskDefaults(
    kinds=(
        "answerPosition_counterfactual",
        "randomLetter_counterfactual",
        "answerPosition_randomLetter_counterfactual",
    ),
    positions=("correct_symbol", "last"),
)
DEFAULTS: Mapping[str, TaskDefaults] = MappingProxyType(
    {
        "mcqa": _CHOICES,
        "arc-easy": _CHOICES,
        "arc-challenge": _CHOICES,
        "arithmetic-addition": TaskDefaults(
            variables=("carry",),
            kinds=("random_counterfactual", "ones_carry_counterfactual"),
            positions=("op2", "last"),
        ),
        "ravel": TaskDefaults(
            variables=("Country", "Continent", "Language"),
            kinds=("attribute_counterfactual", "wikipedia_counterfactual"),
            positions=("entity", "last"),
            balanced=True,
        ),
        "ioi": TaskDefaults(
            variables=("subject_position", "subject_token"),
            kinds=(
                "s1_io_flip_counterfactual",
                "s2_io_flip_counterfactual",
                "s1_ioi_flip_s2_ioi_flip_counterfactual",
            ),
            positions=("all",),
        ),
        "greater-than": TaskDefaults(
            variables=("tens", "ones"),
            kinds=("other_year_counterfactual",),
            positions=("year", "last"),
            prepare="mechassay.variables.models.greater_than:with_other_years",
        ),
        "truth-addition": TaskDefaults(positions=("op2_last", "last")),
        "truth-greater-than": TaskDefaults(positions=("digit", "last")),
        "truth-ioi": TaskDefaults(positions=("subject_2", "last")),
        "truth-mcqa": TaskDefaults(positions=("correct_symbol", "last")),
        "truth-previous-token": TaskDefaults(positions=("mark", "last")),
        "docstring": TaskDefaults(
            kinds=("shifted_counterfactual", "reordered_counterfactual"),
            positions=("b_2", "last"),
            prepare="mechassay.variables.models.docstring:with_shifts",
        ),
    }
)
"""By the name of the task."""


def defaults_of(task: str) -> TaskDefaults:
    """The defaults of a task."""
    return DEFAULTS.get(task, TaskDefaults())
