"""What people do with models of their own, and what they have to get: the numbers of the Hugging
Face model, or one line that says why not.

Each test is one situation. Right answers come from the Hugging Face model alone, with forward hooks
where a tensor inside it is asked for.
"""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import mechassay as ma
from helpers.models import families
from mechassay.circuits import Circuit, ablate
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.acdc import ACDC, ACDCTop
from mechassay.circuits.methods.eap import EAP
from mechassay.errors import BadFile, BadUsage, SelfCheckFailed, UnsupportedModel
from mechassay.features.featurizer import Splice
from mechassay.features.sae import SAE, load_sae, save_sae
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Add
from mechassay.interventions.site import Site, load_site
from mechassay.interventions.steering import generate
from mechassay.models.families import decode
from mechassay.models.generation import final_streams
from mechassay.models.model import Model, make_model
from mechassay.models.self_check import SelfCheck, small_copy
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import FAMILIES, GROUPED, VOCABULARY, build, random_model, token_pairs
from mechassay.utils.display import SILENT

# --- a circuit's loss, as its method reports it


@pytest.mark.parametrize("ablation", ["counterfactual", "mean"])
@pytest.mark.parametrize("family", families(FAMILIES, quick=("gpt2", "olmoe", "olmo2")))
def test_the_loss_of_a_circuit_is_that_of_its_evaluation(family: str, ablation: str) -> None:
    """Norms of queries and keys over all heads are part of a projection in OLMo and others."""
    model = make_model(build(family, torch.float64))
    batch: Batch = token_pairs(3)
    if ablation == "mean":
        batch = ablate(model, batch, "mean", progress=SILENT)
    for method in (
        ACDCTop(edges=40, threshold=0.02, compare="absolute"),
        ACDC(threshold=0.2, compare="absolute"),
    ):
        scores = method.score(model, batch, "logit_diff", progress=SILENT)
        kept = Circuit(model.graph, torch.nan_to_num(scores.values) >= 0.5)
        value = float(evaluate(model, kept, batch, progress=SILENT).mean())
        assert len(kept) < model.graph.n_edges
        assert scores.provenance["losses"][0] == pytest.approx(-value, abs=1e-9)


# --- prompts on both sides of a limit of rotary positions

LIMIT = 10
ROPE: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": LIMIT},
    "longrope": {
        "factor": 6.4,
        "short_factor": [1.0, 1.3, 1.1, 1.2],
        "long_factor": [1.5, 4.0, 9.0, 2.0],
        "original_max_position_embeddings": LIMIT,
    },
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": LIMIT,
    },
}
"""Settings by type of scaling, for heads of 8 numbers."""
LENGTHS = (7, 14, LIMIT, 13, 9)


def scaled(kind: str) -> transformers.PreTrainedModel:
    """A Llama with rotary positions of a type of scaling, with a limit of 10 tokens."""
    rope = {"rope_type": kind, "rope_theta": 1e4, **ROPE[kind]}
    sizes = {**GROUPED, "max_position_embeddings": LIMIT if kind == "dynamic" else 64}
    return random_model(transformers.LlamaConfig(**sizes, rope_parameters=rope), torch.float64)


