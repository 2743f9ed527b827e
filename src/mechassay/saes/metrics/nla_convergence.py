"""EX34: do what activates a feature and what its direction says converge?

The page names it after Anthropic's natural language autoencoders, pairs of language models that
put activations into words and back. Neither the page nor this computes any such thing: it is a
proxy.

`page`      the k tokens with the largest projections on the direction: the first main axis of
            their values, and the direction (cosine, without the axis's sign, which is
            arbitrary); and the overlap (Jaccard) of these tokens with the k that the direction
            promotes. Passes above .5 and .3. To choose values by a projection takes the variance
            along it away, so that the axis is any other one: the true direction is rejected. The
            overlap compares what is read with what is written.
`repaired`  multitrait-multimethod (Campbell and Fiske 1959): traits are features, and each is
            compared with itself and with the others.
              direction   the mean value at the feature's k tokens less that elsewhere, and its
                          decoder row. Tokens are those of the largest mean activation on train
                          documents, means are of test documents: chance does not choose both.
              tokens      those that follow the feature's activations in test documents more
                          often than elsewhere, and those that W_dec W_U promotes
            Of tokens, the gain over other features (`token_agreement`) has to be above 0; of
            directions, above the gain of a random dictionary that goes the same way, as any
            direction has tokens that lie along it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.features.sae import SAE
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
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
from mechassay.models.decoder import Decoder
from mechassay.results.records import Table
from mechassay.saes.metrics.feature_tokens import (
    SPLIT_ROWS,
    Described,
    TokenSample,
    agreement_quantities,
    drawn_features,
    feature_counts,
    feature_values,
    jaccard,
    mean_of,
    mean_quantity,
    promoted_scores,
    random_control,
    residual_dictionary,
    token_activations,
    token_agreement,
    top_tokens,
    unit_directions,
)
from mechassay.stats.intervals import Interval, student_interval
from mechassay.utils.settings import Within, checked_settings

ID = "EX34"
N_PERMUTATIONS = 999
SIMULATED = 10
"""Features of a simulation at most; with more, errors are rarer."""
REPAIRED = (
    Condition("direction_over_random_low", ">", 0.0),
    Condition("token_gain_low", ">", 0.0),
)
Rows = Float[np.ndarray, "features d"]


@dataclass(frozen=True, eq=False)
class TwoDirections:
    """Directions of features by two methods.

    Attributes:
        by_weights: decoder rows.
        by_activations: mean differences of values.
    """

    by_weights: Rows
    by_activations: Rows

    def cosines(self) -> Float[np.ndarray, "weights activations"]:
        """Of every feature's row with every feature's mean difference; NaN where one is 0."""
        a, b = _unit(self.by_weights), _unit(self.by_activations)
        return a @ b.T


def _unit(x: Rows) -> Rows:
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.divide(x, length, out=np.full(x.shape, np.nan), where=length > 0)


def main_axis_cosine(values: Float[np.ndarray, "k d"], direction: Float[np.ndarray, "d"]) -> float:
    """|cosine| of a direction and the first main axis of values; NaN where they do not vary."""
    centred = values - values.mean(axis=0)
    if len(values) < 2 or not centred.any() or not direction.any():
        return float("nan")
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    return float(abs(axis @ direction) / np.linalg.norm(direction))


def mean_differences(
    sums: Float[np.ndarray, "tokens d"],
    counts: Float[np.ndarray, "tokens"],
    chosen: Bool[np.ndarray, "features tokens"],
) -> Rows:
    """The mean of values at each feature's tokens less that at all others.

    NaN where there are none of either.

    Args:
        sums: of the values at each token; counts: how many there are.
    """
    inside = chosen.astype(sums.dtype)
    n, total = inside @ counts, inside @ sums
    rest_n, rest = counts.sum() - n, sums.sum(axis=0) - total
    with np.errstate(divide="ignore", invalid="ignore"):
        return total / n[:, None] - rest / rest_n[:, None]


def choose(
    scores: Float[np.ndarray, "features tokens"], k: int
) -> Bool[np.ndarray, "features tokens"]:
    """The k tokens with the largest scores above 0 of each feature."""
    chosen = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(chosen, top_tokens(scores, k), True, axis=1)
    return chosen & (scores > 0)


def excess(
    counts: Float[np.ndarray, "features tokens"], shares: Float[np.ndarray, "tokens"]
) -> Float[np.ndarray, "features tokens"]:
    """By how many standard errors tokens are more frequent than their shares of the text."""
    expected = counts.sum(axis=1, keepdims=True) * shares
    root = np.sqrt(expected)
    return np.divide(counts - expected, root, out=np.zeros(counts.shape), where=root > 0)


def nla_convergence(
    promoted: Int[np.ndarray, "features k"],
    activating: Int[np.ndarray, "features k"],
    page_cosines: Float[np.ndarray, "features"],
    directions: TwoDirections,
    tokens: Described,
    *,
    random: TwoDirections | None = None,
    k: int = 20,
    names: Iterable[str] = (),
    seed: int = 0,
    flags: Iterable[Flag] = (),
) -> Measurement:
    """EX34 of sampled features.

    Args:
        promoted, activating: of the page: tokens that the direction promotes, and those with the
            largest projections on it.
        page_cosines: of the page's axis, see `main_axis_cosine`.
        tokens: by what the direction promotes, and by what follows its activations.
        random: directions of a random dictionary's features, found in the same way.
        seed: of the permutations.
    """
    n = len(page_cosines)
    matrix = directions.cosines()
    own, gain = np.diagonal(matrix).copy(), _gains(matrix)
    known = gain[~np.isnan(gain)]
    ends = student_interval(known)
    control = np.empty(0) if random is None else _gains(random.cosines())
    over = _difference(gain, control)
    overlaps, agreement = jaccard(promoted, activating), token_agreement(tokens, k)
    reason = "no_control" if random is None else ""
    repaired = {
        "direction_cosine": mean_quantity(own),
        "direction_gain": quantity(
            float(known.mean()) if len(known) > 1 else None, interval=ends, n=len(known)
        ),
        "permutation_p": quantity(permutation_p(matrix, np.random.default_rng(seed)), n=len(known)),
        "random_gain": quantity(
            mean_of(control),
            interval=student_interval(control[~np.isnan(control)]),
            n=len(control),
            reason=reason,
        ),
        "direction_over_random": quantity(
            None if random is None else (over.low + over.high) / 2,
            interval=over,
            n=n,
            reason=reason,
        ),
        "direction_over_random_low": quantity(over.low, n=n, reason=reason),
        **agreement_quantities("token", agreement),
    }
    rows = (
        {
            "feature": str(name),
            "page_overlap": float(overlaps[place]),
            "page_cosine": float(page_cosines[place]),
            "cosine": float(own[place]),
            "gain": float(gain[place]),
            "followers": float(agreement.matched[place]),
        }
        for place, name in enumerate(list(names) or range(n))
    )
    page = {
        "mean_token_overlap": mean_quantity(overlaps),
        "mean_direction_cosine": mean_quantity(page_cosines),
    }
    return Measurement.of(
        ID,
        page,
        repaired,
        REPAIRED,
        flags=[*flags, flag("proxy"), flag("selection")],
        null=null(min(max(n, 3), SIMULATED)),
        tables=[Table.of("features", ("feature",), rows)],
    )


def _gains(matrix: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n"]:
    """The diagonal less the mean of the rest of its column; NaN in a matrix of one."""
    n = len(matrix)
    own = np.diagonal(matrix)
    if n < 2:
        return np.full(n, np.nan)
    known = ~np.isnan(matrix).all(axis=1)
    rest = np.nansum(matrix, axis=0) - np.nan_to_num(own)
    return own - rest / max(1, int(known.sum()) - 1)


def _difference(a: np.ndarray, b: np.ndarray) -> Interval:
    """Welch's interval of the difference of two means; NaN with fewer than two numbers of each."""
    a, b = a[~np.isnan(a)], b[~np.isnan(b)]
    if min(len(a), len(b)) < 2:
        return Interval(float("nan"), float("nan"))
    from scipy.stats import ttest_ind

    if np.ptp(a) == 0 and np.ptp(b) == 0:
        gap = float(a.mean() - b.mean())
        return Interval(gap, gap)
    ends = ttest_ind(a, b, equal_var=False).confidence_interval()
    return Interval(float(ends.low), float(ends.high))


