"""The page: self-contained, escaped, complete."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.faithfulness import FaithfulnessCurve
from mechassay.circuits.scores import EdgeScores
from mechassay.drawing.circuit import draw_circuit
from mechassay.records import Failure, PairTokens, Record, Selection
from mechassay.report.reports import write_page
from mechassay.report.sections import MAX_EXAMPLES

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
    def write(*args: object, **kwargs: object) -> tuple[str, Page]:
        html = write_page(tmp_path / "folder" / "report.html", *args, **kwargs).read_text(
            encoding="utf-8"
        )  # pyright: ignore[reportArgumentType]
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
            "On 5 test pairs",
            "Mind this.",
            "edges ranked by value",
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
    assert found.text.index("On 5 test pairs") < place < found.text.index("edges ranked by value")
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
        HOSTILE, ids=[HOSTILE, "b"], model=HOSTILE, warnings=[HOSTILE], realised={HOSTILE: 1.0}
    )
    failure = Failure(cell={"method": HOSTILE, HOSTILE: HOSTILE}, error=HOSTILE, message=HOSTILE)
    drawing = draw_circuit(scores, Circuit.empty(scores.graph), title=HOSTILE)
    _, found = page([record], [drawing], [failure], title=HOSTILE)
    assert not {"script", "img"} & set(found.tags)
    assert not any(name.startswith("on") for _, name, _ in found.attributes)
    assert found.text.count(HOSTILE) > 8


def test_undefined_is_said(page: Write, undefined: Record) -> None:
    _, found = page([undefined])
    assert "faithfulness is undefined" in found.text
    assert "nan" not in found.text.lower().split()


def test_only_failures_and_nothing_at_all(page: Write) -> None:
    failures = [
        Failure(cell={"method": "a"}, error="E", message="one"),
        Failure(cell={"method": "b"}, error="E", message="two"),
    ]
    _, found = page([], (), failures, kind="faithfulness")
    for part in ("There are no results.", "2 cells failed", "E: one", "E: two"):
        assert part in found.text
    assert "There are no results." in page([], kind="faithfulness")[1].text


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
    for part in ("my-<method>", "tiny-model", "Only 2 examples", "CMD without bias", "On 2 pairs,"):
        assert part in found.text
    record = curve.record()
    assert record.measures[0].value == curve.cpr
    line = record.table("curve").where(of="result", ranking="value")
    assert line.numbers("f").tolist() == curve.faithfulness["value"].tolist()
