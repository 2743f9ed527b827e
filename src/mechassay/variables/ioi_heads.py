"""Where a variable of IOI lives among heads: a subset of them, and features of these (MIB, 3d).

    1   heads are exchanged wholly, in all proper subsets; the one of the least mean squared
        error of the logit difference on validation pairs is chosen (MIB's table 18)
    2   a featurizer is trained on the chosen heads, one rotation or mask a head, all of them
        exchanged in one run, on the squared error; of several numbers of features that of the
        least error on validation pairs is taken
    3   its mean squared error on test pairs is the result, beside its controls
        (`mechassay.variables.logit_difference`)

The error of the chosen subset is reported on test pairs. The table of Mueller et al. (2025) and
their code choose and report on the same pairs.

Whole heads, as in the paper, have nothing to fit: bases and sources are run once for all
subsets. With a finder, its features are fitted for every subset anew, on train pairs. Subsets
depend on the pairs alone, so that those who compare featurizers pass them in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from mechassay.causal_models.ioi import LogitDifference
from mechassay.errors import BadUsage, one_of
from mechassay.features.das import check_values
from mechassay.features.finder import Finder, Fit, load_sites
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import ALL, Site, SiteLike, load_site
from mechassay.interventions.sweep import logit_differences, mean_estimates
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangesLike
from mechassay.results.measures import measure_texts
from mechassay.results.records import Measure, Spec, Table, Values
from mechassay.results.result import RecordContents, Result
from mechassay.stats.intervals import Estimate
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress, Tabular, html_facts, html_table
from mechassay.variables.data import VariablePairs
from mechassay.variables.featurizers import SIZED, FeaturizerSettings, fit_featurizer
from mechassay.variables.logit_difference import (
    CONSTANT,
    FULL,
    NOTHING,
    RANDOM,
    RESULT,
    SquaredError,
    best_constant,
    squared_error,
)
from mechassay.variables.options import Featurizers
from mechassay.variables.verdicts import (
    KINDS_TABLE,
    MUST_STAY_BELOW,
    training_args,
    training_falls,
    training_measures,
    verdict,
)

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

    @checked
    def estimate(self, subset: Sequence[SiteLike] | None = None, split: str = TEST) -> Estimate:
        """The mean squared error of a subset with its 95 % interval over groups.

        Args:
            subset: of heads, in any order; None: the one that is chosen on validation.

        Raises:
            UnknownName: no such subset; no such split.
        """
        wanted = self.chosen if subset is None else tuple(map(load_site, subset))
        names = [named_heads(heads) for heads in map(_sorted, self.subsets)]
        column = names.index(one_of("subset of heads", named_heads(_sorted(wanted)), names))
        errors = self.errors[one_of("split", split, self.errors)][:, [column]]
        return mean_estimates(errors, self.groups[split], self.seed)[0]

    @checked
    def control(self, of: str, split: str = TEST) -> Estimate:
        """The mean squared error of a control.

        Raises:
            UnknownName: no such control; no such split.
        """
        there = self.controls[one_of("split", split, self.controls)]
        values = there[one_of("control", of, there)]
        return mean_estimates(values[:, None], self.groups[split], self.seed)[0]

    def repr_fields(self) -> dict[str, Any]:
        facts = {"variable": self.variable} if self.variable else {}
        return {
            **facts,
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
            "chosen": [
                *(subset == self.chosen for subset in self.subsets),
                *[False] * len(controls),
            ],
        }
        for split, estimates in of_split.items():
            table[split] = [estimate.value for estimate in estimates]
            table[f"{split}_low"] = [estimate.low for estimate in estimates]
            table[f"{split}_high"] = [estimate.high for estimate in estimates]
            table[f"n_{split}"] = [len(self.groups[split])] * n
        return table

    @checked
    def plot(self, ax: Axes | None = None) -> Figure:
        """Mean squared errors of subsets and controls on both splits, with intervals."""
        from mechassay.results.plots import draw_points

        columns = self.columns()
        points = {
            split: [
                Estimate(*row)
                for row in zip(
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


@checked
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
    subsets = [subset for size in range(1, len(sites)) for subset in combinations(sites, size)]
    plans: list[dict[Site, Interchange]] = [
        dict.fromkeys(subset, Interchange()) for subset in subsets
    ]
    sizes: list[int | None] = [sum(s.width(model.decoder) for s in subset) for subset in subsets]
    ready = {name: model.interchanges(x) for name, x in ((VALIDATION, validation), (TEST, test))}
    expected = {
        name: check_values("head_subsets", x).double().cpu().numpy() for name, x in ready.items()
    }
    constant = best_constant(model, train)
    if finder is not None:
        batch = model.interchanges(train)
        fits = [
            finder.fit(model, batch, subset, together=True, progress=progress) for subset in subsets
        ]
        plans = [fit.interchanges() for fit in fits]
        sizes = [_total([fit.n_features(site) for site in fit.sites]) for fit in fits]
    errors: dict[str, np.ndarray] = {}
    controls: dict[str, dict[str, np.ndarray]] = {}
    for split, x in ready.items():
        differences = logit_differences(model, x, plans, progress=progress)
        values = expected[split]
        errors[split] = (differences.after - values[:, None]) ** 2
        controls[split] = {
            NOTHING: (differences.base - values) ** 2,
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


S_INHIBITION = ("heads.7.3@all", "heads.7.9@all", "heads.8.6@all", "heads.8.10@all")
"""Of GPT-2 small (Wang et al. 2023)."""
SUBSETS = "subsets"


@dataclass(frozen=True, eq=False, repr=False)
class HeadLocalization(Result, kind="variables"):
    """A variable of IOI in the features of a subset of heads; see the module.

    Attributes:
        subsets: errors of whole heads; `subsets.chosen` are those of the fit. None where the
            features were given, and no heads were chosen.
        error: of the features on test pairs, with its controls.
        validation: the squared error on validation pairs, by number of directions a head; None
            where a featurizer says itself, and nothing where there was no choice.
        linear: the fit that expected values come from; None where they come from elsewhere.
    """

    model: str
    causal_model: str
    variable: str
    featurizer: str
    subsets: HeadSubsets | None
    fit: Fit
    error: SquaredError
    validation: Mapping[int | None, float]
    linear: LogitDifference | None = None

    @property
    def chosen_fit(self) -> Fit:
        """The features of the chosen heads."""
        return self.fit

    @property
    def heads(self) -> tuple[Site, ...]:
        """The heads that were chosen."""
        return self.fit.sites

    @property
    def k(self) -> int | None:
        """The number of directions a head that was chosen; None where a featurizer says itself."""
        return min(self.validation, key=self.validation.__getitem__, default=None)

    @property
    def found(self) -> bool:
        """Whether the error is below those of no intervention and of the best constant, by the
        95 % intervals of differences pair by pair.
        """
        return all(self.difference(control).high < 0 for control in MUST_STAY_BELOW)

    @property
    def isolated(self) -> bool:
        """Whether these features have it, and random ones of their number do not."""
        return self.found and RANDOM in self.error.measured and self.difference(RANDOM).high < 0

    @property
    def verdict(self) -> str:
        """As `Localization.verdict`."""
        falls = training_falls(self.fit)
        return verdict(len(set(self.error.groups)), self.found, self.isolated, falls)

    def difference(self, control: str) -> Estimate:
        """The squared error less that of a control, pair by pair.

        Raises:
            UnknownName: no such control.
        """
        values = (self.error.errors() - self.error.errors(control))[:, None]
        return mean_estimates(values, self.error.groups, self.error.seed)[0]

    def repr_fields(self) -> dict[str, Any]:
        errors = {of: round(self.error.estimate(of).value, 3) for of in self.error.measured}
        about = {"variable": self.variable, "featurizer": self.featurizer}
        return {**about, "heads": named_heads(self.heads), "verdict": self.verdict, **errors}

    def columns(self) -> dict[str, list[Any]]:
        """Errors by kind of counterfactual and control."""
        return self.error.columns()

    def contents(self) -> RecordContents:
        about: dict[str, Any] = {"causal_model": self.causal_model}
        if self.linear is not None:
            about |= {f"linear {name}": value for name, value in self.linear.repr_fields().items()}
        args: dict[str, Any] = {"heads": named_heads(self.heads)}
        args |= {} if self.k is None else {"k": self.k}
        args |= training_args(self.fit)
        error = self.error
        tables = [Table(name=KINDS_TABLE, keys=("kind", "of"), columns=error.columns())]
        if self.subsets is not None:
            tables.insert(0, Table(name=SUBSETS, keys=("heads",), columns=self.subsets.columns()))
        return {
            "specs": {
                "model": Spec(name=self.model),
                "task": Spec(name=self.causal_model),
                "variable": Spec(name=self.variable, args=about),
                "method": Spec(name=self.featurizer, args=args),
                "metric": Spec(name="squared error of the logit difference"),
            },
            "measures": list(self._measures()),
            "tables": tables,
            "values": Values(
                unit="pair",
                ids=list(error.ids),
                groups=list(error.groups),
                columns={of: error.errors(of).tolist() for of in error.measured},
            ),
        }

    def _measures(self) -> Iterator[Measure]:
        for of in self.error.measured:
            named = "result" if of == RESULT else f"control:{of}"
            yield self._measure(named, self.error.estimate(of))
        for of in self.error.measured:
            if of != RESULT:
                yield self._measure(f"difference:{of}", self.difference(of))
        if self.validation and self.subsets is not None:
            error, n = Estimate(self.validation[self.k]), len(self.subsets.groups[VALIDATION])
            yield measure_texts("variables").measure("validation of heads", error, n=n)
        yield from training_measures(self.fit)

    def _measure(self, of: str, estimate: Estimate) -> Measure:
        return measure_texts("variables").measure("mse", estimate, of=of, n=len(self.error))


def localize_in_heads(
    model: Model,
    pairs: VariablePairs,
    heads: Sequence[SiteLike],
    featurizer: Featurizers = "das",
    *,
    settings: FeaturizerSettings | None = None,
    ks: Sequence[int] = (32,),
    subsets: HeadSubsets | None = None,
    linear: LogitDifference | None = None,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress = BAR,
) -> HeadLocalization:
    """Look for a variable of IOI in subsets of heads; see the module.

    Args:
        pairs: with the splits train, validation and test, and values (`equal_lengths=True`).
        heads: sites at all tokens, such as `inhibition_heads(...).chosen`.
        ks: numbers of directions of "das" a head, to choose among.
        subsets: those of the heads, if they are known.
        linear: the fit that the values come from.
        seed: of the training, random directions and intervals.
        folder: where trainings keep what is done, so that a killed run goes on.

    Raises:
        BadUsage: no number of features.
        BadUsage, BadPairs: see `head_subsets`, `fit_featurizer` and `squared_error`.
    """
    batches = pairs.batches
    if not ks:
        raise BadUsage("localize_in_heads needs at least one number of features in ks; got none.")
    if subsets is None:
        subsets = head_subsets(
            model,
            heads,
            train=batches["train"],
            validation=batches["validation"],
            test=batches["test"],
            variable=str(pairs.variable),
            seed=seed,
            progress=progress,
        )
    fits: dict[int | None, Fit] = {}
    validation: dict[int | None, float] = {}
    train = batches["train"]
    about: dict[str, Any] = {"seed": seed, "progress": progress}
    for k in ks if featurizer in SIZED else (None,):
        fits[k] = fit_featurizer(
            model,
            train,
            subsets.chosen,
            featurizer,
            settings=settings or FeaturizerSettings(lr=1e-2, loss="squared-error"),
            k=k or 1,
            together=True,
            checkpoint=None if folder is None else folder / f"fit-{k or 0}.pt",
            **about,
        )
        held_out = squared_error(fits[k], batches["validation"], train=train, **about)
        validation[k] = held_out.estimate().value
    fit = fits[min(validation, key=validation.__getitem__)]
    return HeadLocalization(
        model.name,
        pairs.labels["test"].model,
        str(pairs.variable),
        featurizer,
        subsets,
        fit,
        squared_error(fit, batches["test"], train=train, **about),
        validation,
        linear,
    )


def measure_features_in_heads(
    model: Model,
    pairs: VariablePairs,
    fit: Fit,
    name: str = "given",
    *,
    linear: LogitDifference | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> HeadLocalization:
    """How well features that were found elsewhere hold a variable of IOI; nothing is trained.

    All sites of the fit are exchanged in one run.

    Args:
        pairs: with the splits train, whose mean value is the best constant, and test.
        name: of what found them.
        linear: the fit that the values of the pairs come from.
        seed: of random directions and intervals.

    Raises:
        BadUsage, BadPairs: see `squared_error`.
    """
    test, train = pairs.batches["test"], pairs.batches["train"]
    own = replace(
        fit,
        model=model,
        losses=torch.zeros(0, 0, dtype=torch.float32),
        provenance=MappingProxyType({}),
    )
    error = squared_error(own, test, train=train, seed=seed, progress=progress)
    causal, variable = pairs.labels["test"].model, str(pairs.variable)
    return HeadLocalization(model.name, causal, variable, name, None, own, error, {}, linear)
