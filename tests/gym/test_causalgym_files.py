"""Files of CausalGym: templates and rows, in their form and with words of ours."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from mechassay.errors import BadFile, BadPairs
from mechassay.gym import load_gym_task, read_causalgym_rows, read_causalgym_templates

TEMPLATES: dict[str, Any] = {
    "garden_mvrr": {
        "source": "somewhere",
        "templates": ["The {noun}{insert} {vp.verb} {vp.cont}"],
        "label": "insert",
        "result_prepend_space": False,
        "labels": {"rr": [" by"], "mv": ["."]},
        "variables": {
            "noun": ["cat", "dog", "dog", "hen", "fox"],
            "insert": {"rr": [" who was"], "mv": [""]},
            "vp.verb": ["fed", "sold", "sent"],
            "vp.cont": ["the fish", "the hay", "the egg"],
        },
    },
    "mine": {
        "templates": ["{head} runs though {place}"],
        "label": ["head"],
        "result_prepend_space": True,
        "labels": {"a": ["x"], "b": ["y"]},
        "variables": {
            "head": {"a": ["Ann", "Al", "Amy"], "b": ["Bob", "Ben", "Bea"]},
            "place": ["town", "woods", "fields", "hills"],
        },
    },
}


def write(folder: Path, value: Any, name: str = "templates.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


def test_templates(tmp_path: Path) -> None:
    tasks = read_causalgym_templates(write(tmp_path, TEMPLATES))
    garden, mine = tasks["garden_mvrr"], tasks["mine"]
    assert garden.family == "garden path" and mine.family == "own"
    assert garden.regions == load_gym_task("garden_mvrr").regions
    assert garden.tested == ("verb", "cont") and garden.varied == ("insert",)
    assert garden.lengths == "unequal" and mine.lengths == "equal"
    assert garden.labels == {"rr": (" by",), "mv": (".",)} and mine.labels["a"] == (" x",)
    assert mine.regions == ("head", "runs_though", "place")
    assert garden.n_sentences == 2 * 4 * 3
    sentences = {
        text
        for split in ("train", "test")
        for each in garden.examples(split)
        for text in (each.prompt.text,)
    }
    assert sentences and all(
        text.replace(" who was", "").split()[0] == "The" and "  " not in text for text in sentences
    )
    together = {("fed", "the fish"), ("sold", "the hay"), ("sent", "the egg")}
    for pair in garden.interchanges("train"):
        parts = tuple(pair.base[slice(*pair.base_spans[name])] for name in ("verb", "cont"))
        assert parts in together
        assert pair.base_label == ((" by",) if "who was" in pair.base else (".",))


def without(key: str) -> dict[str, Any]:
    templates = copy.deepcopy(TEMPLATES)
    del templates["mine"][key]
    return templates


def with_variable(name: str, key: str, value: Any) -> dict[str, Any]:
    templates = copy.deepcopy(TEMPLATES)
    templates[name]["variables"][key] = value
    return templates


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ("{", "is not JSON ("),
        ([1], "the file must be an object; got [1]."),
        (without("labels"), "mine must have templates, label, labels, variables; no 'labels'."),
        (
            with_variable("garden_mvrr", "vp.cont", ["the fish"]),
            "garden_mvrr.variables.vp.* must be equally long; got 3, 1.",
        ),
        (
            with_variable("mine", "head", {"a": ["Ann"], "c": ["Bob"]}),
            "mine.variables.head must have the types a, b; got a, c.",
        ),
        (
            with_variable("mine", "head", ["Ann"]),
            "mine.variables must have one whose options are listed by type; none is.",
        ),
        (
            with_variable("mine", "place", "town"),
            "mine.variables.place must be a list of texts; got 'town'.",
        ),
        (
            {"mine": {**TEMPLATES["mine"], "templates": ["{heads} x"]}},
            "mine.variables must have 'heads'; it has head, place.",
        ),
    ],
)
def test_templates_that_are_refused(tmp_path: Path, templates: Any, message: str) -> None:
    path = write(tmp_path, templates)
    with pytest.raises(BadFile) as caught:
        read_causalgym_templates(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def rows() -> list[dict[str, Any]]:
    first = {
        "base": ["<|endoftext|>The", " cat", " who was", " fed", " the fish"],
        "src": ["<|endoftext|>The", " cat", "", " fed", " the fish"],
        "base_type": "rr",
        "src_type": "mv",
        "base_label": " by",
        "src_label": ".",
        "task": "garden_mvrr",
    }
    swap = {
        **first,
        **{a: first[b] for side in ("base", "src") for a, b in _swapped(side)},
    }
    other = {
        **first,
        "base": ["<|endoftext|>", "Ann", " runs"],
        "src": ["<|endoftext|>", "Bob", " runs"],
        "task": "mine",
    }
    return [first, swap, other]


def _swapped(side: str) -> list[tuple[str, str]]:
    other = {"base": "src", "src": "base"}[side]
    return [(f"{side}{end}", f"{other}{end}") for end in ("", "_type", "_label")]


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_rows(tmp_path: Path, ending: str) -> None:
    text = json.dumps(rows()) if ending == "json" else "\n".join(json.dumps(row) for row in rows())
    found = read_causalgym_rows(write(tmp_path, text, f"dev.{ending}"))
    assert [*found] == ["garden_mvrr", "mine"]
    garden = found["garden_mvrr"]
    pair, swap = garden
    assert (pair.base, pair.source) == ("The cat who was fed the fish", "The cat fed the fish")
    assert (pair.base_label, pair.label) == (" by", ".") and pair.group == swap.group
    assert pair.base_spans["insert"] == (8, 15) and "insert" not in pair.source_spans
    assert pair.tags == {"type": "rr", "source_type": "mv"}
    assert garden.tested == ("verb", "cont") and garden.split == "dev"
    assert found["mine"][0].base_spans == {"region_1": (0, 3), "region_2": (4, 8)}
    assert found["mine"].tested == ("region_1", "region_2")


def with_row(**changes: Any) -> list[dict[str, Any]]:
    first, *others = rows()
    return [first, {**others[0], **changes}]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([], BadFile, "there are no rows."),
        ([{"task": "x"}], BadFile, "row 1: no column 'base', 'src'"),
        (
            with_row(base="The cat"),
            BadFile,
            "row 2: 'base' must be a list of texts (got 'The cat').",
        ),
        (with_row(task=3), BadFile, "row 2: 'task' must be text (got 3)."),
        (
            with_row(base=["The", " cat"]),
            BadPairs,
            "row 2: base and src have different numbers of spans (2 and 5).",
        ),
        (
            with_row(base=["The"], src=["A"]),
            BadPairs,
            "row 2: another number of spans than the task's first row (1 for 5).",
        ),
        (with_row(base=["<|endoftext|>"]), BadPairs, "row 2: 'base' is empty."),
    ],
)
def test_rows_that_are_refused(
    tmp_path: Path, given: Any, error: type[Exception], message: str
) -> None:
    path = write(tmp_path, given, "rows.json")
    with pytest.raises(error) as caught:
        read_causalgym_rows(path)
    assert str(caught.value).startswith(f"{path}: {message}")
