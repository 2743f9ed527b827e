"""M13, superposition regime: does a layer hold more features than it has dimensions?

`page`      PR = (sum s^2)^2 / sum s^4 of the singular values s of activations, packing = PR / d,
            interference = mean |cosine| of the 20 main axes; weak up to .8, strong above 1.2 (or
            above .15 of interference, a number of its script). PR is at most the rank, so
            packing is at most 1, and main axes are orthogonal: no layer is ever strong. One
            large direction makes every layer weak, however many features share the rest.
`repaired`  of a dictionary's rows w_i that are in use: active on some value, and longer than
            half of the median row packing   distinct rows / d; the c rows within a cosine of .9
            of each other are one overlap   d times the mean squared cosine of two rows: 1 for
            random directions, at least
                      (n - d) / (n - 1) for any (Welch 1974), 0 for orthogonal ones
            nearest   mean largest |cosine| with another row, beside that of random directions
            gain      explained variance of values of the site, less that of Gaussian values of
                      their mean and covariance, which have no features
            weak up to a packing of .8, strong above 1.2. Unless the lower end of the gain
            exceeds .02, the dictionary is no evidence of how many features there are: the regime
            is undefined. Rows of the model's own weights need no gain.

That overlaps go with 1/d in strong superposition is from Liu et al. (2025). Anyone may train a
dictionary of any size: packing is of this one, and its features have to be shown to be features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.featurizer import decoder_of
from mechassay.features.sae import SAE
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
    VariantName,
    flag,
    page_metric,
    quantity,
)
from mechassay.measurement.measurement import (
    N_SIMULATIONS,
    Drawn,
    Measurement,
    NullTable,
    Scenario,
    simulate,
)
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.models.forward import Place, forward
from mechassay.models.memory import token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.results.records import Table
from mechassay.saes.activations import ActivationStore
from mechassay.stats.intervals import Interval, example_weights, percentile_interval
from mechassay.utils.display import Progress
from mechassay.utils.settings import Within, checked_settings

ID = "M13"
WEAK_UP_TO, STRONG_FROM = 0.8, 1.2
LITTLE_INTERFERENCE, MUCH_INTERFERENCE = 0.1, 0.15
"""The page says low and high; these numbers are those of its script."""
MAIN_AXES = 20
REGIMES = ("weak", "transition", "strong")
STRONG = Condition("regime", "=", 2.0)
"""The metric only reports; the null table is of this reading."""
LEAST_GAIN = 0.02
"""Real values are not Gaussian: a random dictionary gains .008 at layer 8 of SmolLM2-135M."""
SAME = 0.9
"""A cosine from which two rows are one feature."""
SAMPLED = 2048
"""Rows whose cosines with all others are computed."""
Dictionary = Float[np.ndarray, "n d"]


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over the activations of one layer.

    Attributes:
        n: how many there are.
        total: their sum; products: the sum of their outer products.
    """

    n: int
    total: Float[np.ndarray, "d"]
    products: Float[np.ndarray, "d d"]

    @staticmethod
    def of(values: Float[np.ndarray, "n d"]) -> Moments:
        return Moments(len(values), values.sum(axis=0), values.T @ values)

    @property
    def centred(self) -> Float[np.ndarray, "d d"]:
        """The products of values less their mean."""
        return self.products - np.outer(self.total, self.total) / max(1, self.n)


def participation_ratio(squares: Float[np.ndarray, "d"]) -> float:
    """(sum s^2)^2 / sum s^4 of squared singular values; NaN if all are 0."""
    kept = squares.clip(min=0)
    bottom = float((kept**2).sum())
    return float(kept.sum()) ** 2 / bottom if bottom > 0 else math.nan


def interference(axes: Float[np.ndarray, "d k"]) -> float:
    """The mean |cosine| of two axes; NaN with fewer than two."""
    k = axes.shape[1]
    return float(np.abs((axes.T @ axes)[np.triu_indices(k, 1)]).mean()) if k > 1 else math.nan


