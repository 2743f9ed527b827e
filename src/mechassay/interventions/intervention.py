"""Interventions: what a site's value becomes, given its own and, for some, another prompt's.

    Interchange   b -> s                     activation patching; alpha: b + alpha (s - b)
                  b -> b + decode(f_s) - decode(f_b) in the chosen features of a featurizer
    Add           b -> b + scale v           steering
    Ablate        b -> b - V V'(b - m)       the directions V zeroed (m = 0) or set to a mean m
    Replace       b -> v                     with a vector of one's own; alpha as above
    Scale         b -> scale b               a writer's output, more or less of it

b and s are [n, d]: the values of n tokens at the site in the base and in the source run. An
interpolation by alpha is exact at both ends.

The tokens are those of the site's position (`place`). A named position is a column of the batch.
A number counts a prompt's own tokens, from 0 at its first or from -1 at its last. "all" is every
token of the prompt, first with first: base and source must have equally many. Where an
intervention keeps equal values as they are, tokens before the first difference of base and
source are left out: both runs are the same there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage, NonFinite
from mechassay.interventions.site import ALL, Site, SiteLike, load_site
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import LAST, InterchangeBatch
from mechassay.utils.arguments import check_fields
from mechassay.utils.display import OneLine

Values = Float[Tensor, "n d"]
Target = Literal["zero", "mean"]
Number = float | Tensor
"""A number, or a tensor of one number, to which gradients may flow."""


class Intervention(Protocol):
    """A function of a site's values; your own has these attributes and this call. It is called for
    some rows of a batch at a time, in an order of their lengths.

    Attributes:
        needs_source: whether it reads the source run's values.
        keeps_equal: whether equal values of base and source are left as they are.
    """

    @property
    def needs_source(self) -> bool: ...

    @property
    def keeps_equal(self) -> bool: ...

    def __call__(self, base: Values, source: Values | None) -> Values:
        """New values [n, d] for n tokens."""
        ...


class Features(Protocol):
    """Features of a site's values that can be exchanged, see `mechassay.features`."""

    def change(self, base: Values, source: Values) -> Values:
        """The base's values with the source's features."""
        ...


@dataclass(frozen=True, repr=False)
class Interchange(OneLine):
    """The source's value in place of the base's: wholly, in some features, or part of the way.

    Attributes:
        features: what is exchanged; None: the whole vector.
        alpha: 0 the base's value, 1 the exchanged one.
    """

    features: Features | None = None
    alpha: Number = 1.0

    needs_source: bool = field(default=True, init=False, repr=False)
    keeps_equal: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, base: Values, source: Values | None) -> Values:
        assert source is not None
        new = source if self.features is None else self.features.change(base, source)
        return interpolated(base, new, self.alpha)


@dataclass(frozen=True, repr=False, eq=False)
class Add(OneLine):
    """A vector [d], or one a token [n, d] in the order of a batch's rows, added `scale` times."""

    vector: Float[Tensor, "*n d"]
    scale: Number = 1.0

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, base: Values, source: Values | None) -> Values:
        return base + self.scale * _as(self.vector, base, "Add")


@dataclass(frozen=True, repr=False, eq=False)
class Ablate(OneLine):
    """What the value has along some directions is set to zero, or to what a mean has.

    Attributes:
        directions: [d, k], or one direction [d]; independent, and need not be orthonormal.
        to: "zero", or "mean", which needs `mean` [d].
    """

    directions: Float[Tensor, "d *k"]
    to: Target = "zero"
    mean: Float[Tensor, "d"] | None = None

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.mean is None) != (self.to == "zero"):
            raise BadUsage("Ablate(to='mean') needs mean=[d], and to='zero' needs none.")
        # The directions of a space of fewer dimensions would be filled up with arbitrary ones.
        wide = self._columns.detach().double().cpu()
        if not bool(torch.isfinite(wide).all()):
            raise BadUsage("Ablate needs finite directions; got NaN or infinity.")
        lengths = wide.norm(dim=0).clamp(min=torch.finfo(wide.dtype).tiny)
        if int(torch.linalg.matrix_rank(wide / lengths, rtol=1e-7)) < wide.shape[1]:
            raise BadUsage(
                f"Ablate needs independent directions, none of them 0; {wide.shape[1]} of"
                f" {wide.shape[0]} numbers are not."
            )

    @property
    def _columns(self) -> Float[Tensor, "d k"]:
        return self.directions if self.directions.ndim == 2 else self.directions[:, None]

    def __call__(self, base: Values, source: Values | None) -> Values:
        directions = self._columns
        if directions.shape[0] != base.shape[1]:
            raise BadUsage(
                f"Ablate needs directions of {base.shape[1]} numbers at this site; got"
                f" {directions.shape[0]}."
            )
        wide = torch.linalg.qr(directions.to(base.device, _at_least_fp32(base)))[0].to(base.dtype)
        mean = 0.0 if self.mean is None else _as(self.mean, base, "Ablate")
        return base - ((base - mean) @ wide) @ wide.mT


