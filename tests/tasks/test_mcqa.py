"""The MCQA task: its objects, its stream, its nine counterfactuals,
and what a tokenizer changes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.resources import files
from math import factorial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import mechassay.tasks.multiple_choice
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.prompts.pairs import Example, Prompt, content_hash
from mechassay.prompts.tokenization import LENGTHS
from mechassay.tasks import load_task
from mechassay.tasks.multiple_choice import COLORS, KINDS, MCQA, SIZES
from mechassay.tasks.task import SPLITS

DATA = Path(__file__).parent / "data" / "mcqa.jsonl"
FILE: dict[str, dict[str, dict[str, list[str]]]] = json.loads(
    files("mechassay.tasks").joinpath("data/colors.json").read_text(encoding="utf-8")
)
# (split, color, verb, object)
OBJECTS = [
    (split, color, verb, name)
    for split, colors in FILE.items()
    for color, verbs in colors.items()
    for verb, names in verbs.items()
    for name in names
]
COLOR_OF = {name: color for _, color, _, name in OBJECTS}
VERB_OF = {name: verb for _, _, verb, name in OBJECTS}
SPLIT_OF = {name: split for split, _, _, name in OBJECTS}
PLAIN = {split: [name for name in SPLIT_OF if SPLIT_OF[name] == split] for split in SPLITS}
CALL: dict[str, Any] = {"private_seed": 5}


def read(prompt: Prompt) -> tuple[str, str, list[str], list[str]]:
    """Object, color, labels and choices of a prompt, from its text alone."""
    question, *lines, last = prompt.text.split("\n")
    first, second = question.removeprefix("Question: ").split(". ")
    name = re.fullmatch(r"What color (?:is|are) (.+)\?", second)
    assert name is not None and last == "Answer:"
    verb = VERB_OF[name[1]]
    assert first[0].isupper() and second.startswith(f"What color {verb} ")
    begin, color = first.rsplit(f" {verb} ", 1)
    assert begin == name[1][0].upper() + name[1][1:]
    labels, choices = zip(*(line.split(". ") for line in lines), strict=True)
    return name[1], color, list(labels), list(choices)


def solve(prompt: Prompt) -> str:
    """The label of the choice that is the color in the question."""
    _, color, labels, choices = read(prompt)
    return labels[choices.index(color)]


def stem(name: str) -> str:
    """An object without article and without the endings of plurals."""
    return " ".join(
        re.sub(r"(es|s)$", "", word) for word in re.sub(r"^(an?|the) ", "", name.lower()).split()
    )


# --- the objects
# -------------------------------------------------------------------------------------


def test_objects_are_in_the_numbers_of_table_5() -> None:
    assert tuple(FILE) == SPLITS
    assert (
        Counter(SPLIT_OF.values())
        == Counter(SIZES)
        == {
            "train": 110,
            "validation": 50,
            "test": 50,
            "private": 50,
        }
    )
    assert len(SPLIT_OF) == len(OBJECTS) == 260


@pytest.mark.parametrize("split", SPLITS)
def test_each_split_has_every_color(split: str) -> None:
    assert tuple(FILE[split]) == COLORS
    counts = Counter(COLOR_OF[name] for name in PLAIN[split])
    assert set(counts) == set(COLORS) and min(counts.values()) >= 3
    assert max(counts.values()) <= 0.15 * len(PLAIN[split])


def test_no_object_is_another_in_other_words() -> None:
    stems = {name: f" {stem(name)} " for name in SPLIT_OF}
    assert not [(a, b) for a in stems for b in stems if a != b and stems[a] in stems[b]]


def test_objects_do_not_name_a_color() -> None:
    assert not [
        name for name in SPLIT_OF if any(color in name.lower() for color in (*COLORS, "grey"))
    ]


def test_objects_are_clean_and_take_their_article() -> None:
    for _, _, verb, name in OBJECTS:
        assert re.fullmatch(r"[A-Za-z]+(?:[ '-][A-Za-z]+)*", name), name
        assert verb in ("is", "are")
        article, _, rest = name.partition(" ")
        if article in ("a", "an"):
            assert verb == "is" and (article == "an") == (rest[0].lower() in "aeiou"), name
        # A plural has no article, and no mass noun here ends in "s" but these.
        if verb == "is" and article not in ("a", "an", "the") and name.endswith("s"):
            assert name in ("asparagus", "molasses", "grass", "moss"), name


# --- prompts
# -----------------------------------------------------------------------------------------


def check_original(example: Example, split: str, n: int) -> None:
    name, color, labels, choices = read(example.prompt)
    assert SPLIT_OF[name] == split and COLOR_OF[name] == color
    assert len(set(choices)) == n and set(choices) <= set(COLORS)
    assert labels == list("ABCDEFGHIJ"[:n])
    assert example.tags == {
        "object": name,
        "color": color,
        "position": str(choices.index(color)),
        "n_choices": str(n),
    }
    assert example.group == name


def check_counterfactuals(example: Example, split: str) -> None:
    """Every counterfactual is made of its changes and nothing else,
    and the same change is the same everywhere.
    """
    name, color, labels, choices = read(example.prompt)
    found = {
        kind.removesuffix("_counterfactual"): read(prompt)
        for kind, prompt in example.counterfactuals.items()
    }
    noun, other_color = found["noun"][0], found["color"][1]
    assert noun != name and SPLIT_OF[noun] == split
    assert other_color not in choices and other_color in COLORS
    recolored = [other_color if choice == color else choice for choice in choices]
    moved = found["answerPosition"][3]
    at, to = choices.index(color), moved.index(color)
    assert at != to and moved == [choices[{at: to, to: at}.get(i, i)] for i in range(len(choices))]
    moved_recolored = [other_color if choice == color else choice for choice in moved]
    numbers, letters = [str(i + 1) for i in range(len(choices))], found["randomLetter"][2]
    assert not set(letters) & set(labels) and len(set(letters)) == len(labels)
    assert found == {
        "noun": (noun, color, labels, choices),
        "color": (name, other_color, labels, recolored),
        "noun_color": (noun, other_color, labels, recolored),
        "answerPosition": (name, color, labels, moved),
        "symbol": (name, color, numbers, choices),
        "randomLetter": (name, color, letters, choices),
        "answerPosition_randomLetter": (name, color, letters, moved),
        "answerPosition_symbol": (name, color, numbers, moved),
        "answerPosition_color": (name, other_color, labels, moved_recolored),
    }


@settings(max_examples=25, deadline=None)
@given(split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70), n=st.integers(2, 10))
def test_prompts_solve_and_counterfactuals_compose(split: str, seed: int, n: int) -> None:
    for example in MCQA(n_choices=n).examples(split, limit=10, seed=seed, private_seed=seed):
        assert tuple(example.counterfactuals) == KINDS
        check_original(example, split, n)
        check_counterfactuals(example, split)
        for prompt in (example.prompt, *example.counterfactuals.values()):
            assert prompt.answers == (" " + solve(prompt),)


@settings(max_examples=25, deadline=None)
@given(split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_parts_of_the_question(split: str, seed: int) -> None:
    for example in MCQA().examples(split, limit=8, seed=seed, private_seed=seed):
        for prompt in (example.prompt, *example.counterfactuals.values()):
            name, color, _, _ = read(prompt)
            assert (
                prompt.part("object_2") == name
                and prompt.part("object") == name[0].upper() + name[1:]
            )
            assert (
                prompt.part("color")
                == prompt.part("choice_color")
                == prompt.part("correct_choice")
                == color
            )
            assert prompt.part("correct_symbol") == solve(prompt)
            # Both are there, the first mention first, the color of the question before that of the
            # choice.
            order = [
                prompt.spans[part][0]
                for part in ("object", "color", "object_2", "correct_symbol", "choice_color")
            ]
            assert order == sorted(set(order)) and prompt.spans["object"][0] == len("Question: ")


def test_foils_are_other_labels_where_the_answer_stays() -> None:
    for example in MCQA().examples("test", limit=20):
        for kind in KINDS:
            pair = example.pair(kind)
            if kind in ("noun_counterfactual", "color_counterfactual", "noun_color_counterfactual"):
                assert pair.answers == pair.counterfactual_answers
                assert {*pair.foils, *pair.answers} == {" A", " B", " C", " D"} and len(
                    pair.foils
                ) == 3
            else:
                assert pair.foils == pair.counterfactual_answers != pair.answers


# --- the stream
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_one_round(split: str) -> None:
    pairs = MCQA().pairs(split, **CALL)
    assert len(pairs) == SIZES[split] and sorted(pair.tags["object"] for pair in pairs) == sorted(
        PLAIN[split]
    )
    twice = MCQA().pairs(split, limit=2 * SIZES[split], **CALL)
    assert Counter(pair.tags["object"] for pair in twice) == Counter(2 * PLAIN[split])
    assert len({pair.clean for pair in twice}) == len(twice)
    assert [pair.tags["object"] for pair in twice[: SIZES[split]]] != [
        pair.tags["object"] for pair in twice[SIZES[split] :]
    ]


def test_places_and_colors_are_drawn_evenly() -> None:
    examples = MCQA().examples("train", limit=1100)
    places = Counter(example.tags["position"] for example in examples)
    # 275 expected at each place, with a standard deviation of 14.
    assert set(places) == set("0123") and all(abs(count - 275) < 70 for count in places.values())
    kind = "answerPosition_counterfactual"
    moves = Counter(
        (example.prompt.answers[0], example.counterfactuals[kind].answers[0])
        for example in examples
    )
    assert len(moves) == 12 and all(abs(count - 1100 / 12) < 50 for count in moves.values())
    new = Counter(read(example.counterfactuals["color_counterfactual"])[1] for example in examples)
    assert set(new) == set(COLORS) and all(abs(count - 100) < 50 for count in new.values())


def test_the_stream_ends_when_every_prompt_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"test": mechassay.tasks.multiple_choice._things()["test"][:2]}
    monkeypatch.setattr(mechassay.tasks.multiple_choice, "_things", lambda: few)
    examples = list(MCQA(n_choices=2).generate("test", 0))
    assert (
        len({example.prompt.text for example in examples}) == len(examples) == 2 * 10 * factorial(2)
    )
    with pytest.raises(BadUsage, match="has 40 examples; asked for 41"):
        MCQA(n_choices=2).examples("test", limit=41)
    # Three choices: an order of them, and two of ten other colors.
    assert sum(1 for _ in MCQA(n_choices=3).generate("test", 0)) == 2 * 45 * factorial(3)


def test_the_stream_is_pinned() -> None:
    """A change of this hash changes every result on MCQA: raise MCQA.version."""
    assert MCQA.version == 2
    assert (
        content_hash(MCQA().pairs("test"))
        == "869b606b95e1c4451053ad9674b2c266a083ac88b6dad1e320d5bcce8928d33a"
    )


def test_n_choices_has_its_range() -> None:
    for n in (1, 11, -4):
        with pytest.raises(BadUsage, match=f"n_choices of mcqa must be between 2 and 10; got {n}"):
            MCQA(n_choices=n)
    task = load_task("mcqa:n_choices=7")
    assert isinstance(task, MCQA) and task.n_choices == 7
    assert (
        task.public.repo == "mib-worker/copycolors_mcqa"
        and task.public.config == "7_answer_choices"
    )
    with pytest.raises(UnknownName, match="Did you mean 'n_choices'"):
        load_task("mcqa", n_choice=4)


# --- tokenizers
# --------------------------------------------------------------------------------------


def by_letters(long: set[str]) -> PreTrainedTokenizerFast:
    """One token a character for the words in `long`, one token for any other run of letters."""
    words = {word.lower() for word in long}
    vocabulary = {"[UNK]": 0}
    texts = [
        prompt.text
        for split in SPLITS
        for example in MCQA().examples(split, **CALL)
        for prompt in (example.prompt,)
    ]
    for text in [*texts, "1 2 3 4 A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"]:
        for word in re.findall(r"\w+|[^\w\s]", text):
            if word.lower() not in words:
                vocabulary.setdefault(word, len(vocabulary))
    for letter in "abcdefghijklmnopqrstuvwxyz":
        vocabulary.setdefault(letter, len(vocabulary))
        vocabulary.setdefault("##" + letter, len(vocabulary))
        vocabulary.setdefault(letter.upper(), len(vocabulary))
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def examples_by_object(tokenizer: Any = None) -> dict[str, Example]:
    return {example.tags["object"]: example for example in MCQA().examples("test", tokenizer)}


def noun_of(example: Example) -> str:
    return example.counterfactuals["noun_counterfactual"].part("object_2")


def test_a_noun_has_as_many_tokens_where_one_has() -> None:
    # Both have eight letters, and nothing else in the split is as long; peas are as long as
    # painter's tape.
    tokenizer = by_letters({"zucchini", "elephant", "peas"})
    plain, chosen = examples_by_object(), examples_by_object(tokenizer)
    assert (
        noun_of(chosen["a zucchini"]) == "an elephant"
        and noun_of(chosen["an elephant"]) == "a zucchini"
    )
    changed = 0
    for name, example in chosen.items():
        assert example.prompt == plain[name].prompt
        same = {
            kind
            for kind in KINDS
            if example.counterfactuals[kind] == plain[name].counterfactuals[kind]
        }
        assert same >= {kind for kind in KINDS if not kind.startswith("noun")}
        check_counterfactuals(example, "test")
        lengths = [
            len(ids)
            for ids in tokenizer(
                [example.prompt.text, example.counterfactuals["noun_counterfactual"].text]
            )["input_ids"]
        ]
        assert lengths[0] == lengths[1]
        # One that fits is not exchanged for another.
        drawn = plain[name].counterfactuals["noun_counterfactual"].text
        assert (len(tokenizer(drawn)["input_ids"]) == lengths[0]) == (same == set(KINDS))
        changed += same != set(KINDS)
    assert 5 < changed < 45
    assert not MCQA().pairs("test", tokenizer, counterfactual="noun_counterfactual").dropped


def test_a_noun_without_equals_is_dropped_and_counted() -> None:
    tokenizer = by_letters({"zucchini", "peas"})
    plain, chosen = examples_by_object(), examples_by_object(tokenizer)
    assert noun_of(chosen["a zucchini"]) == noun_of(plain["a zucchini"])
    assert "a zucchini" not in map(noun_of, chosen.values())
    pairs = MCQA().pairs("test", tokenizer, limit=49, counterfactual="noun_counterfactual")
    assert "a zucchini" not in {pair.tags["object"] for pair in pairs}
    assert pairs.dropped == {LENGTHS: 1}
    assert not MCQA().pairs("test", tokenizer).dropped, "the symbols change no length"


# --- the public data
# ---------------------------------------------------------------------------------


def folder(path: Path, **changes: Any) -> str:
    """The miniature of the public data as a folder, with fields of its second row changed."""
    first, second = map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
    (path / "test.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in (first, {**second, **changes})), encoding="utf-8"
    )
    return str(path)


def test_public_rows(tmp_path: Path) -> None:
    task = load_task("mcqa", source=folder(tmp_path))
    first, second = task.pairs("test")
    assert (first.id, second.id) == ("mcqa-test-000000", "mcqa-test-000001")
    assert (
        first.clean
        == "Question: Salmon meat is pink. What color is salmon meat?\nA. gray\nB. black\nC."
        " white\nD. pink\nAnswer:"
    )
    assert (
        first.counterfactual
        == "Question: Salmon meat is pink. What color is salmon meat?\n1. gray\n2. black\n3."
        " white\n4. pink\nAnswer:"
    )
    assert (first.answers, first.foils, first.counterfactual_answers) == ((" D",), (" 4",), (" 4",))
    assert (first.group, first.tags) == (
        "salmon meat",
        {"object": "salmon meat", "color": "pink", "position": "3", "n_choices": "4"},
    )
    assert first.clean[slice(*first.spans["object"])] == "Salmon meat"
    assert (second.group, second.tags["color"]) == ("peas", "green")
    assert second.clean[slice(*second.spans["choice_color"])] == "green"
    assert isinstance(task, MCQA)
    assert [task.to_row(example) for example in task.examples("test")] == [
        json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()
    ]


def test_the_counterfactuals_of_table_9(tmp_path: Path) -> None:
    task = load_task("mcqa", source=folder(tmp_path))
    answers = {
        kind: task.pairs("test", limit=1, counterfactual=kind)[0].counterfactual_answers
        for kind in KINDS
    }
    assert [answer for (answer,) in answers.values()] == [
        " D",
        " D",
        " D",
        " C",
        " 4",
        " L",
        " F",
        " 3",
        " C",
    ]
    noun = task.pairs("test", limit=1, counterfactual="noun_color_counterfactual")[0]
    assert (
        noun.counterfactual
        == "Question: A banana is yellow. What color is a banana?\nA. gray\nB. black\nC. white\nD."
        " yellow\nAnswer:"
    )
    assert noun.foils == (" A", " B", " C")


def test_the_draws_of_table_9() -> None:
    """The task's own changes make the table's prompts from the table's draw."""
    module: Any = mechassay.tasks.multiple_choice
    salmon, banana = (
        module._Thing("salmon meat", "is", "pink"),
        module._Thing("a banana", "is", "yellow"),
    )
    drawn = module._MCQADraw(
        salmon,
        [banana],
        ("gray", "black", "white", "pink"),
        "yellow",
        module.Format(module.swap(4, 3, 2), tuple("EZFL")),
    )
    row, _ = map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
    assert drawn.question(()).prompt(" ").text == row["prompt"]
    for kind in KINDS:
        assert (
            drawn.question(module.changes_of(kind), banana).prompt(" ").text == row[kind]["prompt"]
        )


