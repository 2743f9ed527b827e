"""Greater-than: counterfactuals of other years, and the prompts whose labels they give.

Labels of the causal models of tasks, against slow implementations that read the text anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import mechassay as ma
from mechassay.causal_models.hypothesis import defaults_of
from mechassay.causal_models.labels import expected_labels
from mechassay.causal_models.task_models import (
    CAUSAL_MODELS,
    OTHER_YEAR,
    greater_than_model,
    with_other_years,
)
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.prompts.pairs import Example, Examples, Prompt
from mechassay.tasks import load_task
from mechassay.tasks.ravel import Query
from mechassay.tasks.task import word_lists
from mechassay.variables import (
    CausalModel,
    ExpectedLabels,
    Undecided,
    Variable,
    load_causal_model,
    with_shifts,
)
from mechassay.variables import expected_labels as models_expected_labels

N = 40


@pytest.fixture(scope="module")
def examples() -> Examples:
    return ma.load_task("greater-than").examples("test", limit=N)


def year_of(prompt: Prompt) -> int:
    return int(prompt.part("year"))


def test_the_other_year_is_that_of_the_next_example_of_the_century(examples: Examples) -> None:
    found = with_other_years(examples)
    assert len(found) == N and found.dropped == examples.dropped
    for number, (before, after) in enumerate(zip(examples, found, strict=True)):
        same = [x for x in examples if x.tags["century"] == before.tags["century"]]
        later = [x for x in examples[number + 1 :] if x in same]
        years = [year_of(x.prompt) for x in (*later, *same)]
        other = next((year for year in years if year != year_of(before.prompt)), None)
        assert (OTHER_YEAR in after.counterfactuals) == (other is not None)
        if other is None:
            continue
        made = after.counterfactuals[OTHER_YEAR]
        assert year_of(made) == other
        # Nothing but the year differs, and what is right is what is later, one by one.
        begin, end = before.prompt.spans["year"]
        assert made.text[:begin] == before.prompt.text[:begin]
        assert made.text[end:] == before.prompt.text[end:]
        written = made.part("digit") if "digit" in made.spans else ""
        assert set(made.answers) == {x for x in made.choices if int(written + x) > other}
        assert {k: after.counterfactuals[k] for k in before.counterfactuals} == dict(
            before.counterfactuals
        )


def test_defaults_prepare_the_examples(examples: Examples) -> None:
    prepared = defaults_of("greater-than").prepared(examples)
    assert any(OTHER_YEAR in each.counterfactuals for each in prepared)
    assert defaults_of("mcqa").prepared(examples) is examples


@pytest.mark.parametrize("variable", ["tens", "ones"])
def test_the_prompt_with_the_values_of_the_interchange(examples: Examples, variable: str) -> None:
    """It has the base's words, and a year after which the same endings are right."""
    causal = greater_than_model()
    assert causal.prompt is not None and causal.read is not None
    labels = expected_labels(causal, variable, with_other_years(examples), [OTHER_YEAR])
    assert len(labels) > N / 2
    for pair in labels:
        base = Prompt(pair.base, spans=pair.base_spans)
        asked = causal.prompt(pair.labels, base)
        begin, end = pair.base_spans["year"]
        assert re.fullmatch(r"\d\d", asked[begin:end])
        assert (asked[:begin], asked[end:]) == (pair.base[:begin], pair.base[end:])
        old, new = pair.base[begin:end], pair.source[slice(*pair.source_spans["year"])]
        mixed = new[0] + old[1] if variable == "tens" else old[0] + new[1]
        written = base.part("digit") if "digit" in base.spans else ""
        first = min(int(written + label) for label in pair.labels)
        assert first > int(mixed) and int(asked[begin:end]) == first - 1
        if not written:
            assert asked[begin:end] == mixed


Slow = Callable[[Prompt, Prompt, str], "set[str] | None"]
"""The labels of a base, a source and a variable, without spaces; None where there are none."""


# --- slow implementations -------------------------------------------------------------------------


