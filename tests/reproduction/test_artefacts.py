"""Others' files: each layout is found and measured as it means, and what is no data is refused."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.models import write_reading_gpt2
from mechassay.circuits import Circuit, EdgeScores, Random
from mechassay.circuits.graph_files import write_graph_file
from mechassay.circuits.scores import KEPT
from mechassay.circuits.series import FRACTIONS, CircuitSeries, load_ranked
from mechassay.errors import BadFile, BadUsage, GraphMismatch, MechassayError
from mechassay.features.featurizer import Directions, Identity
from mechassay.features.finder import Fit
from mechassay.interventions.site import load_site
from mechassay.models.graph import Graph
from mechassay.models.model import Model, load_model
from mechassay.reproduction.artefacts import (
    Artefact,
    artefacts_in,
    circuit_column,
    converted,
    folder_of,
)
from mechassay.reproduction.comparison import comparisons_of
from mechassay.reproduction.experiment import ReproductionExperiment, _record
from mechassay.reproduction.given import CIRCUITS, gains_table
from mechassay.reproduction.page import ReproductionPage
from mechassay.reproduction.published import Published, published
from mechassay.reproduction.runners import VariablesRunner, Wish
from mechassay.results.page import NOTHING, Report
from mechassay.runs.executors import Here
from mechassay.runs.run import opened, read_report, run
from mechassay.utils.display import SILENT
from mechassay.variables.alignment import VariableAlignment

GRAPH, WIDTH = Graph(2, 2), 24
"""Of the random GPT-2."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reading_gpt2(tmp_path_factory.mktemp("models") / "random-gpt2")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(str(folder))


SCORES = EdgeScores(GRAPH, Random(seed=1).draw(GRAPH).values - 0.4)


def node_json(path: Path, edges: bool = False) -> None:
    """As Matryoshka attribution is released: no score of the input, and edges left out; before
    that, each edge has the smaller score of its two nodes.
    """
    nodes: dict[str, Any] = {"input": {"in_graph": True}, "logits": {"in_graph": True}}
    for place, name in enumerate(("a0.h0", "a0.h1", "m0", "a1.h0", "a1.h1", "m1")):
        nodes[name] = {"in_graph": False, "score": 0.5 - 0.1 * place}
    cfg = {"n_layers": 2, "n_heads": 2, "parallel_attn_mlp": False, "d_model": WIDTH}
    held = {}
    if edges:
        legal = GRAPH.legal.nonzero().tolist()
        held = {GRAPH.edge_name(*edge): {"score": 0.25, "in_graph": False} for edge in legal}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cfg": cfg, "nodes": nodes, "edges": held}))


def edge_pt(path: Path) -> None:
    """As EAP-IG writes it; of Matryoshka's release, -inf where the graph has no edge."""
    write_graph_file(path, SCORES, d_model=WIDTH)
    data = torch.load(path, weights_only=True)
    legal = GRAPH.legal
    data["edges_scores"] = torch.where(legal, SCORES.values, -torch.inf)
    torch.save(data, path)


def releases(root: Path) -> Path:
    """A folder of each layout, of IOI in GPT-2."""
    for folder in ("EAP_patching_edge", "information-flow-routes_patching_edge"):
        write_graph_file(root / folder / "ioi_gpt2" / "importances.json", SCORES, d_model=WIDTH)
    node_json(root / "mattr" / "node" / "ioi_gpt2" / "importances.json")
    edge_pt(root / "mattr" / "edge" / "ioi_gpt2" / "importances.pt")
    for name in range(9):
        circuit = Circuit.full(GRAPH)
        path = root / "nine" / "ioi_gpt2" / f"{name}.json"
        write_graph_file(path, circuit=circuit, d_model=WIDTH)
    node_json(root / "raw_node" / "ioi_gpt2_importances.json", edges=True)
    (root / "raw_node" / "ioi_gpt2_trainlog.csv").write_text("step,k\n")
    return root


