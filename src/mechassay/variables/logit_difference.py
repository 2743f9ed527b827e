"""The logit difference of IOI: heads that make it, and the squared error of features on it.

With D = logit(base label) - logit(label) of a pair, after the interchange of the features of all
sites of a fit in one run, and the value that the causal model expects of it,

    squared error = (D - value)^2            of every pair; its mean is the MSE; lower is better

as in Mueller et al. (2025, section 4.4; table 3d). Beside it stand the errors of

    no intervention   D of the base run
    best constant     D = c whatever is exchanged, c the mean value of the train pairs, which has
                      the least MSE on them
    full vector       D after the interchange of the sites' whole values
    random            D after as many random directions at each site as the fit has features
                      there

D varies from prompt to prompt, which the causal model has no place for: this is part of every
error but the best constant's, so that right features may have a larger one. The means of D and
of the value for each kind of counterfactual (`columns`) tell whether D moves as it is expected
to.

The heads are the S-inhibition heads of any model (`inhibition_heads`), and the expected values
come from the linear logit difference that these make together (`linear_difference`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mechassay.causal_models.ioi import FLIPS, LogitDifference, fit_logit_difference, ioi_signals
from mechassay.errors import BadUsage, one_of
from mechassay.features.das import check_values
from mechassay.features.finder import Fit
from mechassay.features.probes import random_directions
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import ALL, Site, SiteLike, load_site, sites
from mechassay.interventions.sweep import logit_differences, mean_estimates
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangesLike
from mechassay.prompts.pairs import Example
from mechassay.stats.intervals import Estimate
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress, Tabular, html_facts, html_table
from mechassay.variables.interchange_accuracy import FULL, NOTHING, RANDOM, RESULT

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

    @checked
    def estimate(self, head: SiteLike) -> Estimate:
        """The mean effect of one head.

        Raises:
            UnknownName: no such head.
        """
        names = [str(site) for site in self.sites]
        return self.estimates[names.index(one_of("head", str(load_site(head)), names))]

    def repr_fields(self) -> dict[str, Any]:
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

    @checked
    def plot(self, ax: Axes | None = None) -> Figure:
        """The effects of the lowest heads, with intervals."""
        from mechassay.results.plots import draw_points

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


@checked
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

    In GPT-2 small the heads 7.3, 7.9, 8.6 and 8.10 tell who is not to be named (Wang et al.
    2023). Mueller et al. (2025, G.5.4) exchange these four. Here they are found: with D the
    logit of the indirect object minus that of the subject, and every head exchanged alone at
    all tokens against the S2 flip, which turns both signals,

        effect(head) = mean over train rows of D(after) - D(before)

    and the n heads of the lowest effects are taken. A head that was chosen for its effect has a
    smaller one on other rows.

    Labels are the names with the space before them, as the model writes them, by their first
    tokens; MIB's code takes the first tokens of the names without it, which no model writes
    there, and no option does that.

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
    differences = logit_differences(model, batch, plans, progress=progress)
    return HeadEffects(
        every,
        batch.ids,
        batch.groups,
        differences.base,
        differences.after,
        n,
        dict(rows.dropped),
        seed,
    )


@checked
def linear_difference(
    model: Model,
    examples: Sequence[Example],
    heads: Sequence[SiteLike],
    *,
    kinds: Sequence[str] = FLIPS,
    progress: Progress = BAR,
) -> LogitDifference:
    """The linear logit difference of some heads, exchanged together, fitted on all examples.

    All heads are exchanged in one run, in all train rows: bases with themselves and with the
    three flips (`ioi_signals`). D of these runs is fitted by

        D = bias + position p + token t

    with D and labels as in `inhibition_heads`.

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
    differences = logit_differences(model, batch, [plan], progress=progress)
    return fit_logit_difference(
        rows.position,
        rows.token,
        differences.after[:, 0],
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


CONSTANT = "best constant"
KINDS = (RESULT, NOTHING, CONSTANT, FULL, RANDOM)
"""What numbers are of: the features, and their controls."""
ALL_KINDS = "all"


@dataclass(frozen=True, eq=False, repr=False)
class SquaredError(OneLine, Tabular):
    """How far logit differences are from what a causal model expects; n pairs.

    Attributes:
        sites: where features are exchanged, all in one run.
        kinds: of counterfactuals.
        expected: the value of every pair.
        measured: by what it is of (see `KINDS`), the logit difference of every pair.
        n_features: of each site; None where the featurizer does not say, and there is no random
            control.
        seed: of the random directions and of the bootstrap.
    """

    sites: tuple[Site, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    kinds: tuple[str, ...]
    expected: Float[np.ndarray, "n"]
    measured: Mapping[str, Float[np.ndarray, "n"]]
    n_features: tuple[int | None, ...]
    seed: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def repr_fields(self) -> dict[str, Any]:
        means = {of: float(self.errors(of).mean()) for of in self.measured}
        return {"n": len(self), "sites": tuple(map(str, self.sites)), **means}

    @checked
    def errors(self, of: str = RESULT) -> Float[np.ndarray, "n"]:
        """The squared error of every pair.

        Raises:
            UnknownName: no such control.
        """
        return (self.measured[one_of("control", of, self.measured)] - self.expected) ** 2

    @checked
    def estimate(self, of: str = RESULT, kind: str = ALL_KINDS) -> Estimate:
        """The mean squared error with its 95 % interval over groups.

        Args:
            kind: of counterfactual; "all" pairs by default.

        Raises:
            UnknownName: no such control; no such kind.
        """
        rows = self._rows(kind)
        groups = [self.groups[row] for row in rows]
        return mean_estimates(self.errors(of)[rows][:, None], groups, self.seed)[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """All pairs, and each kind of counterfactual if there are several."""
        several = tuple(dict.fromkeys(self.kinds))
        return (ALL_KINDS, *(several if len(several) > 1 else ()))

    def _rows(self, kind: str) -> list[int]:
        one_of("kind", kind, (ALL_KINDS, *dict.fromkeys(self.kinds)))
        return [row for row, of_pair in enumerate(self.kinds) if kind in (ALL_KINDS, of_pair)]

    def columns(self) -> dict[str, list[Any]]:
        """A row for each kind of counterfactual and what it is of: the mean squared error with its
        interval, and the means of what was measured and expected.
        """
        rows: list[tuple[Any, ...]] = []
        sizes = [size for size in self.n_features if size is not None]
        features = sum(sizes) if len(sizes) == len(self.sites) else None
        for kind in self.parts:
            at = self._rows(kind)
            for of, measured in self.measured.items():
                estimate = self.estimate(of, kind)
                means = float(measured[at].mean()), float(self.expected[at].mean())
                numbers = (estimate.value, estimate.low, estimate.high)
                rows.append((kind, of, features, *numbers, *means, len(at)))
        names = ("kind", "of", "features", "mse", "low", "high", "measured", "expected", "n")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    @checked
    def plot(self, ax: Axes | None = None) -> Figure:
        """Mean squared errors of the features and their controls, a colour for each kind."""
        from mechassay.results.plots import draw_points

        points = {kind: [self.estimate(of, kind) for of in self.measured] for kind in self.parts}
        return draw_points(points, list(self.measured), "mean squared error", ax=ax)

    def _repr_html_(self) -> str:
        columns = self.columns()
        names = ("kind", "of", "mse", "low", "high", "measured", "expected", "n")
        rows = [
            [f"{x:.3g}" if isinstance(x, float) else x for x in row]
            for row in zip(*(columns[name] for name in names), strict=True)
        ]
        facts = {"sites": ", ".join(map(str, self.sites)), "pairs": len(self)}
        return html_facts("Squared error of the logit difference", facts, html_table(names, rows))


@checked
def squared_error(
    fit: Fit,
    pairs: InterchangesLike,
    *,
    train: InterchangesLike,
    model: Model | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> SquaredError:
    """The squared error of the logit difference after exchanging all sites of a fit together.

    Args:
        pairs: other pairs than the fit was found on, with the values of a causal model
            (`expected_labels` of one whose output is a logit difference).
        train: pairs that the best constant is taken from.
        model: for a fit that was read from a file; else the one it was found on.
        seed: of the random directions and of the bootstrap.

    Raises:
        BadUsage: a fit without a model; one of several sites that were found each alone.
        BadPairs: a pair without a value or a base label. Others as `intervene`.
    """
    model = fit.model if model is None else model
    if model is None:
        raise BadUsage("squared_error needs model=..., as this fit was read from a file.")
    if len(fit) > 1 and not fit.together:
        raise BadUsage(
            f"squared_error exchanges all sites in one run, and the {len(fit)} sites of this fit"
            " were found each alone: fit with together=True."
        )
    ready = model.interchanges(pairs)
    expected = check_values("squared_error", ready).double().cpu().numpy()
    constant = best_constant(model, train)
    sizes = tuple(fit.n_features(site) for site in fit.sites)
    plans: dict[str, Mapping[Site, Interchange]] = {
        RESULT: fit.interchanges(),
        FULL: dict.fromkeys(fit.sites, Interchange()),
    }
    if all(size is not None for size in sizes):
        plans[RANDOM] = _random(model, fit.sites, sizes, seed)
    differences = logit_differences(model, ready, list(plans.values()), progress=progress)
    measured = {of: differences.after[:, number] for number, of in enumerate(plans)}
    measured |= {NOTHING: differences.base, CONSTANT: np.full(len(ready), constant)}
    return SquaredError(
        fit.sites,
        ready.ids,
        ready.groups,
        ready.kinds,
        expected,
        {of: measured[of] for of in KINDS if of in measured},
        sizes,
        seed,
    )


def best_constant(model: Model, train: InterchangesLike) -> float:
    """The logit difference that has the least mean squared error on pairs: their mean value.

    Raises:
        BadPairs: a pair without a value.
    """
    return float(check_values("The best constant", model.interchanges(train)).double().mean())


def _random(
    model: Model, sites: Sequence[Site], sizes: Sequence[int | None], seed: int
) -> dict[Site, Interchange]:
    """As many random directions at each site; no feature at all is an interchange of nothing."""
    return {
        site: Interchange(features=random_directions(site, site.width(model.decoder), size, seed))
        if size
        else Interchange(alpha=0.0)
        for site, size in zip(sites, sizes, strict=True)
    }
