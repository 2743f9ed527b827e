"""Reading tables, data files of metrics, and the sentences of quantities and flags."""

from __future__ import annotations

import math
import re
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
import yaml

from mechassay.errors import BadUsage, UnknownName
from mechassay.measurement import Measurement
from mechassay.measurement.catalogue import (
    NOT_FINITE,
    OTHERWISE,
    VARIANTS,
    BandScale,
    Flag,
    PageMetric,
    Quantity,
    QuantityText,
    Range,
    catalogue,
    flag,
    page_metric,
    quantity,
    read_metric,
)
from mechassay.measurement.gauges import GAUGES

CORE = catalogue()["M09"].scales
DPRIME = catalogue()["EX1"].scales[1]


def test_a_value_is_inside_on_an_edge_or_in_a_gap() -> None:
    fraction, overlap = CORE
    assert fraction.read({"core_fraction": 0.2}).at == "inside"
    assert fraction.read({"core_fraction": 0.03}).at == "gap"
    assert overlap.read({"mean_overlap": 0.6}).at == "gap"
    edge = DPRIME.read({"dprime": 2.0})
    assert edge.at == "edge" and edge.says.count(";") == 1


def test_what_is_undefined_is_said() -> None:
    reading = DPRIME.read({"dprime": None})
    assert reading.at == "undefined" and "dprime" in reading.says


def test_a_remark_says_nothing_elsewhere() -> None:
    remark = catalogue()["EX11"].scales[1]
    assert remark.read({"all_detectable": 1.0}) is None
    assert remark.read({"all_detectable": None}) is None
    assert remark.read({"all_detectable": 0.0}).at == "inside"


def test_several_quantities_have_a_range_each() -> None:
    scale = catalogue()["EX24"].scales[0]
    assert "blind" in scale.read({"cv": 0.01, "discriminability_d": 0.1}).says
    assert "noisy" in scale.read({"cv": 0.3, "discriminability_d": 9.0}).says
    # Low and high are words of the page, for which the thresholds stand.
    assert "threshold" in scale.read({"cv": 0.01, "discriminability_d": 0.1}).says


@pytest.mark.parametrize("text", ["0.5", "> x", "high", "1 - 2"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="range"):
        Range.parse(text)


def test_a_band_has_as_many_ranges_as_quantities() -> None:
    with pytest.raises(BadUsage, match="2 ranges"):
        BandScale.parse(["a", "b"], {"> 1": "x"})


# --- data files

LUCK = {
    "title": "luck",
    "establishes": "that a coin was tossed",
    "does_not": "who tossed it",
    "criterion": "M1",
    "needs": ["model", "circuit|sae"],
    "pass": ["heads > 0.5"],
    "page": {"heads": {}},
    "repaired": {
        "heads": {
            "meaning": "Share of heads of {tosses} tosses.",
            "better": "up",
            "undefined": {
                "otherwise": "no coin was tossed",
                "few": "there are fewer than {least} tosses",
            },
        },
        "gap": {"undefined": "{tosses} tosses say nothing"},
    },
    "flags": {"worn": "The coin is {worn:.0%} worn.", "plain": "There is one coin."},
}
WORDS = {"tosses": 9, "least": 5}


def luck(folder: Path, lacking: str = "", **changes: Any) -> PageMetric:
    """Read the metric LUCK from its file, with changes and without a field."""
    row = {key: value for key, value in (LUCK | changes).items() if key != lacking}
    (folder / "LUCK.yaml").write_text(yaml.safe_dump(row, sort_keys=False), "utf-8")
    return read_metric(folder / "LUCK.yaml")


def test_a_metric_is_read_from_its_file(tmp_path: Path) -> None:
    metric = luck(tmp_path)
    assert (metric.id, metric.title, metric.needs) == ("LUCK", "luck", ("model", "circuit|sae"))
    assert str(metric.criterion) == "mv-27@1:M1" and metric.criterion.name == "Reliability"
    assert list(map(str, metric.conditions)) == ["heads > 0.5"]
    assert metric.script == "" and metric.labels == metric.keys == metric.scales == ()
    assert metric.texts["page"] == {"heads": QuantityText()}
    assert metric.texts["repaired"]["gap"] == QuantityText(undefined="{tosses} tosses say nothing")
    assert luck(tmp_path, lacking="flags").flags == {}


@pytest.mark.parametrize("field", ["title", "establishes", "does_not", "criterion", "needs"])
def test_a_file_without_a_field_is_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(BadUsage, match=rf"LUCK\.yaml, the data file of a metric, lacks {field}\."):
        luck(tmp_path, lacking=field)


def test_a_file_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="lacks title and has the unknown flag, name"):
        luck(tmp_path, lacking="title", name="luck", flag={})


def test_a_criterion_is_one_of_the_rubric(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="M99"):
        luck(tmp_path, criterion="M99")


