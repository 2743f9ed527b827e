"""Quantised models against themselves with their weights dequantised, and what is refused."""

from __future__ import annotations

import copy
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import mechassay as ma
from helpers.hooks_reference import ReferenceModel, exact_precision
from mechassay.errors import (
    BadFile,
    BadUsage,
    MissingExtra,
    OutOfMemory,
    SelfCheckFailed,
    UnsupportedModel,
)
from mechassay.models import quantised, stored_weights
from mechassay.models.circuit_compiler import compile_circuit
from mechassay.models.circuit_forward import run_circuit
from mechassay.models.forward import Contrast
from mechassay.models.gradients import masked_readout
from mechassay.models.stored_weights import StoredWeight
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import VOCABULARY, build, random_model, token_pairs
from mechassay.utils.display import SILENT


def int8(hf: Any) -> Any:
    """The model with the weights of its linear modules in torchao's int8."""
    torchao = pytest.importorskip("torchao.quantization")
    torchao.quantize_(hf, torchao.Int8WeightOnlyConfig())
    return hf


def float8(hf: Any) -> Any:
    """The model with weights in torchao's float8, which is read in float64 as well."""
    torchao = pytest.importorskip("torchao.quantization")
    torchao.quantize_(hf, torchao.Float8WeightOnlyConfig())
    return hf


def four_bits(plain: Any, folder: Path, **options: Any) -> Any:
    """A model, or the tiny one of that name, as bitsandbytes loads it in 4 bits."""
    pytest.importorskip("bitsandbytes")

    (build(plain) if isinstance(plain, str) else plain).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        quantization_config=transformers.BitsAndBytesConfig(
            **{"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", **options}
        ),
    )


def dequantised(hf: Any) -> Any:
    """A copy with the values of torchao's weights in plain ones."""
    dense = copy.deepcopy(hf)
    for module in dense.modules():
        for key, parameter in module._parameters.items():
            if hasattr(parameter, "qdata"):
                values: Any = nn.Parameter(parameter.dequantize(), requires_grad=False)
                module._parameters[key] = values
    return dense


def circuit_logits(model: ma.Model, batch: Batch, mask: Tensor) -> Tensor:
    plan = compile_circuit(model.graph, mask, None, post_norm=model.decoder.has_post_norm)
    return run_circuit(model.decoder, Contrast.run(model.decoder, batch), plan).all()


def some_edges(model: ma.Model) -> Tensor:
    legal = model.graph.legal
    return (torch.rand(legal.shape, generator=torch.Generator().manual_seed(3)) < 0.4) & legal


@pytest.mark.parametrize("name", ["llama", "neox", "gemma2"])
def test_int8_is_its_dequantised_self(name: str) -> None:
    hf = int8(build(name))
    small, dense = ma.load_model(hf), ma.load_model(dequantised(hf))
    assert isinstance(small.decoder.layers[0].attention.q.weight, StoredWeight)
    assert not isinstance(dense.decoder.layers[0].attention.q.weight, StoredWeight)
    # The check compares with the quantised modules' own kernels.
    assert small.self_check is not None
    assert small.self_check.logits < 1e-5
    batch = token_pairs()
    for method in (ma.circuits.EAP(), ma.circuits.EAPIGInputs(steps=3)):
        ours, plain = (method.score(x, batch, progress=SILENT).values for x in (small, dense))
        torch.testing.assert_close(ours, plain, rtol=0, atol=0, equal_nan=True)
    mask = some_edges(small)
    torch.testing.assert_close(
        circuit_logits(small, batch, mask), circuit_logits(dense, batch, mask), rtol=0, atol=0
    )


