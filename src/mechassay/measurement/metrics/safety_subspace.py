"""M14, safety SVE: do the directions of a contrast at all layers span a compact, stable space?

v_l is the difference of class means at layer l; s_i are the singular values of the v_l as rows,
p_i = s_i^2 / sum s^2, and SVE = -sum p_i ln p_i. Effective rank: values that hold 90 % of the p.

`page`      rows as they are; 30 prompts of each class; stability = 1 - sd / mean of the SVE of
            random subsets; passes below 2.0 if stable. SVE is at most ln L: with L <= 7 layers
            everything is compact. Norms grow with depth, so that the last rows count alone, and
            the stream carries what it holds from layer to layer: shuffled labels pass. A space
            that turns by 90 degrees from subset to subset has a stability of 1.
`repaired`  d_il = what pair i differs in at layer l, v_l = its mean, rows of length 1:
            agreement     mean over pairs i, j of two topics, and l, of cos(d_il, d_jl); with
                          random signs of topics (shuffled labels) it is 0 on average, which is
                          tested
            stability     mean cosine of the v_l of two halves of the topics
            SVE           over ln min(L, d), and less that of a control contrast of equal size
            explained     of the unit rows of one half, in the space of the other half's largest
                          singular values; beside it shuffled labels, the control, random
                          directions

It passes if the contrast is there (p < .05), stable, and more compact than the control, which
has to be there too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float

from mechassay.errors import BadFile, BadUsage
from mechassay.interventions.intervene import site_values
from mechassay.interventions.site import sites
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
from mechassay.measurement.metrics.contrast_directions import (
    CONTROL,
    RANK_SHARE,
    SAFETY,
    LayerContrast,
    PromptContrast,
    Values,
    above_control,
    effective_rank,
    entropy,
    explained,
    load_contrasts,
    normalised_entropy,
    shuffle_test,
    stability,
    unit_rows,
)
from mechassay.models.model import Model
from mechassay.prompts.batch import left_padded
from mechassay.prompts.tokenization import encode
from mechassay.results.records import Table
from mechassay.stats.intervals import (
    Interval,
    example_weights,
    percentile_interval,
    student_interval,
)
from mechassay.utils.settings import Within, checked_settings

ID = "M14"
REPAIRED = (
    Condition("p_shuffled", "<", 0.05),
    Condition("stability", ">", 0.8),
    Condition("sve_above_control_high", "<", 0.0),
)
ALPHA = REPAIRED[0].threshold
PAGE_SHARE = 0.8
"""Of the page's prompts in each of its subsets, whose size it does not say."""
N_SHUFFLES, N_RESAMPLES, N_HALVES = 999, 400, 100
GROWTH = 3.0
"""Ratio of the longest to the shortest row from which the page's SVE is said to be of few rows."""
SHIFT = 0.5
"""Length of a simulated contrast over that of what else the texts of a pair differ in: an agreement
of .2."""
TOPIC_SHIFT = 1.0
"""The same of what pairs of a topic have in common, and no two topics."""


def page_subspace(
    first: Values,
    second: Values,
    n_prompts: int,
    n_runs: int,
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "layers d"], float]:
    """The page's directions of some prompts of each class, and their stability."""
    chosen = rng.permutation(len(first))[:n_prompts]
    one, other = first[chosen], second[chosen]
    size = max(1, round(PAGE_SHARE * len(chosen)))
    runs = [
        one[rng.permutation(len(chosen))[:size]].mean(axis=0)
        - other[rng.permutation(len(chosen))[:size]].mean(axis=0)
        for _ in range(n_runs)
    ]
    entropies = entropy(np.stack(runs))
    steady = 1 - float(entropies.std() / entropies.mean()) if entropies.mean() > 0 else math.nan
    return one.mean(axis=0) - other.mean(axis=0), steady


