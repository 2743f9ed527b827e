"""Which addresses are of the public internet, and what a name has.

Names of papers: ids, addresses, files, and titles in answers of registries.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mechassay.documents.download import (
    Registries,
    addresses_of,
    is_proxied,
    is_public,
    paper_source,
    title_in,
)
from mechassay.errors import BadFile, BadUsage


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8"])
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "239.255.255.250",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        # IPv6 addresses that stand for IPv4 ones.
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::1",
        "64:ff9b::7f00:1",
    ],
)
def test_not_public(address: str) -> None:
    assert not is_public(address)


def test_addresses_are_looked_up_without_repeats() -> None:
    assert "127.0.0.1" in addresses_of("localhost", 80)
    assert addresses_of("127.0.0.1", 80) == ["127.0.0.1"]
    assert addresses_of("2130706433", 80) == ["127.0.0.1"]
    with pytest.raises(OSError, match=r"\w"):
        addresses_of("no-such-host.invalid", 80)


def test_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert not is_proxied("https", "a.org")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "b.org")
    assert is_proxied("https", "a.org") and not is_proxied("http", "a.org")
    assert not is_proxied("https", "b.org")
    monkeypatch.setenv("all_proxy", "http://proxy:1")
    assert is_proxied("http", "a.org")


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
