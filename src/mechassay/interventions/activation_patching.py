"""Activation patching: heat maps of what single activations carry, with intervals.

    denoising   the base is the counterfactual prompt, and one site gets the clean run's value
    noising     the base is the clean prompt, and one site gets the counterfactual run's value

    share = (m(patched) - m(base)) / (m(source) - m(base))          means m over pairs

is 0 where the site changes nothing and 1 where it carries all of the difference: what denoising
recovers, what noising destroys (Meng et al. 2022; Zhang and Nanda 2024). Sites are the residual
stream after a block or an MLP's output, for every token, or a head's mixes at all tokens
together. Intervals resample groups of pairs and recompute every mean.

Some shares are known before anything is run. A value can matter only where the prompts' tokens
make it differ and where attention carries it on to the last token's logits (`known_shares`).
Elsewhere it changes nothing: such cells are exact zeros and are not run. A stream that is the
only such one of its layer carries all, and its share is 1. The others run only the columns and
layers behind them, so a map costs far less than one forward pass a cell.

Pairs of one template have their parts at the same tokens, so a map by token is of one template
(`PatchMap.of`). Pairs of unequal lengths are aligned at their ends, and a token that a pair
lacks is undefined there. `PatchMap.whole` is one map of all pairs: its columns are the parts
that all prompts have, at their last tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadPairs, NonFinite, UnknownName, one_of
from mechassay.interventions.intervene import BaseRun, Branch, Change
from mechassay.interventions.names import DIRECTIONS, PARTS, Direction, Part
from mechassay.interventions.patch_map import PatchMap
from mechassay.interventions.site import ALL, LAST, Site, blocks
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.models.objectives import Objective, ObjectiveLike, load_objective
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.prompts.pairs import Pair
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, Advance, Progress

READOUTS = 1024
"""Rows whose objective is taken at once: one that reads all logits holds so many of them."""


@checked
def patch(
    model: Model,
    pairs: PairsLike,
    *,
    part: Part = "resid",
    direction: Direction = "denoising",
    objective: ObjectiveLike = "logit_diff",
    layers: Sequence[int] | int | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> PatchMap:
    """Patch one site after another between the prompts of pairs (activation patching).

        patched = ma.patch(model, ma.load_task("ioi").pairs("test", model, limit=20))
        patched.plot()

    Args:
        model: a loaded model, see `load_model`.
        pairs: pairs or a `Batch`; the two prompts of a pair have equally many tokens.
        part: "resid" (the stream after each block) and "mlp" at every token; "heads", each head's
            mixes at all tokens.
        direction: "denoising" puts clean values into counterfactual runs, "noising" the other way.
        objective: what is measured: a name, see `list_objectives`, an objective, or a function of
            the logits [batch, vocabulary] and the batch.
        layers: numbers of blocks; all by default, for "resid" without the embedding (-1).
        seed: of the bootstrap, which gives the intervals.
        progress: `SILENT` shows no bar.

    Returns:
        The objective of each pair at each layer and token (or head), with the objective of both
        unpatched runs. `estimate` gives means with intervals, `plot` the figure.

    Raises:
        BadPairs: see `Model.batch`; prompts of a pair that do not differ.
        BadUsage: a model without MLPs, no such layer, one twice.
        NonFinite: the objective overflows.
    """
    one_of("part of a site", part, PARTS)
    one_of("direction of patching", direction, DIRECTIONS)
    batch, chosen = model.batch(pairs), load_objective(objective)
    chosen_layers = blocks(model, layers)
    for layer in chosen_layers:
        Site(layer, ALL, part).check(model)
    same = (batch.clean == batch.counterfactual).all(dim=1)
    if bool(same.any()):
        raise BadPairs(
            f"Pair {batch.ids[int(same.nonzero()[0])]}: its prompts are the same; patching"
            " needs pairs that differ."
        )
    columns = model.graph.n_heads if part == "heads" else batch.n_tokens
    values = np.full((len(batch), len(chosen_layers), columns), np.nan)
    ends = np.full((2, len(batch)), np.nan)
    budget = max(
        batch.n_tokens, token_budget(2 * trace_bytes(model.decoder), batch.n_tokens, model.device)
    )
    known = np.zeros_like(values)
    total = values.size
    with (
        progress.track(f"patching {part}", total) as advance,
        out_of_memory_is_an_error("Patching"),
        torch.no_grad(),
    ):
        for rows, chunk in batch.chunks(budget):
            run = _PatchRun(model, chunk, chosen, part, direction)
            fixed = known_shares(model, chunk, part, chosen_layers)
            patched = run.values(chosen_layers, fixed, advance)
            begin = columns - patched.shape[2]
            values[rows, :, begin:], known[rows, :, begin:] = patched, fixed
            ends[:, rows] = run.ends
    if not np.isfinite(ends).all() or np.isinf(values).any():
        raise NonFinite(
            f"{chosen.name} overflows or is NaN on some pairs: a mean would be neither."
        )
    tokens = _tokens(model, batch)
    return PatchMap(
        part,
        direction,
        chosen.name,
        values,
        ends[0],
        ends[1],
        known,
        chosen_layers,
        tokens,
        _variants(pairs, batch),
        batch.ids,
        batch.groups,
        _parts(model, pairs, batch) if part != "heads" else {},
        model.graph.n_layers - 1,
        chosen.direction == "up",
        seed,
        model.name,
        str(getattr(pairs, "source", {}).get("task", "pairs")),
    )


def known_shares(
    model: Model, batch: Batch, part: Part, layers: Sequence[int]
) -> Float[np.ndarray, "pairs layers columns"]:
    """The shares that the prompts' tokens and the model's structure fix; NaN for all others.

    Attention alone moves values between columns, forwards and within its window. So it is known
    which streams of a layer may differ between the prompts of a pair, and which of them may reach
    the last column's logits. A patch elsewhere changes nothing: its share is 0. Where one stream
    alone does both, it is all that tells the runs apart: its share is 1.

    Args:
        layers: the blocks of the map's rows; -1 is the embedding.
    """
    columns, depth = batch.n_tokens, model.graph.n_layers
    distance = np.arange(columns)[:, None] - np.arange(columns)
    windows = [layer.attention.window or columns for layer in model.decoder.layers]
    seen = [(distance >= 0) & (distance < window) for window in windows]
    # Entry l is the stream that enters layer l; the last one is what the logits read.
    differs = [((batch.clean != batch.counterfactual) & batch.mask).cpu().numpy()]
    for layer in range(depth):
        differs.append(differs[-1] @ seen[layer].T)
    reads = [np.arange(columns) == columns - 1]
    for layer in reversed(range(depth)):
        reads.insert(0, reads[0] @ seen[layer])
    rows: list[np.ndarray] = []
    for layer in layers:
        # What an MLP reads: the stream after the heads, or, in parallel to them, before.
        entry = layer if part == "mlp" and model.graph.parallel else layer + 1
        matters = differs[entry] & reads[layer + 1]
        fixed = np.where(matters, np.nan, 0.0)
        if part == "heads":
            any_column = matters.any(axis=1, keepdims=True)
            fixed = np.where(any_column, np.nan, 0.0).repeat(model.graph.n_heads, axis=1)
        elif part == "resid":
            fixed[matters & (matters.sum(axis=1, keepdims=True) == 1)] = 1.0
        rows.append(fixed)
    return np.stack(rows, axis=1)


class _PatchRun:
    """Some pairs, run on both prompts, and their patches."""

    def __init__(
        self, model: Model, batch: Batch, objective: Objective, part: Part, direction: Direction
    ) -> None:
        self.model, self.batch, self.objective = model, batch, objective
        self.part: Part = part
        clean, other = (
            BaseRun.of(model, tokens, batch.mask) for tokens in (batch.clean, batch.counterfactual)
        )
        self.clean = clean.final()[:, 0]
        self.base, self.source = (other, clean) if direction == "denoising" else (clean, other)
        everyone = torch.arange(len(batch), device=model.device)
        self.ends = np.stack(
            [self._objective(run.final()[:, 0], everyone) for run in (self.base, self.source)]
        )
        differs = (batch.clean != batch.counterfactual) & batch.mask
        self.first = differs.int().argmax(dim=1).cpu().numpy()

    def _objective(self, final: Tensor, rows: Tensor) -> Float[np.ndarray, "n"]:
        """The objective of final streams [n, d_model] of some pairs."""
        arrays: list[np.ndarray] = []
        for begin in range(0, len(rows), READOUTS):
            part = rows[begin : begin + READOUTS]
            batch = self.batch.select(part.tolist())
            decoder = self.model.decoder
            clean = decoder.readout(self.clean[part]) if self.objective.needs_clean else None
            readout = decoder.readout(final[begin : begin + READOUTS])
            arrays.append(self.objective(readout, batch, clean).double().cpu().numpy())
        return np.concatenate(arrays) if arrays else np.zeros(0)

    def values(
        self,
        layers: Sequence[int],
        known: Float[np.ndarray, "pairs layers columns"],
        advance: Advance,
    ) -> Float[np.ndarray, "pairs layers columns"]:
        """The objective of every cell; those whose share is known to be 0 are not run."""
        values = np.broadcast_to(self.ends[0][:, None, None], known.shape).copy()
        patches = [
            patch
            for row, layer in enumerate(layers)
            for patch in self._patches(layer, known[:, row] != 0)
        ]
        n_run = sum(len(patch.rows) for patch in patches)
        advance(values.size - n_run)
        finals = self.base.run([patch.branch for patch in patches], advance=advance)
        if finals:
            every = torch.cat([patch.branch.prompts for patch in patches])
            objectives = self._objective(torch.cat(finals)[:, 0], every)
            parts = np.split(objectives, np.cumsum([len(patch.rows) for patch in patches])[:-1])
            for patch, part in zip(patches, parts, strict=True):
                values[patch.rows, layers.index(patch.layer), patch.column] = part
        if self.part != "heads":
            missing = ~self.batch.mask.cpu().numpy()
            values[np.broadcast_to(missing[:, None], known.shape)] = np.nan
        return values

    def _patches(self, layer: int, may: Bool[np.ndarray, "pairs columns"]) -> Iterator[_Patch]:
        """The cells of a layer that may change something."""
        last = layer + 1 == self.model.graph.n_layers
        first = np.full(len(self.batch), self.batch.n_tokens - 1) if last else self.first
        for column in np.flatnonzero(may.any(axis=0)).tolist():
            rows = np.flatnonzero(may[:, column])
            if self.part == "heads":
                site = Site(layer, ALL, "heads", (column,))
                yield self._patch(site, rows, first[rows], column)
            else:
                yield self._patch(Site(layer, column, self.part), rows, None, column)

    def _patch(self, site: Site, rows: np.ndarray, first: np.ndarray | None, column: int) -> _Patch:
        """One site of some pairs: at one column, or at all from the first on."""
        columns = self.batch.n_tokens
        if first is None:
            row, at = np.arange(len(rows)), np.full(len(rows), column)
        else:
            row = np.repeat(np.arange(len(rows)), columns - first)
            at = np.concatenate([np.arange(begin, columns) for begin in first])
        device = self.model.device
        prompts, row, at = (torch.as_tensor(x, device=device) for x in (rows, row, at))

        def new(value: Tensor) -> Tensor:
            return self.source.values(site, prompts[row], at)

        return _Patch(site.layer, column, rows, Branch(prompts, (Change(site, row, at, new),)))


class _Patch(NamedTuple):
    """A cell of the map: its layer and column, its pairs, and what is run."""

    layer: int
    column: int
    rows: Int[np.ndarray, "n"]
    branch: Branch


def _tokens(model: Model, batch: Batch) -> tuple[tuple[str, ...], ...]:
    """Each clean prompt's tokens as text, nothing at padding; a token without text is a space."""
    tokenizer = model.tokenizer
    rows: list[tuple[str, ...]] = []
    for ids, mask in zip(batch.clean.tolist(), batch.mask.tolist(), strict=True):
        texts = (
            map(str, ids) if tokenizer is None else (str(tokenizer.decode([x])) or " " for x in ids)
        )
        rows.append(tuple(t if real else "" for t, real in zip(texts, mask, strict=True)))
    return tuple(rows)


