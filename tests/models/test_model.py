"""Loading models, and what they prove about themselves.

Other devices and precisions give what the CPU gives in fp32, as far as they can.

In bf16 a number has eight bits: logits agree to a few hundredths of their spread, scores in
direction. Only tests marked `gpu` need one; the others show that the test itself works.

Interchanges for a model: whatever pairs they are given as, checked, on its device.

A model with random weights: the same architecture, and nothing else is touched.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import mechassay as ma
from helpers.models import USUAL, families
from helpers.tiny_models import with_words, write_attn_only
from mechassay.circuits import EdgeScores
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods import METHODS
from mechassay.errors import BadPairs, BadUsage, SelfCheckFailed, UnknownName, UnsupportedModel
from mechassay.interventions.activation_patching import patch
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Add, Interchange, Intervention
from mechassay.interventions.site import sites
from mechassay.interventions.steering import generate
from mechassay.interventions.sweep import sweep
from mechassay.models.memory import token_budget
from mechassay.models.model import Model, check_device, make_model, untrained
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.prompts.interchanges import InterchangePair
from mechassay.prompts.pairs import Pair
from mechassay.tasks.accuracy import score_prompts
from mechassay.testing.tiny import build, subject, token_pairs
from mechassay.utils.display import SILENT


@pytest.mark.parametrize("name", families(quick=USUAL))
def test_a_saved_folder_loads_and_passes_its_check(name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path)
    model = ma.load_model(str(tmp_path))
    assert model.self_check is not None
    assert model.self_check.passed
    assert model.graph.n_layers == 3
    assert model.graph.n_heads == 4


def test_two_folders_of_one_name_have_two_identities(tmp_path: Path) -> None:
    hf = build("llama")
    hf.save_pretrained(tmp_path / "a" / "model")
    with torch.no_grad():
        hf.get_input_embeddings().weight[-1, -1] += 0.5
    hf.save_pretrained(tmp_path / "b" / "model")
    first, again, other = (ma.load_model(str(tmp_path / x / "model")) for x in "aab")
    assert first.identity == again.identity != other.identity
    assert first.spec() == again.spec() != other.spec() and first.name == other.name
    half = ma.load_model(str(tmp_path / "a" / "model"), dtype="bfloat16")
    assert half.identity.weights != first.identity.weights
    assert half.identity.rounded == first.identity.rounded
    assert "identity" not in ma.load_model("truth-ioi").spec().args, "its name says which weights"


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


def test_weights_of_whole_numbers_are_refused() -> None:
    packed = build("llama")
    weight = packed.lm_head.weight
    packed.lm_head.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedModel, match=r"is quantised by torch.int8; weights alone by"):
        ma.load_model(packed)
    hf = build("gpt2")
    hf.is_quantized, hf.quantization_method = True, "quanto"
    with pytest.raises(UnsupportedModel, match=r"is quantised by quanto; .* float16, or call its"):
        ma.load_model(hf)


WHERE = [
    pytest.param("cpu", torch.bfloat16, id="cpu-bf16"),
    pytest.param("cuda", torch.float32, id="cuda-fp32", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, id="cuda-bf16", marks=pytest.mark.gpu),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "acdc": {"threshold": 0.5},
    "acdc-top": {"threshold": 0.5, "edges": 30},
    "edge-pruning": {"steps": 4},
    "matryoshka": {"steps": 4, "batch_size": 2},
    "subnetwork-probing": {"steps": 4},
    "ugs": {"steps": 4, "batch_size": 2, "samples": 2},
}


def pair(family: str, device: str, dtype: torch.dtype) -> tuple[Model, Model]:
    """The model on the CPU in fp32, and the one to compare with it."""
    return make_model(build(family)), make_model(build(family, dtype).to(device), check=False)


def spread(ours: Tensor, reference: Tensor) -> float:
    """The largest difference in standard deviations of the reference."""
    return float((ours.double().cpu() - reference.double()).abs().max() / reference.double().std())


def differ(ours: Tensor, reference: Tensor) -> float:
    """The root mean square difference in standard deviations of the reference."""
    off = ours.double().cpu() - reference.double()
    return float(off.square().mean().sqrt() / reference.double().std())


def cosine(ours: EdgeScores, reference: EdgeScores) -> float:
    legal = reference.graph.legal
    pair = [scores.values.cpu().double()[legal] for scores in (ours, reference)]
    return float(torch.nn.functional.cosine_similarity(*pair, dim=0))


@pytest.mark.parametrize(("device", "dtype"), WHERE)
@pytest.mark.parametrize("family", families())
def test_runs_scores_and_circuits(family: str, device: str, dtype: torch.dtype) -> None:
    reference, model = pair(family, device, dtype)
    exact = dtype == torch.float32
    batch = token_pairs()
    logits = [
        each.run(each.batch(batch))[0].readout(each.decoder).all() for each in (model, reference)
    ]
    # The original OLMoE in bf16 is .34 from that in fp32: experts are chosen by rounded numbers.
    assert spread(*logits) < (1e-4 if exact else 0.5 if family == "olmoe" else 0.3)
    for name in ("eap", "eap-ig-inputs", "exact"):
        scores = [
            METHODS.make(name).score(each, batch, progress=SILENT) for each in (model, reference)
        ]
        assert cosine(*scores) > (0.9999 if exact else 0.9), name
        assert scores[0].values.isfinite().any()
    circuits = [Circuit.empty(reference.graph), scores[1].top(0.2, by="magnitude")]
    values = [evaluate(each, circuits, batch, progress=SILENT) for each in (model, reference)]
    assert spread(*map(torch.from_numpy, values)) < (1e-3 if exact else 0.5)


@pytest.mark.parametrize(("device", "dtype"), WHERE)
@pytest.mark.parametrize("family", families())
def test_interventions(family: str, device: str, dtype: torch.dtype) -> None:
    reference, model = pair(family, device, dtype)
    exact = dtype == torch.float32
    batch, v = token_pairs(), torch.linspace(-3, 3, model.decoder.d_model)
    maps = [patch(each, batch, progress=SILENT).values for each in (model, reference)]
    real = ~np.isnan(maps[1])
    assert differ(*(torch.from_numpy(x[real]) for x in maps)) < (1e-3 if exact else 0.3)
    heads = [patch(each, batch, part="heads", progress=SILENT) for each in (model, reference)]
    assert differ(*(torch.from_numpy(x.values) for x in heads)) < (1e-3 if exact else 0.3)
    plan: dict[str, Intervention] = {"resid.0@last": Interchange(), "mlp.1@all": Add(v)}
    said = [intervene(each, batch, plan).logits for each in (model, reference)]
    assert differ(*said) < (1e-3 if exact else 0.3)
    swept = [
        sweep(each, batch, sites(each, parts=("resid", "mlp")), progress=SILENT).log_odds
        for each in (model, reference)
    ]
    assert differ(*map(torch.from_numpy, swept)) < (1e-3 if exact else 0.3)
    if exact:
        prompts = [[5, 8, 13], [3, 1, 4, 1]]
        written = [
            generate(each, prompts, {"resid.1@all": Add(v)}, n=4, progress=SILENT).tokens
            for each in (model, reference)
        ]
        assert written[0] == written[1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_runs_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    _, model = pair("gemma2", "cuda", dtype)
    scores = METHODS.load(name)(**SETTINGS.get(name, {})).score(
        model, token_pairs(), progress=SILENT
    )
    assert scores.values.isfinite().any()


VOCABULARY = ["[UNK]", *"0123456789", "+", "=", "[BOS]"]


@pytest.fixture(scope="module")
def model() -> Model:
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    return make_model(build("gpt2"), fast, prepend=(13,), check=False)


def interchanges_pair(**changes: Any) -> Pair:
    return Pair("p", "2+3=", "9+8=", ("5",), ("17",), **changes)


def test_all_forms_of_pairs_are_taken(model: Model) -> None:
    text = InterchangePair("p", "2+3=", "9+8=", "17", "5")
    batch = model.interchanges(text)
    assert batch.base.tolist() == [[13, 3, 11, 4, 12]]
    assert batch.labels.tolist() == [[2, 8]] and batch.base.device == model.device
    for given in (
        interchanges_pair(),
        [interchanges_pair()],
        [text],
        batch,
        InterchangeBatch.from_pairs([text], model),
    ):
        assert model.interchanges(given).content_hash == batch.content_hash
    mixed = model.interchanges([interchanges_pair(), replace(text, id="q", source="10+8=")])
    assert mixed.source_lengths.tolist() == [5, 6]
    of_batch = model.interchanges(model.batch([interchanges_pair()]))
    assert of_batch.labels.tolist() == [[2]], "a batch has the first tokens of foils alone"
    assert of_batch.base.tolist() == batch.base.tolist()


def test_what_is_no_pair_is_refused(model: Model) -> None:
    with pytest.raises(BadUsage, match=r"takes an InterchangeBatch, .* as pairs; got 'ioi'"):
        model.interchanges("ioi")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadUsage, match=r"takes an InterchangeBatch, .* as pairs; got a list"):
        model.interchanges([interchanges_pair(), 3])  # pyright: ignore[reportArgumentType]
    mute = replace(model, tokenizer=None)
    with pytest.raises(BadPairs, match=r"no tokenizer; pass InterchangeBatch\.from_tokens"):
        mute.interchanges([interchanges_pair()])
    rows = InterchangeBatch.from_tokens([[1, 2], [3]], [[4], [5, 6, 7]], [8, 9])
    assert mute.interchanges(rows).content_hash == rows.content_hash


def test_tokens_and_lengths_that_the_model_does_not_have(model: Model) -> None:
    size = len(model.decoder.embedding)
    assert model.decoder.positions is not None
    longest = len(model.decoder.positions)
    good: dict[str, Any] = {"base": [[1], [2]], "source": [[3], [4]], "labels": [5, 6]}
    for changes, said in (
        ({"base": [[1], [size]]}, f"Pair 1: its base has the token id {size}"),
        ({"source": [[-1], [1]]}, "Pair 0: its source has the token id -1"),
        ({"labels": [5, [6, size]]}, f"Pair 1: its label has the token id {size}"),
        ({"base_labels": [-2, None]}, "Pair 0: its base label has the token id -2"),
        ({"source": [[3], [4] * (longest + 1)]}, f"Pair 1 has {longest + 1} tokens"),
        ({"base": [[3] * longest, [4]], "labels": [[1, 2], 3]}, f"Pair 0 has {longest + 1} tokens"),
    ):
        with pytest.raises(BadPairs, match=said):
            model.interchanges(InterchangeBatch.from_tokens(**{**good, **changes}))
    most = {"base": [[3] * longest, [4]], "source": [[3], [4] * longest]}
    whole = InterchangeBatch.from_tokens(**{**good, **most})
    assert len(model.interchanges(whole).teacher_forced()) == 2
    assert NO_TOKEN not in model.interchanges(whole).base


def test_the_last_columns_predict_the_labels_tokens(model: Model) -> None:
    """Against a plain run of each prompt with its label, token by token."""
    batch = model.interchanges(
        InterchangeBatch.from_tokens(
            [[1, 2, 3], [4, 5, 6, 7, 8], [9]], [[1], [2], [3]], [[1, 2], [3], [4, 5, 6]]
        )
    )
    forced = batch.teacher_forced()
    m = forced.labels.shape[1]
    mask = forced.base_mask.long()
    with torch.no_grad():
        places = (mask.cumsum(1) - 1).clamp(min=0)
        all_logits = model.hf(forced.base, attention_mask=mask, position_ids=places).logits[:, -m:]
        for row, (base, said) in enumerate([([1, 2, 3], [1, 2]), ([4, 5, 6, 7, 8], [3])]):
            for j, token in enumerate(said):
                alone = model.hf(torch.tensor([base + said[:j]])).logits[0, -1]
                column = m - len(said) + j
                assert forced.targets[row, column] == token
                torch.testing.assert_close(all_logits[row, column], alone, rtol=1e-4, atol=1e-4)


def logits(model: Model) -> torch.Tensor:
    return model.hf(torch.tensor([[3, 1, 4, 1, 5]])).logits


@pytest.mark.parametrize("name", families())
@pytest.mark.filterwarnings("error")
def test_it_has_the_architecture_and_other_weights(name: str) -> None:
    model = make_model(build(name), name=name, prepend=(1,))
    before = copy.deepcopy(model.hf.state_dict())
    other = untrained(model)
    assert type(other.hf) is type(model.hf)
    assert other.name == f"untrained:{name}" and other.prepend == (1,)
    theirs = other.hf.state_dict()
    assert {k: v.shape for k, v in theirs.items()} == {k: v.shape for k, v in before.items()}
    assert other.graph == model.graph
    matrices = [k for k, v in before.items() if v.ndim == 2 and v.is_floating_point()]
    assert matrices and not any(torch.equal(theirs[k], before[k]) for k in matrices)
    assert all(torch.equal(v, before[k]) for k, v in model.hf.state_dict().items())
    assert not any(p.requires_grad for p in other.hf.parameters())
    # No dropout: it says the same twice.
    assert not other.hf.training and torch.equal(logits(other), logits(other))


def test_a_seed_says_which_and_the_global_generator_stays() -> None:
    model = subject("gpt2").model
    state = torch.get_rng_state()
    first, again, other = untrained(model, 3), untrained(model, 3), untrained(model, 4)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logits(first), logits(again))
    assert not torch.equal(logits(first), logits(other))


def test_dtype_and_tokenizer_are_those_of_the_model() -> None:
    hf, tokenizer = with_words()
    model = make_model(hf.to(torch.float64), tokenizer, name="words")
    other = untrained(model)
    assert other.dtype == torch.float64 and other.tokenizer is model.tokenizer


def test_a_trained_ground_truth_no_longer_does_its_task() -> None:
    model, task = ma.load_model("truth-ioi-trained"), ma.load_task("truth-ioi")
    examples = task.examples("test", limit=40)
    scored = score_prompts
    prompts = [each.prompt for each in examples]
    assert scored(model, prompts).greedy.mean() == 1
    assert scored(untrained(model), prompts).greedy.mean() < 0.3


def test_the_copy_has_a_name_that_every_command_takes(tmp_path: Path) -> None:
    by_name = ma.load_model("untrained:truth-ioi")
    by_hand = untrained(ma.load_model("truth-ioi"))
    assert by_name.name == by_hand.name == "untrained:truth-ioi"
    assert by_name.tokenizer is not None and not by_name.hf.training
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(by_name.hf(tokens).logits, by_hand.hf(tokens).logits)
    assert ma.load_model("untrained:gym-neox@step128").name == "untrained:gym-neox@step128"
    with pytest.raises(UnknownName, match="truth-ioi"):
        ma.load_model("untrained:truth-io")
    write_attn_only(tmp_path / "mine")
    with pytest.raises(BadUsage, match="whose class draws weights"):
        ma.load_model(f"untrained:{tmp_path / 'mine'}")


def test_a_model_without_a_class_of_transformers_is_refused(tmp_path: Path) -> None:
    write_attn_only(tmp_path / "mine")
    with pytest.raises(BadUsage, match="a model of transformers, whose class draws weights"):
        untrained(ma.load_model(tmp_path / "mine"))
