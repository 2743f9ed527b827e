"""The page of an adversarial run: what fails comes first,
text is escaped, numbers are those of the record.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from helpers.adversarial import adversarial_inputs, records_of
from mechassay.adversarial import record as tables
from mechassay.adversarial import statistics
from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.adversarial.field_tables import (
    HeatMap,
    draw_heat_map,
    groups_of,
    heat_maps_of,
    label_table,
    map_words,
    worse_labels_text,
)
from mechassay.adversarial.pages import (
    AdversarialPage,
    about,
    exceedance_table,
    marked,
    overview_table,
    short_names,
    summary_table,
    verdict,
)
from mechassay.results.console import print_tables
from mechassay.results.page import Report, render
from mechassay.results.plots import draw_distribution, together
from mechassay.results.records import Record, Table
from mechassay.results.sections import checks_table, failed_checks
from mechassay.results.text import nats, summary
from mechassay.stats import DESIGN_KINDS

FAST: dict[str, Any] = {"n_resamples": 30, "n_permutations": 30, "worst": 2}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Record]]:
    """Of two circuits, with a heat map each."""
    run = AdversarialExperiment(
        "truth-ioi", "truth-ioi", ("truth", "random@0.5"), n_clean=24, n_corrupted=20, **FAST
    )
    inputs = adversarial_inputs(run, tmp_path_factory.mktemp("run"), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "MAPS", 1)
        yield records_of(inputs)


@pytest.fixture(scope="module")
def page(records: list[Record]) -> str:
    return adversarial_page(records)


def adversarial_page(records: list[Record]) -> str:
    return render("Adversarial", AdversarialPage().sections(Report(records)))


def with_table(record: Record, name: str, rows: list[dict[str, Any]]) -> Record:
    """The record with other rows in one of its tables."""
    tables = [
        Table.of(name, table.keys, rows) if table.name == name else table for table in record.tables
    ]
    return record.changed(tables=tables)


def spoiled(record: Record) -> Record:
    wrong = {"n_wrong": 1, "says": "The full circuit does not give KL = 0 & <more>."}
    return record.changed(checks=[record.checks[0].model_copy(update=wrong), *record.checks[1:]])


def test_the_page_stands_alone(page: str) -> None:
    assert page.count("<svg") >= 2 and "default-src 'none'" in page
    assert "<script" not in page and "http://" not in page.replace("http://www.w3.org", "")
    assert "Controls fail" not in page


def test_failures_come_before_everything_else(records: list[Record]) -> None:
    assert not any(map(failed_checks, records))
    page = adversarial_page([records[0], spoiled(records[1])])
    place = page.index("Controls fail: do not use these results.")
    assert place < page.index('class="verdict"') < page.index("<h2>")
    assert "KL = 0 &amp; &lt;more&gt;" in page
    assert checks_table([spoiled(records[1])]).texts[0][-1] == "NO"


def test_the_verdict_is_computed(records: list[Record]) -> None:
    rows = summary(records[1])
    text = verdict(records[1])
    assert text.startswith(f"one pair in 100 is {nats(rows['99%']['value'])} nats or more")
    assert f"the worst of 480 is {nats(rows['max']['value'])}" in text
    assert f"The mean is {nats(rows['mean']['value'])} [" in text
    assert "(too few pairs for an upper bound)" in text
    assert "of random paths of its size" in text and "without any circuit it is" in text


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ((1.0, 2.0, 3.0, 4.0), "It is closer to the model than no circuit."),
        ((3.0, 4.0, 1.0, 2.0), "It is further from the model than no circuit."),
        ((1.0, 3.0, 2.0, 4.0), "Whether that is better than no circuit cannot be told."),
        ((math.nan, math.nan, 2.0, 4.0), "It is not closer, without an interval."),
    ],
)
def test_the_verdict_compares_with_no_circuit(
    records: list[Record], ends: tuple[float, float, float, float], says: str
) -> None:
    record = records[1]
    rows = record.table("summary").rows()
    for row in rows:
        if row["statistic"] == "mean" and row["of"] in ("result", "control:empty"):
            row["low"], row["high"] = ends[:2] if row["of"] == "result" else ends[2:]
            row["value"] = 9.0 if row["of"] == "result" else 3.0
    made = Table.of("summary", ("of", "statistic"), rows)
    tables = [made if table.name == "summary" else table for table in record.tables]
    assert says in verdict(record.changed(tables=tables))


def test_tables_show_the_record(records: list[Record]) -> None:
    record = records[1]
    rows = {row[0]: row for row in summary_table(record).texts}
    stored = summary(record)
    assert rows["count"][1] == "480"
    assert (
        rows["50%"][1].startswith(nats(stored["50%"]["value"]))
        and rows["50%"][3] == f"at most {nats(stored['50%']['bound'])}"
    )
    assert rows["99.9%"][3] == "too few pairs" and rows["max"][3] == rows["mean"][3] == ""
    assert rows["max"][2] == f"{stored['max']['z']:.2f}"
    overview = {row[0]: row for row in overview_table(records).texts}
    assert (
        overview["truth"][1] == "9" and overview["empty circuit"][-1] == "–" and len(overview) == 5
    )
    assert len(overview_table(records, short=True).columns) < len(overview_table(records).columns)
    assert exceedance_table(record).texts[-1][0] == "5 nats"


def test_what_has_no_interval_has_no_brackets(records: list[Record]) -> None:
    """24 x 20 pairs: at the quartiles and the median five columns
    or more lie beyond, above that not.
    """
    back = Record.model_validate_json(records[1].model_dump_json())
    rows = {row[0]: row[1] for row in summary_table(back).texts}
    bracketed = {name for name, text in rows.items() if "[" in text}
    assert bracketed == {"mean", "25%", "50%", "75%"}
    assert rows["95%"] == nats(summary(back)["95%"]["value"])
    measures = {each.name: each for each in back.measures}
    assert (
        math.isnan(measures["99%"].low)
        and math.isnan(measures["99%"].high)
        and math.isfinite(measures["mean"].low)
    )
    shares = back.table("exceedance").where(of="result").rows()
    for row, stored in zip(exceedance_table(back).texts, shares, strict=True):
        assert (
            ("[" in row[1])
            == (20 * min(stored["value"], 1 - stored["value"]) >= 5)
            == (stored["low"] is not None)
        )
    assert "no interval: too few prompts lie beyond it" in adversarial_page([back])


def test_rounding_has_no_z_scores(records: list[Record]) -> None:
    """The true circuit does what the model does: its divergences are rounding."""
    exact, other = records
    assert summary(exact)["std"]["value"] < 2e-5
    assert "z" not in summary_table(exact).headings and "z" in summary_table(other).headings
    for record in records:
        table = summary_table(record)
        assert {len(row) for row in table.texts} == {len(table.columns)}
    shown = {row[0]: row for row in summary_table(exact).texts}
    assert (
        shown["max"][1] == "≈ 0"
        and shown["50%"][2].startswith("at most")
        and shown["99.9%"][2] == "too few pairs"
    )


def test_heat_maps_of_rounding_are_left_out(records: list[Record], page: str) -> None:
    exact, other = map(heat_maps_of, records)
    assert len(exact) == len(other) == 1
    assert page.count("No heat map: every cell is ≈ 0, which is rounding.") == 1
    assert (
        adversarial_page([records[0]]).count("<svg") == 2
        and adversarial_page([records[1]]).count("<svg") == 3
    )


def made_map(
    cells: list[list[float | None]], *, largest: float = 1.0, left_out: tuple[int, int] = (0, 0)
) -> HeatMap:
    """A heat map whose maxima are `largest` times its percentiles."""
    values = np.array(cells, dtype=float)
    rows, columns = (
        [f"{letter}{place}" for place in range(count)]
        for letter, count in zip("rc", values.shape, strict=True)
    )
    return HeatMap(
        ("a", "b"),
        (rows, columns),
        {"99.9%": values, "99.99%": values, "max": values * largest},
        {"99.9%": 8.0, "99.99%": 9.0, "max": 10.0, "mean": 4.0},
        (("a", left_out[0], 7.5), ("b", left_out[1], math.nan)),
    )


def test_panels_of_a_heat_map_have_one_scale_from_zero() -> None:
    figure = draw_heat_map(made_map([[7.97, 7.99], [7.98, None]], largest=1.25))
    panels, (bar,) = figure.axes[:3], figure.axes[3:]
    assert all(ax.images[0].get_clim() == (0.0, pytest.approx(7.99 * 1.25)) for ax in panels)
    assert [[text.get_text() for text in ax.texts] for ax in panels[:1]] == [
        ["7.97", "7.99", "7.98"]
    ]
    # Numbers that differ by rounding look the same.
    shades = panels[0].images[0].to_rgba(np.array([7.97, 7.99]))
    assert np.abs(shades[0] - shades[1]).max() < 0.02
    assert panels[2].get_title(loc="left") == "max (empty circuit 10.0)"
    # A cell without pairs is no colour of the scale; the empty circuit's mean is marked on the bar.
    assert np.ma.getmaskarray(panels[0].images[0].get_array())[1, 1] and panels[0].patch.get_hatch()
    assert [line.get_ydata()[0] for line in bar.lines] == [4.0, 4.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "empty circuit's mean, 4.00",
        "no pairs",
    ]
    small = draw_heat_map(made_map([[0.5, 0.25]]))
    assert (
        not small.axes[3].lines
        and small.legends[0].get_texts()[0].get_text()
        == "empty circuit's mean, 4.00, beyond the scale"
    )


def test_heat_maps_that_are_wide_are_readable() -> None:
    """Panels of many columns stand below one another; no label lies over the next one."""
    found = made_map(np.random.default_rng(0).exponential(size=(30, 30)).tolist(), left_out=(44, 0))
    figure = draw_heat_map(found)
    figure.set_dpi(100)
    figure.draw_without_rendering()
    panels = figure.axes[:3]
    assert len({round(ax.get_position().x0, 3) for ax in panels}) == 1 and not panels[0].texts
    for labels, axis in ((panels[2].get_xticklabels(), "x"), (panels[0].get_yticklabels(), "y")):
        boxes = sorted(
            sorted(getattr(label.get_window_extent(), f"interval{axis}")) for label in labels
        )
        assert all(one[1] <= two[0] for one, two in pairwise(boxes))
    assert (
        map_words(found).endswith("Not drawn: 44 more of a, whose largest value is 7.50 nats.")
        and map_words(made_map([[1.0]])) == ""
    )


def test_rounding_is_no_heat_map() -> None:
    assert made_map([[-0.0, 1e-5], [0.0, None]]).is_flat
    assert not made_map([[-0.0, 1e-5], [0.5, None]]).is_flat


def test_percentiles_near_each_other_are_named_together() -> None:
    marks = [("95%", 1.0), ("99%", 2.0), ("99.9%", 2.02), ("99.99%", 2.03), ("max", 4.0)]
    assert together(marks, 4.0) == [("95%", 1.0), ("99% to 99.99%", 2.03), ("max", 4.0)]
    assert together([("95%", 0.0), ("max", 0.1)], 2.0) == [("95% to max", 0.1)]
    assert together([], 1.0) == []


@pytest.mark.parametrize("spread", [0.0, 0.001, 0.05, 1.0])
def test_names_in_a_histogram_do_not_overlap(records: list[Record], spread: float) -> None:
    record = records[1]
    places = dict(
        zip(("95%", "99%", "99.9%", "99.99%", "max"), 1 + spread * np.arange(5) / 5, strict=True)
    )
    rows = [
        {**row, "value": places.get(str(row["statistic"]), row["value"])}
        for row in record.table("summary").rows()
    ]
    figure = draw_distribution(with_table(record, "summary", rows))
    figure.set_dpi(100)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert boxes and not any(one.overlaps(two) for one, two in combinations(boxes, 2))
    assert all(
        "times" not in label.get_text() for label in figure.axes[1].get_yticklabels(which="both")
    )


def test_only_exact_intervals_are_called_exact(records: list[Record]) -> None:
    for design in (*DESIGN_KINDS, "clean prompts"):
        task = records[1].task.model_copy(
            update={"args": {**records[1].task.args, "design": design}}
        )
        text = about(records[1].changed(task=task))
        assert (
            ("the interval of the mean is Student's" in text)
            == ("exact" in text)
            == (design != "grid")
        )
        assert "exact intervals" not in text


def test_circuits_that_differ_look_different_on_a_console(records: list[Record]) -> None:
    names = [
        "truth",
        "f_copy/scores/one.safetensors@500",
        "f_copy/scores/two.safetensors@500",
        "f_copy/scores/two.safetensors@1500",
        "eap-ig-inputs@500:greedy",
        "eap-ig-inputs@1500:greedy",
        "here/scores.safetensors@500",
        "there/scores.safetensors@500",
        "a/x.json",
        "a/x.safetensors",
        *(f"{'z' * 40}{letter}{'z' * place}" for letter in "ab" for place in (30, 40)),
    ]
    shown = short_names(names)
    assert len(set(shown)) == len(names) and shown[0] == "truth" and shown[1] == "f_co…s/one@500"
    assert max(map(len, shown[:10])) <= 14
    assert short_names(["a", "a"]) == ["a", "a"]
    method = records[0].method
    named = [records[0].changed(method=method.model_copy(update={"name": name})) for name in names]
    console = Console(width=80, file=io.StringIO())
    print_tables([overview_table(named, short=True)], console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(each in text for each in shown[:10])
    assert [row[0] for row in overview_table(named).texts][: len(names)] == names


def test_a_population_is_exact(records: list[Record]) -> None:
    record = records[1]
    task = record.task.model_copy(update={"args": {**record.task.args, "population": True}})
    exact = record.changed(task=task)
    assert {row[3] for row in summary_table(exact).texts if row[0].endswith("%")} == {"exact"}
    assert "with confidence" not in verdict(exact)
    assert "percentiles and maximum are exact" in adversarial_page([exact])


def group(
    name: str,
    labels: list[str],
    tested: list[float],
    rest: list[float],
    p: list[float],
    worse: list[bool],
) -> dict[str, Any]:
    effect = [one - other for one, other in zip(tested, rest, strict=True)]
    means = {
        "mean_effect": [each / 2 for each in effect],
        "mean_low": [0.5, None],
        "mean_high": [1.5, None],
        "mean_share": effect,
    }
    sizes = {"inputs": [20, 1234], "compared": [15, 1234], "strata": 5, "strata used": 3}
    return {
        **{
            "name": name,
            "side": "clean",
            "labels": labels,
            "tested": tested,
            "rest": rest,
            "effect": effect,
            "p": p,
            "worse": worse,
            **sizes,
            **means,
        },
        **{"share": [each / 10 for each in effect], "99.9%": tested, "max": tested},
    }


def with_groups(record: Record, *groups: dict[str, Any]) -> Record:
    labels, fields = tables.labels(groups)
    changed = with_table(record, "labels", labels.rows())
    return with_table(changed, "fields", fields.rows())


def test_worse_labels_are_named(records: list[Record]) -> None:
    found = group("object", ["kiss", "bone"], [9.0, 1.0], [7.5, 9.0], [0.01, 1.0], [True, False])
    small = group("place", ["zoo", "bar"], [2.0, 2.0], [1.99, 2.0], [0.01, 1.0], [False, False])
    nothing = group("name", ["Ann", "Bob"], [2.0, 2.0], [2.0, 2.0], [0.9, 1.0], [False, False])
    nothing["compared"] = nothing["inputs"]

    def told(*groups: dict[str, Any]) -> str:
        return worse_labels_text(with_groups(records[0], *groups))

    left = (
        "Not compared, as no other label is in their stratum: object: 5 of 1,254 prompts in 2"
        " strata."
    )
    assert (
        told(found, nothing)
        == "Found to be worse than the rest of their strata: object = 'kiss' (99th percentile 9.00"
        " against 7.50, 1.50 more: 15\u00a0% of the empty circuit's; means differ by 0.750"
        f" [0.500, 1.50]). {left}"
    )
    assert (
        told(nothing)
        == "No label of any of 1 fields is found to be worse than the rest of its strata."
    )
    # What differs by next to nothing is not worse, whatever its p.
    least = "the least effect worth reporting (5\u00a0% of the empty circuit's 99th percentile)"
    small["compared"] = small["inputs"]
    assert told(small).endswith(f"of its strata. 1 has p ≤ 0.05, by less than {least}.")
    assert f" 1 more has p ≤ 0.05, but by less than {least}. Not compared" in told(found, small)
    assert told().startswith("No part of the prompts has labels")


def test_the_table_of_labels_has_effects(records: list[Record]) -> None:
    made = group("object", ["kiss", "bone"], [9.0, 1.0], [7.5, 9.0], [0.01, 1.0], [True, False])
    (found,) = groups_of(with_groups(records[0], made))
    rows = label_table(found).texts
    assert rows[0] == (
        "kiss",
        "15 of 20",
        "9.00",
        "7.50",
        "1.50",
        "15\u00a0%",
        "0.750 [0.500, 1.50]",
        "9.00",
        "9.00",
        "0.01",
    )
    assert rows[1][1] == "1,234" and rows[1][6] == "-4.00"


def test_a_run_stores_effects_and_strata(records: list[Record]) -> None:
    """Every label's numbers are those of its pairs, on the run's own values."""
    for record in records:
        labels = record.table("labels")
        tested, rest, effect = (labels.numbers(key) for key in ("tested", "rest", "effect"))
        np.testing.assert_allclose(effect, tested - rest)
        assert {"inputs", "compared", "share", "mean_effect", "worse"} <= set(labels.columns)
        fields = record.table("fields")
        assert (fields.numbers("strata used") <= fields.numbers("strata")).all() and len(fields)
    exact = records[0]
    assert exact.task.args["least_effect"] == 0.05
    assert not any(exact.table("labels").columns["worse"]), "what is rounding is never worse"


def test_parts_of_prompts_are_marked_and_escaped() -> None:
    parts = {"one": (4, 7), "two": (4, 7), "all": (10, 18), "in": (10, 13), "none": (0, 0)}
    assert marked("<b> Ann & Bob, Ann", parts) == (
        '<span class="prompt">&lt;b&gt; <mark title="one, two">Ann</mark> &amp;'
        ' <mark title="all">Bob, Ann</mark></span>'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (-3e-6, "≈ 0"),
        (0.12345, "0.123"),
        (8, "8.00"),
        (12.3456, "12.3"),
        (100.2, "100"),
        (1234.5, "1234"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert nats(value) == text


def test_the_page_is_that_of_the_stored_records(records: list[Record], page: str) -> None:
    back = [Record.model_validate_json(record.model_dump_json()) for record in records]
    assert adversarial_page(back) == page
