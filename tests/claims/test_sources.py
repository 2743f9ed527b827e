"""Names of papers: ids, addresses, files, and titles in answers of registries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mechassay.claims.sources import Registries, paper_source, title_in
from mechassay.errors import BadFile, BadUsage

ATOM = (
    '<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom"><title>query</title>'
    "<entry><id>http://arxiv.org/abs/2211.00593v1</id><title>A Circuit\n  for Names</title></entry>"
    "</feed>"
)


@pytest.mark.parametrize(
    ("named", "kind", "id", "address"),
    [
        ("2211.00593", "arxiv", "arxiv:2211.00593", "https://arxiv.org/pdf/2211.00593"),
        ("arxiv:2211.00593v2", "arxiv", "arxiv:2211.00593v2", "https://arxiv.org/pdf/2211.00593v2"),
        ("arXiv:cs/0112017", "arxiv", "arxiv:cs/0112017", "https://arxiv.org/pdf/cs/0112017"),
        *(
            (f"https://arxiv.org/{part}/2211.00593v1", "arxiv", "arxiv:2211.00593v1", None)
            for part in ("abs", "pdf", "html")
        ),
        ("http://www.arxiv.org/pdf/2211.00593.pdf", "arxiv", "arxiv:2211.00593", None),
        ("openreview:NpsVSN6o4ul", "openreview", "openreview:NpsVSN6o4ul", None),
        (
            "https://openreview.net/forum?id=NpsVSN6o4ul&noteId=x",
            "openreview",
            "openreview:NpsVSN6o4ul",
            "https://openreview.net/pdf?id=NpsVSN6o4ul",
        ),
        ("https://arxiv.org/list/cs.LG/new", "web", "https://arxiv.org/list/cs.LG/new", None),
        ("https://a.org/p.pdf", "web", "https://a.org/p.pdf", "https://a.org/p.pdf"),
        ("paper.pdf", "file", "paper.pdf", "paper.pdf"),
    ],
)
def test_names(named: str, kind: str, id: str, address: str | None) -> None:
    found = paper_source(named)
    assert (found.kind, found.id) == (kind, id)
    assert address is None or found.address == address
    assert bool(found.titles) == (kind in ("arxiv", "openreview"))


def test_a_path_is_a_file_whatever_it_is_called() -> None:
    assert paper_source(Path("2211.00593")).kind == "file"


def test_registries_may_be_elsewhere() -> None:
    found = paper_source("2211.00593", Registries("http://a", "http://b"))
    assert found.address == "http://a/pdf/2211.00593"
    assert found.titles == "http://b/api/query?id_list=2211.00593"


@pytest.mark.parametrize(
    "named",
    [
        "arxiv:hello",
        "arxiv:../../x",
        "openreview:a/b",
        "file:///etc/passwd",
        "ftp://a.org/b",
        "http:///x",
    ],
)
def test_names_that_none_could_have(named: str) -> None:
    with pytest.raises(BadUsage):
        paper_source(named)


def test_titles() -> None:
    arxiv, review = paper_source("2211.00593"), paper_source("openreview:NpsVSN6o4ul")
    assert title_in(arxiv, ATOM.encode()) == "A Circuit for Names"
    for title in ("A  Circuit", {"value": "A Circuit"}):
        answer = json.dumps({"notes": [{"content": {"title": title}}]}).encode()
        assert title_in(review, answer) == "A Circuit"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('<feed xmlns="http://www.w3.org/2005/Atom"></feed>', "knows no paper"),
        (ATOM.replace("abs/2211.00593v1", "api/errors#x"), "knows no paper"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a/>', "not understood"),
        ("<html>", "not understood"),
    ],
)
def test_answers_without_a_title(answer: str, said: str) -> None:
    with pytest.raises(BadFile, match=said):
        title_in(paper_source("2211.00593"), answer.encode())
    if said == "not understood":
        with pytest.raises(BadFile, match=said):
            title_in(paper_source("openreview:NpsVSN6o4ul"), answer.encode())
    with pytest.raises(BadFile, match="knows no paper"):
        title_in(paper_source("openreview:NpsVSN6o4ul"), b'{"notes": []}')
