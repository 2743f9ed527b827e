"""M08, WeightLens: do a feature's weights say what its activations do?

`page`      overlap (Jaccard) of the k tokens that W_dec W_U promotes most and the k tokens on which
            the feature is most active, mean over all features, dead ones included as 0; passes
            above .3. It compares what a feature writes with what it reads: a perfect "New" ->
            "York" feature has 0. With fewer than k active tokens it cannot reach 1.
`repaired`  two comparisons, of features that are alive:
              input    tokens by W_E w_enc, and tokens by mean activation
              output   tokens by W_dec W_U with the final norm's weights, and tokens by how far the
                       feature raises their logits where it is active (ablation)
            each as a share of min(k, active tokens), less the same of mismatched features
            (`token_rankings`). Both gains have to be above 0. A random dictionary stands beside:
            weights of any direction describe it where the site is near the embedding or the
            logits, so that agreement is no evidence that a feature is the model's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Int

from mechassay.measurement.catalogue import thresholds
from mechassay.measurement.formulas.token_rankings import (
    Described,
    TokenAgreement,
    agreement_quantities,
    jaccard,
    mean_of,
    popular,
    token_agreement,
    top_tokens,
)
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, Drawn, NullTable, Scenario, simulate
from mechassay.measurement.variant import Condition, Flag, Quantity, quantity
from mechassay.records import Table
from mechassay.stats.intervals import student_interval

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
    whats = {
        "input": "tokens by W_E w_enc and tokens by activation",
        "output": "tokens by W_dec W_U and tokens whose logits the feature raises",
    }
    notes = [*_flags(activating, k)]
    repaired: dict[str, Quantity] = {}
    found: dict[str, TokenAgreement] = {}
    for side, described in sides.items():
        found[side] = token_agreement(described, k)
        control = token_agreement(controls[side], k) if side in controls else None
        repaired |= agreement_quantities(side, found[side], whats[side], control)
        random_low = -1.0 if control is None else student_interval(control.gain).low
        if random_low > 0:
            notes.append(
                Flag(
                    f"random_{side}_agrees",
                    f"The {side} of a random dictionary agrees beyond chance too (gain"
                    f" {mean_of(control.gain if control else np.empty(0)):.2f}): at this site"
                    " agreement is no evidence that a feature is the model's.",
                )
            )
    n = len(sample.read.measured)
    return Measurement.of(
        ID,
        _page(promoted, activating),
        repaired,
        REPAIRED,
        flags=notes,
        null=null(min(max(n, 2), SIMULATED)),
        tables=[Table.of("features", ("feature",), _rows(found, list(names) or range(n)))],
    )


def _flags(activating: IDS, k: int) -> Iterable[Flag]:
    yield Flag(
        "input_against_output",
        "The page compares the tokens that a feature writes with those that it reads: a feature"
        " that reads one word and predicts another has 0.",
    )
    tokens = (activating >= 0).sum(axis=1)
    if dead := int((tokens == 0).sum()):
        yield Flag("dead_features", f"{dead:,} of {len(tokens):,} features are never active.")
    if few := int(((tokens > 0) & (tokens < k)).sum()):
        yield Flag(
            "few_tokens",
            f"{few:,} features are active on fewer than {k} distinct tokens: the page's overlap"
            " cannot reach 1.",
        )


def _page(promoted: IDS, activating: IDS) -> dict[str, Quantity]:
    found = jaccard(promoted, activating)
    active = (activating >= 0).any(axis=1)
    alive = found[active]
    n, none = len(alive), "no feature is active"
    return {
        "weight_activation_agreement": quantity(
            float(found.mean()) if n else None, n=len(found), reason=none, better="up"
        ),
        "median": quantity(float(np.median(alive)) if n else None, n=n, reason=none),
        "frac_above_threshold": quantity(
            float((alive > ABOVE).mean()) if n else None, n=n, reason=none
        ),
        "active_features": quantity(float(n), n=len(found)),
    }


def _rows(found: dict[str, TokenAgreement], names: Iterable[object]) -> Iterable[dict[str, object]]:
    for place, name in enumerate(names):
        yield {
            "feature": str(name),
            **{f"{side}_agreement": float(x.matched[place]) for side, x in found.items()},
            **{f"{side}_mismatched": float(x.mismatched[place]) for side, x in found.items()},
            **{f"{side}_rbo": float(x.rbo[place]) for side, x in found.items()},
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
            told = kind in ("copy", "shift")
            sides = [
                Described(score() + x, score() + x) if told else Described(score(), score())
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
