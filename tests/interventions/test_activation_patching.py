"""Patching maps against whole forwards with one value replaced, and against exact node patching."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.models import families
from helpers.tiny_models import with_words
from mechassay.circuits.methods.exact_patching import ExactNodePatching
from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.interventions.activation_patching import patch
from mechassay.interventions.names import DIRECTIONS, PARTS, Direction, Part
from mechassay.interventions.patch_map import PatchMap
from mechassay.models.forward import Place, forward
from mechassay.models.model import Model, make_model
from mechassay.models.objectives import load_objective
from mechassay.prompts.batch import Batch
from mechassay.tasks.load import load_task
from mechassay.testing.tiny import subject, token_pairs
from mechassay.utils.display import SILENT

PLACES: dict[Part, Place] = {"resid": "stream", "heads": "z", "mlp": "mlp"}


def slowly(model: Model, batch: Batch, part: Part, direction: Direction) -> np.ndarray:
    """Each cell as a whole forward in which one value is replaced."""
    decoder, ctx = model.decoder, model.decoder.context(batch.mask)
    layers = len(decoder.layers)
    tokens = (batch.counterfactual, batch.clean)
    base, source = tokens if direction == "denoising" else tokens[::-1]
    seen: dict[tuple[Place, int], Tensor] = {}

    def run(ids: Tensor, edit: Any) -> Tensor:
        x = decoder.add_positions(decoder.embed(ids), ctx)
        return edit("stream", layers, forward(decoder, x, ctx, edit=edit))

    def keep(place: Place, layer: int, value: Tensor) -> Tensor:
        seen[place, layer] = value
        return value

    run(source, keep)
    columns = range(model.graph.n_heads if part == "heads" else batch.n_tokens)
    values = np.full((len(batch), layers, len(columns)), math.nan)
    for layer in range(layers):
        for column in columns:

            def edit(
                place: Place, at: int, value: Tensor, layer: int = layer, column: int = column
            ) -> Tensor:
                if (place, at) != (PLACES[part], layer + (part == "resid")):
                    return value
                new = value.clone()
                new[:, column] = seen[place, at][:, column]
                return new

            readout = decoder.readout(run(base, edit)[:, -1])
            values[:, layer, column] = load_objective("logit_diff")(readout, batch).numpy()
    if part != "heads":
        values[~batch.mask.numpy()[:, None].repeat(layers, 1)] = math.nan
    return values


@pytest.mark.few(3)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", families())
def test_every_cell_is_a_forward_with_one_value_replaced(
    name: str, part: Part, direction: Direction
) -> None:
    case = subject(name, dtype=torch.float64)
    found = patch(case.model, case.batch, part=part, direction=direction, progress=SILENT)
    slow = slowly(case.model, case.batch, part, direction)
    np.testing.assert_allclose(found.values, slow, rtol=0, atol=1e-10)
    # Before the first difference, which is column 3, nothing changes, to the last bit.
    zeros = (found.known == 0) & ~np.isnan(slow)
    assert (np.where(zeros, found.values - found.base[:, None, None], 0) == 0).all()
    if part != "heads":
        assert (found.known[:, :, :3] == 0).all()


@pytest.mark.few(3)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", families())
def test_the_cells_that_structure_fixes_are_those_that_nothing_can_change(
    name: str, part: Part
) -> None:
    """With random weights every other cell has a share of its own. The prompts are longer than
    sliding windows, where a family has them, and differ at columns 6 and 9 of 11.
    """
    case = subject(name, dtype=torch.float64)
    clean = torch.arange(33).reshape(3, 11) % 7
    other = clean.clone()
    other[:, 6] += 7
    other[1:, 9] += 9
    batch = Batch.from_tokens(clean, other, [1, 2, 3], [4, 5, 6])
    found = patch(case.model, batch, part=part, layers=None, progress=SILENT)
    slow = slowly(case.model, batch, part, "denoising")
    share = (slow - found.base[:, None, None]) / (found.source - found.base)[:, None, None]
    is_0, is_1 = np.isclose(share, 0, atol=1e-9), np.isclose(share, 1, atol=1e-9)
    np.testing.assert_array_equal(found.known == 0, is_0)
    np.testing.assert_array_equal(found.known == 1, is_1)
    if part == "resid":
        with_embedding = patch(case.model, batch, layers=[-1], progress=SILENT)
        # Alone to differ, the embedding of column 6 carries all.
        assert with_embedding.known[0, 0, 6] == 1 and np.isnan(with_embedding.known[1, 0, 6])
        np.testing.assert_allclose(with_embedding.values[0, 0, 6], found.source[0], rtol=1e-9)


def test_the_last_block_at_the_last_token_carries_everything() -> None:
    case = subject("llama", dtype=torch.float64)
    found = patch(case.model, case.batch, progress=SILENT)
    assert found.estimate(2, -1).value == 1.0
    assert (found.values[:, 2, -1] == found.source).all()
    assert found.share[2, 4] == 0.0


def test_noising_heads_is_exact_node_patching() -> None:
    case = subject("gemma3", dtype=torch.float64)
    found = patch(case.model, case.batch, part="heads", direction="noising", progress=SILENT)
    exact = ExactNodePatching().score(case.model, case.batch, progress=SILENT)
    graph = case.model.graph
    for layer in range(graph.n_layers):
        ours = found.base.mean() - found.values[:, layer].mean(axis=0)
        theirs = exact.values[graph.heads(layer)].numpy()
        # Scores are kept in fp32.
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_another_objective_and_layer_and_the_embedding() -> None:
    case = subject("gpt2", dtype=torch.float64)
    whole = patch(case.model, case.batch, objective="kl", layers=[-1, 1], progress=SILENT)
    assert whole.layers == (-1, 1)
    some = patch(case.model, case.batch, objective="kl", layers=[1], progress=SILENT)
    np.testing.assert_allclose(whole.values[:, 1:], some.values, rtol=1e-12)
    # The source is the clean run, which diverges from itself by nothing.
    np.testing.assert_allclose(whole.source, 0, atol=1e-12)


def test_shares_and_intervals_by_hand() -> None:
    values = np.array([[[1.0, 4.0]], [[3.0, 4.0]]])
    found = PatchMap(
        "mlp",
        "denoising",
        "logit_diff",
        values,
        np.array([1.0, 1.0]),
        np.array([5.0, 5.0]),
        np.full(values.shape, np.nan),
        (0,),
        (("a", "b"), ("a", "c")),
        ("t", "t"),
        ("x", "y"),
        ("x", "y"),
    )
    np.testing.assert_array_equal(found.share, [[0.25, 0.75]])
    assert found.headings == ("a", "b…")
    low, high = found.intervals[:, 0]
    assert low[0] <= 0.25 <= high[0]
    # Two pairs with the same share have no interval, rather than one of no width.
    assert math.isnan(low[1]) and np.isnan(found.joint_intervals[:, 0, 1]).all()
    assert "nan" not in found.verdict
    assert found.columns()["share"] == [0.25, 0.75]
    flat = PatchMap(
        "mlp", "denoising", "m", values, found.base, found.base, found.known, (0,), found.tokens,
        found.variants, found.ids, found.groups,
    )  # fmt: skip
    assert np.isnan(flat.share).all()
    for part, defined in ((1e-15, False), (1e-9, True)):
        near = replace(flat, source=found.base * (1 + part))
        ends = near.intervals[:, :, 0]
        assert np.isfinite(near.share).all() == np.isfinite(ends).all() == defined
    with pytest.raises(BadUsage, match=r"layers 0 to 0 and 2 tokens; got 1 and 0"):
        found.estimate(1, 0)
    with pytest.raises(UnknownName, match="template"):
        found.of("u")


def test_the_intervals_of_both_ends_are_over_groups() -> None:
    """Four copies of every pair say no more than one."""
    case = subject("gpt2", dtype=torch.float64)
    found = patch(case.model, case.batch, progress=SILENT)
    n, copies = len(found.ids), 4
    many = replace(
        found,
        values=np.tile(found.values, (copies, 1, 1)),
        known=np.tile(found.known, (copies, 1, 1)),
        base=np.tile(found.base, copies),
        source=np.tile(found.source, copies),
        tokens=found.tokens * copies,
        variants=found.variants * copies,
        ids=tuple(str(i) for i in range(n * copies)),
        groups=found.groups * copies,
    )
    for name in ("m_base", "m_source"):
        one, four = (each.record().measure(name, "model") for each in (found, many))
        assert one is not None and four is not None and one.low is not None
        assert (four.low, four.high) == pytest.approx((one.low, one.high))
        assert one.low < one.value < (one.high or 0)


def test_templates_have_maps_of_their_own() -> None:
    hf, tokenizer = with_words()
    model = make_model(hf, tokenizer, name="tiny")
    pairs = load_task("ioi").pairs("train", model, limit=12)
    found = patch(model, pairs, progress=SILENT)
    for pair, variant in zip(pairs, found.variants, strict=True):
        assert variant.startswith(pair.tags["template"])
    one = found.of(found.templates[0])
    alone = patch(
        model, [p for p, v in zip(pairs, found.variants, strict=True) if v == one.variants[0]],
        progress=SILENT,
    )  # fmt: skip
    np.testing.assert_allclose(one.values, alone.values, atol=1e-5)
    assert one.tokens == alone.tokens
    svg = one._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert svg.count("<svg") == 1
    assert found.plot() is not None


def test_a_token_without_text_is_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lone space of a sentencepiece vocabulary decodes to nothing."""
    hf, tokenizer = with_words()
    model = make_model(hf, tokenizer, name="tiny")
    pairs = load_task("ioi").pairs("train", model, limit=4)
    whole = patch(model, pairs, layers=[0], progress=SILENT)
    first = model.batch(pairs).clean[0, -1]
    decode = type(tokenizer).decode
    monkeypatch.setattr(
        type(tokenizer),
        "decode",
        lambda self, ids, **more: "" if ids == [int(first)] else decode(self, ids, **more),
    )
    found = patch(model, pairs, layers=[0], progress=SILENT)
    for template in found.templates:
        assert found.of(template).values.shape == whole.of(template).values.shape


