"""The page: self-contained, escaped, complete.

The table: rounding, undefined values, control and failures as rows, hostile text.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.drawing import draw_circuit
from mechassay.circuits.evaluation.curve import FaithfulnessCurve
from mechassay.circuits.scores import EdgeScores
from mechassay.discovery.page import results_table
from mechassay.results.curves import labels
from mechassay.results.page import Report
from mechassay.results.records import Failure, Measure, PairTokens, Record, Selection, Spec
from mechassay.results.report import print_report, write_page
from mechassay.results.sections import MAX_EXAMPLES
from mechassay.results.text import CHANCE_DECIMALS, chance_text, kept_at, seconds, settings
from mechassay.utils.display import interval, number

pytestmark = pytest.mark.charts

Make = Callable[..., Record]
HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)>'
VOID = {"meta", "br", "img", "link", "input", "hr", "wbr"}


class Page(HTMLParser):
    """Tags, attributes and text; a tag that is closed in the wrong place is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.parts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.parts))


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., tuple[str, Page]]:
    def write(
        records: Sequence[Record],
        drawings: Sequence[object] = (),
        failures: Sequence[Failure] = (),
        **kwargs: str,
    ) -> tuple[str, Page]:
        run = Report(records, failures, drawings)
        path = write_page(tmp_path / "folder" / "report.html", run, **kwargs)
        html = path.read_text(encoding="utf-8")
        return html, Page(html)

    return write


Write = Callable[..., tuple[str, Page]]


def test_everything_is_there_in_order(
    page: Write, make_record: Make, scores: EdgeScores, circuits: dict[int, Circuit]
) -> None:
    drawing = draw_circuit(scores, circuits[5], title="eap drawn")
    record = make_record(warnings=["Mind this."])
    _, found = page(
        [record, make_record("exact")],
        [drawing],
        [Failure(cell={"method": "slow"}, error="OutOfMemory", message="Too big.")],
    )
    places = [
        found.text.index(part)
        for part in (
            "No circuit was measured.",
            "edges ranked by value",
            "Mind this.",
            "kept at 1",
            "of them on a path",
            "Strongest edges of eap drawn",
            "How to read",
            "abc123",
            "pair-4",
        )
    ]
    assert places == sorted(places)
    for part in (
        "0.90 [0.80, 1.00]",
        "OutOfMemory: Too big.",
        "1 cell failed",
        "with uncommitted changes",
        "d4t4",
        "torch 2",
        "1,000",
        "eap drawn.",
    ):
        assert part in found.text


def test_a_pair_stands_on_the_page_with_its_tokens(page: Write, make_record: Make) -> None:
    first = PairTokens(
        id="ioi-7",
        clean=["When", " Mary", "<b>"],
        counterfactual=["When", " Anna", "<b>"],
        answers=[" Mary"],
        foils=[" John"],
    )
    record = make_record(data={"test": Selection(hash="x", kept=5, first=first)})
    html, found = page([record])
    assert "An example pair" in found.text and "ioi-7, the first of 5 pairs" in found.text
    assert "<code><mark> Mary</mark></code>" in html and "<code><mark> Anna</mark></code>" in html
    assert html.count("<code>When</code>") == 2 and html.count("<code>&lt;b&gt;</code>") == 2
    # A record that holds no pair, as of a private split, has no such section.
    assert "An example pair" not in page([make_record()])[1].text


def test_the_strongest_edges_are_a_table(
    page: Write, make_record: Make, scores: EdgeScores, circuits: dict[int, Circuit]
) -> None:
    drawing = draw_circuit(scores, circuits[60], title="eap: the strongest connected edges")
    html, found = page([make_record()], [drawing])
    assert "Strongest edges of eap" in found.text
    assert f"The 10 strongest of the {len(drawing.strongest)} edges drawn." in found.text
    shown = [found.text.index(f"{score:+.3g}") for _, score in drawing.strongest[:10]]
    assert all(shown) and html.count('<span class="token">') == 10
    sizes = [abs(score) for _, score in drawing.strongest]
    assert sizes == sorted(sizes, reverse=True)


