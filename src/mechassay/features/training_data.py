"""What a step of a stacked training works on: base runs, and the values of all its sites.

Values of bases and sources at the sites are taken once, and so is the run of the bases, where they
fit into memory; else they are made again for the rows of a step, once for all sites together.
Sites whose values have one shape make a *bundle*, so that they are computed in one batched call.
Sites that are changed together in one run are a bundle each, and their tokens before the first
difference of base and source are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.interchange import InterchangeBatch
from mechassay.interventions.base_run import BaseRun, site_values
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.placed import place_together, tokens_of
from mechassay.interventions.site import ALL, Site
from mechassay.models.memory import kept_run_bytes, may_be_kept
from mechassay.models.model import Model


@dataclass(frozen=True, eq=False)
class SiteTokens:
    """A site's tokens, in the order of their rows, of base and source beside each other."""

    row: Int[Tensor, "m"]
    base: Int[Tensor, "m"]
    source: Int[Tensor, "m"]

    @staticmethod
    def of(batch: InterchangeBatch, site: Site) -> SiteTokens:
        """The tokens of a site in a batch; see `placed.tokens_of`, whose errors it raises."""
        row, base, source = tokens_of(batch, site)
        assert source is not None
        return SiteTokens(row, base, source)

    @staticmethod
    def together(batch: InterchangeBatch, sites: Sequence[Site]) -> list[SiteTokens]:
        """The tokens of sites that are changed in one run; those that stay as they are left out."""
        found: list[SiteTokens] = []
        for each in place_together(batch, dict.fromkeys(sites, Interchange())):
            assert each.source is not None
            found.append(SiteTokens(each.row, each.base, each.source))
        return found

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def one_a_row(self) -> bool:
        """Whether token i is that of row i."""
        return torch.equal(self.row, torch.arange(len(self.row), device=self.row.device))


@dataclass(frozen=True, eq=False)
class BundleValues:
    """Values of a bundle's sites at the tokens of some rows, as the model has them."""

    base: Float[Tensor, "sites m d"]
    source: Float[Tensor, "sites m d"]


@dataclass(frozen=True, eq=False)
class StepData:
    """Some rows of a batch.

    Attributes:
        run: a run of their bases, and maybe of others.
        prompts: which of the run's prompts they are.
        targets: tokens that the last columns predict; NO_TOKEN where they predict none.
        own: the same for the labels of the bases' own run, at the last column of the prompt alone.
        expected: what is expected of the logit difference; see `InterchangeBatch.values`.
        tokens: of each site, as rows of the step and columns of the run.
        values: of each bundle.
    """

    run: BaseRun
    prompts: Int[Tensor, "n"]
    targets: Int[Tensor, "n m"]
    own: Int[Tensor, "n"] | None
    expected: Float[Tensor, "n"] | None
    tokens: tuple[SiteTokens, ...]
    values: tuple[BundleValues, ...]


