"""Which of some heads carry a variable: every proper subset of them (MIB, table 18).

For each subset that is neither empty nor all heads, features of its heads are exchanged together,
and the squared error of the logit difference is taken (`variables.difference_error`). The subset of
the least mean squared error on validation pairs is the one that is chosen, and its error on test
pairs is the one that is reported. The table of Mueller et al. (2025) and their code choose and
report on the same pairs.

Whole heads, as in the paper, have nothing to fit: bases and sources are run once for all subsets.
With a finder, its features are fitted for every subset anew, on train pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mechassay.display import OneLine, Tabular, html_facts, html_table
from mechassay.errors import BadUsage, one_of
from mechassay.features.finder import Finder, load_sites
from mechassay.features.trained_finder import check_values
from mechassay.interchange import InterchangesLike
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import ALL, Site, SiteLike, load_site
from mechassay.interventions.sweep import mean_estimates
from mechassay.interventions.token_logits import logit_differences
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.stats.intervals import Estimate
from mechassay.variables.difference_error import CONSTANT, FULL, NOTHING, best_constant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VALIDATION, TEST = "validation", "test"


@dataclass(frozen=True, eq=False, repr=False)
class HeadSubsets(OneLine, Tabular):
    """Squared errors of the logit difference with the features of each of k subsets of heads.

    Attributes:
        subsets: their heads.
        errors: by split ("validation", "test"), of every pair and subset.
        controls: by split, then by control ("no intervention", "best constant"), of every pair.
        groups: by split, of every pair.
        n_features: of each subset; None where a featurizer does not say.
        variable, finder: what they are of, for tables.
        seed: of the bootstrap.
    """

    subsets: tuple[tuple[Site, ...], ...]
    errors: Mapping[str, Float[np.ndarray, "_ k"]]
    controls: Mapping[str, Mapping[str, Float[np.ndarray, "_"]]]
    groups: Mapping[str, tuple[str, ...]]
    n_features: tuple[int | None, ...]
    variable: str = ""
    finder: str = FULL
    seed: int = 0

    def __len__(self) -> int:
        return len(self.subsets)

    @property
    def chosen(self) -> tuple[Site, ...]:
        """The subset of the least mean squared error on validation, the first of several."""
        return self.subsets[int(self.errors[VALIDATION].mean(axis=0).argmin())]

    def estimate(self, subset: Sequence[SiteLike] | None = None, split: str = TEST) -> Estimate:
        """The mean squared error of a subset with its 95 % interval over groups.

        Args:
            subset: of heads, in any order; None: the one that is chosen on validation.

        Raises:
            UnknownName: no such subset; no such split.
        """
        wanted = self.chosen if subset is None else tuple(map(load_site, subset))
        names = [named_heads(each) for each in map(_sorted, self.subsets)]
        column = names.index(one_of("subset of heads", named_heads(_sorted(wanted)), names))
        errors = self.errors[one_of("split", split, self.errors)][:, [column]]
        return mean_estimates(errors, self.groups[split], self.seed)[0]

    def control(self, of: str, split: str = TEST) -> Estimate:
        """The mean squared error of a control.

        Raises:
            UnknownName: no such control; no such split.
        """
        there = self.controls[one_of("split", split, self.controls)]
        values = there[one_of("control", of, there)]
        return mean_estimates(values[:, None], self.groups[split], self.seed)[0]

    def shown(self) -> dict[str, Any]:
        told = {"variable": self.variable} if self.variable else {}
        return {
            **told,
            "finder": self.finder,
            "subsets": len(self),
            "chosen": named_heads(self.chosen),
            "test_mse": self.estimate().value,
            **{of.replace(" ", "_"): self.control(of).value for of in self.controls[TEST]},
        }

    def columns(self) -> dict[str, list[Any]]:
        """A row a subset, then one a control: mean squared errors with their intervals."""
        of_split = {
            split: [
                *mean_estimates(self.errors[split], self.groups[split], self.seed),
                *(self.control(of, split) for of in self.controls[split]),
            ]
            for split in (VALIDATION, TEST)
        }
        controls = list(self.controls[TEST])
        n = len(self) + len(controls)
        table: dict[str, list[Any]] = {
            "heads": [*map(named_heads, self.subsets), *controls],
            "variable": [self.variable] * n,
            "finder": [*[self.finder] * len(self), *[""] * len(controls)],
            "features": [*self.n_features, *[None] * len(controls)],
            "chosen": [*(each == self.chosen for each in self.subsets), *[False] * len(controls)],
        }
        for split, estimates in of_split.items():
            table[split] = [each.value for each in estimates]
            table[f"{split}_low"] = [each.low for each in estimates]
            table[f"{split}_high"] = [each.high for each in estimates]
            table[f"n_{split}"] = [len(self.groups[split])] * n
        return table

    def plot(self, ax: Axes | None = None) -> Figure:
        """Mean squared errors of subsets and controls on both splits, with intervals."""
        from mechassay.interventions.heat_map import draw_points

        columns = self.columns()
        points = {
            split: [
                Estimate(*each)
                for each in zip(
                    *(columns[name] for name in (split, f"{split}_low", f"{split}_high")),
                    strict=True,
                )
            ]
            for split in (VALIDATION, TEST)
        }
        return draw_points(points, columns["heads"], "mean squared error", ax=ax)

    def _repr_html_(self) -> str:
        columns = self.columns()
        names = ("heads", VALIDATION, TEST, "test_low", "test_high", "chosen")
        rows = [
            [f"{x:.3g}" if isinstance(x, float) else x for x in row]
            for row in zip(*(columns[name] for name in names), strict=True)
        ]
        facts = {"finder": self.finder, "pairs": f"{len(self.groups[TEST]):,} of test"}
        facts |= {"variable": self.variable} if self.variable else {}
        return html_facts("Subsets of heads", facts, html_table(names, rows))


def head_subsets(
    model: Model,
    heads: Sequence[SiteLike],
    *,
    train: InterchangesLike,
    validation: InterchangesLike,
    test: InterchangesLike,
    finder: Finder | None = None,
    variable: str = "",
    seed: int = 0,
    progress: Progress = BAR,
) -> HeadSubsets:
    """The squared errors of all proper non-empty subsets of heads: 14 of four.

    Args:
        heads: sites, such as `inhibition_heads(...).chosen`.
        train, validation, test: pairs with the values of a causal model. The best constant comes
            from train, and so do the features of a finder.
        finder: of features; None: whole heads.
        variable: what is exchanged, for tables.
        seed: of the bootstrap.

    Raises:
        BadUsage: fewer than two heads.
        BadPairs: a pair without a value or a base label. Others as `intervene` and `Finder.fit`.
    """
    sites = load_sites(model, heads)
    if len(sites) < 2:
        raise BadUsage(f"Subsets need at least two heads; got {len(sites)}.")
    subsets = [each for size in range(1, len(sites)) for each in combinations(sites, size)]
    plans: list[dict[Site, Interchange]] = [dict.fromkeys(each, Interchange()) for each in subsets]
    sizes: list[int | None] = [sum(s.width(model.decoder) for s in each) for each in subsets]
    ready = {name: model.interchanges(x) for name, x in ((VALIDATION, validation), (TEST, test))}
    expected = {
        name: check_values("head_subsets", x).double().cpu().numpy() for name, x in ready.items()
    }
    constant = best_constant(model, train)
    if finder is not None:
        batch = model.interchanges(train)
        fits = [
            finder.fit(model, batch, each, together=True, progress=progress) for each in subsets
        ]
        plans = [fit.interchanges() for fit in fits]
        sizes = [_total([fit.n_features(site) for site in fit.sites]) for fit in fits]
    errors: dict[str, np.ndarray] = {}
    controls: dict[str, dict[str, np.ndarray]] = {}
    for split, x in ready.items():
        found = logit_differences(model, x, plans, progress=progress)
        values = expected[split]
        errors[split] = (found.after - values[:, None]) ** 2
        controls[split] = {
            NOTHING: (found.base - values) ** 2,
            CONSTANT: (constant - values) ** 2,
        }
    return HeadSubsets(
        tuple(subsets),
        errors,
        controls,
        {split: x.groups for split, x in ready.items()},
        tuple(sizes),
        variable,
        FULL if finder is None else finder.name,
        seed,
    )


def _total(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _sorted(subset: tuple[Site, ...]) -> tuple[Site, ...]:
    return tuple(sorted(subset, key=lambda site: (site.layer, site.heads, str(site))))


def named_heads(subset: tuple[Site, ...]) -> str:
    """The heads as "7.3, 7.9"; sites of another kind as they are spelled."""
    return ", ".join(
        str(site).removeprefix("heads.").removesuffix(f"@{ALL}")
        if site.part == "heads"
        else str(site)
        for site in subset
    )