def test_what_cannot_be_patched_is_refused() -> None:
    case = subject("gpt2")
    batch = token_pairs()
    same = Batch.from_tokens([[1, 2]], [[1, 2]], [3], [4], ids=["x"])
    with pytest.raises(BadPairs, match="Pair x: its prompts are the same"):
        patch(case.model, same)
    with pytest.raises(UnknownName, match="'residual'.*Did you mean 'resid'"):
        patch(case.model, batch, part="residual")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadUsage, match="has layers -1 to 2; got 7"):
        patch(case.model, batch, layers=[7])
    for layers in ([], [0, 0]):
        with pytest.raises(BadUsage, match="one or more, each once; got"):
            patch(case.model, batch, layers=layers)
    assert patch(case.model, batch, layers=1, progress=SILENT).layers == (1,)


def test_a_map_is_stored_read_and_shown(tmp_path: Path) -> None:
    hf, tokenizer = with_words()
    model = make_model(hf, tokenizer, name="tiny")
    found = patch(model, load_task("ioi").pairs("train", model, limit=6), progress=SILENT)
    again = PatchMap.load(found.save(tmp_path / "map.safetensors"))
    np.testing.assert_array_equal(again.values, found.values)
    np.testing.assert_array_equal(again.known, found.known)
    assert again.verdict == found.verdict
    for name in ("tokens", "parts", "variants", "layers", "ids", "higher_is_better", "last_layer"):
        assert getattr(again, name) == getattr(found, name)
    whole = found.whole
    assert whole is not None and {*found.parts} == {x.strip("[]") for x in whole.headings}
    # The last token comes last, whatever the order in which parts were stored.
    assert whole.headings[-1] == "[last]" and again.whole is not None
    assert again.whole.headings == whole.headings
    assert "last" in found.parts and whole.values.shape[2] == len(found.parts)
    # The column of a part is that part's token of each pair.
    last = found.values[:, :, -1]
    np.testing.assert_array_equal(whole.values[:, :, -1], last)
    record = found.record()
    base = record.measure("m_base", "model")
    assert record.checks[0].passed and base is not None and base.n == 6
    page = found.to_html(tmp_path / "map.html").read_text("utf-8")
    assert page.count("<svg") == 1 + len(found.templates) and "No verdict" in page
    hidden = found.without_tokens()
    assert set(hidden.of(hidden.templates[0]).headings) == {"·"}
    said = hidden.save(tmp_path / "hidden.safetensors").read_bytes().decode("latin-1")
    said += hidden.record().model_dump_json()
    assert not any(name in said for name in found.templates)
    assert hidden.templates == tuple(f"template {i + 1}" for i in range(len(found.templates)))
    (tmp_path / "cut.safetensors").write_bytes(b"no")
    with pytest.raises(BadFile, match="not a readable safetensors"):
        PatchMap.load(tmp_path / "cut.safetensors")


@pytest.mark.parametrize(
    ("counterfactual", "names"),
    [
        ("abc_counterfactual", {"the token that differs"}),
        (
            "random_names_counterfactual",
            {"the first token that differs", "the last token that differs"},
        ),
    ],
)
def test_tokens_that_differ_have_a_column(counterfactual: str, names: set[str]) -> None:
    model = make_model(*with_words(), name="tiny")
    pairs = load_task("ioi").pairs("train", model, limit=4, counterfactual=counterfactual)
    found = patch(model, [replace(pair, spans={}) for pair in pairs], progress=SILENT)
    assert {*found.parts} == {"last", *names}


def test_a_model_whose_base_and_source_are_alike_warns() -> None:
    case = subject("gpt2", dtype=torch.float64)
    found = patch(case.model, case.batch, progress=SILENT)
    alike = replace(found, source=found.base.copy())
    assert alike.record().warnings and not alike.record().checks
