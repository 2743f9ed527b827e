"""Cells of a static board computed again from its folder alone.

Files that a static board keeps, by the hash of what they hold.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

import mechassay as ma
from mechassay.circuits.scores import EdgeScores
from mechassay.cli.main import main
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.leaderboard import BoardsFolder, StoredBoards, plans
from mechassay.leaderboard import plans as artefacts
from mechassay.leaderboard.folder import write_recomputation
from mechassay.leaderboard.plans import (
    artefact_file,
    keep_artefact,
    made_on_board,
    plan_file,
    read_plan,
    unpack_artefact,
)
from mechassay.leaderboard.recomputation import Recomputation, is_local, is_path, recompute_made
from mechassay.truth.compiled import compiled_folder
from mechassay.utils.display import SILENT

pytestmark = pytest.mark.guard

CELL = "eap/truth-ioi/truth-ioi/cpr"


def written(runs: Path, folder: Path) -> Path:
    boards = BoardsFolder.of(runs, folder)
    assert boards.keep_artefacts() == ()
    boards.write()
    return folder


@pytest.fixture(scope="module")
def made(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(runs, tmp_path_factory.mktemp("made") / "board")


@pytest.fixture
def board(made: Path, tmp_path: Path) -> Path:
    """A copy of the board; the folder of runs is nowhere near."""
    return Path(shutil.copytree(made, tmp_path / "copy" / "board"))


def again(board: Path, name: str, folder: Path) -> Recomputation:
    cell = StoredBoards.read(board).find(name.split("//")[0], name.split("//")[1])
    found = made_on_board(cell, board, folder / "files")
    return recompute_made(cell, found, folder / "run", progress=SILENT)


def edited(file: Path, change: Callable[[Any], object]) -> None:
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


def plan_of_cell(board: Path) -> Path:
    return plan_file(board, StoredBoards.read(board).find("circuits", CELL).sha256)


def test_a_cell_is_the_same_again_by_the_command_of_its_page(
    board: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(board)
    page = (board / "rows" / "circuits" / "eap.html").read_text()
    cell = StoredBoards.read(board).find("circuits", CELL)
    words = ["leaderboard", "recompute", "circuits", cell.full_id, "--board", "."]
    assert f"mechassay {' '.join(words)}" in page and "from this folder alone" in page
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert "agrees" in capsys.readouterr().out
    [told] = (board / "recomputed").glob("*.json")
    assert Recomputation.model_validate_json(told.read_bytes()).anew is False


def test_a_place_for_recomputations_that_leads_out_is_not_followed(
    board: Path, tmp_path: Path
) -> None:
    told = again(board, f"circuits//{CELL}", tmp_path / "again")
    (tmp_path / "outside").mkdir()
    (board / "recomputed").symlink_to(tmp_path / "outside")
    with pytest.raises(BadFile, match="leads out of the board"):
        write_recomputation(board, told)
    assert not list((tmp_path / "outside").iterdir())
    (board / "recomputed").unlink()
    assert write_recomputation(board, told).is_file()


def test_the_scores_are_those_that_the_method_found(board: Path, tmp_path: Path) -> None:
    cells = StoredBoards.read(board)
    random = cells.find("circuits", "random/truth-ioi/truth-ioi/cpr")
    other = read_plan(board, random.sha256).scores
    edited(plan_of_cell(board), lambda told: told.update(scores=other))
    found = again(board, f"circuits//{CELL}", tmp_path)
    assert not found.agrees and found.largest > 1e-3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": 2.0}, "(value)"),
        ({"low": -1.0}, "(low)"),
        ({"row": "mine"}, "(row)"),
        ({"place": {"model": "smollm2-135m", "task": "ioi"}}, "(place)"),
        ({"n": 1000}, "(n)"),
        ({"controls": {"random": -5.0}}, "(controls)"),
        ({"conditions": {"definition": "x"}}, "(conditions)"),
        ({"failing": ["known"], "settings": "by hand"}, "(failing, settings)"),
        ({"warnings": ["measured by the moon"]}, "(warnings)"),
        ({"row": "mine", "source": "submission mine"}, "(row)"),
    ],
)
def test_a_cell_that_its_record_does_not_have_is_refused(
    board: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    stored = StoredBoards.read(board)
    found = made_on_board(stored.find("circuits", CELL), board, tmp_path / "files")

    def shown(told: Any) -> None:
        for cell in told["cells"]:
            if cell["row"] == "eap" and cell["column"] == "cpr":
                cell.update(change)

    edited(board / "data" / "circuits.json", shown)
    before = [cell.model_dump_json() for cell in stored.cells]
    [cell] = [x for x in StoredBoards.read(board).cells if x.model_dump_json() not in before]
    with pytest.raises(BadFile, match=re.escape(said)):
        recompute_made(cell, found, tmp_path / "run", progress=SILENT)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_scores_of_a_file_are_kept_under_their_name(tmp_path: Path) -> None:
    graph = ma.load_model("truth-ioi").graph
    file = tmp_path / "mine" / "own scores.safetensors"
    values = torch.rand(graph.legal.shape, generator=torch.Generator().manual_seed(0))
    EdgeScores(graph, values).save(file)
    experiment = ma.CircuitsExperiment(
        models=("truth-ioi",), methods=("eap",), scores=(str(file),), train_limit=6, limit=8
    )
    ma.run(experiment, tmp_path / "runs" / "own", progress=SILENT)
    board = written(tmp_path / "runs", tmp_path / "board")
    shutil.rmtree(tmp_path / "mine")
    shutil.rmtree(tmp_path / "runs")
    cells = [cell for cell in StoredBoards.read(board).cells if cell.column == "cpr"]
    kept = {cell.row_in_record: read_plan(board, cell.sha256) for cell in cells}
    assert list(kept["own scores"].files) == ["scores-0/own scores.safetensors"]
    assert not kept["eap"].files and kept["eap"].plan["scores"] == []
    assert str(tmp_path) not in plan_file(board, cells[0].sha256).read_text()
    for number, cell in enumerate(cells):
        found = again(board, f"circuits//{cell.full_id}", tmp_path / str(number))
        assert found.agrees and not found.anew


def test_a_run_on_what_only_its_machine_has_needs_its_folder(tmp_path: Path) -> None:
    model = tmp_path / "own-model"
    shutil.copytree(compiled_folder("truth-ioi"), model)
    experiment = ma.CircuitsExperiment(
        models=(str(model),),
        tasks=("truth-ioi",),
        methods=("random",),
        train_limit=4,
        limit=4,
    )
    ma.run(experiment, tmp_path / "runs" / "own", progress=SILENT)
    boards = BoardsFolder.of(tmp_path / "runs", tmp_path / "board")
    [said] = boards.keep_artefacts()
    assert "which is a path" in said and not (tmp_path / "board" / "plans").exists()
    boards.write()
    [row] = (tmp_path / "board" / "rows" / "circuits").glob("*.html")
    assert "--runs runs" in row.read_text() and "--board" not in row.read_text()
    cell = StoredBoards.read(tmp_path / "board").cells[0]
    with pytest.raises(BadFile, match="its folder of runs is needed|Its folder of runs is needed"):
        made_on_board(cell, tmp_path / "board", tmp_path / "files")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told["plan"].update(models=["/etc"]), "is a path"),
        (lambda told: told["plan"].update(models=["../truth-ioi"]), "is a path"),
        (lambda told: told["plan"].update(tasks=["pairs.jsonl"]), "is a path"),
        (lambda told: told["plan"].update(tasks=["pairs.csv:a=1"]), "is a path"),
        (lambda told: told["plan"].update(objective="~/x"), "is a path"),
        (lambda told: told["plan"].update(objective={"x": 1}), "no plan of a run .objective"),
        (lambda told: told["plan"].update(metrics=[7]), "no plan of a run .metrics"),
        (lambda told: told["plan"].update(limit="abc"), "no plan of a run .limit"),
        (lambda told: told["plan"].update(train_limit=None), "no plan of a run .train_limit"),
        (lambda told: told["plan"].update(other=nested(400)), "no field 'other'"),
        (lambda told: told["plan"].update(metrics=nested(400)), "no plan of a run .metrics"),
        (lambda told: told["plan"].update(private_seed=5), "never stored"),
        (lambda told: told["plan"].update(split="private"), "private examples"),
        (
            lambda told: told.update(files={"s-0/a": "0" * 64, "s-0/a/b": "0" * 64}),
            "is a file, and the folder of another",
        ),
        (
            lambda told: told.update(files={f"s-0/{n}": "0" * 64 for n in range(2001)}),
            "2,001 files",
        ),
        (lambda told: told["plan"].update(scores=["/etc/passwd"]), "none of its files"),
        (lambda told: told["plan"].update(scores=["scores-0/a.pt"]), "none of its files"),
        (lambda told: told["plan"].update(kind="assess"), "no kind of run"),
        (lambda told: told["plan"].update(models=7), "no plan of a run"),
        (lambda told: told.update(files={"../x": "0" * 64}), "no name of a file"),
        (lambda told: told.update(files={"/x": "0" * 64}), "no name of a file"),
        (lambda told: told.update(files={"a/.b": "0" * 64}), "no name of a file"),
        (lambda told: told.update(files={"x": "../../etc"}), "hash is none"),
        (lambda told: told.update(scores="../" + "0" * 61), "hash is none"),
        (lambda told: told.update(scores="0" * 64), "lacks an artefact"),
        (lambda told: told.update(more=1), "no plan of a record"),
        (lambda told: told.update(plan=[]), "no plan of a record"),
    ],
)
def test_a_plan_of_others_reads_nothing_outside_of_the_board(
    board: Path, tmp_path: Path, change: Callable[[Any], object], said: str
) -> None:
    edited(plan_of_cell(board), change)
    with pytest.raises(BadFile, match=said):
        again(board, f"circuits//{CELL}", tmp_path / "again")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("secret", "secret"),
        ("gpt2", "gpt2"),
        ("gpt2", "untrained:gpt2"),
        ("gpt2/rev", "gpt2@rev"),
        ("owner/secret", "owner/secret"),
        ("owner/secret", "untrained:owner/secret"),
        ("owner/secret/rev", "owner/secret@rev"),
        ("owner/secret/rev", "untrained:owner/secret@rev"),
        ("owner/secret@rev", "owner/secret@rev"),
    ],
)
def test_a_model_that_is_a_folder_here_is_not_loaded(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str
) -> None:
    source = compiled_folder("truth-ioi")
    assert not is_path(name) and not is_local(name)
    shutil.copytree(source, tmp_path / "here" / folder)
    edited(plan_of_cell(board), lambda told: told["plan"].update(models=[name]))
    monkeypatch.chdir(tmp_path / "here")
    assert is_local(name)
    with pytest.raises(BadFile, match="folder of this machine|is a path"):
        again(board, f"circuits//{CELL}", tmp_path / "again")


def test_the_files_of_a_plan_are_limited_together(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "big.bin"
    file.write_bytes(bytes(1000))
    digest = keep_artefact(file, board)
    names = {f"scores-0/{n}": digest for n in range(10)}
    edited(plan_of_cell(board), lambda told: told.update(files=names))
    monkeypatch.setattr(plans, "LARGEST", 3500)
    with pytest.raises(BadFile, match="holds more than the 500 bytes"):
        again(board, f"circuits//{CELL}", tmp_path / "again")
    written = [each for each in tmp_path.rglob("given/scores-0/*")]
    assert len(written) == 3


def test_a_plan_that_is_deep_or_large_is_refused_in_one_line(board: Path, tmp_path: Path) -> None:
    for text in ('{"plan":' + '{"a":' * 100_000, '{"plan": "' + " " * 10**7 + '"}'):
        plan_of_cell(board).write_text(text)
        with pytest.raises(BadFile, match="not readable as JSON|more than 10 MB"):
            again(board, f"circuits//{CELL}", tmp_path / "again")


def test_other_cells_and_records_are_refused(board: Path, tmp_path: Path) -> None:
    stored = StoredBoards.read(board)
    with pytest.raises(UnknownName, match="cell"):
        stored.find("circuits", "nobody/x/cpr")
    cell = stored.find("circuits", CELL)
    for about, said in (({"private": True}, "private"), ({"origin": "as reported"}, "reported")):
        with pytest.raises(BadUsage, match=said):
            made_on_board(cell.model_copy(update=about), board, tmp_path / "files")
    with pytest.raises(BadFile, match="has no record"):
        made_on_board(cell.model_copy(update={"sha256": "../x"}), board, tmp_path / "files")
    edited(plan_of_cell(board), lambda told: told.update(cell="truth-ioi/none"))
    with pytest.raises(BadUsage, match="no cell"):
        made_on_board(cell, board, tmp_path / "files")
    record = board / "records" / f"{cell.sha256}.json"
    record.write_text(record.read_text() + " ")
    with pytest.raises(BadFile, match="changed since"):
        made_on_board(cell, board, tmp_path / "files")


CONTENT = b"scores " * 1000


@pytest.fixture
def artefacts_board(tmp_path: Path) -> Path:
    """A board with one artefact."""
    (tmp_path / "found.bin").write_bytes(CONTENT)
    keep_artefact(tmp_path / "found.bin", tmp_path / "board")
    return tmp_path / "board"


DIGEST = sha256(CONTENT).hexdigest()


def test_a_file_comes_out_as_it_went_in_and_is_packed_the_same_again(
    artefacts_board: Path, tmp_path: Path
) -> None:
    packed = artefact_file(artefacts_board, DIGEST)
    assert packed.stat().st_size < len(CONTENT) / 10
    assert unpack_artefact(artefacts_board, DIGEST, tmp_path / "again").read_bytes() == CONTENT
    before = packed.read_bytes()
    packed.unlink()
    (tmp_path / "other name").write_bytes(CONTENT)
    assert keep_artefact(tmp_path / "other name", artefacts_board) == DIGEST
    assert packed.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"something else", mtime=0), "changed since"),
        (b"no archive", "cannot be unpacked"),
        (gzip.compress(CONTENT, mtime=0)[:-20], "cannot be unpacked"),
        (None, "lacks an artefact"),
    ],
)
def test_what_is_not_the_file_is_refused_and_leaves_nothing(
    artefacts_board: Path, tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = artefact_file(artefacts_board, DIGEST)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadFile, match=said):
        unpack_artefact(artefacts_board, DIGEST, tmp_path / "out" / "again")
    assert not list((tmp_path / "out").iterdir())


def test_a_bomb_is_stopped_at_the_limit(
    artefacts_board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefacts, "LARGEST", len(CONTENT) - 1)
    with pytest.raises(BadFile, match="holds more than"):
        unpack_artefact(artefacts_board, DIGEST, tmp_path / "again")


def test_a_link_out_of_the_board_is_not_followed(artefacts_board: Path, tmp_path: Path) -> None:
    file = artefact_file(artefacts_board, DIGEST)
    file.rename(tmp_path / "outside.gz")
    file.symlink_to(tmp_path / "outside.gz")
    with pytest.raises(BadFile, match="leads out of the board"):
        unpack_artefact(artefacts_board, DIGEST, tmp_path / "again")
