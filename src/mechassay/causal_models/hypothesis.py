"""Hypotheses about a task, what tells two of them apart, and what is exchanged by default.

A hypothesis is a causal model and one of its variables: "the model keeps this variable here". Of
most tasks nobody knows what is right: every variable of the task's causal model is a hypothesis.
Of ground truths it is known. A right hypothesis is a variable that has a known site in the trained
model: an interchange there gives its labels. A wrong one is a variable of another causal model,
which gives the same answer to every prompt in a way that the trained model does not: nothing in
it gives its labels.

Two hypotheses can be told apart only by pairs after whose interchange they expect different
outputs:

    share = pairs whose expected outputs differ / pairs that both hypotheses decide

for each kind of counterfactual and over all of them. Outputs of prompts are compared as they are
written. A variable that is None is the hypothesis that the interchange changes nothing: a set of
counterfactuals that cannot tell a variable from None cannot show that it is there.

Defaults say which variables, kinds of counterfactuals and positions are exchanged for a task
unless others are asked for. Kinds and positions of MIB's tasks are those of Mueller et al.
(2025, section 4 and appendix G). A task without defaults has all variables of its causal model,
all kinds of its counterfactuals, and the last token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mechassay.causal_models import truths
from mechassay.causal_models.causal_model import CausalModel, Inputs, Undecided
from mechassay.causal_models.task_models import load_causal_model
from mechassay.causal_models.truths import KNOWN_SITES
from mechassay.errors import BadPairs, BadUsage
from mechassay.prompts.pairs import Example, Examples
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, Tabular, html_facts, html_table
from mechassay.utils.display import share as percent

if TYPE_CHECKING:
    from mechassay.causal_models.labels import BaseAndSource
    from mechassay.tasks.task import Task

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
            prepare="mechassay.causal_models.task_models:with_other_years",
        ),
        "truth-addition": TaskDefaults(positions=("op2_last", "last")),
        "truth-greater-than": TaskDefaults(positions=("digit", "last")),
        "truth-ioi": TaskDefaults(positions=("subject_2", "last")),
        "truth-mcqa": TaskDefaults(positions=("correct_symbol", "last")),
        "truth-previous-token": TaskDefaults(positions=("mark", "last")),
        "docstring": TaskDefaults(
            kinds=("shifted_counterfactual", "reordered_counterfactual"),
            positions=("b_2", "last"),
            prepare="mechassay.causal_models.task_models:with_shifts",
        ),
    }
)
"""By the name of the task."""


def defaults_of(task: str) -> TaskDefaults:
    """The defaults of a task."""
    return DEFAULTS.get(task, TaskDefaults())


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

    def _repr_html_(self) -> str:
        known = {None: "not known", True: "right", False: "wrong"}[self.right]
        facts = {"causal model": self.model.name, "variable": self.variable, "it is": known}
        return html_facts("Hypothesis", facts)


@checked
def hypotheses(task: str | Task) -> dict[str, Hypothesis]:
    """Return the hypotheses about a task, by the name of their variable.

    Args:
        task: a task, or its name, such as "mcqa" or "truth-mcqa".

    Raises:
        UnknownName: the task has no causal model.
    """
    task = task if isinstance(task, str) else task.name
    model = load_causal_model(task)
    if task in _WRONG:
        hypotheses = {name: Hypothesis(model, name, True) for name in KNOWN_SITES[task + _TRAINED]}
        make, wrong = _WRONG[task]
        return {**hypotheses, wrong: Hypothesis(make(), wrong, False)}
    default = defaults_of(task).variables or model.inner
    # A logit difference is what is measured, not what is exchanged.
    names = [name for name in model.inner if name != model.output or model.contrast is None]
    return {name: Hypothesis(model, name, None, name in default) for name in names}


ModelAndVariable = tuple[CausalModel, str | None]
InputPairs = Sequence[tuple[Inputs, Inputs]]
"""Inputs of a base and of a source, for models that are not about prompts."""
PLAIN = "pairs of inputs"


@dataclass(frozen=True, repr=False)
class Distinction(OneLine, Tabular):
    """How many pairs tell two hypotheses apart.

    Attributes:
        first, second: the hypotheses.
        decided, different: by kind, pairs that both decide, and those of them whose expected
            outputs differ.
        dropped: pairs that one of them does not decide, by reason.
    """

    first: str
    second: str
    decided: Mapping[str, int]
    different: Mapping[str, int]
    dropped: Mapping[str, int]

    @property
    def share(self) -> float:
        """The share of decided pairs that differ."""
        return sum(self.different.values()) / sum(self.decided.values())

    @property
    def shares(self) -> dict[str, float]:
        """The same by kind."""
        return {kind: self.different[kind] / n for kind, n in self.decided.items()}

    def repr_fields(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "n": sum(self.decided.values()),
            "share": self.share,
        }

    def columns(self) -> dict[str, list[Any]]:
        """Kinds by column."""
        return {
            "kind": list(self.decided),
            "decided": list(self.decided.values()),
            "different": [self.different[kind] for kind in self.decided],
            "share": list(self.shares.values()),
        }

    def _repr_html_(self) -> str:
        columns = self.columns()
        rows = [
            (kind, f"{n:,}", f"{k:,}", percent(share))
            for kind, n, k, share in zip(*columns.values(), strict=True)
        ]
        dropped = {f"dropped: {reason}": f"{n:,}" for reason, n in self.dropped.items()}
        title = f"{self.first} or {self.second}: {percent(self.share)} of pairs tell"
        return html_facts(title, dropped, html_table(tuple(columns), rows))


@checked
def distinguish(
    first: ModelAndVariable,
    second: ModelAndVariable,
    pairs: Sequence[Example] | InputPairs,
    kinds: Sequence[str] | None = None,
) -> Distinction:
    """How many pairs tell two hypotheses apart, which must not be none.

    Args:
        first, second: each a causal model and a variable of it, or None: nothing is exchanged.
        pairs: examples of a task, or pairs of inputs (of a base, of a source).
        kinds: of counterfactuals. None: all that any example has.

    Raises:
        UnknownName: no such variable; a kind that no example has.
        BadUsage: examples for a model that reads no prompts.
        BadPairs: no pair is decided by both, or none tells them apart; the message has the counts.
    """
    # Imported here, because it is slow, and names of hypotheses need none of it.
    from mechassay.causal_models.labels import bases_and_sources

    for model, variable in (first, second):
        if variable is not None:
            model.variable(variable)
    decided, different, dropped = Counter[str](), Counter[str](), Counter[str]()
    if all(isinstance(pair, Example) for pair in pairs):
        examples = cast("Sequence[Example]", pairs)
        for model, _ in (first, second):
            if model.read is None:
                raise BadUsage(
                    f"The causal model {model.name!r} reads no prompts: pass pairs of inputs, or"
                    " CausalModel(..., read=...)."
                )
        for row in bases_and_sources(examples, kinds, dropped):
            try:
                outcome = [
                    _expected_answer(model, variable, row) for model, variable in (first, second)
                ]
            except Undecided as error:
                dropped[error.reason] += 1
                continue
            decided[row.kind] += 1
            different[row.kind] += outcome[0] != outcome[1]
    else:
        for base, source in cast("InputPairs", pairs):
            try:
                plain = [
                    model.interchange(base, {} if variable is None else {variable: source})
                    for model, variable in (first, second)
                ]
            except Undecided as error:
                dropped[error.reason] += 1
                continue
            decided[PLAIN] += 1
            different[PLAIN] += plain[0][first[0].output] != plain[1][second[0].output]
    names = [f"{model.name}: {variable or 'nothing'}" for model, variable in (first, second)]
    if not sum(different.values()):
        raise BadPairs(_cannot(names, decided, dropped))
    return Distinction(
        names[0],
        names[1],
        MappingProxyType(dict(decided)),
        MappingProxyType({kind: different[kind] for kind in decided}),
        MappingProxyType(dict(dropped)),
    )


def _expected_answer(model: CausalModel, variable: str | None, row: BaseAndSource) -> Any:
    """What is expected of a row, comparable: written where it is written, in any order."""
    from mechassay.causal_models.labels import outputs

    value, _ = outputs(model, variable, row)
    if model.write is None:
        return value
    return frozenset(model.write(value, row.example.prompt))


def _cannot(names: Sequence[str], decided: Mapping[str, int], dropped: Mapping[str, int]) -> str:
    lost = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items())) or "none"
    if not decided:
        return f"No pair is decided by both {names[0]} and {names[1]}; dropped: {lost}."
    kinds = ", ".join(f"{count} {kind}" for kind, count in decided.items())
    return (
        f"These counterfactuals cannot tell {names[0]} from {names[1]}: both expect the same in all"
        f" {sum(decided.values())} pairs ({kinds}); dropped: {lost}."
    )