def test_every_layout_is_found_with_its_row_column_and_level(tmp_path: Path) -> None:
    root = releases(tmp_path / "theirs")
    every = {own.row: own for own in artefacts_in("X", str(root))}
    assert {row: (own.level, own.grown) for row, own in every.items()} == {
        "X/EAP_patching_edge": ("edge", False),
        "X/information-flow-routes_patching_edge": ("edge", True),
        "X/mattr/edge": ("edge", False),
        "X/mattr/node": ("node", False),
        "X/nine": ("", False),
        "X/raw_node": ("node", False),
    }
    assert {own.column for own in every.values()} == {"ioi/gpt2"}
    # A folder of one method is the row itself, with its level.
    (alone,) = artefacts_in("EAP (CF)", str(root / "EAP_patching_edge"))
    assert (alone.row, alone.level, alone.path.name) == ("EAP (CF)", "edge", "importances.json")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("ioi_gpt2", "ioi/gpt2"),
        ("arc-easy_llama3", "arc-easy/llama3.1"),
        ("arc_challenge_llama3", "arc-challenge/llama3.1"),
        ("arithmetic_subtraction_llama3", "arithmetic-subtraction/llama3.1"),
        ("mcqa_qwen2.5", "mcqa/qwen2.5"),
        ("ioi_interpbench", "interpbench"),
        ("mcqa_gpt2", ""),
        ("ioi_gpt3", ""),
        ("gpt2", ""),
    ],
)
def test_columns_by_the_benchmarks_names(name: str, column: str) -> None:
    assert circuit_column(name) == column
    assert not column or column in {
        value.column for table in published("mib").tables for value in table.values
    }


def test_files_are_converted_as_they_mean(model: Model, tmp_path: Path) -> None:
    root = releases(tmp_path / "theirs")
    made = {
        own.row: load_ranked(converted(own, model, tmp_path / "made" / own.row.replace("/", "-")))
        for own in artefacts_in("X", str(root))
    }
    edges = made["X/mattr/edge"]
    assert isinstance(edges, EdgeScores) and not edges.grows
    assert torch.equal(edges.values[GRAPH.legal], SCORES.values[GRAPH.legal])
    grown = made["X/information-flow-routes_patching_edge"]
    assert isinstance(grown, EdgeScores) and grown.grows
    for row in ("X/mattr/node", "X/raw_node"):
        nodes = made[row]
        assert nodes.unit == "node" and nodes.provenance[KEPT]  # pyright: ignore
        # The input, which has no score, is in the smallest circuit, as for MIB's evaluator.
        assert nodes.top(1).edges.any(dim=1).tolist()[:2] == [True, True]  # pyright: ignore
    nine = made["X/nine"]
    assert isinstance(nine, CircuitSeries) and len(nine.circuits) == 9
    # Nine whole models: by our definition none of them is a circuit of any size below 1.
    assert {nine.within(size) for size in FRACTIONS[:-1]} == {Circuit.empty(GRAPH)}


def measured(experiment: ReproductionExperiment, output: Path) -> Report:
    """The results of the cells of others alone."""
    worker = opened(experiment, output, progress=SILENT)
    cells = [cell for cell in experiment.cells() if cell.name.startswith("given/")]
    assert cells
    Here().map(experiment, [cells], worker)
    return read_report(worker.folder, experiment.cells())


