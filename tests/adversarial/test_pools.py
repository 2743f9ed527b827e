"""Pools of prompts: how many, how long, from which examples, and what was left out.

Fields of prompts: their strata, which of them group pairs, and which pairs agree in them.

Whole populations: every example of a split, with exact statistics.

Restricted grids have the values of the full one, and no other pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from helpers.tiny_models import with_words
from mechassay.adversarial.divergence import cases_at, largest, random_places
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import (
    Pool,
    agreeing,
    check_finite,
    common_fields,
    draw_pools,
    enumerate_pools,
    fields_of,
    named_field,
    parse_same,
    parse_where,
    skeleton,
    strata_of,
    tokenized,
    worst_apart,
)
from mechassay.adversarial.statistics import parse_map
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.models.model import Model, make_model
from mechassay.prompts.pairs import Example, Prompt, filled
from mechassay.prompts.tokenization import encode
from mechassay.stats.distribution import Field
from mechassay.tasks.greater_than import GreaterThan
from mechassay.tasks.ioi import IOI
from mechassay.tasks.task import Task
from mechassay.testing.tiny import build
from mechassay.truth.ground_truth import Truth, load_truth
from mechassay.truth.tasks import CompiledIOI
from mechassay.utils.display import SILENT, Progress

SIZES = MappingProxyType({"train": 10, "test": 10})


@pytest.fixture(scope="module")
def reader() -> Model:
    """A model that reads IOI."""
    return make_model(*with_words())


@dataclass(frozen=True)
class Listed(Task):
    """A task that ends: prompts of Ann, each with the same of Bob,
    by their numbers of words before "to".
    """

    lengths: tuple[int, ...] = ()
    others: tuple[int | None, ...] = ()

    name = "listed"
    counterfactuals = ("other", "none")
    default_counterfactual = "other"
    sizes = SIZES

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        for number, (length, other) in enumerate(
            zip(self.lengths, self.others or self.lengths, strict=True)
        ):
            found = {} if other is None else {"other": prompt("Bob", other)}
            yield Example(str(number), prompt("Ann", length), found)


def prompt(name: str, n_words: int) -> Prompt:
    return Prompt(f"{name} " + "and " * n_words + "to", spans={"name": (0, 3)})


def texts(pool: Pool) -> list[str]:
    return [each.text for each in pool.prompts]


def test_pools_have_the_sizes_and_one_length(truth: Truth) -> None:
    clean, corrupted = draw_pools(truth.model, truth.task, 30, 20)
    assert (len(clean), len(corrupted)) == (30, 20)
    assert clean.tokens.shape == (30, 10) and corrupted.tokens.shape == (20, 10)
    assert truth.model.tokenizer is not None
    for pool in (clean, corrupted):
        assert pool.tokens.tolist() == encode(truth.model.tokenizer, texts(pool))
    assert clean.dropped == corrupted.dropped == {}


def test_the_pools_come_from_different_examples(truth: Truth) -> None:
    clean, corrupted = draw_pools(truth.model, truth.task, 30, 20, split="train", seed=3)
    stream = list(islice(truth.task.generate("train", 3), 50))
    assert texts(clean) == [each.prompt.text for each in stream[:30]]
    assert texts(corrupted) == [each.counterfactuals["other-prompt"].text for each in stream[30:]]


def test_matched_pools_come_from_the_same_examples(truth: Truth) -> None:
    clean, corrupted = draw_pools(truth.model, truth.task, 25, 25, matched=True)
    stream = list(islice(truth.task.generate("test", 0), 25))
    assert texts(clean) == [each.prompt.text for each in stream]
    assert texts(corrupted) == [each.counterfactuals["other-prompt"].text for each in stream]


def test_a_larger_pool_begins_with_the_smaller_one_and_seeds_differ(truth: Truth) -> None:
    small, large, other = (
        draw_pools(truth.model, truth.task, n, 5, seed=seed)[0]
        for n, seed in ((10, 0), (20, 0), (10, 1))
    )
    assert texts(large)[:10] == texts(small) and not set(texts(other)) & set(texts(small))


def test_other_lengths_are_dropped_and_counted(truth: Truth) -> None:
    task = Listed((3, 5, 3, 3, 4, 3, 3, 3, 3), (3, 3, 3, 3, 3, 2, None, 3, 3))
    # Rows 0, 2 and 3 are clean; of the rest 4 and 7 are corrupted, 5 is too short and 6 has none.
    clean, corrupted = draw_pools(truth.model, task, 3, 1)
    assert texts(clean) == [prompt("Ann", 3).text] * 3 and clean.dropped == {"not 5 tokens": 1}
    assert texts(corrupted) == [prompt("Bob", 3).text] and corrupted.dropped == {}
    clean, corrupted = draw_pools(truth.model, task, 3, 2)
    assert corrupted.dropped == {"not 5 tokens": 1, "no such counterfactual": 1}
    clean, corrupted = draw_pools(truth.model, task, 5, 5, matched=True)
    assert clean.dropped == {"not 5 tokens": 2} and corrupted.dropped == {
        "not 5 tokens": 1,
        "no such counterfactual": 1,
    }


@dataclass(frozen=True)
class Strangers(Listed):
    """A name that no tokenizer knows, in every second prompt."""

    name = "strangers"

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        for number in range(12):
            yield Example(
                str(number), prompt("Zed" if number % 2 else "Ann", 3), {"other": prompt("Bob", 3)}
            )


def test_words_that_the_tokenizer_does_not_know_are_dropped_and_counted(truth: Truth) -> None:
    clean, corrupted = draw_pools(truth.model, Strangers(), 4, 3)
    assert texts(clean) == [prompt("Ann", 3).text] * 4 and clean.dropped == {
        "words unknown to the tokenizer": 3
    }
    assert len(corrupted) == 3 and corrupted.dropped == {}
    with pytest.raises(
        BadPairs, match=r"asked for 7 and 7 \(left out: 6 words unknown to the tokenizer\)"
    ):
        draw_pools(truth.model, Strangers(), 7, 7, matched=True)
    # Some tokenizers have one token for what is unknown and for the beginning of a text.
    unknown = truth.model.tokenizer.unk_token_id  # pyright: ignore[reportOptionalMemberAccess]
    assert unknown is not None
    assert len(draw_pools(replace(truth.model, prepend=(unknown,)), truth.task, 4, 3)[0]) == 4


@pytest.mark.slow
def test_a_task_in_another_language_has_no_population(truth: Truth) -> None:
    with pytest.raises(BadPairs, match=r"left out: [\d,]+ words unknown to the tokenizer"):
        enumerate_pools(truth.model, GreaterThan())
    with pytest.raises(BadPairs, match=r"left out: [\d,]+ words unknown to the tokenizer"):
        draw_pools(load_truth("truth-induction").model, truth.task, 5, 5)


def test_prompts_of_several_templates(reader: Model) -> None:
    """IOI's templates have different lengths: one is taken, whatever the kind of counterfactual."""
    clean, corrupted = draw_pools(reader, IOI(), 40, 30, counterfactual="abc_counterfactual")
    lengths = [len(row) for row in tokenized(reader, texts(clean) + texts(corrupted))]
    assert set(lengths) == {clean.tokens.shape[1]} and sum(clean.dropped.values()) > 0
    assert "subject" in clean.fields and "subject" not in corrupted.fields
    assert set(clean.fields["name_C"]) <= set(clean.fields["name_A"]) | set(clean.fields["name_B"])


