"""Tasks made of a template and rows: their prompts, partners, splits, and what is refused."""

from __future__ import annotations

import copy
import pickle
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mechassay.errors import BadPairs, BadUsage, MechassayError, UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import content_hash
from mechassay.tasks.task import SPLITS, settings_of
from mechassay.tasks.template import Template

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Norway": "Oslo",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Cuba": "Havana",
    "Egypt": "Cairo",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Nepal": "Kathmandu",
    "Ghana": "Accra",
    "Chad": "Ndjamena",
    "Sri Lanka": "Colombo",
    "South Korea": "Seoul",
    "Costa Rica": "San Jose",
    "El Salvador": "San Salvador",
}
ROWS = [{"country": country, "capital": capital} for country, capital in CAPITALS.items()]
INTROS = ["So", "Indeed", "Yes", "Well"]
PRODUCT = [{**row, "intro": intro} for row in ROWS for intro in INTROS]
NAMES = ["Ann", "Ben", "Cid", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon", "Kim", "Lee"]
PLACES = ["zoo", "park", "shop", "bank"]
CAST = [
    {"a": a, "b": b, "place": place}
    for n, a in enumerate(NAMES)
    for b in NAMES[n + 1 :]
    for place in PLACES
]


def capitals(**settings: Any) -> Template:
    made: dict[str, Any] = {
        "name": "capitals",
        "prompt": "The capital of {country} is",
        "answer": " {capital}",
        "rows": ROWS,
    }
    return Template(**{**made, **settings})


def introduced(**settings: Any) -> Template:
    changes = {"intro": "intro", "country": ["country"], "both": ("intro", "country")}
    return capitals(
        **{
            "prompt": "{intro}, the capital of {country} is",
            "rows": PRODUCT,
            "changes": changes,
            **settings,
        }
    )


def visit(**settings: Any) -> Template:
    made: dict[str, Any] = {
        "name": "visit",
        "prompt": "{a} met {b} at the {place}. At the {place}, {a} met",
        "answer": " {b}",
        "rows": CAST,
        "changes": {"people": ("a", "b"), "who": "b", "place": "place"},
    }
    return Template(**{**made, **settings})


def word_level(texts: list[str]) -> PreTrainedTokenizerFast:
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)})
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def read(template: str, prompt: str) -> dict[str, str]:
    """The fields of a prompt, by a pattern."""
    pattern, seen = "", set[str]()
    for number, piece in enumerate(re.split(r"\{(\w+)\}", template)):
        pattern += (
            re.escape(piece)
            if number % 2 == 0
            else f"(?P={piece})"
            if piece in seen
            else f"(?P<{piece}>.+)"
        )
        seen |= {piece} if number % 2 else set()
    found = re.fullmatch(pattern, prompt)
    assert found is not None, prompt
    return found.groupdict()


# --- examples
# ----------------------------------------------------------------------------------------


def test_the_task_of_the_docstring() -> None:
    task = capitals()
    assert (task.name, task.version, task.counterfactuals, task.default_counterfactual) == (
        "capitals",
        1,
        ("other_row",),
        "other_row",
    )
    assert task.sizes == {"train": 13, "validation": 5, "test": 4} and sum(
        task.sizes.values()
    ) == len(ROWS)
    seen: list[str] = []
    for split, size in task.sizes.items():
        pairs = task.pairs(split)
        assert len(pairs) == size and not pairs.dropped
        for pair in pairs:
            country = read(task.prompt, pair.clean)["country"]
            other = read(task.prompt, pair.counterfactual)["country"]
            assert pair.answers == (" " + CAPITALS[country],) and country != other
            assert pair.foils == pair.counterfactual_answers == (" " + CAPITALS[other],)
            assert (
                dict(pair.tags) == {"country": country, "capital": CAPITALS[country]}
                and pair.group is None
            )
            assert pair.id == f"capitals-{list(CAPITALS).index(country) + 1:06d}"
            for text, spans, name in (
                (pair.clean, pair.spans, country),
                (pair.counterfactual, pair.counterfactual_spans, other),
            ):
                assert {key: text[a:b] for key, (a, b) in spans.items()} == {"country": name}
            seen.append(country)
    assert sorted(seen) == sorted(CAPITALS)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**70),
    split=st.sampled_from(["train", "validation", "test"]),
    n=st.integers(1, 8),
    more=st.integers(0, 8),
)
def test_stream_properties(seed: int, split: str, n: int, more: int) -> None:
    task = introduced(disjoint="country")
    for kind in ("other_row", "country"):
        call: dict[str, Any] = {"seed": seed, "counterfactual": kind}
        short, long = task.pairs(split, limit=n, **call), task.pairs(split, limit=n + more, **call)
        assert content_hash(short) == content_hash(long[:n]) and len(short) == n
    examples = task.examples(split, seed=seed)
    assert (
        len({each.id for each in examples})
        == len({each.prompt.text for each in examples})
        == len(examples)
        == task.sizes[split]
    )
    other = task.examples(split, seed=seed + 1)
    assert {each.id for each in other} == {each.id for each in examples}, (
        "the seed moves no row to another split"
    )
    assert [each.id for each in other] != [each.id for each in examples]


