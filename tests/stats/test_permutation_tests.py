"""How much worse a label is: by hand, against an obvious version, and how often intervals cover.

Labels are tested within strata: against all permutations, by hand, and under selection.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.tiny_models import with_words
from mechassay.adversarial.pools import Pool, draw_pools, strata_of
from mechassay.errors import BadUsage
from mechassay.models.model import Model, make_model
from mechassay.stats.distribution import Field
from mechassay.stats.permutation_tests import (
    Exceedance,
    HighPercentile,
    LabelTest,
    label_effects,
    worse_labels,
)
from mechassay.tasks.ioi import IOI


def slow(
    rows: np.ndarray, labels: np.ndarray, strata: np.ndarray, label: str
) -> tuple[float, float]:
    """D and its variance, input by input and column by column."""
    mean, m = rows.mean(axis=1), rows.shape[1]
    own = [
        i
        for i in range(len(rows))
        if labels[i] == label and ((strata == strata[i]) & (labels != label)).any()
    ]
    others = {
        s: np.flatnonzero((strata == s) & (labels != label)) for s in {strata[i] for i in own}
    }
    apart = np.array([mean[i] - mean[others[strata[i]]].mean() for i in own])
    squares = sum(((mean[rest] - mean[rest].mean()) ** 2).sum() for rest in others.values())
    pooled = squares / sum(len(rest) - 1 for rest in others.values())
    of_rest = 0.0
    for s, rest in others.items():
        share = sum(strata[i] == s for i in own) / len(own)
        of_rest += share**2 * (mean[rest].var(ddof=1) if len(rest) > 1 else pooled) / len(rest)
    columns = sum(
        (
            np.mean(
                [
                    rows[i, j]
                    - mean[i]
                    - (rows[others[strata[i]], j] - mean[others[strata[i]]]).mean()
                    for i in own
                ]
            )
            / m
        )
        ** 2
        for j in range(m)
    )
    return apart.mean(), apart.var(ddof=1) / len(own) + of_rest + columns * m / (m - 1)


def test_by_hand() -> None:
    """Two strata: in the first a is 3 above the mean of b and c, in the second 1;
    the stratum of a alone says nothing.
    """
    values = np.array([5.0, 1.0, 3.0, 11.0, 10.0, 99.0])
    field = Field("f", list("abcaba"), strata=list("xxxyyz"))
    found = label_effects(values, field)
    assert found.labels == ("a", "b", "c")
    assert found.difference == pytest.approx([2.0, (1.0 - 4.0 - 1.0) / 2, 0.0])
    assert np.isnan(found.low).all() and np.isnan(found.high).all()  # two inputs are too few


def test_against_an_obvious_version() -> None:
    rng = np.random.default_rng(0)
    rows = rng.exponential(size=(60, 7)) + rng.normal(size=(60, 1))
    labels, strata = rng.choice(list("abc"), 60), rng.choice(list("uvw"), 60)
    strata[:3], labels[:3] = "s", list("aab")  # one other input alone
    strata[3], labels[3] = "lonely", "c"
    for values, side in ((rows, "clean"), (rows.T, "corrupted")):
        found = label_effects(values, Field("f", labels.tolist(), side, strata.tolist()))  # pyright: ignore[reportArgumentType]
        for place, label in enumerate("abc"):
            wanted, variance = slow(rows, labels, strata, label)
            assert found.difference[place] == pytest.approx(wanted)
            # Six degrees of freedom: the other side has seven inputs.
            assert found.high[place] - wanted == pytest.approx(2.446912 * math.sqrt(variance))
            assert wanted - found.low[place] == pytest.approx(found.high[place] - wanted)


def test_the_strata_are_not_in_the_difference() -> None:
    """Adding a number to all inputs of a stratum changes nothing; without strata it does."""
    rng = np.random.default_rng(1)
    values, labels = rng.normal(size=(40, 6)), rng.choice(list("ab"), 40).tolist()
    strata = ["x" if label == "a" and place % 3 else "y" for place, label in enumerate(labels)]
    strata[0], strata[1] = "x", "x"
    shifted = values + 100 * (np.array(strata) == "x")[:, None]
    one, two = (
        label_effects(each, Field("f", labels, strata=strata)) for each in (values, shifted)
    )
    assert two.difference == pytest.approx(one.difference) and two.high == pytest.approx(one.high)
    assert label_effects(shifted, Field("f", labels)).difference[0] > 20


@pytest.mark.parametrize("column_effects", [0.0, 2.0])
def test_intervals_cover_the_difference(column_effects: float) -> None:
    """Label a is worse by .5 in every stratum, and on some columns more:
    what an interval says 95 % of must hold for 93 %.
    """
    rng, repeats, hits = np.random.default_rng(2), 200, 0
    labels, strata = np.repeat(list("aabbcc"), 8), np.tile(list("uv"), 24)
    for _ in range(repeats):
        values = (
            rng.normal(size=(48, 1))
            + rng.normal(size=(1, 15))
            + rng.normal(size=(48, 15))
            + 3.0 * (strata == "u")[:, None]
        )
        values += (labels == "a")[:, None] * (0.5 + column_effects * rng.normal(size=(1, 15)))
        found = label_effects(values, Field("f", labels.tolist(), strata=strata.tolist()))
        hits += found.low[0] <= 0.5 <= found.high[0]
    assert hits / repeats >= 0.93


def test_what_is_undefined() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(12, 5))
    values[:2] = np.nan
    values[4, :3] = np.nan
    alone = label_effects(values, Field("f", list("aabbbbbccccc"), strata=list("xxyyyyyzzzzz")))
    assert np.isnan(alone.difference).all() and np.isnan(alone.low).all()
    found = label_effects(values, Field("f", list("aabbbbbccccc")))
    assert (
        math.isnan(found.difference[0])
        and np.isfinite(found.difference[1:]).all()
        and np.isfinite(found.low[1:]).all()
    )
    assert found.difference[1] == pytest.approx(
        np.nanmean(values[2:7], axis=1).mean() - values[7:].mean(axis=1).mean()
    )
    gone = label_effects(values * np.nan, Field("f", list("aabbbbbccccc")))
    assert np.isnan(gone.difference).all() and gone.labels == ("a", "b", "c")
    with pytest.raises(BadUsage, match="at least 2"):
        label_effects(values, Field("f", ["a"] * 12))
    with pytest.raises(BadUsage, match="12 labels and 2 strata"):
        label_effects(values, Field("f", list("aabbbbbccccc"), strata=list("xy")))
    with pytest.raises(BadUsage, match="confidence"):
        label_effects(values, Field("f", list("aabbbbbccccc")), level=1.5)


@pytest.fixture(scope="module")
def reader() -> Model:
    """A model that reads IOI."""
    return make_model(*with_words())


@pytest.fixture(scope="module")
def pool(reader: Model) -> Pool:
    """Prompts of one number of tokens, so that long words stand in short templates."""
    return draw_pools(reader, IOI(), 400, 1)[0]


def by_hand(
    values: np.ndarray, labels: np.ndarray, strata: np.ndarray, label: str, p: float
) -> tuple[float, float]:
    """The percentile of the label's values, and of the others' weighted by stratum,
    as the smallest value with that share below.
    """
    used = [s for s in set(strata[labels == label]) if len(set(labels[strata == s])) > 1]
    own = np.sort(values[(labels == label) & np.isin(strata, used)].ravel())
    others = [
        (
            values[(strata == s) & (labels != label)].ravel(),
            int(((strata == s) & (labels == label)).sum()),
        )
        for s in used
    ]
    flat = np.concatenate([each for each, _ in others])
    weight = np.concatenate([np.full(len(each), n / len(each)) for each, n in others])
    order = flat.argsort()
    reached = weight[order].cumsum() / weight.sum()
    return own[math.ceil(p * len(own)) - 1], flat[order][np.searchsorted(reached, p - 1e-12)]


@pytest.mark.parametrize("columns", [1, 9])
def test_the_rest_has_the_strata_of_the_label(columns: int) -> None:
    rng = np.random.default_rng(0)
    labels, strata = rng.choice(list("abc"), 900), rng.choice(list("uvwxyz"), 900)
    strata[:2], labels[:2] = "s", "a"
    values = rng.exponential(size=(900, columns)) + 3 * (strata == "u")[:, None]
    field = Field("f", labels.tolist(), strata=strata.tolist())
    high = worse_labels(values, field, HighPercentile(0.9), rng, 5)
    share = worse_labels(values, field, Exceedance(2.0), rng, 5)
    assert (high.n_strata, high.n_used) == (7, 6)
    assert (high.inputs - high.compared).tolist() == [2, 0, 0]
    for place, label in enumerate("abc"):
        own, rest = by_hand(values, labels, strata, label, 0.9)
        # Interpolated between pooled values a few percent of the tail apart.
        assert high.value[place] == pytest.approx(own, abs=0.12) and high.rest[
            place
        ] == pytest.approx(rest, abs=0.12)
        others = [(values[(strata == s) & (labels != label)] > 2).mean() for s in "uvwxyz"]
        sizes = [((strata == s) & (labels == label)).sum() for s in "uvwxyz"]
        assert share.rest[place] == pytest.approx(np.average(others, weights=sizes))
        assert share.value[place] == pytest.approx(
            (values[(labels == label) & (strata != "s")] > 2).mean()
        )


def test_drawn_tables_are_permutations_within_strata() -> None:
    """One value an input, once as pairs, once as a grid whose second column is undefined:
    the same test by two ways.
    """
    rng = np.random.default_rng(1)
    labels, strata = rng.choice(list("abc"), 60).tolist(), rng.choice(list("uv"), 60).tolist()
    values = rng.normal(size=60)
    values[:3] = np.nan
    field = Field("f", labels, strata=strata)
    drawn = worse_labels(values, field, Exceedance(0.5), np.random.default_rng(2), 4000)
    permuted = worse_labels(
        np.stack([values, np.full(60, np.nan)], axis=1),
        field,
        Exceedance(0.5),
        np.random.default_rng(3),
        4000,
    )
    assert (
        drawn.value.tolist() == permuted.value.tolist()
        and drawn.rest.tolist() == permuted.rest.tolist()
    )
    assert drawn.p == pytest.approx(permuted.p, abs=4 * math.sqrt(0.5 / 4000))
    assert drawn.adjusted == pytest.approx(permuted.adjusted, abs=4 * math.sqrt(0.5 / 4000))


def test_few_inputs_against_all_permutations() -> None:
    """Two strata of two inputs each: four equally likely ways to place the labels."""
    values = np.array([[3.0], [1.0], [2.0], [0.0]]).repeat(2, axis=1)
    found = worse_labels(
        values,
        Field("f", list("abab"), strata=list("xxyy")),
        Exceedance(0.5),
        np.random.default_rng(4),
        4000,
    )
    # Of stratum x both inputs exceed; of y that of a does: in half of the permutations.
    assert (
        found.value.tolist() == [1.0, 0.5]
        and found.p[0] == pytest.approx(0.5, abs=0.05)
        and found.p[1] == 1.0
    )


def test_strata_of_one_label_say_nothing() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(8, 4))
    tied = worse_labels(
        values, Field("f", list("aaaabbbb"), strata=list("xxxxyyyy")), HighPercentile(0.9), rng, 20
    )
    assert (
        np.isnan(tied.value).all()
        and tied.adjusted.tolist() == [1, 1]
        and tied.compared.tolist() == [0, 0]
    )
    assert (tied.n_strata, tied.n_used) == (2, 0) and tied.worse(alpha=1.0) == ()
    one = worse_labels(
        values[:, 0],
        Field("f", list("aaaabbbc"), strata=list("xxxxyyyy")),
        HighPercentile(0.9),
        rng,
        20,
    )
    assert one.compared.tolist() == [0, 3, 1] and math.isnan(one.value[0]) and one.adjusted[0] == 1
    with pytest.raises(BadUsage, match="8 labels and 3 strata"):
        worse_labels(
            values, Field("f", list("aaaabbbb"), strata=list("xyz")), HighPercentile(0.9), rng, 20
        )


def test_a_label_is_worse_by_the_least_effect_or_not_at_all() -> None:
    rng = np.random.default_rng(6)
    values = rng.exponential(size=(60, 30)).clip(max=1) + 0.01 * (np.arange(60) < 20)[:, None]
    found = worse_labels(
        values,
        Field("f", ["a" if row < 20 else "b" for row in range(60)]),
        HighPercentile(0.99),
        rng,
        200,
    )
    assert (
        found.adjusted[0] < 0.01
        and found.worse() == ("a",) == found.worse(least=0.005)
        and found.worse(least=0.02) == ()
    )


def errors(pool: Pool, reader: Model, name: str, *, within: bool, repeats: int = 60) -> float:
    """How often any label of a field is called worse,
    where the number of tokens of the template's text alone matters.
    """
    assert reader.tokenizer is not None
    labels = pool.fields[name]
    long = np.unique(strata_of(pool, ["template"], reader.tokenizer), return_inverse=True)[1]
    field = Field(
        name, labels, strata=strata_of(pool, [name], reader.tokenizer) if within else None
    )

    def test(seed: int) -> LabelTest:
        rng = np.random.default_rng(seed)
        effect = 2.0 * rng.normal(size=3)[long]
        values = np.exp(
            effect[:, None]
            + 0.3 * rng.normal(size=(len(labels), 1))
            + 0.3 * rng.normal(size=(len(labels), 6))
        )
        return worse_labels(values, field, HighPercentile(0.99), rng, 99)

    return float(np.mean([bool(test(seed).worse()) for seed in range(repeats)]))


@pytest.mark.parametrize("name", ["place", pytest.param("object", marks=pytest.mark.slow)])
def test_words_are_not_worse_because_their_templates_are(
    pool: Pool, reader: Model, name: str
) -> None:
    assert errors(pool, reader, name, within=True) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60)


def test_without_strata_they_would_be() -> None:
    """Most inputs with label a have the worse template, those with label b the other one."""
    labels, strata = list("aaaaabbbbb") * 8, list("uuuuvuvvvv") * 8

    def found(seed: int, within: list[str] | None) -> bool:
        rng = np.random.default_rng(seed)
        values = np.exp(
            rng.normal(size=(80, 8))
            + rng.normal(size=(80, 1))
            + 2.0 * (np.array(strata) == "u")[:, None]
        )
        return bool(
            worse_labels(
                values, Field("f", labels, strata=within), HighPercentile(0.9), rng, 99
            ).worse()
        )

    assert np.mean([found(seed, None) for seed in range(60)]) > 0.5
    assert np.mean([found(seed, strata) for seed in range(200)]) <= 0.05 + 3 * math.sqrt(
        0.05 * 0.95 / 200
    )


def test_a_label_alone_in_its_strata_has_no_difference() -> None:
    """It is undefined, without a warning of a division by its count of 0."""
    values = np.random.default_rng(5).normal(size=(8, 4))
    effects = label_effects(values, Field("f", list("aaaabbcc"), strata=list("xxxxyyyy")))
    assert np.isnan(effects.difference).tolist() == [True, False, False]
    assert math.isnan(effects.low[0]) and math.isnan(effects.high[0])
