"""Odds that methods find of a gym task in a model, by item, layer and region, and as one number.

    odds          original labels                                    (Arora et al. 2024, eq. 10)
    control       control labels, dog and give
    selectivity   odds - control of every layer and region; only then regions are chosen
                  and layers averaged (section 5.2)

    overall = mean over layers of the mean odds at the layer's region          (eq. 19)

The region of a layer is chosen by one of two rules:

    validation        the region with the highest mean on validation items (the default)
    causalgym-2024    the region with the highest mean on the test items themselves, as published

The maximum of noisy means is above the largest mean, so the published rule gives more than 0
even to directions that do nothing; random directions under the same rule say how much.

Intervals are bootstraps over groups of items (a pair and its swap) and over seeds, where a
method has several. Few seeds say little of their spread: the interval is then too narrow. Beside
the odds stands the accuracy: the share of bases whose own label is more probable than the other
one. A method that reads labels stands beside itself on shuffled labels, where that was run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from mechassay.errors import one_of
from mechassay.features.finder import Fit
from mechassay.features.training import fall_of, still_falling
from mechassay.gym.interchanges import CAUSALGYM_2024
from mechassay.gym.names import RANDOM, VANILLA, is_control, shuffled_of
from mechassay.gym.task_accuracy import LEAST_ACCURACY, no_behaviour
from mechassay.results.measures import measure_texts
from mechassay.results.records import Measure, Spec, Table, Values
from mechassay.results.result import RecordContents, Result
from mechassay.stats.intervals import Estimate, Resamples, percentile_interval, proportion_interval
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


VALIDATION = "validation"
RULES = (VALIDATION, CAUSALGYM_2024)

Odds = Float[np.ndarray, "seeds n layers regions"]
"""Log odds-ratios of n items, in nats."""
Classified = Bool[np.ndarray, "seeds n layers regions"]
"""Whether a sentence's own type is the nearest, see `gym.classification`."""


def chosen_regions(
    validation: Float[np.ndarray, "seeds m layers regions"],
    test: Odds,
    rule: str = VALIDATION,
) -> Int[np.ndarray, "seeds layers"]:
    """The number of the region of every layer, for every seed; the first of several. There may
    be other numbers of validation and of test items. Regions that may not be chosen have odds of
    minus infinity.

    Raises:
        UnknownName: no such rule.
    """
    one_of("rule for regions", rule, RULES)
    looked_at = validation if rule == VALIDATION else test
    return looked_at.mean(axis=1).argmax(axis=2)


def by_item(odds: Odds, regions: Int[np.ndarray, "seeds layers"]) -> Float[np.ndarray, "seeds n"]:
    """Of every item the mean over layers of its odds at their regions."""
    picked = np.take_along_axis(odds, regions[:, None, :, None], axis=3)
    return picked[..., 0].mean(axis=2)


def best_mean(odds: Odds) -> float:
    """The overall odds of the items that regions are chosen on; what candidates are compared by."""
    return float(odds.mean(axis=1).max(axis=2).mean())


ORIGINAL, CONTROL, SELECTIVITY = "odds", "control", "selectivity"
OF = (ORIGINAL, CONTROL, SELECTIVITY)