@pytest.mark.parametrize("name", ["llama", "neox"])
def test_gradients_are_those_of_the_quantised_modules(name: str) -> None:
    """Of circuits through hooks on the quantised model itself: its kernels, forward and back."""
    model, batch = ma.load_model(float8(build(name, torch.float64))), token_pairs()
    legal = model.graph.legal
    mask = torch.ones(legal.shape, dtype=torch.float64, requires_grad=True)
    with exact_precision(model.hf):
        reference = ReferenceModel(model.hf, model.graph)
        recorded = reference.record(batch.counterfactual, batch.mask)
        logits = reference.run(batch.clean, batch.mask, recorded, mask)
        (by_edge,) = torch.autograd.grad(logits.gather(1, batch.answers).sum(), mask)
        half = reference.run(batch.clean, batch.mask, recorded, some_edges(model).double())
    contrast = Contrast.run(model.decoder, batch)
    ours = masked_readout(model.decoder, contrast, mask[None])
    (by_ours,) = torch.autograd.grad(ours.at(batch.answers).sum(), mask)
    torch.testing.assert_close(ours.all(), logits, rtol=0, atol=1e-9)
    torch.testing.assert_close(by_ours * legal, by_edge * legal, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        circuit_logits(model, batch, some_edges(model)), half, rtol=0, atol=1e-9
    )


def test_masks_learn_the_same_on_int8() -> None:
    hf, batch = int8(build("llama")), token_pairs()
    small, dense = ma.load_model(hf), ma.load_model(dequantised(hf))
    ours, plain = (
        ma.circuits.SubnetworkProbing(steps=3).score(x, batch, progress=SILENT).values
        for x in (small, dense)
    )
    torch.testing.assert_close(ours, plain, equal_nan=True)