@pytest.mark.slow
def test_circuits_of_others_stand_beside_the_table_by_both_definitions(
    folder: Path, tmp_path: Path
) -> None:
    root = releases(tmp_path / "theirs")
    given = (f"gpt2={folder}",)
    experiment = ReproductionExperiment(
        "mib", ("2",), ("ioi/gpt2",), given, (f"X={root}",), limit=6
    )
    results = measured(experiment, tmp_path / "run")
    assert not results.failures, results.failures[0].message
    rows = [row for record in results.records for row in record.table(CIRCUITS).rows()]
    assert {(row["row"], row["measure"]) for row in rows} == {
        (f"X/{name}", measure)
        for name in (
            *("EAP_patching_edge", "information-flow-routes_patching_edge"),
            *("mattr/edge", "mattr/node", "nine", "raw_node"),
        )
        for measure in ("cmd", "cpr")
    }
    assert all(math.isfinite(float(str(row["benchmark"]))) for row in rows)
    assert all("random-gpt2" in str(row["stand-in"]) for row in rows)
    by = {(row["row"], row["measure"]): row for row in rows}
    # Nine whole models, which the benchmark takes for its nine sizes.
    assert by["X/nine", "cpr"]["benchmark"] == pytest.approx(0.999)
    assert by["X/nine", "cmd"]["benchmark"] == pytest.approx(0, abs=1e-12)
    # The same scores in two forms, and the same nodes with and without their edges.
    for measure in ("cmd", "cpr"):
        for one, two in (("EAP_patching_edge", "mattr/edge"), ("mattr/node", "raw_node")):
            assert by[f"X/{one}", measure]["benchmark"] == by[f"X/{two}", measure]["benchmark"]
    assert by["X/nine", "cmd"]["best"] == "0.02 EActP (CF)"
    page = {table.title: table for table in ReproductionPage().tables(Report(results.records))}
    assert len(page["Circuits of others"].rows) == 12
    experiment.write(results)
    assert "other model" in (tmp_path / "run" / "report.html").read_text("utf-8")
    # Nothing is done again.
    assert measured(experiment, tmp_path / "run").records == results.records


def test_files_of_a_published_row_stand_beside_its_number(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "EAP_patching_edge" / "ioi_gpt2" / "importances.json"
    write_graph_file(path, SCORES, d_model=WIDTH)
    others = (f"EAP (CF)={tmp_path / 'EAP_patching_edge'}",)
    experiment = ReproductionExperiment(
        "mib", (), ("ioi/gpt2",), (f"gpt2={folder}",), others, limit=4
    )
    results = measured(experiment, tmp_path / "run")
    rows = comparisons_of(results.records)
    assert {(own.table, own.row, own.printed) for own in rows} == {
        ("2", "EAP (CF), its files", "0.03"),
        ("14", "EAP (CF), its files", "1.20"),
    }
    assert {own.verdict().status for own in rows} == {"other model"}


def artefact(path: Path, level: str = "") -> Artefact:
    return Artefact("X", "ioi/gpt2", "circuits", path, level)


def other_graph(path: Path) -> None:
    write_graph_file(path, Random().draw(Graph(3, 2)), d_model=WIDTH)


def other_width(path: Path) -> None:
    write_graph_file(path, SCORES, d_model=WIDTH + 1)


def circuit_alone(path: Path) -> None:
    write_graph_file(path, circuit=Circuit.full(GRAPH), d_model=WIDTH)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("created-by-a-pickle",)


def pickled(path: Path) -> None:
    torch.save({"cfg": Evil()}, path)


@pytest.mark.parametrize(
    ("write", "name", "level", "error", "message"),
    [
        (other_graph, "i.json", "", GraphMismatch, "of 3 layers and 2 heads; .* 2 layers"),
        (other_width, "i.json", "", GraphMismatch, "25 wide; .* is 24 wide"),
        (circuit_alone, "i.json", "", BadFile, "has no scores; circuits come as a folder"),
        (edge_pt, "i.pt", "node", BadFile, "has no scores of nodes"),
        (pickled, "i.pt", "", BadFile, "its pickle calls"),
    ],
)
def test_what_is_no_data_of_the_model_is_refused_in_one_line(
    write: Callable[[Path], None],
    name: str,
    level: str,
    error: type[MechassayError],
    message: str,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name)
    with pytest.raises(error, match=message) as caught:
        converted(artefact(tmp_path / name, level), model, tmp_path / "made")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made.safetensors").exists()
    assert not (tmp_path / "created-by-a-pickle").exists()


def test_folders_that_hold_nothing_or_lead_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match="holds no circuits"):
        artefacts_in("X", str(tmp_path / "empty"))
    with pytest.raises(BadFile, match="no such folder"):
        artefacts_in("X", str(tmp_path / "none"))
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "ioi_gpt2").symlink_to(tmp_path / "empty")
    with pytest.raises(BadFile, match="leads out"):
        artefacts_in("X", str(tmp_path / "link"))
    (tmp_path / "bare" / "ioi_gpt2").mkdir(parents=True)
    with pytest.raises(BadFile, match="no file of scores or of circuits"):
        artefacts_in("X", str(tmp_path / "bare"))


