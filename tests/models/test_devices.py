"""Models over several devices against the same model on one; device maps, and what is refused."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mechassay as ma
from helpers.tiny_models import write_attn_only
from mechassay.circuits import evaluate
from mechassay.errors import BadFile, BadUsage, SelfCheckFailed, UnsupportedModel
from mechassay.features import DAS
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Interchange
from mechassay.models.devices import check_copies, main_device, read_device_map
from mechassay.models.stored_weights import StoredWeight
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.testing.tiny import build, token_pairs
from mechassay.utils.display import SILENT

accelerate = pytest.importorskip("accelerate", minversion="1.6")

FAMILIES = ["gpt2", "neox", "gemma2", "llama", "gptj", "falcon_7b", "olmoe"]
"""With fused weights, tied embeddings, tables, buffers and experts."""
SLOW = [
    pytest.param(name, marks=[] if n < 3 else pytest.mark.slow) for n, name in enumerate(FAMILIES)
]

PLACES = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.layers.2": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}
"""A map of a tiny Llama, half of it on disk."""


def blocks_of(hf: Any) -> str:
    """The dotted name of a model's blocks."""
    return next(name for name, x in hf.named_modules() if isinstance(x, torch.nn.ModuleList))


def half_on(hf: Any, device: Any, folder: Path, main: Any = "cpu") -> Any:
    """The model with its embedding and its layers but the first on `device`, the rest on `main`."""
    blocks = blocks_of(hf)
    embedding = hf.get_input_embeddings()
    places = {}
    for name, module in hf.named_modules():
        if not list(module.parameters(recurse=False)) and not list(module.buffers(recurse=False)):
            continue
        inner = name.startswith(f"{blocks}.") and not name.startswith(f"{blocks}.0.")
        places[name] = device if inner or module is embedding else main
    return accelerate.dispatch_model(hf, places, offload_dir=str(folder), force_hooks=True)


def on_disk(hf: Any, folder: Path) -> Any:
    return half_on(hf, "disk", folder)


def all_on_disk(hf: Any, folder: Path) -> Any:
    return accelerate.disk_offload(hf, str(folder), execution_device=torch.device("cpu"))


def all_offloaded(hf: Any, folder: Path) -> Any:
    return accelerate.cpu_offload(hf, execution_device=torch.device("cpu"), offload_buffers=True)


def agree(placed: ma.Model, whole: ma.Model, tolerance: float) -> None:
    """Logits, scores by gradients, a circuit's logits, learned masks, patching and directions."""
    batch = token_pairs()
    methods = (
        ma.circuits.EAP(),
        ma.circuits.EAPIGInputs(steps=2),
        ma.circuits.ExactPatching(),
        ma.circuits.SubnetworkProbing(steps=3),
    )
    for method in methods:
        ours, theirs = (method.score(x, batch, progress=SILENT) for x in (placed, whole))
        torch.testing.assert_close(
            ours.values.cpu(), theirs.values, rtol=0, atol=tolerance, equal_nan=True
        )
    circuit = theirs.top(0.3)
    kept, known = (
        torch.as_tensor(evaluate(x, [circuit], batch, progress=SILENT)) for x in (placed, whole)
    )
    torch.testing.assert_close(kept.cpu(), known.cpu(), rtol=0, atol=tolerance)
    interchanges = InterchangeBatch.from_batch(batch)
    ours, theirs = (
        DAS(k=2, steps=3, batch_size=3).fit(x, interchanges, ["resid.1@last"], progress=SILENT)
        for x in (placed, whole)
    )
    torch.testing.assert_close(ours.losses.cpu(), theirs.losses.cpu(), rtol=0, atol=tolerance)
    ours, theirs = (
        intervene(x, interchanges, {"heads.1@last": Interchange()}).log_probs
        for x in (placed, whole)
    )
    torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=0, atol=tolerance)


@pytest.mark.few(3)
@pytest.mark.parametrize("place", [on_disk, all_on_disk, all_offloaded])
@pytest.mark.parametrize("name", SLOW)
def test_an_offloaded_model_is_the_same(
    name: str, place: Callable[[Any, Path], Any], tmp_path: Path
) -> None:
    hf = place(build(name, torch.float64), tmp_path)
    assert any(parameter.is_meta for parameter in hf.parameters())
    placed, whole = ma.load_model(hf), ma.load_model(build(name, torch.float64))
    assert placed.device.type == "cpu"
    assert isinstance(placed.decoder.layers[1].attention.q.weight, StoredWeight)
    assert placed.n_parameters == whole.n_parameters
    assert placed.weight_bytes == whole.weight_bytes
    assert placed.identity == whole.identity
    agree(placed, whole, 1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAMILIES)
