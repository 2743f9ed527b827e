"""Causal models: variables, the values that they may take, and how each follows from its parents.

A causal model is deterministic (Mueller et al. 2025, appendix G.1; Geiger et al. 2021).
Variables without a mechanism are its inputs; a *setting* is a value for every variable:

    run(x)                     inputs as given, each other variable by its mechanism
    intervene(x, {v: value})   the same, but v has the value whatever its mechanism says
    interchange(b, {v: s})     intervene(b, {v: run(s)[v]})

The parents of a variable are the parameters of its mechanism, by their names:

    DIGIT = Variable(range(10))
    CausalModel("sum of digits", {
        "x": DIGIT, "y": DIGIT,
        "carry": Variable((0, 1), lambda x, y: int(x + y >= 10)),
        "ones": Variable(range(10), lambda x, y: (x + y) % 10),
        "result": Variable(range(20), lambda carry, ones: 10 * carry + ones),
    })

Values are a list, a type, or a predicate. Where the values of all parents are listed and have at
most `MOST` combinations, the mechanism is called with each when the model is made: it must be
total, and give values of its variable. Else values are checked in every run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import product
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from mechassay.errors import BadUsage, MechassayError, UnknownName, first_line
from mechassay.prompts.pairs import Prompt
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, html_facts, html_table, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 20_000
"""Combinations of parents' values up to which a mechanism is called with all of them."""

Setting = dict[str, Any]
"""A value for every variable."""
Inputs = Mapping[str, Any]
"""A value for every variable without a mechanism."""


class Undecided(MechassayError):
    """A causal model that does not say what follows; `reason` is what such pairs are counted by."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The causal model does not say what follows: {reason}.")
        self.reason = reason


@dataclass(frozen=True, eq=False, repr=False)
class Variable(OneLine):
    """One variable of a causal model.

    Attributes:
        values: what it may be: a sequence of values, a type, or a function that tells whether a
            value is one.
        mechanism: its value, from those of its parents; None: it is an input. It may raise
            `Undecided` where the values of its parents are not all listed.
        parents: by name. None: the names of the mechanism's parameters.
        title: its name in drawings; by default that which the model gives it, without underscores.
    """

    values: Sequence[Any] | type | Callable[[Any], bool]
    mechanism: Callable[..., Any] | None = None
    parents: tuple[str, ...] | None = None
    title: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.values, Sequence) and not isinstance(self.values, str):
            object.__setattr__(self, "values", tuple(self.values))
        elif not callable(self.values):
            raise BadUsage(
                "The values of a variable are a list, a type, or a function that tells whether a"
                f" value is one; got {self.values!r}."
            )

    @property
    def listed(self) -> tuple[Any, ...] | None:
        """All values, if they are listed."""
        return self.values if isinstance(self.values, tuple) else None

    def allows(self, value: Any) -> bool:
        """Whether a value is one of the variable's."""
        if isinstance(self.values, tuple):
            return value in self.values
        if isinstance(self.values, type):
            return isinstance(value, self.values)
        assert callable(self.values)
        return bool(self.values(value))

    @property
    def allowed(self) -> str:
        """Its values in words."""
        if isinstance(self.values, tuple):
            text = ", ".join(map(repr, self.values[:4]))
            more = len(self.values) - 4
            return f"{text}, … {self.values[-1]!r}" if more > 0 else text
        if isinstance(self.values, type):
            return f"a {self.values.__name__}"
        return "what its predicate allows"


