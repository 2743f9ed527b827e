"""Squared errors of a logit difference where they are known: a model with two built-in signals.

Heads and the linear logit difference of a model in which both are built in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.planted import HALF, POSITION, TOKEN, planted_examples, planted_ioi
from mechassay.causal_models.ioi import FLIPS, ioi_model
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.features import DAS, DBM, Fit, FullVector, RandomDirections
from mechassay.features.probes import random_directions
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import load_site
from mechassay.interventions.sweep import logit_differences
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.prompts.pairs import Example
from mechassay.utils.display import SILENT
from mechassay.variables import (
    accuracy,
    expected_labels,
    inhibition_heads,
    ioi_signals,
    linear_difference,
    squared_error,
)
from mechassay.variables.logit_difference import S2_FLIP, best_constant

HEADS = [POSITION, TOKEN]
S1, S2, BOTH = FLIPS


@pytest.fixture(scope="module")
def model() -> Model:
    return planted_ioi()


def pairs(model: Model, variable: str | None, n: int = 20, seed: int = 0) -> InterchangeBatch:
    causal = ioi_model(0.0, HALF, HALF)
    labels = expected_labels(causal, variable, planted_examples(n, seed))
    return labels.tokenized(model, equal_lengths=True)[1]


def full(model: Model, sites: list[str]) -> Fit:
    some = pairs(model, "subject_token", 2)
    return FullVector().fit(model, some, sites, together=True, progress=SILENT)


def test_errors_of_the_controls_by_hand(model: Model) -> None:
    """Expected after the flips: position 0, 0, 2 H; the base run has 2 H, both heads 0, -2 H, 0."""
    batch, train = pairs(model, "subject_position"), pairs(model, "subject_position", 9, seed=1)
    found = squared_error(full(model, HEADS), batch, train=train, progress=SILENT)
    four = 4 * HALF**2
    nothing = {S1: four, S2: four, BOTH: 0.0, "all": 2 * four / 3}
    whole = {S1: 0.0, S2: four, BOTH: four, "all": 2 * four / 3}
    constant = {S1: four / 9, S2: four / 9, BOTH: 4 * four / 9, "all": 2 * four / 9}
    for kind in found.parts:
        assert found.estimate("no intervention", kind).value == pytest.approx(
            nothing[kind], abs=0.05
        )
        assert found.estimate("best constant", kind).value == pytest.approx(
            constant[kind], abs=0.05
        )
        for of in ("features", "full vector", "random"):
            # As many random directions as the whole vector has are the whole vector.
            assert found.estimate(of, kind).value == pytest.approx(whole[kind], abs=0.05)
    assert best_constant(model, train) == pytest.approx(2 * HALF / 3)
    columns = found.columns()
    assert len(columns["mse"]) == 4 * 5 and columns["n"][0] == 60 and columns["n"][-1] == 20
    row = columns["of"].index("no intervention")
    assert columns["measured"][row] == pytest.approx(2 * HALF, abs=0.01)
    assert columns["expected"][row] == pytest.approx(2 * HALF / 3)
    assert columns["features"][0] == 32
    assert "best constant" in repr(found).replace("_", " ") and found.plot() is not None
    assert "Squared error" in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(UnknownName, match="kind"):
        found.estimate("features", "s3")
    with pytest.raises(UnknownName, match="Did you mean 'full vector'"):
        found.errors("full vectors")


@pytest.mark.parametrize(
    ("variable", "home", "other"),
    [("subject_position", POSITION, TOKEN), ("subject_token", TOKEN, POSITION)],
)
def test_the_head_that_carries_a_variable_has_no_error(
    model: Model, variable: str, home: str, other: str
) -> None:
    batch = pairs(model, variable)
    at_home = squared_error(full(model, [home]), batch, train=batch, progress=SILENT)
    assert at_home.estimate().value < 1e-5 and at_home.estimate().high < 1e-5
    elsewhere = squared_error(full(model, [other]), batch, train=batch, progress=SILENT)
    assert elsewhere.estimate().value > 2 * elsewhere.estimate("best constant").value
    nowhere = squared_error(full(model, ["heads.1.2@all"]), batch, train=batch, progress=SILENT)
    expected = nowhere.estimate("no intervention").value
    assert nowhere.estimate().value == pytest.approx(expected, abs=1e-3)


def test_a_hypothesis_of_nothing_is_right_without_an_intervention(model: Model) -> None:
    batch = pairs(model, None)
    found = squared_error(full(model, [POSITION]), batch, train=batch, progress=SILENT)
    assert found.estimate("no intervention").value < 1e-4
    assert found.estimate("best constant").value == pytest.approx(0, abs=1e-9)
    assert found.estimate("features").value > 1


@pytest.mark.few(2)
@pytest.mark.parametrize("variable", ["subject_position", "subject_token"])
@pytest.mark.parametrize(
    "finder",
    [
        DAS(k=8, lr=0.05, steps=80, batch_size=120, loss="squared-error"),
        DBM(lr=0.05, steps=80, batch_size=120, loss="squared-error"),
    ],
    ids=lambda each: each.name,
)
def test_heads_that_are_trained_together_find_their_variable(
    model: Model, finder: DAS | DBM, variable: str
) -> None:
    train, test = pairs(model, variable, 40), pairs(model, variable, 20, seed=1)
    fit = finder.fit(model, train, HEADS, together=True, progress=SILENT)
    found = squared_error(fit, test, train=train, progress=SILENT)
    assert found.estimate().value < 0.05
    for control in ("no intervention", "best constant", "full vector", "random"):
        assert found.estimate(control).low > 5
    if finder.name == "dbm":
        sizes = dict(zip(HEADS, found.n_features, strict=True))
        home, other = HEADS if variable == "subject_position" else HEADS[::-1]
        assert sizes[home] and sizes[other] == 0


@pytest.mark.parametrize("k", [1, 8])
def test_random_directions_carry_their_share(model: Model, k: int) -> None:
    """D = 10 tanh(x), and an S1 flip of the position takes 1 from x: k of 16 directions k/16 of it
    on average, with the variance of a Beta(k/2, (16 - k)/2).
    """
    site, draws = load_site(POSITION), 200
    batch = pairs(model, "subject_position", 2)
    batch = batch.select([row for row, kind in enumerate(batch.kinds) if kind == S1])
    plans = [
        {site: Interchange(features=random_directions(site, 16, k, seed))} for seed in range(draws)
    ]
    after = logit_differences(model, batch, plans, progress=SILENT).after
    share = 1 - np.arctanh(after / 10)
    a, b = k / 2, (16 - k) / 2
    error = np.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)) / draws)
    assert share[0].mean() == pytest.approx(k / 16, abs=4 * error)


def test_what_cannot_be_scored(model: Model, tmp_path: Path) -> None:
    batch = pairs(model, "subject_token", 3)
    apart = FullVector().fit(model, batch, HEADS, progress=SILENT)
    with pytest.raises(BadUsage, match="the 2 sites of this fit were found each alone"):
        squared_error(apart, batch, train=batch)
    joint = full(model, HEADS)
    with pytest.raises(BadUsage, match="the sites of this fit are meant together"):
        accuracy(joint, batch)
    read = Fit.load(joint.save(tmp_path / "fit.safetensors"))
    with pytest.raises(BadUsage, match="squared_error needs model="):
        squared_error(read, batch, train=batch)
    again = squared_error(read, batch, train=batch, model=model, progress=SILENT)
    direct = squared_error(joint, batch, train=batch, progress=SILENT)
    np.testing.assert_array_equal(again.errors(), direct.errors())
    for lacking in (
        replace(batch, values=None),
        replace(batch, values=torch.full((len(batch),), float("nan"), dtype=torch.float64)),
    ):
        with pytest.raises(BadPairs, match="squared_error needs what is expected"):
            squared_error(joint, lacking, train=batch)
        with pytest.raises(BadPairs, match="The best constant needs what is expected"):
            squared_error(joint, batch, train=lacking)


def test_a_site_without_features_is_not_changed(model: Model) -> None:
    batch = pairs(model, "subject_position", 4)
    one = RandomDirections(k=1).fit(model, batch, HEADS, together=True, progress=SILENT)
    none = replace(one, chosen={load_site(TOKEN): torch.tensor([False])})
    found = squared_error(none, batch, train=batch, progress=SILENT)
    assert found.n_features == (1, 0)
    alone = RandomDirections(k=1).fit(model, batch, POSITION, together=True, progress=SILENT)
    expected = squared_error(alone, batch, train=batch, progress=SILENT)
    for of in ("features", "random"):
        np.testing.assert_allclose(found.errors(of), expected.errors(of), atol=1e-4)


def test_heads_of_the_circuit_have_the_effects_that_were_built_in(model: Model) -> None:
    found = inhibition_heads(model, planted_examples(12), 5, progress=SILENT)
    assert len(found) == 12 and len(found.sites) == 12
    circuit = ("heads.0.2@all", "heads.0.3@all", POSITION, TOKEN, "heads.2.2@all")
    assert tuple(map(str, found.chosen)) == circuit
    # A head with a signal turns one of two; the last writes the name itself.
    expected = dict.fromkeys(circuit, -2 * HALF) | {"heads.2.2@all": -4 * HALF}
    for site in found.sites:
        value = found.estimate(site).value
        assert value == pytest.approx(expected.get(str(site), 0.0), abs=0.01), site
        assert found.estimate(site).low <= value <= found.estimate(site).high
    np.testing.assert_allclose(found.base, 2 * HALF, atol=0.01)
    columns = found.columns()
    assert columns["effect"] == sorted(columns["effect"]) and sum(columns["chosen"]) == 5
    assert columns["site"][0] == "heads.2.2@all" == f"heads.{columns['layer'][0]}.2@all"
    assert len(found.to_pandas()) == 12 and found.plot() is not None
    assert "2.2@all" in repr(found) and "2.2@all" in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert replace(found, n_chosen=1).chosen == found.chosen[-1:]
    with pytest.raises(UnknownName, match="Did you mean"):
        found.estimate("heads.2.7@all")


def test_effects_are_those_of_runs_of_each_head(model: Model) -> None:
    drawn = planted_examples(5, seed=1)
    found = inhibition_heads(model, drawn, 1, layers=[1], progress=SILENT)
    rows = [row for row in ioi_signals(drawn, (S2_FLIP,)) if row.kind == S2_FLIP]
    for number, site in enumerate(found.sites):
        out = intervene(model, rows, {site: Interchange()})
        expected = (out.other_log_probs - out.log_probs).numpy()
        np.testing.assert_allclose(found.after[:, number], expected, atol=1e-4)
    assert [site.layer for site in found.sites] == [1] * 4


@pytest.mark.parametrize(
    ("heads", "position", "token"),
    [
        ([POSITION, TOKEN], HALF, HALF),
        ([POSITION], HALF, 0.0),
        ([TOKEN], 0.0, HALF),
        (["heads.2.2@all"], 0.0, 0.0),
        (["heads.1.2@all"], 0.0, 0.0),
    ],
)
def test_the_coefficients_that_were_built_in_are_recovered(
    model: Model, heads: list[str], position: float, token: float
) -> None:
    fit = linear_difference(model, planted_examples(10), heads, progress=SILENT)
    assert fit.n == 40 and fit.source["sites"] == heads and fit.source["model"] == model.name
    if heads == ["heads.2.2@all"]:
        # It names the source's other person, who is the base's where the token is the same.
        means = [fit.conditions[name]["mean"] for name in ("+1 +1", "+1 -1", "-1 +1", "-1 -1")]
        assert means == pytest.approx([2 * HALF, -2 * HALF, 2 * HALF, -2 * HALF], abs=0.01)
        assert (fit.position, fit.token) == pytest.approx((0.0, 2 * HALF), abs=0.01)
        return
    assert (fit.position, fit.token) == pytest.approx((position, token), abs=0.01)
    assert fit.bias == pytest.approx(2 * HALF - position - token, abs=0.01)
    if position or token:
        assert fit.r2 > 0.99999 and set(fit.conditions) == {"+1 +1", "+1 -1", "-1 +1", "-1 -1"}


def test_prompts_of_unequal_lengths_are_counted(model: Model) -> None:
    drawn = planted_examples(4)
    flipped = drawn[1].counterfactuals[S2_FLIP]
    longer = replace(
        flipped,
        text=f"and {flipped.text}",
        spans={k: (a + 4, b + 4) for k, (a, b) in flipped.spans.items()},
    )
    drawn[1] = replace(drawn[1], counterfactuals={**drawn[1].counterfactuals, S2_FLIP: longer})
    found = inhibition_heads(model, drawn, 2, layers=1, progress=SILENT)
    assert len(found) == 3 and found.dropped == {"prompts of unequal lengths": 1}
    fit = linear_difference(model, drawn, found.chosen, progress=SILENT)
    assert fit.n == 15 and fit.source["dropped"] == {"prompts of unequal lengths": 1}
    only: list[Example] = [drawn[1]]
    with pytest.raises(BadPairs, match="dropped: 1 prompts of unequal lengths"):
        inhibition_heads(model, only, progress=SILENT)


def test_as_many_heads_as_there_are(model: Model) -> None:
    for n in (0, 13):
        with pytest.raises(BadUsage, match=f"Of 12 heads 1 to 12 can be taken; got {n}"):
            inhibition_heads(model, planted_examples(2), n)
