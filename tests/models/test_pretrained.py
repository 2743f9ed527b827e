"""Models are loaded whole, and never read from a pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.tiny_gguf import load, logits, tiny_llama
from mechassay.errors import BadFile, ModelNotFetched
from mechassay.models import loading
from mechassay.models import weight_files as packaged

pytestmark = pytest.mark.usefixtures("cache")


def test_a_folder_without_tokenizer_files(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path / "m")
    model, tokenizer = load(str(tmp_path / "m"))
    assert tokenizer is None
    torch.testing.assert_close(logits(model), logits(tiny_llama()), rtol=0, atol=0)


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    tiny_llama().config.save_pretrained(tmp_path)
    torch.save(tiny_llama().state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(BadFile, match="convert them to safetensors"):
        load(str(tmp_path))
    (tmp_path / "stray.safetensors").write_bytes(
        b""
    )  # not the model's weights, so the pickle is all there is
    with pytest.raises(BadFile, match="cannot be loaded"):
        load(str(tmp_path))


@pytest.mark.parametrize("damage", ["truncated", "no weights", "not a config", "remote code"])
def test_a_damaged_folder_is_one_line(tmp_path: Path, damage: str) -> None:
    tiny_llama().save_pretrained(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    match damage:
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:2000])
        case "no weights":
            weights.unlink()
        case "not a config":
            config.write_text("{")
        case _:
            config.write_text(
                '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.C",'
                ' "AutoModelForCausalLM": "mine.M"}}'
            )
            (tmp_path / "mine.py").write_text("raise SystemExit('the code was run')")
    with pytest.raises(BadFile) as caught:
        load(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_not_filled_with_noise(tmp_path: Path) -> None:
    model = tiny_llama()
    kept = {
        name: tensor for name, tensor in model.state_dict().items() if "layers.1.mlp" not in name
    }
    model.save_pretrained(tmp_path, state_dict=kept)
    with pytest.raises(BadFile, match="lack 3 of the model's tensors"):
        load(str(tmp_path))


def test_the_hub_s_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise OSError("We couldn't connect to the hub.\nMore lines.")

    monkeypatch.setattr(loading, "load_whole", unreachable)
    with pytest.raises(ModelNotFetched) as caught:
        load("HuggingFaceTB/SmolLM2-135M")
    message = str(caught.value)
    assert (
        "'HuggingFaceTB/SmolLM2-135M'" in message
        and "models fetch smollm2-135m" in message
        and "\n" not in message
    )


def test_loading_leaves_the_log_settings_alone(tmp_path: Path) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging

    def settings() -> tuple[Any, ...]:
        return (
            logging.get_verbosity(),
            logging.is_progress_bar_enabled(),
            are_progress_bars_disabled(),
        )

    tiny_llama().save_pretrained(tmp_path)
    before = settings()
    load(str(tmp_path))
    assert settings() == before


def test_the_tokenizer_of_a_hub_id_has_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def listen(source: str, *_: Any, revision: str | None = None, **__: Any) -> Any:
        asked.append((source, revision))
        return "words"

    monkeypatch.setattr(loading, "_lens_folder", lambda _: None)
    monkeypatch.setattr(loading, "load_whole", lambda *_, **__: (tiny_llama(), []))
    config = tiny_llama().config
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: config)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", listen)
    assert load("EleutherAI/pythia-70m@step64")[1] == "words"
    assert load("EleutherAI/pythia-70m")[1] == "words"
    assert asked == [("EleutherAI/pythia-70m", "step64"), ("EleutherAI/pythia-70m", None)]


PARAGRAPH = (
    "The history of the town goes back to the twelfth century, when a small group of merchants"
    " built a wooden bridge across the river. Over the following decades the settlement grew, and"
    " by 1250 it had a market, a church and a stone wall."
)


@pytest.fixture(params=["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)])
def real(request: pytest.FixtureRequest) -> tuple[str, Any, Any]:
    if not packaged.is_fetched(request.param):
        pytest.skip(f"{request.param} is not fetched: mechassay models fetch {request.param}")
    return (request.param, *load(request.param))


@pytest.mark.real
def test_real_models(real: tuple[str, Any, Any]) -> None:
    """The published shapes, a tokenizer that round-trips,
    and predictions no wrongly converted model makes.
    """
    name, model, tokenizer = real
    config, gemma = model.config, name == "gemma3-270m"
    shape = (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size,
        config.vocab_size,
        config.rms_norm_eps,
    )
    assert (
        config.tie_word_embeddings and model.lm_head.weight is model.get_input_embeddings().weight
    )
    special = (config.bos_token_id, config.eos_token_id, config.pad_token_id)
    if gemma:
        assert shape == (18, 640, 4, 1, 256, 2048, 262144, 1e-6) and special == (2, 1, 0)
        assert (
            config.layer_types == (["sliding_attention"] * 5 + ["full_attention"]) * 3
            and config.sliding_window == 512
        )
        theta = {kind: rope["rope_theta"] for kind, rope in config.rope_parameters.items()}
        assert (
            theta == {"full_attention": 1e6, "sliding_attention": 1e4}
            and config.query_pre_attn_scalar == 256
        )
        assert config.attn_logit_softcapping is None and config.final_logit_softcapping is None
    else:
        assert shape == (30, 576, 9, 3, 64, 1536, 49152, 1e-5) and special == (1, 2, 2)
        assert config.rope_parameters["rope_theta"] == 1e5

    start = [tokenizer.bos_token_id] if gemma else []
    mary = tokenizer(" Mary").input_ids
    assert mary[:-1] == start and len(mary) == len(start) + 1
    for text in ("When Mary went,  12 men\n\n left.", "naïve 日本語 🙂", " leading", "x     1234"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text

    with torch.no_grad():
        ioi = tokenizer(
            "When Mary and John went to the store, John gave a drink to", return_tensors="pt"
        ).input_ids
        assert model(ioi).logits[0, -1].argmax().item() == mary[-1]
        ids = tokenizer(PARAGRAPH, return_tensors="pt").input_ids
        assert torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]).item() < 3.0
