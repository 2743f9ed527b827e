"""Which methods differ: paired differences of their areas, over the same examples.

What makes an example hard makes it hard for both methods, so the interval of their difference
resamples examples once for both (`BootstrapEstimate`). The intervals of all pairs of M methods hold
together, with 95 % for all at once:

    e_ij        errors of the difference d_ij in the resamples
    s_ij        the root of the mean of e_ij^2
    c           the 95 % quantile, over resamples, of the largest |e_ij| / s_ij of all pairs
    interval    d_ij -/+ c s_ij, widened for few groups, and by the bias that folding may give d_ij

(the studentized maximum of Westfall and Young 1993). A difference is resolved if its interval does
not hold 0. A method's rank lies between one more than the number of methods that are better, and M
less the number of those that are worse, as far as differences are resolved.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from mechassay.circuits.evaluation.curve import FaithfulnessCurve
from mechassay.circuits.scores import By
from mechassay.circuits.series import FaithfulnessMetric, RankingCurve
from mechassay.errors import BadFile, BadUsage, first_line, one_of
from mechassay.results.records import Record
from mechassay.stats.intervals import LEVEL, BootstrapEstimate, widening
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, RawText, Tabular, html_facts, html_table, interval
from mechassay.utils.files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


AreaName = Literal["cpr", "cmd", "cma"]
RANKED_BY: dict[str, By] = {"cpr": "value", "cmd": "magnitude", "cma": "magnitude"}
KIND, FORMAT = "differences", 1
PRECISION = 1e-5
"""Areas closer than this are one: f is a ratio of differences of single-precision logits."""


@dataclass(frozen=True, eq=False, repr=False)
class Differences(OneLine, Tabular):
    """All differences of one area between methods.

    Attributes:
        area: "cpr" or "cma" (higher is better), or "cmd" (lower is better).
        names: of the methods.
        values: area of the row's method less that of the column's; NaN where either is undefined.
        low, high: simultaneous intervals; NaN where undefined.
    """

    area: AreaName
    names: tuple[str, ...]
    values: Float[np.ndarray, "methods methods"]
    low: Float[np.ndarray, "methods methods"]
    high: Float[np.ndarray, "methods methods"]
    level: float = LEVEL

    def repr_fields(self) -> dict[str, Any]:
        resolved = f"{self.n_resolved} of {self.n_pairs}"
        return {"area": self.area, "names": self.names, "resolved": RawText(resolved)}

    @property
    def better(self) -> Bool[np.ndarray, "methods methods"]:
        """True where the row's method is better than the column's, and this is resolved."""
        return self.high < -PRECISION if self.area == "cmd" else self.low > PRECISION

    @property
    def n_resolved(self) -> int:
        """Resolved differences, of `n_pairs`."""
        return int(self.better.sum())

    @property
    def n_pairs(self) -> int:
        """Pairs of methods whose areas are defined."""
        n = int((~np.isnan(np.diag(self.values))).sum())
        return n * (n - 1) // 2

    def ranks(self) -> list[tuple[int, int] | None]:
        """The best and the worst rank that each method may have; None where undefined."""
        defined, better = ~np.isnan(np.diag(self.values)), self.better
        best, worst = 1 + better.sum(axis=0), defined.sum() - better.sum(axis=1)
        return [
            (int(first), int(last)) if known else None
            for first, last, known in zip(best, worst, defined, strict=True)
        ]

    def _repr_html_(self) -> str:
        rows = [
            (row["a"], row["b"], interval(*self._at(row["a"], row["b"])), row["resolved"])
            for row in self.rows()
        ]
        title = f"Differences of {self.area.upper()}"
        resolved = {"resolved": f"{self.n_resolved} of {self.n_pairs}"}
        return html_facts(title, resolved, html_table(("a", "b", "a - b", "resolved"), rows))

    def _at(self, a: str, b: str) -> tuple[float, float, float]:
        place = self.names.index(a), self.names.index(b)
        return float(self.values[place]), float(self.low[place]), float(self.high[place])

    @checked
    def plot(self, ax: Axes | None = None) -> Figure:
        """Every difference, row less column, with those that are not resolved in brackets.

        Blue is better, orange worse, whichever way the area goes.

        Args:
            ax: where to draw; without it, the picture gets a figure of its own.
        """
        from mechassay.results.plots import draw_differences

        return draw_differences(self.area, self.names, self.values, self.better, ax)

    def columns(self) -> dict[str, list[Any]]:
        """Each pair once as columns, see `rows`."""
        names = ("area", "a", "b", "difference", "low", "high", "resolved")
        return {name: [row[name] for row in self.rows()] for name in names}

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the differences as JSON, each pair once; `load` reads it."""
        head = {"kind": KIND, "format": FORMAT, "area": self.area, "names": list(self.names)}
        head |= {"level": self.level, "defined": (~np.isnan(np.diag(self.values))).tolist()}
        return write_text(Path(path), json.dumps({**head, "pairs": self.rows()}, indent=1) + "\n")

    @staticmethod
    @checked
    def load(path: str | Path) -> Differences:
        """Differences written by `save`.

        Raises:
            BadFile: missing, truncated or foreign.
        """
        try:
            held = json.loads(Path(path).read_text("utf-8"))
            if held["kind"] != KIND or held["format"] != FORMAT:
                raise BadFile(f"{path}: holds no differences of this version.")
            names, n = tuple(map(str, held["names"])), len(held["names"])
            values, low, high = (np.full((n, n), np.nan) for _ in range(3))
            for place, defined in enumerate(held["defined"]):
                if defined:
                    values[place, place] = low[place, place] = high[place, place] = 0.0
            pairs = zip(*np.triu_indices(n, 1), held["pairs"], strict=True)
            for i, j, row in pairs:
                if row["difference"] is not None:
                    values[i, j], low[i, j], high[i, j] = row["difference"], row["low"], row["high"]
                    values[j, i], low[j, i], high[j, i] = -values[i, j], -high[i, j], -low[i, j]
            area = one_of("area", held["area"], get_args(AreaName))
            return Differences(area, names, values, low, high, float(held["level"]))
        except (OSError, ValueError, KeyError, TypeError, IndexError, BadUsage) as error:
            raise BadFile(f"{path}: not a file of differences ({first_line(error)}).") from None

    def rows(self) -> list[dict[str, Any]]:
        """Each pair once, as plain values: names, difference, interval, whether resolved."""
        first, second = np.triu_indices(len(self.names), 1)
        better = self.better
        return [
            {
                "area": self.area,
                "a": self.names[i],
                "b": self.names[j],
                "difference": _plain(self.values[i, j]),
                "low": _plain(self.low[i, j]),
                "high": _plain(self.high[i, j]),
                "resolved": bool(better[i, j] or better[j, i]),
            }
            for i, j in zip(first.tolist(), second.tolist(), strict=True)
        ]