@pytest.mark.parametrize(
    ("paper", "text", "message"),
    [
        ("mib", "X", "NAME=FOLDER"),
        ("causalgym", "X=.", "tables of mib"),
        ("mib", "X=hub:me", "hub:OWNER/NAME"),
    ],
)
def test_what_is_typed_wrong_is_refused_first(paper: Any, text: str, message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        opened(ReproductionExperiment(paper, artefacts=(text,)), "none")
    assert not Path("none").exists()


def test_a_folder_of_the_hub_is_downloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(name: str, folder: Path, *_: Any) -> Path:
        asked.append(name)
        node_json(folder / "node" / "ioi_gpt2" / "importances.json")
        return folder

    monkeypatch.setattr("mechassay.reproduction.artefacts.download", download)
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path))
    for _ in range(2):
        folder_of.cache_clear()
        (own,) = artefacts_in("MAttr", "hub:me/it@c0ffee")
        artefacts_in.cache_clear()
        assert (own.row, own.column, own.level) == ("MAttr/node", "ioi/gpt2", "node")
    assert asked == ["hub:me/it@c0ffee"]


def test_columns_that_no_chosen_table_has_are_told(tmp_path: Path) -> None:
    node_json(tmp_path / "mcqa_qwen2.5" / "importances.json")
    experiment = ReproductionExperiment("mib", columns=("ioi/gpt2",), artefacts=(f"X={tmp_path}",))
    assert experiment.notes() == ["No chosen table has mcqa/qwen2.5: not measured."]
    assert not [cell for cell in experiment.cells() if cell.name.startswith("given/")]


# Features

TASK = "truth-ioi"


def features(folder: Path, **sites: Any) -> str:
    fit = Fit({load_site(site): own for site, own in sites.items()})
    about = (TASK, "answer", f"{TASK}-trained")
    return str(VariableAlignment(*about, fit=fit).save(folder))


@pytest.mark.slow
def test_what_exchanges_everything_gains_nothing_and_what_exchanges_nothing_loses(
    tmp_path: Path,
) -> None:
    """At a known site of a variable of a ground truth."""
    site, truth = "resid.2@last", f"{TASK}-trained"
    of = {"task": TASK, "variable": "answer", "model": "truth"}
    shape = {**published("mib").models["gpt2"], "dtype": "float32"}
    value = Published("3", "DAS", "ioi.answer/truth", "mib_mean", "77", of, "full-vector")
    wish = Wish(value, shape, truth, own=True, limit=12, seed=0)
    width = load_model(truth).decoder.d_model
    rows: dict[str, dict[str, Any]] = {}
    held = {"all": Identity(width), "none": Directions(torch.zeros(width, 0))}
    for name, featurizer in held.items():
        path = features(tmp_path / name, **{site: featurizer})
        (piece,) = VariablesRunner().given(wish, path)
        (record,) = run(piece.experiment, tmp_path / f"run-{name}", progress=SILENT).records
        (rows[name],) = gains_table("X", value.column, record, "", given=True).rows()
    assert rows["all"]["gain"] == rows["all"]["layers"] == 0
    assert rows["all"]["gain low"] < 0 < rows["all"]["gain high"]
    assert rows["none"]["accuracy"] == rows["none"]["nothing"]
    assert rows["none"]["gain"] == rows["none"]["nothing"] - rows["none"]["full"]
    assert rows["all"]["full"] == rows["none"]["full"] > rows["none"]["nothing"]
    assert rows["none"]["gain high"] < 0
    cell = ReproductionExperiment("adversarial", ("1",)).cells()[0]
    made = _record(cell, [], [], [gains_table("X", value.column, record, "weights", given=True)])
    (table,) = ReproductionPage().tables(Report([made]))
    assert table.title == "Gain over the whole vector at the same site"
    assert table.texts[0][0] == "X of others" and "other model" in table.texts[0]
    # Nothing of the board: at all sites of its layer that were measured there are features.
    assert table.texts[0][8] == NOTHING
