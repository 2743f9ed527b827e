"""Heads and the linear logit difference of a model in which both are built in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Example
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Interchange
from mechassay.models.model import Model
from mechassay.progress import SILENT
from mechassay.variables import inhibition_heads, ioi_signals, linear_difference
from mechassay.variables.head_effects import S2_FLIP
from planted_ioi import HALF, POSITION, TOKEN, planted_examples, planted_ioi


@pytest.fixture(scope="module")
def model() -> Model:
    return planted_ioi()


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
