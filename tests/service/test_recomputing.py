"""A cell of a service computed again from what the server gives out."""

from __future__ import annotations

import gzip
import math
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch

import mechassay as ma
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.leaderboard import BoardsFolder
from mechassay.leaderboard.cells import told_apart
from mechassay.progress import SILENT
from mechassay.service.app import create_app
from mechassay.service.archive import pack
from mechassay.service.bundle import read_bundle
from mechassay.service.checks import checked, claim_check
from mechassay.service.client import ServerRefused
from mechassay.service.queue import claim, finish
from mechassay.service.recomputing import fetch_cell, recompute_asked, recompute_served
from mechassay.service.tokens import new_token
from mechassay.service.track import ServiceTrack
from mechassay.service.work import Outcome, PlannedEvaluation
from service_made import WORKER, Asked, MadeService

testclient = pytest.importorskip("starlette.testclient")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> MadeService:
    """A submission of random scores, evaluated by the jobs of the bundle."""
    folder = tmp_path_factory.mktemp("own")
    service = MadeService.at(folder / "service")
    graph = ma.load_model("truth-ioi").graph
    values = torch.rand(graph.legal.shape, generator=torch.Generator().manual_seed(0))
    EdgeScores(graph, values).save(folder / "mine" / "truth-ioi_truth-ioi" / "scores.safetensors")
    (folder / "mine" / "submission.yaml").write_text("name: mine\n")
    file = pack(folder / "mine", folder / "mine.zip")
    track = ServiceTrack.read(service.settings.track)
    [job] = read_bundle(folder / "mine", track).jobs(track)
    [cell] = job.cells()
    run = folder / "run"
    ma.run(job, run, progress=SILENT)
    held = service.received("mine", file.read_bytes())
    found = claim_check(service.db, WORKER, 60.0)
    assert found is not None and found.id == held.id
    plan = [PlannedEvaluation(0, cell.name)]
    assert checked(service.db, found, WORKER, [], plan, kind="circuits")
    each = claim(service.db, WORKER, 60.0)
    assert each is not None
    service.store.put_file("records/one.json", run / "records" / f"{cell.name}.json")
    assert finish(service.db, each, WORKER, Outcome("done", None, "records/one.json", 1.0))
    return service


@pytest.fixture
def client(service: MadeService) -> Iterator[Any]:
    with testclient.TestClient(create_app(service.settings, "http://x")) as client:
        yield client


def names(client: Any) -> list[str]:
    return [each["id"] for each in client.get("/api/boards/circuits.json").json()["cells"]]


def test_a_cell_is_the_same_again_and_gets_a_mark(
    client: Any, service: MadeService, tmp_path: Path
) -> None:
    name = next(each for each in names(client) if "/cpr@" in each)
    bob = Asked("http://127.0.0.1", new_token(service.db, "bob")).use(client)
    served = fetch_cell(bob, "circuits", name, tmp_path / "fetched")
    told = recompute_served(served, tmp_path, progress=SILENT)
    assert told.agrees and told.n > 10 and math.isclose(told.again, told.stored, rel_tol=1e-6)
    said = {"cell": told.cell, "sha256": told.sha256, "value": told.again, "agrees": True}
    assert bob.recomputed(served.submission, said) == {"agrees": True}
    bob.recomputed(served.submission, said)
    with testclient.TestClient(create_app(service.settings)) as other:
        assert "✓" in other.get("/boards/circuits").text
    ann = Asked("http://127.0.0.1", service.token).use(client)
    with pytest.raises(ServerRefused, match="somebody else"):
        ann.recomputed(served.submission, said)
    with pytest.raises(ServerRefused, match="no such record"):
        bob.recomputed(served.submission, {**said, "sha256": "0" * 64})
    with pytest.raises(ServerRefused, match="not of the form"):
        bob.recomputed(served.submission, {**said, "sha256": "x"})


def test_a_record_of_another_track_is_not_called_different(client: Any, tmp_path: Path) -> None:
    name = next(each for each in names(client) if "/cpr@" in each)
    served = fetch_cell(Asked("http://127.0.0.1").use(client), "circuits", name, tmp_path)
    changed = served.track.model_copy(update={"limit": served.track.limit + 1, "limits": {}})
    with pytest.raises(BadUsage, match=r"under another track \(limit \d+, now \d+\)"):
        recompute_served(replace(served, track=changed), tmp_path / "again", progress=SILENT)


def test_circuits_of_a_submission_are_drawn(client: Any) -> None:
    [submission] = client.get("/api/submissions").json()["submissions"]
    page = client.get(f"/submissions/{submission['id']}/figures").text
    assert page.count("<svg") >= 2 and "truth-ioi in truth-ioi" in page


def test_cells_that_are_not_there_or_several_are_refused(client: Any, tmp_path: Path) -> None:
    asked = Asked("http://127.0.0.1").use(client)
    with pytest.raises(UnknownName, match="cell") as error:
        fetch_cell(asked, "circuits", "nobody/cpr", tmp_path)
    known = str(error.value).rpartition("Known: ")[2].removesuffix(".").split(", ")
    assert sorted(known) == sorted(told_apart(names(client)))
    with pytest.raises(UnknownName, match="board"):
        fetch_cell(asked, "none", "x", tmp_path)


