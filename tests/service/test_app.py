"""The service's pages and API, asked as a browser and a program would."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from mechassay.records import read_record
from mechassay.service import figures
from mechassay.service.app import create_app
from mechassay.service.boards import ServedBoards
from mechassay.service.cell import CellOrders
from mechassay.service.evaluation import ChildEnd
from mechassay.service.intake import remove_unnamed
from mechassay.service.queue import withdraw
from mechassay.service.settings import ServiceLimits
from mechassay.service.tables import Recomputed, Submission, now
from mechassay.service.tokens import new_token, withdraw_token
from mechassay.service.track import CellLimits, ServiceTrack
from service_made import MadeService, made_records

testclient = pytest.importorskip("starlette.testclient")
BAD = "</script><script>alert(1)</script>"


def archive(text: str = "1") -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("truth-ioi_truth-ioi/importances.json", text)
    return content.getvalue()


@pytest.fixture
def service(tmp_path: Path) -> MadeService:
    return MadeService.at(tmp_path / "service")


def opened(service: MadeService, **more: Any) -> Any:
    app = create_app(service.settings, "http://board.example")
    return testclient.TestClient(app, raise_server_exceptions=False, **more)


@pytest.fixture
def not_drawn(monkeypatch: pytest.MonkeyPatch) -> list[CellLimits]:
    """The limits of the processes that would have drawn."""
    begun: list[CellLimits] = []

    def run_child(words: Any, orders: CellOrders, limits: CellLimits, *_: Any, **__: Any) -> Any:
        assert orders.seed is None and orders.track.upload.megabytes <= figures.UNPACKED
        begun.append(limits)
        return ChildEnd("too long", "took longer than 60 s.", 60.0)

    monkeypatch.setattr(figures, "run_child", run_child)
    return begun


@pytest.fixture
def client(service: MadeService, not_drawn: object) -> Iterator[Any]:
    """A server of two submissions that are done, on one and on two ground truths."""
    service.done("first", "eap", ("truth-ioi", "truth-induction"))
    service.done("second", "random")
    with opened(service, follow_redirects=False) as client:
        yield client


def ids(client: Any) -> dict[str, str]:
    return {
        each["name"]: each["id"] for each in client.get("/api/submissions").json()["submissions"]
    }


def sent(client: Any, token: str, content: bytes | None = None, **more: Any) -> Any:
    file = more.pop("file", ("mine.zip", archive() if content is None else content))
    form = {"name": "mine", **more}
    headers = {"Authorization": f"Bearer {token}"}
    return client.post("/api/submissions", data=form, files={"file": file}, headers=headers)


def test_every_page_answers_and_is_safe(client: Any) -> None:
    row = re.search(r'href="(/boards/circuits/rows/[^"]+)"', client.get("/boards/circuits").text)
    assert row is not None
    cell = client.get("/api/boards/circuits.json").json()["cells"][0]
    first = ids(client)["first"]
    for path in (
        "/",
        "/boards/circuits",
        row[1],
        "/compare?board=circuits",
        "/submissions",
        f"/submissions/{first}",
        f"/submissions/{first}/figures",
        "/submit",
    ):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text[-500:])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "set-cookie" not in answer.headers
    history = client.get("/history", params={"board": "circuits", "cell": cell["id"]})
    assert history.status_code == 200 and "newest number" in history.text


def test_the_board_has_the_numbers_of_the_records(client: Any) -> None:
    board = client.get("/api/boards/circuits.json").json()
    records = made_records()
    found = {(each["row"], each["place"]["model"], each["column"]): each for each in board["cells"]}
    rows = {row.split(" (")[0]: row for row, _, _ in found}
    for row, method, model in (
        ("first", "eap", "truth-induction"),
        ("second", "random", "truth-ioi"),
    ):
        measure = records[f"{model} {method}"].measure("cpr")
        assert measure is not None
        cell = found[rows[row], model, "cpr"]
        assert cell["value"] == measure.value
        record = client.get(f"/api/records/{cell['sha256']}.json")
        assert record.headers["content-disposition"].startswith("attachment")
        assert json.loads(record.text)["cell"]["model"] == model
    assert client.get("/api/boards/circuits.csv").text.count("\n") == len(board["cells"]) + 1


def test_a_board_in_part_has_averages_of_what_is_shown(client: Any) -> None:
    whole = client.get("/boards/circuits").text
    part = client.get("/boards/circuits?model=truth-ioi&row=FIRST").text
    data = [
        json.loads(re.search(r'id="board">(.*?)</script>', text, re.DOTALL)[1])  # pyright: ignore
        for text in (whole, part)
    ]
    assert [len(each["cpr"]["places"]) for each in data] == [2, 1]
    [row] = data[1]["cpr"]["rows"]
    assert row.startswith("first")
    # The box of the other model is there, and not ticked.
    box = re.search(r'<input type="checkbox" name="model" value="truth-induction"[^>]*>', part)
    assert box is not None and "checked" not in box[0]
    assert client.get("/boards/circuits?model=gpt-5").status_code == 404
    assert client.get(f"/boards/circuits?row={'x' * 500}").status_code == 400


def test_two_rows_are_compared(client: Any) -> None:
    rows = sorted({each["row"] for each in client.get("/api/boards/circuits.json").json()["cells"]})
    asked = {"board": "circuits", "column": "cpr", "a": rows[0], "b": rows[1]}
    page = client.get("/compare", params=asked)
    values = [made_records()[f"truth-ioi {name}"].measure("cpr") for name in ("eap", "random")]
    less = values[0].value - values[1].value  # pyright: ignore
    shown = re.search(
        r'<td class="numeric">\s*(-?[\d.]+)[^<]*<span class="interval">\[[^<]*</span>'
        r"\s*</td>\s*<td[^>]*>\s*(first is better|second is better|not resolved)",
        page.text,
    )
    assert shown is not None, page.text[-3000:]
    assert float(shown[1]) == pytest.approx(less, abs=0.06)
    assert client.get("/compare", params={**asked, "b": rows[0]}).status_code == 400
    assert client.get("/compare", params={**asked, "b": "nobody"}).status_code == 404


def test_a_page_is_sent_once(client: Any) -> None:
    first = client.get("/boards/circuits")
    assert first.headers["content-encoding"] == "gzip"
    again = client.get("/boards/circuits", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    plain = client.get("/boards/circuits", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.text == first.text


def test_what_cannot_be_drawn_is_tried_once_and_one_at_a_time(
    client: Any, service: MadeService, not_drawn: list[CellLimits]
) -> None:
    page = f"/submissions/{ids(client)['first']}/figures"
    with figures._DRAWING:
        busy = client.get(page)
    assert busy.status_code == 429 and "being drawn" in busy.text and not_drawn == []
    for _ in range(2):
        with opened(service) as other:
            assert other.get(page).status_code == 200
    assert not_drawn == [figures.LIMITS]
    assert list((service.settings.scratch / "drawings").iterdir()) == []


def test_what_is_not_there_is_said_in_one_line(client: Any) -> None:
    for path in (
        "/x",
        "/boards/none",
        "/boards/circuits/rows/none",
        "/submissions/../../etc",
        "/submissions/none",
        f"/submissions/{'a' * 16}",
        "/compare?board=none",
        "/history?board=circuits&cell=none",
        "/submissions?page=0",
    ):
        answer = client.get(path)
        assert answer.status_code == 404 and "Traceback" not in answer.text, path
        assert "<h1>" in answer.text
    for path in (
        "/api/submissions/none",
        f"/api/submissions/{'a' * 16}/file",
        "/api/records/..%2f..%2fboard.sqlite.json",
        f"/api/records/{'0' * 64}.json",
        "/api/boards/circuits.exe",
        "/api/submissions/%00",
    ):
        answer = client.get(path)
        assert answer.status_code == 404 and set(answer.json()) in ({"error"}, {"detail"}), path


def test_a_submission_is_taken_once(client: Any, service: MadeService) -> None:
    first = sent(client, service.token)
    assert first.status_code == 201, first.text
    again = sent(client, service.token)
    assert again.status_code == 200 and again.json()["id"] == first.json()["id"]
    told = client.get(f"/api/submissions/{first.json()['id']}").json()
    assert told["state"] == "received" and told["declaration"]["name"] == "mine"
    held = service.db.read(lambda session: session.get_one(Submission, first.json()["id"]))
    assert service.store.read(held.file) == archive()
    assert list((service.settings.scratch / "uploads").iterdir()) == []


def test_the_form_leads_to_the_submission(client: Any, service: MadeService) -> None:
    form = {
        "token": service.token,
        "name": "from a form",
        "description": "two\r\nlines",
        "gpu_hours": "0.5",
        "train_hashes": f"{'a' * 64}\r\n{'b' * 64}",
    }
    answer = client.post("/submit", data=form, files={"file": ("mine.zip", archive())})
    assert answer.status_code == 303, answer.text
    page = client.get(answer.headers["location"])
    assert "from a form" in page.text and "waits to be checked" in page.text
    told = client.get(f"/api{answer.headers['location']}").json()
    assert told["declaration"]["train_hashes"] == ["a" * 64, "b" * 64]
    assert told["declaration"]["gpu_hours"] == 0.5
    assert service.token not in page.text


def test_a_form_with_a_mistake_keeps_what_was_typed(client: Any, service: MadeService) -> None:
    form = {"token": "ma_wrong", "name": "mine", "method": "a method of ours"}
    answer = client.post("/submit", data=form, files={"file": ("mine.zip", archive())})
    assert answer.status_code == 401
    assert "a method of ours" in answer.text and "ma_wrong" not in answer.text
    assert 'role="alert"' in answer.text
    form = {"token": service.token, "name": BAD}
    answer = client.post("/submit", data=form, files={"file": ("mine.zip", archive())})
    assert answer.status_code == 400 and "<script>alert" not in answer.text


@pytest.mark.parametrize("token", ["", "ma_nobody", "withdrawn"])
def test_a_wrong_token_writes_nothing(client: Any, service: MadeService, token: str) -> None:
    if token == "withdrawn":
        token = service.token
        withdraw_token(service.db, "ann")
    answer = sent(client, token)
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert not (token and token in answer.text)
    uploads = service.settings.scratch / "uploads"
    assert not uploads.is_dir() or list(uploads.iterdir()) == []
    assert client.delete(f"/api/submissions/{'a' * 16}").status_code == 401


def test_a_name_with_markup_is_refused_or_stays_text(client: Any, service: MadeService) -> None:
    assert sent(client, service.token, name=BAD).status_code == 400
    # As a name that an earlier version took.
    service.done(BAD)
    with opened(service) as other:
        [submission] = [one for name, one in ids(other).items() if name == BAD]
        row = re.search(r"/boards/circuits/rows/_[^\"]+", other.get("/boards/circuits").text)
        assert row is not None
        for path in (
            "/submissions",
            f"/submissions/{submission}",
            "/boards/circuits",
            row[0],
            "/compare?board=circuits",
        ):
            answer = other.get(path)
            assert answer.status_code == 200
            assert "<script>alert" not in answer.text
            assert BAD in unescape(answer.text).replace("\\u003c", "<")


def test_an_upload_that_is_too_large_leaves_nothing(client: Any, service: MadeService) -> None:
    limit = 2_000_000
    headers = {
        "Authorization": f"Bearer {service.token}",
        "Content-Type": "multipart/form-data; boundary=b",
    }
    head = (
        b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nx\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.zip"\r\n\r\n'
    )

    def unannounced() -> Iterator[bytes]:
        yield head
        for _ in range(40):
            yield b"0" * 100_000
        yield b"\r\n--b--\r\n"

    for content in (head + b"0" * (limit + 1_500_000) + b"\r\n--b--\r\n", unannounced()):
        answer = client.post("/api/submissions", content=content, headers=headers)
        assert answer.status_code == 413 and "2 MB" in answer.json()["error"]
    assert not any((service.settings.scratch / "uploads").glob("*"))
    assert "mine" not in ids(client)


@pytest.mark.parametrize("content", [b"", b"--b\r\n", b"no form at all",
    b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nx\r\n--b--\r\n',
    b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nx\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.zip"\r\n\r\nPK',
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.zip"\r\n\r\nPK\r\n--b--\r\n',
    b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\n' + b"x" * 200_000 + b"\r\n--b--",
])  # fmt: skip
def test_a_form_that_is_none_is_refused(client: Any, service: MadeService, content: bytes) -> None:
    headers = {
        "Authorization": f"Bearer {service.token}",
        "Content-Type": "multipart/form-data; boundary=b",
    }
    answer = client.post("/api/submissions", content=content, headers=headers)
    assert answer.status_code == 400, answer.text
    assert len(answer.json()["error"].splitlines()) == 1
    assert not any((service.settings.scratch / "uploads").glob("*"))


def test_a_form_without_end_is_not_read_on(client: Any, service: MadeService) -> None:
    """Parts without a name hold nothing, and would be read for ever."""

    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b"--b\r\n\r\nx\r\n" * 10_000

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    said = {"Authorization": f"Bearer {service.token}"}
    for path, more in (("/submit", {}), ("/api/submissions", said)):
        answer = client.post(path, content=endless(), headers={**headers, **more})
        assert answer.status_code == 400 and "beside its file" in unescape(answer.text)


def test_a_boundary_that_is_too_long_is_refused(client: Any, service: MadeService) -> None:
    headers = {
        "Authorization": f"Bearer {service.token}",
        "Content-Type": f"multipart/form-data; boundary={'b' * 1000}",
    }
    answer = client.post("/api/submissions", content=b"1", headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]


def test_what_is_said_of_a_cell_is_read_after_the_token_and_not_for_ever(
    client: Any, service: MadeService
) -> None:
    address = f"/api/submissions/{ids(client)['first']}/recomputed"
    headers = {"Authorization": f"Bearer {service.token}"}
    assert client.post(address, content=b" " * 20_000).status_code == 401
    assert client.post(address, content=b" " * 20_000, headers=headers).status_code == 413
    for content in (b"", b"[" * 3_000, b"{}", b'{"cell": 1}', b"\xff"):
        answer = client.post(address, content=content, headers=headers)
        assert answer.status_code == 400 and "not of the form" in answer.json()["error"]


def test_a_single_file_keeps_its_name(client: Any, service: MadeService) -> None:
    answer = sent(client, service.token, file=("truth-ioi_truth-ioi.json", b'{"edges": {}}'))
    held = service.db.read(lambda session: session.get_one(Submission, answer.json()["id"]))
    with zipfile.ZipFile(io.BytesIO(service.store.read(held.file))) as file:
        assert file.namelist() == ["truth-ioi_truth-ioi.json"]
    for name in ("../../x.json", "a b.json", "x.exe", "x.pkl", ".json"):
        answer = sent(client, service.token, file=(name, b"1"))
        assert answer.status_code in (201, 400)
        if answer.status_code == 201:  # The folders before a name are cut off.
            assert name == "../../x.json"


def test_limits_of_rate_are_said(tmp_path: Path) -> None:
    service = MadeService.at(tmp_path / "service", limits=ServiceLimits(a_day=5, at_once=1))
    with opened(service) as client:
        assert sent(client, service.token).status_code == 201
        answer = sent(client, service.token, archive("2"))
        assert answer.status_code == 429 and "at once" in answer.json()["error"]
        assert answer.headers["retry-after"]


def test_the_store_has_a_file_of_each_submission_and_no_more(tmp_path: Path) -> None:
    service = MadeService.at(tmp_path / "service", limits=ServiceLimits(a_day=5, at_once=1))
    with opened(service) as client:
        first = sent(client, service.token).json()["id"]
        assert sent(client, service.token).status_code == 200
        assert sent(client, service.token, archive("2")).status_code == 429
        held = service.db.read(lambda session: session.get_one(Submission, first))
        assert service.store.keys("uploads") == [held.file]
    service.store.put("uploads/left", b"PK")
    assert remove_unnamed(service.db, service.store, now() - timedelta(days=1)) == 0
    assert remove_unnamed(service.db, service.store, now() + timedelta(days=1)) == 1
    assert service.store.keys("uploads") == [held.file]


def test_a_withdrawn_submission_vanishes(client: Any, service: MadeService) -> None:
    first = ids(client)["first"]
    headers = {"Authorization": f"Bearer {service.token}"}
    assert client.get(f"/api/submissions/{first}/file").content == b"PK"
    answer = client.delete(f"/api/submissions/{first}", headers=headers)
    assert answer.json() == {"id": first, "state": "withdrawn"}
    for path in (
        f"/submissions/{first}",
        f"/api/submissions/{first}",
        f"/api/submissions/{first}/file",
    ):
        assert client.get(path).status_code == 404
    with opened(service) as other:
        rows = {each["row"] for each in other.get("/api/boards/circuits.json").json()["cells"]}
        assert [row.split(" (")[0] for row in rows] == ["second"]


def test_boards_follow_what_is_done(client: Any, service: MadeService) -> None:
    service.done("third")
    for _ in range(200):
        if "third (" in client.get("/boards/circuits").text:
            break
        import time

        time.sleep(0.05)
    assert "third (" in client.get("/boards/circuits").text


def test_the_page_of_a_submission_says_what_became_of_its_cells(service: MadeService) -> None:
    found = service.queued("mixed", ["truth-ioi", "slow"])
    with opened(service) as client:
        assert "0 of 2" in client.get(f"/submissions/{found.id}").text
        service.work({"truth-ioi": made_records()["truth-ioi eap"].stored_text()})
    with opened(service) as client:
        page = client.get(f"/submissions/{found.id}").text
        assert "It took more than 1 s." in page and "2 of 2" in page and "1 failed" in page
        told = client.get(f"/api/submissions/{found.id}").json()
        assert told["finished"] and told["counts"] == {"done": 1, "failed": 1}


def test_a_record_that_cannot_be_read_is_left_out(service: MadeService) -> None:
    found = service.queued("broken", ["cell"])
    service.work({"cell": "{"})
    service.done("whole")
    with opened(service) as client:
        page = client.get("/").text
        assert found.id in page and "cannot be read" in page
        assert "whole (" in client.get("/boards/circuits").text


def test_a_recomputed_number_has_a_mark(client: Any, service: MadeService) -> None:
    assert "✓" not in client.get("/boards/circuits").text
    cell = client.get("/api/boards/circuits.json").json()["cells"][0]

    def note(agrees: bool) -> None:
        made = Recomputed(submission_id=ids(client)["first"], cell=cell["id"],
                          sha256=cell["sha256"], value=cell["value"], agrees=agrees,
                          by="bob", created=now())  # fmt: skip
        service.db.write(lambda session: session.add(made))

    note(False)
    with opened(service) as other:
        assert "✓" not in other.get("/boards/circuits").text
    note(True)
    with opened(service) as other:
        assert "✓" in other.get("/boards/circuits").text
    service.db.write(lambda session: session.execute(delete(Recomputed)))


def said_of(client: Any, token: str, **changes: Any) -> Any:
    """What the service answers to somebody who computed the first submission's CPR again."""
    [cell] = [
        each
        for each in client.get("/api/boards/circuits.json").json()["cells"]
        if each["row"].startswith("first") and each["place"]["model"] == "truth-ioi"
        if each["column"] == "cpr"
    ]
    told = {"cell": cell["id"], "sha256": cell["sha256"], "value": cell["value"], "agrees": True}
    changed = {key: make(told[key]) for key, make in changes.items()}
    address = f"/api/submissions/{ids(client)['first']}/recomputed"
    headers = {"Authorization": f"Bearer {token}"}
    return client.post(address, json={**told, **changed}, headers=headers)


