"""The service in a browser: a submission is handed in, watched, compared and filtered with keys."""

from __future__ import annotations

import math
import re
import socket
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mechassay.service.checks import checked, claim_check
from mechassay.service.work import PlannedEvaluation
from service_made import WORKER, MadeService, made_records
from web_modules import web_module

uvicorn = pytest.importorskip("uvicorn")
chromium, keys, pages = web_module("chromium"), web_module("keyboard"), web_module("test_pages")
PROGRAM = chromium.executable()
FLAGS = tuple(flag for flag in chromium.FLAGS if "virtual-time" not in flag)
pytestmark = [
    pytest.mark.web,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium; see `make test-web`"),
]
NAMES = ("index", "board", "part", "row", "compare", "history", "list", "submission", "refused",
         "figures", "form", "wrong")  # fmt: skip
TEXT = "document.body.innerText"


@dataclass
class Site:
    """A server that answers, and the addresses of its pages by name."""

    service: MadeService
    address: str
    paths: dict[str, str]

    def text(self, name: str) -> str:
        with urllib.request.urlopen(self.address + self.paths[name], timeout=60) as answer:
            return answer.read().decode()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from mechassay.service.app import create_app

    service = MadeService.at(tmp_path_factory.mktemp("service"))
    first = service.done("first", "eap", ("truth-ioi", "truth-induction"))
    service.done("second", "random", ("truth-ioi", "truth-induction"))
    bad = service.received("bad")
    held = claim_check(service.db, WORKER, 60.0)
    assert held is not None and held.id == bad.id
    from mechassay.submissions import Problem

    wrong = [Problem("x.pkl", "is a pickle."), Problem("y.json", "has no scores.", True)]
    assert checked(service.db, held, WORKER, wrong, [])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        app = create_app(service.settings, address)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        paths = {
            "index": "/",
            "board": "/boards/circuits",
            "part": "/boards/circuits?model=truth-ioi",
            "compare": "/compare?board=circuits",
            "list": "/submissions",
            "submission": f"/submissions/{first}",
            "refused": f"/submissions/{bad.id}",
            "figures": f"/submissions/{first}/figures",
            "form": "/submit",
        }
        made = Site(service, address, paths)
        board = made.text("board")
        rows = re.findall(r'<option value="([^"]+ \(submission [^"]+\))"', board)
        [paths["row"]] = set(re.findall(r'href="(/boards/circuits/rows/first[^"]+)"', board))
        [history, *_] = re.findall(r'href="(/history[^"]+)"', made.text("row"))
        paths["history"] = history.replace("&amp;", "&")
        a, b = (row.replace(" ", "+") for row in dict.fromkeys(rows))
        paths["compare"] += f"&column=cpr&a={a}&b={b}"
        yield made
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    assert PROGRAM is not None
    with keys.keyboard(PROGRAM, FLAGS, tmp_path) as browser:
        yield browser


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Any]:
    assert PROGRAM is not None
    return chromium.Browser(PROGRAM, tmp_path).evaluate


def until(page: Any, script: str, seconds: float = 120.0) -> None:
    """Wait until an expression is true in a page that may be left meanwhile."""
    end = time.monotonic() + seconds
    while True:
        # Of a page that is just left, nothing can be asked.
        with suppress(AssertionError):
            if page.value(script):
                return
        assert time.monotonic() < end, script
        time.sleep(0.05)


def go(page: Any, address: str) -> None:
    page.call("Page.navigate", url=address)
    until(page, f"location.href === {address!r} && document.readyState === 'complete'")


