"""The pairs that a variable is looked for with: train, validation and test, with labels and tokens.

    examples   of the task's splits, with the kinds of counterfactuals that are asked for
    answered   only examples whose base and counterfactuals the model answers right, all of them
               (Mueller et al. 2025, section 4.1); a prompt that nothing completes counts as right
    labels     of an interchange of the variable, by the causal model
    balanced   if asked for, as many pairs whose label changes as pairs whose label does not

What is left out is counted by reason. Public code looks for the answer anywhere in what is written;
here the whole answer is what greedy decoding writes.

Where several labels are right, as in greater-than, to write any of them may take no variable at
all: 99 is later than every year. There the label is what the model itself writes after the prompt
that has the values of the interchange (`CausalModel.prompt`), and pairs are dropped where that is
not right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mechassay.causal_models.causal_model import CausalModel
from mechassay.causal_models.hypothesis import defaults_of
from mechassay.causal_models.labels import (
    ExpectedLabels,
    alignable,
    expected_labels,
    random_variable,
)
from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.prompts.interchanges import InterchangePair
from mechassay.prompts.pairs import Example, Examples, Prompt
from mechassay.prompts.part_rules import with_parts
from mechassay.prompts.tokenization import encode, tokenizer_of
from mechassay.tasks.accuracy import score_prompts, written
from mechassay.tasks.task import Task
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress

WRONG = "model wrong on "
WRONG_IMPLIED = "model wrong on the prompt with the values of the interchange"
UNBALANCED = "more of its kind than of the other, for balance"
PATIENCE = 12
"""Examples that are looked at for each that is asked for, before a split is taken to have no more.
"""


@dataclass(frozen=True, eq=False, repr=False)
class VariablePairs(OneLine):
    """Labelled pairs of one variable, by split.

    Attributes:
        batches: their tokens.
        random: the same pairs with the labels of a random variable (`causal_models.labels`); of no
            split where labels are numbers.
    """

    variable: str | None
    labels: Mapping[str, ExpectedLabels]
    batches: Mapping[str, InterchangeBatch]
    random: Mapping[str, InterchangeBatch] = field(default_factory=dict[str, InterchangeBatch])

    def repr_fields(self) -> dict[str, Any]:
        return {"variable": self.variable, **{k: len(x) for k, x in self.labels.items()}}


@checked
def answered_examples(
    model: Model,
    task: Task,
    split: str,
    limit: int,
    kinds: Sequence[str] = (),
    *,
    position_rules: Sequence[str] = (),
    seed: int = 0,
    private_seed: int | None = None,
    progress: Progress = BAR,
) -> Examples:
    """Return the first examples of a split that a model answers right, with all counterfactuals.

    Args:
        limit: the number of examples.
        kinds: of counterfactuals that have to be there and answered; none: all there are.
        position_rules: parts that prompts get, see `prompts.part_rules`.

    Raises:
        BadPairs: no example is left; the message has the counts. Or a rule of positions does not
            match once.
        UnknownName: a kind that no example has; others, and BadUsage: see `Task.examples`.
    """
    defaults = defaults_of(task.name)
    seeds: dict[str, Any] = {"seed": seed, "private_seed": private_seed}
    most, wanted, whole = PATIENCE * limit, limit + limit // 4 + 4, False
    scored: dict[str, bool] = {}
    while True:
        try:
            made = task.examples(split, model, limit=wanted, **seeds)
        except BadUsage:
            # There are fewer: all of them then, which is refused anew if something else is wrong.
            made, whole = task.examples(split, model, **seeds), True
        examples = with_parts(defaults.prepared(made), position_rules)
        known = dict.fromkeys(k for x in examples for k in (*x.counterfactuals, *x.unread))
        for kind in kinds:
            one_of(f"kind of counterfactual of {task.name}", kind, known)
        _score(model, examples, kinds, scored, progress)
        reasons = [_reason(example, kinds, scored) for example in examples]
        rows = [row for row, reason in enumerate(reasons) if reason is None]
        if len(rows) >= limit or whole or wanted >= most:
            break
        share = max(len(rows), 1) / len(examples)
        wanted = min(most, max(2 * wanted, int(1.1 * limit / share)))
    # What stands behind the last that is kept was not left out for a reason.
    end = rows[limit - 1] + 1 if len(rows) >= limit else len(examples)
    dropped = Counter(examples.dropped) + Counter(reason for reason in reasons[:end] if reason)
    if not rows:
        reasons_text = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
        raise BadPairs(
            f"{model.name} answers none of {len(examples)} examples of {task.name} ({split}) with"
            f" all their counterfactuals; dropped: {reasons_text or 'none'}."
        )
    return Examples([examples[row] for row in rows[:limit]], dropped)


def _score(
    model: Model,
    examples: Sequence[Example],
    kinds: Sequence[str],
    scored: dict[str, bool],
    progress: Progress,
) -> None:
    """Add to `scored`, by text, whether a prompt is answered right, for those that have answers."""
    batches = {
        prompt.text: prompt
        for example in examples
        for prompt in _prompts(example, kinds).values()
        if prompt.answers and prompt.text not in scored
    }
    greedy = (
        score_prompts(model, list(batches.values()), progress=progress).greedy if batches else ()
    )
    scored.update((text, bool(right)) for text, right in zip(batches, greedy, strict=True))


def _prompts(example: Example, kinds: Sequence[str]) -> dict[str, Prompt]:
    """The base and the counterfactuals that count, by kind."""
    wanted = kinds or example.counterfactuals
    others = {k: example.counterfactuals[k] for k in wanted if k in example.counterfactuals}
    return {"base": example.prompt, **others}


def _reason(example: Example, kinds: Sequence[str], scored: Mapping[str, bool]) -> str | None:
    """Why an example is left out; None where it is not."""
    missing = next((kind for kind in kinds if kind not in example.counterfactuals), None)
    if missing is not None:
        return example.unread.get(missing, f"no {missing}")
    for kind, prompt in _prompts(example, kinds).items():
        if not scored.get(prompt.text, True):
            return f"{WRONG}{kind}"
    return None


@checked
def variable_pairs(
    model: Model,
    causal: CausalModel,
    variable: str | None,
    examples: Mapping[str, Sequence[Example]],
    kinds: Sequence[str] = (),
    *,
    balanced: bool = False,
    equal_lengths: bool = False,
    progress: Progress = BAR,
) -> VariablePairs:
    """The labelled pairs of a variable, with tokens.

    Args:
        examples: by split, such as `answered_examples` gives.
        kinds: of counterfactuals; none: all there are.
        balanced: leave out the last of those pairs of which there are more: whose label changes,
            or does not.
        equal_lengths: leave out pairs of prompts of different lengths, as sites at "all" tokens
            need it.

    Raises:
        UnknownName, BadUsage, BadPairs: see `expected_labels` and `ExpectedLabels.tokenized`; also
            if `balanced` leaves nothing.
    """
    labels: dict[str, ExpectedLabels] = {}
    batches: dict[str, InterchangeBatch] = {}
    random: dict[str, InterchangeBatch] = {}
    for split, some in examples.items():
        pairs = expected_labels(causal, variable, some, list(kinds) or None)
        if balanced:
            pairs = balance(pairs)
        pairs = with_own_labels(pairs, causal, model, progress=progress)
        labels[split], batches[split] = pairs.tokenized(model, equal_lengths=equal_lengths)
        if causal.contrast is None:
            try:
                answers = expected_labels(causal, causal.output, some, list(kinds) or None)
                answers = with_own_labels(answers, causal, model, progress=progress)
                by_id = {pair.id: pair.label for pair in answers}
            except BadPairs:  # No source has an answer of its own.
                by_id = {}
            random[split] = _random_batch(labels[split], by_id, model)
    return VariablePairs(variable, labels, batches, random)


def _random_batch(
    labels: ExpectedLabels, answers: Mapping[str, str | tuple[str, ...]], model: Model
) -> InterchangeBatch:
    """The tokens of a random variable's labels; base labels where an answer cannot be aligned."""
    drawn = random_variable(labels, answers)
    aligned, _ = alignable(drawn, model, equal_lengths=False)
    kept = {drawn[row].id: drawn[row].label for row in aligned}
    return InterchangeBatch.from_pairs(list(random_variable(labels, kept)), model)


