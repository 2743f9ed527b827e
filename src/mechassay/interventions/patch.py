"""Activation patching: the heat map of what single activations carry.

    denoising   the base is the counterfactual prompt, and one site gets the clean run's value
    noising     the base is the clean prompt, and one site gets the counterfactual run's value

    share = (m(patched) - m(base)) / (m(source) - m(base))          means m over pairs

is 0 where the site changes nothing and 1 where it carries all of the difference: what denoising
recovers, what noising destroys (Meng et al. 2022; Zhang & Nanda 2024). Sites are the residual
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
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.display import OneLine, data_frame, html_facts
from mechassay.errors import BadPairs, BadUsage, NonFinite, one_of
from mechassay.interventions.base_run import BaseRun, Cell, Change
from mechassay.interventions.site import ALL, PARTS, Part, Site
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.objectives import Objective, ObjectiveLike, load_objective
from mechassay.pairs import Batch, Pair, PairsLike
from mechassay.progress import BAR, Advance, Progress
from mechassay.stats.intervals import Estimate, Resamples, percentile_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Direction = Literal["denoising", "noising"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
COLUMNS = {"resid": "token", "mlp": "token", "heads": "head"}
READOUTS = 1024
"""Rows whose objective is taken at once: one that reads all logits holds so many of them."""


@dataclass(frozen=True, eq=False, repr=False)
class PatchMap(OneLine):
    """The objective after each patch, for every pair: layers x tokens, or layers x heads.

    Attributes:
        values: the objective with one site patched; NaN at tokens that a pair lacks.
        base, source: the objective of the base run and of the source run.
        layers: the block of each row; -1 is the embedding.
        tokens: of each pair's clean prompt, as text, aligned at their ends.
        variants: of each pair, its template and its length where there are several.
        ids, groups: of each pair, its name and the unit that intervals respect.
        n_null: cells that change nothing and were not run.
    """

    part: Part
    direction: Direction
    objective: str
    values: Float[np.ndarray, "pairs layers columns"]
    base: Float[np.ndarray, "pairs"]
    source: Float[np.ndarray, "pairs"]
    layers: tuple[int, ...]
    tokens: tuple[tuple[str, ...], ...]
    variants: tuple[str, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    n_null: int = 0
    seed: int = 0

    def shown(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "direction": self.direction,
            "pairs": len(self.ids),
            "layers": len(self.layers),
            f"{COLUMNS[self.part]}s": self.values.shape[2],
            "variants": len(set(self.variants)),
        }

    @property
    def total(self) -> float:
        """m(source) - m(base): what a share is a share of."""
        return float(self.source.mean() - self.base.mean())

    @cached_property
    def share(self) -> Float[np.ndarray, "layers columns"]:
        """The share of each cell, over all pairs; NaN where a pair lacks the token."""
        if self.total == 0:
            return np.full(self.values.shape[1:], np.nan)
        return (self.values.mean(0) - self.base.mean()) / self.total

    @cached_property
    def intervals(self) -> Float[np.ndarray, "2 layers columns"]:
        """Lower and upper end of each share's 95 % interval, over groups of pairs."""
        n = len(self.ids)
        flat = np.concatenate(
            (self.values.reshape(n, -1), self.base[:, None], self.source[:, None]), 1
        )
        draws = Resamples(self.groups, np.random.default_rng(self.seed)).means(flat.T)
        *cells, base, source = draws.T
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = [(cell - base) / (source - base) for cell in cells]
        n_groups = len(set(self.groups))
        found = [percentile_interval(share, n_groups=n_groups)[:2] for share in shares]
        return np.array(found).T.reshape(2, *self.values.shape[1:])

    def estimate(self, layer: int, column: int) -> Estimate:
        """One cell's share with its interval.

        Args:
            layer: a block of `layers`.
            column: of the map, a token from its first or a head; negative from the end.

        Raises:
            BadUsage: the map has no such layer or column.
        """
        if layer not in self.layers or not -self.values.shape[2] <= column < self.values.shape[2]:
            raise BadUsage(
                f"This map has layers {self.layers[0]} to {self.layers[-1]} and"
                f" {self.values.shape[2]} {COLUMNS[self.part]}s; got {layer} and {column}."
            )
        row = self.layers.index(layer)
        low, high = self.intervals[:, row, column]
        return Estimate(float(self.share[row, column]), float(low), float(high))

    @property
    def headings(self) -> tuple[str, ...]:
        """What the columns are: heads by number; tokens where all pairs have the same one, else
        the first pair's and "…".
        """
        if self.part == "heads":
            return tuple(str(head) for head in range(self.values.shape[2]))
        columns = zip(*self.tokens, strict=True)
        return tuple(
            texts[0] if len(set(texts)) == 1 else f"{texts[0]}…" for texts in map(tuple, columns)
        )

    @property
    def templates(self) -> tuple[str, ...]:
        """The variants of prompts, in the order of the pairs."""
        return tuple(dict.fromkeys(self.variants))

    def of(self, template: str) -> PatchMap:
        """The map of one variant of prompts, of its own tokens alone.

        Raises:
            UnknownName: no pair is of it.
        """
        one_of("template of the pairs", template, self.templates)
        rows = [row for row, variant in enumerate(self.variants) if variant == template]
        width = min(sum(text != "" for text in self.tokens[row]) for row in rows)
        start = 0 if self.part == "heads" else self.values.shape[2] - width

        def some(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[row] for row in rows)

        return PatchMap(
            self.part,
            self.direction,
            self.objective,
            self.values[rows][:, :, start:],
            self.base[rows],
            self.source[rows],
            self.layers,
            tuple(texts[len(texts) - width :] for texts in some(self.tokens)),
            some(self.variants),
            some(self.ids),
            some(self.groups),
            seed=self.seed,
        )

    def columns(self) -> dict[str, list[Any]]:
        """Cells as columns: template, layer, token or head, share and interval."""
        rows: list[tuple[Any, ...]] = []
        for template in self.templates:
            each = self.of(template)
            low, high = each.intervals
            rows += [
                (
                    template,
                    layer,
                    number,
                    heading,
                    *map(float, (each.share[row, number], low[row, number], high[row, number])),
                )
                for row, layer in enumerate(each.layers)
                for number, heading in enumerate(each.headings)
            ]
        names = ("template", "layer", "column", COLUMNS[self.part], "share", "low", "high")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return data_frame(self.columns())

    def plot(self, ax: Axes | None = None, *, template: str | None = None) -> Figure:
        """The heat map of one template; the first by default."""
        from mechassay.interventions.heat_map import draw_patch_map

        one = self.of(self.templates[0] if template is None else template)
        return draw_patch_map(one.share, one.layers, one.headings, one.part, ax=ax)

    def _repr_html_(self) -> str:
        from mechassay.figures import svg

        facts = {
            "pairs": len(self.ids),
            "direction": self.direction,
            "objective": self.objective,
            "base, source": f"{self.base.mean():.4g}, {self.source.mean():.4g}",
        }
        return html_facts(f"Patching of {self.part}", facts, svg(self.plot()))


