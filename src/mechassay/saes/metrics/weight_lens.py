"""M08, WeightLens: do a feature's weights say what its activations do?

Tokens are those of test documents.

`page`      overlap (Jaccard) of the k tokens that W_dec W_U promotes most and the k tokens on
            which the feature is most active, mean over all features, dead ones included as 0;
            passes above .3. It compares what a feature writes with what it reads: a perfect
            "New" -> "York" feature has 0. With fewer than k active tokens it cannot reach 1.
`repaired`  two comparisons, of features that are alive:
              input    tokens by W_E w_enc, and tokens by mean activation
              output   tokens by W_dec W_U with the final norm's weights, and tokens by how far
                       the feature raises their logits where it is active (ablation)
            each as a share of min(k, active tokens), less the same of mismatched features
            (`token_agreement`). Both gains have to be above 0. A random dictionary stands
            beside: weights of any direction describe it where the site is near the embedding or
            the logits, so that agreement is no evidence that a feature is the model's.

What a feature raises is measured by removing it where it is most active: the model's next-token
logits there, less those without it, each context's mean over tokens taken away, averaged over
contexts of different windows. In the repaired variant tokens that differ by case or spaces
around count as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.features.featurizer import moved_by
from mechassay.features.sae import SAE
from mechassay.interventions.site import Site
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
    flag,
    page_metric,
    quantity,
    thresholds,
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
from mechassay.models.decoder import at_least_fp32
from mechassay.models.model import Model
from mechassay.results.records import Table
from mechassay.saes.metrics.feature_tokens import (
    SPLIT_ROWS,
    Described,
    TokenAgreement,
    TokenSample,
    agreement_quantities,
    by_word,
    drawn_features,
    feature_blocks,
    feature_counts,
    feature_values,
    jaccard,
    mean_of,
    padded_top,
    popular,
    promoted_scores,
    random_control,
    residual_dictionary,
    token_activations,
    token_agreement,
    top_tokens,
    words_of,
)
from mechassay.saes.quality import edited_final
from mechassay.stats.intervals import student_interval
from mechassay.utils.display import Progress
from mechassay.utils.settings import Within, checked_settings

ID = "M08"
ABOVE = 0.3
"""The overlap from which the page counts a feature as convergent."""
REPAIRED = (Condition("input_gain_low", ">", 0.0), Condition("output_gain_low", ">", 0.0))
IDS = Int[np.ndarray, "features k"]
SIMULATED = 20
"""Features of a simulation at most; with more, errors are rarer."""


@dataclass(frozen=True, eq=False)
class ReadAndWritten:
    """What features read and write, each described by weights and as measured."""

    read: Described
    written: Described


def weight_lens(
    promoted: IDS,
    activating: IDS,
    sample: ReadAndWritten,
    *,
    k: int = 50,
    random: ReadAndWritten | None = None,
    names: Iterable[str] = (),
) -> Measurement:
    """M08 of a dictionary.

    Args:
        promoted: of all features, the k tokens with the largest W_dec W_U.
        activating: of all features, the k tokens with the largest activations, filled up with -1.
        sample: features that are alive.
        random: the same of a random dictionary.
        names: of the sampled features.
    """
    sides = {"input": sample.read, "output": sample.written}
    controls = {"input": random.read, "output": random.written} if random is not None else {}
    notes = [*_flags(activating, k)]
    repaired: dict[str, Quantity] = {}
    agreements: dict[str, TokenAgreement] = {}
    for side, described in sides.items():
        agreements[side] = token_agreement(described, k)
        control = token_agreement(controls[side], k) if side in controls else None
        repaired |= agreement_quantities(side, agreements[side], control)
        if control is not None and student_interval(control.gain).low > 0:
            notes.append(flag(f"random_{side}_agrees", side=side, gain=mean_of(control.gain)))
            # A dictionary of random directions would pass too: no verdict.
            repaired[f"{side}_gain_low"] = quantity(None, reason="random")
    n = len(sample.read.measured)
    return Measurement.of(
        ID,
        _page(promoted, activating),
        repaired,
        REPAIRED,
        flags=notes,
        null=null(min(max(n, 2), SIMULATED)),
        tables=[Table.of("features", ("feature",), _rows(agreements, list(names) or range(n)))],
    )


def _flags(activating: IDS, k: int) -> Iterable[Flag]:
    yield flag("input_against_output")
    tokens = (activating >= 0).sum(axis=1)
    if dead := int((tokens == 0).sum()):
        yield flag("dead_features", dead=dead, n=len(tokens))
    if few := int(((tokens > 0) & (tokens < k)).sum()):
        yield flag("few_tokens", few=few, k=k)


def _page(promoted: IDS, activating: IDS) -> dict[str, Quantity]:
    overlaps = jaccard(promoted, activating)
    active = (activating >= 0).any(axis=1)
    alive = overlaps[active]
    n = len(alive)
    return {
        "weight_activation_agreement": quantity(
            float(overlaps.mean()) if n else None, n=len(overlaps)
        ),
        "median": quantity(float(np.median(alive)) if n else None, n=n),
        "frac_above_threshold": quantity(float((alive > ABOVE).mean()) if n else None, n=n),
        "active_features": quantity(float(n), n=len(overlaps)),
    }


def _rows(
    agreements: dict[str, TokenAgreement], names: Iterable[object]
) -> Iterable[dict[str, object]]:
    for place, name in enumerate(names):
        yield {
            "feature": str(name),
            **{f"{side}_agreement": float(x.matched[place]) for side, x in agreements.items()},
            **{f"{side}_mismatched": float(x.mismatched[place]) for side, x in agreements.items()},
            **{f"{side}_rbo": float(x.rbo[place]) for side, x in agreements.items()},
        }


# How often the thresholds err


@cache
def null(
    n: int = SIMULATED, k: int = 20, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
) -> NullTable:
    """Rates of the conditions for `n` features and 300 tokens."""
    shape = (n, 300)

    def draw(rng: np.random.Generator, size: int, kind: str) -> Drawn:
        agreement, lows = np.empty(size), np.empty((size, 2))
        for row in range(size):
            score = popular(rng, shape, 3.0 if kind == "popular" else 0.0)
            read = 3 * score()
            written = read if kind == "copy" else 3 * score()
            is_known = kind in ("copy", "shift")
            sides = [
                Described(score() + x, score() + x) if is_known else Described(score(), score())
                for x in (read, written)
            ]
            lists = [top_tokens(x, k) for x in (sides[1].by_weights, sides[0].measured)]
            agreement[row] = jaccard(*lists).mean()
            lows[row] = [student_interval(token_agreement(x, k).gain).low for x in sides]
        repaired = {"input_gain_low": lows[:, 0], "output_gain_low": lows[:, 1]}
        return {"page": {"weight_activation_agreement": agreement}, "repaired": repaired}

    scenarios = (
        Scenario("weights that say nothing", True, lambda rng, size: draw(rng, size, "nothing")),
        Scenario(
            "weights that say nothing, and tokens that are popular with all features",
            True,
            lambda rng, size: draw(rng, size, "popular"),
        ),
        Scenario(
            "features that read and write the same tokens",
            False,
            lambda rng, size: draw(rng, size, "copy"),
        ),
        Scenario(
            "features that read some tokens and write others",
            False,
            lambda rng, size: draw(rng, size, "shift"),
        ),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


BATCH = 8
"""Windows that are run at once."""


@dataclass(frozen=True)
@checked_settings
class WeightLens(Gauge):
    """Do a feature's weights say what its activations do?

    Attributes:
        top_k: tokens that are compared.
        n_features: of those alive, drawn for the repaired variant; the page takes all.
        contexts: in which each feature is removed; two runs of the model each, on a prompt of at
            most a window.
        rows: about how many values are taken.
        control: whether a random dictionary is measured too.
    """

    top_k: Annotated[int, Within(1)] = 50
    n_features: Annotated[int, Within(1)] = 50
    contexts: Annotated[int, Within(1)] = 2
    rows: Annotated[int, Within(1)] = SPLIT_ROWS
    control: bool = True

    about: ClassVar[PageMetric] = page_metric(ID)

    def measure(self, inputs: GaugeInputs) -> Measurement:
        sae, store = residual_dictionary(inputs)
        sample = TokenSample.of(store, "test", self.rows)
        lens = _Lens(inputs.model, store.site, sample, self, inputs.progress)
        promoted, activating = self._page(inputs.model, sae, sample)
        read_written, chosen = lens.described(sae, inputs.seed)
        random = None
        if self.control:
            other = random_control(sae, sample.values, inputs.seed)
            random = lens.described(other, inputs.seed)[0]
        return weight_lens(
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
        """Return the rates for `n` features; None: for `n_features`, at most `SIMULATED`."""
        return super().null(
            min(self.n_features, SIMULATED) if n is None else n, n_simulations, seed
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` features."""
        return null(n, n_simulations=n_simulations, seed=seed)


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
        effects = torch.zeros(len(chosen), len(self.model.decoder.unembedding), dtype=torch.float32)
        # Windows end behind the place in question: those that end early are run together.
        order = column.argsort()
        with self.progress.track("features removed", len(order)) as advance:
            for some in order.split(BATCH):
                effect = self._effect(sae, window[some], column[some], chosen[feature[some]])
                effects.index_add_(0, feature[some], effect - effect.mean(dim=1, keepdim=True))
                advance(len(some))
        counts = feature.bincount(minlength=len(chosen)).clamp(min=1)
        return effects / counts[:, None]

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
