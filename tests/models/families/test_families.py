"""Variants of families that the tiny models do not have; models that are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import mechassay as ma
from mechassay.circuits.methods.attribution import ReaderGradients, at_clean_run, contract
from mechassay.errors import BadPairs, UnsupportedModel
from mechassay.models.decoder import Experts
from mechassay.models.families.weights import multiplied_by
from mechassay.models.forward import Contrast
from mechassay.models.gradients import backward_model, masked_readout
from mechassay.models.model import make_model
from mechassay.models.objectives import LogitDiff
from mechassay.testing.tiny import FAMILIES, configs, random_model, subject

KINDS: Any = transformers
SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 3.0],
    "original_max_position_embeddings": 32,
}
VARIANTS: dict[str, Any] = {
    "gptj, whole heads turned": KINDS.GPTJConfig(
        vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=8
    ),
    "gpt_neo, all global": KINDS.GPTNeoConfig(
        **SMALL, num_layers=2, num_heads=4, attention_types=[[["global"], 2]]
    ),
    "opt without biases": KINDS.OPTConfig(
        **SMALL, ffn_dim=48, word_embed_proj_dim=32, enable_bias=False
    ),
    "phi3, longrope": KINDS.Phi3Config(**GROUPED, rope_parameters=LONGROPE),
    "stablelm, in sequence, normed": KINDS.StableLmConfig(**GROUPED, qk_layernorm=True),
    "stablelm, parallel, plain": KINDS.StableLmConfig(**GROUPED, use_parallel_residual=True),
    "mixtral, whole context": KINDS.MixtralConfig(**GROUPED, num_local_experts=3),
    "qwen3_moe, shares not normalised": KINDS.Qwen3MoeConfig(
        **GROUPED,
        head_dim=8,
        moe_intermediate_size=16,
        num_experts=3,
        num_experts_per_tok=2,
        norm_topk_prob=False,
    ),
    "olmoe, shares normalised": KINDS.OlmoeConfig(
        **GROUPED, num_experts=3, num_experts_per_tok=2, norm_topk_prob=True
    ),
    "falcon of 11B": KINDS.FalconConfig(
        **SMALL,
        alibi=False,
        new_decoder_architecture=True,
        num_kv_heads=2,
        num_ln_in_parallel_attn=1,
    ),
    "falcon, in sequence": KINDS.FalconConfig(
        **SMALL, alibi=False, parallel_attn=False, multi_query=False
    ),
    "granite without multipliers": KINDS.GraniteConfig(**GROUPED),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_pass_their_check(name: str) -> None:
    """In fp32: the logits of the original, with and without padding, and the writers' sum."""
    check = make_model(random_model(VARIANTS[name])).self_check
    assert check is not None and check.passed
    assert max(check.logits, check.logits_left_padded, check.writers_sum) < 1e-5


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            KINDS.GptOssConfig(**GROUPED, head_dim=8, num_local_experts=3, num_experts_per_tok=2),
            "gpt_oss: attention sinks take a part of every softmax; not supported.",
        ),
        (
            KINDS.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4),
            "bloom: ALiBi adds to attention scores; not supported.",
        ),
        (
            KINDS.OPTConfig(
                **SMALL, ffn_dim=48, word_embed_proj_dim=32, do_layer_norm_before=False
            ),
            "opt: norms change the stream itself (as in OPT-350M); not supported.",
        ),
        (
            KINDS.OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=16),
            "opt: embeddings are projected to the width of the stream; not supported.",
        ),
        (
            KINDS.FalconConfig(**SMALL, alibi=True),
            "falcon: ALiBi adds to attention scores (as in Falcon-RW); not supported.",
        ),
        (
            KINDS.OlmoeConfig(**GROUPED, num_experts=3, num_experts_per_tok=2, clip_qkv=0.1),
            "olmoe: queries, keys and values are clipped at 0.1; not supported.",
        ),
    ],
)
def test_what_is_unlike_is_refused_in_one_line(config: Any, says: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        ma.load_model(random_model(config))
    assert str(caught.value) == says


def test_a_prompt_longer_than_gpt_j_s_table_is_refused() -> None:
    model = make_model(random_model(VARIANTS["gptj, whole heads turned"]))
    long = torch.zeros(1, 65, dtype=torch.long)
    batch = ma.Batch.from_tokens(long, long, answers=[1], foils=[2])
    with pytest.raises(BadPairs, match=r"65 tokens; .* has 64 positions"):
        model.run(batch)


def test_a_mixture_is_the_sum_over_its_experts_of_their_shares() -> None:
    """By hand: two experts of one hidden number, of which the better one is taken."""
    experts = Experts(
        norm=multiplied_by(1.0, torch.zeros(2)),
        up=torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]),
        gate=torch.tensor([[[1.0, 1.0]], [[2.0, 0.0]]]),
        down=torch.tensor([[[1.0], [0.0]], [[0.0], [3.0]]]),
        act=torch.relu,
        router=torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        top_k=1,
        normalised=False,
    )
    x = torch.tensor([[2.0, 1.0], [1.0, 4.0]])
    share = torch.sigmoid(torch.tensor([2.0 - 1.0, 4.0 - 1.0]))
    # Token 0: expert 0 writes relu(2 + 1) * 2 into dimension 0. Token 1: expert 1 writes
    # 3 * relu(2 * 1) * 4 into dimension 1.
    wanted = torch.tensor([[6.0, 0.0], [0.0, 24.0]]) * share[:, None]
    torch.testing.assert_close(experts(x), wanted)


@pytest.mark.parametrize("backward", ["plain", "gim"])
@pytest.mark.parametrize("name", ["cohere_plus", "granite", "olmo2", "olmoe"])
def test_norms_of_all_heads_and_of_each_are_differentiated_by_rules(
    name: str, backward: str
) -> None:
    """Attribution pulls gradients back by hand; autograd finds the same by masks of ones."""
    case = subject(name, torch.float64)
    model, batch = backward_model(case.model, backward), case.batch
    contrast, graph = Contrast.run(model.decoder, batch), model.graph
    mask = torch.ones(1, graph.n_writers, graph.n_readers, dtype=torch.float64, requires_grad=True)
    logits = masked_readout(model.decoder, contrast, mask).all()
    clean = case.model.run(batch)[0].readout(case.model.decoder).all()
    torch.testing.assert_close(logits.detach(), clean, rtol=0, atol=1e-9)
    total = (logits.gather(1, batch.answers) - logits.gather(1, batch.foils)).sum()
    (expected,) = torch.autograd.grad(total, mask)
    scores = torch.zeros_like(expected[0])
    contract(model, *at_clean_run(model, batch, LogitDiff(), ReaderGradients.of), scores)
    torch.testing.assert_close(
        torch.where(graph.legal, scores, 0.0), expected[0] * graph.legal, rtol=1e-9, atol=1e-9
    )


def test_the_page_s_parity_table_has_every_family() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text("utf-8")
    part = page.partition("<!-- parity -->")[2].partition("<!-- /parity -->")[0]
    rows = [line.split(" | ") for line in part.splitlines()]
    listed = {row[0].removeprefix("| "): row for row in rows if row[0].startswith("| ")}
    tiny = configs()
    wanted = {name: f"`{tiny[name].model_type}`" for name in FAMILIES}
    assert {name: row[1] for name, row in listed.items() if name != "tiny model"} == wanted
    for name in FAMILIES:
        errors = [[float(x) for x in cell.strip(" |").split(" / ")] for cell in listed[name][2:]]
        (largest,), float64, float32, _ = errors
        assert max(float64) < 1e-12 * largest and max(float32) < 1e-5 * largest, name