def test_partners_are_drawn() -> None:
    """Each of the twelve others is the partner of a row about as often, over seeds."""
    task = capitals()
    examples = (example for seed in range(400) for example in task.examples("train", seed=seed))
    foils = Counter(example.foils for example in examples if example.tags["capital"] == "Rome")
    assert len(foils) == 12
    # Five standard deviations of a binomial of 400 with p = 1/12 are 28.
    assert all(abs(count - 400 / 12) < 28 for count in foils.values())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**70), split=st.sampled_from(["train", "validation", "test"]))
def test_a_change_takes_its_fields_from_one_partner(seed: int, split: str) -> None:
    task, own = visit(), {" ".join(row.values()): row for row in CAST}
    for example in task.examples(split, seed=seed):
        mine, partner = (
            read(task.prompt, example.prompt.text),
            read(task.prompt, example.counterfactuals["other_row"].text),
        )
        assert " ".join(mine.values()) in own and " ".join(partner.values()) in own
        assert (
            example.prompt.answers == (" " + mine["b"],)
            and example.foils == (" " + partner["b"],) != example.prompt.answers
        )
        for kind, names in {"people": "ab", "who": "b", "place": ["place"]}.items():
            wanted = {**mine, **{name: partner[name] for name in names}}
            if kind not in example.counterfactuals:
                continue
            made = example.counterfactuals[kind]
            assert made.text == task.prompt.format(**wanted) != example.prompt.text
            assert made.answers == (" " + wanted["b"],), (
                "what the prompt shows is what completes it"
            )
            assert {name: made.part(name) for name in made.spans} == {
                **wanted,
                "place_2": wanted["place"],
                "a_2": wanted["a"],
            }


def test_kinds_that_change_nothing_are_left_out() -> None:
    task = visit(disjoint="a")
    for split in task.sizes:
        for example in task.examples(split):
            partner = read(task.prompt, example.counterfactuals["other_row"].text)
            mine = read(task.prompt, example.prompt.text)
            assert ("place" in example.counterfactuals) == (partner["place"] != mine["place"])
    pairs = visit(rows=[{**row, "place": "zoo"} for row in CAST[::4]]).pairs(
        "train", counterfactual="who"
    )
    assert pairs and len(pairs) + pairs.dropped.get("no such counterfactual", 0) == 40
    with pytest.raises(BadPairs, match="dropped: 40 no such counterfactual"):
        visit(rows=[{**row, "place": "zoo"} for row in CAST[::4]]).pairs(
            "train", counterfactual="place"
        )


def test_the_answer_of_a_mixture_is_known_from_a_row() -> None:
    """The capital is not in the prompt: the template cannot tell it, the rows can."""
    task = introduced(disjoint="country")
    for example in task.examples("train"):
        for made in example.counterfactuals.values():
            assert made.answers == (" " + CAPITALS[read(task.prompt, made.text)["country"]],)
    pair = task.pairs("train", counterfactual="intro", limit=1)[0]
    assert pair.answers == pair.counterfactual_answers != pair.foils


