"""Commands that are made of experiments: what their help shows first.

The commands on a tiny model: what they write, print and resume.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import mechassay as ma
from helpers.experiments import held
from mechassay.circuits import EdgeScores
from mechassay.circuits.evaluation.ablation import load_ablated
from mechassay.cli.main import GROUPS, app_for
from mechassay.models.sources import truth_names
from mechassay.results.records import Record


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below a group, with its words."""
    inner = getattr(command, "commands", {})
    for word, each in inner.items():
        yield from leaves(each, f"{name} {word}".strip())
    if not inner:
        yield name, command


def options(command: Any) -> dict[str, str | None]:
    """The panel of every option, by its first flag; None is that of --help, which comes first."""
    return {
        each.opts[0]: each.rich_help_panel
        for each in command.params
        if each.param_type_name == "option"
    }


ROOT: Any = typer.main.get_command(app_for([*GROUPS, "assay"]))
RUNS = {
    name: panels
    for name, command in leaves(ROOT)
    if "--only-plan" in (panels := options(command)) or name == "assay"
}


def test_commands_of_all_groups_are_looked_at() -> None:
    assert {"assay", "circuits run", "gym evaluate", "tasks score", "saes train"} < set(RUNS)
    assert len(RUNS) >= 15


@pytest.mark.parametrize("name", RUNS)
def test_the_first_panel_has_at_most_five_options(name: str) -> None:
    first = [flag for flag, panel in RUNS[name].items() if panel is None]
    assert 1 <= len(first) <= 5 and "--output" in first


def test_the_first_panel_says_what_to_run() -> None:
    flags = {"--model", "--task", "--method", "--limit", "--output"}
    assert {flag for flag, panel in RUNS["circuits run"].items() if panel is None} == flags


Run = Callable[..., Any]


def small(folder: Path, out: Path, *more: str) -> list[str]:
    return [
        "circuits",
        "run",
        "-m",
        str(folder),
        "-t",
        "ioi",
        "--train-limit",
        "8",
        "--limit",
        "12",
        "-o",
        str(out),
        *more,
    ]


@pytest.mark.slow
def test_run_writes_scores_records_and_a_report(folder: Path, tmp_path: Path, run: Run) -> None:
    done = run(
        *small(
            folder,
            tmp_path / "out",
            "--method",
            "eap",
            "--method",
            "eap-ig-inputs:steps=2,points=midpoint",
            "--method",
            "random",
        )
    )
    assert done.code == 0, done.err
    out = tmp_path / "out"
    names = ["eap", "eap-ig-inputs steps=2,points=midpoint", "random"]
    assert sorted(file.stem for file in out.glob("records/*/*.json")) == sorted(names)
    record = Record.model_validate_json(held(out, "records", f"{names[1]}.json").read_text())
    assert record.method.args["points"] == "midpoint"
    assert record.values is not None
    assert len(record.values.ids) == len(record.values.columns["clean"]) == 12
    random = record.table("curve").where(of="control:random")
    assert set(random.columns["seed"]) == set(range(5))
    assert EdgeScores.load(held(out, "scores", "eap.safetensors")).provenance["n_examples"] == 8
    assert "<svg" in (out / "report.html").read_text()
    for name in ("eap", "random"):
        assert name in done.out


