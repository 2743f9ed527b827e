"""Sparse autoencoders of other projects: used as they were trained, or refused with the reason.

Right answers are the encoder written out on hidden states of the Hugging Face model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mechassay.errors import BadFile, BadUsage
from mechassay.features.dbm import DBM
from mechassay.features.featurizer import ChosenFeatures, Splice
from mechassay.features.sae import SAE, load_sae, save_sae
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.steering import generate
from mechassay.models.model import make_model
from mechassay.testing.tiny import build, token_pairs
from mechassay.utils.display import SILENT

D, N = 32, 64


def arrays() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "W_enc": torch.randn(D, N, generator=generator),
        "W_dec": torch.randn(N, D, generator=generator),
        "b_enc": -torch.rand(N, generator=generator),
        "b_dec": torch.zeros(D),
    }


def saelens(folder: Path, **about: Any) -> Path:
    """A folder in SAELens's layout; `about` is its metadata."""
    config = {"architecture": "standard", "d_in": D, "d_sae": N, "apply_b_dec_to_input": False}
    metadata = {"hook_name": "blocks.1.hook_resid_post", "model_name": "gpt2-small", **about}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cfg.json").write_text(json.dumps({**config, "metadata": metadata}))
    save_file(arrays(), folder / "sae_weights.safetensors")
    return folder


def stream_of(hf: Any) -> Tensor:
    """The residual stream after block 1, a row a token."""
    tokens = torch.arange(48).view(4, 12)
    with torch.no_grad():
        return hf(tokens, output_hidden_states=True).hidden_states[2].reshape(-1, D)


CENTRED = {"model_from_pretrained_kwargs": {"center_writing_weights": True}}


def test_a_dictionary_of_a_model_with_centred_weights_reads_values_less_their_mean(
    tmp_path: Path,
) -> None:
    sae = load_sae(saelens(tmp_path, **CENTRED))
    h = stream_of(build("gpt2", torch.float64))
    assert float(h.mean(1).abs().max()) > 0.5, "the model's stream is not centred"
    centred = h - h.mean(1, keepdim=True)
    own = {name: x.double() for name, x in arrays().items()}
    features = (centred @ own["W_enc"] + own["b_enc"]).relu()
    torch.testing.assert_close(sae.encode(h), features)
    # The mean, which the dictionary does not see, stays as it is.
    torch.testing.assert_close(
        sae.reconstruct(h), features @ own["W_dec"] + h.mean(1, keepdim=True)
    )
    again = load_sae(save_sae(sae, tmp_path / "again"))
    torch.testing.assert_close(again.encode(h), features)


def test_a_centred_dictionary_is_refused_in_a_model_with_rms_norms(tmp_path: Path) -> None:
    sae = load_sae(saelens(tmp_path, **CENTRED))
    assert sae.check_site("resid.1", make_model(build("gpt2"))) is sae
    with pytest.raises(BadUsage, match="has RMSNorms"):
        sae.check_site("resid.1", make_model(build("llama")))


@pytest.mark.parametrize("changed", ["fold_ln", "center_unembed", "n_ctx"])
def test_changes_of_the_model_that_leave_its_stream_alone_are_read(
    changed: str, tmp_path: Path
) -> None:
    sae = load_sae(saelens(tmp_path, model_from_pretrained_kwargs={changed: True}))
    assert not sae.mean_free


def test_other_changes_of_the_model_are_refused_by_name(tmp_path: Path) -> None:
    kwargs = {"model_from_pretrained_kwargs": {"rescale_everything": True}}
    with pytest.raises(BadFile, match="rescale_everything"):
        load_sae(saelens(tmp_path, **kwargs))
    folded = {"model_from_pretrained_kwargs": {"fold_value_biases": True}}
    assert load_sae(saelens(tmp_path, **folded)).hook == "resid.1"
    with pytest.raises(BadFile, match="fold_value_biases"):
        load_sae(saelens(tmp_path, hook_name="blocks.1.attn.hook_z", **folded))


@pytest.mark.parametrize(
    "hook", ["blocks.1.hook_attn_out", "blocks.1.hook_resid_mid", "blocks.1.ln2.hook_normalized"]
)
def test_a_dictionary_of_a_place_that_is_no_site_is_refused_everywhere(
    hook: str, tmp_path: Path
) -> None:
    sae, model = load_sae(saelens(tmp_path, hook_name=hook)), make_model(build("gpt2"))
    assert sae.hook == hook
    for site in ("resid.0", "resid.1", "mlp.1"):
        with pytest.raises(BadUsage, match=f"trained on {hook}, which is no site here"):
            sae.check_site(site)
    uses = (
        lambda: intervene(model, token_pairs(3), {"resid.0@last": Splice(sae)}),
        lambda: intervene(
            model, token_pairs(3), {"resid.0@last": Interchange(features=ChosenFeatures(sae))}
        ),
        lambda: DBM(steps=1).fit(
            model, token_pairs(3), "resid.0@last", init={"resid.0@last": sae}, progress=SILENT
        ),
    )
    for use in uses:
        with pytest.raises(BadUsage, match="which is no site here"):
            use()
    assert load_sae(save_sae(sae, tmp_path / "again")).hook == hook


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_thresholds_decide_in_float32_whatever_the_values_have(kind: torch.dtype) -> None:
    own = arrays()
    generator = torch.Generator().manual_seed(1)
    thresholds = torch.rand(N, generator=generator)
    sae = SAE(*own.values(), "jumprelu", thresholds)
    h = torch.randn(400, D, generator=generator).to(kind)
    read = (h.float() @ own["W_enc"] + own["b_enc"]).relu()
    right = read.where(read > thresholds, torch.zeros_like(read))
    assert torch.equal(sae.encode(h), right)


@pytest.mark.parametrize(
    "about", [{"seqpos_slice": [1, None]}, {"exclude_special_tokens": True}], ids=str
)
def test_a_dictionary_is_not_put_into_the_first_token_that_it_was_trained_without(
    about: dict[str, Any], tmp_path: Path
) -> None:
    sae = load_sae(saelens(tmp_path, **about))
    hf: Any = build("gpt2", torch.float64)
    model, batch = make_model(hf), token_pairs(3)
    assert sae.first == 1
    run = intervene(model, batch, {"resid.1@all": Splice(sae)})
    labels = model.interchanges(batch).labels[:, 0].tolist()
    for row, real in enumerate(batch.mask):
        tokens = batch.clean[row][real][None]

        def put(_: Any, __: Any, out: Any) -> Any:
            stream = out[0] if isinstance(out, tuple) else out
            changed = stream.clone()
            changed[:, 1:] = sae.reconstruct(stream[0, 1:])
            return (changed, *out[1:]) if isinstance(out, tuple) else changed

        handle = hf.transformer.h[1].register_forward_hook(put)
        with torch.no_grad():
            logits = hf(tokens, use_cache=False).logits[0, -1].log_softmax(-1)
        handle.remove()
        best, site = int(logits.argmax()), {"resid.1@all": Splice(sae)}
        steered = generate(model, tokens.tolist(), site, n=1, progress=SILENT)
        assert steered.tokens[0] == (() if best == 0 else (best,))
        assert float(run.log_probs[row]) == pytest.approx(float(logits[labels[row]]), abs=1e-5)


def test_other_slices_of_positions_are_refused(tmp_path: Path) -> None:
    for positions in ([0, 5], [-3, None], [1, None, 2], 5, ["1", None], [True, None], {"a": 1}):
        with pytest.raises(BadFile, match="an SAE of the positions"):
            load_sae(saelens(tmp_path, seqpos_slice=positions))
