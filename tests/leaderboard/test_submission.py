"""Submissions as folders: what is read of them, and every mistake at once."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mechassay as ma
from helpers.mib_files import rotation, save_identity, save_subspace, stream, trained
from mechassay.circuits.methods.random import Random
from mechassay.circuits.mib_submission import Track, write_submission
from mechassay.circuits.scores import EdgeScores, NeuronScores
from mechassay.cli.main import main
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile
from mechassay.interventions.site import ModelShape
from mechassay.leaderboard.evaluate import PrivateSeed, experiments_of
from mechassay.leaderboard.submission import Submission, read_submission
from mechassay.leaderboard.submission_parts import SubmissionPart
from mechassay.leaderboard.track import BoardTrack, EvaluatedModel, UploadLimits
from mechassay.models.graph import Graph
from mechassay.utils.display import SILENT
from mechassay.utils.files import Problem, Problems
from mechassay.variables.experiments import AlignmentsExperiment

IOI, TRAINED = "truth-ioi", "truth-ioi-trained"
TRACK = BoardTrack(
    models={
        IOI: EvaluatedModel(tasks=(IOI,)),
        TRAINED: EvaluatedModel(tasks=(TRAINED, IOI)),
        "chooser": EvaluatedModel(
            load="truth-mcqa-trained",
            tasks=("truth-mcqa-trained", "mcqa"),
            mib_class="LlamaForCausalLM",
        ),
    },
    splits=("test", "private"),
    limit=6,
    upload=UploadLimits(megabytes=5, files=40),
)
GRAPH = Graph(3, 4)


def scores(seed: int = 0) -> EdgeScores:
    return Random(seed=seed).draw(GRAPH)


def told(bundle: Submission) -> dict[str, str]:
    """The mistakes by path; the last of each."""
    return {problem.path: problem.message for problem in bundle.problems.errors}


def mib(folder: Path, form: str = "importances", ending: str = ".json") -> Path:
    """A submission in MIB's layout to the first model."""
    track = Track({IOI: TRACK.circuit_model(IOI)}, least=1)
    write_submission(folder, {(IOI, IOI): scores()}, form, ending=ending, track=track)  # pyright: ignore[reportArgumentType]
    return folder


def test_the_graph_is_that_of_the_tracks_models() -> None:
    assert {TRACK.shape(name).graph for name in TRACK.models} == {GRAPH}


def test_scores_of_ours_as_a_run_leaves_them(tmp_path: Path) -> None:
    experiment = CircuitsExperiment(
        models=(IOI,), methods=("random",), train_limit=4, stage="localize"
    )
    ma.run(experiment, tmp_path / "run", progress=SILENT)
    bundle = read_submission(tmp_path / "run" / "scores", TRACK)
    assert bundle.valid and bundle.kind == "circuits" and len(bundle.files) == 1
    path = f"{IOI}--{IOI}/random.safetensors"
    assert bundle.parts == (SubmissionPart(IOI, IOI, path, "scores"),)


def test_experiments_are_those_of_the_public_split_and_then_of_the_private(tmp_path: Path) -> None:
    for model, task in ((IOI, IOI), (TRAINED, TRAINED)):
        scores().save(tmp_path / f"{task}_{model}" / "mine.safetensors")
    submission = read_submission(tmp_path, TRACK)
    runs = list(experiments_of(submission, TRACK, PrivateSeed("now", 7)))
    assert [(name.rpartition("--")[0], split) for name, split, _ in runs] == [
        (f"test--{TRAINED}--{TRAINED}", "test"),
        (f"test--{IOI}--{IOI}", "test"),
        (f"private-now--{TRAINED}--{TRAINED}", "private"),
        (f"private-now--{IOI}--{IOI}", "private"),
    ]
    other, public, last, private = (experiment for _, _, experiment in runs)
    assert isinstance(public, CircuitsExperiment) and (public.models, public.tasks) == ((IOI,), ())
    assert public.split == "test" and public.private_seed is None and public.limit == 6
    assert other.models == (TRAINED,) == last.models
    assert private.split == "private" and private.private_seed == 7
    assert [experiment for _, _, experiment in experiments_of(submission, TRACK)] == [other, public]


