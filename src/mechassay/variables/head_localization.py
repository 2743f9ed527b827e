"""Where a variable of IOI lives among heads: a subset of them, and features of these (MIB, 3d).

    1  heads are exchanged wholly, in all proper subsets; the one of the least squared error of the
       logit difference on validation pairs is chosen (MIB's table 18, chosen on other pairs)
    2  a featurizer is trained on the chosen heads, one rotation or mask a head, all of them
       exchanged in one run, on the squared error; of several numbers of features that of the least
       error on validation pairs is taken
    3  its mean squared error on test pairs is the result, beside its controls (`difference_error`)

Subsets depend on the pairs alone, so that those who compare featurizers pass them in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechassay.display import OneLine, Tabular
from mechassay.errors import BadUsage
from mechassay.features.fit import Fit
from mechassay.interventions.site import Site, SiteLike
from mechassay.interventions.sweep import mean_estimates
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.records import Measure, Provenance, Record, Spec, Table, Values, provenance
from mechassay.stats.intervals import Estimate
from mechassay.stats.measures import measured
from mechassay.variables.data import VariablePairs
from mechassay.variables.difference_error import (
    CONSTANT,
    NOTHING,
    RESULT,
    SquaredError,
    squared_error,
)
from mechassay.variables.featurizers import SIZED, FeaturizerSettings, fit_featurizer
from mechassay.variables.localization import KIND
from mechassay.variables.models.ioi import LogitDifference
from mechassay.variables.subsets_of_heads import HeadSubsets, head_subsets, named_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

S_INHIBITION = ("heads.7.3@all", "heads.7.9@all", "heads.8.6@all", "heads.8.10@all")
"""Of GPT-2 small (Wang et al. 2023)."""
MUST_STAY_BELOW = (NOTHING, CONSTANT)
SUBSETS, KINDS_TABLE = "subsets", "kinds"
MSE_SAYS = (
    "Mean squared difference, in squared logits, between the logit difference after the interchange"
    " and what the causal model expects of it."
)


@dataclass(frozen=True, eq=False, repr=False)
class HeadLocalization(OneLine, Tabular):
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

    def difference(self, control: str) -> Estimate:
        """The squared error less that of a control, pair by pair.

        Raises:
            UnknownName: no such control.
        """
        values = (self.error.errors() - self.error.errors(control))[:, None]
        return mean_estimates(values, self.error.groups, self.error.seed)[0]

    def shown(self) -> dict[str, Any]:
        told = {of: round(self.error.estimate(of).value, 3) for of in self.error.measured}
        about = {"variable": self.variable, "featurizer": self.featurizer}
        return {**about, "heads": named_heads(self.heads), "found": self.found, **told}

    def columns(self) -> dict[str, list[Any]]:
        """Errors by kind of counterfactual and control."""
        return self.error.columns()

    def plot(self, ax: Axes | None = None) -> Figure:
        """Errors of the features and their controls, by kind of counterfactual."""
        return self.error.plot(ax)

    def record(
        self, specs: Mapping[str, Spec] | None = None, made: Provenance | None = None, **more: Any
    ) -> Record:
        """The result as a record; see `Localization.record` for arguments."""
        about: dict[str, Any] = {"causal_model": self.causal_model}
        if self.linear is not None:
            about |= {f"linear {name}": value for name, value in self.linear.shown().items()}
        names = {
            "model": Spec(name=self.model),
            "task": Spec(name=self.causal_model),
            "variable": Spec(name=self.variable, args=about),
            "metric": Spec(name="squared error of the logit difference"),
        }
        args: dict[str, Any] = {"heads": named_heads(self.heads)}
        args |= {} if self.k is None else {"k": self.k}
        method = Spec(name=self.featurizer, args=args)
        given = dict(specs or {})
        if "variable" in given:
            wider = {**about, **given["variable"].args}
            given["variable"] = given["variable"].model_copy(update={"args": wider})
        error = self.error
        columns = {of: error.errors(of).tolist() for of in error.measured}
        tables = [Table(name=KINDS_TABLE, keys=("kind", "of"), columns=error.columns())]
        if self.subsets is not None:
            tables.insert(0, Table(name=SUBSETS, keys=("heads",), columns=self.subsets.columns()))
        return Record(
            kind=KIND,
            specs={**names, "method": method, **given},
            measures=list(self._measures()),
            tables=tables,
            values=Values(
                unit="pair", ids=list(error.ids), groups=list(error.groups), columns=columns
            ),
            provenance=made or provenance(device="", dtype="", seed=error.seed),
            **more,
        )

    def _measures(self) -> Iterator[Measure]:
        for of in self.error.measured:
            named = "result" if of == RESULT else f"control:{of}"
            yield self._measure(named, self.error.estimate(of))
        for of in self.error.measured:
            if of != RESULT:
                yield self._measure(f"difference:{of}", self.difference(of))

    def _measure(self, of: str, found: Estimate) -> Measure:
        title, n = "mean squared error", len(self.error)
        return measured("mse", title, of, found, n, MSE_SAYS, better="down", unit="logits²")


def localize_in_heads(
    model: Model,
    pairs: VariablePairs,
    heads: Sequence[SiteLike],
    featurizer: str = "das",
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
            featurizer,
            model,
            train,
            subsets.chosen,
            settings or FeaturizerSettings(lr=1e-2, loss="squared-error"),
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
    own = replace(fit, model=model)
    error = squared_error(own, test, train=train, seed=seed, progress=progress)
    causal, variable = pairs.labels["test"].model, str(pairs.variable)
    return HeadLocalization(model.name, causal, variable, name, None, own, error, {}, linear)
