"""A variable of IOI in subsets of heads, on a model with two built-in signals.

Subsets of heads in a model whose signals have one head each.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.edits import unnoticed
from helpers.planted import HALF, POSITION, TOKEN, planted_examples, planted_ioi
from mechassay.causal_models.ioi import ioi_model
from mechassay.errors import BadUsage, UnknownName
from mechassay.features import DBM, FullVector
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.results.page import Report
from mechassay.utils.display import SILENT
from mechassay.variables import expected_labels, head_subsets, squared_error
from mechassay.variables.data import VariablePairs, variable_pairs
from mechassay.variables.featurizers import FeaturizerSettings
from mechassay.variables.ioi_heads import (
    HeadLocalization,
    localize_in_heads,
    measure_features_in_heads,
)
from mechassay.variables.page import VariablesPage

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
    about = {"heads": "1.1", "k": token.k, "steps": 60, "lr": 0.1}
    args = dict(token.record().method.args)
    assert isinstance(args.pop("still_falling"), bool) and args == about


def test_what_whole_heads_cannot_say_is_not_found(model: Model) -> None:
    """One step of masks that stay closed: nothing is exchanged."""
    closed = replace(QUICK, lr=1e-9, epochs=1)
    pairs = pairs_of(model, "subject_position")
    wrong = {split: replace(x, values=-x.values) for split, x in pairs.batches.items()}
    found = localize_in_heads(
        model, replace(pairs, batches=wrong), HEADS, "dbm", settings=closed, progress=SILENT
    )
    assert not found.found and found.k is None


def test_its_record_and_its_page(token: HeadLocalization, tmp_path: Path) -> None:
    record = token.record()
    of_training = {"training_loss", "training_fall", "validation"}
    assert {name for name, _ in unnoticed(record, tmp_path)} == of_training
    assert json.loads(record.model_dump_json())["kind"] == "variables"
    for of in token.error.measured:
        named = "result" if of == "features" else f"control:{of}"
        measure = record.measure("mse", named)
        assert measure is not None
        assert measure.value == pytest.approx(token.error.estimate(of).value)
    (table,) = VariablesPage().tables(Report([record]))
    assert "heads" in [column.heading for column in table.columns]
    said = [
        block.text
        for block in VariablesPage().sections(Report([record]))[0].blocks
        if hasattr(block, "text")
    ]
    assert any("subject_token is not judged in heads 1.1 by das" in text for text in said), said


def test_features_that_are_handed_in_have_no_training(
    model: Model, token: HeadLocalization
) -> None:
    pairs = pairs_of(model, "subject_token")
    given = measure_features_in_heads(model, pairs, token.chosen_fit, progress=SILENT)
    own, again = (each.error.estimate("features").value for each in (token, given))
    assert own == pytest.approx(again)
    record = given.record()
    assert "steps" not in record.method.args and record.measure("training_loss") is None


def test_no_number_of_directions_is_refused(model: Model) -> None:
    with pytest.raises(BadUsage, match="localize_in_heads needs at least one number"):
        localize_in_heads(model, pairs_of(model, "subject_token"), HEADS, ks=())


SUBSETS_OF_HEADS_HEADS = (POSITION, TOKEN, "heads.1.2@all", "heads.2.2@all")


def pairs(model: Model, variable: str, n: int, seed: int) -> InterchangeBatch:
    labels = expected_labels(ioi_model(0.0, HALF, HALF), variable, planted_examples(n, seed))
    return labels.tokenized(model, equal_lengths=True)[1]


@pytest.mark.parametrize(
    ("variable", "home"), [("subject_position", POSITION), ("subject_token", TOKEN)]
)
def test_the_subset_of_the_known_site_is_chosen(model: Model, variable: str, home: str) -> None:
    train, validation, test = (pairs(model, variable, 8, seed) for seed in range(3))
    found = head_subsets(
        model,
        SUBSETS_OF_HEADS_HEADS,
        train=train,
        validation=validation,
        test=test,
        variable=variable,
        progress=SILENT,
    )
    assert len(found) == 14 and len({frozenset(each) for each in found.subsets}) == 14
    # The known site alone, or with a head on which nothing hangs.
    assert {str(site) for site in found.chosen} in ({home}, {home, "heads.1.2@all"})
    assert found.estimate().value < 1e-5 < 5 < found.control("best constant").value
    assert found.control("no intervention").value == pytest.approx(8 * HALF**2 / 3, abs=0.05)
    for subset in found.subsets:
        fit = FullVector().fit(model, train, subset, together=True, progress=SILENT)
        one = squared_error(fit, test, train=train, progress=SILENT)
        value = found.estimate(subset[::-1]).value
        assert value == pytest.approx(one.estimate().value, abs=1e-4)
        names = {str(site) for site in subset}
        assert (value < 1) == (home in names and names <= {home, "heads.1.2@all"})
    columns = found.columns()
    assert columns["heads"][0] == "1.0" and columns["heads"][4] == "1.0, 1.1"
    assert columns["features"][:5] == [16, 16, 16, 16, 32] and sum(columns["chosen"]) == 1
    assert columns["n_test"][0] == 24 and len(columns["heads"]) == 16
    assert len(found.to_pandas()) == 16 and found.plot() is not None
    assert variable in repr(found) and variable in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(UnknownName, match="subset of heads"):
        found.estimate(SUBSETS_OF_HEADS_HEADS)


def test_a_finder_is_fitted_for_every_subset(model: Model) -> None:
    train, validation, test = (pairs(model, "subject_position", 12, seed) for seed in range(3))
    masks = DBM(lr=0.1, steps=30, batch_size=40, loss="squared-error")
    found = head_subsets(
        model,
        SUBSETS_OF_HEADS_HEADS[:3],
        train=train,
        validation=validation,
        test=test,
        finder=masks,
        progress=SILENT,
    )
    assert found.finder == "dbm" and len(found) == 6
    for column, subset in enumerate(found.subsets):
        if column in (1, 3):
            fit = masks.fit(model, train, subset, together=True, progress=SILENT)
            one = squared_error(fit, validation, train=train, progress=SILENT)
            ours = found.errors["validation"][:, column]
            np.testing.assert_allclose(ours, one.errors(), atol=1e-4)
        # Masks leave the other head out, where whole heads cannot.
        assert (found.estimate(subset).value < 0.05) == (POSITION in map(str, subset))


def test_one_head_has_no_subsets(model: Model) -> None:
    batch = pairs(model, "subject_token", 2, 0)
    with pytest.raises(BadUsage, match="Subsets need at least two heads; got 1"):
        head_subsets(model, SUBSETS_OF_HEADS_HEADS[:1], train=batch, validation=batch, test=batch)