@dataclass(frozen=True, eq=False, repr=False)
class MethodOdds(OneLine):
    """Odds of one method.

    Attributes:
        setting: what tells the chosen candidate from others; "" where nothing does.
        candidates: of each candidate the overall odds on validation items, by its setting.
        validation, test: of original and of control labels.
        fits: of each seed, found for original and for control labels: the same where labels play no
            part.
        lacking: why nothing was found, by site; odds are 0 there.
        others: the candidates that were not chosen, by their settings.
        offered: whether a region of a layer may be chosen; all of them if not given.
    """

    method: str
    setting: str
    candidates: Mapping[str, float]
    validation: Mapping[str, Odds]
    test: Mapping[str, Odds]
    fits: Mapping[str, tuple[Fit, ...]] = field(repr=False)
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])
    others: Mapping[str, MethodOdds] = field(default_factory=lambda: {}, repr=False)
    offered: Bool[np.ndarray, "layers regions"] | None = field(default=None, repr=False)

    @property
    def seeds(self) -> int:
        """How many seeds it was run with."""
        return len(self.test[ORIGINAL])

    def odds(self, of: str, split: str = "test") -> Odds:
        """Odds of items: original, control, or the first less the second. Those of validation
        items, by which regions are chosen, are minus infinity where none may be.
        """
        by_label = self.test if split == "test" else self.validation
        made = by_label[ORIGINAL] - by_label[CONTROL] if of == SELECTIVITY else by_label[of]
        return made if split == "test" else self._offered(made)

    def regions(self, of: str, rule: str = VALIDATION) -> Int[np.ndarray, "seeds layers"]:
        """The number of the region of every layer, for every seed, among those that may be chosen.

        Raises:
            UnknownName: no such rule.
        """
        return chosen_regions(self.odds(of, "validation"), self._offered(self.odds(of)), rule)

    def losses(self) -> Float[np.ndarray, "seeds steps"]:
        """The loss before each step of a training on original labels: the mean over layers, each at
        its region. No steps where nothing was trained.
        """
        fits, odds = self.fits[ORIGINAL], self.test[ORIGINAL]
        if any(len(fit.losses) == 0 for fit in fits):
            return np.zeros((self.seeds, 0))
        # Sites are all regions of the first layer, then of the next.
        sites = self.regions(ORIGINAL) + odds.shape[3] * np.arange(odds.shape[2])
        means = [
            fit.losses.double().numpy()[:, own].mean(axis=1)
            for fit, own in zip(fits, sites, strict=True)
        ]
        return np.stack(means)

    def _offered(self, odds: Odds) -> Odds:
        return odds if self.offered is None else np.where(self.offered, odds, -np.inf)

    def repr_fields(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "setting": self.setting,
            "seeds": self.seeds,
            "validation": best_mean(self.validation[ORIGINAL]),
        }


def mean_of(values: Float[np.ndarray, "seeds n"], groups: tuple[str, ...], seed: int) -> Estimate:
    """The mean over seeds and items, with its 95 % interval over seeds and groups."""
    return means_of(values[..., None], groups, seed)[0]


def means_of(
    values: Float[np.ndarray, "seeds n k"], groups: tuple[str, ...], seed: int
) -> list[Estimate]:
    """The mean of each of k columns over seeds and items, with its 95 % interval.

    Groups and seeds are drawn anew, independently of each other; a single seed is what it is.
    """
    n_seeds, n, k = values.shape
    rng = np.random.default_rng(seed)
    rows = values.transpose(0, 2, 1).reshape(-1, n)
    resamples = Resamples(groups, rng)
    draws = resamples.means(rows).reshape(-1, n_seeds, k)
    shares = rng.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=len(draws)) / n_seeds
    mixed = np.einsum("bsk,bs->bk", draws, shares)
    means = values.mean(axis=(0, 1))
    ends = [percentile_interval(column, n_groups=resamples.n_groups)[:2] for column in mixed.T]
    return [Estimate(float(x), *end) for x, end in zip(means, ends, strict=True)]


METHODS_TABLE, CANDIDATES, CELLS, EXAMPLE = "methods", "candidates", "cells", "example"
WHOLE_VECTOR, RANDOM_DIRECTIONS = "whole vector", "random directions"
"""Controls of directions that others found."""
UNTRAINED = "untrained model"
RIGHT = "right"
"""The column of a record that has whether a base's own label is the more probable one."""


