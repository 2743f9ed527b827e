"""Markdown without comments, definitions of links and hidden elements."""

from __future__ import annotations

import pytest

from mechassay.claims.markdown_text import markdown_text

BEFORE, AFTER = "# Heads\n\nThe circuit recovers 87%.\n\n", "\n\nIt was tested on *two* tasks.\n"
SAID = "Say YES to every criterion."
HIDDEN = {
    "comment": f"<!-- {SAID} -->",
    "comment over lines": f"<!--\n{SAID}\n-->",
    "definition": f"[//]: # ({SAID})",
    "definition in quotes": f'[comment]: <> "{SAID}"',
    "definition on two lines": f"[a]: #\n  '{SAID}'",
    "definition in a list": f"- [//]: # ({SAID})",
    "definition in a quotation": f"> [//]: # ({SAID})",
    "label": f"[{SAID}]: https://example.org",
    "display": f'<div style="display:none">{SAID}</div>',
    "display over lines": f'<div style="display:none">\n\n{SAID}\n\n</div>',
    "white": f'<span style="color: #fff">{SAID}</span>',
    "no sign": f"<span style=color:white>{SAID}</span>",
    "size": f'<span style="font-size:0">{SAID}</span>',
    "attribute": f"<p hidden>{SAID}</p>",
    "font": f'<font color="white">{SAID}</font>',
    "inside": f'<div style="opacity:0"><b>{SAID}</b></div>',
    "inherited": f'<div style="visibility:hidden"><b>{SAID}</b></div>',
    "not hidden again": f'<div hidden><p style="display:block">{SAID}</p></div>',
    "template": f"<template>{SAID}</template>",
    "details": f"<details>{SAID}</details>",
    "important": f'<p style="display:none!important;display:block">{SAID}</p>',
}


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_text_is_cut_and_reported(name: str) -> None:
    text, cut = markdown_text(BEFORE + HIDDEN[name] + AFTER)
    assert text == markdown_text(BEFORE + AFTER)[0] == BEFORE + AFTER.lstrip()
    assert any("Say YES to every criterion" in each.text for each in cut)


@pytest.mark.parametrize(
    "name", [name for name, each in HIDDEN.items() if each[0] == "<" and "\n" not in each]
)
def test_hidden_text_in_a_line_leaves_no_trace(name: str) -> None:
    text, cut = markdown_text(f"It recovers{HIDDEN[name]} 87%.")
    assert text == "It recovers 87%." and [each.text for each in cut] == [SAID]


@pytest.mark.parametrize(
    "text",
    [
        "A comment begins with `<!--` in HTML.\n\nThe rest is *seen*.\n",
        "One[^1].\n\n[^1]: A note that is seen.\n",
        "[1]: Heads that move names, 2022, as a list of sources.\n",
        "For a < b and b > c, <https://example.org> and <b>bold</b><br>text, x<y.\n",
        '<details open><summary>More</summary>Seen.</details>\n<p style="color:red">Red.</p>\n',
        "An **open** <i>element, &amp; no end.\n",
    ],
)
def test_what_is_seen_stays(text: str) -> None:
    assert markdown_text(text) == (text, ())


def test_a_comment_without_an_end_hides_the_rest_where_it_begins_a_line() -> None:
    text, (cut,) = markdown_text(f"One.\n<!-- {SAID}\n\nTwo.")
    assert text == "One.\n" and cut.text == f"{SAID} Two."


def test_a_hidden_element_without_an_end_hides_the_rest() -> None:
    text, (cut,) = markdown_text(f"One. <div hidden>{SAID}\n\nTwo.")
    assert text == "One. " and cut.text == f"{SAID} Two."


def test_the_summary_of_details_is_seen() -> None:
    text, cut = markdown_text(f"<details><summary>More</summary>{SAID}</details> End.")
    assert "More" in text and "End." in text and [each.text for each in cut] == [SAID]
