"""The page: self-contained, escaped, complete,
and a verdict that claims no more than the numbers do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mechassay.circuits.faithfulness import FaithfulnessCurve
from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.drawing.circuit import draw_circuit
from mechassay.records import Failure, Record
from mechassay.report.reports import write_page
from mechassay.report.sections import MAX_EXAMPLES
from mechassay.report.text import verdict

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
            "How to read",
            "of them on a path",
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


# The verdict


def test_better_everywhere(make_record: Make) -> None:
    said = verdict([make_record("eap")])
    assert (
        said == "On 5 test pairs of ioi, circuits found by eap recover more of tiny-model's logit"
        " difference than random ones at every size up to 20\u00a0%: CPR 0.90 [0.80, 1.00]"
        " against 0.210 [0.200, 0.220] of random edges (3 seeds) and 0.210 [0.200, 0.220] of"
        " random paths (3 seeds)."
    )


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        ([0.0, 0.8, 0.9, 1.0], "overall and at 2 of the 3 sizes up to 20\u00a0%"),
        ([0.0, 0.0, 0.1, 1.0], "overall, but at none of the 3 sizes"),
    ],
)
def test_better_only_somewhere(make_record: Make, f: list[float], expected: str) -> None:
    assert expected in verdict([make_record(f=f)])


@pytest.mark.parametrize(
    ("cpr", "expected"),
    [
        ((0.25, 0.1, 0.4), "cannot be told from random ones"),
        ((0.3, 0.21, 0.4), "cannot be told from random ones"),  # the difference may be 0
        ((0.3, 0.211, 0.4), "recover more"),
        ((0.1, 0.05, 0.19), "recover less"),
        ((0.3, float("nan"), float("nan")), "without an interval"),
    ],
)
def test_overlap_is_said(make_record: Make, cpr: tuple[float, float, float], expected: str) -> None:
    assert expected in verdict([make_record(cpr=cpr)])


def test_what_harms_less_than_random_rankings_recovers_nothing(make_record: Make) -> None:
    """Random circuits may have a CPR below 0, which the empty circuit has not."""
    record = make_record(
        cpr=(0.01, -0.01, 0.03), random_cpr=(-0.5, -0.6, -0.4), gain=(0.51, 0.4, 0.6)
    )
    assert "cannot be told from random ones" in verdict([record])


def test_the_best_of_several_is_called_so(make_record: Make, undefined: Record) -> None:
    records = [
        make_record("a", cpr=(0.8, 0.7, 0.9)),
        make_record("b"),
        make_record("random", cpr=(2.0, 1.9, 2.1)),
        undefined,
    ]
    assert "found by b (the best of 3 methods by CPR) recover more" in verdict(records)


def test_no_control_and_no_denominator(make_record: Make, undefined: Record) -> None:
    assert "there is no random control" in verdict([make_record(seeds=0)])
    assert "These numbers mean little" in verdict(
        [make_record(profile="mib-2025", denominator=(-1.0, 1.0))]
    )
    assert "faithfulness is undefined: tiny-model's logit difference cannot be told" in verdict(
        [undefined]
    )


def test_undefined_random_areas_give_no_verdict(make_record: Make) -> None:
    nothing = (float("nan"),) * 3
    record = make_record(cpr=(0.5, 0.4, 0.6), random_cpr=nothing, gain=nothing)
    assert "without an interval, against undefined of random edges" in verdict([record])
