"""The squared error of a logit difference: IOI's measure of features (MIB, table 3d).

With D = logit(base label) - logit(label) of a pair, after the interchange of the features of all
sites of a fit in one run, and the value that the causal model expects of it,

    squared error = (D - value)^2            of every pair; its mean is the MSE; lower is better

as in Mueller et al. (2025, section 4.4). Beside it stand the errors of

    no intervention   D of the base run
    best constant     D = c whatever is exchanged, c the mean value of the train pairs, which has
                      the least MSE on them
    full vector       D after the interchange of the sites' whole values
    random            D after as many random directions at each site as the fit has features there

D varies from prompt to prompt, which the causal model has no place for: this is part of every error
but the best constant's, so that right features may have a larger one. The means of D and of the
value for each kind of counterfactual (`columns`) tell whether D moves as it is expected to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mechassay.display import OneLine, Tabular, html_facts, html_table
from mechassay.errors import BadUsage, one_of
from mechassay.features.fit import Fit
from mechassay.features.random_directions import random_directions
from mechassay.features.trained_finder import check_values
from mechassay.interchange import InterchangesLike
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import Site
from mechassay.interventions.sweep import mean_estimates
from mechassay.interventions.token_logits import logit_differences
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.stats.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULT, NOTHING, CONSTANT = "features", "no intervention", "best constant"
FULL, RANDOM = "full vector", "random"
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

    def shown(self) -> dict[str, Any]:
        means = {of: float(self.errors(of).mean()) for of in self.measured}
        return {"n": len(self), "sites": tuple(map(str, self.sites)), **means}

    def errors(self, of: str = RESULT) -> Float[np.ndarray, "n"]:
        """The squared error of every pair.

        Raises:
            UnknownName: no such control.
        """
        return (self.measured[one_of("control", of, self.measured)] - self.expected) ** 2

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
        return [row for row, each in enumerate(self.kinds) if kind in (ALL_KINDS, each)]

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
                found = self.estimate(of, kind)
                means = float(measured[at].mean()), float(self.expected[at].mean())
                told = (found.value, found.low, found.high)
                rows.append((kind, of, features, *told, *means, len(at)))
        names = ("kind", "of", "features", "mse", "low", "high", "measured", "expected", "n")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def plot(self, ax: Axes | None = None) -> Figure:
        """Mean squared errors of the features and their controls, a colour for each kind."""
        from mechassay.interventions.heat_map import draw_points

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


def squared_error(
    fit: Fit,
    batch: InterchangesLike,
    *,
    train: InterchangesLike,
    model: Model | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> SquaredError:
    """The squared error of the logit difference after exchanging all sites of a fit together.

    Args:
        batch: other pairs than the fit was found on, with the values of a causal model
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
    ready = model.interchanges(batch)
    expected = check_values("squared_error", ready).double().cpu().numpy()
    constant = best_constant(model, train)
    sizes = tuple(fit.n_features(site) for site in fit.sites)
    plans: dict[str, Mapping[Site, Interchange]] = {
        RESULT: fit.interchanges(),
        FULL: dict.fromkeys(fit.sites, Interchange()),
    }
    if all(size is not None for size in sizes):
        plans[RANDOM] = _random(model, fit.sites, sizes, seed)
    found = logit_differences(model, ready, list(plans.values()), progress=progress)
    measured = {of: found.after[:, number] for number, of in enumerate(plans)}
    measured |= {NOTHING: found.base, CONSTANT: np.full(len(ready), constant)}
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
