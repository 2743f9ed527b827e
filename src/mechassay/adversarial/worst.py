"""The pairs on which a circuit fails most, each run again by itself.

A fault of the evaluation would show in the maximum over a million pairs. So each of the worst pairs
is run once more, alone, and its divergence is computed from the two whole logit vectors in fp64,

    KL(M(x) || C) = sum_t p_t (log p_t - log q_t),

without what the evaluation of all pairs shares (blocks, broadcast runs, prefixes, the identity of
`divergence`). If the two differ by more than rounding (`Tolerance`), the stored value is wrong and
the run is broken. A fault that makes values too small does not show there, so some random pairs
are run alone as well.

The worst pairs are often one prompt with many others: a second list has every prompt once
(`pools.worst_apart`).

Tables 4 to 6 and 8 to 10 of Uit de Bos and Garriga-Alonso (2024) show the same ten rows. Their
values and logits come from two runs of different code, and contradict each other; here both come
from one run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.adversarial.divergence import Tolerance
from mechassay.adversarial.pools import Pool
from mechassay.circuits.circuit import Circuit
from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.models.circuit_forward import circuit_runner
from mechassay.models.constants import ConstantBatch, Constants
from mechassay.models.decoder import Readout
from mechassay.models.model import Model
from mechassay.models.trace import Contrast
from mechassay.pairs import Batch

N_TOKENS = 3


@dataclass(frozen=True)
class Token:
    """A token as text, and its logit."""

    text: str
    logit: float


@dataclass(frozen=True, repr=False)
class WorstCase(OneLine):
    """One pair.

    Attributes:
        clean, corrupted: its places in the pools.
        value: the divergence as it is stored, in nats.
        again: the same, computed by itself.
        agrees: whether the two are equal up to rounding.
        model, circuit: the most likely next tokens, best first.
    """

    clean: int
    corrupted: int
    value: float
    again: float
    agrees: bool
    model: tuple[Token, ...]
    circuit: tuple[Token, ...]


def random_places(
    values: Float[np.ndarray, "*pairs"], k: int, rng: np.random.Generator
) -> Int[np.ndarray, "k"]:
    """Places of k different pairs drawn at random, or of all if fewer; NaN is no pair."""
    pairs = np.flatnonzero(~np.isnan(values))
    return rng.choice(pairs, size=min(k, pairs.size), replace=False)


def cases_at(
    model: Model,
    circuit: Circuit,
    clean: Pool,
    corrupted: Pool,
    values: Float[np.ndarray, "*pairs"],
    places: Int[np.ndarray, "some"],
    *,
    ablated: Constants | None = None,
) -> tuple[WorstCase, ...]:
    """Some pairs, each run again by itself.

    Args:
        values: [clean, corrupted] of a grid, or [pairs], whose pair i is (clean i, corrupted i).
        places: of the pairs in the flat values.
        ablated: constants that ablated edges carry instead of the corrupted prompt's run.

    Raises:
        BadUsage: values of another shape than the pools'.
    """
    shapes = ((len(clean), len(corrupted)), (len(clean),))
    if values.shape not in shapes or (values.ndim == 1 and len(corrupted) != len(clean)):
        raise BadUsage(
            f"Values of {len(clean)} clean and {len(corrupted)} corrupted prompts cannot have the"
            f" shape {values.shape}."
        )
    run = circuit_runner(model.decoder, model.graph, circuit.edges, circuit.neurons)
    cases: list[WorstCase] = []
    for place in places.tolist():
        row, column = divmod(place, len(corrupted)) if values.ndim == 2 else (place, place)
        batch = _pair(clean.tokens[row], corrupted.tokens[column], ablated, model.device)
        cases.append(_case(model, run, batch, (row, column), float(values.reshape(-1)[place])))
    return tuple(cases)


def largest(values: Float[np.ndarray, "n"], k: int) -> Int[np.ndarray, "k"]:
    """Places of the k largest values, largest first, ties by place; NaN is no value.

    Raises:
        BadUsage: k below 0.
    """
    if k < 0:
        raise BadUsage(f"The number of worst pairs must be 0 or more; got {k}.")
    k = min(k, int((~np.isnan(values)).sum()))
    if k == 0:
        return np.empty(0, dtype=np.int64)
    keys = np.where(np.isnan(values), -np.inf, values)
    least = np.partition(keys, values.size - k)[values.size - k]
    places = np.flatnonzero(keys >= least)
    return places[np.argsort(-keys[places], kind="stable")][:k]


def _pair(
    clean: Int[Tensor, "pos"],
    corrupted: Int[Tensor, "pos"],
    ablated: Constants | None,
    device: torch.device,
) -> Batch:
    # Answers and foils are not used; they only have to differ.
    batch = Batch.from_tokens(clean[None], corrupted[None], [0], [1]).to(device)
    return batch if ablated is None else ConstantBatch.of(batch, ablated)


@torch.no_grad()
def _case(
    model: Model,
    run: Callable[[Contrast], Readout],
    batch: Batch,
    place: tuple[int, int],
    value: float,
) -> WorstCase:
    contrast = Contrast.run(model.decoder, batch)
    readouts = contrast.clean.readout(model.decoder), run(contrast)
    ours, theirs = (readout.all()[0].double() for readout in readouts)
    p, q = ours.log_softmax(dim=-1), theirs.log_softmax(dim=-1)
    again = float((p.exp() * (p - q)).sum())
    agrees = bool(Tolerance.of(model.dtype).holds(np.array(value), np.array(again)))
    return WorstCase(
        *place, value, again, agrees, _top_tokens(model, ours), _top_tokens(model, theirs)
    )


def _top_tokens(model: Model, logits: Float[Tensor, "vocab"]) -> tuple[Token, ...]:
    best = logits.topk(min(N_TOKENS, len(logits)))
    return tuple(
        Token(_text(model, token), logit)
        for token, logit in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )


def _text(model: Model, token: int) -> str:
    return str(token) if model.tokenizer is None else str(model.tokenizer.decode([token]))


def disagreements(cases: Sequence[WorstCase]) -> tuple[WorstCase, ...]:
    """The cases whose stored value is wrong."""
    return tuple(case for case in cases if not case.agrees)
