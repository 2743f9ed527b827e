"""Subsets of heads in a model whose signals have one head each."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.features import DBM, FullVector
from mechassay.interchange import InterchangeBatch
from mechassay.models.model import Model
from mechassay.progress import SILENT
from mechassay.variables import expected_labels, head_subsets, squared_error
from mechassay.variables.models.ioi import ioi_model
from planted_ioi import HALF, POSITION, TOKEN, planted_examples, planted_ioi

HEADS = (POSITION, TOKEN, "heads.1.2@all", "heads.2.2@all")


@pytest.fixture(scope="module")
def model() -> Model:
    return planted_ioi()


def pairs(model: Model, variable: str, n: int, seed: int) -> InterchangeBatch:
    labels = expected_labels(ioi_model(0.0, HALF, HALF), variable, planted_examples(n, seed))
    return labels.tokenized(model, equal_lengths=True)[1]


@pytest.mark.parametrize(
    ("variable", "home"), [("subject_position", POSITION), ("subject_token", TOKEN)]
)
def test_the_subset_of_the_home_is_chosen(model: Model, variable: str, home: str) -> None:
    train, validation, test = (pairs(model, variable, 8, seed) for seed in range(3))
    found = head_subsets(
        model,
        HEADS,
        train=train,
        validation=validation,
        test=test,
        variable=variable,
        progress=SILENT,
    )
    assert len(found) == 14 and len({frozenset(each) for each in found.subsets}) == 14
    # The home alone, or with a head on which nothing hangs.
    assert {str(site) for site in found.chosen} in ({home}, {home, "heads.1.2@all"})
    assert found.estimate().value < 1e-5 < 5 < found.control("best constant").low
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
        found.estimate(HEADS)


def test_a_finder_is_fitted_for_every_subset(model: Model) -> None:
    train, validation, test = (pairs(model, "subject_position", 12, seed) for seed in range(3))
    masks = DBM(lr=0.1, steps=30, batch_size=40, loss="squared-error")
    found = head_subsets(
        model,
        HEADS[:3],
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
        head_subsets(model, HEADS[:1], train=batch, validation=batch, test=batch)