def safety_subspace(
    first: Values,
    second: Values,
    control_first: Float[np.ndarray, "controls layers d"],
    control_second: Float[np.ndarray, "controls layers d"],
    *,
    groups: Sequence[str],
    control_groups: Sequence[str],
    n_prompts: Annotated[int, Within(2)] = 30,
    n_stability_runs: Annotated[int, Within(2)] = 5,
    seed: int = 0,
    flags: Iterable[Flag] = (),
    tables: Iterable[Table] = (),
) -> Measurement:
    """M14 of the values of pairs of prompts at layers.

    Args:
        first, second: of the contrast in question; rows of a pair have the same place.
        control_first, control_second: of another contrast.
        groups, control_groups: the topic of each pair.
        n_prompts, n_stability_runs: of the published definition.
        seed: of all draws.

    Raises:
        BadUsage: fewer than two pairs, or arrays of different shapes.
    """
    for one, other, names in (
        (first, second, groups),
        (control_first, control_second, control_groups),
    ):
        if one.shape != other.shape or len(one) != len(names) or len(one) < 2:
            raise BadUsage(
                f"M14 needs two pairs or more, each with a topic; got values of {one.shape} and"
                f" {other.shape}, and {len(names)} topics."
            )
    rng = np.random.default_rng(seed)
    contrast = LayerContrast(first - second, tuple(groups))
    control = LayerContrast(control_first - control_second, tuple(control_groups))
    rows, steady = page_subspace(first, second, n_prompts, n_stability_runs, rng)
    page, notes = _page(rows, steady, min(n_prompts, len(first)))
    repaired, more = _repaired(contrast, control, rng)
    passing = _shuffled_passes(contrast, rng)
    if passing >= 0.5:
        notes.append(flag("shuffled_labels_pass", share=passing))
    return Measurement.of(
        ID,
        page,
        repaired,
        REPAIRED,
        flags=[*flags, *notes, *more],
        null=null(len(first), len(set(groups))),
        tables=[_layers(contrast, control), *tables],
        words={"percent": 100 * RANK_SHARE},
    )


def _page(
    rows: Float[np.ndarray, "layers d"], steady: float, n: int
) -> tuple[dict[str, Quantity], list[Flag]]:
    notes: list[Flag] = []
    limit = page_metric(ID).conditions[0].threshold
    most = math.log(min(rows.shape))
    if most < limit:
        notes.append(flag("always_compact", n=len(rows), most=most, limit=limit))
    lengths = np.linalg.norm(rows, axis=1)
    if lengths.min() > 0 and lengths.max() > GROWTH * lengths.min():
        notes.append(flag("norm_growth", ratio=lengths.max() / lengths.min()))
    rank = effective_rank(rows)
    return {
        "safety_sve": quantity(float(entropy(rows)), n=n),
        "stability": quantity(steady, n=n),
        "effective_rank": quantity(None if rank is None else float(rank), n=n),
    }, notes


