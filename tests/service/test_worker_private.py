"""Workers and private examples: their seed leaves no trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import mechassay as ma
from mechassay.service.cell import (
    CellOrders,
    check,
    run_cell,
    without_hashes,
)
from mechassay.service.track import ServiceTrack
from mechassay.service.worker import ServiceWorker, WorkerOptions
from small_service import (
    OLD_SEED,
    SEED,
    Served,
    circuits_archive,
    ended,
    variables_archive,
)

OPTIONS = WorkerOptions(threads=1)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, str, str, str]:
    """A service with private examples whose worker has ended: submissions, and all it has said."""
    folder = tmp_path_factory.mktemp("private")
    served = Served.at(folder / "service", splits="test, private")
    first = served.submit(circuits_archive(folder / "circuits.zip"))
    second = served.submit(variables_archive(folder / "variables.zip"))
    said = ended(served.start("30"))
    return served, first, second, said


@pytest.mark.slow
def test_every_cell_of_a_submission_ends_in_a_record(
    private: tuple[Served, str, str, str], tmp_path: Path
) -> None:
    served, first, second, _ = private
    for submission, kind in ((first, "circuits"), (second, "variables")):
        found = served.submission(submission)
        assert (found.state, found.kind, found.name) == ("done", kind, "mine")
        cells = served.evaluations(submission)
        assert [(each.split, each.state, each.attempts) for each in cells] == [
            ("test", "done", 1),
            ("private", "done", 1),
        ]
        assert all(each.seconds and each.message is None for each in cells)
    assert len(served.store.keys("records")) == 4
    (record, hidden) = served.records(second, tmp_path)
    assert record.kind == hidden.kind == "variables"
    accuracy = record.measure("iia")
    assert accuracy is not None and accuracy.value == 1.0


@pytest.mark.slow
def test_the_private_seed_is_nowhere(private: tuple[Served, str, str, str]) -> None:
    """Neither in the store, the database, the scratch folder, nor in what was logged."""
    served, _, _, said = private
    traces = [form for seed in (SEED, OLD_SEED) for form in forms_of(seed)]
    files = [file for file in served.settings.folder.rglob("*") if file.is_file()]
    assert any(file.suffix == ".sqlite" for file in files) and len(files) > 5
    for file in files:
        held = file.read_bytes()
        assert not any(trace in held for trace in traces), file
    assert "evaluation" in said and not any(trace in said.encode() for trace in traces)


ORDERS_OF = ("little", "big")


def forms_of(seed: int) -> list[bytes]:
    """A seed as text, in hex, and as eight bytes."""
    return [str(seed).encode(), f"{seed:x}".encode(), *(seed.to_bytes(8, x) for x in ORDERS_OF)]


def test_the_private_seed_is_not_in_the_folder_that_a_cell_is_done_in(tmp_path: Path) -> None:
    """The folder is removed when a worker ends, so it is looked at before."""
    served = Served.at(tmp_path / "service", splits="test, private")
    orders = CellOrders(track=ServiceTrack.read(served.settings.track), seed=SEED, epoch="2026-11")
    folder = tmp_path / "work"
    folder.mkdir()
    circuits_archive(tmp_path / "one.zip").rename(folder / "upload")
    cells = check(folder, orders).cells
    run_cell(folder, cells[1].job, cells[1].cell, orders)
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert any("records" in file.parts for file in files) and len(files) > 5
    for file in files:
        assert not any(trace in file.read_bytes() for trace in forms_of(SEED)), file


@pytest.mark.slow
def test_private_records_name_their_epoch_and_hold_no_hash_of_their_examples(
    private: tuple[Served, str, str, str], tmp_path: Path
) -> None:
    served, first, _, _ = private
    public, hidden = served.records(first, tmp_path)
    assert hidden.task.args["epoch"] == "2026-11" and "epoch" not in public.task.args
    model = ma.load_model("truth-ioi")
    pairs = ma.load_task("truth-ioi").pairs("private", model, limit=6, private_seed=SEED)
    plain = str(pairs.selection()["hash"])
    assert plain not in hidden.model_dump_json()
    assert hidden.data["test"].hash == hidden.provenance.data_hash != plain
    assert hidden.data["test"].split == "private" and hidden.data["test"].first is None
    # Done again, as by a second attempt, it stays as it is.
    assert without_hashes(hidden, SEED, "2026-11") == hidden


def test_without_a_seed_private_examples_are_not_planned(tmp_path: Path) -> None:
    served = Served.at(tmp_path / "service", splits="test, private")
    submission = served.submit(variables_archive(tmp_path / "one.zip"))
    worker = ServiceWorker(replace(served.settings, private_seed_file=None), OPTIONS)
    assert worker.step()
    assert [each.split for each in served.evaluations(submission)] == ["test"]
