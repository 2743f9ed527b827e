"""What a model says of labels of several tokens: their log-probability, and whether it writes them.

    log p(label) = sum_j log p(token_j | prompt, tokens before it)        teacher-forced, in nats
    written      = every token_j is the argmax there: what greedy decoding writes

Final streams of the columns before the tokens are all that is needed. Logits are made for some rows
at a time, as each has as many numbers as the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.models.decoder import Decoder
from mechassay.pairs import NO_TOKEN

ROWS = 512
"""Rows of logits held at once."""


class LabelScores(NamedTuple):
    """Of each row, its label's log-probability in nats, and whether it is written greedily."""

    log_probs: Float[Tensor, "n"]
    written: Bool[Tensor, "n"]


def score_labels(
    decoder: Decoder, final: Float[Tensor, "n m d_model"], targets: Int[Tensor, "n m"]
) -> LabelScores:
    """Scores of labels given final streams; `NO_TOKEN` has no part in them.

    A row without any token has NaN, and is not written.
    """
    real = targets != NO_TOKEN
    streams, tokens = final[real], targets[real]
    log_probs = final.new_zeros(targets.shape, dtype=torch.float64)
    best = torch.ones_like(real)
    found: list[Tensor] = []
    right: list[Tensor] = []
    for part, token in zip(streams.split(ROWS), tokens.split(ROWS), strict=True):
        logits = decoder.readout(part).all()
        found.append(logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(dim=1))
        right.append(logits.argmax(dim=1) == token)
    if found:
        log_probs[real] = torch.cat(found).double()
        best[real] = torch.cat(right)
    some = real.any(dim=1)
    total = log_probs.sum(dim=1).masked_fill(~some, float("nan"))
    return LabelScores(total, best.all(dim=1) & some)


def divergences(
    decoder: Decoder, base: Float[Tensor, "n d_model"], other: Float[Tensor, "n d_model"]
) -> Float[Tensor, "n"]:
    """KL(P_base || P_other) of next tokens, in nats, of final streams."""
    found: list[Tensor] = []
    for ours, theirs in zip(base.split(ROWS), other.split(ROWS), strict=True):
        p, q = (decoder.readout(x).all().log_softmax(dim=1) for x in (ours, theirs))
        found.append((p.exp() * (p - q)).sum(dim=1).double())
    return torch.cat(found) if found else base.new_zeros(0, dtype=torch.float64)
