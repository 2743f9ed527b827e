"""Which corrupted prompt each clean prompt is given where a circuit is looked for.

    matched          its own                                            (as the task made the pair)
    random           that of another example, of as many tokens
    same-template    that of another example, of as many tokens and built the same way
                     (`Task.template`)

A circuit found on matched pairs has only seen corruptions that leave most of the prompt as it was;
an adversarial grid has every clean prompt with every corrupted one, which is `random`.

The corrupted prompts are those of the pairs, each used once: within every group of prompts that may
be exchanged they are rotated by one in a random order. A pair that is alone in its group is left
out and counted. Answers and foils stay those of the clean prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.pairs import Batch

Pairing = Literal["matched", "random", "same-template"]
PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)


class Paired(NamedTuple):
    """Pairs made anew.

    Attributes:
        rows: which of the given pairs the clean prompts are, rising.
        n_alone: pairs left out, because no other example's prompt could be theirs.
    """

    batch: Batch
    rows: tuple[int, ...]
    n_alone: int


def check_pairing(pairing: str) -> None:
    """Refuse what is no pairing.

    Raises:
        UnknownName: it is none of `PAIRINGS`.
    """
    one_of("pairing", pairing, PAIRINGS)


def paired(
    batch: Batch, pairing: str, rng: np.random.Generator, templates: Sequence[str | None] = ()
) -> Paired:
    """The pairs with the corrupted prompts that a pairing gives them.

    Args:
        templates: of each pair, for "same-template"; None where the task does not say.

    Raises:
        UnknownName: no such pairing.
        BadUsage: "same-template" without a template for every pair.
        BadPairs: no pair has another example to take a prompt from.
    """
    check_pairing(pairing)
    n = len(batch)
    if pairing == "matched":
        return Paired(batch, tuple(range(n)), 0)
    kinds: list[str] = [""] * n
    if pairing == "same-template":
        kinds = [template for template in templates if template is not None]
        if len(kinds) != n:
            raise BadUsage(
                f"same-template needs the template of every pair; {len(kinds)} of {n} are known."
                " Take another pairing."
            )
    groups = np.unique(np.asarray(kinds), return_inverse=True)[1].reshape(-1)
    other = _partners(batch.lengths.cpu().numpy(), groups, rng)
    rows = np.flatnonzero(other >= 0)
    if not rows.size:
        built = " and of its template" if pairing == "same-template" else ""
        raise BadPairs(
            f"{pairing}: none of {n} pairs has another example of as many tokens{built}."
        )
    index = torch.from_numpy(np.where(other >= 0, other, 0))
    drawn = batch.counterfactual[index.to(batch.counterfactual.device)]
    digest = hashlib.sha256(other.tobytes()).hexdigest()[:16]
    made = replace(batch, counterfactual=drawn, content=f"{batch.content}-{digest}")
    kept = made if len(rows) == n else made.select(rows.tolist())
    return Paired(kept, tuple(rows.tolist()), n - len(rows))


def _partners(lengths: np.ndarray, kinds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each pair the place of the example whose corrupted prompt it takes; -1 if alone."""
    other = np.full(len(lengths), -1, dtype=np.int64)
    groups = np.unique(np.stack([lengths, kinds]), axis=1, return_inverse=True)[1].reshape(-1)
    for group in range(int(groups.max()) + 1):
        rows = rng.permutation(np.flatnonzero(groups == group))
        if len(rows) > 1:
            other[rows] = np.roll(rows, 1)
    return other