def _repaired(
    contrast: LayerContrast, control: LayerContrast, rng: np.random.Generator
) -> tuple[dict[str, Quantity], list[Flag]]:
    n, notes = len(contrast.differences), list[Flag]()
    rows = contrast.directions
    own, p = shuffle_test(contrast, N_SHUFFLES, rng)
    _, p_control = shuffle_test(control, N_SHUFFLES, rng)
    weights, n_groups = example_weights(contrast.groups, rng, N_RESAMPLES)
    right = contrast.held_out_accuracy().mean(axis=1)
    drawn = weights @ right / weights.sum(axis=1)
    shuffled = contrast.entropies(contrast.shuffles(N_HALVES, rng))
    gap = above_control(contrast, control, N_RESAMPLES, rng)
    # Noise spreads out more than a contrast: what is not there is nothing to be compared with.
    there = p_control < ALPHA
    ends = gap.interval if there else Interval(math.nan, math.nan)
    rank = effective_rank(unit_rows(rows))
    held_out = _explained(contrast, control, rank, rng)
    halves = stability(contrast, N_HALVES, rng)
    if math.isnan(p) or p >= ALPHA:
        notes.append(flag("no_contrast"))
    elif there and not ends.high < 0:
        notes.append(flag("like_the_control"))
    if not there:
        notes.append(flag("no_control"))
    accuracy = float(right.mean()) if n_groups > 1 else math.nan
    accuracy_ends = percentile_interval(drawn, n_groups=n_groups)
    of_all = 2 * halves / (1 + halves) if halves > 0 else math.nan
    sve_control = float(normalised_entropy(control.directions))
    return {
        "agreement": quantity(own, n=n),
        "p_shuffled": quantity(p, n=n),
        "held_out_accuracy": quantity(accuracy, interval=accuracy_ends, n=n),
        "stability": quantity(halves, n=n),
        "stability_of_all": quantity(of_all, n=n),
        "sve": quantity(float(normalised_entropy(rows)), n=n),
        "sve_control": quantity(sve_control, n=len(control.differences)),
        "sve_shuffled": quantity(float(shuffled.mean()), n=n),
        "sve_above_control": quantity(gap.value, interval=ends, n=n),
        "sve_above_control_high": quantity(ends.high, n=n),
        "p_control": quantity(p_control, n=n),
        "effective_rank": quantity(None if rank is None else float(rank), n=n),
        **held_out,
    }, notes


def _explained(
    contrast: LayerContrast,
    control: LayerContrast,
    rank: int | None,
    rng: np.random.Generator,
) -> dict[str, Quantity]:
    """What directions of as many dimensions explain of the directions of other topics."""
    n, width = len(contrast.differences), contrast.differences.shape[2]
    own, shuffled, other = (list[float]() for _ in range(3))
    if rank is not None:
        halvings = zip(
            contrast.halves(N_HALVES, rng), contrast.shuffles(N_HALVES, rng), strict=False
        )
        for (first, second), signs in halvings:
            wanted = contrast.differences[second].mean(axis=0)
            some = contrast.differences[first]
            own.append(explained(some.mean(axis=0), wanted, rank))
            mixed = (signs[first][:, None, None] * some).mean(axis=0)
            shuffled.append(explained(mixed, wanted, rank))
            # As few pairs as the others have: more of them would have less noise.
            for half, _ in control.halves(1, rng):
                directions = control.differences[half].mean(axis=0)
                other.append(explained(directions, wanted, rank))

    def mean(values: Sequence[float]) -> Quantity:
        return quantity(float(np.mean(values)) if values else math.nan, n=n)

    return {
        "explained": mean(own),
        "explained_shuffled": mean(shuffled),
        "explained_control": mean(other),
        "explained_random": mean([] if rank is None else [min(1.0, rank / width)]),
    }


def _shuffled_passes(contrast: LayerContrast, rng: np.random.Generator) -> float:
    """How often the page's SVE of shuffled labels is below its threshold."""
    limit = page_metric(ID).conditions[0].threshold
    signs = contrast.shuffles(N_HALVES, rng)
    entropies = np.concatenate([entropy(rows) for rows in contrast.weighted(signs)])
    return float(np.mean(entropies < limit))


def _layers(contrast: LayerContrast, control: LayerContrast) -> Table:
    """A row a layer: lengths of the directions, and how well they order pairs of other topics."""
    right, other = (
        one_contrast.held_out_accuracy().mean(axis=0) for one_contrast in (contrast, control)
    )
    lengths = np.linalg.norm(contrast.directions, axis=1)
    last = unit_rows(contrast.directions)
    to_last = last @ last[-1]
    rows = (
        {
            "layer": layer,
            "length": float(lengths[layer]),
            "cosine to the last": float(to_last[layer]),
            "held-out accuracy": float(right[layer]),
            "control's accuracy": float(other[layer]),
        }
        for layer in range(len(lengths))
    )
    return Table.of("layers", ("layer",), rows)


# How often the thresholds err


