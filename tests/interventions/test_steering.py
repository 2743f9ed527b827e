"""Steered writing against the hooked original's, and perplexity against the original's loss."""

from __future__ import annotations

import math
import warnings
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

import mechassay as ma
from helpers.hooks_reference import ReferenceModel, exact_precision
from helpers.tiny_models import with_words
from mechassay.errors import BadPairs, BadUsage, NonFinite
from mechassay.interventions.intervention import Ablate, Add, Interchange, Replace, Scale
from mechassay.interventions.steering import generate, perplexity
from mechassay.models.model import Model, make_model
from mechassay.models.weight_files import is_fetched
from mechassay.testing.tiny import subject
from mechassay.utils.display import SILENT

PROMPTS = [[5, 8, 13, 21, 34], [3, 1, 4], [2, 7, 1, 8, 2, 8]]
N = 6


def hooked(hf: Any, block: Any, change: Any, tokens: list[int], n: int, eos: Any = None) -> Any:
    """The original's greedy writing with a function of a block's output at every position."""

    def hook(module: Any, args: Any, output: Any) -> Any:
        stream = output[0] if isinstance(output, tuple) else output
        new = change(stream)
        return (new, *output[1:]) if isinstance(output, tuple) else new

    with ExitStack() as stack, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        stack.callback(block.register_forward_hook(hook).remove)
        ids = torch.tensor([tokens])
        kwargs: dict[str, Any] = {"max_new_tokens": n, "do_sample": False, "eos_token_id": eos}
        whole = hf.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **kwargs)
    return whole[0, len(tokens) :].tolist()


def endless(model: Model) -> Model:
    """The model without an end of text: its tiny vocabulary writes that too soon."""
    model.hf.generation_config.eos_token_id = None  # pyright: ignore[reportOptionalMemberAccess]
    return model


@pytest.mark.parametrize("name", ["gpt2", "neox", "mistral", "gemma3"])
def test_steered_writing_is_the_hooked_original_s(name: str) -> None:
    model = endless(subject(name, dtype=torch.float64).model)
    blocks = ReferenceModel(model.hf, model.graph).blocks
    generator = torch.Generator().manual_seed(2)
    v = torch.randn(model.decoder.d_model, generator=generator, dtype=torch.float64)
    plain, steered = generate(model, PROMPTS, n=N, progress=SILENT), set[Any]()
    for layer in (0, 1, 2):
        for how, change in (
            (Add(v, 8.0), lambda x: x + 8.0 * v),
            (Ablate(v), lambda x: x - (x @ v / (v @ v))[..., None] * v),
        ):
            ours = generate(model, PROMPTS, {f"resid.{layer}@all": how}, n=N, progress=SILENT)
            with exact_precision(model.hf):
                theirs = [hooked(model.hf, blocks[layer], change, p, N) for p in PROMPTS]
            assert [list(row) for row in ours.tokens] == theirs
            steered.add(ours.tokens)
    assert steered - {plain.tokens} and plain.sites == ()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_steered_writing_of_real_models_is_the_hooked_original_s(name: str) -> None:
    if not is_fetched(name):
        pytest.skip(f"{name} is not fetched: mechassay models fetch {name}")
    model = ma.load_model(name)
    assert model.tokenizer is not None
    texts = ["The weather in Paris is", "When Mary and John went to the store,"]
    layer = model.graph.n_layers // 2
    block = ReferenceModel(model.hf, model.graph).blocks[layer]
    embedded = model.decoder.embedding[model.tokenizer(" love")["input_ids"][-1]]
    scale = 0.3 * float(model.run(ma.Batch.from_tokens([[1, 5, 9]], [[1, 5, 9]], [1], [2]))[0]
                        .layers[layer].before.norm(dim=-1).mean() / embedded.norm())  # fmt: skip
    ours = ma.generate(model, texts, {f"resid.{layer}@all": Add(embedded, scale)}, n=6)
    eos = model.hf.generation_config.eos_token_id  # pyright: ignore[reportOptionalMemberAccess]
    for text, written in zip(texts, ours.tokens, strict=True):
        ids = list(model.tokenizer(text)["input_ids"])
        theirs = hooked(model.hf, block, lambda x: x + scale * embedded, ids, 6, eos)
        assert list(written) == theirs[: len(written)]
        assert len(written) == 6 or theirs[len(written)] in {eos, *(eos or ())}
    assert ours.texts != ma.generate(model, texts, n=6).texts


def test_new_tokens_the_prompt_s_last_and_numbers() -> None:
    """Replacing the stream at the new tokens alone leaves the first token; at the last prompt token
    alone it decides it.
    """
    model = endless(subject("llama", dtype=torch.float64).model)
    v = 3 * torch.ones(model.decoder.d_model, dtype=torch.float64)
    plain = generate(model, PROMPTS, n=N, progress=SILENT).tokens
    new = generate(model, PROMPTS, {"resid.2@new": Replace(v)}, n=N, progress=SILENT).tokens
    last = generate(model, PROMPTS, {"resid.2@last": Replace(v)}, n=N, progress=SILENT).tokens
    by_number = generate(model, PROMPTS, {"resid.2@-1": Replace(v)}, n=N, progress=SILENT).tokens
    forced = int(model.decoder.readout(v[None]).all().argmax())
    assert [row[0] for row in new] == [row[0] for row in plain]
    assert all(token == forced for row in new for token in row[1:])
    assert [row[0] for row in last] == [forced] * 3 and by_number == last
    heads = generate(model, PROMPTS, {"heads.1.2@0": Scale(0.0)}, n=N, progress=SILENT)
    assert len(heads.tokens) == 3