def balance(labels: ExpectedLabels) -> ExpectedLabels:
    """As many pairs whose label changes as pairs whose label does not: the first of each.

    Raises:
        BadPairs: there are none of one of them.
    """
    changed = labels.changed
    n = int(min(changed.sum(), (~changed).sum()))
    if not n:
        what = "changes" if changed.all() else "keeps"
        raise BadPairs(
            f"No pairs of {labels.variable!r} to balance: its interchange {what} the label in all"
            f" {len(labels)}."
        )
    rows = np.sort(np.concatenate((changed.nonzero()[0][:n], (~changed).nonzero()[0][:n])))
    return labels.take(rows.tolist(), {UNBALANCED: len(labels) - 2 * n})


def with_own_labels(
    labels: ExpectedLabels, causal: CausalModel, model: Model, *, progress: Progress = BAR
) -> ExpectedLabels:
    """The pairs with one label each: of several right ones that which the model writes after the
    prompt that has the values of the interchange, and after the base.

    Raises:
        BadUsage: several labels are right, and the causal model has no such prompt.
        BadPairs: no pair is left; the message has the counts.
    """
    several = [row for row, pair in enumerate(labels) if len(pair.labels) > 1]
    if not several:
        return labels
    if causal.prompt is None:
        raise BadUsage(
            f"The causal model {causal.name!r} has several right labels for {len(several)} pairs:"
            " pass CausalModel(..., prompt=...), which says after what prompt they are right."
        )
    implied = [
        causal.prompt(pair.labels, Prompt(pair.base, spans=pair.base_spans)) for pair in labels
    ]
    texts = list(dict.fromkeys((*implied, *(pair.base for pair in labels))))
    n = _longest(labels, model)
    continuations = dict(zip(texts, written(model, texts, n, progress=progress), strict=True))
    kept, pairs = list[int](), list[InterchangePair]()
    for row, (pair, text) in enumerate(zip(labels, implied, strict=True)):
        label = next((x for x in pair.labels if continuations[text].startswith(x)), None)
        own = next((x for x in pair.base_labels if continuations[pair.base].startswith(x)), None)
        if label is not None and own is not None:
            kept.append(row)
            pairs.append(replace(pair, label=label, base_label=own))
    if not kept:
        raise BadPairs(
            f"{model.name} answers none of {len(labels)} prompts that have the values of an"
            f" interchange of {labels.variable!r}."
        )
    lost = len(labels) - len(kept)
    some = labels.take(kept, {WRONG_IMPLIED: lost} if lost else {})
    return some.with_pairs(pairs)


def _longest(labels: Sequence[InterchangePair], model: Model) -> int:
    """Tokens of the longest label, each after the first base that has it."""
    tokenizer = tokenizer_of("Labels", model)
    assert tokenizer is not None
    after: dict[str, str] = {}
    for pair in labels:
        for label in (*pair.labels, *pair.base_labels):
            after.setdefault(label, pair.base)
    bases = encode(tokenizer, list(after.values()))
    whole = encode(tokenizer, [base + label for label, base in after.items()])
    return max(1, *(len(long) - len(short) for long, short in zip(whole, bases, strict=True)))