def _parts(model: Model, pairs: PairsLike, batch: Batch) -> dict[str, tuple[int, ...]]:
    """The columns of the parts that all prompts have, by name, of the tokens that differ, and of
    the last token.
    """
    given = [pairs] if isinstance(pairs, Pair) else [] if isinstance(pairs, Batch) else list(pairs)
    if not given or model.tokenizer is None:
        return {}
    shared = [name for name in given[0].spans if all(name in pair.spans for pair in given)]
    columns: dict[tuple[int, ...], list[str]] = {}
    for name in (*shared, LAST):
        try:
            at = tuple(model.positions(given, name).tolist())
        except (BadPairs, UnknownName):
            continue  # Its token was cut from a prompt: there is no such column.
        columns.setdefault(at, []).append(name)
    differs = (batch.clean != batch.counterfactual) & batch.mask
    first, last = differs.int().argmax(dim=1), differs.int().flip(1).argmax(dim=1)
    ends = tuple(first.tolist()), tuple((batch.n_tokens - 1 - last).tolist())
    names = ("the first token that differs", "the last token that differs")
    if ends[0] == ends[1]:
        names = ("the token that differs",)
    for at, name in zip(ends, names, strict=False):
        columns.setdefault(at, [name])
    # Parts that are always the same token are one.
    return {" = ".join(names): at for at, names in columns.items()}


def _variants(pairs: PairsLike, batch: Batch) -> tuple[str, ...]:
    """Each pair's template, and its number of tokens where its template has several."""
    given = [pairs] if isinstance(pairs, Pair) else [] if isinstance(pairs, Batch) else pairs
    names = [pair.tags.get("template", "") for pair in given] or [""] * len(batch)
    lengths = batch.lengths.tolist()
    kinds = Counter(name for name, _ in set(zip(names, lengths, strict=True)))
    return tuple(
        ", ".join(filter(None, (name, f"{n} tokens" if kinds[name] > 1 else "")))
        for name, n in zip(names, lengths, strict=True)
    )
