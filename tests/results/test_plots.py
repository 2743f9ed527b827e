"""Figures: well-formed, complete, and readable when values are undefined or explode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.etree.ElementTree import Element

import matplotlib as mpl
import numpy as np
import pytest

from mechassay.results.plots import (
    PALETTE,
    colours,
    draw_areas,
    draw_faithfulness,
    svg,
)
from mechassay.results.records import Record

SVG = "{http://www.w3.org/2000/svg}"
Make = Callable[..., Record]
Parse = Callable[[str], Element]


def faithfulness_svg(records: Sequence[Record]) -> str:
    return svg(draw_faithfulness(records))


def areas_svg(records: Sequence[Record]) -> str:
    return svg(draw_areas(records))


def texts(root: Element) -> list[str]:
    return ["".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")]


def test_both_figures_parse_and_name_everything(make_record: Make, parse: Parse) -> None:
    records = [make_record("eap"), make_record("eap-ig-inputs")]
    found = texts(parse(faithfulness_svg(records)))
    assert {
        "eap",
        "eap-ig-inputs",
        "random edges (mean and range of seeds)",
        "random paths (mean and range of seeds)",
        "full circuit, f = 1",
    } <= set(found)
    assert {"eap", "eap-ig-inputs", "random edges", "random paths"} <= set(
        texts(parse(areas_svg(records)))
    )


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "cost$1$ & more", "_hidden", 'quo"te']
)
def test_hostile_names_are_text(make_record: Make, parse: Parse, name: str) -> None:
    for drawn in (faithfulness_svg([make_record(name)]), areas_svg([make_record(name)])):
        assert "<script" not in drawn
        assert name in texts(parse(drawn))


def test_undefined_values_are_gaps(undefined: Record, make_record: Make, parse: Parse) -> None:
    parse(faithfulness_svg([undefined]))
    assert texts(parse(areas_svg([undefined]))).count("undefined") == 2
    gap = draw_faithfulness([make_record(f=[0.1, None, 0.5, 1.0])]).axes[0]
    drawn = next(line for line in gap.get_lines() if line.get_marker() == "o")
    assert np.isnan(np.asarray(drawn.get_ydata(), dtype=float)).tolist() == [
        False,
        True,
        False,
        False,
    ]


def test_an_exploding_method_does_not_squash_the_others(make_record: Make, parse: Parse) -> None:
    records = [make_record("fine"), make_record("wild", f=[0.2, 30.0, 0.9, 1.0])]
    low, high = draw_faithfulness(records).axes[0].get_ylim()
    assert low <= 0 and 1 < high < 5
    assert "30" in texts(parse(faithfulness_svg(records)))


@pytest.mark.parametrize(
    ("profile", "expected"), [("strict", [0.0, 0.09, 0.2, 1.0]), ("mib-2025", [0.0, 0.1, 0.2, 1.0])]
)
def test_sizes_are_the_profiles(make_record: Make, profile: str, expected: list[float]) -> None:
    """Kept edges or nominal sizes; an empty circuit stands left of all of them."""
    ax = draw_faithfulness([make_record(profile=profile, kept=[0, 90, 200, 1000])]).axes[0]
    drawn = next(line for line in ax.get_lines() if line.get_marker() == "o")
    x = np.asarray(drawn.get_xdata(), dtype=float)
    assert x[1:].tolist() == expected[1:]
    assert (
        0 < x[0] < 0.008
    )  # left of the smallest circuit anywhere, the random rankings' of 8 edges
    assert ax.get_xticklabels()[0].get_text() == "0"


def test_svgs_can_stand_side_by_side(make_record: Make, parse: Parse) -> None:
    """No prolog, text in the page's colour, ids shared by no two figures, references that hold."""
    one, two = faithfulness_svg([make_record("a")]), faithfulness_svg([make_record("b")])
    ids = [
        {str(element.get("id")) for element in parse(svg).iter() if element.get("id")}
        for svg in (one, two)
    ]
    assert one.startswith("<svg") and "currentColor" in one
    assert not ids[0] & ids[1]
    references = {
        value[1:]
        for element in parse(one).iter()
        for key, value in element.attrib.items()
        if key.endswith("href")
    }
    assert references <= ids[0]
    assert faithfulness_svg([make_record("a")]) == one


def test_no_global_state_is_left(make_record: Make) -> None:
    before = dict(mpl.rcParams)
    faithfulness_svg([make_record()])
    assert dict(mpl.rcParams) == before


def test_colours_are_distinct_and_random_is_grey(make_record: Make) -> None:
    found = colours([make_record("random"), make_record("eap"), make_record("exact")])
    assert found[0] not in PALETTE
    assert found[1:] == list(PALETTE[:2])


def test_without_a_control_or_records(make_record: Make, parse: Parse) -> None:
    assert "random" not in " ".join(texts(parse(faithfulness_svg([make_record(seeds=0)]))))
    parse(areas_svg([make_record(seeds=0)]))