@pytest.mark.few(2)
@pytest.mark.parametrize("ending", [".json", ".pt"])
@pytest.mark.parametrize("form", ["importances", "circuits"])
def test_mibs_forms_are_evaluated(form: str, ending: str, tmp_path: Path) -> None:
    bundle = read_submission(mib(tmp_path / "s", form, ending), TRACK)
    assert not bundle.problems
    (part,) = bundle.parts
    assert part.form == ("scores" if form == "importances" else "circuits")
    ((_, _, experiment),) = experiments_of(bundle, TRACK)
    few = replace(experiment, random_rankings=5)
    (record,) = ma.run(few, tmp_path / "run", progress=SILENT).records
    assert record.kind == "circuits" and 0 <= record.value("auroc") <= 1


def test_a_folder_around_and_a_file_without_a_folder_are_the_same(tmp_path: Path) -> None:
    mib(tmp_path / "around" / "inner")
    (tmp_path / "around" / "inner" / "README.md").write_text("What we did.")
    plain = read_submission(tmp_path / "around" / "inner", TRACK)
    around = read_submission(tmp_path / "around", TRACK)
    assert around.valid and around.parts[0].path == f"inner/{IOI}_{IOI}/importances.json"
    file = tmp_path / "around" / "inner" / f"{IOI}_{IOI}" / "importances.json"
    (tmp_path / "one").mkdir()
    shutil.copy(file, tmp_path / "one" / f"{IOI}_{IOI}.json")
    alone = read_submission(tmp_path / "one", TRACK)
    assert alone.valid and alone.parts == (SubmissionPart(IOI, IOI, f"{IOI}_{IOI}.json", "scores"),)
    assert len({each.content(TRACK) for each in (plain, around, alone)}) == 1


@pytest.mark.parametrize("form", ["importances", "circuits"])
def test_content_is_that_of_the_numbers(form: str, tmp_path: Path) -> None:
    as_json = read_submission(mib(tmp_path / "json", form, ".json"), TRACK)
    as_torch = read_submission(mib(tmp_path / "pt", form, ".pt"), TRACK)
    content = as_torch.content(TRACK)
    assert as_json.content(TRACK) == content
    for number, file in enumerate(sorted((tmp_path / "pt").rglob("*.pt"))):
        file.rename(file.with_name(f"{9 - number}.pt"))  # In another order too.
    assert read_submission(tmp_path / "pt", TRACK).content(TRACK) == content
    for seed in range(3):
        folder = tmp_path / f"other-{seed}"
        scores(seed).save(folder / f"{IOI}_{IOI}" / "a.safetensors")
    contents = [read_submission(tmp_path / f"other-{n}", TRACK).content(TRACK) for n in range(3)]
    assert len(set(contents)) == 3
    if form == "importances":
        assert as_json.content(TRACK) == contents[0]  # Ours and MIB's are of the same scores.


def test_a_part_counts_with_its_task(tmp_path: Path) -> None:
    for name, task in (("a", TRAINED), ("b", IOI)):
        scores().save(tmp_path / name / f"{task}_{TRAINED}" / "x.safetensors")
    first, second = (read_submission(tmp_path / name, TRACK).content(TRACK) for name in "ab")
    assert first != second


def test_a_declaration_is_read_beside(tmp_path: Path) -> None:
    mib(tmp_path)
    (tmp_path / "submission.yaml").write_text("name: mine\ntrain_hashes: []")
    bundle = read_submission(tmp_path, TRACK)
    assert bundle.valid and bundle.declaration is not None and bundle.declaration.name == "mine"
    (tmp_path / "submission.yaml").write_text("name: <b>mine</b>")
    assert "a name has letters" in told(read_submission(tmp_path, TRACK))["submission.yaml"]


