"""Tiny random models of every supported family, made in code: three layers, four heads, 97 tokens.

Each differs from the others in something that the decoder must get right: parallel blocks, grouped
queries, biases, sliding windows, scaled rotary positions, query and key norms, post-norms,
soft-caps. All parameters are random, norms and biases too, so that a part that is left out shows.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from mechassay.models.model import Model, make_model
from mechassay.prompts.batch import Batch
from mechassay.tasks.task import word_lists

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
_GROUPED: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2}


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
        "llama": kinds.LlamaConfig(**_GROUPED, tie_word_embeddings=True),
        "llama31": kinds.LlamaConfig(
            **{**_GROUPED, "max_position_embeddings": 512},
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=llama31_rope,
        ),
        "mistral": kinds.MistralConfig(**_GROUPED, sliding_window=4),
        "qwen2": kinds.Qwen2Config(
            **_GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1
        ),
        "qwen3": kinds.Qwen3Config(**_GROUPED, head_dim=16),
        "gemma2": kinds.Gemma2Config(
            **_GROUPED, head_dim=16, sliding_window=4, query_pre_attn_scalar=10, **softcaps
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
            **{**_GROUPED, "hidden_size": 40},
            sliding_window=4,
            rope_parameters={**rope, "partial_rotary_factor": 0.4},
        ),
        "olmo2": kinds.Olmo2Config(**_GROUPED),
        "olmo3": kinds.Olmo3Config(**_GROUPED, sliding_window=4, layer_types=alternating),
        "gemma": kinds.GemmaConfig(**_GROUPED, head_dim=10),
        "granite": kinds.GraniteConfig(
            **_GROUPED,
            embedding_multiplier=3.0,
            attention_multiplier=0.3,
            residual_multiplier=0.4,
            logits_scaling=3.0,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
        "stablelm": kinds.StableLmConfig(**_GROUPED, use_qkv_bias=True),
        "stablelm_12b": kinds.StableLmConfig(
            **_GROUPED, use_parallel_residual=True, qk_layernorm=True
        ),
        "smollm3": kinds.SmolLM3Config(
            **_GROUPED,
            no_rope_layers=[1, 0, 1],
            use_sliding_window=True,
            sliding_window=4,
            layer_types=alternating,
        ),
        "mixtral": kinds.MixtralConfig(**_GROUPED, num_local_experts=5, sliding_window=4),
        "qwen3_moe": kinds.Qwen3MoeConfig(
            **_GROUPED,
            head_dim=12,
            moe_intermediate_size=24,
            num_experts=6,
            num_experts_per_tok=3,
            norm_topk_prob=True,
            mlp_only_layers=[1],
        ),
        "olmoe": kinds.OlmoeConfig(**_GROUPED, num_experts=6, num_experts_per_tok=2),
        "falcon_7b": kinds.FalconConfig(**_COMMON, alibi=False, multi_query=True),
        "falcon_40b": kinds.FalconConfig(
            **_COMMON, alibi=False, new_decoder_architecture=True, num_kv_heads=2, bias=True
        ),
        "cohere": kinds.CohereConfig(**_GROUPED, logit_scale=1.5),
        "cohere_plus": kinds.CohereConfig(**_GROUPED, logit_scale=1.5, use_qk_norm=True),
        "cohere2": kinds.Cohere2Config(
            **_GROUPED, logit_scale=1.5, sliding_window=4, layer_types=alternating
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


def quiet_model(kind: type, config: Any) -> Any:
    """A model from a config, without transformers' remarks about a tiny vocabulary."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(config).eval()


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


def write_interpbench(folder: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Write random weights in the layout of mib-bench/interpbench, without its pickle and graph.

    Returns:
        The weights.
    """
    from mechassay.models.families.transformer_lens import INTERPBENCH, INTERPBENCH_WEIGHTS

    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.1
        for name, shape in INTERPBENCH.shapes.items()
    }
    (folder / INTERPBENCH_WEIGHTS).parent.mkdir(parents=True, exist_ok=True)
    torch.save(weights, folder / INTERPBENCH_WEIGHTS)
    return weights


def write_attn_only(
    folder: Path,
    *,
    n_layers: int = 3,
    n_heads: int = 4,
    d_head: int = 8,
    vocabulary: int = VOCABULARY,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Write an attention-only checkpoint as Neel Nanda's are: without `b_U` and with buffers.

    Returns:
        Its weights, without the buffers.
    """
    d_model, n_ctx, per_head = 32, 64, (n_heads, 32, d_head)
    shapes: dict[str, tuple[int, ...]] = {
        "embed.W_E": (vocabulary, d_model),
        "pos_embed.W_pos": (n_ctx, d_model),
    }
    for block in (f"blocks.{layer}" for layer in range(n_layers)):
        shapes |= {f"{block}.ln1.w": (d_model,), f"{block}.ln1.b": (d_model,)}
        shapes |= {f"{block}.attn.{name}": per_head for name in ("W_Q", "W_K", "W_V")}
        shapes |= {f"{block}.attn.{name}": (n_heads, d_head) for name in ("b_Q", "b_K", "b_V")}
        shapes |= {f"{block}.attn.W_O": (n_heads, d_head, d_model), f"{block}.attn.b_O": (d_model,)}
    shapes |= {
        "ln_final.w": (d_model,),
        "ln_final.b": (d_model,),
        "unembed.W_U": (d_model, vocabulary),
    }
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3
        + float(name.endswith(".w"))
        for name, shape in shapes.items()
    }
    buffers: dict[str, torch.Tensor] = {}
    for block in (f"blocks.{layer}" for layer in range(n_layers)):
        buffers |= {
            f"{block}.attn.mask": torch.ones(n_ctx, n_ctx, dtype=torch.bool).tril(),
            f"{block}.attn.IGNORE": torch.tensor(-1e5),
        }
    sizes = {
        "n_layers": n_layers,
        "d_model": d_model,
        "d_mlp": 4 * d_model,
        "d_head": d_head,
        "n_heads": n_heads,
        "n_ctx": n_ctx,
    }
    rest = {
        "normalization": "LN",
        "act_fn": "solu_ln",
        "shortformer_pos": False,
        "attn_only": True,
        "ln_eps": 1e-5,
        "lr_hidden": 0.002,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({**sizes, "d_vocab": vocabulary, **rest}), "utf-8"
    )
    torch.save({**weights, **buffers}, folder / "model_final.pth")
    return weights


def with_words(
    seed: int = 0,
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerFast]:
    """A tiny Llama whose tokenizer knows every word of the IOI task: text pairs run on it."""
    lists = word_lists("ioi").values()
    texts = (text for split in lists for group in split.values() for text in group)
    pieces = re.findall(r"\w+|[^\w\s]+", re.sub(r"\{\w+\}", " ", "\n".join(texts)))
    words = ["[UNK]", *sorted({*pieces} - {"[UNK]"})]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    sizes: dict[str, Any] = {**_GROUPED, "vocab_size": tokenizer.get_vocab_size()}
    config = transformers.LlamaConfig(**sizes)
    return random_model(config, seed=seed), transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    )