@dataclass(frozen=True, eq=False, repr=False)
class CausalModel(OneLine):
    """A deterministic causal model; see the module.

    Attributes:
        name: for messages and records.
        variables: by name, in any order; anything but a `Variable` is the values of an input.
        output: the variable that is said; by default the only one without children.
        read: the inputs of a prompt. None: the model is not about prompts.
        write: the right continuations of a prompt, given the value of the output.
        prompt: where several continuations are right: a prompt like the base, after which those
            that are given are the right ones.
        contrast: for outputs that are numbers: the two continuations of a base whose logits'
            difference the output is, the first minus the second. Takes the place of `write`.

    Raises:
        BadUsage: no variables, one without values, a mechanism that is not total, no output or
            several, a cycle; by name.
        UnknownName: an unknown parent or output.
    """

    obtained_by: ClassVar[str] = "variables.load_causal_model(name) loads one."

    name: str
    variables: Mapping[str, Any]
    output: str = ""
    read: Callable[[Prompt], Inputs] | None = None
    write: Callable[[Any, Prompt], tuple[str, ...]] | None = None
    contrast: Callable[[Prompt], tuple[str, str]] | None = None
    prompt: Callable[[tuple[str, ...], Prompt], str] | None = None
    parents: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        if not self.variables:
            raise BadUsage(f"The causal model {self.name!r} needs at least one variable; got none.")
        made = {
            name: given if isinstance(given, Variable) else Variable(given)
            for name, given in self.variables.items()
        }
        object.__setattr__(self, "variables", MappingProxyType(made))
        parents = {name: self._parents(name, variable) for name, variable in made.items()}
        for name, its in parents.items():
            for parent in its:
                if parent not in made:
                    raise UnknownName(f"parent of {name!r} in {self.name!r}", parent, made)
        try:
            order = tuple(TopologicalSorter(parents).static_order())
        except CycleError as error:
            circle = " -> ".join(error.args[1])
            raise BadUsage(f"The causal model {self.name!r} has a cycle: {circle}.") from None
        known = {name: parents[name] for name in order}
        object.__setattr__(self, "parents", MappingProxyType(known))
        self._check_output()
        for name in order:
            if made[name].listed == ():
                raise BadUsage(f"The variable {name!r} of {self.name!r} has no values.")
            self._check_mechanism(name)

    # --- what it is -------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[str, ...]:
        """Variables without a mechanism, in the order given."""
        return tuple(
            name for name, variable in self.variables.items() if variable.mechanism is None
        )

    @property
    def inner(self) -> tuple[str, ...]:
        """Variables with a mechanism, parents first: those that a language model may have."""
        return tuple(name for name in self.parents if self.variables[name].mechanism is not None)

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """The longest way from an input to each variable."""
        levels: dict[str, int] = {}
        for name, parents in self.parents.items():
            levels[name] = 1 + max((levels[parent] for parent in parents), default=-1)
        return MappingProxyType(levels)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Variables whose mechanism was not called with all values of its parents beforehand."""
        return tuple(name for name in self.inner if self._combinations(name) is None)

    @checked
    def variable(self, name: str) -> Variable:
        """The variable of a name.

        Raises:
            UnknownName: there is none.
        """
        if name not in self.variables:
            raise UnknownName(f"variable of {self.name!r}", name, self.variables)
        return self.variables[name]

    def title(self, name: str) -> str:
        """What a variable is called in drawings."""
        return self.variable(name).title or name.replace("_", " ")

    # --- what follows -----------------------------------------------------------------------------

    def run(self, inputs: Inputs) -> Setting:
        """The value of every variable, parents first.

        Raises:
            UnknownName: an input that is no variable.
            BadUsage: an input that is missing, that has a mechanism, or whose value is none of its
                values; a mechanism that fails.
            Undecided: a mechanism does not say.
        """
        return self.intervene(inputs, {})

    @checked
    def intervene(self, inputs: Inputs, values: Mapping[str, Any]) -> Setting:
        """The value of every variable where some are fixed.

        Args:
            inputs: a value for every variable without a mechanism.
            values: of the variables that are fixed; inputs may be among them.

        Raises:
            UnknownName, BadUsage, Undecided: as `run`, and for `values` alike.
        """
        for name, value in (*inputs.items(), *values.items()):
            self._check_value(name, value)
        for name in inputs:
            if self.variables[name].mechanism is not None:
                raise BadUsage(
                    f"The variable {name!r} of {self.name!r} has a mechanism: it is no input. Fix"
                    " it with intervene(inputs, {...})."
                )
        return self._setting(inputs, values, self.parents.keys())

    @checked
    def interchange(self, base: Inputs, sources: Mapping[str, Inputs]) -> Setting:
        """The value of every variable for a base, where some have those of other inputs.

        Args:
            base: inputs.
            sources: for each variable that is exchanged, the inputs that its value comes from.

        Raises:
            UnknownName, BadUsage, Undecided: as `run`.
        """
        for name in sources:
            self.variable(name)
        values = {name: self.value(name, inputs) for name, inputs in sources.items()}
        return self.intervene(base, values)

    @checked
    def value(self, name: str, inputs: Inputs) -> Any:
        """The value of one variable, from those that lead to it alone.

        Raises:
            UnknownName, BadUsage, Undecided: as `run`.
        """
        needed = self.before(name)
        for input_name, value in inputs.items():
            if input_name in needed:
                self._check_value(input_name, value)
        return self._setting(inputs, {}, needed)[name]

    def renamed(self, name: str) -> CausalModel:
        """The same model under another name."""
        return replace(self, name=name)

    def before(self, name: str) -> frozenset[str]:
        """The variables that lead to one, itself included.

        Raises:
            UnknownName: there is no such variable.
        """
        self.variable(name)
        ancestors, waiting = set[str](), [name]
        while waiting:
            last = waiting.pop()
            if last not in ancestors:
                ancestors.add(last)
                waiting += self.parents[last]
        return frozenset(ancestors)

    def _setting(
        self, inputs: Inputs, values: Mapping[str, Any], needed: Collection[str]
    ) -> Setting:
        """The values of some variables, which all have their parents among them."""
        setting: Setting = {}
        for name, parents in self.parents.items():
            if name not in needed:
                continue
            if name in values:
                setting[name] = values[name]
            elif self.variables[name].mechanism is None:
                if name not in inputs:
                    raise BadUsage(
                        f"The causal model {self.name!r} needs the inputs {', '.join(self.inputs)};"
                        f" got {', '.join(inputs) or 'none'}: {name!r} is missing."
                    )
                setting[name] = inputs[name]
            else:
                setting[name] = self._value(name, [setting[parent] for parent in parents])
        return setting

    def _check_value(self, name: str, value: Any) -> None:
        variable = self.variable(name)
        if not variable.allows(value):
            raise BadUsage(
                f"The variable {name!r} of {self.name!r} is one of {variable.allowed}; got"
                f" {shortened(repr(value), 60)}."
            )

    def _value(self, name: str, of_parents: Sequence[Any]) -> Any:
        """What a mechanism says, which must be a value of its variable."""
        variable = self.variables[name]
        assert variable.mechanism is not None
        not_total = f"The mechanism of {name!r} in {self.name!r} is not total:"
        try:
            value = variable.mechanism(*of_parents)
        except Undecided:
            raise
        except Exception as error:
            raise BadUsage(
                f"{not_total} {self._parents_text(name, of_parents)} raises {type(error).__name__}"
                f" ({first_line(error)})."
            ) from error
        if not variable.allows(value):
            raise BadUsage(
                f"{not_total} {self._parents_text(name, of_parents)} gives"
                f" {shortened(repr(value), 40)}, which is none of {variable.allowed}."
            )
        return value

    def _parents_text(self, name: str, of_parents: Sequence[Any]) -> str:
        """The values of a variable's parents in words."""
        pairs = zip(self.parents[name], of_parents, strict=True)
        return ", ".join(f"{parent}={shortened(repr(value), 40)}" for parent, value in pairs)

    # --- checks -----------------------------------------------------------------------------------

    def _parents(self, name: str, variable: Variable) -> tuple[str, ...]:
        if variable.mechanism is None:
            if variable.parents:
                raise BadUsage(
                    f"The variable {name!r} of {self.name!r} has parents"
                    f" ({', '.join(variable.parents)}) but no mechanism."
                )
            return ()
        if variable.parents is not None:
            return variable.parents
        parameters = inspect.signature(variable.mechanism).parameters.values()
        odd = [
            str(parameter)
            for parameter in parameters
            if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD
            or parameter.default is not parameter.empty
        ]
        if odd:
            raise BadUsage(
                f"The parents of {name!r} in {self.name!r} cannot be read from its mechanism, which"
                f" has the parameter {odd[0]!r}: pass Variable(..., parents=(...))."
            )
        return tuple(parameter.name for parameter in parameters)

    def _check_output(self) -> None:
        if self.output:
            self.variable(self.output)
            return
        children = {parent for parents in self.parents.values() for parent in parents}
        last = [name for name in self.variables if name not in children]
        if len(last) != 1:
            raise BadUsage(
                f"The causal model {self.name!r} needs output=..., as {', '.join(last)} have no"
                " children."
            )
        object.__setattr__(self, "output", last[0])

    def _combinations(self, name: str) -> list[tuple[Any, ...]] | None:
        """The values of a variable's parents, if they are listed and at most `MOST`."""
        values: list[tuple[Any, ...]] = []
        for parent in self.parents[name]:
            listed = self.variables[parent].listed
            if listed is None:
                return None
            values.append(listed)
        return values if prod(map(len, values)) <= MOST else None

    def _check_mechanism(self, name: str) -> None:
        combinations = self._combinations(name)
        if self.variables[name].mechanism is None or combinations is None:
            return
        for combination in product(*combinations):
            try:
                self._value(name, combination)
            except Undecided as error:
                raise BadUsage(
                    f"The mechanism of {name!r} in {self.name!r} is not total:"
                    f" {self._parents_text(name, combination)} is undecided ({error.reason})."
                ) from None

    # --- shown ------------------------------------------------------------------------------------

    def repr_fields(self) -> dict[str, Any]:
        return {"name": self.name, "inputs": self.inputs, "variables": self.inner}

    def _repr_html_(self) -> str:
        from mechassay.results.plots import svg

        rows = [
            (self.title(name), self.variables[name].allowed, ", ".join(parents) or "the inputs")
            for name, parents in self.parents.items()
        ]
        table = html_table(("variable", "values", "follows from"), rows)
        return html_facts(f"causal model {self.name}", {}, svg(self.plot()), table)

    @checked
    def plot(self, setting: Mapping[str, Any] | None = None, *, ax: Axes | None = None) -> Figure:
        """The graph of the variables, inputs below; see `mechassay.causal_models.causal_model`.

        Args:
            setting: values to write into it, such as `run` gives them; variables that do not follow
                from their mechanisms are coloured.
            ax: axes to draw on.

        Raises:
            UnknownName: a setting of another model's variables.
        """
        # Imported here, because it is slow.
        from mechassay.causal_models.drawing import draw_causal_model

        values = setting or {}
        for name in values:
            self.variable(name)
        titles = {name: self.title(name) for name in self.parents}
        fixed, prompt = self._fixed(values), self.read is not None
        return draw_causal_model(titles, self.parents, values, fixed=fixed, prompt=prompt, ax=ax)

    def _fixed(self, setting: Mapping[str, Any]) -> set[str]:
        """Variables of a setting that have another value than their mechanism gives."""
        descendants: set[str] = set()
        for name in self.inner:
            mechanism, parents = self.variables[name].mechanism, self.parents[name]
            if mechanism is None or not {name, *parents} <= setting.keys():
                continue
            try:
                natural = mechanism(*(setting[parent] for parent in parents))
            except Undecided:
                descendants.add(name)
                continue
            if natural != setting[name]:
                descendants.add(name)
        return descendants
