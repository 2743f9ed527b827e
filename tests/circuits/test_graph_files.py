"""Graph files of EAP-IG and MIB: the golden ones, round trips, and files that must be refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from helpers.tiny_models import quiet_model
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.graph_files import (
    GraphFile,
    convert_graph_file,
    read_graph_file,
    write_graph_file,
)
from mechassay.circuits.methods.random import Random
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadFile, BadUsage, GraphMismatch, MechassayError, NonFinite
from mechassay.models.graph import Graph
from mechassay.models.model import make_model
from mechassay.prompts.batch import Batch

GOLDEN = Path(__file__).parents[1] / "golden"
JSON, PT = GOLDEN / "gpt2_tiny_eapig_importances.json", GOLDEN / "gpt2_tiny_eapig_importances.pt"
ENDINGS = [".json", ".pt"]
SMALL = Graph(2, 2)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads((GOLDEN / "gpt2_tiny.json").read_text(encoding="utf-8"))


# Files of the public code


@pytest.mark.parametrize("path", [JSON, PT], ids=ENDINGS)
def test_golden_files_hold_the_golden_scores_and_circuit(
    path: Path, golden: dict[str, Any]
) -> None:
    file = read_graph_file(path, Graph(3, 4))
    assert file.scores is not None and file.circuit is not None
    ours = np.array([float(file.scores.values[file.graph.index(name)]) for name in golden["edges"]])
    np.testing.assert_allclose(ours, golden["scores"]["eap_ig_inputs_5"], rtol=1e-6)
    assert int(file.scores.scored().sum()) == 262
    assert file.circuit == file.scores.top(60, by="magnitude").pruned()
    assert set(file.circuit.names()) == set(golden["eval"]["eap_ig_inputs_5|abs=True|n=60"]["kept"])
    assert file.d_model == 48
    assert (
        file.weighted_edge_count()
        == golden["eval"]["eap_ig_inputs_5|abs=True|n=60"]["weighted_edge_count"]
    )


def test_the_golden_circuit_gives_the_golden_metric(golden: dict[str, Any]) -> None:
    hf = quiet_model(GPT2LMHeadModel, GPT2Config(**golden["config"]))
    hf.load_state_dict(load_file(GOLDEN / "gpt2_tiny.safetensors"))
    model, labels = make_model(hf), torch.tensor(golden["labels"])
    batch = Batch.from_tokens(golden["clean"], golden["corrupted"], labels[:, 0], labels[:, 1])
    circuit = read_graph_file(PT, model.graph).circuit
    assert circuit is not None
    expected = golden["eval"]["eap_ig_inputs_5|abs=True|n=60"]["per_example"]
    np.testing.assert_allclose(evaluate(model, circuit, batch), expected, atol=3e-5)


def test_golden_files_are_written_as_they_were(tmp_path: Path) -> None:
    read_graph_file(PT).write(tmp_path / "ours.json")
    # Text equality: names, their order, every digit and every flag.
    assert (tmp_path / "ours.json").read_text() == JSON.read_text()
    read_graph_file(JSON).write(tmp_path / "ours.pt")
    ours, theirs = (torch.load(path, weights_only=True) for path in (tmp_path / "ours.pt", PT))
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        assert (
            torch.equal(ours[key], value) if isinstance(value, torch.Tensor) else ours[key] == value
        ), key


# Round trips


def circuit_of(scores: EdgeScores, n: int = 20) -> Circuit:
    return scores.top(n, by="magnitude").pruned()


@pytest.mark.parametrize("graph", [SMALL, Graph(3, 2, parallel=True), Graph(1, 1)], ids=str)
@pytest.mark.parametrize("ending", ENDINGS)
def test_round_trip_is_exact(graph: Graph, ending: str, tmp_path: Path) -> None:
    scores, path = Random(seed=3).draw(graph), tmp_path / f"graph{ending}"
    circuit = Circuit.full(graph)
    write_graph_file(path, scores, circuit, d_model=8)
    file = read_graph_file(path, graph)
    assert file.scores is not None
    assert torch.equal(file.scores.values.nan_to_num(9), scores.values.nan_to_num(9))
    assert file.circuit == circuit
    assert (file.graph, file.d_model) == (graph, 8)
    assert not list(tmp_path.glob("*partial*"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_one_of_scores_and_circuit_may_be_absent(ending: str, tmp_path: Path) -> None:
    scores, path = Random().draw(SMALL), tmp_path / f"graph{ending}"
    write_graph_file(path, scores, d_model=8)
    assert read_graph_file(path).circuit is None
    write_graph_file(path, circuit=circuit_of(scores), d_model=8)
    file = read_graph_file(path)
    assert file.scores is None
    assert file.circuit == circuit_of(scores)


def test_edges_without_a_score(tmp_path: Path) -> None:
    values = Random().draw(SMALL).values.clone()
    values[SMALL.index("a0.h1->m1")] = float("nan")
    scores = EdgeScores(SMALL, values)
    write_graph_file(tmp_path / "some.json", scores, d_model=8)
    read = read_graph_file(tmp_path / "some.json").scores
    assert read is not None
    assert torch.equal(read.values.nan_to_num(9), values.nan_to_num(9))
    with pytest.raises(BadUsage, match=r"1 edges have no score.*\.json"):
        write_graph_file(tmp_path / "some.pt", scores, d_model=8)
    with pytest.raises(BadUsage, match="1 edges of the circuit have no score"):
        write_graph_file(tmp_path / "both.json", scores, Circuit.full(SMALL), d_model=8)


def with_neurons() -> GraphFile:
    generator = torch.Generator().manual_seed(0)
    shape = (SMALL.n_writers, 4)
    node_scores, neuron_scores = (
        torch.randn(shape[0], generator=generator),
        torch.randn(shape, generator=generator),
    )
    node_scores[2] = neuron_scores[1, 1] = float("nan")
    scores = Random().draw(SMALL)
    circuit = Circuit(SMALL, circuit_of(scores).edges, torch.rand(shape, generator=generator) < 0.5)
    return GraphFile(SMALL, 4, scores, circuit, node_scores, neuron_scores)


@pytest.mark.parametrize("endings", [(".json", ".pt"), (".pt", ".json")])
def test_nodes_and_neurons_survive_conversion(endings: tuple[str, str], tmp_path: Path) -> None:
    file, first, second = (
        with_neurons(),
        tmp_path / f"first{endings[0]}",
        tmp_path / f"second{endings[1]}",
    )
    file.write(first)
    convert_graph_file(first, second)
    read = read_graph_file(second)
    for name in ("node_scores", "neuron_scores", "neurons"):
        ours, theirs = getattr(file, name), getattr(read, name)
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(
            ours.nan_to_num(0), theirs.nan_to_num(0)
        ), name
    assert read.circuit == file.circuit
    assert read.weighted_edge_count() == pytest.approx(file.weighted_edge_count())


def test_weighted_edge_count_by_hand() -> None:
    circuit = Circuit.from_names(SMALL, ["input->logits", "input->m0", "m0->logits"])
    neurons = torch.ones(SMALL.n_writers, 4, dtype=torch.bool)
    neurons[SMALL.writer("m0")] = torch.tensor([True, False, False, False])
    assert (
        GraphFile(SMALL, 4, circuit=Circuit(SMALL, circuit.edges, neurons)).weighted_edge_count()
        == 2.25
    )
    assert GraphFile(SMALL, 4, circuit=circuit).weighted_edge_count() == 3
    assert GraphFile(SMALL, 4).weighted_edge_count() == 0


def test_neurons_of_another_width_are_refused(tmp_path: Path) -> None:
    circuit = Circuit.of_neurons(SMALL, torch.ones(SMALL.n_writers, 4, dtype=torch.bool))
    with pytest.raises(BadUsage, match="d_model is 8, but the circuit has 4 neurons a node"):
        write_graph_file(tmp_path / "wide.pt", circuit=circuit, d_model=8)
    write_graph_file(tmp_path / "fits.pt", circuit=circuit, d_model=4)
    assert torch.load(tmp_path / "fits.pt", weights_only=True)["neurons_in_graph"].all()


# Order


def test_order_of_edges_by_hand(tmp_path: Path) -> None:
    def order(graph: Graph) -> list[str]:
        write_graph_file(tmp_path / "order.json", Random().draw(graph), d_model=1)
        return list(json.loads((tmp_path / "order.json").read_text())["edges"])

    head = [f"input->a0.h0<{slot}>" for slot in "qkv"]
    last = ["input->logits", "a0.h0->logits", "m0->logits"]
    assert order(Graph(1, 1)) == [*head, "input->m0", "a0.h0->m0", *last]
    assert order(Graph(1, 1, parallel=True)) == [*head, "input->m0", *last]


def test_json_is_read_by_name(tmp_path: Path) -> None:
    data = json.loads(JSON.read_text())
    data["edges"] = dict(reversed(data["edges"].items()))
    data["nodes"] = dict(reversed(data["nodes"].items()))
    same_as_golden(save_json(tmp_path, data))


def test_pt_is_read_by_name(tmp_path: Path) -> None:
    data = torch.load(PT, weights_only=True)
    rows = torch.randperm(len(data["src_nodes"]), generator=torch.Generator().manual_seed(1))
    columns = torch.randperm(len(data["dst_nodes"]), generator=torch.Generator().manual_seed(2))
    data["src_nodes"] = [data["src_nodes"][i] for i in rows]
    data["dst_nodes"] = [data["dst_nodes"][i] for i in columns]
    for key in ("edges_scores", "edges_in_graph"):
        data[key] = data[key][rows][:, columns]
    same_as_golden(save_pt(tmp_path, data))


def test_places_without_an_edge_are_not_looked_at(tmp_path: Path) -> None:
    data = torch.load(PT, weights_only=True)
    illegal = ~Graph(3, 4).legal
    data["edges_in_graph"] |= illegal
    data["edges_scores"][illegal] = float("nan")
    same_as_golden(save_pt(tmp_path, data))


def same_as_golden(path: Path) -> None:
    ours, theirs = read_graph_file(path), read_graph_file(PT)
    assert ours.scores is not None and theirs.scores is not None
    assert torch.equal(ours.scores.values.nan_to_num(9), theirs.scores.values.nan_to_num(9))
    assert ours.circuit == theirs.circuit


def save_json(folder: Path, data: Any) -> Path:
    path = folder / "changed.json"
    path.write_text(json.dumps(data))
    return path


def save_pt(folder: Path, data: Any) -> Path:
    path = folder / "changed.pt"
    torch.save(data, path)
    return path


# Files that must be refused


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


def drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return change


EDGE = ("edges", "input->m0")
BAD_JSON = [
    (drop("nodes"), "lacks nodes"),
    (put("edges", value=[]), "must be objects"),
    (put("cfg", value=3), "cfg must map"),
    (put("cfg", "n_heads", value=True), "positive integers"),
    (put("cfg", "n_layers", value=0), "positive integers"),
    (put("cfg", "parallel_attn_mlp", value=0), "true or false"),
    (put("cfg", "n_layers", value=10**9), "more than any model"),
    (put("cfg", "n_layers", value=2), r"edges are not in the graph: .*and \d+ more"),
    (
        put("edges", "m2->m1", value={"score": 1.0, "in_graph": False}),
        "1 edges are not in the graph: m2->m1",
    ),
    (
        put("edges", "a0.h0->blocks.1.hook_mlp_in", value={"score": 1.0, "in_graph": False}),
        "1 edges are not in the graph",
    ),
    (put("nodes", "a7.h0", value={"in_graph": True}), "1 nodes are not in the graph: a7.h0"),
    (put("nodes", "m0", value=True), "nodes are not objects with in_graph: m0"),
    (put("nodes", "m0", "in_graph", value="yes"), "in_graph of nodes are not true or false: m0"),
    (put("nodes", "m0", "score", value=float("inf")), "scores of nodes are not finite: m0"),
    (put("nodes", "m0", "neurons", value=[True]), "lists of d_model = 48 values: m0"),
    (put("nodes", "m0", "neurons", value=[1] * 48), "neurons are not true or false: m0"),
    (put(*EDGE, value=0.5), "edges are not objects with score and in_graph: input->m0"),
    (put(*EDGE, "score", value=float("nan")), "1 scores of edges are not finite: input->m0"),
    (put(*EDGE, "score", value=float("-inf")), "1 scores of edges are not finite: input->m0"),
    (put(*EDGE, "score", value=1e300), "1 scores of edges are not finite: input->m0"),
    (put(*EDGE, "score", value=10**400), "too large"),
    (put(*EDGE, "score", value="0.5"), "1 scores of edges are not numbers: input->m0"),
    (put(*EDGE, "score", value=True), "1 scores of edges are not numbers: input->m0"),
    (put(*EDGE, "in_graph", value=1), "1 in_graph of edges are not true or false: input->m0"),
    (drop(*EDGE, "in_graph"), "1 in_graph of edges are not true or false: input->m0"),
]


@pytest.mark.parametrize(("change", "message"), BAD_JSON, ids=[message for _, message in BAD_JSON])
def test_bad_json(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    data = json.loads(JSON.read_text())
    change(data)
    refused(save_json(tmp_path, data), message)


BAD_PT = [
    (drop("edges_in_graph"), "lacks edges_in_graph"),
    (put("cfg", "d_model", value=torch.tensor(48)), "positive integers"),
    (put("src_nodes", value="abc"), "src_nodes must be a list of names"),
    (put("src_nodes", value=["input"] * 16), "src_nodes has a name twice"),
    (
        put("dst_nodes", value=[f"x{i}" for i in range(40)]),
        "40 dst_nodes are not in the graph: x0, x1, x2 and 37 more",
    ),
    (put("edges_scores", value=[1.0]), "edges_scores is not an ordinary tensor"),
    (put("edges_scores", value=torch.ones(16, 39)), r"shape \(16, 39\).*\(16, 40\)"),
    (
        put("edges_scores", value=torch.ones(16, 40, dtype=torch.int64)),
        "int64; expected floating-point",
    ),
    (
        put("edges_scores", value=torch.full((16, 40), float("nan"))),
        "262 scores of edges are not finite",
    ),
    (
        put("edges_scores", value=torch.full((16, 40), 1e300, dtype=torch.float64)),
        "262 scores of edges are not finite",
    ),
    (put("edges_scores", value=torch.ones(16, 40).to_sparse()), "not an ordinary tensor"),
    (
        put("edges_scores", value=torch.ones(1, 1).expand(16, 40)),
        "claims more values than the file holds",
    ),
    (put("edges_scores", value=torch.ones(16, 40, device="meta")), "not an ordinary tensor"),
    (put("edges_in_graph", value=torch.ones(16, 40)), "float32; expected boolean"),
    (put("nodes_in_graph", value=torch.ones(16, dtype=torch.uint8)), "uint8; expected boolean"),
    (
        put("neurons_in_graph", value=torch.ones(16, 47).bool()),
        r"neurons_in_graph has shape \(16, 47\)",
    ),
    (
        put("nodes_scores", value=torch.full((16,), float("inf"))),
        "nodes_scores has infinite values",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD_PT, ids=[message for _, message in BAD_PT])
def test_bad_pt(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    data = torch.load(PT, weights_only=True)
    change(data)
    refused(save_pt(tmp_path, data), message)


def refused(path: Path, message: str, kind: type[MechassayError] = BadFile) -> None:
    with pytest.raises(kind, match=message) as caught:
        read_graph_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_edge_twice(tmp_path: Path) -> None:
    path = tmp_path / "twice.json"
    path.write_text(
        JSON.read_text().replace(
            '"edges": {', '"edges": {"input->m0": {"score": 7.0, "in_graph": true}, '
        )
    )
    refused(path, "1 edges occur more than once")


@pytest.mark.parametrize(
    "content", [b"", JSON.read_bytes()[:5000], b"\xff\xfe\xfa", b"[" * 200_000, b"[1]"]
)
def test_broken_json(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    refused(path, "not readable as JSON|not a graph file")


@pytest.mark.parametrize(
    "content", [b"", PT.read_bytes()[:3000], b"\xff\xfe\xfa", JSON.read_bytes()]
)
def test_broken_pt(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.pt"
    path.write_bytes(content)
    refused(path, "not a PyTorch archive|not a readable PyTorch archive")


def test_other_graph_missing_file_and_ending(tmp_path: Path) -> None:
    for path in (JSON, PT):
        with pytest.raises(
            GraphMismatch, match=r"3 layers and 4 heads.*parallel model of 3 layers"
        ):
            read_graph_file(path, Graph(3, 4, parallel=True))
    refused(tmp_path / "none.json", "no such file")
    refused(tmp_path / "none.safetensors", r"\.json or \.pt", BadUsage)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    scores, path = Random().draw(SMALL), tmp_path / "x.json"
    with pytest.raises(BadUsage, match="got neither"):
        write_graph_file(path, d_model=8)
    with pytest.raises(BadUsage, match="d_model"):
        write_graph_file(path, scores, d_model=0)
    with pytest.raises(GraphMismatch, match="one file holds one graph"):
        write_graph_file(path, scores, Circuit.full(Graph(1, 2)), d_model=8)
    with pytest.raises(BadUsage, match="attention-only"):
        write_graph_file(path, Random().draw(Graph(2, 2, mlp=False)), d_model=8)
    values = scores.values.clone()
    values[SMALL.index("input->m0")] = float("inf")
    with pytest.raises(NonFinite, match="input->m0"):
        write_graph_file(path, EdgeScores(SMALL, values), d_model=8)
    assert not list(tmp_path.iterdir())


# Files with code inside


class Evil:
    """Unpickling this creates a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def bare_pickle(path: Path, evil: Evil) -> None:
    path.write_bytes(pickle.dumps({"cfg": evil}))


