"""Each table of the papers that is run, one cell of it, on small models in place of the published.

Models have the published families; their tokenizers know the words of the tasks. SmolLM2-135M reads
tasks whose answers are letters or numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import transformers

from helpers import tiny_models
from helpers.models import word_tokenizer, write_small_gpt2
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.graph_files import GraphFile
from mechassay.gym.names import FAMILY_OF
from mechassay.models.graph import Graph
from mechassay.models.model import load_model
from mechassay.models.weight_files import is_fetched
from mechassay.reproduction.comparison import comparisons_of
from mechassay.reproduction.experiment import ReproductionExperiment
from mechassay.reproduction.published import Published, published
from mechassay.reproduction.runners import VariablesRunner, Wish
from mechassay.reproduction.status import verdict
from mechassay.runs.executors import Here
from mechassay.runs.run import opened, read_report, run
from mechassay.tasks import load_task
from mechassay.testing import tiny
from mechassay.utils.display import SILENT

REAL_MODEL = "smollm2-135m"
FAMILIES = {"gpt2": "gpt2", "qwen2.5": "qwen2", "gemma2": "gemma2", "llama3.1": "llama"}
"""Of MIB's models, as `mechassay.testing` calls them."""
WIDTH = 4
"""Of a head."""
LAYERS = 2
"""Random rankings of all edges of the published depths would take minutes to hours."""
real = pytest.mark.skipif(not is_fetched(REAL_MODEL), reason=f"{REAL_MODEL} is not fetched")


