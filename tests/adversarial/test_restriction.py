"""Restricted grids: which pairs are left, that they are the full grid's,
and what the split by template says, by hand.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mechassay.adversarial.controls import first_part
from mechassay.adversarial.divergence_file import DivergenceFile
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.fields import agreeing, common_fields, parse_same, parse_where
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.adversarial.worst import largest, random_cases
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.examples import Prompt
from mechassay.models.model import Model, make_model
from mechassay.progress import SILENT, Progress
from mechassay.stats.partial_grid import PartialGrid
from mechassay.stats.resampled import split_by
from mechassay.tasks.ioi import IOI
from tiny import with_words


@pytest.fixture(scope="module")
def reader() -> Model:
    """A model that reads IOI."""
    return make_model(*with_words())


@pytest.fixture(scope="module")
def pools(reader: Model) -> tuple[Pool, Pool]:
    return draw_pools(IOI(), reader, 14, 11, counterfactual="abc_counterfactual")


def small(*names: str, template: tuple[str, ...] = ()) -> Pool:
    prompts = tuple(Prompt(f"{name} to", spans={"name": (0, len(name))}) for name in names)
    return Pool(
        prompts,
        torch.zeros(len(names), 2, dtype=torch.long),
        {},
        {"template": template} if template else {},
    )


def test_labels_are_parts_or_columns() -> None:
    pool = small("Ann", "Bob", template=("a", "b"))
    assert pool.labels("name") == ("Ann", "Bob") and pool.labels("template") == ("a", "b")
    assert pool.labels("place") is None
    assert pool.select([1]).labels("template") == ("b",)


def test_prompts_that_agree_with_none_are_left_out_and_counted() -> None:
    clean, corrupted = (
        small("Ann", "Bob", "Cid", template=("a", "a", "b")),
        small("Bob", "Ann", "Dan", "Ann", template=("a", "b", "a", "a")),
    )
    ours, theirs, part = agreeing(clean, corrupted, ("name", "template"))
    assert [prompt.text for prompt in ours.prompts] == ["Ann to", "Bob to"] and ours.dropped == {
        "agrees with none of the other side in name, template": 1
    }
    assert [prompt.text for prompt in theirs.prompts] == ["Bob to", "Ann to"] and sum(
        theirs.dropped.values()
    ) == 2
    assert part.mask.tolist() == [[False, True], [True, False]]
    assert theirs.labels("template") == ("a", "a")


def test_fields_that_prompts_lack_are_refused() -> None:
    with pytest.raises(UnknownName, match="field of all prompts.*place.*name"):
        agreeing(small("Ann"), small("Ann"), ("place",))
    with pytest.raises(UnknownName, match="template"):
        agreeing(small("Ann", template=("a",)), small("Ann"), ("template",))
    with pytest.raises(BadPairs, match="there are no pairs"):
        agreeing(small("Ann"), small("Bob"), ("name",))
    assert common_fields(small("Ann", template=("a",)), small("Bob")) == ("name",)


def test_what_is_typed() -> None:
    assert parse_where(["object=a ring", "template=x = y"]) == {
        "object": "a ring",
        "template": "x = y",
    }
    assert parse_same("template, object") == ("template", "object") and parse_same("") == ()
    for wrong in (["object"], ["=x"], ["a=1", "a=2"]):
        with pytest.raises(BadUsage, match="FIELD=VALUE, each field once"):
            parse_where(wrong)
    for wrong in ("a,,b", "a,a", ","):
        with pytest.raises(BadUsage, match="FIELD or FIELD,FIELD"):
            parse_same(wrong)


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


def test_the_file_has_the_pairs_of_the_part_alone(tmp_path: Path) -> None:
    part = PartialGrid.of("aab", "abba")
    values = np.where(part.mask, np.arange(12.0).reshape(3, 4), np.nan).astype(np.float32)
    DivergenceFile(("one",), values[None] + 1, values).save(tmp_path / "v.parquet")
    back = DivergenceFile.load(tmp_path / "v.parquet", ["one"])
    np.testing.assert_array_equal(back.corrupted, values)
    np.testing.assert_array_equal(back.circuits[0], values + 1)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert list(zip(table["clean"].to_pylist(), table["corrupted"].to_pylist(), strict=True)) == [
        (0, 0),
        (0, 3),
        (1, 0),
        (1, 3),
        (2, 1),
        (2, 2),
    ]
    smaller = table.replace_schema_metadata({"shape": "2,4"})
    pyarrow.parquet.write_table(smaller, tmp_path / "w.parquet")
    with pytest.raises(BadFile, match="not a file of divergences"):
        DivergenceFile.load(tmp_path / "w.parquet", ["one"])


def test_pairs_that_are_none_are_never_worst_nor_drawn(
    reader: Model, pools: tuple[Pool, Pool]
) -> None:
    values = np.array([1.0, np.nan, 3.0, np.nan])
    assert largest(values, 4).tolist() == [2, 0]
    ours, theirs, part = agreeing(*pools, ("template",))
    circuit = Random(seed=1).draw(reader.graph).top(0.5)
    grid = evaluate_pairs(reader, [circuit], ours, theirs, part=part, progress=SILENT).circuits[0]
    cases = random_cases(reader, circuit, ours, theirs, grid, 10_000, np.random.default_rng(0))
    assert len(cases) == part.n_values and all(
        part.mask[case.clean, case.corrupted] and case.agrees for case in cases
    )


def test_the_first_part_has_pairs() -> None:
    part = PartialGrid.of("xaab", "bxxxa")
    rows, columns = first_part(part, part.shape, 2)
    assert rows.tolist() == [0, 1] and columns.tolist() == [1, 2]
    assert [axis.tolist() for axis in first_part(None, (3, 5), 4)] == [[0, 1, 2], [0, 1, 2, 3]]
    assert [axis.tolist() for axis in first_part(None, (30,), 4)] == [list(range(16))]


@pytest.mark.parametrize("name", ["object", "place", "template"])
def test_where_chooses_prompts_of_both_sides(reader: Model, name: str) -> None:
    plain = draw_pools(IOI(), reader, 5, 5, counterfactual="abc_counterfactual")
    labels = plain[0].labels(name)
    assert labels is not None
    chosen = draw_pools(
        IOI(), reader, 6, 4, where={name: labels[0]}, counterfactual="abc_counterfactual"
    )
    for pool, n in zip(chosen, (6, 4), strict=True):
        assert pool.labels(name) == (labels[0],) * n
    assert len(set(prompt.text for prompt in chosen[0].prompts)) == 6
    assert chosen[0].dropped[f"not {name} = {labels[0]}"] > 0


def test_a_field_or_value_that_is_not_there_is_refused(reader: Model) -> None:
    with pytest.raises(UnknownName, match=r"field of clean prompts of ioi.*objct.*object"):
        draw_pools(IOI(), reader, 2, 2, where={"objct": "ring"})
    # Who comes first is known of originals alone.
    with pytest.raises(UnknownName, match="field of corrupted prompts of ioi.*order"):
        draw_pools(IOI(), reader, 2, 2, where={"order": "ABBA"})
    with pytest.raises(BadPairs, match=r"0 clean .* not object = Zanzibar"):
        draw_pools(IOI(), reader, 2, 2, where={"object": "Zanzibar"})


def test_the_split_by_hand() -> None:
    values = np.array([[1.0, 2.0, 9.0], [3.0, 4.0, 8.0]])
    empty = np.array([[2.0, 4.0, 9.0], [4.0, 6.0, 16.0]])
    same, different = split_by(values, empty, ["a", "b"], ["a", "a", "b"], 0, n_resamples=20)
    # Same: 1, 2 and 8; of the empty circuit 2, 4 and 16.
    assert (same.pairs, same.n, different.n) == ("same", 3, 3)
    assert same.circuit["mean"][0] == pytest.approx(11 / 3) and same.circuit["max"][0] == 8
    assert same.left[0] == 0.5 and different.left[0] == pytest.approx(16 / 19)
    assert same.circuit["99%"][0] == pytest.approx(np.quantile([1, 2, 8], 0.99))
    assert all(math.isnan(end) for end in same.left[1:]), "two prompts allow no interval"
    assert [
        half.pairs for half in split_by(values, empty, ["a", "a"], ["a"] * 3, 0, n_resamples=20)
    ] == ["same"]
    holes = np.where([[True, True, False], [False, False, True]], values, np.nan)
    assert [
        half.n for half in split_by(holes, empty, ["a", "b"], ["a", "a", "b"], 0, n_resamples=20)
    ] == [3]


@pytest.mark.parametrize("kind", [0, 1], ids=["same", "different"])
def test_intervals_of_the_halves_cover(kind: int) -> None:
    """Means and shares left, of grids over four templates with effects of rows and columns:
    at least 93 %, to within four errors.
    """
    rng, n_grids = np.random.default_rng(kind), 100
    shift = np.array([0.0, 0.5, 1.0, 1.5])
    # Given the templates s and t: exp(shift + row + column) and twice that times another row
    # effect.
    cells = np.exp(0.5 * (shift[:, None] + shift[None, :]) + (0.5**2 + 0.4**2) / 2)
    mask = np.eye(4, dtype=bool) if kind == 0 else ~np.eye(4, dtype=bool)
    mean, left = (
        cells[mask].mean(),
        cells[mask].mean() / (2 * np.exp(0.3**2 / 2) * cells[mask].mean()),
    )
    covered = np.zeros(2)
    for _ in range(n_grids):
        s, t = rng.integers(4, size=120), rng.integers(4, size=100)
        row, column = rng.normal(scale=0.5, size=(120, 1)), rng.normal(scale=0.4, size=(1, 100))
        values = np.exp(0.5 * (shift[s][:, None] + shift[t][None, :]) + row + column)
        empty = 2 * values * np.exp(rng.normal(scale=0.3, size=(120, 1)))
        half = split_by(values, empty, list(map(str, s)), list(map(str, t)), 1, n_resamples=100)[
            kind
        ]
        covered += [
            low <= truth <= high
            for truth, (_, low, high) in ((mean, half.circuit["mean"]), (left, half.left))
        ]
    assert (covered / n_grids >= 0.93 - 4 * np.sqrt(0.93 * 0.07 / n_grids)).all(), covered
