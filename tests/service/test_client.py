"""The client and the commands, against a server on this machine."""

from __future__ import annotations

import json
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mechassay.cli.main import main as program
from mechassay.errors import BadFile, BadUsage
from mechassay.service.app import create_app
from mechassay.service.client import ServerRefused, ServiceClient, read_token
from mechassay.service.declaration import Declaration
from mechassay.service.export import export_boards
from mechassay.service.queue import withdraw
from mechassay.service.tables import Submission
from service_made import MadeService
from web_server import Answer, served

uvicorn = pytest.importorskip("uvicorn")
DECLARED = Declaration(name="mine")


def main(words: list[str]) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        program(words)
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> MadeService:
    return MadeService.at(tmp_path_factory.mktemp("service"))


@pytest.fixture(scope="module")
def address(service: MadeService) -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(service.settings), log_level="warning", lifespan="on")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mine" / "truth-ioi_truth-ioi"
    made.mkdir(parents=True)
    (made / "importances.json").write_text("{}")
    (made.parent / "submission.yaml").write_text(f"name: {tmp_path.name}\n")
    return made.parent


def test_a_folder_is_handed_in_watched_and_withdrawn(
    address: str, service: MadeService, folder: Path
) -> None:
    client = ServiceClient(address, service.token)
    first = client.submit(folder)
    assert first["new"] and first["state"] == "received"
    assert client.submit(folder) == {**first, "new": False}
    assert ServiceClient(address).status(first["id"])["declaration"]["name"] == folder.parent.name
    assert client.withdraw(first["id"])["state"] == "withdrawn"
    with pytest.raises(ServerRefused, match="There is no submission"):
        client.status(first["id"])


def test_the_commands_do_the_same(
    address: str,
    service: MadeService,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MECHASSAY_TOKEN", service.token)
    words = ["leaderboard", "submit", str(folder), "--server", address]
    assert main(words) == 0
    said = capsys.readouterr().out
    submission = said.split(":")[0]
    assert f"{address}/submissions/{submission}" in said and service.token not in said
    assert main(["leaderboard", "status", submission, "--server", address]) == 0
    assert "received" in capsys.readouterr().out
    monkeypatch.delenv("MECHASSAY_TOKEN")
    assert main(["leaderboard", "withdraw", submission, "--server", address]) == 2
    assert "MECHASSAY_TOKEN" in capsys.readouterr().err
    file = folder.parent / "token"
    file.write_text(f"{service.token}\n")
    given = ["--server", address, "--token-file", str(file)]
    assert main(["leaderboard", "withdraw", submission, *given]) == 0


def test_a_wrong_token_is_said_in_one_line(address: str, folder: Path) -> None:
    with pytest.raises(ServerRefused, match="not known here") as error:
        ServiceClient(address, "ma_wrong").submit(folder)
    assert "ma_wrong" not in str(error.value) and "\n" not in str(error.value)


def test_what_a_server_cannot_do_now_is_tried_again(folder: Path) -> None:
    done = Answer(json.dumps({"id": "x", "state": "received"}).encode())
    waits: list[float] = []
    busy = Answer(b'{"error": "busy"}', status=503, headers={"Retry-After": "7"})
    with served(**{"api/submissions/x": [busy, Answer(b"", status=502), done]}) as server:
        client = ServiceClient(server.address, wait=waits.append)
        assert client.status("x")["state"] == "received"
    assert waits == [7.0, 2.0]


def test_a_server_that_stays_away_is_named(folder: Path) -> None:
    waits: list[float] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ServerRefused, match="cannot be reached"):
            ServiceClient(address, "ma_x", wait=waits.append).submit(folder, DECLARED)
    assert waits == [1.0, 2.0, 4.0, 8.0]


def test_redirects_and_what_is_no_json_are_refused(folder: Path) -> None:
    away = Answer(b"", status=307, headers={"Location": "http://other.example/"})
    with served(**{"api/submissions/x": away, "api/submissions/y": Answer(b"<html>")}) as server:
        with pytest.raises(ServerRefused, match="status 307"):
            ServiceClient(server.address).status("x")
        with pytest.raises(ServerRefused, match="no JSON object"):
            ServiceClient(server.address).status("y")


@pytest.mark.parametrize("server", ["file:///x", "http://ann:secret@x", "x", "https://"])
def test_addresses_that_are_none_are_refused(server: str) -> None:
    with pytest.raises(BadUsage, match="A server is"):
        ServiceClient(server)


