"""Predictions of SyntaxGym, against Python's own arithmetic and answers worked by hand.

Test suites of SyntaxGym.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.gym import Formula, read_suite

VALUES = {
    ("1", "a"): np.array([1.0, 5.0]),
    ("2", "a"): np.array([2.0, 2.0]),
    ("1", "b"): np.array([3.0, 3.0]),
    ("*", "a"): np.array([3.0, 7.0]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(1;%a%) < (1;%b%)", [True, False]),
        ("(1;%a%)>(1;%b%)", [False, True]),
        ("((1;%a%) + (2;%a%)) = (1;%b%)", [True, False]),
        ("(*;%a%) = (1;%a%) + (2;%a%)", [True, True]),
        ("(1;%a%) - (2;%a%) - 1 < 0.5", [True, False]),
        ("[(1;%a%) < (1;%b%) ] & [(2;%a%) < (1;%b%) ] ", [True, False]),
        ("((1;%a%) < (1;%b%)) | ((2;%a%) < (1;%b%))", [True, True]),
        # From the left: (true | true) & false.
        ("(1;%b%) = 3 | 1 < 2 & 2 < 1", [False, False]),
        ("(1;%b%) = 3.0009", [True, True]),
        ("(1;%b%) = 3.002", [False, False]),
        ("1e3 > (1;%a%)", [True, True]),
        ("(1;%a%) - ((2;%a%) - 1) < 1", [True, False]),
    ],
)
def test_formulas_by_hand(text: str, expected: list[bool]) -> None:
    formula = Formula.read(text)
    assert formula.holds(VALUES).tolist() == expected


def test_regions_of_a_formula() -> None:
    formula = Formula.read(" (1;%a-b_c%) < (*;%d%) + (1;%a-b_c%) ")
    assert formula.regions == (("1", "a-b_c"), ("*", "d"))
    assert formula.text == "(1;%a-b_c%) < (*;%d%) + (1;%a-b_c%)"


numbers = st.integers(0, 9).map(str)
sums = st.recursive(
    numbers,
    lambda inner: st.tuples(inner, st.sampled_from("+-"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=6,
)


@given(st.lists(sums, min_size=1, max_size=4), sums, st.sampled_from("<>"))
def test_arithmetic_is_pythons(parts: list[str], other: str, sign: str) -> None:
    text = f"{' - '.join(parts)} {sign} {other}"
    assert bool(Formula.read(text).holds({})) == eval(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it ends too soon"),
        ("(1;%a%)", "it compares nothing"),
        ("(1;%a%) <", "it ends too soon"),
        ("((1;%a%) < 2", "'(' is not closed"),
        ("[(1;%a%) < 2)", "'[' is not closed"),
        ("(1;%a%) < 2)", "')' comes after its end"),
        ("(1;%a%) < 2 < 3", "'<' comes after its end"),
        ("(1 < 2) < 3", "'<' compares numbers"),
        ("(1 < 2) + 3 < 4", "'+' adds numbers"),
        ("1 & 2", "'&' joins comparisons"),
        ("+ 1 < 2", "'+' stands where a region or a number should"),
        ("__import__('os')", '"__import__(\'" cannot be read'),
        ("(1;a) < 2", "';a) < 2' cannot be read"),
        ("(" * 60 + "1", "it has more than 50 brackets within each other"),
    ],
)
def test_what_is_no_formula(text: str, message: str) -> None:
    with pytest.raises(BadUsage, match=re.escape(f"is not a formula: {message}.")) as caught:
        Formula.read(text)
    assert "\n" not in str(caught.value)


def test_a_region_without_values() -> None:
    with pytest.raises(BadUsage, match="needs region 9 of condition 'a'; there are no values"):
        Formula.read("(9;%a%) < 1").holds(VALUES)


REGIONS = {"1": "np", "2": "verb", "3": "np", "4": "end"}


def condition(name: str, *texts: str) -> dict[str, Any]:
    regions = [
        {"region_number": number, "content": text, "metric_value": {"sum": 0.5}}
        for number, text in enumerate(texts, 1)
    ]
    return {"condition_name": name, "regions": regions}


def data() -> dict[str, Any]:
    items = [
        {
            "item_number": number,
            "conditions": [
                condition("sg", f"The {noun}", "", "sees", "."),
                condition("pl", f"The {noun}s", "", "see", "."),
            ],
        }
        for number, noun in ((1, "cat"), (2, "dog"), (7, "hen"))
    ]
    return {
        "meta": {"name": "tiny", "metric": "sum", "comment": "", "reference": ""},
        "region_meta": REGIONS,
        "predictions": [
            {"type": "formula", "formula": "(3;%sg%) < (3;%pl%)"},
            {"type": "formula", "formula": "[(*;%sg%) < 6] & [(4;%pl%) = 1]"},
        ],
        "items": items,
    }


def write(folder: Path, suite: Any) -> Path:
    path = folder / "suite.json"
    path.write_text(suite if isinstance(suite, str) else json.dumps(suite), "utf-8")
    return path


def test_sentences_and_regions(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path, data()))
    assert suite.name == "tiny" and suite.items == (1, 2, 7) and suite.conditions == ("sg", "pl")
    assert suite.regions == {1: "np", 2: "verb", 3: "np", 4: "end"}
    prompt = suite.prompt(7, "pl")
    assert prompt.text == "The hens see."
    assert prompt.spans == {"np": (0, 8), "np_2": (9, 12), "end": (12, 13)}
    assert [each.text for each in suite.prompts()][:2] == ["The cat sees.", "The cats see."]
    assert "items=3" in repr(suite)
    with pytest.raises(UnknownName, match="Unknown condition 'pll'. Did you mean 'pl'"):
        suite.prompt(7, "pll")
    with pytest.raises(UnknownName, match="Unknown item '3'"):
        suite.prompt(3, "pl")


def test_accuracy_by_hand(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path, data()))
    surprisals = np.ones((3, 2, 4))
    surprisals[0, 1, 2] = 4  # item 1: the verb of pl is a surprise
    surprisals[1, 0, 0] = 9  # item 2: the sum of sg is above 6
    surprisals[2, 1] = [0, 0, 2, 3]  # item 7: the end of pl is not 1
    found = suite.accuracy(surprisals)
    assert found.holds.tolist() == [[True, True], [False, False], [True, False]]
    assert found.accuracy.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert found.all_hold == pytest.approx(1 / 3)
    assert found.columns()["prediction"][0] == "(3;%sg%) < (3;%pl%)"
    assert "tiny" in repr(found) and "66.7%" in found._repr_html_()
    with pytest.raises(BadUsage, match=r"tiny needs surprisals of \(3, 2, 4\) items"):
        suite.accuracy(surprisals[:2])


def test_interchanges_of_two_conditions(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path, data()))
    pairs = suite.interchanges("sg", "pl", 3)
    assert len(pairs) == 6
    assert (pairs[0].base, pairs[0].base_label, pairs[0].label) == ("The cat", " sees", " see")
    assert (pairs[1].base, pairs[1].base_label, pairs[1].label) == ("The cats", " see", " sees")
    assert pairs[0].group == pairs[1].group == "tiny-1" and pairs[0].base_spans == {"np": (0, 7)}
    with pytest.raises(
        BadPairs, match="Item 1 of tiny does not tell 'sg' from 'pl' before region 4"
    ):
        suite.interchanges("sg", "pl", 4)
    with pytest.raises(UnknownName, match="Unknown region '9'"):
        suite.interchanges("sg", "pl", 9)


def test_predictions_may_stand_in_the_meta_information(tmp_path: Path) -> None:
    suite = data()
    suite["predictions"] = []
    suite["meta"]["string_predictions"] = ["[(3;%sg%) < (3;%pl%) ] "]
    assert [each.text for each in read_suite(write(tmp_path, suite)).predictions] == [
        "[(3;%sg%) < (3;%pl%) ]"
    ]
    suite["meta"]["string_predictions"] = []
    with pytest.raises(BadUsage, match="tiny has no predictions"):
        read_suite(write(tmp_path, suite)).accuracy(np.ones((3, 2, 4)))


def changed(path: str, value: Any) -> dict[str, Any]:
    """The suite with one value replaced, or left out where it is `...`."""
    suite: Any = copy.deepcopy(data())
    *inner, last = path.split("/")
    at = suite
    for key in inner:
        at = at[int(key)] if key.isdigit() and isinstance(at, list) else at[key]
    last = int(last) if isinstance(at, list) else last
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return suite


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        ("{", "is not JSON ("),
        ([], "the file must be an object; got []."),
        (changed("items", ...), "items must be a list; got None."),
        (changed("items", []), "items must have at least one item; got none."),
        (changed("region_meta", {"x": "np"}), "region_meta must be a number; got 'x'."),
        (changed("meta/metric", "mean"), "meta.metric must be sum; got 'mean'."),
        (
            changed("items/1/conditions/0/regions/2/content", 3),
            "items[1].conditions[0].regions[2].content must be text; got 3.",
        ),
        (
            changed("items/0/conditions/1/regions/3", ...),
            "items[0].conditions[1].regions must be those of region_meta, 1, 2, 3, 4; got 1, 2, 3.",
        ),
        (
            changed("items/2/conditions/1", ...),
            "items[2].conditions must be sg, pl; got sg.",
        ),
        (changed("items/1/item_number", 1), "items[1].item_number must be its own; got 1 again."),
        (
            changed("predictions/0/formula", "(3;%sg%) < (3;%p%)"),
            "Unknown condition of a prediction 'p'. Did you mean 'pl'? Known: pl, sg.",
        ),
        (
            changed("predictions/0/formula", "(8;%sg%) < 1"),
            "Unknown region of a prediction '8'.",
        ),
        (
            changed("predictions/0/formula", "os.system"),
            "The prediction 'os.system' is not a formula: 'os.system' cannot be read.",
        ),
    ],
)
def test_files_that_are_refused(tmp_path: Path, suite: Any, message: str) -> None:
    path = write(tmp_path, suite)
    with pytest.raises(BadFile) as caught:
        read_suite(path)
    assert str(caught.value).startswith(f"{path}: {message}".rstrip("."))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file or directory"):
        read_suite(tmp_path / "no.json")
