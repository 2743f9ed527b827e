"""Tiny random models of every supported family, made in code: three layers, four heads, 97 tokens.

Each differs from the others in something that the decoder must get right: parallel blocks, grouped
queries, biases, sliding windows, scaled rotary positions, query and key norms, post-norms,
soft-caps. All parameters are random, norms and biases too, so that a part that is left out shows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from mechassay.models.model import Model, make_model
from mechassay.prompts.batch import Batch

VOCABULARY = 97
FAMILIES = [
    *("gpt2", "gpt2_scaled", "neox", "neox_seq", "llama", "llama31"),
    *("mistral", "qwen2", "qwen3", "gemma2", "gemma3"),
    *("gptj", "gpt_neo", "opt", "phi3", "gemma", "granite", "stablelm", "stablelm_12b", "smollm3"),
    *("mixtral", "qwen3_moe", "olmoe", "falcon_7b", "falcon_40b", "cohere", "cohere_plus"),
    *("cohere2", "olmo3", "olmo2"),
]
# Special tokens inside the vocabulary: transformers would warn about its own defaults.
_SPECIAL: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
_GPT2: dict[str, Any] = {
    **_SPECIAL,
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
}
_COMMON: dict[str, Any] = {
    **_SPECIAL,
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GROUPED: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2}


def configs() -> dict[str, Any]:
    """The configuration of every model of `FAMILIES`, and of GPT-2 small's shape, by name."""
    kinds: Any = transformers
    # Low, middle and high frequencies all occur with these numbers.
    llama31_rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 10000.0,
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    softcaps: dict[str, Any] = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    alternating = ["sliding_attention", "full_attention", "sliding_attention"]
    return {
        "gpt2": kinds.GPT2Config(**_GPT2),
        "gpt2_12x12": kinds.GPT2Config(**{**_GPT2, "n_embd": 24, "n_layer": 12, "n_head": 12}),
        "gpt2_scaled": kinds.GPT2Config(**_GPT2, scale_attn_by_inverse_layer_idx=True),
        "neox": kinds.GPTNeoXConfig(**_COMMON, rotary_pct=0.25),
        "neox_seq": kinds.GPTNeoXConfig(**_COMMON, use_parallel_residual=False),
        "llama": kinds.LlamaConfig(**GROUPED, tie_word_embeddings=True),
        "llama31": kinds.LlamaConfig(
            **{**GROUPED, "max_position_embeddings": 512},
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=llama31_rope,
        ),
        "mistral": kinds.MistralConfig(**GROUPED, sliding_window=4),
        "qwen2": kinds.Qwen2Config(
            **GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1
        ),
        "qwen3": kinds.Qwen3Config(**GROUPED, head_dim=16),
        "gemma2": kinds.Gemma2Config(
            **GROUPED, head_dim=16, sliding_window=4, query_pre_attn_scalar=10, **softcaps
        ),
        "gemma3": kinds.Gemma3TextConfig(
            **{**_COMMON, "num_key_value_heads": 1},
            head_dim=16,
            sliding_window=4,
            query_pre_attn_scalar=10,
            layer_types=alternating,
        ),
        "gptj": kinds.GPTJConfig(**{**_GPT2, "n_embd": 40}, rotary_dim=4, n_inner=48),
        "gpt_neo": kinds.GPTNeoConfig(
            **{**_COMMON, "hidden_size": 36},
            num_layers=3,
            num_heads=4,
            attention_types=[[["global", "local"], 1], [["global"], 1]],
            window_size=4,
        ),
        "opt": kinds.OPTConfig(
            **{**_COMMON, "hidden_size": 36},
            ffn_dim=48,
            word_embed_proj_dim=36,
            activation_function="relu",
        ),
        "phi3": kinds.Phi3Config(
            **{**GROUPED, "hidden_size": 40},
            sliding_window=4,
            rope_parameters={**rope, "partial_rotary_factor": 0.4},
        ),
        "olmo2": kinds.Olmo2Config(**GROUPED),
        "olmo3": kinds.Olmo3Config(**GROUPED, sliding_window=4, layer_types=alternating),
        "gemma": kinds.GemmaConfig(**GROUPED, head_dim=10),
        "granite": kinds.GraniteConfig(
            **GROUPED,
            embedding_multiplier=3.0,
            attention_multiplier=0.3,
            residual_multiplier=0.4,
            logits_scaling=3.0,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
        "stablelm": kinds.StableLmConfig(**GROUPED, use_qkv_bias=True),
        "stablelm_12b": kinds.StableLmConfig(
            **GROUPED, use_parallel_residual=True, qk_layernorm=True
        ),
        "smollm3": kinds.SmolLM3Config(
            **GROUPED,
            no_rope_layers=[1, 0, 1],
            use_sliding_window=True,
            sliding_window=4,
            layer_types=alternating,
        ),
        "mixtral": kinds.MixtralConfig(**GROUPED, num_local_experts=5, sliding_window=4),
        "qwen3_moe": kinds.Qwen3MoeConfig(
            **GROUPED,
            head_dim=12,
            moe_intermediate_size=24,
            num_experts=6,
            num_experts_per_tok=3,
            norm_topk_prob=True,
            mlp_only_layers=[1],
        ),
        "olmoe": kinds.OlmoeConfig(**GROUPED, num_experts=6, num_experts_per_tok=2),
        "falcon_7b": kinds.FalconConfig(**_COMMON, alibi=False, multi_query=True),
        "falcon_40b": kinds.FalconConfig(
            **_COMMON, alibi=False, new_decoder_architecture=True, num_kv_heads=2, bias=True
        ),
        "cohere": kinds.CohereConfig(**GROUPED, logit_scale=1.5),
        "cohere_plus": kinds.CohereConfig(**GROUPED, logit_scale=1.5, use_qk_norm=True),
        "cohere2": kinds.Cohere2Config(
            **GROUPED, logit_scale=1.5, sliding_window=4, layer_types=alternating
        ),
    }


def build(
    name: str, dtype: torch.dtype = torch.float32, seed: int = 0
) -> transformers.PreTrainedModel:
    """The Hugging Face model `name` with random weights, frozen, with its own file's attention."""
    return random_model(configs()[name], dtype, seed)


def random_model(
    config: Any, dtype: torch.dtype = torch.float32, seed: int = 0
) -> transformers.PreTrainedModel:
    """A Hugging Face model of any configuration, all of whose parameters are random, and frozen."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        maker = transformers.AutoModelForCausalLM
        model = maker.from_config(config, attn_implementation="eager").eval().to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
            of_norm = path.endswith("weight") and ("norm" in path or "ln_" in path)
            is_scale = of_norm and parameter.ndim == 1
            # Scales of norms are around 1; Gemma stores them less 1.
            centre = 1.0 if is_scale and not config.model_type.startswith("gemma") else 0.0
            parameter.copy_(noise + centre)
    return model.requires_grad_(False)


@dataclass(frozen=True)
class Subject:
    """A tiny model and a batch to try things on."""

    model: Model
    batch: Batch


def subject(
    name: str, dtype: torch.dtype = torch.float32, n_pairs: int = 3, seed: int = 0
) -> Subject:
    """A tiny model of a family with pairs for it."""
    return Subject(make_model(build(name, dtype, seed)), token_pairs(n_pairs, seed))


def token_pairs(n_pairs: int = 3, seed: int = 0) -> Batch:
    """Pairs of seven tokens that differ at two places; the first pair is shorter by two."""
    generator = torch.Generator().manual_seed(seed + 1)
    clean = torch.randint(0, VOCABULARY, (n_pairs, 7), generator=generator)
    other = clean.clone()
    for column in (3, 5):
        other[:, column] = (
            clean[:, column] + torch.randint(1, VOCABULARY, (n_pairs,), generator=generator)
        ) % VOCABULARY
    answers, foils = torch.randperm(VOCABULARY, generator=generator)[: 2 * n_pairs].view(2, -1)
    mask = torch.ones_like(clean, dtype=torch.bool)
    mask[0, :2] = False
    return Batch.from_tokens(clean, other, answers, foils, mask=mask)