# Bad input


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    def save(folder: str, file: str = "a.safetensors") -> Path:
        scores().save(tmp_path / folder / file)
        return tmp_path / folder / file

    save(f"{IOI}_{IOI}"), save(f"{IOI}--{IOI}")
    save("truth-ioy_truth-ioi"), save(f"{IOI}_no-model"), save(f"{TRAINED}_{IOI}")
    save("unnamed"), save(f"mcqa_{TRAINED}")
    save("mcqa_chooser"), save("mcqa_chooser", "b.safetensors")
    Random(seed=0).draw(Graph(2, 2)).save(tmp_path / f"{TRAINED}_{TRAINED}" / "a.safetensors")
    (tmp_path / "evil.py").write_text("raise SystemExit")
    values = torch.zeros(GRAPH.n_writers, GRAPH.n_readers)
    EdgeScores(GRAPH, values).save(tmp_path / f"{IOI}_{TRAINED}" / "flat.safetensors")
    (tmp_path / f"{IOI}_{TRAINED}" / "notes.txt").write_text("x")
    (tmp_path / "truth-mcqa-trained_chooser").mkdir()
    (tmp_path / "truth-mcqa-trained_chooser" / "passwd.json").symlink_to("/etc/passwd")
    bundle = read_submission(tmp_path, TRACK)
    said = told(bundle)
    expected = {
        f"{IOI}_{IOI}/a.safetensors": "a second one for truth-ioi on truth-ioi",
        "truth-ioy_truth-ioi": "Unknown task of the track 'truth-ioy'. Did you mean 'truth-ioi'",
        f"{IOI}_no-model": "Unknown model of the track 'no-model'",
        f"{TRAINED}_{IOI}": f"The track does not evaluate {IOI} on {TRAINED}",
        "unnamed": "is not named TASK_MODEL",
        f"mcqa_{TRAINED}": f"The track does not evaluate {TRAINED} on mcqa",
        "mcqa_chooser": "2 rankings (a.safetensors, b.safetensors)",
        f"{TRAINED}_{TRAINED}/a.safetensors": "the scores were made on",
        "evil.py": "code, which is never run",
        f"{IOI}_{TRAINED}/flat.safetensors": "all scores of edges are equal (0)",
        f"{IOI}_{TRAINED}/notes.txt": "is no file of scores or of circuits",
        "truth-mcqa-trained_chooser/passwd.json": "leads out of the submission",
    }
    assert said.keys() == expected.keys()
    assert not [path for path, part in expected.items() if part not in said[path]]
    with pytest.raises(BadFile, match=r"\(11 more"):
        bundle.content(TRACK)


def change(folder: Path, edit: Callable[[dict[str, dict[str, object]]], None]) -> str:
    """The mistake of a submission whose file of scores was changed."""
    file = mib(folder) / f"{IOI}_{IOI}" / "importances.json"
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))
    (message,) = told(read_submission(folder, TRACK)).values()
    return message


def test_nan_in_a_file_of_mib(tmp_path: Path) -> None:
    def nan(data: dict[str, dict[str, object]]) -> None:
        data["edges"]["input->logits"] = {"score": float("nan"), "in_graph": False}

    assert "1 scores of edges are not finite: input->logits" in change(tmp_path, nan)


def test_nan_alone_is_no_score(tmp_path: Path) -> None:
    values = torch.full((GRAPH.n_writers, GRAPH.n_readers), torch.nan)
    EdgeScores(GRAPH, values).save(tmp_path / f"{IOI}_{IOI}" / "a.safetensors")
    (message,) = told(read_submission(tmp_path, TRACK)).values()
    assert message == "no edge has a score (all are NaN)."


