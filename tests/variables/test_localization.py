"""What is chosen, reported and concluded of accuracies that are made up.

A variable is found where it lives in a trained model, and its controls are where theory puts
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechassay as ma
from helpers.edits import unnoticed
from mechassay.causal_models.hypothesis import hypotheses
from mechassay.causal_models.true_sites import true_sites
from mechassay.errors import BadUsage, UnknownName
from mechassay.features.featurizer import Directions
from mechassay.features.finder import Fit, Sites
from mechassay.features.sae import SAE
from mechassay.interventions.site import Site, load_site
from mechassay.models.model import Model, untrained
from mechassay.stats.intervals import clopper_pearson, proportion_interval
from mechassay.utils.display import SILENT
from mechassay.variables.data import VariablePairs, variable_pairs
from mechassay.variables.featurizers import FeaturizerSettings
from mechassay.variables.interchange_accuracy import (
    FULL,
    NOTHING,
    RANDOM,
    RESULT,
    InterchangeAccuracy,
)
from mechassay.variables.localization import (
    RANDOM_VARIABLE,
    UNTRAINED,
    Localization,
    ScoredFit,
    at_site,
    best_of,
    localize,
    score_of,
    shown_cells,
)
from mechassay.variables.verdicts import CONTROLS as search_CONTROLS
from mechassay.variables.verdicts import verdict_of

SITES = tuple(map(load_site, ("resid.0@a", "resid.0@last", "resid.1@a", "resid.1@last")))


def accuracies(
    right: Sequence[Sequence[int]],
    kinds: Sequence[str] = (),
    odds: Sequence[float] = (0.0,) * len(SITES),
) -> InterchangeAccuracy:
    """Of each site, of every pair whether it is right; no intervention never is."""
    by_pair = np.array(right, dtype=bool).T
    n = len(by_pair)
    values = {
        RESULT: np.tile(np.array(odds), (n, 1)),
        NOTHING: np.zeros((n, len(SITES))),
    }
    return InterchangeAccuracy(
        SITES,
        tuple(f"p{i}" for i in range(n)),
        tuple(f"g{i}" for i in range(n)),
        tuple(kinds) or ("one",) * n,
        {RESULT: by_pair, NOTHING: np.zeros_like(by_pair)},
        values,
        values,
        (2,) * len(SITES),
    )


def test_of_the_pairs_whose_answer_changes_the_best_site_is_another() -> None:
    """An exchange without any effect is right on the four pairs whose answer stays; one of a whole
    vector is right on three of the four others, and changes a neighbour on those.
    """
    changed = np.array([True] * 4 + [False] * 4)
    nothing, whole = [0] * 4 + [1] * 4, [1, 1, 1, 0] + [0] * 4
    both = accuracies([nothing, whole, nothing, nothing])
    assert score_of(both, SITES[0]) > score_of(both, SITES[1])
    assert score_of(both, SITES[0], changed) == (0.0, 0.0)
    assert score_of(both, SITES[1], changed) == (0.75, 0.0)


def a_fit() -> Fit:
    eye = torch.eye(4)
    return Fit({site: Directions(eye[:, :2]) for site in SITES}, **trained([1.0] * 16))


def trained(losses: Sequence[float]) -> dict[str, Any]:
    """What a fit has of a training with these losses at every site, of one epoch a step."""
    columns = torch.tensor(losses, dtype=torch.float64)[:, None].expand(-1, len(SITES))
    about = {"n_examples": 8, "settings": {"batch_size": 8, "lr": 0.1}}
    return {"losses": columns.clone(), "provenance": about}


def shares(*of_sites: int, n: int = 10) -> list[list[int]]:
    """So many of n pairs right, of each site."""
    return [[1] * k + [0] * (n - k) for k in of_sites]


def localization(
    candidates: Sequence[ScoredFit] = (),
    choose_on: str = "validation",
    **right: Sequence[float],
) -> Localization:
    made = list(candidates) or [ScoredFit(2, a_fit(), *[accuracies(shares(1, 2, 3, 9))] * 2)]
    chosen, site = best_of(made, choose_on)
    test = chosen.test
    column = test.column(site)
    found = {
        RESULT: test.right[RESULT][:, column].astype(float),
        NOTHING: test.right[NOTHING][:, column].astype(float),
    }
    named = {name.replace("_", " "): np.array(x, dtype=float) for name, x in right.items()}
    return Localization(
        "m", "h", "v", "das", choose_on, tuple(made), site, chosen, test, {**found, **named}
    )


# --- what is chosen -------------------------------------------------------------------------------


def test_the_site_is_chosen_on_validation_and_not_on_test() -> None:
    validation, test = accuracies(shares(1, 8, 2, 3)), accuracies(shares(9, 4, 3, 2))
    candidate = ScoredFit(2, a_fit(), validation, test)
    found = localization([candidate])
    assert str(found.site) == "resid.0@last" and found.estimate().value == 0.4
    of_mib = localization([candidate], choose_on="test")
    assert str(of_mib.site) == "resid.0@a" and of_mib.estimate().value == 0.9
    # Layers: on validation 0@last and 1@last, on test 0@a and 1@a.
    assert found.mean_of_layers().value == pytest.approx((0.4 + 0.2) / 2)
    assert of_mib.mean_of_layers().value == pytest.approx((0.9 + 0.3) / 2)
    assert found.as_mib() == of_mib.as_mib() == pytest.approx((0.6, 0.9))


def test_the_number_of_features_is_chosen_on_validation_too() -> None:
    weak = ScoredFit(1, a_fit(), accuracies(shares(1, 2, 3, 4)), accuracies(shares(10, 10, 10, 10)))
    good = ScoredFit(2, a_fit(), accuracies(shares(1, 2, 3, 5)), accuracies(shares(0, 0, 0, 1)))
    found = localization([weak, good])
    assert found.chosen is good and str(found.site) == "resid.1@last"
    assert {layer: each.k for layer, (each, _) in found.by_layer().items()} == {0: 1, 1: 2}


def test_of_equal_accuracies_the_higher_log_odds_count_then_the_first() -> None:
    even = accuracies(shares(5, 5, 5, 5), odds=(0.0, 2.0, 2.0, math.nan))
    chosen, site = best_of([ScoredFit(1, a_fit(), even, even)], "validation")
    assert chosen.k == 1 and site == SITES[1]


def slow_mib(candidates: Sequence[ScoredFit]) -> tuple[float, float]:
    """Mean over kinds, the best position of each layer, then mean and maximum of layers."""
    layers: dict[int, list[float]] = {}
    for candidate in candidates:
        for column, site in enumerate(SITES):
            of_kinds: list[float] = []
            for kind in sorted(set(candidate.test.kinds)):
                rows = [i for i, each in enumerate(candidate.test.kinds) if each == kind]
                hits = sum(bool(candidate.test.right[RESULT][i, column]) for i in rows)
                of_kinds.append(hits / len(rows))
            layers.setdefault(site.layer, []).append(sum(of_kinds) / len(of_kinds))
    best = [max(values) for values in layers.values()]
    return sum(best) / len(best), max(best)


def test_numbers_as_mib_has_them_are_those_of_a_slow_loop() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        kinds = ["one", "two", "two", "two", "three", "three", "three"]
        made = [
            ScoredFit(k, a_fit(), *(accuracies(rng.integers(2, size=(4, 7)).tolist(), kinds),) * 2)
            for k in (1, 2)
        ]
        assert localization(made).as_mib() == pytest.approx(slow_mib(made))


# --- what is concluded ----------------------------------------------------------------------------

NONE, ALL = (0,) * 20, (1,) * 20
HALF = (1,) * 10 + (0,) * 10


def only(measured: InterchangeAccuracy, *places: int) -> InterchangeAccuracy:
    """At some of the sites."""
    chosen = list(places)

    def cut(columns: Mapping[str, Any]) -> dict[str, Any]:
        return {name: column[:, chosen] for name, column in columns.items()}

    return replace(
        measured,
        sites=tuple(SITES[place] for place in places),
        right=cut(measured.right),
        log_odds=cut(measured.log_odds),
        kl=cut(measured.kl),
        n_features=(2,) * len(places),
    )


def test_of_a_submission_whole_vectors_count_where_it_has_no_features() -> None:
    """By hand: it has features at the first position of layer 1 alone, with which .3 are right; the
    whole vector at the other position is right in .9, and layer 0 does not count.
    """
    own, full = only(accuracies(shares(0, 0, 3, 0)), 2), accuracies(shares(10, 10, 5, 9))
    candidate = ScoredFit(2, at_site(a_fit(), SITES[2]), own, own)
    found = replace(localization([candidate]), full=full)
    (best,) = found.as_submitted
    assert (str(best.site), best.whole, best.accuracy) == ("resid.1@last", True, 0.9)
    assert found.as_mib() == pytest.approx((0.3, 0.3))
    # Less than the whole vector at its own site, .5: the same pairs are right, and two others.
    assert found.over_full().value == pytest.approx(-0.2)
    record = found.record()
    assert record.table("as submitted").rows()[0]["whole"] is True
    # A better position of its own counts before the whole vector's.
    better = only(accuracies(shares(0, 0, 10, 0)), 2)
    own = ScoredFit(2, at_site(a_fit(), SITES[2]), better, better)
    (best,) = replace(localization([own]), full=full).as_submitted
    assert (str(best.site), best.whole) == ("resid.1@a", False)
    assert replace(found, full=only(full, 2)).as_submitted == ()


def test_gain_over_the_whole_vector_is_paired_and_of_the_same_site() -> None:
    # By hand: layer 0 at @last 8 - 6 of 10 pairs, layer 1 at @a 5 - 9: (.2 - .4) / 2.
    candidate = ScoredFit(2, a_fit(), *[accuracies(shares(1, 8, 5, 2))] * 2)
    found = replace(localization([candidate]), full=accuracies(shares(9, 6, 9, 9)))
    assert found.over_full().value == pytest.approx(-0.1)
    # What exchanges everything gains nothing, and its interval holds 0.
    everything = localization([candidate])
    assert everything.full is candidate.test
    assert everything.over_full().value == 0
    everything = localization([candidate], full_vector=candidate.test.right[RESULT][:, 1])
    gain = everything.difference(FULL)
    assert gain.value == 0 and gain.low < 0 < gain.high


def right_at(*values: Sequence[int]) -> Localization:
    """A localization whose result and no intervention are these."""
    made = ScoredFit(2, a_fit(), *[accuracies(shares(1, 2, 3, 18, n=20))] * 2)
    found = localization([made])
    result, nothing = (np.array(x, dtype=float) for x in values)
    return replace(found, right={RESULT: result, NOTHING: nothing})


@pytest.mark.parametrize(
    ("result", "nothing", "gain"),
    [
        (ALL, NONE, 1.0),
        (NONE, NONE, 0.0),
        (ALL, HALF, 1.0),
        ((1,) * 16 + (0,) * 4, HALF, 0.6),
        ((0,) * 10 + (1,) * 10, HALF, 0.0),
        (NONE, HALF, -1.0),
    ],
)
def test_gain_by_hand(result: Sequence[int], nothing: Sequence[int], gain: float) -> None:
    found = right_at(result, nothing).gain
    assert found.value == pytest.approx(gain)
    assert found.low <= gain <= found.high


def test_where_nothing_is_wrong_there_is_no_gain_and_nothing_is_found() -> None:
    found = right_at(ALL, ALL)
    assert math.isnan(found.gain.value) and not found.found and not found.isolated
    record = found.record()
    assert verdict_of(record) == "not found"


def test_a_gain_without_losses_has_the_interval_of_a_proportion() -> None:
    # Resamples of whole numbers that are all 1 would give an interval of no width.
    for n in (2, 5, 6, 12):
        made = ScoredFit(2, a_fit(), *[accuracies(shares(0, 0, 0, n, n=n))] * 2)
        found = localization([made])
        low, high, _ = clopper_pearson(float(n), float(n))
        assert (found.gain.low, found.gain.high) == pytest.approx((low, high))
        assert found.found == (n >= 6), "five pairs are too few to say so"
        assert found.verdict == "not judged", "nor are fewer than twenty"


@pytest.mark.parametrize("n", [1, 2, 5, 6, 40])
def test_a_difference_that_all_pairs_share_allows_for_others(n: int) -> None:
    """Of pairs that differ from n that agree there are at most 1 - 0.025^(1/n), at 95 %."""
    others = 1 - 0.025 ** (1 / n)
    made = ScoredFit(2, a_fit(), *[accuracies(shares(0, 0, 0, n, n=n))] * 2)
    for control, value in ((np.zeros(n), 1.0), (np.ones(n), 0.0), (np.full(n, 0.75), 0.25)):
        found = localization([made], random=control.tolist()).difference("random")
        ends = (value - others * (1 + value), value + others * (1 - value))
        assert found.value == value and (found.low, found.high) == pytest.approx(ends)
        assert -1 <= found.low < found.value and found.high <= 1


CONTROLS: dict[str, Any] = {"random_variable": NONE, "untrained_model": NONE}


@pytest.mark.parametrize(
    ("right", "verdict"),
    [
        ({}, "found, not isolated"),
        ({"random": NONE}, "isolated"),
        ({"random": ALL, **CONTROLS}, "found, not isolated"),
        ({"random": NONE, **CONTROLS}, "isolated"),
        ({"random": NONE, **CONTROLS, "random_variable": ALL}, "not found"),
        ({"random": NONE, **CONTROLS, "untrained_model": ALL}, "not found"),
        ({"random": NONE, **CONTROLS, "no_intervention": (1,) * 16 + (0,) * 4}, "not found"),
        ({"full_vector": ALL, "random": (0.5,) * 20}, "isolated"),
    ],
)
def test_a_verdict_needs_every_control(right: dict[str, Any], verdict: str) -> None:
    made = ScoredFit(2, a_fit(), *[accuracies(shares(1, 2, 3, 20, n=20))] * 2)
    found = localization([made], **right)
    assert found.verdict == verdict
    assert (found.found, found.isolated) == (verdict != "not found", verdict == "isolated")
    assert verdict_of(found.record()) == verdict, "the page says the same"


def test_what_a_training_that_still_falls_does_not_find_is_not_trained() -> None:
    falling, level = [8.0 / 2**step for step in range(16)], [1.0] * 16
    for losses, verdict in ((falling, "not trained"), (level, "not found"), ([], "not found")):
        fit = replace(a_fit(), **trained(losses))
        found = localization([ScoredFit(2, fit, *[accuracies(shares(1, 2, 3, 9, n=20))] * 2)])
        record = found.record()
        assert found.verdict == verdict_of(record) == verdict
        assert ("steps" in record.method.args) == (record.measure("training_loss") is not None)
    # What was found is found, however the training ended.
    fit = replace(a_fit(), **trained(falling))
    made = ScoredFit(2, fit, *[accuracies(shares(1, 2, 3, 20, n=20))] * 2)
    assert localization([made], random=NONE).verdict == "isolated"


def test_what_is_chosen_on_test_pairs_has_the_interval_of_the_best_of_all() -> None:
    test = accuracies(shares(1, 2, 3, 18, n=20))
    made = [ScoredFit(k, a_fit(), test, test) for k in (1, 2)]
    honest, chosen = (localization(made, choose_on=split) for split in ("validation", "test"))
    # Eight candidates: four sites with two numbers of features.
    assert (honest.level, chosen.level) == (0.95, pytest.approx(1 - 0.05 / 8))
    found, right = chosen.estimate(), np.array([1.0] * 18 + [0.0] * 2)
    low, high, _ = proportion_interval(right, chosen.groups, 1 - 0.05 / 8)
    assert (found.low, found.high) == pytest.approx((low, high))
    for one, other in (
        (honest.gain, chosen.gain),
        (honest.difference(NOTHING), chosen.difference(NOTHING)),
    ):
        assert one.value == other.value and other.low < one.low and other.high >= one.high
    measure = chosen.record().measure("iia")
    assert measure is not None and measure.level == pytest.approx(1 - 0.05 / 8)


def test_less_than_half_of_what_is_wrong_is_not_found() -> None:
    found = localization([ScoredFit(2, a_fit(), *[accuracies(shares(0, 0, 0, 60, n=100))] * 2)])
    assert found.difference(NOTHING).low > 0 and found.gain.value > 0.5 and not found.found


# --- as a value and as a record -------------------------------------------------------------------


def whole() -> Localization:
    kinds = ["one"] * 4 + ["two"] * 6
    test = accuracies(shares(1, 2, 3, 9), kinds)
    made = [ScoredFit(k, a_fit(), accuracies(shares(1, k, 3, 9)), test) for k in (1, 2)]
    controls: dict[str, Any] = {name: NONE[:10] for name in CONTROLS}
    return localization(made, random=(1 / 3,) * 10, **controls, full_vector=ALL[:10])


def test_a_record_goes_through_json(tmp_path: Path) -> None:
    found = whole()
    record = found.record()
    path = record.save(tmp_path / "r.json")
    again = ma.read_record(path)
    assert {name for name, _ in unnoticed(record, tmp_path)}.isdisjoint({"iia"})
    assert json.loads(again.model_dump_json()) == json.loads(record.model_dump_json())
    for of in found.right:
        named = "result" if of == RESULT else f"control:{of}"
        measure = again.measure("iia", named)
        assert measure is not None and measure.value == pytest.approx(found.estimate(of).value)
    assert again.values is not None and set(again.values.columns) == set(found.right)
    assert again.table("sites").where(chosen=True).rows()[0]["site"] == "resid.1@last"
    assert verdict_of(again) == found.verdict == "not judged"
    assert {m.name for m in again.measures} >= {"gain", "iia_layers", "mib_mean", "mib_highest"}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_record_says_what_its_site_was_chosen_on(split: str) -> None:
    found = localization(choose_on=split)
    record = found.record()
    layers, chosen = record.measure("iia_layers"), record.measure("validation")
    assert layers is not None and f"best on {split} pairs" in layers.meaning
    assert chosen is not None and ("chosen by" in chosen.meaning) == (split == "validation")
    assert record.method.args["choose_on"] == split


def test_rows_are_sites_and_numbers_of_features() -> None:
    found = whole()
    columns = found.columns()
    assert columns["k"] == [1] * 4 + [2] * 4 and columns["site"] == list(map(str, SITES)) * 2
    assert (
        columns["test"] == [0.1, 0.2, 0.3, 0.9] * 2
        and columns["chosen"] == [False] * 3 + [True] + [False] * 4
    )
    assert {len(column) for column in columns.values()} == {8}
    by_kind = found.by_kind()
    assert by_kind["kind"] == ["one", "two"] and by_kind["n"] == [4, 6]
    assert by_kind["accuracy"] == pytest.approx([1.0, 5 / 6])
    assert found.estimate(RANDOM).value == pytest.approx(1 / 3)
    with pytest.raises(UnknownName, match="Did you mean 'random'"):
        found.estimate("randon")


def test_features_of_one_site_are_a_file_of_their_own(tmp_path: Path) -> None:
    fit = a_fit()
    for number, site in enumerate(SITES):
        alone = at_site(fit, site)
        again = Fit.load(alone.save(tmp_path / f"{number}.safetensors"))
        assert again.sites == (site,)
        assert torch.equal(again.losses, fit.losses[:, [number]])
        assert torch.equal(again.directions(site), fit.directions(site))
    untrained = at_site(replace(fit, losses=torch.zeros(0, 0)), Site(1, "last"))
    assert Fit.load(untrained.save(tmp_path / "none.safetensors")).losses.shape == (0, 0)


def test_it_shows_itself(tmp_path: Path) -> None:
    found = whole()
    assert "resid.1@last" in repr(found) and "\n" not in repr(found)
    html = found._repr_html_()
    assert all(of in html for of in (FULL, RANDOM, RANDOM_VARIABLE, UNTRAINED, NOTHING))
    (axes, _) = found.plot().axes
    assert [text.get_text() for text in axes.texts] == ["0.10", "0.20", "0.30", "0.90"]
    page = found.to_html(tmp_path / "page.html").read_text("utf-8")
    assert "resid.1@last" in page and "<svg" in page


def test_a_figure_has_the_number_that_was_chosen_not_the_best_on_test() -> None:
    columns = {
        "site": ["resid.0@last", "resid.0@last", "heads.1.2@x"],
        "k": [2, 4, 2],
        "validation": [0.8, 0.6, 0.5],
        "test": [0.3, 0.9, 0.4],
    }
    cells = shown_cells(columns, "validation")
    assert cells["k"] == [2, 2] and cells["test"] == [0.3, 0.4]
    assert cells["place"] == ["last", "2 @x"]
    assert shown_cells(columns, "test")["test"] == [0.9, 0.4]


QUICK = FeaturizerSettings(epochs=8, lr=0.03)


@pytest.fixture(scope="module")
def model() -> Model:
    return ma.load_model("truth-ioi-trained")


def pairs_of(model: Model, variable: str, n: int = 20) -> VariablePairs:
    causal, name, *_ = hypotheses("truth-ioi")[variable]
    task = ma.load_task("truth-ioi")
    sizes = {"train": n, "validation": n // 2, "test": n}
    examples = {split: task.examples(split, limit=size) for split, size in sizes.items()}
    return variable_pairs(model, causal, name, examples, progress=SILENT)


@pytest.fixture(scope="module")
def answers(model: Model) -> VariablePairs:
    return pairs_of(model, "answer")


def search(
    model: Model,
    pairs: VariablePairs,
    sites: Sites,
    featurizer: str = "das",
    ks: Sequence[int] = (24,),
) -> Localization:
    return localize(
        model,
        pairs,
        list(sites),
        featurizer,
        settings=QUICK,
        ks=ks,
        random_variable=False,
        progress=SILENT,
    )


def test_the_answer_is_isolated_at_its_home_beside_five_controls(
    model: Model, answers: VariablePairs
) -> None:
    found = localize(
        model,
        answers,
        ma.sites(model, positions=("subject_2", "last")),
        settings=QUICK,
        ks=(6, 24),
        untrained=untrained(model),
        progress=SILENT,
    )
    assert found.site in true_sites("truth-ioi-trained", "answer")
    assert found.estimate().value == 1 and found.isolated
    assert set(found.right) == {RESULT, *search_CONTROLS} and len(search_CONTROLS) == 5
    assert [each.k for each in found.candidates] == [6, 24] and found.n_features in (6, 24)
    # No intervention: right where the label is what is written anyhow.
    own = [pair.label == pair.base_label for pair in answers.labels["test"]]
    assert found.right[NOTHING].tolist() == [float(each) for each in own]
    assert found.estimate(FULL).value == 1 > found.estimate(RANDOM).value
    assert {round(3 * x) / 3 for x in found.right[RANDOM]} == set(found.right[RANDOM])
    assert found.estimate("untrained model").value < 0.5
    # Half of the labels of a random variable can be written by what always writes the source's.
    assert 0.2 < found.estimate("random variable").value < 0.8


def test_directions_of_the_whole_space_are_the_full_vector(
    model: Model, answers: VariablePairs
) -> None:
    sites = ma.sites(model, positions=("last",), layers=(1, 2))
    found = search(model, answers, sites, ks=(48,))
    for of in (RANDOM, RESULT):
        assert np.array_equal(found.right[of], found.right[FULL])
    assert found.found and not found.isolated
    whole = search(model, answers, sites, "full-vector")
    assert whole.found and not whole.isolated and whole.chosen.k is None
    assert np.array_equal(whole.right[RESULT], found.right[FULL])


def test_before_the_first_difference_nothing_happens(model: Model, answers: VariablePairs) -> None:
    """The first word of all prompts is the same, so that there is nothing to exchange."""
    found = search(model, answers, [Site(1, 0)])
    for of in (RESULT, FULL, RANDOM):
        assert np.array_equal(found.right[of], found.right[NOTHING])
    assert found.gain.value == 0 and not found.found
    test = found.chosen.test
    assert np.array_equal(test.log_odds[RESULT], test.log_odds[NOTHING])


@pytest.mark.parametrize("featurizer", ["das", "dbm+pca"])
def test_a_variable_that_the_model_has_not_is_not_found(model: Model, featurizer: str) -> None:
    pairs = pairs_of(model, "name_place")
    found = search(model, pairs, ma.sites(model, positions=("subject_2", "last")), featurizer)
    assert not found.found and found.gain.value < 0.5


def test_whole_vectors_that_are_known_are_not_run_again(
    model: Model, answers: VariablePairs
) -> None:
    site = Site(2, "last")
    first = search(model, answers, [site], "full-vector")
    nothing = np.zeros_like(first.full.right[RESULT])
    lie = replace(first.full, right={**first.full.right, RESULT: nothing})
    again = localize(
        model, answers, [site], "full-vector", full=lie, random_variable=False, progress=SILENT
    )
    assert first.estimate().value == 1 and again.estimate(FULL).value == again.estimate().value == 0


def test_the_same_seed_gives_the_same(model: Model, answers: VariablePairs) -> None:
    site = [Site(2, "last")]
    one, two = (search(model, answers, site, ks=(3,)) for _ in range(2))
    assert torch.equal(one.fit.losses, two.fit.losses)
    assert all(np.array_equal(one.right[of], two.right[of]) for of in one.right)


def test_labels_of_the_random_variable_are_answers_of_the_task(
    model: Model, answers: VariablePairs
) -> None:
    """As the task has them, which knows of no causal model."""
    examples = {x.id: x for x in ma.load_task("truth-ioi").examples("test", limit=20)}
    own, taken = answers.labels["test"], answers.random["test"]
    n_of_source = 0
    for row, pair in enumerate(own):
        name, _, kind = pair.id.partition("/")
        base, source = examples[name].prompt, examples[name].counterfactuals[kind]
        label = model.tokenizer.decode(taken.labels[row][taken.labels[row] >= 0])
        assert label.strip() in {x.strip() for x in (*base.answers, *source.answers)}
        n_of_source += label.strip() in {x.strip() for x in source.answers}
    assert 0.2 < n_of_source / len(own) < 0.9
    assert torch.equal(taken.base, answers.batches["test"].base)
    assert taken.ids == tuple(pair.id for pair in own)


def test_masks_of_saes_at_three_sites_have_every_control(
    model: Model, answers: VariablePairs
) -> None:
    eye = torch.eye(48)
    sae = SAE(torch.cat((eye, -eye), 1), torch.cat((eye, -eye)), torch.zeros(96), torch.zeros(48))
    sites = ma.sites(model, positions=("last",))
    assert len(sites) == 3
    found = localize(
        model,
        answers,
        sites,
        "dbm+sae",
        settings=replace(QUICK, lr=0.1),
        saes=dict.fromkeys(sites, sae),
        untrained=untrained(model),
        progress=SILENT,
    )
    assert set(found.right) == {RESULT, *search_CONTROLS} and len(found.fit.sites) == 3
    assert str(found.site) == "resid.2@last" and found.estimate().value > 0.9


def test_bad_input_is_one_line_before_anything_is_trained(
    model: Model, answers: VariablePairs
) -> None:
    site = [Site(2, "last")]
    lacking = replace(answers, batches={"train": answers.batches["train"]})
    with pytest.raises(BadUsage, match="no validation"):
        localize(model, lacking, site)
    with pytest.raises(BadUsage, match="at least one number of features in ks"):
        localize(model, answers, site, ks=())
    with pytest.raises(BadUsage, match="dbm\\+sae needs the SAE of every site"):
        localize(model, answers, site, "dbm+sae")
    with pytest.raises(BadUsage, match="labels of a random variable for that control"):
        localize(model, replace(answers, random={}), site, progress=SILENT)
