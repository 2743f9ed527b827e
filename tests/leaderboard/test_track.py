"""The track: what a board evaluates, read from a file.

Submitted circuits on the board of adversarial evaluation.

What submitters say of their submissions: its form is checked, and nothing else.

A folder that names a commit of the hub: the files are there.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import mechassay as ma
from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.mib_submission import MIB, Track, write_submission
from mechassay.circuits.scores import SCORES_SHA256, EdgeScores
from mechassay.cli.main import main
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.gym import load_gym_task
from mechassay.interventions.site import ModelShape
from mechassay.leaderboard import BoardsFolder, StoredBoards
from mechassay.leaderboard.cells import BoardCell, read_cells
from mechassay.leaderboard.evaluate import PrivateSeed, evaluate, experiments_of
from mechassay.leaderboard.plans import made_on_board
from mechassay.leaderboard.recomputation import compare_records, drawn_cells, recompute_made
from mechassay.leaderboard.rules import board_rules
from mechassay.leaderboard.submission import open_submission, read_submission
from mechassay.leaderboard.track import (
    LARGEST,
    AdversarialTrack,
    BoardTrack,
    Declaration,
    EvaluatedModel,
    ModelSizes,
    UploadLimits,
    row_of,
)
from mechassay.models.sources import gym_model_names, truth_names
from mechassay.models.weight_files import packaged_names
from mechassay.results.records import Record
from mechassay.runs.executors import Here, measure_cells
from mechassay.runs.run import opened, read_report
from mechassay.tasks import load_task
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT
from mechassay.utils.files import folder_hash
from mechassay.variables.mib_format import MIB_BOARD

TRACK = BoardTrack(
    models={
        "small": EvaluatedModel(
            load="truth-ioi", tasks=("truth-ioi",), mib_class="GPT2LMHeadModel"
        ),
        "wide": EvaluatedModel(
            tasks=("ioi", "mcqa"),
            shape=ModelSizes(n_layers=2, n_heads=3, d_model=12, d_head=4),
        ),
    },
    limits={"mcqa": 50},
)


def test_the_packaged_track_has_models_and_tasks_that_there_are() -> None:
    track = BoardTrack.read()
    assert set(track.models) <= {*packaged_names(), *truth_names(), *gym_model_names()}
    for about in track.models.values():
        for task in about.tasks:
            assert load_task(task).sizes["test"] >= track.examples_of(task)
        for task in about.gym:
            assert load_gym_task(task).sizes["validation"] >= track.examples_of(task)
    assert track.boards == ("circuits", "variables", "gym", "adversarial")
    assert track.splits == ("test",)


@pytest.mark.real
@pytest.mark.parametrize(
    "name", ["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)]
)
def test_the_packaged_tracks_shapes_are_those_of_the_models(name: str) -> None:
    assert BoardTrack.read().shape(name) == ModelShape.of(ma.load_model(name))


def test_a_track_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "track.yaml"
    file.write_text(yaml.safe_dump(TRACK.model_dump(mode="json")))
    assert BoardTrack.read(file) == TRACK


def test_shapes_are_written_or_those_of_the_loaded_model() -> None:
    assert TRACK.shape("small") == ModelShape.of(ma.load_model("truth-ioi"))
    assert TRACK.shape("wide").d_model == 12 and TRACK.shape("wide").graph.n_heads == 3
    assert TRACK.public_name("truth-ioi") == "small" == TRACK.public_name("small")
    assert TRACK.loaded_from("small") == "truth-ioi" and TRACK.loaded_from("wide") == "wide"
    assert TRACK.examples_of("mcqa") == 50 and TRACK.examples_of("ioi") == 100


def test_what_the_track_does_not_evaluate() -> None:
    assert TRACK.public_task("wide", "mcqa") == "mcqa"
    with pytest.raises(UnknownName, match="Did you mean 'small'"):
        TRACK.public_task("smal", "mcqa")
    with pytest.raises(UnknownName, match="task of the track 'mcq'. Did you mean 'mcqa'"):
        TRACK.public_task("wide", "mcq")
    with pytest.raises(BadUsage, match="does not evaluate small on mcqa; it does truth-ioi"):
        TRACK.public_task("small", "mcqa")


def test_a_trained_truths_task_has_one_name_however_it_is_typed() -> None:
    name = "truth-ioi-trained"
    track = BoardTrack(models={name: EvaluatedModel(tasks=(name,))})
    assert {track.public_task(name, typed) for typed in (name, "truth-ioi")} == {name}
    # A track that calls it by its own name keeps that one.
    track = BoardTrack(models={name: EvaluatedModel(tasks=("truth-ioi",))})
    assert track.public_task(name, "truth-ioi") == "truth-ioi"


def test_gym_tasks_are_tasks_of_their_own() -> None:
    track = BoardTrack(
        models={**TRACK.models, "gym-neox": EvaluatedModel(gym=("agr_gender", "cleft"))}
    )
    track.check_gym("gym-neox", "agr_gender")
    with pytest.raises(UnknownName, match="Did you mean 'cleft'"):
        track.check_gym("gym-neox", "clef")
    with pytest.raises(BadUsage, match="does not evaluate wide on cleft; it does none"):
        track.check_gym("wide", "cleft")
    with pytest.raises(UnknownName, match="task of the track 'cleft'"):
        track.public_task("gym-neox", "cleft")
    with pytest.raises(BadUsage, match="does not evaluate gym-neox on mcqa; it does none"):
        track.public_task("gym-neox", "mcqa")


def test_mibs_causal_folders_are_of_the_tracks_models() -> None:
    wide = TRACK.models["wide"].model_copy(update={"mib_class": "LlamaForCausalLM"})
    board = BoardTrack(models={**TRACK.models, "wide": wide}).causal_board()
    assert board.models["LlamaForCausalLM"].name == "wide"
    assert board.parsed("4_answer_MCQA_LlamaForCausalLM_answer") == (
        "4_answer_MCQA",
        "LlamaForCausalLM",
        "answer",
    )
    with pytest.raises(BadUsage, match="does not evaluate GPT2LMHeadModel on ioi_task"):
        board.parsed("ioi_task_GPT2LMHeadModel_output_token")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {}", "models"),
        ("models: {A_b: {tasks: [ioi]}}", "is no public name"),
        ("models: {a: {tasks: []}}", "models.a: .*a model needs tasks, or gym tasks"),
        ("models: {a: {tasks: [ioi]}}\nlimit: 0", "limit"),
        ("models: {a: {tasks: [ioi]}}\nboards: [all]", "boards"),
        ("models: {a: {tasks: [ioi]}, b: {tasks: [ioi]}}\nmore: 1", "more"),
        (
            "models: {a: {tasks: [ioi], mib_class: X}, b: {tasks: [ioi], mib_class: X}}",
            "two models have the class X",
        ),
        ("models: [", "not a readable track"),
        ("- a", "not a track"),
        ("models: {a: {gym: [cleft]}}\ngym_k: 0", "gym_k"),
        ("models: {a: {}}", "a model needs tasks, or gym tasks"),
        ("models: {a: {gym: [../x]}}", "no name of a gym task"),
    ],
)
def test_what_is_no_track(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "track.yaml").write_text(text)
    with pytest.raises(BadFile, match=said) as error:
        BoardTrack.read(tmp_path / "track.yaml")
    assert "\n" not in str(error.value)


def test_a_track_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="not a readable track"):
        BoardTrack.read(tmp_path / "none.yaml")


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


def experiments(folder: Path, track: BoardTrack, seed: PrivateSeed | None = None) -> list[Any]:
    """The experiments that evaluate the submission in a folder."""
    return [
        experiment
        for _, _, experiment in experiments_of(read_submission(folder, track), track, seed)
    ]


def run_all(experiment: Any, folder: Path) -> list[Record]:
    """The records of an experiment, without its pages."""
    worker = opened(experiment, folder, progress=SILENT)
    measure_cells(experiment, experiment.cells(), worker)
    return read_report(worker.folder, experiment.cells()).records


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
        with pytest.MonkeyPatch.context() as patch:
            if name != "drawn":  # One has pages.
                for kind in (CircuitsExperiment, AdversarialExperiment):
                    patch.setattr(kind, "write", lambda *_: Path())
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
        assert [each.kind for each in own] == ["circuits", "adversarial", "adversarial"]
    assert set(cells(results, "circuits", "cpr")) == set(records)
    means = cells(results, "adversarial", "mean")
    assert set(means) == {f"{name}@{size:g}" for name in records for size in (SIZE, SMALL)}
    assert len({cell.under for cell in means.values()}) == 1
    for row, cell in means.items():
        _, first, second = records[row.split("@")[0]]
        assert cell.value == (first if row.endswith("0.2") else second).value("mean")
        assert cell.place == {"model": TRUTH, "task": TRUTH} and not cell.private
        assert cell.submission == row.split("@")[0] and not cell.command


@pytest.mark.guard
def test_the_table_of_a_submission_tells_its_sizes_apart(done: Done) -> None:
    lines = (done[0] / "drawn" / "tables.md").read_text().splitlines()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in lines if "mean KL" in line]
    assert sorted(rows) == sorted(f"drawn@{size:g}" for size in (SIZE, SMALL))


@pytest.mark.guard
def test_rows_of_sizes_that_differ_late_are_two(done: Done) -> None:
    record = done[1]["drawn"][1]

    def row(size: float) -> str:
        args = {**record.method.args, "size": size}
        return row_of("x", record.changed(method=record.method.model_copy(update={"args": args})))

    sizes = (0.01, 0.01234561, 0.01234562)
    assert [row(size) for size in sizes] == ["x@0.01", "x@0.01234561", "x@0.01234562"]
    assert row_of("x", done[1]["drawn"][0]) == "x"


@pytest.mark.guard
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


@pytest.mark.guard
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


@pytest.mark.guard
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
    _, experiment = experiments(folder, PUBLIC)
    large, less = run_all(experiment, tmp_path / "run")
    assert (large.method.args["file"], large.method.args["edges"]) == ("c.safetensors", len(fits))
    assert len(small) <= SMALL * GRAPH.n_edges < len(fits)
    assert (less.method.args["file"], less.method.args["edges"]) == ("b.safetensors", len(small))
    part = folder / f"{TRUTH}_{TRUTH}"
    assert large.method.args[SCORES_SHA256] == folder_hash(part)
    # A full graph alone stands nowhere as a circuit of a fifth of its edges.
    (part / "b.safetensors").unlink()
    (part / "c.safetensors").unlink()
    _, experiment = experiments(folder, PUBLIC)
    record = run_all(experiment, tmp_path / "alone")[0]
    assert record.method.args["edges"] == 0 and record.method.args["file"] == "none is so small"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["importances", "circuits"])
def test_mibs_forms_are_evaluated(form: Any, tmp_path: Path) -> None:
    track = Track({TRUTH: PUBLIC.circuit_model(TRUTH)}, least=1)
    write_submission(tmp_path / "s", {(TRUTH, TRUTH): known_scores()}, form, track=track)
    _, experiment = experiments(tmp_path / "s", PUBLIC)
    first, second = run_all(experiment, tmp_path / "run")
    assert first.method.args["edges"] > second.method.args["edges"] > 0
    assert first.value("mean") < 1e-5 and second.value("mean") < 1e-5


def test_experiments_of_a_track_with_and_without_the_board(tmp_path: Path) -> None:
    folder = handed_in(tmp_path / "s", "mine", random_scores())
    random_scores().save(folder / f"{TRAINED}_{TRAINED}" / "a.safetensors")
    private = PUBLIC.model_copy(update={"splits": ("test", "private")})
    seed = PrivateSeed("now", 7)
    made = experiments(folder, private, seed)
    # Both parts on both splits; the one that the settings name also on public prompts of pools.
    worst = [experiment for experiment in made if isinstance(experiment, AdversarialExperiment)]
    assert len(made) == 5 and len(worst) == 1
    assert worst[0].split == "test" and worst[0].model == TRUTH
    assert (worst[0].n_clean, worst[0].n_corrupted, len(worst[0].circuits)) == (3, 4, 2)
    without = private.model_copy(update={"boards": ("circuits",)})
    assert experiments(folder, without, seed) == [
        experiment for experiment in made if experiment not in worst
    ]
    everywhere = PUBLIC.model_copy(update={"adversarial": AdversarialTrack()})
    made = experiments(folder, everywhere)
    assert [
        experiment.model for experiment in made if isinstance(experiment, AdversarialExperiment)
    ] == [TRAINED, TRUTH]


def test_the_name_of_a_folder_does_not_choose_what_is_evaluated(tmp_path: Path) -> None:
    only = AdversarialTrack(n_clean=3, n_corrupted=4, tasks={TRAINED: (TRAINED,)})
    track = PUBLIC.model_copy(update={"adversarial": only, "limits": {TRAINED: 3}})
    every = list[Any]()
    for task in (TRUTH, TRAINED):
        folder = tmp_path / task
        random_scores().save(folder / f"{task}_{TRAINED}" / "a.safetensors")
        (folder / "submission.yaml").write_text("name: mine\n")
        every.append(experiments(folder, track))
    for first, second in every:
        assert (first.models, first.tasks, first.limit) == ((TRAINED,), (), 3)
        assert isinstance(second, AdversarialExperiment) and second.task == TRAINED
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
            AdversarialExperiment(TRUTH, TRUTH, ("empty",), n_clean=2, split="private"),
            tmp_path / "run",
            progress=SILENT,
        )


FULL: dict[str, Any] = {
    "name": "EAP-IG (20 steps), ours",
    "method": "eap-ig-inputs",
    "description": "Two lines,\n<b>as they are</b>.",
    "training_data": "100 pairs of train",
    "train_hashes": ["0" * 64],
    "compute": "one laptop",
    "gpu_hours": 0.5,
    "url": "https://example.org/a?b=c#d",
}


def test_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    (tmp_path / "submission.json").write_text(json.dumps(FULL))
    (tmp_path / "submission.yaml").write_text("name: Ännchen 2\ngpu_hours: 2\n")
    read = Declaration.read(tmp_path / "submission.json")
    assert read.train_hashes == ("0" * 64,) and read.gpu_hours == 0.5
    assert read.description == FULL["description"]
    assert Declaration.of(json.loads(read.model_dump_json())) == read
    short = Declaration.read(tmp_path / "submission.yaml")
    assert short.name == "Ännchen 2" and math.isfinite(short.gpu_hours) and short.url == ""
    assert math.isnan(Declaration.of({"name": "a"}).gpu_hours)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "<img src=x onerror=alert(1)>"}, "a name has letters, digits"),
        ({"name": "=HYPERLINK(1)"}, "a name has letters, digits"),
        ({"name": "a\nb"}, "a name has letters, digits"),
        ({"name": "a\u202eb"}, "a name has letters, digits"),
        ({"name": ""}, "a name has letters, digits"),
        ({"name": "x" * 81}, "at most 80"),
        ({"method": "a\x1b[31m"}, "control characters are not allowed"),
        ({"description": "a\u202eb"}, "control characters are not allowed"),
        ({"description": "x" * 5001}, "description"),
        ({"url": "javascript:alert(1)"}, "an address begins with https://"),
        ({"url": "http://example.org"}, "an address begins with https://"),
        ({"url": 'https://a.org/"onclick=1'}, "an address begins with https://"),
        ({"train_hashes": ["abc"]}, "a SHA-256 has 64 digits"),
        ({"gpu_hours": -1}, "hours are 0 or more"),
        ({"gpu_hours": math.inf}, "hours are 0 or more"),
        ({"more": 1}, "more"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFile, match=said) as error:
        Declaration.of({**FULL, **changes})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["name: [", "- 1", "", "!!python/object/apply:os.system [ls]"])
def test_files_that_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "submission.yaml").write_text(text)
    with pytest.raises(BadFile):
        Declaration.read(tmp_path / "submission.yaml")


def test_a_large_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "submission.yaml").write_text("a" * (LARGEST + 1))
    with pytest.raises(BadFile, match="was not opened"):
        Declaration.read(tmp_path / "submission.yaml")


LIMITS = UploadLimits(megabytes=1, files=3)

COMMIT = "c0ffee" * 6 + "c0ff"


def test_a_folder_can_name_a_commit_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def downloaded(name: str, folder: Path, *_: Any) -> Path:
        asked.append(name)
        (folder / "ioi_gpt2").mkdir(parents=True)
        (folder / "ioi_gpt2" / "importances.json").write_text("{}")
        (folder / "submission.yaml").write_text("name: as the hub has it\n")
        return folder

    monkeypatch.setattr("mechassay.leaderboard.submission.download", downloaded)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "submission.yaml").write_text(f"name: mine\nhub: me/it@{COMMIT}\n")
    (tmp_path / "s" / "README.md").write_text("What we did.")
    shape = ModelSizes(n_layers=12, n_heads=12, d_model=768, d_head=64)
    models = {"gpt2": EvaluatedModel(tasks=("ioi",), shape=shape)}
    track = BoardTrack(models=models, upload=LIMITS)
    submission = open_submission(tmp_path / "s", tmp_path / "out", track)
    assert asked == [f"hub:me/it@{COMMIT}"] and submission.folder == tmp_path / "out"
    assert submission.declaration is not None and submission.declaration.name == "mine"
    # What is read is the hub's file, with all that is wrong with it.
    assert [x.path for x in submission.problems.errors] == ["ioi_gpt2/importances.json"]
    (tmp_path / "s" / "ioi_gpt2").mkdir()
    (tmp_path / "s" / "ioi_gpt2" / "a.json").write_text("{}")
    mistakes = open_submission(tmp_path / "s", tmp_path / "again", track).problems.errors
    assert any(x.path == "ioi_gpt2/a.json" and "remove this one" in x.message for x in mistakes)


@pytest.mark.parametrize(
    "text", ["me/it", "me/it@main", f"me/it@{COMMIT[:-1]}", f"../x@{COMMIT}/y"]
)
def test_what_is_no_commit_of_the_hub_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="all 40 digits of the commit"):
        Declaration.of({"name": "mine", "hub": text})


def test_mib_s_own_track_has_its_models_graphs_and_sizes(tmp_path: Path) -> None:
    """Five models whose graphs are the benchmark's, and folders of nine circuits, no fewer."""
    track = BoardTrack.read(Path("mib"))
    assert set(track.models) == set(MIB.models) and track.profile == "mib-2025"
    for name, theirs in MIB.models.items():
        assert track.circuit_model(name).graph == theirs.graph
        assert track.circuit_model(name).d_model == theirs.d_model
        assert set(theirs.tasks) <= set(track.models[name].tasks)
    classes = {about.mib_class for about in track.models.values()} - {None, ""}
    assert classes == set(MIB_BOARD.models)
    graph = MIB.models["interpbench"].graph
    scores = ma.circuits.Random(seed=0).draw(graph)
    folder = tmp_path / "mine"
    write_submission(folder, {("ioi", "interpbench"): scores}, "circuits")
    (folder / "submission.yaml").write_text("name: mine\n", "utf-8")
    assert not read_submission(folder, track).problems.errors
    next((folder / "ioi_interpbench").iterdir()).unlink()
    (error,) = read_submission(folder, track).problems.errors
    assert error.message.startswith("no circuit of ") and "% of the edges" in error.message