def test_one_layer_at_a_time_has_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a differentiated run too: autograd keeps the small weights alone."""
    model = ma.load_model(int8(build("llama")))
    alive: dict[str, int] = {}
    most = 0
    origins = {
        weight._origin
        for layer in model.decoder.layers
        for weight in (
            *(getattr(layer.attention, slot).weight for slot in "qkv"),
            layer.attention.out,
            layer.mlp.up,
            layer.mlp.gate,
            layer.mlp.down,
        )
    }

    for origin in origins:

        def counted(make_values: Any = origin.make, part: str = origin.part) -> Tensor:
            nonlocal most
            values = make_values()
            alive[part] = alive.get(part, 0) + 1
            most = max(most, sum(count > 0 for count in alive.values()))
            weakref.finalize(values, lambda: alive.__setitem__(part, alive[part] - 1))
            return values

        monkeypatch.setattr(origin, "make", counted)
    ma.circuits.EAP().score(model, token_pairs(), progress=SILENT)
    assert len(alive) == 3
    assert most == 1


def test_a_saved_folder_loads_in_its_own_type(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig

    build("llama", torch.bfloat16).save_pretrained(tmp_path / "plain")
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain",
        dtype=torch.bfloat16,
        quantization_config=transformers.TorchAoConfig(Int8WeightOnlyConfig()),
    )
    hf.save_pretrained(tmp_path / "small")
    model = ma.load_model(tmp_path / "small", dtype="bfloat16")
    assert isinstance(model.decoder.layers[0].attention.q.weight, StoredWeight)
    assert model.n_parameters == ma.load_model(tmp_path / "plain").n_parameters
    small, plain = (
        ma.load_model(tmp_path / folder, dtype="bfloat16").weight_bytes
        for folder in ("small", "plain")
    )
    assert small < 0.8 * plain
    batch = token_pairs()
    ours, theirs = (
        ma.circuits.EAP().score(x, batch, progress=SILENT).values
        for x in (model, ma.load_model(dequantised(hf)))
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    other = build("llama", torch.bfloat16, seed=1)
    other.save_pretrained(tmp_path / "other")
    assert model.identity.weights != (
        ma.load_model(tmp_path / "other", dtype="bfloat16").identity.weights
    )
    with pytest.raises(UnsupportedModel, match=r"weights are of bfloat16, .*dtype='bfloat16'"):
        ma.load_model(tmp_path / "small", dtype="float32")
    drawn = ma.load_model(f"untrained:{tmp_path / 'small'}", dtype="bfloat16")
    assert not isinstance(drawn.decoder.layers[0].attention.q.weight, StoredWeight)


def test_a_stored_weight_is_changed_in_its_clone_alone() -> None:
    weight = ma.load_model(int8(build("neox"))).decoder.layers[0].attention.q.weight
    with pytest.raises(BadUsage, match=r"cannot be changed in place; change its clone"):
        weight[0] = 1.0
    with pytest.raises(BadUsage, match=r"Asked for: aten.mul_"):
        weight.mul_(2)
    copied = weight.clone()
    copied[0] = 1.0
    assert not isinstance(copied, StoredWeight)
    assert (copied[0] == 1.0).all()
    assert not (weight[0] == 1.0).any()
    torch.testing.assert_close(copied[1:], weight[1:] * 1.0, rtol=0, atol=0)


def test_a_layer_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_weights, "available_bytes", lambda _: 1000)
    with pytest.raises(OutOfMemory, match=r"the weights of model.layers.0 take 0.0 GB when they"):
        ma.load_model(int8(build("llama")))


@pytest.mark.parametrize("repacks", [False, True], ids=["other CPUs", "AVX-512 BF16"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_four_bits_are_their_dequantised_self(name: str, repacks: bool, tmp_path: Path) -> None:
    """GPT-2's weights are turned round: its modules were [in, out]. All layers are narrower than a
    block of 64 numbers.
    """
    hf = four_bits(name, tmp_path)
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit

    for module in hf.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = repacks
    model, dense = ma.load_model(hf), build(name)
    n_quantised = 0
    for path, parameter in hf.named_parameters():
        target = dense.get_parameter(path)
        if hasattr(parameter, "quant_state"):
            values = dequantize_4bit(parameter.data, parameter.quant_state)
            turned = type(dense.get_submodule(path.rpartition(".")[0])).__name__ == "Conv1D"
            target.copy_(values.t() if turned else values)
            n_quantised += 1
    assert n_quantised >= 4 * model.graph.n_layers
    assert model.n_parameters == sum(x.numel() for x in dense.parameters())
    batch, plain = token_pairs(), ma.load_model(dense)
    for method in (ma.circuits.EAP(), ma.circuits.EAPIGInputs(steps=3)):
        ours, theirs = (method.score(x, batch, progress=SILENT).values for x in (model, plain))
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("repacked", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"bnb_4bit_use_double_quant": True}, {"bnb_4bit_quant_type": "fp4"}],
    ids=["nf4", "nested", "fp4"],
)
def test_four_bits_are_read_in_both_layouts(
    options: dict[str, Any], repacked: bool, tmp_path: Path
) -> None:
    """Before and after a forward pass on a CPU where bitsandbytes repacks weights: the numbers are
    those of the dequantised weights, whose scales packing rounds to bfloat16.
    """
    bnb = pytest.importorskip("bitsandbytes.functional")
    from bitsandbytes.nn import Linear4bit

    # Packing takes widths that are multiples of a block of 64 numbers.
    dense = random_model(
        transformers.LlamaConfig(
            hidden_size=128,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    hf = four_bits(dense, tmp_path, **options)
    modules = {path: x for path, x in hf.named_modules() if isinstance(x, Linear4bit)}
    assert len(modules) == 14
    for path, module in modules.items():
        state = copy.deepcopy(module.weight.quant_state)
        if repacked:
            scales = state.absmax
            if state.nested:
                scales = bnb.dequantize_blockwise(scales, state.state2) + state.offset
            state.absmax, state.nested = scales.bfloat16().float(), False
        values = bnb.dequantize_4bit(module.weight.data.clone(), state)
        dense.get_submodule(path).weight.data.copy_(values)
        if repacked:
            # What a module's forward pass does where the CPU has AVX-512 BF16.
            module.weight.data, _ = bnb._convert_weight_packed_for_cpu(
                module.weight.data, module.weight.quant_state
            )
        module.support_avx512bf16_for_cpu = True
    model, plain = ma.load_model(hf), ma.load_model(dense)
    batch, identity = token_pairs(), model.identity
    ours, theirs = (
        ma.circuits.EAP().score(x, batch, progress=SILENT).values for x in (model, plain)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    with torch.no_grad():
        logits = [x(batch.clean).logits for x in (hf, dense)]
    assert ma.load_model(hf).identity == identity, "no forward pass repacks the weights"
    # Packed kernels, which round to bfloat16, differ by more than 0.01.
    torch.testing.assert_close(*logits, rtol=0, atol=1e-3)
    again = ma.circuits.EAP().score(model, batch, progress=SILENT).values
    torch.testing.assert_close(again, ours, rtol=0, atol=0, equal_nan=True)
    anew = ma.circuits.EAP().score(ma.load_model(hf), batch, progress=SILENT).values
    torch.testing.assert_close(anew, ours, rtol=0, atol=0, equal_nan=True)


def test_bitsandbytes_that_rounds_activations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"in 8 bits, which rounds activations too"):
        ma.load_model(four_bits("llama", tmp_path, load_in_4bit=False, load_in_8bit=True))
    half = four_bits("llama", tmp_path, bnb_4bit_compute_dtype=torch.bfloat16)
    with pytest.raises(UnsupportedModel, match=r"bnb_4bit_compute_dtype=torch.float32"):
        ma.load_model(half)


def test_torchao_that_rounds_activations_is_refused() -> None:
    torchao = pytest.importorskip("torchao.quantization")
    hf = build("llama")
    torchao.quantize_(hf, torchao.Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(UnsupportedModel, match=r"Int8Tensor\), which rounds activations: no grad"):
        ma.load_model(hf)


METHODS: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "gptq", "bits": 4}, r"by gptq; weights alone by torchao .* are read: else"),
    ({"quant_method": "awq"}, r"by awq; .* load it in float32, bfloat16 or float16"),
    ({"quant_method": "hqq"}, r"by hqq; "),
    ({"quant_method": "mxfp4"}, r"by mxfp4; .*Mxfp4Config\(dequantize=True\)"),
    ({"quant_method": "fp8"}, r"by fp8; .*FineGrainedFP8Config\(dequantize=True\)"),
    ({"quant_method": "compressed-tensors"}, r"CompressedTensorsConfig\(dequantize=True\)"),
    ({"load_in_8bit": True}, r"by bitsandbytes in 8 bits, which rounds activations too"),
    (
        {
            "quant_method": "torchao",
            "quant_type": {"default": {"_type": "Int8DynamicActivationInt8WeightConfig"}},
        },
        r"by torchao's Int8DynamicActivationInt8WeightConfig, which rounds activations",
    ),
    ({"bits": 3}, r"by an unknown method"),
]


@pytest.mark.parametrize(("settings", "words"), METHODS)
def test_a_method_is_refused_before_weights_are_read(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    build("llama").config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UnsupportedModel, match=words):
        ma.load_model(tmp_path)


def test_without_its_package_a_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised, "find_spec", lambda _: None)
    settings = {"quant_method": "torchao", "quant_type": {"default": {}}}
    with pytest.raises(MissingExtra, match=r"needs the package 'torchao': .*\[quantised\]"):
        quantised.check_quantisation("mine", settings)


def test_pickled_quantised_weights_are_refused(tmp_path: Path) -> None:
    build("llama").config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BadFile, match=r"as a pickle, which can run code"):
        ma.load_model(tmp_path)


def test_a_model_that_does_not_run_itself_is_refused() -> None:
    """Falcon's own module transposes its weight, which torchao's int8 cannot."""
    hf = int8(build("falcon_7b"))
    with pytest.raises(UnsupportedModel, match=r"itself does not run as it is quantised .*permute"):
        ma.load_model(hf)


def test_the_check_compares_with_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = int8(build("llama"))
    kind = type(hf.lm_head.weight)
    right = kind.dequantize
    monkeypatch.setattr(kind, "dequantize", lambda self: right(self) * 1.01)
    with pytest.raises(SelfCheckFailed, match=r"the logits differ"):
        ma.load_model(hf)