def test_the_number_decides_whether_a_cell_agrees(client: Any, service: MadeService) -> None:
    before = service.db.read(lambda session: session.query(Recomputed).count())
    forged = said_of(client, new_token(service.db, "eve"), value=lambda value: value + 0.01)
    assert forged.status_code == 201 and forged.json() == {"agrees": False}
    token = new_token(service.db, "bob")
    assert said_of(client, token, value=lambda value: value + 1e-9).json() == {"agrees": True}
    wrong = said_of(client, token, cell=lambda name: name + "x")
    assert wrong.status_code == 404 and "no such record" in wrong.json()["error"]
    assert service.db.read(lambda session: session.query(Recomputed).count()) == before + 2


def test_the_same_again_changes_nothing_and_another_word_waits(
    client: Any, service: MadeService, tmp_path: Path
) -> None:
    token = new_token(service.db, "bob")
    track = ServiceTrack.read(service.settings.track)
    boards = ServedBoards(service.db, service.store, tmp_path / "records", track)
    assert said_of(client, token).status_code == 201
    before = boards.generation()
    assert said_of(client, token).status_code == 201 and boards.generation() == before
    assert said_of(client, token, value=lambda _: 0.0).status_code == 429
    old = now() - timedelta(hours=2)
    service.db.write(lambda session: session.execute(update(Recomputed).values(created=old)))
    assert boards.generation() != before
    aged = boards.generation()
    assert said_of(client, token, value=lambda _: 0.0).json() == {"agrees": False}
    # As many as before, and yet others.
    assert boards.generation()[2] == aged[2] and boards.generation() != aged


