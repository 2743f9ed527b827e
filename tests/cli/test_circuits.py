"""`mechassay circuits run` of several tiny models and tasks: one table over cells, resumed, grown,
and with what fails or is skipped as cells.

`mechassay circuits draw`: the files it writes, and one line for what cannot be drawn.
"""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mechassay.circuits import Circuit, EdgeScores, NeuronScores, NodeScores
from mechassay.circuits.canonical import canonical
from mechassay.circuits.graph_files import GraphFile, write_graph_file
from mechassay.circuits.methods.random import RandomPaths
from mechassay.circuits.scores import largest_drawable
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadUsage
from mechassay.models.graph import Graph
from mechassay.models.sources import truth_names
from mechassay.results.records import Failure, Record
from mechassay.runs.cells import Cell
from mechassay.truth.ground_truth import load_truth

Run = Callable[..., Any]


def words(folder: Path, out: Path, *more: object) -> list[object]:
    return [
        "circuits",
        "run",
        "--skip-at-chance",
        "-m",
        folder,
        "-t",
        "ioi",
        "--train-limit",
        "6",
        "--limit",
        "12",
        "--random-rankings",
        "5",
        "-o",
        out,
        *more,
    ]


def truth_words(out: Path, *more: object) -> list[object]:
    return [
        "circuits",
        "run",
        "--skip-at-chance",
        "-m",
        "truth-ioi",
        "--train-limit",
        "6",
        "--limit",
        "12",
        "--random-rankings",
        "5",
        "-o",
        out,
        *more,
    ]


def record(file: Path) -> Record:
    return Record.model_validate_json(file.read_text())


def measures(found: Record) -> dict[str, float]:
    return {each.name: each.value for each in found.measures if each.of == "result"}