def patch(
    model: Model,
    pairs: PairsLike,
    *,
    parts: Part = "resid",
    direction: Direction = "denoising",
    objective: ObjectiveLike = "logit_diff",
    layers: Sequence[int] | None = None,
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
        BadUsage: a model without MLPs, no such layer.
        NonFinite: the objective overflows.
    """
    one_of("part of a site", parts, PARTS)
    one_of("direction of patching", direction, DIRECTIONS)
    batch, chosen = model.batch(pairs), load_objective(objective)
    blocks = tuple(range(model.graph.n_layers) if layers is None else layers)
    for layer in blocks:
        Site(layer, ALL, parts).check(model)
    same = (batch.clean == batch.counterfactual).all(dim=1)
    if bool(same.any()):
        raise BadPairs(
            f"Pair {batch.ids[int(same.nonzero()[0])]}: its prompts are the same; patching"
            " needs pairs that differ."
        )
    columns = model.graph.n_heads if parts == "heads" else batch.n_tokens
    values = np.full((len(batch), len(blocks), columns), np.nan)
    ends = np.full((2, len(batch)), np.nan)
    budget = max(
        batch.n_tokens, token_budget(2 * trace_bytes(model.decoder), batch.n_tokens, model.device)
    )
    n_null, total = 0, len(batch) * len(blocks) * columns
    with (
        progress.track(f"patching {parts}", total) as advance,
        out_of_memory_is_an_error("Patching"),
        torch.no_grad(),
    ):
        for rows, chunk in batch.chunks(budget):
            run = _PatchRun(model, chunk, chosen, parts, direction)
            found, null = run.values(blocks, advance)
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
        blocks,
        tokens,
        _variants(pairs, batch),
        batch.ids,
        batch.groups,
        n_null,
        seed,
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
        finals = self.base.run([patch.cell for patch in patches], advance=advance)
        if finals:
            every = torch.cat([patch.cell.prompts for patch in patches])
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

        return _Patch(site.layer, column, rows, Cell(prompts, (Change(site, row, at, new),)))


class _Patch(NamedTuple):
    """A cell of the map: its layer and column, its pairs, and what is run."""

    layer: int
    column: int
    rows: Int[np.ndarray, "n"]
    cell: Cell


def _split(values: np.ndarray, patches: Sequence[_Patch]) -> list[np.ndarray]:
    return np.split(values, np.cumsum([len(patch.rows) for patch in patches])[:-1])


def _tokens(model: Model, batch: Batch) -> tuple[tuple[str, ...], ...]:
    """Each clean prompt's tokens as text, nothing at padding."""
    tokenizer = model.tokenizer
    rows: list[tuple[str, ...]] = []
    for ids, mask in zip(batch.clean.tolist(), batch.mask.tolist(), strict=True):
        told = map(str, ids) if tokenizer is None else (str(tokenizer.decode([x])) for x in ids)
        rows.append(tuple(t if real else "" for t, real in zip(told, mask, strict=True)))
    return tuple(rows)


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