def test_what_the_model_puts_before_every_prompt(truth: Truth) -> None:
    model = replace(truth.model, prepend=(2,))
    clean, _ = draw_pools(model, truth.task, 3, 1)
    assert clean.tokens.shape == (3, 11) and clean.tokens[:, 0].tolist() == [2, 2, 2]


def test_fields_and_selections() -> None:
    task = Listed((3, 3))
    clean, _ = draw_pools(load_truth("truth-ioi").model, task, 1, 1)
    assert clean.fields == {"name": ("Ann",)}
    mixed = Pool((*clean.prompts, Prompt("and to")), clean.tokens.repeat(2, 1))
    assert mixed.fields == {"name": ("Ann", "-")}
    assert texts(mixed.select([1, 0])) == ["and to", prompt("Ann", 3).text]
    assert mixed.select([1, 1]).tokens.shape == (2, 5)


def test_a_split_that_runs_out_is_an_error(truth: Truth) -> None:
    task = Listed((3, 3, 4, 3, 3))
    assert len(draw_pools(truth.model, task, 2, 2)[1]) == 2
    with pytest.raises(
        BadPairs,
        match=(
            r"'test' of listed has 2 clean and 2 corrupted prompts of 5 tokens for .*; asked for 2"
            r" and 3"
        ),
    ):
        draw_pools(truth.model, task, 2, 3)
    with pytest.raises(BadPairs, match="has 0 clean and 0 corrupted prompts of 0 tokens"):
        draw_pools(truth.model, Listed(), 2, 3)
    with pytest.raises(BadPairs, match="has 2 clean and 0 corrupted"):
        draw_pools(truth.model, Listed((3,) * 400), 2, 2, counterfactual="none")