def scaled_by_layer() -> transformers.PreTrainedModel:
    """A Gemma 3 whose full layers have dynamic, and whose sliding layers have linear scaling."""
    rope = {
        "sliding_attention": {"rope_type": "linear", "rope_theta": 1e3, "factor": 2.0},
        "full_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    }
    config = transformers.Gemma3TextConfig(
        **{**GROUPED, "max_position_embeddings": LIMIT},
        head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=rope,
    )
    return random_model(config, torch.float64)


def rows_of(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[list[int]]:
    """Token ids of prompts of some lengths, which begin alike."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(1, VOCABULARY, (4,), generator=generator).tolist()
    draws = [torch.randint(1, VOCABULARY, (n - 4,), generator=generator) for n in lengths]
    return [[*start, *row.tolist()] for row in draws]


@torch.no_grad()
def alone(make: Any, row: list[int]) -> Tensor:
    """Logits of a Hugging Face model that has run nothing but this prompt."""
    return make()(torch.tensor([row]), use_cache=False).logits[0, -1]


def close(ours: Tensor, theirs: Tensor) -> bool:
    """Equal but for the rounding to float32 in Hugging Face's norms and rotations."""
    return bool(torch.allclose(ours, theirs, rtol=0, atol=2e-5))


MODELS = {**{kind: lambda kind=kind: scaled(kind) for kind in ROPE}, "by layer": scaled_by_layer}


def test_every_type_of_scaling_is_tried() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    # Proportional rotary positions are Gemma 4's, which is refused.
    assert set(ROPE_INIT_FUNCTIONS) - {"proportional"} == set(ROPE)


@pytest.mark.parametrize("kind", MODELS)
def test_a_prompt_has_the_numbers_that_it_has_alone(kind: str) -> None:
    model, rows = ma.load_model(MODELS[kind]()), rows_of()
    batch = Batch.from_tokens(rows, rows_of(seed=1), [1] * len(rows), [2] * len(rows))
    logits = model.run(batch)[0].readout(model.decoder).all()
    for own, row in zip(logits, rows, strict=True):
        assert close(own, alone(MODELS[kind], row))
    full, ones = Circuit.full(model.graph), [batch.select([n]) for n in range(len(rows))]
    together = evaluate(model, full, batch, progress=SILENT)
    apart = [float(evaluate(model, full, one, progress=SILENT)[0]) for one in ones]
    assert together.tolist() == pytest.approx(apart, abs=2e-5)
    scores = EAP().score(model, batch, progress=SILENT).values
    of_one = [EAP().score(model, one, progress=SILENT).values for one in ones]
    assert torch.allclose(scores, torch.stack(of_one).mean(0), atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "by layer"])
def test_continuations_beyond_the_limit_are_scored_as_whole_texts(kind: str) -> None:
    model = ma.load_model(MODELS[kind]())
    sequences = [tuple(row) for row in rows_of((8, 11, 12, 15))]
    for members, streams in final_streams(model.decoder, sequences):
        for member, logits in zip(members, model.decoder.readout(streams).all(), strict=True):
            assert close(logits, alone(MODELS[kind], list(sequences[member])))


@pytest.mark.parametrize("steer", [False, True])
@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_text_that_is_written_over_the_limit_is_that_of_runs_without_a_cache(
    kind: str, steer: bool
) -> None:
    hf = scaled(kind)
    model, rows = ma.load_model(hf), rows_of((7, 9))
    vector = torch.linspace(-3, 3, 32, dtype=torch.float64) if steer else torch.zeros(32).double()
    site = {"resid.1@new": Add(vector)}
    texts = generate(model, rows, n=6, interventions=site if steer else None, progress=SILENT)
    for row, written in zip(rows, texts.tokens, strict=True):
        text = list(row)
        for _ in range(6):

            def added(_: Any, __: Any, out: Tensor, n: int = len(row)) -> Tensor:
                changed = out.clone()
                changed[:, n:] += vector
                return changed

            fresh = scaled(kind)
            fresh.model.layers[1].register_forward_hook(added)
            with torch.no_grad():
                token = int(fresh(torch.tensor([text]), use_cache=False).logits[0, -1].argmax())
            if token == 0:  # end of text
                break
            text.append(token)
        assert list(written) == text[len(row) :]


def test_interchanges_whose_label_passes_the_limit_are_read_as_whole_texts() -> None:
    model = ma.load_model(scaled("longrope"))
    base, label = rows_of((9,))[0], [5, 6, 7]
    batch = ma.InterchangeBatch.from_tokens([base], rows_of((9,), seed=2), labels=[label])
    run = intervene(model, batch, {"resid.0@last": Add(torch.zeros(32, dtype=torch.float64))})
    with torch.no_grad():
        logits = scaled("longrope")(torch.tensor([base + label[:-1]]), use_cache=False).logits[0]
    steps = logits[len(base) - 1 :].log_softmax(-1)
    expected = sum(float(step[token]) for step, token in zip(steps, label, strict=True))
    assert float(run.log_probs.sum()) == pytest.approx(expected, abs=2e-5)


# --- what a check of a few tokens does not see


def test_queries_that_grow_with_the_position_are_refused() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1, "mscale": 1.0}
    rope |= {"factor": 4.0, "original_max_position_embeddings": 16, "mscale_all_dim": 1.0}
    rope |= {"beta_fast": 32.0, "beta_slow": 1.0}
    hf = random_model(transformers.Ministral3Config(**GROUPED, head_dim=8, rope_parameters=rope))
    with pytest.raises(SelfCheckFailed, match="near or beyond a limit.*original_max_position"):
        ma.load_model(hf)


