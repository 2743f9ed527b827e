"""What ablated edges carry: the counterfactual run, or something else.

    counterfactual     the run of each pair's counterfactual prompt                  (MIB's default)
    zero               nothing
    mean               each writer's mean over all real positions of the examples
    positional-mean    each writer's mean at each position, counted from the first token
    resample           the run of another example's clean prompt, of equal length
    optimal            learned constants (Li and Janson 2024), see `circuits.optimal_ablation`

An ablation is a property of the batch: `ablate` returns a batch that attribution and evaluation use
alike. Constants are those of the examples that they are computed on, `data`.

MIB's code for means takes the last token only, divides by the prompt's length, and averages over
writers: one vector for all of them, close to zero. Here a mean is that of its own writer.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.files import read_tensors, write_tensors
from mechassay.models.constants import ConstantBatch, Constants, counterfactual_batch
from mechassay.models.decoder import at_least_fp32
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.pairs import Batch, PairsLike
from mechassay.progress import BAR, Progress

Ablation = Literal["counterfactual", "zero", "mean", "positional-mean", "resample", "optimal"]
ABLATIONS: tuple[str, ...] = get_args(Ablation)


def ablate(
    model: Model,
    pairs: PairsLike,
    ablation: str | Constants,
    *,
    data: PairsLike | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> Batch:
    """The pairs as a batch whose ablated edges carry something else than the counterfactual run.

    Args:
        pairs: pairs to score or evaluate on.
        ablation: one of `ABLATIONS`, or constants that are there already.
        data: examples that means are computed on; `pairs` if not given.
        seed: of "resample".

    Raises:
        UnknownName: no such ablation.
        BadUsage: "optimal" by name: its constants have to be learned first.
        BadPairs: "resample" where an example is the only one of its length.
    """
    batch = counterfactual_batch(model.batch(pairs))
    if isinstance(ablation, Constants):
        return ConstantBatch.of(batch, ablation)
    one_of("ablation", ablation, ABLATIONS)
    if ablation == "counterfactual":
        return batch
    if ablation == "resample":
        return _resampled(batch, np.random.default_rng(seed))
    if ablation == "optimal":
        raise BadUsage(
            "Optimal ablation needs learned constants: pass those of OptimalAblation().learn(model,"
            " pairs)."
        )
    values = ablated_values(model, batch if data is None else data, ablation, progress=progress)
    return ablate(model, batch, values)


def ablated_values(
    model: Model, data: PairsLike, ablation: str, *, progress: Progress = BAR
) -> Constants:
    """The constants of an ablation by zeros or means of clean runs.

    Raises:
        UnknownName: not "zero", "mean" or "positional-mean".
    """
    one_of("ablation by constants", ablation, ("zero", "mean", "positional-mean"))
    batch = model.batch(data)
    sums = _Sums(model, batch.n_tokens if ablation == "positional-mean" else 1)
    if ablation == "zero":
        return sums.values("zero")
    budget = token_budget(trace_bytes(model.decoder), batch.n_tokens, model.device)
    with (
        progress.track("means of clean runs", len(batch)) as advance,
        out_of_memory_is_an_error("Means of clean runs"),
    ):
        for rows, chunk in batch.chunks(budget):
            sums.add(chunk)
            advance(len(rows))
    return sums.values(ablation)


def save_ablated(values: Constants, path: Path) -> None:
    """Keep constants in a safetensors file."""
    tensors = {"embed": values.embed, "z": values.z}
    if values.mlp is not None:
        tensors["mlp"] = values.mlp
    write_tensors(path, tensors, {"kind": "ablated values", "name": values.name})


def load_ablated(path: Path) -> Constants:
    """Constants written by `save_ablated`.

    Raises:
        BadFile: truncated or foreign.
    """
    tensors, header = read_tensors(path, "ablated values")
    return Constants(header["name"], tensors["embed"], tensors["z"], tensors.get("mlp"))


class _Sums:
    """Sums of what every writer wrote, by known position, in fp32 at least."""

    def __init__(self, model: Model, known: int) -> None:
        decoder, graph = model.decoder, model.graph
        self.model, self.known = model, known
        zeros = torch.zeros((), dtype=model.accumulator, device=model.device).new_zeros
        d_head = decoder.layers[0].attention.out.shape[1]
        self.embed = zeros(known, decoder.d_model)
        self.z = zeros(graph.n_layers, graph.n_heads, known, d_head)
        self.mlp = zeros(graph.n_layers, known, decoder.d_model) if graph.mlp else None
        self.count = zeros(known)

    def add(self, chunk: Batch) -> None:
        taken, ctx = self.model.run(chunk)
        positions = ctx.position_ids.clamp(max=self.known - 1)
        # [known, batch * pos]: which real tokens belong to which position.
        known = torch.arange(self.known, device=positions.device)
        member = (positions.flatten() == known[:, None]) & chunk.mask.flatten()
        weights = member.to(self.count.dtype)
        self.count += weights.sum(1)
        self.embed += weights @ self._flat(taken.embed)
        for index, layer in enumerate(taken.layers):
            self.z[index] += weights @ self._flat(layer.z.transpose(0, 1))
            if layer.mlp is not None and self.mlp is not None:
                self.mlp[index] += weights @ self._flat(layer.mlp)

    def _flat(self, x: Tensor) -> Tensor:
        return at_least_fp32(x).flatten(-3, -2)

    def values(self, name: str) -> Constants:
        n, dtype = self.count.clamp(min=1)[:, None], self.model.dtype
        mlp = None if self.mlp is None else (self.mlp / n).to(dtype)
        return Constants(name, (self.embed / n).to(dtype), (self.z / n).to(dtype), mlp)


def _resampled(batch: Batch, rng: np.random.Generator) -> Batch:
    """Every counterfactual replaced by another example's clean prompt of equal length."""
    lengths = batch.lengths.cpu().numpy()
    other = np.empty(len(batch), dtype=int)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        if len(rows) < 2:
            raise BadPairs(
                f"Pair {batch.ids[rows[0]]} is the only one of {length} tokens: there is no other"
                " example to resample from."
            )
        # A shift of a random order by at least one: no example gets itself.
        order = rng.permutation(rows)
        other[order] = np.roll(order, int(rng.integers(1, len(rows))))
    drawn = batch.clean[torch.from_numpy(other).to(batch.clean.device)]
    digest = hashlib.sha256(other.tobytes()).hexdigest()[:16]
    return replace(batch, counterfactual=drawn, content=f"{batch.content}-{digest}")