def test_a_graph_of_another_model(tmp_path: Path) -> None:
    def wider(data: dict[str, dict[str, object]]) -> None:
        data["cfg"]["d_model"] = 65

    def deeper(data: dict[str, dict[str, object]]) -> None:
        data["cfg"]["n_layers"] = 4

    assert "cfg says d_model = 65; the model's is 64" in change(tmp_path / "a", wider)
    assert "is about a model of 4 layers" in change(tmp_path / "b", deeper)
    narrow = NeuronScores.of(GRAPH, torch.rand(GRAPH.n_writers, 48))
    narrow.save(tmp_path / "c" / f"{IOI}_{IOI}" / "a.safetensors")
    (message,) = told(read_submission(tmp_path / "c", TRACK)).values()
    assert "has 48 neurons a node; the model has 64" in message


def test_a_million_edges_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = mib(tmp_path) / f"{IOI}_{IOI}" / "importances.json"
    edge = '"a%d.h0->a9.h9<q>": {"score": 1.0, "in_graph": true}'
    text = ", ".join(edge % i for i in range(6 * 10**4))
    file.write_text('{"cfg": {}, "nodes": {}, "edges": {' + text + "}}")
    monkeypatch.setattr("mechassay.circuits.mib_submission.read_graph_file", pytest.fail)
    (message,) = told(read_submission(tmp_path, TRACK)).values()
    assert "a file about truth-ioi has at most" in message and "was not opened" in message


def test_edges_that_the_graph_does_not_have(tmp_path: Path) -> None:
    def more(data: dict[str, dict[str, object]]) -> None:
        entry = {"score": 1.0, "in_graph": False}
        data["edges"] |= {f"a{i}.h0->a99.h0<q>": entry for i in range(500)}

    assert "500 edges are not in the graph" in change(tmp_path, more)


def test_pickles_are_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    folder = tmp_path / "s" / f"{IOI}_{IOI}"
    folder.mkdir(parents=True)
    (folder / "a.pt").write_bytes(pickle.dumps(Evil()))
    torch.save({"cfg": Evil()}, folder / "b.pt")
    said = told(read_submission(tmp_path / "s", TRACK))
    assert "not a PyTorch archive" in said[f"{IOI}_{IOI}/a.pt"]
    assert "refused: its pickle calls" in said[f"{IOI}_{IOI}/b.pt"]
    assert not (tmp_path / "ran").exists()


def test_too_much_and_nothing(tmp_path: Path) -> None:
    assert "no such folder" in told(read_submission(tmp_path / "none", TRACK))["."]
    (tmp_path / "s.zip").write_bytes(b"PK")
    assert "a file, not a folder" in told(read_submission(tmp_path / "s.zip", TRACK))["."]
    (tmp_path / "s.zip").unlink()
    assert "holds nothing to evaluate" in told(read_submission(tmp_path, TRACK))["."]
    few = TRACK.model_copy(update={"upload": UploadLimits(files=1)})
    mib(tmp_path, "circuits")
    assert told(read_submission(tmp_path, few))["."] == "9 files; at most 1 are allowed."
    no_circuits = TRACK.model_copy(update={"boards": ("variables",)})
    assert "takes no submissions of circuits" in told(read_submission(tmp_path, no_circuits))["."]


def test_links_and_devices_are_not_opened(tmp_path: Path) -> None:
    folder = mib(tmp_path / "s") / f"{IOI}_{IOI}"
    os.mkfifo(folder / "pipe.json")
    (folder / "passwd.json").symlink_to("/etc/passwd")
    (tmp_path / "s" / "inside").symlink_to(folder)
    problems = read_submission(tmp_path / "s", TRACK).problems
    said = {(problem.path, problem.message.split(";")[0]) for problem in problems}
    assert said >= {
        (f"{IOI}_{IOI}/pipe.json", "is no regular file."),
        (f"{IOI}_{IOI}/passwd.json", "a link that leads out of the submission"),
        ("inside", "a link to a folder"),
    }


def test_archives_are_not_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / f"{IOI}_{IOI}"
    folder.mkdir()
    for name in ("a.zip", "b.pt"):
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(10**6))
    said = told(read_submission(tmp_path, TRACK))
    assert "is no file of scores or of circuits" in said[f"{IOI}_{IOI}/a.zip"]
    assert "compressed records" in said[f"{IOI}_{IOI}/b.pt"]