def lines(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^(\w+)\. (.*)$", text, re.M)


def right_line(prompt: Prompt) -> int:
    """Of MCQA by the color in the question; of ARC by the answer."""
    color = re.search(r"(?:is|are) (\w+)\. What color", prompt.text)
    for number, (symbol, choice) in enumerate(lines(prompt.text)):
        if (choice == color[1]) if color else (symbol == prompt.answers[0].strip()):
            return number
    raise AssertionError(prompt.text)


def choosing(base: Prompt, source: Prompt, variable: str) -> set[str] | None:
    of = base if variable == "answer_pointer" else source
    return {lines(of.text)[right_line(source)][0]}


def adding(base: Prompt, source: Prompt, variable: str) -> set[str] | None:
    """On the written digits of the two sums; carries are counted on fingers."""
    (a, b), (c, d) = (tuple(map(int, re.findall(r"\d+", prompt.text))) for prompt in (base, source))
    ours, theirs = f"{a + b:03d}", f"{c + d:03d}"

    def carry(x: int, y: int) -> bool:
        return len([*range(x % 10), *range(y % 10)]) >= len("ten fingers"[:10])

    made = {
        "answer": theirs,
        "ones": ours[:2] + theirs[2],
        "tens": ours[0] + theirs[1] + ours[2],
        "hundreds": theirs[0] + ours[1:],
        "tens_sum": theirs[:2] + ours[2],
        "carry": str(a + b + 10 * (int(carry(c, d)) - int(carry(a, b)))),
    }
    return {str(int(made[variable]))}


def recalling(base: Prompt, source: Prompt, variable: str) -> set[str] | None:
    """By the table of cities and countries, from the names in the text."""
    data = word_lists("ravel")
    facts = {
        country: (country, continent, language)
        for country, continent, language in data["countries"]
    }
    cities = {
        city: facts[country] for rows in data["cities"].values() for city, country, *_ in rows
    }
    places = {"Country": 0, "Continent": 1, "Language": 2}

    def city(prompt: Prompt) -> str:
        begin, end = prompt.spans["entity"]
        return prompt.text[begin:end]

    def asked(prompt: Prompt) -> str | None:
        template = prompt.text.replace(city(prompt), "{entity}")
        for templates in data["templates"].values():
            for attribute in places:
                if template in templates[attribute]:
                    return attribute
        return None

    query = asked(base)
    assert query is not None
    if variable == "query":
        query = asked(source)
    if variable == "answer":
        query, base = asked(source), source
    if query is None:
        return None
    of = source if variable in (query, "entity") else base
    return {cities[city(of)][places[query]]}


def later(base: Prompt, source: Prompt, variable: str) -> set[str] | None:
    ours, theirs = (int(re.findall(r"\d\d(\d\d)", p.text)[0]) for p in (base, source))
    first = {
        "year": theirs,
        "answers": theirs,
        "tens": int(f"{theirs:02d}"[0] + f"{ours:02d}"[1]),
        "ones": int(f"{ours:02d}"[0] + f"{theirs:02d}"[1]),
    }[variable]
    return {f"{year:02d}" for year in range(100) if year > first}


def describing(base: Prompt, source: Prompt, variable: str) -> set[str] | None:
    def parts(prompt: Prompt) -> tuple[list[str], str]:
        names = re.findall(r"def \w+\(self, (.*)\)", prompt.text)[0].split(", ")
        return names, re.findall(r":param (\w+):", prompt.text)[-1]

    (ours, own), (theirs, last) = parts(base), parts(source)
    if variable == "last_described":
        # Only what stands before a parameter of the base.
        following = dict(pairwise(ours))
        return {following[last]} if last in following else None
    if last not in theirs[:-1]:
        return None
    place = theirs.index(last) + 1
    assert own in ours
    return {ours[place] if variable == "answer_pointer" else theirs[place]}


CASES: list[tuple[str, Slow, tuple[str, ...]]] = [
    ("mcqa", choosing, ("answer_pointer", "answer")),
    ("arc-easy", choosing, ("answer_pointer", "answer")),
    ("arc-challenge", choosing, ("answer_pointer", "answer")),
    ("arithmetic-addition", adding, ("carry", "ones", "tens_sum", "tens", "hundreds", "answer")),
    ("ravel", recalling, ("entity", "query", "Country", "Continent", "Language", "answer")),
    ("greater-than", later, ("year", "tens", "ones", "answers")),
    ("docstring", describing, ("last_described", "answer_pointer", "answer")),
]


def examples_of(task: str, n: int = 16, split: str = "train") -> Sequence[Example]:
    made = load_task(task).examples(split, limit=n)
    return with_shifts(made) if task == "docstring" else made


@pytest.mark.parametrize(
    ("task", "slow", "variable"),
    [(task, slow, variable) for task, slow, variables in CASES for variable in variables],
)
def test_labels_are_those_of_the_slow_implementation(task: str, slow: Slow, variable: str) -> None:
    examples = examples_of(task)
    found = models_expected_labels(load_causal_model(task), variable, examples)
    labels = {pair.id: {text.strip() for text in pair.labels} for pair in found}
    n_decided = 0
    for example in examples:
        for kind, source in example.counterfactuals.items():
            expected = slow(example.prompt, source, variable)
            assert labels.get(f"{example.id}/{kind}") == expected, (kind, source.text)
            n_decided += expected is not None
    assert n_decided == len(found) > 0
    n_kinds = sum(len(each.counterfactuals) for each in examples)
    absent = found.dropped.get("no such counterfactual", 0)
    assert sum(found.dropped.values()) == n_kinds - n_decided + absent


@pytest.mark.parametrize("task", [task for task, _, _ in CASES])
def test_base_labels_are_the_answers_of_the_task_and_foils_do_not_matter(task: str) -> None:
    examples = examples_of(task, 6)
    by_id = {example.id: example for example in examples}
    model = load_causal_model(task)
    found = models_expected_labels(model, model.output, examples)
    for pair in found:
        example = by_id[pair.id.split("/")[0]]
        assert set(pair.base_labels) == set(example.prompt.answers)
        assert pair.base == example.prompt.text and pair.group == (example.group or example.id)
        assert pair.source_spans == example.counterfactuals[pair.kind].spans
    other = [
        Example(e.id, e.prompt, e.counterfactuals, (" nonsense",), e.group, e.tags)
        for e in examples
    ]
    assert list(models_expected_labels(model, model.output, other)) == list(found)


@pytest.mark.parametrize("task", [task for task, _, _ in CASES])
def test_without_an_interchange_the_label_is_the_base_label(task: str) -> None:
    found = models_expected_labels(load_causal_model(task), None, examples_of(task, 6))
    assert not found.changed.any() and len(found)
    assert all(pair.labels == pair.base_labels for pair in found)


@pytest.mark.parametrize("task", [task for task, _, _ in CASES])
def test_the_output_of_the_source_is_the_answer_of_the_source(task: str) -> None:
    """What the output is exchanged with is what the task itself calls right there."""
    examples = examples_of(task, 6)
    model = load_causal_model(task)
    found = models_expected_labels(model, model.output, examples)
    sources = {f"{e.id}/{k}": prompt for e in examples for k, prompt in e.counterfactuals.items()}
    answers = {pair.id: set(sources[pair.id].answers) for pair in found}
    assert all(set(pair.labels) == answers[pair.id] for pair in found)


# --- addition, over all operands ------------------------------------------------------------------


def test_addition_is_right_for_all_operands() -> None:
    model = load_causal_model("arithmetic-addition")
    for a in range(0, 100, 3):
        for b in range(100):
            inputs = dict(
                zip(("x10", "x1", "y10", "y1"), (*divmod(a, 10), *divmod(b, 10)), strict=True)
            )
            assert model.value("answer", inputs) == a + b


def inputs_of(a: int, b: int) -> dict[str, int]:
    return {"x10": a // 10, "x1": a % 10, "y10": b // 10, "y1": b % 10}


def test_readings_of_the_carry() -> None:
    model = load_causal_model("arithmetic-addition")
    assert model.value("carry", inputs_of(5, 5)) == 1  # 10, not more than 10
    assert model.value("tens", inputs_of(57, 66)) == 2  # figure 14b
    # Figure 6b: the carry of 30 + 47 into 17 + 25.
    assert model.interchange(inputs_of(17, 25), {"carry": inputs_of(30, 47)})["answer"] == 32
    # Section 4.3 calls this a counterfactual that does not change the carry.
    assert model.value("carry", inputs_of(17, 75)) == 1
    assert model.value("carry", inputs_of(11, 71)) == 0


def test_figure_7_and_figure_16() -> None:
    mcqa = load_causal_model("mcqa")
    asked = {
        "color": "brown",
        "choices": ("red", "orange", "brown", "purple"),
        "symbols": tuple("ABCD"),
    }
    assert mcqa.run(asked)["answer"] == "C" and mcqa.run(asked)["answer_pointer"] == 2
    other = {**asked, "choices": ("brown", "red", "orange", "purple"), "symbols": tuple("WXYZ")}
    assert mcqa.interchange(asked, {"answer_pointer": other})["answer"] == "A"
    assert mcqa.interchange(asked, {"answer": other})["answer"] == "W"


# --- what is refused, and what is dropped ---------------------------------------------------------


def test_what_the_models_cannot_read_is_dropped_and_counted() -> None:
    plain = Prompt("no spans", (" x",))
    for name in CAUSAL_MODELS.names():
        model = load_causal_model(name)
        with pytest.raises(BadPairs, match=r"gives no label .* to 1 examples; dropped: 1 [a-z]"):
            models_expected_labels(model, model.inner[0], [Example("e", plain, {"other": plain})])


def test_a_task_that_answers_otherwise_is_counted() -> None:
    model = CausalModel(
        "constant", {"x": (0, 1), "y": Variable((0, 1), lambda x: x)},
        read=lambda prompt: {"x": len(prompt.text) % 2},
        write=lambda value, base: (f" {value}",),
    )  # fmt: skip
    wrong = Example("e", Prompt("a", (" 0",)), {"k": Prompt("aa")})
    right = Example("f", Prompt("aa", (" 0",)), {"k": Prompt("a"), "l": Prompt("aaaa")})
    with pytest.raises(BadPairs, match="1 the task has another answer than the causal model"):
        models_expected_labels(model, "y", [wrong])
    found = models_expected_labels(model, "y", [wrong, right])
    assert [pair.id for pair in found] == ["f/k", "f/l"]
    assert [pair.label for pair in found] == [(" 1",), (" 0",)]
    assert found.changed.tolist() == [True, False]
    assert found.dropped == {
        "the task has another answer than the causal model": 1,
        "no such counterfactual": 1,
    }
    assert [pair.kind for pair in models_expected_labels(model, "y", [right], ["l"])] == ["l"]
    assert found.take([1])[0].id == "f/l" and found.take([1]).dropped == found.dropped
    assert found.columns()["label"] == [" 1", " 0"]
    assert "changed=1" in repr(found) and "constant: y" in found._repr_html_()


def test_errors_of_labels() -> None:
    examples = examples_of("mcqa", 2)
    model = load_causal_model("mcqa")
    with pytest.raises(UnknownName, match="Did you mean 'answer_pointer'"):
        models_expected_labels(model, "answer_pointr", examples)
    with pytest.raises(UnknownName, match="Unknown kind 'symbols'"):
        models_expected_labels(model, "answer", examples, ["symbols"])
    with pytest.raises(BadUsage, match="has no labels, as it has no read"):
        models_expected_labels(CausalModel("m", {"x": (0, 1)}), "x", examples)
    with pytest.raises(BadUsage, match="need a model with a .tokenizer"):
        models_expected_labels(model, "answer", examples).tokenized(None)
    with pytest.raises(UnknownName, match="causal model 'mcq'"):
        load_causal_model("mcq")
    with pytest.raises(UnknownName, match="setting of the causal model 'mcqa' 'choices'"):
        load_causal_model("mcqa", choices=3)
    with pytest.raises(BadUsage, match="between 2 and 13; got 1"):
        load_causal_model("mcqa", n_choices=1)


def test_another_number_of_choices() -> None:
    six = load_task("mcqa", n_choices=6).examples("train", limit=3)
    found = models_expected_labels(load_causal_model("mcqa", n_choices=6), "answer_pointer", six)
    assert len(found) == 3 * 9
    with pytest.raises(BadPairs, match="27 another number of choices"):
        models_expected_labels(load_causal_model("mcqa"), "answer_pointer", six)


def test_a_prompt_that_ends_in_a_space_has_labels_without() -> None:
    task = load_task("arithmetic-addition", labels="mib-2025")
    found = models_expected_labels(
        load_causal_model("arithmetic-addition"), "carry", task.examples("train", limit=4)
    )
    assert all(re.fullmatch(r"\d+", text) for pair in found for text in pair.labels)


def test_the_tens_digit_that_is_written_counts() -> None:
    task = load_task("greater-than", digit="last")
    found = models_expected_labels(
        load_causal_model("greater-than"), "ones", task.examples("train", limit=8)
    )
    for pair in found:
        year = int(pair.tags["year"])
        assert set(pair.base_labels) == {str(one) for one in range(10) if one > year % 10}
        # The ones of 01.
        assert set(pair.labels) == {str(one) for one in range(10) if one > 1}


def test_a_fact_of_several_values_and_one_that_nobody_says() -> None:
    def query(city: str, attribute: str, language: str) -> Query:
        text = f"{city} speaks"
        facts = {"Continent": "Africa", "Country": "Algeria", "Language": language}
        columns = {"entity": city, "attribute": attribute, **facts}
        answers = tuple(f" {each}" for each in facts[attribute].split(","))
        return Query(text, answers, columns=columns)

    model = load_causal_model("ravel")
    base = query("Oran", "Language", "Arabic,Berberi")
    others = {"known": query("Lyon", "Country", "French"), "unknown": query("Ur", "Country", "")}
    found = models_expected_labels(model, "Language", [Example("e", base, others)])
    assert [pair.label for pair in found] == [(" French",)]
    assert found[0].base_label == (" Arabic", " Berberi")
    assert found.dropped == {"a fact that nobody says": 1}
    # A country does not change the language.
    assert not models_expected_labels(model, "Country", [Example("e", base, others)]).changed.any()


def test_every_causal_model_draws_itself() -> None:
    for name in CAUSAL_MODELS.names():
        model: Any = load_causal_model(name)
        texts = [text.get_text() for text in model.plot().axes[0].texts]
        assert len(texts) == 1 + len(model.variables) and "text prompt" in texts


def word_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Words with their space, and single other characters, of some texts."""
    pattern = r" ?\w+|[^\w]"
    words = dict.fromkeys(word for text in texts for word in re.findall(pattern, text))
    known = {word: number for number, word in enumerate(["[UNK]", *words])}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")


def test_labels_become_a_batch_and_what_cannot_is_counted() -> None:
    labels = models_expected_labels(load_causal_model("ravel"), "Country", examples_of("ravel", 4))
    texts = [pair.base for pair in labels] + [pair.source for pair in labels]
    said = [text for pair in labels for text in (*pair.labels, *pair.base_labels)]
    kept, batch = labels.tokenized(word_tokenizer([*texts, *said]))
    assert len(kept) == len(batch) == len(labels) and batch.kinds == tuple(p.kind for p in labels)
    assert {"entity.last", "last"} <= set(batch.names)
    # Without the word of one label, its rows are left out.
    unknown = labels[0].labels[0].split()[-1]
    fewer = word_tokenizer([text.replace(unknown, "") for text in [*texts, *said]])
    kept, batch = labels.tokenized(fewer)
    lost = sum(unknown in text for p in labels for text in (p.labels[0] + p.base_labels[0],))
    assert kept.dropped["a word unknown to the tokenizer"] == lost == len(labels) - len(batch) > 0
    assert len(kept.values) == len(kept)
    with pytest.raises(BadPairs, match="gives no label for the variable 'Country'"):
        labels.tokenized(word_tokenizer(["nothing"]))


def test_labels_as_values() -> None:
    labels = models_expected_labels(load_causal_model("mcqa"), "answer", examples_of("mcqa", 2))
    assert isinstance(labels, ExpectedLabels) and np.isnan(labels.values).all()
    with pytest.raises(Undecided):
        load_causal_model("ioi").run({"names": ("Ann", "Bob", "Cid")})
