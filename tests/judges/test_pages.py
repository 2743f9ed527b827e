"""Charts of an evaluation: what they draw, papers without a score, names that are markup."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from mechassay.claims.rubric import load_rubric
from mechassay.judges.evaluation import DimensionLevels, JudgedPaper, JudgeEvaluation
from mechassay.judges.pages import draw_confusion, draw_dimensions, draw_scores
from mechassay.judges.published import published_evaluation
from mechassay.results.plots import svg

RUBRIC = load_rubric()
PUBLISHED = published_evaluation().record()


def small(*papers: JudgedPaper, **more: Any) -> Any:
    return JudgeEvaluation(RUBRIC, "judge", "labels", papers, **more).record()


def test_scores_stand_where_they_are() -> None:
    ax = draw_scores(PUBLISHED, RUBRIC).axes[0]
    points = [line for line in ax.lines if line.get_marker() in ("o", "^", "v")]
    found = [float(line.get_xdata()[0]) for line in points]  # pyright: ignore
    assert found == pytest.approx([row["cvs"] for row in PUBLISHED.table("papers").rows()])
    assert [line.get_marker() for line in points].count("^") == 4
    bands = [(patch.get_x(), patch.get_width()) for patch in ax.patches]  # pyright: ignore
    assert bands[0] == (0, 2) and bands[-1] == (8, 2)


def test_a_judge_below_the_label_and_one_without_a_score() -> None:
    record = small(
        JudgedPaper("low", 1.0, "Proposed", "Validated"),
        JudgedPaper("none", math.nan, "", "Proposed"),
    )
    ax = draw_scores(record, RUBRIC).axes[0]
    assert "v" in [line.get_marker() for line in ax.lines]
    assert "no score" in [text.get_text() for text in ax.texts]


def test_counts_of_the_confusion() -> None:
    texts = [text.get_text() for text in draw_confusion(PUBLISHED, RUBRIC).axes[0].texts]
    assert sum(map(int, texts)) == 9 and len(texts) == 8


def test_dimensions_have_a_panel_a_paper() -> None:
    levels = {each.code: 2.0 for each in RUBRIC.dimensions}
    alone = DimensionLevels("$alone$", levels, {}, 0)
    both = DimensionLevels("both", levels, dict.fromkeys(levels, 0.5), 3)
    paper = JudgedPaper("both", 5.0, "Mechanistically Supported", "Proposed")
    figure = draw_dimensions(small(paper, dimensions=(alone, both)), RUBRIC)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title(loc="left").strip() for ax in shown] == ["$alone$", "both"]
    assert [len(ax.lines) for ax in shown] == [5, 15]


def test_charts_are_svg_of_any_names() -> None:
    record = small(JudgedPaper('<b>"$x$&', 1.0, "Proposed", "Proposed"))
    for drawn in (draw_scores(record, RUBRIC), draw_confusion(record, RUBRIC)):
        ElementTree.fromstring(svg(drawn))
