"""One door: what the commands take, Python takes, and errors are one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mechassay as ma
from mechassay import version
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.graph_files import write_graph_file
from mechassay.errors import BadUsage, GraphMismatch, UnknownName
from mechassay.models.model import Model
from mechassay.models.objectives import load_objective
from mechassay.models.sources import MADE_TRUTHS, truth_names
from mechassay.prompts.batch import Batch
from mechassay.tasks import TASKS, TRUTHS
from mechassay.truth.ground_truth import truth_folder
from mechassay.utils.display import SILENT

NAME = "truth-ioi"


@pytest.fixture(scope="module")
def model() -> Model:
    return ma.load_model(NAME)


def test_lists_have_what_can_be_loaded() -> None:
    assert {*truth_names(), *MADE_TRUTHS} == set(TRUTHS.names())
    assert {"smollm2-135m", NAME} <= set(ma.list_models())
    assert ma.list_tasks() == [*TASKS.names(), *TRUTHS.names()]
    assert all(ma.load_task(name).sizes for name in ma.list_tasks())
    assert all(ma.load_method(name).name for name in ma.list_methods())
    assert all(load_objective(name).name == name for name in ma.list_objectives())
    assert "recovery" in ma.list_metrics()


def test_a_model_and_a_task_by_name_or_path(model: Model, tmp_path: Path) -> None:
    assert model.name == NAME
    assert ma.load_model(truth_folder(NAME)).graph == model.graph
    pairs = ma.load_task(NAME).pairs("test", model, limit=3)
    file = tmp_path / "pairs.jsonl"
    row = '{"clean": "a b c", "counterfactual": "a d c", "answer": " x", "foil": " y"}\n'
    file.write_text(row, encoding="utf-8")
    assert ma.load_task(file).name == ma.load_task(str(file)).name
    assert len(pairs) == 3


def test_methods_take_settings_in_the_name_and_by_keyword() -> None:
    assert ma.load_method("eap-ig-inputs:steps=3") == ma.circuits.EAPIGInputs(steps=3)
    assert ma.load_method("eap-ig-inputs:steps=3", steps=4) == ma.circuits.EAPIGInputs(steps=4)
    with pytest.raises(UnknownName, match="Did you mean 'eap'"):
        ma.load_method("eapp")


def test_a_plain_function_is_an_objective(model: Model) -> None:
    pairs = ma.load_task(NAME).pairs("train", model, limit=4)

    def difference(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        right = logits.gather(1, batch.answers[:, :1])[:, 0]
        return right - logits.gather(1, batch.foils[:, :1])[:, 0]

    method = ma.load_method("eap")
    own = method.score(model, pairs, difference, progress=SILENT)
    known = method.score(model, pairs, "logit_diff", progress=SILENT)
    assert own.provenance["objective"] == "difference"
    torch.testing.assert_close(own.values, known.values, equal_nan=True)


def test_scores_and_circuits_are_read_whatever_wrote_them(model: Model, tmp_path: Path) -> None:
    scores = ma.load_method("random").score(model, ma.load_task(NAME).pairs("train", model)[:2])
    scores.save(tmp_path / "s.safetensors")
    write_graph_file(tmp_path / "s.json", scores, d_model=model.decoder.d_model)
    for name in ("s.safetensors", "s.json"):
        again = ma.load_scores(tmp_path / name, model.graph)
        torch.testing.assert_close(again.values, scores.values, equal_nan=True)
    circuit = ma.load_circuit("truth", model)
    assert len(circuit) == 9
    circuit.save(tmp_path / "c.safetensors")
    assert ma.load_circuit(tmp_path / "c.safetensors") == circuit
    assert ma.load_circuit(tmp_path / "c.safetensors", model) == circuit
    assert len(ma.load_circuit("random@20", model.graph)) == 20
    assert ma.load_circuit("full", model) == Circuit.full(model.graph)
    with pytest.raises(GraphMismatch, match="the circuit belongs to"):
        ma.load_circuit(tmp_path / "c.safetensors", ma.Graph(2, 2))
    with pytest.raises(BadUsage, match="cut from scores"):
        ma.load_circuit("eap@10", model)


BAD = """
import mechassay as ma
from pathlib import Path
from mechassay.utils.display import SILENT
model = ma.load_model("truth-ioi")
pair = ma.load_task("truth-ioi").pairs("train", model, limit=2)
method = ma.load_method("eap")
batch = ma.Batch.from_tokens
calls = [
    lambda: method.score(model, "ioi"),
    lambda: method.score(model, 3),
    lambda: method.score(model, [1, 2]),
    lambda: method.score(model, pair, 3),
    lambda: method.score(model, pair, lambda logits, batch: 1.0, progress=SILENT),
    lambda: method.score(model, batch([[1, 2]], [[1, 9999]], [3], [4])),
    lambda: method.score(model, batch([[1] * 99], [[2] * 99], [3], [4])),
    lambda: ma.circuits.EAPIGInputs(steps=2.5),
    lambda: ma.load_model(Path("/nowhere")),
    lambda: ma.load_model(3),
    lambda: ma.load_model("truth-oi"),
    lambda: ma.load_task(3),
    lambda: ma.load_task("truth-oi"),
]
for call in calls:
    try:
        print("accepted", call())
    except ma.MechassayError as error:
        print(error)
"""
SAID = [
    "load_task('ioi').pairs('train', model); got 'ioi'",
    "task.pairs('train', model); got 3",
    "task.pairs('train', model); got 1",
    "An objective is a name",
    "must return a tensor with one number per example",
    "token id 9999",
    "has 99 tokens; truth-ioi has 16 positions",
    "The setting steps of eap-ig-inputs is of type int; got 2.5",
    "/nowhere: there is no such folder; expected one with a model",
    "a name, a path or a Hugging Face model in memory; got 3",
    "Did you mean 'truth-ioi'?",
    "a name or a path; got 3",
    "Did you mean 'truth-ioi'?",
]


@pytest.mark.slow
def test_mistakes_are_one_line_each() -> None:
    # In a fresh interpreter, without the tests' check of every annotated type.
    source = str(Path(version.__file__).parents[1])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", BAD],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(SAID), done.stdout
    for said, expected in zip(lines, SAID, strict=True):
        assert expected in said