def test_sampling_follows_its_seed() -> None:
    model = endless(subject("gpt2").model)
    how = {"mlp.1@all": Scale(0.5)}
    first, again, other = (
        generate(model, PROMPTS, how, n=N, sample=True, seed=seed, progress=SILENT).tokens
        for seed in (3, 3, 4)
    )
    assert first == again != other
    cold = generate(model, PROMPTS, how, n=N, sample=True, temperature=1e-4, progress=SILENT)
    assert cold.tokens == generate(model, PROMPTS, how, n=N, progress=SILENT).tokens


def test_perplexity_is_the_original_s_loss() -> None:
    model = subject("mistral", dtype=torch.float64).model
    v = torch.linspace(-1, 1, model.decoder.d_model, dtype=torch.float64)
    found = perplexity(model, PROMPTS, {"resid.1@all": Add(v, 4.0)}, progress=SILENT)
    block = ReferenceModel(model.hf, model.graph).blocks[1]

    def hook(module: Any, args: Any, output: Any) -> Any:
        changed: Tensor = (output[0] if isinstance(output, tuple) else output) + 4.0 * v
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    for number, row in enumerate(PROMPTS):
        ids = torch.tensor([row])
        with exact_precision(model.hf), torch.no_grad():
            plain = float(_loss(model.hf, ids))
            handle = block.register_forward_hook(hook)
            steered = float(_loss(model.hf, ids))
            handle.remove()
        assert math.isclose(found.base_nll[number], plain, abs_tol=1e-10)
        assert math.isclose(found.nll[number], steered, abs_tol=1e-10)
    total = sum(nll * (len(row) - 1) for nll, row in zip(found.base_nll, PROMPTS, strict=True))
    assert math.isclose(found.base_value, math.exp(total / 11))
    nothing = perplexity(model, PROMPTS, progress=SILENT)
    assert nothing.value == nothing.base_value and nothing.increase.value == 0.0


def _loss(hf: Any, ids: Tensor) -> Tensor:
    logits = hf(ids, use_cache=False).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, ids[0, 1:])


def test_texts_and_what_shows_them() -> None:
    hf, tokenizer = with_words()
    model = endless(make_model(hf, tokenizer, name="tiny"))
    found = ma.generate(model, "Then , Mary and John went", n=3, progress=SILENT)
    assert found.prompts == ("Then , Mary and John went",) and len(found.texts) == 1
    assert len(found.tokens[0]) == 3 and found.columns()["written"] == list(found.texts)
    assert "Then , Mary" in found._repr_html_()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("plan", "error", "said"),
    [
        ({"resid.0@last": Interchange()}, BadUsage, "Interchange needs a source run"),
        ({"resid.0@subject": Scale(2.0)}, BadUsage, "all, new, last or a number; got 'subject'"),
        ({"resid.0@3": Scale(2.0)}, BadPairs, "Prompt 1 has tokens 0 to 2; got position 3"),
        ({"resid.0@all": Scale(float("nan"))}, NonFinite, "Scale returned NaN"),
        ({"resid.0@all": Add(torch.ones(5))}, BadUsage, "needs a vector of 32 numbers"),
    ],
)
def test_what_cannot_be_written_is_refused(plan: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        generate(subject("gpt2").model, PROMPTS, plan, n=2, progress=SILENT)


def test_texts_that_cannot_be_read_are_refused() -> None:
    model = subject("gpt2").model
    with pytest.raises(BadUsage, match="takes texts for a model with a tokenizer"):
        generate(model, "Hello", n=2)
    with pytest.raises(BadPairs, match="Text 0 has 1 tokens"):
        perplexity(model, [[4]])
    with pytest.raises(BadUsage, match="needs one text or more"):
        perplexity(model, [])


def test_a_text_without_the_position_is_named() -> None:
    model = subject("gpt2").model
    texts = [[1, 2, 3, 4, 5], [1, 2], [1, 2, 3]]
    with pytest.raises(BadPairs, match=r"Text 1 has tokens 0 to 1; got position 4"):
        perplexity(model, texts, {"resid.0@4": Scale(0.5)}, progress=SILENT)
    each = torch.ones(3, model.decoder.d_model)
    with pytest.raises(BadUsage, match=r"Add needs one vector for all texts; got shape \(3, 32\)"):
        perplexity(model, texts, {"resid.0@last": Add(each)}, progress=SILENT)
    with pytest.raises(BadPairs, match=r"Prompt 1 has tokens 0 to 1; got position 4"):
        generate(model, texts, {"resid.0@4": Scale(0.5)}, n=1, progress=SILENT)


def test_token_ids_that_the_model_does_not_have_are_refused() -> None:
    model = subject("gpt2").model
    for ids in ([[1, 2], [3, 97]], [[1, 2], [-1, 3]]):
        for run in (generate, perplexity):
            with pytest.raises(BadPairs, match=r"Text 1 has the token id \S+; \w+ has 0 to 96"):
                run(model, ids, progress=SILENT)
    with pytest.raises(BadUsage, match=r"sequences of whole numbers as prompts; got \[1, 2\]"):
        generate(model, [1, 2], progress=SILENT)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadPairs, match=r"Text 0 has 5,000 tokens; \w+ has \d+ positions"):
        perplexity(model, [[1] * 5000], progress=SILENT)
