"""Many sites, each intervened on alone: what every one of them changes.

All sites of a batch are run together (`plan_runs`); rows that an intervention leaves as they are
have the base run's numbers and are not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.display import OneLine, Tabular, html_facts, html_table
from mechassay.errors import BadUsage, one_of
from mechassay.interchange import InterchangeBatch
from mechassay.interventions.intervention import Interchange, Intervention
from mechassay.interventions.labels import score_labels
from mechassay.interventions.placed import (
    Interventions,
    by_site,
    check_interventions,
    of_rows,
)
from mechassay.interventions.plan_runs import PlanRuns
from mechassay.interventions.site import Site, SiteLike, load_site
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.pairs import NO_TOKEN
from mechassay.progress import BAR, Advance, Progress
from mechassay.stats.intervals import (
    Estimate,
    Resamples,
    percentile_interval,
    proportion_interval,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 30
"""Sites that a notebook shows."""
RESULTS = ("written", "log_odds", "log_prob")


@dataclass(frozen=True, eq=False, repr=False)
class SiteSweep(OneLine, Tabular):
    """What a batch says with an intervention at each of k sites alone; n rows.

    Attributes:
        log_probs, base_log_probs: of the labels, in nats, with and without.
        other_log_probs, other_base_log_probs: of the base's own labels; NaN where not known.
        written, base_written: whether the label is what greedy decoding writes.
        changed: which rows an intervention changed at all.
        seed: of the bootstrap.
    """

    sites: tuple[Site, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    log_probs: Float[np.ndarray, "n k"]
    base_log_probs: Float[np.ndarray, "n"]
    other_log_probs: Float[np.ndarray, "n k"]
    other_base_log_probs: Float[np.ndarray, "n"]
    written: Bool[np.ndarray, "n k"]
    base_written: Bool[np.ndarray, "n"]
    changed: Bool[np.ndarray, "n k"]
    seed: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def shown(self) -> dict[str, Any]:
        best = int(self.written.mean(axis=0).argmax())
        return {
            "n": len(self),
            "sites": len(self.sites),
            "best": str(self.sites[best]),
            "labels_written": float(self.written[:, best].mean()),
        }

    @property
    def log_odds(self) -> Float[np.ndarray, "n k"]:
        """log p(base label) / p(label) without minus with the intervention, see `Intervened`."""
        before = self.other_base_log_probs - self.base_log_probs
        return before[:, None] - (self.other_log_probs - self.log_probs)

    def estimate(self, site: SiteLike, of: str = "written") -> Estimate:
        """One site's mean with its 95 % interval over groups.

        Args:
            of: "written" (the share of labels that are written), "log_odds" or "log_prob".

        Raises:
            UnknownName: no such site or result.
        """
        spelled = one_of("site", str(load_site(site)), [str(each) for each in self.sites])
        column = [str(each) for each in self.sites].index(spelled)
        return self._estimates(of, [column])[0]

    def _estimates(self, of: str, columns: Sequence[int]) -> list[Estimate]:
        one_of("result of a sweep", of, RESULTS)
        if of == "written":
            return [self._proportion(self.written[:, column]) for column in columns]
        values = self.log_odds if of == "log_odds" else self.log_probs
        return mean_estimates(values[:, list(columns)], self.groups, self.seed)

    def _proportion(self, right: Bool[np.ndarray, "n"]) -> Estimate:
        low, high, _ = proportion_interval(right.astype(float), self.groups)
        return Estimate(float(right.mean()), low, high)

    def columns(self) -> dict[str, list[Any]]:
        """A row a site: the share of labels written, and mean log-odds in nats, with intervals."""
        every = range(len(self.sites))
        written, odds = (self._estimates(of, every) for of in ("written", "log_odds"))
        return {
            "site": [str(site) for site in self.sites],
            "part": [site.part for site in self.sites],
            "layer": [site.layer for site in self.sites],
            "position": [str(site.position) for site in self.sites],
            "written": [each.value for each in written],
            "written_low": [each.low for each in written],
            "written_high": [each.high for each in written],
            "log_odds": [each.value for each in odds],
            "log_odds_low": [each.low for each in odds],
            "log_odds_high": [each.high for each in odds],
            "n": [len(self)] * len(self.sites),
            "n_unchanged": [len(self) - int(x) for x in self.changed.sum(axis=0)],
        }

    def plot(self, ax: Axes | None = None, *, of: str = "log_odds") -> Figure:
        """Means against layers, a line a position (or head), with intervals."""
        from mechassay.interventions.heat_map import draw_sweep

        return draw_sweep(self.sites, self._estimates(of, range(len(self.sites))), of, ax=ax)

    def _repr_html_(self) -> str:
        columns = self.columns()
        shown = ("site", "written", "log_odds", "n_unchanged")
        rows = zip(*(columns[name] for name in shown), strict=True)
        told = [[f"{x:.3g}" if isinstance(x, float) else x for x in row] for row in rows]
        more = f"{len(told) - ROWS:,} more sites" if len(told) > ROWS else ""
        table = html_table(shown, told[:ROWS], more)
        return html_facts(f"{len(self.sites)} sites", {"n": len(self)}, table)


def sweep(
    model: Model,
    batch: Any,
    sites: Sequence[SiteLike],
    intervention: Intervention | Interventions | None = None,
    *,
    seed: int = 0,
    progress: Progress = BAR,
) -> SiteSweep:
    """Intervene at each of many sites alone.

    Args:
        batch: an `InterchangeBatch`, or what one can be made of.
        intervention: the same at all sites, or one a site; by default the source's whole vector.
        seed: of the bootstrap.

    Raises:
        BadUsage, UnknownName, BadPairs, NonFinite, OutOfMemory: see `intervene`.
    """
    plan = _plan([load_site(site) for site in sites], intervention)
    return sweep_all(model, batch, [plan], seed=seed, progress=progress)[0]


def sweep_all(
    model: Model,
    batch: Any,
    plans: Sequence[Interventions],
    *,
    seed: int = 0,
    progress: Progress = BAR,
) -> list[SiteSweep]:
    """Several sweeps of one batch, whose bases and sources are run once for all of them.

    Args:
        batch: an `InterchangeBatch`, or what one can be made of.
        plans: of each sweep the intervention of every site.
        seed: of the bootstrap.

    Raises:
        BadUsage, UnknownName, BadPairs, NonFinite, OutOfMemory: see `intervene`.
    """
    checked = [check_interventions(model, by_site(plan)) for plan in plans]
    ready = model.interchanges(batch)
    budget = token_budget(trace_bytes(model.decoder), ready.base.shape[1], model.device)
    chunks = list(ready.chunks(budget))
    with (
        progress.track("intervening", len(ready) * sum(map(len, checked))) as advance,
        torch.no_grad(),
        out_of_memory_is_an_error("Intervening"),
    ):
        parts = [
            _swept(model, chunk, [of_rows(ready, plan, rows) for plan in checked], advance)
            for rows, chunk in chunks
        ]
    order = np.argsort([row for rows, _ in chunks for row in rows])
    arrays = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
    found: list[SiteSweep] = []
    begin = 0
    for plan in checked:
        own = slice(begin, begin := begin + len(plan))
        cut = {name: x[:, own] if x.ndim == 2 else x for name, x in arrays.items()}
        found.append(SiteSweep(tuple(plan), ready.ids, ready.groups, **cut, seed=seed))
    return found


def _plan(
    sites: Sequence[Site], given: Intervention | Interventions | None
) -> dict[Site, Intervention]:
    """The intervention of every site."""
    twice = next((site for site in sites if sites.count(site) > 1), None)
    if twice is not None:
        raise BadUsage(f"A sweep has every site once; {twice} is given twice.")
    if not isinstance(given, Mapping):
        return dict.fromkeys(sites, Interchange() if given is None else given)
    chosen = by_site(given)
    missing = [str(site) for site in sites if site not in chosen]
    if missing:
        raise BadUsage(f"A sweep needs an intervention for every site; none for {missing[0]}.")
    return {site: chosen[site] for site in sites}


def _swept(
    model: Model,
    batch: InterchangeBatch,
    plans: Sequence[Mapping[Site, Intervention]],
    advance: Advance,
) -> dict[str, np.ndarray]:
    """The arrays of a `SiteSweep` of some rows, of all sweeps side by side."""
    forced = batch.teacher_forced()
    own = batch.base_labels
    runs = _runs(model, forced, plans, advance)
    found = _scores(model, runs, forced.targets)
    other = np.full(found.shape, np.nan)
    if own is not None and batch.labels.shape[1] == own.shape[1] == 1:
        other = _scores(model, runs, own)
    elif own is not None and bool((own != NO_TOKEN).any()):
        kept = (own != NO_TOKEN).any(dim=1).nonzero()[:, 0]
        again = batch.select(kept).teacher_forced(base_labels=True)
        theirs = [of_rows(batch, plan, kept) for plan in plans]
        some = _runs(model, again, theirs, lambda done: None)
        other[:, kept.cpu().numpy()] = _scores(model, some, again.targets)
    return {
        "log_probs": found[0, :, 1:],
        "base_log_probs": found[0, :, 0],
        "other_log_probs": other[0, :, 1:],
        "other_base_log_probs": other[0, :, 0],
        "written": found[1, :, 1:].astype(bool),
        "base_written": found[1, :, 0].astype(bool),
        "changed": runs.changed.T.cpu().numpy(),
    }


def _runs(
    model: Model,
    forced: InterchangeBatch,
    plans: Sequence[Mapping[Site, Intervention]],
    advance: Advance,
) -> PlanRuns:
    """Every site of every sweep alone, read where labels are predicted."""
    n, m = forced.labels.shape
    last = torch.arange(forced.base.shape[1], device=model.device)[-m:]
    alone = [{site: how} for plan in plans for site, how in plan.items()]
    return PlanRuns.of(model, forced, alone, last.expand(n, -1), advance)


def _scores(
    model: Model, runs: PlanRuns, targets: Tensor
) -> Float[np.ndarray, "scores n base_and_sites"]:
    """Log-probabilities of labels, and whether they are written."""

    def read(streams: Tensor, rows: Tensor) -> Tensor:
        scores = score_labels(model.decoder, streams, targets[rows])
        return torch.stack([each.double() for each in scores], dim=1)

    return runs.results(read).permute(2, 1, 0).cpu().numpy()


def mean_estimates(
    values: Float[np.ndarray, "n k"], groups: Sequence[str], seed: int
) -> list[Estimate]:
    """The mean of each column with its 95 % interval over groups; rows with NaN are left out."""
    defined = np.logical_not(np.isnan(values).any(axis=1))
    kept = values[defined]
    if not len(kept):
        return [Estimate(float("nan"))] * values.shape[1]
    units = [group for group, there in zip(groups, defined, strict=True) if there]
    draws = Resamples(units, np.random.default_rng(seed)).means(kept.T)
    n_groups = len(set(units))
    ends = [percentile_interval(column, n_groups=n_groups)[:2] for column in draws.T]
    return [Estimate(float(x), *end) for x, end in zip(kept.mean(axis=0), ends, strict=True)]