@pytest.mark.parametrize("family", ["mistral", "gemma2", "olmo3", "gpt_neo", "cohere2", "phi3"])
def test_a_family_that_ignores_a_window_is_refused(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = build(family)
    for owner in ("sliding_window", "window_size"):
        if hasattr(hf.config, owner):
            setattr(hf.config, owner, 4096)  # longer than the check's few tokens
    hf = random_model(hf.config)
    assert ma.load_model(hf).self_check is not None

    def without_windows(original: Any) -> Any:
        decoder = decode(original)
        layers = [
            replace(layer, attention=replace(layer.attention, window=None))
            for layer in decoder.layers
        ]
        return replace(decoder, layers=tuple(layers))

    monkeypatch.setattr("mechassay.models.model.decode", without_windows)
    with pytest.raises(SelfCheckFailed, match=r"small copy \(windows and limits of 8 tokens\)"):
        ma.load_model(hf)


@pytest.mark.parametrize("family", ["gpt2", "opt", "gptj", "gpt_neo"])
def test_learned_positions_are_read_up_to_their_end_and_not_beyond(family: str) -> None:
    hf = build(family)
    asked: list[Tensor] = []
    hf.register_forward_pre_hook(
        lambda _, __, named: asked.append(named.get("position_ids")), with_kwargs=True
    )
    assert ma.load_model(hf).self_check is not None
    most = max(int(ids.max()) for ids in asked if ids is not None)
    assert most == 63


def test_every_limit_of_a_configuration_is_tried_also_under_one_name() -> None:
    """Two kinds of layers have limits of their own."""
    config = build("gemma3").config
    for kind, limit in (("sliding_attention", 20), ("full_attention", 40)):
        config.rope_parameters[kind]["original_max_position_embeddings"] = limit
    hf = random_model(config)
    starts: list[int] = []

    def look(_: Any, __: Any, named: dict[str, Any]) -> None:
        if named.get("position_ids") is not None:
            starts.append(int(named["position_ids"][0, 0]))

    hf.register_forward_pre_hook(look, with_kwargs=True)
    assert ma.load_model(hf).self_check is not None
    assert starts == [17, 37, 61]


def test_the_small_copy_has_a_layer_of_each_kind_and_the_models_weights() -> None:
    hf = build("gemma3")
    small = small_copy(hf)
    assert small.config.layer_types == ["sliding_attention", "full_attention"]
    assert small.config.sliding_window == 8 and small.config.vocab_size == 256
    weights = dict(hf.named_parameters())
    for name, own in small.named_parameters():
        if ".layers." in name:
            assert own.data_ptr() == weights[name].data_ptr(), "nothing is copied"


def test_a_check_that_is_not_a_number_has_not_passed() -> None:
    for place in range(5):
        numbers = [1e-7] * 5
        numbers[place] = float("nan")
        assert not SelfCheck(*numbers, 1e-4).passed
    assert SelfCheck(*[1e-7] * 5, 1e-4).passed


def test_a_model_that_overflows_in_float16_is_refused_as_that() -> None:
    hf = build("llama")
    with torch.no_grad():
        hf.model.layers[0].mlp.down_proj.weight.mul_(1e5)
    with pytest.raises(SelfCheckFailed, match="too large for float16"):
        ma.load_model(hf.to(torch.float16))


# --- names of sites of other libraries


def blocks_of(hf: Any) -> Any:
    """The list of a model's blocks."""
    return next(
        module
        for module in hf.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == 3
    )


def seen_at(model: Model, batch: Batch, name: str) -> Tensor:
    """What an intervention at a site reads, at the last token."""

    class Look:
        needs_source = False
        keeps_equal = True

        def __call__(self, base: Tensor, source: Tensor | None) -> Tensor:
            self.values = base.clone()
            return base

    look = Look()
    intervene(model, batch, {f"{name}@last": look})
    return look.values


NORMED = {"gemma2": "normed", "gemma3": "normed", "olmo2": "normed", "olmo3": "normed"}
NORMED |= {"granite": "multiplied"}
LAYER = 1


@pytest.mark.parametrize("family", families(FAMILIES, quick=("llama", *NORMED)))
def test_a_name_of_an_mlp_s_output_is_that_tensor_or_is_refused(family: str) -> None:
    hf, batch = build(family), token_pairs(3)
    model = ma.load_model(hf)
    block = blocks_of(hf)[LAYER]
    module = block.mlp if hasattr(block, "mlp") else block.fc2
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(
        lambda _, __, out: outputs.append((out[0] if isinstance(out, tuple) else out).clone())
    )
    with torch.no_grad():
        hf(batch.clean, attention_mask=batch.mask.long(), use_cache=False)
    handle.remove()
    theirs = outputs[0].view(*batch.clean.shape, -1)[1:, -1]  # rows without padding
    names = (f"mlps_output[{LAYER}]", f"MLP(Layer-{LAYER},Token-last_token)")
    hook = f"blocks.{LAYER}.hook_mlp_out"
    if family not in NORMED:
        for name in (*names, hook):
            site = load_site(name)
            assert site.check(model) == Site(LAYER, "last", "mlp")
        assert close(seen_at(model, batch, names[0])[1:], theirs)
        return
    for name in names:
        with pytest.raises(BadUsage, match=rf"before it is {NORMED[family]}.*mlp\.1 is the output"):
            load_site(name).check(model)
    if family.startswith("gemma"):  # TransformerLens's hook is behind the norm there
        normed = block.post_feedforward_layernorm(theirs)
        assert close(seen_at(model, batch, hook)[1:], normed)
    else:
        with pytest.raises(BadUsage, match="no site here"):
            load_site(hook).check(model)


def test_a_dictionary_of_an_mlp_module_is_refused_behind_a_norm(tmp_path: Path) -> None:
    folder = tmp_path / "layers.1.mlp"
    folder.mkdir()
    tensors = {"encoder.weight": torch.eye(32)[:8], "encoder.bias": torch.zeros(8)}
    tensors |= {"W_dec": torch.eye(32)[:8].clone(), "b_dec": torch.zeros(32)}
    save_file(tensors, folder / "sae.safetensors")
    (folder / "cfg.json").write_text(json.dumps({"d_in": 32, "k": 2, "normalize_decoder": True}))
    sae = load_sae(folder)
    assert sae.check_site("mlp.1", make_model(build("llama"))) is sae
    with pytest.raises(BadUsage, match="before it is normed"):
        sae.check_site("mlp.1", make_model(build("olmo2")))
    with pytest.raises(BadUsage, match="before it is normed"):
        intervene(make_model(build("gemma2")), token_pairs(3), {"mlp.1@last": Splice(sae)})
    again = load_sae(save_sae(sae, tmp_path / "again"))
    assert again.hook == "mlps_output[1]", "it is still that of the module"


def test_our_own_dictionaries_of_mlps_name_no_hook_of_others(tmp_path: Path) -> None:
    eye = torch.eye(4)
    sae = SAE(eye, eye.clone(), torch.zeros(4), torch.zeros(4), "relu")
    folder = save_sae(sae, tmp_path, site="mlp.1")
    config = json.loads((folder / "cfg.json").read_text())
    assert config["metadata"]["hook_name"] is None and load_sae(folder).hook == "mlp.1"


# --- adapters, hooks, wrapped modules


def adapted(*, trained: bool = False) -> Any:
    """A tiny Llama with low-rank adapters."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(build("llama"), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    if trained:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


@pytest.mark.parametrize("trained", [False, True])
def test_adapters_that_are_not_merged_are_refused_by_name(trained: bool) -> None:
    peft = adapted(trained=trained)
    for model in (peft, peft.get_base_model()):
        with pytest.raises(UnsupportedModel, match=r"adapters \(PEFT\).*q_proj.*merge_and_unload"):
            ma.load_model(model)


def test_merged_adapters_are_read() -> None:
    peft, tokens = adapted(trained=True), torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        theirs = peft(tokens).logits[0, -1]
    model = ma.load_model(peft.merge_and_unload())
    batch = Batch.from_tokens(tokens.tolist(), [[7, 4, 5, 6]], [1], [2])
    assert close(model.run(batch)[0].readout(model.decoder).all()[0], theirs)


def test_adapters_that_come_after_loading_are_refused_at_use() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    hf = build("llama")
    model = ma.load_model(hf)
    assert len(model.batch(token_pairs(3))) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj"]), hf)
    with pytest.raises(UnsupportedModel, match=r"adapters \(PEFT\)"):
        model.batch(token_pairs(3))


def test_a_folder_of_an_adapter_is_called_so(tmp_path: Path) -> None:
    peft = adapted()
    peft.peft_config["default"].base_model_name_or_path = "meta-llama/Llama-3.2-1B"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft.save_pretrained(tmp_path)
    with pytest.raises(BadFile, match="holds only an adapter.*'meta-llama/Llama-3.2-1B'"):
        ma.load_model(str(tmp_path))


def doubled(_: Any, __: Any, out: Any) -> Any:
    return out * 2


def untouched(_: Any, __: Any, out: Any) -> None:
    """A hook that only looks."""


def test_a_check_leaves_the_modes_of_modules_as_they_were() -> None:
    hf: Any = build("llama")
    model = ma.load_model(hf)
    hf.train()
    hf.model.layers[0].eval()
    model.check()
    assert hf.training and hf.model.layers[1].training and not hf.model.layers[0].training


def test_a_hook_on_a_copy_of_a_model_is_noticed() -> None:
    copied = copy.deepcopy(ma.load_model(build("llama")))
    assert len(copied.batch(token_pairs(3))) == 3
    hf: Any = copied.hf
    hf.model.layers[0].mlp.register_forward_hook(doubled)
    with pytest.raises(SelfCheckFailed, match="Hooks of other code"):
        copied.batch(token_pairs(3))


def test_a_hook_of_every_module_is_named() -> None:
    model = ma.load_model(build("llama"))
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, _, out: out * 2 if type(module).__name__ == "LlamaMLP" else None
    )
    try:
        with pytest.raises(SelfCheckFailed, match="Hooks that torch runs in every module"):
            model.batch(token_pairs(3))
    finally:
        handle.remove()
    assert len(model.batch(token_pairs(3))) == 3


def test_a_hook_that_changes_nothing_is_accepted() -> None:
    hf = build("llama")
    hf.model.layers[0].mlp.register_forward_hook(untouched)
    model = ma.load_model(hf)
    hf.model.layers[1].mlp.register_forward_hook(untouched)
    assert len(model.batch(token_pairs(3))) == 3


def test_a_hook_that_changes_outputs_is_named_at_loading_and_at_use() -> None:
    hf = build("llama")
    handle = hf.model.layers[0].mlp.register_forward_hook(doubled)
    with pytest.raises(SelfCheckFailed, match=r"Hooks of other code.*model\.layers\.0\.mlp"):
        ma.load_model(hf)
    handle.remove()
    model = ma.load_model(hf)
    handle = hf.model.layers[0].mlp.register_forward_hook(doubled)
    for use in (
        lambda: model.batch(token_pairs(3)),
        lambda: model.interchanges(token_pairs(3)),
        lambda: generate(model, [[3, 4]], n=1, progress=SILENT),
    ):
        with pytest.raises(SelfCheckFailed, match="Hooks of other code"):
            use()
    handle.remove()
    assert len(model.batch(token_pairs(3))) == 3, "without it, the model is as it was"


def test_a_module_that_is_replaced_after_loading_is_found() -> None:
    class Halved(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) / 2

    hf: Any = build("llama")
    model = ma.load_model(hf)
    hf.model.layers[2].mlp = Halved(hf.model.layers[2].mlp)
    with pytest.raises(SelfCheckFailed, match=r"not transformers' own.*layers\.2\.mlp \(Halved\)"):
        model.batch(token_pairs(3))


def test_autocast_is_named_at_loading_and_at_use() -> None:
    hf = build("llama")
    model = ma.load_model(hf)
    with torch.autocast("cpu", torch.bfloat16):
        for use in (lambda: ma.load_model(hf), lambda: model.batch(token_pairs(3))):
            with pytest.raises(SelfCheckFailed, match=r"torch\.autocast is on"):
                use()
    assert len(model.batch(token_pairs(3))) == 3


def test_a_model_in_training_mode_is_put_into_evaluation_mode() -> None:
    hf = build("gpt2")
    hf.config.resid_pdrop = 0.5
    model = ma.load_model(hf.train())
    assert not hf.training and model.self_check is not None


# --- tensors of a checkpoint that its configuration does not use


def saved(folder: Path, family: str, **tensors: Tensor) -> Path:
    """A folder of a tiny model, with further tensors, whose names have `__` for dots."""
    build(family).save_pretrained(folder)
    file = folder / "model.safetensors"
    more = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({**load_file(file), **more}, file, metadata={"format": "pt"})
    return folder


REFUSED = {
    "a bias of an MLP": ("llama", {"model__layers__0__mlp__down_proj__bias": torch.ones(32)}),
    "a norm's bias": ("llama", {"model__norm__bias": torch.ones(32)}),
    "a further layer": ("llama", {"model__layers__3__mlp__up_proj__weight": torch.ones(48, 32)}),
    "a gate": ("gpt2", {"transformer__h__0__mlp__c_gate__weight": torch.ones(32, 48)}),
    "without the base's name": ("gpt2", {"h__5__ln_1__weight": torch.ones(32)}),
    "a head's bias": ("llama", {"lm_head__bias": torch.ones(VOCABULARY)}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_weights_that_the_configuration_leaves_out_are_refused(what: str, tmp_path: Path) -> None:
    family, tensors = REFUSED[what]
    with pytest.raises(BadFile, match=r"1 tensors? of the model's modules.*configuration is of"):
        ma.load_model(str(saved(tmp_path, family, **tensors)))


def test_heads_of_other_uses_are_reported(tmp_path: Path) -> None:
    folder = saved(
        tmp_path,
        "llama",
        v_head__summary__weight=torch.ones(1, 32),
        score__weight=torch.ones(2, 32),
        vision_tower__patch__weight=torch.ones(3, 3),
    )
    model = ma.load_model(str(folder))
    text = "3 tensors of its files not used (score.weight, v_head.summary.weight, vision_tower"
    assert text in str(model.spec().args["checkpoint"]) and text in model.facts["checkpoint"]


IGNORED = {
    "causal masks": ("gpt2", {"transformer__h__0__attn__bias": torch.ones(1, 1, 64, 64)}),
    "their value": ("gpt2", {"transformer__h__0__attn__masked_bias": torch.ones(1)}),
    "NeoX's masks": ("neox", {"gpt_neox__layers__0__attention__bias": torch.ones(1, 1, 64, 64)}),
    "rotary frequencies": (
        "llama",
        {"model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(4)},
    ),
}


@pytest.mark.parametrize("what", IGNORED)
def test_masks_and_rotary_tables_of_old_checkpoints_are_ignored(what: str, tmp_path: Path) -> None:
    family, tensors = IGNORED[what]
    assert ma.load_model(str(saved(tmp_path, family, **tensors))).checkpoint == ""


def test_a_tied_head_that_is_in_the_file_is_read(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "plain")
    embedding = load_file(tmp_path / "plain" / "model.safetensors")["model.embed_tokens.weight"]
    folder = saved(tmp_path / "with-head", "llama", lm_head__weight=embedding.clone())
    model = ma.load_model(str(folder))
    assert model.checkpoint == ""
    assert torch.equal(model.decoder.unembedding, model.decoder.embedding)
