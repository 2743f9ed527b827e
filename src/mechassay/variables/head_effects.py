"""S-inhibition heads of any model, and the linear logit difference that they make.

In GPT-2 small the heads 7.3, 7.9, 8.6 and 8.10 tell who is not to be named (Wang et al. 2023).
Mueller et al. (2025, G.5.4) exchange these four. Here they are found: with D the logit
of the indirect object minus that of the subject, and every head exchanged alone at all tokens
against the S2 flip, which turns both signals,

    effect(head) = mean over train rows of D(after) - D(before)

and the n heads of the lowest effects are taken. All four are then exchanged together, in all train
rows: bases with themselves and with the three flips (`ioi_signals`). D of these runs is fitted by

    D = bias + position p + token t

A head that was chosen for its effect has a smaller one on other rows. Labels are the names with
the space before them, as the model writes them, by their first tokens; MIB's code takes the first
tokens of the names without it, which no model writes there, and no option does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mechassay.display import OneLine, Tabular, html_facts, html_table
from mechassay.errors import BadUsage, one_of
from mechassay.examples import Example
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import ALL, Site, SiteLike, load_site, sites
from mechassay.interventions.sweep import mean_estimates
from mechassay.interventions.token_logits import logit_differences
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.stats.intervals import Estimate
from mechassay.variables.models.ioi import (
    FLIPS,
    LogitDifference,
    fit_logit_difference,
    ioi_signals,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

S2_FLIP = "s2_io_flip_counterfactual"
ROWS = 12


@dataclass(frozen=True, eq=False, repr=False)
class HeadEffects(OneLine, Tabular):
    """What exchanging each of k heads alone does to the logit difference of n rows.

    Attributes:
        sites: the heads, each at all tokens.
        base: logit differences (indirect object - subject) without an interchange.
        after: with each head exchanged.
        n_chosen: how many heads are taken.
        dropped: rows that were left out, by reason.
        seed: of the bootstrap.
    """

    sites: tuple[Site, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    base: Float[np.ndarray, "n"]
    after: Float[np.ndarray, "n k"]
    n_chosen: int = 4
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    seed: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def chosen(self) -> tuple[Site, ...]:
        """The heads of the lowest effects, in the order of the forward pass."""
        order = np.argsort(self._means, kind="stable")[: self.n_chosen]
        return tuple(self.sites[number] for number in sorted(order.tolist()))

    @property
    def _means(self) -> Float[np.ndarray, "k"]:
        return (self.after - self.base[:, None]).mean(axis=0)

    @cached_property
    def estimates(self) -> tuple[Estimate, ...]:
        """The mean effect of every head, in logits, with its 95 % interval over groups."""
        effects = self.after - self.base[:, None]
        return tuple(mean_estimates(effects, self.groups, self.seed))

    def estimate(self, head: SiteLike) -> Estimate:
        """The mean effect of one head.

        Raises:
            UnknownName: no such head.
        """
        names = [str(site) for site in self.sites]
        return self.estimates[names.index(one_of("head", str(load_site(head)), names))]

    def shown(self) -> dict[str, Any]:
        means = {str(site): self.estimate(site).value for site in self.chosen}
        return {
            "n": len(self),
            "heads": len(self.sites),
            "without": float(self.base.mean()),
            **means,
        }

    def columns(self) -> dict[str, list[Any]]:
        """A row a head: its mean effect with its interval, lowest first."""
        order = np.argsort(self._means, kind="stable").tolist()
        taken = set(self.chosen)
        return {
            "site": [str(self.sites[i]) for i in order],
            "layer": [self.sites[i].layer for i in order],
            "head": [self.sites[i].heads[0] for i in order],
            "effect": [self.estimates[i].value for i in order],
            "low": [self.estimates[i].low for i in order],
            "high": [self.estimates[i].high for i in order],
            "chosen": [self.sites[i] in taken for i in order],
            "n": [len(self)] * len(order),
        }

    def plot(self, ax: Axes | None = None) -> Figure:
        """The effects of the lowest heads, with intervals."""
        from mechassay.interventions.heat_map import draw_points

        names = self.columns()["site"][:ROWS]
        points = {"effect": [self.estimate(name) for name in names]}
        return draw_points(points, names, "change of the logit difference", ax=ax)

    def _repr_html_(self) -> str:
        columns = self.columns()
        names = ("site", "effect", "low", "high", "chosen")
        rows = [
            [f"{x:.3f}" if isinstance(x, float) else x for x in row]
            for row in zip(*(columns[name][:ROWS] for name in names), strict=True)
        ]
        facts = {"rows": len(self), "mean without": f"{self.base.mean():.3f}", **self.dropped}
        return html_facts("Heads against the S2 flip", facts, html_table(names, rows))


def inhibition_heads(
    model: Model,
    examples: Sequence[Example],
    n: int = 4,
    *,
    layers: Sequence[int] | int | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> HeadEffects:
    """The heads whose interchange with the S2 flip lowers the logit difference most.

    Args:
        examples: of `ioi`, those of the train split.
        n: how many are taken.
        layers: all by default.
        seed: of the bootstrap.

    Raises:
        BadUsage: n that is not from 1 to the number of heads.
        BadPairs: no example has an S2 flip whose prompt has as many tokens as its own.
    """
    every = sites(model, positions=ALL, layers=layers, parts="heads")
    if not 1 <= n <= len(every):
        raise BadUsage(f"Of {len(every)} heads 1 to {len(every)} can be taken; got {n}.")
    flipped = ioi_signals(examples, (S2_FLIP,)).only(S2_FLIP)
    rows, batch = flipped.tokenized(model)
    plans = [{site: Interchange()} for site in every]
    found = logit_differences(model, batch, plans, progress=progress)
    return HeadEffects(
        every, batch.ids, batch.groups, found.base, found.after, n, dict(rows.dropped), seed
    )


def linear_difference(
    model: Model,
    examples: Sequence[Example],
    heads: Sequence[SiteLike],
    *,
    kinds: Sequence[str] = FLIPS,
    progress: Progress = BAR,
) -> LogitDifference:
    """The linear logit difference of some heads, exchanged together, fitted on all examples.

    Args:
        examples: of `ioi`, all of the train split; rows whose prompts differ in their number of
            tokens are left out, and counted in the fit's `source`.
        heads: sites at all tokens, such as `inhibition_heads(...).chosen`.
        kinds: of counterfactuals; each base is also exchanged with itself.

    Raises:
        UnknownName: a kind that no example has.
        BadUsage: no head; one that the model does not have.
        BadPairs: no row is left; signals that cannot be told apart.
    """
    rows, batch = ioi_signals(examples, kinds).tokenized(model)
    plan = {load_site(site): Interchange() for site in heads}
    found = logit_differences(model, batch, [plan], progress=progress)
    return fit_logit_difference(
        rows.position,
        rows.token,
        found.after[:, 0],
        source={
            "model": model.name,
            "sites": [str(site) for site in plan],
            "kinds": list(kinds),
            "n_examples": len(examples),
            "data_hash": batch.content_hash,
            "dropped": dict(rows.dropped),
            "dtype": str(model.dtype).removeprefix("torch."),
        },
    )
