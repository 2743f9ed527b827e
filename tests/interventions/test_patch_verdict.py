"""What a patching map says: of maps with a known answer, worthless ones, and ones made to fool it.

A planted map has a share for every cell, to which noise is added pair by pair.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import mechassay as ma
from helpers.tiny_models import with_words
from mechassay.interventions.activation_patching import patch
from mechassay.interventions.names import DIRECTIONS, Direction
from mechassay.interventions.patch_map import PatchMap
from mechassay.interventions.patch_verdict import answer_table
from mechassay.interventions.patching import PatchExperiment
from mechassay.models.model import make_model
from mechassay.prompts.batch import Batch
from mechassay.tasks.load import load_task
from mechassay.testing.tiny import subject
from mechassay.utils.display import SILENT

NAMES = Path(__file__).parents[2] / "docs" / "notebooks" / "names.csv"
OF_24 = "(n = 24 pairs in 24 groups)."


def planted(shares: Any, *, n: int = 24, noise: float = 0.02, **more: Any) -> PatchMap:
    """A map of the residual stream with these shares [layers, columns], or one for each pair.

    Its columns are [A], [B], ..., and [last]; the last layer is known by construction.
    """
    rng = np.random.default_rng(7)
    wanted = np.broadcast_to(np.asarray(shares, dtype=float), (n, *np.shape(shares)[-2:]))
    n_layers, columns = wanted.shape[1:]
    known = np.full(wanted.shape, np.nan)
    known[:, -1] = np.arange(columns) == columns - 1
    given = wanted + noise * rng.standard_normal(wanted.shape)
    names = [*"ABCDEFG"[: columns - 1], "last"]
    made = PatchMap(
        "resid",
        "denoising",
        "logit_diff",
        np.where(np.isnan(known), given, known),
        np.zeros(n),
        np.ones(n),
        known,
        tuple(range(n_layers)),
        (tuple(names),) * n,
        ("",) * n,
        tuple(map(str, range(n))),
        tuple(map(str, range(n))),
        {name: (column,) * n for column, name in enumerate(names)},
        n_layers - 1,
    )
    return replace(made, **more)


def planted_heads(shares: Any, *, n: int = 24, noise: float = 0.02, seed: int = 7) -> PatchMap:
    """A map of heads with these shares [layers, heads]; all of its cells are measured."""
    rng = np.random.default_rng(seed)
    wanted = np.broadcast_to(np.asarray(shares, dtype=float), (n, *np.shape(shares)[-2:]))
    values = wanted + noise * rng.standard_normal(wanted.shape)
    return replace(
        planted(wanted[0], n=n), part="heads", values=values, known=np.full(values.shape, np.nan)
    )


def moving(*rows: tuple[float, ...]) -> list[tuple[float, ...]]:
    """Rows of a map, and the last layer, where nothing but [last] is read."""
    return [*rows, (*(0.0,) * (len(rows[0]) - 1), 1.0)]


MOVES = moving((1, 0, 0), (1, 0, 0), (0.9, 0, 0.1), (0.1, 0, 0.9), (0, 0, 1))
"""The answer leaves [A] after layer 2 and is at [last] from layer 3 on."""


# The residual stream


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_planted_move_is_said_first_with_its_layers_and_number_of_pairs(
    direction: Direction,
) -> None:
    found = planted(MOVES)
    if direction == "noising":
        values = found.source[:, None, None] - found.values
        found = replace(
            found, direction=direction, values=values, base=found.source, source=found.base
        )
    said = found.verdict
    assert said.startswith(f"The answer moves from [A] to [last] between layers 2 and 3 {OF_24}")
    assert "[A] is last above one half at layer 2 (0." in said
    assert "[last] is first above one half at layer 3 (0." in said and "On the way" not in said


def test_what_is_not_resolved_lies_between_the_layers() -> None:
    straddling = moving((1, 0), (1, 0), (0.52, 0.48), (0.51, 0.52), (0, 1))
    said = planted(straddling, noise=0.3).verdict
    assert said.startswith(f"The answer moves from [A] to [last] between layers 1 and 4 {OF_24}")
    sharp = planted(straddling, noise=0.001).verdict
    assert "while [A] still has it" not in said and "reaches [last] by layer 3 while" in sharp


def test_one_pair_with_a_huge_effect_cannot_place_the_move() -> None:
    """Of 23 pairs the answer moves after layer 2; of one, with a hundred times the difference,
    after layer 4, so that the share of all is that pair's.
    """
    late = moving((1, 0, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0))
    size = np.r_[100.0, np.ones(23)]
    shares = np.array([late, *[MOVES] * 23])
    found = planted(shares)
    found = replace(found, values=found.values * size[:, None, None], source=size)
    whole = found.whole
    assert whole is not None and whole.share[3, 0] > 0.75 and whole.share[3, -1] < 0.25
    assert found.verdict.startswith("The answer moves from [A] to [last] between layers 2 and 5")


@pytest.mark.parametrize(
    ("shares", "first"),
    [
        pytest.param(
            moving((0.4, 0.35, 0), (0.4, 0.3, 0.1), (0.1, 0, 0.9)),
            "The answer reaches [last] by layer 2, and no single place is resolved above one half"
            f" at layer 0, the first that was run {OF_24} The largest shares at layer 0 are [A]",
            id="shared",
        ),
        pytest.param(
            moving((0.4, 0.4, 0), (0.4, 0.3, 0.1), (0.3, 0, 0.4)),
            "Nothing is located: no measured place is resolved above one half at any layer"
            f" {OF_24} The largest shares at layer 0 are [",
            id="nowhere",
        ),
        pytest.param(
            moving((1, 0.9, 0), (1, 0.8, 0), (0, 0.7, 0.1), (0, 0, 1)),
            f"The answer moves from [A] and [B] to [last] between layers 2 and 3 {OF_24} [A] is"
            " last above one half at layer 1 (",
            id="two sources",
        ),
        pytest.param(
            moving((1, 0, 0), (1, 0, 0.9), (0.8, 0, 1), (0, 0, 1)),
            f"The answer reaches [last] by layer 1 while [A] still has it, up to layer 2 {OF_24}",
            id="both at once",
        ),
        pytest.param(
            moving((1, 0, 0), (0.2, 0, 0.3), (0, 0, 0.3)),
            "The answer leaves [A] after layer 0, and stands at no single place until layer"
            f" 3, where [last] has all of it by construction {OF_24}",
            id="spread until the end",
        ),
        pytest.param(
            moving((1, 0, 0), (1, 0, 0), (1, 0, 0)),
            f"The answer moves from [A] to [last] between layers 2 and 3 {OF_24} [A] is last above"
            " one half at layer 2 (",
            id="in the last block",
        ),
        pytest.param(
            moving((0, 0, 1), (0, 0, 1)),
            f"The answer stands at [last] from layer 0 on, the first that was run {OF_24}",
            id="at the end already",
        ),
    ],
)
def test_first_sentences_of_planted_maps(shares: Sequence[tuple[float, ...]], first: str) -> None:
    assert planted(shares).verdict.startswith(first)


def test_places_on_the_way_and_back_again_are_said() -> None:
    said = planted(moving((1, 0, 0), (0, 1, 0), (0, 1, 0), (0, 0, 1), (0, 0.4, 0.3))).verdict
    assert said.startswith("The answer moves from [A] to [last] between layers 0 and 3")
    assert "On the way, [B] is above one half at layer 1 to layer 2." in said
    assert "[last] is below one half again at layer 4." in said


def test_some_layers_alone_are_said_to_be_some() -> None:
    found = planted(MOVES, layers=(2, 5, 8, 11, 14, 17), last_layer=17)
    assert found.verdict.startswith("The answer moves from [A] to [last] between layers 8 and 11")
    some = "Only layer 2, layer 5, layer 8, layer 11, layer 14, layer 17 of 18 layers were run."
    assert some in found.verdict and "Only" not in planted(MOVES).verdict
    turned = replace(
        found, layers=found.layers[::-1], values=found.values[:, ::-1], known=found.known[:, ::-1]
    )
    assert turned.verdict.startswith("The answer moves from [A] to [last] between layers 8 and 11")
    early = replace(
        found, layers=(2, 5), values=found.values[:, :2], known=np.full((24, 2, 3), np.nan)
    )
    assert early.verdict.startswith(
        "The answer stands at [A] up to layer 5, and does not reach [last] by layer 5, the last"
        f" that was run {OF_24}"
    )


# No verdict


@pytest.mark.parametrize("n_groups", [2, 19])
def test_few_groups_have_no_verdict_however_many_pairs_there_are(n_groups: int) -> None:
    groups = tuple(str(i % n_groups) for i in range(40))
    said = planted(MOVES, n=40, groups=groups).verdict
    assert said.startswith(
        f"No verdict: it needs 20 groups of pairs, and the map is of {n_groups} (n = 40 pairs in"
        f" {n_groups} groups)."
    )
    enough = tuple(str(i % 20) for i in range(40))
    assert planted(MOVES, n=40, groups=enough).verdict.startswith("The answer moves")


def test_a_model_that_cannot_tell_the_prompts_apart_moves_nothing() -> None:
    sign = np.where(np.arange(24) % 2, 1.0, -1.2)
    found = planted(MOVES)
    found = replace(found, values=found.values * sign[:, None, None], source=sign)
    assert found.verdict.startswith("Nothing is seen to move: ")
    worse = replace(found, values=-planted(MOVES).values, source=-np.ones(24))
    assert worse.verdict.startswith("No answer to locate: the model does better on the counterfac")
    # Of an objective of which less is better, that is what an answer looks like.
    lower = replace(worse, higher_is_better=False)
    assert lower.verdict.startswith("The answer moves from [A] to [last] between layers 2 and 3")
    assert planted(MOVES, source=np.zeros(24)).verdict.startswith("No share is defined")


def test_random_models_move_nothing() -> None:
    for seed in range(3):
        hf, tokenizer = with_words(seed)
        model = make_model(hf, tokenizer, name="tiny")
        pairs = load_task("ioi").pairs("train", model, limit=24)
        for part in ("resid", "heads"):
            said = patch(model, pairs, part=part, progress=SILENT).verdict
            assert said.startswith("Nothing is seen to move: ") and "24 groups" in said


def test_a_map_of_cells_that_are_all_known_measures_nothing() -> None:
    """Prompts that differ in their last token alone: every share is fixed, however large."""
    case = subject("llama", dtype=torch.float64)
    clean = [[number, 5, number % 3] for number in range(24)]
    other = [[number, 5, 3 + number % 3] for number in range(24)]
    batch = Batch.from_tokens(clean, other, [7] * 24, [8] * 24)
    found = patch(case.model, batch, progress=SILENT)
    assert found.by_construction.all() and np.allclose(found.share[:, -1], 1)
    assert found.verdict.startswith("Nothing is measured: every cell is 0 or 1 by construction")
    record = found.record()
    assert record.measure("largest_share") is None and record.checks[0].n == 3
    # MLPs at that token are measured: their outputs are not all that differs.
    mlps = patch(case.model, batch, part="mlp", progress=SILENT)
    assert not mlps.by_construction[:, -1].any() and mlps.by_construction[:, :-1].all()


def test_the_embedding_and_the_last_block_alone_locate_nothing() -> None:
    found = planted(moving((1, 0, 0)), layers=(-1, 5), last_layer=5)
    found = replace(found, known=np.broadcast_to(np.round(found.values), found.values.shape))
    assert found.verdict.startswith("Nothing is measured")
    half = replace(found, known=np.where(np.arange(3) == 1, np.nan, found.known))
    assert half.verdict.startswith("Nothing is located: no measured place is resolved")


# Heads and MLPs


def test_the_heads_that_help_and_those_that_oppose_are_named_apart() -> None:
    shares = np.zeros((4, 5))
    shares[1, 2], shares[3, 0], shares[2, 4] = 0.3, 0.6, -0.8
    said = planted_heads(shares).verdict
    helped, opposed = said.split(", and opposed most by ")
    assert helped.startswith("The answer is helped most by head 3.0 (0.")
    assert "head 1.2 (0." in helped and "head 2.4" not in helped
    assert opposed.startswith("head 2.4 (-0.") and f") {OF_24}" in opposed
    assert "Of 20 measured cells, taken together, 2 are resolved to help and 1 to oppose." in said
    table = answer_table(planted_heads(shares).record(), "")
    works = {row[0]: row[2] for row in table.texts}
    assert works["head 3.0"] == works["head 1.2"] == "helps" and works["head 2.4"] == "opposes"
    assert {*works.values()} == {"helps", "opposes", "not resolved"}


def test_of_many_heads_that_do_nothing_none_is_named() -> None:
    """Of 200 heads ten are beyond their own intervals by chance in every map; joint intervals
    keep the share of maps with any at 5 %.
    """
    alone, together = 0, 0
    for seed in range(12):
        found = planted_heads(np.zeros((10, 20)), n=30, noise=0.3, seed=seed)
        low, high = found.intervals
        alone += bool(((low > 0) | (high < 0)).any())
        none = "No head is resolved to help or to oppose the answer; the largest share is"
        together += not found.verdict.startswith(none)
    assert alone == 12 and together <= 2


def test_one_pair_alone_makes_no_helper() -> None:
    values = np.zeros((24, 2, 3))
    values[0, 1, 1] = 50.0
    found = planted_heads(values)
    assert found.share[1, 1] > 2 and found.verdict.startswith("No head is resolved to help")


# Ground truth, and the page


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_mechanism_that_was_built_in_is_what_is_said(direction: Direction) -> None:
    """truth-ioi: the token that differs is read at the last token after block 1, by three heads."""
    model = ma.load_model("truth-ioi")
    pairs = ma.load_task(str(NAMES)).pairs("train", model, limit=24)
    found = patch(model, pairs, direction=direction, progress=SILENT)
    assert found.verdict.startswith(
        f"The answer moves from [the token that differs] to [last] between layers 0 and 1 {OF_24}"
    )
    # A token that the model happens not to use is measured to be 0, not known to be.
    assert not found.by_construction[0, -2] and abs(found.share[0, -2]) < 1e-4
    heads = patch(model, pairs, part="heads", direction=direction, progress=SILENT).verdict
    first, _ = heads.split("; no head is resolved to oppose it")
    assert all(f"head {name} (1.000" in first for name in ("0.3", "1.0", "2.2"))
    assert "3 are resolved to help and 0 to oppose" in heads


@pytest.mark.charts
def test_the_sentence_stands_first_on_page_markdown_console_and_in_a_notebook(
    tmp_path: Path,
) -> None:
    experiment = PatchExperiment(
        ("truth-ioi",), (str(NAMES),), parts=("heads", "resid"), split="train", limit=24
    )
    results = ma.run(experiment, tmp_path / "run", progress=SILENT)
    said = "The answer moves from [the token that differs] to [last] between layers 0 and 1"
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert page.index(said) < page.index("The answer is helped most by") < page.index("<svg")
    assert "hatched: 0 or 1 by construction" in page
    lines = (tmp_path / "run" / "tables.md").read_text("utf-8").splitlines()
    assert lines[0].startswith("**truth-ioi, names.csv, residual stream, denoising.** " + said)
    console = Console(file=io.StringIO(), width=1000)
    experiment.show(results, console)
    shown: Any = console.file
    first, *others = shown.getvalue().splitlines()
    assert first.startswith("truth-ioi, names.csv, residual stream, denoising. " + said)
    assert any("1 by construction" in line for line in others)
    heat = PatchMap.load(next((tmp_path / "run" / "maps").glob("*/resid.safetensors")))
    html = heat._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert html.index(said) < html.index("<table") < html.index("<svg")


def test_cells_that_are_known_are_hatched_and_have_no_number() -> None:
    figure = planted(MOVES).plot()
    axes = figure.axes[0]
    assert len(axes.collections) == 1 and axes.collections[0].get_hatch() == "///"
    boxes = [path.get_extents().bounds for path in axes.collections[0].get_paths()]
    assert boxes == [(column - 0.5, 4.5, 1.0, 1.0) for column in range(3)]
    written = {(text.get_position(), text.get_text()) for text in axes.texts}
    assert ((0, 0), "1.0") in written and not any(y == 5 for (_, y), _ in written)
