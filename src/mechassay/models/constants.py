"""What ablated writers write when that is no run of the model: zeros, means, learned vectors.

Every writer has a constant, the same for all examples, either at every position or one for each
position (counted from the first real token; beyond the last one known, the last is taken). A head's
constant is its mix of values z, d_head wide, so what it writes is W_O z.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.pairs import Batch


@dataclass(frozen=True, eq=False)
class Constants:
    """A constant for every writer, by the kind of ablation (`name`); `known` is 1, or positions."""

    name: str
    embed: Float[Tensor, "known d_model"]
    z: Float[Tensor, "layers heads known d_head"]
    mlp: Float[Tensor, "layers known d_model"] | None

    def embed_at(self, positions: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return self.embed[self._index(positions)]

    def z_at(
        self, layer: int, positions: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch heads pos d_head"]:
        return self.z[layer][:, self._index(positions)].transpose(0, 1)

    def mlp_at(
        self, layer: int, positions: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos d_model"]:
        assert self.mlp is not None
        return self.mlp[layer][self._index(positions)]

    def _index(self, positions: Tensor) -> Tensor:
        return positions.clamp(max=len(self.embed) - 1)

    def to(self, device: torch.device | str) -> Constants:
        """The same values on `device`."""
        return replace(
            self,
            embed=self.embed.to(device),
            z=self.z.to(device),
            mlp=None if self.mlp is None else self.mlp.to(device),
        )

    @property
    def content(self) -> str:
        """SHA-256 of the name and the values."""
        digest = hashlib.sha256(self.name.encode())
        for values in (self.embed, self.z, self.mlp):
            if values is not None:
                digest.update(values.detach().cpu().float().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False, kw_only=True)
class ConstantBatch(Batch):
    """Pairs whose ablated edges carry constants in place of the counterfactual run."""

    # Made by `mechassay.circuits.ablate`; everything that takes a `Batch` takes it.

    constants: Constants

    @staticmethod
    def of(batch: Batch, constants: Constants) -> ConstantBatch:
        """The pairs of a batch with these constants, on the batch's device."""
        constants = constants.to(batch.clean.device)
        own = _own(batch)
        own["content"] = f"{batch.content}-{constants.content[:16]}"
        return ConstantBatch(**own, constants=constants)

    def first_difference(self) -> int:
        """0: constants differ from the clean run from the first column on."""
        return 0

    def to(self, device: torch.device | str) -> ConstantBatch:
        """The same batch with its tensors on `device`."""
        return replace(self, **_own(super().to(device)), constants=self.constants.to(device))


def constants_of(batch: Batch) -> Constants | None:
    """What ablated edges carry in place of the counterfactual run, if anything."""
    return batch.constants if isinstance(batch, ConstantBatch) else None


def counterfactual_batch(batch: Batch) -> Batch:
    """The pairs with their counterfactual runs."""
    return Batch(**_own(batch)) if isinstance(batch, ConstantBatch) else batch


def _own(batch: Batch) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in fields(Batch)}
