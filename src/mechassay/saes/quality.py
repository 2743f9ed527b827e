"""How good a dictionary is, before anything is concluded from its features.

Of values h of test documents, h~ what the SAE makes of them, m their mean:

    l0                   mean number of features that are not 0
    explained variance   1 - sum |h - h~|^2 / sum |h - m|^2: 0 for the mean, 1 for h itself
    ... of PCA-k         the same for the k = round(l0) main axes of the train values
    ... without PC 1     the same, with the first main axis projected out of h - h~ and h - m
    dead                 share of features that are 0 for all test values
    recovered            (CE_r - CE_sae) / (CE_r - CE): CE the model's cross-entropy of the next
                         token in nats, CE_sae with h~ in place of h, CE_r with zeros or with m
    init cosine          mean cosine of decoder rows to those that training began with
    agreement            decoder rows matched with another seed's (`saes.feature_matching`)

The tokens that the store drops are not spliced, nor is what they predict counted. Intervals
resample whole documents; quotients are those of the resampled sums. With 54 % of the variance on
one axis, a high explained variance is no evidence of features: PCA-k, random dictionaries and the
agreement of seeds stand beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage, one_of
from mechassay.features.sae import SAE
from mechassay.interventions.site import Site
from mechassay.models.forward import Place, forward
from mechassay.models.model import Model
from mechassay.results.measures import measure_texts
from mechassay.results.records import RESULT, Measure, Selection, Spec
from mechassay.results.result import RecordContents, Result
from mechassay.saes.activations import ActivationStore, Windows
from mechassay.saes.feature_matching import (
    SHARED,
    cosine_to,
    permuted_sae,
    random_sae,
    seed_agreement,
)
from mechassay.stats.intervals import Estimate, Resamples, percentile_interval, resolved_difference
from mechassay.utils.arguments import checked
from mechassay.utils.display import (
    BAR,
    Progress,
)

Control = Literal["random", "permuted"]
CONTROLS: tuple[Control, ...] = get_args(Control)
STEP = 4096
TEXTS = measure_texts("saes")


@dataclass(frozen=True, eq=False, repr=False)
class SAEQuality(Result, kind="saes"):
    """Measures of an SAE and of its controls.

    Attributes:
        measures: each is `of` "result", "model" or a control ("control:random").
        warnings: what makes a number vacuous.
        provenance: of the SAE.
    """

    sae: SAE
    store: ActivationStore
    measures: tuple[Measure, ...]
    warnings: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def repr_fields(self) -> dict[str, Any]:
        own = {m.name: m.value for m in self.measures if m.of == RESULT}
        return {"site": str(self.store.site), **own}

    @checked
    def measure(self, name: str, of: str = RESULT) -> Measure:
        """One measure.

        Raises:
            UnknownName: there is none of that name.
        """
        named = {f"{m.name} of {m.of}": m for m in self.measures}
        return named[one_of("measure", f"{name} of {of}", named)]

    def columns(self) -> dict[str, list[Any]]:
        """A row a measure."""
        names = ("name", "of", "value", "low", "high", "n", "n_undefined")
        return {name: [getattr(m, name) for m in self.measures] for name in names}

    def contents(self) -> RecordContents:
        store = self.store
        about = {name: x for name, x in self.about.items() if name != "seconds"}
        return {
            "specs": {
                "model": Spec(name=store.model),
                "site": Spec(name=str(store.site)),
                "corpus": Spec(name=store.corpus, args=asdict(store.settings)),
                "method": Spec(name="sae", args=about),
                "metric": Spec(name="sae-quality"),
            },
            "measures": self.measures,
            "data": {
                "test": Selection(hash=store.key, task=store.corpus, kept=store.n_rows("test"))
            },
            "warnings": self.warnings,
        }


@checked
def sae_quality(
    model: Model,
    sae: SAE,
    store: ActivationStore,
    *,
    initial: Float[Tensor, "n d"] | None = None,
    seeds: Sequence[SAE] = (),
    untrained: tuple[Model, SAE, ActivationStore] | None = None,
    controls: Sequence[Control] = CONTROLS,
    rows: int | None = 100_000,
    windows: int = 64,
    seed: int = 0,
    progress: Progress = BAR,
) -> SAEQuality:
    """Measure an SAE on the test documents of a store.

    Args:
        initial: decoder rows that its training began with.
        seeds: SAEs of the same site, trained with other seeds.
        untrained: the model with random weights, an SAE trained on it, and that SAE's own store: a
            control that has the text and the architecture, and nothing that was learned.
        rows: about how many values to take; None: all.
        windows: how many windows are run to see what the SAE does to the model's predictions.
        seed: of controls and of the bootstrap.

    Raises:
        BadUsage: an SAE of another width or hook, or a store of another model.
    """
    begin = time.perf_counter()
    check_dictionary(model, sae, store)
    data = _Measuring.of(model, store, rows, windows, seed)
    chosen = {one_of("control of an SAE", name, CONTROLS) for name in controls}
    k = max(1, round(_l0(sae, data.values)))
    subjects: dict[str, SAE] = {RESULT: sae}
    if "random" in chosen:
        k_random = min(k, sae.n_features)
        subjects["control:random"] = random_sae(
            sae.d_in, sae.n_features, k_random, data.mean.float(), seed=seed
        )
    if "permuted" in chosen:
        subjects["control:permuted"] = permuted_sae(sae, seed=seed)
    measures: list[Measure] = []
    with progress.track("quality", len(subjects) + len(seeds) + (untrained is not None)) as advance:
        for of, subject in subjects.items():
            measures += data.measures(subject, of)
            advance(1)
        measures.append(data.pca(k))
        measures.append(data.model_loss())
        if initial is not None:
            measures.append(_mean("init_cosine", cosine_to(sae, initial)))
        for number, other in enumerate(seeds):
            measures += _agreement(sae, other, "" if len(seeds) == 1 else f"-{number + 1}", seed)
            advance(1)
        if untrained is not None:
            bare, bare_sae, bare_store = untrained
            check_dictionary(bare, bare_sae, bare_store)
            beside = _Measuring.of(bare, bare_store, rows, windows, seed)
            measures += beside.measures(bare_sae, "control:untrained")
            advance(1)
    about = {"seconds": round(time.perf_counter() - begin, 2), "activation": sae.activation}
    about |= {"n_features": sae.n_features, "k": sae.k or 0}
    return SAEQuality(sae, store, tuple(measures), _warnings(measures, k, data), about)


def check_dictionary(model: Model, sae: SAE, store: ActivationStore) -> None:
    """Refuse an SAE that does not read a store's values, and a store of another model.

    Raises:
        BadUsage: another width, hook or model.
    """
    sae.check_site(store.site, model)
    width = store.site.width(model.decoder)
    if sae.d_in != width:
        raise BadUsage(f"This SAE reads values of {sae.d_in} numbers; {store.site} has {width}.")
    if model.identity.key != store.identity.key:
        raise BadUsage(f"{store.folder} has activations of {store.model}, not of this model.")


def _warnings(measures: Sequence[Measure], k: int, data: _Measuring) -> tuple[str, ...]:
    warnings: list[str] = []
    named = {(m.name, m.of): m.value for m in measures}
    own = named["explained_variance", RESULT]
    axes = named["pca_explained_variance", RESULT]
    if own <= axes:
        warnings.append(
            f"{k} main axes explain as much of the variance ({axes:.3f}) as the SAE does."
        )
    first = data.first_axis
    if first > 0.3:
        warnings.append(f"One axis has {100 * first:.0f} % of the variance.")
    shared = [m.value for m in measures if m.name == "shared" and m.of == RESULT]
    if not shared:
        warnings.append(
            "No other seed was compared: explained variance is no evidence of features."
        )
    elif max(shared) < 0.3:
        warnings.append(
            f"Another seed shares {100 * max(shared):.0f} % of the features: they are not those"
            " that any training would find."
        )
    return tuple(warnings)


@dataclass(frozen=True, eq=False)
class _Measuring:
    """What an SAE is measured on.

    Attributes:
        values, document: of the store's test rows.
        mean: of the test values; train_mean: of the train values.
        axes: main axes of the train values, by variance.
        losses: of the model, of zeros and of the mean, a row each; nats a predicted token.
    """

    model: Model
    site: Site
    values: Float[Tensor, "n d"]
    document: Int[Tensor, "n"]
    mean: Float[Tensor, "d"]
    train_mean: Float[Tensor, "d"]
    axes: Float[Tensor, "d k"]
    first_axis: float
    windows: Windows
    drop: int
    losses: Float[np.ndarray, "three windows"]
    rows: Resamples
    runs: Resamples

    @staticmethod
    @torch.no_grad()
    def of(
        model: Model, store: ActivationStore, rows: int | None, windows: int, seed: int
    ) -> _Measuring:
        values, train = store.values("test", rows).float(), store.values("train", rows).float()
        document = store.rows("test", rows)
        train_mean = train.mean(0, dtype=torch.float64)
        centred = train.double() - train_mean
        variances, axes = torch.linalg.eigh(centred.mT @ centred)
        mean, some = values.mean(0, dtype=torch.float64), store.windows("test").first(windows)
        drop = store.settings.drop
        references = (None, "zero", mean.to(model.dtype))
        losses = np.stack(
            [
                spliced_loss(model, store.site, some, reference, drop=drop)
                for reference in references
            ]
        )
        rng = np.random.default_rng(seed)
        return _Measuring(
            model,
            store.site,
            values,
            document,
            mean,
            train_mean,
            axes.flip(1),
            float(variances[-1] / variances.sum()),
            some,
            drop,
            losses,
            Resamples(_names(document), rng),
            Resamples(_names(some.document), rng),
        )

    @torch.no_grad()
    def measures(self, sae: SAE, of: str) -> list[Measure]:
        """All measures of one dictionary."""
        n = len(self.values)
        active = torch.zeros(sae.n_features, dtype=torch.bool)
        counts, errors, totals = (np.zeros(n) for _ in range(3))
        rest, rest_totals = np.zeros(n), np.zeros(n)
        first = self.axes[:, 0]
        for begin in range(0, n, STEP):
            part = slice(begin, begin + STEP)
            h = self.values[part]
            f = sae.encode(h)
            on = f != 0
            active |= on.any(dim=0)
            counts[part] = on.sum(dim=1).numpy()
            error = (h - sae.decode_beside(f, h)).double()
            total = h.double() - self.mean
            errors[part], totals[part] = (
                error.square().sum(1).numpy(),
                total.square().sum(1).numpy(),
            )
            rest[part] = errors[part] - (error @ first).square().numpy()
            rest_totals[part] = totals[part] - (total @ first).square().numpy()
        dead = float((~active).double().mean())
        loss = spliced_loss(self.model, self.site, self.windows, sae, drop=self.drop)
        _, zero, mean = self.losses
        return [
            self._quotient("l0", counts, np.ones(n), of, self.rows),
            self._left("explained_variance", errors, totals, of),
            self._left("explained_variance_without_pc1", rest, rest_totals, of),
            TEXTS.measure("dead", dead, of=of, n=sae.n_features),
            self._quotient("cross_entropy", loss, np.ones(len(loss)), of, self.runs),
            self._recovered("recovered_zero", zero, loss, of),
            self._recovered("recovered_mean", mean, loss, of),
        ]

    def pca(self, k: int) -> Measure:
        """What the k main axes of the train values explain."""
        centred = self.values.double() - self.train_mean
        kept = centred @ self.axes[:, :k]
        errors = centred.square().sum(1) - kept.square().sum(1)
        totals = (self.values.double() - self.mean).square().sum(1)
        return self._left("pca_explained_variance", errors.numpy(), totals.numpy(), RESULT)

    def model_loss(self) -> Measure:
        """The model's own cross-entropy."""
        clean = self.losses[0]
        return self._quotient("cross_entropy", clean, np.ones(len(clean)), "model", self.runs)

    def _left(self, name: str, errors: Any, totals: Any, of: str) -> Measure:
        return self._quotient(name, totals - errors, totals, of, self.rows)

    def _recovered(
        self, name: str, worst: Float[np.ndarray, "n"], loss: Float[np.ndarray, "n"], of: str
    ) -> Measure:
        """The share of what `worst` loses to the model that is not lost with `loss`."""
        clean = self.losses[0]
        # Losses are summed in float32 where the model is no more precise.
        dtype = np.float64 if self.model.dtype == torch.float64 else np.float32
        gap = resolved_difference(worst.mean(), clean.mean(), np.stack((worst, clean)), dtype=dtype)
        below = worst - clean if gap > 0 else np.zeros_like(clean)
        return self._quotient(name, worst - loss, below, of, self.runs)

    def _quotient(
        self, name: str, above: Any, below: Any, of: str, resamples: Resamples
    ) -> Measure:
        """The quotient of two sums, with that of resampled documents; NaN where the lower is 0."""
        total = float(below.sum())
        if total <= 0:
            return TEXTS.measure(name, math.nan, of=of, n=len(above), n_undefined=len(above))
        draws = resamples.means(np.stack([above, below]).astype(float))
        with np.errstate(divide="ignore", invalid="ignore"):
            quotients = draws[:, 0] / draws[:, 1]
        low, high, _ = percentile_interval(quotients, n_groups=resamples.n_groups)
        return TEXTS.measure(
            name, Estimate(float(above.sum()) / total, low, high), of=of, n=len(above)
        )