def test_a_token_goes_over_https_alone() -> None:
    with pytest.raises(BadUsage, match="https alone"):
        ServiceClient("http://board.example", "ma_x")
    assert "ma_x" not in repr(ServiceClient("https://board.example", "ma_x"))


def test_tokens_are_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("ma_abc\n")
    assert read_token(file) == "ma_abc"
    monkeypatch.delenv("MECHASSAY_TOKEN", raising=False)
    for content in ("", "two words", "ma_\u00e9"):
        file.write_text(content)
        with pytest.raises(BadUsage, match="A token is needed"):
            read_token(file)
    with pytest.raises(BadFile):
        read_token(tmp_path / "none")


def test_ids_that_are_addresses_are_refused() -> None:
    for submission in ("../x", "", "a/b", "a?b"):
        with pytest.raises(BadUsage, match="letters and digits"):
            ServiceClient().status(submission)


def test_nothing_to_send_is_refused(tmp_path: Path) -> None:
    client = ServiceClient(token="ma_x")
    with pytest.raises(BadFile, match="no such file"):
        client.submit(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadUsage, match="say --name"):
        client.submit(tmp_path / "empty")


def test_a_client_that_hangs_up_leaves_nothing(address: str, service: MadeService) -> None:
    host, port = address.removeprefix("http://").split(":")
    head = (
        b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nhung up\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.zip"\r\n\r\n'
    )
    uploads = service.settings.scratch / "uploads"
    with socket.create_connection((host, int(port))) as line:
        line.sendall(
            b"POST /api/submissions HTTP/1.1\r\nHost: x\r\nContent-Length: 1900000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n"
            b"Authorization: Bearer " + service.token.encode() + b"\r\n\r\n" + head
        )
        line.sendall(b"0" * 1_500_000)
        until = time.monotonic() + 30
        while not list(uploads.glob("*")):
            assert time.monotonic() < until, "the file is being written"
            time.sleep(0.01)
    until = time.monotonic() + 30
    while list(uploads.glob("*")):
        assert time.monotonic() < until, "the file is removed"
        time.sleep(0.01)
    names = service.db.read(lambda session: [each.name for each in session.query(Submission)])
    assert "hung up" not in names
    # The submitter's next upload is not held up by the one that broke off.
    again = ServiceClient(address, service.token, wait=lambda _: None)
    with zipfile.ZipFile(uploads.parent / "next.zip", "w") as archive:
        archive.writestr("x", "1")
    assert again.submit(uploads.parent / "next.zip", DECLARED)["new"]


def test_the_boards_are_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = MadeService.at(tmp_path / "service")
    where = ["--folder", str(service.settings.folder), "--track", str(service.settings.track)]
    words = ["leaderboard", "export", str(tmp_path / "pages"), *where]
    assert main(words) == 2
    assert "No submission is done" in capsys.readouterr().err
    service.done("first")
    service.done("second", "random")
    assert main([*words, "--address", "https://board.example"]) == 0
    assert "circuits: 2 rows" in capsys.readouterr().out
    pages = tmp_path / "pages"
    board = (pages / "circuits.html").read_text()
    assert "/api/" not in board and "<form" not in board
    assert "--server https://board.example" in "".join(
        file.read_text() for file in (pages / "rows" / "circuits").glob("*.html")
    )
    assert len(list((pages / "records").glob("*.json"))) == 2


def test_an_export_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    service = MadeService.at(tmp_path / "service")
    first = service.done("first")
    service.done("second", "random")
    pages, before = tmp_path / "pages", tmp_path / "before"
    export_boards(service.settings, before)
    export_boards(service.settings, pages)
    withdraw(service.db, first, service.by)
    export_boards(service.settings, pages)
    for file in pages.rglob("*"):
        assert not file.is_file() or first not in file.read_text(), file
    [told] = json.loads((pages / "data" / "submissions.json").read_text())
    assert told["name"] == "second" and told["declaration"] == {"name": "second"}
    # A static board stands beside the submissions.
    boards = export_boards(replace(service.settings, board=before), pages).boards
    assert any(row.startswith("first") for row in boards["circuits"].rows())
    assert len(list((pages / "records").glob("*.json"))) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["before", "pages", "service"]
    with pytest.raises(BadUsage, match="no board"):
        export_boards(service.settings, tmp_path / "service")
