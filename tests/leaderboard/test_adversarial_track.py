"""Submitted circuits on the board of adversarial evaluation."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import mechassay as ma
from mechassay.circuits.scores import SCORES_SHA256, Circuit, EdgeScores
from mechassay.circuits.submission import Track, write_submission
from mechassay.cli.main import main
from mechassay.errors import BadFile, BadUsage
from mechassay.files import folder_hash
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.recomputation import compare_records
from mechassay.progress import SILENT
from mechassay.records import Record
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.circuits import CircuitsJob
from mechassay.runs.execute import prepare, run_cells
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import Results, cell_name
from mechassay.service.adversarial import AdversarialTrack, row_ending
from mechassay.service.app import create_app
from mechassay.leaderboard.archive import pack
from mechassay.service.boards import BoardsSnapshot, ServedBoards
from mechassay.leaderboard.submission import read_submission
from mechassay.service.cell import CellOrders, CheckedCell, check, named, run_cell
from mechassay.service.checks import checked, claim_check
from mechassay.service.queue import claim, finish
from mechassay.service.recomputing import fetch_cell, recompute_served
from mechassay.leaderboard.track import EvaluatedModel, Track
from mechassay.service.work import Outcome, PlannedEvaluation
from mechassay.text import interval
from mechassay.truth.models import load_truth
from service_made import WORKER, Asked, MadeService

testclient = pytest.importorskip("starlette.testclient")

TRUTH, TRAINED = "truth-ioi", "truth-ioi-trained"
GRAPH = ma.load_model(TRUTH).graph
KNOWN = load_truth(TRUTH).circuits["counterfactual"]
SIZE, SMALL = 0.2, 0.04
"""Shares of the 262 edges: 52, and 10, of which the known circuit has 9."""
PUBLIC = Track(
    boards=("circuits", "adversarial"),
    models={TRUTH: EvaluatedModel(tasks=(TRUTH,)), TRAINED: EvaluatedModel(tasks=(TRAINED,))},
    limit=4,
    adversarial=AdversarialTrack(
        n_clean=3, n_corrupted=4, sizes=(SIZE, SMALL), tasks={TRUTH: (TRUTH,)}
    ),
)


def known_scores() -> EdgeScores:
    """Scores that rank the known circuit above all else."""
    noise = torch.rand(GRAPH.legal.shape, generator=torch.Generator().manual_seed(1))
    return EdgeScores(GRAPH, KNOWN.edges.float() + 0.1 * noise)


def random_scores() -> EdgeScores:
    return EdgeScores(
        GRAPH, torch.rand(GRAPH.legal.shape, generator=torch.Generator().manual_seed(0))
    )


def handed_in(folder: Path, name: str, *held: EdgeScores | Circuit) -> Path:
    """The folder of a submission: of scores, or of circuits in files a, b, ..."""
    part = folder / f"{TRUTH}_{TRUTH}"
    for letter, each in zip("abc", held, strict=False):
        each.save(part / f"{letter}.safetensors")
    (folder / "submission.yaml").write_text(f"name: {name}\n")
    return folder


def evaluated(service: MadeService, folder: Path) -> list[Record]:
    """The records of a submission, made as a worker makes them, and put on the service."""
    file, name = pack(folder, folder.with_suffix(".zip")), folder.name
    work = folder.parent / f"{name}-work"
    work.mkdir()
    file.rename(work / "upload")
    orders = CellOrders(track=Track.read(service.settings.track))
    told = check(work, orders)
    assert not [each for each in told.problems if not each.warning]
    service.received(name, (work / "upload").read_bytes())
    held = claim_check(service.db, WORKER, 60.0)
    assert held is not None
    plan = [PlannedEvaluation(each.job, each.cell, each.split, each.called) for each in told.cells]
    assert checked(service.db, held, WORKER, [], plan, kind=told.kind)
    records: list[Record] = []
    while (each := claim(service.db, WORKER, 60.0)) is not None:
        run_cell(work, each.job, each.cell, orders)
        run = RunFolder(work / "jobs" / str(each.job))
        record = run.record(each.cell)
        assert record is not None
        records.append(record)
        key = f"records/{each.id}.json"
        service.store.put_file(key, run.record_file(each.cell))
        assert finish(service.db, each, WORKER, Outcome("done", None, key, 1.0))
    return records


def run_all(job: Any, folder: Path) -> list[Record]:
    """The records of a job, without its pages."""
    bench = prepare(job, folder, progress=SILENT)
    run_cells(job, job.cells(), bench)
    return Results.stored(job, bench.folder).records


def at(folder: Path, track: Track = PUBLIC) -> MadeService:
    """A service of a track."""
    service = MadeService.at(folder / "service")
    assert service.settings.track is not None
    service.settings.track.write_text(yaml.safe_dump(track.model_dump(mode="json")))
    return service


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[MadeService, dict[str, list[Record]]]:
    """Three submissions that are done: the known circuit, random scores, an empty circuit."""
    folder = tmp_path_factory.mktemp("done")
    service = at(folder)
    found = {
        "known": evaluated(service, handed_in(folder / "known", "known", known_scores())),
        "random": evaluated(service, handed_in(folder / "random", "random", random_scores())),
        "nothing": evaluated(
            service, handed_in(folder / "nothing", "nothing", Circuit.empty(GRAPH))
        ),
    }
    return service, found


def snapshot(service: MadeService, folder: Path, track: Track = PUBLIC) -> BoardsSnapshot:
    found = ServedBoards(service.db, service.store, folder, track, "http://x").newer()
    assert found is not None
    return found


def cells(found: BoardsSnapshot, board: str, column: str) -> dict[str, BoardCell]:
    """The cells of a column by the name of the submission, with the size where a row has it."""
    held = found.pages.boards[board].cells
    return {cell.row.split(" (")[0]: cell for cell in held if cell.column == column}


def test_a_submission_has_records_on_two_boards(
    done: tuple[MadeService, dict[str, list[Record]]], tmp_path: Path
) -> None:
    service, records = done
    for found in records.values():
        assert [each.kind for each in found] == ["faithfulness", "adversarial", "adversarial"]
    boards = snapshot(service, tmp_path)
    assert set(cells(boards, "circuits", "cpr")) == set(records)
    means = cells(boards, "adversarial", "mean")
    assert set(means) == {f"{name}@{size:g}" for name in records for size in (SIZE, SMALL)}
    assert len({cell.under for cell in means.values()}) == 1
    for row, cell in means.items():
        _, first, second = records[row.split("@")[0]]
        assert cell.value == (first if row.endswith("0.2") else second).value("mean")
        assert cell.place == {"model": TRUTH, "task": TRUTH} and not cell.private
        assert boards.submissions[cell.row] == cell.source.removeprefix("submission ")


def test_rows_of_sizes_that_differ_late_are_two(
    done: tuple[MadeService, dict[str, list[Record]]],
) -> None:
    record = done[1]["random"][1]

    def ending(size: float) -> str:
        args = {**record.method.args, "size": size}
        method = record.method.model_copy(update={"args": args})
        return row_ending(record.changed(method=method))

    sizes = (0.01, 0.01234561, 0.01234562)
    assert [ending(size) for size in sizes] == ["@0.01", "@0.01234561", "@0.01234562"]
    assert row_ending(done[1]["random"][0]) == ""


def test_worthless_circuits_have_poor_numbers(
    done: tuple[MadeService, dict[str, list[Record]]],
) -> None:
    _, records = done
    worst = {name: found[1].value("mean") for name, found in records.items()}
    summary = records["nothing"][1].table("summary").rows()
    of_empty = next(
        row["value"]
        for row in summary
        if (row["of"], row["statistic"]) == ("control:empty", "mean")
    )
    assert worst["known"] < 0.1 * of_empty
    assert math.isclose(worst["nothing"], of_empty, rel_tol=1e-6)
    assert worst["random"] > 0.5 * of_empty
    assert any("this is the empty circuit" in text for text in records["nothing"][1].warnings)
    # A few prompts bound no 99th percentile: undefined, and no failure.
    assert math.isnan(records["known"][1].value("bound 99%"))


def test_records_say_what_they_are_of_and_name_no_folder(
    done: tuple[MadeService, dict[str, list[Record]]], tmp_path: Path
) -> None:
    _, records = done
    known, nothing = records["known"][1], records["nothing"][1]
    assert known.method.name == f"a.safetensors@{SIZE}" and known.method.args["size"] == SIZE
    assert known.method.args["edges"] == len(known_scores().top(SIZE, by="magnitude").pruned())
    assert nothing.method.name == f"{TRUTH}_{TRUTH}@{SIZE}"
    assert nothing.method.args["file"] == "a.safetensors"
    for record in (known, nothing):
        assert "/" not in record.model_dump_json(include={"cell", "specs", "tables", "checks"})
        assert {each.split for each in record.data.values()} <= {"", "test"}


def test_the_page_of_a_submission_shows_both(
    done: tuple[MadeService, dict[str, list[Record]]],
) -> None:
    service, records = done
    with testclient.TestClient(create_app(service.settings, "http://x")) as client:
        [one] = [
            each
            for each in client.get("/api/submissions").json()["submissions"]
            if each["name"] == "random"
        ]
        page = client.get(f"/submissions/{one['id']}").text
        told = client.get(f"/api/submissions/{one['id']}").json()["evaluations"]
        board = client.get("/boards/adversarial").text
        name = cell_name(f"random@{SIZE} (submission {one['id'][:6]})")
        row = client.get(f"/boards/adversarial/rows/{name}")
    assert "mean KL" in page and "CPR" in page
    # What status says is what the page says, and no two cells have one name.
    known_as = [each["cell"] for each in told]
    place = f"{TRUTH}/{TRUTH}"
    assert known_as == [place, f"{place}@{SIZE}", f"{place}@{SMALL}"]
    heads = re.findall(r'<th scope="row">([^<]+)</th>', page)
    assert [each for each in heads if place in each] == known_as
    for record in records["random"][1:]:
        mean = record.measure("mean")
        assert mean is not None and interval(mean.value, mean.low, mean.high) in page
    assert "recompute circuits CELL" in page and "recompute adversarial CELL" in page
    assert f"random@0.04 (submission {one['id'][:6]})" in page and "Worst case" in page
    assert f"random@0.2 (submission {one['id'][:6]})" in board
    assert row.status_code == 200 and "recompute adversarial" in row.text
    assert f"/boards/adversarial/rows/{name}".replace(" ", "%20") in page.replace(" ", "%20")


def test_cells_of_one_place_have_names_of_their_own() -> None:
    cells = [
        CheckedCell(job=0, cell="m--t/x--das", called="m/t/x"),
        CheckedCell(job=0, cell="m--t/x--pca", called="m/t/x"),
        CheckedCell(job=1, cell="m--t/x--das", called="m/t/x", split="private"),
    ]
    assert [each.called for each in named(cells)] == [
        "m/t/x (m--t/x--das)",
        "m/t/x (m--t/x--pca)",
        "m/t/x",
    ]


def test_a_number_is_the_same_again_elsewhere(
    done: tuple[MadeService, dict[str, list[Record]]], tmp_path: Path
) -> None:
    service, records = done
    with testclient.TestClient(create_app(service.settings, "http://x")) as client:
        asked = Asked("http://127.0.0.1").use(client)
        rows = {
            each["name"]: each["id"][:6]
            for each in client.get("/api/submissions").json()["submissions"]
        }
        for board, column, name, size, number in (
            ("adversarial", "p99", "random", f"@{SIZE}", records["random"][1].value("99%")),
            ("adversarial", "mean", "nothing", f"@{SMALL}", records["nothing"][2].value("mean")),
            ("circuits", "cpr", "random", "", records["random"][0].value("cpr")),
        ):
            row = f"{name}{size} (submission {rows[name]})"
            folder = tmp_path / f"{board}-{name}"
            served = fetch_cell(asked, board, f"{row}/{TRUTH}/{TRUTH}/{column}", folder)
            told = recompute_served(served, folder, progress=SILENT)
            assert told.agrees and told.n > 10 and told.stored == number
            assert math.isclose(told.again, number, rel_tol=1e-6)


def test_how_equal_worst_pairs_are_ordered_is_not_compared(
    done: tuple[MadeService, dict[str, list[Record]]],
) -> None:
    _, records = done
    record = records["random"][1]
    kept = [each for each in record.tables if each.name != "tokens"]
    assert len(kept) == len(record.tables) - 1
    assert compare_records(record, record.changed(tables=kept)).differs == ""
    fewer = [each for each in record.tables if each.name != "summary"]
    assert compare_records(record, record.changed(tables=fewer)).differs == "record.tables"


def test_a_cell_says_that_the_tracks_prompts_have_changed(
    done: tuple[MadeService, dict[str, list[Record]]], tmp_path: Path
) -> None:
    service, _ = done
    more = PUBLIC.adversarial.model_copy(update={"n_clean": 30})
    later = PUBLIC.model_copy(update={"adversarial": more})
    for track, said in ((PUBLIC, False), (later, True)):
        cell = cells(snapshot(service, tmp_path, track), "adversarial", "mean")[f"known@{SIZE}"]
        assert any("n_clean 3, now 30" in text for text in cell.warnings) == said


def test_the_largest_circuit_that_fits_is_taken_and_none_that_is_larger(tmp_path: Path) -> None:
    small, fits = known_scores().top(10).pruned(), known_scores().top(40).pruned()
    full = Circuit.full(GRAPH)
    folder = handed_in(tmp_path / "s", "mine", full, small, fits)
    _, job = read_submission(folder, PUBLIC).jobs(PUBLIC)
    large, less = run_all(job, tmp_path / "run")
    assert (large.method.args["file"], large.method.args["edges"]) == ("c.safetensors", len(fits))
    assert len(small) <= SMALL * GRAPH.n_edges < len(fits)
    assert (less.method.args["file"], less.method.args["edges"]) == ("b.safetensors", len(small))
    part = folder / f"{TRUTH}_{TRUTH}"
    assert large.method.args[SCORES_SHA256] == folder_hash(part)
    # A full graph alone stands nowhere as a circuit of a fifth of its edges.
    (part / "b.safetensors").unlink()
    (part / "c.safetensors").unlink()
    _, job = read_submission(folder, PUBLIC).jobs(PUBLIC)
    record = run_all(job, tmp_path / "alone")[0]
    assert record.method.args["edges"] == 0 and record.method.args["file"] == "none is so small"


@pytest.mark.parametrize("form", ["importances", "circuits"])
def test_mibs_forms_are_evaluated(form: Any, tmp_path: Path) -> None:
    track = Track({TRUTH: PUBLIC.circuit_model(TRUTH)}, least=1)
    write_submission(tmp_path / "s", {(TRUTH, TRUTH): known_scores()}, form, track=track)
    _, job = read_submission(tmp_path / "s", PUBLIC).jobs(PUBLIC)
    first, second = run_all(job, tmp_path / "run")
    assert first.method.args["edges"] > second.method.args["edges"] > 0
    assert first.value("mean") < 1e-5 and second.value("mean") < 1e-5


def test_jobs_of_a_track_with_and_without_the_board(tmp_path: Path) -> None:
    folder = handed_in(tmp_path / "s", "mine", random_scores())
    random_scores().save(folder / f"{TRAINED}_{TRAINED}" / "a.safetensors")
    private = PUBLIC.model_copy(update={"splits": ("test", "private")})
    jobs = read_submission(folder, private).jobs(private, 7)
    # Both parts on both splits as ever; then the one that the settings name, on public prompts.
    assert [type(job) for job in jobs] == [CircuitsJob] * 4 + [AdversarialJob]
    assert jobs[4].split == "test" and jobs[4].model == TRUTH
    assert (jobs[4].n_clean, jobs[4].n_corrupted, len(jobs[4].circuits)) == (3, 4, 2)
    without = private.model_copy(update={"boards": ("circuits",)})
    assert read_submission(folder, without).jobs(without, 7) == jobs[:4]
    everywhere = PUBLIC.model_copy(update={"adversarial": AdversarialTrack()})
    jobs = read_submission(folder, everywhere).jobs(everywhere)
    assert [job.model for job in jobs if isinstance(job, AdversarialJob)] == [TRAINED, TRUTH]


def test_the_name_of_a_folder_does_not_choose_what_is_evaluated(tmp_path: Path) -> None:
    only = AdversarialTrack(n_clean=3, n_corrupted=4, tasks={TRAINED: (TRAINED,)})
    track = PUBLIC.model_copy(update={"adversarial": only, "limits": {TRAINED: 3}})
    jobs = list[Any]()
    for task in (TRUTH, TRAINED):
        folder = tmp_path / task
        random_scores().save(folder / f"{task}_{TRAINED}" / "a.safetensors")
        (folder / "submission.yaml").write_text("name: mine\n")
        jobs.append(read_submission(folder, track).jobs(track))
    for first, second in jobs:
        assert (first.models, first.tasks, first.test_limit) == ((TRAINED,), (), 3)
        assert isinstance(second, AdversarialJob) and second.task == TRAINED
    # Both at once are two of the same.
    (tmp_path / TRUTH / f"{TRUTH}_{TRAINED}").rename(tmp_path / TRAINED / f"{TRUTH}_{TRAINED}")
    (problem,) = read_submission(tmp_path / TRAINED, track).problems.errors
    assert problem.message.startswith(f"a second one for {TRAINED} on {TRAINED}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("boards: [adversarial, variables]", "name the board circuits too"),
        ("adversarial: {sizes: [0.1, 0.1]}", "a size is named twice"),
        ("adversarial: {sizes: [1.0]}", "less than 1"),
        ("adversarial: {sizes: []}", "sizes"),
        ("adversarial: {n_clean: 0}", "n_clean"),
        ("adversarial: {tasks: {gpt2: [ioi]}}", "the track does not have gpt2, ioi"),
        ("adversarial: {tasks: {a: [mcqa]}}", "the track does not have a, mcqa"),
    ],
)
def test_settings_that_are_none(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "track.yaml").write_text(f"models: {{a: {{tasks: [ioi]}}}}\n{text}\n")
    with pytest.raises(BadFile, match=said) as error:
        Track.read(tmp_path / "track.yaml")
    assert "\n" not in str(error.value)


def test_the_command_says_what_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "track.yaml").write_text(yaml.safe_dump(PUBLIC.model_dump(mode="json")))

    def told(folder: Path) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(["leaderboard", "validate", "--track", str(tmp_path / "track.yaml"), str(folder)])
        assert not stopped.value.code
        return capsys.readouterr().out

    out = told(handed_in(tmp_path / "scores", "mine", random_scores()))
    assert "adversarial at 20 % of the edges: 3 x 4 pairs of prompts, public" in out
    fits = known_scores().top(30).pruned()
    out = told(handed_in(tmp_path / "circuits", "mine", Circuit.full(GRAPH), fits))
    assert f"20 % of the edges (b.safetensors, {len(fits):,} edges)" in out
    assert "4 % of the edges (none is so small)" in out


def test_private_prompts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="split"):
        ma.run(
            AdversarialJob(TRUTH, TRUTH, ("empty",), n_clean=2, split="private"),
            tmp_path / "run",
            progress=SILENT,
        )