def _names(document: Tensor) -> list[str]:
    return list(map(str, document.tolist()))


def _l0(sae: SAE, values: Tensor) -> float:
    with torch.no_grad():
        parts = [(sae.encode(h) != 0).sum().item() for h in values.split(STEP)]
    return sum(parts) / len(values)


def _mean(name: str, values: Tensor) -> Measure:
    return TEXTS.measure(name, float(values.mean()), n=len(values))


def _agreement(sae: SAE, other: SAE, suffix: str, seed: int) -> list[Measure]:
    agreement, of, null = seed_agreement(sae, other, seed=seed), RESULT + suffix, "control:random"
    n = len(agreement.cosines)
    return [
        TEXTS.measure("matched_cosine", agreement.matched, of=of, n=n),
        TEXTS.measure("shared", agreement.shared, of=of, n=n, least=SHARED),
        TEXTS.measure("matched_cosine", agreement.random_matched, of=null + suffix, n=n),
        TEXTS.measure("shared", agreement.random_shared, of=null + suffix, n=n, least=SHARED),
    ]


# --- the model with an SAE in it ------------------------------------------------------------------


@torch.no_grad()
def spliced_loss(
    model: Model,
    site: Site,
    windows: Windows,
    put: SAE | Tensor | Literal["zero"] | None,
    *,
    drop: int = 1,
    batch: int = 8,
) -> Float[np.ndarray, "windows"]:
    """The mean cross-entropy of the next token in each window, in nats.

    Args:
        put: what stands in place of the site's values: what an SAE makes of them, zeros, a vector
            [d], or they themselves (None).
        drop: how many first tokens keep their values, and predict nothing that is counted.
    """

    def new(h: Tensor) -> Tensor:
        if isinstance(put, SAE):
            return put.reconstruct(h)
        return (
            torch.zeros_like(h) if put is None or isinstance(put, str) else put.to(h).expand_as(h)
        )

    losses: list[Tensor] = []
    for tokens in windows.tokens.to(model.device).split(batch):
        final = edited_final(model, site, tokens, None if put is None else new, drop)
        logits = model.decoder.readout(final[:, drop:-1].flatten(0, 1)).all()
        targets = tokens[:, drop + 1 :].flatten()
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        losses.append(loss.view(len(tokens), -1).double().mean(1).cpu())
    return torch.cat(losses).numpy()


