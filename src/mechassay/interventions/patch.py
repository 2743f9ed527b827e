"""Activation patching: the heat map of what single activations carry.

    denoising   the base is the counterfactual prompt, and one site gets the clean run's value
    noising     the base is the clean prompt, and one site gets the counterfactual run's value

    share = (m(patched) - m(base)) / (m(source) - m(base))          means m over pairs

is 0 where the site changes nothing and 1 where it carries all of the difference: what denoising
recovers, what noising destroys (Meng et al. 2022; Zhang and Nanda 2024). Sites are the residual
stream after a block or an MLP's output, for every token, or a head's mixes at all tokens together.

Cells before a pair's first difference, and those of the last layer at another token than the last,
change nothing; they are exact zeros and are not run. The others run only the columns and layers
behind them (`models.suffix_forward`), so a map costs far less than a forward a cell.

Pairs of one template have their parts at the same tokens; a map is of one template. Pairs of
unequal lengths are aligned at their ends, and a token that a pair lacks is undefined there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadPairs, NonFinite, UnknownName, one_of
from mechassay.interventions.base_run import BaseRun, Branch, Change
from mechassay.interventions.patch_map import DIRECTIONS, Direction, PatchMap
from mechassay.interventions.site import ALL, LAST, PARTS, Part, Site, blocks
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.objectives import Objective, ObjectiveLike, load_objective
from mechassay.pairs import Batch, Pair, PairsLike
from mechassay.progress import BAR, Advance, Progress

READOUTS = 1024
"""Rows whose objective is taken at once: one that reads all logits holds so many of them."""


def patch(
    model: Model,
    pairs: PairsLike,
    *,
    parts: Part = "resid",
    direction: Direction = "denoising",
    objective: ObjectiveLike = "logit_diff",
    layers: Sequence[int] | int | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> PatchMap:
    """Patch one site after another between the prompts of pairs.

    Args:
        pairs: prompts of equal lengths within a pair.
        parts: "resid" (the stream after each block) and "mlp" at every token; "heads", each head's
            mixes at all tokens.
        direction: "denoising" puts clean values into counterfactual runs, "noising" the other way.
        objective: a name, an objective, or a function of logits and batch.
        layers: blocks; all by default, for "resid" without the embedding (-1).
        seed: of the bootstrap.

    Raises:
        BadPairs: see `Model.batch`; prompts of a pair that do not differ.
        BadUsage: a model without MLPs, no such layer, one twice.
        NonFinite: the objective overflows.
    """
    one_of("part of a site", parts, PARTS)
    one_of("direction of patching", direction, DIRECTIONS)
    batch, chosen = model.batch(pairs), load_objective(objective)
    chosen_layers = blocks(model, layers)
    for layer in chosen_layers:
        Site(layer, ALL, parts).check(model)
    same = (batch.clean == batch.counterfactual).all(dim=1)
    if bool(same.any()):
        raise BadPairs(
            f"Pair {batch.ids[int(same.nonzero()[0])]}: its prompts are the same; patching"
            " needs pairs that differ."
        )
    columns = model.graph.n_heads if parts == "heads" else batch.n_tokens
    values = np.full((len(batch), len(chosen_layers), columns), np.nan)
    ends = np.full((2, len(batch)), np.nan)
    budget = max(
        batch.n_tokens, token_budget(2 * trace_bytes(model.decoder), batch.n_tokens, model.device)
    )
    n_null, total = 0, len(batch) * len(chosen_layers) * columns
    with (
        progress.track(f"patching {parts}", total) as advance,
        out_of_memory_is_an_error("Patching"),
        torch.no_grad(),
    ):
        for rows, chunk in batch.chunks(budget):
            run = _PatchRun(model, chunk, chosen, parts, direction)
            found, null = run.values(chosen_layers, advance)
            values[rows, :, values.shape[2] - found.shape[2] :] = found
            ends[:, rows] = run.ends
            n_null += null
    if not np.isfinite(ends).all() or np.isinf(values).any():
        raise NonFinite(
            f"{chosen.name} overflows or is NaN on some pairs: a mean would be neither."
        )
    tokens = _tokens(model, batch)
    return PatchMap(
        parts,
        direction,
        chosen.name,
        values,
        ends[0],
        ends[1],
        chosen_layers,
        tokens,
        _variants(pairs, batch),
        batch.ids,
        batch.groups,
        _parts(model, pairs) if parts != "heads" else {},
        model.graph.n_layers - 1,
        n_null,
        seed,
        model.name,
        str(getattr(pairs, "source", {}).get("task", "pairs")),
    )


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
        found: list[np.ndarray] = []
        for begin in range(0, len(rows), READOUTS):
            part = rows[begin : begin + READOUTS]
            batch = self.batch.select(part.tolist())
            decoder = self.model.decoder
            clean = decoder.readout(self.clean[part]) if self.objective.needs_clean else None
            readout = decoder.readout(final[begin : begin + READOUTS])
            found.append(self.objective(readout, batch, clean).double().cpu().numpy())
        return np.concatenate(found) if found else np.zeros(0)

    def values(
        self, layers: Sequence[int], advance: Advance
    ) -> tuple[Float[np.ndarray, "pairs layers columns"], int]:
        """The objective of every cell, and how many cells change nothing."""
        n, columns = len(self.batch), self.batch.n_tokens
        shape = (n, len(layers), self.model.graph.n_heads if self.part == "heads" else columns)
        values = np.broadcast_to(self.ends[0][:, None, None], shape).copy()
        patches = [each for layer in layers for each in self._patches(layer)]
        n_run = sum(len(patch.rows) for patch in patches)
        advance(values.size - n_run)
        finals = self.base.run([patch.branch for patch in patches], advance=advance)
        if finals:
            every = torch.cat([patch.branch.prompts for patch in patches])
            told = self._objective(torch.cat(finals)[:, 0], every)
            for patch, part in zip(patches, _split(told, patches), strict=True):
                values[patch.rows, layers.index(patch.layer), patch.column] = part
        if self.part != "heads":
            missing = ~self.batch.mask.cpu().numpy()
            values[np.broadcast_to(missing[:, None], shape)] = np.nan
        return values, values.size - n_run

    def _patches(self, layer: int) -> Iterator[_Patch]:
        """The cells of a layer that may change something."""
        last = layer + 1 == self.model.graph.n_layers
        columns = self.batch.n_tokens
        if self.part == "heads":
            first = np.full(len(self.batch), columns - 1) if last else self.first
            rows = np.arange(len(self.batch))
            for head in range(self.model.graph.n_heads):
                yield self._patch(Site(layer, ALL, "heads", (head,)), rows, first, head)
            return
        for column in range(columns - 1 if last else int(self.first.min()), columns):
            rows = np.flatnonzero(self.first <= column)
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


def _split(values: np.ndarray, patches: Sequence[_Patch]) -> list[np.ndarray]:
    return np.split(values, np.cumsum([len(patch.rows) for patch in patches])[:-1])


def _tokens(model: Model, batch: Batch) -> tuple[tuple[str, ...], ...]:
    """Each clean prompt's tokens as text, nothing at padding; a token without text is a space."""
    tokenizer = model.tokenizer
    rows: list[tuple[str, ...]] = []
    for ids, mask in zip(batch.clean.tolist(), batch.mask.tolist(), strict=True):
        told = (
            map(str, ids) if tokenizer is None else (str(tokenizer.decode([x])) or " " for x in ids)
        )
        rows.append(tuple(t if real else "" for t, real in zip(told, mask, strict=True)))
    return tuple(rows)


def _parts(model: Model, pairs: PairsLike) -> dict[str, tuple[int, ...]]:
    """The columns of the parts that all prompts have, by name, and of the last token."""
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
    # In the order of the prompts; parts that are always the same token are one.
    return {" = ".join(names): at for at, names in sorted(columns.items(), key=_mean_place)}


def _mean_place(part: tuple[tuple[int, ...], list[str]]) -> float:
    return float(np.mean(part[0]))


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