@pytest.mark.parametrize("entry", [{"means": "Share of heads."}, None, "Share of heads."])
def test_a_quantity_has_known_fields(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(BadUsage, match="a quantity has meaning, better and undefined"):
        luck(tmp_path, repaired={"heads": entry})


# --- sentences


def described(metric: PageMetric, **quantities: Quantity) -> dict[str, Quantity]:
    return metric.described("repaired", quantities, WORDS)


def test_a_quantity_gets_its_words(tmp_path: Path) -> None:
    heads = described(luck(tmp_path), heads=quantity(0.6, n=9))["heads"]
    assert heads == Quantity(0.6, n=9, meaning="Share of heads of 9 tosses.", better="up")


def test_an_undefined_quantity_gets_its_reason_by_case(tmp_path: Path) -> None:
    metric = luck(tmp_path)

    def reason(**quantities: Quantity) -> str:
        return next(iter(described(metric, **quantities).values())).reason

    assert reason(heads=quantity(math.nan)) == "no coin was tossed"
    assert reason(heads=quantity(None, reason="few")) == "there are fewer than 5 tosses"
    assert reason(heads=quantity(None, reason="the coin is lost")) == "the coin is lost"
    assert reason(heads=quantity(0.5, reason="few")) == "", "a case of a value that is there"
    assert reason(gap=quantity(None)) == "9 tosses say nothing"
    with pytest.raises(BadUsage, match="no reason 'many' for an undefined quantity"):
        reason(heads=quantity(None, reason="many"))
    page = metric.described("page", {"heads": quantity(None)}, {})
    assert page["heads"].reason == NOT_FINITE


def test_a_quantity_that_the_file_does_not_have_is_refused(tmp_path: Path) -> None:
    metric = luck(tmp_path)
    with pytest.raises(BadUsage, match="the quantity tails under 'repaired'; it describes heads"):
        described(metric, heads=quantity(1.0), tails=quantity(1.0))
    with pytest.raises(BadUsage, match="not describe the quantity gap under 'page'"):
        metric.described("page", {"gap": quantity(1.0)}, {})


def test_a_quantity_of_several_things_is_found_by_its_first_word(tmp_path: Path) -> None:
    quantities = {"heads one, two": quantity(0.5), "heads three": quantity(None)}
    found = luck(tmp_path).described("repaired", quantities, WORDS)
    assert {each.meaning for each in found.values()} == {"Share of heads of 9 tosses."}
    assert found["heads three"].reason == "no coin was tossed"


def test_a_flag_gets_its_sentence(tmp_path: Path) -> None:
    metric = luck(tmp_path)
    assert metric.flagged(flag("worn", worn=0.25)) == Flag("worn", "The coin is 25% worn.")
    assert metric.flagged(flag("plain")) == Flag("plain", "There is one coin.")
    given = Flag("odd", "It is {odd}.")
    assert metric.flagged(given) is given, "a sentence that code gives is left as it is"
    with pytest.raises(BadUsage, match="LUCK has no sentence for the flag 'bent'; it has worn, pl"):
        metric.flagged(flag("bent"))


def test_values_with_braces_are_no_fields(tmp_path: Path) -> None:
    metric = luck(tmp_path, flags={"of": "{name} is odd."})
    assert metric.flagged(flag("of", name="{x}")).says == "{x} is odd."


def test_a_measurement_has_the_words_of_a_metric_of_ones_own(tmp_path: Path) -> None:
    found = Measurement.of(
        luck(tmp_path),
        {"heads": quantity(0.6)},
        {"heads": quantity(None, reason="few")},
        flags=[flag("plain")],
        words=WORDS,
    )
    assert found.id == "LUCK" and found.page.passed is True and found.passed is None
    assert found.repaired.quantities["heads"].reason == "there are fewer than 5 tosses"
    assert [each.says for each in found.flags] == ["There is one coin."]


# --- data files and code

GAUGE_IDS = sorted(GAUGES.built_in)


def sources(id: str) -> str:
    """The module of a metric's gauge, and the modules of metrics that it imports."""
    module = GAUGES.built_in[id].partition(":")[0]
    text = Path(str(import_module(module).__file__)).read_text("utf-8")
    others = dict.fromkeys(re.findall(r"^from (mechassay\.\w+\.metrics\.\w+) import", text, re.M))
    files = [Path(str(import_module(other).__file__)) for other in others]
    return "\n".join([text, *(file.read_text("utf-8") for file in files)])


def fields(text: str) -> set[str]:
    """The names in the braces of a sentence."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("id", GAUGE_IDS)
def test_braces_of_sentences_have_values(id: str) -> None:
    """A metric fills what its data file leaves open: the name is written in its code."""
    metric, code = page_metric(id), sources(id)
    texts = [text for name in VARIANTS for text in metric.texts[name].values()]
    sentences = [*metric.flags.values(), *(text.meaning for text in texts)]
    for text in texts:
        cases = text.undefined
        sentences += [cases] if isinstance(cases, str) else cases.values()
    for name in set().union(*map(fields, sentences)):
        assert re.search(rf'"{name}"|\b{name}=', code), f"{id}: nothing gives {{{name}}}"


@pytest.mark.parametrize("id", GAUGE_IDS)
def test_flags_and_cases_of_data_files_are_named_in_code(id: str) -> None:
    metric, code = page_metric(id), sources(id)
    texts = [text for name in VARIANTS for text in metric.texts[name].values()]
    named = set(metric.flags)
    for text in texts:
        named |= set() if isinstance(text.undefined, str) else set(text.undefined) - {OTHERWISE}
    formatted = re.findall(r'f"(\w+\{\w+\}\w*)"', code)
    patterns = [re.sub(r"\{\w+\}", r"\\w+", text) for text in formatted]
    unused = [
        name
        for name in sorted(named)
        if f'"{name}"' not in code and not any(re.fullmatch(x, name) for x in patterns)
    ]
    assert not unused, f"{id}: the code does not name {', '.join(unused)}"


@pytest.mark.parametrize("id", GAUGE_IDS)
def test_quantities_of_conditions_and_scales_have_words(id: str) -> None:
    metric = page_metric(id)
    used = {condition.quantity for condition in metric.conditions}
    used |= {name for scale in metric.scales for name in scale.of}
    assert used | set(metric.keys) <= set(metric.texts["page"])
    assert metric.texts["repaired"], "every metric has a repaired definition"
