r"""Parts of prompts by a rule, so that a position can be named without code.

    year=/in 17(\d\d)/      the part "year" is the group, or the whole match of a rule without one

The rule is a regular expression of Python's `re`, searched in the text of every prompt and of every
counterfactual prompt; it has to match exactly once. `last` and the parts that a task or a file has
(columns `spans`, `base_spans`, `source_spans`) need no rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mechassay.errors import BadPairs, BadUsage
from mechassay.prompts.pairs import Example, Examples, Prompt, Span
from mechassay.utils.display import shortened

_RULE = re.compile(r"(?P<name>\w+)=/(?P<pattern>.+)/", re.DOTALL)
LONGEST = 200
"""Letters of an expression."""


@dataclass(frozen=True)
class PartRule:
    """A part of a prompt by its name and a regular expression."""

    name: str
    pattern: re.Pattern[str]

    @staticmethod
    def of(text: str) -> PartRule:
        """Read a rule as it is typed.

        Raises:
            BadUsage: it is not NAME=/EXPRESSION/, takes a name that has a meaning, or is no regular
                expression with at most one group.
        """
        match = _RULE.fullmatch(text)
        if match is None or len(text) > LONGEST:
            raise BadUsage(
                f"A part of prompts is written NAME=/EXPRESSION/, in at most {LONGEST} letters; got"
                f" {shortened(text, 60)!r}."
            )
        if match["name"] in ("last", "all", "first"):
            raise BadUsage(f"{match['name']!r} means a token already; call the part otherwise.")
        try:
            pattern = re.compile(match["pattern"])
        except re.error as error:
            raise BadUsage(f"{text}: no regular expression ({error}).") from None
        if pattern.groups > 1:
            raise BadUsage(f"{text}: has {pattern.groups} groups; one at most says what is meant.")
        return PartRule(match["name"], pattern)

    def span(self, text: str) -> Span | None:
        """Where the part is, in characters; None where the rule matches twice or not at all."""
        matches = list(self.pattern.finditer(text))
        if len(matches) != 1:
            return None
        begin, end = matches[0].span(self.pattern.groups)
        return (begin, end) if 0 <= begin < end else None


def with_parts(examples: Examples, rules: Sequence[str]) -> Examples:
    """Examples whose prompts have the parts of rules, beside their own.

    Raises:
        BadUsage: see `PartRule.of`.
        BadPairs: a prompt in which a rule matches twice, not at all, or nothing; the message has
            the text.
    """
    read = [PartRule.of(rule) for rule in rules]

    def parted(example: Example, prompt: Prompt) -> Prompt:
        spans = dict(prompt.spans)
        for rule in read:
            span = rule.span(prompt.text)
            if span is None:
                n = len(rule.pattern.findall(prompt.text))
                raise BadPairs(
                    f"{example.id}: /{rule.pattern.pattern}/ matches {n} times in"
                    f" {shortened(prompt.text, 80)!r}; {rule.name} is one stretch of text."
                )
            spans[rule.name] = span
        return replace(prompt, spans=spans)

    if not read:
        return examples
    parted_examples = [
        replace(
            example,
            prompt=parted(example, example.prompt),
            counterfactuals={
                kind: parted(example, prompt) for kind, prompt in example.counterfactuals.items()
            },
        )
        for example in examples
    ]
    return Examples(parted_examples, examples.dropped)
