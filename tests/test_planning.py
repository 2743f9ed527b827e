"""What each kind of run takes: bytes and operations worked by hand, and what they grow with."""

from __future__ import annotations

import math
import socket
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from helpers.experiments import SMALL_EXPERIMENTS
from helpers.models import USUAL, families
from mechassay import planning
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.eap import EAP, EAPIGInputs
from mechassay.circuits.methods.mask_learning import SubnetworkProbing
from mechassay.circuits.methods.method import token_bytes
from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadUsage
from mechassay.interventions.patching import PatchExperiment
from mechassay.models.forward import Contrast
from mechassay.models.graph import Graph
from mechassay.models.memory import CPU_BUDGET, kept_run_bytes
from mechassay.models.model import make_model, outline
from mechassay.prompts.batch import Batch
from mechassay.runs import COSTS
from mechassay.runs.costs import CHUNK, FreeMemory, ModelSize, PromptSizes, Work
from mechassay.runs.folder import RunFolder
from mechassay.runs.worker import Worker
from mechassay.testing.tiny import build, configs, token_pairs
from mechassay.utils.display import SILENT

WORKER = Worker(RunFolder(Path()))
MEMORY = FreeMemory(torch.device("cpu"), 2 * 10**10)
LLAMA = LlamaConfig(
    vocab_size=50,
    hidden_size=12,
    intermediate_size=20,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    tie_word_embeddings=True,
)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A folder with a config and nothing else: neither weights nor a tokenizer."""
    LLAMA.save_pretrained(tmp_path / "bare")
    return str(tmp_path / "bare")


def works(experiment: Any, **changes: Any) -> tuple[Work, ...]:
    changed = replace(experiment, **changes)
    return COSTS.load(experiment.kind)(changed, changed.cells(), WORKER).works


def work(experiment: Any, **changes: Any) -> Work:
    """Of the first model."""
    return works(experiment, **changes)[0]


def operations(experiment: Any, **changes: Any) -> float:
    """Of all models."""
    return sum(one.operations for one in works(experiment, **changes))


@pytest.mark.parametrize("kind", sorted(COSTS.built_in.keys() - {"reproduction"}))
def test_every_kind_has_a_cost(kind: str) -> None:
    experiment = SMALL_EXPERIMENTS[kind]
    cost = COSTS.load(kind)(experiment, experiment.cells(), WORKER)
    assert cost.fits
    for one in cost.works:
        assert one.operations > 0
        assert CHUNK * CPU_BUDGET <= one.held < 1e10


LIMITS: list[tuple[str, dict[str, int]]] = [
    ("circuits", {"train_limit": 50, "limit": 50}),
    ("patch", {"limit": 50}),
    ("accuracy", {"limit": 12}),
    ("variables", {"train_limit": 30, "validation_limit": 30, "limit": 30}),
    ("gym", {"train_limit": 16, "validation_limit": 8, "limit": 8}),
]


@pytest.mark.parametrize(("kind", "limits"), LIMITS, ids=[kind for kind, _ in LIMITS])
def test_twice_the_examples_take_twice_the_operations(kind: str, limits: dict[str, int]) -> None:
    """Where trainings have as many steps for any number of examples, less."""
    experiment = replace(SMALL_EXPERIMENTS[kind], **limits)
    twice = operations(experiment, **{name: 2 * n for name, n in limits.items()})
    assert 1.2 < twice / operations(experiment) < 2.2


# --- memory ---------------------------------------------------------------------------------------


def test_a_config_alone_says_the_weights_of_the_model(bare: str) -> None:
    model = outline(bare)
    assert model.device.type == "meta"
    own = LlamaForCausalLM(LLAMA)
    assert model.n_parameters == sum(parameter.numel() for parameter in own.parameters())
    # Norms: seven of 12; a layer: 2 x 12 x 8 + 2 x 12 x 4 + 3 x 12 x 20.
    size = ModelSize.of(model, bare)
    assert size.weights == 50 * 12 + 7 * 12 + 3 * (192 + 96 + 720)
    assert size.body == size.weights - 50 * 12
    assert (size.bytes, size.file_bytes) == (4 * size.weights, 0)
    assert size.graph == make_model(own).graph
    # A file in another dtype is held while it is read.
    size = ModelSize.of(outline(bare, dtype="bfloat16"), bare)
    assert (size.bytes, size.file_bytes) == (2 * size.weights, 4 * size.weights)


@pytest.mark.parametrize("name", families(sorted(configs()), quick=USUAL))
def test_every_family_has_an_outline_like_the_model(name: str, tmp_path: Path) -> None:
    configs()[name].save_pretrained(tmp_path)
    whole = make_model(build(name), check=False)
    empty = outline(str(tmp_path))
    assert empty.n_parameters == whole.n_parameters
    assert empty.graph == whole.graph
    for own in (EAP(), EAPIGInputs()):
        assert token_bytes(own, empty.decoder, 9) == token_bytes(own, whole.decoder, 9)


def test_the_working_set_is_a_chunk_or_the_longest_prompt(bare: str) -> None:
    decoder, size = outline(bare).decoder, ModelSize(1000, 600, 400, Graph(2, 2), 10, 4)
    short = MEMORY.working_set(size, decoder, 10)
    assert short == CHUNK * CPU_BUDGET
    assert MEMORY.working_set(size, decoder, 10, per_token=CPU_BUDGET / 5) == 2 * CPU_BUDGET
    # Longer prompts are run in spans, within what one example may take.
    longest = MEMORY.working_set(size, decoder, 10**9)
    assert longest == MEMORY.working_set(size, decoder, 10**10) < 0.6 * MEMORY.free


def test_masks_are_held_as_tables_beside_the_runs_of_their_pairs(bare: str) -> None:
    decoder = outline(bare).decoder
    size = ModelSize.of(outline(bare), bare)
    probing = METHODS.make("subnetwork-probing")
    held = [
        planning.scoring_bytes(probing, size, decoder, PromptSizes(n, 10, 0.5), MEMORY)
        for n in (100, 200)
    ]
    assert held[1] - held[0] == pytest.approx(100 * 10 * kept_run_bytes(decoder))
    assert held[0] > planning.scoring_bytes(EAP(), size, decoder, PromptSizes(100, 10, 1), MEMORY)


@pytest.mark.parametrize("kind", ["variables", "gym"])
def test_a_model_of_random_weights_is_held_next_to_the_other(kind: str) -> None:
    plain, both = (work(SMALL_EXPERIMENTS[kind], controls=x) for x in ((), ("untrained",)))
    assert both.held == pytest.approx(plain.held + plain.size.bytes)


@pytest.mark.parametrize("what", ["circuits", "masks"])
def test_the_runs_of_one_chunk_are_held_at_a_time(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make_model(build("llama"), check=False), token_pairs(4)
    made: list[weakref.ref[Contrast]] = []
    run = Contrast.run

    def counted(decoder: Any, chunk: Batch, *width: Any) -> Contrast:
        assert not [old for old in made if old() is not None]
        contrast = run(decoder, chunk, *width)
        made.append(weakref.ref(contrast))
        return contrast

    monkeypatch.setattr(Contrast, "run", staticmethod(counted))
    monkeypatch.setattr("mechassay.models.memory.CPU_BUDGET", 1)
    # A training keeps all runs, where they fit.
    monkeypatch.setattr("mechassay.circuits.methods.mask_learning.may_be_kept", lambda *_: False)
    if what == "circuits":
        evaluate(model, Circuit.full(model.graph), batch, progress=SILENT)
    else:
        SubnetworkProbing(steps=3, batch_size=4).score(model, batch, progress=SILENT)
    assert len(made) == len(batch) * (1 if what == "circuits" else 3)


# --- what is read ---------------------------------------------------------------------------------


def circuits(folder: str, *methods: str, **fields: Any) -> CircuitsExperiment:
    return CircuitsExperiment((folder,), ("ioi",), methods=methods or ("eap",), **fields)


def test_nothing_is_downloaded(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr(socket.socket, "connect", refused)
    assert work(circuits(bare)).operations > 0


def test_of_a_hub_model_the_config_alone_is_asked_for(
    bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(name: str, file: str, **_: Any) -> str:
        asked.append(f"{name}/{file}")
        return str(Path(bare) / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert work(circuits("somebody/model")).model == "somebody/model"
    assert asked == ["somebody/model/config.json"]


def test_what_cannot_be_known_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(BadUsage, match="known once it is loaded"):
        work(PatchExperiment((str(file),), ("ioi",)))
    with pytest.raises(BadUsage, match="known once they are drawn"):
        work(SMALL_EXPERIMENTS["adversarial"], enumerate_all=True, design="matched")


# --- operations -----------------------------------------------------------------------------------


def test_what_is_behind_a_site_by_hand() -> None:
    size = ModelSize(1000, 600, 400, Graph(3, 1), 10, 4)
    assert size.plain(5) == 2 * (600 * 5 + 400)
    assert size.behind([0]) == 2 * 600 * 2 / 3
    assert size.behind([2]) == 0
    assert size.behind([2], heads=True) == 2 * 600 / 6
    assert size.behind([0, 1, 2]) == 2 * 600 * (2 + 1) / 3


def test_a_map_by_hand(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of four tokens that differs from the second on, in a model of three layers."""

    def pair(*_: object, **__: object) -> Batch:
        return Batch.from_tokens([[1, 2, 3, 4]], [[1, 9, 3, 4]], [5], [6])

    monkeypatch.setattr(planning, "sample_batch", pair)
    experiment = PatchExperiment((bare,), ("ioi",), ("resid",), limit=10)
    size, logits = work(experiment).size, 2 * 50 * 12
    body, runs = size.body, 2 * size.plain(4)
    # Of three columns, each runs half of them in two layers, one, and none.
    cells = 3 * 1.5 * 2 * body * (2 + 1) / 3 + 9 * logits
    assert operations(experiment) == pytest.approx(10 * (runs + cells))
    # Two heads of each layer, three tokens each, in 2.5, 1.5 and .5 layers.
    heads = 2 * 3 * 2 * body * 4.5 / 3 + 6 * logits
    assert operations(experiment, parts=("heads",)) == pytest.approx(10 * (runs + heads))


