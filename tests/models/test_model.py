"""Loading models, and what they prove about themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mechassay as ma
from mechassay.errors import BadPairs, BadUsage, SelfCheckFailed, UnsupportedModel
from mechassay.models.memory import token_budget
from mechassay.models.model import check_device, make_model
from mechassay.pairs import Pair
from mechassay.testing.tiny import FAMILIES, build, subject, with_words


@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_folder_loads_and_passes_its_check(name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path)
    model = ma.load_model(str(tmp_path))
    assert model.self_check is not None
    assert model.self_check.passed
    assert model.graph.n_layers == 3
    assert model.graph.n_heads == 4


def test_weights_of_a_folder_are_told_apart(tmp_path: Path) -> None:
    hf = build("llama")
    hf.save_pretrained(tmp_path / "a" / "model")
    with torch.no_grad():
        hf.get_input_embeddings().weight[-1, -1] += 0.5
    hf.save_pretrained(tmp_path / "b" / "model")
    first, again, other = (ma.load_model(str(tmp_path / x / "model")) for x in "aab")
    assert first.weights == again.weights != other.weights and len(first.weights) == 16
    assert first.spec() == again.spec() != other.spec() and first.name == other.name
    half = ma.load_model(str(tmp_path / "a" / "model"), dtype="bfloat16")
    assert half.weights != first.weights and len(half.weights) == 16
    assert ma.load_model("truth-ioi").weights == "", "its name says which weights it has"


def test_a_model_in_memory_is_taken_as_it_is() -> None:
    hf = build("qwen3", torch.float64)
    model = ma.load_model(hf)
    assert model.hf is hf
    assert model.dtype == torch.float64


def test_a_decoder_that_misses_a_part_is_found_out() -> None:
    tiny = subject("gemma2")
    first = tiny.model.decoder.layers[0]
    layers = (
        replace(first, attention=replace(first.attention, softcap=None)),
        *tiny.model.decoder.layers[1:],
    )
    wrong = replace(tiny.model, decoder=replace(tiny.model.decoder, layers=layers))
    with pytest.raises(SelfCheckFailed, match=r"gemma2.*the logits differ"):
        wrong.check()


def test_a_missing_norm_offset_is_found_out() -> None:
    tiny = subject("gemma3")
    norm = tiny.model.decoder.final_norm
    wrong = replace(
        tiny.model,
        decoder=replace(tiny.model.decoder, final_norm=replace(norm, weight=norm.weight - 1)),
    )
    with pytest.raises(SelfCheckFailed):
        wrong.check()


def test_graph_of_parallel_blocks() -> None:
    assert make_model(build("neox")).graph.parallel
    assert not make_model(build("neox_seq")).graph.parallel


def test_bos_is_put_before_prompts_where_asked(tmp_path: Path) -> None:
    hf, tokenizer = with_words()
    tokenizer.bos_token = "the"
    pair = Pair("a", "When Mary", "When John", (" to",), (" at",))
    plain = ma.load_model(hf, tokenizer=tokenizer).batch([pair])
    with_bos = ma.load_model(hf, tokenizer=tokenizer, prepend_bos=True).batch([pair])
    assert with_bos.clean[0].tolist() == [tokenizer.bos_token_id, *plain.clean[0].tolist()]


def test_bos_needs_a_tokenizer() -> None:
    with pytest.raises(BadUsage, match="BOS"):
        ma.load_model(build("gpt2"), prepend_bos=True)


def test_text_pairs_need_a_tokenizer() -> None:
    with pytest.raises(BadPairs, match="no tokenizer"):
        make_model(build("gpt2")).batch([Pair("a", "x", "y", (" a",), (" b",))])


def test_unknown_dtype(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="dtype must be one of float32"):
        ma.load_model(str(tmp_path), dtype="float31")


def test_token_budget_holds_at_least_one_example() -> None:
    assert token_budget(per_token=10**6, longest=700, device=torch.device("cpu")) == 700
    assert token_budget(per_token=10**6, longest=7, device=torch.device("cpu")) == 402


def test_the_device_may_be_chosen_by_itself() -> None:
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    assert (check_device("auto").type == "cpu") is not has_gpu
    with pytest.raises(BadUsage, match=r"auto, cpu, cuda, .*; got 'gpu'"):
        check_device("gpu")


def test_a_split_model_is_refused() -> None:
    hf = build("gpt2")
    hf.hf_device_map = {"transformer.wte": 0, "transformer.h": "cpu"}
    with pytest.raises(UnsupportedModel, match=r"split over devices \(0, cpu\); load it on one"):
        ma.load_model(hf)
    hf.hf_device_map = {"": "cpu"}
    assert ma.load_model(hf).graph.n_layers == 3


def test_a_quantised_model_is_refused() -> None:
    hf = build("gpt2")
    hf.is_quantized, hf.quantization_method = True, "bitsandbytes_4bit"
    with pytest.raises(UnsupportedModel, match=r"is quantised \(bitsandbytes_4bit\); load it in"):
        ma.load_model(hf)
    packed = build("llama")
    weight = packed.lm_head.weight
    packed.lm_head.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedModel, match=r"is quantised \(torch.int8\)"):
        ma.load_model(packed)
