"""Files of CausalGym: templates and rows, in their form and with words of ours.

What there is, with tasks of other packages.

The 29 tasks: their names, regions and labels, against the paper's tables written out by hand.
"""

from __future__ import annotations

import copy
import json
from importlib.metadata import EntryPoint
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.tiny_gguf import of_bytes, of_words, real
from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.gym import (
    FAMILIES,
    GymTask,
    gym_tasks,
    list_gym_tasks,
    load_gym_task,
    read_causalgym_rows,
    read_causalgym_templates,
    region_lengths,
)
from mechassay.gym.causalgym import published_task
from mechassay.gym.names import GYM_TASKS
from mechassay.testing.checks import check_task
from mechassay.utils import registry

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


def plugged(name: str) -> GymTask:
    """A task of another package."""
    data = {
        "template": "{who} {verb}",
        "labels": {"a": "x", "b": "y"},
        "options": {"who": {"a": ["Ann"], "b": ["Bob"]}, "verb": ["ran", "sat"]},
    }
    return gym_tasks({"family": "theirs", "tasks": {name: data}})[name]


def test_the_table() -> None:
    tasks = list_gym_tasks()
    columns = tasks.columns()
    assert len(tasks) == 29 and columns["task"][0] == "agr_gender"
    assert columns["labels"][1] == "are,were,have | is,was,has" and sum(columns["regions"]) == 168
    assert columns["lengths"].count("unequal") == 8 and all(columns["about"])
    assert repr(tasks) == "GymTaskList(n=29, families=5)" and "gss_subord_pp" in tasks._repr_html_()


def test_tasks_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("theirs", f"{__name__}:plugged", "mechassay.gym_tasks"),
        EntryPoint("cleft", f"{__name__}:plugged", "mechassay.gym_tasks"),
    ]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: points if group == "mechassay.gym_tasks" else []
    )
    monkeypatch.setattr(registry, "import_module", _module)
    assert load_gym_task("theirs").family == "theirs"
    # A name of ours is not replaced.
    assert load_gym_task("cleft").family == "long-distance"
    assert list_gym_tasks()[-1].name == "theirs"


def _module(name: str) -> object:
    import importlib
    import sys

    return sys.modules[name] if name in sys.modules else importlib.import_module(name)