def test_what_cannot_be_drawn(truth: Truth) -> None:
    with pytest.raises(
        UnknownName, match=r"counterfactual 'othr-prompt'. Did you mean 'other-prompt'"
    ):
        draw_pools(truth.model, truth.task, 2, 2, counterfactual="othr-prompt")
    for split in ("private", "tset"):
        with pytest.raises(UnknownName, match="Unknown split"):
            draw_pools(truth.model, truth.task, 2, 2, split=split)
    with pytest.raises(UnknownName, match="Known: test, train"):
        draw_pools(truth.model, Listed((3,)), 1, 1, split="validation")
    for sizes, matched in (((0, 2), False), ((2, -1), False), ((2, 3), True)):
        with pytest.raises(BadUsage, match=f"got {sizes[0]} clean and {sizes[1]} corrupted"):
            draw_pools(truth.model, truth.task, *sizes, matched=matched)
    with pytest.raises(BadUsage, match="seed must be 0 or more; got -1"):
        draw_pools(truth.model, truth.task, 2, 2, seed=-1)
    with pytest.raises(BadPairs, match="no tokenizer"):
        draw_pools(make_model(build("gpt2")), truth.task, 2, 2)


def test_the_worst_pairs_apart() -> None:
    values = np.array([[9.0, 8.0, 1.0], [7.0, 5.0, np.nan], [3.0, 2.0, 4.0]])
    assert worst_apart(values, 2).tolist() == [0, 4]
    assert worst_apart(values, 9).tolist() == [0, 4, 8]
    assert worst_apart(np.full((2, 2), np.nan), 1).tolist() == []


def test_no_prompt_comes_twice() -> None:
    """The worst list may be one prompt with many others;
    the other one takes each prompt, clean or corrupted, once.
    """
    prompts = "abc", "bcd"
    values = np.array([[9.0, 8.0, 7.0], [6.0, 1.0, 2.0], [3.0, 4.0, np.nan]])
    # (a, b) first; it takes b's row too. Of the rest (c, c) is the worst, and (c, d) is undefined.
    assert largest(values.reshape(-1), 3).tolist() == [0, 1, 2]
    assert worst_apart(values, 3, *prompts).tolist() == [0, 7]
    # (b, c) shares a prompt with both others.
    assert worst_apart(np.array([1.0, 3.0, 2.0]), 5, *prompts).tolist() == [1]
    assert worst_apart(values, 0, *prompts).tolist() == []
    with pytest.raises(BadUsage, match="0 or more; got -1"):
        worst_apart(values, -1, *prompts)


