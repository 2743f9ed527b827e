"""The boards of a service as a folder: every link leads somewhere in it, every cell runs again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch

import mechassay as ma
from mechassay.circuits.scores import EdgeScores
from mechassay.cli.main import main
from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard.folder import BoardsFolder
from mechassay.leaderboard.stored import StoredBoards
from mechassay.progress import SILENT
from mechassay.service import export
from mechassay.service.archive import pack
from mechassay.service.bundle import read_bundle
from mechassay.service.checks import checked, claim_check
from mechassay.service.export import export_boards
from mechassay.service.queue import claim, finish, withdraw
from mechassay.service.recomputing import exported_cell, recompute_served
from mechassay.service.track import ServiceTrack
from mechassay.service.work import Outcome, PlannedEvaluation
from service_made import WORKER, MadeService

LINK = re.compile(r'(?:href|src)="([^"#]*)"')


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> MadeService:
    """Random scores that were evaluated by the jobs of their bundle, and a submission that failed.

    A static board of another method stands beside them.
    """
    folder = tmp_path_factory.mktemp("own")
    service = MadeService.at(folder / "service")
    job = ma.CircuitsJob(models=("truth-ioi",), methods=("eap",), train_limit=6, test_limit=8)
    ma.run(job, folder / "runs" / "one", progress=SILENT)
    beside = BoardsFolder.of(folder / "runs", folder / "beside")
    beside.keep_artefacts()
    beside.write()
    service.settings = replace(service.settings, board=folder / "beside")
    graph = ma.load_model("truth-ioi").graph
    values = torch.rand(graph.legal.shape, generator=torch.Generator().manual_seed(0))
    EdgeScores(graph, values).save(folder / "mine" / "truth-ioi_truth-ioi" / "scores.safetensors")
    (folder / "mine" / "submission.yaml").write_text("name: mine\n")
    file = pack(folder / "mine", folder / "mine.zip")
    track = ServiceTrack.read(service.settings.track)
    [job] = read_bundle(folder / "mine", track).jobs(track)
    [cell] = job.cells()
    ma.run(job, folder / "run", progress=SILENT)
    service.received("mine", file.read_bytes())
    found = claim_check(service.db, WORKER, 60.0)
    assert found is not None
    plan = [PlannedEvaluation(0, cell.name)]
    assert checked(service.db, found, WORKER, [], plan, kind="circuits")
    each = claim(service.db, WORKER, 60.0)
    assert each is not None
    service.store.put_file("records/one.json", folder / "run" / "records" / f"{cell.name}.json")
    assert finish(service.db, each, WORKER, Outcome("done", None, "records/one.json", 1.0))
    service.queued("<b>failed", ["truth-ioi"])
    service.work({})
    return service


@pytest.fixture(scope="module")
def made(service: MadeService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "pages"
    found = export_boards(service.settings, folder, "https://board.example", progress=SILENT)
    files = list((folder / "files").iterdir())
    assert (found.submissions, len(found.files)) == (2, 2)
    assert found.n_bytes == sum(file.stat().st_size for file in files)
    return folder


@pytest.fixture
def pages(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def links(folder: Path) -> Iterator[tuple[Path, str]]:
    for page in folder.rglob("*.html"):
        for address in LINK.findall(page.read_text()):
            yield page, unescape(address)


def test_every_link_leads_to_a_file_of_the_folder(pages: Path) -> None:
    found = {
        (page.relative_to(pages).as_posix(), address): (page.parent / unquote(address)).resolve()
        for page, address in links(pages)
    }
    assert len(found) > 20
    for (page, address), file in found.items():
        assert not address.startswith(("/", "http")), (page, address)
        assert file.is_file() and file.is_relative_to(pages.resolve()), (page, address)
    # From the first page, all others are reached.
    seen, waiting = set[Path](), [(pages / "index.html").resolve()]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        waiting += [
            file
            for (of, _), file in found.items()
            if (pages / of).resolve() == page and file.suffix == ".html"
        ]
    assert seen == {page.resolve() for page in pages.rglob("*.html")}


def test_the_page_of_a_submission_says_what_the_servers_says(
    pages: Path, service: MadeService
) -> None:
    cells = StoredBoards.read(pages).cells
    submission = next(cell.submission for cell in cells if cell.submission)
    text = (pages / "submissions" / f"{submission}.html").read_text()
    assert text.count("<svg") >= 2 and "truth-ioi in truth-ioi" in text
    for said in ("Cells", "Compute it again", "CELL --board .", f"../files/{submission}.zip"):
        assert said in text
    assert "/api/" not in text and "<form" not in text and "<script" not in text
    [row] = (pages / "rows" / "circuits").glob("mine*.html")
    assert f"../../submissions/{submission}.html" in row.read_text()
    names = {file.name: file.read_bytes() for file in (pages / "files").iterdir()}
    told = json.loads((pages / "data" / "files.json").read_text())
    for each in told.values():
        assert sha256(names[each["name"]]).hexdigest() == each["sha256"]
    [failed] = [each for each in told if each != submission]
    page = (pages / "submissions" / f"{failed}.html").read_text()
    assert "It took more than 1 s." in page and "on the board" not in page
    assert "&lt;b&gt;failed" in page and "<b>failed" not in page


def test_every_cell_is_the_same_again_from_the_folder_alone(
    pages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(pages)
    cells = [cell for cell in StoredBoards.read(pages).cells if cell.column == "cpr"]
    assert sorted(bool(cell.submission) for cell in cells) == [False, True]
    for cell in cells:
        words = ["leaderboard", "recompute", "circuits", cell.full_id, "--board", "."]
        rows = "".join(unescape(row.read_text()) for row in (pages / "rows").rglob("*.html"))
        assert f"recompute circuits '{cell.full_id}' --board ." in rows or " ".join(words) in rows
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert "agrees" in capsys.readouterr().out


def test_without_files_the_server_is_named(service: MadeService, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    found = export_boards(
        service.settings, folder, "https://board.example", with_files=False, progress=SILENT
    )
    assert not found.files and found.n_bytes == 0 and not (folder / "files").exists()
    cells = StoredBoards.read(folder)
    cell = next(cell for cell in cells.cells if cell.submission)
    text = (folder / "submissions" / f"{cell.submission}.html").read_text()
    assert "--server https://board.example" in text and "download</a>" not in text
    with pytest.raises(BadFile, match="has no file of the submission"):
        exported_cell(cells, cell)


def test_what_was_changed_in_the_folder_is_refused(pages: Path, tmp_path: Path) -> None:
    cells = StoredBoards.read(pages)
    cell = next(cell for cell in cells.cells if cell.submission)
    with pytest.raises(BadUsage, match="private"):
        exported_cell(cells, cell.model_copy(update={"private": True}))
    with pytest.raises(BadFile, match="which submission"):
        exported_cell(cells, cell.model_copy(update={"source": "submission ../x"}))
    served = exported_cell(cells, cell)
    assert recompute_served(served, tmp_path / "again", progress=SILENT).agrees
    track = pages / "track.json"
    text = track.read_text()
    told = json.loads(text)
    for load in ("/etc/model", "../model", "~/model", "model.gguf"):
        told["models"]["truth-ioi"]["load"] = load
        track.write_text(json.dumps(told))
        with pytest.raises(BadFile, match="from a path"):
            exported_cell(cells, cell)
    told["models"]["truth-ioi"].update(load="", tasks=["pairs.jsonl"])
    track.write_text(json.dumps(told))
    with pytest.raises(BadFile, match="task that is a path"):
        exported_cell(cells, cell)
    track.write_text('{"models": 1}')
    with pytest.raises(BadFile, match="its track is none"):
        exported_cell(cells, cell)
    track.write_text(text)
    file = pages / "files" / f"{cell.submission}.zip"
    content = file.read_bytes()
    file.write_bytes(content + b" ")
    with pytest.raises(BadFile, match="changed since"):
        exported_cell(cells, cell)
    file.unlink()
    (tmp_path / "outside.zip").write_bytes(content)
    file.symlink_to(tmp_path / "outside.zip")
    with pytest.raises(BadFile, match="leads out of the board"):
        exported_cell(cells, cell)
    file.unlink()
    with pytest.raises(BadFile, match="is not there"):
        exported_cell(cells, cell)
    index = pages / "data" / "files.json"
    index.write_text(json.dumps({cell.submission: {"name": "../../x.zip", "sha256": ""}}))
    with pytest.raises(BadFile, match="has no file"):
        exported_cell(cells, cell)


@pytest.mark.parametrize("load", ["gpt2", "", "owner/name@rev", "untrained:gpt2"])
def test_a_model_of_a_track_that_is_a_folder_here_is_not_loaded(
    pages: Path, monkeypatch: pytest.MonkeyPatch, load: str
) -> None:
    cells = StoredBoards.read(pages)
    cell = next(cell for cell in cells.cells if cell.submission)
    told = json.loads((pages / "track.json").read_text())
    told["models"]["gpt2"] = {"load": load, "tasks": ["ioi"]}
    (pages / "track.json").write_text(json.dumps(told))
    monkeypatch.chdir(pages)
    assert exported_cell(cells, cell).track.loaded_from("gpt2") == (load or "gpt2")
    name = load.removeprefix("untrained:").replace("@", "/") or "gpt2"
    shutil.copytree(Path(ma.__file__).parent / "truth" / "data" / "truth-ioi", pages / name)
    with pytest.raises(BadFile, match="from a path or folder"):
        exported_cell(cells, cell)


def test_a_withdrawal_between_boards_and_their_submissions_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = MadeService.at(tmp_path / "service")
    first = service.done("first")
    service.done("second", "random")
    found = export.done_submissions

    def after(*about: object) -> object:
        withdraw(service.db, first, service.by)
        return found(*about)  # pyright: ignore

    monkeypatch.setattr(export, "done_submissions", after)
    with pytest.raises(BadUsage, match="withdrawn while"):
        export_boards(service.settings, tmp_path / "pages", progress=SILENT)
    assert not (tmp_path / "pages").exists()


def test_a_withdrawal_while_it_is_written_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = MadeService.at(tmp_path / "service")
    first = service.done("first")
    service.done("second", "random")
    pages = tmp_path / "pages"
    export_boards(service.settings, pages, progress=SILENT)
    before = (pages / "index.html").stat().st_ino
    write = export.write_pages

    def slowly(*about: object) -> object:
        withdraw(service.db, first, service.by)
        return write(*about)  # pyright: ignore

    monkeypatch.setattr(export, "write_pages", slowly)
    with pytest.raises(BadUsage, match="withdrawn while"):
        export_boards(service.settings, pages, progress=SILENT)
    assert (pages / "index.html").stat().st_ino == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pages", "service"]
    monkeypatch.undo()
    export_boards(service.settings, pages, progress=SILENT)
    for file in pages.rglob("*"):
        assert first not in file.name
        assert not file.is_file() or first.encode() not in file.read_bytes(), file
