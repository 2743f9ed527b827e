"""Causal models: what follows, against the enumeration of all settings, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from mechassay.errors import BadUsage, UnknownName
from mechassay.variables import CausalModel, Undecided, Variable

DIGIT = Variable(range(10))


def digits() -> CausalModel:
    return CausalModel(
        "sum of digits",
        {
            # Not in order: a model is a graph.
            "result": Variable(range(20), lambda carry, ones: 10 * carry + ones),
            "x": DIGIT,
            "y": DIGIT,
            "carry": Variable((0, 1), lambda x, y: int(x + y >= 10)),
            "ones": Variable(range(10), lambda x, y: (x + y) % 10),
        },
    )


def random_model(rng: np.random.Generator) -> CausalModel:
    """Six variables of two or three values, whose mechanisms are tables of random values."""
    sizes = [int(n) for n in rng.integers(2, 4, size=6)]
    variables: dict[str, Any] = {}
    for number, size in enumerate(sizes):
        count = int(rng.integers(0, min(number, 3) + 1))
        chosen: list[int] = sorted(rng.choice(number, count, replace=False).tolist())
        if not chosen:
            variables[f"v{number}"] = range(size)
            continue
        table = rng.integers(size, size=[sizes[parent] for parent in chosen])
        variables[f"v{number}"] = Variable(
            range(size),
            lambda *values, table=table: int(table[values]),
            parents=tuple(f"v{parent}" for parent in chosen),
        )
    return CausalModel("random", variables, output="v5")


def enumerated(
    model: CausalModel, inputs: Mapping[str, Any], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """The one setting, of all there are, in which every equation holds."""
    names = list(model.variables)
    holding: list[dict[str, Any]] = []
    for values in product(*(model.variables[name].values for name in names)):
        setting = dict(zip(names, values, strict=True))

        def holds(name: str, setting: dict[str, Any] = setting) -> bool:
            if name in fixed:
                return setting[name] == fixed[name]
            mechanism = model.variables[name].mechanism
            if mechanism is None:
                return setting[name] == inputs[name]
            return setting[name] == mechanism(*(setting[p] for p in model.parents[name]))

        if all(map(holds, names)):
            holding.append(setting)
    assert len(holding) == 1
    return holding[0]


# --- what follows ---------------------------------------------------------------------------------


def test_a_run_worked_by_hand() -> None:
    found = digits().run({"x": 7, "y": 5})
    assert found == {"x": 7, "y": 5, "carry": 1, "ones": 2, "result": 12}


def test_an_intervention_and_an_interchange_worked_by_hand() -> None:
    model = digits()
    assert model.intervene({"x": 7, "y": 5}, {"carry": 0})["result"] == 2
    # 7 + 5 carries and 1 + 3 does not; its ones are 4.
    base, source = {"x": 7, "y": 5}, {"x": 1, "y": 3}
    assert model.interchange(base, {"carry": source})["result"] == 2
    assert model.interchange(base, {"ones": source})["result"] == 14
    assert model.interchange(base, {"carry": source, "ones": source})["result"] == 4
    # An input can be exchanged too: 1 + 5.
    assert model.interchange(base, {"x": source})["result"] == 6


@pytest.mark.parametrize("seed", range(6))
def test_runs_interventions_and_interchanges_are_those_of_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng)

    def inputs() -> dict[str, int]:
        return {name: int(rng.integers(len(model.variables[name].values))) for name in model.inputs}

    for _ in range(4):
        base, source = inputs(), inputs()
        assert model.run(base) == enumerated(model, base, {})
        of_source = enumerated(model, source, {})
        for name in model.variables:
            fixed = {name: of_source[name]}
            expected = enumerated(model, base, fixed)
            assert model.intervene(base, fixed) == expected
            assert model.interchange(base, {name: source}) == expected
            assert model.value(name, source) == of_source[name]


def test_an_interchange_with_itself_changes_nothing() -> None:
    model = digits()
    for x, y in product(range(10), range(10)):
        base = {"x": x, "y": y}
        assert all(
            model.interchange(base, {name: base}) == model.run(base) for name in model.variables
        )


def test_the_graph() -> None:
    model = digits()
    assert model.inputs == ("x", "y")
    assert set(model.inner) == {"carry", "ones", "result"} and model.inner[-1] == "result"
    assert model.depths == {"x": 0, "y": 0, "carry": 1, "ones": 1, "result": 2}
    assert model.output == "result"
    assert model.parents["result"] == ("carry", "ones")
    assert model.before("carry") == {"x", "y", "carry"}
    assert model.unchecked == ()


def test_a_value_needs_only_what_leads_to_it() -> None:
    def never(y: int) -> int:
        raise Undecided("never")

    halves = {"a": Variable(int, lambda x: x + 1), "b": Variable(int, never)}
    model = CausalModel("halves", {"x": int, "y": int, **halves}, output="a")
    assert model.value("a", {"x": 1}) == 2
    assert model.unchecked == ("a", "b")
    with pytest.raises(Undecided, match="does not say what follows: never."):
        model.run({"x": 1, "y": 1})


# --- what is refused ------------------------------------------------------------------------------


def test_a_cycle_is_refused() -> None:
    with pytest.raises(BadUsage, match=r"'ring' has a cycle: .*a -> .*b|b -> .*a"):
        CausalModel(
            "ring", {"a": Variable((0, 1), lambda b: b), "b": Variable((0, 1), lambda a: a)}
        )


def test_an_unknown_parent_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"parent of 'b' in 'm' 'carri'. Did you mean 'carry'"):
        CausalModel("m", {"carry": (0, 1), "b": Variable((0, 1), lambda carri: carri)})


@pytest.mark.parametrize(
    ("mechanism", "said"),
    [
        (lambda x: {0: 1}[x], r"x=1 raises KeyError"),
        (lambda x: 2 * x, r"x=1 gives 2, which is none of 0, 1"),
        (lambda x: None, r"x=0 gives None"),
    ],
)
def test_a_mechanism_that_is_not_total_is_refused(mechanism: Any, said: str) -> None:
    with pytest.raises(BadUsage, match=f"The mechanism of 'y' in 'm' is not total: {said}"):
        CausalModel("m", {"x": (0, 1), "y": Variable((0, 1), mechanism)})


def test_a_mechanism_that_is_undecided_on_listed_values_is_not_total() -> None:
    def mechanism(x: int) -> int:
        raise Undecided("no idea")

    with pytest.raises(BadUsage, match=r"not total: x=0 is undecided \(no idea\)"):
        CausalModel("m", {"x": (0, 1), "y": Variable((0, 1), mechanism)})


def test_a_mechanism_on_values_that_are_not_listed_is_checked_in_every_run() -> None:
    model = CausalModel("m", {"x": int, "y": Variable((0, 1), lambda x: 10 // x)})
    assert model.unchecked == ("y",)
    assert model.run({"x": 10})["y"] == 1
    with pytest.raises(BadUsage, match="x=5 gives 2"):
        model.run({"x": 5})
    with pytest.raises(BadUsage, match=r"x=0 raises ZeroDivisionError"):
        model.run({"x": 0})


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "needs at least one variable"),
        ({"x": ()}, "'x' of 'm' has no values"),
        ({"x": (0, 1), "y": (0, 1)}, "needs output=..., as x, y have no children"),
        ({"x": Variable((0, 1), parents=("y",))}, "has parents \\(y\\) but no mechanism"),
        ({"x": (0,), "y": Variable((0,), lambda *x: 0)}, "has the parameter '\\*x': pass Variable"),
        ({"x": (0,), "y": Variable((0,), lambda x=0: 0)}, "has the parameter 'x=0'"),
    ],
)
def test_what_is_no_model_is_refused(variables: Any, said: str) -> None:
    with pytest.raises(BadUsage, match=said):
        CausalModel("m", variables)


def test_values_are_a_list_a_type_or_a_predicate() -> None:
    assert Variable(str).allows("") and not Variable(str).allows(1)
    assert Variable(lambda value: value > 3).allows(4)
    with pytest.raises(BadUsage, match="The values of a variable are a list, a type"):
        Variable("abc")


def test_inputs_that_do_not_fit_are_refused() -> None:
    model = digits()
    with pytest.raises(BadUsage, match="needs the inputs x, y; got x: 'y' is missing"):
        model.run({"x": 1})
    with pytest.raises(BadUsage, match="'y' of 'sum of digits' is one of 0, 1, 2, 3, … 9; got 10"):
        model.run({"x": 1, "y": 10})
    with pytest.raises(UnknownName, match="variable of 'sum of digits' 'z'"):
        model.run({"x": 1, "y": 1, "z": 1})
    with pytest.raises(BadUsage, match="'carry' of 'sum of digits' has a mechanism"):
        model.run({"x": 1, "y": 1, "carry": 1})
    with pytest.raises(BadUsage, match="'carry' of 'sum of digits' is one of 0, 1; got 2"):
        model.intervene({"x": 1, "y": 1}, {"carry": 2})
    for call in (model.variable, model.title, model.before):
        with pytest.raises(UnknownName, match="Did you mean 'carry'"):
            call("cary")
    with pytest.raises(UnknownName, match="Did you mean 'carry'"):
        model.interchange({"x": 1, "y": 1}, {"cary": {"x": 1, "y": 1}})
    with pytest.raises(UnknownName, match="'out'"):
        CausalModel("m", {"x": (0, 1)}, output="out")


# --- shown ----------------------------------------------------------------------------------------


def boxes(figure: Figure) -> dict[str, Any]:
    return {text.get_text(): text for text in figure.axes[0].texts}


def test_the_figure_has_a_box_a_variable_and_an_arrow_a_parent() -> None:
    figure = digits().plot()
    drawn = boxes(figure)
    assert set(drawn) == {"x", "y", "carry", "ones", "result"}
    arrows = [each for each in figure.axes[0].patches if isinstance(each, FancyArrowPatch)]
    assert len(arrows) == 6
    height = {name: box.get_position()[1] for name, box in drawn.items()}
    assert height["x"] == height["y"] < height["carry"] == height["ones"] < height["result"]


def test_boxes_do_not_overlap() -> None:
    figure = digits().plot({"x": 7, "y": 5, "carry": 1, "ones": 2, "result": 12})
    FigureCanvasAgg(figure).draw()
    extents = [text.get_bbox_patch().get_window_extent() for text in boxes(figure).values()]
    for number, one in enumerate(extents):
        assert not any(one.overlaps(other) for other in extents[number + 1 :])


def test_a_figure_of_a_setting_marks_what_is_fixed() -> None:
    model = digits()
    natural = boxes(model.plot(model.run({"x": 7, "y": 5})))
    fixed = boxes(model.plot(model.intervene({"x": 7, "y": 5}, {"carry": 0})))
    colour = {
        name: text.get_bbox_patch().get_edgecolor() for name, text in (natural | fixed).items()
    }
    assert colour["carry =\n0"] != colour["carry =\n1"] == colour["ones =\n2"]
    with pytest.raises(UnknownName):
        model.plot({"z": 1})


def test_a_model_shows_itself() -> None:
    model = digits()
    assert repr(model).startswith("CausalModel(name='sum of digits', inputs=('x', 'y')")
    page = model._repr_html_()
    assert "<svg" in page and "carry, ones" in page and "sum of digits" in page
    assert model.renamed("other").name == "other"