def shaped_model(folder: Path, name: str, tokenizer: Any) -> str:
    """The folder of a random model with the heads of one of MIB's, in groups as there; of two
    layers, with tiny widths.
    """
    shape = published("mib").models[name]
    layers, heads = LAYERS, shape["heads"]
    sizes = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shape.get("key_heads", heads),
        "hidden_size": heads * WIDTH,
        "head_dim": WIDTH,
        "max_position_embeddings": 256,
    }
    if name == "gpt2":
        sizes = {"n_layer": layers, "n_head": heads, "n_embd": heads * WIDTH, "n_positions": 256}
    config = tiny.configs()[FAMILIES[name]].to_dict()
    # What follows from the number of layers is made anew.
    plain = {key: value for key, value in config.items() if key != "layer_types"}
    kind = transformers.AutoConfig.for_model(config["model_type"])
    made = type(kind)(**{**plain, **sizes, "vocab_size": len(tokenizer)})
    model = tiny.random_model(made)
    for weights in model.parameters():
        # Large ones make chaos, in which bfloat16 has no digit left.
        weights.mul_(0.3 if weights.ndim > 1 else 1.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def ends_with_numbers(
    experiment: ReproductionExperiment, output: Path, keys: tuple[str, ...], tables: set[str]
) -> None:
    """Run the cells of these methods; every number is that of another model."""
    worker = opened(experiment, output, progress=SILENT)
    kept = [cell for cell in experiment.cells() if cell.typed.get("key") in keys]
    assert kept
    Here().map(experiment, [kept], worker)
    results = read_report(worker.folder, experiment.cells())
    assert not results.failures, results.failures[0].message
    rows = comparisons_of(results.records)
    assert {own.table for own in rows} == tables
    for own in rows:
        assert own.verdict().status in ("other model", "not run")
    assert any(math.isfinite(own.ours.value) for own in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other", "tables"),
    [
        ("gpt2", "", {"1", "2", "11", "14"}),
        ("qwen2.5", "mcqa", {"1", "2", "11", "12", "14"}),
        ("gemma2", "arc-easy", {"1", "2", "11", "13", "14"}),
        ("llama3.1", "arithmetic-addition", {"1", "2", "11", "14", "17"}),
    ],
)
def test_circuits_and_accuracies_of_every_model_of_mib(
    name: str, other: str, tables: set[str], tmp_path: Path
) -> None:
    """Of IOI and one more task, whose words are all that the tokenizer knows."""
    tasks = [load_task(task) for task in ("ioi", other) if task]
    tokenizer = word_tokenizer(*tasks, splits=("train", "validation", "test"))
    folder = shaped_model(tmp_path / "model", name, tokenizer)
    columns = tuple(f"{task}/{name}" for task in ("ioi", other) if task)
    experiment = ReproductionExperiment("mib", (), columns, (f"{name}={folder}",), limit=3)
    keys = ("eap", "eap:ablation=mean", "nap", "ifr", "accuracy")
    ends_with_numbers(experiment, tmp_path / "run", keys, tables)


@pytest.mark.slow
@pytest.mark.real
@real
@pytest.mark.parametrize(
    ("column", "keys", "tables"),
    [
        ("arithmetic-addition/llama3.1", ("accuracy",), {"1"}),
        ("mcqa/qwen2.5", ("accuracy",), {"1", "11", "12"}),
        ("arc-easy/gemma2", ("accuracy",), {"1", "11", "13"}),
    ],
)
def test_tasks_of_mib(column: str, keys: tuple[str, ...], tables: set[str], tmp_path: Path) -> None:
    name = column.rpartition("/")[2]
    experiment = ReproductionExperiment("mib", (), (column,), (f"{name}={REAL_MODEL}",), limit=4)
    ends_with_numbers(experiment, tmp_path / "run", keys, tables)


@pytest.mark.slow
def test_auroc_of_interpbench(tmp_path: Path) -> None:
    """Of its size, with a circuit of its own."""
    folder, graph = tmp_path / "model", Graph(6, 4)
    tiny_models.write_interpbench(folder)
    tiny_models.with_words()[1].save_pretrained(folder)
    names = ["input->a0.h1<v>", "a0.h1->a4.h2<k>", "a4.h2->logits", "input->a4.h2<q>"]
    file = GraphFile(graph, 64, circuit=Circuit.from_names(graph, names))
    file.write(folder / "interpbench_graph.json")
    given = (f"interpbench={folder}",)
    experiment = ReproductionExperiment("mib", ("2",), ("interpbench",), given, limit=4)
    ends_with_numbers(experiment, tmp_path / "run", ("eap", "nap", "ifr"), {"2"})


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ioi", "greater-than"])
@pytest.mark.parametrize("pairs", ["unmatched", "matched"])
def test_divergences(task: str, pairs: str, tmp_path: Path) -> None:
    folder = write_small_gpt2(tmp_path / "model")
    column, table = f"{task}-{pairs}", "3" if pairs == "unmatched" else "7"
    given = (f"gpt2={folder}",)
    experiment = ReproductionExperiment("adversarial", (), (column,), given, limit=8)
    ends_with_numbers(experiment, tmp_path / "run", ("",), {table})


@pytest.mark.slow
@pytest.mark.parametrize(("pairs", "table"), [("unmatched", "3"), ("matched", "7")])
def test_divergences_of_docstring(pairs: str, table: str, tmp_path: Path) -> None:
    """The attention-only model is a checkpoint in TransformerLens' layout, of its heads and
    layers.
    """
    shape = published("adversarial").models["attn-only-4l"]
    tokenizer = word_tokenizer(load_task("docstring"), splits=("train", "validation", "test"))
    tiny_models.write_attn_only(
        tmp_path / "model",
        n_layers=shape["layers"],
        n_heads=shape["heads"],
        d_head=WIDTH,
        vocabulary=len(tokenizer),
    )
    tokenizer.save_pretrained(tmp_path / "model")
    given = (f"attn-only-4l={tmp_path / 'model'}",)
    experiment = ReproductionExperiment("adversarial", (), (f"docstring-{pairs}",), given, limit=8)
    ends_with_numbers(experiment, tmp_path / "run", ("",), {table})


HEADS = {4: "pythia-14m", 8: "pythia-70m", 12: "pythia-160m", 16: "pythia-410m", 32: "pythia-2.8b"}
"""A model of CausalGym for each number of heads, by which alone their shapes differ here."""


def test_every_number_of_heads_of_causalgym_has_a_model() -> None:
    models = published("causalgym").models
    assert {shape["heads"] for shape in models.values()} == set(HEADS)
    assert all(models[name]["heads"] == heads for heads, name in HEADS.items())


@pytest.mark.slow
@pytest.mark.parametrize("heads", HEADS)
def test_gym_tasks(heads: int, tmp_path: Path) -> None:
    tokenizer = load_model("gym-neox").tokenizer
    config = transformers.GPTNeoXConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        hidden_size=heads * WIDTH,
        intermediate_size=2 * heads * WIDTH,
        max_position_embeddings=64,
    )
    tiny.random_model(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    name = HEADS[heads]
    column, given = f"agr_gender/{name}", (f"{name}={tmp_path / 'model'}",)
    experiment = ReproductionExperiment("causalgym", (), (column,), given, limit=8)
    tables = published("causalgym").tables
    has = {own.table for own in tables if column in {value.column for value in own.values}}
    ends_with_numbers(experiment, tmp_path / "run", ("",), has)


@pytest.mark.slow
def test_sweeps_of_settings_over_gym_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three of the 29 tasks, which take the same way."""
    few = dict(islice(FAMILY_OF.items(), 3))
    monkeypatch.setattr("mechassay.reproduction.runners.FAMILY_OF", few)
    experiment = ReproductionExperiment(
        "causalgym", ("2",), ("sweep/pythia-70m",), ("pythia-70m=gym-neox",), limit=4
    )
    ends_with_numbers(experiment, tmp_path / "run", ("pca-mean",), {"2"})


@pytest.mark.slow
def test_interchange_accuracies(tmp_path: Path) -> None:
    """No packaged model answers MIB's own tasks, so a ground truth's stands in for them."""
    of = {"task": "truth-mcqa-trained", "variable": "answer_pointer", "model": "truth"}
    shape = {**published("mib").models["gpt2"], "dtype": "float32"}
    value = Published("3", "DAS", "mcqa/truth", "mib_mean", "77", of, "full-vector")
    wish = Wish(value, shape, "truth-mcqa-trained", own=True, limit=12, seed=0)
    runner = VariablesRunner()
    (piece,) = runner.pieces(wish)
    results = run(piece.experiment, tmp_path / "run", progress=SILENT)
    mean = runner.ours(value, results.records)
    best = runner.ours(replace(value, measure="mib_highest"), results.records)
    assert 0 <= mean.value <= best.value <= 100 and best.value > 50
    # The rule chooses on the test pairs: there is no interval, and nothing is reproduced.
    assert math.isnan(mean.low)
    assert verdict("77", mean, n=None, span=100.0).status == "too few to tell"