def test_a_record_that_is_not_the_shown_one_is_refused(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked("http://127.0.0.1").use(client)
    name = names(client)[0]
    monkeypatch.setattr(Asked, "content", lambda *_: b"{}")
    with pytest.raises(BadFile, match="not the one that the board shows"):
        fetch_cell(asked, "circuits", name, tmp_path)


def test_a_cell_that_its_record_does_not_have_is_refused(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked("http://127.0.0.1").use(client)
    name = next(each for each in names(client) if "/cpr@" in each)
    told = client.get("/api/boards/circuits.json").json()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"n": 1000}, "(n)"),
        ({"controls": {"random": -5.0}}, "(controls)"),
        ({"row": "yours"}, "is another"),
        ({"conditions": {}}, "is another"),
        ({"board": "gym"}, "is of the board gym"),
    ]
    say = Asked.asked
    for number, (change, said) in enumerate(changes):
        cells = [{**each, **change} if each["id"] == name else each for each in told["cells"]]

        def forged(self: Asked, address: str, cells: Any = cells) -> Any:
            return {"cells": cells} if "boards" in address else say(self, address)

        monkeypatch.setattr(Asked, "asked", forged)
        folder = tmp_path / str(number)
        with pytest.raises(BadFile, match=re.escape(said)):
            recompute_served(fetch_cell(asked, "circuits", name, folder / "f"), folder)


def test_an_archive_of_something_else_makes_no_record(
    client: Any, service: MadeService, tmp_path: Path
) -> None:
    asked = Asked("http://127.0.0.1").use(client)
    served = fetch_cell(asked, "circuits", names(client)[0], tmp_path / "fetched")
    with zipfile.ZipFile(served.file, "w") as archive:
        archive.writestr("x.py", "print(1)")
    with pytest.raises((BadFile, BadUsage)):
        recompute_served(served, tmp_path, progress=SILENT)


@pytest.fixture(scope="module")
def beside(service: MadeService, tmp_path_factory: pytest.TempPathFactory) -> MadeService:
    """The service with a static board of another method beside the submission."""
    folder = tmp_path_factory.mktemp("beside")
    job = ma.CircuitsJob(models=("truth-ioi",), methods=("eap",), train_limit=6, test_limit=8)
    ma.run(job, folder / "runs" / "one", progress=SILENT)
    boards = BoardsFolder.of(folder / "runs", folder / "board")
    assert boards.keep_artefacts() == ()
    boards.write()
    return replace(service, settings=replace(service.settings, board=folder / "board"))


def test_a_row_of_the_static_board_is_computed_again_from_the_server(
    beside: MadeService, tmp_path: Path
) -> None:
    with testclient.TestClient(create_app(beside.settings, "http://x")) as client:
        asked = Asked("http://127.0.0.1").use(client)
        [name] = [each for each in names(client) if each.startswith("eap/") and "/cpr@" in each]
        page = unescape(client.get("/boards/circuits/rows/eap").text)
        assert f"mechassay leaderboard recompute circuits {name} --server http://x" in page
        told, submission = recompute_asked(asked, "circuits", name, tmp_path, progress=SILENT)
        assert told.agrees and told.n > 10 and not told.anew and submission == ""
        [mine] = [each for each in names(client) if each.startswith("mine ") and "/cpr@" in each]
        told, submission = recompute_asked(asked, "circuits", mine, tmp_path / "x", progress=SILENT)
        assert told.agrees and submission
        cell = next(
            each
            for each in client.get("/api/boards/circuits.json").json()["cells"]
            if each["id"] == name
        )
        wrong = ("plans/" + "0" * 64 + ".json", "artefacts/" + "0" * 64 + ".gz", "artefacts/x.gz")
        for address in (*wrong, f"artefacts/{cell['sha256']}.gz", "plans/..%2Ftrack.json"):
            assert client.get(f"/api/{address}").status_code == 404


def test_a_link_on_the_static_board_is_not_followed(beside: MadeService, tmp_path: Path) -> None:
    assert beside.settings.board is not None
    board = Path(shutil.copytree(beside.settings.board, tmp_path / "board"))
    [file] = (board / "artefacts").iterdir()
    (tmp_path / "secret").write_text("secret")
    file.unlink()
    file.symlink_to(tmp_path / "secret")
    settings = replace(beside.settings, board=board)
    with testclient.TestClient(create_app(settings, "http://x")) as client:
        answer = client.get(f"/api/artefacts/{file.name}")
        assert answer.status_code == 404 and "secret" not in answer.text
        asked = Asked("http://127.0.0.1").use(client)
        name = next(each for each in names(client) if each.startswith("eap/"))
        with pytest.raises(ServerRefused, match="no such artefact"):
            recompute_asked(asked, "circuits", name, tmp_path / "again", progress=SILENT)


def test_what_a_server_gives_out_of_its_static_board_is_checked(
    beside: MadeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with testclient.TestClient(create_app(beside.settings, "http://x")) as client:
        asked = Asked("http://127.0.0.1").use(client)
        name = next(each for each in names(client) if each.startswith("eap/"))
        given = Asked.content
        forged = {
            "artefacts": (lambda _: gzip.compress(b"other"), "not what its name says"),
            "plans": (lambda plan: plan.replace(b'"truth-ioi"', b'"/etc/x"'), "which is a path"),
        }
        for number, (what, (change, said)) in enumerate(forged.items()):

            def give(self: Asked, address: str, what: str = what, change: Any = change) -> bytes:
                content = given(self, address)
                return change(content) if f"/{what}/" in address else content

            monkeypatch.setattr(Asked, "content", give)
            folder = tmp_path / str(number)
            with pytest.raises(BadFile, match=said):
                recompute_asked(asked, "circuits", name, folder, progress=SILENT)
