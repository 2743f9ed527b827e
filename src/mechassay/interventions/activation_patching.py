"""Activation patching: heat maps of what single activations carry, with intervals.

    denoising   the base is the counterfactual prompt, and one site gets the clean run's value
    noising     the base is the clean prompt, and one site gets the counterfactual run's value

    share = (m(patched) - m(base)) / (m(source) - m(base))          means m over pairs

is 0 where the site changes nothing and 1 where it carries all of the difference: what denoising
recovers, what noising destroys (Meng et al. 2022; Zhang and Nanda 2024). Sites are the residual
stream after a block or an MLP's output, for every token, or a head's mixes at all tokens
together. Intervals resample groups of pairs and recompute every mean.

Cells before a pair's first difference, and those of the last layer at another token than the
last, change nothing; they are exact zeros and are not run. The others run only the columns and
layers behind them, so a map costs far less than one forward pass a cell.

Pairs of one template have their parts at the same tokens, so a map by token is of one template
(`PatchMap.of`). Pairs of unequal lengths are aligned at their ends, and a token that a pair
lacks is undefined there. `PatchMap.whole` is one map of all pairs: its columns are the parts
that all prompts have, at their last tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadFile, BadPairs, BadUsage, NonFinite, UnknownName, first_line, one_of
from mechassay.interventions.intervene import BaseRun, Branch, Change
from mechassay.interventions.site import ALL, LAST, PARTS, Part, Site, blocks
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.models.objectives import Objective, ObjectiveLike, least_size, load_objective
from mechassay.prompts.pairs import Batch, Pair, PairsLike
from mechassay.results.records import (
    Check,
    Measure,
    Provenance,
    Record,
    Spec,
    Table,
    measured,
    provenance,
)
from mechassay.stats.intervals import Estimate, Resamples, percentile_interval, resolved_difference
from mechassay.utils.display import BAR, Advance, OneLine, Progress, Tabular, html_facts
from mechassay.utils.files import read_tensors, write_tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Direction = Literal["denoising", "noising"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
COLUMNS = {"resid": "token", "mlp": "token", "heads": "head"}
KIND = "patch"
HIDDEN = "·"
ALL_PROMPTS = "all prompts"
EXACT = 1e-4
"""By how much a share that must be 1 may differ, for rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class PatchMap(OneLine, Tabular):
    """The objective after each patch, for every pair: layers x tokens, or layers x heads.

    Attributes:
        values: the objective with one site patched; NaN at tokens that a pair lacks.
        base, source: the objective of the base run and of the source run.
        layers: the block of each row; -1 is the embedding.
        tokens: of each pair's clean prompt, as text, aligned at their ends.
        variants: of each pair, its template and its length where there are several.
        ids, groups: of each pair, its name and the unit that intervals respect.
        parts: by name, the column of a part of each pair's prompts, such as the subject.
        last_layer: the model's last block.
        n_null: cells that change nothing and were not run.
        seed: of the bootstrap.
        model, task: what they are called.
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
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    last_layer: int = -1
    n_null: int = 0
    seed: int = 0
    model: str = "model"
    task: str = "pairs"

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
        """m(source) - m(base): what a share is a share of; 0 where it may be rounding alone."""
        return float(self._gap(self.base.mean(), self.source.mean()))

    def _gap(self, base: Any, source: Any) -> Any:
        """The difference of means over pairs, or over resamples of them."""
        ends = np.stack((self.base, self.source))
        return resolved_difference(source, base, ends, least=least_size(self.objective))

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
        # A resample without a difference has no shares.
        gaps = self._gap(base, source)
        total = np.where(gaps == 0, np.nan, gaps)
        shares = [(cell - base) / total for cell in cells]
        n_groups = len(set(self.groups))
        found = [percentile_interval(share, n_groups=n_groups)[:2] for share in shares]
        return np.array(found).T.reshape(2, *self.values.shape[1:])

    def _interval_of_mean(self, values: Float[np.ndarray, "pairs"]) -> tuple[float, float]:
        """The 95 % interval of a mean over pairs, over their groups."""
        draws = Resamples(self.groups, np.random.default_rng(self.seed)).means(values[None])[:, 0]
        low, high, _ = percentile_interval(draws, n_groups=len(set(self.groups)))
        return low, high

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

        return replace(
            self,
            values=self.values[rows][:, :, start:],
            base=self.base[rows],
            source=self.source[rows],
            tokens=tuple(texts[len(texts) - width :] for texts in some(self.tokens)),
            variants=some(self.variants),
            ids=some(self.ids),
            groups=some(self.groups),
            parts={name: tuple(x - start for x in some(at)) for name, at in self.parts.items()},
        )

    def without_tokens(self) -> PatchMap:
        """The map without the prompts' words, for private pairs; templates are numbered."""
        hidden = tuple(tuple(HIDDEN if text else "" for text in row) for row in self.tokens)
        numbers = {
            name: f"template {i}" if name else "" for i, name in enumerate(self.templates, 1)
        }
        return replace(self, tokens=hidden, variants=tuple(numbers[name] for name in self.variants))

    @cached_property
    def whole(self) -> PatchMap | None:
        """The map of all pairs together, whatever their templates: of heads, or of the parts that
        all prompts have; None where there are no parts.
        """
        rows = np.arange(len(self.ids))
        everyone = (ALL_PROMPTS,) * len(rows)
        if self.part == "heads":
            return replace(self, variants=everyone)
        if not self.parts:
            return None
        columns = [self.values[rows, :, list(at)] for at in self.parts.values()]
        names = tuple(f"[{name}]" for name in self.parts)
        return replace(
            self,
            values=np.stack(columns, axis=2),
            tokens=(names,) * len(rows),
            variants=everyone,
            parts={},
        )

    def columns(self) -> dict[str, list[Any]]:
        """Cells as columns: template, layer, token or head, share and interval."""
        rows: list[tuple[Any, ...]] = []
        whole = [] if self.whole is None else [self.whole]
        for each in (*whole, *map(self.of, self.templates)):
            template, (low, high) = each.variants[0], each.intervals
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

    def plot(self, ax: Axes | None = None, *, template: str | None = None) -> Figure:
        """The heat map of one template; of the parts of all prompts by default, where there are
        several templates.
        """
        from mechassay.interventions.heatmap import draw_patch_map

        whole = None if template or len(self.templates) == 1 else self.whole
        one = self.of(template or self.templates[0]) if whole is None else whole
        return draw_patch_map(one.share, one.layers, one.headings, one.part, ax=ax)

    def _repr_html_(self) -> str:
        from mechassay.results.plots import svg

        facts = {
            "pairs": len(self.ids),
            "direction": self.direction,
            "objective": self.objective,
            "base, source": f"{self.base.mean():.4g}, {self.source.mean():.4g}",
        }
        return html_facts(f"Patching of {self.part}", facts, svg(self.plot()))

    def save(self, path: str | Path) -> Path:
        """Write the map as a safetensors file; `load` reads it."""
        arrays = {"values": self.values, "base": self.base, "source": self.source}
        header = {each.name: getattr(self, each.name) for each in fields(self)}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}
        about = {name: x for name, x in header.items() if name not in arrays}
        write_tensors(Path(path), tensors, {"kind": KIND, **about})
        return Path(path)

    @staticmethod
    def load(path: str | Path) -> PatchMap:
        """A map written by `save`.

        Raises:
            BadFile: missing, truncated or foreign.
        """
        tensors, header = read_tensors(Path(path), KIND)
        try:
            return PatchMap(
                one_of("part of a site", header["part"], PARTS),
                one_of("direction of patching", header["direction"], DIRECTIONS),
                str(header["objective"]),
                *(tensors[name].numpy() for name in ("values", "base", "source")),
                layers=tuple(map(int, header["layers"])),
                tokens=tuple(tuple(map(str, texts)) for texts in header["tokens"]),
                variants=tuple(map(str, header["variants"])),
                ids=tuple(map(str, header["ids"])),
                groups=tuple(map(str, header["groups"])),
                parts={name: tuple(map(int, at)) for name, at in header["parts"].items()},
                last_layer=int(header["last_layer"]),
                n_null=int(header["n_null"]),
                seed=int(header["seed"]),
                model=str(header["model"]),
                task=str(header["task"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError, UnknownName) as error:
            raise BadFile(f"{path}: not a map of patching ({first_line(error)}).") from None

    def record(
        self, specs: Mapping[str, Spec] | None = None, made: Provenance | None = None, **more: Any
    ) -> Record:
        """The map as a record: the largest share, both ends, checks, and a table of all cells.

        Args:
            specs: more of model and task than their names.
            made: how it came about.
            more: other fields of the record.
        """
        names = {"model": Spec(name=self.model), "task": Spec(name=self.task)}
        method = Spec(name=self.part, args={"direction": self.direction})
        keys = ("template", "layer", "column")
        about = made or provenance(device="", dtype="", seed=self.seed)
        return Record(
            kind=KIND,
            specs={**names, **(specs or {}), "method": method, "metric": Spec(name=self.objective)},
            measures=list(self._measures()),
            tables=[Table(name="patches", keys=keys, columns=self.columns())],
            checks=self._checks(),
            warnings=self._warnings(),
            provenance=about,
            **more,
        )

    def to_html(self, path: str | Path) -> Path:
        """Write the map as one self-contained HTML file with its figures."""
        from mechassay.results.report import write_page

        return write_page(Path(path), [self.record()])

    def _measures(self) -> Iterator[Measure]:
        # The map of all pairs together where it has one, else that of the first template.
        whole, n = self.whole or self.of(self.templates[0]), len(self.ids)
        if not np.isnan(whole.share).all():
            row, column = np.unravel_index(int(np.nanargmax(whole.share)), whole.share.shape)
            found = whole.estimate(self.layers[row], int(column))
            says = (
                "The largest share of all cells. It is chosen as the largest, so that it and its"
                " interval are too high; the table of cells says where it is."
            )
            share = ("largest_share", "largest share", "result", found, len(whole.ids), says)
            yield measured(*share, better="")
        for name, values in (("base", self.base), ("source", self.source)):
            mean = Estimate(float(values.mean()), *self._interval_of_mean(values))
            says = f"The mean objective of the {name} run, without a patch."
            yield measured(f"m_{name}", f"m({name})", "model", mean, n, says, better="")

    def _checks(self) -> list[Check]:
        """The stream after the last block at the last token is all that the logits read."""
        last = max(self.layers)
        if self.part != "resid" or self.total == 0 or last != self.last_layer:
            return []
        off = abs(self.share[self.layers.index(last), -1] - 1)
        return [
            Check(
                name="the last block at the last token",
                must_be="a share of 1",
                largest=float(off),
                n=1,
                n_wrong=int(off > EXACT),
            )
        ]

    def _warnings(self) -> list[str]:
        low, high = self._interval_of_mean(self.source - self.base)
        if low <= 0 <= high:
            return [
                "Base and source hardly differ in the objective, so shares divide by about 0:"
                f" m(source) - m(base) is {self.total:.3g}, between {low:.3g} and {high:.3g}."
            ]
        return []


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
