"""Every causal model type of the installed transformers at tiny size: it is read rightly, or it is
refused in one line.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import mechassay as ma
from mechassay.errors import SelfCheckFailed, UnsupportedModel
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import VOCABULARY, random_model

WIDTHS = {name: 32 for name in ("hidden_size", "n_embd", "d_model", "embed_dim")}
LAYERS = {name: 4 for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers")}
HEADS = {name: 4 for name in ("num_attention_heads", "n_head", "num_heads", "n_heads")}
INNER = {name: 48 for name in ("intermediate_size", "n_inner", "ffn_dim")}
EXPERTS = {name: 4 for name in ("num_experts", "num_local_experts", "n_routed_experts")}
CHOSEN = {name: 2 for name in ("num_experts_per_tok", "num_experts_per_token")}
WINDOWS = {name: 6 for name in ("sliding_window", "attention_chunk_size")}
SIZES: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None},
    **{"max_position_embeddings": 64, "n_positions": 64, "original_max_position_embeddings": 16},
    **{"num_key_value_heads": 2, "head_dim": 8, "rotary_dim": 4, "moe_intermediate_size": 24},
    **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY},
    **WIDTHS,
    **LAYERS,
    **HEADS,
    **INNER,
    **EXPERTS,
    **CHOSEN,
    **WINDOWS,
}
LARGEST = 3_000_000


def small(kind: str) -> Any:
    """A random model of a type, of tiny size; None if these sizes make none."""
    try:
        maker = CONFIG_MAPPING[kind]
        own = getattr(maker, "__dataclass_fields__", {})
        config = maker(**{key: value for key, value in SIZES.items() if key in own})
        with torch.device("meta"):
            outline = transformers.AutoModelForCausalLM.from_config(config)
        if sum(x.numel() for x in outline.parameters()) > LARGEST:
            return None
        return random_model(config)
    except Exception:  # Other types need sizes that fit together in ways of their own.
        return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
@pytest.mark.filterwarnings("ignore")
def test_a_model_type_is_read_rightly_or_refused_in_one_line(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf = small(kind)
    if hf is None:
        pytest.skip("not built at this size")
    model, refusal = None, ""
    try:
        model = ma.load_model(hf)
    except (UnsupportedModel, SelfCheckFailed) as error:
        refusal = str(error)
    if model is None:
        assert hf.config.model_type in refusal and "\n" not in refusal
        return
    generator = torch.Generator().manual_seed(3)
    for n in (5, 9, 14, 20, 44):
        row = torch.randint(1, VOCABULARY, (n,), generator=generator).tolist()
        batch = Batch.from_tokens([row], [row], [1], [2])
        ours = model.run(batch)[0].readout(model.decoder).all()[0]
        with torch.no_grad():
            theirs = hf(torch.tensor([row]), use_cache=False).logits[0, -1]
        assert float((ours - theirs).abs().max()) < 1e-3 * float(theirs.std())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_most_types_are_tried() -> None:
    kinds = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    built = [kind for kind in kinds if small(kind) is not None]
    assert len(built) > 0.6 * len(kinds)
