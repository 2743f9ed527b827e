"""EX34: features by the tokens that activate them, and by what their directions say.

Tokens of a feature are chosen on train documents, by mean activation; values and next tokens are
those of test documents. A random dictionary goes the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.measurement.formulas import nla_convergence as formula
from mechassay.measurement.formulas.nla_convergence import TwoDirections
from mechassay.measurement.formulas.token_rankings import Described
from mechassay.measurement.gauges.sae_tokens import (
    ROWS,
    TokenSample,
    drawn_features,
    feature_counts,
    feature_values,
    promoted_scores,
    random_control,
    residual_dictionary,
    token_activations,
    unit_directions,
)
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.models.decoder import Decoder


@dataclass(frozen=True)
class NlaConvergence:
    """Do what activates a feature and what its direction says converge?

    Attributes:
        n_features: of those alive in train and test documents, drawn at random.
        top_k: tokens of a feature.
        rows: about how many values of each split are taken.
        control: whether a random dictionary is measured too; without it there is no verdict.
    """

    n_features: int = 30
    top_k: int = 20
    rows: int = ROWS
    control: bool = True

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "sae", "texts")

    def __post_init__(self) -> None:
        if min(self.n_features, self.top_k, self.rows) < 1:
            raise BadUsage(
                "Features, tokens and values are counted from 1; got"
                f" {self.n_features}, {self.top_k} and {self.rows}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        sae, store = residual_dictionary(inputs)
        train, test = (TokenSample.of(store, x, self.rows) for x in ("train", "test"))
        chosen = self._chosen(sae, train, test, inputs.seed)
        page = self._page(inputs.model.decoder, sae, chosen, test)
        random = None
        if self.control:
            other = random_control(sae, test.values, inputs.seed)
            drawn = self._chosen(other, train, test, inputs.seed)
            random = self._directions(other, drawn, train, test)
        return formula.nla_convergence(
            *page,
            self._directions(sae, chosen, train, test),
            _followers(inputs.model.decoder, sae, chosen, test),
            random=random,
            k=self.top_k,
            names=[str(x) for x in chosen.tolist()],
            seed=inputs.seed,
        )

    def _chosen(
        self, sae: SAE, train: TokenSample, test: TokenSample, seed: int
    ) -> Int[Tensor, "some"]:
        alive = (feature_counts(sae, train.values) > 0) & (feature_counts(sae, test.values) > 0)
        return drawn_features(alive, self.n_features, np.random.default_rng(seed))

    def _page(
        self, decoder: Decoder, sae: SAE, chosen: Int[Tensor, "some"], test: TokenSample
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Promoted tokens, tokens with the largest projections, and cosines of main axes."""
        k = self.top_k
        rows = unit_directions(sae, chosen)
        scores = promoted_scores(decoder, rows, folded=False)
        promoted = scores.topk(min(k, scores.shape[1]), dim=1).indices
        projected = test.values @ rows.mT
        activating = torch.full((len(chosen), k), -1)
        cosines = np.full(len(chosen), np.nan)
        for place, row in enumerate(rows):
            at = _best_of_tokens(projected[:, place], test)[:k]
            activating[place, : len(at)] = test.tokens[test.index[at]]
            values = test.values[at].double().numpy()
            cosines[place] = formula.main_axis_cosine(values, row.double().numpy())
        return promoted.cpu().numpy(), activating.numpy(), cosines

    def _directions(
        self, sae: SAE, chosen: Int[Tensor, "some"], train: TokenSample, test: TokenSample
    ) -> TwoDirections:
        """Decoder rows, and mean differences of test values at tokens chosen on train values."""
        known = torch.isin(train.tokens, test.tokens)
        scores = token_activations(sae, train, chosen, "mean")[:, known].numpy()
        own = formula.choose(scores, self.top_k)
        places = torch.searchsorted(test.tokens, train.tokens[known])
        picked = np.zeros((len(chosen), len(test.tokens)), dtype=bool)
        picked[:, places.numpy()] = own
        sums = torch.zeros(len(test.tokens), test.values.shape[1], dtype=torch.float64)
        sums.index_add_(0, test.index, test.values.double())
        counts = test.counts.double().numpy()
        return TwoDirections(
            sae.w_dec[chosen].detach().double().numpy(),
            formula.mean_differences(sums.numpy(), counts, picked),
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is features."""
        n = min(self.n_features, formula.SIMULATED) if n is None else n
        return formula.null(n, n_simulations, seed)


def _best_of_tokens(projected: Float[Tensor, "n"], test: TokenSample) -> Int[Tensor, "distinct"]:
    """Where each distinct token has its largest projection; largest first."""
    order = projected.argsort(descending=True, stable=True)
    _, first = np.unique(test.index[order].numpy(), return_index=True)
    return order[torch.from_numpy(np.sort(first))]


def _followers(
    decoder: Decoder, sae: SAE, chosen: Int[Tensor, "some"], test: TokenSample
) -> Described:
    """Tokens that follow: by what features promote, and by how often they follow activations."""
    after = test.next_tokens()
    there = after >= 0
    tokens, index = after[there].unique(return_inverse=True)
    active = (feature_values(sae, test.values, chosen)[there] > 0).double()
    counts = torch.zeros(len(chosen), len(tokens), dtype=torch.float64)
    counts.index_add_(1, index, active.mT.contiguous())
    shares = index.bincount(minlength=len(tokens)).double() / max(1, len(index))
    promoted = promoted_scores(decoder, sae.w_dec[chosen], folded=True)[:, tokens]
    return Described(promoted.cpu().numpy(), formula.excess(counts.numpy(), shares.numpy()))
