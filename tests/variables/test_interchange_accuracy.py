"""Interchange intervention accuracy where it is known: a model that was built by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mechassay as ma
from mechassay.errors import BadUsage, UnknownName
from mechassay.features.finder import Fit
from mechassay.prompts.interchanges import InterchangePair
from mechassay.utils.display import SILENT
from mechassay.variables.interchange_accuracy import accuracy

NAMES = Path(__file__).parents[2] / "docs" / "notebooks" / "names.csv"
SITES = ("resid.0@last", "resid.1@last", "resid.2@last", "resid.0@0", "heads.2.2@last")


@pytest.fixture(scope="module")
def fit() -> Fit:
    model = ma.load_model("truth-ioi")
    train = ma.load_task(str(NAMES)).pairs("train", model, limit=20)
    return ma.features.FullVector().fit(model, train, SITES, progress=SILENT)


def test_the_answer_stands_where_it_was_built_in(fit: Fit) -> None:
    assert fit.model is not None
    pairs = ma.load_task(str(NAMES)).pairs("test", fit.model)
    found = accuracy(fit, pairs, progress=SILENT)
    n = len(pairs)
    # After block 1 the name stands at the last token; before, nothing there tells it.
    values = [found.estimate(site).value for site in SITES]
    assert values == [0.0, 1.0, 1.0, 0.0, 1.0]
    assert [found.estimate(site, "no intervention").value for site in SITES] == [0.0] * 5
    # A fit of the full vector is its own control, and so are as many random directions as it has.
    for control in ("full vector", "random"):
        np.testing.assert_array_equal(found.right[control], found.right["features"])
    assert found.n_features[:2] == (fit.model.decoder.d_model,) * 2
    assert str(found.best) == "resid.1@last" and found.estimate("resid.1@last").low > 0.7
    columns = found.columns()
    assert len(columns["site"]) == 4 * len(SITES) and set(columns["n"]) == {n}
    assert "resid.1@last" in found._repr_html_() and found.plot() is not None  # pyright: ignore[reportPrivateUsage]


def test_one_random_direction_is_worth_nothing(fit: Fit) -> None:
    assert fit.model is not None
    train = ma.load_task(str(NAMES)).pairs("train", fit.model, limit=20)
    pairs = ma.load_task(str(NAMES)).pairs("test", fit.model)
    one = ma.features.RandomDirections(k=1).fit(fit.model, train, SITES[:2], progress=SILENT)
    found = accuracy(one, pairs, seed=1, progress=SILENT)
    assert found.estimate("resid.1@last").value < 0.2
    assert found.estimate("resid.1@last", "random").value < 0.2
    assert found.estimate("resid.1@last", "full vector").value == 1.0


def test_a_fit_that_was_read_needs_its_model(fit: Fit, tmp_path: Path) -> None:
    assert fit.model is not None
    pairs = ma.load_task(str(NAMES)).pairs("test", fit.model, limit=4)
    read = Fit.load(fit.save(tmp_path / "fit.safetensors"))
    with pytest.raises(BadUsage, match="accuracy needs model="):
        accuracy(read, pairs)
    again = accuracy(read, pairs, model=fit.model, progress=SILENT)
    assert again.estimate("resid.1@last").value == 1.0
    with pytest.raises(UnknownName, match="Did you mean 'resid.1@last'"):
        again.estimate("resid.1@lost")
    assert replace(read, model=fit.model).model is fit.model


def test_other_right_labels_that_do_not_count_are_said(fit: Fit) -> None:
    assert fit.model is not None
    pairs = ma.load_task(str(NAMES)).pairs("test", fit.model, limit=3)
    rows = [InterchangePair.from_pair(pair) for pair in pairs]
    plain = accuracy(fit, rows, progress=SILENT)
    assert plain.warnings == ()
    # The right label stands second: it is written, and does not count.
    doubled = [replace(row, label=(*row.base_labels, *row.labels)) for row in rows]
    found = accuracy(fit, doubled, progress=SILENT)
    assert found.warnings == (
        "3 of 3 rows have other right labels than the one that counts: their accuracy is too low.",
    )
    assert found.estimate("resid.1@last").value == 0.0
    assert "too low" in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