def test_circuits_count_what_is_left_to_do(bare: str) -> None:
    experiment = circuits(bare, "eap", "exact", stage="localize")
    of_eap = planning.circuits_cost(experiment, experiment.cells()[:1], WORKER).works[0].operations
    assert operations(circuits(bare, "eap", stage="localize")) == of_eap < operations(experiment)
    assert operations(circuits(bare, "random", stage="localize")) == 0, "drawing takes no pass"
    assert operations(circuits(bare, "eap")) > of_eap
    assert operations(circuits(bare, "eap", resamples=3)) > operations(circuits(bare, "eap"))


def test_a_grid_is_a_product() -> None:
    experiment = replace(SMALL_EXPERIMENTS["adversarial"], n_clean=1000, n_corrupted=1000)
    once = operations(experiment)
    assert operations(experiment, n_clean=2000) == pytest.approx(2 * once, rel=0.1)
    assert operations(experiment, n_clean=2000, n_corrupted=2000) == pytest.approx(
        4 * once, rel=0.1
    )
    # Matched pairs are as many as prompts.
    assert operations(experiment, design="matched") < once / 100
    small, large, full = (
        operations(experiment, circuits=(text,)) for text in ("random@0.01", "random@0.1", "full")
    )
    assert small < large < full


@pytest.mark.parametrize(
    ("text", "n_edges"), [("full", 200), ("empty", 0), ("random@0.5", 100), ("random@30", 30)]
)
def test_edges_of_a_circuit_by_hand(text: str, n_edges: int) -> None:
    assert planning.edges_of(CircuitSpec.parse(text), 200) == n_edges


