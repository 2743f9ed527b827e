"""Pairs whose corrupted prompts are drawn anew whenever they are asked for.

The clean prompts stay; `pairing` says who may give whom a corrupted prompt
(`mechassay.circuits.pairing`). Matched pairs are the same every time. Groups are what worst-group
weighs: the templates, or any field of the clean prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mechassay.circuits.pairing import check_pairing, paired
from mechassay.errors import BadUsage, UnknownName
from mechassay.models.constants import constants_of
from mechassay.pairs import Batch, Pair


@dataclass(frozen=True, eq=False)
class Redrawn:
    """Pairs, and how they are paired anew.

    Attributes:
        batch: the task's own pairs.
        pairing: one of `PAIRINGS`.
        templates: of each pair; needed for "same-template".
        group_names: of the groups, in the order of their numbers.
        groups: the number of each pair's group.
    """

    batch: Batch
    pairing: str
    templates: tuple[str | None, ...]
    group_names: tuple[str, ...]
    groups: Int[Tensor, "n"]

    @staticmethod
    def of(
        batch: Batch,
        pairing: str,
        templates: Sequence[str | None] = (),
        groups: Sequence[str] | None = None,
    ) -> Redrawn:
        """From a label for each pair; without groups all are in one.

        Raises:
            UnknownName: no such pairing.
            BadUsage: constants in place of corrupted prompts, or not one group a pair.
        """
        check_pairing(pairing)
        if constants_of(batch) is not None:
            raise BadUsage(
                "Corrupted prompts are drawn anew; these pairs carry constants in their place."
            )
        labels = [""] * len(batch) if groups is None else list(groups)
        if len(labels) != len(batch):
            raise BadUsage(
                f"Every pair needs a group; got {len(labels)} groups of {len(batch)} pairs."
            )
        names, member = np.unique(np.asarray(labels), return_inverse=True)
        return Redrawn(
            batch,
            pairing,
            tuple(templates),
            tuple(names.tolist()),
            torch.from_numpy(member.reshape(-1)),
        )

    def draw(self, rng: np.random.Generator) -> tuple[Batch, Int[Tensor, "kept"]]:
        """Pairs made anew, and the number of each one's group.

        Those that nobody can give a prompt are left out.

        Raises:
            BadUsage: "same-template" without a template for every pair.
            BadPairs: no pair has another example to take a prompt from.
        """
        found = paired(self.batch, self.pairing, rng, self.templates)
        return found.batch, self.groups[list(found.rows)]


def labels_of(pairs: Sequence[Pair], field: str) -> list[str]:
    """The value of a field in every clean prompt: a tag, or a part of the prompt.

    Raises:
        UnknownName: a pair lacks it.
    """
    found: list[str] = []
    for pair in pairs:
        known = {
            **{name: pair.clean[slice(*span)] for name, span in pair.spans.items()},
            **pair.tags,
        }
        if field not in known:
            raise UnknownName("field of prompts", field, known)
        found.append(known[field])
    return found
