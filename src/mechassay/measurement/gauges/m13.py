"""M13, superposition regime: activations of all layers, and the rows of a dictionary.

The page's part runs the model over windows of the texts' test documents, and takes the streams
behind all blocks at all tokens but those that the store drops. The dictionary is the sparse
autoencoder that was given, whose features are looked for in the store's test values; without one,
the rows of the unembedding, which are directions of the final stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage, one_of
from mechassay.features.featurizer import decoder_of
from mechassay.features.sae import SAE
from mechassay.measurement.formulas import superposition as formula
from mechassay.measurement.formulas.superposition import DictionaryFit, Moments
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag
from mechassay.models.forward import Place, forward
from mechassay.models.memory import token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.progress import Progress
from mechassay.saes.activations import ActivationStore

DictionaryName = Literal["auto", "sae", "unembedding", "embedding"]
STEP = 4096
"""Values that are encoded at once."""


@dataclass(frozen=True)
class SuperpositionRegime:
    """Does a layer hold more features than it has dimensions?

    Attributes:
        n_samples: windows of text, of the published definition.
        dictionary: "sae", "unembedding", "embedding", or "auto": the SAE if there is one, else
            the unembedding.
        values: about how many test values a sparse autoencoder's features are looked for in.
    """

    n_samples: int = 200
    dictionary: DictionaryName = "auto"
    values: int = 20_000

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "texts")

    def __post_init__(self) -> None:
        one_of("dictionary of M13", self.dictionary, get_args(DictionaryName))
        if self.n_samples < 1 or self.values < 2:
            raise BadUsage(
                f"M13 needs one text or more, and two values; got {self.n_samples} and"
                f" {self.values}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        model, store = inputs.model, cast(ActivationStore, inputs.texts)
        windows = store.windows("test").first(self.n_samples)
        flags: list[Flag] = []
        if len(windows) < self.n_samples:
            flags.append(
                Flag("few_texts", f"There are {len(windows)} windows, not {self.n_samples}.")
            )
        layers = layer_moments(model, windows.tokens, store.settings.drop, inputs.progress)
        chosen = self.dictionary
        if chosen == "auto":
            chosen = "sae" if inputs.has("sae") else "unembedding"
        rows, fit, name = self._dictionary(chosen, inputs, store)
        return formula.superposition(
            layers, rows, fit, dictionary=name, seed=inputs.seed, flags=flags
        )

    def _dictionary(
        self, chosen: str, inputs: Inputs, store: ActivationStore
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
            sae.check_site(store.site)
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
        gaussian = torch.from_numpy(formula.gaussian_values(_array(values), rng)).float()
        lost, active = _lost(sae, values)
        lost_gaussian, _ = _lost(sae, gaussian)
        fit = DictionaryFit(
            lost, _spread(values), lost_gaussian, _spread(gaussian), tuple(documents), active
        )
        return _array(matrix), fit, f"sparse autoencoder of {store.site.at('all')}"

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is values."""
        return formula.null(400 if n is None else max(n, 20), n_simulations, seed)


@torch.no_grad()
def layer_moments(
    model: Model, tokens: Int[Tensor, "windows n"], drop: int, progress: Progress
) -> dict[str, Moments]:
    """Sums over the streams behind each block, at all tokens of windows but the first ones.

    Args:
        drop: how many tokens of each window's beginning are left out.
    """
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
