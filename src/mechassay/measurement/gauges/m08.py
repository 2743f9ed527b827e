"""M08, WeightLens: tokens that features read and write, by their weights and by what happens.

Tokens are those of test documents. What a feature raises is measured by removing it where it is
most active: the model's next-token logits there, less those without it, averaged over contexts of
different windows. Tokens that differ by case or spaces around count as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.featurizer import moved_by
from mechassay.features.sae import SAE
from mechassay.interventions.site import Site
from mechassay.measurement.formulas import weight_lens as formula
from mechassay.measurement.formulas.token_rankings import Described
from mechassay.measurement.formulas.weight_lens import ReadAndWritten
from mechassay.measurement.gauges.sae_tokens import (
    ROWS,
    TokenSample,
    by_word,
    drawn_features,
    feature_blocks,
    feature_counts,
    feature_values,
    padded_top,
    promoted_scores,
    random_control,
    residual_dictionary,
    token_activations,
    words_of,
)
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.models.decoder import at_least_fp32
from mechassay.models.model import Model
from mechassay.progress import Progress
from mechassay.saes.quality import edited_final

BATCH = 8
"""Windows that are run at once."""


@dataclass(frozen=True)
class WeightLens:
    """Do a feature's weights say what its activations do?

    Attributes:
        top_k: tokens that are compared.
        n_features: of those alive, drawn for the repaired variant; the page takes all.
        contexts: in which each feature is removed; two runs of the model each, on a prompt of at
            most a window.
        rows: about how many values are taken.
        control: whether a random dictionary is measured too.
    """

    top_k: int = 50
    n_features: int = 50
    contexts: int = 2
    rows: int = ROWS
    control: bool = True

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "sae", "texts")

    def __post_init__(self) -> None:
        if min(self.top_k, self.n_features, self.contexts, self.rows) < 1:
            raise BadUsage(
                "Tokens, features, contexts and values are counted from 1; got"
                f" {self.top_k}, {self.n_features}, {self.contexts} and {self.rows}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        sae, store = residual_dictionary(inputs)
        sample = TokenSample.of(store, "test", self.rows)
        lens = _Lens(inputs.model, store.site, sample, self, inputs.progress)
        promoted, activating = self._page(inputs.model, sae, sample)
        read_written, chosen = lens.described(sae, inputs.seed)
        random = None
        if self.control:
            other = random_control(sae, sample.values, inputs.seed)
            random = lens.described(other, inputs.seed)[0]
        return formula.weight_lens(
            promoted.numpy(),
            activating.numpy(),
            read_written,
            k=self.top_k,
            random=random,
            names=[str(x) for x in chosen.tolist()],
        )

    def _page(self, model: Model, sae: SAE, sample: TokenSample) -> tuple[Tensor, Tensor]:
        """Of all features: tokens that they promote, and those on which they are most active."""
        promoted: list[Tensor] = []
        activating: list[Tensor] = []
        vocab = len(model.decoder.unembedding)
        for block in feature_blocks(sae.n_features, max(vocab, len(sample.tokens))):
            scores = promoted_scores(model.decoder, sae.w_dec[block], folded=False)
            promoted.append(scores.topk(min(self.top_k, vocab), dim=1).indices.cpu())
            top = padded_top(token_activations(sae, sample, block, "largest"), self.top_k)
            activating.append(torch.where(top >= 0, sample.tokens[top], -1))
        return torch.cat(promoted), torch.cat(activating)

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is features."""
        n = min(self.n_features, formula.SIMULATED) if n is None else n
        return formula.null(n, n_simulations=n_simulations, seed=seed)


@dataclass(frozen=True, eq=False)
class _Lens:
    """What a dictionary's features read and write, on some values of a model."""

    model: Model
    site: Site
    sample: TokenSample
    settings: WeightLens
    progress: Progress

    @torch.no_grad()
    def described(self, sae: SAE, seed: int) -> tuple[ReadAndWritten, Int[Tensor, "some"]]:
        """Some features that are alive, described twice on both sides, and which they are."""
        sample, decoder = self.sample, self.model.decoder
        rng = np.random.default_rng(seed)
        alive = feature_counts(sae, sample.values) > 0
        chosen = drawn_features(alive, self.settings.n_features, rng)
        if not len(chosen):
            nothing = Described(np.empty((0, 1)), np.empty((0, 1)))
            return ReadAndWritten(nothing, nothing), chosen
        seen = words_of(self.model.tokenizer, sample.tokens)
        embedded = at_least_fp32(decoder.embed(sample.tokens[None].to(self.model.device))[0]).cpu()
        read = Described(
            by_word((embedded @ sae.w_enc[:, chosen].float()).mT, seen),
            by_word(token_activations(sae, sample, chosen, "mean"), seen),
        )
        words = words_of(self.model.tokenizer, torch.arange(len(decoder.unembedding)))
        written = Described(
            by_word(promoted_scores(decoder, sae.w_dec[chosen], folded=True), words),
            by_word(self._raised(sae, chosen), words),
        )
        return ReadAndWritten(read, written), chosen

    def _raised(self, sae: SAE, chosen: Int[Tensor, "some"]) -> Float[Tensor, "some vocab"]:
        """By how far each feature raises logits where it is active, less the mean over tokens."""
        sample, n = self.sample, self.settings.contexts
        active = feature_values(sae, sample.values, chosen).view(-1, sample.length, len(chosen))
        largest, place = active.max(dim=1)
        top = largest.topk(min(n, len(largest)), dim=0)
        feature = torch.arange(len(chosen)).expand_as(top.indices)[top.values > 0]
        window = top.indices[top.values > 0]
        column = place[window, feature]
        found = torch.zeros(len(chosen), len(self.model.decoder.unembedding))
        # Windows end behind the place in question: those that end early are run together.
        order = column.argsort()
        with self.progress.track("features removed", len(order)) as advance:
            for some in order.split(BATCH):
                effect = self._effect(sae, window[some], column[some], chosen[feature[some]])
                found.index_add_(0, feature[some], effect - effect.mean(dim=1, keepdim=True))
                advance(len(some))
        counts = feature.bincount(minlength=len(chosen)).clamp(min=1)
        return found / counts[:, None]

    def _effect(
        self,
        sae: SAE,
        window: Int[Tensor, "runs"],
        column: Int[Tensor, "runs"],
        feature: Int[Tensor, "runs"],
    ) -> Float[Tensor, "runs vocab"]:
        model, drop = self.model, self.sample.drop
        length = int(column.max()) + 1
        tokens = self.sample.windows[window, : drop + length].to(model.device)
        at = (torch.arange(len(window)) * length + column).to(model.device)

        def without(h: Tensor) -> Tensor:
            wide = at_least_fp32(h[at])
            f = sae.encode(wide)
            own = torch.zeros_like(f).scatter(1, feature[:, None].to(f.device), 1.0)
            return h.index_copy(0, at, moved_by(sae, wide, f, -f * own).to(h.dtype))

        rows = torch.arange(len(window)), (column + drop)
        logits = [
            model.decoder.readout(edited_final(model, self.site, tokens, new, drop)[rows]).all()
            for new in (None, without)
        ]
        return (logits[0] - logits[1]).float().cpu()
