"""Whether a set of counterfactuals can tell two hypotheses apart.

A hypothesis is a causal model and one of its variables: "the model keeps this variable here". Where
two hypotheses expect the same after every interchange, no result speaks for one against the other.

    share = pairs whose expected outputs differ / pairs that both hypotheses decide

for each kind of counterfactual and over all of them. Outputs of prompts are compared as they are
written. A variable that is None is the hypothesis that the interchange changes nothing: a set that
cannot tell a variable from None cannot show that it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from mechassay.display import OneLine, Tabular, html_facts, html_table
from mechassay.errors import BadPairs, BadUsage
from mechassay.examples import Example
from mechassay.text import share as percent
from mechassay.variables.causal_model import CausalModel, Inputs, Undecided
from mechassay.variables.labels import BaseAndSource, bases_and_sources, outputs

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

    def shown(self) -> dict[str, Any]:
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
        told = {f"dropped: {reason}": f"{n:,}" for reason, n in self.dropped.items()}
        title = f"{self.first} or {self.second}: {percent(self.share)} of pairs tell"
        return html_facts(title, told, html_table(tuple(columns), rows))


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
    for model, variable in (first, second):
        if variable is not None:
            model.variable(variable)
    decided, different, dropped = Counter[str](), Counter[str](), Counter[str]()
    if all(isinstance(each, Example) for each in pairs):
        examples = cast("Sequence[Example]", pairs)
        for model, _ in (first, second):
            if model.read is None:
                raise BadUsage(
                    f"The causal model {model.name!r} reads no prompts: pass pairs of inputs, or"
                    " CausalModel(..., read=...)."
                )
        for row in bases_and_sources(examples, kinds, dropped):
            try:
                outcome = [_said(model, variable, row) for model, variable in (first, second)]
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


def _said(model: CausalModel, variable: str | None, row: BaseAndSource) -> Any:
    """What is expected of a row, comparable: written where it is written, in any order."""
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
