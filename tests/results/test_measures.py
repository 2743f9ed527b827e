"""Texts of measures: every number gets the words of the data file, and no brace stays open."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path

import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.results.measures import (
    MeasureTexts,
    all_measure_texts,
    measure_texts,
    read_measure_texts,
)
from mechassay.results.records import Measure
from mechassay.stats.intervals import Estimate, Interval


def test_a_measure_has_its_number_and_the_words_of_the_file() -> None:
    own = measure_texts("gym").measure(
        "odds_{method}", Estimate(1.5, 1.0, 2.0), n=7, method="das", title="DAS"
    )
    meaning = measure_texts("gym").by_name["odds_{method}"].meaning
    assert own == Measure(
        name="odds_das",
        title="DAS",
        value=1.5,
        low=1.0,
        high=2.0,
        n=7,
        better="up",
        unit="nats",
        meaning=meaning,
    )


def test_an_interval_brings_its_level_and_a_plain_number_has_none() -> None:
    texts = measure_texts("circuits")
    own = texts.measure("cmd", 0.5, Interval(0.4, 0.6, 0.9), of="control:random", n_undefined=2)
    assert (own.low, own.high, own.level, own.of, own.n_undefined) == (
        *(0.4, 0.6, 0.9),
        *("control:random", 2),
    )
    assert math.isnan(texts.measure("cmd", 0.5).low)


def test_n_is_a_word_of_every_text_and_a_text_may_have_another_name() -> None:
    texts = measure_texts("claims-evaluation")
    own = texts.measure("exact", 0.5, n=8, hits=4)
    assert "4 of 8;" in own.meaning
    assert measure_texts("variables").measure("validation of heads", 0.1).name == "validation"


def test_what_the_file_does_not_know_is_refused() -> None:
    texts = measure_texts("patch")
    with pytest.raises(UnknownName, match="measure of patch"):
        texts.measure("largest", 1.0)
    with pytest.raises(BadUsage, match="needs a value for the placeholder 'run'"):
        texts.measure("m_{run}", 1.0)
    with pytest.raises(UnknownName, match="kind of run"):
        measure_texts("pach")


def test_a_package_reads_its_own_file(tmp_path: Path) -> None:
    file = tmp_path / "measures.yaml"
    file.write_text("lucky:\n  luck: {title: Luck, better: up, meaning: By chance.}\n", "utf-8")
    own = read_measure_texts(file)["lucky"].measure("luck", 0.3)
    assert (own.heading, own.better, own.meaning) == ("Luck", "up", "By chance.")
    file.write_text("lucky:\n  luck: {heading: Luck}\n", "utf-8")
    with pytest.raises(BadUsage, match=r"measures\.yaml: a measure has title, .*'heading'"):
        read_measure_texts(file)


def test_meanings_are_sentences_and_braces_are_words() -> None:
    arguments = set(inspect.signature(MeasureTexts.measure).parameters) - {"n"}
    for texts in all_measure_texts().values():
        for name, text in texts.by_name.items():
            own = re.findall(r"{(.*?)}", name + text.title + text.meaning)
            assert all(re.fullmatch(r"\w+(:\w+)?", word) for word in own), name
            assert not arguments & {word.partition(":")[0] for word in own}, name
            assert not text.meaning or text.meaning.endswith((".", "}")), name
            assert "  " not in text.meaning, name