def test_the_answer_of_a_mixture_can_be_unknown() -> None:
    rows = [{**row, "intro": INTROS[number % 4]} for number, row in enumerate(ROWS)]
    task = introduced(rows=rows, disjoint="country")
    answers = [
        example.counterfactuals["country"].answers
        for example in task.examples("train")
        if "country" in example.counterfactuals
    ]
    texts = {task.prompt.format(**row) for row in rows}
    for example in task.examples("train"):
        for made in example.counterfactuals.values():
            assert (made.answers != ()) == (made.text in texts)
        assert example.foils and example.foils != example.prompt.answers
    assert () in answers


def test_a_group() -> None:
    groups = Counter(
        pair.group for pair in introduced(group="country", disjoint="country").pairs("test")
    )
    assert set(groups.values()) == {len(INTROS)}


def test_whole_numbers() -> None:
    rows = [{"x": x, "y": y, "sum": x + y} for x in range(6) for y in range(6)]
    task = Template(
        name="sums", prompt="{x} + {y} =", answer=" {sum}", rows=rows, changes={"y": "y"}
    )
    for pair in task.pairs("train", counterfactual="y"):
        assert pair.answers == (f" {eval(pair.clean[:-2])}",) and pair.counterfactual_answers in (
            (f" {eval(pair.counterfactual[:-2])}",),
            (),
        )


def test_partners_are_as_long_where_they_can_be() -> None:
    """Nearly all countries have one word, four have two."""
    tokenizer = word_level([capitals().prompt, *CAPITALS, *CAPITALS.values()])
    task = capitals(
        rows=ROWS * 1
        + [
            {"country": f"New {country}", "capital": capital}
            for country, capital in CAPITALS.items()
            if " " not in country
        ]
    )
    for split in task.sizes:
        plain, pairs = (
            task.pairs(split),
            task.pairs(split, word_level([*CAPITALS, *CAPITALS.values(), task.prompt, "New"])),
        )
        assert len(pairs) == task.sizes[split] and not pairs.dropped
        assert any(len(pair.clean.split()) != len(pair.counterfactual.split()) for pair in plain)
        assert len(
            Batch.from_pairs(pairs, word_level([*CAPITALS, *CAPITALS.values(), task.prompt, "New"]))
        ) == len(pairs)
    alone = capitals(
        rows=[row for row in ROWS if " " not in row["country"]]
        + [{"country": "A B C D", "capital": "E"}]
    )
    (split,) = [
        each
        for each in alone.sizes
        if any(pair.tags["capital"] == "E" for pair in alone.pairs(each))
    ]
    assert alone.pairs(
        split, word_level([tokenizer.decode(list(range(1, 60))), "A B C D E"])
    ).dropped == {"unequal lengths": 1}


# --- splits
# ------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    order=st.randoms(use_true_random=False),
    disjoint=st.sampled_from([(), "country", ("intro",), ("capital", "intro")]),
)
def test_splits_share_no_prompt(seed: int, order: Any, disjoint: Any) -> None:
    """Of all kinds, and for all seeds; nor the values that they must not share."""
    task = introduced(disjoint=disjoint)
    found: dict[str, set[str]] = {}
    for split in task.sizes:
        try:
            examples = task.examples(split, seed=seed)
        except BadPairs:
            assert disjoint == ("capital", "intro"), "here all rows are connected"
            continue
        for example in examples:
            for prompt in (example.prompt, *example.counterfactuals.values()):
                found.setdefault(prompt.text, set()).add(split)
            for name in [disjoint] if isinstance(disjoint, str) else disjoint:
                found.setdefault(f"{name}={example.tags[name]}", set()).add(split)
    assert all(len(splits) == 1 for splits in found.values())
    shuffled = introduced(disjoint=disjoint, rows=order.sample(PRODUCT, len(PRODUCT)))
    assert shuffled.sizes == task.sizes
    for split in task.sizes:
        rows = [
            [row.prompt.text for row in each._rows if row.split == split]
            for each in (task, shuffled)
        ]
        assert sorted(rows[0]) == sorted(rows[1]), "the order of the rows moves none"


