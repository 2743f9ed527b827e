"""M08: a toy model of one-hot tokens, features that read and write, and worthless weights."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.measurement.measurement import Measurement
from mechassay.saes.metrics.feature_tokens import Described
from mechassay.saes.metrics.weight_lens import ReadAndWritten, null, weight_lens

N = 12


def toy(shift: int, *, k: int = 1) -> Measurement:
    """Features of a model whose embedding and unembedding are the identity: j reads token j, and
    writes token j + shift.
    """
    read = np.eye(N)
    written = np.roll(np.eye(N), shift, axis=1)
    promoted = written.argmax(axis=1)[:, None]
    activating = read.argmax(axis=1)[:, None]
    both = ReadAndWritten(Described(read, read), Described(written, written))
    return weight_lens(promoted, activating, both, k=k)


def test_features_that_write_what_they_read() -> None:
    found = toy(0)
    assert found.page["weight_activation_agreement"] == 1 and found.page.passed is True
    assert found.repaired["input_agreement"] == found.repaired["output_agreement"] == 1
    assert found.repaired.passed is True


def test_features_that_write_something_else_fail_on_the_page_alone() -> None:
    # The defect: "New" -> "York" is described rightly by both, and has no token in common.
    found = toy(1)
    assert found.page["weight_activation_agreement"] == 0 and found.page.passed is False
    assert found.repaired["input_gain"] == found.repaired["output_gain"] == 1
    assert found.repaired.passed is True and found.flagged("input_against_output")


def test_a_feature_of_few_tokens_cannot_reach_the_published_threshold() -> None:
    # The defect: 5 active tokens, all of them among the 50 promoted ones.
    promoted = np.tile(np.arange(50), (4, 1))
    activating = np.concatenate([np.tile(np.arange(5), (4, 1)), np.full((4, 45), -1)], axis=1)
    weights = np.full((4, 60), -1.0)
    for j, row in enumerate(weights):
        row[5 * j : 5 * j + 5] = 1
    of = Described(weights, weights)
    found = weight_lens(promoted, activating, ReadAndWritten(of, of), k=50)
    assert found.page["weight_activation_agreement"] == pytest.approx(0.1)
    assert found.page.passed is False and found.flagged("few_tokens")
    assert found.repaired["input_agreement"] == 1 and found.repaired.passed is True


def test_dead_features_lower_the_published_mean() -> None:
    promoted = np.arange(4)[:, None]
    activating = np.array([[0], [1], [-1], [-1]])
    of = Described(np.eye(4)[:2], np.eye(4)[:2])
    found = weight_lens(promoted, activating, ReadAndWritten(of, of), k=1)
    assert found.page["weight_activation_agreement"] == 0.5
    assert found.page["frac_above_threshold"] == found.page["median"] == 1
    assert found.page["active_features"] == 2 and found.flagged("dead_features")


def test_without_any_active_feature_nothing_passes() -> None:
    nothing = Described(np.empty((0, 5)), np.empty((0, 5)))
    found = weight_lens(
        np.zeros((3, 1), dtype=int), np.full((3, 1), -1), ReadAndWritten(nothing, nothing), k=1
    )
    assert found.page["weight_activation_agreement"] is None and found.page.passed is None
    assert found.repaired["input_gain"] is None and found.repaired.passed is None


def test_weights_that_say_nothing_and_a_random_dictionary_that_agrees() -> None:
    rng = np.random.default_rng(0)
    weights, measured = rng.standard_normal((2, 40, 300))
    noise, told = Described(weights, measured), Described(weights, weights)
    lists = np.zeros((40, 20), dtype=int)
    found = weight_lens(lists, lists, ReadAndWritten(noise, noise), k=20)
    assert found.repaired.passed is False and abs(found.repaired["input_gain"] or 1) < 0.05
    both = ReadAndWritten(told, told)
    beside = weight_lens(lists, lists, both, k=20, random=ReadAndWritten(told, noise))
    assert beside.flagged("random_input_agrees") and not beside.flagged("random_output_agrees")
    assert beside.repaired["input_random_gain"] == beside.repaired["input_gain"]
    # What random directions do as well is no verdict, however well the dictionary does it.
    alone = weight_lens(lists, lists, both, k=20)
    assert alone.repaired.passed is True and beside.repaired.passed is None


def test_how_often_thresholds_err() -> None:
    rates = null()
    assert rates.false_alarm("repaired") < 0.1 and rates.power("repaired") > 0.95
    shares = dict(
        zip(
            zip(rates.columns()["variant"], rates.columns()["scenario"], strict=True),
            rates.columns()["share"],
            strict=True,
        )
    )
    # Popular tokens are enough for the page, and features that write something else fail there.
    assert (
        shares["page", "weights that say nothing, and tokens that are popular with all features"]
        > 0.2
    )
    assert shares["page", "features that read some tokens and write others"] == 0