def edited_final(
    model: Model,
    site: Site,
    tokens: Int[Tensor, "windows n"],
    new: Callable[[Float[Tensor, "rows d"]], Float[Tensor, "rows d"]] | None,
    drop: int,
) -> Float[Tensor, "windows n d_model"]:
    """The final stream, with values of the site's tokens from `drop` on changed by a function.

    Args:
        new: of all these values, window by window; None leaves them as they are.
    """
    model.check_unchanged()
    decoder = model.decoder
    heads = list(site.heads)
    put = new or (lambda h: h)

    def changed(value: Tensor) -> Tensor:
        part = value[:, drop:]
        flat = put(part.flatten(0, 1)).view_as(part)
        return torch.cat([value[:, :drop], flat], dim=1)

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        if new is None or (place, layer) != site.place:
            return value
        if site.part != "heads":
            return changed(value)
        which = heads or list(range(value.shape[1]))
        mixed = value[:, which].transpose(1, 2)
        made = changed(mixed.flatten(2)).view_as(mixed).transpose(1, 2)
        return value.index_copy(1, torch.tensor(which, device=value.device), made)

    ctx = decoder.context(torch.ones_like(tokens, dtype=torch.bool))
    x = decoder.add_positions(decoder.embed(tokens), ctx)
    final = forward(decoder, x, ctx, edit=edit)
    # The stream after the last layer is entered by no layer.
    last = site.place == ("stream", len(decoder.layers))
    return changed(final) if last and new is not None else final