def test_trainings_count_steps_sizes_and_draws() -> None:
    experiment = replace(
        SMALL_EXPERIMENTS["variables"],
        models=("truth-ioi-trained",),
        variables=("answer",),
        controls=(),
    )
    n = [operations(experiment, steps=n) for n in (100, 200, 300)]
    assert n[2] - n[1] == pytest.approx(n[1] - n[0]) and n[1] > n[0]
    one, two = (operations(experiment, ks=ks, steps=1000) for ks in ((3,), (3, 4)))
    assert 1.5 * one < two < 2 * one
    gym = replace(SMALL_EXPERIMENTS["gym"], controls=())
    assert operations(gym, seeds=(0, 1)) > operations(gym)
    assert operations(gym, controls=("labels",)) > operations(gym)
    assert operations(gym, controls=("untrained",)) == pytest.approx(2 * operations(gym))


def test_started_passes_and_steps_by_hand(bare: str) -> None:
    size, train = ModelSize.of(outline(bare), bare), PromptSizes(20, 10, 0.5)
    for method, n_rows in ((EAP(), 20), (SubnetworkProbing(steps=30, batch_size=4), 4)):
        n_passes = method.forwards(size.graph, 20) / n_rows
        assert planning.scoring_runs(method, size, train) == pytest.approx(n_passes)
    # Every circuit is started once: of ten random rankings of both kinds and of two curves at nine
    # sizes, of nothing and everything, and eleven on validation pairs.
    scored = work(circuits(bare, "eap", stage="localize")).n_runs
    whole = work(circuits(bare, "eap", random_rankings=10)).n_runs
    assert whole - scored == (2 * 10 * 9 + 2) + (2 * 9 + 1) + 11
    gym = replace(SMALL_EXPERIMENTS["gym"], methods=("das:steps=3",), controls=())
    sites = len(gym.gym_task(gym.tasks[0]).tested) * outline("truth-ioi").graph.n_layers
    assert work(gym).fixed == pytest.approx(planning.STEP * 3 * sites)
    assert work(gym, methods=("mean",)).fixed == pytest.approx(planning.FIT * sites)


def test_an_estimate_is_a_number_for_methods_of_all_kinds(bare: str) -> None:
    size = ModelSize.of(outline(bare), bare)
    for method in map(METHODS.make, METHODS.names()):
        n = planning.scoring_operations(method, size, PromptSizes(20, 10, 0.5))
        assert 0 <= n < math.inf