@checked
def differences_of(
    results: Sequence[Record | FaithfulnessCurve],
    area: AreaName = "cmd",
    *,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> Differences:
    """The differences of an area between evaluations on the same examples.

    Args:
        results: curves, or the records of a run.
        area: "cpr", "cmd" or "cma".
        names: what results are called; their methods by default.
        seed: of the resamples, which all results share.

    Raises:
        BadUsage: results of other examples, sizes or profiles than the first's, or none.
    """
    if not results:
        raise BadUsage("Differences need at least one result; got none.")
    parts = [_AreaParts.of(result, area) for result in results]
    for part in parts[1:]:
        if part.setting != parts[0].setting:
            raise BadUsage(
                "Differences need results on the same examples, with one objective, profile and"
                f" sizes; {part.name} and {parts[0].name} differ."
            )
    labels = tuple(names) if names is not None else tuple(part.name for part in parts)
    return simultaneous(area, labels, [part.estimate(area, seed) for part in parts])


def simultaneous(
    area: AreaName, names: tuple[str, ...], estimates: Sequence[BootstrapEstimate]
) -> Differences:
    """The differences of estimates of one area, whose intervals hold together.

    A pair without any spread has none if there are few groups (`BootstrapEstimate.has_interval`).
    """
    n, groups = len(estimates), estimates[0].n_groups
    areas = np.array([estimate.value for estimate in estimates])
    undefined = [np.isnan(estimate.errors).any() for estimate in estimates]
    defined = ~(np.isnan(areas) | undefined) & (groups >= 2)
    values = np.subtract.outer(areas, areas)
    values[~defined], values[:, ~defined] = np.nan, np.nan
    low, high = (np.where(np.eye(n) * defined, 0.0, np.nan) for _ in range(2))
    places = [(i, j) for i in range(n) for j in range(i + 1, n) if defined[i] and defined[j]]
    largest = np.zeros(len(estimates[0].errors))
    spreads = dict[tuple[int, int], tuple[BootstrapEstimate, float]]()
    for i, j in places:
        difference = estimates[i] - estimates[j]
        spread = float(np.sqrt(np.mean(difference.errors**2)))
        if difference.has_interval:
            spreads[i, j] = difference, spread
        if spread > PRECISION / 10:
            largest = np.maximum(largest, np.abs(difference.errors) / spread)
    quantile = float(np.quantile(largest, LEVEL)) * widening(groups)
    for (i, j), (difference, spread) in spreads.items():
        least, most = difference.bias
        low[i, j] = values[i, j] - quantile * spread - max(0.0, most)
        high[i, j] = values[i, j] + quantile * spread - min(0.0, least)
        low[j, i], high[j, i] = -high[i, j], -low[i, j]
    return Differences(area, names, values, low, high)


@dataclass(frozen=True, eq=False)
class _AreaParts:
    """What an estimate of an area is made of; results have to share `setting`."""

    name: str
    setting: tuple[Any, ...]
    rule: dict[str, Any]
    kept: tuple[int, ...]
    values: Float[np.ndarray, "sizes n"]

    @staticmethod
    def of(result: Record | FaithfulnessCurve, area: AreaName) -> _AreaParts:
        record = result if isinstance(result, Record) else result.record()
        by, values = RANKED_BY[area], record.values
        line = record.table("curve").where(of="result", ranking=by)
        assert values is not None, "a faithfulness record has the values of its examples"
        fractions = tuple(line.numbers("fraction").tolist())
        rule = {
            "profile": record.metric.args["profile"],
            "fractions": fractions,
            "n_edges": int(str(record.model.args["n_edges"])),
            "groups": tuple(values.groups),
            "objective": record.metric.name,
        }
        setting = (*rule.values(), tuple(values.ids))
        ends = {
            "empty": np.array(values.columns["empty"]),
            "full": np.array(values.columns["clean"]),
        }
        rows = np.array([values.columns[f"{by}@{p:g}"] for p in fractions])
        kept = tuple(map(int, line.numbers("kept").tolist()))
        return _AreaParts(record.method.name, setting, {**rule, **ends}, kept, rows)

    def estimate(self, area: AreaName, seed: int) -> BootstrapEstimate:
        by = RANKED_BY[area]
        sweep: RankingCurve = FaithfulnessMetric(**self.rule, seed=seed).sweep(
            by, self.kept, self.kept, self.values
        )
        return {"cpr": sweep.cpr, "cmd": sweep.cmd, "cma": sweep.cma}[area]


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
