"""Many interventions on one batch, each alone: what every one of them changes.

A plan is an intervention at one site, or at several sites together. Bases and sources are run
once for all plans. Each plan is then run from its first changed layer and column on, in stacks
with the others (`PlanRuns`). Rows have the base run's results to the last bit where a plan
leaves their values as they are, and where nothing reads what it changes, as in the last layer.

    `sweep`              log-probabilities of labels, and whether they are written, site by site
    `token_logits`       logits of a few tokens at the prompts' last token, by those rows of the
                         unembedding alone
    `logit_differences`  D = logit(base label) - logit(label), of the first tokens of both labels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.interventions.intervene import (
    BaseRun,
    joint_branch,
    score_labels,
    source_values,
    watched,
)
from mechassay.interventions.intervention import (
    Interchange,
    Intervention,
    Interventions,
    Placed,
    by_site,
    check_interventions,
    of_rows,
    place_together,
)
from mechassay.interventions.site import Site, SiteLike, index_of, load_site
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import LAST, InterchangeBatch, InterchangesLike
from mechassay.stats.intervals import Estimate, Resamples, percentile_interval, proportion_interval
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, Advance, OneLine, Progress, Tabular, html_facts, html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Plan = dict[Site, Intervention]
"""What is done in one run."""
Read = Callable[[Float[Tensor, "m r d_model"], Int[Tensor, "m"]], Float[Tensor, "m t"]]
"""What is computed of the final streams of some rows."""


@dataclass(frozen=True, eq=False)
class PlanRuns:
    """Final streams of n rows at r columns each, without an intervention and under each of k plans.

    Attributes:
        rows: of each plan, the rows that were run.
        finals: their final streams.
        changed: rows in which a plan changed a value.
    """

    base: Float[Tensor, "n r d_model"]
    rows: tuple[Int[Tensor, "_"], ...]
    finals: tuple[Float[Tensor, "_ r d_model"], ...]
    changed: Bool[Tensor, "k n"]

    @staticmethod
    def of(
        model: Model,
        batch: InterchangeBatch,
        plans: Sequence[Plan],
        columns: Int[Tensor, "n r"],
        advance: Advance,
    ) -> PlanRuns:
        """Run all plans.

        Args:
            batch: on the device of the model, see `Model.interchanges`.
            columns: of each row, those at which final streams are read.
            advance: told how many rows are done.

        Raises:
            UnknownName, BadPairs, NonFinite, OutOfMemory: see `intervene`.
        """
        run = BaseRun.of(model, batch.base, batch.base_mask)
        read = run.n_columns - int(columns.min())
        at = columns - columns.min()
        # Plans of the same sites have the same tokens and sources.
        keys = [
            tuple((site, how.needs_source, how.keeps_equal) for site, how in plan.items())
            for plan in plans
        ]
        placed: dict[tuple[object, ...], list[Placed]] = {}
        for key, plan in zip(keys, plans, strict=True):
            if key not in placed:
                placed[key] = place_together(batch, plan)
        source_parts = iter(
            source_values(model, batch, [place for several in placed.values() for place in several])
        )
        sources = {key: list(islice(source_parts, len(several))) for key, several in placed.items()}
        changed = torch.zeros((len(plans), len(batch)), dtype=torch.bool, device=model.device)
        branches = [
            joint_branch(
                placed[key], watched(placed[key], list(plan.values()), sources[key], changed[i])
            )
            for i, (key, plan) in enumerate(zip(keys, plans, strict=True))
        ]
        there = [own_branch for own_branch in branches if own_branch is not None]
        advance(len(plans) * len(batch) - sum(len(own_branch.prompts) for own_branch in there))
        streams = iter(run.run(there, read=read, advance=advance))
        rows = [
            at.new_zeros(0) if own_branch is None else own_branch.prompts for own_branch in branches
        ]
        base = _picked(run.final(read), at)
        finals = [base[:0] if not len(some) else _picked(next(streams), at[some]) for some in rows]
        return PlanRuns(base, tuple(rows), tuple(finals), changed)

    def results(self, read: Read) -> Float[Tensor, "base_and_plans n t"]:
        """What is computed of the streams, without an intervention and then under each plan."""
        n = len(self.base)
        own = read(self.base, torch.arange(n, device=self.base.device))
        out = own[None].repeat(1 + len(self.rows), 1, 1)
        if not self.rows:
            return out
        rows = torch.cat(self.rows)
        sizes = torch.tensor([len(some) for some in self.rows])
        plan = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(rows.device)
        finals = torch.cat(self.finals)
        kept = self.changed[plan, rows] & (finals != self.base[rows]).any(dim=(1, 2))
        if bool(kept.any()):
            out[1 + plan[kept], rows[kept]] = read(finals[kept], rows[kept])
        return out


def _picked(
    streams: Float[Tensor, "m read d_model"], at: Int[Tensor, "m r"]
) -> Float[Tensor, "m r d_model"]:
    return streams[torch.arange(len(at), device=at.device)[:, None], at]


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

    def repr_fields(self) -> dict[str, Any]:
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
        return self._estimates(of, [index_of(site, self.sites)])[0]

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
            "written": [estimate.value for estimate in written],
            "written_low": [estimate.low for estimate in written],
            "written_high": [estimate.high for estimate in written],
            "log_odds": [estimate.value for estimate in odds],
            "log_odds_low": [estimate.low for estimate in odds],
            "log_odds_high": [estimate.high for estimate in odds],
            "n": [len(self)] * len(self.sites),
            "n_unchanged": [len(self) - int(x) for x in self.changed.sum(axis=0)],
        }

    def plot(self, ax: Axes | None = None, *, of: str = "log_odds") -> Figure:
        """Means against layers, a line a position (or head), with intervals."""
        from mechassay.interventions.heatmap import draw_sweep

        return draw_sweep(self.sites, self._estimates(of, range(len(self.sites))), of, ax=ax)

    def _repr_html_(self) -> str:
        columns = self.columns()
        headings = ("site", "written", "log_odds", "n_unchanged")
        rows = zip(*(columns[name] for name in headings), strict=True)
        cells = [[f"{x:.3g}" if isinstance(x, float) else x for x in row] for row in rows]
        more = f"{len(cells) - ROWS:,} more sites" if len(cells) > ROWS else ""
        table = html_table(headings, cells[:ROWS], more)
        return html_facts(f"{len(self.sites)} sites", {"n": len(self)}, table)


@checked
def sweep(
    model: Model,
    pairs: InterchangesLike,
    sites: Sequence[SiteLike],
    intervention: Intervention | Interventions | None = None,
    *,
    seed: int = 0,
    progress: Progress = BAR,
) -> SiteSweep:
    """Intervene at each of many sites alone.

        swept = ma.sweep(model, pairs, ma.sites(model, positions="last"))
        swept.plot()

    Args:
        model: a loaded model, see `load_model`.
        pairs: see `intervene`.
        sites: sites, see `sites`, or their spellings, such as "resid.9@last".
        intervention: one for all sites, or a mapping from each site to its own; by default the
            source's whole vector is put in the place of the base's.
        seed: of the bootstrap, which gives the intervals.
        progress: `SILENT` shows no bar.

    Returns:
        For each site the log-probabilities of the labels in nats, and whether the model writes the
        label of the source. `estimate` gives means with intervals, `plot` the figure.

    Raises:
        BadUsage, UnknownName, BadPairs, NonFinite, OutOfMemory: see `intervene`.
    """
    plan = _plan([load_site(site) for site in sites], intervention)
    return sweep_all(model, pairs, [plan], seed=seed, progress=progress)[0]


def sweep_all(
    model: Model,
    pairs: InterchangesLike,
    plans: Sequence[Interventions],
    *,
    seed: int = 0,
    progress: Progress = BAR,
) -> list[SiteSweep]:
    """Several sweeps of the same pairs, whose bases and sources are run once for all of them.

    Args:
        pairs: see `intervene`.
        plans: of each sweep the intervention of every site.
        seed: of the bootstrap.

    Raises:
        BadUsage, UnknownName, BadPairs, NonFinite, OutOfMemory: see `intervene`.
    """
    chosen = [check_interventions(model, by_site(plan)) for plan in plans]
    ready = model.interchanges(pairs)
    budget = token_budget(trace_bytes(model.decoder), ready.base.shape[1], model.device)
    chunks = list(ready.chunks(budget))
    with (
        progress.track("intervening", len(ready) * sum(map(len, chosen))) as advance,
        torch.no_grad(),
        out_of_memory_is_an_error("Intervening"),
    ):
        parts = [
            _swept(model, chunk, [of_rows(ready, plan, rows) for plan in chosen], advance)
            for rows, chunk in chunks
        ]
    order = np.argsort([row for rows, _ in chunks for row in rows])
    arrays = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
    sweeps: list[SiteSweep] = []
    begin = 0
    for plan in chosen:
        own = slice(begin, begin := begin + len(plan))
        cut = {name: x[:, own] if x.ndim == 2 else x for name, x in arrays.items()}
        sweeps.append(SiteSweep(tuple(plan), ready.ids, ready.groups, **cut, seed=seed))
    return sweeps


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
    scores = _scores(model, runs, forced.targets)
    other = np.full(scores.shape, np.nan)
    if own is not None and batch.labels.shape[1] == own.shape[1] == 1:
        other = _scores(model, runs, own)
    elif own is not None and bool((own != NO_TOKEN).any()):
        kept = (own != NO_TOKEN).any(dim=1).nonzero()[:, 0]
        again = batch.select(kept).teacher_forced(base_labels=True)
        theirs = [of_rows(batch, plan, kept) for plan in plans]
        some = _runs(model, again, theirs, lambda done: None)
        other[:, kept.cpu().numpy()] = _scores(model, some, again.targets)
    return {
        "log_probs": scores[0, :, 1:],
        "base_log_probs": scores[0, :, 0],
        "other_log_probs": other[0, :, 1:],
        "other_base_log_probs": other[0, :, 0],
        "written": scores[1, :, 1:].astype(bool),
        "base_written": scores[1, :, 0].astype(bool),
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
        return torch.stack([part.double() for part in scores], dim=1)

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


READ_OUT_ROWS = 4096
"""Final vectors that are read out at once."""


class TokenLogits(NamedTuple):
    """Of n rows and t tokens each: without an intervention, and after each of k plans."""

    base: Float[np.ndarray, "n t"]
    after: Float[np.ndarray, "k n t"]


class LogitDifferences(NamedTuple):
    """Of n rows: without an intervention, and after each of k plans."""

    base: Float[np.ndarray, "n"]
    after: Float[np.ndarray, "n k"]


def token_logits(
    model: Model,
    batch: InterchangesLike,
    plans: Sequence[Interventions],
    tokens: Int[Tensor, "n t"],
    *,
    progress: Progress = BAR,
) -> TokenLogits:
    """The logits of some tokens, in fp64, without and after each plan.

    Args:
        batch: an `InterchangeBatch`, or what one can be made of.
        plans: each an intervention by site, or its spelling; its sites are changed in one run.
        tokens: of each row.

    Raises:
        UnknownName, BadPairs, NonFinite, OutOfMemory: see `intervene`.
    """
    chosen = [check_interventions(model, by_site(plan)) for plan in plans]
    ready = model.interchanges(batch)
    budget = token_budget(trace_bytes(model.decoder), ready.base.shape[1], model.device)
    n, t = tokens.shape
    base, after = np.zeros((n, t)), np.zeros((len(plans), n, t))
    with (
        progress.track("intervening", n * len(plans)) as advance,
        torch.no_grad(),
        out_of_memory_is_an_error("Intervening"),
    ):
        for rows, chunk in ready.chunks(budget):
            some = [dict(of_rows(ready, plan, rows)) for plan in chosen]
            columns = chunk.column(LAST)[0][:, None]
            runs = PlanRuns.of(model, chunk, some, columns, advance)
            wanted = tokens[rows].to(model.device)
            logits = runs.results(lambda x, at, ids=wanted: _logits(model, x[:, 0], ids[at]))
            base[rows], after[:, rows] = logits[0].cpu().numpy(), logits[1:].cpu().numpy()
    return TokenLogits(base, after)


def logit_differences(
    model: Model,
    batch: InterchangesLike,
    plans: Sequence[Interventions],
    *,
    progress: Progress = BAR,
) -> LogitDifferences:
    """The logit differences of every row, without and after each plan; see `token_logits`.

    Raises:
        BadPairs: a base label that is not known. Others as `intervene`.
    """
    ready = model.interchanges(batch)
    own = ready.base_labels
    unknown = None if own is None else own[:, 0] == NO_TOKEN
    if own is None or unknown is None or bool(unknown.any()):
        row = 0 if unknown is None else int(unknown.int().argmax())
        raise BadPairs(
            f"A logit difference needs the label of every base (base_labels); pair"
            f" {ready.ids[row]} has none."
        )
    first_tokens = torch.stack((own[:, 0], ready.labels[:, 0]), dim=1)
    logits = token_logits(model, ready, plans, first_tokens, progress=progress)
    base, after = (x[..., 0] - x[..., 1] for x in logits)
    return LogitDifferences(base, after.T)


def _logits(
    model: Model, streams: Float[Tensor, "rows d_model"], tokens: Int[Tensor, "rows t"]
) -> Float[Tensor, "rows t"]:
    parts = zip(streams.split(READ_OUT_ROWS), tokens.split(READ_OUT_ROWS), strict=True)
    return torch.cat([model.decoder.readout(some).at(which).double() for some, which in parts])