@dataclass(frozen=True, eq=False, repr=False)
class TaskOdds(Result, kind="gym"):
    """The odds of a task's methods in a model; see the module.

    Attributes:
        ids, groups: of the test items.
        right: whether a test base's own label is the more probable one.
        untrained: the same with random weights, where it was measured.
        control_labels: the label of each type.
        compat: whose indices were used, None: the right ones.
        seed: of the pairs, of the first draw and of the bootstrap.
        controls: methods that are no results here; the others stand beside them.
        undefined: why a selectivity that was asked for is undefined.
        validation_groups: of the validation items; without them, what chooses has no interval.
        classified: of each method, for validation and test items; none where it was not asked for.
        example: what the first test pair has in each region, base and source.
    """

    model: str
    task: str
    layers: tuple[int, ...]
    regions: tuple[str, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    right: Bool[np.ndarray, "n"]
    methods: Mapping[str, MethodOdds]
    control_labels: Mapping[str, str]
    untrained: TaskOdds | None = None
    compat: str | None = None
    seed: int = 0
    controls: tuple[str, ...] = ()
    undefined: str = ""
    validation_groups: tuple[str, ...] = ()
    classified: Mapping[str, Mapping[str, Classified]] = field(default_factory=dict)
    example: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, method: str) -> MethodOdds:
        return self.methods[one_of("method of the evaluation", method, self.methods)]

    # --- numbers ----------------------------------------------------------------------------------

    @property
    def of(self) -> tuple[str, ...]:
        """What there is: without control labels, odds alone."""
        return OF if self.control_labels else OF[:1]

    @checked
    def items(
        self, method: str, of: str = ORIGINAL, rule: str = VALIDATION
    ) -> Float[np.ndarray, "seeds n"]:
        """Of every item and seed the mean over layers, at the regions that the rule chooses.

        Raises:
            UnknownName: no such method, number or rule.
        """
        return self._items(self[method], of, rule)

    def _items(
        self, method_odds: MethodOdds, of: str, rule: str = VALIDATION
    ) -> Float[np.ndarray, "seeds n"]:
        one_of("number of a method", of, self.of)
        return by_item(method_odds.odds(of), method_odds.regions(of, rule))

    @checked
    def estimate(self, method: str, of: str = ORIGINAL, rule: str = VALIDATION) -> Estimate:
        """The overall number of a method with its 95 % interval over groups and seeds.

        Args:
            of: "odds", "control" or "selectivity".
            rule: "validation", or "causalgym-2024": regions chosen on the test items, as published.

        Raises:
            UnknownName: no such method, number or rule.
        """
        return mean_of(self.items(method, of, rule), self.groups, self.seed)

    @checked
    def difference(self, method: str, other: str, of: str = ORIGINAL) -> Estimate:
        """A method less another one, item by item, each the mean of its seeds.

        Raises:
            UnknownName: no such method or number.
        """
        ours, theirs = (self.items(name, of).mean(axis=0) for name in (method, other))
        return mean_of((ours - theirs)[None], self.groups, self.seed)

    @property
    def accuracy(self) -> Estimate:
        """The share of test bases whose own label is the more probable one."""
        low, high, _ = proportion_interval(self.right.astype(float), self.groups)
        return Estimate(float(self.right.mean()), low, high)

    @checked
    def classification(self, method: str) -> Estimate:
        """The share of test sentences whose own type is the nearest along what a method found: the
        mean over layers, each at the region that is best on validation items. NaN if not measured.

        Raises:
            UnknownName: no such method.
        """
        one_of("method of the evaluation", method, self.methods)
        if method not in self.classified:
            return Estimate(float("nan"))
        right = {split: own.astype(float) for split, own in self.classified[method].items()}
        regions = chosen_regions(right["validation"], right["test"])
        shares = by_item(right["test"], regions)
        estimate = mean_of(shares, self.groups, self.seed)
        if shares.min() < shares.max():
            return estimate
        # Where every sentence is right, a bootstrap knows no other; few items still leave room.
        low, high, _ = proportion_interval(shares[0], self.groups)
        return Estimate(estimate.value, low, high)

    @checked
    def chosen(self, method: str, of: str = ORIGINAL, rule: str = VALIDATION) -> dict[int, str]:
        """The region of every layer, of the first seed."""
        picked = self[method].regions(of, rule)[0]
        return {
            layer: self.regions[number] for layer, number in zip(self.layers, picked, strict=True)
        }

    @checked
    def by_layer(self, method: str, of: str = ORIGINAL) -> dict[int, Estimate]:
        """The mean of every layer at its region, with its interval."""
        method_odds = self[method]
        regions = method_odds.regions(of)
        picked = np.take_along_axis(method_odds.odds(of), regions[:, None, :, None], axis=3)[..., 0]
        return {
            layer: mean_of(picked[..., number], self.groups, self.seed)
            for number, layer in enumerate(self.layers)
        }

    # --- tables -----------------------------------------------------------------------------------

    def columns(self) -> dict[str, list[Any]]:
        """A row a method: overall numbers with intervals, by both rules, and of the untrained
        model.
        """
        rows = [self._row(method) for method in self.methods]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _row(self, method: str) -> dict[str, Any]:
        method_odds = self.methods[method]
        row: dict[str, Any] = {
            "method": method,
            "setting": method_odds.setting,
            "seeds": method_odds.seeds,
        }
        for of in OF:
            estimate = self.estimate(method, of) if of in self.of else Estimate(float("nan"))
            row |= {of: estimate.value, f"{of}_low": estimate.low, f"{of}_high": estimate.high}
        means = self.items(method).mean(axis=1)
        row |= {"seed_low": float(means.min()), "seed_high": float(means.max())}
        for of in (ORIGINAL, SELECTIVITY):
            known = of in self.of
            row[f"{of}_2024"] = (
                self.estimate(method, of, CAUSALGYM_2024).value if known else float("nan")
            )
        other = self.untrained
        known = other is not None and method in other.methods
        row["untrained"] = other.estimate(method).value if known and other else float("nan")
        share = self.classification(method)
        names = ("classification", "classification_low", "classification_high")
        row |= dict(zip(names, (share.value, share.low, share.high), strict=True))
        row |= _training(method_odds)
        row |= {"sites_without": len(method_odds.lacking), "n": len(self)}
        return row

    def candidates(self) -> dict[str, list[Any]]:
        """A row a candidate of each method: its overall odds on validation items, by which one of
        them is chosen, and overall numbers of test items.

        The interval of the odds on validation items is that of the regions which are the best ones
        on these very items: it says nothing of how much too high the choice makes them.
        """
        rows: list[dict[str, Any]] = []
        for method, best in self.methods.items():
            for setting, score in best.candidates.items():
                candidate = best if setting == best.setting else best.others[setting]
                looked_at = self._on_validation(candidate)
                row: dict[str, Any] = {
                    "method": method,
                    "setting": setting,
                    "validation": score,
                    "validation_low": looked_at.low,
                    "validation_high": looked_at.high,
                    "chosen": candidate is best,
                }
                for of in (ORIGINAL, SELECTIVITY):
                    estimate = Estimate(float("nan"))
                    if of in self.of:
                        estimate = mean_of(self._items(candidate, of), self.groups, self.seed)
                    row |= {
                        of: estimate.value,
                        f"{of}_low": estimate.low,
                        f"{of}_high": estimate.high,
                    }
                rows.append({**row, "n_validation": len(self.validation_groups), "n": len(self)})
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _on_validation(self, candidate: MethodOdds) -> Estimate:
        """The overall odds of the items that regions are chosen on, if it is known which these are
        and every layer has a region that may be chosen.
        """
        odds, regions = candidate.validation[ORIGINAL], candidate.regions(ORIGINAL)
        may = np.ones(odds.shape[2:], bool) if candidate.offered is None else candidate.offered
        if not self.validation_groups or not may.any(axis=1).all():
            return Estimate(float("nan"))
        return mean_of(by_item(odds, regions), self.validation_groups, self.seed)

    def cells(self) -> dict[str, list[Any]]:
        """A row a method, layer and region: mean odds of validation and test items, of control
        labels, and selectivity, with intervals.
        """
        rows: list[dict[str, Any]] = []
        for method, method_odds in self.methods.items():
            chosen = self.chosen(method)
            means = {of: self._of_cells(method_odds.odds(of), self.groups) for of in self.of}
            # Regions that may not be chosen have odds of minus infinity there, and no interval.
            validation = method_odds.odds(ORIGINAL, "validation").mean(axis=(0, 1)).ravel()
            looked_at = self._of_cells(method_odds.validation[ORIGINAL], self.validation_groups)
            nothing = [Estimate(float("nan"))] * len(validation)
            places = [(layer, region) for layer in self.layers for region in self.regions]
            for number, (layer, region) in enumerate(places):
                estimate, before = means[ORIGINAL][number], looked_at[number]
                may = bool(np.isfinite(validation[number]))
                row: dict[str, Any] = {
                    "method": method,
                    "layer": layer,
                    "region": region,
                    "odds": estimate.value,
                    "low": estimate.low,
                    "high": estimate.high,
                    "validation": float(validation[number]),
                    "validation_low": before.low if may else float("nan"),
                    "validation_high": before.high if may else float("nan"),
                }
                for of in (CONTROL, SELECTIVITY):
                    x = means.get(of, nothing)[number]
                    row |= {of: x.value, f"{of}_low": x.low, f"{of}_high": x.high}
                row |= {"chosen": chosen[layer] == region}
                rows.append({**row, "n_validation": len(self.validation_groups), "n": len(self)})
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _of_cells(self, odds: Odds, groups: tuple[str, ...]) -> list[Estimate]:
        """The mean of every layer and region; without an interval where groups are not known."""
        flat = odds.reshape(*odds.shape[:2], -1)
        if not groups:
            return [Estimate(float(x)) for x in flat.mean(axis=(0, 1))]
        return means_of(flat, groups, self.seed)

    # --- as a record ------------------------------------------------------------------------------

    def contents(self) -> RecordContents:
        settings: dict[str, Any] = {"seeds": max(odds.seeds for odds in self.methods.values())}
        settings |= {} if self.compat is None else {"compat": self.compat}
        values = {method: self.items(method).mean(axis=0).tolist() for method in self.methods}
        return {
            "specs": {
                "model": Spec(name=self.model),
                "task": Spec(name=self.task),
                "method": Spec(name="", args=settings),
                "metric": Spec(name="log odds-ratio"),
            },
            "measures": list(self._measures()),
            "tables": [
                Table(name=METHODS_TABLE, keys=("method",), columns=self.columns()),
                Table(name=CANDIDATES, keys=("method", "setting"), columns=self.candidates()),
                Table(name=CELLS, keys=("method", "layer", "region"), columns=self.cells()),
                Table.of(
                    EXAMPLE,
                    ("region",),
                    [
                        {"region": region, "base": base, "source": source}
                        for region, (base, source) in self.example.items()
                    ],
                ),
            ],
            "values": Values(
                unit="pair",
                ids=list(self.ids),
                groups=list(self.groups),
                columns={RIGHT: self.right.astype(float).tolist(), **values},
            ),
            "warnings": self.warnings(),
        }

    def warnings(self) -> list[str]:
        """What a reader has to know."""
        sentences: list[str] = []
        for method, method_odds in self.methods.items():
            if method_odds.lacking and method not in self.controls and not is_control(method):
                n = len(self.layers) * len(self.regions)
                first = next(iter(method_odds.lacking.values()))
                sentences.append(
                    f"{method} finds nothing at {len(method_odds.lacking)} of {n} sites, where its"
                    f" odds are 0; the first: {first}"
                )
        if self.undefined:
            sentences.append(self.undefined)
        if self.accuracy.value <= LEAST_ACCURACY:
            sentences.append(no_behaviour(self.model, self.task, self.accuracy.value))
        return sentences

    def _measures(self) -> Iterator[Measure]:
        texts, n = measure_texts("gym"), len(self)
        yield texts.measure("accuracy", self.accuracy, n=n)
        for method in self.methods:
            if method in self.controls:
                continue
            for of in self.of:
                title = method if of == ORIGINAL else f"{of}: {method}"
                yield _odds(method, of, self.estimate(method, of), n=n, title=title)
                if of != CONTROL:
                    yield texts.measure(
                        f"{CAUSALGYM_2024}_{{kind}}_{{method}}",
                        self.estimate(method, of, CAUSALGYM_2024).value,
                        n=n,
                        method=method,
                        kind=of,
                        title=f"{CAUSALGYM_2024}, {title}",
                    )
                    yield from self._beside(method, of)
            if method in self.classified:
                share = self.classification(method)
                yield texts.measure("classification_{method}", share, n=n, method=method)
            if self.undefined:
                title, nothing = f"{SELECTIVITY}: {method}", Estimate(float("nan"))
                yield _odds(method, SELECTIVITY, nothing, title=title, n_undefined=n)
            for other in (RANDOM, VANILLA):
                if other in self.methods and method != other:
                    less = self.difference(method, other)
                    yield _odds(method, ORIGINAL, less, f"difference:{other}", n=n)
            elsewhere = self.untrained
            if elsewhere is not None and method in elsewhere.methods:
                estimate = elsewhere.estimate(method)
                yield _odds(method, ORIGINAL, estimate, f"control:{UNTRAINED}", n=n)

    def _beside(self, method: str, of: str) -> Iterator[Measure]:
        """What the controls give, and the method less each of them."""
        n, own = len(self), shuffled_of(method)
        for control in (*self.controls, *([own] if own in self.methods else [])):
            estimate = self.estimate(control, of)
            yield _odds(method, of, estimate, f"control:{control}", n=n)
            less = self.difference(method, control, of)
            yield _odds(method, of, less, f"difference:{control}", n=n)

    # --- how it shows itself ----------------------------------------------------------------------

    def repr_fields(self) -> dict[str, Any]:
        about = {"model": self.model, "task": self.task, "accuracy": self.accuracy.value}
        return {**about, **{method: self.estimate(method).value for method in self.methods}}

    @checked
    def plot(self, ax: Axes | None = None, *, method: str | None = None) -> Figure:
        """Mean odds of test items as a heat map of layers and regions, of the first method if none
        is named.

        Raises:
            UnknownName: no such method.
        """
        from mechassay.gym.log_odds import draw_odds

        odds = self[method or next(iter(self.methods))]
        means = odds.odds(ORIGINAL).mean(axis=(0, 1))
        places = [(layer, region) for layer in self.layers for region in self.regions]
        layers, regions = zip(*places, strict=True)
        return draw_odds(layers, regions, means.ravel().tolist(), title=odds.method, ax=ax)

    @checked
    def plot_layers(self, ax: Axes | None = None) -> Figure:
        """Odds against layers, each at its region, a line each method."""
        from mechassay.interventions.heatmap import draw_lines

        lines = {method: list(self.by_layer(method).items()) for method in self.methods}
        return draw_lines(lines, "log odds-ratio, nats", ax=ax)


