"""Where a site stands in a batch: the tokens of base and source that an intervention reads.

A named position is a column of the batch. A number counts a prompt's own tokens, from 0 at its
first or from -1 at its last. "all" is every token of the prompt, first with first: base and source
must have equally many. Where an intervention keeps equal values as they are, tokens before the
first difference of base and source are left out: both runs are the same there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage, NonFinite
from mechassay.interchange import LAST, InterchangeBatch
from mechassay.interventions.intervention import Add, Intervention, Replace
from mechassay.interventions.site import ALL, Site, load_site
from mechassay.models.model import Model

Interventions = Mapping[Site, Intervention] | Mapping[str, Intervention]
"""Interventions by site, or by its spelling."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A site's tokens in a batch.

    Attributes:
        row: the row of each token.
        base, source: its columns in the two tables; the source's only where it is read.
        null: rows without a token, as none of theirs could change.
    """

    site: Site
    row: Int[Tensor, "t"]
    base: Int[Tensor, "t"]
    source: Int[Tensor, "t"] | None
    null: Bool[Tensor, "n"]


def place_together(
    batch: InterchangeBatch, interventions: Mapping[Site, Intervention]
) -> list[Placed]:
    """The tokens of several sites that are changed in one run.

    A token that would be left as it is has another value where something at or before it is
    changed; so tokens are left out only before the first change of their row.

    Raises:
        UnknownName, BadPairs: see `place`.
    """
    placed = [place(batch, site, each) for site, each in interventions.items()]
    if len(placed) == 1:
        return placed
    first = torch.full_like(batch.base_lengths, batch.base.shape[1])
    for each in placed:
        first = first.scatter_reduce(0, each.row, each.base, "amin")
    return [place(batch, site, each, before=first) for site, each in interventions.items()]


def place(
    batch: InterchangeBatch,
    site: Site,
    intervention: Intervention,
    *,
    before: Int[Tensor, "n"] | None = None,
) -> Placed:
    """The tokens of one site under an intervention.

    Args:
        before: tokens that would keep their value are left out only before this column.

    Raises:
        UnknownName: the batch has no such column.
        BadPairs: a prompt has no such token, or base and source of "all" differ in length.
    """
    needs, keeps = intervention.needs_source, intervention.keeps_equal
    row, base, source = tokens_of(batch, site, needs=needs)
    if needs and keeps and source is not None:
        # Places are counted from each prompt's first token.
        starts = batch.starts
        same = (base - starts[0][row] == source - starts[1][row]) & (
            base < batch.first_difference()[row]
        )
        if before is not None:
            same = same & (base < before[row])
        row, base, source = row[~same], base[~same], source[~same]
    null = torch.ones(len(batch), dtype=torch.bool, device=row.device).index_fill(0, row, False)
    return Placed(site, row, base, source if needs else None, null)


def tokens_of(
    batch: InterchangeBatch, site: Site, *, needs: bool = True
) -> tuple[Int[Tensor, "t"], Int[Tensor, "t"], Int[Tensor, "t"] | None]:
    """The tokens of a site: their rows, in order, and their columns of base and source.

    Args:
        needs: whether the source's are read; prompts of "all" may differ in length if not.

    Raises:
        UnknownName: the batch has no such column.
        BadPairs: a prompt has no such token, or base and source of "all" differ in length.
    """
    if site.position == ALL:
        return _all(batch, site, needs=needs)
    row = torch.arange(len(batch), device=batch.base.device)
    return row, *_one(batch, site.position, needs=needs)


def _one(
    batch: InterchangeBatch, position: str | int, *, needs: bool
) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"] | None]:
    """One column of base and source for every row."""
    if isinstance(position, str):
        return batch.column(position)
    lasts = batch.columns[LAST]
    starts = batch.starts
    columns: list[Int[Tensor, "n"]] = []
    for side, start, last in zip(("base", "source"), starts, lasts, strict=True):
        column = (start if position >= 0 else last + 1) + position
        outside = (column < start) | (column > last)
        if bool(outside.any()) and (needs or side == "base"):
            row = int(outside.int().argmax())
            length = int(last[row] - start[row]) + 1
            raise BadPairs(
                f"Pair {batch.ids[row]}: its {side} has tokens 0 to {length - 1}; got position"
                f" {position}."
            )
        columns.append(column)
    return columns[0], columns[1]


def _all(
    batch: InterchangeBatch, site: Site, *, needs: bool
) -> tuple[Int[Tensor, "t"], Int[Tensor, "t"], Int[Tensor, "t"] | None]:
    """Every token of the prompts."""
    lasts = batch.columns[LAST]
    starts = batch.starts
    widths = [last - start + 1 for start, last in zip(starts, lasts, strict=True)]
    if needs and bool((widths[0] != widths[1]).any()):
        row = int((widths[0] != widths[1]).int().argmax())
        raise BadPairs(
            f"Pair {batch.ids[row]}: site {site} needs prompts of equal length; the base has"
            f" {int(widths[0][row])} tokens, the source {int(widths[1][row])}."
        )
    rows = torch.arange(len(batch), device=widths[0].device)
    row = torch.repeat_interleave(rows, widths[0])
    step = torch.arange(len(row), device=row.device) - (widths[0].cumsum(0) - widths[0])[row]
    return row, starts[0][row] + step, starts[1][row] + step


def by_site(given: Interventions) -> dict[Site, Intervention]:
    """Interventions by the sites that are meant.

    Raises:
        BadUsage: a site that cannot be read, or that is given twice.
    """
    found: dict[Site, Intervention] = {}
    for spelled, intervention in given.items():
        site = load_site(spelled)
        if site in found:
            raise BadUsage(f"Site {site} is given twice; a site has one intervention.")
        found[site] = intervention
    return found


def of_rows(
    batch: InterchangeBatch,
    interventions: Mapping[Site, Intervention],
    rows: Sequence[int] | Int[Tensor, "k"],
) -> dict[Site, Intervention]:
    """The interventions for some rows of a batch: of vectors, one a token, those of their tokens.

    Raises:
        BadUsage: not as many vectors as tokens.
    """
    chosen = torch.as_tensor(rows, device=batch.base.device)
    # The place of each row among those chosen; -1 of the others.
    place_of = chosen.new_full((len(batch),), -1)
    place_of[chosen] = torch.arange(len(chosen), device=chosen.device)
    found = dict(interventions)
    for site, each in interventions.items():
        if not isinstance(each, Add | Replace) or each.vector.ndim < 2:
            continue
        row, _, _ = tokens_of(batch, site, needs=False)
        if len(each.vector) != len(row):
            raise BadUsage(
                f"Site {site}: {type(each).__name__} needs one vector, or one for each of"
                f" {len(row)} tokens; got {len(each.vector)}."
            )
        kept = (place_of[row] >= 0).nonzero()[:, 0]
        tokens = kept[place_of[row[kept]].argsort(stable=True)]
        found[site] = replace(each, vector=each.vector[tokens.to(each.vector.device)])
    return found


def changed_values(
    site: Site, intervention: Intervention, values: Tensor, source: Tensor | None
) -> Tensor:
    """What an intervention makes of a site's values, if that can take their place.

    Raises:
        BadUsage: another shape, or no tensor.
        NonFinite: NaN or infinity.
    """
    new: Any = intervention(values, source)
    shape = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
    if not isinstance(new, Tensor) or shape != tuple(values.shape):
        raise BadUsage(
            f"Site {site}: {type(intervention).__name__} must return a value of shape"
            f" {tuple(values.shape)}; got {shape}."
        )
    if not bool(torch.isfinite(new).all()):
        raise NonFinite(f"Site {site}: {type(intervention).__name__} returned NaN or infinity.")
    return new.to(values.dtype)


def check_interventions(
    model: Model, interventions: Mapping[Site, Intervention]
) -> Mapping[Site, Intervention]:
    """The interventions, if they can be made.

    Raises:
        BadUsage: none; a site that the model does not have; what is no intervention.
    """
    if not interventions:
        raise BadUsage("At least one site with an intervention is needed; got none.")
    for site, intervention in interventions.items():
        site.check(model)
        known = all(hasattr(intervention, name) for name in ("needs_source", "keeps_equal"))
        if not callable(intervention) or isinstance(intervention, type) or not known:
            raise BadUsage(
                f"Site {site}: an intervention is Interchange(), Add(...), Ablate(...),"
                f" Replace(...), Scale(...) or an object like them; got {intervention!r}."
            )
    return interventions
