"""Folders of MIB's causal track as its own code writes them, made with torch alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mechassay.interventions.site import ModelShape
from mechassay.models.graph import Graph
from mechassay.variables.mib_format import MIB_BOARD, BoardModel, MIBBoard

SMALL = ModelShape(Graph(3, 2), 8, 4)
BOARD = MIBBoard(
    MIB_BOARD.tasks, {kind: BoardModel(each.name, SMALL) for kind, each in MIB_BOARD.models.items()}
)
"""MIB's board, with models of three layers, two heads of 4 and width 8."""


class RotateLayer(nn.Module):
    """A weight [d, k]: pyvene's LowRankRotateLayer."""

    def __init__(self, rotation: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(rotation.clone())


class SubspaceModule(nn.Module):
    """MIB's SubspaceFeaturizerModule and its inverse, in one."""

    def __init__(self, rotation: Tensor) -> None:
        super().__init__()
        self.rotate = nn.utils.parametrizations.orthogonal(RotateLayer(rotation))

    def featurize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r = self.rotate.weight.T
        f = x @ r.T
        return f, x - f @ r

    def invert(self, f: Tensor, error: Tensor) -> Tensor:
        return f @ self.rotate.weight.T + error


def rotation(d: int, k: int, seed: int = 0) -> Tensor:
    """Random orthonormal columns."""
    drawn = torch.randn(d, k, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(drawn)[0].contiguous()


def trained(d: int, k: int, seed: int = 0) -> SubspaceModule:
    """A rotation after some steps, so that its parameter is not what it began with."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # Torch completes the rotation to a basis at random.
        module = SubspaceModule(rotation(d, k, seed))
    step = torch.optim.SGD(module.parameters(), lr=0.3)
    target = rotation(d, k, seed + 1)
    for _ in range(3):
        step.zero_grad()
        (module.rotate.weight * target).sum().neg().backward()
        step.step()
    return module


def info(kind: str, n_features: int | None, **config: Any) -> dict[str, Any]:
    return {
        "featurizer_class": f"{kind}FeaturizerModule",
        "inverse_featurizer_class": f"{kind}InverseFeaturizerModule",
        "n_features": n_features,
        "additional_config": config,
    }


def save_subspace(
    folder: Path, unit: str, module: SubspaceModule, indices: Sequence[int] | None = None
) -> None:
    """The three files of a rotation."""
    weight = module.rotate.weight
    about = info(
        "Subspace", weight.shape[1], rotation_matrix=weight.clone().detach(), requires_grad=True
    )
    save_files(folder, unit, about, module.state_dict(), indices)


def save_identity(
    folder: Path, unit: str, n_features: int | None, indices: Sequence[int] | None = None
) -> None:
    """The three files of an identity."""
    save_files(folder, unit, info("Identity", n_features), nn.Module().state_dict(), indices)


def save_files(
    folder: Path, unit: str, about: Any, state: Any, indices: Sequence[int] | None
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for role in ("featurizer", "inverse_featurizer"):
        torch.save({"model_info": about, "state_dict": state}, folder / f"{unit}_{role}")
    (folder / f"{unit}_indices").write_text(json.dumps(indices))


def stream(layer: int, token: str) -> str:
    return f"ResidualStream(Layer-{layer},Token-{token})"


def head(layer: int, number: int) -> str:
    return f"AttentionHead(Layer-{layer},Head-{number},Token-all)"
