"""One interchange on both models: what the causal model says, and what the model writes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from matplotlib.patches import FancyArrowPatch, Rectangle

import mechassay as ma
from mechassay.errors import BadUsage, UnknownName
from mechassay.features.featurizer import Identity
from mechassay.features.finder import Fit
from mechassay.interventions.site import Site, load_site
from mechassay.variables.alignment import VariableAlignment
from mechassay.variables.data import answered_examples
from mechassay.variables.interchange_figure import draw_interchange

NAME, TASK, POINTER = "truth-mcqa-trained", "truth-mcqa", "answer_pointer"


@pytest.fixture(scope="module")
def model() -> ma.Model:
    return ma.load_model(NAME)


def alignment(model: ma.Model | None, site: str = "resid.1@last") -> VariableAlignment:
    fit = Fit(MappingProxyType({load_site(site): Identity(48)}))
    made = VariableAlignment(TASK, POINTER, NAME, fit)
    return made if model is None else made.on(model)


def texts(figure: Any) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts] + [
        text.get_text() for text in figure.texts
    ]


def test_the_label_of_the_causal_model_is_written_where_the_variable_is(model: ma.Model) -> None:
    """At its known site the model writes what the causal model says; at the embedding it does not.

    The base asks for the third choice (K), the source for the second: the answer is the base's
    second letter.
    """
    example = answered_examples(model, ma.load_task(NAME), "test", 1)[0]
    figure = draw_interchange(alignment(model), example)
    seen = texts(figure)
    pointed = next(text for text in seen if text.startswith("answer pointer ="))
    answer = next(text for text in seen if text.startswith("answer =")).split("\n")[1]
    letters = [word for word in example.prompt.text.split() if word.isupper()]
    assert letters[int(pointed.split("\n")[1])] == answer
    assert f"expected ' {answer}'" in seen[-1] and seen[-1].endswith("writes it.")
    assert seen.count("base") == seen.count("source") == 1
    boxes = [x for x in figure.axes[1].patches if isinstance(x, Rectangle) and x.get_fill()]
    marked = [x for x in boxes if x.get_facecolor()[3] > 0]
    arrows = [x for x in figure.axes[1].patches if isinstance(x, FancyArrowPatch)]
    assert len(marked) == 2 and len(arrows) == 1
    wrong = texts(draw_interchange(alignment(model, "resid.-1@last"), example))
    assert wrong[-1].endswith("does not write it.")


def test_what_cannot_be_drawn_is_one_line(model: ma.Model) -> None:
    example = answered_examples(model, ma.load_task(NAME), "test", 1)[0]
    with pytest.raises(BadUsage, match="has no model"):
        draw_interchange(alignment(None), example)
    for site in ("resid.1@all", "resid.1@2"):
        with pytest.raises(BadUsage, match="one named token"):
            draw_interchange(alignment(model, site), example)
    with pytest.raises(UnknownName, match="kind of counterfactual"):
        draw_interchange(alignment(model), example, "color")
    assert Site(1, "last") in alignment(model).fit
