"""Models in memory that are trained, edited, copied or sent: what is measured is the original."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechassay as ma
from mechassay.errors import BadUsage
from mechassay.models.edits import Edits, sampled_view
from mechassay.models.model import Model
from mechassay.testing import tiny
from mechassay.utils.display import SILENT

BATCH = tiny.token_pairs(3)
ROWS = torch.arange(2)


def plain(hf: Any) -> Tensor:
    """The logit difference by a forward pass of the original."""
    with torch.no_grad():
        logits = hf(BATCH.clean[1:], use_cache=False).logits[:, -1].double()
    return logits[ROWS, BATCH.answers[1:, 0]] - logits[ROWS, BATCH.foils[1:, 0]]


def measured(model: Model) -> Tensor:
    full = ma.circuits.Circuit.full(model.graph)
    return torch.as_tensor(ma.circuits.evaluate(model, full, BATCH, progress=SILENT)[1:])


def check_follows(model: Model) -> None:
    torch.testing.assert_close(measured(model), plain(model.hf), rtol=0, atol=1e-5)


def loaded(family: str) -> Model:
    return ma.load_model(tiny.build(family, torch.float64))


def blocks(hf: Any) -> Any:
    return next(
        module
        for module in hf.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == 3
    )


def named(hf: Any, *endings: str) -> Any:
    modules = dict(blocks(hf)[0].named_modules())
    return next(module for name, module in modules.items() if name.split(".")[-1] in endings)


def output_of(hf: Any) -> Any:
    modules = dict(blocks(hf)[0].named_modules())
    names = (
        *("self_attn.o_proj", "self_attn.dense", "attention.dense", "attn.c_proj"),
        *("attn.out_proj", "self_attn.out_proj", "attn.attention.out_proj"),
        "self_attention.dense",
    )
    return next(modules[name] for name in names if name in modules)


def queries_of(hf: Any) -> Any:
    return named(hf, "q_proj", "query_key_value", "c_attn", "qkv_proj")


def norm_of(hf: Any) -> Any:
    return next(
        module
        for name, module in blocks(hf)[0].named_modules()
        if ("norm" in name or name.startswith("ln")) and getattr(module, "weight", None) is not None
    )


def rows(module: Any) -> Tensor:
    """A weight with a row for each output."""
    weight = module.weight.data
    return weight.T if type(module).__name__ == "Conv1D" else weight


def step(hf: Any) -> None:
    hf.requires_grad_(True)
    optimizer = torch.optim.SGD(hf.parameters(), lr=0.05)
    hf(BATCH.clean[1:], labels=BATCH.clean[1:]).loss.backward()
    optimizer.step()
    hf.requires_grad_(False)


def load_state(hf: Any) -> None:
    state = {
        name: x + 0.05 if x.is_floating_point() and "inv_freq" not in name else x
        for name, x in hf.state_dict().items()
    }
    hf.load_state_dict(state)


def add_to_data(hf: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in hf.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.add_(0.05 * drawn.to(parameter.dtype))


def new_parameter(hf: Any) -> None:
    module = output_of(hf)
    flipped = module.weight.detach().flip(0).contiguous()
    module.weight = torch.nn.Parameter(flipped, requires_grad=False)


def new_norm(hf: Any) -> None:
    module = norm_of(hf)
    module.weight = torch.nn.Parameter(module.weight.detach() * 0.5 + 1, requires_grad=False)


def merge(hf: Any) -> None:
    from peft import LoraConfig, get_peft_model

    queries = queries_of(hf)
    name = next(name for name, module in hf.named_modules() if module is queries)
    about = {"target_modules": [name.split(".")[-1]], "init_lora_weights": False}
    config = LoraConfig(r=2, fan_in_fan_out=type(queries).__name__ == "Conv1D", **about)
    with warnings.catch_warnings(action="ignore"):  # Of names that transformers will change.
        get_peft_model(hf, config).merge_and_unload()


def zero_head(hf: Any) -> None:
    weight = rows(output_of(hf))
    weight[:, : weight.shape[1] // 4].zero_()


def zero_query(hf: Any) -> None:
    rows(queries_of(hf))[:4].zero_()


def zero_neuron(hf: Any) -> None:
    rows(named(hf, "down_proj", "dense_4h_to_h", "c_proj", "fc2", "fc_out"))[:, 3].zero_()


def zero_token(hf: Any) -> None:
    hf.get_input_embeddings().weight.data[int(BATCH.clean[1, 2])].zero_()


def other_data(hf: Any) -> None:
    parameter = norm_of(hf).weight
    parameter.data = parameter.data * 0.5 + 1


EDITS: dict[str, Callable[[Any], None]] = {
    own.__name__: own
    for own in (
        *(step, load_state, add_to_data, new_parameter, new_norm, merge, zero_head, zero_query),
        *(zero_neuron, zero_token, other_data),
    )
}


@pytest.mark.few(6)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_what_is_measured_follows_the_original(family: str) -> None:
    for name, edit in EDITS.items():
        model = loaded(family)
        before, identity = plain(model.hf), model.known_identity
        try:
            edit(model.hf)
        except (StopIteration, ImportError):
            continue  # The family has no such module.
        moved = float((plain(model.hf) - before).abs().max())
        check_follows(model)
        assert (model.known_identity.weights != identity.weights) == (moved > 0 or name == "merge")
        assert model.known_identity.weights == model.identity.weights


@pytest.mark.few(6)
@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_are_models_of_their_own(family: str, how: str) -> None:
    def copied(model: Model) -> Model:
        return copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))

    model = loaded(family)
    before = plain(model.hf)
    twin = copied(model)
    check_follows(twin)
    add_to_data(twin.hf)
    check_follows(twin)
    torch.testing.assert_close(measured(model), before, rtol=0, atol=1e-5)
    other = copied(model)
    step(model.hf)
    check_follows(model)
    torch.testing.assert_close(measured(other), before, rtol=0, atol=1e-5)
    assert other.known_identity.weights != model.known_identity.weights


def test_no_use_of_a_model_is_an_edit() -> None:
    model = loaded("gemma2")
    decoder, layers = model.decoder, model.decoder.layers
    hf: Any = model.hf
    hf(BATCH.clean)
    hf.requires_grad_(True)
    hf(BATCH.clean, labels=BATCH.clean).loss.backward()
    ma.load_method("eap").score(model, BATCH, progress=SILENT)
    copy.deepcopy(hf)
    hf.train().eval().to("cpu")
    hf.state_dict()
    assert measured(model) is not None
    assert model.decoder is decoder and model.decoder.layers is layers


def test_everybody_who_has_the_decoder_has_the_new_weights() -> None:
    model = loaded("gemma2")
    decoder = model.decoder
    same = replace(model, name="other name")
    add_to_data(model.hf)
    check_follows(model)
    assert model.decoder is decoder
    torch.testing.assert_close(measured(same), measured(model))
    own = replace(model, decoder=replace(decoder, parallel=decoder.parallel))
    measured(own)
    add_to_data(model.hf)
    with pytest.raises(BadUsage, match="were changed after its decoder was made"):
        measured(own)
    check_follows(model)


def test_weights_that_cannot_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded("llama")
    layer: Any = blocks(model.hf)[0]
    layer.self_attn.o_proj = torch.nn.Identity()
    with pytest.raises(
        BadUsage, match=r"were changed, and cannot be read again: .* Load the model"
    ):
        measured(model)


def test_a_single_element_of_a_matrix_can_be_missed() -> None:
    """As the docstring says; a reload sees it."""
    model = loaded("neox")
    weight = queries_of(model.hf).weight.data
    view = sampled_view(weight)
    assert view is not None and view.numel() < weight.numel()
    weight[0, 1] += 5.0
    assert not Edits(model.hf).seen(model.hf)
    check_follows(ma.load_model(model.hf))
    vector = norm_of(model.hf).bias.data
    vector[3] += 2.0
    check_follows(model)


@pytest.mark.parametrize("layout", ["rows", "columns", "every second column", "permuted stack"])
def test_an_edit_is_seen_in_any_layout(layout: str) -> None:
    """A sample that were a copy of the values would never change."""
    tensor = {
        "rows": torch.zeros(6, 9),
        "columns": torch.zeros(9, 6).T,
        "every second column": torch.zeros(6, 18)[:, ::2],
        "permuted stack": torch.zeros(6, 4, 9).permute(1, 0, 2),
    }[layout]
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(tensor, requires_grad=False)
    assert module.weight.data.stride() == tensor.stride()
    edits = Edits(module)
    assert not edits.seen(module)
    module.weight.data[..., 2, :] += 1.0  # A row.
    assert edits.seen(module)
    edits = Edits(module)
    module.weight.data[..., 4] += 1.0  # A column.
    assert edits.seen(module) and not Edits(module).seen(module)


@pytest.mark.parametrize("rows_n", [1, 2, 3, 6, 8, 12, 35])
@pytest.mark.parametrize("columns", [1, 2, 4, 9, 16, 30])
def test_a_sample_meets_each_row_and_each_column(rows_n: int, columns: int) -> None:
    places = torch.arange(rows_n * columns).view(rows_n, columns)
    for matrix in (places, torch.arange(rows_n * columns).view(columns, rows_n).T):
        view = sampled_view(matrix)
        assert view is not None
        flat = matrix.reshape(-1).tolist()
        where = np.array([flat.index(value) for value in view.tolist()])
        assert set(where // columns) == set(range(rows_n))
        assert set(where % columns) == set(range(columns))
    stack = torch.arange(2 * rows_n * columns).view(2, rows_n, columns)
    view = sampled_view(stack)
    assert view is not None
    for number in range(2):
        own = view[(view >= number * places.numel()) & (view < (number + 1) * places.numel())]
        inside = own.numpy() - number * places.numel()
        assert set(inside // columns) == set(range(rows_n))
    assert sampled_view(torch.empty(0, 3)) is None