# Variables


def test_alignments_of_ours_and_of_mib(tmp_path: Path) -> None:
    model = ma.load_model("truth-mcqa-trained")
    width = ModelShape.of(model).d_model
    folder = tmp_path / "mib" / "4_answer_MCQA_LlamaForCausalLM_answer"
    save_subspace(folder, stream(0, "last_token"), trained(width, 4), None)
    bundle = read_submission(tmp_path / "mib", TRACK)
    assert bundle.kind == "variables"
    assert bundle.parts == (
        SubmissionPart("chooser", "mcqa", folder.name, "mib-alignment", "answer"),
    )
    (read,) = ma.variables.read_mib_folder(tmp_path / "mib", board=TRACK.causal_board())
    read.save(tmp_path / "ours" / "answer")
    ours = read_submission(tmp_path / "ours", TRACK)
    assert ours.valid and ours.parts == (
        SubmissionPart("chooser", "mcqa", "answer", "alignment", "answer"),
    )
    assert ours.content(TRACK) == bundle.content(TRACK)
    ((_, _, experiment),) = experiments_of(ours, TRACK)
    assert isinstance(experiment, AlignmentsExperiment) and experiment.model == "truth-mcqa-trained"
    shutil.copytree(tmp_path / "ours" / "answer", tmp_path / "ours" / "again")
    assert "a second one for answer mcqa on chooser" in next(
        iter(told(read_submission(tmp_path / "ours", TRACK)).values())
    )


def test_alignments_of_other_models(tmp_path: Path) -> None:
    folder = tmp_path / "4_answer_MCQA_LlamaForCausalLM_answer"
    save_subspace(folder, stream(9, "last_token"), trained(48, 4), None)
    save_identity(tmp_path / "ioi_task_GPT2LMHeadModel_output_token", "x", 4)
    (tmp_path / "featurizer.py").write_text("raise SystemExit")
    said = told(read_submission(tmp_path, TRACK))
    assert any("layer" in text for text in said.values())
    assert "featurizer.py" in said and "ioi_task_GPT2LMHeadModel_output_token" in said
    assert rotation(4, 2).shape == (4, 2)


# The command


def test_the_command_lists_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "track.yaml").write_text(json.dumps(TRACK.model_dump(mode="json")))
    words = ["leaderboard", "validate", "--track", str(tmp_path / "track.yaml")]

    def run(*more: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main([*words, *more])
        return stopped.value.code, *capsys.readouterr()

    mib(tmp_path / "s")
    code, out, _ = run(str(tmp_path / "s"))
    assert not code and f"scores on {IOI} with {IOI}: {IOI}_{IOI}/importances.json" in out
    (tmp_path / "s" / "a_b").mkdir()
    (tmp_path / "s" / "evil.py").write_text("")
    code, _, err = run(str(tmp_path / "s"))
    assert code == 1 and "evil.py: code" in err and "2 problems in" in err
    code, out, _ = run(str(tmp_path / "s"), "--json")
    assert code == 1 and json.loads(out)["valid"] is False
    code, _, err = run(str(tmp_path / "none"))
    assert code == 1 and "there is no" in err


def test_a_report_is_short_and_names_mistakes_first() -> None:
    few = Problems([Problem("a", "x", warning=True), Problem("b", "y")])
    assert few.short() == few
    many = Problems(Problem(f"{n}", "odd", warning=True) for n in range(300))
    many.note("last", "wrong" * 1000)
    found = many.short()
    assert len(found) == 201 and found[0].path == "last" and len(found[0].message) <= 500
    assert found[-1].message == "and 101 more, 0 of them mistakes." and found[-1].warning
    wrong = Problems(Problem(f"{n}", "bad") for n in range(300)).short()
    assert wrong[-1].message == "and 100 more, 100 of them mistakes." and len(wrong.errors) == 201