# Tested regions of appendix A, counted by hand.
REGIONS = {
    "agr_gender": 3,
    "agr_sv_num_subj-relc": 5,
    "agr_sv_num_obj-relc": 5,
    "agr_sv_num_pp": 4,
    "agr_refl_num_subj-relc": 6,
    "agr_refl_num_obj-relc": 6,
    "agr_refl_num_pp": 5,
    "npi_any_subj-relc": 8,
    "npi_any_obj-relc": 8,
    "npi_ever_subj-relc": 7,
    "npi_ever_obj-relc": 7,
    "garden_mvrr": 2,
    "garden_mvrr_mod": 3,
    "garden_npz_obj": 2,
    "garden_npz_obj_mod": 3,
    "garden_npz_v-trans": 3,
    "garden_npz_v-trans_mod": 4,
    "gss_subord": 3,
    "gss_subord_subj-relc": 10,
    "gss_subord_obj-relc": 13,
    "gss_subord_pp": 7,
    "cleft": 2,
    "cleft_mod": 3,
    "filler_gap_embed_3": 12,
    "filler_gap_embed_4": 15,
    "filler_gap_hierarchy": 4,
    "filler_gap_obj": 4,
    "filler_gap_pp": 7,
    "filler_gap_subj": 7,
}
BE = ({"are", "were", "have"}, {"is", "was", "has"})
SELF = ({"themselves"}, {"himself"})
# Two sentences of each task that differ in its type, and what may follow the one and the other.
BY_HAND: dict[str, tuple[str, str, set[str], set[str]]] = {
    "agr_gender": ("Keith cried because", "Karen cried because", {"he"}, {"she"}),
    "agr_sv_num_subj-relc": (
        "The artists that feared the child",
        "The artist that feared the child",
        *BE,
    ),
    "agr_sv_num_obj-relc": (
        "The pilots that the critic followed",
        "The pilot that the critic followed",
        *BE,
    ),
    "agr_sv_num_pp": ("The girls near the priest", "The girl near the priest", *BE),
    "agr_refl_num_subj-relc": (
        "The kings that praised the rival hurt",
        "The king that praised the rival hurt",
        *SELF,
    ),
    "agr_refl_num_obj-relc": (
        "The sons that the hunter helped blamed",
        "The son that the hunter helped blamed",
        *SELF,
    ),
    "agr_refl_num_pp": (
        "The guards behind the tourist cut",
        "The guard behind the tourist cut",
        *SELF,
    ),
    "npi_any_subj-relc": (
        "No nurse that visited the guests has seen",
        "The nurse that visited the guests has seen",
        {"any"},
        {"some"},
    ),
    "npi_any_obj-relc": (
        "No nurse that no guests visited has seen",
        "The nurse that no guests visited has seen",
        {"any"},
        {"some"},
    ),
    "npi_ever_subj-relc": (
        "No judge that blamed the workers has",
        "The judge that blamed the workers has",
        {"ever"},
        {"never"},
    ),
    "npi_ever_obj-relc": (
        "No judge that the workers blamed has",
        "The judge that the workers blamed has",
        {"ever"},
        {"never"},
    ),
    "garden_mvrr": (
        "The queen who was sent the letter from the embassy",
        "The queen sent the letter from the embassy",
        {"by"},
        {"."},
    ),
    "garden_mvrr_mod": (
        "The queen who was sent the letter from the embassy near the central station",
        "The queen sent the letter from the embassy near the central station",
        {"by"},
        {"."},
    ),
    "garden_npz_obj": (
        "While the cooks dressed, the chef",
        "While the cooks dressed the chef",
        {"was"},
        {"for"},
    ),
    "garden_npz_obj_mod": (
        "While the cooks dressed, the chef who lived next door",
        "While the cooks dressed the chef who lived next door",
        {"was"},
        {"for"},
    ),
    "garden_npz_v-trans": (
        "As the monks slept the duke",
        "As the monks hired the duke",
        {"was"},
        {"for"},
    ),
    "garden_npz_v-trans_mod": (
        "As the monks slept the duke who had lost a bet",
        "As the monks hired the duke who had lost a bet",
        {"was"},
        {"for"},
    ),
    "gss_subord": (
        "While the miners missed the train",
        "The miners missed the train",
        {"they"},
        {"."},
    ),
    "gss_subord_subj-relc": (
        "When the miners who had a secret plan found the coin that dated from the last empire",
        "The miners who had a secret plan found the coin that dated from the last empire",
        {","},
        {"."},
    ),
    "gss_subord_obj-relc": (
        "As the miners who the host had forgotten to greet sang the song that the choir had learned"
        " by heart",
        "The miners who the host had forgotten to greet sang the song that the choir had learned by"
        " heart",
        {","},
        {"."},
    ),
    "gss_subord_pp": (
        "After the miners near the old mill read the article about the lazy mayor",
        "The miners near the old mill read the article about the lazy mayor",
        {","},
        {"."},
    ),
    "cleft": ("What the tall cook did was", "What the tall cook ate was", {"make"}, {"for"}),
    "cleft_mod": (
        "What the tall cook did after the last train had left was",
        "What the tall cook ate after the last train had left was",
        {"make"},
        {"for"},
    ),
    "filler_gap_embed_3": (
        "I know that the king said the judge thought the monk noted your boss sent",
        "I know what the king said the judge thought the monk noted your boss sent",
        {"him"},
        {"."},
    ),
    "filler_gap_embed_4": (
        "I know that the king said the judge thought the monk noted the agent heard your boss sent",
        "I know what the king said the judge thought the monk noted the agent heard your boss sent",
        {"him"},
        {"."},
    ),
    "filler_gap_hierarchy": (
        "The fact that the sister knew that the coach trusted",
        "The fact that the sister knew who the coach trusted",
        {"the"},
        {"was"},
    ),
    "filler_gap_obj": (
        "I know that the aunt grabbed",
        "I know what the aunt grabbed",
        {"him"},
        {"."},
    ),
    "filler_gap_pp": (
        "I know that the aunt built the wall in front of",
        "I know what the aunt built the wall in front of",
        {"him"},
        {"."},
    ),
    "filler_gap_subj": (
        "I know that the aunt repaired the bike for",
        "I know who the aunt repaired the bike for",
        {"him"},
        {"."},
    ),
}
UNEQUAL = {
    "garden_mvrr",
    "garden_mvrr_mod",
    "garden_npz_obj",
    "garden_npz_obj_mod",
    "gss_subord",
    "gss_subord_subj-relc",
    "gss_subord_obj-relc",
    "gss_subord_pp",
}
NAMES = [*REGIONS]


