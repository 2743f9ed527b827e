"""A variable is found where it lives in a trained model, and its controls are where theory puts
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

import mechassay as ma
from mechassay.errors import BadPairs, BadUsage
from mechassay.features.finder import Sites
from mechassay.interventions.site import Site
from mechassay.models.model import Model
from mechassay.models.untrained import untrained
from mechassay.progress import SILENT
from mechassay.variables.data import VariablePairs, variable_pairs
from mechassay.variables.featurizers import FeaturizerSettings
from mechassay.variables.homes import true_sites
from mechassay.variables.hypothesis import hypotheses
from mechassay.variables.interchange_accuracy import FULL, NOTHING, RANDOM, RESULT
from mechassay.variables.localization import CONTROLS, Localization
from mechassay.variables.search import localize

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
        arbitrary=False,
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
    assert set(found.right) == {RESULT, *CONTROLS} and len(CONTROLS) == 5
    assert [each.k for each in found.candidates] == [6, 24] and found.n_features in (6, 24)
    # No intervention: right where the label is what is written anyhow.
    own = [pair.label == pair.base_label for pair in answers.labels["test"]]
    assert found.right[NOTHING].tolist() == [float(each) for each in own]
    assert found.estimate(FULL).value == 1 > found.estimate(RANDOM).value
    assert {round(3 * x) / 3 for x in found.right[RANDOM]} == set(found.right[RANDOM])
    for control in ("arbitrary labels", "untrained model"):
        assert found.estimate(control).value < 0.5


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
        model, answers, [site], "full-vector", full=lie, arbitrary=False, progress=SILENT
    )
    assert first.estimate().value == 1 and again.estimate(FULL).value == again.estimate().value == 0


def test_the_same_seed_gives_the_same(model: Model, answers: VariablePairs) -> None:
    site = [Site(2, "last")]
    one, two = (search(model, answers, site, ks=(3,)) for _ in range(2))
    assert torch.equal(one.fit.losses, two.fit.losses)
    assert all(np.array_equal(one.right[of], two.right[of]) for of in one.right)


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
    same = {
        split: replace(batch, labels=batch.labels[:1].expand_as(batch.labels))
        for split, batch in answers.batches.items()
    }
    with pytest.raises(BadPairs, match="at least 3 different ones; there are [12]"):
        localize(model, replace(answers, batches=same), site, progress=SILENT)