@pytest.mark.parametrize("disjoint", [(), "a"])
def test_splits_share_no_mixture(disjoint: Any) -> None:
    """Here most mixtures are the prompt of no row."""
    task = visit(disjoint=disjoint)
    found = {
        split: {
            prompt.text
            for seed in range(3)
            for each in task.examples(split, seed=seed)
            for prompt in (each.prompt, *each.counterfactuals.values())
        }
        for split in task.sizes
    }
    rows = {task.prompt.format(**row) for row in CAST}
    assert all(texts - rows for texts in found.values())
    assert sum(map(len, found.values())) == len(set().union(*found.values()))


def test_mixtures_are_used_somewhere() -> None:
    """Mixtures that no row makes belong to one split each, so every split still has some;
    all where a field keeps them apart.
    """
    kinds = {
        split: Counter(
            kind for example in visit().examples(split) for kind in example.counterfactuals
        )
        for split in SPLITS[:3]
    }
    assert all(kinds[split]["who"] > 0.5 * visit().sizes[split] for split in kinds)
    apart = visit(disjoint="a")
    for split, size in apart.sizes.items():
        assert sum("who" in example.counterfactuals for example in apart.examples(split)) == size


@pytest.mark.parametrize(
    ("n", "sizes"),
    [
        (2, (2, 0, 0)),
        (3, (2, 1, 0)),
        (4, (2, 2, 0)),
        (5, (2, 2, 1)),
        (6, (2, 2, 2)),
        (7, (3, 2, 2)),
        (10, (6, 2, 2)),
        (20, (12, 4, 4)),
    ],
)
def test_sizes(n: int, sizes: tuple[int, ...]) -> None:
    task = capitals(rows=ROWS[:n])
    assert (
        tuple(task.sizes.get(split, 0) for split in SPLITS[:3]) == sizes
        and "private" not in task.sizes
    )
    for split, size in task.sizes.items():
        if size < 2:
            with pytest.raises(
                BadPairs,
                match=rf"Split '{split}' of capitals has 1 of its {n} rows; it needs at least 2\.",
            ):
                task.pairs(split)
        else:
            assert len(task.pairs(split)) == size
    with pytest.raises(BadUsage, match="capitals has no split 'private'"):
        task.pairs("private", private_seed=1)


def test_a_large_component_goes_to_train() -> None:
    rows = [
        {"country": f"land {n}", "capital": f"town {n}", "kind": "same" if n < 15 else str(n)}
        for n in range(30)
    ]
    task = capitals(rows=rows, disjoint="kind")
    assert {pair.tags["kind"] for pair in task.pairs("train")} >= {"same"} and task.sizes == {
        "train": 18,
        "validation": 6,
        "test": 6,
    }
    assert capitals(rows=[{**row, "kind": "same"} for row in rows], disjoint="kind").sizes == {
        "train": 30
    }


def test_a_split_of_one_answer() -> None:
    rows = [{"n": str(n), "a": "odd" if n else "even"} for n in range(12)]
    task = Template(name="parity", prompt="{n} is", answer=" {a}", rows=rows)
    bad = [
        split
        for split in task.sizes
        if "0" not in {row.fields["n"] for row in task._rows if row.split == split}
    ]
    assert len(bad) == 2
    for split in bad:
        with pytest.raises(
            BadPairs, match=rf"All \d rows in split '{split}' of parity have the answer ' odd'\."
        ):
            task.pairs(split)


def test_the_default_is_pinned() -> None:
    """A change of this changes every result on templates: raise Template.version."""
    assert Template.version == 1
    assert (
        content_hash(introduced().pairs("test", counterfactual="country"))
        == "2078aa4ba3b3306df26c221da940d0a1faac77f5d4f4f014adc77b98981168d0"
    )


# --- the object
# --------------------------------------------------------------------------------------


def test_what_is_stored() -> None:
    task = introduced(disjoint="country", group="capital")
    stored = settings_of(task)
    assert stored.pop("sha256") == introduced().sha256 != introduced(rows=PRODUCT[1:]).sha256
    assert stored == {
        "name": "capitals",
        "prompt": task.prompt,
        "answer": " {capital}",
        "disjoint": ("country",),
        "group": "capital",
        "changes": {"intro": ("intro",), "country": ("country",), "both": ("intro", "country")},
    }
    assert (
        "France" not in repr(task) and task.pairs("test").source["settings"]["group"] == "capital"
    )


