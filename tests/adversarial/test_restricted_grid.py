"""Restricted grids have the values of the full one, and no other pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.fields import agreeing
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.adversarial.worst import cases_at, largest, random_places
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadFile, BadUsage
from mechassay.models.model import Model, make_model
from mechassay.progress import SILENT, Progress
from mechassay.tasks.ioi import IOI
from mechassay.testing.tiny import with_words


@pytest.fixture(scope="module")
def reader() -> Model:
    """A model that reads IOI."""
    return make_model(*with_words())


@pytest.fixture(scope="module")
def pools(reader: Model) -> tuple[Pool, Pool]:
    return draw_pools(IOI(), reader, 14, 11, counterfactual="abc_counterfactual")


def test_a_restricted_grid_has_the_values_of_the_whole_one(
    reader: Model, pools: tuple[Pool, Pool], tmp_path: Path
) -> None:
    circuits = [Random(seed=1).draw(reader.graph).top(share).pruned() for share in (0.4, 0.8)]
    ours, theirs, part = agreeing(*pools, ("template",))
    assert 0 < part.n_values < len(ours) * len(theirs)
    seen: list[int] = []

    class Counting(Progress):
        def track(self, text: str, total: int):
            seen.append(total)
            return SILENT.track(text, total)

    found = evaluate_pairs(
        reader, circuits, ours, theirs, part=part, store=tmp_path / "store", progress=Counting()
    )
    whole = evaluate_pairs(reader, circuits, ours, theirs, progress=SILENT)
    assert seen == [part.n_values]
    for some, all_ in (
        (found.corrupted, whole.corrupted),
        *zip(found.circuits, whole.circuits, strict=True),
    ):
        np.testing.assert_allclose(some[part.mask], all_[part.mask], atol=2e-5)
        assert np.isnan(some[~part.mask]).all(), "a pair outside of the restriction was run"
    # What is stored is taken up again, and is not taken for another part's.
    again = evaluate_pairs(
        reader, circuits, ours, theirs, part=part, store=tmp_path / "store", progress=SILENT
    )
    np.testing.assert_array_equal(again.circuits, found.circuits)
    with pytest.raises(BadFile, match="other circuits or prompts"):
        evaluate_pairs(reader, circuits, ours, theirs, store=tmp_path / "store", progress=SILENT)
    with pytest.raises(BadUsage, match="part of a grid"):
        evaluate_pairs(
            reader,
            circuits,
            *pools,
            part=part.select([0], [int(np.flatnonzero(part.mask[0])[0])]),
            progress=SILENT,
        )


def test_pairs_that_are_none_are_never_worst_nor_drawn(
    reader: Model, pools: tuple[Pool, Pool]
) -> None:
    values = np.array([1.0, np.nan, 3.0, np.nan])
    assert largest(values, 4).tolist() == [2, 0]
    ours, theirs, part = agreeing(*pools, ("template",))
    circuit = Random(seed=1).draw(reader.graph).top(0.5)
    grid = evaluate_pairs(reader, [circuit], ours, theirs, part=part, progress=SILENT).circuits[0]
    places = random_places(grid, 10_000, np.random.default_rng(0))
    cases = cases_at(reader, circuit, ours, theirs, grid, places)
    assert len(cases) == part.n_values and all(
        part.mask[case.clean, case.corrupted] and case.agrees for case in cases
    )
