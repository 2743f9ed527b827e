"""Situations of public bug reports in which models and interventions are right, or refused.

Each is right by plain Hugging Face: every prompt alone, with hooks where something is patched.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import mechassay as ma
from helpers.hooks_reference import ReferenceModel
from helpers.models import families
from helpers.plain_hf import (
    after,
    differences,
    greedy,
    input_of,
    noted,
    output_of,
    prompts,
    put,
)
from mechassay.circuits import EAP, Circuit, ablate, evaluate
from mechassay.errors import BadPairs, UnsupportedModel
from mechassay.models.model import Model
from mechassay.testing.tiny import GROUPED, VOCABULARY, build, configs, random_model, token_pairs
from mechassay.utils.display import SILENT

KINDS: Any = transformers
DOUBLE = torch.float64


def drawn(*lengths: int) -> list[list[int]]:
    """A prompt of random tokens of each length."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def of_lengths(*lengths: int) -> ma.Batch:
    """Pairs of prompts of these lengths, which differ in their last token."""
    clean = drawn(*lengths)
    other = [[*row[:-1], (row[-1] + 1) % VOCABULARY] for row in clean]
    answers, foils = torch.arange(2 * len(lengths)).view(2, -1) * 5 + 3
    return ma.Batch.from_tokens(clean, other, answers, foils)


def measured(model: Model, batch: ma.Batch, objective: str = "logit_diff") -> Tensor:
    """What the whole model gets in the objective."""
    full = Circuit.full(model.graph)
    return torch.from_numpy(evaluate(model, full, batch, objective, progress=SILENT))


def by_hugging_face(hf: Any, batch: ma.Batch) -> Tensor:
    """The logit difference of each pair's clean prompt alone."""
    return differences([after(hf, row) for row in prompts(batch)], batch)


def close(ours: Tensor, theirs: Tensor, atol: float = 1e-5) -> None:
    """Hugging Face rounds RMSNorms and softmaxes to fp32 in fp64 too."""
    assert float(theirs.std()) > 100 * atol, "numbers that could be told apart"
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=0, atol=atol)


# Prompts of several lengths.


# TransformerLens #1609, #240; nnsight #673
@pytest.mark.parametrize("name", families())
def test_prompts_of_several_lengths_in_one_batch_have_the_numbers_of_each_alone(name: str) -> None:
    hf, batch = build(name, DOUBLE), of_lengths(2, 5, 9, 14, 20, 30, 44)
    close(measured(ma.load_model(hf), batch), by_hugging_face(hf, batch))


# pyvene #112, #236; transformers #18388
@pytest.mark.parametrize("kind", [torch.bool, torch.long])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_with_a_mask_of_0_and_1_is_left_out(
    side: str, kind: torch.dtype
) -> None:
    hf, batch = build("llama", DOUBLE), of_lengths(5, 5, 5)
    columns = (2, 0) if side == "left" else (0, 2)
    clean, other, mask = (
        torch.nn.functional.pad(x, columns)
        for x in (batch.clean, batch.counterfactual, batch.mask.to(kind))
    )
    padded = ma.Batch.from_tokens(clean, other, batch.answers, batch.foils, mask=mask)
    close(measured(ma.load_model(hf), padded), by_hugging_face(hf, batch))


# TransformerLens #1005, #999
@pytest.mark.parametrize("name", families())
def test_prompts_written_on_together_get_the_tokens_that_each_gets_alone(name: str) -> None:
    hf, rows = build(name, DOUBLE), drawn(3, 6, 11)
    hf.generation_config.eos_token_id = None  # pyright: ignore[reportOptionalMemberAccess]
    written = ma.generate(ma.load_model(hf), rows, n=10, progress=SILENT).tokens
    for row, ours in zip(rows, written, strict=True):
        ids: Any = torch.tensor([row])
        settings = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
        whole = hf.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        assert list(ours) == whole[0, len(row) :].tolist()
    assert len(set(written)) == 3


