"""EX2, differential item functioning: IOI prompts with names of three kinds, run by a circuit.

The names of a prompt have equally many tokens, so that a prompt and its counterfactual, in which
the other name is repeated, are equally long; they begin with different tokens, by which answer and
foil are compared. How many names and pairs of names that leaves is in the table of groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import yaml

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.faithfulness import evaluate
from mechassay.errors import BadPairs, BadUsage
from mechassay.measurement.formulas import differential_items as formula
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag
from mechassay.pairs import Pair
from mechassay.tasks.words import word_lists

SPLIT = "test"
NamesByKind = Mapping[str, Sequence[str]]


@cache
def name_groups() -> NamesByKind:
    """Names by category."""
    text = files("mechassay.measurement").joinpath("data", "names.yaml").read_text("utf-8")
    return yaml.safe_load(text)


def name_tokens(names: Sequence[str], tokenizer: Any) -> dict[str, tuple[int, ...]]:
    """The tokens of each name behind a space; names that the tokenizer does not know are out."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    found: dict[str, tuple[int, ...]] = {}
    for name in names:
        before, whole = (
            tokenizer(text, add_special_tokens=False).input_ids for text in ("and", f"and {name}")
        )
        tokens = tuple(whole[len(before) :])
        if tokens and whole[: len(before)] == before and unknown not in tokens:
            found[name] = tokens
    return found


def name_pairs(tokens: Mapping[str, tuple[int, ...]]) -> list[tuple[str, str]]:
    """Pairs of names of equally many tokens that begin with different ones."""
    return [
        (a, b)
        for a, b in combinations(tokens, 2)
        if len(tokens[a]) == len(tokens[b]) and tokens[a][0] != tokens[b][0]
    ]


def pool_text(tokens: Mapping[str, tuple[int, ...]]) -> str:
    """How many names have how many tokens: `8 of 1, 21 of 2`."""
    counts = Counter(map(len, tokens.values()))
    return ", ".join(f"{n} of {length}" for length, n in sorted(counts.items()))


def prompts(
    group: str, pairs: Sequence[tuple[str, str]], n: int, rng: np.random.Generator
) -> list[Pair]:
    """IOI prompts with these pairs of names, in either order; a pair of names is a group."""
    words = word_lists("ioi")[SPLIT]
    made: list[Pair] = []
    for number in range(n):
        a, b = pairs[int(rng.integers(len(pairs)))]
        subject, other = (a, b) if rng.random() < 0.5 else (b, a)
        first, second = (subject, other) if rng.random() < 0.5 else (other, subject)
        about = {
            kind: words[f"{kind}s"][int(rng.integers(len(words[f"{kind}s"])))]
            for kind in ("object", "place")
        }
        template = words["templates"][int(rng.integers(len(words["templates"])))]
        texts = [
            template.format(name_A=first, name_B=second, name_C=third, **about)
            for third in (subject, other)
        ]
        made.append(
            Pair(
                f"{group} {number}",
                *texts,
                answers=(f" {other}",),
                foils=(f" {subject}",),
                group=f"{a}, {b}",
            )
        )
    return made


@dataclass(frozen=True)
class DifferentialItems:
    """Does a circuit do as well with names of all kinds, at equal ability of the model?

    Attributes:
        n_per_group: prompts of each kind of names.
    """

    n_per_group: int = 40

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "circuit", "names")

    def __post_init__(self) -> None:
        if self.n_per_group < 2:
            raise BadUsage(f"EX2 needs two prompts a group or more; got {self.n_per_group}.")

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`.

        Raises:
            BadPairs: the tokenizer leaves a category without a pair of names.
        """
        model, rng = inputs.model, np.random.default_rng(inputs.seed)
        tokenizer: Any = model.tokenizer
        if tokenizer is None:
            raise BadUsage(f"EX2 writes prompts, for which {model.name} has no tokenizer.")
        arms = [inputs.circuit, Circuit.full(model.graph)]
        found: dict[str, dict[str, Any]] = {
            "scores": {},
            "abilities": {},
            "clusters": {},
            "pools": {},
        }
        partial = 0
        for group, names in name_groups().items():
            tokens = name_tokens(names, tokenizer)
            pairs = name_pairs(tokens)
            if not pairs:
                raise BadPairs(
                    f"EX2 needs two {group} names of equally many tokens; the tokenizer of"
                    f" {model.name} leaves {pool_text(tokens) or 'none'}."
                )
            batch = model.batch(prompts(group, pairs, self.n_per_group, rng))
            values = evaluate(model, arms, batch, "logit_diff", progress=inputs.progress)
            found["scores"][group], found["abilities"][group] = values
            found["clusters"][group] = batch.groups
            found["pools"][group] = {
                "names by tokens": pool_text(tokens),
                "pairs of names": len(pairs),
            }
            partial += batch.alignment.get("partial", 0)
        flags: list[Flag] = []
        if partial:
            flags.append(
                Flag(
                    "first_tokens",
                    f"{partial} prompts compare names of several tokens by the first one.",
                )
            )
        return formula.differential_items(**found, seed=inputs.seed, flags=flags)

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts a group."""
        return formula.null(self.n_per_group if n is None else n, 3, n_simulations, seed)