def test_a_submission_is_handed_in_and_watched(site: Site, page: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("truth-ioi_truth-ioi/importances.json", "{}")
    go(page, f"{site.address}/submit")
    page.tab_to("#token")
    page.write(site.service.token)
    page.tab_to("#name")
    page.write("by hand")
    page.tab_to("#description")
    page.write("typed")
    page.tab_to("#file")
    # The dialog that chooses a file is the browser's own.
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])
    page.tab_to("main form button")
    page.press("Enter")
    until(page, "location.pathname.startsWith('/submissions/')")
    until(page, f"{TEXT}.includes('waits to be checked')")
    # Now it is checked and evaluated, and the page says so by itself.
    service = site.service
    held = claim_check(service.db, WORKER, 60.0)
    assert held is not None and held.name == "by hand"
    assert checked(service.db, held, WORKER, [], [PlannedEvaluation(0, "c")], kind="circuits")
    until(page, "document.querySelector('#progress').textContent.includes('0 of 1')")
    service.work({"c": made_records()["truth-ioi eap"].stored_text()})
    until(page, f"{TEXT}.includes('1 of 1') && {TEXT}.includes('download')")
    assert page.value("document.querySelectorAll('script').length") == 0


def test_a_mistake_in_the_form_is_said(site: Site, page: Any, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK")
    go(page, f"{site.address}/submit")
    page.tab_to("#token")
    page.write("ma_wrong")
    page.tab_to("#name")
    page.write("mine")
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=node, files=[str(tmp_path / "x.zip")])
    page.tab_to("main form button")
    page.press("Enter")
    until(page, f"{TEXT}.includes('not known here')")
    assert page.value("document.querySelector('#name').value") == "mine"
    assert page.value("document.querySelector('#token').value") == ""


def test_a_board_is_filtered_here_and_by_the_server(site: Site, page: Any) -> None:
    go(page, site.address + site.paths["board"])
    row = "[...document.querySelectorAll('tbody tr')].find(r => r.innerText.includes('first'))"
    records = made_records()
    values = [records[f"{model} eap"].measure("cpr") for model in ("truth-ioi", "truth-induction")]
    one, other = (each.value for each in values if each is not None)

    def average() -> float:
        return float(page.value(f"{row}.cells[1].innerText").split()[0])

    assert math.isclose(average(), (one + other) / 2, rel_tol=0.01)
    page.tab_to("input.place[value=truth-induction]")
    page.press(" ")
    assert math.isclose(average(), one, rel_tol=0.01)
    page.tab_to("form[action='/boards/circuits'] button")
    page.press("Enter")
    until(page, "location.search.includes('model=truth-ioi')")
    until(page, "document.readyState === 'complete'")
    assert math.isclose(average(), one, rel_tol=0.01)
    assert page.value("document.querySelector('input[value=truth-induction]').checked") is False
    page.tab_to("#filter")
    page.write("second")
    assert page.value(f"{row}.hidden") is True


def test_two_rows_are_compared_by_the_server(site: Site, page: Any) -> None:
    go(page, site.address + site.paths["board"])
    for name, row in (("a", "first"), ("b", "second")):
        page.tab_to(f"select[name={name}]")
        page.write(row)
        assert page.value("document.activeElement.value").startswith(row)
    page.tab_to("form[action='/compare'] button")
    page.press("Enter")
    until(page, "location.pathname === '/compare' && document.readyState === 'complete'")
    until(page, f"{TEXT}.includes('first less second')")
    assert page.value("document.querySelectorAll('tbody tr').length") == 2


def pages_of(site: Site, name: str) -> str:
    if name != "wrong":
        return site.text(name)
    from mechassay.service.pages import submit_page

    return submit_page(2.0, {"name": "mine"}, "The token is not known here.")


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_site_is_cut(
    site: Site, look: Callable[..., Any], name: str, width: int
) -> None:
    found = look(pages_of(site, name), pages.CUT, width=width)
    assert found["page"] <= width and found["loose"] == [] and found["uncued"] == []


@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_in_the_site(site: Site, look: Callable[..., Any], name: str) -> None:
    for scheme in ("light", "dark"):
        found = look(pages_of(site, name), pages.axe_script(), scheme=scheme)
        assert found["said"] == [] and found["passed"] > 10