def test_it_is_a_value() -> None:
    rows = copy.deepcopy(PRODUCT)
    task = introduced(rows=rows)
    before = task.pairs("test")
    rows[0]["country"] = "Nowhere"
    rows.clear()
    assert (
        task == introduced() and hash(task) == hash(introduced()) and task.pairs("test") == before
    )
    assert task != introduced(rows=PRODUCT[1:])
    again = pickle.loads(pickle.dumps(task))
    assert again == task and again.pairs("test") == before


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            {"prompt": "The capital of {contry} is"},
            UnknownName,
            "prompt of capitals 'contry'. Did you mean 'country'? Known: capital, c",
        ),
        (
            {"answer": " {capitol}"},
            UnknownName,
            "field in the answer of capitals 'capitol'. Did you mean 'capital'?",
        ),
        (
            {"disjoint": "Country"},
            UnknownName,
            "field in disjoint of capitals 'Country'. Did you mean 'country'?",
        ),
        ({"group": "land"}, UnknownName, "field in group of capitals 'land'."),
        (
            {"changes": {"it": "capital"}},
            UnknownName,
            "field in the change 'it' of capitals 'capital'. Known: country.",
        ),
        ({"changes": {"other_row": "country"}}, BadUsage, "a name other than 'other_row'"),
        ({"changes": {"it": []}}, BadUsage, "one field or more; got 'it': ()"),
        (
            {"prompt": "The capital of {country is"},
            BadUsage,
            "The prompt of capitals has a brace that belongs to no {field}",
        ),
        ({"answer": " {capital}}"}, BadUsage, "The answer of capitals has a brace"),
        ({"answer": " {}"}, BadUsage, "The answer of capitals has a brace"),
        (
            {"rows": [*ROWS[:4], {"country": "X"}, *ROWS[4:]]},
            BadUsage,
            "Row 5 of capitals lacks the field 'capital'.",
        ),
        (
            {"rows": [{"capital": "X"}, *ROWS, {"capital": "Y"}]},
            BadUsage,
            "Row 1 of capitals (and 1 more) lacks the field 'country'.",
        ),
        (
            {"rows": [*ROWS, {"country": None, "capital": "X"}]},
            BadUsage,
            "Row 23 of capitals must fill 'country' with text or",
        ),
        (
            {"rows": [*ROWS, {"country": True, "capital": "X"}]},
            BadUsage,
            "Row 23 of capitals must fill",
        ),
        (
            {"rows": [*ROWS, {"country": "X", "capital": 1.5}]},
            BadUsage,
            "'capital' with text or a whole number; got 1.5.",
        ),
        ({"rows": []}, BadPairs, "capitals has no rows."),
        (
            {"rows": [*ROWS, {"country": "Spain", "capital": "X"}]},
            BadPairs,
            "Rows 3 and 23 of capitals have the same prompt, 'The",
        ),
        (
            {"rows": [{**row, "capital": "X"} for row in ROWS]},
            BadPairs,
            "All 22 rows of capitals have the answer ' X'; foils need",
        ),
        (
            {"prompt": "{country}", "rows": [*ROWS, {"country": "", "capital": "X"}]},
            BadPairs,
            "Row 23 of capitals has an empty prompt.",
        ),
        (
            {"answer": "{capital}", "rows": [*ROWS, {"country": "X", "capital": ""}]},
            BadPairs,
            "Row 23 of capitals has an empty answer.",
        ),
        ({"prompt": "The capital is"}, BadPairs, "Rows 1 and 2 of capitals have the same prompt"),
    ],
)
def test_what_is_refused(change: dict[str, Any], kind: type[MechassayError], message: str) -> None:
    with pytest.raises(MechassayError) as caught:
        capitals(**change)
    assert (
        type(caught.value) is kind
        and message in str(caught.value)
        and "\n" not in str(caught.value)
    )


def test_arguments_of_pairs() -> None:
    task = introduced()
    with pytest.raises(UnknownName, match="counterfactual 'into'.*Did you mean 'intro'"):
        task.pairs("train", counterfactual="into")
    with pytest.raises(BadPairs, match="usable pairs of 1000 asked for"):
        task.pairs("train", limit=1000)
    with pytest.raises(BadUsage, match="A seed must be 0 or more"):
        task.pairs("train", seed=-1)
