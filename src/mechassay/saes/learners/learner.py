"""An SAE in training: the parameters that all architectures share, and what each adds.

Values are scaled (see `saes.training`). The encoder is held by rows, a feature each, as the
decoder is: of a sparse code, only some rows have a gradient.

    pre = (x - b_dec) E' + b_enc  =  x E' + (b_enc - E b_dec)

The second form has no gradient of x, which would cost as much again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.saes.settings import SAESettings


@dataclass(frozen=True)
class Coded:
    """A batch as an SAE in training writes it.

    Attributes:
        decoded: x~.
        fired: which features some value activated.
        penalty: what is added to the squared error per number.
        prefixes: further x~, of smaller dictionaries, whose errors are added.
    """

    decoded: Float[Tensor, "b d"]
    fired: Bool[Tensor, "n"]
    penalty: Tensor | float = 0.0
    prefixes: Sequence[Float[Tensor, "b d"]] = ()


class Learner(ABC):
    """Parameters of an SAE in training.

    Attributes:
        n_kept: features that were begun with, the first ones: they are not drawn again when dead.

    Args:
        initial: unit rows that the decoder begins with, and the encoder as its transpose.
    """

    needs_batches = False
    """Whether `finish` needs batches of the trained SAE."""

    def __init__(self, settings: SAESettings, initial: Float[Tensor, "n d"]) -> None:
        n, d = initial.shape
        self.settings = settings
        self.n_kept = 0
        self.encoder = initial.clone().requires_grad_()
        self.decoder = initial.clone().requires_grad_()
        self.b_enc = initial.new_zeros(n).requires_grad_()
        self.b_dec = initial.new_zeros(d).requires_grad_()

    @abstractmethod
    def code(self, x: Float[Tensor, "b d"], step: int) -> Coded:
        """What the SAE makes of a batch, with gradients."""

    @abstractmethod
    def inference(self, scale: float) -> dict[str, Any]:
        """The activation of the trained SAE, and what it needs, in units of values.

        Args:
            scale: what values were multiplied by.
        """

    def finish(self, batches: Iterable[Float[Tensor, "b d"]]) -> None:
        """Find what only inference needs, from batches of train values; most need nothing."""
        return

    def parameters(self) -> list[Tensor]:
        """All that steps change; the first four are those of every architecture."""
        return [self.encoder, self.decoder, self.b_enc, self.b_dec]

    def per_feature(self) -> list[tuple[Tensor, float]]:
        """Parameters with one number a feature, and what a feature that is drawn again has."""
        return [(self.b_enc, 0.0)]

    def read(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b n"]:
        """pre of a batch."""
        return torch.addmm(self.b_enc - self.encoder @ self.b_dec, x, self.encoder.mT)

    @torch.no_grad()
    def begin_with(
        self,
        columns: Float[Tensor, "d m"],
        decoder: Float[Tensor, "m d"] | None = None,
        b_enc: Float[Tensor, "m"] | None = None,
        *,
        scale: float = 1.0,
    ) -> None:
        """The first features get columns of another SAE's W_enc, and, where these are given, their
        rows of W_dec and their biases.

        Args:
            scale: what values were multiplied by; biases are in units of values.

        Raises:
            BadUsage: they are too many, of another width, or not as many of each.
        """
        n, d = self.encoder.shape
        if columns.ndim != 2 or len(columns) != d or columns.shape[1] > n:
            raise BadUsage(
                f"Up to {n} columns of {d} numbers can be begun with; got shape"
                f" {tuple(columns.shape)}."
            )
        m = columns.shape[1]
        if (decoder is not None and tuple(decoder.shape) != (m, d)) or (
            b_enc is not None and tuple(b_enc.shape) != (m,)
        ):
            shapes = [None if x is None else tuple(x.shape) for x in (decoder, b_enc)]
            raise BadUsage(
                f"{m} features that are begun with have {m} rows of {d} numbers, and {m} biases;"
                f" got shapes {shapes[0]} and {shapes[1]}."
            )
        self.encoder[:m] = columns.mT.to(self.encoder)
        if decoder is not None:
            self.decoder[:m] = decoder.to(self.decoder)
        if b_enc is not None:
            self.b_enc[:m] = scale * b_enc.to(self.b_enc)
        self.n_kept = m

    @torch.no_grad()
    def normalise(self) -> None:
        """Rows of the decoder become unit vectors."""
        self.decoder /= self.decoder.norm(dim=1, keepdim=True).clamp(min=1e-12)
