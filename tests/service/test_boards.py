"""What the boards of the service say of cells, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.stored import StoredBoards
from mechassay.service.boards import ServedBoards
from mechassay.service.tables import Submission
from mechassay.service.track import ServiceTrack
from service_made import MadeService, made_records


def cpr(
    service: MadeService, folder: Path, track: ServiceTrack, beside: StoredBoards | None = None
) -> list[BoardCell]:
    """The cells of CPR on the boards of a service."""
    boards = ServedBoards(service.db, service.store, folder, track, beside=beside)
    found = boards.newer()
    assert found is not None
    return [cell for cell in found.pages.boards["circuits"].cells if cell.column == "cpr"]


def declare(service: MadeService, submission: str, **declared: Any) -> None:
    def work(session: Any) -> None:
        held = session.get(Submission, submission)
        held.declaration = {**held.declaration, **declared}

    service.db.write(work)


def test_declared_test_examples_are_in_sample(tmp_path: Path) -> None:
    service = MadeService.at(tmp_path / "service")
    record = made_records()["truth-ioi eap"]
    track = ServiceTrack.read(service.settings.track)
    train = record.data["train"].hash
    for hashes, said in (
        ([], False),
        ([train], False),
        (["0" * 64, record.data["test"].hash], True),
    ):
        name = f"declares {len(hashes)}"
        declare(service, service.done(name), train_hashes=hashes)
        cells = cpr(service, tmp_path / "records", track)
        [cell] = [each for each in cells if each.row.startswith(name)]
        assert any(text.startswith("In-sample") for text in cell.warnings) == said
        assert cell.warnings[: len(record.warnings)] == list(record.warnings)


def test_a_cell_says_that_the_track_has_changed(tmp_path: Path) -> None:
    service = MadeService.at(tmp_path / "service")
    service.done("first")
    track = ServiceTrack.read(service.settings.track)
    [now] = cpr(service, tmp_path / "records", track)
    assert not any("earlier track" in text for text in now.warnings)
    [later] = cpr(service, tmp_path / "records", track.model_copy(update={"limit": 40, "seed": 1}))
    [said] = [text for text in later.warnings if "earlier track" in text]
    assert "limit 8, now 40" in said and "seed 0, now 1" in said and "dtype" not in said


def test_cells_beside_have_the_public_names_of_models(tmp_path: Path) -> None:
    service = MadeService.at(tmp_path / "service")
    service.done("first")
    track = ServiceTrack.read(service.settings.track)
    models = {"public": track.models["truth-ioi"].model_copy(update={"load": "truth-ioi"})}
    renamed = track.model_copy(update={"models": models})
    [own] = cpr(service, tmp_path / "records", track)
    other = own.model_copy(update={"row": "other", "place": {**own.place, "model": "gpt-5"}})
    beside = StoredBoards(tmp_path, (own.model_copy(update={"row": "seeded"}), other))
    found = {
        cell.row.split(" (")[0]: cell for cell in cpr(service, tmp_path / "own", renamed, beside)
    }
    assert {row: cell.place["model"] for row, cell in found.items()} == {
        "first": "public",
        "seeded": "public",
        "other": "gpt-5",
    }
    # Of one place, rows can be compared.
    assert found["first"].under == found["seeded"].under


def test_the_packaged_track_has_as_many_examples_as_the_seeded_board() -> None:
    makefile = Path(__file__).parents[2] / "Makefile"
    seed = makefile.read_text("utf-8").split("\nseed:")[1].split("\n\n")[0]
    limit = ServiceTrack.read().limit
    assert f"$(SEED_METHODS) --train-limit 40 --limit {limit} -o runs/board/smollm2-135m" in seed


def test_the_packaged_track_has_the_adversarial_settings_of_the_seeded_board() -> None:
    makefile = Path(__file__).parents[2] / "Makefile"
    seed = next(
        line for line in makefile.read_text("utf-8").splitlines() if "adversarial run" in line
    )
    settings = ServiceTrack.read().adversarial
    assert f"--n-clean {settings.n_clean} --n-corrupted {settings.n_corrupted} " in seed
    [(model, [task])] = settings.tasks.items()
    assert f"-m {model} -t {task} " in seed
    circuits = makefile.read_text("utf-8").split("SEED_CIRCUITS := ")[1].split("\n")[0]
    sizes = {word.rpartition("@")[2] for word in circuits.split() if "@" in word}
    assert sizes == {f"{size:g}" for size in settings.sizes}