def test_half_on_a_gpu_and_half_on_the_cpu(name: str, tmp_path: Path) -> None:
    hf = half_on(build(name, torch.float64), "cpu", tmp_path, main=0)
    placed = ma.load_model(hf)
    assert placed.device == torch.device("cuda", 0)
    agree(placed, ma.load_model(build(name, torch.float64)), 1e-9)


def test_a_folder_is_loaded_by_a_map(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "model")
    (tmp_path / "map.json").write_text(json.dumps(PLACES))
    whole = ma.load_model(tmp_path / "model")
    for device_map in (PLACES, tmp_path / "map.json"):
        placed = ma.load_model(tmp_path / "model", device_map=device_map)
        assert isinstance(placed.decoder.layers[2].attention.q.weight, StoredWeight)
        assert not isinstance(placed.decoder.layers[0].attention.q.weight, StoredWeight)
        assert placed.identity == whole.identity
        ours, theirs = (
            ma.circuits.EAP().score(x, token_pairs(), progress=SILENT).values
            for x in (placed, whole)
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    auto = ma.load_model(tmp_path / "model", device_map="auto")
    assert auto.self_check is not None


def test_what_is_put_on_disk_goes_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("llama").save_pretrained(tmp_path / "model")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "put"))
    (tmp_path / "put").mkdir()
    model = ma.load_model(tmp_path / "model", dtype="bfloat16", device_map=PLACES)
    assert len(list((tmp_path / "put").iterdir())) == 1
    del model
    gc.collect()
    assert not list((tmp_path / "put").iterdir())


def test_maps_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=r"device_map must be auto, .* a JSON file .*; got 'mine'"):
        read_device_map("mine")
    (tmp_path / "map.json").write_text("[1]")
    with pytest.raises(BadFile, match=r"a device map is an object from modules to devices; got"):
        read_device_map(tmp_path / "map.json")
    (tmp_path / "map.json").write_text("{")
    with pytest.raises(BadFile, match=r"map.json: not JSON"):
        read_device_map(tmp_path / "map.json")
    with pytest.raises(BadUsage, match=r"one in memory has its own"):
        ma.load_model(build("llama"), device_map="auto")
    build("llama").save_pretrained(tmp_path / "model")
    with pytest.raises(BadUsage, match=r"a device map needs a model whose weights transformers"):
        ma.load_model(f"untrained:{tmp_path / 'model'}", device_map="auto")
    tied = {"model": "cpu", "lm_head": "disk"}
    with pytest.raises(UnsupportedModel, match=r"does not run as .* placed: KeyError: .*lm_head"):
        ma.load_model(tmp_path / "model", device_map=tied)
    with pytest.raises(BadFile, match=r"cannot be loaded: "):
        ma.load_model(tmp_path / "model", device_map={"model": "cpu", "lm_head": "nowhere"})


def test_a_quantised_model_that_is_offloaded_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    hf = all_on_disk(build("llama"), tmp_path)
    hf.is_quantized, hf.quantization_method = True, "torchao"
    with pytest.raises(UnsupportedModel, match=r"is quantised and offloaded; quantise it, or"):
        ma.load_model(hf)


def test_weights_without_values_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"has no values \(on meta\), and no hook"):
        ma.load_model(build("llama").to("meta"))


def test_a_model_that_is_none_of_transformers_is_refused_apart(tmp_path: Path) -> None:
    write_attn_only(tmp_path)
    hf = ma.load_model(tmp_path).hf
    next(module for module in hf.modules() if module._parameters).to("meta")
    with pytest.raises(UnsupportedModel, match=r"LensModel is no model of transformers, and its"):
        ma.load_model(hf)


def test_copies_that_change_values_are_refused() -> None:
    devices = [torch.device("cpu"), torch.device("cpu", 0)]
    check_copies(devices)

    def corrupts(numbers: Tensor, device: torch.device) -> Tensor:
        copied = numbers.clone()
        copied[1000:1500] = 0
        return copied

    with pytest.raises(SelfCheckFailed, match=r"from cpu to cpu:0 changed 500 of 1,048,576"):
        check_copies(devices, corrupts)
    check_copies(devices[:1], corrupts)


def test_one_device_is_as_it_was() -> None:
    hf = build("gpt2")
    hf.hf_device_map = {"": "cpu"}
    model = ma.load_model(hf)
    assert main_device(hf) == torch.device("cpu")
    assert not isinstance(model.decoder.embedding, StoredWeight)
    assert model.decoder.embedding.data_ptr() == hf.transformer.wte.weight.data_ptr()
