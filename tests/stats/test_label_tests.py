"""Labels are tested within strata: against all permutations, by hand, and under selection."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.adversarial.fields import strata_of
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.errors import BadUsage
from mechassay.models.model import Model, make_model
from mechassay.stats.groups import Field
from mechassay.stats.label_tests import Exceedance, HighPercentile, LabelTest, worse_labels
from mechassay.tasks.ioi import IOI
from mechassay.testing.tiny import with_words


@pytest.fixture(scope="module")
def reader() -> Model:
    """A model that reads IOI."""
    return make_model(*with_words())


@pytest.fixture(scope="module")
def pool(reader: Model) -> Pool:
    """Prompts of one number of tokens, so that long words stand in short templates."""
    return draw_pools(IOI(), reader, 400, 1)[0]


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