def test_distinct_pairs_against_a_slow_version() -> None:
    rng = np.random.default_rng(0)
    clean, corrupted = ([f"{name}{rng.integers(9)}" for _ in range(12)] for name in "xy")
    values, used, wanted = rng.normal(size=(12, 12)), set[str](), []
    for place in np.argsort(-values.reshape(-1)):
        texts = {clean[place // 12], corrupted[place % 12]}
        if not texts & used:
            used |= texts
            wanted.append(place)
    assert worst_apart(values, 100, clean, corrupted).tolist() == wanted


def pool(prompts: list[Prompt]) -> Pool:
    return Pool(tuple(prompts), torch.zeros(len(prompts), 3, dtype=torch.long))


def made(model: Model, prompts: Sequence[Prompt]) -> Pool:
    lengths = [len(row) for row in tokenized(model, [prompt.text for prompt in prompts])]
    return Pool(tuple(prompts), torch.zeros(len(prompts), max(lengths), dtype=torch.long))


def test_strata_are_template_and_tokens_of_the_field(reader: Model) -> None:
    short, long = "When {name} left the {place}", "When {name} had left the {place}"
    prompts = [
        filled(text, {"name": name, "place": place})
        for text in (short, long)
        for name in ("Nick", "Jim")
        for place in ("zoo", "park")
    ]
    prompts += [filled(short, {"name": "Nick", "place": "gas station"})] * 2
    found = made(reader, prompts)
    assert reader.tokenizer is not None
    assert strata_of(found, ["place"], reader.tokenizer) == (
        *[f"{short} 1"] * 4,
        *[f"{long} 1"] * 4,
        *[f"{short} 2"] * 2,
    )
    assert strata_of(found, ["name", "place"], reader.tokenizer)[-1] == f"{short} 1 2"
    # The template is compared with those of as many tokens of their own: six tokens in all, less
    # those of the parts.
    assert [stratum.strip() for stratum in strata_of(found, ["template"], reader.tokenizer)] == [
        "4"
    ] * 8 + ["3"] * 2
    assert strata_of(found, ["nothing"], reader.tokenizer)[0] == f"{short} 0"


def test_random_texts_have_no_template(reader: Model) -> None:
    prompts = [
        Prompt(f"Nick {word} the zoo", spans={"name": (0, 4)})
        for word in ("left", "had", "sold", "gave", "left")
    ]
    assert reader.tokenizer is not None
    assert strata_of(made(reader, prompts), ["name"], reader.tokenizer) == (" 1",) * 5


def test_a_skeleton_has_the_first_of_several_names() -> None:
    """The roles of names are no part of the template: in which order they come would be."""
    task = IOI()
    found = {
        skeleton(example.prompt)
        for example, _ in zip(task.generate("test", 0), range(300), strict=False)
    }
    others = {
        skeleton(example.counterfactuals["abc_counterfactual"])
        for example, _ in zip(task.generate("test", 0), range(300), strict=False)
    }
    assert (
        len(found) == 11
        and found == others
        and all("{name_A}" in text and "subject" not in text for text in found)
    )


@pytest.fixture(scope="module")
def words() -> Any:
    """A tokenizer."""
    return load_truth("truth-ioi").model.tokenizer


def cities(*names: str) -> list[Prompt]:
    return [
        filled("{city} and {city}, {number}", {"city": name, "number": str(place)})
        for place, name in enumerate(names)
    ]


def test_fields_that_divide_alike_are_one(words: Any) -> None:
    clean = pool(cities("Rome", "Oslo", "Rome", "Oslo"))
    other = pool(cities("Bern", "Bern", "Lima", "Lima"))
    alone = fields_of(clean, None, words, grid=True)
    assert [(field.name, tuple(field.labels), field.side) for field in alone] == [
        ("city", ("Rome", "Oslo", "Rome", "Oslo"), "clean")
    ]
    assert [field.name for field in fields_of(clean, other, words, grid=True)] == [
        "city",
        "corrupted city",
    ]
    # Of pairs, the corrupted prompt's field may say nothing new; in a grid its labels stand on
    # another axis.
    assert [field.name for field in fields_of(clean, clean, words, grid=False)] == [
        "city = corrupted city"
    ]
    assert [field.name for field in fields_of(clean, clean, words, grid=True)] == [
        "city",
        "corrupted city",
    ]


def test_the_template_is_a_field(words: Any) -> None:
    parts = {"city": "Rome", "number": "1"}
    prompts = [
        filled(text, parts)
        for text in ("In {city} {number}", "Near {city} {number}")
        for _ in range(2)
    ]
    assert skeleton(prompts[0]) == "In {city} {number}"
    assert [
        (field.name, field.labels) for field in fields_of(pool(prompts), None, words, grid=True)
    ] == [("template", ("In {city} {number}",) * 2 + ("Near {city} {number}",) * 2)]
    inside = Prompt("a bb c", spans={"whole": (0, 6), "middle": (2, 4)})
    assert skeleton(inside) == "{whole}"


def small(*names: str, template: tuple[str, ...] = ()) -> Pool:
    prompts = tuple(Prompt(f"{name} to", spans={"name": (0, len(name))}) for name in names)
    return Pool(
        prompts,
        torch.zeros(len(names), 2, dtype=torch.long),
        {},
        {"template": template} if template else {},
    )


def test_labels_are_parts_or_columns() -> None:
    pool = small("Ann", "Bob", template=("a", "b"))
    assert pool.labels("name") == ("Ann", "Bob") and pool.labels("template") == ("a", "b")
    assert pool.labels("place") is None
    assert pool.select([1]).labels("template") == ("b",)


def test_prompts_that_agree_with_none_are_left_out_and_counted() -> None:
    clean, corrupted = (
        small("Ann", "Bob", "Cid", template=("a", "a", "b")),
        small("Bob", "Ann", "Dan", "Ann", template=("a", "b", "a", "a")),
    )
    ours, theirs, part = agreeing(clean, corrupted, ("name", "template"))
    assert [prompt.text for prompt in ours.prompts] == ["Ann to", "Bob to"] and ours.dropped == {
        "agrees with none of the other side in name, template": 1
    }
    assert [prompt.text for prompt in theirs.prompts] == ["Bob to", "Ann to"] and sum(
        theirs.dropped.values()
    ) == 2
    assert part.mask.tolist() == [[False, True], [True, False]]
    assert theirs.labels("template") == ("a", "a")


def test_fields_that_prompts_lack_are_refused() -> None:
    with pytest.raises(UnknownName, match="field of all prompts.*place.*name"):
        agreeing(small("Ann"), small("Ann"), ("place",))
    with pytest.raises(UnknownName, match="template"):
        agreeing(small("Ann", template=("a",)), small("Ann"), ("template",))
    with pytest.raises(BadPairs, match="there are no pairs"):
        agreeing(small("Ann"), small("Bob"), ("name",))
    assert common_fields(small("Ann", template=("a",)), small("Bob")) == ("name",)


def test_what_is_typed() -> None:
    assert parse_where(["object=a ring", "template=x = y"]) == {
        "object": "a ring",
        "template": "x = y",
    }
    assert parse_same("template, object") == ("template", "object") and parse_same("") == ()
    for wrong in (["object"], ["=x"], ["a=1", "a=2"]):
        with pytest.raises(BadUsage, match="FIELD=VALUE, each field once"):
            parse_where(wrong)
    for wrong in ("a,,b", "a,a", ","):
        with pytest.raises(BadUsage, match="FIELD or FIELD,FIELD"):
            parse_same(wrong)


@pytest.mark.parametrize(
    "name", ["object", "template", pytest.param("place", marks=pytest.mark.slow)]
)
def test_where_chooses_prompts_of_both_sides(reader: Model, name: str) -> None:
    plain = draw_pools(reader, IOI(), 5, 5, counterfactual="abc_counterfactual")
    labels = plain[0].labels(name)
    assert labels is not None
    chosen = draw_pools(
        reader, IOI(), 6, 4, where={name: labels[0]}, counterfactual="abc_counterfactual"
    )
    for pool, n in zip(chosen, (6, 4), strict=True):
        assert pool.labels(name) == (labels[0],) * n
    assert len(set(prompt.text for prompt in chosen[0].prompts)) == 6
    assert chosen[0].dropped[f"not {name} = {labels[0]}"] > 0


def test_a_field_or_value_that_is_not_there_is_refused(reader: Model) -> None:
    with pytest.raises(UnknownName, match=r"field of clean prompts of ioi.*objct.*object"):
        draw_pools(reader, IOI(), 2, 2, where={"objct": "ring"})
    # Who comes first is known of originals alone.
    with pytest.raises(UnknownName, match="field of corrupted prompts of ioi.*order"):
        draw_pools(reader, IOI(), 2, 2, where={"order": "ABBA"})
    with pytest.raises(BadPairs, match=r"0 clean .* not object = Zanzibar"):
        draw_pools(reader, IOI(), 2, 2, where={"object": "Zanzibar"})


def test_fields_of_heat_maps_by_name() -> None:
    clean, corrupted = pool(cities("Rome", "Oslo", "Bern")), pool(cities("Lima", "Bonn"))
    assert named_field("city", clean, corrupted) == Field("city", ("Rome", "Oslo", "Bern"))
    assert named_field("corrupted city", clean, corrupted) == Field(
        "corrupted city", ("Lima", "Bonn"), "corrupted"
    )
    assert named_field("template", clean, None).labels == ("{city} and {city_2}, {number}",) * 3
    with pytest.raises(
        UnknownName, match="Unknown field for a heat map 'ctiy'. Did you mean 'city'"
    ):
        named_field("ctiy", clean, corrupted)
    with pytest.raises(UnknownName, match="corrupted city"):
        named_field("corrupted city", clean, None)
    assert parse_map("place, corrupted object") == ("place", "corrupted object")
    for wrong in ("place", "place,place", "a,b,c", "a,", ""):
        with pytest.raises(BadUsage, match="two different fields, as in place,object"):
            parse_map(wrong)


class Gappy(CompiledIOI):
    """The first forty examples, of which every tenth lacks its counterfactual."""

    def population(self, split: str) -> int:
        return 40

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Any]:
        from dataclasses import replace

        stream = super().generate(split, seed, tokenizer)
        for number in range(40):
            example = next(stream)
            yield replace(example, counterfactuals={}) if number % 10 == 0 else example


def test_a_population_is_every_example_with_its_own_counterfactual() -> None:
    task, model = Gappy(), load_truth("truth-ioi").model
    clean, corrupted = enumerate_pools(model, task)
    examples = [example for example in task.generate("test", 0) if example.counterfactuals]
    assert [prompt.text for prompt in clean.prompts] == [
        example.prompt.text for example in examples
    ]
    assert [prompt.text for prompt in corrupted.prompts] == [
        example.counterfactuals["other-prompt"].text for example in examples
    ]
    assert len(clean) == 36 and clean.dropped == {"no such counterfactual": 4}
    with pytest.raises(UnknownName, match="private"):
        enumerate_pools(model, task, split="private")
    with pytest.raises(BadUsage, match="of ioi cannot be enumerated"):
        check_finite(IOI())


def without(truth: Truth, place: int) -> Circuit:
    """The true circuit but for one edge."""
    names = truth.circuits["counterfactual"].names()
    return Circuit.from_names(truth.model.graph, [*names[:place], *names[place + 1 :]])


@dataclass(frozen=True)
class Finite(Task):
    """Forty examples, and no more."""

    name = "finite"
    counterfactuals = ("other-prompt",)
    default_counterfactual = "other-prompt"
    sizes = MappingProxyType({"test": 40})

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        yield from load_truth("truth-ioi").task.examples("test", limit=40)

    def population(self, split: str) -> int:
        return 40


def test_a_population_is_evaluated_whole(truth: Truth) -> None:
    circuit = without(truth, 7)
    clean, corrupted = enumerate_pools(truth.model, Finite())
    found = evaluate_pairs(
        truth.model, [circuit], clean, corrupted, grid=False, progress=SILENT
    ).circuits[0]
    pairs = truth.task.pairs("test", limit=40)
    slow = np.asarray(evaluate(truth.model, circuit, pairs, "kl", progress=SILENT))
    assert [prompt.text for prompt in clean.prompts] == [pair.clean for pair in pairs]
    np.testing.assert_allclose(found, slow, rtol=0, atol=1e-5)
    with pytest.raises(BadUsage, match="cannot be enumerated"):
        enumerate_pools(truth.model, truth.task)


@pytest.fixture(scope="module")
def pools(reader: Model) -> tuple[Pool, Pool]:
    return draw_pools(reader, IOI(), 14, 11, counterfactual="abc_counterfactual")


def test_a_restricted_grid_has_the_values_of_the_whole_one(
    reader: Model, pools: tuple[Pool, Pool], tmp_path: Path
) -> None:
    circuits = [Random(seed=1).draw(reader.graph).top(share).pruned() for share in (0.4, 0.8)]
    ours, theirs, part = agreeing(*pools, ("template",))
    assert 0 < part.n_values < len(ours) * len(theirs)
    seen: list[int] = []

    class Counting(Progress):
        def track(self, text: str, total: int):
            seen.append(total)
            return SILENT.track(text, total)

    found = evaluate_pairs(
        reader, circuits, ours, theirs, part=part, folder=tmp_path / "store", progress=Counting()
    )
    whole = evaluate_pairs(reader, circuits, ours, theirs, progress=SILENT)
    assert seen == [part.n_values]
    for some, all_ in (
        (found.corrupted, whole.corrupted),
        *zip(found.circuits, whole.circuits, strict=True),
    ):
        np.testing.assert_allclose(some[part.mask], all_[part.mask], atol=2e-5)
        assert np.isnan(some[~part.mask]).all(), "a pair outside of the restriction was run"
    # What is stored is taken up again, and is not taken for another part's.
    again = evaluate_pairs(
        reader, circuits, ours, theirs, part=part, folder=tmp_path / "store", progress=SILENT
    )
    np.testing.assert_array_equal(again.circuits, found.circuits)
    with pytest.raises(BadFile, match="other circuits or prompts"):
        evaluate_pairs(reader, circuits, ours, theirs, folder=tmp_path / "store", progress=SILENT)
    with pytest.raises(BadUsage, match="part of a grid"):
        evaluate_pairs(
            reader,
            circuits,
            *pools,
            part=part.select([0], [int(np.flatnonzero(part.mask[0])[0])]),
            progress=SILENT,
        )


def test_pairs_that_are_none_are_never_worst_nor_drawn(
    reader: Model, pools: tuple[Pool, Pool]
) -> None:
    values = np.array([1.0, np.nan, 3.0, np.nan])
    assert largest(values, 4).tolist() == [2, 0]
    ours, theirs, part = agreeing(*pools, ("template",))
    circuit = Random(seed=1).draw(reader.graph).top(0.5)
    grid = evaluate_pairs(reader, [circuit], ours, theirs, part=part, progress=SILENT).circuits[0]
    places = random_places(grid, 10_000, np.random.default_rng(0))
    cases = cases_at(reader, circuit, ours, theirs, grid, places)
    assert len(cases) == part.n_values and all(
        part.mask[case.clean, case.corrupted] and case.agrees for case in cases
    )