def permutation_p(matrix: Float[np.ndarray, "n n"], rng: np.random.Generator) -> float:
    """How probable as large a mean of the diagonal is if columns are paired with rows at random.

    NaN with fewer than two features.
    """
    there = ~np.isnan(np.diagonal(matrix))
    some = matrix[there][:, there]
    n = len(some)
    if n < 2:
        return float("nan")
    orders = rng.random((N_PERMUTATIONS, n)).argsort(axis=1)
    drawn = some[orders, np.arange(n)].mean(axis=1)
    beyond = int((drawn >= np.diagonal(some).mean() - 1e-12).sum())
    return (1 + beyond) / (1 + N_PERMUTATIONS)


# How often the thresholds err


@cache
def null(n: int = SIMULATED, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0) -> NullTable:
    """Rates of the conditions for `n` features of a text of 150 tokens, four times each, with
    values of 32 numbers.
    """
    n_tokens, d, k, often = 150, 32, 8, 4

    def draw(rng: np.random.Generator, size: int, *, planted: bool, reported: bool) -> Drawn:
        names = ("overlap", "cosine", "over", "tokens")
        drawn = {name: np.empty(size) for name in names}
        for row in range(size):
            rows = _unit(rng.standard_normal((n, d)))
            own = np.zeros((n, n_tokens), dtype=bool)
            for token_row in own:
                token_row[rng.choice(n_tokens, k, replace=False)] = True
            strength = 4.0 if planted else 0.0
            base = 0.3 * rng.standard_normal((n_tokens, d)) + strength * (own.T @ rows)
            halves = [
                (base[:, None] + rng.standard_normal((n_tokens, often, d))).mean(axis=1)
                for _ in range(2)
            ]
            control = _unit(rng.standard_normal((n, d)))
            counts = np.full(n_tokens, float(often))
            two = [
                TwoDirections(
                    x, mean_differences(halves[1] * often, counts, choose(x @ halves[0].T, k))
                )
                for x in (rows, control)
            ]
            own_gain, random_gain = (_gains(side.cosines()) for side in two)
            drawn["over"][row] = _difference(own_gain, random_gain).low
            projected = rows @ halves[1].T
            lists = top_tokens(projected, k)
            axes = [main_axis_cosine(halves[1][x], y) for x, y in zip(lists, rows, strict=True)]
            drawn["cosine"][row] = np.mean(axes)
            writes = rng.standard_normal((n, n_tokens))
            follow = (2 * writes if reported else 0) + rng.standard_normal(writes.shape)
            drawn["overlap"][row] = jaccard(top_tokens(writes, k), lists).mean()
            drawn["tokens"][row] = student_interval(
                token_agreement(Described(writes, follow), k).gain
            ).low
        return {
            "page": {
                "mean_token_overlap": drawn["overlap"],
                "mean_direction_cosine": drawn["cosine"],
            },
            "repaired": {
                "direction_over_random_low": drawn["over"],
                "token_gain_low": drawn["tokens"],
            },
        }

    scenarios = (
        Scenario(
            "random directions of values that have no features",
            True,
            lambda rng, size: draw(rng, size, planted=False, reported=False),
        ),
        Scenario(
            "true directions, which promote other tokens than those that follow",
            True,
            lambda rng, size: draw(rng, size, planted=True, reported=False),
        ),
        Scenario(
            "true directions, which promote what follows",
            False,
            lambda rng, size: draw(rng, size, planted=True, reported=True),
        ),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


@dataclass(frozen=True)
@checked_settings
class NlaConvergence(Gauge):
    """Do what activates a feature and what its direction says converge?

    Attributes:
        n_features: of those alive in train and test documents, drawn at random.
        top_k: tokens of a feature.
        rows: about how many values of each split are taken.
        control: whether a random dictionary is measured too; without it there is no verdict.
    """

    n_features: Annotated[int, Within(1)] = 30
    top_k: Annotated[int, Within(1)] = 20
    rows: Annotated[int, Within(1)] = SPLIT_ROWS
    control: bool = True

    about: ClassVar[PageMetric] = page_metric(ID)

    def measure(self, inputs: GaugeInputs) -> Measurement:
        sae, store = residual_dictionary(inputs)
        train, test = (TokenSample.of(store, x, self.rows) for x in ("train", "test"))
        chosen = self._chosen(sae, train, test, inputs.seed)
        page = self._page(inputs.model.decoder, sae, chosen, test)
        random = None
        if self.control:
            other = random_control(sae, test.values, inputs.seed)
            drawn = self._chosen(other, train, test, inputs.seed)
            random = self._directions(other, drawn, train, test)
        return nla_convergence(
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
            # Where each distinct token has its largest projection; largest first.
            order = projected[:, place].argsort(descending=True, stable=True)
            _, first = np.unique(test.index[order].numpy(), return_index=True)
            at = order[torch.from_numpy(np.sort(first))][:k]
            activating[place, : len(at)] = test.tokens[test.index[at]]
            values = test.values[at].double().numpy()
            cosines[place] = main_axis_cosine(values, row.double().numpy())
        return promoted.cpu().numpy(), activating.numpy(), cosines

    def _directions(
        self, sae: SAE, chosen: Int[Tensor, "some"], train: TokenSample, test: TokenSample
    ) -> TwoDirections:
        """Decoder rows, and mean differences of test values at tokens chosen on train values."""
        known = torch.isin(train.tokens, test.tokens)
        scores = token_activations(sae, train, chosen, "mean")[:, known].numpy()
        own = choose(scores, self.top_k)
        places = torch.searchsorted(test.tokens, train.tokens[known])
        picked = np.zeros((len(chosen), len(test.tokens)), dtype=bool)
        picked[:, places.numpy()] = own
        sums = torch.zeros(len(test.tokens), test.values.shape[1], dtype=torch.float64)
        sums.index_add_(0, test.index, test.values.double())
        counts = test.counts.double().numpy()
        return TwoDirections(
            sae.w_dec[chosen].detach().double().numpy(),
            mean_differences(sums.numpy(), counts, picked),
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
    ) -> NullTable:
        """Return the rates for `n` features; None: for `n_features`, at most `SIMULATED`."""
        return super().null(
            min(self.n_features, SIMULATED) if n is None else n, n_simulations, seed
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` features."""
        return null(n, n_simulations, seed)


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
    return Described(promoted.cpu().numpy(), excess(counts.numpy(), shares.numpy()))
