import pytest
import torch
from transformers import PhiConfig

import mechassay as ma
from mechassay.circuits import EAP, Circuit, evaluate
from mechassay.testing import check_method, tiny


def phi(**settings: object) -> ma.Model:
    """A small random model: loading it runs the self-check."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    config = PhiConfig(
        vocab_size=tiny.VOCABULARY, num_attention_heads=4, **sizes, **special, **settings
    )
    return ma.load_model(tiny.random_model(config, torch.float64))


@pytest.mark.parametrize(
    "settings", [{}, {"qk_layernorm": True}, {"num_key_value_heads": 2}], ids=str
)
def test_the_decoder_is_the_model(settings: dict[str, object]) -> None:
    model = phi(**settings)
    assert model.family == "phi" and model.graph.parallel
    assert model.self_check is not None and model.self_check.passed


def test_methods_run_on_it() -> None:
    check_method(EAP(), phi(), tiny.token_pairs())


def test_a_circuit_is_the_original_model_with_one_mlp_patched() -> None:
    """All edges but those out of m1: the same as a hook that swaps the output of that MLP."""
    model = phi()
    clean, other = (
        torch.tensor([[5, 6, 7, 8], [9, 3, 2, 1]]),
        torch.tensor([[5, 4, 7, 8], [9, 3, 0, 1]]),
    )
    batch = ma.Batch.from_tokens(clean, other, answers=[11, 12], foils=[13, 14])
    edges = model.graph.legal.clone()
    edges[model.graph.writer("m1")] = False
    found = evaluate(model, Circuit(model.graph, edges), batch)

    mlp, kept = model.hf.model.layers[1].mlp, []
    reads = mlp.register_forward_hook(lambda module, inputs, output: kept.append(output))
    model.hf(other)
    reads.remove()
    swaps = mlp.register_forward_hook(lambda module, inputs, output: kept[0])
    logits = model.hf(clean).logits[:, -1]
    swaps.remove()
    expected = (logits.gather(1, batch.answers) - logits.gather(1, batch.foils))[:, 0]
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-4, rtol=1e-4)
