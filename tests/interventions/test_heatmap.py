"""Heat maps of accuracies: every cell where it belongs."""

from __future__ import annotations

import math

import numpy as np

from mechassay.interventions.heatmap import draw_accuracies


def test_cells_are_the_largest_of_their_place_and_gaps_stay_empty() -> None:
    figure = draw_accuracies(
        [2, 0, 0, 2, -1], ["last", "last", "last", "a", "a"], [0.9, 0.1, 0.4, math.nan, 0.2]
    )
    (axes, _) = figure.axes
    (image,) = axes.images
    shown = np.ma.filled(image.get_array().astype(float), -1.0)
    # Layers from the bottom up; the embedding is layer -1.
    assert shown.tolist() == [[-1.0, 0.2], [0.4, -1.0], [0.9, -1.0]]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["embed", "0", "2"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["last", "a"]
    assert sorted(text.get_text() for text in axes.texts) == ["0.20", "0.40", "0.90"]
    assert image.get_clim() == (0.0, 1.0)