@dataclass(frozen=True, repr=False, eq=False)
class Replace(OneLine):
    """A vector [d], or one a token [n, d] in the order of a batch's rows, in place of the value;
    `alpha` of the way to it.
    """

    vector: Float[Tensor, "*n d"]
    alpha: Number = 1.0

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, base: Values, source: Values | None) -> Values:
        return interpolated(base, _as(self.vector, base, "Replace").expand_as(base), self.alpha)


@dataclass(frozen=True, repr=False)
class Scale(OneLine):
    """The value times a factor: 0 takes a writer out, 1 changes nothing."""

    factor: Number

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, base: Values, source: Values | None) -> Values:
        return base * self.factor


def interpolated(base: Tensor, new: Tensor, alpha: Number) -> Tensor:
    """`alpha` of the way from `base` to `new`, exact at both ends."""
    if alpha == 0.0:
        return base
    return new if alpha == 1.0 else torch.lerp(base, new, alpha)


def _as(vector: Tensor, base: Tensor, who: str) -> Tensor:
    if vector.shape[-1] != base.shape[1] or (vector.ndim == 2 and len(vector) != len(base)):
        raise BadUsage(
            f"{who} needs a vector of {base.shape[1]} numbers at this site, or {len(base)} of"
            f" them; got shape {tuple(vector.shape)}."
        )
    return vector.to(base.device, base.dtype)


def _at_least_fp32(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32


Interventions = (
    Mapping[Site, Intervention] | Mapping[str, Intervention] | Mapping[SiteLike, Intervention]
)
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
    placed = [place(batch, site, intervention) for site, intervention in interventions.items()]
    if len(placed) == 1:
        return placed
    first = torch.full_like(batch.base_lengths, batch.base.shape[1])
    for one in placed:
        first = first.scatter_reduce(0, one.row, one.base, "amin")
    return [
        place(batch, site, intervention, before=first)
        for site, intervention in interventions.items()
    ]


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
    first = first_token(intervention)
    if site.position == ALL and first:
        reads = base - batch.starts[0][row] >= first
        row, base = row[reads], base[reads]
        source = None if source is None else source[reads]
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


def first_token(intervention: Intervention) -> int:
    """The first token that an intervention changes at "all": a dictionary is not put into tokens
    that it was trained without.
    """
    return int(getattr(intervention, "first", 0))


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
    interventions: dict[Site, Intervention] = {}
    for spelled, intervention in given.items():
        site = load_site(spelled)
        if site in interventions:
            raise BadUsage(f"Site {site} is given twice; a site has one intervention.")
        interventions[site] = intervention
    return interventions


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
    own = dict(interventions)
    for site, intervention in interventions.items():
        if not isinstance(intervention, Add | Replace) or intervention.vector.ndim < 2:
            continue
        row, _, _ = tokens_of(batch, site, needs=False)
        if len(intervention.vector) != len(row):
            raise BadUsage(
                f"Site {site}: {type(intervention).__name__} needs one vector, or one for each of"
                f" {len(row)} tokens; got {len(intervention.vector)}."
            )
        kept = (place_of[row] >= 0).nonzero()[:, 0]
        tokens = kept[place_of[row[kept]].argsort(stable=True)]
        own[site] = replace(
            intervention, vector=intervention.vector[tokens.to(intervention.vector.device)]
        )
    return own


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
        BadUsage: no intervention was given; a site that the model does not have; an object that is
            not an intervention; a dictionary that was trained on another site.
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
        for owner in (intervention, getattr(intervention, "features", None)):
            check_site = getattr(getattr(owner, "featurizer", None), "check_site", None)
            if check_site is not None:
                check_site(site, model)
    return interventions
