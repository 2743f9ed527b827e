"""Submitted circuits on the board of adversarial evaluation."""

from __future__ import annotations

import math
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
from mechassay.leaderboard import BoardsFolder, StoredBoards, board_rules
from mechassay.leaderboard.cells import BoardCell, read_cells
from mechassay.leaderboard.declaration import row_of
from mechassay.leaderboard.evaluate import evaluate, jobs_of
from mechassay.leaderboard.plans import made_on_board
from mechassay.leaderboard.private_split import PrivateSeed
from mechassay.leaderboard.recomputation import compare_records, drawn_cells, recompute_made
from mechassay.leaderboard.submission import read_submission
from mechassay.leaderboard.track import AdversarialTrack, BoardTrack, EvaluatedModel
from mechassay.progress import SILENT
from mechassay.records import Record
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.execute import Here, prepare, run_cells
from mechassay.runs.job import Results
from mechassay.truth.models import load_truth

TRUTH, TRAINED = "truth-ioi", "truth-ioi-trained"
GRAPH = ma.load_model(TRUTH).graph
KNOWN = load_truth(TRUTH).circuits["counterfactual"]
SIZE, SMALL = 0.2, 0.04
"""Shares of the 262 edges: 52, and 10, of which the known circuit has 9."""
PUBLIC = BoardTrack(
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


def jobs(folder: Path, track: BoardTrack, seed: PrivateSeed | None = None) -> list[Any]:
    """The jobs that evaluate the submission in a folder."""
    return [job for _, _, job in jobs_of(read_submission(folder, track), track, seed)]


def run_all(job: Any, folder: Path) -> list[Record]:
    """The records of a job, without its pages."""
    bench = prepare(job, folder, progress=SILENT)
    run_cells(job, job.cells(), bench)
    return Results.stored(job, bench.folder).records


Done = tuple[Path, dict[str, list[Record]]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The results of three submissions: the known circuit, random scores, an empty circuit."""
    folder = tmp_path_factory.mktemp("done")
    records: dict[str, list[Record]] = {}
    for name, held in (
        ("known", known_scores()),
        ("drawn", random_scores()),
        ("nothing", Circuit.empty(GRAPH)),
    ):
        source, results = handed_in(folder / name, name, held), folder / "results" / name
        found = evaluate(source, PUBLIC, results, executor=Here(), progress=SILENT)
        assert found.problems.errors == [] and not found.failures
        records[name] = [record for run in found.results.values() for record in run.records]
    return folder / "results", records


def cells(results: Path, board: str, column: str) -> dict[str, BoardCell]:
    """The cells of a column by their row."""
    held = read_cells(board_rules()[board], results)[0]
    return {cell.row: cell for cell in held if cell.column == column}


@pytest.mark.slow
def test_a_submission_has_records_on_two_boards(done: Done) -> None:
    results, records = done
    for own in records.values():
        assert [each.kind for each in own] == ["faithfulness", "adversarial", "adversarial"]
    assert set(cells(results, "circuits", "cpr")) == set(records)
    means = cells(results, "adversarial", "mean")
    assert set(means) == {f"{name}@{size:g}" for name in records for size in (SIZE, SMALL)}
    assert len({cell.under for cell in means.values()}) == 1
    for row, cell in means.items():
        _, first, second = records[row.split("@")[0]]
        assert cell.value == (first if row.endswith("0.2") else second).value("mean")
        assert cell.place == {"model": TRUTH, "task": TRUTH} and not cell.private
        assert cell.submission == row.split("@")[0] and not cell.command


def test_the_table_of_a_submission_tells_its_sizes_apart(done: Done) -> None:
    lines = (done[0] / "drawn" / "tables.md").read_text().splitlines()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in lines if "mean KL" in line]
    assert sorted(rows) == sorted(f"drawn@{size:g}" for size in (SIZE, SMALL))


def test_rows_of_sizes_that_differ_late_are_two(done: Done) -> None:
    record = done[1]["drawn"][1]

    def row(size: float) -> str:
        args = {**record.method.args, "size": size}
        return row_of("x", record.changed(method=record.method.model_copy(update={"args": args})))

    sizes = (0.01, 0.01234561, 0.01234562)
    assert [row(size) for size in sizes] == ["x@0.01", "x@0.01234561", "x@0.01234562"]
    assert row_of("x", done[1]["drawn"][0]) == "x"


def test_worthless_circuits_have_poor_numbers(
    done: Done,
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
    assert worst["drawn"] > 0.5 * of_empty
    assert any("this is the empty circuit" in text for text in records["nothing"][1].warnings)
    # A few prompts bound no 99th percentile: undefined, and no failure.
    assert math.isnan(records["known"][1].value("bound 99%"))


def test_records_say_what_they_are_of_and_name_no_folder(done: Done, tmp_path: Path) -> None:
    _, records = done
    known, nothing = records["known"][1], records["nothing"][1]
    assert known.method.name == f"a.safetensors@{SIZE}" and known.method.args["size"] == SIZE
    assert known.method.args["edges"] == len(known_scores().top(SIZE, by="magnitude").pruned())
    assert nothing.method.name == f"{TRUTH}_{TRUTH}@{SIZE}"
    assert nothing.method.args["file"] == "a.safetensors"
    for record in (known, nothing):
        assert "/" not in record.model_dump_json(include={"cell", "specs", "tables", "checks"})
        assert {each.split for each in record.data.values()} <= {"", "test"}


@pytest.mark.slow
def test_a_number_is_the_same_again_from_the_board_alone(done: Done, tmp_path: Path) -> None:
    results, records = done
    boards = BoardsFolder.of(results, tmp_path / "board")
    assert boards.keep_artefacts() == ()
    boards.write()
    stored = StoredBoards.read(tmp_path / "board")
    for board, column, row, value in (
        ("adversarial", "p99", f"drawn@{SIZE}", records["drawn"][1].value("99%")),
        ("adversarial", "mean", f"nothing@{SMALL}", records["nothing"][2].value("mean")),
        ("circuits", "cpr", "drawn", records["drawn"][0].value("cpr")),
    ):
        cell = stored.find(board, f"{row}/{TRUTH}/{TRUTH}/{column}")
        made = made_on_board(cell, tmp_path / "board", tmp_path / f"{board} {row}")
        again = recompute_made(cell, made, tmp_path / f"again {board} {row}", progress=SILENT)
        assert again.agrees and again.n > 10 and again.stored == value
        assert math.isclose(again.again, value, rel_tol=1e-6)
    drawn = drawn_cells(stored.cells, 3)
    assert [cell.submission for cell in drawn] == ["drawn", "known", "nothing"]
    assert drawn == drawn_cells(stored.cells, 3)
    assert len({drawn_cells(stored.cells, seed)[0].full_id for seed in range(20)}) > 3


def test_how_equal_worst_pairs_are_ordered_is_not_compared(
    done: Done,
) -> None:
    _, records = done
    record = records["drawn"][1]
    kept = [each for each in record.tables if each.name != "tokens"]
    assert len(kept) == len(record.tables) - 1
    assert compare_records(record, record.changed(tables=kept)).differs == ""
    fewer = [each for each in record.tables if each.name != "summary"]
    assert compare_records(record, record.changed(tables=fewer)).differs == "record.tables"


@pytest.mark.slow
def test_the_largest_circuit_that_fits_is_taken_and_none_that_is_larger(tmp_path: Path) -> None:
    small, fits = known_scores().top(10).pruned(), known_scores().top(40).pruned()
    full = Circuit.full(GRAPH)
    folder = handed_in(tmp_path / "s", "mine", full, small, fits)
    _, job = jobs(folder, PUBLIC)
    large, less = run_all(job, tmp_path / "run")
    assert (large.method.args["file"], large.method.args["edges"]) == ("c.safetensors", len(fits))
    assert len(small) <= SMALL * GRAPH.n_edges < len(fits)
    assert (less.method.args["file"], less.method.args["edges"]) == ("b.safetensors", len(small))
    part = folder / f"{TRUTH}_{TRUTH}"
    assert large.method.args[SCORES_SHA256] == folder_hash(part)
    # A full graph alone stands nowhere as a circuit of a fifth of its edges.
    (part / "b.safetensors").unlink()
    (part / "c.safetensors").unlink()
    _, job = jobs(folder, PUBLIC)
    record = run_all(job, tmp_path / "alone")[0]
    assert record.method.args["edges"] == 0 and record.method.args["file"] == "none is so small"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["importances", "circuits"])
def test_mibs_forms_are_evaluated(form: Any, tmp_path: Path) -> None:
    track = Track({TRUTH: PUBLIC.circuit_model(TRUTH)}, least=1)
    write_submission(tmp_path / "s", {(TRUTH, TRUTH): known_scores()}, form, track=track)
    _, job = jobs(tmp_path / "s", PUBLIC)
    first, second = run_all(job, tmp_path / "run")
    assert first.method.args["edges"] > second.method.args["edges"] > 0
    assert first.value("mean") < 1e-5 and second.value("mean") < 1e-5


def test_jobs_of_a_track_with_and_without_the_board(tmp_path: Path) -> None:
    folder = handed_in(tmp_path / "s", "mine", random_scores())
    random_scores().save(folder / f"{TRAINED}_{TRAINED}" / "a.safetensors")
    private = PUBLIC.model_copy(update={"splits": ("test", "private")})
    seed = PrivateSeed("now", 7)
    made = jobs(folder, private, seed)
    # Both parts on both splits; the one that the settings name also on public prompts of pools.
    worst = [job for job in made if isinstance(job, AdversarialJob)]
    assert len(made) == 5 and len(worst) == 1
    assert worst[0].split == "test" and worst[0].model == TRUTH
    assert (worst[0].n_clean, worst[0].n_corrupted, len(worst[0].circuits)) == (3, 4, 2)
    without = private.model_copy(update={"boards": ("circuits",)})
    assert jobs(folder, without, seed) == [job for job in made if job not in worst]
    everywhere = PUBLIC.model_copy(update={"adversarial": AdversarialTrack()})
    made = jobs(folder, everywhere)
    assert [job.model for job in made if isinstance(job, AdversarialJob)] == [TRAINED, TRUTH]


def test_the_name_of_a_folder_does_not_choose_what_is_evaluated(tmp_path: Path) -> None:
    only = AdversarialTrack(n_clean=3, n_corrupted=4, tasks={TRAINED: (TRAINED,)})
    track = PUBLIC.model_copy(update={"adversarial": only, "limits": {TRAINED: 3}})
    every = list[Any]()
    for task in (TRUTH, TRAINED):
        folder = tmp_path / task
        random_scores().save(folder / f"{task}_{TRAINED}" / "a.safetensors")
        (folder / "submission.yaml").write_text("name: mine\n")
        every.append(jobs(folder, track))
    for first, second in every:
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
        BoardTrack.read(tmp_path / "track.yaml")
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