def types_of(task: GymTask, sentence: str) -> set[str]:
    """The types of which a sentence can be drawn, by trying every option of every region."""
    choice_of = {name: choice for choice in task.choices for name in choice.regions}

    def fits(kind: str, place: int, rest: str, drawn: dict[int, tuple[str, ...]]) -> bool:
        if place == len(task.regions):
            return not rest
        region = task.regions[place]
        choice = choice_of[region]
        at = choice.regions.index(region)
        rows = [drawn[id(choice)]] if id(choice) in drawn else choice.options(kind)
        for row in rows:
            # Nothing has been read yet: the sentence does not begin with a space.
            text = row[at].lstrip() if len(rest) == len(sentence) else row[at]
            if rest.startswith(text) and fits(
                kind, place + 1, rest[len(text) :], {**drawn, id(choice): row}
            ):
                return True
        return False

    return {kind for kind in task.types if fits(kind, 0, sentence, {})}


def test_names_and_families() -> None:
    assert [name for names in FAMILIES.values() for name in names] == NAMES
    assert [len(names) for names in FAMILIES.values()] == [4, 7, 6, 4, 8]
    assert set(NAMES) <= set(GYM_TASKS.names())
    for family, names in FAMILIES.items():
        assert {load_gym_task(name).family for name in names} == {family}
    assert sum(REGIONS.values()) == 168


@pytest.mark.few(10)
@pytest.mark.parametrize("name", NAMES)
def test_regions_and_sentences(name: str) -> None:
    task = load_gym_task(name)
    assert task.name == name and len(task.types) == 2
    assert len(task.tested) == REGIONS[name]
    assert task.tested[-1] == task.regions[-1]
    found: set[str] = set()
    combined = 0
    for kind in task.types:
        for rows in islice(product(*(set(each.options(kind)) for each in task.choices)), 2_000):
            text_of = {
                name: text
                for choice, row in zip(task.choices, rows, strict=True)
                for name, text in zip(choice.regions, row, strict=True)
            }
            found.add("".join(text_of[name] for name in task.regions).strip())
            combined += 1
    assert len(found) == combined >= 1_000
    assert combined == min(task.n_sentences, combined) and task.n_sentences >= 1_000


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_sentences_written_by_hand(name: str) -> None:
    task = load_gym_task(name)
    first, second, *labels = BY_HAND[name]
    for sentence, expected, kind in zip((first, second), labels, task.types, strict=True):
        assert types_of(task, sentence) == {kind}, sentence
        assert {label.strip() for label in task.labels[kind]} == expected
        for label in task.labels[kind]:
            assert label.startswith(" ") == label.strip().isalpha()


@pytest.mark.few(10)
@pytest.mark.parametrize("name", NAMES)
def test_the_contract_of_tasks(name: str) -> None:
    check_task(load_gym_task(name), limit=12)