def test_the_command_stands_below_the_verdict(page: Write, make_record: Make) -> None:
    html, found = page([make_record()], command="mechassay circuits run -m 'a <b>' -o x")
    place = found.text.index("mechassay circuits run -m 'a <b>' -o x")
    assert found.text.index("No circuit was") < place < found.text.index("better than random")
    assert "a &lt;b&gt;" in html
    assert "makes this run again" not in page([make_record()])[1].text


def test_a_long_name_is_short_in_figures_and_whole_in_the_table(
    page: Write, make_record: Make
) -> None:
    long = "eap-ig-inputs " + "steps=3," * 20
    records = [make_record(long + "a"), make_record(long + "b")]
    html, found = page(records)
    figures = "".join(re.findall(r"<text.*?</text>", html, flags=re.DOTALL))
    assert long not in figures and "…" in figures
    texts = set(re.findall(r">\s*(eap-ig[^<]*)</text>", figures))
    assert len(texts) == 2 and all(len(text) < 50 for text in texts)
    assert f"{long}a" in found.text and f"{long}b" in found.text


def test_nothing_is_loaded_from_anywhere(
    page: Write, make_record: Make, scores: EdgeScores, circuits: dict[int, Circuit]
) -> None:
    html, found = page(
        [make_record(ids=["https://evil.example/x"])], [draw_circuit(scores, circuits[5])]
    )
    assert not {"script", "img", "link", "iframe", "object", "base"} & set(found.tags)
    loads = [
        value
        for _, name, value in found.attributes
        if name in ("src", "href", "xlink:href", "srcset", "data", "action")
    ]
    loads += re.findall(r"url\(([^)]*)\)", html)
    assert all(value.startswith("#") for value in loads)
    assert "@import" not in html
    assert any("default-src 'none'" in value for *_, value in found.attributes)


def test_hostile_text_is_text(page: Write, make_record: Make, scores: EdgeScores) -> None:
    record = make_record(
        HOSTILE, ids=[HOSTILE, "b"], model=HOSTILE, warnings=[HOSTILE], spent={HOSTILE: 1.0}
    )
    failure = Failure(cell={"method": HOSTILE, HOSTILE: HOSTILE}, error=HOSTILE, message=HOSTILE)
    drawing = draw_circuit(scores, Circuit.empty(scores.graph), title=HOSTILE)
    _, found = page([record], [drawing], [failure], title=HOSTILE)
    assert not {"script", "img"} & set(found.tags)
    assert not any(name.startswith("on") for _, name, _ in found.attributes)
    assert found.text.count(HOSTILE) > 8


def test_undefined_is_said(page: Write, undefined: Record) -> None:
    _, found = page([undefined])
    assert "No verdict: the full model cannot be told from the empty circuit" in found.text
    assert "nan" not in found.text.lower().split()


def test_only_failures_and_nothing_at_all(page: Write) -> None:
    failures = [
        Failure(cell={"method": "a"}, error="E", message="one"),
        Failure(cell={"method": "b"}, error="E", message="two"),
    ]
    _, found = page([], (), failures, kind="circuits")
    for part in ("There are no results.", "2 cells failed", "E: one", "E: two"):
        assert part in found.text
    assert "There are no results." in page([], kind="circuits")[1].text


def test_several_settings_stand_apart(page: Write, make_record: Make) -> None:
    failure = Failure(cell={"method": "a"}, error="E", message="broke")
    _, found = page(
        [make_record(model="one"), make_record(model="two", profile="mib-2025")], (), [failure]
    )
    assert found.text.count("edges ranked by value") == 2
    for part in (
        "one, ioi test, logit difference (strict)",
        "two, ioi test, logit difference (mib-2025)",
        "failed: E",
        "broke",
        "Profile mib-2025",
    ):
        assert part in found.text