@pytest.mark.slow
def test_a_table_over_cells_that_is_resumed(folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    line = words(
        folder,
        out,
        "--method",
        "eap",
        "--method",
        "nap-ig:steps=2",
        "-t",
        "ioi:source=own",
        "--even-at-chance",
    )
    done = run(*line)
    assert done.code == 0, done.err
    tables = (out / "tables.md").read_text()
    assert (
        "CMD (by magnitude) (lower is better), " in tables
        and "CPR (by value) (higher is better" in done.out
        and "AUROC" not in tables
    )
    for method in ("eap", "nap-ig steps=2", "random edges", "random paths", "differences resolved"):
        assert f"| {method} |" in tables
    assert (
        tables.count("| method | ioi | ioi:source=own |") == 9
        and "## Rank by CMD, " in tables
        and "Accuracy of the model itself" in tables
    )
    assert "| eap, nap-ig steps=2 | s2_io_flip_counterfactual |" in tables
    page = (out / "report.html").read_text()
    assert "<script" not in page
    # For each of two tasks: the first test pair, and what eap scores highest.
    assert page.count("An example pair") == page.count("Strongest edges") == 2
    files = sorted(out.glob("records/*/*.json"))
    assert len(files) == 4
    before = [os.stat(file).st_mtime_ns for file in files]
    files[0].unlink()
    assert run(*line).code == 0
    after = [os.stat(file).st_mtime_ns for file in files]
    assert after[1:] == before[1:] and after[0] > before[0]


@pytest.mark.slow
def test_what_fails_is_a_cell_with_its_reason(folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    done = run(
        *words(
            folder,
            out,
            "--method",
            "eap",
            "-t",
            "docstring",
            "-m",
            tmp_path / "no-model",
            "--even-at-chance",
        )
    )
    assert done.code == 1
    tables = (out / "tables.md").read_text()
    assert "| eap |" in tables and "| failed |" in tables and "Failed and skipped cells" in tables
    assert "docstring" in done.err and "no-model" in done.err
    assert len(list(out.glob("records/*/eap.json"))) == 1


@pytest.mark.slow
def test_a_method_that_cannot_fails_beside_the_others(tmp_path: Path, run: Run) -> None:
    done = run(
        *truth_words(
            tmp_path / "out",
            "--method",
            "eap",
            "--method",
            "acdc:threshold=1e30",
            "--method",
            "exact:layers=(9,)",
        )
    )
    assert done.code == 1 and "between 0 and 2" in done.err
    tables = (tmp_path / "out/tables.md").read_text()
    assert "| truth-ioi | failed: BadUsage | exact layers=(9,) | Layers to patch" in tables


@pytest.mark.slow
def test_a_task_that_the_model_does_not_do_is_skipped_unless_asked_for(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    line = words(folder, out, "--method", "eap", "--method", "nap")
    done = run(*line)
    assert done.code == 0 and done.err.startswith("plan: fits: ")
    assert not list(out.glob("scores/*/*")) and not list(out.glob("records/*/*"))
    tables = (out / "tables.md").read_text()
    assert (
        "| eap | skipped |" in tables
        and "| skipped: at chance | eap, nap | The model itself is not above chance" in tables
    )
    assert "of 12 pairs (" in tables and "guessing does in 50%" in tables
    stored = [
        Failure.model_validate_json(file.read_text())
        for file in sorted(out.glob("failures/*/*.json"))
    ]
    assert [(each.cell["method"], each.status) for each in stored] == [
        ("eap", "skipped"),
        ("nap", "skipped"),
    ]
    page = (out / "report.html").read_text()
    assert (
        "There are no results" in page and "cells failed" not in page and "not above chance" in page
    )
    assert run(*line, "--even-at-chance").code == 0
    assert len(list(out.glob("records/*/*.json"))) == 2 and not list(out.glob("failures/*/*"))


@pytest.mark.slow
def test_what_would_take_too_long_is_skipped_with_its_estimate(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mechassay.discovery.inputs.forward_seconds", lambda model, batch: 2.0)
    # eap: 3 forwards x 6 pairs x 2 s = 0.6 min; exact: (2 + 0.2 x 262) x 6 x 2 s = 10.9 min; ugs is
    # hours.
    line = truth_words(
        tmp_path / "out",
        "--method",
        "eap",
        "--method",
        "exact",
        "--method",
        "ugs",
        "--max-minutes",
        "1",
    )
    assert run(*line).code == 0
    tables = (tmp_path / "out/tables.md").read_text()
    assert (
        "| truth-ioi | skipped: too expensive | exact, ugs | exact: about 11 min: 54 forwards a"
        " pair x 6 pairs; ugs: about" in tables
    )
    assert " h: " in tables and [file.stem for file in tmp_path.glob("out/records/*/*")] == ["eap"]
    # Scores that are there cost nothing any more, and a longer limit is no other plan.
    monkeypatch.setattr("mechassay.discovery.inputs.forward_seconds", lambda model, batch: 0.5)
    assert run(*line[:-2], "--max-minutes", "3").code == 0
    assert sorted(file.stem for file in tmp_path.glob("out/records/*/*")) == ["eap", "exact"]


@pytest.mark.slow
def test_a_known_circuit_gives_an_auroc(tmp_path: Path, run: Run) -> None:
    out, line = (
        tmp_path / "out",
        truth_words(
            tmp_path / "out", "--method", "eap", "--method", "nap", "--ablation", "counterfactual"
        ),
    )
    assert run(*line).code == 0
    group = "truth-ioi--truth-ioi"
    # Eight of the nine true edges above all others (by magnitude), one below: 8 / 9 of all
    # comparisons are right.
    circuit = load_truth("truth-ioi").circuits["counterfactual"]
    values = torch.where(circuit.edges, -2.0, 1.0)
    values[tuple(circuit.edges.nonzero()[4].tolist())] = 0.5
    EdgeScores.of(circuit.graph, values).save(out / "scores" / group / "eap.safetensors")
    (out / "records" / group / "eap.json").unlink()
    assert run(*line).code == 0
    found = record(out / "records" / group / "eap.json")
    assert measures(found)["auroc"] == pytest.approx(8 / 9) and measures(found)[
        "r_precision"
    ] == pytest.approx(8 / 9)
    assert next(each for each in found.measures if each.name == "auroc").n == len(circuit) == 9
    chance = found.measure("auroc", "control:random")
    # The standard deviation is sqrt((9 + 253 + 1) / (12 x 9 x 253)) = 0.0981.
    assert (
        chance
        and chance.value == 0.5
        and chance.high == pytest.approx(0.5 + 1.96 * 0.0981, abs=1e-3)
    )
    tables = (out / "tables.md").read_text()
    auroc = tables.split("## AUROC (higher is better), ground truths")[1].split("##")[0]
    assert (
        "| method | truth-ioi |" in auroc
        and "| eap | 0.89 [0." in auroc
        and "| random edges | 0.50 [0.31, 0.69] |" in auroc
    )
    assert 0.5 < measures(record(out / "records" / group / "nap.json"))["auroc"] < 1


@pytest.mark.slow
def test_a_run_grows(folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    assert run(*truth_words(out, "--method", "eap")).code == 0
    file = out / "records/truth-ioi--truth-ioi/eap.json"
    before = os.stat(file).st_mtime_ns
    more = truth_words(out, "--method", "nap", "-m", folder, "-t", "ioi", "--even-at-chance")
    assert run(*more).code == 0
    assert os.stat(file).st_mtime_ns == before
    plan = json.loads((out / "plan.json").read_text())
    assert (
        plan["methods"] == ["eap", "nap"]
        and plan["models"] == ["truth-ioi", str(folder)]
        and plan["tasks"] == ["ioi"]
    )
    assert len(list(out.glob("records/*/*.json"))) == 3
    tables = (out / "tables.md").read_text()
    assert "| nap |" in tables and "| eap |" not in tables, "a run with less shows only that"
    assert "AUROC (higher is better), ground truths" in tables
    assert (
        "seed = 0; this one has 1" in run(*truth_words(out, "--method", "eap", "--seed", "1")).line
    )
    assert (
        "train_limit = 6; this one has 7"
        in run(*truth_words(out, "--method", "eap", "--train-limit", "7")).line
    )


def test_truth_stands_for_all_ground_truths(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def refuse(experiment: CircuitsExperiment, cell: Cell, worker: object) -> None:
        asked.append((cell.labels["model"], cell.labels["task"]))
        raise BadUsage("not now")

    monkeypatch.setattr(CircuitsExperiment, "skip", refuse)
    assert (
        run("circuits", "run", "-m", "truth", "--method", "eap", "-o", tmp_path / "out").code == 2
    )
    assert asked == [(name, name) for name in truth_names()]
    assert json.loads((tmp_path / "out/plan.json").read_text())["models"] == truth_names()


def test_wrong_names_are_found_before_anything_runs(folder: Path, tmp_path: Path, run: Run) -> None:
    assert "Did you mean 'eap'?" in run(*words(folder, tmp_path / "out", "--method", "eapp")).line
    assert (
        "Did you mean 'strict'?"
        in run(*words(folder, tmp_path / "out", "--profile", "stricd")).line
    )
    assert "Did you mean 'ioi'?" in run(*words(folder, tmp_path / "out", "-t", "iio")).line
    assert "needs a task" in run("circuits", "run", "-m", folder, "-o", tmp_path / "out").line
    assert not (tmp_path / "out").exists()


def test_a_run_that_cannot_begin_is_refused_before_it_leaves_anything(
    tmp_path: Path, run: Run
) -> None:
    words = ("circuits", "run", "-m", "truth-induction", "--method", "eap", "-o", tmp_path / "out")
    assert "Did you mean 'ioi'?" in run(*words, "-t", "iooi").line
    assert "Did you mean 'zero'?" in run(*words, "--ablation", "zer").line
    for minutes in ("nan", "-1"):
        assert "max_minutes must be 0 or more" in run(*words, "--max-minutes", minutes).line
    assert not (tmp_path / "out").exists()


SVG = "{http://www.w3.org/2000/svg}"
GRAPH = Graph(6, 4)


def made(seed: int, graph: Graph = GRAPH) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(graph.n_writers, graph.n_readers, generator=generator) ** 3
    return EdgeScores.of(
        graph, values, {"method": "made", "settings": {"seed": seed}, "task": "<b>ioi</b>"}
    )


def lines(svg: str) -> dict[str, str]:
    """Names of the edges drawn, and what else pointing at them shows."""
    groups = [
        group
        for group in ElementTree.fromstring(svg).iter(f"{SVG}g")
        if group.get("class") == "link"
    ]
    return {
        name: rest
        for name, _, rest in (
            str(group.findtext(f"{SVG}title")).partition("  ") for group in groups
        )
    }


def drawings(page: str) -> list[dict[str, str]]:
    return [lines(svg) for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]


@pytest.fixture
def first(tmp_path: Path) -> Path:
    made(0).save(tmp_path / "first.safetensors")
    return tmp_path / "first.safetensors"


@pytest.fixture
def second(tmp_path: Path) -> Path:
    made(1).save(tmp_path / "second.safetensors")
    return tmp_path / "second.safetensors"


def test_one_file_as_an_attribution_graph(first: Path, tmp_path: Path, run: Run) -> None:
    done = run("circuits", "draw", f"{first}@12", "--output", tmp_path / "x.json")
    assert done.code == 0
    graph = json.loads((tmp_path / "x.json").read_text("utf-8"))
    circuit = EdgeScores.load(first).top(12, by="magnitude").pruned()
    assert sorted(name for link in graph["links"] for name in link["edges"]) == sorted(
        circuit.names()
    )
    assert graph["metadata"]["slug"] == "x"


def test_one_file_as_an_svg(first: Path, tmp_path: Path, run: Run) -> None:
    done = run("circuits", "draw", first, "--output", tmp_path / "new/x.svg", "--least", 0)
    assert done.code == 0, done.err
    circuit = largest_drawable(made(0))
    assert 0 < len(circuit) <= 60
    svg = (tmp_path / "new/x.svg").read_text("utf-8")
    assert sorted(lines(svg)) == sorted(circuit.names())
    assert f"first: {len(circuit)} edges" in done.out and "x.svg" in done.out
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["x.svg"]


@pytest.mark.parametrize("by", ["value", "magnitude"])
@pytest.mark.parametrize("greedy", [False, True])
def test_edges_ranking_and_growth_are_those_asked_for(
    first: Path, tmp_path: Path, run: Run, by: Any, greedy: bool
) -> None:
    out, scores = tmp_path / "x.svg", made(0)
    assert (
        run(
            "circuits",
            "draw",
            first,
            "-o",
            out,
            "--edges",
            "150",
            "--by",
            by,
            *(["--greedy"] * greedy),
        ).code
        == 0
    )
    wanted = (scores.greedy if greedy else scores.top)(150, by=by).pruned()
    assert sorted(lines(out.read_text("utf-8"))) == sorted(wanted.names())
    assert run("circuits", "draw", first, "-o", out, "--by", by, *(["--greedy"] * greedy)).code == 0
    wanted = scores.greedy(60, by=by).pruned() if greedy else largest_drawable(scores, by=by)
    assert sorted(lines(out.read_text("utf-8"))) == sorted(wanted.names())


def test_scores_that_grow_are_drawn_as_they_grow(tmp_path: Path, run: Run) -> None:
    """Importances of information flow routes cannot be compared between readers."""
    scores = made(3)
    routes = EdgeScores(GRAPH, scores.values, {**scores.provenance, "selection": "greedy"})
    routes.save(tmp_path / "ifr.safetensors")
    assert (
        run(
            "circuits",
            "draw",
            tmp_path / "ifr.safetensors",
            "--edges",
            "20",
            "-o",
            tmp_path / "ifr.svg",
        ).code
        == 0
    )
    drawn = lines((tmp_path / "ifr.svg").read_text())
    assert (
        set(drawn)
        == set(scores.greedy(20, by="magnitude").pruned().names())
        != set(scores.top(20, by="magnitude").pruned().names())
    )


def test_two_files_are_compared(first: Path, second: Path, tmp_path: Path, run: Run) -> None:
    done = run(
        "circuits", "draw", first, second, "-o", tmp_path / "x.svg", "--edges", "100", "--greedy"
    )
    assert done.code == 0, done.err
    shown = lines((tmp_path / "x.svg").read_text("utf-8"))
    a, b = (made(seed).greedy(100, by="magnitude").pruned() for seed in (0, 1))
    assert set(shown) == set(a.names()) | set(b.names())
    for name, about in shown.items():
        whose = (
            "in both"
            if name in a.names() and name in b.names()
            else f"only in {'first' if name in a.names() else 'second'}"
        )
        assert about.startswith(
            f"{whose}; first {float(made(0).values[GRAPH.index(name)]):+.3g}, second "
        )


def test_a_page_needs_nothing_else_and_holds_the_table(
    first: Path, second: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "x.html"
    assert run("circuits", "draw", first, second, "-o", out).code == 0
    page = out.read_text("utf-8")
    union, one, two = drawings(page)
    assert set(union) == set(one) | set(two) and sorted(one) == sorted(
        largest_drawable(made(0)).names()
    )
    assert f'<td class="numeric">{len(set(one) & set(two))}</td>' in page
    assert "Jaccard overlap" in page and "if random" in page and "seed=1" in page
    assert not re.search(r'(?:src|href)="|url\(|<script|<b>ioi', page)
    assert run("circuits", "draw", first, "-o", out).code == 0
    assert [set(each) for each in drawings(out.read_text("utf-8"))] == [set(one)]


def test_circuits_are_drawn_as_they_are_typed(first: Path, tmp_path: Path, run: Run) -> None:
    scores, out = made(0), tmp_path / "x.svg"
    for text, wanted in (
        (f"{first}@150", scores.top(150, by="magnitude").pruned()),
        (f"{first}@0.5", scores.top(0.5, by="magnitude").pruned()),
        (f"{first}@40:greedy", scores.greedy(40, by="magnitude").pruned()),
        ("canonical:docstring", canonical("docstring", Graph(4, 8, mlp=False)).circuit),
    ):
        done = run("circuits", "draw", text, "-o", out, "--least", 0)
        assert done.code == 0, done.err
        assert sorted(lines(out.read_text("utf-8"))) == sorted(wanted.names())
    # What says of no graph takes that of the circuit beside it; a size of its own wins.
    done = run("circuits", "draw", "random-paths@30", f"{first}@20", "-o", out, "--edges", "150")
    assert done.code == 0, done.err
    paths = RandomPaths(seed=0).circuit(GRAPH, 30)
    best = scores.top(20, by="magnitude").pruned()
    assert set(lines(out.read_text("utf-8"))) == set(paths.names()) | set(best.names())
    assert "random-paths@30: 30 edges" in done.out
    for text in ("truth", "eap@20", "full", "random@20"):
        done = run("circuits", "draw", text, "-o", out, "--least", 0)
        assert done.code == 2 and f"'{text}' needs a model" in done.line


def test_one_file_at_two_sizes(first: Path, tmp_path: Path, run: Run) -> None:
    texts = [f"{first}@100:greedy", f"{first}@200:greedy"]
    assert run("circuits", "draw", *texts, "-o", tmp_path / "x.svg").code == 0
    assert f"only in {texts[1]}" in (tmp_path / "x.svg").read_text("utf-8")


def test_nodes_fit_whole_into_a_typed_size(tmp_path: Path, run: Run) -> None:
    scores, out = NodeScores(GRAPH, node_values(m2=-2.0, a3_h1=1.0)), tmp_path / "x.svg"
    scores.save(tmp_path / "n.safetensors")
    assert run("circuits", "draw", f"{tmp_path}/n.safetensors@0.5", "-o", out).code == 0
    wanted = scores.within(0.5, by="magnitude").pruned()
    assert sorted(lines(out.read_text("utf-8"))) == sorted(wanted.names())


def test_files_of_one_name_are_told_apart(
    first: Path, second: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "b").mkdir()
    other = second.rename(tmp_path / "b/first.safetensors")
    assert run("circuits", "draw", first, other, "-o", tmp_path / "x.svg").code == 0
    assert f"only in {other}" in (tmp_path / "x.svg").read_text("utf-8")


@pytest.mark.parametrize("ending", [".json", ".pt"])
def test_graph_files_give_the_same_drawing(
    first: Path, tmp_path: Path, run: Run, ending: str
) -> None:
    write_graph_file(tmp_path / f"first{ending}", made(0), d_model=8)
    for source in (first, tmp_path / f"first{ending}"):
        assert run("circuits", "draw", source, "-o", tmp_path / f"{source.suffix}.svg").code == 0
    assert (tmp_path / f"{ending}.svg").read_bytes() == (tmp_path / ".safetensors.svg").read_bytes()


def test_a_graph_file_without_scores_gives_its_circuit(tmp_path: Path, run: Run) -> None:
    circuit = Circuit.from_names(GRAPH, ["input->m0", "m0->logits", "a1.h1->m2"])
    write_graph_file(tmp_path / "c.json", circuit=circuit, d_model=8)
    assert run("circuits", "draw", tmp_path / "c.json", "-o", tmp_path / "x.svg").code == 0
    assert lines((tmp_path / "x.svg").read_text("utf-8")) == dict.fromkeys(
        circuit.names(), "not scored"
    )
    assert (
        "without scores"
        in run(
            "circuits", "draw", tmp_path / "c.json", "-o", tmp_path / "x.svg", "--edges", "2"
        ).line
    )
    GraphFile(GRAPH, 8).write(tmp_path / "n.json")
    assert (
        "no scores and no circuit"
        in run("circuits", "draw", tmp_path / "n.json", "-o", tmp_path / "x.svg").line
    )


def node_values(**scores: float) -> torch.Tensor:
    values = torch.linspace(0.001, 0.002, GRAPH.n_writers)
    for name, score in scores.items():
        values[GRAPH.writer(name.replace("_", "."))] = score
    return values


def test_nodes_and_neurons_give_circuits_of_whole_nodes(tmp_path: Path, run: Run) -> None:
    scores = NodeScores(GRAPH, node_values(input=3.0, m2=-2.0, a3_h1=1.0))
    scores.save(tmp_path / "nodes.safetensors")
    out = tmp_path / "x.svg"
    # The three nodes have 10 edges among them and to the logits; the next node brings more than
    # one.
    done = run("circuits", "draw", tmp_path / "nodes.safetensors", "-o", out, "--edges", "11")
    assert done.code == 0, done.err
    heads = [f"{node}->a3.h1<{slot}>" for node in ("input", "m2") for slot in "qkv"]
    wanted = [*heads, "input->m2", *(f"{node}->logits" for node in ("input", "m2", "a3.h1"))]
    assert sorted(lines(out.read_text("utf-8"))) == sorted(wanted)
    NeuronScores(GRAPH, scores.values[:, None].expand(-1, 4) / 4).save(
        tmp_path / "neurons.safetensors"
    )
    assert (
        run("circuits", "draw", tmp_path / "neurons.safetensors", "-o", out, "--edges", "11").code
        == 0
    )
    assert "neurons summed" in out.read_text("utf-8") and sorted(
        lines(out.read_text("utf-8"))
    ) == sorted(wanted)
    page = tmp_path / "x.html"
    assert (
        run(
            "circuits",
            "draw",
            tmp_path / "nodes.safetensors",
            tmp_path / "neurons.safetensors",
            "-o",
            page,
            "--edges",
            "11",
        ).code
        == 0
    )
    assert set(drawings(page.read_text("utf-8"))[0].values()) == {"in both"}


def test_nodes_that_make_no_small_circuit_are_refused_with_the_size_they_make(
    tmp_path: Path, run: Run
) -> None:
    NodeScores(GRAPH, node_values(input=-1.0)).save(tmp_path / "late.safetensors")
    words = ["circuits", "draw", tmp_path / "late.safetensors", "-o", tmp_path / "x.svg"]
    done = run(*words, "--by", "value", "--edges", "5")
    assert done.code == 2 and not (tmp_path / "x.svg").exists()
    size = int(re.findall(r"--edges (\d+)", done.line)[0])
    # By value `input` comes last, so that only all nodes together are connected.
    assert size == GRAPH.n_edges and f"has {size:,} edges" in done.line
    assert "scores; the file has none of edges" in run(*words, "--greedy").line
    NodeScores(GRAPH, torch.full((GRAPH.n_writers,), float("nan"))).save(
        tmp_path / "none.safetensors"
    )
    assert (
        "no circuit of its scored nodes"
        in run("circuits", "draw", tmp_path / "none.safetensors", "-o", tmp_path / "x.svg").line
    )


def test_a_circuit_without_a_path_is_drawn_empty_and_said(
    first: Path, tmp_path: Path, run: Run
) -> None:
    done = run("circuits", "draw", first, "-o", tmp_path / "x.svg", "--edges", "1")
    assert done.code == 0 and "none of them is on a path" in done.line and "--greedy" in done.line
    assert "no edges" in (tmp_path / "x.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{first}", "-o", "x.gif"], "x.gif: a drawing ends in .svg, .png, .pdf, .html or .json."),
        (["{first}", "-o", "x"], "x: a drawing ends in .svg, .png, .pdf, .html or .json."),
        (["{first}", "{first}@3", "-o", "x.json"], "(.json) is of one circuit; got two."),
        (["none.safetensors", "-o", "x.svg"], "none.safetensors: there is no such file."),
        (["none.json", "-o", "x.svg"], "none.json: there is no such file."),
        (["{first}", "none.pt", "-o", "x.svg"], "none.pt: there is no such file."),
        (
            ["scores.csv", "-o", "x.svg"],
            "Unknown circuit 'scores.csv'.",
        ),
        (
            ["{first}", "-o", "x.svg", "--edges", str(GRAPH.n_edges + 1)],
            f"between 0 and {GRAPH.n_edges} edges; got {GRAPH.n_edges + 1}",
        ),
        (
            ["{first}", "-o", "x.svg", "--greedy", "--edges", "-1"],
            f"between 0 and {GRAPH.n_edges} edges; got -1",
        ),
        (["{first}", "-o", "x.svg", "--edges", "1100"], "at most 1,000 edges"),
        (
            ["{first}", "-o", "x.svg", "--by", "values"],
            "Unknown ranking 'values'. Did you mean 'value'?",
        ),
        (
            ["{first}", "{small}", "-o", "x.svg"],
            "small.safetensors is about Graph(n_layers=2, n_heads=2",
        ),
    ],
)
def test_bad_input_is_one_line(
    first: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    made(0, Graph(2, 2)).save("small.safetensors")
    done = run(
        "circuits", "draw", *(word.format(first=first, small="small.safetensors") for word in words)
    )
    assert done.code == 2
    assert message in done.line
    assert not list(tmp_path.glob("x*"))


def test_edges_without_a_neuron_are_not_drawn(tmp_path: Path, run: Run) -> None:
    graph = Graph(2, 2)
    nothing = torch.zeros(graph.n_writers, 8, dtype=torch.bool)
    GraphFile(graph, 8, None, Circuit(graph, graph.legal.clone(), nothing)).write(
        tmp_path / "a.json"
    )
    done = run("circuits", "draw", tmp_path / "a.json", "-o", tmp_path / "a.svg")
    assert done.code == 0 and "a: 0 edges" in done.out