# steering-vectors #54
@pytest.mark.parametrize("position", ["last", "all", "new"])
def test_steering_prompts_of_several_lengths_together_writes_what_hooks_write_alone(
    position: str,
) -> None:
    hf, rows, n = build("llama", DOUBLE), drawn(3, 12, 7), 6
    hf.generation_config.eos_token_id = None  # pyright: ignore[reportOptionalMemberAccess]
    model = ma.load_model(hf)
    vector = torch.randn(32, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    steered = {f"resid.1@{position}": ma.Add(vector, 3.0)}
    together = ma.generate(model, rows, steered, n=n, progress=SILENT).tokens

    def alone(row: list[int]) -> tuple[int, ...]:
        first = {"last": len(row) - 1, "all": 0, "new": len(row)}[position]
        until = len(row) if position == "last" else None

        def change(stream: Tensor) -> Tensor:
            stream = stream.clone()
            stream[:, first:until] += 3 * vector
            return stream

        with output_of(hf.model.layers[1], change):
            return greedy(hf, row, n)

    assert together == tuple(map(alone, rows))
    assert together != ma.generate(model, rows, n=n, progress=SILENT).tokens


# What is patched.


# pyvene #158
@pytest.mark.parametrize("name", families())
def test_a_head_or_a_stream_of_the_other_prompt_is_put_in_as_hooks_do(name: str) -> None:
    hf, batch = build(name, DOUBLE), token_pairs(4)
    model = ma.load_model(hf)
    reference = ReferenceModel(hf, model.graph)
    layout, plain = reference.layout, [after(hf, row) for row in prompts(batch)]
    out = reference.part(1, f"{layout.attention}.{layout.out}")
    width = model.decoder.layers[1].attention.out.shape[1]
    head = slice(2 * width, 3 * width)
    for site, on, module, where in (
        ("heads.1.2@last", input_of, out, (-1, head)),
        ("resid.0@3", output_of, reference.blocks[0], (3,)),
    ):
        theirs: list[Tensor] = []
        pairs = zip(prompts(batch), prompts(batch, counterfactual=True), strict=True)
        for clean, other in pairs:
            values: list[Tensor] = []
            with on(module, noted(values)):
                after(hf, other)
            with on(module, put(values[0][(0, *where)], *where)):
                theirs.append(after(hf, clean))
        ours = ma.intervene(model, batch, {site: ma.Interchange()}).logits
        close(ours, torch.stack(theirs), atol=2e-5)
        assert not torch.allclose(torch.stack(theirs), torch.stack(plain), atol=1e-2)


# TransformerLens #980, #810, #713
@pytest.mark.parametrize("name", families(["llama", "gemma2", "qwen2", "qwen3", "mistral"]))
def test_keys_that_two_query_heads_share_are_patched_as_by_a_hook(name: str) -> None:
    hf, batch = build(name, DOUBLE), token_pairs()
    model = ma.load_model(hf)
    graph = model.graph
    cut = torch.zeros_like(graph.legal)
    for reader in ("a1.h0<k>", "a1.h1<k>"):
        cut[:, graph.index(f"input->{reader}")[1]] = True
    patched = Circuit(graph, graph.legal & ~cut)
    keys, theirs = hf.model.layers[1].self_attn.k_proj, []
    first = slice(0, keys.out_features // 2)
    for clean, other in zip(prompts(batch), prompts(batch, counterfactual=True), strict=True):
        values: list[Tensor] = []
        with output_of(keys, noted(values)):
            after(hf, other)
        with output_of(keys, put(values[0][0, :, first], slice(None), first)):
            theirs.append(after(hf, clean))
    ours = torch.from_numpy(evaluate(model, patched, batch, progress=SILENT))
    close(ours, differences(theirs, batch))
    assert not torch.allclose(ours, by_hugging_face(hf, batch), atol=1e-3)


ZEROED = ["gpt2", "gemma2", "falcon_40b", "neox", "llama31", "olmo2", "opt", "cohere"]


# ACDC #82
@pytest.mark.parametrize("name", families(ZEROED, quick=ZEROED[:3]))
def test_a_head_ablated_to_zero_is_the_head_zeroed_by_a_hook(name: str) -> None:
    hf, batch = build(name, DOUBLE), token_pairs()
    model = ma.load_model(hf)
    graph, reference = model.graph, ReferenceModel(hf, model.graph)
    heads = torch.tensor([graph.writer_name(i) == "a1.h2" for i in range(graph.n_writers)])
    others = Circuit.full(graph) - Circuit.of_nodes(graph, heads)
    ours = evaluate(model, others, ablate(model, batch, "zero", progress=SILENT), progress=SILENT)
    width = model.decoder.layers[1].attention.out.shape[1]
    slot = (slice(None), slice(2 * width, 3 * width))
    out = reference.part(1, f"{reference.layout.attention}.{reference.layout.out}")
    with input_of(out, put(torch.zeros(()), *slot)):
        theirs = by_hugging_face(hf, batch)
    close(torch.from_numpy(ours), theirs)
    assert not torch.allclose(theirs, by_hugging_face(hf, batch), atol=1e-3)


# pyreft #122
def test_interventions_at_several_tokens_of_one_layer_are_all_done() -> None:
    hf, batch = build("llama", DOUBLE), of_lengths(7, 7, 9)
    one = torch.linspace(-1, 1, 32, dtype=DOUBLE)
    plan = {f"resid.1@{place}": ma.Add(one, float(place)) for place in (1, 3, 5)}

    def change(stream: Tensor) -> Tensor:
        factors = stream.new_zeros(stream.shape[1], 1)
        factors[[1, 3, 5], 0] = torch.tensor([1.0, 3.0, 5.0], dtype=DOUBLE)
        return stream + factors * one

    model = ma.load_model(hf)
    with output_of(hf.model.layers[1], change):
        theirs = torch.stack([after(hf, row) for row in prompts(batch)])
    close(ma.intervene(model, batch, plan).logits, theirs)


# pyreft #122
def test_interventions_that_meet_at_one_token_are_done_one_after_the_other() -> None:
    hf, batch = build("llama", DOUBLE), of_lengths(7, 7)
    one = torch.linspace(-1, 1, 32, dtype=DOUBLE)
    model = ma.load_model(hf)
    for changes, end in (
        ((ma.Add(one, 1.0), ma.Add(one, 2.0)), lambda value: value + 3 * one),
        ((ma.Replace(one), ma.Add(one, 5.0)), lambda value: 6 * one),
        ((ma.Add(one, 5.0), ma.Replace(one)), lambda value: one),
    ):
        plan = dict(zip(("resid.1@last", "resid.1@6"), changes, strict=True))

        def change(stream: Tensor, end: Any = end) -> Tensor:
            return torch.cat((stream[:, :-1], end(stream[:, -1:]).expand(1, 1, -1)), dim=1)

        with output_of(hf.model.layers[1], change):
            theirs = torch.stack([after(hf, row) for row in prompts(batch)])
        close(ma.intervene(model, batch, plan).logits, theirs)


class Look:
    """An intervention that keeps what it is given, and changes nothing."""

    needs_source, keeps_equal = False, True

    def __init__(self) -> None:
        self.values = torch.empty(0)

    def __call__(self, base: Tensor, source: Tensor | None) -> Tensor:
        self.values = base.clone()
        return base


# captum #165; thingsvision #44
@pytest.mark.parametrize("name", ["falcon_7b", "falcon_40b"])
def test_an_intervention_sees_what_the_mlp_wrote_where_attention_is_added_in_place(
    name: str,
) -> None:
    hf, batch, look = build(name, DOUBLE), of_lengths(6, 6, 6), Look()
    ma.intervene(ma.load_model(hf), batch, {"mlp.1@last": look})
    written: list[Tensor] = []
    with output_of(hf.transformer.h[1].mlp, noted(written)):
        for row in prompts(batch):
            after(hf, row)
    close(look.values, torch.stack([value[0, -1] for value in written]), atol=1e-9)


# Objectives.


# TransformerLens #693
def test_objectives_are_of_the_soft_capped_logits() -> None:
    hf, batch = build("gemma2", DOUBLE), token_pairs()
    model = ma.load_model(hf)
    clean = torch.stack([after(hf, row) for row in prompts(batch)])
    other = torch.stack([after(hf, row) for row in prompts(batch, counterfactual=True)])
    assert float(clean.abs().max()) < configs()["gemma2"].final_logit_softcapping
    p, q = clean.softmax(1), other.softmax(1)
    answers, foils = (p.gather(1, x[:, :1])[:, 0] for x in (batch.answers, batch.foils))
    for objective, theirs in {
        "logit_diff": differences(list(clean), batch),
        "prob_diff": answers - foils,
        "cross_entropy": -answers.log(),
    }.items():
        close(measured(model, batch, objective), theirs)
    middle = ((p + q) / 2).log()
    empty = Circuit.empty(model.graph)
    for objective, theirs in {
        "kl": (p * (p.log() - q.log())).sum(1),
        "js": (p * (p.log() - middle) + q * (q.log() - middle)).sum(1) / 2,
    }.items():
        ours = torch.from_numpy(evaluate(model, empty, batch, objective, progress=SILENT))
        close(ours, theirs)


# Models in memory.


# TransformerLens #487
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_a_resized_vocabulary_is_read_and_ids_beyond_it_are_refused(name: str) -> None:
    hf = build(name, DOUBLE)
    embedding = hf.resize_token_embeddings(110, mean_resizing=False)
    with torch.no_grad():
        embedding.weight[97:].normal_(generator=torch.Generator().manual_seed(0))
    model = ma.load_model(hf)
    batch = ma.Batch.from_tokens(
        [[3, 100, 5, 109], [1, 2, 3, 4]], [[3, 101, 5, 109], [1, 9, 3, 4]], [105, 7], [20, 108]
    )
    close(measured(model, batch), by_hugging_face(hf, batch))
    beyond = ma.Batch.from_tokens([[3, 110]], [[3, 4]], [5], [6])
    with pytest.raises(BadPairs, match=r"clean prompt has the token id 110; .* has 0 to 109"):
        measured(model, beyond)


# transformers #2627
def test_a_model_in_training_mode_is_measured_without_its_dropout() -> None:
    rates = {name: 0.5 for name in ("attn_pdrop", "resid_pdrop", "embd_pdrop")}
    config = KINDS.GPT2Config(**{**configs()["gpt2"].to_dict(), **rates})
    batch, hf = token_pairs(), random_model(config)
    theirs, plain = by_hugging_face(hf, batch), EAP().score(ma.load_model(build("gpt2")), batch)
    hf.train()
    assert not torch.allclose(by_hugging_face(hf, batch), theirs, atol=0.1), "it drops numbers out"
    model = ma.load_model(hf)
    for _ in range(2):
        close(measured(model, batch), theirs)
        scores = EAP().score(model, batch, progress=SILENT).values
        torch.testing.assert_close(scores, plain.values, rtol=0, atol=1e-6, equal_nan=True)
        assert ma.generate(model, drawn(4), n=5, progress=SILENT).tokens[0] == greedy(
            hf.eval(), drawn(4)[0], 5
        )
        hf.train()  # As its owner goes on training.


# pytorch #117758, #96722
@pytest.mark.slow
def test_a_compiled_model_has_the_numbers_of_the_model() -> None:
    torch.compiler.reset()
    config = KINDS.LlamaConfig(**{**GROUPED, "num_hidden_layers": 2})
    hf, batch = random_model(config), token_pairs()
    theirs = by_hugging_face(hf, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ma.load_model(torch.compile(hf, backend="eager"))  # pyright: ignore[reportArgumentType, reportCallIssue]
    close(measured(model, batch), theirs)


# Bacformer #33
@pytest.mark.parametrize("name", ["llama", "llama31"])
def test_a_model_cast_to_16_bits_is_read_with_its_rounded_rotary_frequencies(name: str) -> None:
    batch = of_lengths(*[60] * 9)
    hf: Any = build(name).to(torch.bfloat16)  # pyright: ignore[reportArgumentType, reportCallIssue]
    narrow, ours = by_hugging_face(hf, batch), measured(ma.load_model(hf), batch)
    hf = hf.to(torch.float32)
    wide = by_hugging_face(hf, batch)
    assert float((ours - wide).norm()) < float((narrow - wide).norm()), "as its own 16-bit run"
    close(measured(ma.load_model(hf), batch), wide, atol=1e-4)
    unrounded = build(name)
    unrounded.load_state_dict(hf.state_dict())  # The frequencies are no part of it.
    assert not torch.allclose(by_hugging_face(unrounded, batch), wide, atol=1e-2)


# TransformerLens #944
@pytest.mark.parametrize(
    ("name", "setting"),
    [("llama", "rms_norm_eps"), ("neox", "layer_norm_eps"), ("gpt2", "layer_norm_epsilon")],
)
def test_the_epsilon_of_norms_is_the_configuration_s(name: str, setting: str) -> None:
    config, batch = configs()[name], token_pairs()
    usual = by_hugging_face(random_model(config, DOUBLE), batch)
    assert getattr(config, setting) < 1e-4
    setattr(config, setting, 0.3)
    hf = random_model(config, DOUBLE)
    close(measured(ma.load_model(hf), batch), by_hugging_face(hf, batch))
    assert not torch.allclose(by_hugging_face(hf, batch), usual, atol=1e-2)


# Models that are refused.


TEXT = {**GROUPED, "head_dim": 8, "sliding_window": 8}
LOOKS: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


# TransformerLens #953, #1156; nnsight #479
@pytest.mark.parametrize(
    "config",
    [
        KINDS.Gemma3Config(text_config=TEXT, vision_config=LOOKS, mm_tokens_per_image=4),
        KINDS.Gemma4Config(
            text_config={
                **TEXT,
                "vocab_size_per_layer_input": VOCABULARY,
                "hidden_size_per_layer_input": 8,
            },
            vision_config=None,
            audio_config=None,
        ),
    ],
    ids=["gemma3", "gemma4"],
)
def test_a_model_of_texts_and_pictures_is_refused_in_one_line(config: Any) -> None:
    with pytest.raises(UnsupportedModel, match=f"{config.model_type}.* is not supported") as error:
        ma.load_model(random_model(config))
    assert "\n" not in str(error.value) and "ForConditionalGeneration" in str(error.value)
