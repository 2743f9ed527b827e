"""A variable of IOI in subsets of heads, on a model with two built-in signals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mechassay.errors import BadUsage
from mechassay.models.model import Model
from mechassay.progress import SILENT
from mechassay.report.kinds.variables import VariablesPage
from mechassay.variables.data import VariablePairs, variable_pairs
from mechassay.variables.featurizers import FeaturizerSettings
from mechassay.variables.head_localization import HeadLocalization, localize_in_heads
from mechassay.variables.models.ioi import ioi_model
from planted_ioi import HALF, POSITION, TOKEN, planted_examples, planted_ioi

HEADS = (POSITION, TOKEN)
QUICK = FeaturizerSettings(lr=0.1, epochs=30, batch_size=12, loss="squared-error")


@pytest.fixture(scope="module")
def model() -> Model:
    return planted_ioi()


def pairs_of(model: Model, variable: str) -> VariablePairs:
    causal = ioi_model(0.0, HALF, HALF)
    examples = {
        split: planted_examples(8, seed)
        for seed, split in enumerate(("train", "validation", "test"))
    }
    return variable_pairs(model, causal, variable, examples, equal_lengths=True, progress=SILENT)


def located(
    model: Model, variable: str, featurizer: str = "das", **how: object
) -> HeadLocalization:
    pairs = pairs_of(model, variable)
    return localize_in_heads(
        model, pairs, HEADS, featurizer, settings=QUICK, progress=SILENT, **{"ks": (2, 8), **how}
    )


@pytest.fixture(scope="module")
def token(model: Model) -> HeadLocalization:
    return located(model, "subject_token")


def test_a_variable_is_found_in_the_head_that_carries_it(token: HeadLocalization) -> None:
    assert [str(site) for site in token.heads] == [TOKEN]
    assert token.found and token.error.estimate().value < 0.1 * HALF**2
    assert {"no intervention", "best constant", "full vector"} <= set(token.error.measured)
    assert token.linear is None and token.chosen_fit.together


def test_the_number_of_directions_is_that_of_the_least_validation_error(
    token: HeadLocalization,
) -> None:
    assert set(token.validation) == {2, 8}
    assert token.k == min(token.validation, key=lambda k: token.validation[k])
    assert token.fit.n_features(TOKEN) == token.k
    assert token.record().method.args == {"heads": "1.1", "k": token.k}


def test_what_whole_heads_cannot_say_is_not_found(model: Model) -> None:
    """One step of masks that stay closed: nothing is exchanged."""
    closed = replace(QUICK, lr=1e-9, epochs=1)
    pairs = pairs_of(model, "subject_position")
    wrong = {split: replace(x, values=-x.values) for split, x in pairs.batches.items()}
    found = localize_in_heads(
        model, replace(pairs, batches=wrong), HEADS, "dbm", settings=closed, progress=SILENT
    )
    assert not found.found and found.k is None


def test_its_record_and_its_page(token: HeadLocalization) -> None:
    record = token.record()
    assert json.loads(record.model_dump_json())["kind"] == "variables"
    for of in token.error.measured:
        named = "result" if of == "features" else f"control:{of}"
        measure = record.measure("mse", named)
        assert measure is not None
        assert measure.value == pytest.approx(token.error.estimate(of).value)
    (table,) = VariablesPage().tables([record])
    assert "heads" in [column.heading for column in table.columns]
    said = [
        block.text
        for block in VariablesPage().sections([record])[0].blocks
        if hasattr(block, "text")
    ]
    assert any("subject_token is found in heads 1.1 by das" in text for text in said), said


def test_no_number_of_directions_is_refused(model: Model) -> None:
    with pytest.raises(BadUsage, match="localize_in_heads needs at least one number"):
        localize_in_heads(model, pairs_of(model, "subject_token"), HEADS, ks=())
