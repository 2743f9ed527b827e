"""Gym tasks of one's own: what YAML means, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from mechassay.errors import BadFile
from mechassay.gym import gym_tasks, read_gym_tasks

OPTIONS = {
    "animal": {"one": ["cat", "dog"], "many": ["cats", "dogs"]},
    "place": ["here", "there"],
}
TASK: dict[str, Any] = {
    "template": "The {animal} {place}",
    "labels": {"one": "is", "many": "are"},
    "options": OPTIONS,
}


def file(**changes: Any) -> dict[str, Any]:
    return {"tasks": {"t": {**TASK, **changes}}}


def options(**changes: Any) -> dict[str, Any]:
    return file(options={**OPTIONS, **changes})


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(
        dedent("""
        family: animals
        lists:
          size: [big, small]
          animal: {one: [cat, dog], many: [cats, dogs]}
          whole: "{size} {animal}"
          place: [here, there]
        tasks:
          where:
            about: number
            template: The {animal} {verb} {object} {place}, {insert} it
            labels: {one: [is, was], many: are}
            lengths: unequal
            options:
              animal: whole
              place: place
              insert: {one: [""], many: [so, and]}
              phrase:
                - {object: the cake, verb: ate}
                - {verb: drank, object: the milk}
            filler:
              insert: {one: [or]}
        """),
        "utf-8",
    )
    task = read_gym_tasks(path)["where"]
    assert (task.family, task.about, task.lengths) == ("animals", "number", "unequal")
    assert task.labels == {"one": (" is", " was"), "many": (" are",)}
    assert task.regions == ("the", "animal", "verb", "object", "place", "text", "insert", "it")
    assert task.tested == ("animal", "verb", "object", "place", "text", "it")
    by_region = {choice.regions: choice.rows for choice in task.choices}
    assert by_region["animal",]["many"] == (
        (" big cats",),
        (" big dogs",),
        (" small cats",),
        (" small dogs",),
    )
    assert by_region["verb", "object"][""] == ((" ate", " the cake"), (" drank", " the milk"))
    assert by_region["text",][""] == ((",",),)
    assert by_region["insert",] == {"one": (("",),), "many": ((" so",), (" and",))}
    filled = {choice.regions: choice.rows for choice in task.with_filler().choices}
    assert filled["insert",] == {"one": ((" or",),), "many": ((" so",), (" and",))}
    assert task.n_sentences == 4 * 2 * 2 + 4 * 2 * 2 * 2


def test_rows_by_type_go_together() -> None:
    rows = {
        "one": [{"animal": "cat", "place": "here"}],
        "many": [{"place": "there", "animal": "dogs"}],
    }
    task = gym_tasks(file(options={"both": rows}))["t"]
    assert task.varied == ("animal", "place") and task.n_sentences == 2
    choice = next(each for each in task.choices if each.typed)
    assert choice.rows == {"one": ((" cat", " here"),), "many": ((" dogs", " there"),)}


def test_three_types() -> None:
    labels = {"a": "x", "b": "y", "c": "z"}
    task = gym_tasks(
        file(labels=labels, options={**OPTIONS, "animal": {kind: [kind * 3] for kind in labels}})
    )["t"]
    places = {"place": [f"at {n}" for n in range(40)]}
    task = gym_tasks(
        file(
            labels=labels,
            options={**places, "animal": {kind: [kind * 3] for kind in labels}},
        )
    )["t"]
    kinds = {(pair.tags["type"], pair.tags["source_type"]) for pair in task.interchanges("train")}
    assert len(kinds) == 6 and all(a != b for a, b in kinds)


REFUSED: list[tuple[Any, str]] = [
    (None, "the file must be a mapping; got None."),
    ({}, "the file must have tasks; there is no 'tasks'."),
    (
        {"task": {}},
        "the file: Unknown key 'task'. Did you mean 'tasks'? Known: family, lists, tasks",
    ),
    ({"tasks": {}}, "tasks must name at least one task; got none."),
    ({"tasks": {True: TASK}}, "tasks must have names of text; got True (a word such as no"),
    ({"tasks": {"t": 3}}, "tasks.t must be a mapping; got 3."),
    (file(tempate="x"), "tasks.t: Unknown key 'tempate'. Did you mean 'template'?"),
    (
        {"tasks": {"t": {k: v for k, v in TASK.items() if k != "labels"}}},
        "tasks.t must have template, labels, options; there is no 'labels'.",
    ),
    (file(template=3), "tasks.t.template must be text; got 3."),
    (file(template="The {animal"), "tasks.t.template has a brace that belongs to no {field}"),
    (file(labels={"one": "is"}), "tasks.t.labels must have two types or more; got 1."),
    (
        file(labels={"one": "is", "many": ["are", "is"]}),
        "tasks.t.labels must differ by type; one and many have ' is'.",
    ),
    (file(labels={"one": "is", "many": ""}), "tasks.t.labels.many must have no empty label"),
    (
        file(labels={"one": False, "many": "x"}),
        "tasks.t.labels.one must be a list of texts; got False.",
    ),
    (file(lengths="same"), "tasks.t: Unknown lengths 'same'."),
    (file(lengths=3), "tasks.t.lengths must be equal or unequal; got 3."),
    (
        options(place=["here", True]),
        "tasks.t.options.place[1] must be text; got True (a word such as no or yes is written in",
    ),
    (options(place=[]), "tasks.t.options.place must be a list of texts; got []."),
    (options(place="here"), "tasks.t.options.place: Unknown list 'here'."),
    (options(place=["here", "here"]), "tasks.t.options.place must have every option once; 'here'"),
    (options(place=4), "tasks.t.options.place must be a list, the name of a list, a pattern"),
    (
        options(place=["here", ""]),
        "tasks.t.options.place has an empty option, so tasks.t.lengths must be unequal; got equal.",
    ),
    (
        options(animal={"one": ["cat"], "two": ["cats"]}),
        "tasks.t.options.animal must have the types one, many; got one, two.",
    ),
    (
        options(animal={"one": ["cat"], "many": {"one": ["a"], "many": ["b"]}}),
        "tasks.t.options.animal.many must be options of one type; got a list by type.",
    ),
    (
        file(options={"animal": OPTIONS["animal"]}),
        "tasks.t.options must fill animal, place; there is no 'place'.",
    ),
    (
        file(options={"animal": ["cat"], "place": ["here"]}),
        "tasks.t.options must list the options of one field by type; none is.",
    ),
    (options(plaec=["here"]), "tasks.t.options: Unknown field 'plaec'. Did you mean 'place'?"),
    (
        options(rows=[{"place": "here"}]),
        "tasks.t.options.rows fills 'place', which has options already.",
    ),
    (
        options(rows=[{"plaze": "here"}]),
        "tasks.t.options.rows[0]: Unknown field 'plaze'. Did you mean 'place'?",
    ),
    (
        file(
            options={
                "animal": OPTIONS["animal"],
                "rows": [{"place": "here"}, {"animal": "there"}],
            }
        ),
        "tasks.t.options.rows[1] must fill place; got animal.",
    ),
    (file(filler={"plac": ["x"]}), "tasks.t.filler: Unknown option 'plac'. Did you mean 'place'?"),
    (
        file(options={**OPTIONS, "place": ["", "x"]}, lengths="unequal", filler={"animal": {}}),
        "tasks.t.filler must leave no region empty; 'place' still may be.",
    ),
    (
        {"lists": {"a": "{b}", "b": "{a}"}, **options(place="{a}")},
        "lists.b is a list made of itself: a of b of a.",
    ),
    (
        {"lists": {"a": [str(n) for n in range(400)]}, **options(place="{a} {a}")},
        "tasks.t.options.place must stand for at most 100,000 options; got 160,000.",
    ),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_files_that_are_refused(data: Any, message: str) -> None:
    with pytest.raises(BadFile, match=re.escape(f"my.yaml: {message}".rstrip("."))) as caught:
        gym_tasks(data, "my.yaml")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: [", "is not YAML (line 1: "),
        ("tasks: {a: b\nc", "is not YAML (line 2: "),
        ("!!python/object/apply:os.system [ls]", "is not YAML (line 1: could not determine"),
        (b"\xff\xfe\x00", "is not UTF-8 ("),
    ],
)
def test_what_is_no_yaml(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadFile) as caught:
        read_gym_tasks(path)
    assert str(caught.value).startswith(f"{path}: {message}") and "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file or directory"):
        read_gym_tasks(tmp_path / "no.yaml")