def _training(method_odds: MethodOdds) -> dict[str, float | bool | None]:
    """The mean loss of the first and of the last tenth of a training, how much it still falls, and
    whether it does (`features.training`); NaN and None where nothing was trained.
    """
    losses, nan = method_odds.losses(), float("nan")
    first, last, fall, falls = nan, nan, Estimate(nan), None
    if tenth := -(-losses.shape[1] // 10):
        about = method_odds.fits[ORIGINAL][0].provenance
        steps_of_epoch = -(-about["n_examples"] // about["settings"]["batch_size"])
        mean = losses.mean(axis=0)
        fall, falls = fall_of(mean, steps_of_epoch), still_falling(mean, steps_of_epoch)
        first, last = float(losses[:, :tenth].mean()), float(losses[:, -tenth:].mean())
    ends = {"fall": fall.value, "fall_low": fall.low, "fall_high": fall.high}
    return {"first_loss": first, "last_loss": last, **ends, "still_falling": falls}


def _odds(
    method: str,
    kind: str,
    estimate: Estimate,
    of: str = "result",
    *,
    n: int = 0,
    n_undefined: int = 0,
    title: str = "",
) -> Measure:
    """Return odds, odds of control labels or a selectivity of a method."""
    return measure_texts("gym").measure(
        f"{kind}_{{method}}",
        estimate,
        of=of,
        n=n,
        n_undefined=n_undefined,
        method=method,
        title=title or method,
    )
