"""Fields of prompts: their strata, which of them group pairs, and which pairs agree in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mechassay.adversarial.fields import (
    agreeing,
    common_fields,
    fields_of,
    named_field,
    parse_same,
    parse_where,
    skeleton,
    strata_of,
)
from mechassay.adversarial.pools import Pool, draw_pools, tokenized
from mechassay.adversarial.statistics import (
    parse_map,
)
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Prompt, filled
from mechassay.models.model import Model, make_model
from mechassay.stats.groups import Field
from mechassay.tasks.ioi import IOI
from mechassay.testing.tiny import with_words
from mechassay.truth.models import load_truth


@pytest.fixture(scope="module")
def reader() -> Model:
    """A model that reads IOI."""
    return make_model(*with_words())


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
    plain = draw_pools(IOI(), reader, 5, 5, counterfactual="abc_counterfactual")
    labels = plain[0].labels(name)
    assert labels is not None
    chosen = draw_pools(
        IOI(), reader, 6, 4, where={name: labels[0]}, counterfactual="abc_counterfactual"
    )
    for pool, n in zip(chosen, (6, 4), strict=True):
        assert pool.labels(name) == (labels[0],) * n
    assert len(set(prompt.text for prompt in chosen[0].prompts)) == 6
    assert chosen[0].dropped[f"not {name} = {labels[0]}"] > 0


def test_a_field_or_value_that_is_not_there_is_refused(reader: Model) -> None:
    with pytest.raises(UnknownName, match=r"field of clean prompts of ioi.*objct.*object"):
        draw_pools(IOI(), reader, 2, 2, where={"objct": "ring"})
    # Who comes first is known of originals alone.
    with pytest.raises(UnknownName, match="field of corrupted prompts of ioi.*order"):
        draw_pools(IOI(), reader, 2, 2, where={"order": "ABBA"})
    with pytest.raises(BadPairs, match=r"0 clean .* not object = Zanzibar"):
        draw_pools(IOI(), reader, 2, 2, where={"object": "Zanzibar"})


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