def test_a_question_in_other_words_has_fewer_parts(tmp_path: Path) -> None:
    text = (
        "Question: Peas, as you know, look green. Which color do they have?\nA. red\nB. blue\nC."
        " orange\nD. green\nAnswer:"
    )
    example = MCQA(folder(tmp_path, prompt=text)).examples("test")[1]
    assert example.group == "Peas, as you know, look green. Which color do they have?"
    assert "object" not in example.prompt.spans and example.prompt.part("correct_choice") == "green"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"answerKey": 0}, "a question that its answer does not answer"),
        ({"answerKey": 4}, "an answer key that is no choice"),
        ({"symbol_counterfactual": {"prompt": "?"}}, "its counterfactual: a row without 'choices'"),
        ({"symbol_counterfactual": None}, "no such counterfactual"),
        ({"prompt": None}, "a prompt of another form"),
        (
            {"prompt": "Question: Why?\nA. red\nB. blue\nC. orange\nD. green\nAnswer: "},
            "a prompt of another form",
        ),
        ({"choices": None}, "a row of another form"),
        ({"choices": {"label": ["A"], "text": ["red"]}}, "choices without a label of their own"),
    ],
)
def test_broken_public_rows(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    """They are dropped and counted; so is one whose prompt ends in a space,
    which no label would follow.
    """
    pairs = MCQA(folder(tmp_path, **changes)).pairs("test")
    assert [pair.id for pair in pairs] == ["mcqa-test-000000"] and pairs.dropped == {reason: 1}


def test_public_rows_have_as_many_choices_as_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        BadFile,
        match=(
            r"none of 2 rows .*: 2 another number of choices \(row 1: .* has 4 choices; n_choices"
            r" is 5"
        ),
    ):
        MCQA(folder(tmp_path), n_choices=5).pairs("test")


def test_an_absent_counterfactual_is_dropped_and_counted(tmp_path: Path) -> None:
    pairs = MCQA(folder(tmp_path, noun_counterfactual=None)).pairs(
        "test", counterfactual="noun_counterfactual"
    )
    assert len(pairs) == 1 and pairs.dropped == {"no such counterfactual": 1}
