"""The causal model of IOI: signals against the text, and the fit of its coefficients."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from mechassay.errors import BadFile, BadPairs, NonFinite
from mechassay.prompts.pairs import Example, Prompt
from mechassay.tasks import load_task
from mechassay.variables import (
    LogitDifference,
    expected_labels,
    fit_logit_difference,
    ioi_signals,
    load_causal_model,
)

BIAS, POSITION, TOKEN = 0.069, 2.018, 0.687
S1, S2, BOTH = (
    "s1_io_flip_counterfactual",
    "s2_io_flip_counterfactual",
    "s1_ioi_flip_s2_ioi_flip_counterfactual",
)


def examples(n: int = 12) -> list[Example]:
    return load_task("ioi").examples("train", limit=n)


def mentions(prompt: Prompt, people: set[str]) -> list[str]:
    """The three mentions of people, in their order in the text."""
    return [word for word in re.findall(r"\w+", prompt.text) if word in people]


def slow_difference(base: Prompt, source: Prompt, variable: str) -> float | None:
    """By the order of names in the texts; None where it is not defined."""
    people = {p.part(name) for p in (base, source) for name in ("name_A", "name_B", "name_C")}
    ours, theirs = mentions(base, people), mentions(source, people)
    if theirs[2] not in theirs[:2]:
        return None
    if variable == "subject_token":
        if theirs[2] not in ours:
            return None
        return BIAS + POSITION + (TOKEN if theirs[2] == ours[2] else -TOKEN)
    first = ours[0] == ours[2]
    same = (theirs[0] == theirs[2]) == first
    return BIAS + (POSITION if same else -POSITION) + TOKEN


@pytest.mark.parametrize("variable", ["subject_token", "subject_position"])
def test_expected_differences_are_those_of_the_slow_implementation(variable: str) -> None:
    drawn = examples()
    found = expected_labels(load_causal_model("ioi"), variable, drawn)
    values = dict(zip([pair.id for pair in found], found.values.tolist(), strict=True))
    n_decided = 0
    for example in drawn:
        for kind, source in example.counterfactuals.items():
            expected = slow_difference(example.prompt, source, variable)
            assert values.get(f"{example.id}/{kind}") == pytest.approx(expected, abs=1e-12)
            n_decided += expected is not None
    assert len(found) == n_decided
    np.testing.assert_allclose(found.base_values, 2.774, atol=1e-12)
    for pair in found:
        assert pair.base_label == f" {pair.tags['indirect_object']}"
        assert pair.label == f" {pair.tags['subject']}"


def test_reasons_are_counted() -> None:
    drawn = examples(5)
    found = expected_labels(load_causal_model("ioi"), "subject_token", drawn)
    assert found.dropped == {
        "a prompt without a subject": 5,
        "a subject who is not in the base": 20,
    }
    with pytest.raises(BadPairs, match="5 a prompt without a subject"):
        expected_labels(load_causal_model("ioi"), "subject_position", drawn, ["abc_counterfactual"])


def test_figure_19_and_the_three_flips() -> None:
    model = load_causal_model("ioi")
    base = {"names": ("Nick", "John", "Nick")}
    assert model.run(base)["logit_difference"] == pytest.approx(2.774)  # not 3.16
    flips = {
        (-1, 1): ("John", "Nick", "Nick"),  # S1
        (-1, -1): ("Nick", "John", "John"),  # S2
        (1, -1): ("John", "Nick", "John"),  # both
    }
    for (p, t), names in flips.items():
        both = {name: {"names": names} for name in ("subject_token", "subject_position")}
        found = model.interchange(base, both)["logit_difference"]
        assert found == pytest.approx(BIAS + p * POSITION + t * TOKEN)


def test_signals_of_the_flips() -> None:
    drawn = examples(6)
    rows = ioi_signals(drawn)
    expected = {"no interchange": (1, 1), S1: (-1, 1), S2: (-1, -1), BOTH: (1, -1)}
    assert len(rows) == 4 * 6 and not rows.dropped
    for pair, p, t in zip(rows, rows.position, rows.token, strict=True):
        assert (p, t) == expected[pair.kind]
    strangers = ioi_signals(drawn, ["random_names_counterfactual", S2])
    assert strangers.dropped == {"a subject who is not in the base": 6} and len(strangers) == 12
    assert "n=12, dropped=6" in repr(strangers)
    with pytest.raises(BadPairs, match="No signals of 0 examples; dropped: none"):
        ioi_signals([], [])


# --- the fit --------------------------------------------------------------------------------------


def test_coefficients_are_recovered_from_data_of_the_model() -> None:
    rows = ioi_signals(examples(8))
    values = -0.3 + 1.7 * rows.position + 0.4 * rows.token
    fit = fit_logit_difference(rows.position, rows.token, values, source={"model": "made"})
    assert (fit.bias, fit.position, fit.token) == pytest.approx((-0.3, 1.7, 0.4), abs=1e-12)
    assert fit.r2 == pytest.approx(1.0) and fit.n == len(rows)
    found = fit.model.run({"names": ("A", "B", "A")})["logit_difference"]
    assert found == pytest.approx(-0.3 + 1.7 + 0.4)
    np.testing.assert_allclose(fit.predicted(rows.position, rows.token), values, atol=1e-12)


def test_with_noise_coefficients_and_r2_are_near_theory() -> None:
    rng = np.random.default_rng(0)
    n, noise = 20_000, 1.5
    position, token = rng.choice([-1.0, 1.0], size=(2, n))
    values = BIAS + POSITION * position + TOKEN * token + noise * rng.standard_normal(n)
    fit = fit_logit_difference(position, token, values)
    error = 4 * noise / math.sqrt(n)
    assert (fit.bias, fit.position, fit.token) == pytest.approx((BIAS, POSITION, TOKEN), abs=error)
    explained = POSITION**2 + TOKEN**2
    assert fit.r2 == pytest.approx(explained / (explained + noise**2), abs=0.02)


def test_values_that_have_nothing_to_do_with_the_signals_are_not_explained() -> None:
    rng = np.random.default_rng(1)
    position, token = rng.choice([-1.0, 1.0], size=(2, 4000))
    fit = fit_logit_difference(position, token, rng.standard_normal(4000))
    assert 0 <= fit.r2 < 0.01


def test_what_is_not_additive_shows_in_the_conditions() -> None:
    """p * t is orthogonal to bias, p and t: nothing is explained, and each mean is off by 1."""
    position, token = np.array([1.0, 1, -1, -1]), np.array([1.0, -1, 1, -1])
    fit = fit_logit_difference(position, token, position * token)
    assert fit.r2 == pytest.approx(0.0, abs=1e-12)
    assert fit.conditions["+1 +1"]["n"] == 1
    for each in fit.conditions.values():
        assert abs(each["mean"] - each["predicted"]) == pytest.approx(1.0)


def test_what_cannot_be_fitted_is_refused() -> None:
    one, values = np.ones(4), np.arange(4.0)
    with pytest.raises(BadPairs, match=r"three combinations or more; got \(\+1, \+1\)"):
        fit_logit_difference(one, one, values)
    with pytest.raises(BadPairs, match="4 rows of signals need as many values; got 2"):
        fit_logit_difference(one, one, values[:2])
    with pytest.raises(NonFinite, match="1 of 4 logit differences are not finite"):
        fit_logit_difference(one, one, np.array([0, 1, np.nan, 2.0]))
    with pytest.raises(BadPairs, match="got none"):
        fit_logit_difference(one[:0], one[:0], values[:0])


def test_equal_values_leave_r2_undefined_and_are_stored(tmp_path: Path) -> None:
    rows = ioi_signals(examples(3))
    fit = fit_logit_difference(rows.position, rows.token, np.full(len(rows), 2.0))
    assert math.isnan(fit.r2)
    again = LogitDifference.load(fit.save(tmp_path / "fit.json"))
    assert math.isnan(again.r2) and again.bias == fit.bias


def test_a_fit_is_stored_and_read_again(tmp_path: Path) -> None:
    rows = ioi_signals(examples(3))
    values = np.linspace(0, 1, len(rows))
    fit = fit_logit_difference(rows.position, rows.token, values, source={"heads": ["7.3"]})
    path = fit.save(tmp_path / "fit.json")
    assert LogitDifference.load(path) == fit
    assert "r2=" in repr(fit) and "measured" in fit._repr_html_()
    for content in ("", "[]", "{}", json.dumps({"kind": "other", "format": 1})):
        path.write_text(content)
        with pytest.raises(BadFile):
            LogitDifference.load(path)
    with pytest.raises(BadFile):
        LogitDifference.load(tmp_path / "none.json")
