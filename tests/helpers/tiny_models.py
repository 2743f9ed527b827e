"""Tiny models that only the tests need: files in the layouts of others, and a model with words."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from mechassay.tasks.task import word_lists
from mechassay.testing.tiny import GROUPED, VOCABULARY, random_model


def quiet_model(kind: type, config: Any) -> Any:
    """A model from a config, without transformers' remarks about a tiny vocabulary."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(config).eval()


def write_interpbench(folder: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Write random weights in the layout of mib-worker/interpbench, without its pickle and graph.

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
    sizes: dict[str, Any] = {**GROUPED, "vocab_size": tokenizer.get_vocab_size()}
    config = transformers.LlamaConfig(**sizes)
    return random_model(config, seed=seed), transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    )