def archive(path: Path, evil: Evil) -> None:
    torch.save({**torch.load(PT, weights_only=True), "extra": evil}, path)


def legacy(path: Path, evil: Evil) -> None:
    torch.save({"cfg": evil}, path, _use_new_zipfile_serialization=False)


def legacy_tar(path: Path, evil: Evil) -> None:
    content = pickle.dumps({"cfg": evil})
    with tarfile.open(path, "w") as tar:
        for name in ("storages", "tensors", "pickle"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def tar_before_zip(path: Path, evil: Evil) -> None:
    legacy_tar(path, evil)
    with zipfile.ZipFile(path, "a") as zipped:
        zipped.writestr("archive/data.pkl", b"")


@pytest.mark.parametrize("make", [bare_pickle, archive, legacy, legacy_tar, tar_before_zip])
def test_code_in_a_file_is_refused_and_not_run(
    make: Callable[[Path, Evil], None], tmp_path: Path
) -> None:
    path, target = tmp_path / "evil.pt", tmp_path / "created"
    make(path, Evil(target))
    with pytest.raises(BadFile, match="refused.*nothing was run") as caught:
        read_graph_file(path)
    assert "\n" not in str(caught.value)
    assert not target.exists()
    # The files do what they are feared for.
    if make is archive:
        assert "mkdir" in str(caught.value)
        torch.load(path, weights_only=False)
        assert target.exists()


def test_a_damaged_pickle_gives_no_advice_to_unpickle_it(tmp_path: Path) -> None:
    path = tmp_path / "damaged.pt"
    with zipfile.ZipFile(PT) as source, zipfile.ZipFile(path, "w") as zipped:
        for name in source.namelist():
            zipped.writestr(
                name, b"\x80\x02}q\x00(" if name.endswith("data.pkl") else source.read(name)
            )
    with pytest.raises(BadFile, match="not a readable PyTorch archive of plain data") as caught:
        read_graph_file(path)
    assert "weights_only" not in str(caught.value)


def test_programs_and_compressed_archives_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "program.pt", "w") as zipped:
        zipped.writestr("archive/constants.pkl", b"")
    refused(tmp_path / "program.pt", "TorchScript program")
    with (
        zipfile.ZipFile(PT) as source,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as zipped,
    ):
        for name in source.namelist():
            zipped.writestr(name, source.read(name))
    refused(tmp_path / "packed.pt", "compressed records")