def test_many_examples_are_cut_and_said(page: Write, make_record: Make) -> None:
    ids = [f"id{i:05d}" for i in range(MAX_EXAMPLES + 50)]
    _, found = page([make_record(ids=ids)])
    assert f"The first {MAX_EXAMPLES} of {len(ids)}; the JSON record holds all." in found.text
    assert ids[MAX_EXAMPLES - 1] in found.text and ids[MAX_EXAMPLES] not in found.text


def test_a_curve_is_enough(tmp_path: Path, curve: FaithfulnessCurve) -> None:
    found = Page(curve.to_html(tmp_path / "curve.html").read_text(encoding="utf-8"))
    for part in ("my-<method>", "tiny-model", "Only 2 examples", "CMD", "only 2 independent test"):
        assert part in found.text
    record = curve.record()
    assert record.measures[0].value == curve.cpr
    line = record.table("curve").where(of="result", ranking="value")
    assert line.numbers("f").tolist() == curve.faithfulness["value"].tolist()


FAILURE = Failure(
    cell={"method": "exact", "task": "ioi"},
    error="OutOfMemory",
    message="One example [bold]needs[/bold] 20 GB.",
)


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (1.9671, 1.7122, 2.2049, "1.97 [1.71, 2.20]"),
        (0.5, 0.44, 0.56, "0.50 [0.44, 0.56]"),
        (0.50049, 0.4991, 0.5019, "0.500 [0.499, 0.502]"),
        (-2.1, -17.3, 21.2, "-2 [-17, 21]"),
        (-0.001, -0.4, 0.4, "0.0 [-0.4, 0.4]"),
        (1.234, math.nan, math.nan, "1.23"),
        (1.234, 1.234, 1.234, "1.23 [1.23, 1.23]"),
        (math.nan, math.nan, math.nan, "undefined"),
        (math.nan, 0.0, 1.0, "undefined"),
        (math.inf, math.nan, math.nan, "inf"),
    ],
)
def test_numbers_are_rounded_to_their_interval(
    value: float, low: float, high: float, expected: str
) -> None:
    assert interval(value, low, high) == expected
    assert number(value, low, high) == expected.split(" [")[0]


def test_a_share_is_never_rounded_to_fewer_digits_than_the_chance_beside_it() -> None:
    """One of four right is 0.25, not 0.2 beside a chance of 0.25;
    its interval alone supports one digit.
    """
    assert interval(0.25, 0.01, 0.8) == "0.2 [0.0, 0.8]"
    assert interval(0.25, 0.01, 0.8, least=CHANCE_DECIMALS) == "0.25 [0.01, 0.80]"
    assert len(chance_text(0.25).partition(".")[2]) == CHANCE_DECIMALS
    assert (
        interval(1.0, 0.964, 1.0, least=CHANCE_DECIMALS)
        == interval(1.0, 0.964, 1.0)
        == "1.000 [0.964, 1.000]"
    ), "more stay"
    assert interval(math.nan, 0.0, 1.0, least=CHANCE_DECIMALS) == "undefined"


