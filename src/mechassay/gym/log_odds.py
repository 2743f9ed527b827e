"""Log odds-ratios: how far an interchange moves what the model says, from one label to another.

    odds = log [p(base label) / p(label)]  -  log [p*(base label) / p*(label)]

p without and p* with the interchange of a fit's features at one site (Arora et al. 2024, eq. 9);
in nats, 0 where nothing is changed. The mean over items is the paper's average log odds-ratio
(eq. 10). Where labels are one token each, the softmax denominators cancel, and only two logits
are computed. Labels of several tokens are scored whole, each token after those before it.

Figures have layers from the bottom up, and regions along the axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure

from mechassay.errors import BadPairs, BadUsage
from mechassay.features.finder import Fit
from mechassay.interventions.heatmap import as_grid, draw_cells, draw_lines
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import Site, SiteLike, index_of
from mechassay.interventions.sweep import mean_estimates, sweep, token_logits
from mechassay.models.model import Model
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import InterchangeBatch, InterchangesLike
from mechassay.results.measures import measure_texts
from mechassay.results.records import Spec, Table, Values
from mechassay.results.result import RecordContents, Result
from mechassay.stats.intervals import Estimate
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class LogOddsRatios(Result, kind="odds"):
    """Log odds-ratios of n items at each of k sites alone; `ratios[site]` are those of one.

    Attributes:
        values: in nats.
        base: log p(base label) / p(label) without an intervention.
        model, finder: names of what the features were found on, and by.
        seed: of the bootstrap.
    """

    sites: tuple[Site, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    values: Float[np.ndarray, "n k"]
    base: Float[np.ndarray, "n"]
    model: str = ""
    finder: str = ""
    seed: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, site: SiteLike) -> Float[np.ndarray, "n"]:
        return self.values[:, self.column(site)]

    @checked
    def column(self, site: SiteLike) -> int:
        """The number of a site among `sites`.

        Raises:
            UnknownName: `site` is not a site of the fit.
        """
        return index_of(site, self.sites, "site of the fit")

    @property
    def best(self) -> Site:
        """The site of the highest mean, the first of several. On these items: choose on others
        than you report.
        """
        return self.sites[int(self.values.mean(axis=0).argmax())]

    @checked
    def estimate(self, site: SiteLike) -> Estimate:
        """The mean at one site with its 95 % interval over groups.

        Raises:
            UnknownName: no such site.
        """
        return mean_estimates(self.values[:, [self.column(site)]], self.groups, self.seed)[0]

    def columns(self) -> dict[str, list[Any]]:
        """A row a site: the mean log odds-ratio in nats, with its interval."""
        means = mean_estimates(self.values, self.groups, self.seed)
        return {
            "site": [str(site) for site in self.sites],
            "layer": [site.layer for site in self.sites],
            "position": [str(site.position) for site in self.sites],
            "odds": [mean.value for mean in means],
            "low": [mean.low for mean in means],
            "high": [mean.high for mean in means],
            "n": [len(self)] * len(self.sites),
        }

    def repr_fields(self) -> dict[str, Any]:
        best = self.best
        return {
            "n": len(self),
            "sites": len(self.sites),
            "best": str(best),
            "odds": self.estimate(best).value,
        }

    @checked
    def plot(self, ax: Axes | None = None) -> Figure:
        """Means as a heat map of layers and positions."""
        columns = self.columns()
        return draw_odds(columns["layer"], columns["position"], columns["odds"], ax=ax)

    def contents(self) -> RecordContents:
        names, texts = [str(site) for site in self.sites], measure_texts("odds")
        measures = [
            texts.measure("odds_{site}", self.estimate(name), n=len(self), site=name)
            for name in names
        ]
        columns = {name: self.values[:, i].tolist() for i, name in enumerate(names)}
        return {
            "specs": {
                "model": Spec(name=self.model),
                "task": Spec(name=""),
                "method": Spec(name=self.finder),
                "metric": Spec(name="log odds-ratio"),
            },
            "measures": measures,
            "tables": [Table(name="sites", keys=("site",), columns=self.columns())],
            "values": Values(
                unit="pair", ids=list(self.ids), groups=list(self.groups), columns=columns
            ),
        }


@checked
def odds(
    fit: Fit,
    pairs: InterchangesLike,
    *,
    model: Model | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> LogOddsRatios:
    """The log odds-ratio of every item, of the features of a fit at each of its sites alone.

    Args:
        pairs: other items than the fit was found on, with `base_labels`.
        model: for a fit that was read from a file; else the one it was found on.
        seed: of the bootstrap.

    Raises:
        BadUsage: a fit without a model, or whose sites are meant together.
        BadPairs: a base label that is not known. Others as `sweep`.
    """
    model = fit.model if model is None else model
    if model is None:
        raise BadUsage("odds needs model=..., as this fit was read from a file.")
    if fit.together:
        raise BadUsage(
            "odds exchanges each site alone, and the sites of this fit are meant together: use"
            " intervene(model, pairs, fit.interchanges())."
        )
    ready = model.interchanges(pairs)
    own = base_labels_of("odds", ready)
    changes = {site: Interchange(features=fit.features(site)) for site in fit.sites}
    if own.shape[1] == ready.labels.shape[1] == 1:
        tokens = torch.cat((own, ready.labels), dim=1)
        plans = [{site: how} for site, how in changes.items()]
        logits = token_logits(model, ready, plans, tokens, progress=progress)
        base = logits.base[:, 0] - logits.base[:, 1]
        values = base[:, None] - (logits.after[..., 0] - logits.after[..., 1]).T
    else:
        swept = sweep(model, ready, fit.sites, changes, seed=seed, progress=progress)
        base, values = swept.other_base_log_probs - swept.base_log_probs, swept.log_odds
    finder = str(fit.provenance.get("finder", ""))
    return LogOddsRatios(fit.sites, ready.ids, ready.groups, values, base, model.name, finder, seed)


def base_labels_of(who: str, batch: InterchangeBatch) -> torch.Tensor:
    """The labels of the bases, of every row.

    Raises:
        BadPairs: one is not known.
    """
    own = batch.base_labels
    unknown = None if own is None else (own == NO_TOKEN).all(dim=1)
    if own is None or unknown is None or bool(unknown.any()):
        row = 0 if unknown is None else int(unknown.int().argmax())
        raise BadPairs(
            f"{who} needs the label of every base (base_labels); pair {batch.ids[row]} has none."
        )
    return own


def draw_odds(
    layers: Sequence[int],
    regions: Sequence[str],
    values: Sequence[float],
    *,
    title: str = "",
    top: float | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw mean log odds-ratios by layer and region, in nats; red towards the label.

    Args:
        layers, regions, values: of each cell; NaN is grey.
        top: the end of the colour scale, to compare maps; that of these values by default.
    """
    cells, rows, columns = as_grid(layers, regions, values)
    if top is None:
        top = max(1e-9, float(np.nanmax(np.abs(cells), initial=0.0)))
    return draw_cells(
        cells,
        rows,
        columns,
        axis="region",
        bar="log odds-ratio, nats",
        top=top,
        rotation=45,
        title=title,
        ax=ax,
    )


def draw_layers(
    lines: Mapping[str, Sequence[tuple[int, float, float, float]]], *, ax: Axes | None = None
) -> Figure:
    """Draw odds against layers, a line each method: (layer, mean, low, high) of every point."""
    points = {
        name: [(layer, Estimate(value, low, high)) for layer, value, low, high in line]
        for name, line in lines.items()
    }
    return draw_lines(points, "log odds-ratio, nats", ax=ax)