@pytest.mark.parametrize("name", NAMES)
def test_base_and_source_differ_where_types_differ(name: str) -> None:
    task = load_gym_task(name)
    for pair in task.interchanges("train", limit=60):
        assert pair.base != pair.source and pair.label != pair.base_label
        (base,) = types_of(task, pair.base)
        (source,) = types_of(task, pair.source)
        assert (base, source) == (pair.tags["type"], pair.tags["source_type"])
        assert set(pair.labels) <= set(task.labels[source])
        assert set(pair.base_labels) <= set(task.labels[base])
        for region in task.regions:
            texts = [
                text[slice(*spans[region])] if region in spans else ""
                for text, spans in (
                    (pair.base, pair.base_spans),
                    (pair.source, pair.source_spans),
                )
            ]
            assert texts[0] == texts[1] or region in task.varied, (pair.id, region)
        assert set(task.tested) <= set(pair.base_spans) & set(pair.source_spans)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_as_the_file_says(name: str) -> None:
    task = load_gym_task(name)
    assert (task.lengths == "unequal") == (name in UNEQUAL) == (task.filler is not None)
    filled = [task] if task.filler is None else [task, load_gym_task(name, filler=True)]
    for each in filled:
        pairs = each.interchanges("test", limit=20)
        words = of_words(text for pair in pairs for text in (pair.base, pair.source, *pair.labels))
        report = region_lengths(pairs.batch(words), each.tested)
        assert report.share == (1.0 if each.lengths == "unequal" else 0.0)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
def test_lengths_with_a_real_tokenizer(name: str) -> None:
    """Words of one type have as many tokens as those of the other, nearly always."""
    tokenizer = real()
    task = load_gym_task(name)
    pairs = task.interchanges("test", tokenizer)
    assert len(pairs) == 100 and not pairs.dropped
    batch = pairs.batch(tokenizer)
    assert batch.label_lengths.tolist() == [1] * 100
    assert set(task.tested) <= set(batch.columns)
    assert region_lengths(batch, task.tested).share == (1.0 if name in UNEQUAL else 0.0)


def test_lengths_of_bytes_are_those_of_words() -> None:
    task = load_gym_task("agr_sv_num_pp")
    pairs = task.interchanges("test", limit=20)
    report = region_lengths(pairs.batch(of_bytes()), task.tested)
    for row, pair in enumerate(pairs):
        for column, region in enumerate(task.tested):
            begin, end = pair.base_spans[region]
            assert report.base[row, column] == end - begin
            assert report.base_end[row, column] == end - 1
    assert report.columns()["longer"][0] > 0.5 and report.columns()["longer"][1:] == [0, 0, 0]
    assert "other length" in report._repr_html_() and "shifted" in repr(report)


def test_fillers() -> None:
    filled = load_gym_task("gss_subord", filler=True)
    assert filled.lengths == "filler" and filled.tested[0] == "subordinator"
    assert types_of(filled, "Soon the miners missed the train") == {"main"}
    assert types_of(filled, "The miners missed the train") == set()
    with pytest.raises(BadUsage, match="agr_gender has no filler: its lengths are 'equal'"):
        load_gym_task("agr_gender", filler=True)


def test_unknown_names() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'gss_subord'"):
        load_gym_task("gss_subor")
    with pytest.raises(UnknownName, match="Unknown published gym task 'cleff'"):
        published_task("cleff")


def test_a_file_of_one_task_is_loaded_by_its_path(tmp_path: Path) -> None:
    one = {
        "template": "The {animal} {place}",
        "labels": {"one": "is", "many": "are"},
        "options": {
            "animal": {"one": ["cat", "dog"], "many": ["cats", "dogs"]},
            "place": ["here", "there"],
        },
    }
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump({"tasks": {"animals": one}}), "utf-8")
    assert load_gym_task(path).name == "animals"
    path.write_text(yaml.safe_dump({"tasks": {"a": one, "b": one}}), "utf-8")
    with pytest.raises(BadUsage, match=r"my\.yaml has 2 tasks, a, b: take one of read_gym_tasks"):
        load_gym_task(str(path))