def cells(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[dict[str, str]]:
    """The rows of the table by their headings."""
    table = results_table(records, failures)
    return [dict(zip(table.headings, row.cells, strict=False)) for row in table.rows]


def test_rows(make_record: Make) -> None:
    records = [make_record("eap"), make_record("exact")]
    table = results_table(records, [FAILURE])
    assert [(row.kind, row.cells[0]) for row in table.rows] == [
        ("method", "eap"),
        ("method", "exact"),
        ("control", "random edges"),
        ("control", "random paths"),
        ("failure", "exact"),
    ]
    rows = cells(records)
    assert rows[0]["CPR (by value)"] == "0.90 [0.80, 1.00]"
    assert rows[0]["kept at 1 %"] == "8 of 10" and rows[0]["seconds"] == "3.5"
    assert rows[0]["n"] == "30"
    assert (
        rows[2]["CPR (by value)"] == "0.210 [0.200, 0.220]"
        and rows[2]["notes"] == "mean of 5 seeds"
    )
    assert table.rows[4].cells[1] == f"failed (ioi): OutOfMemory: {FAILURE.message}"


def test_undefined_is_said_of_table(undefined: Record) -> None:
    row = cells([undefined])[0]
    assert row["CPR (by value)"] == row["CMD (by magnitude)"] == "undefined"
    assert "undefined at 4 sizes" in row["notes"]


def test_a_metric_is_a_column_because_it_is_a_measure(make_record: Make) -> None:
    """Its heading, unit and direction are its own; nobody else knows its name."""
    new = Measure(name="new", title="Newness", unit="nats", better="down", value=2.0, low=1, high=3)
    chance = new.model_copy(update={"of": "control:random", "value": 5.0, "low": 4.0, "high": 6.0})
    table = results_table([make_record("eap", measures=[new, chance])])
    rows = [dict(zip(table.headings, row.cells, strict=False)) for row in table.rows]
    assert (
        rows[0]["Newness, nats"] == "2.0 [1.0, 3.0]"
        and rows[1]["Newness, nats"] == "5.0 [4.0, 6.0]"
    )
    assert "CMD, Newness: lower is better" in table.caption


def test_each_setting_has_its_control(make_record: Make) -> None:
    records = [make_record("eap"), make_record("eap", model="other")]
    assert len(settings(records)) == 2
    rows = results_table(records).rows
    assert [row.kind for row in rows] == ["method", "control", "control"] * 2
    assert rows[0].cells[0] != rows[3].cells[0]


def test_labels_tell_records_apart(make_record: Make) -> None:
    assert labels([make_record("eap"), make_record("exact")]) == ["eap", "exact"]
    steps = [make_record().changed(method=Spec(name="ig", args={"steps": n})) for n in (5, 10)]
    assert all(f"steps={n}" in label for n, label in zip((5, 10), labels(steps), strict=True))
    assert len(set(labels([make_record("eap"), make_record("eap")]))) == 2
    sites = [make_record().changed(cell={"site": site}) for site in ("resid.4", "resid.15")]
    assert labels(sites) == ["eap, resid.4", "eap, resid.15"]
    # What names the method already is not said again.
    cells = [
        make_record(name).changed(cell={"variable": variable, "featurizer": name})
        for name in ("das", "dbm")
        for variable in ("sum", "carry")
    ]
    assert labels(cells) == ["das, sum", "das, carry", "dbm, sum", "dbm, carry"]


def test_missing_parts_are_blank(make_record: Make) -> None:
    record = make_record(spent={"peak_memory_gb": 1.0})
    assert math.isnan(seconds(record)) and "seconds" not in cells([record])[0]
    # A CPU's seconds are within those of the clock.
    spent = {"localize_seconds": 3.0, "localize_cpu_seconds": 2.5, "evaluate_seconds": 1.0}
    assert seconds(make_record(spent=spent)) == 4.0
    assert kept_at(record, 0.33) == ""


@pytest.mark.parametrize("width", [80, 200])
def test_printing(make_record: Make, undefined: Record, width: int) -> None:
    """Markup in messages is text; failures and the control are there at any width."""
    console = Console(width=width, file=io.StringIO(), record=True)
    records = [make_record("eap"), undefined.changed(method=Spec(name="[red]x"))]
    print_report(Report(records, [FAILURE]), console)
    text = console.export_text()
    for part in (
        "eap",
        "undefined",
        "random edges",
        "random paths",
        "[red]x",
        "0.88",
        "[0.80, 0.95]",
        "[bold]",
    ):
        assert part in text


def test_nothing_to_print() -> None:
    assert results_table([]).rows == ()
    print_report(Report(), Console(quiet=True), "circuits")
