"""Tokenizers for gym tasks, made in code: of bytes, and of words.

A tiny Llama as the GGUF file that llama.cpp's converter writes of it, and what loads it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mechassay.models import loading
from mechassay.models.loading import load_hf, resolve
from mechassay.models.weight_files import is_fetched

REAL = "smollm2-135m"


def of_bytes() -> PreTrainedTokenizerFast:
    """Every byte is a token, the space before a word too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def of_words(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Every word, and every mark of punctuation, is a token."""
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)})
    ids = {word: number for number, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def real() -> Any:
    """The tokenizer of a packaged model, where it is fetched."""
    if not is_fetched(REAL):
        pytest.skip(f"{REAL} is not fetched: mechassay models fetch {REAL}")
    return AutoTokenizer.from_pretrained(resolve(REAL).location)


TOKENS = ["<|end|>", "M", "a", "r", "y", "Ġ", "ĠM", "Ma", "1", "2", "ĠĠ"]


MERGES = ["Ġ M", "M a", "Ġ Ġ"]


IDS = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])


def tiny_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def write_gguf(model: LlamaForCausalLM, path: Path, *, rope_scaling: bool = False) -> Path:
    """What llama.cpp's converter writes for `model`, unquantised,
    with a byte-level vocabulary split digit by digit.
    """
    config, writer = model.config, GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if rope_scaling:
        writer.add_string("llama.rope.scaling.type", "linear")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)

    def add(name: str, weight: torch.Tensor, heads: int = 0) -> None:
        if heads:  # llama.cpp interleaves the two halves of each rotary head
            weight = (
                weight.view(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
            )
        writer.add_tensor(f"{name}.weight", weight.detach().contiguous().numpy())

    add("token_embd", model.model.embed_tokens.weight)
    add("output_norm", model.model.norm.weight)
    for number, layer in enumerate(model.model.layers):
        block = f"blk.{number}."
        add(block + "attn_norm", layer.input_layernorm.weight)
        add(block + "attn_q", layer.self_attn.q_proj.weight, config.num_attention_heads)
        add(block + "attn_k", layer.self_attn.k_proj.weight, config.num_key_value_heads)
        add(block + "attn_v", layer.self_attn.v_proj.weight)
        add(block + "attn_output", layer.self_attn.o_proj.weight)
        add(block + "ffn_norm", layer.post_attention_layernorm.weight)
        add(block + "ffn_gate", layer.mlp.gate_proj.weight)
        add(block + "ffn_up", layer.mlp.up_proj.weight)
        add(block + "ffn_down", layer.mlp.down_proj.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def load(source: str) -> tuple[Any, Any]:
    model, tokenizer, _ = load_hf(loading.resolve(source), dtype=torch.float32, device="cpu")
    return model, tokenizer


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