@cache
def null(
    n: int = 60,
    n_groups: int = 10,
    n_simulations: int = N_SIMULATIONS // 4,
    seed: int = 0,
    layers: int = 10,
    width: int = 32,
) -> NullTable:
    """Rates of the conditions for `n` pairs of a model of 10 layers and 32 dimensions."""
    n_groups = min(n, n_groups)
    groups = tuple(str(i % n_groups) for i in range(n))

    def wander(rng: np.random.Generator, k: int, turn: float) -> Values:
        """What a stream carries on: at each layer a share `turn` is new; it grows with depth."""
        rows = np.empty((k, layers, width))
        state = rng.standard_normal((k, width))
        for layer in range(layers):
            fresh = rng.standard_normal((k, width))
            state = math.sqrt(1 - turn**2) * state + turn * fresh
            rows[:, layer] = state * 1.15**layer
        return rows / math.sqrt(width)

    def pairs(
        rng: np.random.Generator, shift: Float[np.ndarray, "_ layers d"]
    ) -> tuple[Float[np.ndarray, "pairs layers d"], Float[np.ndarray, "pairs layers d"]]:
        """Pairs that differ by a shift, in noise and in nothing else."""
        noise = wander(rng, n, 0.4)
        forms = wander(rng, n, 0.4)
        return forms + noise / 2 + shift / 2, forms - noise / 2 - shift / 2

    def draw(
        rng: np.random.Generator, size: int, factor: float, straight: bool, topics: bool = False
    ) -> Drawn:
        names = ("p_shuffled", "stability", "sve_above_control_high")
        drawn = {name: np.full(size, np.nan) for name in names}
        published = {name: np.full(size, np.nan) for name in ("safety_sve", "stability")}
        for row in range(size):
            control_shift = SHIFT * wander(rng, 1, 0.4)
            # The control's directions turned as a whole: equally far from each other.
            shift = control_shift @ np.linalg.qr(rng.standard_normal((width, width)))[0]
            if straight:
                shift = SHIFT * wander(rng, 1, 0.0)
            if topics:
                shift = TOPIC_SHIFT * wander(rng, n_groups, 0.4)[np.arange(n) % n_groups]
            first, second = pairs(rng, factor * shift)
            one, other = (a - b for a, b in ((first, second), pairs(rng, control_shift)))
            contrast, control = LayerContrast(one, groups), LayerContrast(other, groups)
            rows, steady = page_subspace(first, second, 30, 5, rng)
            published["safety_sve"][row] = float(entropy(rows))
            published["stability"][row] = steady
            drawn["p_shuffled"][row] = shuffle_test(contrast, 199, rng)[1]
            drawn["stability"][row] = stability(contrast, 10, rng)
            gap = above_control(contrast, control, 100, rng)
            if shuffle_test(control, 199, rng)[1] < ALPHA:
                drawn["sve_above_control_high"][row] = gap.interval.high
        return {"page": published, "repaired": drawn}

    scenarios = (
        Scenario("labels that mean nothing", True, lambda rng, size: draw(rng, size, 0.0, False)),
        Scenario(
            "a direction of its own for each topic",
            True,
            lambda rng, size: draw(rng, size, 1.0, False, topics=True),
        ),
        Scenario(
            "a contrast twice as large as the control, whose directions turn as its do",
            True,
            lambda rng, size: draw(rng, size, 2.0, False),
        ),
        Scenario(
            "a contrast of one direction at all layers",
            False,
            lambda rng, size: draw(rng, size, 1.0, True),
        ),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


@dataclass(frozen=True)
@checked_settings
class SafetySubspace(Gauge):
    """Do the directions that tell harmful from harmless requests span a compact, stable space?

    The values are the streams behind each block, at the last token of the requests. A pair's
    texts end with the same token, so that what they differ in at the last token has come there
    through the model. The page leaves prompts and position open; both of its classes have the
    prompts of the first contrast here.

    Attributes:
        n_prompts: of each class, of the published definition.
        n_stability_runs: subsets of them.
        file: other contrasts, see `load_contrasts`; "" has those of the package.
    """

    n_prompts: Annotated[int, Within(2)] = 30
    n_stability_runs: Annotated[int, Within(2)] = 5
    file: str = ""

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = 60

    def measure(self, inputs: GaugeInputs) -> Measurement:
        """Return both variants on the values of the contrasts' texts.

        Raises:
            BadFile: a file without the two contrasts.
        """
        contrasts = load_contrasts(self.file or None)
        lacking = [name for name in (SAFETY, CONTROL) if name not in contrasts]
        if lacking:
            raise BadFile(
                f"{self.file}: M14 needs the contrasts {SAFETY} and {CONTROL}; it has"
                f" {', '.join(contrasts) or 'none'}."
            )
        safety, control = contrasts[SAFETY], contrasts[CONTROL]
        flags: list[Flag] = []
        rows: list[dict[str, Any]] = []
        values: list[Float[np.ndarray, "n layers d"]] = []
        texts = (safety.first, safety.second, control.first, control.second)
        with inputs.progress.track("M14", sum(map(len, texts))) as advance:
            for contrast in (safety, control):
                tokens = [
                    token_ids(inputs.model, side) for side in (contrast.first, contrast.second)
                ]
                row, lengths = _lengths(contrast, *tokens)
                rows.append(row)
                flags += lengths
                for ids in tokens:
                    values.append(last_token_values(inputs.model, ids))
                    advance(len(ids))
        return safety_subspace(
            *values,
            groups=safety.topics,
            control_groups=control.topics,
            n_prompts=self.n_prompts,
            n_stability_runs=self.n_stability_runs,
            seed=inputs.seed,
            flags=flags,
            tables=[Table.of("contrasts", ("contrast",), rows)],
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` pairs, of ten topics."""
        return null(n, 10, n_simulations, seed)


def token_ids(model: Model, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of texts, behind those that the model puts before every prompt.

    Raises:
        BadUsage: the model has no tokenizer.
    """
    tokenizer: Any = model.tokenizer
    if tokenizer is None:
        raise BadUsage(f"M14 reads questions, for which {model.name} has no tokenizer.")
    return [[*model.prepend, *ids] for ids in encode(tokenizer, texts)]


def last_token_values(model: Model, tokens: Sequence[list[int]]) -> Float[np.ndarray, "n layers d"]:
    """The stream behind each block at the last token, in fp64."""
    width = max(map(len, tokens))
    table = left_padded(tokens, width, 0)
    mask = torch.arange(width) >= width - torch.tensor([len(row) for row in tokens])[:, None]
    rows = torch.arange(len(tokens), device=model.device)
    last = torch.full_like(rows, width - 1)
    values = site_values(model, table, mask, [(site, rows, last) for site in sites(model)])
    return torch.stack(values, dim=1).double().cpu().numpy()


def _lengths(
    contrast: PromptContrast, first: list[list[int]], second: list[list[int]]
) -> tuple[dict[str, Any], list[Flag]]:
    """A row of the table of contrasts, and what may tell their classes apart beside the topic."""
    more = np.array([len(a) - len(b) for a, b in zip(first, second, strict=True)], dtype=float)
    ends = student_interval(more)
    flags: list[Flag] = []
    if not ends.contains(0.0):
        values = {"contrast": contrast.name, "first": contrast.classes[0], "more": more.mean()}
        flags.append(flag("lengths_differ", **values))
    apart = sum(a[-1] != b[-1] for a, b in zip(first, second, strict=True))
    if apart:
        flags.append(flag("last_tokens_differ", contrast=contrast.name, n=apart))
    return {
        "contrast": contrast.name,
        "classes": " against ".join(contrast.classes),
        "pairs": len(contrast),
        "topics": len(set(contrast.topics)),
        "tokens more": float(more.mean()),
        "low": ends.low,
        "high": ends.high,
        "of equal length": float(np.mean(more == 0)),
    }, flags