def regime(packing: float, interfering: float = 0.0) -> float:
    """0 is weak, 1 transition, 2 strong; NaN of an undefined packing."""
    if math.isnan(packing):
        return math.nan
    if packing > STRONG_FROM or interfering > MUCH_INTERFERENCE:
        return 2.0
    return 0.0 if packing <= WEAK_UP_TO and interfering <= LITTLE_INTERFERENCE else 1.0


# Rows of a dictionary


def in_use(
    rows: Dictionary, active: Bool[np.ndarray, "n"] | None = None
) -> Float[np.ndarray, "used d"]:
    """Unit rows that are active, and longer than half of the median row."""
    lengths = np.linalg.norm(rows, axis=1)
    kept = lengths > 0.5 * float(np.median(lengths)) if len(rows) else lengths > 0
    kept &= lengths > 0
    if active is not None:
        kept &= active
    return rows[kept] / lengths[kept, None]


def overlap(unit: Dictionary) -> float:
    """d times the mean squared cosine of two rows; NaN with fewer than two."""
    n, d = unit.shape
    if n < 2:
        return math.nan
    squares = float(((unit.T @ unit) ** 2).sum()) - float(((unit**2).sum(axis=1) ** 2).sum())
    return d * squares / (n * (n - 1))


def neighbours(
    unit: Dictionary, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "sample"], Float[np.ndarray, "sample"]]:
    """Of a sample of rows: how many rows are the same as each, itself included, and its largest
    |cosine| with another.
    """
    n = len(unit)
    chosen = rng.permutation(n)[:SAMPLED]
    counts, largest = np.ones(len(chosen)), np.full(len(chosen), math.nan)
    step = max(1, 2**24 // max(1, n))
    for begin in range(0, len(chosen), step):
        some = chosen[begin : begin + step]
        cosines = unit[some] @ unit.T
        cosines[np.arange(len(some)), some] = 0
        counts[begin : begin + step] += (cosines >= SAME).sum(axis=1)
        largest[begin : begin + step] = np.abs(cosines).max(axis=1)
    return counts, largest


def distinct(counts: Float[np.ndarray, "sample"], n: int) -> float:
    """How many features n rows are, of which a sample has so many that are the same each."""
    return n * float((1 / counts).mean()) if len(counts) else 0.0


def welch(n: int, d: int) -> float:
    """The least that the largest |cosine| of n unit rows of d numbers can be."""
    return math.sqrt((n - d) / (d * (n - 1))) if n > d else 0.0


def random_rows(n: int, d: int, rng: np.random.Generator) -> Dictionary:
    """Unit rows, uniform over all directions."""
    rows = rng.standard_normal((n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# What a dictionary makes of values


@dataclass(frozen=True, eq=False)
class DictionaryFit:
    """What a dictionary loses of values of a site, and of Gaussian values of their moments.

    Attributes:
        lost, lost_gaussian: |h - h~|^2 of each.
        spread, spread_gaussian: |h - mean|^2 of each.
        groups: the document of each; Gaussian values are paired with values by row.
        active: features that some value of the site has.
    """

    lost: Float[np.ndarray, "values"]
    spread: Float[np.ndarray, "values"]
    lost_gaussian: Float[np.ndarray, "values"]
    spread_gaussian: Float[np.ndarray, "values"]
    groups: tuple[str, ...]
    active: Bool[np.ndarray, "n"]

    def explained(self, weights: Float[np.ndarray, "k values"]) -> Float[np.ndarray, "k two"]:
        """The explained variance of both, over weighted values."""
        pairs = ((self.lost, self.spread), (self.lost_gaussian, self.spread_gaussian))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.stack([1 - (weights @ lost) / (weights @ all_) for lost, all_ in pairs], 1)

    def gain(self, rng: np.random.Generator, n_resamples: int = 400) -> tuple[float, Interval]:
        """The difference, and its interval over resampled documents."""
        weights, n_groups = example_weights(self.groups, rng, n_resamples)
        own, drawn = (self.explained(w) for w in (np.ones((1, len(self.lost))), weights))
        ends = percentile_interval(drawn[:, 0] - drawn[:, 1], n_groups=n_groups)
        return float(own[0, 0] - own[0, 1]), ends


def gaussian_values(
    values: Float[np.ndarray, "n d"], rng: np.random.Generator
) -> Float[np.ndarray, "n d"]:
    """As many Gaussian values with the mean and the covariance of some."""
    mean = values.mean(axis=0)
    _, sizes, axes = np.linalg.svd(values - mean, full_matrices=False)
    drawn = rng.standard_normal((len(values), len(sizes)))
    return mean + drawn * (sizes / math.sqrt(len(values))) @ axes


# The metric


def superposition(
    layers: Mapping[str, Moments],
    rows: Dictionary,
    fit: DictionaryFit | None = None,
    *,
    dictionary: str = "dictionary",
    seed: int = 0,
    flags: Iterable[Flag] = (),
) -> Measurement:
    """M13 of activations, and of the rows of a dictionary.

    Args:
        layers: of the published definition, by name; there is one or more.
        rows: of the dictionary; for a sparse autoencoder those of its decoder.
        fit: None of rows that are the model's own, such as those of its unembedding.
        dictionary: what it is, in words.

    Raises:
        BadUsage: no layer, or a dictionary of values of another width.
    """
    widths = {len(layer.total) for layer in layers.values()} | {rows.shape[1]}
    if not layers or len(widths) > 1:
        raise BadUsage(
            f"M13 needs one layer or more, of the dictionary's width; got widths {sorted(widths)}."
        )
    page, table, notes = _page(layers)
    repaired, more = _repaired(rows, fit, np.random.default_rng(seed))
    about = {"dictionary": dictionary, "rows": len(rows), "width": rows.shape[1]}
    return Measurement.of(
        ID,
        page,
        repaired,
        flags=[*flags, *notes, *more],
        null=null(),
        tables=[table, Table.of("dictionary", ("dictionary",), [about])],
        words={"sampled": SAMPLED},
    )


def _page(layers: Mapping[str, Moments]) -> tuple[dict[str, Quantity], Table, list[Flag]]:
    rows_found: list[dict[str, Any]] = []
    for name, layer in layers.items():
        squares, axes = np.linalg.eigh(layer.products)
        d = len(squares)
        ratio = participation_ratio(squares)
        among = interference(axes[:, ::-1][:, :MAIN_AXES])
        reading = regime(ratio / d, among)
        centred = participation_ratio(np.linalg.eigvalsh(layer.centred))
        rows_found.append(
            {
                "layer": name,
                "n": layer.n,
                "effective rank": ratio,
                "packing": ratio / d,
                "interference": among,
                "regime": "" if math.isnan(reading) else REGIMES[int(reading)],
                "effective rank, centred": centred,
            }
        )
    n, d = min(row["n"] for row in rows_found), len(next(iter(layers.values())).total)
    ratio, packing, among = (
        float(np.mean([row[key] for row in rows_found]))
        for key in ("effective rank", "packing", "interference")
    )
    notes = [flag("strong_unreachable")]
    if n < d:
        notes.append(flag("few_samples", n=n, d=d))
    quantities = {
        "effective_rank": quantity(ratio, n=n),
        "packing_ratio": quantity(packing, n=n),
        "interference": quantity(among, n=n),
        "regime": quantity(regime(packing, among), n=n),
        "layers_together": quantity(
            _together([row["regime"] for row in rows_found]), n=len(rows_found)
        ),
    }
    return quantities, Table.of("layers", ("layer",), rows_found), notes


def _together(regimes: Sequence[str]) -> float:
    """What the regimes of layers are together; NaN if one is undefined."""
    if not all(regimes):
        return math.nan
    return (
        {REGIMES[0]: 0.0, REGIMES[2]: 2.0}.get(regimes[0], 1.0) if len(set(regimes)) == 1 else 1.0
    )


def _repaired(
    rows: Dictionary, fit: DictionaryFit | None, rng: np.random.Generator
) -> tuple[dict[str, Quantity], list[Flag]]:
    n_rows, d = rows.shape
    unit = in_use(rows, None if fit is None else fit.active)
    n = len(unit)
    counts, largest = neighbours(unit, rng)
    features = distinct(counts, n)
    chance = neighbours(random_rows(n, d, rng), rng)[1] if n > 1 else largest
    gain, ends = (math.nan, Interval(math.nan, math.nan)) if fit is None else fit.gain(rng)
    own, gaussian = (
        (math.nan, math.nan) if fit is None else fit.explained(np.ones((1, len(fit.lost))))[0]
    )
    # Rows of the model's own weights need no values to be there.
    known = n > 0 and (fit is None or ends.low > LEAST_GAIN)
    notes: list[Flag] = []
    if not known and n > 0:
        notes.append(flag("no_features"))
    if features < 0.9 * n:
        notes.append(flag("same_rows", n=n, features=features))
    quantities = {
        "in_use": quantity(n / n_rows if n_rows else math.nan, n=n_rows),
        "packing": quantity(features / d, n=n),
        "regime": quantity(regime(features / d) if known else None, n=n, reason="" if n else "few"),
        "overlap": quantity(overlap(unit), n=n),
        "overlap_least": quantity((n - d) / (n - 1) if n > d else 0.0, n=n),
        "nearest": quantity(float(largest.mean()) if n > 1 else math.nan, n=len(largest)),
        "nearest_random": quantity(float(chance.mean()) if n > 1 else math.nan, n=len(chance)),
        "coherence": quantity(float(largest.max()) if n > 1 else math.nan, n=len(largest)),
        "coherence_least": quantity(welch(n, d), n=n),
        "explained_variance": quantity(float(own)),
        "explained_variance_gaussian": quantity(float(gaussian)),
        "gain_over_gaussian": quantity(gain, interval=ends),
    }
    return quantities, notes


# How often the readings err


@cache
def null(
    n: int = 400, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0, width: int = 32
) -> NullTable:
    """How often a layer of 32 dimensions is read as strong, of `n` values."""
    documents = tuple(str(i * 20 // n) for i in range(n))

    def draw(rng: np.random.Generator, size: int, kind: str) -> Drawn:
        page, repaired = np.full(size, np.nan), np.full(size, np.nan)
        for number in range(size):
            rows = random_rows(4 * width, width, rng)
            if kind == "orthogonal":
                rows = np.linalg.qr(rng.standard_normal((width, width)))[0]
            values = sparse_values(rows, n, 3, rng)
            if kind == "gaussian":
                values = rng.standard_normal((n, width))
            moments = Moments.of(values)
            axes = np.linalg.eigh(moments.products)
            packing = participation_ratio(axes[0]) / width
            page[number] = regime(packing, interference(axes[1][:, -MAIN_AXES:]))
            gaussian = gaussian_values(values, rng)
            fit = fitted(rows, values, gaussian, 3, documents)
            if kind == "orthogonal":
                # Each row four times, of which one is as good as another.
                rows = np.concatenate([rows + 0.03 * rng.standard_normal(rows.shape)] * 4)
                fit = replace(fit, active=np.tile(fit.active, 4))
            quantities, _ = _repaired(rows, fit, rng)
            value = quantities["regime"].value
            repaired[number] = math.nan if value is None else value
        return {"page": {"regime": page}, "repaired": {"regime": repaired}}

    worlds = {
        "orthogonal": ("one orthogonal feature a dimension, each four times", True),
        "gaussian": ("Gaussian values, and a random dictionary of four rows a dimension", True),
        "superposed": ("four features a dimension, three of them active at a time", False),
    }
    scenarios = [
        Scenario(says, worthless, lambda rng, size, kind=kind: draw(rng, size, kind))
        for kind, (says, worthless) in worlds.items()
    ]
    limits: dict[VariantName, tuple[Condition, ...]] = {"page": (STRONG,), "repaired": (STRONG,)}
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


def sparse_values(
    rows: Dictionary, n: int, k: int, rng: np.random.Generator
) -> Float[np.ndarray, "values d"]:
    """Values that are sums of k rows each, with weights from .5 to 1.5."""
    which = rng.random((n, len(rows))).argsort(axis=1)[:, :k]
    return (rng.uniform(0.5, 1.5, (n, k, 1)) * rows[which]).sum(axis=1)


def fitted(
    rows: Dictionary,
    values: Float[np.ndarray, "values d"],
    gaussian: Float[np.ndarray, "values d"],
    k: int,
    groups: Sequence[str],
) -> DictionaryFit:
    """What a dictionary that keeps the k largest products of each value makes of values."""
    lost, spread, active = list[Any](), list[Any](), np.zeros(len(rows), dtype=bool)
    for number, sample in enumerate((values, gaussian)):
        read = (sample @ rows.T).clip(min=0)
        least = np.sort(read, axis=1)[:, -k][:, None]
        features = np.where(read >= least, read, 0)
        lost.append(((sample - features @ rows) ** 2).sum(axis=1))
        spread.append(((sample - sample.mean(axis=0)) ** 2).sum(axis=1))
        active |= (features > 0).any(axis=0) & (number == 0)
    return DictionaryFit(lost[0], spread[0], lost[1], spread[1], tuple(groups), active)


DictionaryName = Literal["auto", "sae", "unembedding", "embedding"]
STEP = 4096
"""Values that are encoded at once."""


@dataclass(frozen=True)
@checked_settings
class SuperpositionRegime(Gauge):
    """Does a layer hold more features than it has dimensions?

    The page's part runs the model over windows of the texts' test documents, and takes the
    streams behind all blocks at all tokens but those that the store drops. The dictionary is
    the sparse autoencoder that was given, whose features are looked for in the store's test
    values; without one, the rows of the unembedding, which are directions of the final stream.

    Attributes:
        n_samples: windows of text, of the published definition.
        dictionary: "sae", "unembedding", "embedding", or "auto": the SAE if there is one, else
            the unembedding.
        values: about how many test values a sparse autoencoder's features are looked for in.
    """

    n_samples: Annotated[int, Within(1)] = 200
    dictionary: DictionaryName = "auto"
    values: Annotated[int, Within(2)] = 20_000

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = 400

    def measure(self, inputs: GaugeInputs) -> Measurement:
        model, store = inputs.model, cast(ActivationStore, inputs.texts)
        windows = store.windows("test").first(self.n_samples)
        flags: list[Flag] = []
        if len(windows) < self.n_samples:
            flags.append(flag("few_texts", n=len(windows), wanted=self.n_samples))
        layers = layer_moments(model, windows.tokens, store.settings.drop, inputs.progress)
        chosen = self.dictionary
        if chosen == "auto":
            chosen = "sae" if inputs.has("sae") else "unembedding"
        rows, fit, name = self._dictionary(chosen, inputs, store)
        return superposition(layers, rows, fit, dictionary=name, seed=inputs.seed, flags=flags)

    def _dictionary(
        self, chosen: str, inputs: GaugeInputs, store: ActivationStore
    ) -> tuple[Float[np.ndarray, "n d"], DictionaryFit | None, str]:
        decoder = inputs.model.decoder
        if chosen != "sae":
            matrix = decoder.unembedding if chosen == "unembedding" else decoder.embedding
            return _array(matrix), None, chosen
        sae = inputs.sae
        # A normalised SAE has no one matrix by which values change, but its rows have directions.
        matrix = sae.w_dec if isinstance(sae, SAE) else decoder_of(sae)
        if matrix is None:
            raise BadUsage(
                f"M13 needs a dictionary with rows; a {type(sae).__name__} decodes without any."
            )
        if isinstance(sae, SAE):
            sae.check_site(store.site, inputs.model)
        if matrix.shape[1] != store.site.width(decoder):
            raise BadUsage(
                f"This dictionary has rows of {matrix.shape[1]} numbers; {store.site} has"
                f" {store.site.width(decoder)}."
            )
        if store.site.part != "resid":
            raise BadUsage(f"M13 is of residual streams; got a dictionary of {store.site}.")
        values = store.values("test", self.values).float()
        documents = [str(x) for x in store.rows("test", self.values).tolist()]
        rng = np.random.default_rng(inputs.seed)
        gaussian = torch.from_numpy(gaussian_values(_array(values), rng)).float()
        lost, active = _lost(sae, values)
        lost_gaussian, _ = _lost(sae, gaussian)
        fit = DictionaryFit(
            lost, _spread(values), lost_gaussian, _spread(gaussian), tuple(documents), active
        )
        return _array(matrix), fit, f"sparse autoencoder of {store.site.at('all')}"

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` values, 20 at least."""
        return null(max(n, 20), n_simulations, seed)


@torch.no_grad()
def layer_moments(
    model: Model, tokens: Int[Tensor, "windows n"], drop: int, progress: Progress
) -> dict[str, Moments]:
    """Sums over the streams behind each block, at all tokens of windows but the first ones.

    Args:
        drop: how many tokens of each window's beginning are left out.
    """
    model.check_unchanged()
    decoder = model.decoder
    d, last = decoder.d_model, len(decoder.layers)
    totals = np.zeros((last, d))
    products = np.zeros((last, d, d))
    room = token_budget(trace_bytes(decoder), tokens.shape[1], model.device)
    with progress.track("M13 texts", len(tokens)) as advance:
        for some in tokens.to(model.device).split(max(1, room // tokens.shape[1])):

            def add(place: Place, layer: int, value: Tensor) -> Tensor:
                if place == "stream" and layer > 0:
                    rows = _array(value[:, drop:].flatten(0, 1))
                    totals[layer - 1] += rows.sum(axis=0)
                    products[layer - 1] += rows.T @ rows
                return value

            ctx = decoder.context(torch.ones_like(some, dtype=torch.bool))
            x = decoder.add_positions(decoder.embed(some), ctx)
            add("stream", last, forward(decoder, x, ctx, edit=add))
            advance(len(some))
    n = tokens.shape[0] * (tokens.shape[1] - drop)
    return {f"resid.{layer}": Moments(n, totals[layer], products[layer]) for layer in range(last)}


def _array(x: Tensor) -> Float[np.ndarray, "..."]:
    return x.detach().double().cpu().numpy()


@torch.no_grad()
def _lost(sae: object, values: Float[Tensor, "n d"]) -> tuple[np.ndarray, np.ndarray]:
    """|h - h~|^2 of values, and which features some of them have."""
    featurizer: SAE = sae  # pyright: ignore[reportAssignmentType]
    lost: list[Tensor] = []
    active: Tensor | None = None
    for some in values.split(STEP):
        features = featurizer.encode(some)
        if isinstance(sae, SAE):
            made = sae.decode_beside(features, some)
        else:
            made = featurizer.decode(features)
        lost.append((some - made).double().pow(2).sum(1))
        seen = (features != 0).any(dim=0)
        active = seen if active is None else active | seen
    assert active is not None
    return _array(torch.cat(lost)), active.cpu().numpy()


def _spread(values: Float[Tensor, "n d"]) -> np.ndarray:
    return _array((values.double() - values.double().mean(0)).pow(2).sum(1))
