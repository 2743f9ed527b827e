"""Labels of interchanges: what a causal model expects after an interchange of one variable.

For an example, a kind of counterfactual and a variable V of a model H, with b the inputs of the
original prompt and c those of the counterfactual (Mueller et al. 2025, section 4.1):

    label       H(b) with V as in H(c), written as a continuation of the original
    base label  H(b), written alike

Both come from the causal model, which reads the parts of the two prompts; foils are never used.
V = None is the hypothesis that nothing is exchanged. Where the output is a number, the logit
difference of two continuations, `values` and `base_values` hold the expected numbers, and base
label and label are those two continuations.

A pair is dropped, and counted, where a prompt cannot be read, where the model does not say what
follows, and where the task has another answer of the base than the model.

A random variable is a control, as the control tasks of Hewitt and Liang (2019) are for probes. Its
label is the base's own answer or that of the source, by a hash of the two prompts: both can be
written by an interchange, and nothing but the pairs themselves tells which it is. A featurizer
that has half of it on pairs it was not trained on has what a coin has.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from mechassay.causal_models.causal_model import CausalModel, Undecided
from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.prompts.interchanges import InterchangePair, interchange_tokens
from mechassay.prompts.pairs import ABSENT, Example, Prompt
from mechassay.prompts.tokenization import Misaligned, tokenizer_of
from mechassay.utils.arguments import checked
from mechassay.utils.display import NOTEBOOK_ROWS, Tabular, html_facts, html_note, html_table, line

ANOTHER_ANSWER = "the task has another answer than the causal model"
UNSAID = "nothing is right after it"
UNEQUAL = "prompts of unequal lengths"


class BaseAndSource(NamedTuple):
    """An original and one of its counterfactuals."""

    example: Example
    kind: str
    source: Prompt


class ExpectedLabels(Tabular, tuple[InterchangePair, ...]):
    """Interchanges of one variable with their labels.

    Attributes:
        model: the name of the causal model.
        variable: what is exchanged; None: nothing is.
        base_values: what is expected of an output that is a number without the interchange; NaN
            where it is text.
        dropped: pairs that were left out, by reason.
    """

    model: str
    variable: str | None
    base_values: Float[np.ndarray, "n"]
    dropped: Mapping[str, int]

    def __new__(
        cls,
        pairs: Iterable[InterchangePair],
        *,
        model: str,
        variable: str | None,
        base_values: Sequence[float] | np.ndarray,
        dropped: Mapping[str, int],
    ) -> ExpectedLabels:
        made = super().__new__(cls, pairs)
        made.model, made.variable = model, variable
        made.base_values = np.asarray(base_values, dtype=np.float64)
        made.dropped = MappingProxyType(dict(dropped))
        return made

    @property
    def values(self) -> Float[np.ndarray, "n"]:
        """What the pairs expect of an output that is a number, after the interchange; NaN where it
        is text.
        """
        return np.array([pair.value for pair in self], dtype=np.float64)

    @property
    def changed(self) -> Bool[np.ndarray, "n"]:
        """Whether the interchange changes what is expected, by pair."""
        text = [set(pair.labels) != set(pair.base_labels) for pair in self]
        numbers = ~np.isnan(self.values)
        return np.where(numbers, self.values != self.base_values, np.array(text, dtype=bool))

    def take(self, rows: Sequence[int], dropped: Mapping[str, int] | None = None) -> ExpectedLabels:
        """The pairs of these numbers, in that order.

        Args:
            rows: their numbers.
            dropped: what else was left out, by reason, on top of `self.dropped`.
        """
        index = np.asarray(rows, dtype=np.int64)
        return ExpectedLabels(
            [self[row] for row in index.tolist()],
            model=self.model,
            variable=self.variable,
            base_values=self.base_values[index],
            dropped=Counter(self.dropped) + Counter(dropped or {}),
        )

    def with_pairs(self, pairs: Sequence[InterchangePair]) -> ExpectedLabels:
        """The same with other pairs in the places of these."""
        return ExpectedLabels(
            pairs,
            model=self.model,
            variable=self.variable,
            base_values=self.base_values,
            dropped=self.dropped,
        )

    @checked
    def tokenized(
        self, model: Any, *, equal_lengths: bool = False
    ) -> tuple[ExpectedLabels, InterchangeBatch]:
        """The pairs that a tokenizer can align, and their batch; what it cannot is counted.

        Args:
            model: a model, or a tokenizer.
            equal_lengths: leave out pairs of whose prompts one has more tokens, as sites at "all"
                tokens need it.

        Raises:
            BadUsage: neither a tokenizer nor a model that has one.
            BadPairs: no pair is left; the message has the counts.
        """
        rows, lost = alignable(self, model, equal_lengths=equal_lengths)
        kept = self.take(rows, lost)
        if not kept:
            raise BadPairs(_none_left(self.model, self.variable, len(self), kept.dropped))
        batch = InterchangeBatch.from_pairs(list(kept), model)
        return kept, batch

    def columns(self) -> dict[str, list[Any]]:
        """The pairs by column."""
        return {
            "id": [pair.id for pair in self],
            "kind": [pair.kind for pair in self],
            "base": [pair.base for pair in self],
            "source": [pair.source for pair in self],
            "label": ["|".join(pair.labels) for pair in self],
            "base_label": ["|".join(pair.base_labels) for pair in self],
            "value": self.values.tolist(),
            "base_value": self.base_values.tolist(),
            "changed": self.changed.tolist(),
        }

    def __repr__(self) -> str:
        columns = {
            "model": self.model,
            "variable": self.variable,
            "n": len(self),
            "changed": int(self.changed.sum()),
            "dropped": sum(self.dropped.values()),
        }
        return line("ExpectedLabels", columns)

    def _repr_html_(self) -> str:
        facts = {
            "changed": f"{int(self.changed.sum()):,} of {len(self):,}",
            **{f"dropped: {reason}": f"{n:,}" for reason, n in self.dropped.items()},
        }
        columns = self.columns()
        names = ("kind", "base", "source", "base_label", "label")
        rows = list(zip(*(columns[name][:NOTEBOOK_ROWS] for name in names), strict=True))
        more = html_note(f"{len(self) - NOTEBOOK_ROWS:,} more" if len(self) > NOTEBOOK_ROWS else "")
        title = f"{self.model}: {self.variable or 'nothing exchanged'}"
        return html_facts(title, facts, html_table(names, rows), more)


def alignable(
    pairs: Sequence[InterchangePair], model: Any, *, equal_lengths: bool
) -> tuple[list[int], Counter[str]]:
    """The pairs that a tokenizer can align, by number, and how many it cannot, by reason.

    Args:
        model: a model, or a tokenizer.
        equal_lengths: both prompts of a pair must have equally many tokens.

    Raises:
        BadUsage: neither a tokenizer nor a model that has one.
    """
    tokenizer = tokenizer_of("Labels of a causal model", model)
    if tokenizer is None:
        raise BadUsage("Labels of a causal model need a model with a .tokenizer, or one; got None.")
    kept: list[int] = []
    lost = Counter[str]()
    for number, row in enumerate(interchange_tokens(list(pairs), tokenizer)):
        if isinstance(row, Misaligned):
            lost[row.reason] += 1
        elif equal_lengths and len(row.base) != len(row.source):
            lost[UNEQUAL] += 1
        else:
            kept.append(number)
    return kept, lost


@checked
def expected_labels(
    model: CausalModel,
    variable: str | None,
    examples: Sequence[Example],
    kinds: Sequence[str] | None = None,
) -> ExpectedLabels:
    """The labels of an interchange of one variable, for each example and kind of counterfactual.

    A row is named "example/kind". The rows of one example are in one group.

    Args:
        model: a causal model that reads prompts.
        variable: one with a mechanism or an input; None: nothing is exchanged.
        examples: as `task.examples` gives them.
        kinds: of counterfactuals. None: all that any example has.

    Raises:
        UnknownName: no such variable; a kind that no example has.
        BadUsage: a model that reads no prompts, or does not say what is written.
        BadPairs: no pair is left; the message has the counts.
    """
    if model.read is None or (model.write is None and model.contrast is None):
        lacking = "read" if model.read is None else "write or contrast"
        raise BadUsage(
            f"The causal model {model.name!r} has no labels, as it has no {lacking}: pass"
            " CausalModel(..., read=..., write=...)."
        )
    if variable is not None:
        model.variable(variable)
    dropped = Counter[str](getattr(examples, "dropped", {}))
    pairs: list[InterchangePair] = []
    own: list[float] = []
    for row in bases_and_sources(examples, kinds, dropped):
        try:
            pair, base_value = _interchange(model, variable, row)
        except Undecided as error:
            dropped[error.reason] += 1
            continue
        pairs.append(pair)
        own.append(base_value)
    if not pairs:
        raise BadPairs(_none_left(model.name, variable, len(examples), dropped))
    return ExpectedLabels(
        pairs,
        model=model.name,
        variable=variable,
        base_values=own,
        dropped=dropped,
    )


def bases_and_sources(
    examples: Sequence[Example], kinds: Sequence[str] | None, dropped: Counter[str]
) -> Iterator[BaseAndSource]:
    """Each example with each of its counterfactuals; `dropped` counts those that are not there.

    Raises:
        UnknownName: a kind that no example has.
    """
    known = dict.fromkeys(kind for one_example in examples for kind in one_example.counterfactuals)
    wanted = tuple(known) if kinds is None else tuple(one_of("kind", k, known) for k in kinds)
    for example in examples:
        for kind in wanted:
            if kind in example.counterfactuals:
                yield BaseAndSource(example, kind, example.counterfactuals[kind])
            else:
                dropped[example.unread.get(kind, ABSENT)] += 1


def interchange_pair(
    row: BaseAndSource,
    label: str | tuple[str, ...],
    base_label: str | tuple[str, ...],
    value: float = math.nan,
) -> InterchangePair:
    """The interchange of a row as text."""
    example = row.example
    return InterchangePair(
        id=f"{example.id}/{row.kind}",
        base=example.prompt.text,
        source=row.source.text,
        label=label,
        base_label=base_label,
        group=example.id if example.group is None else example.group,
        kind=row.kind,
        tags=example.tags,
        base_spans=example.prompt.spans,
        source_spans=row.source.spans,
        value=value,
    )


def outputs(model: CausalModel, variable: str | None, row: BaseAndSource) -> tuple[Any, Any]:
    """The output of a row's base with an interchange of one variable, and without.

    Raises:
        Undecided: a prompt cannot be read, or the model does not say.
    """
    assert model.read is not None
    base = model.read(row.example.prompt)
    own = model.value(model.output, base)
    if variable is None:
        return own, own
    return model.interchange(base, {variable: model.read(row.source)})[model.output], own


def _interchange(
    model: CausalModel, variable: str | None, row: BaseAndSource
) -> tuple[InterchangePair, float]:
    base = row.example.prompt
    value, own = outputs(model, variable, row)
    if model.contrast is not None:
        first, second = model.contrast(base)
        return interchange_pair(row, second, first, float(value)), float(own)
    assert model.write is not None
    label, base_label = model.write(value, base), model.write(own, base)
    if base.answers and set(base_label) != set(base.answers):
        raise Undecided(ANOTHER_ANSWER)
    if not label:
        raise Undecided(UNSAID)
    return interchange_pair(row, label, base_label), math.nan


def _none_left(
    model: str, variable: str | None, n_examples: int, dropped: Mapping[str, int]
) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
    what = "without an interchange" if variable is None else f"for the variable {variable!r}"
    return (
        f"The causal model {model!r} gives no label {what} to {n_examples} examples; dropped:"
        f" {reasons or 'none'}."
    )


def random_variable(
    labels: ExpectedLabels, answers: Mapping[str, str | tuple[str, ...]]
) -> ExpectedLabels:
    """The same pairs with the labels of a random variable: of each pair its base label, or the
    answer of its source, by a fixed hash of the two prompts.

    Args:
        answers: of sources, by the id of their pair; where there is none, it is the base label.
    """
    pairs: list[InterchangePair] = []
    for pair in labels:
        of_source = hashlib.sha256(f"{pair.base}\n{pair.source}".encode()).digest()[0] & 1
        label = answers.get(pair.id, pair.base_label) if of_source else pair.base_label
        pairs.append(replace(pair, label=label))
    return labels.with_pairs(pairs)