def test_what_is_said_without_a_token_or_too_long_is_not_read(
    client: Any, service: MadeService
) -> None:
    address = f"/api/submissions/{ids(client)['first']}/recomputed"
    assert client.post(address, content=b"{").status_code == 401
    headers = {"Authorization": f"Bearer {new_token(service.db, 'bob')}"}
    assert client.post(address, content=b"{", headers=headers).status_code == 400
    answer = client.post(address, content=b" " * 5000, headers=headers)
    assert answer.status_code == 413 and "4,096 bytes" in answer.json()["error"]


def test_without_submissions_there_are_pages(service: MadeService) -> None:
    with opened(service) as client:
        assert "No results yet" in client.get("/").text
        assert "none yet" in client.get("/submissions").text
        assert client.get("/api/health").json() == {"status": "ok"}


def test_while_the_database_is_away_boards_stay(
    client: Any, service: MadeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mechassay.service.database import Database, DatabaseAway

    def away(*_: object) -> None:
        raise DatabaseAway("postgresql://ann:secret@db: does not answer for 5 s.")

    monkeypatch.setattr(Database, "read", away)
    monkeypatch.setattr(Database, "write", away)
    for path in ("/submissions", "/api/health", "/api/submissions"):
        answer = client.get(path)
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert "secret" not in answer.text
    assert sent(client, service.token).status_code == 503
    assert client.get("/boards/circuits").status_code == 200
    monkeypatch.undo()
    assert client.get("/api/health").status_code == 200
    assert sent(client, service.token).status_code == 201


def test_a_full_disk_takes_nothing(
    client: Any, service: MadeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from mechassay.service import uploads
    from mechassay.service.store import Store

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_file", full)
        assert sent(client, service.token).status_code == 507
    with monkeypatch.context() as patch:
        patch.setattr(uploads, "RESERVE", 10**18)
        assert sent(client, service.token).status_code == 507
    assert not any((service.settings.scratch / "uploads").glob("*"))
    assert "mine" not in ids(client)
    assert sent(client, service.token).status_code == 201


def test_an_error_that_nobody_foresaw_is_no_trace(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mechassay.service import app

    def broken(*_: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(app, "list_submissions", broken)
    answer = client.get("/submissions?page=7")
    assert answer.status_code == 500 and "secret detail" not in answer.text
    assert answer.headers["x-frame-options"] == "DENY"


def test_records_of_the_folder_are_those_of_the_store(client: Any, service: MadeService) -> None:
    files = sorted((service.settings.folder / "records").glob("*.json"))
    assert {read_record(file).cell["model"] for file in files} == {"truth-ioi", "truth-induction"}
    assert withdraw(service.db, ids(client)["first"], service.by).state == "withdrawn"