@pytest.mark.slow
def test_what_a_file_repeats_is_a_warning_of_its_records(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    pairs = ma.load_task("ioi").pairs("test", ma.load_model(str(folder)), limit=4)
    rows = [pair.as_dict() | {"id": str(place)} for place, pair in enumerate([*pairs, pairs[0]])]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    splits = ("--split", "train", "--train-split", "train", "--limit", "5", "--train-limit", "5")
    done = run(
        "circuits",
        "run",
        "-m",
        folder,
        "-t",
        file,
        "--method",
        "eap",
        *splits,
        "-o",
        tmp_path / "out",
    )
    assert done.code == 0, done.err
    record = Record.model_validate_json(held(tmp_path / "out", "records", "eap.json").read_text())
    assert any("rows with one prompt are one group" in warning for warning in record.warnings), (
        done.err,
        record.warnings,
    )
    assert record.n_groups == 4
    assert any(
        warning.startswith("5 of 5 examples (0, 1, 2, ...) are among those")
        for warning in record.warnings
    )


@pytest.mark.slow
def test_scores_of_nodes_neurons_and_routes_run_like_those_of_edges(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    words = small(
        folder,
        out,
        "--method",
        "nap-ig:steps=2",
        "--method",
        "nap:level=node",
        "--method",
        "ifr",
        "--method",
        "eap",
    )
    done = run(*words)
    assert done.code == 0, done.err
    records = {
        file.stem: Record.model_validate_json(file.read_text())
        for file in out.glob("records/*/*.json")
    }
    assert set(records) == {"nap-ig steps=2", "nap level=node", "ifr", "eap"}
    for record in records.values():
        sizes = record.table("curve").where(of="result", ranking="value").columns
        # A circuit never holds more than was asked for, in edges or in edges' worth of neurons.
        assert all(
            kept <= max(1, asked) for kept, asked in zip(sizes["kept"], sizes["asked"], strict=True)
        )
        assert sizes["kept"][-1] > 0
    kept, others = (records[name].table("curve").columns["kept"] for name in ("ifr", "eap"))
    assert kept != others
    assert (out / "report.html").is_file() and run("report", out).code == 0
    before = os.stat(held(out, "records", "ifr.json")).st_mtime_ns
    assert run(*words).code == 0 and os.stat(held(out, "records", "ifr.json")).st_mtime_ns == before
    done = run(
        "circuits",
        "localize",
        "-m",
        folder,
        "-t",
        "ioi",
        "--train-limit",
        "4",
        "--method",
        "nap",
        "-o",
        tmp_path / "n",
    )
    assert done.code == 0 and "[" in done.out


def test_convert_there_and_back(folder: Path, tmp_path: Path, run: Run) -> None:
    run(
        "circuits",
        "localize",
        "-m",
        folder,
        "-t",
        "ioi",
        "--train-limit",
        "4",
        "--method",
        "eap",
        "-o",
        tmp_path / "a",
    )
    ours = held(tmp_path / "a", "scores", "eap.safetensors")
    assert run("circuits", "convert", ours, tmp_path / "x.json", "-m", folder).code == 0
    assert run("circuits", "convert", tmp_path / "x.json", tmp_path / "x.pt").code == 0
    assert run("circuits", "convert", tmp_path / "x.pt", tmp_path / "back.safetensors").code == 0
    there, back = (
        EdgeScores.load(ours).values,
        EdgeScores.load(tmp_path / "back.safetensors").values,
    )
    assert back.nan_to_num(9).equal(there.nan_to_num(9))
    assert "--model" in run("circuits", "convert", ours, tmp_path / "y.json").line


def test_validate_lists_every_problem(tmp_path: Path, run: Run) -> None:
    (tmp_path / "sub/ioi_gpt3").mkdir(parents=True)
    (tmp_path / "sub/ioi_gpt2").mkdir()
    (tmp_path / "sub/ioi_gpt2/importances.json").write_text("{")
    done = run("circuits", "validate", tmp_path / "sub")
    assert done.code == 1
    assert "gpt3" in done.err and "importances.json" in done.err and "problems in" in done.err
    told = json.loads(run("circuits", "validate", tmp_path / "sub", "--json").out)
    assert not told["valid"] and {"path", "message", "warning"} == set(told["problems"][0])


@pytest.mark.slow
def test_an_ablation_is_kept_with_the_run(folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    words = small(folder, out, "--method", "eap", "--ablation", "mean")
    assert run(*words).code == 0
    record = Record.model_validate_json(held(out, "records", "eap.json").read_text())
    assert record.task.args["ablation"] == "mean"
    values = load_ablated(held(out, "kept", "mean.safetensors"))
    assert values.name == "mean"
    held(out, "records", "eap.json").unlink()
    held(out, "kept", "controls-5.safetensors").unlink()
    run(*words)
    again = Record.model_validate_json(held(out, "records", "eap.json").read_text())
    assert again.values == record.values
    plain = tmp_path / "plain"
    run(*small(folder, plain, "--method", "eap"))
    other = Record.model_validate_json(held(plain, "records", "eap.json").read_text())
    assert other.values is not None and record.values is not None
    mine, theirs = record.values.columns, other.values.columns
    assert theirs["clean"] == mine["clean"] and theirs["empty"] != mine["empty"]
    assert (
        "Unknown ablation 'means'. Did you mean 'mean'?"
        in run(*small(folder, tmp_path / "x", "--ablation", "means")).line
    )


@pytest.mark.slow
def test_train_and_test_pairs_differ(folder: Path, tmp_path: Path, run: Run) -> None:
    run(*small(folder, tmp_path / "out", "--method", "eap"))
    record = Record.model_validate_json(held(tmp_path / "out", "records", "eap.json").read_text())
    assert record.values is not None
    assert all(name.startswith("ioi-test-") for name in record.values.ids)
    assert record.specs["ranking"].args["shared"] == 0


@pytest.mark.slow
def test_a_second_call_reads_what_is_there(folder: Path, tmp_path: Path, run: Run) -> None:
    words = small(folder, tmp_path / "out", "--method", "eap")
    run(*words)
    files = [
        held(tmp_path / "out", "scores", "eap.safetensors"),
        held(tmp_path / "out", "records", "eap.json"),
        held(tmp_path / "out", "kept", "controls-5.safetensors"),
    ]
    before = [os.stat(file).st_mtime_ns for file in files]
    assert run(*words).code == 0
    assert [os.stat(file).st_mtime_ns for file in files] == before


@pytest.mark.slow
def test_a_lost_cell_is_made_again_and_is_the_same(folder: Path, tmp_path: Path, run: Run) -> None:
    words = small(folder, tmp_path / "out", "--method", "eap", "--method", "clean-corrupted")
    run(*words)
    file = held(tmp_path / "out", "scores", "eap.safetensors")
    first = EdgeScores.load(file).values
    file.unlink()
    held(tmp_path / "out", "records", "eap.json").unlink()
    run(*words)
    assert EdgeScores.load(file).values.equal(first) or EdgeScores.load(
        file
    ).values.nan_to_num().equal(first.nan_to_num())


@pytest.mark.slow
def test_localize_then_evaluate(folder: Path, tmp_path: Path, run: Run) -> None:
    done = run(
        "circuits",
        "localize",
        "-m",
        folder,
        "-t",
        "ioi",
        "--train-limit",
        "6",
        "--method",
        "eap",
        "-o",
        tmp_path / "a",
    )
    assert done.code == 0, done.err
    assert "strongest" in done.out
    done = run(
        "circuits",
        "evaluate",
        tmp_path / "a",
        "-m",
        folder,
        "-t",
        "ioi",
        "--limit",
        "8",
        "--profile",
        "mib-2025",
        "-o",
        tmp_path / "b",
    )
    assert done.code == 0, done.err
    assert Record.model_validate_json(
        held(tmp_path / "b", "records", "eap.json").read_text()
    ).metric.args == {"profile": "mib-2025"}


@pytest.mark.slow
def test_report_is_written_again_from_records(folder: Path, tmp_path: Path, run: Run) -> None:
    run(*small(folder, tmp_path / "out", "--method", "eap"))
    page = tmp_path / "out/report.html"
    first = page.read_text()
    page.unlink()
    assert run("report", tmp_path / "out").code == 0
    assert page.read_text() == first


def test_models_list_and_check(folder: Path, run: Run) -> None:
    assert "smollm2-135m" in run("models", "list").out
    done = run("models", "check", folder)
    assert done.code == 0
    assert "llama" in done.out
    assert re.match(r"\S+ is computed like the original: in 5 comparisons on loading", done.out)


def test_tasks_list_and_show(folder: Path, run: Run) -> None:
    assert "s2_io_flip_counterfactual" in run("tasks", "list").out
    plain = run("tasks", "show", "ioi", "--split", "test", "--limit", "2")
    assert plain.out.count("counterfactual") == 2
    tokens = run("tasks", "show", "ioi", "--split", "test", "--limit", "2", "--model", folder)
    assert tokens.out.count("|") > 20


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("mechassay ")


@pytest.mark.few(1)
@pytest.mark.parametrize("objective", ["prob_diff", "kl", "js", "cross_entropy"])
def test_other_objectives_run(folder: Path, tmp_path: Path, run: Run, objective: str) -> None:
    done = run(
        *small(folder, tmp_path / "out", "--method", "eap-ig-inputs", "--objective", objective)
    )
    assert done.code == 0, done.err
    assert (
        Record.model_validate_json(
            held(tmp_path / "out", "records", "eap-ig-inputs.json").read_text()
        ).metric.name
        == objective
    )


@pytest.mark.slow
def test_the_plan_never_holds_the_private_seed(folder: Path, tmp_path: Path, run: Run) -> None:
    done = run(
        *small(
            folder,
            tmp_path / "out",
            "--method",
            "eap",
            "--split",
            "private",
            "--private-seed",
            "774411",
        )
    )
    assert done.code == 0, done.err
    assert "774411" not in (tmp_path / "out/plan.json").read_text()
    assert json.loads((tmp_path / "out/plan.json").read_text())["split"] == "private"
    data = json.loads(next((tmp_path / "out/data").iterdir()).read_text())
    assert "first" in data["train"] and "first" not in data["test"]
    page = (tmp_path / "out/report.html").read_text()
    assert "An example pair" not in page and "private-seed" not in page


@pytest.mark.parametrize(
    "words",
    [
        ["circuits", "run", "-M", "eap"],
        ["variables", "run", "-f", "full-vector"],
        ["measure", "run", "EX25", "-M", "eap"],
    ],
)
def test_a_task_named_for_a_ground_truth_alone_is_refused(
    tmp_path: Path, run: Run, words: list[str]
) -> None:
    out = tmp_path / "out"
    done = run(*words, "-m", "truth-ioi", "-t", "greater-than", "-o", out)
    assert done.code == 2 and "truth-ioi runs on its own task" in done.line
    assert "got greater-than" in done.line and not out.exists()


def test_a_mixed_run_says_once_what_its_ground_truths_run_on(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    done = run(
        *("circuits", "run", "-m", folder, "-m", "truth", "-t", "ioi", "-M", "eap"),
        *("--only-plan", "-o", tmp_path / "out"),
    )
    assert done.code == 0
    line = f"note: {len(truth_names())} ground truths run on their own tasks, not on ioi.\n"
    assert done.err.count(line) == done.err.count("note: ") == 1


@pytest.mark.parametrize(
    "words", [["patch", "run", "-t", "ioi"], ["tasks", "score"], ["gym", "run"], ["gym", "check"]]
)
def test_truth_stands_for_all_ground_truths_only_where_the_help_says_so(
    tmp_path: Path, run: Run, words: list[str]
) -> None:
    out = tmp_path / "out"
    done = run(*words, "-m", "truth", "-o", out)
    assert done.code == 2 and "Unknown model 'truth'" in done.line and not out.exists()
    assert "stands for all" not in " ".join(run(*words, "--help").out.split())