class TrainingData:
    """A batch of interchanges and sites, given out by rows.

    Attributes:
        unread: sites, by number, of the last layer, at tokens where no label is predicted: what
            they hold changes nothing.

    Args:
        together: whether all sites are changed in one run.
        keep: whether runs and values are kept; where memory allows it by default.
    """

    def __init__(
        self,
        model: Model,
        batch: InterchangeBatch,
        sites: Sequence[Site],
        *,
        together: bool = False,
        keep: bool | None = None,
    ) -> None:
        self.model, self.batch, self.sites = model, batch.teacher_forced(), tuple(sites)
        batch = self.batch
        self.targets = batch.targets
        self.own = None if batch.base_labels is None else batch.base_labels[:, 0]
        self.expected = batch.values
        self.together = together
        self.tokens = self._tokens(batch)
        widths = [site.width(model.decoder) for site in self.sites]
        alone = tuple((number,) for number in range(len(self.sites)))
        self.bundles = alone if together else _bundles(self.sites, widths)
        self.widths = [widths[bundle[0]] for bundle in self.bundles]
        self.unread = frozenset(
            number
            for number, (site, at) in enumerate(zip(self.sites, self.tokens, strict=True))
            if site.place[1] == len(model.decoder.layers)
            and bool((at.base < batch.base.shape[1] - batch.targets.shape[1]).all())
        )
        size = model.decoder.embedding.element_size()
        numbers = sum(2 * len(at) * width for at, width in zip(self.tokens, widths, strict=True))
        run_bytes = batch.base.numel() * kept_run_bytes(model.decoder)
        fits = may_be_kept(run_bytes + numbers * size, model.device) if keep is None else keep
        self.run = BaseRun.of(model, batch.base, batch.base_mask) if fits else None
        self.values = None if self.run is None else self._values(self.run, batch, self.tokens)

    def __len__(self) -> int:
        return len(self.batch)

    def _tokens(self, batch: InterchangeBatch) -> list[SiteTokens]:
        if self.together:
            return SiteTokens.together(batch, self.sites)
        return [SiteTokens.of(batch, site) for site in self.sites]

    @torch.no_grad()
    def step(self, rows: Int[Tensor, "n"]) -> StepData:
        """The rows of a step."""
        rows = rows.to(self.model.device)
        targets, own = self.targets[rows], None if self.own is None else self.own[rows]
        expected = None if self.expected is None else self.expected[rows]
        if self.run is None or self.values is None:
            some = self.batch.select(rows)
            run = BaseRun.of(self.model, some.base, some.base_mask)
            # Labels of other rows may be longer than all of these rows' prompts with theirs.
            targets = targets[:, -run.n_columns :]
            tokens = tuple(self._tokens(some))
            values = self._values(run, some, tokens)
            places = torch.arange(len(rows), device=rows.device)
            return StepData(run, places, targets, own, expected, tokens, values)
        picked = [_picked(at, rows, len(self)) for at in self.tokens]
        tokens = tuple(
            SiteTokens(row, at.base[index], at.source[index])
            for at, (row, index) in zip(self.tokens, picked, strict=True)
        )
        values = tuple(
            BundleValues(all_.base[:, index], all_.source[:, index])
            for all_, index in zip(
                self.values, (picked[bundle[0]][1] for bundle in self.bundles), strict=True
            )
        )
        return StepData(self.run, rows, targets, own, expected, tokens, values)

    def _values(
        self, run: BaseRun, batch: InterchangeBatch, tokens: Sequence[SiteTokens]
    ) -> tuple[BundleValues, ...]:
        wanted = [(s, at.row, at.source) for s, at in zip(self.sites, tokens, strict=True)]
        sources = site_values(self.model, batch.source, batch.source_mask, wanted)
        bases = [run.values(s, at.row, at.base) for s, at in zip(self.sites, tokens, strict=True)]
        return tuple(
            BundleValues(*(torch.stack([of[i] for i in bundle]) for of in (bases, sources)))
            for bundle in self.bundles
        )


def _bundles(sites: Sequence[Site], widths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Sites by number that have equally many values, of equally many numbers."""
    found: dict[tuple[int, bool], list[int]] = {}
    for number, (site, width) in enumerate(zip(sites, widths, strict=True)):
        found.setdefault((width, site.position == ALL), []).append(number)
    return tuple(map(tuple, found.values()))


def _picked(
    at: SiteTokens, rows: Int[Tensor, "n"], n_rows: int
) -> tuple[Int[Tensor, "m"], Int[Tensor, "m"]]:
    """Of the tokens of some rows: the row's place among those rows, and the token's number."""
    places = torch.arange(len(rows), device=rows.device)
    if len(at) == n_rows and at.one_a_row:
        return places, rows
    counts = torch.bincount(at.row, minlength=n_rows)
    begins = counts.cumsum(0) - counts
    row = torch.repeat_interleave(places, counts[rows])
    within = (
        torch.arange(len(row), device=rows.device) - (counts[rows].cumsum(0) - counts[rows])[row]
    )
    return row, begins[rows][row] + within
